"""Odometers on random graphs (S1): against the exact covariance, and of many clients against one."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lightdp
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, BudgetError
from lightdp.planning import Plan
from lightdp.random_graph import RandomGraph
from lightdp.repair import RETRIES
from support import oracles
from test_accountant import Round, costs_by_round


def planned(clients: int, degree: int, colluders: int, stragglers: int, **more: Any) -> Plan:
    asked: dict[str, Any] = {
        "rounds": 20,
        "epsilon": 8.0,
        "delta": 1e-5,
        "calibration": "repair",
        "unit": "client",
    } | more
    graph = f"random:{degree}"
    return lightdp.plan(clients=clients, colluders=colluders, stragglers=stragglers, graph=graph, **asked)


@st.composite
def trainings(draw: st.DrawFn) -> tuple[Plan, list[Round], list[int]]:
    """A plan, straggler sets that may be neighbours of client 0, late uploads, void rounds, and who colludes."""
    clients, degree = draw(st.sampled_from([(30, 14), (40, 12), (50, 20), (36, 6)]))
    stragglers, colluders = draw(st.integers(1, clients // 4)), draw(st.integers(0, 3))
    gamma = 10 ** draw(st.floats(-1, 2.5))
    plan = planned(clients, degree, colluders, stragglers, gamma=gamma)
    seed = draw(st.integers(0, 200))
    while True:
        try:
            plan = plan.placed(seed.to_bytes(32, "big"))
            break
        except ArgumentError:
            seed += 1000
    rng = np.random.default_rng(seed)
    rounds: list[Round] = []
    for _ in range(draw(st.integers(1, 5))):
        count = draw(st.integers(0, stragglers))
        order = rng.permutation(clients).tolist()
        if draw(st.booleans()):  # client 0's neighbours first, or itself
            order = [*plan.graph.neighbours_of(0).tolist(), *order]
        if draw(st.integers(0, 3)) == 0:
            order = [0, *order]
        missing = sorted(set(order[:count]))
        used = [c for c in range(clients) if c not in missing]
        if not plan.counts(ClientSet.of(clients, used).flags) or draw(st.integers(0, 9)) == 0:
            used, missing = [], list(range(clients))
        seen = [s for s in missing if rng.random() < 0.7]
        rounds.append((used, seen))
    return plan, rounds, rng.permutation(np.arange(1, clients))[:colluders].tolist()


@given(training=trainings(), known=st.booleans())
@settings(max_examples=150, deadline=None)
def test_odometer_bounds_the_exact_loss_of_every_training(
    training: tuple[Plan, list[Round], list[int]], *, known: bool
) -> None:
    """As a sum and as a matrix inequality, whether or not client 0 learns who of those that were not used had sent."""
    plan, rounds, colluders = training
    told = [(used, [c for c in range(plan.clients) if c in late or (c > 0 and c not in used)]) for used, late in rounds]
    costs = costs_by_round(Odometer(plan, [0]), rounds if known else told)
    exact = oracles.loss_matrix(
        plan.clients, plan.gamma, rounds, client=0, adjacency=plan.graph.adjacency(), colluders=colluders,
        retries=RETRIES,
    )  # fmt: skip
    assert len(costs) == len(exact)
    assert oracles.worst_mu_squared(exact) <= math.fsum(costs) * (1 + 1e-7)
    if costs:
        scale = 1 / np.sqrt(costs)
        assert np.linalg.eigvalsh(exact * np.outer(scale, scale)).max() <= 1 + 1e-7


def placed(plan: Plan, seed: int) -> Plan:
    """The plan on the first draw from a seed on that is not refused."""
    while True:
        with suppress(ArgumentError):
            return plan.placed(seed.to_bytes(32, "big"))
        seed += 1000


@st.composite
def hidden(draw: st.DrawFn) -> tuple[Plan, list[Round], list[int], int]:
    """A plan that hides late uploads, rounds in which client 0 is often late, closing ones at the end, and colluders.

    As many neighbours of client 0 are missing as the rule allows, in one round these and in the next one others.
    Returned last is the number of rounds with data.
    """
    clients, degree, stragglers, colluding = draw(st.sampled_from([(50, 20, 1, 0), (60, 30, 2, 1), (60, 30, 2, 0)]))
    plan = planned(clients, degree, colluding, stragglers, gamma=10 ** draw(st.floats(1.3, 3)))
    assert plan.hides_late
    plan, rng = placed(plan, draw(st.integers(0, 200))), np.random.default_rng(draw(st.integers(0, 2**32)))
    near: list[int] = plan.graph.neighbours_of(0).tolist()
    rounds: list[Round] = []
    data = draw(st.integers(1, 4))
    for _ in range(data + 1):
        order = rng.permutation(near if draw(st.booleans()) else clients).tolist()
        order = [0, *order] if draw(st.integers(0, 2)) > 0 else order
        missing = sorted(set(order[: draw(st.integers(0, stragglers))]))
        used = [c for c in range(clients) if c not in missing]
        void = draw(st.integers(0, 2)) if draw(st.integers(0, 3)) == 0 else 0  # before it
        rounds += [([], [c for c in range(clients) if rng.random() < 0.8]) for _ in range(void)]
        rounds.append((used, [s for s in missing if rng.random() < 0.7]))
    count = next(at for at, (used, _) in reversed([*enumerate(rounds[:-1])]) if used) + 1
    rounds.append((list(range(clients)), []))  # without pairwise noise: all used ones have repaired but the last round
    return plan, rounds, rng.permutation(np.arange(1, clients))[:colluding].tolist(), count


@given(training=hidden())
@settings(max_examples=50, deadline=None)
def test_a_late_round_that_all_clients_hide_costs_no_more_than_is_counted(
    training: tuple[Plan, list[Round], list[int], int],
) -> None:
    """As a sum, for the worst signs of the data in all rounds; what closing rounds repair is seen too."""
    plan, rounds, colluders, data = training
    costs = costs_by_round(Odometer(plan, [0]), rounds[:data])
    exact = oracles.loss_matrix(
        plan.clients, plan.gamma, rounds, client=0, adjacency=plan.graph.adjacency(), colluders=colluders,
        retries=RETRIES, bare=[len(rounds) - 1], closing=range(data, len(rounds)),
    )  # fmt: skip
    assert len(costs) == len(exact)
    assert oracles.worst_mu_squared(exact) <= math.fsum(costs) * (1 + 1e-7)


def test_repairs_without_pairwise_noise_would_show_a_late_upload() -> None:
    """Why the first closing round has it: without it a late upload costs 1/h for h neighbours, as many as they are."""
    adjacency = RandomGraph(clients=90, degree=12).placed(bytes(32)).adjacency()
    rounds: list[Round] = [([c for c in range(90) if c > 0], [0]), (list(range(90)), [])]

    def exact(bare: list[int]) -> float:
        found = oracles.loss_matrix(
            90, 1000.0, rounds, client=0, adjacency=adjacency, retries=RETRIES, bare=bare, closing=[1]
        )
        return float(found[0, 0])

    near = int(np.count_nonzero(adjacency[0]))
    assert exact([]) < 2.5 / 90
    assert exact([1]) > 0.9 / near


def test_a_certificate_that_counts_on_too_much_would_be_noticed() -> None:
    """Where nobody straggles the bound is within a third of the exact cost."""
    plan = planned(50, 20, 0, 2, gamma=20.0).placed(bytes(32))
    exact = oracles.loss_matrix(
        50, 20.0, [(list(range(50)), [])], client=0, adjacency=plan.graph.adjacency(), colluders=[], retries=RETRIES
    )
    [cost] = costs_by_round(Odometer(plan, [0]), [(list(range(50)), [])])
    assert exact[0, 0] <= cost < 1.34 * exact[0, 0]


@pytest.mark.parametrize("grace", [0, 1])
def test_many_clients_are_counted_like_one(grace: int) -> None:
    plan = planned(200, 40, 5, 12, grace=grace, late=0.3).placed(bytes(32))
    every, alone = Odometer(plan), [Odometer(plan, [client]) for client in range(200)]
    rng = np.random.default_rng(grace)
    for number in range(9):
        missing = ClientSet.of(200, rng.choice(200, rng.integers(0, 9), replace=False).tolist())
        used = ClientSet.none(200) if number == 5 else ~missing
        late = ClientSet.of(200, [int(c) for c in missing if rng.random() < 0.6]) if used else ~used
        for odometer in (every, *alone):
            odometer.record(used, late)
        assert every.mu() == pytest.approx([float(each.mu()[0]) for each in alone], rel=1e-12)
        ahead = every.counted(ahead=True).mu()
        assert ahead == pytest.approx([float(each.counted(ahead=True).mu()[0]) for each in alone], rel=1e-12)


@pytest.mark.parametrize("late", [0.0, "unseen"])
def test_admission_keeps_the_budget_whatever_a_server_chooses(late: float | str) -> None:
    """One that lets as many of client 0's neighbours straggle as the rule allows, and never more than S̄."""
    plan = planned(150, 60, 2, 30, late=late).placed(bytes(32))
    odometer, near = Odometer(plan, [0]), plan.graph.neighbours_of(0).tolist()
    count = 30
    while not plan.counts(~ClientSet.of(150, near[:count]).flags):
        count -= 1
    with suppress(BudgetError):
        for _ in range(200):
            odometer.admit()
            odometer.record(~ClientSet.of(150, near[:count]))
            assert odometer.max_epsilon() <= 8
    assert 3 < odometer.rounds < 200


def test_a_round_that_leaves_a_client_too_few_neighbours_is_refused() -> None:
    plan = planned(150, 60, 2, 60).placed(bytes(32))
    odometer = Odometer(plan, [7])
    near = plan.graph.neighbours_of(7).tolist()
    bad = ~ClientSet.of(150, near[:59])
    assert not plan.counts(bad.flags)
    with pytest.raises(ArgumentError, match="used neighbours"):
        odometer.record(bad)
    assert odometer.rounds == 0
    assert plan.counts(ClientSet.all(150).flags)
    assert not plan.counts(np.arange(150) < 80)


def test_a_plan_lasts_its_rounds_where_stragglers_are_as_expected() -> None:
    plan = planned(1000, 116, 100, 100, rounds=60, epsilon=3.0, late="unseen").placed(bytes(32))
    odometer, rng = Odometer(plan), np.random.default_rng(1)
    for _ in range(60):
        odometer.admit()
        odometer.record(~ClientSet.of(1000, rng.choice(1000, rng.integers(0, 101), replace=False).tolist()))
    assert 2.5 < odometer.max_epsilon() <= 3


def test_a_plan_must_be_placed_before_rounds_are_counted() -> None:
    odometer = Odometer(planned(150, 60, 2, 6), [0])
    odometer.admit()
    with pytest.raises(ArgumentError, match="placed"):
        odometer.record(ClientSet.all(150))


@pytest.mark.parametrize("gamma", [3.0, 30.0, 300.0])
@pytest.mark.parametrize("shape", [(200, 60, 0, 20), (60, 30, 0, 2), (60, 30, 1, 2)])
def test_a_round_that_was_admitted_costs_no_more_than_was_kept_for_it(
    shape: tuple[int, int, int, int], gamma: float
) -> None:
    """Late, used and void rounds in any order; as many neighbours of the client are missing as the rule allows."""
    plan, rng = placed(planned(*shape, gamma=gamma, rounds=60, epsilon=3.0), 0), np.random.default_rng(7)
    clients, near, odometer = plan.clients, plan.graph.neighbours_of(0).tolist(), Odometer(plan, [0])
    for _ in range(40):
        kept = odometer._reserved(ahead=True).totals()[0]
        missing = [*([0] if rng.random() < 0.8 else []), *rng.permutation(near).tolist()][: plan.stragglers]
        while not plan.counts((used := ~ClientSet.of(clients, missing)).flags):
            missing.pop()
        odometer.record(ClientSet.none(clients) if rng.random() < 0.1 else used)
        assert odometer._reserved(ahead=False).totals()[0] <= kept * (1 + 1e-12)
