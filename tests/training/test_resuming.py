"""Runs that stopped: what they leave, and how they go on."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import pkgutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from lightdp.errors import ArgumentError
from lightdp.training.config import Config
from lightdp.training.simulator import Run
from support.toy_runs import QUICK, blobs, played

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.planning import Plan
    from lightdp.runlog import Line, RunLog
    from lightdp.training.data import Dataset


@pytest.fixture
def toy() -> Dataset:
    return blobs()


def lines_of(log: RunLog) -> list[Line]:
    """All but the seconds that it took."""
    return [log.started, *log.rounds, dataclasses.replace(log.outcome, seconds=0.0)]


_GRACE = {"grace": 1, "late_by_one": 0.6, "late_seen": 0.2, "stragglers": 3, "arrivals": "links:0.4"}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"unit": "client", "ema": 0.5},
        {"late_seen": 0.7},
        {"sampling_rate": 0.5},
        _GRACE,
        _GRACE | {"scheme": "exact", "seed": 1},
        _GRACE | {"scheme": "none", "seed": 2},
    ],
)
def test_an_interrupted_run_goes_on_to_the_same_log_bit_by_bit(
    tmp_path: Path, toy: Dataset, changed: dict[str, Any]
) -> None:
    whole = played(tmp_path / "whole.jsonl", toy, **changed)
    path = tmp_path / "cut.jsonl"
    run = Run(Config(**(QUICK | changed)), path, dataset=toy)
    lines = run.lines()
    for _ in range(4):
        next(lines)
    with pytest.raises(KeyboardInterrupt):
        lines.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    resumed = Run(Config(**(QUICK | changed)), path, resume=True, dataset=toy).finish()
    assert resumed.outcome.seconds > 0
    assert lines_of(resumed) == lines_of(whole)
    texts = [file.read_text().splitlines() for file in (path, whole.path)]
    assert texts[0][:-1] == texts[1][:-1]


@pytest.mark.parametrize(
    ("moment", "call", "grace"),
    [
        ("channel._channel.Schedule.left", 4, 0),
        ("clients.Clients.updates", 4, 0),
        ("simulator.Run.evaluate", 4, 0),
        ("roster.Odometer.record", 4, 0),
        ("step.stepped", 4, 0),
        ("watch", 4, 0),
        ("step.mended", 0, 0),
        ("simulator.Run._ended", 0, 0),
        ("channel._channel.Schedule.left", 4, 1),
        ("roster.Odometer.open", 4, 1),
        ("step.mended", 0, 1),
        ("simulator.Run._ended", 0, 1),
    ],
)
def test_an_interrupt_at_any_moment_loses_no_round_that_is_over(  # noqa: PLR0917
    tmp_path: Path, toy: Dataset, moment: str, call: int, grace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {"rounds": 8, "stragglers": 3, "arrivals": "uniform", "late_seen": 0.5, "momentum": 0.9, "lr": 0.01}
    changed |= {"scheme": "repair", "grace": grace, "late_by_one": 0.5 * grace}
    calm = Run(Config(**(QUICK | changed)), tmp_path / "whole.jsonl", dataset=toy)
    whole = calm.finish()
    run = Run(Config(**(QUICK | changed)), tmp_path / "cut.jsonl", dataset=toy)
    calls = iter(range(100))

    def cut(*given: Any, **named: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return None if moment == "watch" else real(*given, **named)

    with monkeypatch.context() as patch:
        if moment != "watch":
            place, _, name = moment.rpartition(".")
            real = getattr(pkgutil.resolve_name(f"lightdp.training.{place}"), name)
            patch.setattr(f"lightdp.training.{moment}", cut)
        with pytest.raises(KeyboardInterrupt):
            list(run.lines(cut if moment == "watch" else lambda _: None))
    assert run.state.round == (call or whole.outcome.rounds)
    again = Run(Config(**(QUICK | changed)), tmp_path / "cut.jsonl", resume=True, dataset=toy)
    assert lines_of(again.finish()) == lines_of(whole)
    assert torch.equal(again.state.average, calm.state.average)


def interrupted(path: Path, toy: Dataset, rounds: int) -> None:
    lines = Run(Config(**QUICK), path, dataset=toy).lines()
    for _ in range(rounds + 1):
        next(lines)
    with pytest.raises(KeyboardInterrupt):
        lines.throw(KeyboardInterrupt)  # type: ignore[attr-defined]


def test_a_run_killed_in_the_middle_of_a_line_goes_on(tmp_path: Path, toy: Dataset) -> None:
    whole = played(tmp_path / "whole.jsonl", toy)
    path = tmp_path / "cut.jsonl"
    interrupted(path, toy, 3)
    with path.open("a") as file:
        file.write('{"kind": "round", "rou')
    resumed = list(Run(Config(**QUICK), path, resume=True, dataset=toy).lines())
    assert resumed[:-1] == list(whole.lines[:-1])
    assert [json.loads(text) for text in path.read_text().splitlines()] == [line.to_dict() for line in resumed]


def test_a_new_run_drops_the_checkpoint_of_the_log_that_it_overwrites(tmp_path: Path, toy: Dataset) -> None:
    """Or, killed at once, it would go on from the end of the other run."""
    path = tmp_path / "run.jsonl"
    played(path, toy)
    lines = Run(Config(**QUICK), path, dataset=toy).lines()
    next(lines)
    with pytest.raises(ArgumentError, match="resume needs the checkpoint"):
        Run(Config(**QUICK), path, resume=True, dataset=toy)


@pytest.mark.parametrize("damage", ["gone", "short", "no JSON", "no objects", "of other rounds"])
def test_resume_refuses_a_log_without_the_rounds_of_its_checkpoint(tmp_path: Path, toy: Dataset, damage: str) -> None:
    path = tmp_path / "run.jsonl"
    interrupted(path, toy, 3)
    lines = path.read_text().splitlines(keepends=True)
    if damage == "gone":
        path.unlink()
    else:
        texts = {"short": lines[:-1], "no JSON": [*lines[:-1], "{\n"], "no objects": ["1\n"] * 4}
        path.write_text("".join(texts.get(damage, [lines[0], *lines[2:], lines[1]])))
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(ArgumentError, match=r"resume needs the log of the 3 rounds of .*run\.jsonl"):
        list(Run(Config(**QUICK), path, resume=True, dataset=toy).lines())
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize("kept", [0, 10, 1000])
def test_resume_refuses_a_damaged_checkpoint(tmp_path: Path, toy: Dataset, kept: int) -> None:
    path = tmp_path / "run.jsonl"
    interrupted(path, toy, 3)
    checkpoint = tmp_path / "run.checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:kept])
    before = path.read_bytes()
    with pytest.raises(ArgumentError, match=r"resume needs a whole checkpoint, got .*run\.checkpoint"):
        list(Run(Config(**QUICK), path, resume=True, dataset=toy).lines())
    assert path.read_bytes() == before


@pytest.mark.parametrize("changed", [{"momentum": 0.9}, _GRACE])
def test_a_run_that_is_over_can_be_resumed_and_stays_as_it_is(
    tmp_path: Path, toy: Dataset, changed: dict[str, Any]
) -> None:
    path = tmp_path / "run.jsonl"
    whole, before = played(path, toy, **changed), path.read_bytes()
    assert Run(Config(**(QUICK | changed)), path, resume=True, dataset=toy).finish() == whole
    assert path.read_bytes() == before


@pytest.mark.parametrize("at", [0, 40, -1])
def test_resume_refuses_a_checkpoint_with_a_bit_flipped(tmp_path: Path, toy: Dataset, at: int) -> None:
    path = tmp_path / "run.jsonl"
    interrupted(path, toy, 3)
    damaged = bytearray(path.with_suffix(".checkpoint").read_bytes())
    damaged[at] ^= 1
    path.with_suffix(".checkpoint").write_bytes(damaged)
    with pytest.raises(ArgumentError, match="resume needs a whole checkpoint"):
        list(Run(Config(**QUICK), path, resume=True, dataset=toy).lines())


def test_resume_refuses_noise_that_another_version_chose(
    tmp_path: Path, toy: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The odometer would count earlier rounds at a σ that they did not have."""
    path = tmp_path / "run.jsonl"
    interrupted(path, toy, 3)
    chosen = Config.plan

    def another(self: Config, *known: int) -> Plan | None:
        plan = chosen(self, *known)
        if plan is None:
            return None
        noise = dataclasses.replace(plan.noise, sigma_individual=1.1 * plan.sigma_individual)
        return dataclasses.replace(plan, noise=noise)

    monkeypatch.setattr(Config, "plan", another)
    with pytest.raises(ArgumentError, match="resume needs the noise of the interrupted run"):
        list(Run(Config(**QUICK), path, resume=True, dataset=toy).lines())


def test_resume_refuses_other_settings_a_missing_checkpoint_and_real_noise(tmp_path: Path, toy: Dataset) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(ArgumentError, match="resume needs the checkpoint"):
        Run(Config(**QUICK), path, resume=True, dataset=toy)
    with pytest.raises(ArgumentError, match="resume needs fidelity='distribution'"):
        Run(Config(**QUICK, fidelity="protocol"), path, resume=True, dataset=toy)
    played(path, toy)
    with pytest.raises(ArgumentError, match=r"resume needs the settings .*: grace was default, got grace=0$"):
        list(Run(Config(**(QUICK | {"grace": 0})), path, resume=True, dataset=toy).lines())
    with pytest.raises(ArgumentError, match=r"resume needs the settings .*: epsilon was 20.0, got epsilon=19.0"):
        list(Run(Config(**(QUICK | {"epsilon": 19.0})), path, resume=True, dataset=toy).lines())


def test_resume_refuses_a_checkpoint_of_a_version_that_laid_it_out_otherwise(tmp_path: Path, toy: Dataset) -> None:
    path = tmp_path / "run.jsonl"
    interrupted(path, toy, 3)
    packed = path.with_suffix(".checkpoint").read_bytes()[32:]
    content = torch.load(io.BytesIO(packed), weights_only=True)
    del content["format"]  # as before there were formats
    changed = io.BytesIO()
    torch.save(content, changed)
    path.with_suffix(".checkpoint").write_bytes(hashlib.sha256(changed.getvalue()).digest() + changed.getvalue())
    with pytest.raises(ArgumentError, match="resume needs a checkpoint of this version"):
        list(Run(Config(**QUICK), path, resume=True, dataset=toy).lines())
