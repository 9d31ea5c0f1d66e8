"""(D6), (R6): what a training costs a client whose stragglers are as expected, late ones included.

No guarantee hangs on this: the odometer charges what happens and stops at the budget. It decides how much noise lets
the budget last.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from lightdp.noise_graph import gain
from lightdp.planning._at_random import provision_at_random
from lightdp.planning._request import Request
from lightdp.repair import late_costs
from lightdp.stragglers import StragglerLaw, uniform

_SURE = 0.99  # of the trainings must not end early
_OFTEN = float(ndtri(_SURE))  # standard deviations of what all clients share
_SPARE = 4  # times as sure of each client if it may be late: late rounds and those after them are not independent


def provision(asked: Request, gamma: float, rounds: int) -> float:
    """Costs of `rounds` rounds that the budget must cover, in units of (Δ/σ_U)².

    That is the larger of two: what a client costs that is used in every round, and what one costs that straggles as
    often as the others, a share `asked.late` of its stragglings being seen too late, at a quantile. It is such that
    fewer than one client of N costs more on average, and more than S̄ of them, which would end the training (R8), in
    fewer than 1 % of the trainings.

    Args:
        asked: the request.
        gamma: γ.
        rounds: how many.
    """
    if asked.random:
        return provision_at_random(asked, gamma, rounds)
    chances, others, missed, margins = _facts(asked)
    used = 1 / gain(others, gamma)
    always = rounds * float(chances @ used)
    if gamma == 0:
        return always
    late = missed * asked.late_share
    too_late = _late_costs(asked, gamma, others, 1 - missed) if late > 0 else np.zeros(len(others))
    given = (1 - missed) * used + late * too_late  # expected cost, given the stragglers of the round
    mean = float(chances @ given)
    shared = max(float(chances @ given**2) - mean**2, 0.0)
    own = max(float(chances @ ((1 - missed) * used**2 + late * too_late**2)) - mean**2 - shared, 0.0)
    margin = _OFTEN * shared**0.5 + margins[late > 0] * own**0.5
    most = rounds * float(max(used.max(), too_late.max()))  # in few rounds a quantile may lie above it
    return max(always, min(rounds * mean + margin * rounds**0.5, most))


class _Facts(NamedTuple):
    """What `provision` needs of a request, whatever γ is.

    Attributes:
        chances: of the numbers of absent neighbours that occur.
        others: honest clients that were used, for each of these numbers.
        missed: the share of the rounds that a client misses on average.
        margins: standard deviations above its mean cost that a client may be if none can be late, and if some can.
    """

    chances: NDArray[np.float64]
    others: NDArray[np.float64]
    missed: float
    margins: tuple[float, float]


@lru_cache(maxsize=16)
def _facts(asked: Request) -> _Facts:
    pmf = absent_neighbours(asked).pmf
    counts = np.flatnonzero(pmf)  # of many stragglers, few counts are left
    missed = expected(asked).mean(lambda s: s) / asked.clients
    others = np.maximum(asked.honest - counts, 1.0)
    return _Facts(pmf[counts], others, missed, (_deviations(asked, 1), _deviations(asked, _SPARE)))


def expected(asked: Request) -> StragglerLaw:
    """The law of stragglers that the plan provides for: as expected, or as many as there may be."""
    return asked.law.worst() if asked.reserve == "worst" else asked.law


@lru_cache(maxsize=16)
def absent_neighbours(asked: Request) -> StragglerLaw:
    """(D6): how many of the clients that share noise with a client straggle; at worst as many as there may be."""
    degree = asked.noise_graph.degree
    if asked.reserve == "worst":
        return uniform(min(asked.stragglers, degree)).worst()
    return asked.law.among(asked.clients, degree)


def _late_costs(asked: Request, gamma: float, peers: NDArray[np.float64], present: float) -> NDArray[np.float64]:
    """A late round, with what its repairs add to the used rounds that carry them, and with peers that miss these.

    A peer has repaired once it was used, or under grace used twice in a row (R5). Until then it misses rounds.
    """
    waits = (1 + present) / present**2 if asked.grace else 1 / present
    missing = (1 - present) * waits
    crossed = 1 / max(asked.honest - asked.stragglers, 1) + missing / asked.honest
    alone = late_costs(gamma, peers, crossed, missing * peers) if crossed < 2 else np.ones(len(peers))
    return np.minimum(alone, 1.0) + present * waits * gamma / (peers * gamma + 1)


def _deviations(asked: Request, spare: int) -> float:
    """How many standard deviations above its mean cost a client may be."""
    enough = 1 - float(betaincinv(asked.clients - asked.stragglers, asked.stragglers + 1, _SURE))
    return -float(ndtri(min(enough, 1 / asked.clients) / spare))
