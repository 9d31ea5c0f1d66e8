"""Does any lie cost a client more than it kept room for (W5)? A hill climb over stories, by exact covariance.

Each search takes a random roster (up to 12 clients, colluders, sparse graphs, up to N - 2 stragglers, random noise),
begins with the rotation of lies, with everybody told the truth, or with random stories, and changes what clients are
told, asked and told to close; with `--grace 1` also who was on time, which is told before the final sets. There are two
bounds: what client 0 had kept room for when it sent last, and what it says at the end that all may have cost. A search
keeps changes that raise exact cost over one of them, drawn at random; every story tried is compared with both.

Run: python benchmarks/lies.py --processes 2 --out benchmarks/records/lies.json (`--help` lists more)
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

import lightdp
from lightdp.auditing import Script, climb, of_reserved, of_worst, rotation
from lightdp.planning import Plan
from lightdp_lab import bench

ROUNDING = 1e-9  # of a ratio: two honest clients attain their bound


@dataclass(frozen=True)
class Found:
    """What one search found: its plan, how it began, what it raised, and its largest ratios to both bounds."""

    settings: dict[str, Any]
    start: str
    goal: str
    stories: int
    reserved: float
    worst: float


def drawn(rng: random.Random, grace: int) -> Plan:
    """A random roster and its noise."""
    clients = rng.randint(3, 12)
    colluders = rng.choice([0, 0, 0, 1, 2]) if clients > 5 else 0
    degree = rng.choice([clients - 1, clients - 1, clients - 1, 2 * rng.randint(2, 4)])
    if degree <= colluders + 1 or degree >= clients:
        degree = clients - 1
    return lightdp.plan(
        clients=clients, colluders=colluders, stragglers=rng.randint(1, clients - 2), degree=degree,
        gamma=10 ** rng.uniform(-3, 2.5), rounds=1, epsilon=1.0, delta=1e-5, unit="client", calibration="repair",
        grace=grace,
    )  # fmt: skip


def started(plan: Plan, rng: random.Random) -> tuple[str, Script]:
    """The script from which a search begins."""
    kind = rng.choice(["rotation", "rotation", "late", "truth", "random"])
    if kind == "rotation":
        return kind, rotation(plan, rng.randint(2, 8))
    clients, rounds = plan.clients - plan.colluders, rng.randint(2, 7)
    draw = np.random.default_rng(rng.getrandbits(64))
    told = np.ones((clients, rounds, plan.clients), dtype=bool)
    asked, closing = np.ones((clients, rounds), dtype=bool), np.zeros((clients, rounds), dtype=bool)
    if kind == "late":  # client 0 comes too late in every other round
        told[:, ::2, 0] = False
    if kind == "random":
        told = draw.random(told.shape) > plan.stragglers / plan.clients * draw.random()
        asked = draw.random(asked.shape) > 0.2 * draw.random()
        closing = draw.random(closing.shape) < 0.2 * draw.random()
    on_time = told & (draw.random(told.shape) > draw.choice([0.0, 0.3, 1.0])) if plan.grace else None
    if on_time is not None and draw.random() < 0.5:
        on_time[:] = on_time[0]  # everybody is told the same at first
    return kind, Script(told, asked, closing, on_time)


def search(seed: int, steps: int, grace: int) -> Found:
    """One climb over so many stories."""
    rng = random.Random(seed)  # noqa: S311  a search, not a secret
    plan = drawn(rng, grace)
    start, script = started(plan, rng)
    goal = rng.choice([of_reserved, of_worst])
    ratios = [
        (of_reserved(played), of_worst(played))
        for _, played in climb(plan, script, seed=seed, steps=steps, goal=goal)
        if played.reserved > 0  # client 0 has sent data
    ]
    reserved, worst = np.max(ratios, axis=0, initial=0.0).tolist() if ratios else (0.0, 0.0)
    settings: dict[str, Any] = {"clients": plan.clients, "colluders": plan.colluders, "stragglers": plan.stragglers}
    settings |= {"degree": plan.graph.degree, "gamma": plan.gamma}
    return Found(settings, start, goal.__name__, len(ratios), reserved, worst)


def main() -> None:
    """Search, print, keep a record, and fail if a story exceeds a bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stories", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=400, help="stories of one climb")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--grace", type=int, choices=(0, 1), default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    begun, found, seeds = time.perf_counter(), [], iter(range(asked.seed * 10**6, (asked.seed + 1) * 10**6))
    with ProcessPoolExecutor(asked.processes) as pool, Progress() as progress:
        bar, told = progress.add_task("stories", total=asked.stories), 0
        while told < asked.stories:
            batch = [pool.submit(search, next(seeds), asked.steps, asked.grace) for _ in range(8 * asked.processes)]
            for each in as_completed(batch):
                found.append(each.result())
                told += found[-1].stories
                progress.update(bar, completed=min(told, asked.stories))
    top = sorted(found, key=lambda each: -max(each.reserved, each.worst))
    starts, goals = (sorted(set(each)) for each in zip(*((one.start, one.goal) for one in found), strict=True))
    record = {
        "stories": told,
        "searches": len(found),
        "grace": asked.grace,
        "seed": asked.seed,
        "steps": asked.steps,
        "seconds": round(time.perf_counter() - begun),
        "conditions": bench.conditions(),
        "largest": {
            "exact/reserved": max(each.reserved for each in found),
            "exact/worst": max(each.worst for each in found),
        },
        "above": sum(max(each.reserved, each.worst) > 1 + ROUNDING for each in found),
        "by start": {start: max(each.reserved for each in found if each.start == start) for start in starts},
        "by goal": {goal: max(max(one.reserved, one.worst) for one in found if one.goal == goal) for goal in goals},
        "top": [
            {"exact/reserved": each.reserved, "exact/worst": each.worst, "start": each.start, **each.settings}
            for each in top[:5]
        ],
    }
    text = json.dumps(record, indent=1)
    print(text)
    if asked.out is not None:
        asked.out.write_text(text + "\n", encoding="utf-8")
    if record["above"]:
        sys.exit(f"{record['above']} searches found a story above its bound")


if __name__ == "__main__":
    main()
