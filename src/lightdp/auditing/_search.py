"""`--lies search`: the lies for which the truth comes nearest to what is claimed, told to clients that keep budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lightdp import gaussian
from lightdp.auditing._schedule import Round
from lightdp.auditing._stories import Played, Script, climb, play
from lightdp.planning import Plan

STEPS = 400
"""Stories that a search tries."""


@dataclass(frozen=True)
class Near:
    """How near the exact μ of a story comes to what is claimed.

    Attributes:
        worst: in shares of what client 0 says that it spent at worst.
        budget: in shares of the plan's budget.
    """

    worst: float
    budget: float

    @property
    def mean(self) -> float:
        """What the search raises."""
        return (self.worst + self.budget) / 2

    @classmethod
    def of(cls, played: Played) -> Near:
        """That of what came of a story; 0 where client 0 sent no data."""
        plan = played.plan
        if not played.mine.size:
            return cls(0.0, 0.0)
        most = (gaussian.mu(plan.budget, plan.delta) * plan.scale / plan.sensitivity) ** 2
        worst = min(played.worst, most) if plan.late_is_seen else played.worst  # as the client says it
        cost, _ = played.exact()
        return cls(math.sqrt(cost / worst), math.sqrt(cost / most))

    def __str__(self) -> str:
        return f"{100 * self.worst:.1f} % of the odometer at worst and {100 * self.budget:.1f} % of the budget"


def truth(plan: Plan, rounds: Sequence[Round]) -> Script:
    """A schedule whose server tells everybody the truth, as a script."""
    honest = plan.clients - plan.colluders
    used = np.array([[i in each.used for i in range(plan.clients)] for each in rounds])
    late = np.array([[i in each.late for i in range(plan.clients)] for each in rounds])
    closing = np.array([each.closing for each in rounds])
    told = np.repeat(used[None], honest, axis=0)
    asked, closes = (used | late)[:, :honest].T.copy(), np.repeat(closing[None], honest, axis=0)
    if not plan.grace:
        return Script(told, asked, closes)
    on_time = np.array([np.isin(range(plan.clients), list(each.on_time or ())) for each in rounds])
    return Script(told, asked, closes, np.repeat(on_time[None], honest, axis=0))


def search(
    plan: Plan, starts: dict[str, Script], *, seed: int, steps: int, progress: Callable[[float], None]
) -> tuple[Script, dict[str, Near]]:
    """The script that comes nearest to what is claimed, and how near it and the starts come.

    Formal guarantee: by `Near.mean` no start comes nearer than the result.
    """
    near = {name: Near.of(play(plan, script.story(plan), budget=True)) for name, script in starts.items()}
    name = max(near, key=lambda each: near[each].mean)
    found, best = starts[name], near[name]
    each, done = math.ceil(steps / len(starts)), 0
    for script in starts.values():
        for tried, played in climb(
            plan, script, seed=seed, steps=each, goal=lambda one: Near.of(one).mean, budget=True
        ):
            reached, done = Near.of(played), done + 1
            if reached.mean > best.mean:
                found, best = tried, reached
            progress(done / (each * len(starts)))
    return found, near | {"search": best}


def _mean(played: Played) -> float:
    return Near.of(played).mean
