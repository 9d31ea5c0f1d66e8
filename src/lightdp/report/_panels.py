"""Panels that lay runs over each other, round by round, and the sheet of all of them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple, TypeAlias

from lightdp._validate import counted, rounded_up
from lightdp.report._chart import FAINT, SOFT, Chart, alt, data, heading, line_names, sheet, within
from lightdp.report._figures import labels
from lightdp.report._members import member_panels
from lightdp.report._panel import Panel, Table, crossed, few, rounds_axis
from lightdp.report._uploads import partition, stragglers
from lightdp.runlog import Round, RunLog
from lightdp.schemes import schemes as registry


class _Kind(NamedTuple):
    """How values are shown: axis and tooltip formats, text in tables, and whether the axis begins at 0."""

    axis: str
    precision: str
    text: Callable[[float], str]
    zero: bool


_SHARE = _Kind("~%", ".2%", lambda value: f"{100 * value:.2f} %", zero=False)
_EPSILON = _Kind("~r", ".4f", rounded_up, zero=True)
_STD = _Kind("~r", ".4g", lambda value: f"{value:.4g}", zero=True)
_Value: TypeAlias = Callable[[RunLog, Round], float | None]

_DASHES = ([1, 0], [7, 4], [2, 3])
_FEW = 30  # points that are each drawn as a dot
_HEIGHT = 230
_WIDE = 900
_GAP = 56


def colours(logs: Sequence[RunLog]) -> list[tuple[str, list[int]]]:
    """Colour and dashes of each run: the first run of a scheme has its colour, others what is left."""
    every, schemes = {scheme.name: scheme.colour for scheme in registry().values()}, [log.scheme for log in logs]
    every["none"] = every.pop("none")  # the last to be lent to others
    free = [(colour, _DASHES[0]) for scheme, colour in every.items() if scheme not in schemes]
    spare = cycle(free + [(colour, dashes) for dashes in _DASHES[1:] for colour in every.values()])
    return [
        next(spare) if scheme in schemes[:place] else (every[scheme], _DASHES[0])
        for place, scheme in enumerate(schemes)
    ]


def panels(logs: Sequence[RunLog]) -> list[Panel]:
    """The panels that have something to show, without legends of the runs."""
    seen = "Of the model after each round that was evaluated."
    drawn = [
        _lines(logs, _rows(logs, lambda _, line: line.accuracy), _SHARE, ("Test accuracy", seen)),
        _epsilon(logs),
        _time(logs),
        _lines(logs, _positive(_rows(logs, RunLog.stays)), _STD, ("Noise that stays, std", _stays(logs))),
        _lines(logs, _positive(_rows(logs, RunLog.goes)), _STD, ("Residual of a round, std", _goes(logs))),
        *(stragglers(logs, place) for place in range(len(logs))),
        *(panel for log, name in zip(logs, labels(logs), strict=True) for panel in member_panels(log, name, logs)),
        partition(logs),
    ]
    return [panel for panel in drawn if panel is not None]


def run_chart(logs: Sequence[RunLog]) -> Chart:
    """All panels on one sheet of fixed width: accuracy, ε, time, noise, stragglers and who holds what.

    A wide panel has a row for itself; others are set in pairs.
    """
    rows: list[list[alt.Chart | alt.LayerChart]] = []
    room = False  # beside the last panel
    for panel in panels(logs):
        wide = panel.size == "wide"
        words = textwrap.wrap(panel.note, 140 if wide else 66)
        title = heading(panel.title, *words, size=14)
        if wide or not room:
            rows.append([])
        rows[-1].append(panel.chart.properties(title=title, width=_WIDE if wide else (_WIDE - _GAP) // 2))
        room = not wide and not room
    own = {"color": "independent", "strokeDash": "independent", "opacity": "independent"}
    lines = (alt.hconcat(*row, spacing=_GAP).resolve_scale(**own) for row in rows)
    stacked = alt.vconcat(_legend(logs), *lines, spacing=30)
    return sheet(stacked.resolve_scale(**own))


def _legend(logs: Sequence[RunLog]) -> alt.LayerChart:
    """A line and a name for each run, three side by side."""
    places = [(name, *divmod(place, 3)) for place, name in enumerate(labels(logs))]
    base = data([{"run": name, "x": x, "end": x + 0.12, "y": y} for name, y, x in places])
    base = base.encode(y=alt.Y("y:O", axis=None))
    x = alt.X("x:Q", axis=None, scale=within(0, 3))
    lines = base.mark_rule(strokeWidth=3).encode(x=x, x2="end:Q", **_run_channels(logs))
    names = base.mark_text(align="left", dx=8, fontSize=12, limit=220).encode(x=alt.X("end:Q"), text="run:N")
    return alt.layer(lines, names).properties(width=_WIDE, height=20 * -(-len(places) // 3))


def _epsilon(logs: Sequence[RunLog]) -> Panel | None:
    rows = _rows(logs, lambda _, line: line.epsilon, mu=RunLog.mu_of)
    budgets = sorted({log.claimed for log in logs if log.claimed is not None})
    marks = data([{"budget": budget, "text": f"budget {budget:g}"} for budget in budgets]).encode(y="budget:Q")
    rules = marks.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=FAINT)
    words = marks.encode(x=alt.value(0), text="text:N")
    words = words.mark_text(align="left", dy=-6, dx=4, fontSize=11, color=SOFT)
    note = "By the client that spent most; dashed: the whole budget."
    more = [alt.Tooltip("mu:Q", title="μ, of Gaussian noise with this ε", format=".4f")]
    words_of = "Privacy spent, ε", note
    return _lines(logs, rows, _EPSILON, words_of, behind=[rules, words], more=more, reaches=budgets)


def _stays(logs: Sequence[RunLog]) -> str:
    """What the lasting noise is, and why it falls to 0."""
    noisy = [log for log in logs if log.noise]
    empty = sum(line.used == 0 and log.stays(line) == 0 for log in noisy for line in log.rounds)
    note = "Added by each round to a coordinate of the mean, for good."
    return f"{note} 0 in {counted(empty, 'round')} that added no upload to the mean." if empty else note


def _goes(logs: Sequence[RunLog]) -> str:
    """What the residual is, and why it zigzags (R4)."""
    grace = any(log.grace for log in logs if log.repairs)
    empty = any(line.used == 0 for log in logs if log.repairs for line in log.rounds)
    return (
        "Pairwise noise of the clients that a round misses, in the model until "
        f"the {'round after next' if grace else 'next round'} takes it out. It follows the number of missing clients, "
        "so it goes up and down with them and is 0 where none is missing; it never adds up."
        f"{' A round that uses no upload leaves none.' if empty else ''}"
    )


def _time(logs: Sequence[RunLog]) -> Panel | None:
    """Accuracy against the clock of the runs whose network was modelled."""
    found: list[list[dict[str, Any]]] = [
        [
            {"time": end, "round": line.round, "value": line.accuracy, "run": name, "failed": line.failed or "no"}
            for line, end in zip(log.rounds, log.clock, strict=False)
            if line.accuracy is not None and end > 0
        ]
        for log, name in zip(logs, labels(logs), strict=True)
    ]
    rows = few(found)
    times = [row["time"] for row in rows] or [1.0]
    scale = within(min(times), max(*times, 1.01 * min(times)), type="log")
    axis = alt.Axis(grid=False, format=",~g")
    x = alt.X("time:Q", title="seconds since the beginning, modelled", axis=axis, scale=scale)
    lost = sum(line.failed is not None for log in logs for line in log.rounds)
    note = "Messages, work and waiting of each round's aggregation; local training and the model's download left out."
    note += f" Failed rounds, which cost time and give nothing: {lost:,}." if lost > 0 else ""
    more = [alt.Tooltip("time:Q", format=",.4g"), alt.Tooltip("failed:N", title="failed at")]
    cells = [[row["run"], str(row["round"]), f"{row['time']:,.4g}", _SHARE.text(row["value"])] for row in rows]
    table = Table(["run", "round", "seconds", "accuracy"], cells)
    return _lines(logs, rows, _SHARE, ("Test accuracy against time", note), x=x, more=more, table=table)


def _rows(logs: Sequence[RunLog], value: _Value, **more: _Value) -> list[dict[str, Any]]:
    return few([
        [
            {"round": line.round, "value": found, "run": name} | {key: get(log, line) for key, get in more.items()}
            for line in log.rounds
            if (found := value(log, line)) is not None
        ]
        for log, name in zip(logs, labels(logs), strict=True)
    ])  # fmt: skip


def _positive(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the runs that have a value above 0."""
    some = {row["run"] for row in rows if row["value"] > 0}
    return [row for row in rows if row["run"] in some]


def _run_channels(logs: Sequence[RunLog]) -> dict[str, Any]:
    names, (colour, dashes) = labels(logs), zip(*colours(logs), strict=True)
    return {
        "color": alt.Color("run:N", scale=alt.Scale(domain=names, range=colour), legend=None),
        "strokeDash": alt.StrokeDash("run:N", scale=alt.Scale(domain=names, range=dashes), legend=None),
    }


def _lines(
    logs: Sequence[RunLog], rows: list[dict[str, Any]], kind: _Kind, words: tuple[str, str], *, x: alt.X | None = None,
    behind: Sequence[alt.Chart] = (), more: Sequence[alt.Tooltip] = (), reaches: Sequence[float] = (),
    table: Table | None = None,
) -> Panel | None:  # fmt: skip
    """A line for each run, against rounds or, in a wide panel, against `x`; None if there is nothing to draw."""
    if not rows:
        return None
    title, note = words
    channels = _run_channels(logs)
    low, high = _span([row["value"] for row in rows] + [*reaches], zero=kind.zero)
    y = alt.Y("value:Q", title=None, axis=alt.Axis(format=kind.axis), scale=within(low, high))
    base = data(rows).encode(x=rounds_axis("round", logs) if x is None else x, y=y)
    points = base.encode(color=channels["color"])
    layers = [*behind, base.mark_line(strokeWidth=2, strokeJoin="round").encode(order="round:Q", **channels)]
    if x is None and max(len(log.rounds) for log in logs) <= _FEW:
        layers.append(points.mark_point(filled=True, size=45, opacity=1))
    shown = ["run:N", "round:Q", alt.Tooltip("value:Q", title=title, format=kind.precision), *more]
    layers.append(points.mark_point(filled=True, size=160, opacity=0).encode(tooltip=shown))
    last = {row["run"]: row["value"] for row in rows}
    if len(logs) > 1:
        looks = dict(zip(labels(logs), colours(logs), strict=True))
        ends = [{"name": name, "value": value, "colour": looks[name][0]} for name, value in last.items()]
        layers.append(line_names(ends, (low, high), _HEIGHT))
    chart = alt.layer(*layers).properties(height=_HEIGHT, description=f"{title}. {note}")
    table = crossed(rows, ("round", "round"), "run", "value", kind.text) if table is None else table
    return Panel(title, note, chart, "half" if x is None else "wide", table)


def _span(values: Sequence[float], *, zero: bool) -> tuple[float, float]:
    """From where to where an axis goes so that all values lie on it, with a little room."""
    low, high = (0.0 if zero else min(values)), max(values)
    room = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    return (0.0 if zero else low - room), high + room
