"""Pages in a real browser: nothing is cut at 1280 or at 375 pixels, charts reflow, nothing leaves the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lightdp
from lightdp.auditing import recorded
from lightdp.report import save_audit, save_plan, save_runs
from lightdp.runlog import RunLog
from lightdp_lab.compare_page import save_compare
from lightdp_lab.compare_words import read_record
from support.audited_logs import lines_of, saved, some_rounds
from support.run_logs import logged, written

ROOT = Path(__file__).parents[2]
CUT = """() => [...document.querySelectorAll('main *')].filter(each => !each.closest('.scroll, svg')
    && each.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(each => each.outerHTML)"""
BOX = """() => { const box = document.querySelector('.prose').parentElement;
    return [box.scrollWidth, box.clientWidth] }"""
WIDTHS = "() => [...document.querySelectorAll('.chart svg')].map(each => each.getBoundingClientRect().width)"
HIDDEN = """() => { document.querySelectorAll('details').forEach(each => { each.open = true });
    return [...document.querySelectorAll('.scroll')].filter(each => each.scrollWidth > each.clientWidth)
        .map(each => [each.innerText.slice(0, 60), each.scrollWidth, each.clientWidth]) }"""
OUTSIDE = """() => [...document.querySelectorAll('.chart')].filter(each =>
    [...each.querySelectorAll('text')].some(text =>
        text.getBoundingClientRect().right > each.getBoundingClientRect().right + 2)).length"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    files = {name: folder / f"{name}.html" for name in ("plan", "runs", "many", "audit", "log", "compare")}
    plan = lightdp.plan(clients=8, colluders=2, stragglers=2, rounds=9, epsilon=3, delta=1e-5)
    save_plan(plan, files["plan"], f"lightdp plan --clients 8 {'--a-long-flag=1 ' * 20}")
    schemes = ("repair", "exact", "local", "none")
    logs = [RunLog.read(written(folder / f"{scheme}.jsonl", logged(scheme))) for scheme in schemes]
    save_runs(logs, files["runs"], "lightdp report")
    known: dict[str, Any] = {"accuracy_clients": {f"hospital {place}": 0.5 for place in range(12)}, "stopped": "void"}
    names = [f"a-long-name-of-run-{place}" for place in range(8)]
    many = [RunLog.read(written(folder / f"{name}.jsonl", logged(**known))) for name in names]
    save_runs(many, files["many"], "lightdp report")
    save_audit(lightdp.audit(plan, values=2000, confidence=1 - 1e-8).to_dict(), files["audit"], "lightdp audit")
    save_audit(recorded(saved(folder / "log.jsonl", lines_of(plan, some_rounds(plan, 5)))).to_dict(), files["log"])
    record = read_record(ROOT / "benchmarks/records/compare.json")
    save_compare(record, files["compare"], "lightdp compare")
    return files


@pytest.mark.parametrize("kind", ["plan", "runs", "audit", "log", "compare"])
def test_a_page_reflows_and_cuts_nothing(chromium: Any, pages: dict[str, Path], kind: str) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    problems: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
    page.goto(pages[kind].as_uri())
    page.wait_for_selector(".chart svg")
    wide = _looked_at(page, 1280)
    page.set_viewport_size({"width": 375, "height": 800})
    page.wait_for_timeout(400)
    narrow = _looked_at(page, 375)
    assert all(after < before for before, after in zip(wide, narrow, strict=True))
    assert problems == []
    assert asked == [pages[kind].as_uri()]
    page.close()


def _looked_at(page: Any, width: int) -> list[float]:
    """The widths of charts, of a page that is not wider than the window."""
    size = page.evaluate("() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert size == [width, width]
    assert page.evaluate(CUT) == []
    assert page.evaluate(OUTSIDE) == 0
    found: list[float] = page.evaluate(WIDTHS)
    assert found
    assert min(found) > 200
    return found


@pytest.mark.parametrize("kind", ["plan", "runs", "many", "audit", "log", "compare"])
def test_no_table_hides_columns_on_a_desktop(chromium: Any, pages: dict[str, Path], kind: str) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(pages[kind].as_uri())
    page.wait_for_selector(".chart svg")
    hidden = page.evaluate(HIDDEN)
    if kind == "many":  # the numbers of eight lines may be wider than half of the page
        hidden = [each for each in hidden if not each[0].startswith("round")]
    assert hidden == []
    assert page.locator("h2:text-is('The runs') + .scroll .figures").count() == (kind in ("runs", "many"))
    page.close()


def test_sentences_in_a_table_wrap_inside_it_on_a_phone(chromium: Any, pages: dict[str, Path]) -> None:
    page = chromium.new_page(viewport={"width": 375, "height": 800})
    page.goto(pages["plan"].as_uri())
    inside, outside = page.evaluate(BOX)
    assert inside <= outside
    page.close()


def test_dark_mode_has_light_words_on_dark(chromium: Any, pages: dict[str, Path]) -> None:
    looks = {}
    for scheme in ("light", "dark"):
        page = chromium.new_page(color_scheme=scheme)
        page.goto(pages["plan"].as_uri())
        page.wait_for_selector(".chart svg")
        style = "() => ['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"
        axis = "() => getComputedStyle(document.querySelector('.chart .role-axis-label text')).fill"
        looks[scheme] = [
            sum(map(int, found[4:-1].split(","))) for found in (*page.evaluate(style), page.evaluate(axis))
        ]
        page.close()
    assert looks["light"][0] < looks["light"][1]
    assert looks["dark"][0] > looks["dark"][1]
    assert looks["dark"][2] > looks["light"][2]
