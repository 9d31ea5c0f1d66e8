"""Privacy loss distributions of sampled Gaussian noise, as arrays on a grid of losses.

If one output has density P with a record and Q without it, the privacy loss of an output o is log P(o)/Q(o), and its
distribution under P determines δ(ε) = E[max(0, 1 − e^(ε − loss))]. Losses of rounds add up, so distributions convolve.

Formal guarantee, up to rounding errors that `lightdp.sampling` bounds: the δ(ε) of a distribution here is never below
that of the rounds it stands for. It is exact on the grid and above the exact one between its points ("Connect the
Dots", Doroshenko et al., 2022), and tails that are cut off count as infinite loss. Grid and tails are those of
dp-accounting. Three things differ, for speed: where the grid has many points, one round is computed at some
of them, which bounds it from above for the same reason; all rounds are composed by one transform; and of that, only
the coefficients are computed that many rounds do not make vanish, if they are few.

>>> kinds = [sampled(1.0, rate=0.01, direction=each, step=2.0**-12) for each in directions("add-remove", 0.01)]
>>> [round(composed([(each, 100)]).epsilon(1e-5), 2) for each in kinds]
[0.72, 0.34]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

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
_WIDE = 64  # points that are added up without being computed
_LARGE = 600.0  # losses from which on e^-loss may lose digits
_SHORT = 2**15  # points up to which nothing is faster than a transform
_FOLDED = 4  # times fewer points than those of a transform: it is worth while to fold them
_DIRECT = 10  # products for each point of a transform that take as long as it
_ALONE = 2**16  # products of a matrix product that BLAS libraries leave to one thread, as others would wait for theirs

_Vector = NDArray[np.float64]
_Real = NDArray[np.floating[Any]]
_Complex = NDArray[np.complex128]
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
            if upper + (more := float(masses.sum())) <= delta * (1 - 1e-9):  # ε is below all of these
                upper, lower = upper + more, lower + _total(np.exp(-losses), masses)
                continue
            found, upper, lower = _searched(masses, losses, upper, lower, delta)
            if found is not None:
                return found
        return _least(upper, lower, delta)

    def delta(self, epsilon: float) -> float:
        """δ(`epsilon`)."""
        losses = self.places * self.step
        counted = losses > epsilon
        return self.infinite + _total(-np.expm1(epsilon - losses[counted]), self.masses[counted])


@dataclass(frozen=True, eq=False)
class SmoothLosses:
    """Losses of many rounds, whose probabilities have few Fourier coefficients, and are not written out.

    Sums of probabilities over blocks of the grid are as exact as the probabilities themselves: each coefficient times a
    geometric series. Only in the block in which ε lies, the probabilities are computed one by one.

    Attributes:
        step: between two losses.
        first: the smallest loss, in steps.
        size: losses on the grid, from `first` on.
        length: of the transform, a multiple of `_WIDE`.
        kept: which of its coefficients are not 0.
        coefficients: these, for places from `first` on.
        infinite: probability of infinite loss.
    """

    step: float
    first: int
    size: int
    length: int
    kept: _Places
    coefficients: _Complex
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
        return above + _total(np.maximum(-np.expm1(epsilon - inside), 0.0), masses)

    @property
    def _start(self) -> int:
        """The block with the least loss above 0."""
        return min(max(-self.first, 0), self.size - 1) // _WIDE

    @cached_property
    def _blocks(self) -> tuple[_Real, _Vector, _Vector]:
        """The first loss of each block from `_start` on, and U and L from that loss on; at last, of no block."""
        start, stop = self._start, -(-self.size // _WIDE)
        losses = (self.first + _WIDE * np.arange(start, stop + 1)) * self.step
        sums = []
        for decay in (0.0, self.step):
            ratios = 2j * np.pi / self.length * self.kept - decay
            ends = np.expm1(np.stack([ratios, _WIDE * ratios]))
            series = np.divide(ends[1], ends[0], out=np.full_like(ratios, _WIDE), where=ends[0] != 0)
            sums.append(self._inverse(self.coefficients * series / _WIDE, self.length // _WIDE)[start:stop])
        weighted = np.exp(-losses[:-1]) * sums[1]
        return losses, _running(self.infinite, sums[0][::-1])[::-1], _running(0.0, weighted[::-1])[::-1]

    def _points(self, block: int) -> tuple[_Vector, _Real]:
        """Probabilities of a block's losses above 0, and these losses, the largest first, from `_start` on."""
        offsets = (self._start + block) * _WIDE + np.arange(_WIDE)[::-1]
        places = self.first + offsets
        angles = 2 * np.pi / self.length * (np.outer(offsets, self.kept) % self.length)
        twice = np.where(self.kept % (self.length // 2) == 0, 1, 2) / self.length * self.coefficients
        masses = (np.cos(angles) * twice.real - np.sin(angles) * twice.imag).sum(axis=1)
        return masses[places > 0], places[places > 0] * self.step

    def _inverse(self, coefficients: _Complex, length: int) -> _Vector:
        from scipy.fft import irfft  # noqa: PLC0415  plans without sampling do not need it

        spectrum = np.zeros(length // 2 + 1, np.complex128)
        spectrum[self.kept] = coefficients
        return np.asarray(irfft(spectrum, length, overwrite_x=True))


Losses = LossDistribution | SmoothLosses
"""Of one round or of many."""


def composed(rounds: Sequence[tuple[LossDistribution, int]], within: tuple[int, int] | None = None) -> Losses:
    """The loss of all rounds together, so many of each kind, on one grid.

    Args:
        rounds: losses of one round, all with the same step, and the number of such rounds.
        within: their `window`, where it is known.

    The transform's window holds all sums but `_TAIL` of them, which wrap around and count as infinite loss as well.
    """
    if sum(count for _, count in rounds) == 1:
        return next(kind for kind, count in rounds if count == 1)
    low, high = window(rounds) if within is None else within
    length = _length(high - low + 1)
    kept, finite, first = _candidates(rounds, length), 0.0, low
    logs = np.zeros(kept.size, np.complex128)
    for kind, count in sorted(rounds, key=lambda each: -each[1]):  # many rounds of a kind leave few coefficients
        coefficients = _coefficients(kind, length, kept)
        with np.errstate(divide="ignore"):
            some = np.flatnonzero(logs.real + count * np.log(np.abs(coefficients)) > _NOTHING)
        kept, logs = kept[some], logs[some] + count * np.log(coefficients[some])
        finite += count * math.log1p(-kind.infinite)
        first -= count * _center(kind)
    logs += 2j * np.pi / length * (kept * (first % length) % length)
    infinite = _TAIL - math.expm1(finite)
    found = SmoothLosses(rounds[0][0].step, low, high - low + 1, length, kept, np.exp(logs), infinite)
    return found if length % _WIDE == 0 and 2 * kept[-1] < length // _WIDE else found.written()


def _length(least: int) -> int:
    """Of a transform of `least` points: one of few, since `scipy` keeps tables for each, and many times halved."""
    part = 1 << max(least.bit_length() - 3, 0)
    return -(-least // part) * part


def _candidates(rounds: Sequence[tuple[LossDistribution, int]], length: int) -> _Places:
    """The coefficients that may not be 0 after all rounds.

    Where the losses of one round are folded to fewer points, their transform has some of the same coefficients. One
    between these differs in size from the nearest by at most their distance times the mean of |loss − any place|.
    """
    from scipy.fft import rfft  # noqa: PLC0415  plans without sampling do not need it

    if length < _SHORT:
        return np.arange(length // 2 + 1)
    slopes = []
    for kind, _ in rounds:
        slopes.append(math.pi * _total(np.abs(kind.places - _center(kind)).astype(np.float64), kind.masses))
    total = sum(slope * count for slope, (_, count) in zip(slopes, rounds, strict=True))
    most = min(-2 * _NOTHING, sum(count for _, count in rounds) / 10)  # that their logarithms may be too large
    apart = length & -length
    while apart > 1 and total * apart / length > most:
        apart //= 2
    if apart < _FOLDED:
        return np.arange(length // 2 + 1)
    points = length // apart
    logs = np.zeros(points // 2 + 1)
    for slope, (kind, count) in zip(slopes, rounds, strict=True):
        sizes = np.abs(rfft(np.bincount(kind.places % points, kind.masses, points)))
        logs += count * np.log(np.minimum(sizes + slope / points, 1.0))
    near = np.flatnonzero(logs > _NOTHING - 1)
    found = np.unique(near[:, None] * apart + np.arange(-apart // 2, apart // 2 + 1))
    return found[(found >= 0) & (found <= length // 2)]


def _center(kind: LossDistribution) -> int:
    """The place of the likeliest loss, from which `_coefficients` count places: near it, they lose no digits."""
    return int(kind.places[int(np.argmax(kind.masses))])


def _coefficients(kind: LossDistribution, length: int, kept: _Places) -> _Complex:
    """Those of the transform of one round: where few are kept, by their definition.

    With k = a·m + c, e^(−2πi·kj/n) is the product of two factors r and f, of which there are few. Sums are of
    rf − 1 = (r − 1)(f − 1) + (r − 1) + (f − 1) over some places at a time, so that rounding errors stay small.
    """
    from scipy.fft import rfft  # noqa: PLC0415  as in `_candidates`

    places = kind.places - _center(kind)
    if length < _SHORT or int(kept[-1]) * places.size > _DIRECT * length:
        return np.asarray(rfft(np.bincount(places % length, kind.masses, length)))[kept]
    few = math.isqrt(int(kept[-1])) + 1
    part = min(max(_ALONE // few**2, 1), 128)
    rest = 0, -places.size % part
    places, masses = np.pad(places, rest), np.pad(kind.masses, rest)
    rough, fine = (_powers_less_one(places * each, length, few) for each in (few, 1))
    fine *= masses
    left, right = (each.reshape(few, -1, part).swapaxes(0, 1) for each in (rough, fine))
    products = (left @ right.swapaxes(1, 2)).sum(axis=0)
    products += (rough * masses).sum(axis=1)[:, None] + fine.sum(axis=1)
    return np.asarray(products.reshape(-1)[kept] + masses.sum())


def _powers_less_one(places: _Places, length: int, count: int) -> _Complex:
    """1 less than the first powers of e^(−2πi·place/n), each by two others. (count, places)"""
    found = np.zeros((count, places.size), np.complex128)
    if count > 1:
        found[1] = np.expm1(-2j * np.pi / length * ((places + length // 2) % length - length // 2))
    for power in range(2, count):
        one, other = found[power // 2], found[power - power // 2]
        found[power] = one * other + (one + other)
    return found


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
    rise = np.expm1(np.diff(places) * step)
    masses = np.empty_like(deltas)
    masses[0] = 1 - deltas[0] + falls[0] / rise[0]
    masses[1:-1] = (falls[1:] * (rise[:-1] / rise[1:]) - falls[:-1]) / rise[:-1] - falls[:-1]
    masses[-1] = -falls[-1] / rise[-1] - falls[-1]
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
    found = np.maximum.accumulate(np.concatenate([[first], near, [last]]))
    return found[np.diff(found, prepend=first - 1) > 0]


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
        inside, result = losses > absent, -np.expm1(np.minimum(losses, 0.0))
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


def _searched(
    masses: _Vector, losses: _Real, upper: float, lower: float, delta: float
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


def _running(start: float, values: _Vector) -> _Vector:
    """`start`, and its sums with the first values, one by one. (values + 1,)"""
    sums = np.empty(values.size + 1)
    sums[0], sums[1:] = start, values
    return np.cumsum(sums, out=sums)


def _least(upper: float, lower: float, delta: float) -> float:
    """The ε >= 0 with `upper` − e^ε `lower` = `delta`."""
    return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)
