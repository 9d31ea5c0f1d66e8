"""Which signs of a client's changes show best: the largest sᵀPs over all s of ±1, for a precision matrix P (E2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALL = 16  # uploads for which all signs are tried
_CHUNK = 12  # signs that change within a chunk
_AXES = 4  # leading eigenvectors whose signs are starts of the search beyond that
_RANDOM = 8  # random starts

Matrix = NDArray[np.floating[Any]]


def worst_signs(precision: Matrix) -> tuple[float, NDArray[np.float64], bool]:
    """The largest sᵀPs that is found, its signs s, and whether no signs can give more.

    Formal guarantee: of at most 16 uploads all signs are tried. Of more, no change of one sign or of two betters
    what is returned; the largest may be larger.

    Args:
        precision: P, symmetric and positive definite. (uploads, uploads)

    >>> worst_signs(np.array([[2.0, -1.0], [-1.0, 2.0]]))
    (6.0, array([ 1., -1.]), True)
    """
    size = len(precision)
    if size <= _ALL:
        cost, signs = max((_best_of(precision, tried) for tried in _chunks(size)), key=lambda each: each[0])
        return cost, signs, True
    _, axes = np.linalg.eigh(precision)
    rng = np.random.default_rng(0)  # noqa: TID251  starts of a search, no secret
    starts = np.vstack([np.ones(size), axes.T[-_AXES:], rng.standard_normal((_RANDOM, size))])
    ends = np.array([_improved(precision, start) for start in np.where(starts < 0, -1.0, 1.0)])
    return *_best_of(precision, ends), False


def _chunks(size: int) -> list[NDArray[np.float64]]:
    """All signs whose first one is +1, as −s shows what s does. Each (tried, size)"""
    free = max(size - 1, 0)
    numbers = np.arange(1 << free)[:, None] >> np.arange(free) & 1
    signs = np.hstack([np.ones((len(numbers), min(size, 1))), 1.0 - 2.0 * numbers])
    return np.array_split(signs, max(len(signs) >> _CHUNK, 1))


def _best_of(precision: Matrix, signs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    costs = ((signs @ precision) * signs).sum(axis=1)
    return float(costs.max()), signs[costs.argmax()]


def _improved(precision: Matrix, signs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Change one sign, or two where no single one helps, while that adds something."""
    signs, own = signs.copy(), np.diag(precision)
    least = 1e-12 * float(own.sum())
    while True:
        gain = own - signs * (precision @ signs)  # a quarter of what a change of each sign adds
        if gain.max() > least:
            signs[gain.argmax()] *= -1
            continue
        both = gain[:, None] + gain[None, :] + 2 * precision * np.outer(signs, signs)
        np.fill_diagonal(both, -np.inf)
        if both.max() <= least:
            return signs
        signs[list(np.unravel_index(both.argmax(), both.shape))] *= -1
