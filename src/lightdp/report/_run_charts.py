"""Panels that lay runs over each other, round by round, and the sheet of all of them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

from lightdp.report._record import Run
from lightdp.report._run import labels
from lightdp.report._style import Chart, alt
from lightdp.schemes import schemes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from lightdp.report._record import Round

    _Value: TypeAlias = Callable[[Run, Round], float | None]

_DASHES = ([1, 0], [7, 4], [2, 3])
_STATUS = {"used": "rgba(120, 136, 160, 0.35)", "late": "#f59e0b", "lost": "#dc2626"}
_MOST_COLUMNS = 200  # clients of the partition that are drawn; more would be thinner than a pixel or two
_FEW = 30  # points that are each drawn as a dot
_WIDE = 900
_GAP = 56
_HALF = (_WIDE - _GAP) // 2

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
LOOK: dict[str, Any] = {
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelColor": "#526077",
        "titleColor": "#526077",
        "domain": False,
        "ticks": False,
        "labelPadding": 6,
        "gridColor": "#e2e8f0",
    },
    "legend": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
}


@dataclass(frozen=True)
class Panel:
    """One chart with its heading and what to know about it. A wide one has a row for itself, small ones share."""

    title: str
    note: str
    chart: alt.Chart | alt.LayerChart
    size: Literal["small", "half", "wide"] = "half"


def colours(runs: Sequence[Run]) -> list[tuple[str, list[int]]]:
    """Colour and dashes of each run: the first run of a scheme has its colour, others what is left."""
    palette = {scheme.name: scheme.colour for scheme in schemes().values()}
    palette["none"] = palette.pop("none")  # the last to be lent to others
    free = [colour for scheme, colour in palette.items() if scheme not in {run.scheme for run in runs}]
    seen: set[str] = set()
    result: list[tuple[str, list[int]]] = []
    spare = cycle([(colour, _DASHES[0]) for colour in free] + [(c, d) for d in _DASHES[1:] for c in palette.values()])
    for run in runs:
        result.append(next(spare) if run.scheme in seen else (palette[run.scheme], _DASHES[0]))
        seen.add(run.scheme)
    return result


def panels(runs: Sequence[Run]) -> list[Panel]:
    """The panels that have something to show, without legends of the runs."""
    drawn = [
        _accuracy(runs),
        _epsilon(runs),
        _time(runs),
        _noise(runs, Run.stays, "Noise that stays", "Added by each round to a coordinate of the mean, for good."),
        _noise(
            runs,
            Run.goes,
            "Residual until repaired",
            "Pairwise noise of missing clients, in the model until a later round takes it out.",
        ),
        *(_stragglers(runs, place) for place in range(len(runs))),
        _partition(runs),
    ]
    return [panel for panel in drawn if panel is not None]


def run_chart(runs: Sequence[Run]) -> Chart:
    """All panels on one sheet of fixed width."""
    rows: list[list[alt.Chart | alt.LayerChart]] = []
    room = False  # beside the last panel
    for panel in panels(runs):
        words = textwrap.wrap(panel.note, 140 if panel.size == "wide" else 66)
        title = alt.Title(panel.title, subtitle=words, anchor="start", fontSize=14, subtitleColor="#526077", offset=10)
        sized = panel.chart.properties(title=title, width=_WIDE if panel.size == "wide" else _HALF)
        if room and panel.size != "wide":
            rows[-1].append(sized)
            room = False
        else:
            rows.append([sized])
            room = panel.size != "wide"
    own = {"color": "independent", "strokeDash": "independent", "opacity": "independent"}
    lines = (alt.hconcat(*row, spacing=_GAP).resolve_scale(**own) for row in rows)
    sheet = alt.vconcat(_legend(runs), *lines, spacing=30)
    return sheet.resolve_scale(**own).configure(**LOOK, padding=20, background="white")


def _legend(runs: Sequence[Run]) -> alt.LayerChart:
    """A line and a name for each run, in a row of their own."""
    rows = [
        {"run": name, "x": place % 3, "end": place % 3 + 0.12, "y": place // 3}
        for place, name in enumerate(labels(runs))
    ]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 3], nice=False))
    base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("y:O", axis=None))
    lines = base.mark_rule(strokeWidth=3).encode(x=x, x2="end:Q", **_run_channels(runs))
    names = base.mark_text(align="left", dx=8, fontSize=12, limit=220).encode(x=alt.X("end:Q"), text="run:N")
    return alt.layer(lines, names).properties(width=_WIDE, height=20 * -(-len(rows) // 3))


def _accuracy(runs: Sequence[Run]) -> Panel | None:
    y = alt.Y("value:Q", title=None, axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    note = "Of the model after each round that was evaluated."
    return _lines(
        runs, _rows(runs, lambda _, played: played.accuracy), y, title="Test accuracy", note=note, precision=".2%"
    )


def _time(runs: Sequence[Run]) -> Panel | None:
    """Accuracy against the clock of the runs whose network was modelled."""
    rows: list[dict[str, Any]] = [
        {"time": end, "round": played.round, "value": played.accuracy, "run": name, "failed": played.failed or "no"}
        for run, name in zip(runs, labels(runs), strict=True)
        for played, end in zip(run.rounds, run.clock, strict=False)
        if played.accuracy is not None and end > 0
    ]
    if not rows:
        return None
    times = [row["time"] for row in rows]
    x = alt.X("time:Q", title="seconds since the beginning, modelled", axis=alt.Axis(grid=False, format=",~g"))
    x = x.scale(type="log", domain=[min(times), max(*times, 1.01 * min(times))], nice=False)
    y = alt.Y("value:Q", title=None, axis=alt.Axis(format="%"), scale=alt.Scale(zero=False))
    channels = _run_channels(runs)
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y)
    hover = base.mark_point(filled=True, size=160, opacity=0).encode(
        color=channels["color"],
        tooltip=["run:N", "round:Q", alt.Tooltip("time:Q", format=",.4g"), alt.Tooltip("value:Q", format=".2%"),
                 alt.Tooltip("failed:N", title="failed at")],
    )  # fmt: skip
    chart = alt.layer(base.mark_line(strokeWidth=2, strokeJoin="round").encode(order="round:Q", **channels), hover)
    lost = sum(played.failed is not None for run in runs for played in run.rounds)
    note = "Messages, work and waiting of each round's aggregation; local training and the model's download left out."
    note += f" Failed rounds, which cost time and give nothing: {lost:,}." if lost > 0 else ""
    title = "Test accuracy against time"
    return Panel(title, note, chart.properties(height=230, description=f"{title}. {note}"), "wide")


def _epsilon(runs: Sequence[Run]) -> Panel | None:
    rows = _rows(runs, lambda _, played: played.epsilon)
    budgets = sorted({run.claimed for run in runs if run.claimed is not None})
    top = max([*budgets, *(row["value"] for row in rows)], default=1.0)
    y = alt.Y("value:Q", title=None, scale=alt.Scale(domain=[0, 1.12 * top], nice=False))
    marks = alt.Chart(alt.Data(values=[{"budget": budget, "text": f"budget {budget:g}"} for budget in budgets]))
    rules = marks.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color="#9ca3af").encode(y="budget:Q")
    words = marks.mark_text(align="left", dy=-6, dx=4, fontSize=11, color="#6b7280").encode(
        y="budget:Q", x=alt.value(0), text="text:N"
    )
    note = "By the client that spent most; dashed: the whole budget."
    return _lines(runs, rows, y, title="Privacy spent, ε", note=note, precision=".4f", behind=[rules, words])


def _noise(runs: Sequence[Run], value: _Value, title: str, note: str) -> Panel | None:
    """Of the runs that have any."""
    rows = _rows(runs, value)
    some = {row["run"] for row in rows if row["value"] > 0}
    rows = [row for row in rows if row["run"] in some]
    y = alt.Y("value:Q", title=None, axis=alt.Axis(format="~g"), scale=alt.Scale(zero=True))
    return _lines(runs, rows, y, title=f"{title}, std", note=note, precision=".4g")


def _rows(runs: Sequence[Run], value: _Value) -> list[dict[str, Any]]:
    return [
        {"round": played.round, "value": found, "run": name}
        for run, name in zip(runs, labels(runs), strict=True)
        for played in run.rounds
        if (found := value(run, played)) is not None
    ]


def _run_channels(runs: Sequence[Run]) -> dict[str, Any]:
    names, looks = labels(runs), colours(runs)
    colour = alt.Scale(domain=names, range=[colour for colour, _ in looks])
    dash = alt.Scale(domain=names, range=[dashes for _, dashes in looks])
    return {
        "color": alt.Color("run:N", scale=colour, legend=None),
        "strokeDash": alt.StrokeDash("run:N", scale=dash, legend=None),
    }


def _lines(
    runs: Sequence[Run],
    rows: list[dict[str, Any]],
    y: alt.Y,
    *,
    title: str,
    note: str,
    precision: str,
    behind: Sequence[alt.Chart] = (),
) -> Panel | None:
    if not rows:
        return None
    channels = _run_channels(runs)
    base = alt.Chart(alt.Data(values=rows)).encode(x=_rounds("round", runs), y=y)
    line = base.mark_line(strokeWidth=2, strokeJoin="round").encode(**channels)
    few = max(len(run.rounds) for run in runs) <= _FEW
    dots = base.mark_point(filled=True, size=45, opacity=1).encode(color=channels["color"])
    hover = base.mark_point(filled=True, size=160, opacity=0).encode(
        color=channels["color"],
        tooltip=["run:N", "round:Q", alt.Tooltip("value:Q", title=title, format=precision)],
    )
    layers = [*behind, line, *([dots] if few else []), hover]
    return Panel(title, note, alt.layer(*layers).properties(height=230, description=f"{title}. {note}"))


def _rounds(field: str, runs: Sequence[Run]) -> alt.X:
    """The same axis in every panel, so that a run that ended early is seen to."""
    last = max(1, *(len(run.rounds) for run in runs))
    axis = alt.Axis(grid=False, values=list(range(1, last + 1))) if last <= 10 else alt.Axis(grid=False, tickCount=8)
    return alt.X(f"{field}:Q", title="round", axis=axis, scale=alt.Scale(domain=[0.5, last + 0.5], nice=False))


def _stragglers(runs: Sequence[Run], place: int) -> Panel | None:
    run, label = runs[place], labels(runs)[place]
    if not run.rounds:
        return None
    rows = [
        {"round": r.round, "start": r.round - 0.5, "end": r.round + 0.5, "used": r.used, "late": r.late, "lost": r.lost}
        for r in run.rounds
    ]
    rows.append(rows[-1] | {"start": rows[-1]["end"]})  # closes the last step
    base = alt.Chart(alt.Data(values=rows))
    x = _rounds("start", runs)
    names = list(_STATUS)
    steps = (
        base.transform_fold(names, as_=["status", "clients"])
        .transform_calculate(place=f"indexof({names}, datum.status)")
        .mark_area(interpolate="step-after", line=False)
        .encode(
            x=x,
            y=alt.Y("clients:Q", title="clients", stack="zero", axis=alt.Axis(tickMinStep=1)),
            color=alt.Color(
                "status:N",
                scale=alt.Scale(domain=names, range=list(_STATUS.values())),
                legend=alt.Legend(title=None, orient="top", symbolType="square"),
            ),
            order="place:Q",
        )
    )
    hover = (
        base.transform_calculate(all="datum.used + datum.late + datum.lost")
        .mark_rect(opacity=0)
        .encode(x=x, x2="end:Q", y="all:Q", y2=alt.datum(0), tooltip=["round:Q", *(f"{name}:Q" for name in names)])
    )
    missing = sum(r.late + r.lost for r in run.rounds) / len(run.rounds)
    note = f"On average {missing:.3g} of {sum(rows[0][name] for name in names):,} clients missed a round."
    void = sum(r.used == 0 for r in run.rounds)
    if void > 0:
        note += f" Rounds without any upload used: {void:,}."
    chart = alt.layer(steps, hover).properties(height=150, description=f"Stragglers of {label}. {note}")
    return Panel(f"Stragglers: {label}", note, chart, "small")


def _partition(runs: Sequence[Run]) -> Panel | None:
    counts = runs[0].counts
    if not counts:
        return None
    rows = [
        {"client": client, "start": client - 0.5, "end": client + 0.5, "class": label, "records": count}
        for client, row in enumerate(counts[:_MOST_COLUMNS])
        for label, count in enumerate(row)
    ]
    chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_rect(color="#2563eb")
        .encode(
            x=alt.X(
                "start:Q",
                title="client",
                axis=alt.Axis(grid=False, tickMinStep=1),
                scale=alt.Scale(domain=[-0.5, min(len(counts), _MOST_COLUMNS) - 0.5], nice=False),
            ),
            x2="end:Q",
            y=alt.Y("class:O", title="class", axis=alt.Axis(labelOverlap=True, ticks=False)),
            opacity=alt.Opacity("records:Q", scale=alt.Scale(range=[0.03, 1], zero=True)),
            tooltip=["client:Q", "class:O", "records:Q"],
        )
        .properties(height=min(22 * len(counts[0]), 440), description="Records of each class at each client.")
    )
    sizes = [sum(row) for row in counts]
    note = f"{sum(sizes):,} records at {len(counts):,} clients, {min(sizes):,} to {max(sizes):,} each"
    note += f"; the first {_MOST_COLUMNS} clients are drawn. " if len(counts) > _MOST_COLUMNS else ". "
    if len(runs) > 1:
        same = all(run.counts == counts for run in runs)
        note += "The same in all runs." if same else f"Of {labels(runs)[0]}; other runs have other partitions."
    return Panel("Who holds what", note.strip(), chart, "wide")
