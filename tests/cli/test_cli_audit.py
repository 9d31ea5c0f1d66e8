"""`lightdp audit`: what it prints, how it ends, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lightdp import auditing
from lightdp.protocol import Client
from support.command_line import assert_refused

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run

PLAN = {"clients": 4, "colluders": 1, "stragglers": 1, "rounds": 4, "epsilon": 8, "delta": 1e-5}
QUICK = ["--calibration", "repair", "--values", "2e3", "--confidence", "0.99999999"]


def arguments(**changes: object) -> list[str]:
    return ["audit", *(f"--{name}={value}" for name, value in (PLAN | changes).items()), *QUICK]


@pytest.mark.parametrize("grace", [0, 1])
def test_a_sound_plan_holds_and_its_figures_are_printed(run: Run, grace: int) -> None:
    result = run(*arguments(grace=grace))
    assert result.code == 0
    for word in (
        "Client 0 against the server, helped by 3; clients are told the truth",
        "budget of the plan",
        "odometer of client 0, at worst",
        "exact, of what was sent",
        "optimal linear test",
        "assumption-free bound",
        "covariance method",
        "clip       not audited",
        "holds: nothing lies above what is claimed",
    ):
        assert word in result.out


def test_what_does_not_hold_ends_with_1_and_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "mu", lambda _, *, worst=False: 0.1 if worst else 0.05)
    result = run(*arguments(), "--values", "2e4")
    assert result.code == 1
    assert "DOES NOT HOLD  exact μ" in result.out
    assert "holds: nothing" not in result.out


def test_json_is_json_alone_and_ends_with_the_same_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(*arguments(), "--json")
    assert (result.code, json.loads(result.out)["holds"]) == (0, True)
    monkeypatch.setattr(Client, "mu", lambda _, *, worst=False: 0.1 if worst else 0.05)
    result = run(*arguments(), "--json")
    assert (result.code, json.loads(result.out)["holds"]) == (1, False)


def test_lies_and_a_schedule_are_played(run: Run, tmp_path: Path) -> None:
    found = json.loads(run(*arguments(stragglers=2), "--lies", "rotation", "--json").out)
    assert found["lies"] == "rotation"
    (tmp_path / "rounds.csv").write_text("used,late\n0-3,\n0-2,3\n")
    found = json.loads(run(*arguments(), "--schedule", tmp_path / "rounds.csv", "--json").out)
    assert (found["rounds"], found["uploads"]) == (2, 6)


def test_the_page_is_written(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("altair")
    result = run(*arguments(), "--html", tmp_path / "audit.html")
    assert result.code == 0
    assert f"wrote {tmp_path / 'audit.html'}" in result.out.replace("\n", "")
    assert "Measured and claimed" in (tmp_path / "audit.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["audit"], ["--clients, --colluders, --stragglers, --rounds, --epsilon, --delta"]),
        (["audit", "--clients=4", "--rounds=3"], ["the plan lacks --colluders, --stragglers, --epsilon, --delta"]),
        (["audit", "run.jsonl", "--claim", "x"], ["one thing can be audited at a time, got FILE and --claim"]),
        (["audit", "run.jsonl", "--epsilon=3"], ["--epsilon describes a live audit; FILE brings its own"]),
        (["audit", "run.jsonl", "--lies=none"], ["--lies describes a live audit; FILE brings its own"]),
        (["audit", "--client=a", "--sampling-rate=1"], ["--sampling-rate describes a live audit; --client brings"]),
        (["audit", "--client=a", "--graph=complete"], ["--graph describes a live audit; --client brings its own"]),
        (["audit", "--claim=a", "--values=1e6"], ["--values describes a live audit; --claim brings its own"]),
        (["audit", "--claim=a", "--html=a.html"], ["--html writes the audit of a plan or of a log; --claim has no"]),
        (["audit", "--client=a", "--html=a.html"], ["--html writes the audit of a plan or of a log; --client has no"]),
        (["audit", "run.jsonl", "--html=page.pdf"], ["html='page.pdf'"]),
        (["audit", "nothing.jsonl"], ["FILE must be a run's log, got FILE='nothing.jsonl': there is no such file"]),
        ([*arguments(), "--values=1.5"], ["values must be an integer, got values=1.5"]),
        ([*arguments(), "--values=inf"], ["values must be an integer, got values=inf"]),
        ([*arguments(), "--values=1"], ["values must be in 1000..100000000000, got values=1"]),
        ([*arguments(), "--confidence=2"], ["confidence must be in (0, 1), got confidence=2"]),
        ([*arguments(), "--schedule=no.csv"], ["schedule='no.csv'", "No such file"]),
        ([*arguments(), "--graph=ring"], ["graph='ring'"]),
        ([*arguments(), "--html=page.pdf"], ["html='page.pdf'"]),
    ],
)
def test_wrong_arguments_end_with_2_in_one_line(run: Run, given: list[str], words: list[str]) -> None:
    assert_refused(run(*given), *words)


def test_an_unknown_lie_is_a_usage_error(run: Run) -> None:
    result = run(*arguments(), "--lies", "white")
    assert (result.code, result.out) == (2, "")
    assert "white" in result.err


def test_ctrl_c_exits_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(auditing, "audit", interrupt)
    result = run(*arguments())
    assert (result.code, result.out) == (130, "")
    assert "Traceback" not in result.err


def test_help_shows_examples_and_describes_the_files(run: Run) -> None:
    text = " ".join(run("audit", "--help").out.replace("│", " ").split())
    assert "Examples" in text
    assert "lightdp audit run.jsonl" in text
    assert "used,late,closing" in text
