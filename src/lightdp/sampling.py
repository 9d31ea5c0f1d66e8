"""Poisson-sampled Gaussian noise (E5), by privacy loss distributions.

A client that draws each record of a round with probability `rate` and adds noise of standard deviation z · clip
runs the subsampled Gaussian mechanism with noise multiplier z.

Formal guarantee: ε is never below the exact one. Discretisation is pessimistic; compositions go through Fourier
transforms in floating point, whose error in δ grows with the rounds. That error is subtracted from the given δ, and a
δ that is not well above it is refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from lightdp import gaussian, privacy_loss
from lightdp.errors import InfeasibleError
from lightdp.privacy_loss import Direction, LossDistribution, Losses

Adjacency = privacy_loss.Adjacency

_Kinds = tuple[tuple[float, int], ...]  # noise multipliers or factors, the smallest first, and numbers of rounds

_ROUNDS = 10**6  # the error of the transforms was measured up to here
_ERROR = 2.0**-50  # in δ, for each round composed: more than twice the largest error that was measured
_POINTS = 2**21  # of a composed distribution, approximately: half a gigabyte and seconds
_ROUND_UP = 1 + 1e-12  # on z, and on ε: covers what rounding z · factor · clip / clip may change
_LEAST = 0.01  # of noise multipliers: losses of less noise are beyond what e^loss can hold
_COARSER = 8  # times the discretisation that shows that a direction does not matter
_NEAR = math.log(1.3)  # the distance of the noises between which a search begins


def epsilon(rounds: Mapping[float, int], *, rate: float, delta: float, adjacency: Adjacency, coarse: int = 1) -> float:
    """The ε of a composition of sampled rounds, never below the exact one (E5).

    | case | result |
    | --- | --- |
    | no rounds | 0 |
    | `rate` = 1 | as `gaussian.epsilon`, up to the discretisation |

    Args:
        rounds: number of sampled rounds for each noise multiplier σ_eff/clip.
        rate: probability that a record is in a round's batch.
        delta: δ.
        adjacency: how neighbouring data sets differ.
        coarse: factor by which the discretisation is coarser than usual: faster, and more pessimistic.

    Raises:
        InfeasibleError: there are too many rounds, or `delta` is too small for their number.

    >>> round(epsilon({1.0: 100}, rate=0.01, delta=1e-5, adjacency="add-remove"), 2)
    0.72
    """
    if not any(rounds.values()):
        return 0.0
    total = sum(rounds.values())
    error = _ERROR * max(total, 100)
    if delta < 4 * error:
        raise InfeasibleError(f"delta must be >= {4 * error:.1e} for {total} sampled rounds, got delta={delta:g}")
    kinds, step, result = _kinds(rounds), _step(rounds, rate) * coarse, 0.0
    for direction in privacy_loss.directions(adjacency, rate):
        if result > 0:  # a record more usually reveals less than one less, and a rough estimate is enough to tell
            rough = _composed(kinds, rate, direction, step * _COARSER)
            if rough.epsilon(delta - error) <= result:
                continue
        result = max(result, _composed(kinds, rate, direction, step).epsilon(delta - error))
    return result


def delta(rounds: Mapping[float, int], *, rate: float, epsilon: float, adjacency: Adjacency) -> float:
    """The δ of a composition of sampled rounds, never below the exact one (E5).

    Args:
        rounds: number of sampled rounds for each noise multiplier σ_eff/clip.
        rate: probability that a record is in a round's batch.
        epsilon: ε >= 0; at 0 this is the total variation distance, of which an attacker's advantage is at most.
        adjacency: how neighbouring data sets differ.

    Raises:
        InfeasibleError: there are too many rounds.

    >>> round(delta({1.0: 100}, rate=0.01, epsilon=0.0, adjacency="add-remove"), 3)
    0.051
    """
    if not any(rounds.values()):
        return 0.0
    error, kinds, step = _ERROR * max(sum(rounds.values()), 100), _kinds(rounds), _step(rounds, rate)
    found = (_composed(kinds, rate, each, step).delta(epsilon) for each in privacy_loss.directions(adjacency, rate))
    return min(1.0, max(found) + error)


def _kinds(rounds: Mapping[float, int]) -> _Kinds:
    if (total := sum(rounds.values())) > _ROUNDS:
        raise InfeasibleError(f"rounds must be <= {_ROUNDS} where batches are sampled, got rounds={total}")
    kinds = tuple((z, count) for z, count in sorted(rounds.items()) if count > 0)
    if kinds and kinds[0][0] < _LEAST:
        raise InfeasibleError(f"noise multipliers must be >= {_LEAST:g} where batches are sampled, got {kinds[0][0]:g}")
    return kinds


@functools.lru_cache(maxsize=3)  # a plan asks for ε of the same rounds at two δ
def _composed(kinds: _Kinds, rate: float, direction: Direction, step: float) -> Losses:
    """The loss of all rounds together, for one direction in which neighbours differ, in bounded memory."""
    while True:
        rounds = [(_sampled(z, rate, direction, step), count) for z, count in kinds]
        low, high = privacy_loss.window(rounds)
        if high - low <= 2 * _POINTS:
            return privacy_loss.composed(rounds, (low, high))
        step *= 2


def noise_multiplier(
    target: float, *, rounds: Mapping[float, int], rate: float, delta: float, adjacency: Adjacency
) -> float:
    """The least z such that rounds with multipliers {z · factor: count} cost at most ε = `target`, rounded up (E5).

    The result is at least 0.3 over the smallest factor: less noise is not resolved.

    Args:
        target: ε > 0.
        rounds: number of sampled rounds for each factor.
        rate: probability that a record is in a round's batch.
        delta: δ.
        adjacency: how neighbouring data sets differ.

    Raises:
        InfeasibleError: as `epsilon` does.

    >>> round(noise_multiplier(2.0, rounds={1.0: 100}, rate=0.01, delta=1e-5, adjacency="add-remove"), 2)
    0.74
    """
    return _noise_multiplier(target, _kinds(rounds), rate, delta, adjacency)


@functools.lru_cache(maxsize=256)  # schemes that are compared need the same noise, and so do rosters of one training
def _noise_multiplier(target: float, rounds: _Kinds, rate: float, delta: float, adjacency: Adjacency) -> float:
    from scipy.optimize import brentq  # noqa: PLC0415  slow to import; plans without sampling do not need it

    def excess(z: float, coarse: int) -> float:
        scaled = {z * factor: count for factor, count in rounds}
        spent = epsilon(scaled, rate=rate, delta=delta, adjacency=adjacency, coarse=coarse)
        return math.log(max(spent, 1e-300) / target)

    @functools.cache  # it asks again for both ends
    def searched(log_z: float) -> float:
        return excess(math.exp(log_z), 4)

    # The search begins between two of the points start + k · `_NEAR`, where `start` is the central limit of many rounds
    # with much noise: `rate` times the noise that whole batches need if all factors are as the least. Which two, the
    # same with all factors guesses, and a limit for less noise.
    mu = gaussian.mu(target, delta) / (2 if adjacency == "replace" else 1)
    least = math.log(0.3 / rounds[0][0])
    start = max(math.log(math.sqrt(sum(count for _, count in rounds)) / mu * rate / rounds[0][0]), least)
    whole = math.log(math.sqrt(sum(count / factor**2 for factor, count in rounds)) / mu * rate)
    guess = max(_central(mu, rounds, rate), whole)
    low = high = max(start + math.floor((guess - start) / _NEAR) * _NEAR, least)
    while searched(high) > 0:
        low, high = high, high + _NEAR
    while searched(low) <= 0:
        if low <= least:
            return math.exp(low) * _ROUND_UP
        low, high = max(low - _NEAR, least), low
    root = float(brentq(searched, low, high, xtol=2e-4))
    while excess(found := math.exp(root) * _ROUND_UP, 1) > 1 - _ROUND_UP:
        root += 2e-4
    return found


def _central(mu: float, rounds: _Kinds, rate: float) -> float:
    """log z such that the losses of all rounds have the variance μ², by bisection."""
    low, high = math.log(0.1 / rounds[0][0]), math.log(1e9)
    while high - low > _NEAR / 8:
        middle = (low + high) / 2
        scaled = {math.exp(middle) * factor: count for factor, count in rounds}
        low, high = (middle, high) if _variance(scaled, rate) > mu * mu else (low, middle)
    return high


def _variance(rounds: Mapping[float, int], rate: float) -> float:
    """Of the losses of all rounds, about."""
    return sum(count * min(z**-2, rate**2 * math.expm1(min(z**-2, 99.0))) for z, count in rounds.items())


def _step(rounds: Mapping[float, int], rate: float) -> float:
    """A discretisation fine enough to lose about 1e-4 in ε: errors grow with the rounds and with the noise.

    Arguments may come from an untrusted server, so memory is bounded: where many rounds with little noise would need
    more than `_POINTS` points, the step is coarser, and the estimate more pessimistic.
    """
    total, largest = max(sum(rounds.values()), 1), max(rounds, default=1.0)
    wanted = min(1e-2 / math.sqrt(total), 0.05 * max(rate, 0.02) / largest)
    wanted = max(wanted, 16 * math.sqrt(_variance(rounds, rate)) / _POINTS)  # 8 standard deviations on each side
    return 2.0 ** math.floor(math.log2(wanted))  # powers of 2, so that `_sampled` finds them in its cache


@functools.lru_cache(maxsize=256)
def _sampled(multiplier: float, rate: float, direction: Direction, step: float) -> LossDistribution:
    return privacy_loss.sampled(multiplier, rate=rate, direction=direction, step=step)
