"""Panels that lay runs over each other, round by round, and the sheet of all of them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

from lightdp.report._figures import labels
from lightdp.report._style import LOOK, Chart, alt, data
from lightdp.runlog import RunLog
from lightdp.schemes import schemes as registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from lightdp.runlog import Round

    _Value: TypeAlias = Callable[[RunLog, Round], float | None]

_DASHES = ([1, 0], [7, 4], [2, 3])
_STATUS = {"used": "rgba(120, 136, 160, 0.35)", "late": "#f59e0b", "lost": "#dc2626"}
_MOST_COLUMNS = 200  # clients of the partition that are drawn; more would be thinner than a pixel or two
_FEW = 30  # points that are each drawn as a dot
_WIDE = 900
_GAP = 56


@dataclass(frozen=True)
class Panel:
    """One chart with its heading and what to know about it. A wide one has a row for itself, small ones share."""

    title: str
    note: str
    chart: alt.Chart | alt.LayerChart
    size: Literal["small", "half", "wide"] = "half"


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
    stays = "Added by each round to a coordinate of the mean, for good."
    goes = "Pairwise noise of missing clients, in the model until a later round takes it out."
    drawn = [
        _accuracy(logs),
        _epsilon(logs),
        _time(logs),
        _noise(logs, RunLog.stays, "Noise that stays, std", stays),
        _noise(logs, RunLog.goes, "Residual until repaired, std", goes),
        *(_stragglers(logs, place) for place in range(len(logs))),
        _partition(logs),
    ]
    return [panel for panel in drawn if panel is not None]


def run_chart(logs: Sequence[RunLog]) -> Chart:
    """All panels on one sheet of fixed width: accuracy, ε, time, noise, stragglers and who holds what."""
    rows: list[list[alt.Chart | alt.LayerChart]] = []
    room = False  # beside the last panel
    for panel in panels(logs):
        wide = panel.size == "wide"
        words = textwrap.wrap(panel.note, 140 if wide else 66)
        title = alt.Title(panel.title, subtitle=words, anchor="start", fontSize=14, subtitleColor="#526077", offset=10)
        sized = panel.chart.properties(title=title, width=_WIDE if wide else (_WIDE - _GAP) // 2)
        if room and not wide:
            rows[-1].append(sized)
        else:
            rows.append([sized])
        room = not wide and not room
    own = {"color": "independent", "strokeDash": "independent", "opacity": "independent"}
    lines = (alt.hconcat(*row, spacing=_GAP).resolve_scale(**own) for row in rows)
    sheet = alt.vconcat(_legend(logs), *lines, spacing=30)
    return sheet.resolve_scale(**own).configure(**LOOK, padding=20, background="white")


def _legend(logs: Sequence[RunLog]) -> alt.LayerChart:
    """A line and a name for each run, in a row of their own."""
    rows = [
        {"run": name, "x": place % 3, "end": place % 3 + 0.12, "y": place // 3}
        for place, name in enumerate(labels(logs))
    ]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 3], nice=False))
    base = data(rows).encode(y=alt.Y("y:O", axis=None))
    lines = base.mark_rule(strokeWidth=3).encode(x=x, x2="end:Q", **_run_channels(logs))
    names = base.mark_text(align="left", dx=8, fontSize=12, limit=220).encode(x=alt.X("end:Q"), text="run:N")
    return alt.layer(lines, names).properties(width=_WIDE, height=20 * -(-len(rows) // 3))


def _accuracy(logs: Sequence[RunLog]) -> Panel | None:
    rows = _rows(logs, lambda _, line: line.accuracy)
    return _lines(
        logs, rows, _percent(), "Test accuracy", "Of the model after each round that was evaluated.", precision=".2%"
    )


def _time(logs: Sequence[RunLog]) -> Panel | None:
    """Accuracy against the clock of the runs whose network was modelled."""
    rows: list[dict[str, Any]] = [
        {"time": end, "round": line.round, "value": line.accuracy, "run": name, "failed": line.failed or "no"}
        for log, name in zip(logs, labels(logs), strict=True)
        for line, end in zip(log.rounds, log.clock, strict=False)
        if line.accuracy is not None and end > 0
    ]
    times = [row["time"] for row in rows] or [1.0]
    x = alt.X("time:Q", title="seconds since the beginning, modelled", axis=alt.Axis(grid=False, format=",~g"))
    x = x.scale(type="log", domain=[min(times), max(*times, 1.01 * min(times))], nice=False)
    lost = sum(line.failed is not None for log in logs for line in log.rounds)
    note = "Messages, work and waiting of each round's aggregation; local training and the model's download left out."
    note += f" Failed rounds, which cost time and give nothing: {lost:,}." if lost > 0 else ""
    more = [alt.Tooltip("time:Q", format=",.4g"), alt.Tooltip("failed:N", title="failed at")]
    return _lines(
        logs, rows, _percent(), "Test accuracy against time", note, precision=".2%", x=x, more=more, size="wide"
    )


def _epsilon(logs: Sequence[RunLog]) -> Panel | None:
    rows = _rows(logs, lambda _, line: line.epsilon)
    budgets = sorted({log.claimed for log in logs if log.claimed is not None})
    top = max([*budgets, *(row["value"] for row in rows)], default=1.0)
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, 1.12 * top], nice=False))
    marks = data([{"budget": budget, "text": f"budget {budget:g}"} for budget in budgets])
    rules = marks.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color="#9ca3af").encode(y="budget:Q")
    words = marks.mark_text(align="left", dy=-6, dx=4, fontSize=11, color="#6b7280").encode(
        y="budget:Q", x=alt.value(0), text="text:N"
    )
    note = "By the client that spent most; dashed: the whole budget."
    return _lines(logs, rows, y, "Privacy spent, ε", note, precision=".4f", behind=[rules, words])


def _noise(logs: Sequence[RunLog], value: _Value, title: str, note: str) -> Panel | None:
    """Of the runs that have any."""
    rows = _rows(logs, value)
    some = {row["run"] for row in rows if row["value"] > 0}
    y = alt.Y("value:Q", title=None, axis=alt.Axis(format="~g"), scale=alt.Scale(zero=True))
    return _lines(logs, [row for row in rows if row["run"] in some], y, title, note, precision=".4g")


def _rows(logs: Sequence[RunLog], value: _Value) -> list[dict[str, Any]]:
    return [
        {"round": line.round, "value": found, "run": name}
        for log, name in zip(logs, labels(logs), strict=True)
        for line in log.rounds
        if (found := value(log, line)) is not None
    ]


def _run_channels(logs: Sequence[RunLog]) -> dict[str, Any]:
    names, looks = labels(logs), colours(logs)
    colour = alt.Scale(domain=names, range=[colour for colour, _ in looks])
    dash = alt.Scale(domain=names, range=[dashes for _, dashes in looks])
    return {
        "color": alt.Color("run:N", scale=colour, legend=None),
        "strokeDash": alt.StrokeDash("run:N", scale=dash, legend=None),
    }


def _percent() -> alt.Y:
    return alt.Y("value:Q", title=None, axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))


def _lines(
    logs: Sequence[RunLog],
    rows: list[dict[str, Any]],
    y: alt.Y,
    title: str,
    note: str,
    *,
    precision: str,
    x: alt.X | None = None,
    behind: Sequence[alt.Chart] = (),
    more: Sequence[alt.Tooltip] = (),
    size: Literal["half", "wide"] = "half",
) -> Panel | None:
    """A line for each run, against rounds unless `x` says otherwise; None if there is nothing to draw."""
    if not rows:
        return None
    channels = _run_channels(logs)
    base = data(rows).encode(x=_rounds("round", logs) if x is None else x, y=y)
    layers = [*behind, base.mark_line(strokeWidth=2, strokeJoin="round").encode(order="round:Q", **channels)]
    if x is None and max(len(log.rounds) for log in logs) <= _FEW:
        layers.append(base.mark_point(filled=True, size=45, opacity=1).encode(color=channels["color"]))
    shown = ["run:N", "round:Q", alt.Tooltip("value:Q", title=title, format=precision), *more]
    layers.append(base.mark_point(filled=True, size=160, opacity=0).encode(color=channels["color"], tooltip=shown))
    return Panel(title, note, alt.layer(*layers).properties(height=230, description=f"{title}. {note}"), size)


def _rounds(field: str, logs: Sequence[RunLog]) -> alt.X:
    """The same axis in every panel, so that a run that ended early is seen to."""
    last = max(1, *(len(log.rounds) for log in logs))
    axis = alt.Axis(grid=False, values=list(range(1, last + 1))) if last <= 10 else alt.Axis(grid=False, tickCount=8)
    return alt.X(f"{field}:Q", title="round", axis=axis, scale=alt.Scale(domain=[0.5, last + 0.5], nice=False))


def _stragglers(logs: Sequence[RunLog], place: int) -> Panel | None:
    log, title = logs[place], f"Stragglers: {labels(logs)[place]}"
    if not log.rounds:
        return None
    names = list(_STATUS)
    rows = [
        {"round": line.round, "start": line.round - 0.5, "end": line.round + 0.5}
        | {name: getattr(line, name) for name in names}
        for line in log.rounds
    ]
    base = data([*rows, rows[-1] | {"start": rows[-1]["end"]}])  # closes the last step
    x = _rounds("start", logs)
    colour = alt.Scale(domain=names, range=list(_STATUS.values()))
    steps = (
        base.transform_fold(names, as_=["status", "clients"])
        .transform_calculate(place=f"indexof({names}, datum.status)")
        .mark_area(interpolate="step-after", line=False)
        .encode(
            x=x,
            y=alt.Y("clients:Q", title="clients", stack="zero", axis=alt.Axis(tickMinStep=1)),
            color=alt.Color("status:N", scale=colour, legend=alt.Legend(title=None, orient="top", symbolType="square")),
            order="place:Q",
        )
    )
    hover = (
        base.transform_calculate(all="datum.used + datum.late + datum.lost")
        .mark_rect(opacity=0)
        .encode(x=x, x2="end:Q", y="all:Q", y2=alt.datum(0), tooltip=["round:Q", *(f"{name}:Q" for name in names)])
    )
    missing = sum(line.late + line.lost for line in log.rounds) / len(log.rounds)
    note = f"On average {missing:.3g} of {sum(rows[0][name] for name in names):,} clients missed a round."
    void = sum(line.used == 0 for line in log.rounds)
    note += f" Rounds without any upload used: {void:,}." if void > 0 else ""
    chart = alt.layer(steps, hover).properties(height=150, description=f"{title.replace(':', ' of', 1)}. {note}")
    return Panel(title, note, chart, "small")


def _partition(logs: Sequence[RunLog]) -> Panel | None:
    counts = logs[0].counts
    if not counts:
        return None
    rows = [
        {"client": client, "start": client - 0.5, "end": client + 0.5, "class": label, "records": count}
        for client, row in enumerate(counts[:_MOST_COLUMNS])
        for label, count in enumerate(row)
    ]
    x = alt.X("start:Q", title="client", axis=alt.Axis(grid=False, tickMinStep=1))
    chart = (
        data(rows)
        .mark_rect(color="#2563eb")
        .encode(
            x=x.scale(domain=[-0.5, min(len(counts), _MOST_COLUMNS) - 0.5], nice=False),
            x2="end:Q",
            y=alt.Y("class:O", title="class", axis=alt.Axis(labelOverlap=True, ticks=False)),
            opacity=alt.Opacity("records:Q", scale=alt.Scale(range=[0.03, 1], zero=True)),
            tooltip=["client:Q", "class:O", "records:Q"],
        )
    )
    chart = chart.properties(height=min(22 * len(counts[0]), 440), description="Records of each class at each client.")
    sizes = [sum(row) for row in counts]
    note = f"{sum(sizes):,} records at {len(counts):,} clients, {min(sizes):,} to {max(sizes):,} each"
    note += f"; the first {_MOST_COLUMNS} clients are drawn. " if len(counts) > _MOST_COLUMNS else ". "
    if len(logs) > 1:
        same = all(log.counts == counts for log in logs)
        note += "The same in all runs." if same else f"Of {labels(logs)[0]}; other runs have other partitions."
    return Panel("Who holds what", note.strip(), chart, "wide")
