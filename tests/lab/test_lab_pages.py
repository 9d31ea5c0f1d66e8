"""Pages of the comparison and of the results: in the frame of all pages, with the numbers of their charts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lightdp.report._frame import page_text, scripts
from lightdp_lab.charts.compare import compare_panels
from lightdp_lab.compare_page import compare_page, save_compare
from lightdp_lab.compare_words import read_record
from lightdp_lab.registry import ALL
from lightdp_lab.results import Results
from lightdp_lab.results_page import results_page
from support.command_line import assert_refused
from support.run_logs import Page

if TYPE_CHECKING:
    from support.command_line import Run

ROOT = Path(__file__).parents[2]
EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&\'{{ title }}'
MOST = 400_000  # bytes beside the library that draws


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return read_record(ROOT / "benchmarks/records/compare.json")


@pytest.fixture(scope="module")
def results() -> str:
    return page_text(results_page(Results(ROOT / "results")), command="lightdp reproduce page --html a.html")


def test_the_page_of_a_comparison_has_every_row_and_its_command(tmp_path: Path, record: dict[str, Any]) -> None:
    save_compare(record, tmp_path / "a.html", f"lightdp compare '{EVIL}'")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.charts) == 8
    for row in record["rows"]:
        assert row["title"] in page.text
    assert f"Made by this command lightdp compare '{EVIL}'" in page.text
    assert "its true ε is 9.24 (μ = 1.876)" in page.text
    assert len(text.encode()) - len(scripts().encode()) < MOST


def test_the_cards_name_the_least_of_what_keeps_its_promise(record: dict[str, Any]) -> None:
    cards = {card.head: card for card in compare_page(record).cards}
    able = [row for row in record["rows"] if row["impossible"] is None]
    trusted = [
        row for row in able if row["completed"] == row["rounds"] and row["private"] and row["epsilon"] <= 3 * (1 + 1e-9)
    ]
    best = min(trusted, key=lambda row: row["noise"])
    assert ALL[best["scheme"]].label in cards["Least noise"].note
    assert "hide updates from the server, keep ε and completed every round" in cards["Least noise"].note
    assert cards["Least noise"].figure == f"{best['noise']:.3g}"
    assert cards["Completed every round"].figure == str(sum(row["completed"] == row["rounds"] for row in able))


def test_each_scheme_that_hides_nothing_from_the_server_has_a_sentence_of_its_own(record: dict[str, Any]) -> None:
    said = compare_page(record).caveats
    for row in record["rows"]:
        if row["impossible"] is None and not row["private"]:
            (words,) = (each for each in said if each.startswith(f"{ALL[row['scheme']].label}: "))
            assert row["broken_by"] not in words
    assert (
        "CKKS + DP: all clients share one key, so one client that helps the server lets it read every update." in said
    )
    assert any(words.endswith("Its noise is shown scaled to a true ε = 3.") for words in said)
    other = record["rows"][0] | {"scheme": "new", "title": "new", "private": False, "broken_by": "a hammer"}
    (words,) = compare_page(record | {"rows": [other]}).caveats
    assert words == "new: it does not always hide updates from the server; what breaks it: a hammer."


def test_tables_of_a_comparison_have_the_numbers_of_its_charts(record: dict[str, Any]) -> None:
    figures, times = compare_panels(record)
    for panel in figures:
        assert panel.table is not None
        words = {row["name"]: row["words"] for row in panel.chart.to_dict()["data"]["values"]}
        assert {line[0]: line[1] for line in panel.table.rows} == words
    for panel in times:
        assert panel.table is not None
        assert len(panel.table.rows) == len({entry["scheme"] for entry in record["scaling"]})


def test_hostile_titles_of_a_record_stay_text(record: dict[str, Any]) -> None:
    evil = record | {"rows": [row | {"title": EVIL} for row in record["rows"][:3]]}
    page = Page(page_text(compare_page(evil)))
    usual = Page(page_text(compare_page(record)))
    assert len(page.scripts) == len(usual.scripts) == 2
    assert "img" not in {tag for tag, _ in page.tags}
    assert "<" not in page.scripts[0]
    assert page.text.count(EVIL) >= 6


def test_the_page_of_results_has_the_tables_of_the_document(results: str) -> None:
    page, document = Page(results), (ROOT / "docs/evidence/results.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in document.splitlines() if line.startswith("| ")]
    missing = [row for row in rows if set(row) != {"---"} and " ".join(" ".join(row).split()) not in page.text]
    assert missing == []
    assert len(rows) > 100
    assert len(page.charts) == 19
    assert "Made by this command lightdp reproduce page --html a.html" in page.text
    assert len(results.encode()) - len(scripts().encode()) < MOST
    assert "http://" not in "".join(value or "" for _, attributes in page.tags for value in attributes.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["page", "--html", "results.pdf"], "html must end in .html, got html='results.pdf'"),
        (["page", "--html", "none/results.html"], "html must lie in an existing folder"),
        (["table2", "--html", "a.html"], "html is written by page alone, got html='a.html' with table2"),
    ],
)
def test_results_that_cannot_be_written_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run("reproduce", *arguments, "--results", ROOT / "results"), words)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_the_page_of_results(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "results.html"
    done = run("reproduce", "page", "--html", file, "--results", ROOT / "results")
    assert (done.code, done.out) == (0, f"wrote {file}\n")
    assert f"lightdp reproduce page --html {file}" in Page(file.read_text(encoding="utf-8")).text
