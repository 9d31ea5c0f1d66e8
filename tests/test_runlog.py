"""Logs of runs: written and read by one format, or refused with file, line and reason."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightdp.errors import ArgumentError
from lightdp.report._figures import facts
from lightdp.report._panels import panels
from lightdp.runlog import (
    CALIBRATIONS,
    ContradictionError,
    Ended,
    LogWriter,
    ResumeError,
    Round,
    RunLog,
    Started,
    claimed_epsilon,
    schema,
)
from support.run_logs import PLAN, Lines, drawn, logged, written

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_log_is_read_as_written(make: Callable[..., RunLog]) -> None:
    lines, run = logged(), make()
    rosters = ("roster", "formed", "closed", "away_clients", "waiting_clients", "spent_clients")
    absent = dict.fromkeys(("joined", "joined_clients", "late_since", "metrics", *rosters))
    assert [vars(line) | {"kind": "round"} for line in run.rounds] == [line | absent for line in lines[1:-1]]
    assert run.ended is not None
    assert run.ended.to_dict() == lines[-1]
    assert run.started.to_dict() == lines[0] | {"network": None}
    assert (run.scheme, run.started.parameters, run.started.device, run.started.commit) == (
        "repair",
        650,
        "cpu",
        "0123abc",
    )
    assert (run.accuracy, run.epsilon, run.claimed, run.delta) == (
        lines[-1]["accuracy"],
        lines[-1]["epsilon"],
        3.0,
        1e-5,
    )
    assert (run.unit, run.adjacency) == ("record", "add-remove")


def test_under_grace_a_line_says_who_was_late_to_the_round_before(make: Callable[..., RunLog]) -> None:
    lines = logged(rounds=3)
    for line, joined in zip(lines[1:], ([], [], [0], []), strict=True):
        line |= {"joined": len(joined), "joined_clients": joined}
    log = make(lines=lines)
    assert log.grace
    assert [log.late_by_one(line) for line in log.rounds] == [0, 1, 0]
    assert [line.to_dict()["joined"] for line in (*log.rounds, log.outcome)] == [0, 0, 1, 0]
    cut = make(lines=lines[:3])
    assert [cut.late_by_one(line) for line in cut.rounds] == [0, 0]  # not known yet
    without = make()
    assert not without.grace
    assert "joined" not in without.rounds[0].to_dict()


@pytest.mark.parametrize("place", [1, 2, -1])
def test_more_who_join_than_were_late_contradict_the_log(make: Callable[..., RunLog], place: int) -> None:
    lines = logged(rounds=4)
    lines[place] |= {"joined": 1, "joined_clients": [0]}
    with pytest.raises(ContradictionError, match="joined must be at most 0, who were late before, got joined=1"):
        make(lines=lines)


def test_a_run_cannot_be_changed(make: Callable[..., RunLog]) -> None:
    with pytest.raises(AttributeError):
        make().started.parameters = 3  # type: ignore[misc]


def test_noise_is_the_root_mean_square_of_the_rounds(make: Callable[..., RunLog]) -> None:
    stds = [line["noise_std"] for line in logged()[1:-1]]
    assert make().noise == pytest.approx(math.sqrt(sum(std**2 for std in stds) / len(stds)))


def test_a_residual_that_nobody_repairs_stays(make: Callable[..., RunLog]) -> None:
    lines = [line | {"noise_std": 3.0, "residual_std": 4.0} if line["kind"] == "round" else line for line in logged()]
    repair = make(lines=lines)
    exact = make("exact", lines=[lines[0] | {"plan": PLAN | {"calibration": "exact"}}, *lines[1:]])
    assert (repair.noise, exact.noise) == (3.0, 5.0)
    assert drawn(panels([repair, exact])[2].chart.to_dict())["LightDP exact"][1] == 5.0
    assert list(drawn(panels([repair, exact])[3].chart.to_dict())) == ["LightDP repair"]


def test_without_noise_nothing_is_protected(make: Callable[..., RunLog]) -> None:
    run = make("none")
    assert (run.scheme, run.epsilon, run.claimed, run.unit, run.adjacency) == ("none", None, None, None, None)
    assert [facts(run)[name] for name in ("ε claimed", "ε true", "δ", "unit")] == ["∞", "∞", "–", "–"]


def test_an_interrupted_run_shows_what_was_recorded_last(make: Callable[..., RunLog]) -> None:
    run = make(lines=logged()[:-1])
    assert run.ended is None
    with pytest.raises(ArgumentError, match=r"run must have come to its end, got run=.*repair[.]jsonl"):
        _ = run.outcome
    assert run.accuracy == logged()[6]["accuracy"]  # round 6 was the last that was evaluated
    assert run.epsilon == logged()[7]["epsilon"]
    assert (run.claimed, run.delta, run.unit, run.adjacency) == (3.0, 1e-5, "record", "add-remove")
    assert facts(run)["stopped"] == "no end recorded"


def test_a_run_that_never_played_a_round_is_read(make: Callable[..., RunLog]) -> None:
    run = make(lines=logged()[:1])
    assert (run.rounds, run.ended, run.accuracy, run.epsilon, run.noise) == ((), None, None, None, None)


def test_fields_that_are_not_known_yet_are_ignored(make: Callable[..., RunLog]) -> None:
    lines = [line | {"later": 1} for line in logged()]
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
    "huge": (changed(2, noise_std=10**400), 3, "noise_std must be a number that a float can hold"),
    "epsilon hidden": (changed(2, epsilon=None), 3, "epsilon must not be null in a run with a plan"),
    "epsilon hidden at the end": (changed(8, epsilon=None), 9, "epsilon must not be null in a run with a plan"),
    "stopped": (changed(8, stopped="x"), 9, "stopped must be one of budget, members, void, refused, got stopped='x'"),
    "statement": (changed(8, statement="all is well"), 9, "statement must be a list of sentences"),
    "calibration": (changed(0, plan=PLAN | {"calibration": "magic"}), 1, "plan: calibration must be one of"),
    "plan without delta": (changed(0, plan={"calibration": "exact"}), 1, "plan: must have epsilon, delta"),
    "counts": (changed(0, partition={"counts": [[1, 2], [3]]}), 1, "counts must be a list of rows of one length"),
    "negative count": (changed(0, partition={"counts": [[1, -2]]}), 1, "counts must be >= 0"),
    "config": (changed(0, config=[]), 1, "config must be an object"),
    "nobody's roster": (changed(1, formed=[{"roster": 0}]), 2, "must have members"),
    "no roster": (changed(1, formed=[], closed=[{"members": [1]}]), 2, "must have roster"),
    "members twice": (changed(1, formed=[{"roster": 0, "members": [1, 1]}]), 2, "formed: members must be >= 2"),
    "roster": (changed(1, formed=[{"roster": -1, "members": [1]}]), 2, "formed: roster must be >= 0"),
    "less than nothing": (changed(8, epsilon_clients=[1.0, -1.0]), 9, "epsilon_clients must be >= 0"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_log_is_refused_with_file_line_and_reason(tmp_path: Path, case: str) -> None:
    breaks, line, reason = BROKEN[case]
    file = written(tmp_path / "broken.jsonl", breaks(logged()))
    with pytest.raises(ArgumentError, match=rf"broken[.]jsonl, line {line}: .*{reason}"):
        RunLog.read(file)


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
    file = written(tmp_path / "run.jsonl", logged()[:3])
    file.write_bytes(file.read_bytes() + text)
    with pytest.raises(ArgumentError, match=rf"(?s)run[.]jsonl, line 4: .*{reason}"):
        RunLog.read(file)


@pytest.mark.parametrize("text", ["who,age\np1,30\n", "<!doctype html>\n<html>\n", '{"rows": []}\n'])
def test_another_file_is_no_run_log(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"a[.]csv is no run log, line 1: "):
        RunLog.read(tmp_path / "a.csv")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    with pytest.raises(ArgumentError, match=r"run[.]jsonl, line 1: .*empty"):
        RunLog.read(tmp_path / "run.jsonl")


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="run must be a readable log, got run="):
        RunLog.read(tmp_path / name)


def test_a_plan_says_its_budget_by_the_old_names_and_by_the_new(make: Callable[..., RunLog]) -> None:
    old = PLAN | {"epsilon": 9.24}
    new = {name: value for name, value in PLAN.items() if name != "epsilon_claimed"}
    new |= {"epsilon": 3.0, "epsilon_true": 9.24}
    for plan in (old, new):
        assert claimed_epsilon(plan) == 3.0
        log = make(lines=[logged()[0] | {"plan": plan}])
        assert log.claimed == 3.0


def test_where_batches_are_sampled_rounds_may_leave_epsilon_out_but_the_end_may_not(tmp_path: Path) -> None:
    lines = logged()
    lines[0]["plan"] = PLAN | {"sampling_rate": 0.5}
    lines[3]["epsilon"] = lines[7]["epsilon"] = None
    log = RunLog.read(written(tmp_path / "a.jsonl", lines))
    assert log.rounds[2].epsilon is None
    assert log.epsilon == lines[-1]["epsilon"]
    assert RunLog.read(written(tmp_path / "a.jsonl", lines[:-1])).epsilon is None  # not that of an earlier round
    with pytest.raises(ArgumentError, match="line 9: epsilon must not be null in a run with a plan"):
        RunLog.read(written(tmp_path / "b.jsonl", [*lines[:-1], lines[-1] | {"epsilon": None}]))


def test_a_scheme_that_is_compared_is_named_and_a_calibration_is_that_of_the_plan(make: Callable[..., RunLog]) -> None:
    first = logged("exact")[0]
    named = {name: make(lines=[first | {"config": {"scheme": name}}]).scheme for name in ("secagg", "repair", 3, None)}
    assert named == {"secagg": "secagg", "repair": "exact", 3: "exact", None: "exact"}


def test_a_deployment_that_knows_less_can_log(tmp_path: Path) -> None:
    started = Started(config={}, plan=None, versions={}, commit=None, partition=None, parameters=3, device=None)
    line = Round(
        round=1, accuracy=None, loss=None, epsilon=None, used=3, late=0, lost=0, noise_std=None, residual_std=None
    )
    with LogWriter(tmp_path / "a.jsonl") as writer:
        assert writer.write(started) is started
        writer.write(line)
        log = RunLog.read(tmp_path / "a.jsonl")  # while it is still being written
    assert (log.started, log.rounds, log.ended) == (started, (line,), None)
    assert (log.counts, log.clock, log.noise, log.accuracy, log.unit) == ([], [], None, None, None)


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        (Round, {"accuracy": math.nan}, "accuracy must be finite"),
        (Round, {"accuracy": 50.0}, r"accuracy must be in \[0, 1\]"),
        (Round, {"used": -1}, "used must be >= 0, got used=-1"),
        (Round, {"used": None}, "used must be an integer, got used=None"),
        (Ended, {"statement": "all is well"}, "statement must be a list of sentences"),
        (Ended, {"stopped": "tired"}, "stopped must be one of budget"),
        (Started, {"plan": PLAN | {"delta": 2.0}}, r"plan: delta must be in \(0, 1\)"),
    ],
)
def test_a_line_that_could_not_be_read_is_not_made(
    make: Callable[..., RunLog], kind: type, changed: dict[str, Any], message: str
) -> None:
    log = make()
    line = next(line for line in log.lines if isinstance(line, kind))
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(line, **changed)


def test_reading_and_writing_give_the_same_bytes(tmp_path: Path) -> None:
    lines = logged()
    lines[0]["network"] = {"links": "relayed"}
    for line in lines[1:-1]:
        line |= {"modelled_seconds": 0.1 * line["round"], "failed": None}
    path = written(tmp_path / "a.jsonl", lines)
    log = RunLog.read(path)
    with LogWriter(tmp_path / "b.jsonl") as writer:
        for read in log.lines:
            writer.write(read)
    assert (tmp_path / "b.jsonl").read_bytes() == path.read_bytes()


def test_what_was_not_modelled_is_not_written(make: Callable[..., RunLog]) -> None:
    (line, *_) = make().rounds
    assert list(line.to_dict())[-2:] == ["noise_std", "residual_std"]
    assert list(dataclasses.replace(line, modelled_seconds=0.0).to_dict())[-2:] == ["modelled_seconds", "failed"]


@pytest.mark.parametrize("rest", [b"", b'{"kind": "rou', b"\xff\n\n", b'{"kind": "end"}\n'])
@pytest.mark.parametrize("rounds", [0, 3, 7])
def test_a_log_is_cut_back_and_goes_on(tmp_path: Path, rounds: int, rest: bytes) -> None:
    whole = written(tmp_path / "whole.jsonl", logged()).read_bytes()
    path = tmp_path / "cut.jsonl"
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]) + rest)
    log = RunLog.read(tmp_path / "whole.jsonl")
    with LogWriter(path, keep=rounds) as writer:
        assert writer.kept == log.lines[: rounds + 1]
        for line in log.lines[rounds + 1 :]:
            writer.write(line)
    assert RunLog.read(path) == dataclasses.replace(log, path=path)


def test_a_log_that_lost_its_last_newline_goes_on(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", logged()[:4])
    before = path.read_bytes()
    path.write_bytes(before[:-1])
    with LogWriter(path, keep=3):
        pass
    assert path.read_bytes() == before


@pytest.mark.parametrize("rounds", [3, 4, 8])
def test_a_log_without_the_rounds_to_keep_is_left_as_it_is(tmp_path: Path, rounds: int) -> None:
    path = written(tmp_path / "a.jsonl", [line for line in logged() if line.get("round") != 3])
    before = path.read_bytes()
    with pytest.raises(ResumeError, match=rf"resume needs the log of the {rounds} rounds .*a[.]jsonl"):
        LogWriter(path, keep=rounds)
    assert path.read_bytes() == before
    with pytest.raises(ResumeError, match=r"none[.]jsonl"):
        LogWriter(tmp_path / "none.jsonl", keep=rounds)
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize(("text", "rounds"), [(b'{"kind": "rou', 2), (b"", 2)])
def test_a_line_torn_by_a_kill_can_be_left_out(tmp_path: Path, text: bytes, rounds: int) -> None:
    path = written(tmp_path / "a.jsonl", logged()[: rounds + 1])
    path.write_bytes(path.read_bytes() + text)
    log = RunLog.read(path, torn=True)
    assert (len(log.rounds), log.ended) == (rounds, None)


# The format


def test_the_reference_page_is_that_of_the_code() -> None:
    page = Path(__file__).parents[1] / "docs/reference/run-log.md"
    assert page.read_text(encoding="utf-8") == schema(), "python -m lightdp.runlog > docs/reference/run-log.md"


@pytest.mark.parametrize("kind", [Started, Round, Ended])
def test_the_type_of_a_field_says_whether_it_may_be_null(kind: type[Any]) -> None:
    for field in dataclasses.fields(kind):
        assert ("null" in field.metadata) == str(field.type).endswith(" | None"), field.name
        assert f"| `{field.name}` |" in schema()


def test_reading_logs_needs_no_extra() -> None:
    code = "import sys, lightdp.runlog; print([name for name in ('torch', 'altair', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_calibrations_of_logs_are_those_of_plans() -> None:
    assert set(CALIBRATIONS) == {"local", "paper", "exact", "repair", "smpc", "central"}


def test_every_line_is_one_json_object_with_its_kind_first(make: Callable[..., RunLog]) -> None:
    log = make()
    for line, kind in ((log.started, "run"), (log.rounds[0], "round"), (log.outcome, "end")):
        assert json.dumps(line.to_dict()).startswith(f'{{"kind": "{kind}", ')


@pytest.mark.parametrize("names", [[2, 1], [1, 1], [-1], [True], "12", [0.5]])
def test_missing_clients_are_named_in_order_and_once(names: Any) -> None:
    line = logged()[1] | {"late_clients": names}
    with pytest.raises(ArgumentError, match="late_clients must be"):
        Round.of(line)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataset": "digits"}, "dataset must be an object, got dataset='digits'"),
        ({"dataset": {"name": "mine"}}, "dataset: digest must be text, got dataset: digest=None"),
        ({"module": {"digest": "ab"}}, "module: name must be text"),
        ({"start": {"name": "a.pt", "digest": "ab"}}, "start: file must be text"),
        ({"start": {"file": "a.pt", "digest": "ab", "new": "head"}}, "start: new must be a list"),
        ({"start": {"file": "a.pt", "digest": "ab", "unused": [3]}}, "start: unused must be text"),
    ],
)
def test_data_module_and_start_are_objects_with_digests(tmp_path: Path, changed: Any, message: str) -> None:
    lines = logged("exact")
    lines[0] |= changed
    with pytest.raises(ArgumentError, match=message):
        RunLog.read(written(tmp_path / "a.jsonl", lines))
