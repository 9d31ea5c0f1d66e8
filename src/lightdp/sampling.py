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
from lightdp.privacy_loss import LossDistribution

Adjacency = privacy_loss.Adjacency

_ROUNDS = 10**6  # the error of the transforms was measured up to here
_ERROR = 2.0**-50  # in δ, for each round composed: more than ten times the largest measured error
_POINTS = 2**21  # of a composed distribution, approximately: half a gigabyte and seconds


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
    return max(each.epsilon(delta - error) for each in _composed(rounds, rate, adjacency, coarse))


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
    error = _ERROR * max(sum(rounds.values()), 100)
    return min(1.0, max(each.delta(epsilon) for each in _composed(rounds, rate, adjacency, 1)) + error)


def _composed(
    rounds: Mapping[float, int], rate: float, adjacency: Adjacency, coarse: int
) -> tuple[LossDistribution, ...]:
    """The losses of all rounds together, for each direction in which neighbours differ."""
    rounds = {z: count for z, count in sorted(rounds.items()) if count > 0}
    if (total := sum(rounds.values())) > _ROUNDS:
        raise InfeasibleError(f"rounds must be <= {_ROUNDS} where batches are sampled, got rounds={total}")
    step = _step(rounds, rate) * coarse
    kinds = [_sampled(z, rate, adjacency, step) for z in rounds]
    return tuple(
        functools.reduce(LossDistribution.composed, map(LossDistribution.repeated, direction, rounds.values()))
        for direction in zip(*kinds, strict=True)
    )


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
    from scipy.optimize import brentq  # noqa: PLC0415  slow to import; plans without sampling do not need it

    @functools.cache  # the search asks again for both ends
    def excess(log_z: float, coarse: int = 4) -> float:
        scaled = {math.exp(log_z) * factor: count for factor, count in rounds.items()}
        spent = epsilon(scaled, rate=rate, delta=delta, adjacency=adjacency, coarse=coarse)
        return math.log(max(spent, 1e-300) / target)

    # Start at the central limit of many sampled rounds: `rate` times the noise that whole batches need.
    whole = math.sqrt(sum(rounds.values())) / gaussian.mu(target, delta) * (2 if adjacency == "replace" else 1)
    least = math.log(0.3 / min(rounds))
    low = high = max(math.log(whole * rate / min(rounds)), least)
    while excess(high) > 0:
        low, high = high, high + math.log(1.3)
    while excess(low) <= 0:
        if low <= least:
            return math.exp(low)
        low, high = max(low - math.log(1.3), least), low
    root = float(brentq(excess, low, high, xtol=2e-4))
    while excess(root, coarse=1) > 0:
        root += 2e-4
    return math.exp(root)


def _step(rounds: Mapping[float, int], rate: float) -> float:
    """A discretisation fine enough to lose about 1e-4 in ε: errors grow with the rounds and with the noise.

    Arguments may come from an untrusted server, so memory is bounded: where many rounds with little noise would need
    more than `_POINTS` points, the step is coarser, and the estimate more pessimistic.
    """
    total, largest = max(sum(rounds.values()), 1), max(rounds, default=1.0)
    wanted = min(1e-2 / math.sqrt(total), 0.05 * max(rate, 0.02) / largest)
    variance = sum(count * min(z**-2, rate**2 * math.expm1(min(z**-2, 99.0))) for z, count in rounds.items())
    wanted = max(wanted, 16 * math.sqrt(variance) / _POINTS)  # 8 standard deviations of the loss on each side
    return 2.0 ** math.floor(math.log2(wanted))  # powers of 2, so that `_sampled` finds them in its cache


@functools.lru_cache(maxsize=256)
def _sampled(multiplier: float, rate: float, adjacency: Adjacency, step: float) -> tuple[LossDistribution, ...]:
    return privacy_loss.sampled(multiplier, rate=rate, adjacency=adjacency, step=step)
