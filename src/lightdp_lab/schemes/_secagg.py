"""The two parties of SecAgg, as `secagg` describes it: what each knows, and what it answers."""

from __future__ import annotations

import os
import secrets
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lightdp.client_set import ClientSet
from lightdp.errors import ProtocolError, WireError
from lightdp.keys import KeyPair
from lightdp.wire import Accumulator
from lightdp_lab.schemes import _shamir
from lightdp_lab.schemes._masks import add_masks, derive, sign, words
from lightdp_lab.schemes._net import RoundFailedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from lightdp_lab.schemes._scheme import Grid

SEED, PAIR = 0, 1  # of a client's secrets: b, and the private key of its masks
_KEYS = struct.Struct("<I32s32s")
_ONCE = bytes(12)  # the nonce: a sealing key is used once


@dataclass(frozen=True)
class Setting:
    """What everybody knows.

    Attributes:
        clients: N.
        dimension: d.
        degree: peers of a client.
        threshold: t, shares that open a secret.
        least: uploads without which there is no sum.
        grid: how values are counted.
    """

    clients: int
    dimension: int
    degree: int
    threshold: int
    least: int
    grid: Grid


class Client:
    """One client in one round: its secrets, and what it received. Each step is done once, in order."""

    def __init__(self, me: int, setting: Setting) -> None:
        self.me, self.setting, self._step = me, setting, 0
        self._seal, self._pair = KeyPair.generate(), KeyPair.generate()
        self._secrets = [os.urandom(32), self._pair.to_bytes()]
        self._peers: dict[int, tuple[bytes, bytes]] = {}
        self._sealing: dict[int, bytes] = {}  # what X25519 gives for sealing, by peer
        self._held: dict[int, NDArray[np.uint32]] = {}

    def advertise(self) -> bytes:
        """Its public keys."""
        self._next(1)
        return self._seal.public + self._pair.public

    def share(self, keys: bytes) -> dict[int, bytes]:
        """Sealed shares for each peer whose keys these are."""
        self._next(2)
        whole = len(keys) // _KEYS.size * _KEYS.size
        self._peers = {j: (seal, pair) for j, seal, pair in _KEYS.iter_unpack(keys[:whole])}
        if len(keys) != _KEYS.size * len(self._peers) or self.me in self._peers:
            raise ProtocolError(f"client {self.me} got a list of peers that is cut, or has itself or one twice")
        self._enough(len(self._peers) + 1, self.setting.threshold)
        holders = [self.me, *self._peers]
        shares = _shamir.split(self._secrets, self.setting.threshold, [j + 1 for j in holders])
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
        self._enough(len(self._held), self.setting.threshold)
        flags = np.zeros(self.setting.clients, np.bool_)
        flags[list(self._held)] = True
        grid = self.setting.grid
        values = words(self._encode(update), grid.bits)
        masks = ((self._mask(j), sign(self.me, j)) for j in self._held if j != self.me)
        add_masks(values, [(self._secrets[SEED], 1), *masks])
        return ClientSet(flags).to_bytes() + grid.pack(values)

    def unmask(self, uploaded: bytes) -> bytes:
        """For each client whose shares it holds, in order: that of b if it uploaded, else that of its mask key."""
        self._next(4)
        flags = ClientSet.from_bytes(uploaded, self.setting.clients).flags
        self._enough(int(flags.sum()) if flags[self.me] else 0, self.setting.least)
        return b"".join(self._held[j][SEED if flags[j] else PAIR].tobytes() for j in sorted(self._held))

    def _encode(self, update: NDArray[np.float32]) -> NDArray[np.int64]:
        """The update on the grid, with noise."""
        return self.setting.grid.encode(update)

    def _next(self, step: int) -> None:
        if step != self._step + 1:
            raise ProtocolError(f"client {self.me} is asked for step {step} after step {self._step}")
        self._step = step

    def _enough(self, came: int, needed: int) -> None:
        if came < needed:
            raise ProtocolError(f"client {self.me} is told of {came} clients, {needed} needed")

    def _mask(self, peer: int) -> bytes:
        return derive(self._pair.agree(self._peers[peer][1]), "mask", *sorted((self.me, peer)))


class Server:
    """The server in one round: what arrived."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._order = list(range(setting.clients))
        secrets.SystemRandom().shuffle(self._order)
        self._place = {i: place for place, i in enumerate(self._order)}
        self.keys: dict[int, bytes] = {}
        self.held: dict[int, NDArray[np.bool_]] = {}
        self.answers: dict[int, dict[int, NDArray[np.uint32]]] = {}
        self._sum = Accumulator(setting.dimension, setting.grid.bits)

    def roster(self, client: int) -> bytes:
        """The keys of its peers: on a ring in random order those next to it, half on each side."""
        clients, degree, place = len(self._order), self.setting.degree, self._place[client]
        steps = range(1, clients) if degree == clients - 1 else [*range(1, degree // 2 + 1), *range(-degree // 2, 0)]
        peers = {self._order[(place + step) % clients] for step in steps}
        return b"".join(j.to_bytes(4, "little") + self.keys[j] for j in sorted(peers & self.keys.keys()))

    def receive(self, client: int, upload: bytes) -> None:
        """Add a masked update."""
        size = -(-len(self._order) // 8)
        held = ClientSet.from_bytes(upload[:size], len(self._order)).flags
        if not held[client] or not self.keys.keys() >= set(np.flatnonzero(held).tolist()):
            raise WireError(f"client {client} holds shares of clients that were not there, or not its own")
        self._sum.add(memoryview(upload)[size:])
        self.held[client] = held

    def uploaded(self) -> bytes:
        """Who uploaded. Masks between those must be in both uploads or in none."""
        flags = np.zeros(len(self._order), np.bool_)
        flags[list(self.held)] = True
        links = np.array([self.held[i][flags] for i in sorted(self.held)])
        if (links != links.T).any():
            raise RoundFailedError("upload", "two clients do not agree whether they share a mask")
        return ClientSet(flags).to_bytes()

    def answer(self, client: int, shares: bytes) -> None:
        """Keep the shares that a client reveals."""
        owners = np.flatnonzero(self.held[client]).tolist()
        self.answers[client] = dict(zip(owners, table(shares, len(owners)), strict=True))

    def unmask(self) -> NDArray[np.unsignedinteger]:
        """The sum of the updates of those who uploaded, modulo 2^b."""
        masked = set().union(*(np.flatnonzero(held).tolist() for held in self.held.values()))
        found = recover("unmask", self.answers, sorted(masked | self.held.keys()), self.setting.threshold)
        terms = [(found[i][0], -1) for i in self.held]
        for gone in sorted(masked - self.held.keys()):
            pair = KeyPair(found[gone][0])
            if pair.public != self.keys[gone][32:]:
                raise RoundFailedError("unmask", f"the shares of client {gone} give another key")
            for i in (i for i, held in self.held.items() if held[gone]):
                key = derive(pair.agree(self.keys[i][32:]), "mask", *sorted((i, gone)))
                terms.append((key, -sign(i, gone)))
        total = words(self._sum.total(), self.setting.grid.bits)
        add_masks(total, terms)
        return total


def recover(
    stage: str, shares: Mapping[int, Mapping[int, NDArray[np.uint32]]], owners: Iterable[int], threshold: int
) -> dict[int, list[bytes]]:
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
        try:
            found = _shamir.combine([i + 1 for i in holders], revealed)
        except WireError as error:
            raise RoundFailedError(stage, str(error)) from None
        each = len(found) // len(owned)
        result |= {owner: found[k * each : (k + 1) * each] for k, owner in enumerate(owned)}
    return result


def table(shares: bytes, owners: int, each: int = 1) -> NDArray[np.uint32]:
    """Shares as they travel. (owners, each, LIMBS)"""
    if len(shares) != owners * each * _shamir.SIZE:
        raise WireError(f"{owners * each} shares must have {owners * each * _shamir.SIZE} bytes, got {len(shares)}")
    return np.frombuffer(shares, "<u4").reshape(owners, each, _shamir.LIMBS)
