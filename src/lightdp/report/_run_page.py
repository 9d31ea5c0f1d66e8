"""Runs as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vl_convert

from lightdp._validate import rounded_up
from lightdp.errors import ArgumentError
from lightdp.report._run import LONG, caveats, facts, labels, printable
from lightdp.report._run_charts import LOOK, colours, panels, run_chart
from lightdp.report._run_look import CSS, DRAW, PAGE
from lightdp.report._save import save
from lightdp.report._style import alt
from lightdp.schemes import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightdp.report._record import Run

_WORDS = ("unit", "adjacency", "stopped")
_SWATCH = (
    '<svg class=swatch viewBox="0 0 26 8" aria-hidden=true>'
    '<line x1=1 x2=25 y1=4 y2=4 stroke="{colour}" stroke-dasharray="{dashes}" /></svg>'
)


def save_runs(runs: Sequence[Run], path: Path) -> None:
    """Write the runs as `path` says, whole or not at all: .html is the page, .png and .svg are its charts."""
    if not runs:
        raise ArgumentError("runs must be at least one, got none")
    save(_Report(runs), path, name="out")


class _Report:
    """What `save` takes for a chart; nothing is drawn before `save` knows that it can be written."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs

    def save(self, name: str, **options: object) -> None:
        if name.endswith(".html"):
            Path(name).write_text(run_page(self.runs), encoding="utf-8", errors="replace")
        else:
            run_chart(self.runs).save(name, **options)


def run_page(runs: Sequence[Run]) -> str:
    """The page. Whatever comes from a record is escaped, in the text and in the data of the charts."""
    drawn = panels(runs)
    specs = {f"chart-{place}": _spec(panel.chart) for place, panel in enumerate(drawn)}
    figures = "\n".join(
        f"<figure class={panel.size}><figcaption><h3>{escape(panel.title)}</h3>"
        f"<p>{escape(panel.note)}</p></figcaption><div class=chart id=chart-{place}></div></figure>"
        for place, panel in enumerate(drawn)
    )
    return PAGE.format(
        title=escape(_title(runs)),
        css=CSS,
        summary=escape(_summary(runs)),
        cards="\n".join(_cards(runs)),
        caveats=_caveats(runs),
        table=_table(runs),
        statements="\n".join(_statements(runs)),
        legend=_legend(runs),
        figures=figures,
        settings=_settings(runs),
        specs=json.dumps(specs, allow_nan=False).replace("<", "\\u003c"),
        vega=_scripts(),
    )


@cache
def _scripts() -> str:
    """Everything that draws, for the version of charts that altair writes."""
    return vl_convert.javascript_bundle(DRAW, vl_version=".".join(alt.SCHEMA_VERSION.split(".")[:2]))


def _title(runs: Sequence[Run]) -> str:
    return labels(runs)[0] if len(runs) == 1 else f"{len(runs)} runs compared"


def _summary(runs: Sequence[Run]) -> str:
    """What the runs have in common."""
    first = runs[0].config
    shared = [name for name in ("model", "data", "clients", "partition") if name in first]
    words = {"model": "{}", "data": "on {}", "clients": "over {} clients", "partition": "split {}"}
    return " ".join(
        words[name].format(_value(first[name]))
        for name in shared
        if all(run.config.get(name) == first[name] for run in runs)
    )


def _named(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The name and the swatch of each run."""
    return [
        (name, _SWATCH.format(colour=colour, dashes=" ".join(map(str, dashes))))
        for name, (colour, dashes) in zip(labels(runs), colours(runs), strict=True)
    ]


def _legend(runs: Sequence[Run]) -> str:
    items = "".join(f"<li>{swatch}{escape(name)}</li>" for name, swatch in _named(runs))
    return f"<ul class=legend>{items}</ul>" if len(runs) > 1 else ""


def _cards(runs: Sequence[Run]) -> list[str]:
    """The most important figures: of several runs a card each, of one run a card for each figure."""
    cards = []
    for run, (name, swatch) in zip(runs, _named(runs), strict=True):
        row = {key: escape(value) for key, value in facts(run).items()}
        looked = "test accuracy" if run.end is not None else "test accuracy, last recorded"
        spent = "no privacy guarantee"
        if run.plan is not None:
            spent = f"of {row['ε claimed']} claimed, at δ&nbsp;=&nbsp;{row['δ']}"
        if len(runs) == 1:
            played = f"rounds; stopped: {row['stopped']}"
            cards += [
                _card("Accuracy", row["accuracy"], looked),
                _card("Privacy spent", f"ε = {row['ε true']}", spent),
                _card("Upload", row["up"], f"a client and round; {row['down']} down"),
                _card("Training", row["rounds"], played if run.end is None else f"{played}; {row['seconds']} s"),
            ]
        else:
            spent = spent if run.plan is None else f"ε&nbsp;=&nbsp;<b>{row['ε true']}</b> {spent}"
            rounds = f"{row['rounds']} round{'' if len(run.rounds) == 1 else 's'}"
            cards.append(_card(f"{swatch}{escape(name)}", row["accuracy"], f"{looked}, {rounds}<br>{spent}"))
    return cards


def _card(head: str, figure: str, words: str) -> str:
    return f"<article class=card><h3>{head}</h3><p class=big>{figure}</p><p>{words}</p></article>"


def _caveats(runs: Sequence[Run]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in caveats(runs))
    return f"<aside><h2>Before you compare</h2><ul>{items}</ul></aside>" if items else ""


def _table(runs: Sequence[Run]) -> str:
    rows = [facts(run) for run in runs]
    kinds = {name: " class=word" if name in _WORDS else "" for name in rows[0]}
    head = "".join(
        f'<th scope=col{kind} title="{escape(LONG.get(name, name))}">{escape(name)}</th>'
        for name, kind in kinds.items()
    )
    body = []
    for run, row, (name, swatch) in zip(runs, rows, _named(runs), strict=True):
        cells = []
        for key, value in row.items():
            bad = (key == "ε true" and run.exceeds) or (key == "stopped" and run.end is None)
            kind = " ".join((["word"] if key in _WORDS else []) + (["bad"] if bad else []))
            cells.append(f"<td{f' class={kind!r}' if kind else ''}>{escape(value)}</td>")
        body.append(f"<tr><th scope=row>{swatch}{escape(name)}</th>{''.join(cells)}</tr>")
    return f"<table><thead><tr><th scope=col>run</th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _statements(runs: Sequence[Run]) -> list[str]:
    result = []
    for run, (name, swatch) in zip(runs, _named(runs), strict=True):
        if run.end is not None:
            text = "".join(f"<p>{escape(printable(sentence))}</p>" for sentence in run.end.statement)
            text = text or "<p class=bad>The record has no statement.</p>"
        else:
            spent = (
                "" if run.epsilon is None else f" Up to its last recorded round it spent ε = {rounded_up(run.epsilon)}."
            )
            text = f"<p class=bad>Nothing is stated: the run has no end recorded.{escape(spent)}</p>"
        result.append(f"<article><h3>{swatch}{escape(name)}</h3>{text}</article>")
    return result


def _settings(runs: Sequence[Run]) -> str:
    """Every setting once; a row of its own value for each run only where runs differ."""
    groups: dict[str, list[Mapping[str, Any]]] = {
        "Settings": [run.config for run in runs],
        "Noise plan": [_planned(run) for run in runs],
        "Software": [
            {"commit": run.commit, "device": run.device, "parameters": run.parameters} | dict(run.versions)
            for run in runs
        ],
    }
    span, result = len(runs), []
    head = "".join(f"<th scope=col>{swatch}{escape(name)}</th>" for name, swatch in _named(runs))
    for title, columns in groups.items():
        rows = []
        for key in dict.fromkeys(key for column in columns for key in column):
            values = [_value(column[key]) if key in column else "–" for column in columns]
            same = len(set(values)) == 1
            cells = f"<td colspan={span}>{escape(values[0])}</td>" if same else "".join(
                f"<td>{escape(value)}</td>" for value in values
            )  # fmt: skip
            differs = len({value for value, column in zip(values, columns, strict=True) if key in column}) > 1
            rows.append(
                f"<tr{' class=differs' if differs else ''}><th scope=row>{escape(printable(key))}</th>{cells}</tr>"
            )
        if rows:
            result.append(
                f"<table class=settings><thead><tr><th scope=col>{title}</th>{head}</tr></thead>"
                f"<tbody>{''.join(rows)}</tbody></table>"
            )
    basis = f"flex-basis: min(100%, {200 + 150 * span}px)"
    return "\n".join(f'<div class=scroll style="{basis}">{table}</div>' for table in result)


def _planned(run: Run) -> dict[str, Any]:
    """What the plan adds to the settings."""
    if run.plan is None:
        return {}
    shown = {name: value for name, value in run.plan.items() if name not in run.config and name != "calibration"}
    return {"calibration": BUILT_IN[run.plan["calibration"]].label} | shown


def _value(value: object) -> str:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else printable(json.dumps(value, ensure_ascii=False))


def _spec(chart: alt.Chart | alt.LayerChart) -> dict[str, Any]:
    """As wide as its place, transparent; the page's style gives the colour of its text."""
    fitted = chart.properties(width="container").configure(**LOOK, background="transparent")
    return fitted.to_dict()
