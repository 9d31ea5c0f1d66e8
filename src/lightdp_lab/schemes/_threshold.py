"""The mathematics of threshold Paillier (Damgård and Jurik 2001, s = 1): keys, shares, and how they open a sum."""

from __future__ import annotations

import math
import os
import secrets
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lightdp_lab.schemes._net import RoundFailedError

try:
    import gmpy2
except ImportError:  # said when the scheme is made
    gmpy2 = None

from collections.abc import Iterable, Mapping, Sequence

_SIEVE, _WINDOW = 1 << 18, 1 << 17  # primes that sieve, candidates that are sieved
_CHECKS = 64  # of GMP's primality test: Baillie-PSW and 40 of Miller-Rabin


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
    others = {i: [j for j in points if j != i] for i in points}
    weights = [delta * math.prod(js) // math.prod(j - i for j in js) for i, js in others.items()]  # exact
    common = math.gcd(delta, *weights)
    return [weight // common for weight in weights], delta // common


def safe_prime(bits: int) -> int:
    """A random prime p of `bits` bits, the two highest of them set, for which (p - 1) / 2 is prime too.

    The next one after a random number: candidates for (p - 1) / 2 are 5 modulo 6, and both are sieved together.
    """
    small = _primes(min(_SIEVE, 1 << bits // 3))  # far below any candidate
    while True:
        start = gmpy2.mpz((3 << (bits - 3)) + secrets.randbits(bits - 3))
        start += 5 - start % 6
        for k in sieve(start, small):
            half = start + 6 * k
            if gmpy2.powmod(2, half - 1, half) != 1:
                continue
            p = 2 * half + 1
            if gmpy2.is_prime(p, _CHECKS) and gmpy2.is_prime(half, _CHECKS) and p.bit_length() == bits:
                return p


def sieve(start: int, small: Iterable[int], window: int = _WINDOW) -> list[int]:
    """The k < window for which no small prime, 5 or above, divides half = start + 6k or 2 half + 1."""
    left = np.ones(window, np.bool_)
    for prime in small:
        inverse, rest = pow(6, -1, prime), int(start % prime)
        left[-rest * inverse % prime :: prime] = False
        left[(prime // 2 - rest) * inverse % prime :: prime] = False
    return np.flatnonzero(left).tolist()


def _primes(limit: int) -> list[int]:
    """Primes from 5 to `limit`."""
    left = np.ones(limit + 1, np.bool_)
    for k in range(2, math.isqrt(limit) + 1):
        left[k * k :: k] = False
    return [prime for prime in np.flatnonzero(left).tolist() if prime >= 5]
