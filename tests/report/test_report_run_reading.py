"""Records of runs: read as written, or refused with file, line and reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from lightdp.errors import ArgumentError
from lightdp.report import Run, read_run
from lightdp.report._run import facts
from lightdp.report._run_charts import panels
from support.run_records import PLAN, Lines, drawn, record, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_record_is_read_as_written(make: Callable[..., Run]) -> None:
    lines, run = record(), make()
    assert [vars(r) | {"kind": "round"} for r in run.rounds] == lines[1:-1]
    assert run.end is not None
    assert vars(run.end) | {"kind": "end", "statement": list(run.end.statement)} == lines[-1]
    assert run.config == lines[0]["config"]
    assert (run.scheme, run.parameters, run.device, run.commit) == ("repair", 650, "cpu", "0123abc")
    assert (run.accuracy, run.epsilon, run.claimed, run.delta) == (
        lines[-1]["accuracy"],
        lines[-1]["epsilon"],
        3.0,
        1e-5,
    )
    assert (run.unit, run.adjacency) == ("record", "add-remove")


def test_a_run_cannot_be_changed(make: Callable[..., Run]) -> None:
    with pytest.raises(AttributeError):
        make().parameters = 3  # type: ignore[misc]


def test_noise_is_the_root_mean_square_of_the_rounds(make: Callable[..., Run]) -> None:
    stds = [line["noise_std"] for line in record()[1:-1]]
    assert make().noise == pytest.approx(math.sqrt(sum(std**2 for std in stds) / len(stds)))


def test_a_residual_that_nobody_repairs_stays(make: Callable[..., Run]) -> None:
    lines = [line | {"noise_std": 3.0, "residual_std": 4.0} if line["kind"] == "round" else line for line in record()]
    repair = make(lines=lines)
    exact = make("exact", lines=[lines[0] | {"plan": PLAN | {"calibration": "exact"}}, *lines[1:]])
    assert (repair.noise, exact.noise) == (3.0, 5.0)
    assert drawn(panels([repair, exact])[2].chart.to_dict())["LightDP exact"][1] == 5.0
    assert list(drawn(panels([repair, exact])[3].chart.to_dict())) == ["LightDP repair"]


def test_without_noise_nothing_is_protected(make: Callable[..., Run]) -> None:
    run = make("none")
    assert (run.scheme, run.epsilon, run.claimed, run.unit, run.adjacency) == ("none", None, None, None, None)
    assert [facts(run)[name] for name in ("ε claimed", "ε true", "δ", "unit")] == ["∞", "∞", "–", "–"]


def test_an_interrupted_run_shows_what_was_recorded_last(make: Callable[..., Run]) -> None:
    run = make(lines=record()[:-1])
    assert run.end is None
    assert run.accuracy == record()[6]["accuracy"]  # round 6 was the last that was evaluated
    assert run.epsilon == record()[7]["epsilon"]
    assert (run.claimed, run.delta, run.unit, run.adjacency) == (3.0, 1e-5, "record", "add-remove")
    assert facts(run)["stopped"] == "no end recorded"


def test_a_run_that_never_played_a_round_is_read(make: Callable[..., Run]) -> None:
    run = make(lines=record()[:1])
    assert (run.rounds, run.end, run.accuracy, run.epsilon, run.noise) == ((), None, None, None, None)


def test_fields_that_are_not_known_yet_are_ignored(make: Callable[..., Run]) -> None:
    lines = [line | {"later": 1} for line in record()]
    assert len(make(lines=lines).rounds) == 7


def changed(place: int, **fields: Any) -> Callable[[Lines], Lines]:
    return lambda lines: [line | fields if i == place else line for i, line in enumerate(lines)]


def without(place: int, field: str) -> Callable[[Lines], Lines]:
    return lambda lines: [
        {key: value for key, value in line.items() if i != place or key != field} for i, line in enumerate(lines)
    ]


BROKEN: dict[str, tuple[Callable[[Lines], Lines], int, str]] = {
    "begins with a round": (lambda lines: lines[1:], 1, "kind must be run, got kind='round'"),
    "begins twice": (lambda lines: [lines[0], *lines], 2, "kind must be round or end, got kind='run'"),
    "gap": (lambda lines: lines[:2] + lines[3:], 3, "round must be 2, the next one, got round=3"),
    "goes on": (lambda lines: [*lines, lines[1]], 10, "nothing may follow the end"),
    "end disagrees": (changed(8, rounds=8), 9, "rounds must be 7, as many as were recorded, got rounds=8"),
    "unknown kind": (changed(3, kind="x"), 4, "kind must be round or end, got kind='x'"),
    "missing": (without(4, "used"), 5, "must have used"),
    "missing in the end": (without(8, "statement"), 9, "must have statement"),
    "no plan": (without(0, "plan"), 1, "must have plan"),
    "text": (changed(2, accuracy="0.5"), 3, "accuracy must be a number, got accuracy='0.5'"),
    "percent": (changed(2, accuracy=62.5), 3, r"accuracy must be in \[0, 1\], got accuracy=62.5"),
    "negative": (changed(2, epsilon=-0.1), 3, "epsilon must be >= 0, got epsilon=-0.1"),
    "bool": (changed(2, used=True), 3, "used must be an integer, got used=True"),
    "fraction": (changed(2, lost=1.5), 3, "lost must be an integer, got lost=1.5"),
    "huge": (changed(2, noise_std=10**400), 3, "too large"),
    "epsilon hidden": (changed(2, epsilon=None), 3, "epsilon must not be null in a run with a plan"),
    "epsilon hidden at the end": (changed(8, epsilon=None), 9, "epsilon must not be null in a run with a plan"),
    "stopped": (changed(8, stopped="x"), 9, "stopped must be one of budget, got stopped='x'"),
    "statement": (changed(8, statement="all is well"), 9, "statement must be a list of sentences"),
    "calibration": (changed(0, plan=PLAN | {"calibration": "magic"}), 1, "plan: calibration must be one of"),
    "plan without delta": (changed(0, plan={"calibration": "exact"}), 1, "plan: must have epsilon_claimed, delta"),
    "counts": (changed(0, partition={"counts": [[1, 2], [3]]}), 1, "counts must be a list of rows of one length"),
    "negative count": (changed(0, partition={"counts": [[1, -2]]}), 1, "counts must be >= 0"),
    "config": (changed(0, config=[]), 1, "config must be an object"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_record_is_refused_with_file_line_and_reason(tmp_path: Path, case: str) -> None:
    breaks, line, reason = BROKEN[case]
    file = written(tmp_path / "broken.jsonl", breaks(record()))
    with pytest.raises(ArgumentError, match=rf"broken[.]jsonl, line {line}: .*{reason}"):
        read_run(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"kind": "rou', "must be JSON.*take this line out"),
        (b'{"kind": NaN}\n', "NaN is not a JSON number"),
        (b"[1]\n", "must be a JSON object, got list"),
        (b"\n", "must be JSON"),
        (b"\xff\n", "must be JSON.*utf-8"),
        (b"[" * 100_000 + b"\n", "must be JSON"),
    ],
)
def test_a_line_that_is_no_object_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    file = written(tmp_path / "run.jsonl", record()[:3])
    file.write_bytes(file.read_bytes() + text)
    with pytest.raises(ArgumentError, match=rf"(?s)run[.]jsonl, line 4: .*{reason}"):
        read_run(file)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    with pytest.raises(ArgumentError, match=r"run[.]jsonl, line 1: .*empty"):
        read_run(tmp_path / "run.jsonl")


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="run must be a readable record, got run="):
        read_run(tmp_path / name)
