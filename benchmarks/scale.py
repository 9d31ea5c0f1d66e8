"""What a federation costs from a hundred to a hundred thousand clients: a training of real ones, and each part alone.

python benchmarks/scale.py PART [--clients ...] [--degree 100] [--rounds ...] [--repeats 5] [--plot docs/img/scale.svg]

| part | measures | record |
| --- | --- | --- |
| growth | what grows with the clients, by itself, from 100 to 100,000 | scale.json |
| play | three rounds and a closing one of real clients in one process, verified (`scale_play.py`) | scale.json |
| chart | the growth with fitted exponents, and the table of goals: 1 if one is missed | |
| keys | rosters, joining, stream keys (`scale_client.py`) | scale_keys.json |
| state | what a client writes and reads (`scale_client.py`) | scale_state.json |
| server | odometer, uploads, announcements (`scale_server.py`) | scale_server.json |
| planner | plans and simulated rounds (`scale_planner.py`) | scale_planner.json |

The graph is random, with about `degree` neighbours each, 160 in `play`; it is complete among as few clients. A tenth of
the clients straggles. Times are CPU times of one core. Records lie in benchmarks/records; scale.json has a row for each
number of clients. The last four return 1 if a limit is broken.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import altair as alt
import numpy as np

import scale_client
import scale_play
import scale_server
from lightdp.report import TONES, decades, heading, line_names, save, sheet, within
from lightdp_lab import bench

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightdp.report import Chart

ROOT = Path(__file__).parent
RECORD, PICTURE = ROOT / "records/scale.json", ROOT.parent / "docs/img/scale.svg"
SIZES, GOAL_CLIENTS = (100, 1000, 10_000, 100_000), 100_000
PLAY_MINUTES, PLAY_GB, ODOMETER_GB, RECEIVE_S = 20.0, 12.0, 0.5, 2.0
_HEIGHT = 300


class Part(NamedTuple):
    """A line of the chart: what it shows, its unit, its colour, and its goal for a hundred thousand clients."""

    title: str
    unit: str
    colour: str
    goal: float = float("inf")


PARTS = {
    "join_s": Part("client joins", "s", TONES["orange"], 0.2),
    "restore_s": Part("client restores", "s", TONES["violet"], 0.01),
    "keys_s": Part("client derives keys", "s", TONES["blue"], 1e-4),
    "odometer_s": Part("server's odometer", "s", TONES["teal"], 0.1),
    "receive_all_s": Part("server receives all uploads", "s", TONES["grey"]),
    "join_peak_bytes": Part("memory of joining", "B", TONES["orange"], 2e7),
    "join_bytes": Part("client's roster", "B", TONES["violet"], 1e5),
    "announcement_bytes": Part("announcement", "B", TONES["teal"], 12_600),
    "entry_bytes": Part("state written a round", "B", TONES["blue"], 2000),
}


def growth(clients: int, degree: int, repeats: int) -> dict[str, Any]:
    """Each part for so many clients."""
    graph = "complete" if clients <= degree else f"random:{degree}"
    odometer = scale_server.apart("odometer", clients, 60, graph, clients // 100, 0)  # while this process is small
    receive = scale_server.apart("receive", clients, 1000)
    joins = scale_client.large(clients, degree, repeats)
    state = scale_client.measured(clients, degree, 150, repeats)
    keys = scale_client.derived(min(degree, clients - 1), repeats)
    return {
        "clients": clients, "graph": graph, "conditions": bench.conditions(), "neighbours": joins["neighbours"],
        "join_s": joins["join_s"], "join_peak_bytes": joins["join_peak_bytes"], "join_bytes": joins["join_bytes"],
        "excerpt_ms": joins["excerpt_ms"], "roster_s": joins["roster_s"], "roster_bytes": joins["roster_bytes"],
        "odometer_s": odometer["last_s"], "odometer_gb": odometer["peak_gb"],
        "receive_s": receive["rest_s"], "receive_all_s": receive["all_s"],
        "announcement_bytes": scale_server.announced(clients, clients // 10, 0),
        "entry_bytes": state["entry_bytes"], "state_bytes": state["base_bytes"],
        "learn_s": state["learn_ms"] / 1e3, "restore_s": state["restore_ms"] / 1e3,
        "keys_s": keys["keys_ms"] / 1e3, "agree_s": keys["first_ms"] / 1e3,
    }  # fmt: skip


def read() -> dict[str, Any]:
    """The record."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    return found


def keep(part: str, row: dict[str, Any]) -> None:
    """Put a row in the place of the one of as many clients, in the record."""
    record = read()
    others = [each for each in record.get(part, []) if each["clients"] != row["clients"]]
    record[part] = sorted([*others, row], key=lambda each: each["clients"])
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def exponent(rows: list[dict[str, Any]], part: str) -> float:
    """The slope of a straight line through the points, both on a logarithmic scale."""
    clients, values = np.log([[float(row["clients"]), float(row[part])] for row in rows if row[part] > 0]).T
    return float(np.polyfit(clients, values, 1)[0])


def panel(rows: list[dict[str, Any]], unit: str, title: str) -> alt.LayerChart:
    """The lines of one unit, each named at its end."""
    parts = {name: part for name, part in PARTS.items() if part.unit == unit}
    points = [
        {"clients": row["clients"], "value": row[name], "part": name}
        for row in rows for name in parts if row[name] > 0
    ]  # fmt: skip
    ends = []
    for name, part in parts.items():
        power = round(exponent(rows, name), 2) + 0.0
        told = f"{part.title}, {f'N^{power:g}' if power else 'flat'}"
        ends.append({"name": told, "value": rows[-1][name], "colour": part.colour})
    span = min(point["value"] for point in points) / 1.5, max(point["value"] for point in points) * 1.5
    x = alt.X("clients:Q", title="clients N", scale=within(80, 120_000, type="log"),
              axis=alt.Axis(values=list(SIZES), format="~s", grid=False))  # fmt: skip
    y = alt.Y("value:Q", title=None, scale=within(*span, type="log"), axis=alt.Axis(format="~s", values=decades(*span)))
    colour = alt.Color("part:N", legend=None, scale=alt.Scale(
        domain=list(parts), range=[part.colour for part in parts.values()]))  # fmt: skip
    base = alt.Chart(alt.Data(values=points)).encode(x=x, y=y, color=colour)
    names = line_names(ends, span, _HEIGHT, log=True)
    shown = alt.layer(base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=36, opacity=1), names)
    return shown.properties(width=270, height=_HEIGHT, title=heading(title, size=13))


def chart(rows: list[dict[str, Any]]) -> Chart:
    """Times beside bytes."""
    title = heading(
        "Growth with the number of clients",
        "Random graph of about 100 neighbours, complete among 100 clients; 10 % stragglers.",
        "CPU time of one core; uploads of 1,000 values. Exponents are fitted.",
    )
    shown = alt.hconcat(panel(rows, "s", "seconds"), panel(rows, "B", "bytes"), spacing=30)
    return sheet(shown.resolve_scale(color="independent", y="independent").properties(title=title))


def table(record: dict[str, Any]) -> Iterable[tuple[str, bool]]:
    """The goals, as lines, each with whether it is reached."""
    for row in record.get("growth", []):
        if row["clients"] == GOAL_CLIENTS:
            for name, part in PARTS.items():
                told = f"goal {part.goal:g}" if part.goal < float("inf") else ""
                yield f"{part.title:32} {row[name]:10.4g} {part.unit:2} {told}", row[name] <= part.goal
            for name, goal in (("odometer_gb", ODOMETER_GB), ("receive_s", RECEIVE_S)):  # beside signatures and sums
                yield f"{name:32} {row[name]:10.4g}    goal {goal:g}", row[name] <= goal
    for row in record.get("play", []):
        told = f"{row['wall_s'] / 60:.1f} min, {row['cpu_s'] / 60:.1f} min of CPU time, {row['peak_gb']:.2f} GB"
        yield f"{row['clients']} clients play: {told}", row["wall_s"] / 60 <= PLAY_MINUTES and row["peak_gb"] <= PLAY_GB


def measured(asked: argparse.Namespace) -> bool:
    """Measure a part that has a record of its own, keep it, and say whether its limits hold."""
    some, degree, repeats = asked.clients or [GOAL_CLIENTS], asked.degree or 100, asked.repeats
    if asked.part == "keys":
        record, held = scale_client.keys_record(some[-1], degree, repeats)
    elif asked.part == "state":
        rounds = asked.rounds or [scale_client.GOAL_ROUNDS, 5000]
        record, held = scale_client.state_record(asked.clients or [*SIZES], degree, rounds, repeats)
    elif asked.part == "server":
        record, held = scale_server.record(some[-1])
    else:
        import scale_planner  # noqa: PLC0415  torch, which other parts need not have in memory

        record, held = scale_planner.record((asked.clients or [10_000])[-1], (asked.rounds or [20])[0], repeats)
    text = json.dumps(record, indent=1)
    RECORD.with_name(f"scale_{asked.part}.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    return held


def main() -> int:
    """Measure what is asked, keep it, or draw what was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["growth", "play", "chart", "keys", "state", "server", "planner"])
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--degree", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, nargs="+")
    parser.add_argument("--plot", type=Path, default=PICTURE)
    asked = parser.parse_args()
    if asked.part not in {"growth", "play", "chart"}:
        return 0 if measured(asked) else 1
    if asked.part == "growth":
        for clients in asked.clients or SIZES:
            keep("growth", growth(clients, asked.degree or 100, asked.repeats))
    if asked.part == "play":
        for clients in asked.clients or [GOAL_CLIENTS]:
            plan, conditions = scale_play.planned(clients, asked.degree or 160), bench.conditions()
            row = scale_play.Play(plan, scale_play.LENGTH).run((asked.rounds or [3])[0], scale_play.SAMPLE)
            keep("play", row | {"conditions": conditions})
    record = read()
    lines = [*table(record)]
    print(*(f"{line}{'' if reached else '  MISSED'}" for line, reached in lines), sep="\n")
    if asked.part == "chart":
        save(chart(record["growth"]), asked.plot)
    return 0 if asked.part != "chart" or all(reached for _, reached in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
