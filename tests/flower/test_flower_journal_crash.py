"""The run log of a training whose server is killed, or whose rosters end, says what the server counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from lightdp.auditing import recorded
from lightdp.flower import LightDP
from lightdp.runlog import RunLog
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, weights


class KilledError(BaseException):
    """The server is killed."""


def a_grid(clients: int) -> LocalGrid:
    grid = LocalGrid(an_app(), clients)
    for i, node in enumerate(grid.nodes):
        node.config["lightdp-name"] = f"site-{i}"
    return grid


def kill(grid: LocalGrid, at: int, *, before: bool = False) -> None:
    """Have the server killed once, before a round's messages are sent or after its replies came."""
    real, alive = grid.send_and_receive, [True]

    def killed(messages: Any, *, timeout: float | None = None) -> Any:
        replies = [] if before and grid.round + 1 == at and alive else real(messages, timeout=timeout)
        if alive and grid.round + (before and not replies) == at:
            alive.clear()
            raise KilledError
        return replies

    grid.send_and_receive = killed  # type: ignore[method-assign]


def started(grid: LocalGrid, plan: Any, folder: Path, **more: Any) -> Any:
    strategy = LightDP(
        FedAvg(fraction_evaluate=0.0), plan, wait=0.05, patience=2, least=3, checkpoint=folder / "checkpoint",
        log=folder / "run.jsonl",
    )  # fmt: skip
    return strategy.start(grid=grid, initial_arrays=weights(), **{"num_rounds": 6, "timeout": 0.3} | more)


def checked(folder: Path, result: Any) -> RunLog:
    """The log, which holds and ends with what the server counts."""
    log, found = RunLog.read(folder / "run.jsonl"), recorded(folder / "run.jsonl")
    rows = result.train_metrics_clientapp
    assert found.problems == ()
    assert found.verdict.startswith("holds")
    assert log.outcome.epsilon == pytest.approx(rows[max(rows)]["lightdp-epsilon"], rel=1e-9)
    return log


def replaced(grid: LocalGrid) -> Any:
    """A plan with which roster 0 loses too many after round 4, and its other members form roster 1."""
    grid.faults = {(t, i): "drop" for t in (3, 4) for i in (0, 1)}
    return planned(clients=3, stragglers=1, colluders=0, epsilon=1e3)


def test_a_server_killed_in_the_closing_round_logs_every_round_before_the_end(tmp_path: Path) -> None:
    grid, plan = a_grid(5), planned(stragglers=1)
    grid.faults[6, 3] = "drop"  # leaves something for the closing round
    kill(grid, 7, before=True)
    with pytest.raises(KilledError):
        started(grid, plan, tmp_path)
    log = checked(tmp_path, started(grid, plan, tmp_path))
    assert [(line.used, line.late) for line in log.rounds] == [
        *[(5, 0)] * 5,
        (4, 0),
        (0, 0),
    ]  # nodes say that they were not asked
    assert log.outcome.rounds == 7


def test_a_roster_is_closed_in_the_log_before_its_members_form_another(tmp_path: Path) -> None:
    grid = a_grid(5)
    log = checked(tmp_path, started(grid, replaced(grid), tmp_path, num_rounds=7))
    changes = [(line.roster, line.closed, [each["roster"] for each in line.formed or ()]) for line in log.rounds]
    assert changes == [(0, [], [0]), *[(0, [], [])] * 3, (1, [{"roster": 0}], [1]), *[(1, [], [])] * 2]


@pytest.mark.parametrize("grace", [0, 1])
@pytest.mark.parametrize("at", [5, 6, 7, 8])
def test_a_log_goes_on_after_a_roster_was_replaced(tmp_path: Path, at: int, grace: int) -> None:
    grid = a_grid(5)
    replaced(grid)
    plan = planned(clients=3, stragglers=1, colluders=0, epsilon=1e3, grace=grace)
    kill(grid, at)
    with pytest.raises(KilledError):
        started(grid, plan, tmp_path, num_rounds=8)
    log = checked(tmp_path, started(grid, plan, tmp_path, num_rounds=8))
    assert {line.roster for line in log.rounds} == {0, 1}


def test_a_server_killed_before_the_last_line_of_a_roster_that_has_ended_writes_it_later(tmp_path: Path) -> None:
    grid = a_grid(5)
    plan = replaced(grid)
    dead: list[int] = []

    def evaluate(current: int, _: Any) -> MetricRecord:
        if current == 4 and not dead:  # roster 0 has ended, and the line of its last round is not written yet
            dead.append(current)
            raise KilledError
        return MetricRecord({"accuracy": 0.5})

    with pytest.raises(KilledError):
        started(grid, plan, tmp_path, evaluate_fn=evaluate)
    log = checked(tmp_path, started(grid, plan, tmp_path, evaluate_fn=evaluate))
    assert [line.roster for line in log.rounds][:5] == [0, 0, 0, 0, 1]
    assert log.rounds[4].closed == [{"roster": 0}]


def test_a_crash_loses_no_evaluation_of_a_round_that_was_over(tmp_path: Path) -> None:
    grid, plan = a_grid(5), planned(epsilon=50)
    kill(grid, 4)
    options = {"evaluate_fn": lambda current, _: MetricRecord({"accuracy": current / 8})}
    with pytest.raises(KilledError):
        started(grid, plan, tmp_path, **options)
    result = started(grid, plan, tmp_path, **options)
    assert sorted(result.evaluate_metrics_serverapp) == list(range(7))
    accuracy = [line.accuracy for line in checked(tmp_path, result).rounds]
    assert accuracy == [0.125, 0.25, 0.375, None, 0.5, 0.625, 0.75]  # round 4 was lost, and played again


def test_a_roster_that_ends_without_a_line_after_it_counts_at_its_worst(tmp_path: Path) -> None:
    grid, plan = a_grid(5), planned(stragglers=1, epsilon=50, calibration="repair")

    def before(current: int) -> None:
        for node in grid.nodes[:3]:
            node.online = current < 4

    grid.before = before
    log = checked(tmp_path, started(grid, plan, tmp_path))
    assert log.outcome.stopped == "members"
    assert log.outcome.closed == [{"roster": 0, "early": True}]
    assert log.rounds[-1].epsilon is not None
    assert log.outcome.epsilon is not None
    assert log.outcome.epsilon > log.rounds[-1].epsilon * 1.01


def test_a_round_that_is_open_at_an_early_end_is_counted_at_its_worst(tmp_path: Path) -> None:
    grid, plan = a_grid(5), planned(stragglers=1, epsilon=1e3, grace=1)
    for t, clients in {3: (0, 1), 4: (2, 3), 5: (0, 1)}.items():  # too few uploads, but nobody is gone
        grid.faults |= dict.fromkeys([(t, i) for i in clients], "drop")
    log = checked(tmp_path, started(grid, plan, tmp_path))
    assert log.outcome.stopped == "void"
    assert log.outcome.closed == [{"roster": 0, "joined_clients": [], "open": True}]
    assert log.rounds[-1].epsilon is not None
    path = tmp_path / "run.jsonl"
    lines = path.read_text().splitlines()
    last = json.loads(lines[-1])
    path.write_text("\n".join([*lines[:-1], json.dumps(last | {"epsilon": log.rounds[-1].epsilon * 0.99})]) + "\n")
    assert any("its rounds give" in problem for problem in recorded(path).problems)
