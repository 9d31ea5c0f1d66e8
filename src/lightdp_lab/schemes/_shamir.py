"""Shamir's secret sharing (1979) of 32-byte secrets, many at a time.

The field has p = 2^32 - 5 elements: an element is 4 bytes, and a product of two fits 64 bits. A secret and the first 6
bytes of its SHA-256 are 10 elements of 31 bits, least first; each is the value at 0 of a random polynomial of degree
t - 1, and a share is the values at a point x >= 1. Any t shares give the secret; t - 1 say nothing about it, up to
the strength of AES, from which coefficients come. The hash finds shares that were changed or do not belong together;
who changes one without knowing the secret is found out but for once in 2^48.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lightdp._validate import integer, octets
from lightdp.errors import ArgumentError, WireError
from lightdp_lab.schemes._field import Field

FIELD = Field(32)
LIMBS = 10
SIZE = 4 * LIMBS
_BITS = 31
_CHECK = 6  # bytes of the hash
_LAST = 2**31 - 1  # largest point


def split(secrets: Sequence[bytes], threshold: int, points: Sequence[int]) -> NDArray[np.uint32]:
    """Shares of all `secrets` for all `points`; any `threshold` of them give the secrets. (points, secrets, LIMBS)"""
    x = np.array(_checked(points), np.uint64)
    integer("threshold", threshold, 1, len(points))
    limbs = np.array([_limbs(secret) for secret in secrets], np.uint32)
    drawn = FIELD.uniform((threshold - 1) * limbs.size).reshape(-1, limbs.size)
    powers = np.ones((len(points), threshold), np.uint32)
    for k in range(1, threshold):
        powers[:, k] = powers[:, k - 1] * x % FIELD.p
    shares = FIELD.matmul(powers, np.concatenate([limbs.reshape(1, -1), drawn]))
    return shares.reshape(-1, *limbs.shape).astype("<u4")


def combine(points: Sequence[int], shares: NDArray[np.uint32]) -> list[bytes]:
    """The secrets of which these are the shares at `points`, as many as the threshold. (points, secrets, LIMBS)

    Raises:
        WireError: they are not shares of 32 bytes each, by one threshold.
    """
    if shares.shape[0] != len(points) or shares.shape[2:] != (LIMBS,):
        raise ArgumentError(f"shares must be ({len(points)}, secrets, {LIMBS}), got {shares.shape}")
    weights = np.array([_weights(_checked(points))], np.uint32)
    limbs = FIELD.matmul(weights, shares.reshape(len(points), -1)).reshape(-1, LIMBS)
    return [_secret(row) for row in limbs.tolist()]


def _limbs(secret: bytes) -> list[int]:
    number = int.from_bytes(octets("secret", secret, 32) + hashlib.sha256(secret).digest()[:_CHECK], "little")
    return [(number >> (_BITS * k)) % (1 << _BITS) for k in range(LIMBS)]


def _secret(limbs: list[int]) -> bytes:
    number = sum(limb << (_BITS * k) for k, limb in enumerate(limbs))
    secret = (number % (1 << 256)).to_bytes(32, "little")
    if _limbs(secret) != limbs:
        raise WireError("shares do not belong together")
    return secret


@lru_cache(maxsize=1024)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's, for the value at 0: Π_{j≠i} x_j / (x_j - x_i). For one target, integers are faster than arrays."""
    others = {x: [y for y in points if y != x] for x in points}
    return tuple(math.prod(ys) * pow(math.prod(y - x for y in ys), -1, FIELD.p) % FIELD.p for x, ys in others.items())


def _checked(points: Sequence[int]) -> tuple[int, ...]:
    result = tuple(integer("point", x, 1, _LAST) for x in points)
    if len(set(result)) < len(result):
        raise ArgumentError(f"points must differ, got points={list(points)}")
    return result
