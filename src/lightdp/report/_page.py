"""Runs as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import vl_convert

from lightdp._validate import rounded_up
from lightdp.errors import ArgumentError
from lightdp.report._charts import colours, panels, run_chart
from lightdp.report._figures import LONG, caveats, facts, labels, printable
from lightdp.report._save import FORMATS, whole
from lightdp.report._style import FONT, LOOK, alt
from lightdp.schemes import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightdp.runlog import RunLog, Started

# Its policy forbids every request; drawing compiles expressions of the charts, hence 'unsafe-eval'.
_PAGE = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
_DRAW = """
for (const [id, spec] of Object.entries(JSON.parse(document.getElementById("specs").textContent)))
  vegaEmbed("#" + id, spec, {actions: false, renderer: "svg"});
"""
_WORDS = ("unit", "adjacency", "stopped")
_SWATCH = (
    '<svg class=swatch viewBox="0 0 26 8" aria-hidden=true>'
    '<line x1=1 x2=25 y1=4 y2=4 stroke="{colour}" stroke-dasharray="{dashes}" /></svg>'
)


def save_runs(logs: Sequence[RunLog], path: Path) -> None:
    """Write runs as the suffix of `path` says, whole or not at all: .html is the page, .png and .svg are its charts.

    The page needs no network and no other file, and runs nothing that a log says: all of it is escaped.

    Args:
        logs: of the logs, in the order in which they are shown.
        path: the file.

    Raises:
        ArgumentError: there are no logs, the suffix is another one, or the folder refuses the file.
    """
    if not logs:
        raise ArgumentError("runs must be at least one, got none")
    with whole(path, "out") as file:
        if path.suffix == ".html":
            file.write_text(run_page(logs), encoding="utf-8", errors="replace")
        else:
            run_chart(logs).save(str(file), **FORMATS[path.suffix])


def run_page(logs: Sequence[RunLog]) -> str:
    """The page. Whatever comes from a log is escaped, in the text and in the data of the charts."""
    drawn = panels(logs)
    specs = {f"chart-{place}": _spec(panel.chart) for place, panel in enumerate(drawn)}
    figures = "\n".join(
        f"<figure class={panel.size}><figcaption><h3>{escape(panel.title)}</h3>"
        f"<p>{escape(panel.note)}</p></figcaption><div class=chart id=chart-{place}></div></figure>"
        for place, panel in enumerate(drawn)
    )
    return _PAGE.substitute(
        title=escape(labels(logs)[0] if len(logs) == 1 else f"{len(logs)} runs compared"),
        font=FONT,
        summary=escape(_summary(logs)),
        cards="\n".join(_cards(logs)),
        caveats=_caveats(logs),
        table=_table(logs),
        statements="\n".join(_statements(logs)),
        legend=_legend(logs),
        figures=figures,
        settings=_settings(logs),
        specs=json.dumps(specs, allow_nan=False).replace("<", "\\u003c"),
        vega=_scripts(),
    )


@cache
def _scripts() -> str:
    """Everything that draws, for the version of charts that altair writes."""
    return vl_convert.javascript_bundle(_DRAW, vl_version=".".join(alt.SCHEMA_VERSION.split(".")[:2]))


def _summary(logs: Sequence[RunLog]) -> str:
    """What the runs have in common."""
    first = logs[0].started.config
    words = {"model": "{}", "data": "on {}", "clients": "over {} clients", "partition": "split {}"}
    return " ".join(
        phrase.format(_value(first[name]))
        for name, phrase in words.items()
        if name in first and all(log.started.config.get(name) == first[name] for log in logs)
    )


def _named(logs: Sequence[RunLog]) -> list[tuple[str, str]]:
    """The name and the swatch of each run."""
    return [
        (name, _SWATCH.format(colour=colour, dashes=" ".join(map(str, dashes))))
        for name, (colour, dashes) in zip(labels(logs), colours(logs), strict=True)
    ]


def _legend(logs: Sequence[RunLog]) -> str:
    items = "".join(f"<li>{swatch}{escape(name)}</li>" for name, swatch in _named(logs))
    return f"<ul class=legend>{items}</ul>" if len(logs) > 1 else ""


def _cards(logs: Sequence[RunLog]) -> list[str]:
    """The most important figures: of several runs a card each, of one run a card for each figure."""
    cards = []
    for log, (name, swatch) in zip(logs, _named(logs), strict=True):
        row = {key: escape(value) for key, value in facts(log).items()}
        looked = "test accuracy" if log.ended is not None else "test accuracy, last recorded"
        spent = "no privacy guarantee"
        if log.started.plan is not None:
            spent = f"of {row['ε claimed']} claimed, at δ&nbsp;=&nbsp;{row['δ']}"
        if len(logs) == 1:
            played = f"rounds; stopped: {row['stopped']}"
            cards += [
                _card("Accuracy", row["accuracy"], looked),
                _card("Privacy spent", f"ε = {row['ε true']}", spent),
                _card("Upload", row["up"], f"a client and round; {row['down']} down"),
                _card("Training", row["rounds"], played if log.ended is None else f"{played}; {row['seconds']} s"),
            ]
        else:
            spent = spent if log.started.plan is None else f"ε&nbsp;=&nbsp;<b>{row['ε true']}</b> {spent}"
            rounds = f"{row['rounds']} round{'' if len(log.rounds) == 1 else 's'}"
            cards.append(_card(f"{swatch}{escape(name)}", row["accuracy"], f"{looked}, {rounds}<br>{spent}"))
    return cards


def _card(head: str, figure: str, words: str) -> str:
    return f"<article class=card><h3>{head}</h3><p class=big>{figure}</p><p>{words}</p></article>"


def _caveats(logs: Sequence[RunLog]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in caveats(logs))
    return f"<aside><h2>Before you compare</h2><ul>{items}</ul></aside>" if items else ""


def _table(logs: Sequence[RunLog]) -> str:
    rows = [facts(log) for log in logs]
    head = "".join(
        f'<th scope=col{" class=word" * (name in _WORDS)} title="{escape(LONG.get(name, name))}">{escape(name)}</th>'
        for name in rows[0]
    )
    body = []
    for log, row, (name, swatch) in zip(logs, rows, _named(logs), strict=True):
        cells = []
        for key, value in row.items():
            bad = (key == "ε true" and log.exceeds) or (key == "stopped" and log.ended is None)
            kind = " ".join(["word"] * (key in _WORDS) + ["bad"] * bad)
            cells.append(f"<td{f' class={kind!r}' if kind else ''}>{escape(value)}</td>")
        body.append(f"<tr><th scope=row>{swatch}{escape(name)}</th>{''.join(cells)}</tr>")
    return f"<table><thead><tr><th scope=col>run</th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _statements(logs: Sequence[RunLog]) -> list[str]:
    result = []
    for log, (name, swatch) in zip(logs, _named(logs), strict=True):
        if log.ended is not None:
            text = "".join(f"<p>{escape(printable(sentence))}</p>" for sentence in log.ended.statement)
            text = text or "<p class=bad>The log has no statement.</p>"
        else:
            spent = (
                "" if log.epsilon is None else f" Up to its last recorded round it spent ε = {rounded_up(log.epsilon)}."
            )
            text = f"<p class=bad>Nothing is stated: the run has no end recorded.{escape(spent)}</p>"
        result.append(f"<article><h3>{swatch}{escape(name)}</h3>{text}</article>")
    return result


def _settings(logs: Sequence[RunLog]) -> str:
    """Every setting once; a row of its own value for each run only where runs differ."""
    groups: dict[str, list[Mapping[str, Any]]] = {
        "Settings": [log.started.config for log in logs],
        "Noise plan": [_planned(log.started) for log in logs],
        "Software": [
            {name: getattr(log.started, name) for name in ("commit", "device", "parameters")}
            | dict(log.started.versions)
            for log in logs
        ],
    }
    head = "".join(f"<th scope=col>{swatch}{escape(name)}</th>" for name, swatch in _named(logs))
    basis = f"flex-basis: min(100%, {200 + 150 * len(logs)}px)"
    result = []
    for title, columns in groups.items():
        rows = []
        for key in dict.fromkeys(key for column in columns for key in column):
            values = [_value(column[key]) if key in column else "–" for column in columns]
            cells = "".join(f"<td>{escape(value)}</td>" for value in values)
            if len(set(values)) == 1:
                cells = f"<td colspan={len(logs)}>{escape(values[0])}</td>"
            differs = len({value for value, column in zip(values, columns, strict=True) if key in column}) > 1
            kind = " class=differs" if differs else ""
            rows.append(f"<tr{kind}><th scope=row>{escape(printable(key))}</th>{cells}</tr>")
        if rows:
            result.append(
                f'<div class=scroll style="{basis}"><table class=settings><thead><tr><th scope=col>{title}</th>{head}'
                f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
            )
    return "\n".join(result)


def _planned(started: Started) -> dict[str, Any]:
    """What the plan adds to the settings."""
    if started.plan is None:
        return {}
    named = {"calibration": BUILT_IN[started.plan["calibration"]].label}
    return named | {key: value for key, value in started.plan.items() if key not in (*named, *started.config)}


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
