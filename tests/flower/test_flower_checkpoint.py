"""`LightDP(..., checkpoint=PATH)`: a server that is killed at any moment, and goes on with the same command."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from lightdp.errors import ArgumentError
from lightdp.federation import Kept
from lightdp.flower import _checkpoint as checkpoints
from support.flower_adders import a_plan, plus
from support.flower_crash import Killed, again, killing, named, started
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, step, weights


@pytest.mark.parametrize(("at", "sent"), [(1, False), (3, True), (6, False), (7, True)])
@pytest.mark.parametrize("settings", [{"calibration": "exact"}, {"calibration": "repair"}, {"grace": 1}])
def test_a_killed_server_goes_on_and_every_round_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], at: int, sent: bool
) -> None:
    plan = planned(epsilon=200.0, **settings)
    grid, path = named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint"
    grid.faults = {(6, 1): "drop"}  # so that there is something to close
    with monkeypatch.context() as patched:
        killing(grid, at, patched, sent=sent)
        with suppress(Killed):  # without repair there is no closing round to be killed in
            started(path, grid, plan)
    again(grid)
    strategy, result = started(path, grid, plan)
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]
    assert strategy.stopped is None
    used = [row["lightdp-used"] for row in result.train_metrics_clientapp.values()]
    total = sum(step(i, 40) for i in range(5)) * sum(each == 5 for each in used) / 5
    total = total + sum(step(i, 40) for i in range(5) if i != 1) * sum(each == 4 for each in used) / 5
    change = result.arrays["w"].numpy() - weights()["w"].numpy()
    assert change == pytest.approx(total, abs=12 * (6 * plan.noise_in_mean()) ** 0.5)
    assert [str(reply.error.reason) for _, reply in grid.left if reply.has_error()] == []  # no round twice


@pytest.mark.parametrize(("grace", "kept", "sent"), [(0, True, True), (1, True, False), (1, False, True)])
def test_after_a_crash_the_ledger_of_every_node_is_the_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace: int, kept: bool, sent: bool
) -> None:
    plan, path = planned(epsilon=200.0, calibration="exact", grace=grace), tmp_path / "checkpoint" if kept else None
    grid = named(LocalGrid(an_app(), 5))
    grid.faults = {(1, 3): "drop", (2, 1): "drop", (3, 2): "lost", (4, 0): "drop", (5, 4): "crash"}
    with monkeypatch.context() as patched:
        killing(grid, 5, patched, sent=sent)
        with pytest.raises(Killed):
            started(path, grid, plan)
    again(grid)
    strategy, _ = started(path, grid, plan)
    folder = Path(str(grid.nodes[0].config["lightdp-state"]))
    own = {f"site-{i}": Kept.read(folder / f"site-{i}.json") for i in range(5)}
    assert strategy._engine.opened.federation.mu() == pytest.approx({name: each.mu for name, each in own.items()})
    missed = [1, 1, 0, 1, 0] if kept else [0] * 5  # a new training has no faults
    assert [each.answered for each in own.values()] == [6 + (kept and sent) - each for each in missed]


def test_of_rosters_that_take_turns_the_one_whose_turn_it_was_has_a_void_round_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, grid = planned(epsilon=200.0, grace=1, population=15), named(LocalGrid(an_app(), 15))
    with monkeypatch.context() as patched:
        killing(grid, 4, patched, sent=False)
        with pytest.raises(Killed):
            started(tmp_path / "checkpoint", grid, plan, num_rounds=9)
    again(grid)
    strategy, result = started(tmp_path / "checkpoint", grid, plan, num_rounds=9)
    assert strategy.stopped is None
    assert [row["lightdp-used"] for row in result.train_metrics_clientapp.values()] == [5] * 9
    rosters = strategy._engine.opened.federation.rosters
    assert [rosters[number].rounds.count for number in range(3)] == [4, 3, 3]


def test_momentum_goes_on_as_if_nothing_had_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for at in (None, 4):
        grid, path = named(LocalGrid(plus(1.0), 3)), tmp_path / f"checkpoint-{at}"
        plan, inner = a_plan(rounds=12), FedAvgM(server_momentum=0.5, fraction_evaluate=0.0)
        zero = ArrayRecord([np.zeros(5)])
        if at is not None:
            with monkeypatch.context() as patched:
                killing(grid, at, patched, sent=False)
                with pytest.raises(Killed):
                    started(path, grid, plan, inner, initial_arrays=zero)
            again(grid)
            inner = FedAvgM(server_momentum=0.5, fraction_evaluate=0.0)
        _, result = started(path, grid, plan, inner, initial_arrays=zero)
        found.append(result.arrays["0"].numpy() if "0" in result.arrays else next(iter(result.arrays.values())).numpy())
    assert found[0] == pytest.approx(found[1], abs=0.3)
    assert found[0][0] == pytest.approx(sum(2 - 0.5**t for t in range(6)), abs=0.3)


@pytest.mark.parametrize("inner", [FedAvgM(server_momentum=0.9), FedAdam()])
def test_the_state_of_a_strategy_is_kept_bit_by_bit(inner: Any) -> None:
    fresh = type(inner)(**({"server_momentum": 0.9} if isinstance(inner, FedAvgM) else {}))
    kept, loaded = checkpoints.State(inner), checkpoints.State(fresh)
    inner.momentum_vector = [np.arange(3.0), np.array([1.5], np.float32)]
    inner.m_t, inner.current_arrays = {"a": np.eye(2)}, ArrayRecord([np.ones(2)])
    inner.rounds_seen, inner.single = 7, np.array(2.5)
    loaded.load(*kept.facts())
    assert [each.tolist() for each in fresh.momentum_vector] == [[0, 1, 2], [1.5]]
    assert fresh.momentum_vector[1].dtype == np.float32
    assert fresh.m_t["a"].tolist() == np.eye(2).tolist()
    assert [each.numpy().tolist() for each in fresh.current_arrays.values()] == [[1, 1]]
    assert (fresh.rounds_seen, float(fresh.single)) == (7, 2.5)


def test_state_that_a_checkpoint_cannot_keep_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Remembers(FedAvg):
        def __init__(self) -> None:
            super().__init__(fraction_evaluate=0.0)
            self.losses: list[float] = []
            self.names, self.rule, self.count, self.mean = {"a": 1}, lambda: 0, 0, np.zeros(1)

        def configure_train(self, *arguments: Any, **more: Any) -> Any:
            self.losses.append(0.5)
            self.count, self.mean = self.count + 1, self.mean + 1
            return super().configure_train(*arguments, **more)

    started(tmp_path / "checkpoint", named(LocalGrid(an_app(), 5)), planned(), Remembers(), linear=True, num_rounds=3)
    said = [record.getMessage() for record in caplog.records if "the checkpoint keeps" in record.getMessage()]
    assert len(said) == 1
    assert "but not Remembers.losses, which has changed" in said[0]


def test_a_training_that_has_ended_is_not_trained_again(tmp_path: Path) -> None:
    grid, path = named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint"
    evaluate = lambda t, _: MetricRecord({"t": float(t)})  # noqa: E731
    _, first = started(path, grid, planned(), evaluate_fn=evaluate)
    again(grid)
    pushed = list(grid.pushed)
    _, second = started(path, grid, planned(), evaluate_fn=evaluate)
    assert grid.pushed == pushed
    assert second.arrays["w"].numpy().tolist() == first.arrays["w"].numpy().tolist()
    for rows in ("train_metrics_clientapp", "evaluate_metrics_serverapp"):
        assert {t: dict(row) for t, row in getattr(second, rows).items()} == {
            t: dict(row) for t, row in getattr(first, rows).items()
        }


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"plan": planned(epsilon=9.0)}, "its plan is"),
        ({"initial_arrays": weights(41)}, "its model is"),
        ({"num_rounds": 7}, "its num_rounds is 6, not 7"),
        ({"inner": FedAvgM()}, "its strategy is 'FedAvg', not 'FedAvgM'"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused_and_kept(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    grid, path = named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint"
    started(path, grid, planned())
    kept = path.read_bytes()
    with pytest.raises(ArgumentError, match=why):
        started(path, grid, **({"plan": planned()} | changed))
    assert path.read_bytes() == kept


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda _: b"", lambda data: data[:40] + b"x" + data[41:]])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: Any) -> None:
    grid, path = named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint"
    started(path, grid, planned())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ArgumentError, match="checkpoint must be a whole checkpoint, got checkpoint="):
        started(path, grid, planned())


def test_an_interrupt_loses_nothing(tmp_path: Path) -> None:
    grid, path = named(LocalGrid(an_app(), 5)), tmp_path / "checkpoint"

    def interrupted(t: int, _: ArrayRecord) -> None:
        if t == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        started(path, grid, planned(), evaluate_fn=interrupted)
    again(grid)
    _, result = started(path, grid, planned())
    assert [row["lightdp-used"] for row in result.train_metrics_clientapp.values()] == [5] * 6
    assert result.train_metrics_clientapp[6]["lightdp-late"] == 0
