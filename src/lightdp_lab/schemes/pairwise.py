"""Pairwise encryption without recovery: masks that cancel if everybody comes.

Mugunthan, Polychroniadou, Byrd, Balch: "SMPAI: Secure Multi-Party Computation for Federated Learning" (2019). Clients
agree on a key for each pair once. In round r client i uploads x_i + Σ_j s_ij PRG(k_ij, r) mod 2^b, with s_ij = 1 for
i < j and -1 otherwise. One message a round, and no way to take out the masks of who is missing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from numpy.typing import NDArray

from lightdp.errors import ProtocolError
from lightdp.keys import KeyPair
from lightdp.wire import Accumulator
from lightdp_lab.schemes._masks import add_masks, derive, sign, words
from lightdp_lab.schemes._net import Net
from lightdp_lab.schemes._scheme import Grid, Result, Smpc, Updates

_ROUND = struct.Struct("<Q")


class Client:
    """One client: a key for each peer, and the last round that it masked."""

    def __init__(self, me: int, grid: Grid) -> None:
        self.me, self._grid, self._last = me, grid, -1
        self._own = KeyPair.generate()
        self.public = self._own.public

    def join(self, publics: Sequence[bytes]) -> None:
        """Agree on a key with everybody, by their public keys in order."""
        if publics[self.me] != self.public or len(set(publics)) < len(publics):
            raise ProtocolError(f"client {self.me} got a list of keys without its own, or with one twice")
        self._keys = {
            j: derive(self._own.agree(public), "pair", *sorted((self.me, j)))
            for j, public in enumerate(publics)
            if j != self.me
        }

    def upload(self, start: bytes, update: NDArray[np.float32]) -> bytes:
        """The masked update. A round is masked once: two updates under one mask would show their difference."""
        (number,) = _ROUND.unpack(start)
        if number <= self._last:
            raise ProtocolError(f"round must be later than {self._last}, got round={number}")
        self._last = number
        values = words(self._grid.encode(update), self._grid.bits)
        info = b"lightdp/1 schemes round" + start
        keys = ((j, HKDFExpand(SHA256(), 32, info).derive(key)) for j, key in self._keys.items())
        add_masks(values, ((key, sign(self.me, j)) for j, key in keys))
        return self._grid.pack(values)


class Pairwise(Smpc, name="pairwise"):
    """Uniform masks for each pair, one upload; who is missing takes the round along.

    A sum exists only if all N came, so S̄ cannot take noise away: σ²/(N - C̄) each is enough. If colluders stay away,
    the server can take out their masks itself; the N - C̄ honest clients' noise is in what it then sees.
    """

    _rounds = 0

    @cached_property
    def grid(self) -> Grid:
        """How values are counted, with noise that only colluders take away."""
        plan, honest = self.task.plan("smpc"), self.task.clients - self.task.colluders
        return Grid.of(self.task, plan.sigma_effective / math.sqrt(honest), self.steps)

    @property
    def least(self) -> int:
        """All."""
        return self.task.clients

    def set_up(self, net: Net) -> None:
        """One key agreement for the whole training."""
        self._clients: dict[int, Client] = {}

        def enrol(i: int) -> bytes:
            self._clients[i] = Client(i, self.grid)
            return self._clients[i].public

        self.exchange_keys("keys", net, enrol, lambda i, publics: self._clients[i].join(publics))

    def round(self, updates: Updates, net: Net) -> Result:
        """The number of the round down, one masked upload up."""
        net.stage("upload")
        start, self._rounds = _ROUND.pack(self._rounds), self._rounds + 1
        total, used = Accumulator(self.task.dimension, self.grid.bits), set()
        uploads = net.ask(self._clients, start, lambda i, heard: self._clients[i].upload(heard, updates[i]))
        for i, upload in uploads:
            with net.server():
                total.add(upload)
            used.add(i)
        self.demand("upload", len(used), self.least)
        with net.server():
            return Result(self.grid.decode(total.total()), frozenset(used))
