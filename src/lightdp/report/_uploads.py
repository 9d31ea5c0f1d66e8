"""Panels of single runs: what became of uploads, round by round, and who holds which records."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lightdp._validate import counted
from lightdp.report._chart import TONES, alt, data, within
from lightdp.report._figures import ONE_LATE, labels, waited
from lightdp.report._panel import Panel, Table, few, rounds_axis
from lightdp.runlog import RunLog

FATES = {
    "used": ("on time", "rgba(120, 136, 160, 0.35)"),
    "next": (ONE_LATE, TONES["blue"]),
    "late": ("too late", TONES["orange"]),
    "void": ("in a void round", TONES["sand"]),
    "lost": ("lost", TONES["red"]),
}
"""What becomes of an upload, as `RunLog.fates` says: words and colour."""
_MOST_NAMES = 12  # clients whose names fit below the chart
_MOST_COLUMNS = 200  # clients of the partition that are drawn; more would be thinner than a pixel or two
_MOST_CELLS = 1500  # of the partition, each of them in the page


def stragglers(logs: Sequence[RunLog], place: int) -> Panel | None:
    """What became of the uploads of each round of one run; None of a run without rounds."""
    log, name = logs[place], labels(logs)[place]
    if not log.rounds:
        return None
    fates = [{"round": line.round} | log.fates(line) for line in log.rounds]
    kept = few([fates], len(logs))
    step = len(fates) / len(kept)
    unusual = {"next": log.grace > 0, "void": any(each["void"] for each in fates)}
    states = [state for state in FATES if unusual.get(state, True)]
    rows = [{"start": each["round"] + 0.5 - step, "end": each["round"] + 0.5} | each for each in kept]
    base = data([*rows, rows[-1] | {"start": rows[-1]["end"]}])  # closes the last step
    base = base.encode(x=rounds_axis("start", logs))
    colour = alt.Scale(domain=states, range=[FATES[state][1] for state in states])
    words = {state: FATES[state][0] for state in states}
    legend = alt.Legend(
        title=None, orient="top", symbolType="square", labelExpr=f"{words}[datum.label]", labelLimit=220,
        columns=2 if len(states) > 3 else 3,  # fits a small panel
    )  # fmt: skip
    folded = base.transform_fold(states, as_=["status", "clients"])
    steps = folded.transform_calculate(place=f"indexof({states}, datum.status)").encode(
        y=alt.Y("clients:Q", title="number of clients", stack="zero", axis=alt.Axis(tickMinStep=1)),
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


def partition(logs: Sequence[RunLog]) -> Panel | None:
    """How many records of each class each client holds; None where it was not recorded."""
    counts = logs[0].counts
    if not counts:
        return None
    drawn = counts[: min(_MOST_COLUMNS, max(1, _MOST_CELLS // max(1, len(counts[0]))))]
    names = [logs[0].client_name(client) for client in range(len(drawn))]
    classes = logs[0].classes or [*range(len(counts[0]))]
    rows = [
        {"client": client, "name": name, "class": classes, "records": row}
        for client, (name, row) in enumerate(zip(names, drawn, strict=True))
    ]  # one for each client, and flattened by the page, which is a fifth as long
    cells = data(rows).mark_rect(color=TONES["blue"]).properties(height=min(22 * len(counts[0]), 440))
    cells = cells.transform_flatten(["class", "records"]).transform_calculate(
        start="datum.client - 0.5", end="datum.client + 0.5"
    )
    axis = alt.Axis(grid=False, tickMinStep=1)
    if len(names) <= _MOST_NAMES:
        axis = alt.Axis(grid=False, values=[*range(len(names))], labelExpr=f"{json.dumps(names)}[datum.value]")
    chart = cells.properties(description="Records of each class at each client.").encode(
        x=alt.X("start:Q", title="client", axis=axis, scale=within(-0.5, len(drawn) - 0.5)),
        x2="end:Q",
        y=alt.Y("class:O", title="class", sort=classes, axis=alt.Axis(labelOverlap=True, ticks=False)),
        opacity=alt.Opacity("records:Q", scale=alt.Scale(range=[0.03, 1], zero=True)),
        tooltip=[alt.Tooltip("name:N", title="client"), "class:O", "records:Q"],
    )
    sizes = [sum(row) for row in counts]
    note = f"{sum(sizes):,} records at {counted(len(counts), 'client')}, {min(sizes):,} to {max(sizes):,} each"
    note += f"; the first {len(drawn)} clients are drawn. " if len(counts) > len(drawn) else ". "
    if len(logs) > 1:
        same = all(log.counts == counts for log in logs)
        note += "The same in all runs." if same else f"Of {labels(logs)[0]}; other runs have other partitions."
    return Panel("Who holds what", note.strip(), chart, "wide", _held(names, classes, drawn))


def _held(names: Sequence[str], classes: Sequence[object], counts: Sequence[Sequence[int]]) -> Table:
    """Records by client and class."""
    head = ["client", *(f"class {name}" for name in classes)]
    return Table(head, [[name, *map(str, row)] for name, row in zip(names, counts, strict=True)])
