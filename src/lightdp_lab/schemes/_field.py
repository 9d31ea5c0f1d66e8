"""Arithmetic modulo a prime, fast in numpy and exact: elements from keys, matrix products, interpolation, bytes.

Elements are uint32 in [0, p). Matrix products run on float64 BLAS: an integer below 2^53 is exact there in whatever
order it is summed up, so the left matrix is cut into limbs narrow enough that no sum reaches 2^52.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from lightdp._validate import integer, octets
from lightdp.errors import ArgumentError, WireError
from lightdp.wire import Accumulator, encode

Elements: TypeAlias = "NDArray[np.uint32]"

_COLUMNS = 4096  # of a product at once: temporaries stay near the core
_WORDS = 1 << 16  # of a key stream at once


@dataclass(frozen=True)
class Field:
    """The integers modulo p, the largest prime below 2^bits: an element takes `bits` bits, and few draws are refused.

    Attributes:
        bits: 8..32.
    """

    bits: int

    def __post_init__(self) -> None:
        integer("bits", self.bits, 8, 32)

    @cached_property
    def p(self) -> int:
        """The prime, found by trial division."""
        divisors = np.arange(2, math.isqrt(1 << self.bits) + 1)
        candidate = (1 << self.bits) - 1
        while (candidate % divisors[divisors * divisors <= candidate] == 0).any():
            candidate -= 1
        return candidate

    # elements

    def of(self, integers: NDArray[np.integer]) -> Elements:
        """Signed integers, as elements."""
        return np.remainder(integers, self.p).astype(np.uint32)

    def centred(self, elements: Elements) -> NDArray[np.int64]:
        """Elements, as the integers in [-p/2, p/2]."""
        return np.where(elements > self.p // 2, elements - np.int64(self.p), elements)

    def uniform(self, length: int, key: bytes | None = None) -> Elements:
        """Independent elements, each value equally likely: from the system's entropy, or always the same from a key.

        Words of AES-128-CTR, whose first counter is the second half of the key, are cut to `bits` bits, and those of p
        and above are refused. A key must serve no other purpose. (length,)
        """
        key = os.urandom(32) if key is None else octets("key", key, 32)
        word: np.dtype[np.unsignedinteger] = np.dtype("<u2") if self.bits <= 16 else np.dtype("<u4")
        cipher = Cipher(AES128(key[:16]), CTR(key[16:])).encryptor()
        zeros = bytes(min(_WORDS, length + length // 32 + 8) * word.itemsize)  # a 32nd is refused at most
        mask = np.array((1 << self.bits) - 1, word)
        result, filled = np.empty(integer("length", length, 0), np.uint32), 0
        while filled < length:
            words = np.frombuffer(cipher.update(zeros), word) & mask
            kept = words[words < self.p][: length - filled]
            result[filled : filled + kept.size] = kept
            filled += kept.size
        return result

    def subtract(self, left: Elements, right: Elements) -> Elements:
        """left - right."""
        return self.add(left, np.uint32(self.p) - right)

    def add(self, left: Elements, right: Elements) -> Elements:
        """left + right."""
        return self._folded(np.add(left, right, dtype=self._word))

    # matrices

    def matmul(self, left: Elements, right: Elements) -> Elements:
        """The product, exact. (r, k) times (k, c) is (r, c)"""
        terms = left.shape[1]
        limb = min(52 - self.bits - terms.bit_length(), self.bits)
        if limb < 1:
            raise ArgumentError(f"left must have fewer columns, got shape={left.shape} at bits={self.bits}")
        shifts = range((self.bits - 1) // limb * limb, -1, -limb)
        limbs = [((left >> shift) & ((1 << limb) - 1)).astype(np.float64) for shift in shifts]
        result = np.empty((left.shape[0], right.shape[1]), np.uint32)
        for start in range(0, right.shape[1], _COLUMNS):
            block = right[:, start : start + _COLUMNS].astype(np.float64)
            part = self._reduced(limbs[0] @ block)  # of terms 2^limb 2^bits at most
            for factor in limbs[1:]:  # (terms + 1) 2^limb 2^bits <= 2^52
                part = self._reduced(part * np.float64(1 << limb) + factor @ block)
            result[:, start : start + _COLUMNS] = part
        return result

    def lagrange(self, sources: Sequence[int], targets: Sequence[int]) -> Elements:
        """The matrix that takes a polynomial's values at `sources` to those at `targets`. (targets, sources)

        For polynomials of degree below the number of sources; sources are distinct modulo p. Entry (t, s) is
        prod_(r != s) (t - r)/(s - r).
        """
        xs, ys = (np.remainder(np.asarray(v, np.int64), self.p).astype(np.uint64) for v in (sources, targets))
        if len(np.unique(xs)) != len(xs):
            raise ArgumentError(f"sources must be distinct modulo p={self.p}, got sources={sources}")
        above = np.ones((len(ys), len(xs)), np.uint64)
        below = np.ones(len(xs), np.uint64)
        p = np.uint64(self.p)
        for k, x in enumerate(xs):
            others = np.arange(len(xs)) != k
            above[:, others] = above[:, others] * ((ys + p - x) % p)[:, None] % p
            below[others] = below[others] * ((xs[others] + p - x) % p) % p
        inverse = np.array([pow(value, -1, self.p) for value in below.tolist()], np.uint64)
        return (above * inverse % p).astype(np.uint32)

    # bytes, as in (W1)

    def pack(self, elements: Elements) -> bytes:
        """A vector, `bits` bits each."""
        return bytes(encode(elements.view(np.int32), shift=0, bits=self.bits))

    def unpack(self, packed: bytes, length: int) -> Elements:
        """What `pack` was given; anything else is a `WireError`. (length,)"""
        one = Accumulator(length, self.bits)
        one.add(packed)
        elements = one.total().view(np.uint32) & np.uint32((1 << self.bits) - 1)
        if elements.max() >= self.p:
            raise WireError(f"elements must be below p={self.p}, got {elements.max()}")
        return elements

    def total(self, packed: Iterable[bytes], length: int) -> Elements:
        """The sum of packed vectors, one in memory at a time. (length,)"""
        result = np.zeros(length, np.uint64)
        for vector in packed:
            result += self.unpack(vector, length)
        return (result % np.uint64(self.p)).astype(np.uint32)

    def _reduced(self, values: NDArray[np.float64]) -> Elements:
        """Integers in [0, 2^52], modulo p; `values` is overwritten.

        The quotient is rounded downwards by more than its error and by less than 1: it is right or one too small.
        """
        quotient = values * ((1 - 2.0**-50) / self.p)
        np.floor(quotient, out=quotient)
        quotient *= self.p
        values -= quotient
        return self._folded(values.astype(self._word))

    @property
    def _word(self) -> type[np.unsignedinteger]:
        """A type that holds 2p."""
        return np.uint32 if self.bits < 32 else np.uint64

    def _folded(self, values: NDArray[np.unsignedinteger]) -> Elements:
        """Values in [0, 2p], modulo p: what is below p wraps to something large when p is taken off."""
        return np.minimum(values, values - self._word(self.p)).astype(np.uint32, copy=False)
