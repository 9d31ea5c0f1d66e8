"""The ledgers of many clients as arrays, against an odometer for each client."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lightdp
from lightdp import gaussian
from lightdp.accountant import Odometer, _odometer
from lightdp.accountant._table import LedgerTable
from lightdp.client_set import ClientSet
from lightdp.errors import BudgetError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightdp.planning import Plan

Step = tuple[str, list[int], list[int]]


@st.composite
def trainings(draw: st.DrawFn) -> tuple[Plan, list[int], list[Step]]:
    """A plan, whom to track, and rounds with late uploads, void ones and some whose sets are not final at first."""
    clients = draw(st.integers(3, 9))
    bound = draw(st.integers(1, clients - 2))
    degrees = [k for k in range(1, clients) if k == clients - 1 or clients % 2 == 0 or k % 2 == 0]
    gamma = draw(st.sampled_from([None, 0.0, 0.3, 2.0, 100.0]))
    calibration: Any = draw(st.sampled_from(["repair", "repair", "repair", "exact"]))
    more: dict[str, Any] = {"grace": draw(st.integers(0, 1)), "gamma": gamma} if calibration == "repair" else {}
    more["late"] = draw(st.sampled_from([None, None, None, "unseen"])) if not more.get("grace") else None
    plan = lightdp.plan(
        clients=clients, colluders=draw(st.integers(0, min(2, clients - 2))), stragglers=bound, rounds=12, epsilon=3.0,
        delta=1e-5, calibration=calibration, degree=draw(st.sampled_from(degrees)), **more,
    )  # fmt: skip
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 12))):
        order = draw(st.permutations(range(clients)))
        missing = clients if draw(st.integers(0, 7)) == 0 else draw(st.integers(0, bound))
        seen = [s for s in order[:missing] if draw(st.integers(0, 3)) > 0]
        if plan.grace:
            steps.append(("open", order[missing:], seen))
        steps.append(("record", order[missing:], seen))
    tracked = draw(st.permutations(range(clients)))[: draw(st.integers(1, clients))]
    return plan, tracked, steps


def tables(plan: Plan, tracked: list[int] | None) -> Odometer:
    """An odometer that keeps a table, however few clients it tracks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_odometer, "_FEW", 0)
        odometer = Odometer(plan, tracked)
    assert isinstance(odometer._ledgers, LedgerTable)
    return odometer


def costs(odometer: Odometer) -> list[Counter[float]]:
    """How many rounds of each client had which cost, read one by one."""
    ledgers = [odometer._ledgers[at] for at in range(len(odometer.clients))]
    return [+ledger.usual + Counter(ledger.rare) for ledger in ledgers]


def same(together: Odometer, alone: list[Odometer]) -> None:
    """Compare ledgers, cost by cost, and all that is made of them."""
    assert costs(together) == [found for each in alone for found in costs(each)]
    assert together.squares() == [found for each in alone for found in each.squares()]
    assert together.mu().tolist() == [float(each.mu()[0]) for each in alone]
    assert together.epsilon().tolist() == [float(each.epsilon()[0]) for each in alone]
    assert together.max_epsilon() == max(each.max_epsilon() for each in alone)
    assert together.remaining(2) == min(each.remaining(2) for each in alone)


@settings(max_examples=40, deadline=None)
@given(trainings())
def test_a_table_has_the_ledgers_of_odometers_of_one_client_each(training: tuple[Plan, list[int], list[Step]]) -> None:
    plan, tracked, steps = training
    together, alone = tables(plan, tracked), [Odometer(plan, [client]) for client in tracked]
    elsewhere = [Counter({0.01: client, 0.02: 1}) if client % 2 else Counter[float]() for client in tracked]
    for what, used, late in steps:
        for each in (together, *alone):
            getattr(each, what)(used, late)
        for more in ({}, {"ahead": True}, {"worst": True}):
            same(together.counted(**more), [each.counted(**more) for each in alone])
        same(together.beside(elsewhere), [each.beside([more]) for each, more in zip(alone, elsewhere, strict=True)])
        over = [each.exhausted([more]) for each, more in zip(alone, elsewhere, strict=True)]
        assert together.exhausted(elsewhere) == ClientSet.of(plan.clients, {i for found in over for i in found})
        assert refused(together.admit) == any(refused(each.admit) for each in alone)
    same(together.alone(3), [each.alone(3) for each in alone])


def refused(admit: Callable[[], None]) -> bool:
    try:
        admit()
    except BudgetError:
        return True
    return False


@pytest.mark.parametrize("graph", ["complete", "circulant:40", "random:70"])
@pytest.mark.parametrize("grace", [0, 1])
def test_many_clients_have_a_table_that_agrees_with_single_ones(graph: str, grace: int) -> None:
    rng, clients = np.random.default_rng(5), 150
    plan = lightdp.plan(
        clients=clients, colluders=5, stragglers=12, rounds=60, epsilon=3, delta=1e-5, calibration="repair",
        graph=graph, grace=grace,
    ).placed(bytes(range(32)))  # fmt: skip
    together, some = Odometer(plan), rng.choice(30, 8, replace=False).tolist()
    assert isinstance(together._ledgers, LedgerTable)
    alone = [Odometer(plan, [client]) for client in some]
    for number in range(14):
        order = [*rng.permutation(30).tolist(), *range(30, clients)]  # the same clients straggle again and again
        missing = clients if number in {4, 11} else int(rng.integers(6, 13))
        for each in (together, *alone):
            each.record(order[missing:], order[: missing // 2])
    if grace:
        for each in (together, *alone):
            each.open(range(4, clients), [0, 1])
    for more in ({}, {"ahead": True}, {"worst": True}):
        found = together.counted(**more)
        assert [costs(found)[client] for client in some] == [costs(each.counted(**more))[0] for each in alone]
    assert (len(together._ledgers.late) > 0) != plan.hides_late


@pytest.mark.parametrize("calibration", ["repair", "exact"])
def test_clients_that_have_spent_their_budgets_are_those_that_odometers_of_their_own_refuse(calibration: Any) -> None:
    plan = lightdp.plan(
        clients=100, colluders=10, stragglers=20, rounds=30, epsilon=3, delta=1e-5, calibration=calibration
    )
    rng, together = np.random.default_rng(2), Odometer(plan)
    alone = [Odometer(plan, [client]) for client in range(100)]
    for each in (together, *alone):
        each.record(range(90), range(90, 95))
    budget = gaussian.mu(plan.budget, plan.delta) ** 2
    elsewhere = [{budget / 64: int(rng.integers(0, 80)), budget / 4096: int(rng.integers(0, 3))} for _ in range(100)]
    refused = [client for client, each in enumerate(alone) if each.exhausted([elsewhere[client]])]
    assert list(together.exhausted(elsewhere)) == refused
    assert 10 < len(refused) < 60
    with pytest.raises(BudgetError, match="could take client"):
        together.admit({budget: 1})


def test_a_copy_of_a_table_goes_on_by_itself() -> None:
    plan = lightdp.plan(clients=8, colluders=1, stragglers=3, rounds=20, epsilon=3, delta=1e-5, calibration="repair")
    first, straight = tables(plan, None), tables(plan, None)
    for odometer in (first, straight):
        odometer.record(range(6), [6, 7])
    before = costs(first)
    second = first.copied()
    for odometer in (second, straight):
        odometer.record(range(1, 8), [0])
    assert costs(first) == before
    assert costs(second) == costs(straight) != before


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7]), max_size=7), min_size=1, max_size=6), st.data())
def test_the_dominating_costs_of_a_table_are_the_largest_of_each_rank(
    rows: list[list[float]], data: st.DataObject
) -> None:
    table = LedgerTable(len(rows))
    usual = data.draw(st.sets(st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7])))
    table.add([Counter(cost for cost in row if cost in usual) for row in rows])
    for at, row in enumerate(rows):
        for cost in row:
            if cost not in usual:
                table.charge(np.array([at]), np.array([cost]))
    longest = max(len(row) for row in rows)
    padded = np.array([sorted(row, reverse=True) + [0.0] * (longest - len(row)) for row in rows])
    assert table.dominating().tolist() == padded.max(axis=0).tolist()


def test_sampled_batches_of_many_clients_compose_as_those_of_single_ones() -> None:
    plan = lightdp.plan(
        clients=6, colluders=1, stragglers=2, rounds=8, epsilon=3, delta=1e-5, calibration="repair", sampling_rate=0.2
    )
    together, few = tables(plan, None), Odometer(plan)
    for used, late in (([0, 1, 2, 3], [4]), ([0, 1, 2, 4, 5], [3]), (range(6), [])):
        for each in (together, few):
            each.record(used, late)
    assert together.max_epsilon() == few.max_epsilon()
    assert together.exhausted() == few.exhausted()
