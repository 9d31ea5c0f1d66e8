"""Cohorts, and nodes that come and go: who is asked in which round, what the model becomes, what it costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg, Strategy

from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError, LightDPError, ProtocolError
from lightdp.flower import LightDP
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, step, the_change, weights


def uploads(grid: LocalGrid) -> list[int]:
    """Positions of the nodes that sent each upload with data, in order; closing rounds leave no metrics record."""
    return [at for at, reply in grid.left if reply.has_content() and "arrays" in reply.content]


def run(grid: LocalGrid, plan: Any, inner: Strategy | None = None, **more: Any) -> tuple[LightDP, Any]:
    settings: dict[str, Any] = {
        name: more.pop(name) for name in ("wait", "least", "patience", "trained") if name in more
    }
    strategy = LightDP(FedAvg(fraction_evaluate=0.0) if inner is None else inner, plan, **({"wait": 0.01} | settings))
    return strategy, strategy.start(grid=grid, initial_arrays=weights(), timeout=1, **({"num_rounds": 6} | more))


def mean_of(asked: list[set[int]]) -> Any:
    """What the model moves by if these nodes are asked in each round, all of which answer."""
    return sum(sum(step(i, 40) for i in each) / len(each) for each in asked)


def close_to(total: Any, plan: Any, rounds: int = 9) -> Any:
    """Up to the noise of so many rounds, by more than five times its standard deviation."""
    return pytest.approx(total, abs=12 * (rounds * plan.noise_in_mean()) ** 0.5)


def cohorts(grid: LocalGrid, sizes: list[int]) -> list[set[int]]:
    """Who sent the uploads of rounds with so many of them."""
    sent, found = uploads(grid), []
    for size in sizes:
        found.append(set(sent[:size]))
        sent = sent[size:]
    return found


@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_a_strategy_that_samples_half_of_the_nodes_trains_cohorts_in_turn(fraction: float) -> None:
    plan = planned(clients=3, population=6, stragglers=1, calibration="exact")
    assert plan.turns == 30
    grid = LocalGrid(an_app(), 6)
    strategy, result = run(grid, plan, FedAvg(fraction_train=fraction, fraction_evaluate=0.0, min_train_nodes=2))
    asked = cohorts(grid, [3] * 6)
    assert [asked[0], asked[1]] * 3 == asked
    assert asked[0] | asked[1] == set(range(6))
    assert Counter(uploads(grid)) == dict.fromkeys(range(6), 3)
    assert the_change(result) == close_to(mean_of(asked), plan)
    one = Odometer(plan)  # of either roster
    for _ in range(3):
        one.record(range(3), [])
    assert result.train_metrics_clientapp[6]["lightdp-epsilon"] == pytest.approx(one.max_epsilon(), rel=1e-9)
    assert strategy.fraction_train == fraction
    assert strategy.accountant is not None
    assert strategy.accountant.get_epsilon(1e-5) == pytest.approx(one.max_epsilon(), rel=1e-9)


def test_more_nodes_than_the_population_are_members_too() -> None:
    plan = planned(clients=3, population=6, stragglers=1)
    grid = LocalGrid(an_app(), 8)
    _, result = run(grid, plan, num_rounds=4)
    assert sorted(row["lightdp-used"] for row in result.train_metrics_clientapp.values()) == [4, 4, 4, 4]
    assert Counter(uploads(grid)) == dict.fromkeys(range(8), 2)


def test_more_nodes_than_clients_are_one_roster_with_a_plan_of_its_own() -> None:
    plan = planned(stragglers=1, calibration="exact")
    grid = LocalGrid(an_app(), 7)
    strategy, result = run(grid, plan)
    table = strategy._engine.opened.tables[0]
    assert table.server.plan.digest() == plan.among(7).digest()
    assert the_change(result) == close_to(mean_of([set(range(7))] * 6), plan.among(7))
    exact = Odometer(plan.among(7))
    for _ in range(6):
        exact.record(range(7), [])
    assert result.train_metrics_clientapp[6]["lightdp-epsilon"] == exact.max_epsilon()


@pytest.mark.parametrize(
    ("inner", "settings", "why"),
    [
        (FedAvg(fraction_train=0.25), {"clients": 3, "population": 6}, "must be the plan's clients/population = 0.5"),
        (FedAvg(fraction_train=0.5, min_train_nodes=3), {"clients": 3, "population": 9}, "samples 4 of 9 nodes"),
        (FedAvg(fraction_train=0.0), {"clients": 3, "population": 6}, r"must be in \(0, 1\], got fraction_train=0"),
        (FedAvg(fraction_train=0.5), {}, r"needs a plan for cohorts, such as lightdp.plan\(clients=5, population=10"),
        (FedAvg(min_train_nodes=4), {"clients": 3, "population": 6}, r"at most .* 3, got .* lightdp.plan\(clients=4, "),
    ],
)
def test_fractions_that_do_not_fit_the_plan_are_refused(inner: Strategy, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        LightDP(inner, planned(**({"stragglers": 1} | settings)))


@pytest.mark.parametrize(
    ("inner", "clients", "proposed"),
    [
        (FedAvg(fraction_train=0.2, min_available_nodes=100), 100, (20, 100)),
        (FedAvg(fraction_train=0.2, min_available_nodes=100), 20, (20, 100)),
        (FedAvg(fraction_train=0.29, min_available_nodes=100), 50, (29, 100)),  # of which int() makes 28
        (FedAvg(fraction_train=0.01, min_available_nodes=100, min_train_nodes=10), 100, (10, 100)),
        (FedAvg(fraction_train=0.2, min_available_nodes=50), 100, (100, 500)),  # says nothing of a population
        (FedAvg(fraction_train=0.2), 100, (100, 500)),
    ],
)
def test_the_plan_that_a_refusal_of_a_fraction_proposes_is_accepted(
    inner: Strategy, clients: int, proposed: tuple[int, int]
) -> None:
    cohort, nodes = proposed
    with pytest.raises(ArgumentError, match=rf"such as lightdp.plan\(clients={cohort}, population={nodes}, "):
        LightDP(inner, planned(clients=clients, stragglers=1))
    assert LightDP(inner, planned(clients=cohort, population=nodes, stragglers=1)).strategy is inner


@pytest.mark.parametrize(
    ("inner", "settings"),
    [
        (FedAvg(fraction_train=0.05, min_train_nodes=10), {"clients": 10, "population": 100}),
        (FedAvg(fraction_train=0.29), {"clients": 29, "population": 100}),  # of which int() makes 28
        (FedAvg(fraction_train=0.05, min_train_nodes=10), {"clients": 10}),  # which takes 10 of 10
    ],
)
def test_what_flower_would_sample_is_compared_with_the_plans_clients(inner: Strategy, settings: dict[str, Any]) -> None:
    assert LightDP(inner, planned(stragglers=1, **settings)).strategy is inner


def test_the_least_number_of_train_nodes_makes_cohorts_where_the_fraction_is_smaller() -> None:
    plan, grid = planned(clients=3, population=6, stragglers=1, calibration="exact"), LocalGrid(an_app(), 6)
    run(grid, plan, FedAvg(fraction_train=0.2, fraction_evaluate=0.0, min_train_nodes=3), num_rounds=4)
    assert Counter(uploads(grid)) == dict.fromkeys(range(6), 2)


@pytest.mark.parametrize("settings", [{"clients": 3}, {"clients": 3, "population": 4}])
def test_the_key_round_waits_for_the_available_nodes_that_the_strategy_wants(settings: dict[str, Any]) -> None:
    plan, grid = planned(stragglers=1, calibration="exact", **settings), LocalGrid(an_app(), 5)
    late, connected = grid.nodes[4], grid.get_node_ids
    late.online = False

    def later() -> Any:
        found = connected()
        late.online = True  # when the others have been seen
        return found

    grid.get_node_ids = later  # type: ignore[method-assign]
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=5)
    strategy, result = run(grid, plan, inner, num_rounds=2, wait=5)
    assert [row["lightdp-used"] for row in result.train_metrics_clientapp.values()] == [5, 5]
    assert strategy.min_available_nodes == 5
    strategy, result = run(LocalGrid(an_app(), 4), plan, inner, num_rounds=1)  # after the wait the plan's are enough
    assert result.train_metrics_clientapp[1]["lightdp-used"] == 4


def test_after_the_wait_those_who_came_are_enough() -> None:
    plan = planned(calibration="exact")
    grid = LocalGrid(an_app(), 4)
    strategy, result = run(grid, plan, least=3)
    table = strategy._engine.opened.tables[0]
    assert table.server.plan.digest() == plan.among(4).digest()
    assert the_change(result) == close_to(mean_of([set(range(4))] * 6), plan.among(4))
    with pytest.raises(ProtocolError, match=r"0 of at least 3 clients enrolled within 0.01 s, with 2 nodes connected"):
        run(LocalGrid(an_app(), 2), plan, least=3)
    with pytest.raises(LightDPError, match="least"):
        run(LocalGrid(an_app(), 4), plan, least=6)


def test_newcomers_form_a_roster_once_there_are_enough_of_them() -> None:
    plan = planned(clients=3, stragglers=1)
    grid = LocalGrid(an_app(), 6)
    for node in grid.nodes[3:]:
        node.online = False

    def before(current: int) -> None:
        for node in grid.nodes[3:]:
            node.online = node.online or current == 2

    grid.before = before
    _, result = run(grid, plan, num_rounds=7)
    asked = cohorts(grid, [int(row["lightdp-used"]) for row in result.train_metrics_clientapp.values()])
    assert asked[:2] == [{0, 1, 2}] * 2
    assert {3, 4, 5} in asked
    assert Counter(map(tuple, map(sorted, asked)))[3, 4, 5] >= 2
    assert the_change(result) == close_to(mean_of(asked), plan)


def joining(grid: LocalGrid, first: int) -> None:
    """Let the nodes from this one on connect before the second round."""
    for node in grid.nodes[first:]:
        node.online = False

    def before(current: int) -> None:
        for node in grid.nodes[first:]:
            node.online = node.online or current == 2

    grid.before = before


@pytest.mark.parametrize("calibration", ["exact", "repair"])
def test_fewer_newcomers_are_a_roster_once_they_have_waited_with_a_plan_of_its_own(calibration: str) -> None:
    plan, grid = planned(stragglers=1, calibration=calibration), LocalGrid(an_app(), 8)
    joining(grid, 5)
    strategy, result = run(grid, plan, num_rounds=12, least=3)
    asked = cohorts(grid, [int(row["lightdp-used"]) for row in result.train_metrics_clientapp.values()])
    assert asked[:2] == [set(range(5))] * 2
    assert Counter(map(len, asked))[3] >= 4  # they take turns with the others
    assert {5, 6, 7} in asked
    assert the_change(result) == close_to(mean_of(asked), plan.among(3), 12)
    federation = strategy._engine.opened.federation
    assert federation.rosters[1].server.plan.digest() == plan.among(3).digest()
    for at, size in ((0, 5), (5, 3)):
        ledger = Odometer(plan.among(size))
        for _ in range(Counter(map(len, asked))[size]):
            ledger.record(range(size), [])
        assert federation.epsilon()[f"node-{grid.nodes[at].id}"] == pytest.approx(ledger.max_epsilon(), rel=1e-9)


@pytest.mark.parametrize(
    ("least", "line"),
    [
        (None, "2 clients are in no roster yet: a new one takes 5, or after 0.01 s the number that LightDP(..., "),
        (3, "2 clients are in no roster yet: a new one takes 5, or 3 for 0.01 s"),
    ],
)
def test_newcomers_that_are_too_few_wait_and_one_line_says_so(
    least: int | None, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = LocalGrid(an_app(), 7)
    joining(grid, 5)
    with caplog.at_level("INFO", "flwr"):
        _, result = run(grid, planned(stragglers=1), num_rounds=6, least=least)
    assert [row["lightdp-used"] for row in result.train_metrics_clientapp.values()] == [5] * 6
    assert caplog.text.count("in no roster yet") == caplog.text.count(line) == 1


@pytest.mark.parametrize("calibration", ["exact", "repair"])
def test_a_roster_that_lost_too_many_is_closed_and_the_others_go_on(
    calibration: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = planned(clients=3, stragglers=1, calibration=calibration)
    grid = LocalGrid(an_app(), 5)

    def before(current: int) -> None:
        for node in grid.nodes[:2]:
            node.online = current < 3

    grid.before = before
    with caplog.at_level("INFO", "flwr"):
        strategy, result = run(grid, plan, num_rounds=9, patience=2)
    used = [row["lightdp-used"] for row in result.train_metrics_clientapp.values()]
    assert used[:2] == [5, 5]
    assert used[-5:] == [3] * 5  # rounds 3 and 4 are void, then there is a roster of three
    assert strategy.stopped is None
    assert "roster 0 is closed: it can bear 1 of its 5 clients missing: 2 missed too many" in caplog.text
    assert "round 2 used 5 of 5 clients;" in caplog.text
    assert "round 9 of roster 1 used 3 of 3 clients;" in caplog.text
    assert "roster 1 of 3 clients" in caplog.text
    total = mean_of([set(range(5))] * 2 + [{2, 3, 4}] * used.count(3))
    assert the_change(result) == close_to(total, plan)
    spent = strategy._engine.opened.federation.epsilon()
    assert spent["node-1014"] > spent["node-1000"] > 0  # what was spent before is not forgotten
    assert max(spent.values()) == pytest.approx(result.train_metrics_clientapp[9]["lightdp-epsilon"])


def test_a_node_that_misses_too_often_is_left_out_and_back_once_it_answers() -> None:
    grid, asked = LocalGrid(an_app(), 5), []
    push = grid.push_messages

    def before(current: int) -> None:
        grid.nodes[0].online = not 2 <= current < 7

    def watched(messages: Any) -> Any:
        sent = list(messages)
        if any("start" in message.content.config_records["lightdp"] for message in sent):
            asked.append(len(sent))
        return push(sent)

    grid.before, grid.push_messages = before, watched  # type: ignore[method-assign]
    _, result = run(grid, planned(calibration="exact"), num_rounds=9)
    assert asked == [5, 5, 5, 5, 4, 4, 4, 5, 5]  # after three rounds it is only asked to enrol again
    assert [row["lightdp-used"] for row in result.train_metrics_clientapp.values()] == [5, *[4] * 6, 5, 5]


def test_when_too_few_clients_are_left_the_training_ends_with_what_it_has() -> None:
    grid = LocalGrid(an_app(), 3)

    def before(current: int) -> None:
        for node in grid.nodes[:2]:
            node.online = current < 3

    grid.before = before
    strategy, result = run(grid, planned(clients=3, stragglers=1), num_rounds=9, patience=2)
    assert strategy.stopped is not None
    assert [row["lightdp-used"] for row in result.train_metrics_clientapp.values()] == [3, 3, 0, 0]
    assert the_change(result) == close_to(mean_of([set(range(3))] * 2), planned(clients=3, stragglers=1))


def test_only_the_arrays_that_are_named_are_trained_and_other_records_are_for_the_nodes_alone() -> None:
    class Both(FedAvg):
        def configure_train(self, *arguments: Any, **more: Any) -> Any:
            messages = list(super().configure_train(*arguments, **more))
            for message in messages:
                message.content["variates"] = ArrayRecord([np.ones(2)])
            return messages

    seen: list[Any] = []
    app = an_app()

    grid = LocalGrid(app, 5)
    handle = grid.handle

    def watched(at: int, message: Message, **more: Any) -> Message:
        seen.append(message.content.config_records["lightdp"].get("trained"))
        return handle(at, message, **more)

    grid.handle = watched  # type: ignore[method-assign]
    _, result = run(grid, planned(), Both(fraction_evaluate=0.0), num_rounds=1)
    assert [each for each in seen if each is not None] == [["arrays/w"]] * 5
    assert the_change(result) == close_to(mean_of([set(range(5))]), planned())
    with pytest.raises(ArgumentError, match="trained must name float arrays of the model, got 'v'"):
        run(LocalGrid(app, 5), planned(), trained=["v"])


def test_key_and_closing_messages_carry_the_strategys_configuration() -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(1, 0): "drop"}
    handle, seen = grid.handle, []

    def watched(at: int, message: Message, **more: Any) -> Message:
        seen.append(message.content.config_records.get("config"))
        return handle(at, message, **more)

    grid.handle = watched  # type: ignore[method-assign]
    run(grid, planned(), num_rounds=1, train_config=ConfigRecord({"lr": 0.5}))
    assert len(seen) > 9
    assert all(each is not None and each["lr"] == 0.5 for each in seen)


def test_a_roster_of_which_too_few_nodes_are_here_misses_its_turn_and_nobody_pays() -> None:
    plan = planned(clients=3, population=6, stragglers=1, calibration="exact")
    grid = LocalGrid(an_app(), 6)

    def leave(number: int) -> None:
        if number == 3:  # after a round of each roster
            for at in sorted(cohorts(grid, [3])[0])[:2]:
                grid.nodes[at].online = False

    grid.before = leave
    strategy, result = run(grid, plan, num_rounds=5, patience=9, wait=0.05)
    first, second = cohorts(grid, [3, 3])
    sent = Counter(uploads(grid))
    assert strategy.stopped is None
    assert {sent[at] for at in second} == {3}  # rounds 2 and 4, and 5 in the place of the others
    assert max(sent[at] for at in first) <= 2  # no round is for the one that is left
    assert [row["lightdp-used"] for row in result.train_metrics_clientapp.values()][-2:] == [3, 3]


def test_in_a_loop_of_ones_own_a_void_round_does_not_lose_what_closing_a_roster_repaired() -> None:
    plan, grid, arrays = planned(clients=3, stragglers=1, calibration="repair"), LocalGrid(an_app(), 5), weights()
    grid.faults = {(2, 0): "drop"}  # leaves noise to be repaired
    strategy, found = LightDP(FedAvg(fraction_evaluate=0.0), plan, wait=0.05, patience=2), list[Any]()
    for t in range(1, 7):
        for node in grid.nodes[:2]:
            node.online = t < 3
        messages = strategy.configure_train(t, arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages, timeout=1))
        new, metrics = strategy.aggregate_train(t, replies if t < 3 else [])  # from the third round on all are void
        found.append((metrics["lightdp-used"], None if new is None else arrays["w"].numpy() - new["w"].numpy()))
        arrays = arrays if new is None else new
    assert [used for used, _ in found] == [5, 4, 0, 0, 0, 0]
    assert [change is None for _, change in found] == [False, False, True, True, False, True]
    left = (plan.among(5).transient_in_mean()) ** 0.5
    assert 0 < np.abs(found[4][1]).max() < 8 * left
