"""(C1): what cohorts that take turns cost and gain, beside everybody and beside the same clients in every round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lightdp.errors import ArgumentError
from lightdp.planning._plan import Plan, solve
from lightdp.planning._request import Request
from lightdp.stragglers import StragglerLaw, custom, parse, uniform

_MOST = 10**6  # clients of a round for which a plan is made only to compare with


@dataclass(frozen=True)
class Membership:
    """One answer to "who takes part in a round?", at the same (ε, δ) for each client.

    Attributes:
        name: "cohorts", "everybody" or "fixed".
        title: the same in words.
        plan: for it; None if there is none.
        reason: why there is none.
    """

    name: str
    title: str
    plan: Plan | None
    reason: str = ""


def memberships(chosen: Plan) -> tuple[Membership, ...]:
    """Cohorts of a population beside all of it, and beside one cohort alone, in every round; () without a population.

    All of it has the same shares of colluders and stragglers, rounded up: as many as all cohorts together withstand.

    >>> import lightdp
    >>> asked = {"clients": 20, "population": 100, "colluders": 4, "stragglers": 4, "rounds": 50}
    >>> found = lightdp.plan(**asked, epsilon=8, delta=1e-5, calibration="repair")
    >>> [(each.title, each.plan.turns, round(each.plan.noise_in_mean(), 4)) for each in memberships(found)]
    [('20 of 100 in turn', 10, 0.0303), ('all 100', 50, 0.0044), ('the same 20', 50, 0.0924)]
    """
    asked = chosen.request
    if asked.population is None:
        return ()
    title = (
        f"{asked.clients:,} of {asked.members:,} in turn" if asked.cohorts > 1 else f"one roster of {asked.clients:,}"
    )
    cohorts = Membership("cohorts", title, chosen)
    everybody, fixed = f"all {asked.members:,}", f"the same {asked.clients:,}"
    return (
        cohorts,
        _planned("everybody", everybody, lambda: _everybody(asked)),
        _planned("fixed", fixed, lambda: asked.but(population=None, records=_scaled(asked.records, asked))),
    )


def _everybody(asked: Request) -> Request:
    """The request in which the whole population takes part in every round."""
    if asked.members > _MOST:
        raise ArgumentError(f"{asked.members:,} clients in a round are more than {_MOST:,}")
    members = asked.members
    colluders, stragglers = (-(-each * members // asked.clients) for each in (asked.colluders, asked.stragglers))
    colluders, stragglers = min(colluders, members - 1), min(stragglers, members - 2)
    degree = None if asked.noise_graph.complete else asked.noise_graph.degree + (asked.noise_graph.degree & members & 1)
    return asked.but(
        clients=members, population=None, colluders=colluders, stragglers=stragglers,
        straggler_law=_law(asked, stragglers), degree=degree,
    )  # fmt: skip


def _law(asked: Request, stragglers: int) -> StragglerLaw:
    """The law of stragglers of the whole population: by its name, or else with the same shares."""
    if asked.law == uniform(asked.stragglers):
        return uniform(stragglers)
    if isinstance(asked.straggler_law, str) and asked.straggler_law.startswith("binomial"):
        return parse(asked.straggler_law, stragglers, asked.members)
    places = np.rint(np.arange(asked.stragglers + 1) * (stragglers / max(asked.stragglers, 1))).astype(int)
    pmf = np.zeros(stragglers + 1)
    np.add.at(pmf, places, asked.law.pmf)
    return custom(stragglers, pmf)


def _scaled(records: int | None, asked: Request) -> int | None:
    """The records of one cohort."""
    return None if records is None else -(-records * asked.clients // asked.members)


def _planned(name: str, title: str, asked: Callable[[], Request]) -> Membership:
    try:
        return Membership(name, title, solve(asked()))
    except ArgumentError as error:  # infeasible, for example beyond the wire
        return Membership(name, title, None, str(error))
