"""The loss of many rounds together, by one transform, or by those of its coefficients that rounds leave."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lightdp.privacy_loss._distributions import WIDE, Complex, LossDistribution, Losses, Places, SmoothLosses, total

_TAIL = 1e-15  # probability of sums of losses that count as infinite, for each composition
_NOTHING = -60.0  # logarithm of a Fourier coefficient that counts as 0: all of them change δ by less than 1e-19
_SHORT = 2**15  # points up to which nothing is faster than a transform
_FOLDED = 4  # times fewer points than those of a transform: it is worth while to fold them
_DIRECT = 10  # products for each point of a transform that take as long as it
_ALONE = 2**16  # products of a matrix product that BLAS libraries leave to one thread, as others would wait for theirs


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
    return found if length % WIDE == 0 and 2 * kept[-1] < length // WIDE else found.written()


def _length(least: int) -> int:
    """Of a transform of `least` points: one of few, since `scipy` keeps tables for each, and many times halved."""
    part = 1 << max(least.bit_length() - 3, 0)
    return -(-least // part) * part


def _candidates(rounds: Sequence[tuple[LossDistribution, int]], length: int) -> Places:
    """The coefficients that may not be 0 after all rounds.

    Where the losses of one round are folded to fewer points, their transform has some of the same coefficients. One
    between these differs in size from the nearest by at most their distance times the mean of |loss − any place|.
    """
    from scipy.fft import rfft  # noqa: PLC0415  plans without sampling do not need it

    if length < _SHORT:
        return np.arange(length // 2 + 1)
    slopes = []
    for kind, _ in rounds:
        slopes.append(math.pi * total(np.abs(kind.places - _center(kind)).astype(np.float64), kind.masses))
    slope_of_all = sum(slope * count for slope, (_, count) in zip(slopes, rounds, strict=True))
    most = min(-2 * _NOTHING, sum(count for _, count in rounds) / 10)  # that their logarithms may be too large
    apart = length & -length
    while apart > 1 and slope_of_all * apart / length > most:
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


def _coefficients(kind: LossDistribution, length: int, kept: Places) -> Complex:
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


def _powers_less_one(places: Places, length: int, count: int) -> Complex:
    """1 less than the first powers of e^(−2πi·place/n), each by two others. (count, places)"""
    found = np.zeros((count, places.size), np.complex128)
    if count > 1:
        found[1] = np.expm1(-2j * np.pi / length * ((places + length // 2) % length - length // 2))
    for power in range(2, count):
        one, other = found[power // 2], found[power - power // 2]
        found[power] = one * other + (one + other)
    return found


def window(rounds: Sequence[tuple[LossDistribution, int]]) -> tuple[int, int]:
    """Between which places the sum of all losses lies, up to a probability of `_TAIL`, by Chernoff's bound."""
    low, high = (sum(count * int(kind.places[end]) for kind, count in rounds) for end in (0, -1))
    variance = 0.0
    for kind, count in rounds:
        places = kind.places.astype(np.float64)
        variance += count * total((places - total(places, kind.masses)) ** 2, kind.masses)
    last = 2 * math.sqrt(2 * math.log(2 / _TAIL) / max(variance, 1e-9))  # the best for a normal distribution is half
    first = min(last, 1 / max(int(kind.places[-1] - kind.places[0]) + 1 for kind, _ in rounds))
    orders = last / 2.0 ** np.arange(math.ceil(math.log2(last / first)), -1, -1)
    exponents = np.full((2, orders.size), math.log(2 / _TAIL))  # logarithms of moments, below and above
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # what overflows bounds nothing
        for kind, count in rounds:
            tilt = np.exp(orders[0] * kind.places)
            for place in range(orders.size):
                exponents[:, place] += count * np.log([total(1 / tilt, kind.masses), total(tilt, kind.masses)])
                tilt *= tilt
    lows, highs = np.where(np.isfinite(exponents), exponents, math.inf) / orders
    return max([low, *map(math.floor, -lows[lows < math.inf])]), min([high, *map(math.ceil, highs[highs < math.inf])])
