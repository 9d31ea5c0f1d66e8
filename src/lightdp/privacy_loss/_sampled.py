"""The loss of one round with Poisson-sampled records, on a grid ("Connect the Dots").

P is N(0, z²) if a record is added, else N(−1, z²) with probability q and N(0, z²) otherwise; Q is N(0, z²) if a record
is removed, else N(1, z²) with probability q and N(0, z²) otherwise. All losses fall with the output.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from lightdp.privacy_loss._distributions import LossDistribution, Places, Vector

Adjacency = Literal["add-remove", "replace"]
"""How neighbouring data sets differ: by one record more or less, or by another record in its place."""

Direction = Literal["remove", "add", "replace"]
"""From which of two neighbouring data sets to which."""

_CUT = math.exp(-50)  # probability of outputs whose loss counts as infinite, in one round
_WHOLE = 2**14  # points, up to which the loss of one round takes all of the grid
_DOTS = 2**13  # outputs whose losses it takes otherwise


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


def _dots(places: Places, deltas: Vector, step: float) -> LossDistribution:
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


def _places(kind: Direction, z: float, rate: float, step: float) -> Places:
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


def _losses(kind: Direction, outputs: Vector, z: float, rate: float) -> Vector:
    """log P/Q of each output."""

    def removed(x: Vector) -> Vector:
        return np.logaddexp((-0.5 - x) / z**2 + math.log(rate), -math.inf if rate == 1 else math.log(1 - rate))

    if kind == "remove":
        return removed(outputs)
    return -removed(-outputs) if kind == "add" else removed(outputs) - removed(-outputs)


def _deltas(kind: Direction, places: Places, step: float, z: float, rate: float) -> Vector:
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


def _outputs(kind: Direction, losses: Vector, z: float, rate: float) -> Vector:
    """The output x that has a loss ε if a record is removed or added, for each of them.

    Without sampling the loss of x would be ±log(1 + (e^±ε − 1)/q) = (∓1/2 − x)/z².
    """
    signed = losses if kind == "remove" else -losses
    scaled = signed + np.log(1 / rate)
    whole = scaled + np.log1p(-np.exp(np.minimum(np.log(1 / rate - 1) - scaled, 0.0)))
    whole = np.where(signed == 0, 0.0, whole)
    return -0.5 - whole * z**2 if kind == "remove" else 1 + (-0.5 + whole * z**2)


def _swapped(places: Places, step: float, z: float, rate: float) -> Vector:
    """The output x that has a loss ε if a record is replaced, for places of the grid.

    x = −z² (ε/2 + asinh(α sinh(ε/2))) with α = e^(1/2z²) (1 − q)/q, by logarithms, which do not overflow.
    """
    far = np.abs(places) * step
    log_alpha = 0.5 * (1 / z) ** 2 + np.log1p(-rate) - np.log(rate)
    with np.errstate(divide="ignore"):  # at ε = 0
        log_sinh = log_alpha + far / 2 + np.log1p(-np.exp(-far)) - math.log(2)
    asinh = np.logaddexp(0.5 * np.logaddexp(0, 2 * log_sinh), log_sinh)
    return np.where(places == 0, 0.0, z**2 * (-np.sign(places) * asinh - places * step / 2))
