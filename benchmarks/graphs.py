"""Noise of plans on random graphs beside the complete graph's, against degree and number of clients (S1).

python benchmarks/graphs.py                   a table
python benchmarks/graphs.py --json            the same as one JSON object
python benchmarks/graphs.py --late            how many rounds a client lasts that is late in its first ones, of 150
python benchmarks/graphs.py --chart FILE.svg  and the chart of docs/theory.md

Nothing here is timed: the figures are the planner's, the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import lightdp
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, BudgetError

CLIENTS = (1_000, 10_000, 100_000)
DEGREES = (80, 96, 116, 128, 160, 198, 240, 284, 400)
GOALS = {1_000: 116, 10_000: 198, 100_000: 284}  # the degree at which at most twice the complete graph's noise is asked
TICKS = [1, 1.25, 1.5, 2, 3, 5, 8, 12]
_GOAL = 2
LASTING = [(1_000, "complete"), (1_000, "random:116"), (1_000, "random:160"), (10_000, "complete"),
           (10_000, "random:160"), (10_000, "random:198"), (10_000, "random:284")]  # fmt: skip
LATE = {"unseen": "late uploads stay unseen", "seen": "late uploads may be seen"}


def asked(clients: int, late: str) -> dict[str, Any]:
    """A tenth of colluders, up to a tenth of stragglers."""
    tenth = clients // 10
    return {
        "clients": clients, "colluders": tenth, "stragglers": tenth, "rounds": 150, "epsilon": 3, "delta": 1e-5,
        "unit": "client", "calibration": "repair", "masks": "gaussian", "late": "unseen" if late == "unseen" else None,
    }  # fmt: skip


def measure() -> list[dict[str, Any]]:
    """A row for each number of clients, degree and kind of late uploads."""
    rows = []
    for late in LATE:
        for clients in CLIENTS:
            whole = lightdp.plan(**asked(clients, late))
            for degree in DEGREES:
                found = lightdp.plan(**asked(clients, late), graph=f"random:{degree}")
                rows.append(
                    {
                        "clients": clients,
                        "degree": degree,
                        "late": late,
                        "ratio": found.noise_carried() / whole.noise_carried(),
                        "lasting": found.noise_in_mean() / whole.noise_in_mean(),
                        "gamma": found.gamma,
                    }
                )
    return rows


def show(rows: list[dict[str, Any]]) -> bool:
    """Print the ratios, a line for each kind and number of clients; whether all goals are reached."""
    print(f"{'':32}" + "".join(f"{degree:>8}" for degree in DEGREES))
    for late, title in LATE.items():
        for clients in CLIENTS:
            found = [row["ratio"] for row in rows if (row["late"], row["clients"]) == (late, clients)]
            print(f"{title + ',':26}{clients:>6,}" + "".join(f"{ratio:8.2f}" for ratio in found))
    reached = [r["ratio"] <= _GOAL for r in rows if r["degree"] == GOALS[r["clients"]]]
    print(f"at most {_GOAL:g} times at degree 116, 198, 284: {sum(reached)} of {len(reached)}")
    return all(reached)


def lasts(clients: int, graph: str, late: int) -> int:
    """Rounds that client 0 is admitted to, if it is late in the first ones; one draw of graph and stragglers."""
    plan = lightdp.plan(**asked(clients, "seen"), graph=graph)
    for number in range(20):  # a draw is bad once in a thousand times
        with suppress(ArgumentError):
            plan = plan.placed(number.to_bytes(32, "big"))
            break
    odometer, draw = lightdp.Odometer(plan, [0]), np.random.default_rng(1)
    with suppress(BudgetError):
        while True:
            odometer.admit()
            missing = draw.choice(np.arange(1, clients), clients // 10 - 1, replace=False).tolist()
            is_late = [0] if odometer.rounds < late else []
            odometer.record(~ClientSet.of(clients, [*is_late, *missing]), is_late)
    return odometer.rounds


def chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Ratios against degrees, a line for each number of clients."""
    import altair as alt  # noqa: PLC0415  an optional dependency

    from lightdp.report import FAINT, TONES, heading, line_names, save, sheet, within  # noqa: PLC0415

    colours = {f"{n:,}": TONES[tone] for n, tone in zip(CLIENTS, ("violet", "orange", "blue"), strict=True)}
    shown = [
        row | {"clients": f"{row['clients']:,}", "late": LATE[row["late"]]}
        for row in rows
        if row["ratio"] < 12 and row["degree"] >= 90
    ]
    across, up, height = within(90, 420, type="log"), (1, 12), 320
    colour = alt.Scale(domain=[*colours], range=[*colours.values()])
    base = alt.Chart(alt.Data(values=shown)).encode(
        x=alt.X("degree:Q", scale=across, axis=alt.Axis(values=list(DEGREES), grid=False), title="peers of a client"),
        y=alt.Y("ratio:Q", scale=within(*up, type="log"), axis=alt.Axis(values=TICKS), title=None),
        color=alt.Color("clients:N", scale=colour, legend=None),
    )
    dash = alt.StrokeDash("late:N", sort=list(LATE.values()), legend=alt.Legend(title=None, orient="top"))
    goal = alt.Chart(alt.Data(values=[{"y": _GOAL}])).mark_rule(color=FAINT, strokeDash=[2, 3]).encode(y="y:Q")
    last = {(row["clients"], row["late"]): row["ratio"] for row in shown}
    ends = [
        {"name": f"{clients} clients, {late.rsplit(' ', 1)[1]}", "value": value, "colour": colours[clients]}
        for (clients, late), value in last.items()
    ]
    names = line_names(ends, up, height, log=True)
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=dash)
    layers = alt.layer(goal, lines, base.mark_point(filled=True, size=40, opacity=1), names)
    title = heading("What a sparse graph costs", "noise, times the complete graph's; dotted: twice", size=15)
    save(sheet(layers.properties(width=520, height=height, title=title)), path)


def main() -> int:
    """Parse, measure, print; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--chart", type=Path, help="also draw the chart")
    parser.add_argument("--late", action="store_true", help="rounds of clients that are late")
    arguments = parser.parse_args()
    if arguments.late:
        for clients, graph in LASTING:
            print(f"{clients:>6,} {graph:10}", *(f"{lasts(clients, graph, late):>5}" for late in (0, 1, 2, 3, 10)))
        return 0
    rows = measure()
    if arguments.chart is not None:
        chart(rows, arguments.chart)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    return 0 if show(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
