"""Threshold Paillier: the sum is computed under encryption, and C̄ + 1 clients open it together."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np

from lightdp._validate import integer
from lightdp.errors import ArgumentError, MissingExtraError
from lightdp_lab.schemes._net import Net, RoundFailedError
from lightdp_lab.schemes._scheme import Grid, Result, Smpc, Task, Updates
from lightdp_lab.schemes._threshold import combine, deal

try:
    import gmpy2
except ImportError:  # all schemes can be named without it
    gmpy2 = None

from collections.abc import Iterable

from numpy.typing import NDArray

_GUARD = 32  # bits of a plaintext that stay zero, so that damage shows
_TAIL = 10  # standard deviations of noise in a slot, as in `Grid`


class Paillier(Smpc, name="paillier"):
    """Threshold Paillier (Damgård and Jurik 2001, s = 1) and DP noise, as Truex et al. 2019 use it.

    A dealer whom all trust draws n = pq from safe primes, shares the key among the N clients so that C̄ + 1 of them
    are needed, and forgets it. A round has two trips. Clients encrypt their noisy integers, many to a ciphertext;
    the server multiplies the ciphertexts. Then it asks C̄ + 1 + S̄ of those who uploaded for partial decryptions of
    the product, c^(2Δs_i) with Δ = N!, and C̄ + 1 answers give the sum.

    Encryption is (1 + n)^M h^r mod n², where the key holds h = (-x²)^n and r has half as many bits as n: the variant
    of Damgård, Jurik and Nielsen (2010). For products of safe primes such short exponents are as good as uniform ones
    if factoring is hard (Goldreich and Rosen 2003). As h is fixed, its powers are tabled, which saves most of the
    time that a fresh r^n takes.

    Fails with fewer than N - S̄ uploads or C̄ + 1 partial decryptions.

    As in Truex et al. everybody follows the protocol: there are no proofs of correct decryption, and a server that
    asks for one client's ciphertext in place of the product gets it. Damage by accident is found: partial decryptions
    that do not fit, or a sum outside its slots. Nothing runs in constant time.

    Args:
        task: what is summed.
        bits: of n, a multiple of 16; fewer than 2048 are for tests.
    """

    def __init__(self, task: Task, bits: int = 2048) -> None:
        if gmpy2 is None:
            raise MissingExtraError("schemes", "Threshold Paillier")
        super().__init__(task)
        self.bits = integer("bits", bits, 256)
        if bits % 16 != 0:
            raise ArgumentError(f"bits must be a multiple of 16, got bits={bits}")
        self.needed = task.colluders + 1
        self.slots = Slots(task, self.grid, bits)

    def set_up(self, net: Net) -> None:
        """The dealer's part. It is no client; its seconds count as the server's, its private channels as downlinks."""
        net.stage("deal")
        with net.server():
            self.key, shares = deal(self.bits, self.task.clients, self.needed)
            public = self.key.pack([self.key.n, self.key.base])
        self._shares: list[int] = []
        messages = (public + self.key.pack([share]) for share in shares)
        net.hand_out(messages, lambda _, message: self._shares.append(self.key.unpack(message)[2]))
        seconds = net.stages[-1].seconds
        before = seconds[0]
        with net.client(0):
            _ = self.key.powers  # of public numbers, everybody's the same: one copy is made, and all are charged for it
        took = seconds[0] - before
        for i in range(1, self.task.clients):
            seconds[i] += took

    def round(self, updates: Updates, net: Net) -> Result:
        """Upload ciphertexts; open their product."""
        key = self.key

        def encrypted(i: int) -> bytes:
            return key.pack(key.encrypt(value) for value in self.slots.fill(self.grid.encode(updates[i])))

        def decrypted(i: int, heard: bytes) -> bytes:
            exponent = 2 * math.factorial(self.task.clients) * self._shares[i]
            return key.pack(gmpy2.powmod(c, exponent, key.square) for c in self._read("decrypt", heard))

        net.stage("upload")
        product, used = [1] * self.slots.ciphertexts, list[int]()
        for i, arrived in net.collect(range(len(updates)), encrypted):
            with net.server():
                product = [a * b % key.square for a, b in zip(product, self._read("upload", arrived), strict=True)]
            used.append(i)
        self.demand("upload", len(used), self.least)

        net.stage("decrypt")
        with net.server():
            request = key.pack(product)
        partial: dict[int, list[int]] = {}
        for i, arrived in net.ask(used[: self.needed + self.task.stragglers], request, decrypted):
            with net.server():
                partial[i] = self._read("decrypt", arrived)
        self.demand("decrypt", len(partial), self.needed)
        with net.server():
            first = dict(islice(partial.items(), self.needed))
            total = self.slots.read(combine(key, self.task.clients, first), len(used))
            return Result(total * np.float64(self.grid.step), frozenset(used))

    def _read(self, stage: str, message: bytes) -> list[int]:
        values = self.key.unpack(message)
        if len(message) != self.slots.ciphertexts * self.key.size or not all(0 < v < self.key.square for v in values):
            raise RoundFailedError(stage, "a message is not a list of ciphertexts")
        return values


class Slots:
    """Where values lie in plaintexts: `each` to a ciphertext, `width` bits wide, so that no sum of N overflows.

    A client's value in steps is held within ±reach, which its noise passes with probability 10^-23, and lies there as
    value + reach >= 0.
    """

    def __init__(self, task: Task, grid: Grid, bits: int) -> None:
        self.dimension = task.dimension
        self.reach = math.ceil(task.clip / grid.step + _TAIL * grid.sigma)
        self.width = (2 * self.reach * task.clients).bit_length()
        self.each = (bits - 1 - _GUARD) // self.width
        self.ciphertexts = -(-task.dimension // self.each)

    def fill(self, values: NDArray[np.integer]) -> list[int]:
        """One client's plaintexts."""
        shifted = (np.clip(values, -self.reach, self.reach) + self.reach).tolist()
        return [gmpy2.pack(shifted[k : k + self.each], self.width) for k in range(0, self.dimension, self.each)]

    def read(self, plain: Iterable[int], used: int) -> NDArray[np.int64]:
        """The sum of `used` clients' values. (d,)"""
        total = np.zeros((self.ciphertexts, self.each), np.int64)
        for row, value in zip(total, plain, strict=True):
            if value.bit_length() > self.each * self.width:
                raise RoundFailedError("decrypt", "a sum does not fit its ciphertext")
            digits = gmpy2.unpack(value, self.width)
            row[: len(digits)] = [int(digit) for digit in digits]
        flat = total.reshape(-1)
        if flat.max() > 2 * self.reach * used or flat[self.dimension :].any():
            raise RoundFailedError("decrypt", "a sum does not fit its slot")
        return flat[: self.dimension] - used * self.reach
