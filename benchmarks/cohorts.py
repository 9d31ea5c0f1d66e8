"""What cohorts cost and gain in accuracy (C1): 20 of 100 clients a round, all 100, and the same 20 in every round.

Every way has the same ε and δ, the same data split over 100 clients, a fifth of the clients colluding and up to a fifth
straggling, and the same number of client updates: with all 100 clients a fifth of the rounds. The same 20 clients train
on their own records alone. Cohorts are also trained with 5 rounds a turn, and with the γ of a single roster that has
all rounds: the planner counts a residual as many times as there are cohorts, since it waits for so many rounds (D5),
and this leaves out that factor; and with half the planner's γ. Each way has the learning rate, of a grid, that is best
on a fifth of the training records, which is held out, over other seeds; accuracy is on the test set.

Run: python benchmarks/cohorts.py --processes 2 --out benchmarks/records/cohorts.json --plot docs/img/cohorts.svg
     python benchmarks/cohorts.py --record benchmarks/records/cohorts.json --plot docs/img/cohorts.svg
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np
import torch
from rich.progress import Progress

import lightdp
from lightdp.report import TONES, Chart, heading, save, sheet
from lightdp.training import data, partition
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from lightdp_lab import bench

POPULATION, COHORT, SHARE = 100, 20, 5
WAYS = ("cohorts", "5 rounds a turn", "γ without the factor", "half the γ", "all 100", "the same 20")
RATES = (0.06, 0.085, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
TUNING = 1000  # seeds from here on choose learning rates
COLOURS = {8.0: TONES["orange"], 2.0: TONES["blue"]}


class Job(NamedTuple):
    """One training."""

    way: str
    epsilon: float
    rounds: int
    lr: float
    seed: int


def settings(job: Job) -> dict[str, Any]:
    """The settings of a training."""
    usual: dict[str, Any] = {
        "epsilon": job.epsilon, "rounds": job.rounds, "lr": job.lr, "seed": job.seed, "late": 0.0, "scheme": "repair",
        "clients": COHORT, "colluders": COHORT // SHARE, "stragglers": COHORT // SHARE, "evaluate_every": job.rounds,
    }  # fmt: skip
    if job.way == "the same 20":
        return usual
    if job.way == "all 100":
        few = job.rounds * COHORT // POPULATION
        shares = dict.fromkeys(("colluders", "stragglers"), POPULATION // SHARE)
        return usual | {"clients": POPULATION, "rounds": few, "evaluate_every": few} | shares
    more: dict[str, Any] = {
        "5 rounds a turn": {"consecutive": 5},
        "γ without the factor": {"gamma": gamma(job.epsilon, job.rounds, None)},
        "half the γ": {"gamma": gamma(job.epsilon, job.rounds, POPULATION) / 2},
    }
    return usual | {"population": POPULATION} | more.get(job.way, {})


@cache
def gamma(epsilon: float, rounds: int, population: int | None) -> float:
    """The planner's γ for cohorts or, without a population, for one roster that has all rounds."""
    return lightdp.plan(
        clients=COHORT, colluders=COHORT // SHARE, stragglers=COHORT // SHARE, epsilon=epsilon, delta=1e-5,
        rounds=rounds, population=population, calibration="repair", late=0.0,
    ).gamma  # fmt: skip


@cache
def source(seed: int) -> Dataset:
    """The digits; to tune, a fifth of the training records is what the model is tested on."""
    found = data.load("digits")
    if seed < TUNING:
        return found
    order = np.random.default_rng(seed).permutation(len(found.train_y))
    cut = len(order) // 5
    test, train = order[:cut], order[cut:]
    return replace(
        found, train_x=found.train_x[train], train_y=found.train_y[train],
        test_x=found.train_x[test], test_y=found.train_y[test],
    )  # fmt: skip


def played(job: Job) -> dict[str, Any]:
    """One training, as a line of the record."""
    torch.set_num_threads(1)
    found = source(job.seed)
    if job.way == "the same 20":
        parts = partition.split(found.train_y, POPULATION, "iid", job.seed)
        kept = np.concatenate(parts[:COHORT])
        found = replace(found, train_x=found.train_x[kept], train_y=found.train_y[kept])
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Config(**settings(job)), Path(folder) / "run.jsonl", dataset=found)
        log = run.finish()
    if run.plan is None:
        raise ValueError("a training must have noise")
    stds = {kind: [getattr(line, kind) ** 2 for line in log.rounds] for kind in ("noise_std", "residual_std")}
    return job._asdict() | {
        "accuracy": log.accuracy, "spent": log.epsilon, "played": len(log.rounds), "gamma": run.plan.gamma,
        "noise_in_mean": run.plan.noise_in_mean(),
        **{kind: math.sqrt(statistics.fmean(each)) for kind, each in stds.items()},
    }  # fmt: skip


def tuned(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, float], float]:
    """The learning rate of the best mean accuracy, of each way and ε."""
    found: dict[tuple[str, float], dict[float, list[float]]] = {}
    for row in rows:
        found.setdefault((row["way"], row["epsilon"]), {}).setdefault(row["lr"], []).append(row["accuracy"])
    return {key: max(each, key=lambda lr: statistics.fmean(each[lr])) for key, each in found.items()}


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean accuracy of each way with its standard error, the mean difference from cohorts seed by seed, and noise."""
    result = []
    cells = {(row["epsilon"], row["way"]): None for row in rows}
    for epsilon, way in cells:
        mine = {row["seed"]: row for row in rows if (row["epsilon"], row["way"]) == (epsilon, way)}
        base = {row["seed"]: row for row in rows if (row["epsilon"], row["way"]) == (epsilon, "cohorts")}
        values, ahead = _both({seed: row["accuracy"] - base[seed]["accuracy"] for seed, row in mine.items()}, mine)
        first = next(iter(mine.values()))
        result.append({
            "epsilon": epsilon, "way": way, "seeds": len(mine), "lr": first["lr"], "gamma": first["gamma"],
            "accuracy": values[0], "error": values[1], "ahead": ahead[0], "ahead_error": ahead[1],
            "noise_std": statistics.fmean(row["noise_std"] for row in mine.values()),
            "residual_std": statistics.fmean(row["residual_std"] for row in mine.values()),
            "spent": max(row["spent"] for row in mine.values()), "played": first["played"],
        })  # fmt: skip
    return result


def _both(ahead: dict[int, float], mine: dict[int, dict[str, Any]]) -> tuple[tuple[float, float], tuple[float, float]]:
    def of(values: list[float]) -> tuple[float, float]:
        return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))

    return of([row["accuracy"] for row in mine.values()]), of(list(ahead.values()))


def chart(rows: list[dict[str, Any]]) -> Chart:
    """Test accuracy of each way, a dot for each seed and the mean with two standard errors."""
    found = summary(rows)
    names = {each["epsilon"]: f"ε = {each['epsilon']:g}" for each in found}
    colour = alt.Color(
        "eps:N", scale=alt.Scale(domain=[*names.values()], range=[COLOURS[each] for each in names]),
        legend=alt.Legend(title=None, orient="top", symbolType="circle", symbolOpacity=1),
    )  # fmt: skip
    y = alt.Y("way:N", title=None, sort=list(WAYS), axis=alt.Axis(labelLimit=200))
    scale = alt.Scale(zero=False, nice=True)
    x = alt.X("accuracy:Q", title="test accuracy, final model", axis=alt.Axis(format="%"), scale=scale)
    dots = [{"way": row["way"], "eps": names[row["epsilon"]], "accuracy": row["accuracy"]} for row in rows]
    means = [
        {"way": row["way"], "eps": names[row["epsilon"]], "accuracy": row["accuracy"],
         "low": row["accuracy"] - 2 * row["error"], "high": row["accuracy"] + 2 * row["error"]}
        for row in found
    ]  # fmt: skip
    seeds = alt.Chart(alt.Data(values=dots)).mark_tick(thickness=1.5, opacity=0.35, size=14).encode(x, y, color=colour)
    bars = alt.Chart(alt.Data(values=means)).mark_rule(strokeWidth=4).encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    middle = alt.Chart(alt.Data(values=means)).mark_point(filled=True, size=90, opacity=1).encode(x, y, color=colour)
    counts = f"{max(row['seeds'] for row in found)} seeds; dots and bars: mean and two standard errors."
    title = heading(
        "20 of 100 clients a round, beside all of them and beside the same 20",
        "Digits, linear; the same ε and as many client updates for all, learning rates tuned apart;", counts, size=14,
    )  # fmt: skip
    drawn = alt.layer(seeds, bars.encode(color=colour), middle).properties(width=560, height=230, title=title)
    return sheet(drawn)


def main() -> None:
    """Tune, train, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(COLOURS))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tuning", type=int, default=6, help="seeds for each learning rate")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--record", type=Path, help="a record to draw again instead of training")
    parser.add_argument("--out", type=Path, help="JSON file of the record")
    parser.add_argument("--plot", type=Path, help="the chart")
    asked = parser.parse_args()
    if asked.record is not None:
        rows = json.loads(asked.record.read_text(encoding="utf-8"))["runs"]
    else:
        kinds = [(way, epsilon) for epsilon in asked.epsilons for way in WAYS]
        with ProcessPoolExecutor(asked.processes) as pool, Progress() as progress:
            seeds = range(TUNING, TUNING + asked.tuning)
            first = [Job(*kind, asked.rounds, lr, seed) for kind in kinds for lr in RATES for seed in seeds]
            chosen = tuned(progress.track(pool.map(played, first, chunksize=4), len(first), description="tuning"))
            jobs = [Job(*kind, asked.rounds, chosen[kind], seed) for kind in kinds for seed in range(asked.seeds)]
            rows = list(progress.track(pool.map(played, jobs, chunksize=4), len(jobs), description="training"))
    for row in summary(rows):
        print(
            "  ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    if asked.out is not None:
        record = {"conditions": bench.conditions(), "rounds": asked.rounds, "rates": RATES, "summary": summary(rows)}
        asked.out.write_text(json.dumps(record | {"runs": rows}, indent=1) + "\n", encoding="utf-8")
    if asked.plot is not None:
        save(chart(rows), asked.plot)


if __name__ == "__main__":
    main()
