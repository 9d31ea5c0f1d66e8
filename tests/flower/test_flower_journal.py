"""`LightDP(..., log=PATH)`: the log of a real training, as `lightdp audit` and `lightdp report` read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from lightdp.auditing import recorded
from lightdp.errors import ArgumentError
from lightdp.flower import LightDP
from lightdp.report import save_runs
from lightdp.runlog import RunLog
from support.flower_grid import Fault, LocalGrid
from support.flower_training import an_app, planned, weights

FAULTS: dict[tuple[int, int], Fault] = {
    (1, 0): "late", (2, 1): "drop", (3, 2): "late", (3, 3): "later", (4, 0): "drop", (4, 1): "drop", (4, 2): "late",
    (5, 4): "late", (6, 0): "late",
}  # fmt: skip  # round 4 is void, and the last upload comes before the line of its round is written


def logged(path: Path, plan: Any, faults: dict[tuple[int, int], Fault], **more: Any) -> tuple[LightDP, Any]:
    grid = LocalGrid(an_app(), 5)
    grid.faults = faults
    strategy = LightDP(FedAvg(), plan, wait=0.01, log=path)
    options = {"num_rounds": 6, "timeout": 0.3 if plan.grace else 1} | more
    return strategy, strategy.start(grid=grid, initial_arrays=weights(), **options)


@pytest.mark.parametrize("calibration", ["exact", "repair"])
@pytest.mark.parametrize("grace", [0, 1])
@pytest.mark.parametrize("faults", [{}, FAULTS])
def test_what_is_logged_holds_and_ends_with_what_was_spent(
    tmp_path: Path, calibration: str, grace: int, faults: dict[tuple[int, int], Fault]
) -> None:
    path = tmp_path / "run.jsonl"
    plan = planned(calibration=calibration, grace=grace, epsilon=50)
    _, result = logged(path, plan, faults)
    found = recorded(path)
    assert found.problems == ()
    assert found.verdict.startswith("holds")
    assert found.exact is not None
    log = RunLog.read(path)
    assert log.epsilon == pytest.approx(result.train_metrics_clientapp[6]["lightdp-epsilon"])
    assert [line.used for line in log.rounds] == [m["lightdp-used"] for m in result.train_metrics_clientapp.values()]
    assert log.outcome.bytes_up == pytest.approx(40 * plan.wire_bits / 8, abs=300)
    assert log.started.config["strategy"] == "FedAvg"


def test_uploads_that_come_after_their_line_are_named_and_must_not_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    logged(path, planned(epsilon=50), FAULTS)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[1]["formed"] == [{"roster": 0, "members": [0, 1, 2, 3, 4]}]
    assert [line.get("late_since") for line in lines[1:]] == [
        None, {"1": [0]}, None, {"3": [2]}, {"3": [3], "4": [2]}, {"5": [4]}, None,
    ]  # fmt: skip
    for at in (2, 5):
        kept = [line if i != at else line | {"late_since": None} for i, line in enumerate(lines)]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
        assert any("its rounds give only" in problem for problem in recorded(path).problems)
    for wrong, why in (
        ({"2": [0]}, "clients [0] had been seen in round 2 before"), ({"6": [0]}, "6 is no earlier round"),
    ):  # fmt: skip
        kept = [line if i != 6 else line | {"late_since": wrong} for i, line in enumerate(lines)]
        path.write_text("".join(json.dumps(line) + "\n" for line in kept))
        assert any(why in problem for problem in recorded(path).problems)


def test_metrics_are_logged_and_the_page_shows_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def evaluate(current: int, _: Any) -> MetricRecord:
        return MetricRecord({"accuracy": current / 8, "loss": float("nan") if current == 1 else 2.0, "f1": 0.5})

    logged(path, planned(), {}, evaluate_fn=evaluate, num_rounds=3)
    log = RunLog.read(path)
    assert [(line.accuracy, line.loss) for line in log.rounds] == [(0.125, None), (0.25, 2.0), (0.375, 2.0)]
    assert log.outcome.accuracy == 0.375
    assert log.rounds[1].metrics == {"evaluate": {"at": 2.0}, "server": {"accuracy": 0.25, "loss": 2.0, "f1": 0.5}}
    save_runs([log], tmp_path / "run.html")
    assert "FedAvg" in (tmp_path / "run.html").read_text()


def test_a_training_that_ends_early_says_why(tmp_path: Path) -> None:
    strategy, _ = logged(tmp_path / "budget", planned(epsilon=3, rounds=2), {}, num_rounds=9)
    assert strategy.stopped is not None
    assert RunLog.read(tmp_path / "budget").outcome.stopped == "budget"
    grid = LocalGrid(an_app(), 5)
    grid.lose(3, since=2)
    LightDP(FedAvg(), planned(), wait=0.01, log=tmp_path / "void").start(grid, weights(), num_rounds=6, timeout=1)
    assert RunLog.read(tmp_path / "void").outcome.stopped == "members"
    assert recorded(tmp_path / "void").problems == ()


def test_a_log_is_never_overwritten_and_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("kept")
    for wrong in (path, tmp_path / "nowhere" / "run.jsonl"):
        with pytest.raises(ArgumentError, match="log must be a new file in a folder that exists, got log="):
            LightDP(FedAvg(), planned(), wait=0.01, log=wrong)
    assert path.read_text() == "kept"
    path.unlink()
    grid, strategy = LocalGrid(an_app(), 5), LightDP(FedAvg(), planned(), wait=0.01, log=path)
    path.write_text("made since")
    with pytest.raises(ArgumentError, match="log must be a new file in a folder that exists, got log="):
        strategy.start(grid, weights(), timeout=1)
    assert grid.pushed == []
    assert path.read_text() == "made since"


def test_a_log_that_is_interrupted_is_one_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def evaluate(current: int, _: Any) -> None:
        if current == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        logged(path, planned(), {}, evaluate_fn=evaluate)
    found = recorded(path)
    assert found.verdict.startswith("unfinished: what the log says follows from its 2 rounds so far")


def test_a_log_of_several_rosters_holds_and_adds_up_what_a_client_spends(tmp_path: Path) -> None:
    path, grid = tmp_path / "run.jsonl", LocalGrid(an_app(), 7)

    def before(current: int) -> None:
        for node in grid.nodes[:3]:
            node.online = current < 4

    grid.before = before
    plan = planned(clients=3, population=6, stragglers=1, epsilon=50)
    strategy = LightDP(FedAvg(fraction_evaluate=0.0), plan, wait=0.01, patience=2, log=path)
    result = strategy.start(grid=grid, initial_arrays=weights(), num_rounds=12, timeout=1)
    log, found = RunLog.read(path), recorded(path)
    assert found.problems == ()
    assert found.verdict.startswith("holds")
    assert len(log.rosters) > 1
    assert {len(log.rosters[0]), len(log.rosters[1])} == {3, 4}
    assert any(line.closed for line in log.rounds)
    assert [line.used for line in log.rounds] == [
        row["lightdp-used"] for row in result.train_metrics_clientapp.values()
    ]
    assert found.spent == pytest.approx(log.epsilon)
    assert log.outcome.epsilon is not None
    last = result.train_metrics_clientapp[12]["lightdp-epsilon"]
    assert isinstance(last, float)
    assert log.outcome.epsilon <= last * (1 + 1e-9)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[-2]["epsilon"] *= 0.9
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any("its rounds give" in problem for problem in recorded(path).problems)


def test_a_roster_of_another_size_is_audited_with_its_own_plan(tmp_path: Path) -> None:
    path, grid = tmp_path / "run.jsonl", LocalGrid(an_app(), 7)
    grid.faults = FAULTS
    plan = planned(epsilon=50)
    LightDP(FedAvg(fraction_evaluate=0.0), plan, wait=0.01, log=path).start(grid, weights(), num_rounds=6, timeout=1)
    found = recorded(path)
    assert found.problems == ()
    assert found.plan is not None
    assert found.plan.clients == 7


@pytest.mark.parametrize(("fault", "since"), [("drop", None), ("lost", {"3": [2]})])
def test_a_log_goes_on_after_a_crash_and_counts_the_round_that_was_lost(
    fault: Any, since: dict[str, list[int]] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, grid = tmp_path / "run.jsonl", LocalGrid(an_app(), 5)
    for i, node in enumerate(grid.nodes):
        node.config["lightdp-name"] = f"site-{i}"
    grid.faults = {(2, 1): "late", (3, 2): fault}
    real, plan = grid.send_and_receive, planned(epsilon=50)

    def killed(messages: Any, *, timeout: float | None = None) -> Any:
        replies = real(messages, timeout=timeout)
        if grid.round == 4:
            raise SystemExit
        return replies

    def start() -> Any:
        strategy = LightDP(FedAvg(), plan, wait=0.2, log=path, checkpoint=tmp_path / "checkpoint")
        return strategy.start(grid=grid, initial_arrays=weights(), num_rounds=6, timeout=1)

    grid.send_and_receive = killed  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        start()
    grid.send_and_receive = real  # type: ignore[method-assign]
    with caplog.at_level("INFO", "flwr"):
        result = start()
    said = [r.getMessage() for r in caplog.records if "of the log" in r.getMessage()]
    assert said == [
        "lightdp: round 4 of the log was open when the server stopped",
        *(f"lightdp: round {number} is round {number + 1} of the log" for number in (4, 5, 6)),
    ]
    log, found = RunLog.read(path), recorded(path)
    assert found.problems == ()
    assert [(line.used, line.late) for line in log.rounds] == [(5, 0), (4, 0), (4, 0), (0, 5), *[(5, 0)] * 3]
    assert log.rounds[3].late_since == since  # node 2 says in the second key round whether it answered round 3
    assert log.epsilon == pytest.approx(result.train_metrics_clientapp[6]["lightdp-epsilon"])


def test_a_node_that_joins_and_is_in_no_roster_is_a_client_of_the_log(tmp_path: Path) -> None:
    grid = LocalGrid(an_app(), 7)
    grid.nodes[6].online = False

    def join(number: int) -> None:
        grid.nodes[6].online = number >= 3

    grid.before = join
    plan = planned(clients=3, population=6, stragglers=1, epsilon=50)
    strategy = LightDP(FedAvg(), plan, wait=0.05, log=tmp_path / "log")
    strategy.start(grid=grid, initial_arrays=weights(), num_rounds=6, timeout=1)
    log = RunLog.read(tmp_path / "log")
    assert log.ended is not None
    assert log.ended.epsilon_clients is not None
    assert (log.population, len(log.ended.epsilon_clients), log.ended.epsilon_clients[6]) == (7, 7, 0.0)
    assert recorded(tmp_path / "log").problems == ()
    assert min(each["seated"] for each in log.whereabouts(log.rounds)) >= 0
