"""The paper's Proposition 2: a bound on the training loss after T noisy rounds, as printed and corrected.

As printed, the noise term of round t is raised to the power t. Nothing in its derivation does that: unrolling
the one-round recursion gives the same sum without the exponent. Both are computed; only the second is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from lightdp._validate import integer, non_negative, positive
from lightdp.planning import Plan


@dataclass(frozen=True)
class Bound:
    """E[F(ω_T) − F(ω*)] after T rounds.

    Attributes:
        printed: by the formula as printed, which is no bound.
        corrected: without its stray exponent, which is one.
    """

    printed: float
    corrected: float


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

    A round's noise is what it adds to the model. Where the plan repairs, that is its individual noise, the residual it
    leaves, and the residuals of earlier rounds that it takes out (R4). These are independent, and each residual is
    taken out once, so the variance is at most `noise_in_mean` and twice `transient_in_mean`. The proposition needs no
    more of the noise than its mean norm and mean square, so its bound holds for this variance.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=7, epsilon=3, delta=1e-5)
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
    """
    gap, rho = non_negative("initial_gap", initial_gap), positive("smoothness", smoothness)
    beta, l = positive("lipschitz", lipschitz), positive("polyak", polyak)  # noqa: E741  the paper's letter
    b = positive("dissimilarity", dissimilarity)
    variance = plan.noise_in_mean() + 2 * plan.transient_in_mean()
    norm = gaussian_norm(dimension, math.sqrt(variance))
    step = (1 + rho * b) * beta * norm + rho / 2 * variance * dimension  # λ_1 β E‖n‖ + λ_0 E‖n‖²
    rate = 1 + 2 * l * (-1 + rho * b + rho * b * b / 2)  # 1 + 2 l λ_2
    t = np.arange(1, plan.rounds + 1, dtype=float)
    with np.errstate(over="ignore", invalid="ignore"):
        shrink = np.power(rate, plan.rounds - t)
        first = float(np.power(rate, plan.rounds)) * gap
        printed = first + float(np.sum(np.power(step, t) * shrink))
        corrected = first + float(np.sum(step * shrink))
    return Bound(printed, corrected)
