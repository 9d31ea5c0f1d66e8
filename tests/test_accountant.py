from __future__ import annotations

import math
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lightdp
from lightdp import gaussian
from lightdp.accountant import Odometer, _composers
from lightdp.errors import ArgumentError, BudgetError
from lightdp.repair import RETRIES
from support import oracles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lightdp.planning import Plan

Round = tuple[list[int], list[int]]


def planned(clients: int, colluders: int, missing: int, **more: Any) -> Plan:
    settings = {"rounds": 150, "epsilon": 3.0, "delta": 1e-5} | more
    return lightdp.plan(clients=clients, colluders=colluders, stragglers=missing, **settings)


@st.composite
def trainings(draw: st.DrawFn) -> tuple[Plan, list[Round], list[int]]:
    """A plan with repair, straggler sets with late uploads and void rounds, and who colludes."""
    clients = draw(st.integers(3, 8))
    late_bound = draw(st.integers(1, clients - 2))
    colluders = draw(st.integers(0, min(2, clients - 2)))
    gamma = 10 ** draw(st.floats(-1, 2.5))
    degree = draw(st.sampled_from([k for k in range(1, clients) if k == clients - 1 or k % 2 == 0]))
    plan = planned(clients, colluders, late_bound, calibration="repair", gamma=gamma, degree=degree)
    rounds: list[Round] = []
    for _ in range(draw(st.integers(1, 7))):
        order = draw(st.permutations(range(clients)))
        missing = clients if draw(st.integers(0, 9)) == 0 else draw(st.integers(0, late_bound))
        stragglers = sorted(order[:missing])
        seen = [s for s in stragglers if draw(st.integers(0, 3)) > 0]
        rounds.append(([c for c in range(clients) if c not in stragglers], seen))
    bad = draw(st.permutations(range(1, clients)))[:colluders]
    return plan, rounds, bad


def loss(plan: Plan, rounds: list[Round], colluders: Sequence[int] = ()) -> NDArray[np.float64]:
    """The exact loss of client 0, from the covariance of everything that is seen."""
    adjacency = plan.graph.adjacency()
    return oracles.loss_matrix(
        plan.clients, plan.gamma, rounds, client=0, adjacency=adjacency, colluders=colluders, retries=RETRIES
    )


def costs_by_round(odometer: Odometer, rounds: list[Round]) -> list[float]:
    """The final cost of each seen round of the one tracked client, in order."""
    ledger = odometer._ledgers[0]
    where: list[tuple[str, float]] = []
    for used, late in rounds:
        before, rare = ledger.usual.copy(), len(ledger.rare)
        odometer.record(used, late)
        new = ledger.usual - before
        if len(ledger.rare) > rare:
            where.append(("rare", rare))
        elif new:
            where.append(("usual", next(iter(new))))
    return [ledger.rare[int(at)] if kind == "rare" else at for kind, at in where]


@given(training=trainings(), known=st.booleans())
@settings(max_examples=600, deadline=None)
def test_odometer_bounds_the_exact_loss_of_every_training(
    training: tuple[Plan, list[Round], list[int]], *, known: bool
) -> None:
    """(R1) against the exact covariance: as a sum for whole batches, and as a matrix inequality for sampled ones.

    `known`: whether client 0 learns which of the peers that were not used had sent.
    """
    plan, rounds, colluders = training
    odometer = Odometer(plan, [0])
    peers = range(1, plan.clients)
    told = [(used, [c for c in (0, *peers) if c in late or (c > 0 and c not in used)]) for used, late in rounds]
    costs = costs_by_round(odometer, rounds if known else told)
    exact = loss(plan, rounds, colluders)
    assert len(costs) == len(exact)
    assert oracles.worst_mu_squared(exact) <= math.fsum(costs) * (1 + 1e-7)
    if costs:
        scale = 1 / np.sqrt(costs)
        assert np.linalg.eigvalsh(exact * np.outer(scale, scale)).max() <= 1 + 1e-7
        mu = math.sqrt(math.fsum(costs)) * plan.sensitivity / plan.sigma_individual
        assert odometer.epsilon()[0] == pytest.approx(gaussian.epsilon(mu, plan.delta))


def test_odometer_is_exact_when_nobody_straggles_and_colluders_are_as_feared() -> None:
    plan = planned(7, 2, 3, calibration="repair", gamma=4.0)
    rounds: list[Round] = [([*range(7)], [])] * 3
    costs = costs_by_round(Odometer(plan, [0]), rounds)
    exact = loss(plan, rounds, [3, 5])
    assert math.fsum(costs) == pytest.approx(oracles.worst_mu_squared(exact), rel=1e-9)


def test_a_round_that_was_missed_and_never_sent_costs_nothing() -> None:
    odometer = Odometer(planned(7, 0, 3, calibration="repair"), [0])
    odometer.record([1, 2, 3, 4, 5, 6], late=[])
    assert odometer.epsilon()[0] == 0


def test_a_constant_charge_for_late_rounds_would_not_be_a_bound() -> None:
    """Why (R1) charges late repairs and their cross terms: (4 + 1/γ)/a for the late round is exceeded by 9 %."""
    clients, gamma, late = 18, 1000.0, list(range(6, 18))
    others = [c for c in range(1, clients) if c not in late]
    rounds: list[Round] = [([*range(1, clients)], [0]), *[([0, *others], late)] * 2, ([*range(clients)], [])]
    plan = planned(clients, 0, 12, calibration="repair", gamma=gamma)
    exact = oracles.worst_mu_squared(loss(plan, rounds))
    used = sum((1 + gamma) / (len(a) * gamma + 1) for a, _ in rounds[1:])
    assert exact > 1.09 * ((4 + 1 / gamma) / 17 + used)
    odometer = Odometer(plan, [0])
    assert exact <= math.fsum(costs_by_round(odometer, rounds))


@pytest.mark.parametrize("gamma", [1.0, 10.0, 1024.0])
def test_repairs_by_peers_that_were_away_are_counted_when_they_come_at_last(gamma: float) -> None:
    """Client 0 cannot tell peers that sent in vain from peers that were away: three void rounds end no repair."""
    everybody, others = [*range(20)], [*range(1, 20)]
    happened: list[Round] = [(others, [0]), *[([], [])] * 3, *[([], everybody)] * 2, (everybody, [])]
    told = [(used, late if 0 in late else [c for c in others if c not in used]) for used, late in happened]
    plan = planned(20, 0, 1, calibration="repair", gamma=gamma)
    costs = costs_by_round(Odometer(plan, [0]), told)
    exact = loss(plan, happened)
    assert oracles.worst_mu_squared(exact) <= math.fsum(costs)
    scale = 1 / np.sqrt(costs)
    assert np.linalg.eigvalsh(exact * np.outer(scale, scale)).max() <= 1


def test_a_wrong_sigma_would_be_noticed() -> None:
    """The oracle is sharp: 20 % less individual noise than planned exceeds the odometer."""
    plan = planned(7, 0, 3, calibration="repair", gamma=4.0)
    rounds: list[Round] = [([*range(7)], [])] * 4
    costs = costs_by_round(Odometer(plan, [0]), rounds)
    exact = oracles.worst_mu_squared(loss(plan, rounds))
    assert exact / 0.8**2 > 1.5 * math.fsum(costs)


def test_void_rounds_cost_even_where_late_uploads_are_unseen() -> None:
    odometer = Odometer(planned(7, 0, 3, calibration="repair", late="unseen"), [0])
    odometer.record([1, 2, 3, 4, 5, 6])
    assert odometer.epsilon()[0] == 0
    odometer.record([])
    assert odometer.epsilon()[0] > 0


@pytest.mark.parametrize("calibration", ["exact", "local", "smpc", "central", "paper"])
def test_without_repair_every_seen_round_costs_the_same(calibration: str) -> None:
    plan = planned(50, 10, 10, rounds=20, calibration=calibration)
    odometer = Odometer(plan, [0, 1, 2])
    for _ in range(20):
        odometer.record([c for c in range(50) if c not in (1, 2)], late=[2])
    spent = odometer.epsilon()
    assert spent == pytest.approx([plan.epsilon(), 0, plan.epsilon()])
    assert spent.max() <= plan.epsilon() * (1 + 1e-12)


def test_the_exact_plan_lasts_its_rounds_and_not_one_more() -> None:
    odometer = Odometer(planned(50, 10, 10, rounds=20, calibration="exact"), [0])
    for _ in range(20):
        odometer.admit()
        odometer.record(range(50))
    assert odometer.epsilon()[0] <= 3
    before = odometer.epsilon()
    with pytest.raises(BudgetError, match=r"round 21 could take client 0 to epsilon=3.08.*over the budget of 3"):
        odometer.admit()
    assert np.array_equal(odometer.epsilon(), before)


@pytest.mark.parametrize("calibration", ["exact", "repair"])
def test_a_round_is_admitted_at_a_glance_only_if_each_epsilon_admits_it(
    calibration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    odometer = Odometer(planned(12, 2, 3, rounds=12, calibration=calibration))
    admitted: list[tuple[bool, bool]] = []
    while len(admitted) < 40:
        both = []
        for clearly in (0.999, 0.0):  # of a budget of 0, nothing is admitted at a glance
            monkeypatch.setattr(_composers, "_CLEARLY", clearly)
            try:
                odometer.admit()
                both.append(True)
            except BudgetError:
                both.append(False)
        admitted.append((both[0], both[1]))
        odometer.record(sorted(set(range(12)) - set(rng.choice(12, rng.integers(0, 4), replace=False).tolist())))
    assert all(quick == slow for quick, slow in admitted)
    assert {quick for quick, _ in admitted} == {True, False}


@given(seed=st.integers(0, 2**32 - 1), adversarial=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_client_that_asks_first_never_exceeds_its_budget(seed: int, *, adversarial: bool) -> None:
    rng = np.random.default_rng(seed)
    plan = planned(12, 2, 3, rounds=10, calibration="repair")
    odometer = Odometer(plan, [0])
    stopped = False
    for _ in range(60):
        try:
            odometer.admit()
        except BudgetError:
            stopped = True
        missing = set(rng.choice(12, rng.integers(0, 4), replace=False).tolist())
        if adversarial and rng.random() < 0.7:
            missing = {0, *list(missing - {0})[:2]}
        if stopped:  # the client stays away; others go on, and may repair its late rounds late
            missing = {0, *list(missing - {0})[:2]}
        if rng.random() < 0.05:
            missing = set(range(12))
        used = [c for c in range(12) if c not in missing]
        odometer.record(used, late=[c for c in missing if c != 0 or not stopped])
        assert odometer.epsilon()[0] <= plan.budget
    assert stopped


def test_fewer_stragglers_than_the_worst_case_leave_budget() -> None:
    plan = planned(50, 10, 10, calibration="repair", reserve="worst")
    odometer = Odometer(plan, [0])
    for _ in range(150):
        odometer.record(range(50))
    assert odometer.epsilon()[0] < 0.9 * plan.budget


def test_remaining_answers_what_further_rounds_would_leave() -> None:
    odometer = Odometer(planned(50, 10, 10, rounds=20, calibration="exact"), [0, 1])
    assert odometer.remaining() == 3
    for _ in range(15):
        odometer.record(range(50))
    assert odometer.remaining(5) == pytest.approx(0, abs=1e-8)
    assert odometer.remaining(5) >= 0
    assert odometer.remaining(6) < 0
    assert odometer.remaining(0) > odometer.remaining(1) > 0


@pytest.mark.parametrize("late", [0.0, "unseen"])
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_a_repair_plan_lasts_its_rounds_when_every_round_is_at_its_worst(late: float | str, rate: float) -> None:
    plan = planned(20, 2, 3, rounds=12, calibration="repair", reserve="worst", late=late, sampling_rate=rate)
    odometer = Odometer(plan, [0])
    for _ in range(12):
        odometer.admit()
        odometer.record(range(17))
    assert odometer.epsilon()[0] <= plan.budget


@pytest.mark.parametrize("late", [0.0, "unseen"])
@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("rounds", [1, 2, 8])
def test_a_repair_plan_lasts_its_rounds_when_stragglers_are_as_expected(
    late: float | str, rate: float, rounds: int
) -> None:
    plan = planned(20, 2, 4, rounds=rounds, calibration="repair", late=late, sampling_rate=rate)
    odometer = Odometer(plan, [0])
    for _ in range(rounds):  # before each, what is left must do for four stragglers
        odometer.admit()
        odometer.record(range(18), [18, 19] if late == 0.0 else [])
    assert odometer.epsilon()[0] <= plan.budget


@pytest.mark.parametrize(
    ("used", "late", "message"),
    [
        (range(39), (), "used must name at least 40 clients or, for a void round, none; got 39"),
        ([50], (), r"used must be in 0..49, got used=50"),
        (range(50), [3], "late must not name used clients"),
        (range(45), [99], r"late must be in 0..49, got late=99"),
    ],
)
def test_impossible_rounds_are_refused_and_cost_nothing(used: Any, late: Any, message: str) -> None:
    odometer = Odometer(planned(50, 10, 10, calibration="repair"), [0])
    with pytest.raises(ArgumentError, match=message):
        odometer.record(used, late)
    assert odometer.epsilon()[0] == odometer.rounds == 0


def test_one_client_of_a_large_sparse_graph_keeps_its_own_neighbours_alone() -> None:
    plan = planned(20_000, 1, 2, calibration="repair", degree=4)
    tracemalloc.start()
    try:
        odometer = Odometer(plan, [7])
        odometer.record([c for c in range(20_000) if c not in {7, 8}])
        assert tracemalloc.get_traced_memory()[1] < 50e6  # all pairs of clients would be 400 MB
    finally:
        tracemalloc.stop()
    assert odometer.max_epsilon() > 0
