"""One budget over several rosters (C1): what was spent elsewhere, in the plan of another roster, counts in full."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from hypothesis import given, settings
from hypothesis import strategies as st

import lightdp
from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.errors import BudgetError
from lightdp.planning import Noise, Plan


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 8, "colluders": 1, "stragglers": 2, "rounds": 20, "epsilon": 4.0}
    return lightdp.plan(**(asked | {"delta": 1e-5, "calibration": "repair"} | changed))


def played(plan: Plan, rounds: int, seed: int, clients: list[int] | None = None) -> Odometer:
    rng, odometer = np.random.default_rng(seed), Odometer(plan, clients)
    for _ in range(rounds):
        missing = rng.choice(plan.clients, rng.integers(0, plan.stragglers + 1), replace=False).tolist()
        odometer.record(sorted(set(range(plan.clients)) - set(missing)), [c for c in missing if rng.random() < 0.5])
    return odometer


@settings(max_examples=30, deadline=None)
@given(
    calibration=st.sampled_from(["repair", "exact", "local"]),
    sizes=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    rounds=st.tuples(st.integers(0, 6), st.integers(1, 6)),
    clip=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32),
)
def test_squared_mus_of_rosters_with_other_noise_add_up_and_round_up(
    calibration: Any, sizes: tuple[int, int], rounds: tuple[int, int], clip: float, seed: int
) -> None:
    """Against sums of fractions: each ledger by itself in units of its own plan, no rounding in between."""
    whole = planned(calibration=calibration, clip=clip)
    one, other = (whole.among(size) for size in sizes)
    here, there = played(one, rounds[0], seed), played(other, rounds[1], seed + 1)
    elsewhere = (there.squares() * 2)[: one.clients]

    def exact(odometer: Odometer, client: int) -> Fraction:
        ledger, share = odometer._ledgers[client], Fraction(odometer.plan.sensitivity) / Fraction(odometer.plan.scale)
        costs = [Fraction(cost) * count for cost, count in ledger.usual.items()] + [Fraction(x) for x in ledger.rare]
        return sum(costs, Fraction(0)) * share**2

    both = here.beside(elsewhere)
    for client in range(one.clients):
        true = exact(here, client) + exact(there, client % other.clients)
        told = sum(Fraction(square) * count for square, count in both.squares()[client].items())
        assert true <= told <= true * (1 + Fraction(1, 10**13))
        assert both.mu()[client] == pytest.approx(math.sqrt(true), rel=1e-12)
        assert both.epsilon()[client] == pytest.approx(gaussian.epsilon(math.sqrt(true), 1e-5), rel=1e-9)
    assert here.rounds == rounds[0]
    assert here.squares() == played(one, rounds[0], seed).squares()  # `beside` changes nothing


@pytest.mark.parametrize("calibration", ["repair", "exact"])
def test_a_round_begins_only_if_it_fits_beside_what_was_spent_elsewhere(calibration: str) -> None:
    """With room for exactly what it may cost it begins, with a billionth less it does not."""
    plan = planned(calibration=calibration)
    odometer = played(plan, 4, 1, [0])
    budget = gaussian.mu(plan.budget, plan.delta) ** 2
    room = budget - float(odometer.counted(ahead=True).mu()[0]) ** 2
    assert room > 0.1
    for elsewhere in ({room * (1 - 1e-9): 1}, {room / 7 * (1 - 1e-9): 7}, {}, None):
        odometer.admit(elsewhere)
        assert not odometer.exhausted(None if elsewhere is None else [elsewhere])
    for elsewhere in ({room * (1 + 1e-9): 1}, {room / 7 * (1 + 1e-9): 7}):
        with pytest.raises(BudgetError, match=r"round 5 could take client 0 to epsilon=4(\.0000)?"):
            odometer.admit(elsewhere)
        assert list(odometer.exhausted([elsewhere])) == [0]
    odometer.admit()


def test_each_client_has_spent_something_else_elsewhere() -> None:
    odometer = Odometer(planned())
    budget = gaussian.mu(4.0, 1e-5) ** 2
    spent: list[Counter[float]] = [Counter() if client % 3 else Counter({budget: 1}) for client in range(8)]
    assert list(odometer.exhausted(spent)) == [0, 3, 6]
    assert list(odometer.exhausted()) == []


def test_a_member_that_changes_rosters_gets_its_rounds_and_never_more_than_its_budget() -> None:
    """Two rosters in turn, a used round each, until both refuse: what counts is the sum."""
    plan = planned(rounds=12, stragglers=1, late=0.0)
    rosters = [Odometer(plan.among(size), [0]) for size in (8, 6)]
    refused = 0
    while refused < 2:
        here, there = rosters
        spent = there.counted(worst=True).squares()[0] if there.rounds else None
        try:
            here.admit(spent)
        except BudgetError:
            refused += 1
        else:
            refused = 0
            here.record(range(here.plan.clients))
        rosters.reverse()
    total = math.sqrt(sum(float(each.counted(worst=True).mu()[0]) ** 2 for each in rosters))
    assert gaussian.epsilon(total, plan.delta) <= plan.budget
    assert sum(each.rounds for each in rosters) > 6
    assert abs(rosters[0].rounds - rosters[1].rounds) <= 2


def composed(rounds: dict[float, int], rate: float, adjacency: str) -> float:
    """ε by dp-accounting itself: each kind of round is a Poisson-sampled Gaussian with its own noise multiplier."""
    relation = {
        "add-remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    }[adjacency]
    accountant = pld.PLDAccountant(relation, value_discretization_interval=1e-4)
    for multiplier, count in rounds.items():
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(multiplier))
        accountant.compose(event, count)
    return float(accountant.get_epsilon(1e-5))


def test_sampled_rounds_of_other_rosters_are_composed_amplified() -> None:
    """Against dp-accounting on the noise multipliers of both rosters, each of its own plan."""
    rate = 0.2
    asked = planned(rounds=6, gamma=2.0, late="unseen").request.but(sampling_rate=rate, gamma=2.0)
    one, other = Plan(asked, Noise(2.0, 1.5, 3.0)), Plan(asked.among(6), Noise(2.0, 1.9, 3.5))
    here, there = Odometer(one, [0]), Odometer(other, [0])
    for _ in range(3):
        here.record(range(8))
    for _ in range(2):
        there.record(range(6))
    both = float(here.beside(there.squares()).epsilon()[0])  # μ² of each round, in units of no plan
    multipliers = {
        each.scale / each.clip / math.sqrt(float(each.used_cost(each.honest))): count
        for each, count in ((one, 3), (other, 2))
    }
    assert len(multipliers) == 2
    direct = composed(multipliers, rate, "add-remove")
    assert both == pytest.approx(direct, rel=2e-3)
    assert both >= direct * (1 - 1e-4)
    alone = float(here.epsilon()[0])
    assert alone < 0.95 * both  # the other roster counts
    assert both < 0.8 * gaussian.epsilon(math.sqrt(sum(k / m**2 for m, k in multipliers.items())), 1e-5)  # amplified


def test_sampled_rounds_stop_at_one_budget_for_all_rosters() -> None:
    """Four rosters one after the other, as many rounds as are admitted: dp-accounting says the budget is kept."""
    plan = planned(rounds=4, calibration="exact", sampling_rate=0.2, epsilon=1.0)
    spent: Counter[float] = Counter()
    kinds: Counter[float] = Counter()
    for size in (8, 5, 7, 6):
        each = plan.among(size)
        odometer = Odometer(each, [0])
        try:
            for _ in range(2):
                odometer.admit(spent)
                odometer.record(range(size))
                kinds[each.noise_multiplier] += 1
        except BudgetError:
            pass
        spent += odometer.squares()[0]
    assert sum(kinds.values()) == 4
    assert 0.9 < composed(dict(kinds), 0.2, "add-remove") <= 1.0
