from __future__ import annotations

import json
import math
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from lightdp import cli
from lightdp._check import ArgumentError, rounded_up
from lightdp.report import Run, read_run, run_chart, run_table, save_runs
from lightdp.report._run import caveats, facts, labels
from lightdp.report._run_charts import colours, panels
from lightdp.report._run_page import run_page

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Lines = list[dict[str, Any]]
EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">&\'[red]'
PLAN = {
    "calibration": "repair",
    "epsilon_claimed": 3.0,
    "delta": 1e-5,
    "unit": "record",
    "adjacency": "add-remove",
    "sigma_individual": 2.345678,
}


def record(scheme: str = "repair", rounds: int = 7, **changed: Any) -> Lines:
    """A record whose every figure is another one; `changed` goes into the end."""
    shift = 0.01 * ["none", "repair", "exact", "paper", "local", "central"].index(scheme)
    private = scheme != "none"
    first = {
        "kind": "run",
        "config": {"data": "digits", "scheme": scheme, "clients": 10, "lr": 2.5, "degree": None},
        "plan": PLAN | {"calibration": scheme} if private else None,
        "versions": {"torch": "2.13.0"},
        "commit": "0123abc",
        "partition": {"counts": [[3 * client + label for label in range(4)] for client in range(10)]},
        "parameters": 650,
        "device": "cpu",
    }
    played = [
        {
            "kind": "round",
            "round": t,
            "accuracy": None if t % 2 else 0.5 + shift + t / 1000,
            "loss": 2 / t,
            "epsilon": 0.4 * t + shift if private else None,
            "used": 10 - t % 4,
            "late": t % 4 // 2,
            "lost": t % 4 - t % 4 // 2,
            "noise_std": 0.1 * t + shift if private else 0.0,
            "residual_std": 0.7 * t if scheme == "repair" else 0.0,
            "modelled_seconds": None,
            "failed": None,
        }
        for t in range(1, rounds + 1)
    ]
    end = {
        "kind": "end",
        "accuracy": 0.61234 + shift,
        "epsilon": 2.87654321 + shift if private else None,
        "epsilon_claimed": 3.0 if private else None,
        "delta": 1e-5 if private else None,
        "unit": "record",
        "adjacency": "add-remove",
        "rounds": rounds,
        "stopped": None,
        "bytes_up": 1463,
        "bytes_down": 2602,
        "seconds": 12.34,
        "statement": [f"A sentence about {scheme}.", "And another."],
    }
    return [first, *played, end | changed]


def written(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Run]:
    """A run read back from its record."""

    def read(scheme: str = "repair", name: str | None = None, lines: Lines | None = None, **changed: Any) -> Run:
        file = tmp_path / f"{scheme if name is None else name}.jsonl"
        return read_run(written(file, record(scheme, **changed) if lines is None else lines))

    return read


class Page(HTMLParser):
    """Tags with their attributes, text outside of scripts and styles, and the charts of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(html)
        self.close()
        self.text = " ".join(" ".join(self.words).split())
        self.charts = list(json.loads(self.scripts[0]).values())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002  the name of what is overridden
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words.append(data)


def drawn(spec: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Of a panel of lines: {run: {round: value}}."""
    result: dict[str, dict[int, float]] = {}
    line = next(layer for layer in spec["layer"] if layer["mark"]["type"] == "line")
    for row in line.get("data", spec.get("data"))["values"]:
        result.setdefault(row["run"], {})[row["round"]] = row["value"]
    return result


def recorded(lines: Lines, field: str) -> dict[int, float]:
    return {line["round"]: line[field] for line in lines[1:-1] if line[field] is not None}


def shown(runs: Sequence[Run]) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    console.print(run_table(runs))
    console.file.close()
    return console.export_text()


# Reading


def test_a_record_is_read_as_written(make: Callable[..., Run]) -> None:
    lines, run = record(), make()
    assert [vars(r) | {"kind": "round"} for r in run.rounds] == lines[1:-1]
    assert run.end is not None
    assert vars(run.end) | {"kind": "end", "statement": list(run.end.statement)} == lines[-1]
    assert run.config == lines[0]["config"]
    assert (run.scheme, run.parameters, run.device, run.commit) == ("repair", 650, "cpu", "0123abc")
    assert (run.accuracy, run.epsilon, run.claimed, run.delta) == (
        lines[-1]["accuracy"],
        lines[-1]["epsilon"],
        3.0,
        1e-5,
    )
    assert (run.unit, run.adjacency) == ("record", "add-remove")


def test_a_run_cannot_be_changed(make: Callable[..., Run]) -> None:
    with pytest.raises(AttributeError):
        make().parameters = 3  # type: ignore[misc]


def test_noise_is_the_root_mean_square_of_the_rounds(make: Callable[..., Run]) -> None:
    stds = [line["noise_std"] for line in record()[1:-1]]
    assert make().noise == pytest.approx(math.sqrt(sum(std**2 for std in stds) / len(stds)))


def test_a_residual_that_nobody_repairs_stays(make: Callable[..., Run]) -> None:
    lines = [line | {"noise_std": 3.0, "residual_std": 4.0} if line["kind"] == "round" else line for line in record()]
    repair = make(lines=lines)
    exact = make("exact", lines=[lines[0] | {"plan": PLAN | {"calibration": "exact"}}, *lines[1:]])
    assert (repair.noise, exact.noise) == (3.0, 5.0)
    assert drawn(panels([repair, exact])[2].chart.to_dict())["LightDP exact"][1] == 5.0
    assert list(drawn(panels([repair, exact])[3].chart.to_dict())) == ["LightDP repair"]


def test_without_noise_nothing_is_protected(make: Callable[..., Run]) -> None:
    run = make("none")
    assert (run.scheme, run.epsilon, run.claimed, run.unit, run.adjacency) == ("none", None, None, None, None)
    assert [facts(run)[name] for name in ("ε claimed", "ε true", "δ", "unit")] == ["∞", "∞", "–", "–"]


def test_an_interrupted_run_shows_what_was_recorded_last(make: Callable[..., Run]) -> None:
    run = make(lines=record()[:-1])
    assert run.end is None
    assert run.accuracy == record()[6]["accuracy"]  # round 6 was the last that was evaluated
    assert run.epsilon == record()[7]["epsilon"]
    assert (run.claimed, run.delta, run.unit, run.adjacency) == (3.0, 1e-5, "record", "add-remove")
    assert facts(run)["stopped"] == "no end recorded"


def test_a_run_that_never_played_a_round_is_read(make: Callable[..., Run]) -> None:
    run = make(lines=record()[:1])
    assert (run.rounds, run.end, run.accuracy, run.epsilon, run.noise) == ((), None, None, None, None)


def test_fields_that_are_not_known_yet_are_ignored(make: Callable[..., Run]) -> None:
    lines = [line | {"later": 1} for line in record()]
    assert len(make(lines=lines).rounds) == 7


def changed(place: int, **fields: Any) -> Callable[[Lines], Lines]:
    return lambda lines: [line | fields if i == place else line for i, line in enumerate(lines)]


def without(place: int, field: str) -> Callable[[Lines], Lines]:
    return lambda lines: [
        {key: value for key, value in line.items() if i != place or key != field} for i, line in enumerate(lines)
    ]


BROKEN: dict[str, tuple[Callable[[Lines], Lines], int, str]] = {
    "begins with a round": (lambda lines: lines[1:], 1, "kind must be run, got kind='round'"),
    "begins twice": (lambda lines: [lines[0], *lines], 2, "kind must be round or end, got kind='run'"),
    "gap": (lambda lines: lines[:2] + lines[3:], 3, "round must be 2, the next one, got round=3"),
    "goes on": (lambda lines: [*lines, lines[1]], 10, "nothing may follow the end"),
    "end disagrees": (changed(8, rounds=8), 9, "rounds must be 7, as many as were recorded, got rounds=8"),
    "unknown kind": (changed(3, kind="x"), 4, "kind must be round or end, got kind='x'"),
    "missing": (without(4, "used"), 5, "must have used"),
    "missing in the end": (without(8, "statement"), 9, "must have statement"),
    "no plan": (without(0, "plan"), 1, "must have plan"),
    "text": (changed(2, accuracy="0.5"), 3, "accuracy must be a number, got accuracy='0.5'"),
    "percent": (changed(2, accuracy=62.5), 3, r"accuracy must be in \[0, 1\], got accuracy=62.5"),
    "negative": (changed(2, epsilon=-0.1), 3, "epsilon must be >= 0, got epsilon=-0.1"),
    "bool": (changed(2, used=True), 3, "used must be an integer, got used=True"),
    "fraction": (changed(2, lost=1.5), 3, "lost must be an integer, got lost=1.5"),
    "huge": (changed(2, noise_std=10**400), 3, "too large"),
    "epsilon hidden": (changed(2, epsilon=None), 3, "epsilon must not be null in a run with a plan"),
    "epsilon hidden at the end": (changed(8, epsilon=None), 9, "epsilon must not be null in a run with a plan"),
    "stopped": (changed(8, stopped="x"), 9, "stopped must be one of budget, interrupted, got stopped='x'"),
    "statement": (changed(8, statement="all is well"), 9, "statement must be a list of sentences"),
    "calibration": (changed(0, plan=PLAN | {"calibration": "magic"}), 1, "plan: calibration must be one of"),
    "plan without delta": (changed(0, plan={"calibration": "exact"}), 1, "plan: must have epsilon_claimed, delta"),
    "counts": (changed(0, partition={"counts": [[1, 2], [3]]}), 1, "counts must be a list of rows of one length"),
    "negative count": (changed(0, partition={"counts": [[1, -2]]}), 1, "counts must be >= 0"),
    "config": (changed(0, config=[]), 1, "config must be an object"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_record_is_refused_with_file_line_and_reason(tmp_path: Path, case: str) -> None:
    breaks, line, reason = BROKEN[case]
    file = written(tmp_path / "broken.jsonl", breaks(record()))
    with pytest.raises(ArgumentError, match=rf"broken[.]jsonl, line {line}: .*{reason}"):
        read_run(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"kind": "rou', "must be JSON.*take this line out"),
        (b'{"kind": NaN}\n', "NaN is not a JSON number"),
        (b"[1]\n", "must be a JSON object, got list"),
        (b"\n", "must be JSON"),
        (b"\xff\n", "must be JSON.*utf-8"),
        (b"[" * 100_000 + b"\n", "must be JSON"),
    ],
)
def test_a_line_that_is_no_object_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    file = written(tmp_path / "run.jsonl", record()[:3])
    file.write_bytes(file.read_bytes() + text)
    with pytest.raises(ArgumentError, match=rf"(?s)run[.]jsonl, line 4: .*{reason}"):
        read_run(file)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    with pytest.raises(ArgumentError, match=r"run[.]jsonl, line 1: .*empty"):
        read_run(tmp_path / "run.jsonl")


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match="run must be a readable record, got run="):
        read_run(tmp_path / name)


# Figures


def test_runs_are_called_by_their_scheme_and_if_need_be_by_their_file(make: Callable[..., Run]) -> None:
    runs = [make("exact", "a"), make("none", "b"), make("exact", "c")]
    assert labels(runs) == ["LightDP exact · a", "no noise", "LightDP exact · c"]
    assert labels(runs[:2]) == ["LightDP exact", "no noise"]


def test_a_run_given_twice_has_two_names_and_two_looks(make: Callable[..., Run]) -> None:
    runs = [make("exact")] * 12
    assert len(set(labels(runs))) == 12
    assert len({str(look) for look in colours(runs)}) == 12


def test_epsilon_is_never_rounded_down() -> None:
    assert [rounded_up(x) for x in (3, 2.9, 2.00001, 0.30000000000000004)] == ["3.0000", "2.9000", "2.0001", "0.3000"]


def test_the_table_has_the_figures_of_every_run(make: Callable[..., Run]) -> None:
    text = shown([make("repair"), make("exact", stopped="budget"), make("none")])
    for figure in ("62.23 %", "63.23 %", "61.23 %", "2.8866", "2.8966", "∞", "1e-05", "1.463 kB", "2.602 kB", "12.3"):
        assert figure in text
    assert "at the budget" in text


def test_the_table_takes_names_for_what_they_are(make: Callable[..., Run]) -> None:
    text = shown([make("exact", "[red]a\x1b[2J"), make("exact", "b")])
    assert "[red]a\N{REPLACEMENT CHARACTER}[2J" in text
    assert "\x1b" not in text


CAVEATS: dict[str, tuple[dict[str, Any], str | None]] = {
    "nothing": ({}, None),
    "more spent than claimed": ({"epsilon": 3.01}, "spent ε = 3.0100, more than the 3 it claims"),
    "all spent": ({"epsilon": 3.0}, None),
    "assumed sensitivity": ({"unit": "paper"}, "assumed sensitivity"),
}


@pytest.mark.parametrize("case", CAVEATS)
def test_a_run_to_be_wary_of_is_said_to_be(make: Callable[..., Run], case: str) -> None:
    fields, sentence = CAVEATS[case]
    said = caveats([make("exact", **fields)])
    assert (sentence is None and said == []) or (sentence is not None and sentence in said[0])


@pytest.mark.parametrize(
    ("scheme", "sentence"), [("none", "no privacy is guaranteed"), ("central", "trusts the server")]
)
def test_a_weaker_adversary_is_said(make: Callable[..., Run], scheme: str, sentence: str) -> None:
    assert sentence in caveats([make(scheme)])[0]


@pytest.mark.parametrize(("field", "value"), [("unit", "client"), ("adjacency", "replace"), ("delta", 1e-6)])
def test_epsilons_that_do_not_compare_are_said_not_to(make: Callable[..., Run], field: str, value: object) -> None:
    said = caveats([make("exact"), make("repair", **{field: value})])
    assert [f"differ in {field}" in sentence for sentence in said] == [True]
    assert "do not compare" in said[0]


def test_runs_on_other_data_are_said_to_be(make: Callable[..., Run]) -> None:
    lines = record("exact")
    lines[0]["config"]["data"] = "cifar10"
    assert caveats([make("repair"), make("exact", lines=lines)]) == ["The runs differ in data: cifar10, digits."]


# The page


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, list[Run]]:
    """The page of a repair run, an exact run cut off, and one without noise."""
    folder = tmp_path_factory.mktemp("runs")
    lines = {"repair": record("repair"), "exact": record("exact")[:-1], "none": record("none")}
    runs = [read_run(written(folder / f"{name}.jsonl", content)) for name, content in lines.items()]
    return Page(run_page(runs)), runs


@pytest.mark.parametrize(("place", "field"), [(0, "accuracy"), (1, "epsilon"), (2, "noise_std")])
def test_lines_of_three_runs_are_drawn_as_recorded(three: tuple[Page, list[Run]], place: int, field: str) -> None:
    names = {"LightDP repair": "repair", "LightDP exact": "exact"}
    if field == "accuracy":
        names["no noise"] = "none"
    expected = {name: recorded(record(scheme), field) for name, scheme in names.items()}
    assert drawn(three[0].charts[place]) == expected


def test_the_residual_is_drawn_where_there_is_one(three: tuple[Page, list[Run]]) -> None:
    assert drawn(three[0].charts[3]) == {"LightDP repair": recorded(record(), "residual_std")}


def test_the_budget_is_a_rule(three: tuple[Page, list[Run]]) -> None:
    rules = [layer for layer in three[0].charts[1]["layer"] if layer["mark"]["type"] == "rule"]
    assert [row["budget"] for rule in rules for row in rule["data"]["values"]] == [3.0]


def test_runs_have_the_same_colour_in_every_panel(three: tuple[Page, list[Run]]) -> None:
    scales = [
        layer["encoding"]["color"]["scale"]
        for chart in three[0].charts[:4]
        for layer in chart["layer"]
        if "color" in layer.get("encoding", {})
    ]
    assert len(scales) >= 8
    assert all(scale == scales[0] for scale in scales)
    assert scales[0]["domain"] == ["LightDP repair", "LightDP exact", "no noise"]
    assert len(set(scales[0]["range"])) == 3


@pytest.mark.parametrize(("place", "scheme"), [(4, "repair"), (5, "exact"), (6, "none")])
def test_stragglers_are_drawn_as_recorded(three: tuple[Page, list[Run]], place: int, scheme: str) -> None:
    rows = three[0].charts[place]["data"]["values"]
    wanted = ("round", "used", "late", "lost")
    assert [[row[key] for key in wanted] for row in rows[:-1]] == [
        [line[key] for key in wanted] for line in record(scheme)[1:-1]
    ]


def test_the_partition_is_drawn_as_recorded(three: tuple[Page, list[Run]]) -> None:
    rows = three[0].charts[7]["data"]["values"]
    counts = record()[0]["partition"]["counts"]
    assert {(row["client"], row["class"]): row["records"] for row in rows} == {
        (client, label): count for client, row in enumerate(counts) for label, count in enumerate(row)
    }
    assert "600 records at 10 clients, 6 to 114 each. The same in all runs." in three[0].text


def test_a_partition_of_many_clients_says_how_many_are_drawn(make: Callable[..., Run]) -> None:
    lines = record()
    lines[0]["partition"]["counts"] = [[1, 2]] * 201
    panel = panels([make(lines=lines)])[-1]
    assert "the first 200 clients are drawn" in panel.note
    assert len(panel.chart.to_dict()["data"]["values"]) == 400


def test_void_rounds_are_counted(make: Callable[..., Run]) -> None:
    lines = [line | {"used": 0, "lost": 10, "late": 0} if line.get("round") == 3 else line for line in record()]
    assert "Rounds without any upload used: 1." in panels([make(lines=lines)])[4].note


def test_every_figure_is_in_the_tables_of_the_page(three: tuple[Page, list[Run]]) -> None:
    page, runs = three
    for run in runs:
        row = " ".join(facts(run).values())
        assert f"{row} " in page.text
    assert "2.8866" in page.text
    assert "62.23 %" in page.text


def test_settings_are_shown_once_where_runs_agree(three: tuple[Page, list[Run]]) -> None:
    text = three[0].text
    assert " lr 2.5 degree none " in text
    assert " scheme repair exact none " in text
    assert " sigma_individual 2.34568 2.34568 – " in text
    assert " commit 0123abc device cpu parameters 650 torch 2.13.0 " in text


def test_the_statement_of_a_finished_run_is_shown_and_that_of_another_is_not_made_up(
    three: tuple[Page, list[Run]],
) -> None:
    text = three[0].text
    assert "A sentence about repair. And another." in text
    assert "A sentence about none." in text
    assert "Nothing is stated: the run has no end recorded. Up to its last recorded round it spent ε = 2.8200." in text
    assert "LightDP exact has no end recorded: it was cut off after round 7, or is still running." in text


def test_the_page_asks_nobody_for_anything(three: tuple[Page, list[Run]]) -> None:
    tags = three[0].tags
    asking = {"src", "href", "srcset", "action", "data", "poster", "background"}
    assert [tag for tag, attributes in tags if asking & set(attributes)] == []
    assert not {"link", "iframe", "object", "embed", "base"} & {tag for tag, _ in tags}
    policies = [attributes["content"] for _, attributes in tags if "http-equiv" in attributes]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'"]


@pytest.mark.parametrize("schemes", [["evil"], ["evil", "evil"], ["evil", "exact"]])
def test_what_a_record_says_stays_text(make: Callable[..., Run], schemes: list[str]) -> None:
    lines = record("exact", statement=[EVIL], unit=EVIL, adjacency=EVIL)
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


def test_a_character_that_cannot_be_written_does_not_stop_the_page(make: Callable[..., Run], tmp_path: Path) -> None:
    lines = record("exact", statement=["\ud800 half"], unit="\ud800")
    lines[0]["config"]["\ud800"] = ["\ud800"]
    save_runs([make(lines=lines)], tmp_path / "page.html")
    assert "\N{REPLACEMENT CHARACTER} half" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("rounds", [0, 1])
def test_the_shortest_runs_have_a_page(make: Callable[..., Run], rounds: int) -> None:
    page = Page(run_page([make(lines=record()[: 1 + rounds])]))
    assert len(page.charts) == [1, 5][rounds]  # without rounds, the partition alone


# Files


def test_the_sheet_has_every_panel(three: tuple[Page, list[Run]]) -> None:
    rows = run_chart(three[1]).to_dict()["vconcat"]
    titles = [panel["title"]["text"] for row in rows[1:] for panel in row["hconcat"]]
    assert titles == [panel.title for panel in panels(three[1])]


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("html", b"<!doctype html>")])
def test_a_report_is_written_as_its_name_says(
    make: Callable[..., Run], tmp_path: Path, suffix: str, start: bytes
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    save_runs([make("repair"), make("exact")], folder / f"report.{suffix}")
    assert [file.name for file in folder.iterdir()] == [f"report.{suffix}"]
    assert (folder / f"report.{suffix}").read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["report.pdf", "report", "none/report.html"])
def test_a_report_that_cannot_be_written_is_refused(make: Callable[..., Run], tmp_path: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        save_runs([make()], tmp_path / name)


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="runs must be at least one"):
        save_runs([], tmp_path / "report.html")


# The command


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["lightdp", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_command_writes_the_page_and_prints_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [written(tmp_path / f"{scheme}.jsonl", record(scheme)) for scheme in ("repair", "exact")]
    assert command(monkeypatch, *files) == 0
    out = capsys.readouterr().out
    assert "2.8866" in out
    assert "2.8966" in out
    assert "wrote report.html" in out
    assert Page(Path("report.html").read_text(encoding="utf-8")).charts


def test_the_command_refuses_a_broken_record_in_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = written(tmp_path / "good.jsonl", record())
    bad = written(tmp_path / "bad.jsonl", record()[1:])
    assert command(monkeypatch, good, bad, "--out", tmp_path / "report.html") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {bad}, line 1: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_accuracy_is_drawn_against_modelled_time_where_it_was_recorded(make: Callable[..., Run]) -> None:
    assert "Test accuracy against time" not in [panel.title for panel in panels([make()])]
    lines = record(rounds=6)
    for line in lines[1:-1]:
        line |= {"modelled_seconds": 0.5 * line["round"], "failed": "unmask" if line["round"] == 3 else None}
    timed = make(lines=lines)
    assert timed.clock == [0.5, 1.5, 3.0, 5.0, 7.5, 10.5]
    panel = next(panel for panel in panels([timed, make("exact")]) if panel.title == "Test accuracy against time")
    assert "Failed rounds, which cost time and give nothing: 1." in panel.note
    times = [row["time"] for row in panel.chart.to_dict()["data"]["values"]]
    assert times == [1.5, 5.0, 10.5]  # every second round was looked at


def test_a_run_of_a_compared_scheme_has_its_own_name_and_colour(make: Callable[..., Run]) -> None:
    secagg, lightsecagg = record(), record()
    for lines, scheme in ((secagg, "secagg"), (lightsecagg, "lightsecagg")):
        lines[0]["config"] |= {"scheme": scheme}
        lines[0]["plan"] = PLAN | {"calibration": "smpc"}
    runs = [make(lines=secagg, name="a"), make(lines=lightsecagg, name="b")]
    assert labels(runs) == ["SecAgg + DP", "LightSecAgg + DP"]
    assert len({colour for colour, _ in colours(runs)}) == 2
    assert "SMPC + DP" in run_page(runs)
