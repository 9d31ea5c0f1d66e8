"""The command as a whole: installed, its version and help, and how it ends when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lightdp import planning
from lightdp.errors import BudgetError
from support.command_line import Result, assert_refused, installed, plan_arguments

if TYPE_CHECKING:
    from support.command_line import Run


def test_the_installed_command_prints_the_same_page(run: Run) -> None:
    done = installed(*plan_arguments())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(*plan_arguments()).out


def test_the_installed_command_refuses_in_one_line() -> None:
    done = installed(*plan_arguments(epsilon="nan"))
    assert_refused(Result(done.returncode, done.stdout, done.stderr), "epsilon", "nan")


def test_version(run: Run) -> None:
    result = run("--version")
    assert result.code == 0
    assert result.out.startswith("lightdp 0.")


@pytest.mark.parametrize("command", [["plan"], ["plan-mixed"], ["bench", "masks"]])
def test_help_shows_examples(run: Run, command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.code == 0
    assert "Example" in result.out
    assert result.out.count(f"lightdp {' '.join(command)} ") >= 2  # in the usage and in an example


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["report"], "Logs, one JSON object a line."),
        (["predict"], "The rows: a .csv, .parquet or .npz file."),
        (["state", "show"], "A node's state file."),
        (["plan-mixed"], "CSV with columns clients, straggling, epsilon."),
    ],
)
def test_help_says_what_arguments_are(run: Run, command: list[str], says: str) -> None:
    assert says in run(*command, "--help").out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (plan_arguments(calibration="magic"), "magic"),
        (plan_arguments(unit="country"), "country"),
        (plan_arguments(epsilon="three"), "three"),
        (plan_arguments(clients="5.5"), "5.5"),
        (plan_arguments()[:-1], "--delta"),
        (
            ["plan", "--clients", "50", "--epsilon", "3"],
            "Missing options --colluders, --stragglers, --rounds, --delta.",
        ),
        ([*plan_arguments(), "--colour"], "--colour"),
        (["train"], "train"),
        (["bench", "--dimension"], "--dimension"),
    ],
)
def test_usage_errors_exit_with_2_and_print_nothing_on_stdout(run: Run, arguments: list[str], word: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert word in result.err
    assert "Traceback" not in result.err


def test_every_error_of_ours_ends_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise BudgetError("no budget left")

    monkeypatch.setattr(planning, "plan", refuse)
    assert_refused(run(*plan_arguments()), "no budget left")


def test_what_the_machine_refuses_ends_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(28, "No space left on device", "run.jsonl")

    monkeypatch.setattr(planning, "plan", refuse)
    assert_refused(run(*plan_arguments()), "No space left on device: 'run.jsonl'")


def test_ctrl_c_exits_with_130_and_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "plan", interrupt)
    result = run(*plan_arguments())
    assert (result.code, result.out) == (130, "")
    assert "Traceback" not in result.err


def test_a_crash_shows_no_local_variables() -> None:
    """They may be keys."""
    code = "import sys; from lightdp import cli, planning; planning.plan = None; secret = 'x'; cli.main()"
    done = subprocess.run([sys.executable, "-c", code, *plan_arguments()], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "TypeError" in done.stderr
    assert "locals" not in done.stderr
    assert "clients = 50" not in done.stderr
