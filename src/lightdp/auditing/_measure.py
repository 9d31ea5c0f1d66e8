"""Three measurements of μ from uploads, and a test of their whole covariance; what is kept does not grow with values.

Each coordinate is one experiment: its secret is 0 or 1, and the victim's uploads move by the secret times Δ. With n
coordinates, Σ the covariance of the uploads, s the signs of the changes and W = Σ r rᵀ over the coordinates, where r
is an upload vector without the secret:

1. `linear`: the optimal linear score sᵀΣ⁻¹y. Both arms are Gaussian with one variance; with d the difference of their
   means in standard deviations, d has variance 1/n₀ + 1/n₁ + d²/2n to first order, which gives the interval on μ.
2. `assumption_free`: the same score as an attack. A threshold is chosen on one half of the coordinates; on the other
   half Clopper-Pearson bounds hold whatever the distribution is. As μ-GDP bounds every test,
   μ >= Φ⁻¹(TPR) − Φ⁻¹(FPR), and likewise ε >= ln((TPR − δ)/FPR).
3. `covariance`: no secret is used. W is a Wishart matrix, so sᵀΣ⁻¹s/sᵀW⁻¹s follows the χ² distribution with n − p + 1
   degrees of freedom exactly, for p uploads: an exact interval on μ = Δ √(sᵀΣ⁻¹s).

`deviations` tests W against Σ as a whole: for every fixed direction a, aᵀWa/aᵀΣa follows χ² with n degrees of freedom
exactly. The directions are each upload, sums and differences of each two, the same for Σ⁻¹y (in which the own noise of
an upload stands out most), and the sum that enters the model. Noise that does not depend on keys comes again in the
next run: the variance of Σ⁻¹y plus that of another run, over that of their difference, follows the F distribution.

All this is for Gaussian noise. Drawn masks have some excess kurtosis κ, and no direction of the uploads has more: the
variance of a square is then at most 1 + κ/2 times as large, to first order as if there were so many times fewer
coordinates. Degrees of freedom, and d²/2n, count only n/(1 + κ/2) of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, chdtr, chdtrc, fdtr, fdtrc, gammaincinv, ndtri

from lightdp.auditing._view import View

Matrix = NDArray[np.floating[Any]]

_EDGES = 600  # thresholds that the assumption-free attack chooses from
_CAUTION = 1e-4  # the threshold is chosen by bounds at a stricter level, so that rare scores do not decide
_BINS = 75  # of the histogram of scores
_SINGULAR = 1e-12  # variance, in shares of the largest, below which there is none
_TAIL = 8.0  # standard deviations beyond the means that they cover


@dataclass(frozen=True)
class Measurement:
    """A measurement of μ.

    Attributes:
        name: how it was measured.
        low: lower end of the interval.
        high: upper end, where there is one.
        epsilon_low: a lower bound on ε that was measured directly, where there is one.
    """

    name: str
    low: float
    high: float | None = None
    epsilon_low: float | None = None


@dataclass(frozen=True)
class Deviation:
    """The direction of a group in which the variance deviates most, and how improbable that is.

    Attributes:
        group: "uploads", "own noise", "fresh keys" or "model".
        ratio: variance measured over variance expected; for "fresh keys", that of sums over that of differences.
        chance: probability of so much by chance in any direction of any group, at most.
        where: the direction in words.
    """

    group: str
    ratio: float
    chance: float
    where: str


class Sample:
    """What is kept of all coordinates.

    Args:
        view: the uploads.
        individual: variance of individual noise as clients make it.
        pairwise: the same of pairwise noise.
        delta: δ of the direct bound on ε.
        model: which uploads enter the model, if that is one sum. (uploads,)
        excess: kurtosis of pairwise noise beyond that of a Gaussian, >= 0.
    """

    def __init__(
        self, view: View, individual: float, pairwise: float, delta: float, model: NDArray[np.bool_] | None, *,
        excess: float = 0.0,
    ) -> None:  # fmt: skip
        self.view, self.delta, self.model, self._wider = view, delta, model, 1 + excess / 2
        self.shift = view.signs * view.plan.sensitivity
        self.expected = view.covariance(individual, pairwise)
        self.precision = np.linalg.inv(self.expected)
        direction = self.precision @ self.shift
        self.mu = math.sqrt(self.shift @ direction)  # of the noise as made
        self._best = direction / self.mu  # a score with variance 1, and means 0 and μ
        self.edges = np.linspace(-_TAIL, self.mu + _TAIL, _EDGES)
        self.counts = np.zeros((2, 2, _EDGES + 1), np.int64)  # by half, secret and interval between edges
        self._moments = np.zeros((2, 3))  # by secret: number, sum and sum of squares of scores
        self._products = np.zeros_like(self.expected)
        self._again = np.zeros((2, len(self.expected)))  # squares of sums and differences of runs
        self._common = 0
        self._before: Matrix | None = None

    @property
    def values(self) -> int:
        """How many coordinates were added."""
        return int(self._moments[:, 0].sum())

    @property
    def _freedom(self) -> float:
        """Of so many Gaussian coordinates a variance is as uncertain as of these."""
        return self.values / self._wider

    def add(self, uploads: Matrix, secret: NDArray[np.bool_]) -> None:
        """Add the coordinates of a run with fresh keys; `uploads` is changed. (uploads, length), (length,)"""
        score = self._best @ uploads
        first_half = np.arange(secret.size) < secret.size // 2
        for which, arm in enumerate((~secret, secret)):
            self._moments[which] += arm.sum(), score[arm].sum(), (score[arm] ** 2).sum()
            for half, part in enumerate((first_half, ~first_half)):
                found = np.searchsorted(self.edges, score[arm & part])
                self.counts[half, which] += np.bincount(found, minlength=_EDGES + 1)
        uploads -= np.outer(self.shift, secret)
        self._products += uploads @ uploads.T
        whitened = self.precision @ uploads
        if self._before is None:
            self._before = whitened
            return
        common = min(whitened.shape[1], self._before.shape[1])
        one, other = self._before[:, :common], whitened[:, :common]
        crossed, squared = 2 * (one * other).sum(axis=1), (one**2).sum(axis=1) + (other**2).sum(axis=1)
        self._again += np.array([squared + crossed, squared - crossed]) / (2 * np.diag(self.precision))
        self._common += common
        self._before = None

    def linear(self, level: float) -> Measurement:
        """The optimal linear test and its parametric interval, which misses μ with probability `level`."""
        number, total, squares = self._moments.T
        mean = total / number
        variance = (squares - number * mean**2).sum() / (number.sum() - 2)
        found = (mean[1] - mean[0]) / math.sqrt(variance)
        width = float(-ndtri(level / 2)) * math.sqrt((1 / number).sum() + self._wider * found**2 / (2 * number.sum()))
        return Measurement("optimal linear test", max(float(found) - width, 0.0), max(float(found) + width, 0.0))

    def assumption_free(self, level: float) -> Measurement:
        """A bound that holds whatever the distribution of the noise, with probability 1 − `level`."""
        each = level / 4  # TPR and FPR, at a threshold for μ and at one for ε
        chosen, tested = self._rates(0, each * _CAUTION), self._rates(1, each)
        at_mu, at_epsilon = (int(np.argmax(bound)) for bound in self._bounds(*chosen))
        mu, epsilon = self._bounds(*tested)
        return Measurement(
            "assumption-free bound", max(float(mu[at_mu]), 0.0), epsilon_low=max(float(epsilon[at_epsilon]), 0.0)
        )

    def _rates(self, half: int, level: float) -> tuple[Matrix, Matrix]:
        """Clopper-Pearson: a lower bound on TPR and an upper one on FPR, for each threshold. (edges,), (edges,)"""
        above = self.counts[half, :, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]
        (negative, positive), (false, true) = self.counts[half].sum(axis=1), above
        low = np.where(true > 0, betaincinv(np.maximum(true, 1), positive - true + 1, level), 0.0)
        high = np.where(false < negative, betaincinv(false + 1, np.maximum(negative - false, 1), 1 - level), 1.0)
        return low, high

    def _bounds(self, true: Matrix, false: Matrix) -> tuple[Matrix, Matrix]:
        """What these rates prove of μ and of ε. (edges,), (edges,)"""
        inside = (true > 0) & (false < 1)
        mu = np.where(inside, ndtri(np.where(inside, true, 0.5)) - ndtri(np.where(inside, false, 0.5)), 0.0)
        return mu, np.log(np.maximum(true - self.delta, 1e-300) / false)

    def covariance(self, level: float) -> Measurement:
        """μ from the covariance of the uploads alone, with its exact interval."""
        freedom = (self.values - len(self.expected) + 1) / self._wider
        sizes, axes = np.linalg.eigh(self._products)
        sizes = np.maximum(sizes, _SINGULAR * sizes[-1])  # noise that repeats leaves directions without any
        inverse = float(((axes.T @ self.shift) ** 2 / sizes).sum())
        each = self._wider * inverse
        low, high = (math.sqrt(each * 2 * gammaincinv(freedom / 2, p)) for p in (level / 2, 1 - level / 2))
        return Measurement("covariance method", low, high)

    def histogram(self) -> dict[str, list[float]]:
        """How the score is distributed for both values of the secret: edges of bins, and counts."""
        inner = self.counts.sum(axis=0)[:, 1:].reshape(2, -1)[:, : _EDGES - 1]
        edges = self.edges[:: _EDGES // _BINS]
        counts = np.add.reduceat(inner, np.arange(0, _EDGES - 1, _EDGES // _BINS), axis=1)
        zero, one = counts[:, : len(edges) - 1].tolist()
        return {"edges": edges.tolist(), "secret_0": zero, "secret_1": one}

    def deviations(self) -> tuple[Deviation, ...]:
        """In each group of directions, the one whose variance is the least probable, by exact tests."""
        groups = list(self._groups())
        tests = sum(ratio.size for _, ratio, _, _ in groups)
        result = []
        for name, ratio, chance, words in groups:
            at = np.unravel_index(int(np.argmin(chance)), chance.shape)
            place = words(*(int(i) for i in at))
            result.append(Deviation(name, float(ratio[at]), min(float(chance[at]) * tests, 1.0), place))
        return tuple(result)

    def _groups(self) -> Iterator[tuple[str, Matrix, Matrix, Callable[..., str]]]:
        """Name, ratios of variances, how probable each is, and what to call a direction, for each group."""
        whitened = self.precision @ self._products @ self.precision
        ratio = _pairs(self._products / self.values, self.expected)
        yield "uploads", ratio, _chance(ratio, self._freedom), self._two
        ratio = _pairs(whitened / self.values, self.precision)
        yield "own noise", ratio, _chance(ratio, self._freedom), self._two
        if self._common > 0:
            ratio = self._again[0] / np.maximum(self._again[1], _SINGULAR * self._again[0])
            freedom = self._common / self._wider
            chance = 2 * np.minimum(*(each(freedom, freedom, ratio) for each in (fdtr, fdtrc)))
            yield (
                "fresh keys",
                ratio,
                chance,
                lambda i: f"{self.view.uploads[i]} plus and minus itself under other keys",
            )
        if self.model is not None and self.model.any():
            model = self.model.astype(float)
            variance = model @ self._products @ model / self.values
            ratio = np.atleast_1d(variance / (model @ self.expected @ model))
            yield "model", ratio, _chance(ratio, self._freedom), lambda _: "the sum of all used uploads"

    def _two(self, one: int, other: int) -> str:
        if one == other:
            return str(self.view.uploads[one])
        sign, (first, last) = "plus" if one < other else "minus", sorted((one, other))
        return f"{self.view.uploads[first]} {sign} {self.view.uploads[last]}"


def _chance(ratio: Matrix, freedom: float) -> Matrix:
    """How probable a ratio of variances is that lies as far from 1 as this one or farther, by χ²."""
    return 2 * np.minimum(chdtr(freedom, ratio * freedom), chdtrc(freedom, ratio * freedom))


def _pairs(measured: Matrix, expected: Matrix) -> Matrix:
    """Variances over expected ones: of each upload, of sums of two (above the diagonal), of differences (below)."""
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    measured, expected = measured / scale, expected / scale
    own, ones = np.diag(measured), np.ones_like(scale)
    sign = np.triu(ones, 1) - np.tril(ones, -1)
    ratio = (own[:, None] + own[None, :] + 2 * sign * measured) / (2 + 2 * sign * expected)
    np.fill_diagonal(ratio, own)
    return ratio
