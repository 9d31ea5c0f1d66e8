"""How a training with a checkpoint ends: for good, or so that the same command goes on; and what a crash costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord

from lightdp.auditing import recorded
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.federation import Federation, Kept
from lightdp.flower import LightDP
from lightdp.flower import _checkpoint as checkpoints
from lightdp.runlog import RunLog
from support.flower_adders import a_plan, plus
from support.flower_crash import Killed, again, killing, made, named, started
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, trained, weights

KINDS: list[dict[str, Any]] = [{"calibration": "exact"}, {"calibration": "repair"}, {"grace": 1}]


def used(result: Any) -> list[Any]:
    return [row["lightdp-used"] for row in result.train_metrics_clientapp.values()]


def refusals(grid: LocalGrid) -> list[str]:
    return [str(reply.error.reason) for _, reply in grid.left if reply.has_error()]


def federation(strategy: LightDP) -> Federation:
    return strategy._engine.opened.federation


def killed(path: Path, grid: LocalGrid, plan: Any, at: int, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    with monkeypatch.context() as patched:
        killing(grid, at, patched, sent=True)
        with pytest.raises(Killed):
            started(path, grid, plan, **more)
    again(grid)


@pytest.mark.parametrize("settings", KINDS)
def test_a_server_that_is_killed_again_in_its_first_round_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    plan, grid, log = planned(epsilon=200.0, **settings), named(LocalGrid(an_app(), 5)), tmp_path / "log"
    more: dict[str, Any] = {"log": log, "evaluate_fn": lambda t, _: MetricRecord({"loss": float(t)})}
    for at in (3, 4):
        killed(tmp_path / "checkpoint", grid, plan, at, monkeypatch, **more)
        facts, _ = checkpoints.read(tmp_path / "checkpoint")
        assert json.loads(facts["federation"])["announcing"] == [0]  # saved before it was
    strategy, result = started(tmp_path / "checkpoint", grid, plan, **more)
    assert used(result) == [5] * 6
    assert (strategy.stopped, refusals(grid)) == (None, [])
    lines = RunLog.read(log).rounds
    assert (len(lines), lines[0].loss, lines[-1].loss) == (6 + 2, 1.0, 6.0)
    assert recorded(log).problems == ()


def test_a_key_round_that_fails_costs_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, grid, path = planned(epsilon=200.0), named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint"
    killed(path, grid, plan, 3, monkeypatch)
    for online in (False, False, True):
        for node in grid.nodes:
            node.online = online
        if not online:
            with pytest.raises(ProtocolError, match="0 of at least 3 clients enrolled"):
                started(path, grid, plan)
    strategy, _ = started(path, grid, plan)
    assert federation(strategy).rosters[0].rounds.count == 6 + 1


def test_a_training_whose_nodes_were_all_away_goes_on_when_they_are_back(tmp_path: Path) -> None:
    grid, path, log = named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint", tmp_path / "log"

    def online(here: bool) -> None:
        for node in grid.nodes:
            node.online = here

    grid.before = lambda t: online(here=t < 3)
    strategy, result = started(path, grid, planned(epsilon=200.0), num_rounds=8, log=log)
    assert strategy.stopped is not None
    assert result.train_metrics_clientapp[5]["lightdp-stopped"] == 1
    assert RunLog.read(log).outcome.stopped == "members"
    grid.before = lambda _: None
    online(here=True)
    again(grid)
    strategy, result = started(path, grid, planned(epsilon=200.0), num_rounds=8, log=log)
    assert strategy.stopped is None
    assert used(result) == [5, 5, 0, 0, 0, 5, 5, 5]
    assert [row.get("lightdp-stopped") for row in result.train_metrics_clientapp.values()] == [None] * 7 + [0]
    assert RunLog.read(log).outcome.stopped is None
    assert recorded(log).problems == ()


def test_after_void_rounds_the_same_roster_goes_on(tmp_path: Path) -> None:
    """No client missed three rounds in a row, so the roster is not closed."""
    grid, path = named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint"
    away = {1: (4,), 2: (0, 1, 2), 3: (0, 3, 4), 4: (1, 2, 3)}
    grid.faults = {(t, node): "drop" for t, nodes in away.items() for node in nodes}
    strategy, _ = started(path, grid, planned(epsilon=200.0))
    assert strategy.stopped == "3 rounds in a row were void: fewer than 3 uploads came"
    again(grid)
    strategy, result = started(path, grid, planned(epsilon=200.0))
    assert used(result) == [4, 0, 0, 0, 5, 5]
    assert list(federation(strategy).rosters) == [0]


@pytest.mark.parametrize("kept", [False, True])
def test_start_raises_with_the_reason_that_all_nodes_give_and_keeps_what_was_trained(
    tmp_path: Path, kept: bool
) -> None:
    grid, path = named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint"

    def allow(most: float) -> None:
        for node in grid.nodes:
            node.config["lightdp-max-epsilon"] = most

    grid.before = lambda t: allow(1.0 if t >= 3 else 1e9)
    strategy = made(path if kept else None, planned(epsilon=200.0))
    with pytest.raises(ProtocolError, match=r"every node refuses: .* above lightdp-max-epsilon=1"):
        strategy.start(grid=grid, initial_arrays=weights(), num_rounds=6, timeout=1)
    assert used(strategy.result) == [5, 5, 0]
    assert strategy.result.arrays["w"].numpy().tolist() != weights()["w"].numpy().tolist()
    if kept:
        grid.before = lambda _: allow(1e9)
        allow(1e9)
        again(grid)
        assert used(started(path, grid, planned(epsilon=200.0))[1]) == [5, 5, 0, 5, 5, 5]


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("lightdp/protocol: round 3 was answered, or is over", None),  # the next one may do
        ("lightdp/budget: the round could take this client over its budget", None),
        ("lightdp/protocol: the plan's epsilon=200 is above lightdp-max-epsilon=1", "refused"),
    ],
)
def test_a_refusal_of_one_round_does_not_end_a_training(reason: str, ending: str | None) -> None:
    strategy, _ = trained(LocalGrid(an_app(), 5), planned(), num_rounds=1)
    run = strategy._engine.opened
    run._reasons = dict.fromkeys(run._everyone, reason)
    found = run.ending(3)
    assert (None if found is None else found[0]) == ending


def test_an_empty_budget_ends_a_training_for_good(tmp_path: Path) -> None:
    grid, path, plan = named(LocalGrid(plus(1.0), 3)), tmp_path / "checkpoint", a_plan(rounds=2, calibration="exact")
    zero = ArrayRecord([np.zeros(5)])
    strategy, result = started(path, grid, plan, initial_arrays=zero, num_rounds=5)
    assert strategy.stopped is not None
    assert "the budget is used up" in strategy.stopped
    again(grid)
    pushed = list(grid.pushed)
    second, twice = started(path, grid, plan, initial_arrays=zero, num_rounds=5)
    assert (grid.pushed, second.stopped, used(twice)) == (pushed, strategy.stopped, used(result))


def test_one_server_at_a_time_uses_a_checkpoint(tmp_path: Path) -> None:
    grid, path = named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint"

    def second(t: int, _: ArrayRecord) -> None:
        if t == 2:
            with pytest.raises(ArgumentError, match="checkpoint must be of one server at a time, got checkpoint="):
                started(path, grid, planned())

    _, result = started(path, grid, planned(), evaluate_fn=second)
    assert used(result) == [5] * 6
    with pytest.raises(ArgumentError, match="in a folder that exists"):
        started(tmp_path / "nowhere" / "checkpoint", grid, planned())


def test_a_checkpoint_of_other_trained_arrays_is_refused(tmp_path: Path) -> None:
    grid, path = named(LocalGrid(plus(1.0), 3)), tmp_path / "checkpoint"
    both = ArrayRecord({name: Array(np.zeros(4)) for name in ("body", "head")})
    started(path, grid, a_plan(), initial_arrays=both, trained=["body"])
    assert (checkpoints.read(path)[0]["trained"], checkpoints.read(path)[0]["length"]) == (["body"], 4)
    with pytest.raises(ArgumentError, match=r"its trained is \['body'\], not \['head'\]"):
        started(path, grid, a_plan(), initial_arrays=both, trained=["head"])


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("settings", KINDS)
def test_after_a_crash_the_server_counts_uploads_that_were_asked_for_and_had_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], lost: bool
) -> None:
    """Node 1's upload of round 2 comes when the server is already dead, or never."""
    plan, grid, log = planned(epsilon=200.0, **settings), named(LocalGrid(an_app(), 5)), tmp_path / "log"
    grid.faults = {(2, 1): "lost" if lost else "later" if plan.grace else "late"}
    killed(tmp_path / "checkpoint", grid, plan, 5 if lost else 3 + plan.grace, monkeypatch, log=log)
    strategy, _ = started(tmp_path / "checkpoint", grid, plan, log=log)
    spent = federation(strategy).mu()
    assert spent["site-1"] >= spent["site-0"] == spent["site-2"]
    if not plan.repairs:
        state = Path(str(grid.nodes[1].config["lightdp-state"])) / "site-1.json"
        assert spent["site-1"] == pytest.approx(Kept.read(state).mu, rel=1e-9)
    found, run = recorded(log), RunLog.read(log)
    assert found.problems == ()
    assert max(spent.values()) == pytest.approx(run.outcome.mu, rel=1e-6)
