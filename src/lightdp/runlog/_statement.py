"""What a training guaranteed, in sentences that stand alone."""

from __future__ import annotations

from collections.abc import Sequence

from lightdp import attack, gaussian
from lightdp.planning import Plan
from lightdp.runlog._attack import Seen, attack_power
from lightdp.schemes import scheme

STATISTICS = "statistics"
"""The setting `columns` of a run whose features are scaled by statistics of the data."""
_WHAT = {"record": "any one record of a client", "person": "any one person of a client, with all records,"}


def not_private(columns: object) -> list[str]:
    """What every output of a run begins with if no ε covers how its features were scaled; else nothing.

    >>> not_private("columns.toml")
    []

    Args:
        columns: the setting.
    """
    if columns != STATISTICS:
        return []
    return [
        f"NOT PRIVATE: features were scaled by statistics of the data (--columns {STATISTICS}), which no ε here covers."
    ]


def guaranteed(plan: Plan, epsilon: float, seen: Sequence[Seen], *, named: str, unit: str) -> list[str]:
    """Whom the noise hides from whom, and what an attacker finds at most, in plain sentences.

    Guarantee: the ε and μ in them are rounded up.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=3, epsilon=2, delta=1e-5)
    >>> guaranteed(plan, 2.0, [], named="exact", unit="client")[0][:60]
    'Whether everything that one client holds was in the training'

    Args:
        plan: the noise.
        epsilon: what the client that spent most has spent.
        seen: who was used and who was late in each round.
        named: the scheme.
        unit: what is protected.
    """
    what = _WHAT.get(unit, "everything that one client holds")
    whom = scheme(named).against(plan.colluders)
    degree = attack.degree(epsilon, plan.delta, gaussian.mu(epsilon, plan.delta, up=True), gdp=plan.gdp)
    untold = f"Whether {what} was in the training cannot be told by {whom}, up to {degree}"
    return [
        f"{untold} over the whole training, {plan.adjacency}.",
        attack.sentence(attack_power(plan, epsilon, seen), unit, plan.adjacency),
    ]
