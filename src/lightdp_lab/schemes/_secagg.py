"""The two parties of SecAgg, as `secagg` describes it: what each knows, and what it answers."""

from __future__ import annotations

import os
import secrets
import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from lightdp.client_set import ClientSet, bitmap_size
from lightdp.errors import ProtocolError, WireError
from lightdp.keys import KeyPair
from lightdp.wire import Accumulator
from lightdp_lab.schemes import _shamir
from lightdp_lab.schemes._masks import add_masks, derive, sign, words
from lightdp_lab.schemes._net import RoundFailedError, ending

if TYPE_CHECKING:
    from lightdp_lab.schemes.secagg import SecAgg

Shares = dict[int, dict[int, NDArray[np.uint32]]]  # by holder and owner
SEED, PAIR = 0, 1  # of a client's secrets: b, and the private key of its masks
_KEYS = struct.Struct("<I32s32s")
_ONCE = bytes(12)  # the nonce: a sealing key is used once


class Client:
    """One client in one round: its secrets, and what it received. Each step is done once, in order."""

    def __init__(self, me: int, scheme: SecAgg) -> None:
        self.me, self.scheme, self._step = me, scheme, 0

    def advertise(self) -> bytes:
        """Its public keys."""
        self._next(1)
        self._seal, self._pair = KeyPair.generate(), KeyPair.generate()
        self._secrets = [os.urandom(32), self._pair.to_bytes()]
        return self._seal.public + self._pair.public

    def share(self, keys: bytes) -> dict[int, bytes]:
        """Sealed shares for each peer whose keys these are."""
        self._next(2)
        whole = len(keys) // _KEYS.size * _KEYS.size
        self._peers = {j: (seal, pair) for j, seal, pair in _KEYS.iter_unpack(keys[:whole])}
        if len(keys) != _KEYS.size * len(self._peers) or self.me in self._peers:
            raise ProtocolError(f"client {self.me} got a list of peers that is cut, or has itself or one twice")
        self._enough(len(self._peers) + 1, self.scheme.threshold)
        holders = [self.me, *self._peers]
        shares = _shamir.split(self._secrets, self.scheme.threshold, [j + 1 for j in holders])
        self._held = {self.me: shares[0]}
        self._sealing = {j: self._seal.agree(public) for j, (public, _) in self._peers.items()}
        return {
            j: AESGCM(derive(self._sealing[j], "seal", self.me, j)).encrypt(_ONCE, share.tobytes(), None)
            for j, share in zip(holders[1:], shares[1:], strict=True)
        }

    def upload(self, inbox: Iterable[tuple[int, bytes]], update: NDArray[np.float32]) -> bytes:
        """Whose shares it holds, its own among them, and the masked update."""
        self._next(3)
        for j, sealed in inbox:
            if j not in self._peers or j in self._held:
                raise ProtocolError(f"client {self.me} got shares of client {j}, who is no peer or was there before")
            try:
                share = AESGCM(derive(self._sealing[j], "seal", j, self.me)).decrypt(_ONCE, sealed, None)
            except InvalidTag:
                raise ProtocolError(f"shares of client {j} for client {self.me} were tampered with") from None
            self._held[j] = table(share, len(self._secrets))[:, 0]
        self._enough(len(self._held), self.scheme.threshold)
        values = words(self._encode(update), self.scheme.grid.bits)
        peers = [j for j in self._held if j != self.me]
        masks = ((_mask_key(self._pair, self._peers[j][1], self.me, j), sign(self.me, j)) for j in peers)
        add_masks(values, [(self._secrets[SEED], 1), *masks])
        return ClientSet.of(self.scheme.task.clients, self._held).to_bytes() + self.scheme.grid.pack(values)

    def unmask(self, uploaded: bytes) -> bytes:
        """For each client whose shares it holds, in order: that of b if it uploaded, else that of its mask key."""
        self._next(4)
        self._uploaded = named = ClientSet.from_bytes(uploaded, self.scheme.task.clients)
        self._enough(len(named) if self.me in named else 0, self.scheme.least)
        return b"".join(self._held[j][SEED if j in named else PAIR].tobytes() for j in sorted(self._held))

    def _encode(self, update: NDArray[np.float32]) -> NDArray[np.int32]:
        """The update on the grid, with noise."""
        return self.scheme.grid.encode(update)

    def _next(self, step: int) -> None:
        if step != self._step + 1:
            raise ProtocolError(f"client {self.me} is asked for step {step} after step {self._step}")
        self._step = step

    def _enough(self, came: int, needed: int) -> None:
        if came < needed:
            raise ProtocolError(f"client {self.me} is told of {came} clients, {needed} needed")


class Server:
    """The server in one round: what arrived."""

    def __init__(self, scheme: SecAgg) -> None:
        self.scheme, self.clients = scheme, scheme.task.clients
        self._order = list(range(self.clients))
        secrets.SystemRandom().shuffle(self._order)
        self._place = {i: place for place, i in enumerate(self._order)}
        self.keys: dict[int, bytes] = {}
        self.held: dict[int, ClientSet] = {}
        self.answers: Shares = {}
        self._sum = Accumulator(scheme.task.dimension, scheme.grid.bits)

    def roster(self, client: int) -> bytes:
        """The keys of its peers: on a ring in random order those next to it, half on each side."""
        first, degree = self._place[client] - self.scheme.degree // 2, self.scheme.degree
        peers = {self._order[place % self.clients] for place in range(first, first + degree + 1)} - {client}
        return b"".join(j.to_bytes(4, "little") + self.keys[j] for j in sorted(peers & self.keys.keys()))

    def receive(self, client: int, upload: bytes) -> None:
        """Add a masked update."""
        size = bitmap_size(self.clients)
        held = ClientSet.from_bytes(upload[:size], self.clients)
        if client not in held or not self.keys.keys() >= set(held):
            raise WireError(f"client {client} holds shares of clients that were not there, or not its own")
        self._sum.add(memoryview(upload)[size:])
        self.held[client] = held

    def uploaded(self) -> bytes:
        """Who uploaded. Masks between those must be in both uploads or in none."""
        came = sorted(self.held)
        links = np.array([self.held[i].flags[came] for i in came])
        if (links != links.T).any():
            raise RoundFailedError("upload", "two clients do not agree whether they share a mask")
        return ClientSet.of(self.clients, came).to_bytes()

    def answer(self, client: int, shares: bytes) -> None:
        """Keep the shares that a client reveals."""
        owners = self.held[client]
        self.answers[client] = dict(zip(owners, table(shares, len(owners)), strict=True))

    def total(self) -> NDArray[np.float64]:
        """The sum of the updates of those who uploaded, without their masks."""
        masked = set().union(*self.held.values())
        found = recover("unmask", self.answers, sorted(masked | self.held.keys()), self.scheme.threshold)
        terms = [(found[i][0], -1) for i in self.held]
        for gone in sorted(masked - self.held.keys()):
            pair = KeyPair(found[gone][0])
            if pair.public != self.keys[gone][32:]:
                raise RoundFailedError("unmask", f"the shares of client {gone} give another key")
            peers = [i for i, held in self.held.items() if gone in held]
            terms += [(_mask_key(pair, self.keys[i][32:], i, gone), -sign(i, gone)) for i in peers]
        total = words(self._sum.total(), self.scheme.grid.bits)
        add_masks(total, terms)
        return self.scheme.grid.decode(total)


def _mask_key(pair: KeyPair, public: bytes, one: int, other: int) -> bytes:
    """The key of the mask that two clients share, from either's key pair."""
    return derive(pair.agree(public), "mask", *sorted((one, other)))


def recover(stage: str, shares: Shares, owners: Iterable[int], threshold: int) -> dict[int, list[bytes]]:
    """The secrets of `owners` from what holders revealed: shares[holder][owner] is (secrets, LIMBS)."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for owner in owners:
        holders = tuple(i for i, revealed in shares.items() if owner in revealed)
        if len(holders) < threshold:
            raise RoundFailedError(stage, f"{len(holders)} shares of client {owner}, {threshold} needed")
        alike[holders[:threshold]].append(owner)
    result: dict[int, list[bytes]] = {}
    for holders, owned in alike.items():
        revealed = np.stack([np.concatenate([shares[i][owner] for owner in owned]) for i in holders])
        with ending(stage):
            found = _shamir.combine([i + 1 for i in holders], revealed)
        each = len(found) // len(owned)
        result |= {owner: found[k * each : (k + 1) * each] for k, owner in enumerate(owned)}
    return result


def table(shares: bytes, owners: int, each: int = 1) -> NDArray[np.uint32]:
    """Shares as they travel. (owners, each, LIMBS)"""
    if len(shares) != owners * each * _shamir.SIZE:
        raise WireError(f"{owners * each} shares must have {owners * each * _shamir.SIZE} bytes, got {len(shares)}")
    return np.frombuffer(shares, "<u4").reshape(owners, each, _shamir.LIMBS)
