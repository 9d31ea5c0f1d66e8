"""Strategy and mod under grace (R5): replies that come during the next round are in its sum, and count."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from lightdp import masks
from lightdp.accountant import Odometer
from lightdp.errors import ProtocolError
from lightdp.federation import Rounds
from lightdp.flower import LightDP
from lightdp.protocol import Server
from lightdp.wire import messages
from support.flower_grid import LocalGrid
from support.flower_talk import Talk, an_app, refused
from support.flower_talk import a_plan as a_small_plan
from support.flower_training import an_app as adders
from support.flower_training import planned, the_change, trained, weights

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

    from lightdp.planning import Plan
    from support.flower_tape import Tape

EVERYONE = {0, 1, 2, 3, 4}


def spent(plan: Plan, *rounds: tuple[Any, Any]) -> float:
    odometer = Odometer(plan)
    for used, late in rounds:
        odometer.record(used, late)
    return odometer.max_epsilon()


def test_a_reply_that_comes_during_the_next_round_is_in_its_sum_and_counts_as_used(tape: Tape) -> None:
    plan = planned(grace=1)
    grid = LocalGrid(adders(), 5)
    grid.faults = {(2, 0): "late"}
    _, result = trained(grid, plan)
    assert [set(each.used) for each in tape.rounds[:3]] == [EVERYONE, {1, 2, 3, 4}, EVERYONE]
    assert list(tape.rounds[2].joined) == [0]
    assert tape.finals()[:6] == [EVERYONE] * 6
    rows = result.train_metrics_clientapp
    assert [row["lightdp-used"] for row in rows.values()] == [5, 4, 5, 5, 5, 5]
    assert [row["lightdp-joined"] for row in rows.values()] == [0, 0, 1, 0, 0, 0]
    assert rows[6]["lightdp-late"] == 0
    assert rows[6]["lightdp-epsilon"] == spent(plan, *[(range(5), [])] * 6)
    assert grid.pushed.count("train") == 6  # nothing was left to repair


def test_a_reply_that_comes_later_still_is_counted_as_late_and_never_used(tape: Tape) -> None:
    plan = planned(grace=1)
    grid = LocalGrid(adders(), 5)
    grid.faults = {(2, 0): "later"}
    _, result = trained(grid, plan)
    assert tape.finals()[:6] == [EVERYONE, {1, 2, 3, 4}, *[EVERYONE] * 4]
    row = result.train_metrics_clientapp[6]
    assert (row["lightdp-late"], row["lightdp-joined"]) == (1, 0)
    rest: list[Any] = [(range(5), [])] * 4
    assert row["lightdp-epsilon"] == spent(plan, (range(5), []), (range(1, 5), [0]), *rest)
    assert row["lightdp-epsilon"] > spent(plan, (range(5), []), (range(1, 5), []), *rest)


def test_a_round_with_too_few_in_time_comes_with_the_next_one(tape: Tape, caplog: pytest.LogCaptureFixture) -> None:
    models: list[Any] = []

    def evaluate(_: int, arrays: ArrayRecord) -> None:
        models.append(arrays["w"].numpy())

    grid = LocalGrid(adders(), 5)
    grid.faults = {(2, i): "late" for i in range(3)}
    strategy, result = trained(grid, planned(grace=1), num_rounds=4, evaluate_fn=evaluate)
    assert strategy.stopped is None
    assert "round 2 waits for uploads that come during the next one: fewer than 3 uploads came" in caplog.text
    rows = result.train_metrics_clientapp
    assert [row["lightdp-used"] for row in rows.values()] == [5, 0, 5, 5]
    assert [row["lightdp-joined"] for row in rows.values()] == [0, 0, 5, 0]
    assert np.array_equal(models[1], models[2])
    assert not np.array_equal(models[2], models[3])
    assert tape.finals()[:4] == [EVERYONE] * 4


def test_void_rounds_are_counted_when_their_sets_are_final() -> None:
    grid = LocalGrid(adders(), 5)
    grid.lose(3, since=3)
    strategy, result = trained(grid, planned(grace=1), num_rounds=30)
    assert strategy.stopped is not None
    assert strategy.stopped.startswith("2 rounds in a row were void")  # of the third the set was not final
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]  # after three that they missed, clients are gone
    row = result.train_metrics_clientapp[5]
    assert row["lightdp-epsilon"] >= spent(planned(grace=1), *[(range(5), [])] * 2, *[([], [3, 4])] * 3)


@pytest.mark.parametrize(("missed", "closing"), [(1, 0), (2, 1), (3, 1)])
def test_there_are_closing_messages_for_what_is_left_to_repair(missed: int, closing: int) -> None:
    grid = LocalGrid(adders(), 5)
    grid.faults = {(missed, 0): "drop"}
    trained(grid, planned(grace=1), num_rounds=3)
    assert grid.pushed.count("train") == 3 + closing


def test_two_closing_rounds_repair_two_rounds_and_nothing_is_left_of_them(tape: Tape) -> None:
    plan = planned(grace=1)
    grid = LocalGrid(adders(), 5)
    grid.faults = {(5, 0): "drop", (6, 1): "drop"}
    _, result = trained(grid, plan)
    assert grid.pushed.count("train") == 8
    assert [set(each.used) for each in tape.rounds[6:]] == [{1, 2, 3, 4}, {0, 2, 3, 4}]
    lattice = masks.Grid.of(plan, 40)
    expected = tape.total("data") * lattice.step / 5
    assert the_change(result) == pytest.approx(expected, abs=len(tape.used()) * lattice.wire_step / 10 + 1e-9)


def test_replies_to_the_last_round_are_waited_for(tape: Tape) -> None:
    grid = LocalGrid(adders(), 5)
    grid.faults = {(6, 2): "slow"}
    _, result = trained(grid, planned(grace=1))
    assert tape.finals()[5] == EVERYONE
    assert result.train_metrics_clientapp[6]["lightdp-joined"] == 1
    assert grid.pushed.count("train") == 6


def test_nodes_that_start_again_between_a_round_and_its_late_reply_go_on(tape: Tape) -> None:
    grid = LocalGrid(adders(), 5)
    grid.faults = {(2, 0): "late", (3, 1): "late", (4, 0): "crash", (5, 2): "late"}

    def before(_: int) -> None:
        for at in range(5):
            grid.restart(at)

    grid.before = before
    _, result = trained(grid, planned(grace=1))
    assert tape.finals()[:6] == [*[EVERYONE] * 3, {1, 2, 3, 4}, EVERYONE, EVERYONE]
    assert [row["lightdp-joined"] for row in result.train_metrics_clientapp.values()] == [0, 0, 1, 1, 0, 1]


def test_the_data_of_a_node_that_is_always_late_is_in_the_model_in_every_round(tape: Tape) -> None:
    plan = planned(grace=1)
    grid = LocalGrid(adders(), 5)
    grid.faults = {(t, 0): "late" for t in range(1, 9)}  # its reply comes while the model is evaluated
    _, result = trained(grid, plan)
    rows = result.train_metrics_clientapp
    assert [row["lightdp-used"] for row in rows.values()] == [4] * 6
    assert [row["lightdp-joined"] for row in rows.values()] == [0, 1, 1, 1, 1, 1]  # the last comes after all is over
    assert tape.finals()[:5] == [EVERYONE] * 5
    assert sum(each.name == tape.names[0] for each in tape.used()) == 5


def test_a_node_that_falls_behind_is_asked_when_it_has_answered_and_is_never_too_late(tape: Tape) -> None:
    grid = LocalGrid(adders(), 5)
    grid.faults = {(t, 0): "late" for t in range(1, 20)}  # its reply comes when the next round was sent
    _, result = trained(grid, planned(grace=1), FedAvg(fraction_evaluate=0.0), num_rounds=8)
    asked = sorted(each.round for each in tape.made if each.name == tape.names[0])
    assert asked == [0, 1, 3, 5, 7]
    assert tape.finals()[:7] == [EVERYONE if t in asked else {1, 2, 3, 4} for t in range(7)]
    assert result.train_metrics_clientapp[8]["lightdp-late"] == 0


def test_a_node_whose_messages_are_lost_is_asked_again_after_a_while(tape: Tape) -> None:
    grid = LocalGrid(adders(), 5)
    asked: list[int] = []
    grid.faults = {(t, 0): "drop" for t in range(1, 6)}
    reply = grid._reply

    def watched(at: int, message: Any, fault: Any) -> Any:
        if at == 0 and "start" in message.content.config_records.get("lightdp", {}):
            asked.append(grid.round)
        return reply(at, message, fault)

    grid._reply = watched  # type: ignore[method-assign]
    trained(grid, planned(grace=1), FedAvg(fraction_evaluate=0.0), num_rounds=9)
    assert asked[:5] == [1, 2, 5, 8, 9]
    assert [0 in each for each in tape.finals()[:9]] == [False] * 7 + [True, True]


def test_if_all_fall_behind_all_are_asked(tape: Tape) -> None:
    grid = LocalGrid(adders(), 5)
    grid.faults = {(t, i): "later" for t in range(1, 20) for i in range(5)}
    with pytest.raises(ProtocolError, match=r"no upload was used in 4 rounds.*5 nodes: no answer"):
        trained(grid, planned(grace=1), FedAvg(fraction_evaluate=0.0), num_rounds=8)
    assert {each.round for each in tape.made} == {0, 1, 2, 3}


def test_in_a_loop_of_ones_own_late_replies_join_and_the_round_that_waits_is_counted() -> None:
    plan, arrays = planned(grace=1), weights()
    strategy, grid = LightDP(FedAvg(), plan, wait=0.01), LocalGrid(adders(), 5)
    grid.faults = {(1, 0): "late"}
    assert strategy.accountant is not None
    for t, joined in ((1, 0), (2, 1)):
        sent = strategy.configure_train(t, arrays, ConfigRecord(), grid)
        new, metrics = strategy.aggregate_train(t, grid.send_and_receive(sent, timeout=1))
        assert new is not None
        arrays = new
        assert metrics["lightdp-joined"] == joined
        exact = Odometer(plan)
        for _ in range(t - 1):
            exact.record(range(5), [])
        exact.open(range(2 - t, 5), [0] if t == 1 else [])
        assert strategy.accountant.num_releases == t
        assert metrics["lightdp-epsilon"] == exact.counted().max_epsilon()
        assert strategy.accountant.get_epsilon(plan.delta) == pytest.approx(exact.counted().max_epsilon(), rel=1e-9)
        assert exact.max_epsilon() < exact.counted().max_epsilon()
        assert strategy.accountant.get_delta(metrics["lightdp-epsilon"]) == pytest.approx(plan.delta)


def test_who_was_not_in_time_may_have_sent() -> None:
    rounds = Rounds(Server(planned(grace=1), length=4, run=bytes(16)))
    assert rounds.odometer.counted().max_epsilon() == 0
    rounds._on_time.append(rounds._senders(0))
    assert rounds.odometer.counted().max_epsilon() > 0


def test_a_message_waits_while_the_one_before_it_is_answered() -> None:
    training, go_on, begun = threading.Event(), threading.Event(), list[int]()

    def change(received: Any) -> Any:
        begun.append(len(begun))
        training.set()
        assert go_on.wait(timeout=20)
        return received + 0.1

    talk = Talk(an_app(change), plan=a_small_plan(grace=1, calibration="repair"))
    talk.enrol()
    go_on.set()
    for at in (1, 2):
        talk.server.receive(upload(talk.grid.handle(at, talk.start())))
    go_on.clear()
    training.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(talk.grid.handle, 0, talk.start())
        assert training.wait(timeout=20)
        assert list(talk.server.close().used) == [1, 2]
        second = pool.submit(talk.grid.handle, 0, talk.start())
        again = talk.start()
        for _ in range(20):
            assert not second.done()
            threading.Event().wait(0.01)
        assert len(begun) == 3  # the app is not called while it works on the round before
        go_on.set()
        assert talk.server.receive(upload(first.result()))  # in grace
        assert talk.server.receive(upload(second.result()))
    for at in (1, 2):
        talk.server.receive(upload(talk.grid.handle(at, again)))
    result = talk.server.close()
    assert (list(result.joined), list(result.used)) == ([0], [0, 1, 2])
    assert refused(talk.grid.handle(0, again), "lightdp/protocol: round 1 was answered, or is over")


def test_a_node_that_missed_rounds_is_told_of_all_since_its_last_answer() -> None:
    grid = LocalGrid(adders(), 5)
    grid.faults = {(2, 0): "drop", (3, 0): "late"}
    _, result = trained(grid, planned(grace=1), num_rounds=5)
    assert not any(reply.has_error() for _, reply in grid.left)
    assert result.train_metrics_clientapp[4]["lightdp-joined"] == 1


def test_an_enrolment_of_an_older_version_is_refused_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = LocalGrid(adders(), 5)
    reply = grid._reply

    def old(at: int, message: Any, fault: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(messages, "VERSION", 2 if at == 3 else messages.VERSION)
            return reply(at, message, fault)

    grid._reply = old  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match=r"4 of at least 5 .*got b'LDP' version 2.*version of lightdp"):
        trained(grid, planned(grace=1))


def upload(reply: Any) -> bytes:
    return bytes(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())
