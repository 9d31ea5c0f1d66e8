"""Every scheme on one data set at the same true ε, δ and stragglers: test accuracy, side by side.

python benchmarks/schemes.py digits
python benchmarks/schemes.py fashion-mnist
python benchmarks/schemes.py cifar10 --data-path DIR [--epsilon 3 6 9] [--schemes exact repair]

What is tuned: the server's learning rate, for each scheme and ε by the same search (from 4, by factors of 2, while it
helps), on a tenth of the training data that is held out for it. The runs that are reported then train on all
training data and are tested on the test data, which chose nothing. All else is equal. "paper" is run with its own
noise, for the ε it claims; its true ε stands in the record.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lightdp.training import data, models
from lightdp.training.config import Config
from lightdp.training.simulator import Run
from lightdp_lab.bench import conditions

if TYPE_CHECKING:
    from lightdp.runlog import Ended

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"model": "linear", "clients": 20, "colluders": 4, "stragglers": 4, "rounds": 60, "clip": 1.0},
    "fashion-mnist": {"model": "scattering-linear", "mirror": True, "rounds": 100, "clip": 0.1},
    "cifar10": {"model": "scattering-linear", "mirror": True, "rounds": 150, "clip": 0.1},
}
COMMON = {"clients": 50, "colluders": 10, "stragglers": 10, "momentum": 0.9, "evaluate_every": 1000}
SCHEMES = ("none", "central", "smpc", "repair", "exact", "paper", "local")


class Prepared:
    """A data set whose features are made once for all runs, and the same with a tenth held out for tuning."""

    def __init__(self, name: str, path: Path | None) -> None:
        settings = SETTINGS[name]
        source = data.load(name, path)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        train, test = (
            models.prepare(
                settings["model"], torch.from_numpy(x), device, mirror=settings.get("mirror", False)
            ).cpu().numpy()
            for x in (source.train_x, source.test_x)
        )  # fmt: skip
        self.whole = dataclasses.replace(source, train_x=train, test_x=test)
        held = np.random.default_rng(0).permutation(len(train)) < len(train) // 10
        self.tuning = dataclasses.replace(
            source, train_x=train[~held], train_y=source.train_y[~held], test_x=train[held], test_y=source.train_y[held]
        )

    def run(self, settings: dict[str, Any], *, tuning: bool = False) -> Ended:
        """The last line of a run. The features stand in for the pictures, so they are not prepared again."""
        config = Config(**settings | {"model": "linear", "mirror": False})
        with tempfile.TemporaryDirectory() as folder:
            run = Run(config, Path(folder) / "run.jsonl", dataset=self.tuning if tuning else self.whole)
            return run.finish().outcome

    def best_rate(self, settings: dict[str, Any]) -> float:
        """The learning rate, of 4 times a power of 2, from which no neighbour leads further up."""
        known: dict[float, float] = {}

        def accuracy(rate: float) -> float:
            if rate not in known:
                found = self.run(settings | {"lr": rate}, tuning=True).accuracy
                known[rate] = 0.0 if found is None else found
            return known[rate]

        rate = 4.0
        for factor in (0.5, 2.0):
            while accuracy(rate * factor) > accuracy(rate):
                rate *= factor
        return rate


def measure(prepared: Prepared, settings: dict[str, Any], seeds: int) -> dict[str, Any]:
    """Accuracy over `seeds` seeds, at the learning rate that tuning found."""
    rate = prepared.best_rate(settings)
    ends = [prepared.run(settings | {"lr": rate, "seed": seed}) for seed in range(seeds)]
    accuracies = [end.accuracy for end in ends if end.accuracy is not None]
    return {
        "accuracy": statistics.mean(accuracies),
        "spread": statistics.stdev(accuracies) if seeds > 1 else None,
        "epsilon": max((end.epsilon for end in ends if end.epsilon is not None), default=None),
        "rounds": min(end.rounds for end in ends),
        "lr": rate,
        "bytes_up": ends[0].bytes_up,
    }


def main() -> None:
    """Measure and print; with --out, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=sorted(SETTINGS))
    parser.add_argument("--data-path", type=Path)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0])
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), choices=SCHEMES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    prepared, name = Prepared(given.data, given.data_path), given.data
    common = COMMON | SETTINGS[name] | ({} if given.rounds is None else {"rounds": given.rounds})
    where = conditions() | {"gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
    record: dict[str, Any] = {
        "conditions": where,
        "data": name,
        "seeds": given.seeds,
        "settings": common,
        "epsilon": {},
    }
    for epsilon, scheme in itertools.product(given.epsilon, given.schemes):
        row = measure(prepared, common | {"data": name, "scheme": scheme, "epsilon": epsilon}, given.seeds)
        record["epsilon"].setdefault(f"{epsilon:g}", {})[scheme] = row
        true = "" if row["epsilon"] is None else f"  true ε {row['epsilon']:.3f}"
        print(f"{name} ε = {epsilon:g} {scheme:<8}{row['accuracy']:8.2%}{true}  lr {row['lr']:g}", flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
