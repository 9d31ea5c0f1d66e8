"""`lightdp report`: a page and its figures, or one line that says why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.command_line import assert_refused
from support.run_logs import Page, logged, written

if TYPE_CHECKING:
    import pytest

    from support.command_line import Run


def test_the_command_writes_the_page_and_prints_the_figures(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [written(tmp_path / f"{scheme}.jsonl", logged(scheme)) for scheme in ("repair", "exact")]
    result = run("report", *files)
    assert result.code == 0
    assert "2.8866" in result.out
    assert "2.8966" in result.out
    assert "wrote report.html" in result.out
    assert Page(Path("report.html").read_text(encoding="utf-8")).charts


def test_runs_that_do_not_compare_are_said_not_to(run: Run, tmp_path: Path) -> None:
    lines = logged("exact")
    lines[0]["config"]["data"] = "cifar10"
    files = [written(tmp_path / "a.jsonl", logged("repair")), written(tmp_path / "b.jsonl", lines)]
    assert "The runs differ in data: cifar10, digits." in run("report", *files, "--out", tmp_path / "a.html").out


def test_the_command_refuses_a_broken_log_in_one_line_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    good = written(tmp_path / "good.jsonl", logged())
    bad = written(tmp_path / "bad.jsonl", logged()[1:])
    result = run("report", good, bad, "--out", tmp_path / "report.html")
    assert result.code == 2
    assert result.err.startswith(f"error: {bad}, line 1: ")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_refused_by_the_name_of_its_option(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "report.pdf"
    assert_refused(run("report", written(tmp_path / "a.jsonl", logged()), "--out", out), f"got out='{out}'")


def test_out_is_refused_before_a_log_is_read(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "report.pdf"
    assert_refused(run("report", tmp_path / "missing.jsonl", "--out", out), f"got out='{out}'")
