"""Which γ trains best under repair: accuracy over γ, learning rate and momentum, beside SMPC+DP with the same seeds.

python benchmarks/gamma.py digits --out benchmarks/records/gamma-digits.json
python benchmarks/gamma.py fashion-mnist --device cuda --jobs 4 --out benchmarks/records/gamma-fashion-mnist.json
python benchmarks/gamma.py cifar10 --data-path DIR --device cuda --jobs 4 --out benchmarks/records/gamma-cifar10.json

The study makes choices, so it never sees the test data: seed s holds out the s-th tenth of the training data, trains on
the rest and is tested on that tenth. Runs of one seed share records, clients, stragglers and the draws of noise, so
their differences are paired. Learning rates are compared at equal lr/(1 − momentum).

Two blocks. "grid": γ, learning rate and momentum. "more", at momentum 0.9: averaged weights (ema 0.95), schedules of
noise over the rounds (D7), and residuals that stay for two rounds instead of one, as those of lost stragglers do with
grace (R5), whose plans add little noise to that.

Each run is a line of the record, written when it ends; a run whose line is there is not run again.
`benchmarks/gamma_chart.py` reads the records.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gamma_channel import SCHEDULES, Scheduled
from gamma_tables import by_weight
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from lightdp_lab.bench import conditions
from lightdp_lab.results import prepared

_ALL: dict[str, Any] = {"epsilon": 3.0, "arrivals": "uniform", "momentum": 0.9, "wire_steps": 16}
_ALL |= {"evaluate_every": 10**6}
_MANY: dict[str, Any] = {"clients": 50, "colluders": 10, "stragglers": 10}
_IMAGES: dict[str, Any] = {"model": "scattering-linear", "mirror": True, "clip": 0.1}
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": _ALL | {"data": "digits", "clients": 20, "colluders": 4, "stragglers": 4, "rounds": 60, "lr": 1.0},
    "fashion-mnist": _ALL | _MANY | _IMAGES | {"data": "fashion-mnist", "rounds": 100, "lr": 32.0},
    "cifar10": _ALL | _MANY | _IMAGES | {"data": "cifar10", "partition": "dirichlet:0.5", "rounds": 150, "lr": 8.0},
}
"""The settings of each data set; `lr` is the usual one at momentum 0.9, as `benchmarks/schemes.py` found it."""
GAMMAS = (1.5, 3.0, None, 8.0, 12.0, 22.0, 50.0)
"""None is the γ of weight 1, about 5, see `gamma_tables.by_weight`."""
FACTORS, MOMENTA, EMAS = (0.25, 0.5, 1.0, 2.0), (0.0, 0.5, 0.9, 0.95), (0.0, 0.95)
FOLDS = 10


@dataclass(frozen=True, kw_only=True)
class Job:
    """What tells a run of the study from others on the same data.

    Attributes:
        seed: of everything random; it also says which tenth is held out.
        scheme: "repair" or "smpc".
        gamma: γ; None for that of weight 1, and for "smpc".
        factor: of the usual learning rate.
        momentum: of the server.
        ema: decay of the averaged weights.
        schedule: how the noise changes over the rounds, see `gamma_channel.scales`.
        delay: rounds after which a residual is repaired.
    """

    seed: int
    scheme: str = "repair"
    gamma: float | None = None
    factor: float = 1.0
    momentum: float = 0.9
    ema: float = 0.0
    schedule: str = "constant"
    delay: int = 1


def grid(seed: int, gammas: Sequence[float | None], factors: Sequence[float]) -> Iterator[Job]:
    """γ, learning rate and momentum."""
    for momentum, factor in itertools.product(MOMENTA, factors):
        yield Job(seed=seed, scheme="smpc", factor=factor, momentum=momentum)
        for gamma in gammas:
            yield Job(seed=seed, gamma=gamma, factor=factor, momentum=momentum)


def more(seed: int, gammas: Sequence[float | None], factors: Sequence[float]) -> Iterator[Job]:
    """Averaged weights, schedules and longer residuals."""
    for factor in factors:
        yield Job(seed=seed, scheme="smpc", factor=factor, ema=EMAS[1])
        for gamma in gammas:
            yield Job(seed=seed, gamma=gamma, factor=factor, ema=EMAS[1])
            yield Job(seed=seed, gamma=gamma, factor=factor, delay=2)
        for schedule, ema in itertools.product(SCHEDULES[1:], EMAS):
            yield Job(seed=seed, factor=factor, schedule=schedule, ema=ema)


BLOCKS = {"grid": grid, "more": more}


@lru_cache(maxsize=1)
def held_out(seed: int, name: str, path: str | None, device: str) -> tuple[Dataset, torch.Tensor, torch.Tensor]:
    """The training data with one tenth of it as test data, and the features of both."""
    settings = Config(**SETTINGS[name])
    source, features, _ = prepared(name, path, settings.model, settings.mirror, device)
    fold = np.random.default_rng(0).permutation(len(source.train_y)) % FOLDS == seed % FOLDS
    kept, out = (torch.from_numpy(np.flatnonzero(rows)).to(device) for rows in (~fold, fold))
    split = dataclasses.replace(
        source, train_x=source.train_x[~fold], train_y=source.train_y[~fold],
        test_x=source.train_x[fold], test_y=source.train_y[fold],
    )  # fmt: skip
    return split, features[kept], features[out]


def settled(job: Job, name: str, device: str, rounds: int | None = None) -> Config:
    """The settings of a run."""
    usual = SETTINGS[name]
    lr = usual["lr"] * job.factor * (1 - job.momentum) / (1 - usual["momentum"])
    gamma = by_weight(usual, 1.0) if job.gamma is None and job.scheme == "repair" else job.gamma
    asked: dict[str, Any] = {"scheme": job.scheme, "gamma": gamma, "momentum": job.momentum, "ema": job.ema}
    asked |= {"seed": job.seed, "lr": float(f"{lr:.6g}"), "device": device}
    return Config(**usual | asked | ({} if rounds is None else {"rounds": rounds}))


def played(job: Job, name: str, path: str | None, device: str, rounds: int | None = None) -> dict[str, Any]:
    """One run, as a line of the record."""
    begun = time.perf_counter()
    split, *features = held_out(job.seed, name, path, device)
    config = settled(job, name, device, rounds)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, Path(folder) / "run.jsonl", dataset=split, prepared=(features[0], features[1]))
        if run.plan is None:
            raise ValueError(f"scheme must have noise, got {job.scheme}")
        if (job.schedule, job.delay) != ("constant", 1):
            varied: dict[str, Any] = {"schedule": job.schedule, "delay": job.delay}
            run.members.rosters[0].channel = Scheduled(run.plan, run.parameters, job.seed, run.device, **varied)
        log = run.finish()
    accuracy, loss = run.evaluate()  # after the closing round
    stds = {
        kind: math.sqrt(sum((getattr(line, kind) or 0.0) ** 2 for line in log.rounds) / max(1, len(log.rounds)))
        for kind in ("noise_std", "residual_std")
    }
    return dataclasses.asdict(job) | {
        "lr": config.lr, "gamma_used": run.plan.gamma, "accuracy": accuracy,
        "loss": float(f"{loss:.6g}") if math.isfinite(loss) else None,
        **{kind: float(f"{std:.5g}") for kind, std in stds.items()},
        "epsilon": log.outcome.epsilon, "rounds": log.outcome.rounds, "seconds": round(time.perf_counter() - begun, 2),
    }  # fmt: skip


class Record:
    """The lines of a file, one a run, and the conditions of each session that added some."""

    def __init__(self, path: Path | None, name: str) -> None:
        self.path = path
        self.content: dict[str, Any] = {"data": name, "settings": SETTINGS[name], "sessions": [], "runs": []}
        if path is not None and path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["data"] != name or found["settings"] != self.content["settings"]:
                raise SystemExit(f"{path} holds runs of {found['data']} with other settings: give another --out")
            self.content = found

    def __contains__(self, job: Job) -> bool:
        wanted = dataclasses.asdict(job)
        return any(wanted.items() <= line.items() for line in self.content["runs"])

    def session(self, device: str, jobs: int) -> None:
        """Say where the lines that follow come from."""
        gpu = torch.cuda.get_device_name() if device == "cuda" else None
        self.content["sessions"].append(conditions() | {"torch": torch.__version__, "gpu": gpu, "jobs": jobs})

    def add(self, line: dict[str, Any]) -> None:
        """Keep a line; the file is there whole or as it was before."""
        self.content["runs"].append(line | {"session": len(self.content["sessions"]) - 1})
        if self.path is None:
            return
        head = json.dumps({key: value for key, value in self.content.items() if key != "runs"}, indent=1)
        lines = ",\n".join(json.dumps(line) for line in self.content["runs"])
        temporary = self.path.with_suffix(".part")
        temporary.write_text(f'{head[:-2]},\n "runs": [\n{lines}\n ]\n}}\n', encoding="utf-8")
        temporary.replace(self.path)


def main() -> None:
    """Run what the record lacks, and say how far it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=sorted(SETTINGS))
    parser.add_argument("--data-path", help="folder or archive of the data, if not in $LIGHTDP_DATA")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--blocks", nargs="+", choices=sorted(BLOCKS), default=list(BLOCKS))
    parser.add_argument("--gammas", type=float, nargs="+", help="instead of the usual ones")
    parser.add_argument("--factors", type=float, nargs="+", default=FACTORS, help="of the usual learning rate")
    parser.add_argument("--rounds", type=int, help="fewer, to try it; not for a record")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, in processes of their own")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.rounds is not None and given.out is not None:
        parser.error(f"--rounds changes what is measured, so it takes no --out, got --out {given.out}")
    device = given.device if given.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    record, begun = Record(given.out, given.data), time.monotonic()
    gammas = GAMMAS if given.gammas is None else tuple(given.gammas)
    every = dict.fromkeys(
        job
        for block in given.blocks
        for seed in range(given.seeds)
        for job in BLOCKS[block](seed, gammas, given.factors)
    )
    missing = [job for job in every if job not in record]
    print(f"{given.data} on {device}: {len(missing)} of {len(every)} runs are missing", flush=True)
    record.session(device, given.jobs)
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // given.jobs)
    with ProcessPoolExecutor(given.jobs, context, torch.set_num_threads, (threads,)) as pool:
        waiting = [pool.submit(played, job, given.data, given.data_path, device, given.rounds) for job in missing]
        for done, each in enumerate(as_completed(waiting), 1):
            line = each.result()
            record.add(line)
            gone = time.monotonic() - begun
            told = ", ".join(f"{field} {line[field]}" for field in vars(Job(seed=0)))
            print(f"{done}/{len(missing)} {gone:.0f} s: {line['accuracy']:.2%}, {told}", flush=True)
            if gone > 60 * given.minutes:
                pool.shutdown(wait=True, cancel_futures=True)
                break


if __name__ == "__main__":
    main()
