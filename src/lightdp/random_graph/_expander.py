"""The expander on which seats lie (S1): its shape, its edges and its second eigenvalue."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

_SMALL = 64  # rows, and a quarter of the columns, up to which the second eigenvalue of several layers is computed


def sums(a: ArrayLike, layers: int, width: int, height: int) -> NDArray[np.int64]:
    """ac + l(a² + c²) modulo `width`, in each layer, for each a and c. (layers, ..., height)"""
    a, c = np.asarray(a)[..., None], np.arange(1, height + 1)
    every = np.arange(layers).reshape(-1, *[1] * (a.ndim - 1), 1) if a.ndim > 1 else np.arange(layers)[:, None]
    return np.asarray((a * c + every * (a * a + c * c)) % width)


@lru_cache(maxsize=64)
def shape(clients: int, degree: int) -> tuple[int, int]:
    """Layers and q: of those that come near this degree, what leaves most above `second`."""
    fewest = max(degree // (math.isqrt(clients) + 1), 1)
    shapes = [(layers, _prime(clients, degree, layers)) for layers in range(fewest, fewest + 6)]

    def gap(layers_and_width: tuple[int, int]) -> float:
        layers, width = layers_and_width
        return layers * clients / width - second(layers, width, -(-clients // width))

    return max(shapes, key=gap)


def second(layers: int, width: int, height: int) -> float:
    """A bound on the second largest eigenvalue of the adjacency matrix of all seats."""
    most = layers * math.sqrt(width)
    small = layers > 1 and height <= _SMALL and width <= 4 * _SMALL
    return min(most, _norm(layers, width, height)) if small else most


@lru_cache(maxsize=64)
def _norm(layers: int, width: int, height: int) -> float:
    """The largest norm of the blocks into which characters modulo `width` split the adjacency matrix, rounded up."""
    found, turn = sums(np.arange(1, height + 1), layers, width, height), 2j * np.pi / width
    blocks = (np.exp(turn * u * found).sum(axis=0) for u in range(1, width // 2 + 1))
    return max(float(np.linalg.norm(block, 2)) for block in blocks) * (1 + 1e-9)


@lru_cache(maxsize=64)
def _prime(clients: int, degree: int, layers: int) -> int:
    """The least prime that leaves 3 modulo 4 and seats `clients` in fewer rows than columns, with this degree."""
    least = max(-(-clients * layers // degree), 7)
    numbers = range(least + (3 - least) % 4, 4 * (least + math.isqrt(clients)) + 100, 4)
    return next(n for n in numbers if n > -(-clients // n) and _is_prime(n))


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % p for p in range(2, math.isqrt(number) + 1))
