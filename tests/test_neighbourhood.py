"""What one client sees of a graph is enough: its costs are those that the whole sets give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.neighbourhood import Neighbourhood, Whole

if TYPE_CHECKING:
    from lightdp.planning import Plan


def planned(graph: str, **changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 60, "colluders": 3, "stragglers": 12, "rounds": 60, "epsilon": 8.0}
    plan = lightdp.plan(graph=graph, **(asked | {"delta": 1e-5, "unit": "client", "calibration": "repair"} | changed))
    for number in range(100):
        try:
            return plan.placed(bytes([number]) * 32)
        except ArgumentError:  # somebody has too few neighbours
            continue
    raise AssertionError("nobody is placed well")


def near_of(plan: Plan, me: int) -> Neighbourhood:
    neighbours = plan.graph.neighbours_of(me).tolist()
    return Neighbourhood(plan.clients, me, neighbours, plan.graph.degrees if plan.graph.random else None)


def drawn(plan: Plan, rng: np.random.Generator) -> tuple[ClientSet, ClientSet]:
    """Used and late clients of a round: some rounds are void."""
    absent = rng.random(plan.clients) < rng.choice([0.02, 0.12])
    late = absent & (rng.random(plan.clients) < 0.7)
    if rng.random() < 0.15 or not plan.counts(~absent):
        return ClientSet.none(plan.clients), ClientSet(~absent | late)
    return ClientSet(~absent), ClientSet(late)


@pytest.mark.parametrize(
    ("graph", "changed"),
    [
        *[(graph, {}) for graph in ("complete", "circulant:8", "random:20")],
        *[(graph, {"grace": 1}) for graph in ("complete", "circulant:8", "random:20")],
        *[(graph, {"late": "unseen"}) for graph in ("complete", "circulant:8", "random:20")],
        *[(graph, {"calibration": "exact"}) for graph in ("complete", "circulant:8")],
    ],
    ids=str,
)
def test_costs_near_a_client_are_those_of_whole_sets(graph: str, changed: dict[str, Any]) -> None:
    plan, rng = planned(graph, **changed), np.random.default_rng(0)
    rounds = [drawn(plan, rng) for _ in range(25)]
    assert len({bool(used) for used, _ in rounds}) == 2
    for me in (0, 17, 59):
        near, whole = near_of(plan, me), Odometer(plan, [me])
        local = Odometer(plan, near=near)
        for used, late in rounds:
            if plan.grace:
                whole.open(used, late)
                local.open(near.near(used), near.near(late))
            for ahead, worst in ((False, False), (True, True)):
                one, other = (each.counted(ahead=ahead, worst=worst) for each in (whole, local))
                assert one.squares() == other.squares()
            whole.record(used, late)
            local.record(near.near(used), near.near(late), whole=near.whole(used))
        assert whole.squares() == local.squares()
        assert whole.epsilon() == local.epsilon() > 0
        assert local.remaining(3) == whole.remaining(3)


def test_a_round_of_strangers_is_not_void() -> None:
    """Nobody near the client was used: the count says that others were."""
    plan = planned("circulant:4", stragglers=20)
    near, used = near_of(plan, 5), ClientSet.of(60, range(60)) - ClientSet.of(60, [5, *near_of(plan, 5).neighbours])
    assert not near.near(used)
    charged = []
    for whole in (near.whole(used), Whole(0)):
        local = Odometer(plan, near=near)
        local.record(near.near(used), ClientSet.of(near.clients, [near.place]), whole=whole)
        charged.append(local.squares()[0])
    oracle = Odometer(plan, [5])
    oracle.record(used, [5])
    assert charged[0] == oracle.squares()[0] != charged[1]


def test_sets_of_a_neighbourhood_need_the_whole() -> None:
    plan = planned("circulant:4")
    local = Odometer(plan, near=near_of(plan, 5))
    with pytest.raises(ArgumentError, match="whole must be given with sets of a neighbourhood"):
        local.record(ClientSet.all(5))
    with pytest.raises(ArgumentError, match=r"members must be in 5\.\.60, got members=3"):
        local.record(ClientSet.all(5), whole=Whole(3))
    with pytest.raises(ArgumentError, match="used must name at least 48 clients or, for a void round, none; got 47"):
        local.record(ClientSet.all(5), whole=Whole(47))


def test_a_round_that_leaves_somebody_too_few_neighbours_is_refused() -> None:
    plan = planned("random:20")
    near = near_of(plan, 5)
    few = plan.request.least_used - 1
    with pytest.raises(ArgumentError, match=f"at least {few + 1} used neighbours, or be void, got one with {few}"):
        Odometer(plan, near=near).record(ClientSet.all(near.clients), whole=Whole(60, few))


@pytest.mark.parametrize("neighbours", [[5], [1, 1], [60], [-1]])
def test_neighbours_are_other_clients(neighbours: list[int]) -> None:
    with pytest.raises(ArgumentError, match="neighbours must be"):
        Neighbourhood(60, 5, neighbours)
