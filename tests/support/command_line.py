"""The command line, called in this process or as users start it, and an example to call it with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lightdp import cli

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., "Result"]

EXAMPLE = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "epsilon": 3, "delta": 1e-5}


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`lightdp` with these arguments, in this process."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["lightdp", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert ended.value.code is None or isinstance(ended.value.code, int)
        return Result(ended.value.code or 0, captured.out, captured.err)

    return call


def plan_arguments(**changes: object) -> list[str]:
    return ["plan", *(f"--{name.replace('_', '-')}={value}" for name, value in (EXAMPLE | changes).items())]


def installed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The console script as users start it."""
    command = [str(Path(sys.executable).with_name("lightdp")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def assert_refused(result: Result, *words: str) -> None:
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err
