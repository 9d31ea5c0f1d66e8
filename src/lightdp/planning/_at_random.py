"""(S1): what rounds cost on a random graph, at worst and as a plan expects them."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lightdp.planning._request import Request
from lightdp.random_graph import COVERED, RandomGraph, largest, rounded_up
from lightdp.repair import RETRIES, late_cost
from lightdp.stragglers import StragglerLaw, hypergeometric

_POINTS = 48  # of the straggler law
_SURE = 1e-2  # chance that a client of a round has fewer used neighbours than is taken for the least


@lru_cache(maxsize=64)
def seen_at_random(asked: Request, gamma: float) -> float:
    """k of a round of which every upload may be seen and none is repaired: exact noise, and void rounds."""
    least = asked.honest - 1 + asked.near_colluders
    return float(asked.certificate(asked.clients, least).cost(gamma, asked.honest - 1))


def used_at_random(asked: Request, gamma: float, riding: float = 0.0) -> float:
    """The most that a used or void round can cost: all stragglers that there may be, and the fewest used neighbours.

    Args:
        asked: the request.
        gamma: γ.
        riding: repairs of late rounds that ride in it.
    """
    return min(1.0, _most(asked, gamma) * (1 + riding))


@lru_cache(maxsize=64)  # a server asks for many clients
def _most(asked: Request, gamma: float) -> float:
    certificate = asked.certificate(asked.clients - asked.stragglers, asked.least_used)
    used = certificate.cost(gamma, asked.least_used - asked.near_colluders)
    return max(float(rounded_up(used)), seen_at_random(asked, gamma))


@lru_cache(maxsize=64)  # a server asks for many clients
def hidden_at_random(asked: Request, gamma: float) -> float:
    """(S1): k of a late round that all clients hide, whatever else happens; 1 where that is not proven.

    The client's data is explained by noise that it shares with neighbours which were used in the round and in the next
    one, where they repair it. There are at least `both` of them; in either round, and in void ones between, it costs a
    `load`, and in the latter it may meet data of the client itself.
    """
    both = 2 * asked.least_used - asked.noise_graph.most - asked.near_colluders
    if asked.grace or gamma == 0 or both < 1:
        return 1.0
    load, rides = asked.certificate(asked.clients - asked.stragglers, asked.least_used).load(gamma, both), 1 + RETRIES
    crossed = max(2 * _most(asked, gamma), load)
    return float(rounded_up(min(1.0, COVERED / (gamma * both) + (2 + rides) * load + rides * crossed)))


def hides_late(asked: Request, gamma: float) -> bool:
    """Whether late rounds cost `hidden_at_random`, each by itself, and not what the client's own star gives."""
    return hidden_at_random(asked, gamma) < _late_star(asked, gamma, 0.0)


def worst_at_random(asked: Request, gamma: float, riding: float = 0.0) -> float:
    """The most that one more round can cost, if all clients are told one history; with late uploads if they are seen.

    Arguments as for `used_at_random`.
    """
    used = used_at_random(asked, gamma, riding)
    if not asked.late_is_seen:
        return used
    hides = hides_late(asked, gamma)
    return max(used, hidden_at_random(asked, gamma) if hides else _late_star(asked, gamma, riding))


def _late_star(asked: Request, gamma: float, riding: float) -> float:
    """The most that a late round can cost if it is explained by the client's own star (R1).

    By noise that it shares with used neighbours, each behind its individual noise in the round, in the repair that is
    used and in two that are late.
    """
    peers = max(asked.least_used - asked.near_colluders, 0)
    crossed = (1 + riding) / max(peers, 1) + RETRIES * seen_at_random(asked, gamma)
    return min(1.0, late_cost(gamma, peers, crossed, RETRIES * peers) * COVERED)


def provision_at_random(asked: Request, gamma: float, rounds: int) -> float:
    """Costs of `rounds` rounds that the budget must cover, in units of (Δ/σ_U)²; no guarantee hangs on it (R6)."""
    weights, moments = _moments(asked, gamma)
    mean = float(weights @ moments[0])
    shared = max(float(weights @ moments[0] ** 2) - mean**2, 0.0)
    own = float(weights @ np.maximum(moments[1] - moments[0] ** 2, 0.0))
    late = _law(asked).mean(lambda s: s) / asked.clients * asked.late_share
    costs = 1 if hides_late(asked, gamma) else 2  # repairs of the other kind meet used rounds too
    mean += costs * late * worst_at_random(asked, gamma)
    margin = 2.4 * math.sqrt(shared) + 4.5 * math.sqrt(own)
    return rounds * mean + margin * math.sqrt(rounds)


def _moments(asked: Request, gamma: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points of the straggler law with their weights, and the first two moments of a used round's cost at each."""
    points = _rounds(asked)
    found = np.empty((2, len(points)))
    for at, (used, least, neighbours, chances, _) in enumerate(points):
        cost = asked.certificate(used, least).cost(gamma, neighbours)
        found[:, at] = chances @ cost, chances @ cost**2
    return np.array([weight for *_, weight in points]), found


@lru_cache(maxsize=8)
def _rounds(asked: Request) -> list[tuple[int, int, NDArray[np.float64], NDArray[np.float64], float]]:
    """Rounds as expected: used clients, least used neighbours, a client's honest ones with chances, and a weight."""
    graph = asked.noise_graph
    assert isinstance(graph, RandomGraph)  # noqa: S101  the caller asked
    empty = graph.seats - graph.clients
    degree = graph.reach - 1 - largest(graph.seats, empty, graph.reach, 1 / asked.clients)  # the least, for good
    result = []
    for away, weight in _law(asked).points(_POINTS):
        least = graph.reach - 1 - largest(graph.seats, away + empty, graph.reach, _SURE / asked.clients)
        first, chances = hypergeometric(graph.seats - 1, away, graph.reach - 1)
        used = degree - first - np.arange(len(chances), dtype=float)
        result.append(
            (asked.clients - away, max(least, asked.least_used), used - asked.near_colluders, chances, weight)
        )
    return result


def _law(asked: Request) -> StragglerLaw:
    return asked.law.worst() if asked.reserve == "worst" else asked.law
