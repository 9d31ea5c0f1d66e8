"""Panels of runs whose rosters change (C1): who was where in each round, and what each client has spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from lightdp._validate import counted, rounded_up
from lightdp.report._chart import FAINT, SOFT, TONES, alt, data, within
from lightdp.report._panel import Panel, Table, few, rounds_axis
from lightdp.runlog import RunLog

WHEREABOUTS = {
    "playing": ("in the round's roster", TONES["blue"]),
    "seated": ("in another roster", "rgba(71, 71, 205, 0.3)"),
    "waiting": ("waiting for a roster", TONES["sand"]),
    "away": ("away", "rgba(120, 136, 160, 0.45)"),
    "spent": ("no budget left", TONES["red"]),
}
"""Where a client is in a round, as `RunLog.whereabouts` says: words and colour."""
_MOST_BARS, _FEWEST_BARS = 400, 30  # of all runs, more would be thinner than two pixels; and at least of each


def member_panels(log: RunLog, name: str, logs: Sequence[RunLog]) -> Iterator[Panel]:
    """The two panels of a run; nothing of one whose clients are the same in every round."""
    if log.federated:
        yield _membership(log, name, logs)
        if log.ended is not None and log.ended.epsilon_clients:
            yield _spent(log.ended.epsilon_clients, log.claimed, name, len(logs))


def _membership(log: RunLog, name: str, logs: Sequence[RunLog]) -> Panel:
    """Stacked numbers of clients, with a mark where rosters were formed."""
    every = log.whereabouts(log.rounds)
    kept = few([every], len(logs))
    step = len(every) / len(kept)
    rows = [{"start": each["round"] + 0.5 - step, "end": each["round"] + 0.5} | each for each in kept]
    base = data([*rows, rows[-1] | {"start": rows[-1]["end"]}]).encode(x=rounds_axis("start", logs))  # closes the step
    states = [state for state in WHEREABOUTS if any(row[state] for row in rows)]
    words = {state: WHEREABOUTS[state][0] for state in states}
    legend = alt.Legend(
        title=None, orient="top", symbolType="square", labelExpr=f"{words}[datum.label]", labelLimit=220, columns=5
    )
    colour = alt.Scale(domain=states, range=[WHEREABOUTS[state][1] for state in states])
    folded = base.transform_fold(states, as_=["where", "clients"])
    steps = folded.transform_calculate(place=f"indexof({states}, datum.where)").encode(
        y=alt.Y(
            "clients:Q", title="clients", stack="zero", axis=alt.Axis(tickMinStep=1), scale=within(0, log.population)
        ),
        color=alt.Color("where:N", scale=colour, legend=legend),
        order="place:Q",
    )
    tips = [alt.Tooltip(f"{state}:Q", title=words[state]) for state in states]
    hover = base.encode(x2="end:Q", y=alt.datum(log.population), y2=alt.datum(0), tooltip=["round:Q", *tips])
    formed = [
        {
            "round": line.round - 0.5,
            "made": ", ".join(f"{each['roster']} of {len(each['members'])}" for each in line.formed),
        }
        for line in log.rounds
        if line.formed
    ]
    x, top = rounds_axis("round", logs), alt.value(0)
    marks = data(few([formed], len(logs))).mark_point(
        shape="triangle-down", filled=True, size=70, color=SOFT, opacity=0.9, yOffset=-4
    )
    marks = marks.encode(x=x, y=top, tooltip=[alt.Tooltip("made:N", title="rosters formed")])
    rosters, closed = len(log.rosters), sum(len(line.closed or ()) for line in log.rounds)
    note = f"{counted(log.population, 'client')}, {counted(rosters, 'roster')} formed (triangles)"
    note += f", {closed:,} closed in the course of the training." if closed else "."
    idle = sum(line.roster is None for line in log.rounds)
    note += f" Rounds for which too few were there: {idle:,}." if idle else ""
    layers = steps.mark_area(interpolate="step-after", line=False), hover.mark_rect(opacity=0), marks
    chart = alt.layer(*layers).properties(height=190, description=f"Members of {name}. {note}")
    cells = [[str(each["round"]), *(str(each[state]) for state in states)] for each in kept]
    return Panel(f"Members: {name}", note, chart, "wide", Table(["round", *words.values()], cells))


def _spent(epsilon: Sequence[float], budget: float | None, name: str, among: int) -> Panel:
    """ε of each client, the largest first; of many clients in one of so many runs every second, third, ..."""
    order = sorted(enumerate(epsilon), key=lambda each: -each[1])
    step = -(-len(order) // max(_FEWEST_BARS, _MOST_BARS // among))
    rows: list[dict[str, Any]] = [
        {"start": at - 0.5, "client": client, "epsilon": spent}
        for at, (client, spent) in enumerate(order)
        if at % step == 0
    ]
    top = 1.12 * max([value for _, value in order] + ([] if budget is None else [budget]))
    axis = alt.Axis(grid=False, tickMinStep=1, format=",d")
    x = alt.X("start:Q", title="clients, by what they spent", axis=axis, scale=within(-0.5, len(order) - 0.5))
    bars = data(rows).mark_rect(color=TONES["blue"], opacity=0.75, stroke="white", strokeWidth=0.4 if step == 1 else 0)
    bars = bars.transform_calculate(end=f"min(datum.start + {step}, {len(order) - 0.5})").encode(
        x=x, x2="end:Q", y=alt.Y("epsilon:Q", title=None, scale=within(0, top)), y2=alt.datum(0),
        tooltip=["client:Q", alt.Tooltip("epsilon:Q", title="ε", format=".4f")],
    )  # fmt: skip
    layers: list[alt.Chart] = [bars]
    if budget is not None:
        mark = data([{"budget": budget, "text": f"budget {budget:g}"}]).encode(y="budget:Q")
        layers.append(mark.mark_rule(strokeDash=[5, 4], strokeWidth=1.5, color=FAINT))
        words = mark.encode(x=alt.value(0), text="text:N")
        layers.append(words.mark_text(align="left", dy=-6, dx=4, fontSize=11, color=SOFT))
    note = f"At the end, over all rosters of a client: {rounded_up(order[-1][1])} to {rounded_up(order[0][1])}, "
    note += f"median {rounded_up(median(epsilon))}. Rosters that were closed count at their worst (W5)."
    note += f" One bar for each {step} clients, as high as the largest of them." if step > 1 else ""
    chart = alt.layer(*layers).properties(height=190, description=f"ε by client of {name}. {note}")
    table = Table(["client", "ε"], [[str(row["client"]), rounded_up(row["epsilon"])] for row in rows])
    return Panel(f"Privacy spent by client, ε: {name}", note, chart, "wide", table)
