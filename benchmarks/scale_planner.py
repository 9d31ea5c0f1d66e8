"""CPU time of planning for many clients, of sampled plans, and of simulated rounds beside training.

`python benchmarks/scale.py planner`.

plans: `lightdp.plan` on the complete graph at N = 10^6, milliseconds; no two requests have the same straggler law.
sampled: `lightdp.plan` with repair and Poisson-sampled batches, seconds; no two requests have the same noise.
rounds: `lightdp run --fidelity distribution`, milliseconds of a round beside the updates of clients: who comes, the
noise, the step, costs and budgets, the log. Made-up data with two records a client; the model is evaluated at the end.

All times are CPU times of one thread, medians.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

import lightdp
from lightdp.runlog import Round
from lightdp.training.clients import Clients, Piece
from lightdp.training.data import Dataset
from lightdp_lab import bench

MILLION = 10**6
PLANS: dict[str, dict[str, Any]] = {
    "10 % stragglers": {},
    "10 % stragglers, exact": {"calibration": "exact"},
    "10 % stragglers, binomial": {"straggler_law": "binomial:0.05"},
    "10 % stragglers, grace": {"grace": 1},
    "50 % colluders and stragglers": {"colluders": MILLION // 2, "stragglers": MILLION // 2 - 2},
    "50 % stragglers, binomial, grace": {"stragglers": MILLION // 2, "straggler_law": "binomial:0.3", "grace": 1},
    "80 % stragglers": {"stragglers": 8 * MILLION // 10},
    "all may straggle": {"stragglers": MILLION - 2},
    "all may straggle, binomial": {"stragglers": MILLION - 2, "straggler_law": "binomial:0.3"},
}
SMALL: dict[str, Any] = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "epsilon": 3, "delta": 1e-5}
USUAL: dict[str, Any] = {"clients": 100, "colluders": 20, "stragglers": 20, "rounds": 500, "epsilon": 8, "delta": 1e-5}
LARGE: dict[str, Any] = {
    "clients": 1000, "colluders": 100, "stragglers": 100, "rounds": 1000, "epsilon": 3, "delta": 1e-6
}  # fmt: skip
SAMPLED: dict[str, dict[str, Any]] = {
    "50 clients, 150 rounds, rate 0.05": SMALL | {"sampling_rate": 0.05},
    "50 clients, 150 rounds, rate 0.01, replace": SMALL | {"sampling_rate": 0.01, "adjacency": "replace"},
    "100 clients, 500 rounds, rate 0.05": USUAL | {"sampling_rate": 0.05},
    "100 clients, 500 rounds, rate 0.01, grace": USUAL | {"sampling_rate": 0.01, "grace": 1},
    "100 clients, 500 rounds, rate 0.01, replace": USUAL | {"sampling_rate": 0.01, "adjacency": "replace"},
    "1000 clients, 1000 rounds, rate 0.01": LARGE | {"sampling_rate": 0.01},
    "1000 clients, 1000 rounds, rate 0.5": LARGE | {"sampling_rate": 0.5},
}
ROUNDS: dict[str, dict[str, Any]] = {
    "repair": {"scheme": "repair"},
    "repair, late seen": {"scheme": "repair", "late_seen": 0.1},
    "repair, grace": {"scheme": "repair", "grace": 1, "late_by_one": 0.5, "late_seen": 0.1},
    "repair, degree 100": {"scheme": "repair", "degree": 100},
    "exact": {"scheme": "exact"},
}
LIMITS = {"plans": 50.0, "sampled": 1.0, "rounds": 20.0}


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def plans(repeats: int) -> Iterator[dict[str, Any]]:
    """Milliseconds of each kind of plan at N = 10^6."""
    asked = {"clients": MILLION, "colluders": MILLION // 10, "rounds": 150, "epsilon": 3, "delta": 1e-5}
    for at, (name, more) in enumerate(PLANS.items()):
        times = []
        for repeat in range(repeats):
            stragglers = more.get("stragglers", MILLION // 10) - at * repeats - repeat
            settings = asked | more | {"stragglers": stragglers}
            times.append(seconds(lambda settings=settings: lightdp.plan(**settings)))  # type: ignore[misc]
        yield {"what": "plans", "name": name, "unit": "ms", "time": 1e3 * statistics.median(times)}


def sampled(repeats: int) -> Iterator[dict[str, Any]]:
    """Seconds of each kind of sampled plan."""
    lightdp.plan(**SMALL | {"rounds": 3}, sampling_rate=0.1, calibration="repair")  # imports what it needs
    for name, asked in SAMPLED.items():
        times = []
        for more in range(repeats):
            changed = asked | {"epsilon": asked["epsilon"] * (1 + 1e-6 * more), "calibration": "repair"}
            times.append(seconds(lambda changed=changed: lightdp.plan(**changed)))  # type: ignore[misc]
        yield {"what": "sampled", "name": name, "unit": "s", "time": statistics.median(times)}


class Trained:
    """Counts the time in which clients compute their updates."""

    def __init__(self) -> None:
        self.seconds, self._updates = 0.0, Clients.updates

    def __enter__(self) -> Self:
        Clients.updates = lambda *asked: self._counted(self._updates(*asked))  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Clients.updates = self._updates  # type: ignore[method-assign]

    def _counted(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        while True:
            start = time.process_time()
            piece = next(pieces, None)
            self.seconds += time.process_time() - start
            if piece is None:
                return
            yield piece


def data(records: int) -> Dataset:
    """Made-up records of ten classes."""
    drawn = np.random.default_rng(0)
    y = drawn.integers(0, 10, records + 100)
    x = (drawn.normal(size=(10, 64))[y] + drawn.normal(size=(records + 100, 64))).astype(np.float32)
    train, test = slice(None, records), slice(records, None)
    return Dataset(name="made up", train_x=x[train], train_y=y[train], test_x=x[test], test_y=y[test], classes=10)


def simulated(clients: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Milliseconds of a round beside training, for each kind of run."""
    torch.set_num_threads(1)  # threads that wait for work count as busy
    source = data(2 * clients)
    few = clients // 10
    asked = {"clients": clients, "colluders": few, "stragglers": few, "rounds": rounds, "epsilon": 8.0}
    asked |= {"evaluate_every": rounds}
    for name, more in ROUNDS.items():
        times = []
        with tempfile.TemporaryDirectory() as folder, Trained() as trained:
            run = lightdp.Run(lightdp.Config(**asked | more), Path(folder) / "run.jsonl", dataset=source)
            before = time.process_time() - trained.seconds
            for line in run.lines():
                now = time.process_time() - trained.seconds
                if isinstance(line, Round):
                    times.append(now - before)
                before = now
        yield {"what": "rounds", "name": name, "unit": "ms", "time": 1e3 * statistics.median(times)}


def record(clients: int, rounds: int, repeats: int) -> tuple[dict[str, Any], bool]:
    """All of it, and whether no time is above its limit."""
    conditions = bench.conditions()
    rows = [*plans(repeats), *sampled(repeats), *simulated(clients, rounds)]
    for row in rows:
        row["limit"] = LIMITS[row["what"]]
    found = {"conditions": conditions, "clients": clients, "rounds": rounds, "repeats": repeats, "rows": rows}
    return found, all(row["time"] <= row["limit"] for row in rows)
