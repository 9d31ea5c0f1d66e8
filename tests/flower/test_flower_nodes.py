"""Strategy and mod together: nodes that come late, go, come back and are too few."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from lightdp.errors import ProtocolError
from lightdp.flower import LightDP
from lightdp.keys import Identity, Pins
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, trained, weights

if TYPE_CHECKING:
    from support.flower_tape import Tape


def senders(grid: LocalGrid) -> set[int]:
    """Positions of nodes that have sent an upload."""
    return {at for at, reply in grid.left if reply.has_content() and "arrays" in reply.content}


def test_a_node_that_leaves_and_comes_back_goes_on_in_the_roster(tape: Tape) -> None:
    grid = LocalGrid(an_app(), 5)

    def before(current: int) -> None:
        grid.nodes[1].online = current not in (2, 3)

    grid.before = before
    trained(grid, planned())
    assert [1 in each.used for each in tape.rounds[:6]] == [True, False, False, True, True, True]


def test_a_node_that_joins_in_mid_run_waits_for_the_next_roster(caplog: pytest.LogCaptureFixture, tape: Tape) -> None:
    grid = LocalGrid(an_app(), 6)
    grid.nodes[5].online = False

    def before(current: int) -> None:
        grid.nodes[5].online = grid.nodes[5].online or current == 2

    grid.before = before
    strategy = LightDP(FedAvg(fraction_evaluate=0.0), planned(), wait=0.01)
    with caplog.at_level("INFO", "flwr"):
        strategy.start(grid=grid, initial_arrays=weights(), num_rounds=3, timeout=1)
    assert caplog.text.count(f"node {grid.nodes[5].id} joins as node-{grid.nodes[5].id}: it will be in the next") == 1
    assert 5 not in senders(grid)
    grid.nodes[0].online = False
    strategy.start(grid=grid, initial_arrays=weights(), num_rounds=1, timeout=1)
    assert 5 in senders(grid)
    assert set(tape.names) == {f"node-{node.id}" for node in grid.nodes[1:]}


def test_a_node_that_lost_its_state_is_left_out_and_told_why(
    tape: Tape, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.simulate(monkeypatch)
    grid.faults = {(2, 1): "crash"}  # without a file: the state is gone
    trained(grid, planned())
    assert [1 in each.used for each in tape.rounds[:6]] == [True] + [False] * 5
    assert "this node has no state of the run" in caplog.text


def test_a_restarted_node_goes_on_from_its_file(tape: Tape, tmp_path: Path) -> None:
    grid = LocalGrid(an_app(), 5)
    for i, node in enumerate(grid.nodes):
        node.config["lightdp-state"] = str(tmp_path / f"{i}.json")
    grid.faults = {(2, 1): "crash"}
    trained(grid, planned())
    assert [1 in each.used for each in tape.rounds[:6]] == [True, False, True, True, True, True]
    assert (tmp_path / "1.json").stat().st_mode & 0o777 == 0o600


def test_too_few_nodes_end_the_waiting_with_a_clear_message() -> None:
    with pytest.raises(ProtocolError, match=r"0 of at least 5 clients enrolled within 0.01 s, with 4 nodes connected"):
        trained(LocalGrid(an_app(), 4), planned())
    plain = ClientApp()
    with pytest.raises(ProtocolError, match=r"No train function registered"):
        trained(LocalGrid(plain, 5), planned())


def test_more_nodes_than_clients_are_asked_and_those_who_miss_the_key_round_wait(
    caplog: pytest.LogCaptureFixture, tape: Tape
) -> None:
    grid = LocalGrid(an_app(), 7)
    grid.faults = {(0, 0): "drop", (0, 3): "error", (1, 1): "error"}
    with caplog.at_level("INFO", "flwr"):
        trained(grid, planned(), num_rounds=2)
    assert set(tape.names) == {f"node-{grid.nodes[i].id}" for i in (1, 2, 4, 5, 6)}
    assert [len(each.used) for each in tape.rounds[:2]] == [4, 5]
    assert f"node {grid.nodes[3].id} joins as node-{grid.nodes[3].id}: it will be in the next roster" in caplog.text


def test_nodes_that_miss_the_key_round_are_asked_again(tape: Tape) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(0, 0): "drop", (0, 1): "lost", (0, 2): "late", (0, 3): "error"}
    strategy = LightDP(FedAvg(), planned(), wait=20)
    strategy.start(grid=grid, initial_arrays=weights(), num_rounds=1, timeout=1)
    assert list(tape.rounds[0].used) == [*range(5)]
    assert grid.pushed[:3] == ["key", "key", "train"]


def test_nodes_are_asked_before_all_that_are_waited_for_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    grid, pushed = LocalGrid(an_app(), 5), list[list[str]]()
    monkeypatch.setattr(time, "sleep", lambda _: pushed.append(list(grid.pushed)))
    strategy = LightDP(FedAvg(fraction_evaluate=0.0), planned(population=6), wait=0.3)
    strategy.start(grid=grid, initial_arrays=weights(), num_rounds=1, timeout=1)
    assert pushed[0] == ["key"]  # while it waits for a sixth; after that, there would be no time to answer


def test_a_node_that_repeats_anothers_enrolment_is_not_in_the_roster() -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(0, 1): "impostor"}
    with pytest.raises(ProtocolError, match=r"4 of at least 5 .*node 1007.*node-1000 did not sign this"):
        trained(grid, planned())


def test_with_pins_nobody_enrols_in_the_name_of_another(tape: Tape) -> None:
    grid = LocalGrid(an_app(), 6)
    identities = [Identity.generate() for _ in range(6)]
    for i, (node, identity) in enumerate(zip(grid.nodes, identities, strict=True)):
        path = Path(node.config["lightdp-state"]) / f"identity-{i}"
        identity.save(path)
        node.config |= {"lightdp-identity": str(path), "lightdp-name": f"site-{max(i, 1)}"}
        node.config["lightdp-state"] += f"/{i}.json"
    pins = Pins({f"site-{i}": identities[i].public for i in range(1, 6)})
    strategy = LightDP(FedAvg(fraction_evaluate=0.0), planned(), wait=0.01, pins=pins)
    strategy.start(grid=grid, initial_arrays=weights(), num_rounds=1, timeout=1)
    assert sorted(tape.names) == [f"site-{i}" for i in range(1, 6)]
    assert senders(grid) == {1, 2, 3, 4, 5}
    strategy = LightDP(FedAvg(fraction_evaluate=0.0), planned(), wait=0.01)  # the first to use a name has it
    strategy.start(grid=grid, initial_arrays=weights(), num_rounds=1, timeout=1)
    assert 0 in senders(grid)


def test_an_app_without_the_mod_cannot_enrol() -> None:
    app = ClientApp()
    app.train()(lambda message, _: Message(RecordDict(), reply_to=message))
    with pytest.raises(ProtocolError, match=r"not an enrolment.*is lightdp.flower.mod the first of the app's mods"):
        trained(LocalGrid(app, 5), planned())


def test_void_rounds_leave_the_model_and_end_the_training_after_some() -> None:
    grid = LocalGrid(an_app(), 5)
    grid.lose(3, since=3)
    strategy, result = trained(grid, planned(), num_rounds=30)
    assert strategy.stopped is not None
    assert "3 rounds in a row were void: fewer than 3 uploads came" in strategy.stopped
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]
    assert result.train_metrics_clientapp[5]["lightdp-stopped"] == 1


def test_nodes_that_enrol_again_and_again_and_never_answer_end_the_training() -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(t, i): "drop" for t in range(2, 60) for i in range(5)}
    strategy = LightDP(FedAvg(fraction_evaluate=0.0), planned(), wait=0.2)
    result = strategy.start(grid=grid, initial_arrays=weights(), num_rounds=50, timeout=1)
    assert strategy.stopped is not None
    assert "rounds in a row were void" in strategy.stopped
    assert 7 <= len(result.train_metrics_clientapp) <= 13  # three new rosters had their chance


def test_evaluation_is_left_out_if_there_are_too_few_nodes(caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(an_app(), 5)
    _, result = trained(grid, planned(rounds=1), FedAvg(min_evaluate_nodes=6))
    assert result.evaluate_metrics_clientapp == {}
    assert "evaluation of round 1 left out" in caplog.text
    assert result.train_metrics_clientapp[1]["lightdp-used"] == 5
