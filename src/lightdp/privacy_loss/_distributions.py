"""Distributions of losses, and their ε and δ: as probabilities on a grid, or by few Fourier coefficients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 4096  # points that are added up at a time, in search of one
WIDE = 64  # points that are added up without being computed
_LARGE = 600.0  # losses from which on e^-loss may lose digits

Vector = NDArray[np.float64]
Real = NDArray[np.floating[Any]]
Complex = NDArray[np.complex128]
Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """Probabilities of losses on a grid.

    Attributes:
        step: between two losses.
        places: of the losses, in steps, the smallest first.
        masses: their probabilities.
        infinite: probability of infinite loss.
    """

    step: float
    places: Places
    masses: Vector
    infinite: float

    def epsilon(self, delta: float) -> float:
        """The least ε >= 0 with δ(ε) <= `delta`; ∞ if there is none.

        If ε lies between two losses of the grid, δ(ε) = U − e^ε L: U is the probability of the losses above, and L the
        same weighted with e^-loss. The loop goes through the losses above 0 from the largest down, a block at a time.
        """
        if self.infinite > delta:
            return math.inf
        upper, lower, end = self.infinite, 0.0, int(np.searchsorted(self.places, 0, side="right"))
        for stop in range(self.masses.size, end, -_BLOCK):
            block = slice(max(stop - _BLOCK, end), stop)
            masses, losses = self.masses[block][::-1], self.places[block][::-1] * self.step
            if upper + (more := float(masses.sum())) <= delta * (1 - 1e-9):  # ε is below all of these
                upper, lower = upper + more, lower + total(np.exp(-losses), masses)
                continue
            found, upper, lower = _searched(masses, losses, upper, lower, delta)
            if found is not None:
                return found
        return _least(upper, lower, delta)

    def delta(self, epsilon: float) -> float:
        """δ(`epsilon`)."""
        losses = self.places * self.step
        counted = losses > epsilon
        return self.infinite + total(-np.expm1(epsilon - losses[counted]), self.masses[counted])


@dataclass(frozen=True, eq=False)
class SmoothLosses:
    """Losses of many rounds, whose probabilities have few Fourier coefficients, and are not written out.

    Sums of probabilities over blocks of the grid are as exact as the probabilities themselves: each coefficient times a
    geometric series. Only in the block in which ε lies, the probabilities are computed one by one.

    Attributes:
        step: between two losses.
        first: the smallest loss, in steps.
        size: losses on the grid, from `first` on.
        length: of the transform, a multiple of `WIDE`.
        kept: which of its coefficients are not 0.
        coefficients: these, for places from `first` on.
        infinite: probability of infinite loss.
    """

    step: float
    first: int
    size: int
    length: int
    kept: Places
    coefficients: Complex
    infinite: float

    def written(self) -> LossDistribution:
        """All probabilities."""
        masses = self._inverse(self.coefficients, self.length)[: self.size]
        return LossDistribution(self.step, np.arange(self.first, self.first + self.size), masses, self.infinite)

    def epsilon(self, delta: float) -> float:
        """As of a `LossDistribution`."""
        if self.infinite > delta:
            return math.inf
        losses, uppers, lowers = self._blocks
        above = np.flatnonzero(uppers[:-1] - np.exp(np.minimum(losses[:-1], _LARGE)) * lowers[:-1] > delta)
        last = int(above[-1]) if above.size > 0 else 0  # whose first loss is below ε
        if losses[last + 1] > _LARGE:
            return self.written().epsilon(delta)
        for block in range(last, -1, -1):  # mostly one: rounding errors decide where ε is the first loss of a block
            masses, inside = self._points(block)
            found, upper, lower = _searched(masses, inside, float(uppers[block + 1]), float(lowers[block + 1]), delta)
            if found is not None:
                return found
        return _least(upper, lower, delta)

    def delta(self, epsilon: float) -> float:
        """δ(`epsilon`), for `epsilon` >= 0."""
        if epsilon > _LARGE:
            return self.written().delta(epsilon)
        losses, uppers, lowers = self._blocks
        block = max(int(np.searchsorted(losses, epsilon, side="right")) - 1, 0)
        if block == losses.size - 1:
            return self.infinite
        masses, inside = self._points(block)
        above = float(uppers[block + 1]) - math.exp(epsilon) * float(lowers[block + 1])
        return above + total(np.maximum(-np.expm1(epsilon - inside), 0.0), masses)

    @property
    def _start(self) -> int:
        """The block with the least loss above 0."""
        return min(max(-self.first, 0), self.size - 1) // WIDE

    @cached_property
    def _blocks(self) -> tuple[Real, Vector, Vector]:
        """The first loss of each block from `_start` on, and U and L from that loss on; at last, of no block."""
        start, stop = self._start, -(-self.size // WIDE)
        losses = (self.first + WIDE * np.arange(start, stop + 1)) * self.step
        sums = []
        for decay in (0.0, self.step):
            ratios = 2j * np.pi / self.length * self.kept - decay
            ends = np.expm1(np.stack([ratios, WIDE * ratios]))
            series = np.divide(ends[1], ends[0], out=np.full_like(ratios, WIDE), where=ends[0] != 0)
            sums.append(self._inverse(self.coefficients * series / WIDE, self.length // WIDE)[start:stop])
        weighted = np.exp(-losses[:-1]) * sums[1]
        return losses, _running(self.infinite, sums[0][::-1])[::-1], _running(0.0, weighted[::-1])[::-1]

    def _points(self, block: int) -> tuple[Vector, Real]:
        """Probabilities of a block's losses above 0, and these losses, the largest first, from `_start` on."""
        offsets = (self._start + block) * WIDE + np.arange(WIDE)[::-1]
        places = self.first + offsets
        angles = 2 * np.pi / self.length * (np.outer(offsets, self.kept) % self.length)
        twice = np.where(self.kept % (self.length // 2) == 0, 1, 2) / self.length * self.coefficients
        masses = (np.cos(angles) * twice.real - np.sin(angles) * twice.imag).sum(axis=1)
        return masses[places > 0], places[places > 0] * self.step

    def _inverse(self, coefficients: Complex, length: int) -> Vector:
        from scipy.fft import irfft  # noqa: PLC0415  plans without sampling do not need it

        spectrum = np.zeros(length // 2 + 1, np.complex128)
        spectrum[self.kept] = coefficients
        return np.asarray(irfft(spectrum, length, overwrite_x=True))


Losses = LossDistribution | SmoothLosses
"""Of one round or of many."""


def total(values: Vector, masses: Vector) -> float:
    """Their product, by one thread: those of a BLAS library would wait for each other where others use the machine."""
    return float((values * masses).sum())


def _searched(
    masses: Vector, losses: Real, upper: float, lower: float, delta: float
) -> tuple[float | None, float, float]:
    """ε if it is among these losses, the largest first, and U and L with all of them, from those without."""
    uppers, lowers = _running(upper, masses), _running(lower, np.exp(-losses) * masses)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        roots = np.log((uppers - delta) / lowers)
    solved = (uppers > delta)[:-1] & (lowers > 0)[:-1] & (roots[:-1] >= losses)
    underflows = (uppers[1:] >= delta) & (lowers[1:] == 0)
    found = None
    if (ends := np.flatnonzero(solved | underflows)).size > 0:
        at = ends[0]
        found = _least(float(uppers[at]), float(lowers[at]), delta) if solved[at] else max(0.0, float(losses[at]))
    return found, float(uppers[-1]), float(lowers[-1])


def _running(start: float, values: Vector) -> Vector:
    """`start`, and its sums with the first values, one by one. (values + 1,)"""
    sums = np.empty(values.size + 1)
    sums[0], sums[1:] = start, values
    return np.cumsum(sums, out=sums)


def _least(upper: float, lower: float, delta: float) -> float:
    """The ε >= 0 with `upper` − e^ε `lower` = `delta`."""
    return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)
