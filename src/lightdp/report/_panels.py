"""Panels that lay runs over each other, round by round, and the sheet of all of them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple, TypeAlias

from lightdp._validate import counted, rounded_up
from lightdp.report._chart import FAINT, SOFT, TONES, Chart, alt, data, heading, line_names, sheet, within
from lightdp.report._figures import ONE_LATE, labels, waited
from lightdp.report._members import member_panels
from lightdp.report._panel import Panel, Table, crossed, few, rounds_axis
from lightdp.runlog import Round, RunLog
from lightdp.schemes import schemes as registry


class _Kind(NamedTuple):
    """How values are shown: axis and tooltip formats, text in tables, and whether the axis begins at 0."""

    axis: str
    precision: str
    text: Callable[[float], str]
    zero: bool


_SHARE = _Kind("~%", ".2%", lambda value: f"{100 * value:.2f} %", zero=False)
_EPSILON = _Kind("~g", ".4f", rounded_up, zero=True)
_STD = _Kind("~g", ".4g", lambda value: f"{value:.4g}", zero=True)
_Value: TypeAlias = Callable[[RunLog, Round], float | None]

_DASHES = ([1, 0], [7, 4], [2, 3])
_STATUS = {  # what became of uploads: words and colour
    "used": ("on time", "rgba(120, 136, 160, 0.35)"),
    "next": (ONE_LATE, TONES["blue"]),
    "late": ("too late", TONES["orange"]),
    "void": ("in a void round", TONES["sand"]),
    "lost": ("lost", TONES["red"]),
}
_MOST_COLUMNS = 200  # clients of the partition that are drawn; more would be thinner than a pixel or two
_MOST_CELLS = 1500  # of the partition, each of them in the page
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
    stays = "Added by each round to a coordinate of the mean, for good."
    drawn = [
        _lines(logs, _rows(logs, lambda _, line: line.accuracy), _SHARE, ("Test accuracy", seen)),
        _epsilon(logs),
        _time(logs),
        _lines(logs, _positive(_rows(logs, RunLog.stays)), _STD, ("Noise that stays, std", stays)),
        _lines(logs, _positive(_rows(logs, RunLog.goes)), _STD, ("Residual until repaired, std", _goes(logs))),
        *(_stragglers(logs, place) for place in range(len(logs))),
        *(panel for log, name in zip(logs, labels(logs), strict=True) for panel in member_panels(log, name, logs)),
        _partition(logs),
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


def _goes(logs: Sequence[RunLog]) -> str:
    """What the residual is, and why it zigzags (R4)."""
    grace = any(log.grace for log in logs if log.repairs)
    return (
        "Pairwise noise of the clients that a round misses, in the model until "
        f"the {'round after next' if grace else 'next round'} takes it out. It follows the number of missing clients, "
        "so it goes up and down with them and is 0 where none is missing; it never adds up."
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


def _stragglers(logs: Sequence[RunLog], place: int) -> Panel | None:
    log, name = logs[place], labels(logs)[place]
    if not log.rounds:
        return None
    fates = [_fates(log, line) for line in log.rounds]
    kept = few([fates], len(logs))
    step = len(fates) / len(kept)
    unusual = {"next": log.grace > 0, "void": any(each["void"] for each in fates)}
    states = [state for state in _STATUS if unusual.get(state, True)]
    rows = [{"start": each["round"] + 0.5 - step, "end": each["round"] + 0.5} | each for each in kept]
    base = data([*rows, rows[-1] | {"start": rows[-1]["end"]}])  # closes the last step
    base = base.encode(x=rounds_axis("start", logs))
    colour = alt.Scale(domain=states, range=[_STATUS[state][1] for state in states])
    words = {state: _STATUS[state][0] for state in states}
    legend = alt.Legend(
        title=None, orient="top", symbolType="square", labelExpr=f"{words}[datum.label]", labelLimit=220,
        columns=2 if len(states) > 3 else 3,  # fits a small panel
    )  # fmt: skip
    folded = base.transform_fold(states, as_=["status", "clients"])
    steps = folded.transform_calculate(place=f"indexof({states}, datum.status)").encode(
        y=alt.Y("clients:Q", title="clients", stack="zero", axis=alt.Axis(tickMinStep=1)),
        color=alt.Color("status:N", scale=colour, legend=legend),
        order="place:Q",
    )
    tips = [alt.Tooltip(f"{state}:Q", title=words[state]) for state in states]
    hover = base.transform_calculate(all="datum.used + datum.next + datum.late + datum.void + datum.lost").encode(
        x2="end:Q", y="all:Q", y2=alt.datum(0), tooltip=["round:Q", *tips]
    )
    note = (
        "Of each round's roster. "
        if log.federated
        else f"{counted(sum(fates[0][state] for state in states), 'client')}. "
    )
    unused = sum(each["late"] + each["void"] + each["lost"] for each in fates)
    note += _often(unused, len(fates), "did not enter the model")
    if log.grace:
        note += " " + _often(sum(each["next"] for each in fates), len(fates), ONE_LATE)
    note = " ".join([note, *waited(log)])
    void = sum(each["used"] + each["next"] == 0 for each in fates)
    note += f" Rounds without any upload used: {void:,}." if void > 0 else ""
    chart = alt.layer(steps.mark_area(interpolate="step-after", line=False), hover.mark_rect(opacity=0))
    chart = chart.properties(height=150, description=f"Stragglers of {name}. {note}")
    cells = [[str(each["round"]), *(str(each[state]) for state in states)] for each in kept]
    return Panel(f"Stragglers: {name}", note, chart, "small", Table(["round", *words.values()], cells))


def _often(uploads: int, rounds: int, what: str) -> str:
    """How many uploads did something, on average over the rounds if it is at least one a round."""
    mean = uploads >= rounds
    count = f"{uploads / rounds:.3g}" if mean else f"{uploads:,}"
    if mean:
        return f"On average {count} upload{'' if count == '1' else 's'} a round {what}."
    return f"{counted(uploads, 'upload')} in {counted(rounds, 'round')} {what}."


def _fates(log: RunLog, line: Round) -> dict[str, int]:
    """What became of the uploads of a round. Those of a void round came, and too few of them."""
    joined = log.late_by_one(line)
    unused = line.late - joined
    void = unused if line.used == 0 and joined == 0 else 0
    fates = {"used": line.used, "next": joined, "late": unused - void, "void": void, "lost": line.lost}
    return {"round": line.round} | fates


def _partition(logs: Sequence[RunLog]) -> Panel | None:
    counts = logs[0].counts
    if not counts:
        return None
    drawn = counts[: min(_MOST_COLUMNS, max(1, _MOST_CELLS // max(1, len(counts[0]))))]
    rows = [
        {"client": client, "class": label, "records": count}
        for client, row in enumerate(drawn)
        for label, count in enumerate(row)
    ]
    cells = data(rows).mark_rect(color=TONES["blue"]).properties(height=min(22 * len(counts[0]), 440))
    cells = cells.transform_calculate(start="datum.client - 0.5", end="datum.client + 0.5")
    axis = alt.Axis(grid=False, tickMinStep=1)
    chart = cells.properties(description="Records of each class at each client.").encode(
        x=alt.X("start:Q", title="client", axis=axis, scale=within(-0.5, len(drawn) - 0.5)),
        x2="end:Q",
        y=alt.Y("class:O", title="class", axis=alt.Axis(labelOverlap=True, ticks=False)),
        opacity=alt.Opacity("records:Q", scale=alt.Scale(range=[0.03, 1], zero=True)),
        tooltip=["client:Q", "class:O", "records:Q"],
    )
    sizes = [sum(row) for row in counts]
    note = f"{sum(sizes):,} records at {counted(len(counts), 'client')}, {min(sizes):,} to {max(sizes):,} each"
    note += f"; the first {len(drawn)} clients are drawn. " if len(counts) > len(drawn) else ". "
    if len(logs) > 1:
        same = all(log.counts == counts for log in logs)
        note += "The same in all runs." if same else f"Of {labels(logs)[0]}; other runs have other partitions."
    return Panel("Who holds what", note.strip(), chart, "wide", _held(drawn))


def _held(counts: Sequence[Sequence[int]]) -> Table:
    """Records by client and class."""
    head = ["client", *(f"class {label}" for label in range(len(counts[0])))]
    return Table(head, [[str(client), *map(str, row)] for client, row in enumerate(counts)])
