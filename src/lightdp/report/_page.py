"""Runs as one HTML page without network or other files. Its markup is in page.html, inside the frame of all pages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lightdp.errors import ArgumentError
from lightdp.report._figures import LONG, caveats, labels, printable, side_by_side
from lightdp.report._frame import rendered, save_either
from lightdp.report._panel import MOST
from lightdp.report._panels import colours, panels, run_chart
from lightdp.runlog import RunLog, Started
from lightdp.schemes import BUILT_IN

_DOCS = "The log of a run"


def save_runs(
    logs: Sequence[RunLog], path: Path, command: str | None = None, *, name: str = "out", overwrite: bool = False
) -> None:
    """Write runs in the format of the suffix of `path`: .html is the page, .png and .svg are its charts.

    The file is written whole or not at all. The page needs no network and no other file, and executes nothing that a
    log contains: all of it is escaped.

    Args:
        logs: the runs, in the order in which they are shown.
        path: the file.
        command: the command line that makes the page, which is shown on it.
        name: what errors call `path`.
        overwrite: whether it may replace a file that is no page or picture of lightdp.

    Raises:
        ArgumentError: there are no logs, the suffix is another one, the folder refuses the file, or a file is there
            that may not be replaced.
    """
    if not logs:
        raise ArgumentError("runs must be at least one, got none")
    pages = [log.path.with_suffix(".html") for log in logs]
    first = [quote(page.name) for page in pages if len(logs) > 1 and page.parent.resolve() == path.parent.resolve()]
    save_either(
        path, name, command, page=lambda **frame: run_page(logs, **frame), chart=lambda: run_chart(logs),
        overwrite=overwrite, first=first,
    )  # fmt: skip


def run_page(logs: Sequence[RunLog], **frame: Any) -> str:  # noqa: ANN401  of the frame
    """The page. Everything from a log is escaped, in the text and in the data of the charts."""
    names = labels(logs)
    runs = [
        {"log": log, "name": name, "colour": colour, "dashes": dashes, "facts": figures}
        for log, name, figures, (colour, dashes) in zip(logs, names, side_by_side(logs), colours(logs), strict=True)
    ]
    sparse = len(logs) * max(len(log.rounds) for log in logs) > MOST
    title = names[0] if len(logs) == 1 else f"{len(logs)} runs compared"
    return rendered(
        "page.html", panels=panels(logs), kind="runs", title=title, summary=_summary(logs), runs=runs,
        caveats=caveats(logs), long=LONG, settings=_settings(logs), docs=_DOCS, sparse=sparse, **frame,
    )  # fmt: skip


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
