"""What a client has spent over several rosters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.planning import Plan


def spent_most(plan: Plan, rosters: Sequence[tuple[Sequence[str], Odometer]]) -> float:
    """The ε of the client that has spent most in all rosters together, at the plan's δ (C1).

    >>> import lightdp
    >>> plan = lightdp.plan(clients=3, colluders=1, stragglers=1, rounds=4, epsilon=2, delta=1e-5)
    >>> one, two = Odometer(plan), Odometer(plan)
    >>> one.record([0, 1, 2]), two.record([0, 1, 2])
    (None, None)
    >>> both = spent_most(plan, [(["ann", "bob", "eve"], one), (["dan", "eve", "joe"], two)])
    >>> one.max_epsilon() < both < 2 * one.max_epsilon()
    True

    Args:
        plan: of the training.
        rosters: the names of the clients of each, and an odometer of its rounds.
    """
    if len(rosters) == 1:
        return rosters[0][1].max_epsilon()
    total: dict[str, Counter[float]] = {}
    for names, odometer in rosters:
        for name, squares in zip(names, odometer.squares(), strict=True):
            total[name] = total.get(name, Counter()) + squares
    if plan.gdp:
        most = max((math.fsum(x * k for x, k in each.items()) for each in total.values()), default=0.0)
        return gaussian.epsilon(math.sqrt(most), plan.delta)
    return max((float(Odometer(plan, [0]).beside([each]).epsilon()[0]) for each in total.values()), default=0.0)
