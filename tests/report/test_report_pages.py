"""What every page has: title, lead, command, tables of its charts' numbers; nothing of it acts, none is large."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import lightdp
from lightdp.errors import ArgumentError
from lightdp.report import Card, Page, Panel, Section, Table, data, save_audit, save_page, save_plan, save_runs
from lightdp.report._frame import beside, scripts, spec
from lightdp.report._panels import panels
from lightdp.report._plan import plan_panels
from lightdp.runlog import RunLog
from support.run_logs import Page as Parsed
from support.run_logs import drawn, logged
from support.run_logs import written as log_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&\'{{ title }}'
COMMAND = f"lightdp plan --x '{EVIL}'"
MOST = 400_000  # bytes beside the library that draws
PLAN: dict[str, Any] = {"clients": 8, "colluders": 2, "stragglers": 2, "rounds": 9, "epsilon": 3, "delta": 1e-5}


def written(file: Path) -> Parsed:
    return Parsed(file.read_text(encoding="utf-8"))


def small(title: str = "A page", note: str = "A note.") -> Page:
    chart = data([{"x": 1, "y": 2.123456789}]).mark_point().encode(x="x:Q", y="y:Q")
    table = Table(["x", note], [["1", EVIL], ["2", "!bad"]], words=[note])
    part = Section(title, [note], [Panel(title, note, chart, table=table)], [table])
    return Page(kind="plan", title=title, lead=note, cards=[Card(title, note, note)], sections=[part], caveats=[note])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, made by the same hostile command."""
    tmp_path, plan = tmp_path_factory.mktemp("pages"), lightdp.plan(**PLAN | {"clients": 50})
    logs = [RunLog.read(log_file(tmp_path / f"{scheme}.jsonl", logged(scheme))) for scheme in ("repair", "exact")]
    found = lightdp.audit(lightdp.plan(**PLAN), values=2000, confidence=1 - 1e-8).to_dict()
    files = {name: tmp_path / f"{name}.html" for name in ("plan", "runs", "audit")}
    save_plan(plan, files["plan"], COMMAND)
    save_runs(logs, files["runs"], COMMAND)
    save_audit(found, files["audit"], COMMAND)
    return files


def test_every_page_has_a_title_a_lead_cards_tables_charts_and_its_command(pages: dict[str, Path]) -> None:
    for kind, file in pages.items():
        page, text = written(file), file.read_text(encoding="utf-8")
        tags = [tag for tag, _ in page.tags]
        assert f'<meta name=lightdp content="{kind}">' in text
        assert tags.count("h1") == 1
        assert tags.count("article") >= 2
        assert "<header><p class=mark>lightdp</p><h1>" in text
        assert f"Made by this command {COMMAND} " in page.text
        assert page.charts
        assert tags.count("table") >= 2
        assert "More in the documentation, “" in page.text
        assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [a for _, a in page.tags]


def test_no_page_acts_on_hostile_text_or_asks_anybody(pages: dict[str, Path]) -> None:
    for file in pages.values():
        page = written(file)
        assert len(page.scripts) == 2
        assert "<" not in page.scripts[0]
        assert "img" not in {tag for tag, _ in page.tags}
        assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
        asked = [attributes.get("href") for _, attributes in page.tags if "href" in attributes]
        assert all(link in {f"{name}.html" for name in pages} for link in asked)
        assert not any({"src", "srcset", "action"} & set(attributes) for _, attributes in page.tags)
        assert not {"link", "iframe", "object", "base"} & {tag for tag, _ in page.tags}


def test_hostile_text_stays_text_in_every_part_of_a_page(tmp_path: Path) -> None:
    save_page(small(EVIL, EVIL), tmp_path / "evil.html", EVIL)
    save_page(small(), tmp_path / "usual.html")
    evil, usual = written(tmp_path / "evil.html"), written(tmp_path / "usual.html")
    assert {tag for tag, _ in evil.tags} - {"code", "nav", "a"} == {tag for tag, _ in usual.tags} - {"nav", "a"}
    assert len(evil.scripts) == len(usual.scripts)
    assert evil.text.count(EVIL) >= 12


def test_pages_link_to_those_that_lie_beside_them_and_to_nothing_else(tmp_path: Path) -> None:
    save_page(small("First & <b>one</b>"), tmp_path / "a%20 b#?.html")
    (tmp_path / "other.html").write_text("<title>Not ours</title>")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "javascript:alert(1).html").write_text('<meta name=lightdp content="plan"><title>x · lightdp</title>')
    save_page(small("Second"), tmp_path / "second.html")
    page = written(tmp_path / "second.html")
    assert links(tmp_path / "second.html") == ["a%2520%20b%23%3F.html", "javascript%3Aalert%281%29.html"]
    assert "First & <b>one</b>" in page.text
    assert "Not ours" not in page.text


def test_links_to_pages_of_one_title_say_their_files(tmp_path: Path) -> None:
    for name, title in (("a", "LightDP repair"), ("b", "LightDP repair"), ("c", "local DP"), ("d", "all")):
        save_page(small(title), tmp_path / f"{name}.html")
    assert [other["title"] for other in beside(tmp_path / "d.html")] == [
        "LightDP repair · a",
        "LightDP repair · b",
        "local DP",
    ]


def test_pages_of_compared_runs_are_linked_first_however_old_they_are(tmp_path: Path) -> None:
    paths = [log_file(tmp_path / f"{name}.jsonl", logged()) for name in "zyx"]
    for path in paths:
        save_page(small(path.stem), path.with_suffix(".html"))
    for number in range(6):
        save_page(small(f"Page {number}"), tmp_path / f"{number}.html")
        os.utime(tmp_path / f"{number}.html", (2e9, 2e9))
    save_runs([RunLog.read(path) for path in paths], tmp_path / "all.html")
    first = ["z.html", "y.html", "x.html"]
    assert links(tmp_path / "all.html") == [*first, "0.html", "1.html", "2.html"]
    save_page(small("Later"), tmp_path / "0.html")
    assert links(tmp_path / "all.html")[:3] == first


def links(file: Path) -> list[str]:
    return [attributes["href"] or "" for tag, attributes in written(file).tags if tag == "a"]


def test_pages_made_earlier_link_to_later_ones_and_change_in_nothing_else(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{name}.html" for name in ("first", "second", "third"))
    save_page(small("First \\1"), first, "lightdp plan")
    first.chmod(0o640)
    alone, made = first.read_bytes(), first.stat()
    save_page(small("Second & last"), second)
    save_page(small("Third"), third)
    assert links(first) == ["second.html", "third.html"]
    assert links(second) == ["first.html", "third.html"]
    assert links(third) == ["first.html", "second.html"]
    assert "Second & last" in written(first).text
    nav = re.compile(b"<nav aria-label=.*?</nav>")
    assert nav.sub(b"", first.read_bytes()) == alone
    assert (first.stat().st_mtime_ns, first.stat().st_mode) == (made.st_mtime_ns, made.st_mode)
    third.unlink()
    save_page(small("Second again"), second)
    assert links(first) == ["second.html"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["first.html", "second.html"]


def test_files_that_are_not_pages_of_the_frame_are_never_changed(tmp_path: Path) -> None:
    marker = "<!--lightdp:beside--><!--/lightdp:beside-->"
    ours = f'<meta name=lightdp content="plan"><title>x · lightdp</title>{marker}'
    kept, elsewhere = tmp_path / "pages", tmp_path / "elsewhere.html"
    kept.mkdir()
    elsewhere.write_text(ours)
    (kept / "foreign.html").write_text(f"<title>Not ours</title>{marker}")
    (kept / "old.html").write_text(ours.replace(marker, ""))
    (kept / "fixed.html").write_text(ours)
    (kept / "fixed.html").chmod(0o444)
    (kept / "linked.html").symlink_to(elsewhere)
    before = {file.name: (file.read_bytes(), file.lstat().st_ino) for file in kept.iterdir()}
    save_page(small("New"), kept / "new.html")
    assert {file.name: (file.read_bytes(), file.lstat().st_ino) for file in kept.iterdir()} == before | {
        "new.html": ((kept / "new.html").read_bytes(), (kept / "new.html").stat().st_ino)
    }
    assert elsewhere.read_text() == ours


def test_a_page_that_is_saved_again_meanwhile_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_page(small("First"), tmp_path / "first.html")

    def meanwhile(source: Path, target: Path) -> None:
        copystat(source, target)
        source.write_text("newer")

    copystat = shutil.copystat
    monkeypatch.setattr("lightdp.report._frame.shutil.copystat", meanwhile)
    save_page(small("Second"), tmp_path / "second.html")
    assert (tmp_path / "first.html").read_text() == "newer"


def test_a_page_without_a_command_claims_none(tmp_path: Path) -> None:
    save_page(small(), tmp_path / "a.html")
    assert "Made by this command" not in written(tmp_path / "a.html").text


def test_warnings_in_tables_lose_their_mark(tmp_path: Path) -> None:
    save_page(small(), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert 'class="word bad">bad' in text
    assert "!bad" not in text


@pytest.mark.parametrize("name", ["page.svg", "none/page.html"])
def test_save_page_refuses_what_it_cannot_write(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="out must"):
        save_page(small(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def large(make: Callable[..., RunLog], rounds: int, runs: int, population: int) -> list[RunLog]:
    logs = []
    for place in range(runs):
        spent = [0.0012345678 * (client + place / 7) for client in range(population)]
        lines = logged("repair", rounds=rounds, **({"epsilon_clients": spent} if population else {}))
        lines[0]["partition"]["counts"] = [[client % 7] * 100 for client in range(500)]
        for number, line in enumerate(lines[1:-1]):
            line["accuracy"] = 0.123456789012 + number / 1e6 + place / 1e3
            line["epsilon"] = 0.0012345678 * number * (1 + place / 9)
            line.update(members(number + 7 * place, population) if population else {})
        logs.append(make(name=f"run {place}", lines=lines))
    return logs


def members(number: int, population: int) -> dict[str, Any]:
    """A roster of 50 that is formed in each round, while others are away, wait or have spent their budget."""
    at = number * 50 % population
    formed = {"formed": [{"roster": number, "members": [*range(at, at + 50)]}], "closed": [], "roster": number}
    where = {"away_clients": 11, "waiting_clients": 13, "spent_clients": 17}
    return formed | {name: [*range(number % most)] for name, most in where.items()}


@pytest.mark.parametrize(
    ("rounds", "runs", "population"), [(3000, 1, 0), (1000, 6, 0), (300, 1, 1000), (300, 12, 1000), (300, 20, 1000)]
)
def test_a_page_of_long_runs_stays_small(
    make: Callable[..., RunLog], tmp_path: Path, rounds: int, runs: int, population: int
) -> None:
    logs = large(make, rounds, runs, population)
    save_runs(logs, tmp_path / "runs.html")
    most = MOST if runs > 12 else 300_000
    assert (tmp_path / "runs.html").stat().st_size - len(scripts().encode()) < most
    for panel in panels(logs)[:2]:
        found = drawn(panel.chart.to_dict())
        assert [max(line) for line in found.values()] == [rounds] * runs
    told = "Of a long run every second, third, … point is drawn" in written(tmp_path / "runs.html").text
    assert told == (rounds * runs > 300)


def test_what_several_charts_or_layers_have_is_written_once(make: Callable[..., RunLog], tmp_path: Path) -> None:
    logs = [make("repair"), make("exact")]
    save_runs(logs, tmp_path / "runs.html")
    page = written(tmp_path / "runs.html")
    assert page.scripts[0].count('"titleFontWeight"') == 2  # of axes and of legends, for all charts
    assert page.scripts[0].count("0.512") == 1
    for panel, chart in zip(panels(logs), page.charts, strict=True):
        assert chart == spec(panel.chart)


def test_pages_are_small(pages: dict[str, Path]) -> None:
    for file in pages.values():
        assert file.stat().st_size - len(scripts().encode()) < MOST


def test_tables_of_plans_have_the_numbers_of_their_charts() -> None:
    for panel in plan_panels(lightdp.plan(**PLAN)):
        assert panel.table is not None
        values = [row for layer in _layers(panel.chart.to_dict()) for row in layer.get("data", {}).get("values", ())]
        lines = {(f"{row['x']:g}", row["scheme"]): f"{row['value']:.4g}" for row in values if "scheme" in row}
        shown = {
            (line[0], name): cell
            for line in panel.table.rows
            for name, cell in zip(panel.table.head[1:], line[1:], strict=True)
            if cell != "–"
        }
        assert shown == lines
        assert len(shown) > 10


def test_tables_of_runs_have_the_numbers_of_their_charts(make: Callable[..., RunLog]) -> None:
    accuracy, epsilon, *_ = panels([make("repair"), make("exact")])
    assert accuracy.table is not None
    assert epsilon.table is not None
    assert accuracy.table.head == ["round", "LightDP repair", "LightDP exact"]
    assert accuracy.table.rows[0] == ["2", "51.20 %", "52.20 %"]
    assert epsilon.table.rows[1] == ["2", "0.8100", "0.8200"]
    assert len(epsilon.table.rows) == 7


def test_the_residual_says_why_it_zigzags(make: Callable[..., RunLog]) -> None:
    panel = next(panel for panel in panels([make("repair")]) if panel.title.startswith("Residual"))
    assert "goes up and down with them and is 0 where none is missing; it never adds up" in panel.note


@pytest.mark.parametrize("void", [0, 1, 2])
def test_noise_says_why_it_falls_to_zero(make: Callable[..., RunLog], void: int) -> None:
    lines = logged("repair")
    for line in lines[3 : 3 + void]:
        line |= {"used": 0, "late": 9, "lost": 1, "noise_std": 0.0, "residual_std": 0.0}
    notes = {panel.title: panel.note for panel in panels([make(lines=lines), make("none")])}
    told = ["", " 0 in 1 round that added no upload to the mean.", " 0 in 2 rounds that added no upload to the mean."]
    assert notes["Noise that stays, std"] == f"Added by each round to a coordinate of the mean, for good.{told[void]}"
    assert notes["Residual of a round, std"].endswith(" A round that uses no upload leaves none.") == (void > 0)


def _layers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [spec, *(inner for layer in spec.get("layer", ()) for inner in _layers(layer))]


def test_numbers_in_charts_have_seven_digits(tmp_path: Path) -> None:
    save_page(small(), tmp_path / "a.html")
    assert written(tmp_path / "a.html").charts[0]["data"]["values"] == [{"x": 1, "y": 2.123457}]
