"""The page of an audit: made of its dict alone, everything is on it, nothing on it acts."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from scipy.special import ndtr, ndtri

import lightdp
from lightdp._validate import rounded_up
from lightdp.errors import ArgumentError
from lightdp.report import save_audit
from lightdp.report._audit import audit_page, audit_panels
from lightdp.report._frame import page_text
from support.run_logs import Page

if TYPE_CHECKING:
    from pathlib import Path

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&\'{{ title }}'


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    plan = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=4, epsilon=8, delta=1e-5, unit="client")
    return lightdp.audit(plan, values=2000, confidence=1 - 1e-8).to_dict()


def test_every_figure_is_on_the_page(found: dict[str, Any]) -> None:
    page = Page(page_text(audit_page(found)))
    assert "Audit: it holds" in page.text
    for each in ("exact", "budget", "announced", "worst"):
        assert rounded_up(found[each]["mu"]) in page.text
    for each in [*found["measurements"], *found["deviations"]]:
        assert each.get("name", each.get("group")) in page.text
    assert "An update far beyond the clip of 1 left with a norm of" in page.text
    assert len(page.charts) == 3


def test_problems_are_shown(found: dict[str, Any]) -> None:
    page = Page(page_text(audit_page(found | {"holds": False, "problems": ["model: 1.3 times the expected variance"]})))
    assert "Audit: it does not hold" in page.text
    assert "What does not hold model: 1.3 times the expected variance" in page.text


def test_what_an_audit_says_stays_text(found: dict[str, Any]) -> None:
    evil = copy.deepcopy(found) | {"schedule": EVIL, "problems": [EVIL]}
    evil["deviations"][0]["where"] = EVIL
    page, usual = Page(page_text(audit_page(evil))), Page(page_text(audit_page(found | {"problems": ["x"]})))
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in usual.tags}
    assert len(page.scripts) == len(usual.scripts)
    assert page.text.count(EVIL) == 3


def test_the_charts_draw_the_figures(found: dict[str, Any]) -> None:
    intervals, scores, trade_off = (panel.chart.to_dict() for panel in audit_panels(found))
    rules, bars = (layer["data"]["values"] for layer in intervals["layer"][:2])
    assert {row["mu"] for row in rules} >= {found["exact"]["mu"], found["budget"]["mu"]}
    assert [row["low"] for row in bars] == [each["low"] for each in found["measurements"]]
    drawn = scores["layer"][0]["data"]["values"]
    width = found["scores"]["edges"][1] - found["scores"]["edges"][0]
    assert sum(row["density"] for row in drawn) * width == pytest.approx(2, abs=0.01)
    points = trade_off["layer"][1]["data"]["values"]
    assert len(points) > 10
    for point in points:  # 1000 coordinates for each value of the secret
        expected = ndtr(ndtri(point["false"]) + found["exact"]["mu"])
        assert point["true"] == pytest.approx(expected, abs=5 * 2 * 0.5 / 1000**0.5)


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_a_file_is_written_whole(found: dict[str, Any], tmp_path: Path, suffix: str) -> None:
    save_audit(found, tmp_path / f"audit.{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == [f"audit.{suffix}"]
    with pytest.raises(ArgumentError, match="html must end in"):
        save_audit(found, tmp_path / "audit.pdf")
