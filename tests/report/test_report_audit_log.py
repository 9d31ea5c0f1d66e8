"""The page of an audit of a log: what the command prints is on it, and nothing of a log acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lightdp._validate import rounded_up
from lightdp.auditing import Contradicted, recorded
from lightdp.errors import ArgumentError
from lightdp.report import save_audit
from lightdp.report._audit_log import log_page, log_panels
from lightdp.report._frame import page_text
from support.audited_logs import a_plan, lines_of, saved, some_rounds
from support.run_logs import Page

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&\'{{ title }}'


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    plan = a_plan()
    return recorded(saved(tmp_path / "run.jsonl", lines_of(plan, some_rounds(plan, 5)))).to_dict()


def test_every_figure_is_on_the_page(found: dict[str, Any]) -> None:
    page = Page(page_text(log_page(found)))
    assert "Audit of a log: it holds" in page.text
    assert [each["name"] for each in found["figures"]][:2] == ["budget of the plan", "the log"]
    for each in (*found["figures"], *found["clients"]):
        assert rounded_up(each["mu"]) in page.text
        assert rounded_up(each["epsilon"]) in page.text
    for note in found["notes"]:
        assert note in page.text
    assert len(page.charts) == 1


def test_the_chart_has_every_client_beside_the_budget(found: dict[str, Any]) -> None:
    (panel,) = log_panels(found)
    rule, points = (layer["data"]["values"] for layer in panel.chart.to_dict()["layer"][:2])
    assert rule == [{"mu": found["budget"]["mu"]}]
    for kind, key in (("counted", "mu"), ("exact", "mu_exact")):
        drawn = {row["client"]: row["mu"] for row in points if row["kind"] == kind}
        assert drawn == {row["name"]: row[key] for row in found["clients"] if row[key] is not None}


def test_many_clients_are_cut_to_those_that_spent_most(found: dict[str, Any]) -> None:
    rows = [found["clients"][0] | {"client": i, "name": f"number {i}", "mu": i / 1000} for i in range(1000)]
    text = page_text(log_page(found | {"clients": rows}))
    assert "number 999" in text
    assert "number 799" not in text
    assert "And 800 more, which spent less." in text


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"holds": False, "verdict": "does not hold", "problems": ["ε of round 3 is too small"]}, "it does not hold"),
        ({"verdict": "unfinished: what the log says follows from its 5 rounds so far"}, "Audit of a log: unfinished"),
        ({"verdict": "nothing to hold: no noise was added", "clients": [], "figures": []}, "nothing to hold"),
    ],
)
def test_the_title_is_the_verdict(found: dict[str, Any], changed: dict[str, Any], words: str) -> None:
    page = Page(page_text(log_page(found | changed)))
    assert words in page.text
    assert all(each in page.text for each in changed.get("problems", ()))


def test_lines_that_contradict_each_other_have_a_page_without_figures(tmp_path: Path) -> None:
    found = Contradicted(tmp_path / "run.jsonl", ("rounds must be 4, got 5",)).to_dict()
    save_audit(found, tmp_path / "audit.html")
    assert "rounds must be 4, got 5" in (tmp_path / "audit.html").read_text(encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"html must end in \.html, got"):
        save_audit(found, tmp_path / "audit.png")


def test_what_a_log_says_stays_text(found: dict[str, Any]) -> None:
    rows = [row | {"name": EVIL} for row in found["clients"]]
    evil = found | {"log": EVIL, "problems": [EVIL], "notes": [EVIL], "clients": rows}
    page = Page(page_text(log_page(evil)))
    usual = Page(page_text(log_page(found | {"problems": ["x"], "notes": ["x"]})))
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in usual.tags}
    assert len(page.scripts) == len(usual.scripts)
    assert page.text.count(EVIL) == 3 + len(rows)


@pytest.mark.parametrize("suffix", ["html", "svg"])
def test_the_command_writes_it(run: Run, tmp_path: Path, suffix: str) -> None:
    plan = a_plan()
    log, out = saved(tmp_path / "run.jsonl", lines_of(plan, some_rounds(plan, 5))), tmp_path / f"audit.{suffix}"
    done = run("audit", log, "--html", out)
    assert done.code == 0
    assert f"wrote {out}" in done.out.replace("\n", "")
    assert "What each client spent" in out.read_text(encoding="utf-8")
