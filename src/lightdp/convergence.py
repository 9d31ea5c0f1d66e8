"""What noise does to the trained model: how much of it stays there (R4), and the paper's bound on the loss.

Proposition 2 bounds the training loss after T noisy rounds. As printed, the noise term of round t is raised to the
power t. Nothing in its derivation does that: unrolling the one-round recursion gives the same sum without the exponent.
Both are computed; only the second is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from lightdp._validate import integer, non_negative, number, positive
from lightdp.errors import ArgumentError
from lightdp.planning import Plan

_NEGLIGIBLE = 1e-18


@dataclass(frozen=True)
class Bound:
    """E[F(ω_T) − F(ω*)] after T rounds.

    Attributes:
        printed: by the formula as printed, which is no bound.
        corrected: without its stray exponent, which is one.
    """

    printed: float
    corrected: float


@dataclass(frozen=True)
class ModelNoise:
    """Variance of the noise in a coordinate of the trained model, for a learning rate of 1.

    Attributes:
        lasting: of noise that stays.
        residual: of pairwise noise of stragglers that is still in the model although, or before, it was repaired.
    """

    lasting: float
    residual: float


def model_noise(plan: Plan, momentum: float = 0.0, *, closed: bool = True) -> ModelNoise:
    """(R4): how much noise the model carries after T rounds of a server with momentum, on average over stragglers.

    With momentum b the noise of a round has moved the model by h = (1 − b^k)/(1 − b) after k steps. A residual comes in
    with one round and goes out with the next, or the next but one under grace (R5), so b^(k−1) or (1 + b) b^(k−2) of it
    is left, and it does not add up. Closing rounds take out what nobody has repaired yet, by steps without momentum;
    what velocity still holds stays. Residuals of uploads that are late and join in time are not counted. Where K
    rosters take turns, a round each, residuals stay K times as long (C1), and each roster closes by itself.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5, gamma=5)
    >>> for momentum in (0.0, 0.9):
    ...     for closed in (False, True):
    ...         found = model_noise(plan, momentum, closed=closed)
    ...         print(f"{momentum}, {'closed' if closed else 'open'}: {found.residual / found.lasting:.2%}")
    0.0, open: 18.95%
    0.0, closed: 0.00%
    0.9, open: 1.32%
    0.9, closed: 1.07%

    Args:
        plan: says T, the noise and how often clients straggle.
        momentum: b of the server, in [0, 1).
        closed: whether a round without data has ended a training with repair, or two under grace.
    """
    if not 0 <= number("momentum", momentum) < 1:
        raise ArgumentError(f"momentum must be in [0, 1), got momentum={momentum:g}")
    moved = np.cumsum(momentum ** np.arange(plan.rounds, dtype=float))  # h after 1, 2, ..., T steps
    cohorts = plan.request.cohorts
    lasting = float(moved @ moved) + plan.closing_rounds * cohorts * (closed and plan.repairs)
    missed = plan.law.mean(lambda s: s / plan.clients)  # the chance that a client cannot repair in a given round
    # second moments of what is left after k steps of a residual: repaired `later` rounds after its own, or not yet
    tries = np.maximum(np.arange(plan.rounds) // cohorts - plan.grace, 0)  # rounds in which it could be repaired
    waiting = missed ** tries.astype(float)
    left = waiting * (moved - closed) ** 2
    for later in range((1 + plan.grace) * cohorts, plan.rounds, cohorts):
        if waiting[later - 1] < _NEGLIGIBLE:
            break
        left[later:] += waiting[later - 1] * (1 - missed) * (moved[later:] - moved[:-later]) ** 2
    return ModelNoise(lasting * plan.noise_in_mean(), float(left.sum()) * plan.transient_in_mean())


def gaussian_norm(dimension: int, sigma: float) -> float:
    """E‖n‖ for n ~ N(0, σ²I) in `dimension` dimensions: σ √2 Γ((d+1)/2)/Γ(d/2), exactly.

    >>> round(gaussian_norm(1, 1.0), 4)  # the mean of |n| is sqrt(2/π)
    0.7979

    Args:
        dimension: d.
        sigma: σ of each coordinate.
    """
    d, sigma = integer("dimension", dimension, 1), non_negative("sigma", sigma)
    return sigma * math.sqrt(2) * math.exp(float(gammaln((d + 1) / 2) - gammaln(d / 2)))


def bound(
    plan: Plan,
    *,
    dimension: int,
    initial_gap: float,
    smoothness: float,
    lipschitz: float,
    polyak: float,
    dissimilarity: float,
) -> Bound:
    """Proposition 2 for the noise of `plan` (D3), averaged over its straggler law.

    It is for a server without momentum, and before a closing round. A round's noise is what it adds to the model. Where
    the plan repairs, that is its individual noise, the residual it leaves and, from the second round on (the third with
    grace), the residuals of earlier rounds that it takes out (R4). These are independent, and each residual is taken
    out once, so the variance is at most `noise_in_mean` and once or twice `transient_in_mean`. The proposition needs no
    more of the noise than its mean norm and mean square, so its bound holds for this variance. Its step is the mean of
    all clients' updates, so plans whose cohorts take turns are refused.

    >>> import lightdp
    >>> plan = lightdp.plan(
    ...     clients=50, colluders=10, stragglers=10, rounds=7, epsilon=3, delta=1e-5, calibration="exact"
    ... )
    >>> found = bound(
    ...     plan, dimension=5, initial_gap=2.0, smoothness=0.3, lipschitz=0.7, polyak=0.4, dissimilarity=1.2
    ... )
    >>> f"{found.printed:.3f} printed, {found.corrected:.3f} corrected"
    '0.414 printed, 1.842 corrected'

    Args:
        plan: says T and the variance of the noise in the mean of a round.
        dimension: number of model parameters d.
        initial_gap: F(ω_0) − F(ω*).
        smoothness: ρ, Lipschitz constant of the gradients.
        lipschitz: β, Lipschitz constant of the losses.
        polyak: l of the Polyak-Łojasiewicz condition.
        dissimilarity: B, bound on local against global gradients.

    Raises:
        ArgumentError: an argument is out of range, or the plan has cohorts.
    """
    if plan.request.cohorts > 1:
        raise ArgumentError(f"plan must have the same clients in every round, got {plan.request.cohorts} cohorts")
    gap, rho = non_negative("initial_gap", initial_gap), positive("smoothness", smoothness)
    beta, l = positive("lipschitz", lipschitz), positive("polyak", polyak)  # noqa: E741  the paper's letter
    b = positive("dissimilarity", dissimilarity)
    stays, goes = plan.noise_in_mean(), plan.transient_in_mean()
    repairs = np.arange(1, plan.rounds + 1) > 1 + plan.grace  # in rounds 1, 2, ..., T
    variance = stays + goes * (1 + repairs)
    norm = gaussian_norm(dimension, 1.0) * np.sqrt(variance)
    step = (1 + rho * b) * beta * norm + rho / 2 * variance * dimension  # λ_1 β E‖n‖ + λ_0 E‖n‖²
    rate = 1 + 2 * l * (-1 + rho * b + rho * b * b / 2)  # 1 + 2 l λ_2
    t = np.arange(1, plan.rounds + 1, dtype=float)
    with np.errstate(over="ignore", invalid="ignore"):
        shrink = np.power(rate, plan.rounds - t)
        first = float(np.power(rate, plan.rounds)) * gap
        printed = first + float(np.sum(np.power(step, t) * shrink))
        corrected = first + float(np.sum(step * shrink))
    return Bound(printed, corrected)
