"""The page of runs: everything is on it, nothing on it acts, and it is written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightdp.errors import ArgumentError
from lightdp.report import save_runs
from lightdp.report._figures import LONG, facts, labels
from lightdp.report._page import run_page
from support.run_logs import Page, logged

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightdp.runlog import RunLog

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&\'[red]{{ title }}{% raise %}'


def test_every_figure_is_in_the_tables_of_the_page(three: tuple[Page, list[RunLog]]) -> None:
    page, runs = three
    found = [facts(run) for run in runs]
    for name in found[0]:
        row = " ".join([LONG.get(name, name), *(each[name] for each in found)])
        assert f" {row} " in page.text
    assert "2.8866" in page.text
    assert "62.23 %" in page.text


def test_settings_are_shown_once_where_runs_agree(three: tuple[Page, list[RunLog]]) -> None:
    text = three[0].text
    assert " lr 2.5 degree none " in text
    assert " scheme repair exact none " in text
    assert " sigma_individual 2.34568 2.34568 – " in text
    assert " commit 0123abc device cpu parameters 650 torch 2.13.0 " in text


def test_settings_that_were_left_open_are_shown_as_they_were_used(make: Callable[..., RunLog]) -> None:
    lines = logged()
    lines[0]["config"] |= {"scheme": "auto", "grace": None, "late": None, "links": None}
    lines[0]["plan"] |= {"grace": 1, "late": 0.1}
    assert (
        " scheme auto: repair clients 10 lr 2.5 degree none grace 1 late 0.1 links none "
        in Page(run_page([make(lines=lines)])).text
    )


@pytest.mark.parametrize("grace", [0, 1])
def test_grace_without_noise_is_shown_as_the_rounds_have_it(make: Callable[..., RunLog], grace: int) -> None:
    lines = logged("none")
    lines[0]["config"] |= {"grace": None}
    for line in lines[1:] if grace else ():
        line.update(joined=0, joined_clients=[])
    assert f" degree none grace {grace} " in Page(run_page([make("none", lines=lines)])).text


def test_the_statement_of_a_finished_run_is_shown_and_that_of_another_is_not_made_up(
    three: tuple[Page, list[RunLog]],
) -> None:
    text = three[0].text
    assert "A sentence about repair. And another." in text
    assert "A sentence about none." in text
    spent = "Up to its last recorded round it spent ε = 2.8200 (μ = 0.7200)."
    assert f"Nothing is stated: the run has no end recorded. {spent}" in text
    assert "LightDP exact has no end recorded: it was cut off after round 7, or is still running." in text


def test_the_page_asks_nobody_for_anything(three: tuple[Page, list[RunLog]]) -> None:
    tags = three[0].tags
    asking = {"src", "href", "srcset", "action", "data", "poster", "background"}
    assert [tag for tag, attributes in tags if asking & set(attributes)] == []
    assert not {"link", "iframe", "object", "embed", "base"} & {tag for tag, _ in tags}
    policies = [attributes["content"] for _, attributes in tags if "http-equiv" in attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'"]


@pytest.mark.parametrize("schemes", [["evil"], ["evil", "evil"], ["evil", "exact"]])
def test_what_a_record_says_stays_text(make: Callable[..., RunLog], schemes: list[str]) -> None:
    lines = logged("exact", statement=[EVIL], unit=EVIL, adjacency=EVIL)
    lines[0]["config"] = {"data": EVIL, EVIL: EVIL, "model": {"deep": EVIL}, "partition": EVIL}
    lines[0] |= {"commit": EVIL, "device": EVIL, "versions": {EVIL: EVIL}}
    lines[0]["plan"] |= {EVIL: EVIL}
    lines[0]["partition"] = {"counts": [[1, 2]]}  # another one, so that the page says whose it shows
    name = EVIL.replace("/", "∕")
    runs = [make("exact", f"{name}{i}", lines if scheme == "evil" else None) for i, scheme in enumerate(schemes)]
    page = Page(run_page(runs))
    usual = Page(run_page([make("exact", f"usual{i}") for i in range(len(schemes))]))
    assert {tag for tag, _ in page.tags} - {"aside", "ul", "li"} == {tag for tag, _ in usual.tags} - {"ul", "li"}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert len(page.scripts) == len(usual.scripts)
    assert page.text.count(EVIL) >= 8
    assert page.charts[0]["layer"][0]["encoding"]["color"]["scale"]["domain"] == labels(runs)
    assert "<" not in page.scripts[0]


def test_a_character_that_cannot_be_written_does_not_stop_the_page(make: Callable[..., RunLog], tmp_path: Path) -> None:
    save_runs([make("exact")], tmp_path / "page.html", "lightdp report \udcff.jsonl")
    assert "lightdp report \N{REPLACEMENT CHARACTER}.jsonl" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("rounds", [0, 1])
def test_the_shortest_runs_have_a_page(make: Callable[..., RunLog], rounds: int) -> None:
    page = Page(run_page([make(lines=logged()[: 1 + rounds])]))
    assert len(page.charts) == [1, 5][rounds]  # without rounds, the partition alone


# Files


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("html", b"<!doctype html>")])
def test_a_report_is_written_as_its_name_says(
    make: Callable[..., RunLog], tmp_path: Path, suffix: str, start: bytes
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    save_runs([make("repair"), make("exact")], folder / f"report.{suffix}")
    assert [file.name for file in folder.iterdir()] == [f"report.{suffix}"]
    assert (folder / f"report.{suffix}").read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["report.pdf", "report", "none/report.html"])
def test_a_report_that_cannot_be_written_is_refused(make: Callable[..., RunLog], tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        save_runs([make()], tmp_path / name)


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="runs must be at least one"):
        save_runs([], tmp_path / "report.html")
