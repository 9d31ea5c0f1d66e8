"""What the rounds of a run mean for an attacker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from lightdp import attack, gaussian
from lightdp.accountant import Odometer
from lightdp.planning import Plan

Seen: TypeAlias = tuple[Iterable[int], Iterable[int]]
"""Used and late clients of a round."""


def attack_power(plan: Plan, spent: float, seen: Sequence[Seen]) -> float:
    """The true-positive rate that no attack on the client that spent most exceeds at 1 % false positives.

    Exact for whole batches; for sampled ones from two points of the (ε, δ) curve of the rounds.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=3, epsilon=2, delta=1e-5)
    >>> round(attack_power(plan, 2.0, []), 4)
    0.034

    Args:
        plan: the noise.
        spent: ε of that client at the plan's δ.
        seen: all rounds so far.
    """
    if plan.gdp:
        return gaussian.power(gaussian.mu(spent, plan.delta, up=True), attack.FALSE_POSITIVES)

    def at(delta: float) -> float:
        """ε of the rounds so far; at another δ than the plan's by an odometer of its own."""
        if delta == plan.delta:
            return spent
        odometer = Odometer(Plan(plan.request.but(delta=delta, records=None), plan.noise))
        for used, late in seen:
            odometer.record(used, late)
        return odometer.max_epsilon()

    return attack.power(at, plan.delta)
