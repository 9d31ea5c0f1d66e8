"""Does a plan last as long as it says (R6)? Trainings with stragglers as planned, counted by the odometer.

Each training draws the stragglers of every round from the plan's law and whom they are at random. A share `late` of
them is seen too late, the rest is lost: none for "lost", half for "mixed", all for "late". Under grace a tenth of the
used uploads comes one round late besides. Clients without budget stay away (R8); a training ends early when there are
more than S̄ of them.

Run: python benchmarks/lasting.py --processes 2 --out benchmarks/records/lasting.json (`--help` lists more)
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import Progress

import lightdp
from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp_lab import bench

SIZES = ((50, 10, 10, 150), (20, 4, 4, 60), (10, 2, 2, 20))  # clients, colluders, stragglers, rounds
KINDS = {"lost": 0.0, "mixed": 0.5, "late": 1.0}
JOINING = 0.1  # of the used uploads come one round late
GOAL = 0.99
_CHUNK = 25


class Played(NamedTuple):
    """How a training went: rounds until it ended, void ones among them, and clients without budget at the end."""

    rounds: int
    void: int
    exhausted: int


def training(plan: Plan, seed: int) -> Played:
    """One training with stragglers as the plan expects them."""
    rng = np.random.default_rng(seed)
    clients, least = plan.clients, plan.clients - plan.stragglers
    odometer, waits, void = lightdp.Odometer(plan), None, 0
    late_share = plan.request.late_share
    for number in range(plan.rounds):
        away = odometer.exhausted().flags
        if away.sum() > plan.stragglers:
            return Played(number, void, int(away.sum()))
        missing = rng.permutation(clients) < rng.choice(plan.law.counts, p=plan.law.pmf)
        used, late = ~missing & ~away, missing & ~away & (rng.random(clients) < late_share)
        joining = used & (rng.random(clients) < JOINING)
        if used.sum() < least:
            void, used, late = void + 1, used & False, used | late
        if not plan.grace:
            odometer.record(ClientSet(used), ClientSet(late))
            continue
        if waits is not None:
            odometer.record(*waits)
        waits = ClientSet(used), ClientSet(late)
        odometer.open(ClientSet(used & ~joining), ClientSet((used & joining) | late))
    return Played(plan.rounds, void, len(odometer.exhausted()))


def planned(size: tuple[int, int, int, int], grace: int, kind: str) -> Plan:
    """The plan of a cell."""
    clients, colluders, stragglers, rounds = size
    return lightdp.plan(
        clients=clients, colluders=colluders, stragglers=stragglers, rounds=rounds, epsilon=3, delta=1e-5,
        calibration="repair", grace=grace, late=KINDS[kind],
    )  # fmt: skip


def chunk(cell: tuple[Any, ...], first: int, count: int) -> list[Played]:
    """Some trainings of a cell."""
    plan = planned(*cell)
    return [training(plan, seed) for seed in range(first, first + count)]


def main() -> int:
    """Every size, with and without grace, for lost, mixed and late stragglers; 1 if a cell misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=int, default=1000, help="of each cell")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file of the record")
    asked = parser.parse_args()
    cells = list(product(SIZES, (0, 1), KINDS))
    starts = range(0, asked.trainings, _CHUNK)
    rows: list[dict[str, Any]] = []
    with Progress() as progress, ProcessPoolExecutor(asked.processes) as pool:
        task = progress.add_task("trainings", total=len(cells) * asked.trainings)
        jobs = {
            cell: [pool.submit(chunk, cell, first, min(_CHUNK, asked.trainings - first)) for first in starts]
            for cell in cells
        }
        for cell, parts in jobs.items():
            found = []
            for part in parts:
                found += part.result()
                progress.update(task, completed=len(rows) * asked.trainings + len(found))
            plan = planned(*cell)
            lasted = sum(each.rounds == plan.rounds for each in found) / len(found)
            rows.append({
                "clients": plan.clients, "stragglers": plan.stragglers, "rounds": plan.rounds, "grace": plan.grace,
                "kind": cell[2], "late": plan.request.late_share, "noise_in_mean": plan.noise_in_mean(),
                "lasted": lasted,
                "shortest": min(each.rounds for each in found), "void": sum(each.void for each in found) / len(found),
                "exhausted": sum(each.exhausted for each in found) / len(found),
            })  # fmt: skip
            print(
                "  ".join(
                    f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                    for name, value in rows[-1].items()
                )
            )
    if asked.out is not None:
        record = {"conditions": bench.conditions(), "trainings": asked.trainings, "joining": JOINING, "cells": rows}
        asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(any(row["lasted"] < GOAL for row in rows))


if __name__ == "__main__":
    sys.exit(main())
