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
from lightdp.runlog import RunLog
from lightdp.training.config import Config
from lightdp.training.data import load
from lightdp.training.simulator import Run
from support.toy_runs import QUICK, blobs, played

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.planning import Plan
    from lightdp.runlog import Line
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


class Killed(BaseException):
    """As SIGKILL: nothing is saved on the way out."""


@pytest.mark.parametrize("changed", [{}, {"population": 20, "churn": "0.05:0.2", "least": 5}])
@pytest.mark.parametrize(
    ("moment", "call"),
    [
        ("checkpoint.durable", 0),
        ("simulator.LogWriter", 0),
        ("simulator.LogWriter.write", 0),
        ("step.stepped", 0),
        ("simulator.LogWriter.write", 4),
    ],
)
def test_a_run_that_is_killed_before_its_first_checkpoint_goes_on_or_left_nothing(  # noqa: PLR0917
    tmp_path: Path, toy: Dataset, moment: str, call: int, changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path, calls = Config(**(QUICK | changed)), tmp_path / "cut.jsonl", iter(range(100))
    whole = Run(config, tmp_path / "whole.jsonl", dataset=toy).finish()

    def cut(*given: Any, **named: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return real(*given, **named)

    with monkeypatch.context() as patch:
        place, _, name = moment.rpartition(".")
        real = getattr(pkgutil.resolve_name(f"lightdp.training.{place}"), name)
        patch.setattr(f"lightdp.training.{moment}", cut)
        with pytest.raises(Killed):
            Run(config, path, dataset=toy).finish()
    left = {file.name for file in tmp_path.iterdir() if file.name.startswith("cut")}
    if left:
        with pytest.raises(ArgumentError, match="path must be new: it is of an interrupted run; --resume goes on"):
            Run(config, path, dataset=toy)
        assert left == {file.name for file in tmp_path.iterdir() if file.name.startswith("cut")}
    assert (left == set()) == (moment == "checkpoint.durable")
    assert lines_of(Run(config, path, resume=bool(left), dataset=toy).finish()) == lines_of(whole)


def test_the_first_line_of_a_log_that_was_cut_in_half_is_written_anew(tmp_path: Path, toy: Dataset) -> None:
    whole, path = played(tmp_path / "whole.jsonl", toy), tmp_path / "cut.jsonl"
    interrupted(path, toy, 0)
    path.write_bytes(path.read_bytes()[:100])
    assert lines_of(Run(Config(**QUICK), path, resume=True, dataset=toy).finish()) == lines_of(whole)


@pytest.mark.parametrize("left", ["finished", "interrupted", "checkpoint", "notes"])
def test_a_run_overwrites_nothing_unless_told(tmp_path: Path, toy: Dataset, left: str) -> None:
    path = tmp_path / "run.jsonl"
    if left in {"finished", "checkpoint"}:
        played(path, toy)
    elif left == "interrupted":
        interrupted(path, toy, 3)
    else:
        path.write_text("my notes")
    if left == "checkpoint":
        path.unlink()
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ArgumentError, match=r"path must be new: .*--overwrite starts anew, got path='.*run\.jsonl'"):
        Run(Config(**QUICK), path, dataset=toy)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    log = Run(Config(**QUICK), path, overwrite=True, dataset=toy).finish()
    assert lines_of(log) == lines_of(played(tmp_path / "new.jsonl", toy))


def test_of_two_runs_that_begin_at_once_one_overwrites_nothing(tmp_path: Path, toy: Dataset) -> None:
    path = tmp_path / "run.jsonl"
    first, second = (Run(Config(**QUICK), path, dataset=toy) for _ in range(2))
    log = first.finish()
    with pytest.raises(ArgumentError, match="path must be new"):
        second.finish()
    assert log == RunLog.read(path)


# what is trained, on what and from where


def net(seed: int, hidden: int = 3) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 2))


class Net(torch.nn.Sequential):  # type: ignore[misc]  # torch is untyped here
    """Another class with the same parameters."""


def other_labels(toy: Dataset) -> Dataset:
    labels = toy.train_y.copy()
    labels[7] = 1 - labels[7]
    return dataclasses.replace(toy, train_y=labels)


def test_resume_takes_the_same_data_and_module_under_other_names_and_weights(tmp_path: Path, toy: Dataset) -> None:
    path, config = tmp_path / "run.jsonl", Config(**QUICK)
    whole = Run(config, tmp_path / "whole.jsonl", dataset=toy, module=net(0)).finish()
    lines = Run(config, path, dataset=toy, module=net(0)).lines()
    for _ in range(3):
        next(lines)
    lines.close()  # type: ignore[attr-defined]
    renamed = dataclasses.replace(toy, name="other", train_x=toy.train_x.copy())
    resumed = Run(config, path, resume=True, dataset=renamed, module=net(1)).finish()
    assert lines_of(resumed) == lines_of(whole)
    assert resumed.data == "toy"
    assert resumed.model == "torch.nn.modules.container.Sequential"


def test_what_is_said_of_a_table_beside_its_arrays_makes_no_other_data(tmp_path: Path) -> None:
    path, heart = tmp_path / "run.jsonl", load("heart")
    assert heart.schema is not None
    plain = dataclasses.replace(heart, encoded=None)  # as the checkpoint of an earlier version knows it
    lines = Run(Config(**QUICK), path, dataset=plain).lines()
    next(lines)
    lines.close()  # type: ignore[attr-defined]
    assert Run(Config(**QUICK), path, resume=True, dataset=heart).finish().ended is not None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("data", r"resume needs the dataset of the interrupted run, which was toy \(\w{12}\), got toy \(\w{12}\)$"),
        ("test data", "resume needs the dataset of the interrupted run"),
        ("shape", "resume needs the module of the interrupted run, which was torch.nn.modules.container.Sequential"),
        ("class", r"resume needs the module .*, got .*Net \(\w{12}\)$"),
        ("buffer", "resume needs the module of the interrupted run"),
        ("built in", r"resume needs the module .*, got linear \(\w{12}\)$"),
        ("start", r"resume needs the start of the interrupted run, which was none, got .*start.pt \(\w{12}\)$"),
    ],
)
def test_resume_refuses_another_data_set_module_or_start(
    tmp_path: Path, toy: Dataset, changed: str, message: str
) -> None:
    path, config = tmp_path / "run.jsonl", Config(**QUICK)
    lines = Run(config, path, dataset=toy, module=net(0)).lines()
    next(lines)
    lines.close()  # type: ignore[attr-defined]
    module: torch.nn.Module | None = net(0)
    if changed == "data":
        toy = other_labels(toy)
    elif changed == "test data":
        toy = dataclasses.replace(toy, test_x=toy.test_x + 1)
    elif changed == "shape":
        module = net(0, hidden=4)
    elif changed == "class":
        module = Net(*net(0))
    elif changed == "buffer":
        module = net(0)
        module.register_buffer("scale", torch.ones(1))
    elif changed == "built in":
        module = None
    else:
        torch.save(net(1).state_dict(), tmp_path / "start.pt")
        config = dataclasses.replace(config, start=str(tmp_path / "start.pt"))
    before = path.read_bytes()
    with pytest.raises(ArgumentError, match=message):
        Run(config, path, resume=True, dataset=toy, module=module).finish()
    assert path.read_bytes() == before


def test_resume_takes_a_start_of_the_same_bytes_from_elsewhere_and_no_other(tmp_path: Path, toy: Dataset) -> None:
    path, one, two = tmp_path / "run.jsonl", tmp_path / "one.pt", tmp_path / "two.pt"
    torch.save(net(1).state_dict(), one)
    two.write_bytes(one.read_bytes())
    config = Config(**QUICK, start=str(one))
    lines = Run(config, path, dataset=toy, module=net(0)).lines()
    next(lines)
    lines.close()  # type: ignore[attr-defined]
    torch.save(net(2).state_dict(), one)
    with pytest.raises(ArgumentError, match=r"resume needs the start .*one.pt .*, got .*one.pt"):
        Run(config, path, resume=True, dataset=toy, module=net(0)).finish()
    with pytest.raises(ArgumentError, match=r"resume needs the start .*one.pt .*, got none"):
        Run(dataclasses.replace(config, start=None), path, resume=True, dataset=toy, module=net(0)).finish()
    moved = dataclasses.replace(config, start=str(two))
    assert Run(moved, path, resume=True, dataset=toy, module=net(0)).finish().ended is not None


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
    played(path, toy, seed=1)
    lines = Run(Config(**QUICK), path, overwrite=True, dataset=toy).lines()
    next(lines)
    lines.close()  # type: ignore[attr-defined]
    resumed = Run(Config(**QUICK), path, resume=True, dataset=toy).finish()
    assert lines_of(resumed) == lines_of(played(tmp_path / "whole.jsonl", toy))


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


def test_a_checkpoint_from_before_there_were_drawn_masks_goes_on_with_gaussian_ones(
    tmp_path: Path, toy: Dataset
) -> None:
    settings = QUICK | {"scheme": "repair", "epsilon": 8.0}
    whole = played(tmp_path / "whole.jsonl", toy, **settings, masks="gaussian")
    path = tmp_path / "run.jsonl"
    lines = Run(Config(**settings, masks="gaussian"), path, dataset=toy).lines()
    for _ in range(4):
        next(lines)
    with pytest.raises(KeyboardInterrupt):
        lines.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    checkpoint = path.with_suffix(".checkpoint")
    content = torch.load(io.BytesIO(checkpoint.read_bytes()[32:]), weights_only=True)
    del content["config"]["masks"]
    packed = io.BytesIO()
    torch.save(content, packed)
    checkpoint.write_bytes(hashlib.sha256(packed.getvalue()).digest() + packed.getvalue())
    with pytest.raises(ArgumentError, match=r"the noise of the interrupted run.*masks='gaussian' alone"):
        Run(Config(**settings, masks="drawn"), path, resume=True, dataset=toy).finish()
    resumed = Run(Config(**settings, masks="gaussian"), path, resume=True, dataset=toy).finish()
    assert lines_of(resumed) == lines_of(whole)
