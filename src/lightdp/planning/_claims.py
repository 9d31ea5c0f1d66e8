"""(P1)-(P3): what the paper's σ claims, and what it really buys."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightdp import gaussian
from lightdp.errors import ArgumentError
from lightdp.planning._plan import Plan


@dataclass(frozen=True)
class Claim:
    """An ε that the paper's formulas claim for some rounds, and what their noise really gives: ε and μ."""

    rule: str
    rounds: int
    claimed: float
    true: float
    mu: float


def paper_claims(plan: Plan) -> tuple[Claim, ...]:
    """(P1)-(P3): the paper's noise for one round and for T, under its footnote's rule and under the right one.

    `plan` is one with calibration "paper", whose σ follows the footnote: variances scaled by sqrt(T). The right
    rule scales standard deviations by sqrt(T).
    """
    if not plan.understates:
        raise ArgumentError(f"plan must be of the paper's calibration, got calibration={plan.request.calibration!r}")
    if plan.sampling_rate != 1:
        raise ArgumentError(f"plan must use whole batches, as the paper does, got sampling_rate={plan.sampling_rate:g}")
    mu_footnote = plan.sensitivity / plan.sigma_effective  # of one round
    mu_once = mu_footnote * plan.rounds**0.25
    claims = (
        ("one round", 1, mu_once),
        ("T rounds, unscaled", plan.rounds, mu_once * math.sqrt(plan.rounds)),
        ("T rounds, footnote: σ² × √T", plan.rounds, mu_footnote * math.sqrt(plan.rounds)),
        ("T rounds, right: σ × √T", plan.rounds, mu_once),
    )
    return tuple(Claim(rule, rounds, plan.budget, gaussian.epsilon(mu, plan.delta), mu) for rule, rounds, mu in claims)
