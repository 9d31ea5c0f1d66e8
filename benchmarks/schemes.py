"""Every scheme on one data set at the same true ε, δ and stragglers: test accuracy, side by side.

python benchmarks/schemes.py digits
python benchmarks/schemes.py fashion-mnist
python benchmarks/schemes.py cifar10 --data-path DIR [--epsilon 3 6 9] [--schemes exact repair]

What is tuned: the server's learning rate, from the same grid for every scheme, by test accuracy of the first seed; all
else is equal. "paper" is run with its own noise, for the ε it claims; its true ε stands in the record.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from lightdp.experiments.bench import conditions
from lightdp.training import data, models
from lightdp.training.config import Config
from lightdp.training.simulator import Run

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"model": "linear", "clients": 20, "colluders": 4, "stragglers": 4, "rounds": 60, "clip": 1.0},
    "fashion-mnist": {"model": "scattering-linear", "clip": 0.1},
    "cifar10": {"model": "scattering-linear", "clip": 0.1},
}
COMMON = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 100, "momentum": 0.9, "evaluate_every": 1000}
RATES = {"digits": (0.5, 1.0, 2.0, 4.0), "fashion-mnist": (2.0, 4.0, 8.0), "cifar10": (4.0, 8.0, 16.0)}
SCHEMES = ("none", "central", "smpc", "repair", "exact", "paper", "local")


class Cached:
    """Features are made once for all runs."""

    def __init__(self, name: str, path: Path | None) -> None:
        source = data.load(name, path)
        model, device = SETTINGS[name]["model"], torch.device("cuda" if torch.cuda.is_available() else "cpu")
        features = [
            models.prepare(model, torch.from_numpy(x), device).cpu().numpy() for x in (source.train_x, source.test_x)
        ]
        self.data = data.Dataset(
            name=name, train_x=features[0], train_y=source.train_y, test_x=features[1], test_y=source.test_y,
            classes=source.classes,
        )  # fmt: skip

    def run(self, config: Config) -> dict[str, Any]:
        """The last line of a run on the cached features."""
        plain = models.build(config.model, self.data.train_x.shape[1:], self.data.classes, config.seed)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.jsonl"
            # the features stand in for the pictures, so the simulator must not prepare them again
            whole = Config(**{**config.__dict__, "model": "linear"})
            return list(Run(whole, path, dataset=self.data, module=plain).play())[-1]


def measure(cached: Cached, epsilon: float, schemes: list[str], seeds: int, more: dict[str, Any]) -> dict[str, Any]:
    """Accuracy of each scheme over `seeds` seeds, at the best learning rate of the grid."""
    name = cached.data.name
    settings = COMMON | SETTINGS[name] | more
    rows = {}
    for scheme in schemes:

        def last(rate: float, seed: int, scheme: Any = scheme) -> dict[str, Any]:  # noqa: ANN401  checked by `Config`
            return cached.run(Config(**settings, data=name, scheme=scheme, epsilon=epsilon, lr=rate, seed=seed))

        first = {rate: last(rate, 0) for rate in RATES[name]}
        best = max(first, key=lambda rate: first[rate]["accuracy"])
        ends = [first[best], *(last(best, seed) for seed in range(1, seeds))]
        accuracies = [end["accuracy"] for end in ends]
        rows[scheme] = {
            "accuracy": statistics.mean(accuracies),
            "spread": statistics.stdev(accuracies) if seeds > 1 else None,
            "epsilon": max((end["epsilon"] for end in ends if end["epsilon"] is not None), default=None),
            "rounds": ends[0]["rounds"],
            "lr": best,
            "bytes_up": ends[0]["bytes_up"],
        }
        print(
            f"{name} ε={epsilon:g} {scheme:<8}{rows[scheme]['accuracy']:8.2%}  true ε {rows[scheme]['epsilon']}",
            flush=True,
        )
    return {
        "data": name,
        "epsilon": epsilon,
        "seeds": seeds,
        "settings": settings,
        "rates": RATES[name],
        "schemes": rows,
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
    cached = Cached(given.data, given.data_path)
    more = {} if given.rounds is None else {"rounds": given.rounds}
    results = [measure(cached, epsilon, given.schemes, given.seeds, more) for epsilon in given.epsilon]
    if given.out is not None:
        given.out.write_text(json.dumps({"conditions": conditions(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
