"""Runs as one HTML page without network or other files. Its markup is in frame.html and page.html, with page.js."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import vl_convert

from lightdp._validate import rounded_down, rounded_up
from lightdp.errors import ArgumentError
from lightdp.report._chart import FONT, FORMATS, LOOK, alt, whole
from lightdp.report._figures import LONG, caveats, labels, printable, side_by_side
from lightdp.report._panels import colours, panels, run_chart
from lightdp.runlog import RunLog, Started
from lightdp.schemes import BUILT_IN


def save_runs(logs: Sequence[RunLog], path: Path) -> None:
    """Write runs in the format of the suffix of `path`: .html is the page, .png and .svg are its charts.

    The file is written whole or not at all. The page needs no network and no other file, and executes nothing that a
    log contains: all of it is escaped.

    Args:
        logs: the runs, in the order in which they are shown.
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
    """The page. Everything from a log is escaped, in the text and in the data of the charts."""
    drawn, names = panels(logs), labels(logs)
    runs = [
        {"log": log, "name": name, "colour": colour, "dashes": dashes, "facts": figures}
        for log, name, figures, (colour, dashes) in zip(logs, names, side_by_side(logs), colours(logs), strict=True)
    ]
    title = names[0] if len(logs) == 1 else f"{len(logs)} runs compared"
    specs = {f"chart-{place}": spec(panel.chart) for place, panel in enumerate(drawn)}
    return template("page.html").render(
        title=title, font=FONT, summary=_summary(logs), runs=runs, caveats=caveats(logs), long=LONG, panels=drawn,
        settings=_settings(logs), specs=specs, scripts=scripts(),
    )  # fmt: skip


@cache
def template(name: str) -> jinja2.Template:
    """A page inside the frame that all share; whatever is put into it is escaped."""
    files, strict = jinja2.FileSystemLoader(Path(__file__).parent), jinja2.StrictUndefined
    engine = jinja2.Environment(loader=files, autoescape=True, trim_blocks=True, undefined=strict)
    engine.filters |= {"printable": printable, "rounded_up": rounded_up, "rounded_down": rounded_down}
    engine.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return engine.get_template(name)


@cache
def scripts() -> str:
    """Everything that draws, for the version of charts that altair writes."""
    draw = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    return vl_convert.javascript_bundle(draw, vl_version=".".join(alt.SCHEMA_VERSION.split(".")[:2]))


def _summary(logs: Sequence[RunLog]) -> str:
    """What the runs have in common."""
    known = [dict(log.started.config) | {"model": log.model, "data": log.data} for log in logs]
    first = known[0]
    words = {"model": "{}", "data": "on {}", "clients": "over {} clients", "population": "of {}"}
    words["partition"] = "split {}"
    return " ".join(
        phrase.format(_value(first[name]))
        for name, phrase in words.items()
        if first.get(name) is not None and all(each.get(name) == first[name] for each in known)
    )


def _settings(logs: Sequence[RunLog]) -> dict[str, list[tuple[str, list[str], bool]]]:
    """By group: each setting, its values (one where all runs agree, else one for each run) and whether they differ."""
    started, software = [log.started for log in logs], ("commit", "device", "parameters")
    groups: dict[str, list[Mapping[str, Any]]] = {
        "Settings": [_resolved(log) for log in logs],
        "Noise plan": [_planned(first) for first in started],
        "Software": [{name: getattr(first, name) for name in software} | dict(first.versions) for first in started],
    }
    result: dict[str, list[tuple[str, list[str], bool]]] = {title: [] for title in groups}
    for title, columns in groups.items():
        for key in dict.fromkeys(key for column in columns for key in column):
            values = [_value(column[key]) if key in column else "–" for column in columns]
            differs = len({value for value, column in zip(values, columns, strict=True) if key in column}) > 1
            result[title].append((printable(key), values[:1] if len(set(values)) == 1 else values, differs))
    return result


def _resolved(log: RunLog) -> dict[str, Any]:
    """The settings; for those that were left open, what the plan and the rounds have."""
    config, plan = log.started.config, log.started.plan or {}
    result = {key: plan.get(key) if value is None else value for key, value in config.items()}
    result |= {key: name for key, name in {"data": log.data, "model": log.model}.items() if name is not None}
    if config.get("scheme") == "auto" and "calibration" in plan:
        result["scheme"] = f"auto: {plan['calibration']}"
    if "grace" in result and result["grace"] is None and log.rounds:  # without noise
        result["grace"] = int(log.grace)
    return result


def _planned(started: Started) -> dict[str, Any]:
    """What the plan adds to the settings."""
    if started.plan is None:
        return {}
    named = {"calibration": BUILT_IN[started.plan["calibration"]].label}
    return named | {key: value for key, value in started.plan.items() if key not in (*named, *started.config)}


def _value(value: object) -> str:
    if isinstance(value, str):
        return printable(value)
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else printable(json.dumps(value, ensure_ascii=False))


def spec(chart: alt.Chart | alt.LayerChart) -> dict[str, Any]:
    """As wide as its place, transparent; the page's style gives the colour of its text."""
    return chart.properties(width="container").configure(**LOOK, background="transparent").to_dict()
