"""Each term of the odometer is needed: schedules of stragglers that would break the guarantee without it (R1), (R2)."""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

import lightdp
from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.errors import BudgetError
from lightdp.repair import RETRIES
from support import oracles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightdp.planning import Plan

Round = tuple[list[int], list[int]]


def planned(clients: int, missing: int, gamma: float, **more: Any) -> Plan:
    settings: dict[str, Any] = {"rounds": 10, "epsilon": 3.0, "delta": 1e-5, "calibration": "repair"} | more
    return lightdp.plan(clients=clients, colluders=0, stragglers=missing, gamma=gamma, **settings)


def exact(plan: Plan, rounds: Sequence[Round]) -> float:
    """The largest squared μ of client 0, from the covariance of everything that is seen."""
    adjacency = plan.graph.adjacency()
    matrix = oracles.loss_matrix(plan.clients, plan.gamma, rounds, client=0, adjacency=adjacency, retries=RETRIES)
    return oracles.worst_mu_squared(matrix)


def admitted(odometer: Odometer) -> bool:
    try:
        odometer.admit()
    except BudgetError:
        return False
    return True


def peers(plan: Plan, turn: int) -> list[int]:
    """As many peers as must be used beside a late client 0; in turns 0 and 1 without the first or second S̄ - 1."""
    away = plan.stragglers - 1
    return [c for c in range(1, plan.clients) if not turn * away < c <= (turn + 1) * away]


@pytest.mark.parametrize(
    ("clients", "missing", "gamma", "turns", "void"),
    [
        (12, 4, 4.0, 2, 0),
        (12, 3, 50.0, 2, 0),
        (9, 4, 100.0, 2, 0),
        (12, 1, 50.0, 1, RETRIES),
        (12, 3, 50.0, 1, RETRIES),
        (30, 2, 1000.0, 1, RETRIES),
    ],
)
def test_a_client_that_asks_first_stays_within_its_budget_when_its_late_rounds_are_repaired_late(
    clients: int, missing: int, gamma: float, turns: int, void: int
) -> None:
    """Used rounds first, as many as bring the budget to any point; then late ones while they are admitted.

    After the last one every repair that is left is tried in vain in void rounds. Two turns: the next late round comes
    before some peers can repair the one before, whose window stays open, with room for their repairs to come late. One
    turn, after void rounds: all repairs have come late as often as they may, and ride in the next late round, which
    must have room for the cross terms.
    """
    plan = planned(clients, missing, gamma)
    most = 0.0
    for used in count():
        odometer, lates = Odometer(plan, [0]), 0
        while odometer.rounds < used and admitted(odometer):
            odometer.record(range(clients))
        if odometer.rounds < used:
            break
        while admitted(odometer):
            odometer.record(peers(plan, lates % turns))
            for _ in range(void):
                odometer.record([], range(1, clients))
            lates += 1
        for _ in range(RETRIES):
            odometer.record([], range(1, clients))
        assert odometer.epsilon()[0] <= plan.budget
        most = max(most, odometer.epsilon()[0])
    assert most > 0.9 * plan.budget  # nor is far too much kept


EVERYBODY = [*range(30)]
LATE: Round = (EVERYBODY[1:], [0])
USED: Round = (EVERYBODY, [])
VOID: Round = ([], EVERYBODY)


@pytest.mark.parametrize(
    ("rounds", "terms"),
    [
        # each peer's noise of a round serves that round and the repair of the one before: half of the cross terms is
        # charged to the later late round, half, as 1/a_min, to the earlier
        ([*[LATE] * 8, USED], (7 / 29, 8 / 29)),
        # the same where the later round is used
        ([LATE, USED] * 4, (4 * 1000 / 30_001, 4 / 29)),
        # and where repairs ride in void rounds: on the late round and on the void ones
        ([LATE, VOID, VOID, USED], (2 / 30, 2 * 1000 / 30_001)),
    ],
)
def test_no_cross_term_can_be_left_out(rounds: list[Round], terms: tuple[float, float]) -> None:
    """By the exact covariance of everything that is seen, for 30 clients and γ = 1000."""
    plan = planned(30, 1, 1000.0)
    odometer = Odometer(plan, [0])
    for used, late in rounds:
        odometer.record(used, late)
    charged, true = odometer._ledgers[0].total(), exact(plan, rounds)
    assert true <= charged
    for term in terms:
        assert true > 1.03 * (charged - term)


@pytest.mark.parametrize(("clients", "missing", "gamma"), [(12, 3, 50.0), (12, 1, 4.0), (30, 2, 1000.0)])
def test_where_late_uploads_were_seen_after_all_used_rounds_keep_room_for_their_repairs(
    clients: int, missing: int, gamma: float
) -> None:
    """The plan keeps no room for a late round, but an admitted round fits with the repairs that ride in it."""
    plan = planned(clients, missing, gamma, late="unseen")
    for used in count():
        odometer = Odometer(plan, [0])
        while odometer.rounds < used and admitted(odometer):
            odometer.record(range(clients))
        if odometer.rounds < used:
            return
        odometer.record(peers(plan, 0), [0])
        for _ in range(RETRIES):
            odometer.record([], range(1, clients))
        while admitted(odometer):
            odometer.record([0, *peers(plan, 0)[: clients - missing - 1]])
            assert odometer.epsilon()[0] <= plan.budget


def test_a_void_round_costs_what_a_round_of_everybody_costs() -> None:
    plan = planned(9, 2, 4.0)
    odometer = Odometer(plan, [0])
    odometer.record([], range(9))
    assert odometer._ledgers[0].total() == pytest.approx(exact(plan, [([], [*range(9)])]), rel=1e-9)
    mu = math.sqrt(odometer._ledgers[0].total()) * plan.sensitivity / plan.sigma_individual
    assert odometer.epsilon()[0] == pytest.approx(gaussian.epsilon(mu, plan.delta))
