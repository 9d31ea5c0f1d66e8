"""How often an audit of sound clients raises an alarm, and what an audit of a million coordinates takes and finds.

First, many small audits of sound clients over various plans, schedules and lies: alarms must stay within what the
confidence allows, at 0.99 and at 0.9; counted are also the intervals that miss the exact μ. Then one audit of five
rounds with ten clients, two colluders and two late uploads, over 10^6 coordinates, with its seconds.

Run: python benchmarks/audit.py --out benchmarks/records/audit.json (`--help` lists more)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from scipy.stats import binom

import lightdp
from lightdp import gaussian
from lightdp.auditing import Lies

PLANS: tuple[dict[str, Any], ...] = (
    {"clients": 5, "colluders": 1, "stragglers": 1},
    {"clients": 6, "colluders": 0, "stragglers": 3, "unit": "client"},
    {"clients": 8, "colluders": 2, "stragglers": 2, "adjacency": "replace"},
    {"clients": 8, "colluders": 1, "stragglers": 2, "degree": 4},
    {"clients": 5, "colluders": 1, "stragglers": 1, "calibration": "exact", "unit": "client"},
    {"clients": 4, "colluders": 1, "stragglers": 1, "epsilon": 2.0, "late": "unseen"},
)
SCHEDULE = "used,late\n0-9,\n1-2 4-9,0\n0-3 5-9,4\n0-9,\n0 3-9,\n"
UNLIKELY = 1e-3  # that sound audits raise more alarms than the bound


def planned(**changed: Any) -> lightdp.Plan:  # noqa: ANN401  settings of a plan
    """A plan of few rounds."""
    asked: dict[str, Any] = {"rounds": 8, "epsilon": 8.0, "delta": 1e-5, "calibration": "repair"}
    return lightdp.plan(**(asked | changed))


def alarms(audits: int, confidence: float, values: int) -> dict[str, Any]:
    """How many of so many sound audits do not hold, why, and the most that the confidence allows."""
    found: list[lightdp.Audit] = []
    for number in track(range(audits), f"sound audits at {confidence}"):
        asked = PLANS[number % len(PLANS)]
        lies: Lies = "rotation" if number % 3 == 1 and asked.get("calibration") != "exact" else "none"
        found.append(lightdp.audit(planned(**asked), values=values, confidence=confidence, lies=lies, seed=number))
    missed = {
        name: sum(
            not (each.measurements[at].low <= each.exact.mu <= (each.measurements[at].high or np.inf)) for each in found
        )
        for at, name in enumerate(("linear", "assumption-free", "covariance"))
    }
    raised = [each for each in found if not each.holds]
    return {
        "confidence": confidence,
        "audits": audits,
        "values": values,
        "alarms": len(raised),
        "most_allowed": int(binom.isf(UNLIKELY, audits, 1 - confidence)),
        "why": sorted({problem.partition(":")[0] for each in raised for problem in each.problems}),
        "intervals_that_miss": missed,
        "most_misses_allowed": int(binom.isf(UNLIKELY, audits, (1 - confidence) / 4)),
    }


def large(values: int) -> dict[str, Any]:
    """The audit of ten clients, with its seconds; μ for equal signs too, as the victim's data may stay the same."""
    plan = planned(clients=10, colluders=2, stragglers=2, reserve="worst")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rounds.csv"
        file.write_text(SCHEDULE, encoding="utf-8")
        begun = time.perf_counter()
        found = lightdp.audit(plan, values=values, schedule=file)
        seconds = time.perf_counter() - begun
    covariance = found.view.covariance(1.0, plan.gamma)
    equal = found.view.mine.astype(float)
    cost = float(equal @ np.linalg.solve(covariance, equal))
    return {
        "values": values,
        "seconds": round(seconds, 2),
        "holds": found.holds,
        "exact": found.exact.mu,
        "exact_epsilon": gaussian.epsilon(found.exact.mu, plan.delta),
        "exact_with_equal_signs": cost**0.5 * plan.sensitivity / plan.sigma_individual,
        "announced": found.announced.mu,
        "worst": found.worst.mu,
        "budget": found.budget.mu,
        "measured": {each.name: [each.low, each.high] for each in found.measurements},
        "epsilon_at_least": found.measurements[1].epsilon_low,
    }


def main() -> None:
    """Measure, print, keep a record, and fail if there were too many alarms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=200)
    parser.add_argument("--small", type=int, default=5000, help="coordinates of a small audit")
    parser.add_argument("--values", type=int, default=1_000_000, help="coordinates of the large audit")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    record: dict[str, Any] = {"python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count()}
    record["sound"] = [alarms(asked.audits, confidence, asked.small) for confidence in (0.99, 0.9)]
    record["large"] = large(asked.values)
    text = json.dumps(record, indent=1)
    print(text)
    if asked.out is not None:
        asked.out.write_text(text + "\n", encoding="utf-8")
    if any(each["alarms"] > each["most_allowed"] for each in record["sound"]) or not record["large"]["holds"]:
        sys.exit("more alarms than the confidence allows")


if __name__ == "__main__":
    main()
