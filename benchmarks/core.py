"""Times that docs/evidence/speed.md states for planning, as medians of repeated runs, with their conditions.

Run: python benchmarks/core.py [--json]
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

from lightdp import gaussian, noise_graph, plan
from lightdp.planning import plan_per_client

if TYPE_CHECKING:
    from collections.abc import Callable


def million() -> None:
    """(D2) at N = 10^6."""
    plan(clients=10**6, colluders=10**5, stragglers=10**5, rounds=150, epsilon=3, delta=1e-5, calibration="exact")


def graph_of_2000() -> None:
    """(E2): exact noise of each of 2,000 clients on a graph with random variances."""
    rng = np.random.default_rng(0)
    k = np.triu(rng.uniform(0.1, 1, (2000, 2000)) * (rng.uniform(size=(2000, 2000)) < 0.1), 1)
    noise_graph.effective_noise(noise_graph.covariance(rng.uniform(0.5, 1, 2000), k + k.T))


def hundred_different_clients() -> None:
    """(D4): 100 clients, no two alike."""
    rng = np.random.default_rng(0)
    plan_per_client(
        epsilons=rng.uniform(1, 8, 100).tolist(),
        straggling=rng.uniform(0.01, 0.5, 100).tolist(),
        colluders=20,
        rounds=150,
        delta=1e-5,
    )


def inverse() -> None:
    """(E5): one μ(ε, δ)."""
    gaussian.mu(3.0, 1e-5)


CLAIMS: tuple[tuple[str, Callable[[], None], float, int], ...] = (
    ("plan() at N = 1,000,000", million, 0.020, 41),
    ("exact noise of 2,000 clients", graph_of_2000, 3.0, 5),
    ("design of 100 different clients", hundred_different_clients, 10.0, 3),
    ("mu(3, 1e-5)", inverse, 0.020, 41),
)


def seconds(work: Callable[[], None], repeats: int) -> float:
    """Median seconds of `work`, after one run to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> int:
    """Print each claim, its limit and what was measured; 1 if one does not hold."""
    measured = [(what, limit, seconds(work, runs), runs) for what, work, limit, runs in CLAIMS]
    conditions = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }
    if "--json" in sys.argv:
        rows = [{"what": what, "limit_s": limit, "median_s": s, "runs": runs} for what, limit, s, runs in measured]
        print(json.dumps(conditions | {"rows": rows}, indent=2))
    else:
        print(", ".join(f"{name} {value}" for name, value in conditions.items()))
        for what, limit, median, _ in measured:
            print(f"{what:<34} {median * 1e3:9.1f} ms   limit {limit * 1e3:8.0f} ms")
    return int(any(median > limit for _, limit, median, _ in measured))


if __name__ == "__main__":
    sys.exit(main())
