"""Mechanisms that claims are about: what so many rounds of each give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lightdp import attack, gaussian, sampling

_ROUND_UP = 1 + 1e-9  # more than all roundings of sums of logarithms here


class Mechanism(Protocol):
    """Noise of one round, and what some rounds of it give; figures are rounded up."""

    @property
    def adjacency(self) -> Any:  # noqa: ANN401  "add-remove" or "replace"
        """What may change between neighbouring data."""

    @property
    def words(self) -> str:
        """The noise in a sentence."""

    @property
    def gdp(self) -> bool:
        """Whether rounds are μ-GDP."""

    @property
    def tight(self) -> bool:
        """Whether figures are exact up to rounding and discretisation; otherwise they are upper bounds."""

    def mu(self, rounds: int, delta: float) -> float:
        """μ, or the μ of Gaussian noise with the same ε at `delta`."""

    def epsilon(self, rounds: int, delta: float) -> float:
        """ε at `delta`."""

    def power(self, rounds: int, delta: float) -> float:
        """True-positive rate of the best attack at 1 % false positives."""

    def advantage(self, rounds: int) -> float:
        """Total variation distance: twice what the best attack gains over guessing, at even odds."""


@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise, of whole or of Poisson-sampled batches (E5).

    Attributes:
        multiplier: σ in clips.
        clip: L2 bound of what a unit adds.
        rate: probability that a record is in a batch.
        adjacency: "replace" moves the sum by twice the clip.
    """

    multiplier: float
    clip: float
    rate: float
    adjacency: Any

    @property
    def words(self) -> str:
        """The noise in a sentence."""
        batches = "" if self.rate == 1 else f", batches Poisson-sampled at rate {self.rate:g}"
        ratio = f"{self.multiplier:.6g} times the clip {self.clip:g}"
        return f"Gaussian noise of σ = {self.multiplier * self.clip:.6g}, {ratio} ({self.adjacency}{batches})"

    @property
    def gdp(self) -> bool:
        """With whole batches."""
        return self.rate == 1

    @property
    def tight(self) -> bool:
        """With whole batches; of sampled ones what an attacker finds is bounded from two points of the curve."""
        return self.gdp

    def mu(self, rounds: int, delta: float) -> float:
        """Exact with whole batches."""
        if self.gdp:
            return math.sqrt(rounds) * (2 if self.adjacency == "replace" else 1) / self.multiplier
        return gaussian.mu(self.epsilon(rounds, delta), delta, up=True)

    def epsilon(self, rounds: int, delta: float) -> float:
        """Exact with whole batches."""
        if self.gdp:
            return gaussian.epsilon(self.mu(rounds, delta), delta)
        return _sampled(self, rounds, delta)

    def power(self, rounds: int, delta: float) -> float:
        """Exact with whole batches, else from two points of the curve."""
        if self.gdp:
            return gaussian.power(self.mu(rounds, delta), attack.FALSE_POSITIVES)
        return attack.power(lambda each: self.epsilon(rounds, each), delta)

    def advantage(self, rounds: int) -> float:
        """δ at ε = 0."""
        if self.gdp:
            return gaussian.delta(0.0, self.mu(rounds, 1.0))
        return sampling.delta({self.multiplier: rounds}, rate=self.rate, epsilon=0.0, adjacency=self.adjacency)


@lru_cache(maxsize=64)
def _sampled(noise: Gaussian, rounds: int, delta: float) -> float:
    """ε of sampled batches, kept since compositions take long."""
    counts = {noise.multiplier: rounds}
    return sampling.epsilon(counts, rate=noise.rate, delta=delta, adjacency=noise.adjacency)


@dataclass(frozen=True)
class Svt:
    """The sparse vector technique as NVFlare's filter `SVTPrivacy` has it.

    It selects a share of an update's values, which costs ε = `selection` if the technique's own proof applies, and
    sends each with Laplace noise of scale 2γ/`each` after clipping to ±γ: each value costs ε = `each`, and in the
    worst case a unit moves all of them from one end to the other.

    Attributes:
        parameters: length of an update.
        fraction: share of it that is sent.
        selection: ε of the selection.
        each: ε of each value that is sent, called noise_var there.
    """

    parameters: int
    fraction: float
    selection: float
    each: float

    @property
    def adjacency(self) -> Any:  # noqa: ANN401  as in `Mechanism`
        """A unit moves each value from one end to the other, as replacing it may."""
        return "replace"

    @property
    def sent(self) -> int:
        """How many values are sent."""
        return max(math.ceil(self.parameters * self.fraction), 1)

    @property
    def pure(self) -> float:
        """ε at δ = 0 of one round, which is exact for the values that are sent."""
        return self.selection + self.sent * self.each

    @property
    def words(self) -> str:
        """The noise in a sentence."""
        return (
            f"Sparse vector technique: {self.sent:,} of {self.parameters:,} values, each with ε = {self.each:g}, "
            f"selected with ε = {self.selection:g}; one round has ε = {self.pure:,.1f} at δ = 0"
        )

    @property
    def gdp(self) -> bool:
        """It is Laplace noise."""
        return False

    @property
    def tight(self) -> bool:
        """Rényi divergences lose some percent."""
        return False

    def mu(self, rounds: int, delta: float) -> float:
        """That of Gaussian noise with the same ε."""
        return gaussian.mu(self.epsilon(rounds, delta), delta, up=True)

    def epsilon(self, rounds: int, delta: float) -> float:
        """By the Rényi divergences of Laplace noise, which add up; at most the pure ε."""
        orders = 1 + np.geomspace(1e-4, 1e6, 2001)
        spent = self.sent * rounds * _renyi(self.each, orders)
        bounds = spent + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
        return min(max(float(bounds.min()) * _ROUND_UP, 0.0) + rounds * self.selection, rounds * self.pure)

    def power(self, rounds: int, delta: float) -> float:
        """From two points of the curve."""
        return attack.power(lambda each: self.epsilon(rounds, each), delta)

    def advantage(self, rounds: int) -> float:
        """By Bretagnolle and Huber from the Kullback-Leibler divergence, and at most what pure ε allows."""
        each = self.each
        divergence = rounds * (self.sent * (each + math.expm1(-each)) + self.selection * math.tanh(self.selection / 2))
        return min(math.sqrt(-math.expm1(-divergence)) * _ROUND_UP, math.tanh(rounds * self.pure / 2), 1.0)


def _renyi(epsilon: float, orders: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rényi divergences of Laplace noise of pure `epsilon` (Mironov 2017, Proposition 6), for orders > 1."""
    up = np.log(orders / (2 * orders - 1)) + (orders - 1) * epsilon
    down = np.log((orders - 1) / (2 * orders - 1)) - orders * epsilon
    return np.logaddexp(up, down) / (orders - 1)
