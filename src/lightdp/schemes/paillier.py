"""Threshold Paillier: the sum is computed under encryption, and C̄ + 1 clients open it together."""

from __future__ import annotations

import math
import os
import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lightdp._check import ArgumentError, MissingExtraError, integer
from lightdp.schemes._net import RoundFailedError
from lightdp.schemes._scheme import Result, Smpc, Task

try:
    import gmpy2
except ImportError:  # all schemes can be named without it
    gmpy2 = None

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from lightdp.schemes._net import Net

_SIEVE, _WINDOW = 1 << 18, 1 << 17  # primes that sieve, candidates that are sieved
_CHECKS = 64  # of GMP's primality test: Baillie-PSW and 40 of Miller-Rabin
_GUARD = 32  # bits of a plaintext that stay zero: rubbish shows
_TAIL = 10  # standard deviations of noise in a slot, as in `Grid`


class Paillier(Smpc):
    """Threshold Paillier (Damgård and Jurik 2001, s = 1) and DP noise, as Truex et al. 2019 use it.

    A dealer whom all trust draws n = pq from safe primes, shares the key among the N clients so that C̄ + 1 of them
    are needed, and forgets it. A round has two trips. Clients encrypt their noisy integers, many to a ciphertext;
    the server multiplies the ciphertexts. Then it asks C̄ + 1 + S̄ of those who uploaded for partial decryptions of
    the product, c^(2Δs_i) with Δ = N!, and C̄ + 1 answers give the sum.

    Encryption is (1 + n)^M h^r mod n², where the key holds h = (-x²)^n and r has half as many bits as n: the variant
    of Damgård, Jurik and Nielsen (2010). For products of safe primes such short exponents are as good as uniform ones
    if factoring is hard (Goldreich and Rosen 2003). As h is fixed, its powers are tabled, which saves most of the
    time that a fresh r^n takes.

    As in Truex et al. everybody follows the protocol: there are no proofs of correct decryption, and a server that
    asks for one client's ciphertext in place of the product gets it. Damage by accident is found: partial decryptions
    that do not fit, or a sum outside its slots. Nothing runs in constant time.

    Args:
        task: what is summed.
        bits: of n, a multiple of 16; fewer than 2048 are for tests.
    """

    name, title = "paillier", "threshold Paillier + DP"
    source = "Damgård and Jurik 2001; Truex et al. 2019"
    broken_by = "fewer than N - S̄ uploads or C̄ + 1 decryptions; an active server; its dealer"

    def __init__(self, task: Task, bits: int = 2048) -> None:
        if gmpy2 is None:
            raise MissingExtraError("schemes", "Threshold Paillier")
        super().__init__(task)
        self.bits = integer("bits", bits, 256)
        if bits % 16 != 0:
            raise ArgumentError(f"bits must be a multiple of 16, got bits={bits}")
        self.needed = task.colluders + 1
        self.slots = Slots.of(self)

    def set_up(self, net: Net) -> None:
        """The dealer's part. It is no client; its seconds count as the server's, its private channels as downlinks."""
        net.stage("deal")
        with net.server():
            self.key, shares = deal(self.bits, self.task.clients, self.needed)
            public = self.key.pack([self.key.n, self.key.base])
        self._shares: list[int] = []
        for i, share in enumerate(shares):
            message = net.down(i, public + self.key.pack([share]))
            if message is None:
                raise RoundFailedError("deal", f"client {i} did not get its share")
            with net.client(i):
                self._shares.append(self.key.unpack(message)[2])
        seconds = net.stages[-1].seconds
        before = seconds[0]
        with net.client(0):
            _ = self.key.powers  # of public numbers, everybody's the same: one copy is made, and all are charged for it
        took = seconds[0] - before
        for i in range(1, self.task.clients):
            seconds[i] += took

    def round(self, updates: Sequence[NDArray[np.float32]], net: Net) -> Result:
        """Upload ciphertexts; open their product."""
        product, used = self._gather(updates, net)
        self.demand("upload", len(used), self.least)
        partial = self._ask(product, sorted(used)[: self.needed + self.task.stragglers], net)
        self.demand("decrypt", len(partial), self.needed)
        with net.server():
            first = {i: partial[i] for i in sorted(partial)[: self.needed]}
            total = self.slots.read(combine(self.key, self.task.clients, first), len(used))
            return Result(total * np.float64(self.grid.step), frozenset(used))

    def _gather(self, updates: Sequence[NDArray[np.float32]], net: Net) -> tuple[list[int], set[int]]:
        """The product of everybody's ciphertexts, and whose."""
        key, used, product = self.key, set[int](), [1] * self.slots.ciphertexts
        net.stage("upload")
        for i, update in enumerate(updates):
            if not net.works(i):
                continue
            with net.client(i):
                message = key.pack(key.encrypt(value) for value in self.slots.fill(self.grid.encode(update)))
            arrived = net.up(i, message)
            if arrived is not None:
                with net.server():
                    product = [a * b % key.square for a, b in zip(product, self._read("upload", arrived), strict=True)]
                used.add(i)
        return product, used

    def _ask(self, product: list[int], who: Iterable[int], net: Net) -> dict[int, list[int]]:
        """Partial decryptions, by client."""
        key, partial = self.key, dict[int, list[int]]()
        net.stage("decrypt")
        with net.server():
            request = key.pack(product)
        for i in who:
            message = net.down(i, request)
            if message is None:
                continue
            with net.client(i):
                exponent = 2 * math.factorial(self.task.clients) * self._shares[i]
                answer = key.pack(gmpy2.powmod(c, exponent, key.square) for c in self._read("decrypt", message))
            arrived = net.up(i, answer)
            if arrived is not None:
                with net.server():
                    partial[i] = self._read("decrypt", arrived)
        return partial

    def _read(self, stage: str, message: bytes) -> list[int]:
        values = self.key.unpack(message)
        if len(message) != self.slots.ciphertexts * self.key.size or not all(0 < v < self.key.square for v in values):
            raise RoundFailedError(stage, "a message is not a list of ciphertexts")
        return values


@dataclass(frozen=True)
class Slots:
    """Where values lie in plaintexts: `each` to a ciphertext, `width` bits wide, so that no sum of N overflows.

    A client's value in steps is held within ±reach, which its noise passes with probability 10^-23, and lies there as
    value + reach >= 0.
    """

    dimension: int
    reach: int
    width: int
    each: int

    @classmethod
    def of(cls, scheme: Paillier) -> Slots:
        """For the scheme's grid and key."""
        task, grid = scheme.task, scheme.grid
        reach = math.ceil(task.clip / grid.step + _TAIL * grid.sigma)
        width = (2 * reach * task.clients).bit_length()
        return cls(task.dimension, reach, width, (scheme.bits - 1 - _GUARD) // width)

    @property
    def ciphertexts(self) -> int:
        """How many hold all values."""
        return -(-self.dimension // self.each)

    def fill(self, values: NDArray[np.int64]) -> list[int]:
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


@dataclass(frozen=True)
class Key:
    """The public key: n, and the n-th power whose powers blind."""

    n: int
    base: int

    @cached_property
    def square(self) -> int:
        """n²."""
        return self.n * self.n

    @property
    def size(self) -> int:
        """Bytes of a number modulo n²."""
        return self.n.bit_length() // 4

    @cached_property
    def powers(self) -> list[list[int]]:
        """base^(b 256^k) for every byte b: row k, column b."""
        rows, step = [], self.base
        for _ in range(self.n.bit_length() // 16):
            row = [gmpy2.mpz(1)]
            for _ in range(256):
                row.append(row[-1] * step % self.square)
            step = row.pop()
            rows.append(row)
        return rows

    def encrypt(self, value: int) -> int:
        """A fresh ciphertext."""
        result = 1 + self.n * value
        for row, digit in zip(self.powers, os.urandom(len(self.powers)), strict=True):
            result = result * row[digit] % self.square
        return result

    def pack(self, values: Iterable[int]) -> bytes:
        """Numbers modulo n² as bytes."""
        return b"".join(value.to_bytes(self.size, "little") for value in values)

    def unpack(self, message: bytes) -> list[int]:
        """Those numbers."""
        starts = range(0, len(message), self.size)
        return [gmpy2.mpz(int.from_bytes(message[k : k + self.size], "little")) for k in starts]


def deal(bits: int, clients: int, needed: int) -> tuple[Key, list[int]]:
    """A key, and the clients' shares of it; any `needed` of them decrypt.

    The secret is d = 0 mod m and 1 mod n, with m = (p - 1)(q - 1) / 4; shares are a polynomial's values modulo nm.
    """
    p = safe_prime(bits // 2)
    while (q := safe_prime(bits // 2)) == p:
        pass
    n, m = p * q, (p - 1) * (q - 1) // 4
    secret = m * gmpy2.invert(m, n)
    polynomial = [secret, *(secrets.randbelow(int(n * m)) for _ in range(needed - 1))]
    shares = [sum(a * i**k for k, a in enumerate(polynomial)) % (n * m) for i in range(1, clients + 1)]
    while gmpy2.gcd(x := secrets.randbelow(int(n)), n) != 1:
        pass
    return Key(n, gmpy2.powmod(-x * x, n, n * n)), shares


def combine(key: Key, clients: int, partial: Mapping[int, Sequence[int]]) -> list[int]:
    """Plaintexts from as many clients' partial decryptions as are needed.

    Raises:
        RoundFailedError: they are not of one ciphertext and key.
    """
    weights, delta = lagrange(clients, list(partial))
    inverse = gmpy2.invert(4 * math.factorial(clients) * delta, key.n)
    result = []
    for parts in zip(*partial.values(), strict=True):
        product = gmpy2.mpz(1)
        for part, weight in zip(parts, weights, strict=True):
            product = product * gmpy2.powmod(part, 2 * weight, key.square) % key.square
        if product % key.n != 1:
            raise RoundFailedError("decrypt", "partial decryptions do not fit together")
        result.append((product - 1) // key.n * inverse % key.n)
    return result


def lagrange(clients: int, who: Sequence[int]) -> tuple[list[int], int]:
    """Integers w_i and D with sum_i w_i f(i + 1) = D f(0) for every polynomial of degree < len(who).

    D divides N!: the factor that all of Δ = N! and Δ times the usual weights share is taken out, which only saves
    time.
    """
    delta, points = math.factorial(clients), [i + 1 for i in who]
    weights = []
    for i in points:
        others = [j for j in points if j != i]
        weights.append(delta * math.prod(others) // math.prod(j - i for j in others))  # exact
    common = math.gcd(delta, *weights)
    return [weight // common for weight in weights], delta // common


def safe_prime(bits: int) -> int:
    """A random prime p of `bits` bits, the two highest of them set, for which (p - 1) / 2 is prime too.

    The next one after a random number: candidates for (p - 1) / 2 are 5 modulo 6, and both are sieved together.
    """
    small = _primes(min(_SIEVE, 1 << bits // 3))
    while True:
        start = gmpy2.mpz((3 << (bits - 3)) + secrets.randbits(bits - 3))
        start += 5 - start % 6
        left = np.ones(_WINDOW, np.bool_)
        for prime in small:
            inverse, rest = pow(6, -1, prime), int(start % prime)
            left[-rest * inverse % prime :: prime] = False
            left[(prime // 2 - rest) * inverse % prime :: prime] = False
        for k in np.flatnonzero(left).tolist():
            half = start + 6 * k
            if gmpy2.powmod(2, half - 1, half) != 1:
                continue
            p = 2 * half + 1
            if gmpy2.is_prime(p, _CHECKS) and gmpy2.is_prime(half, _CHECKS) and p.bit_length() == bits:
                return p


def _primes(limit: int) -> list[int]:
    """Primes from 5 to `limit`."""
    left = np.ones(limit + 1, np.bool_)
    for k in range(2, math.isqrt(limit) + 1):
        left[k * k :: k] = False
    return [prime for prime in np.flatnonzero(left).tolist() if prime >= 5]
