"""Privacy loss distributions of sampled Gaussian noise, as arrays on a grid of losses.

If one output has density P with a record and Q without it, the privacy loss of an output o is log P(o)/Q(o), and its
distribution under P determines δ(ε) = E[max(0, 1 − e^(ε − loss))]. Losses of rounds add up, so distributions convolve.

Formal guarantee, up to rounding errors that `lightdp.sampling` bounds: the δ(ε) of a distribution here is never below
that of the rounds it stands for. It is exact on the grid and above the exact one between its points ("Connect the
Dots", Doroshenko et al., 2022), and tails that are cut off count as infinite loss. Grid and tails are those of
dp-accounting. Two things differ, for speed: where the grid has many points, one round is computed at some
of them, which bounds it from above for the same reason; and all rounds are composed by one transform.

>>> kinds = [sampled(1.0, rate=0.01, direction=each, step=2.0**-12) for each in directions("add-remove", 0.01)]
>>> [round(composed([(each, 100)]).epsilon(1e-5), 2) for each in kinds]
[0.72, 0.34]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

Adjacency = Literal["add-remove", "replace"]
"""How neighbouring data sets differ: by one record more or less, or by another record in its place."""

Direction = Literal["remove", "add", "replace"]
"""From which of two neighbouring data sets to which."""

_CUT = math.exp(-50)  # probability of outputs whose loss counts as infinite, in one round
_TAIL = 1e-15  # probability of sums of losses that count as infinite, for each composition
_WHOLE = 2**14  # points, up to which the loss of one round takes all of the grid
_DOTS = 2**13  # outputs whose losses it takes otherwise
_NOTHING = -60.0  # logarithm of a Fourier coefficient that counts as 0: all of them change δ by less than 1e-19
_BLOCK = 4096  # points that are added up at a time, in search of one

_Vector = NDArray[np.float64]
_Places = NDArray[np.int64]


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
    places: _Places
    masses: _Vector
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
            weighted = np.exp(-losses) * masses
            if upper + (more := float(masses.sum())) <= delta * (1 - 1e-9):  # ε is below all of these
                upper, lower = upper + more, lower + float(weighted.sum())
                continue
            uppers, lowers = _running(upper, masses), _running(lower, weighted)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                roots = np.log((uppers - delta) / lowers)
            found = (uppers > delta) & (lowers > 0)
            solved = found[:-1] & (roots[:-1] >= losses)
            underflows = (uppers[1:] >= delta) & (lowers[1:] == 0)
            if (ends := np.flatnonzero(solved | underflows)).size > 0:
                at = ends[0]
                if not solved[at]:
                    return max(0.0, float(losses[at]))
                return _least(float(uppers[at]), float(lowers[at]), delta)
            upper, lower = float(uppers[-1]), float(lowers[-1])
        return _least(upper, lower, delta)

    def delta(self, epsilon: float) -> float:
        """δ(`epsilon`)."""
        losses = self.places * self.step
        counted = losses > epsilon
        return self.infinite + _total(-np.expm1(epsilon - losses[counted]), self.masses[counted])


def composed(rounds: Sequence[tuple[LossDistribution, int]], within: tuple[int, int] | None = None) -> LossDistribution:
    """The loss of all rounds together, so many of each kind, on one grid.

    Args:
        rounds: losses of one round, all with the same step, and the number of such rounds.
        within: their `window`, where it is known.

    The transform's window holds all sums but `_TAIL` of them, which wrap around and count as infinite loss as well.
    """
    from scipy.fft import irfft, next_fast_len, rfft  # noqa: PLC0415  plans without sampling do not need it

    if sum(count for _, count in rounds) == 1:
        return next(kind for kind, count in rounds if count == 1)
    low, high = window(rounds) if within is None else within
    length = next_fast_len(high - low + 1, real=True)
    kept, logs = np.arange(length // 2 + 1), np.zeros(length // 2 + 1, np.complex128)
    finite = 0.0
    for kind, count in sorted(rounds, key=lambda each: -each[1]):  # many rounds of a kind leave few coefficients
        coefficients = rfft(np.bincount(kind.places % length, kind.masses, length))[kept]
        with np.errstate(divide="ignore"):
            some = logs.real + count * np.log(np.abs(coefficients)) > _NOTHING
        kept, logs = kept[some], logs[some] + count * np.log(coefficients[some])
        finite += count * math.log1p(-kind.infinite)
    spectrum = np.zeros(length // 2 + 1, np.complex128)
    spectrum[kept] = np.exp(logs)
    masses = np.roll(irfft(spectrum, length), -(low % length))[: high - low + 1]
    return LossDistribution(rounds[0][0].step, np.arange(low, high + 1), masses, _TAIL - math.expm1(finite))


def directions(adjacency: Adjacency, rate: float) -> tuple[Direction, ...]:
    """Those in which neighbours differ; δ(ε) is the largest of theirs. At `rate` = 1 there is no difference."""
    if adjacency == "replace":
        return ("replace",)
    return ("remove",) if rate == 1 else ("remove", "add")


def sampled(multiplier: float, *, rate: float, direction: Direction, step: float) -> LossDistribution:
    """The privacy loss of one round with Poisson-sampled records, in one direction.

    Args:
        multiplier: z, the standard deviation of the noise over the clip.
        rate: probability that a record is in the batch.
        direction: how neighbouring data sets differ.
        step: of the grid.
    """
    places = _places(direction, multiplier, rate, step)
    with np.errstate(divide="ignore"):  # at rate 1 nothing is left out, whose logarithm is −∞
        deltas = np.clip(_deltas(direction, places, step, multiplier, rate), 0, 1)
    return _dots(places, deltas, step)


# P is N(0, z²) if a record is added, else N(−1, z²) with probability q and N(0, z²) otherwise; Q is N(0, z²) if a
# record is removed, else N(1, z²) with probability q and N(0, z²) otherwise. All losses fall with the output.


def _dots(places: _Places, deltas: _Vector, step: float) -> LossDistribution:
    """Masses on the grid such that δ(ε) is exact at their places, and above the exact one between them."""
    if deltas.size == 1:
        return LossDistribution(step, places, 1 - deltas, float(deltas[0]))
    falls = np.diff(np.minimum.accumulate(deltas))
    sizes, which = np.unique(np.diff(places), return_inverse=True)
    growth, rise = (np.array([f(size * step) for size in sizes.tolist()])[which] for f in (math.exp, math.expm1))
    masses = np.empty_like(deltas)
    masses[0] = 1 - deltas[0] + falls[0] / rise[0]
    masses[1:-1] = (falls[1:] * (rise[:-1] / rise[1:]) - falls[:-1] * growth[:-1]) / rise[:-1]
    masses[-1] = -falls[-1] * growth[-1] / rise[-1]
    return LossDistribution(step, places, np.maximum(0.0, masses), float(np.min(deltas)))


def _places(kind: Direction, z: float, rate: float, step: float) -> _Places:
    """Points of the grid for the losses of all outputs but `_CUT` of them: all, or those nearest to some outputs.

    Outputs are at equal distances, so that losses that are likely lie close together. What this adds to ε does not grow
    with the number of rounds: about the variance of the losses of all of them times (27/`_DOTS`)²/8.
    """
    far = -z * float(ndtri(_CUT / 2))
    ends = (far + 1, -far) if kind == "add" else (far, -far - 1)  # of the lowest and of the highest loss
    low, high = _losses(kind, np.array(ends), z, rate).tolist()
    first, last = math.floor(low / step), math.ceil(high / step)
    if last - first < _WHOLE:
        return np.arange(first, last + 1)
    near = np.rint(_losses(kind, np.linspace(*ends, _DOTS), z, rate) / step).astype(np.int64)
    return np.unique(np.concatenate([[first], near, [last]]))


def _losses(kind: Direction, outputs: _Vector, z: float, rate: float) -> _Vector:
    """log P/Q of each output."""

    def removed(x: _Vector) -> _Vector:
        return np.logaddexp((-0.5 - x) / z**2 + math.log(rate), -math.inf if rate == 1 else math.log(1 - rate))

    if kind == "remove":
        return removed(outputs)
    return -removed(-outputs) if kind == "add" else removed(outputs) - removed(-outputs)


def _deltas(kind: Direction, places: _Places, step: float, z: float, rate: float) -> _Vector:
    """δ(ε) = P(x) − e^ε Q(x), with distribution functions at the output x whose loss is ε, for places of the grid."""
    losses, absent, present = places * step, np.log1p(-rate), np.log(rate)
    if kind == "remove":  # the losses of all outputs are above log(1 − q), and the δ of those below is 1 − e^ε
        inside, result = losses > absent, -np.expm1(losses)
    else:  # if a record is added, they are below −log(1 − q), and the δ of those above is 0
        inside, result = losses < (math.inf if kind == "replace" else -absent), np.zeros(losses.size)
    within = losses[inside]
    x = _swapped(places, step, z, rate) if kind == "replace" else _outputs(kind, within, z, rate)
    upper = ndtr(x / z) if kind == "add" else (1 - rate) * ndtr(x / z) + rate * ndtr((x + 1) / z)
    lower = log_ndtr(x / z)
    if kind != "remove":
        lower = np.logaddexp(absent + lower, present + log_ndtr((x - 1) / z))
    result[inside] = upper - np.exp(within + lower)
    return result


def _outputs(kind: Direction, losses: _Vector, z: float, rate: float) -> _Vector:
    """The output x that has a loss ε if a record is removed or added, for each of them.

    Without sampling the loss of x would be ±log(1 + (e^±ε − 1)/q) = (∓1/2 − x)/z².
    """
    signed = losses if kind == "remove" else -losses
    scaled = signed + np.log(1 / rate)
    whole = scaled + np.log1p(-np.exp(np.minimum(np.log(1 / rate - 1) - scaled, 0.0)))
    whole = np.where(signed == 0, 0.0, whole)
    return -0.5 - whole * z**2 if kind == "remove" else 1 + (-0.5 + whole * z**2)


def _swapped(places: _Places, step: float, z: float, rate: float) -> _Vector:
    """The output x that has a loss ε if a record is replaced, for places of the grid.

    x = −z² (ε/2 + asinh(α sinh(ε/2))) with α = e^(1/2z²) (1 − q)/q, by logarithms, which do not overflow.
    """
    far = np.abs(places) * step
    log_alpha = 0.5 * (1 / z) ** 2 + np.log1p(-rate) - np.log(rate)
    with np.errstate(divide="ignore"):  # at ε = 0
        log_sinh = log_alpha + far / 2 + np.log1p(-np.exp(-far)) - math.log(2)
    asinh = np.logaddexp(0.5 * np.logaddexp(0, 2 * log_sinh), log_sinh)
    return np.where(places == 0, 0.0, z**2 * (-np.sign(places) * asinh - places * step / 2))


def window(rounds: Sequence[tuple[LossDistribution, int]]) -> tuple[int, int]:
    """Between which places the sum of all losses lies, up to a probability of `_TAIL`, by Chernoff's bound."""
    low, high = (sum(count * int(kind.places[end]) for kind, count in rounds) for end in (0, -1))
    variance = 0.0
    for kind, count in rounds:
        places = kind.places.astype(np.float64)
        variance += count * _total((places - _total(places, kind.masses)) ** 2, kind.masses)
    last = 2 * math.sqrt(2 * math.log(2 / _TAIL) / max(variance, 1e-9))  # the best for a normal distribution is half
    first = min(last, 1 / max(int(kind.places[-1] - kind.places[0]) + 1 for kind, _ in rounds))
    orders = last / 2.0 ** np.arange(math.ceil(math.log2(last / first)), -1, -1)
    exponents = np.full((2, orders.size), math.log(2 / _TAIL))  # logarithms of moments, below and above
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # what overflows bounds nothing
        for kind, count in rounds:
            tilt = np.exp(orders[0] * kind.places)
            for place in range(orders.size):
                exponents[:, place] += count * np.log([_total(1 / tilt, kind.masses), _total(tilt, kind.masses)])
                tilt *= tilt
    lows, highs = np.where(np.isfinite(exponents), exponents, math.inf) / orders
    return max([low, *map(math.floor, -lows[lows < math.inf])]), min([high, *map(math.ceil, highs[highs < math.inf])])


def _total(values: _Vector, masses: _Vector) -> float:
    """Their product, by one thread: those of a BLAS library would wait for each other where others use the machine."""
    return float((values * masses).sum())


def _running(start: float, values: _Vector) -> _Vector:
    """`start`, and its sums with the first values, one by one. (values + 1,)"""
    sums = np.empty(values.size + 1)
    sums[0], sums[1:] = start, values
    return np.cumsum(sums, out=sums)


def _least(upper: float, lower: float, delta: float) -> float:
    """The ε >= 0 with `upper` − e^ε `lower` = `delta`."""
    return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)
