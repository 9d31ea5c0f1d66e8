"""`lightdp plan --plot`: one whole file, or none."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from lightdp import planning
from support.command_line import assert_refused, plan_arguments
from support.run_logs import Page

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def small(**changes: object) -> list[str]:
    return plan_arguments(**({"clients": 8, "colluders": 2, "stragglers": 2} | changes))


@pytest.mark.parametrize(
    ("suffix", "start", "size"),
    [("html", b"<!doctype html>", 200_000), ("png", b"\x89PNG\r\n\x1a\n", 20_000), ("svg", b"<svg", 5_000)],
)
def test_plot_writes_one_whole_file(run: Run, tmp_path: Path, suffix: str, start: bytes, size: int) -> None:
    file = tmp_path / f"plan.{suffix}"
    assert run(*small(epsilon=1.0), "--plot", file).code == 0
    old = file.read_bytes()
    result = run(*small(), "--plot", file)
    content = file.read_bytes()
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(f"\nwrote {file}\n")
    assert content.lstrip().startswith(start)
    assert len(content) > size
    assert content != old
    assert names(tmp_path) == [file.name]


def test_html_needs_no_network(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    run(*small(), "--plot", file)
    text = file.read_text(encoding="utf-8")
    assert 'src="http' not in text
    assert "https://cdn" not in text
    assert "LightDP repair" in text


def test_a_page_shows_the_command_that_made_it_as_one_types_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a plan & <b>.html"
    run(*small(), "--plot", file)
    text = Page(file.read_text(encoding="utf-8")).text
    assert "Made by this command lightdp plan --clients=8 --colluders=2 " in text
    assert f"--plot '{file}'" in text


def test_plot_with_json_prints_json_only(run: Run, tmp_path: Path) -> None:
    result = run(*small(), "--plot", tmp_path / "plan.svg", "--json")
    assert json.loads(result.out)["clients"] == 8


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "plan.html.txt"])
def test_plot_refuses_other_suffixes(run: Run, tmp_path: Path, name: str) -> None:
    assert_refused(run(*small(), "--plot", tmp_path / name), "plot must end in", name)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["plan.pdf", "none/plan.html", "folder.svg"])
def test_plot_is_refused_before_any_work(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    monkeypatch.setattr(planning, "plan", None)
    assert_refused(run(*small(), "--plot", tmp_path / name), "plot must", name)


def test_plot_refuses_a_missing_folder(run: Run, tmp_path: Path) -> None:
    assert_refused(run(*small(), "--plot", tmp_path / "none" / "plan.html"), "plot", "none/plan.html")
    assert names(tmp_path) == []


def test_plot_refuses_a_folder_as_its_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.html").mkdir()
    assert_refused(run(*small(), "--plot", tmp_path / "plan.html"), "plot", "plan.html")
    assert names(tmp_path) == ["plan.html"]


def test_an_infeasible_plan_leaves_no_plot(run: Run, tmp_path: Path) -> None:
    assert_refused(run(*small(epsilon=0), "--plot", tmp_path / "plan.html"), "epsilon=0")
    assert names(tmp_path) == []


def test_plot_without_its_extra_names_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("lightdp.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "altair", None)
    assert_refused(run(*small(), "--plot", tmp_path / "plan.html"), "pip install '.[report]'")
    assert names(tmp_path) == []
