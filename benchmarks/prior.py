"""Which settings train best from the start from noise: held-out accuracy of many, each in a short run.

Each run is one of `lightdp prior train --held-out` at some ε, with its plan, noise and rounds, except that a round's
batch is a twentieth of what it should be, and its sum twenty times as large. What noise does to a sum of hundreds of
records is still far more than what the draw of records does, so that settings should rank as in whole runs, at a
twentieth of the work. The tenth of the training records that is held out tells accuracy and loss; no test record is
seen. Several decays of the average are kept beside each other, and each is also evaluated with the mean of the scores
of an image and its mirror image. Runs here protect nobody, and their accuracy is no result.

Run: python benchmarks/prior.py DATA --out benchmarks/records/prior.json --jobs 4    (DATA: a folder of CIFAR-10)
     python benchmarks/prior.py DATA --only base,e15 --epsilon 3
     python benchmarks/prior.py --record benchmarks/records/prior.json    (prints the table of a record)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightdp.runlog import Line, Round
from lightdp.training import data, gradients, models, step, views
from lightdp.training.clients import Clients
from lightdp.training.config import Config
from lightdp.training.simulator import Run
from lightdp_lab import bench
from lightdp_lab.prior import finetune
from lightdp_lab.reproduce import started

DECAYS = (0.0, 0.95, 0.98, 0.99, 0.995, 0.9975)
SHARE = 0.05
_MEMORY = 1 << 34  # of records whose gradients are made together: several runs share a GPU
# What a try changes, by ε: settings of `Config`, and beside them "length" (a factor on the lengths that filters have in
# the start, 0.5 if nothing is said), "stages" (further factors, of the stem and each stage), "even" (one length of all
# filters instead), "head" (a factor on the last layer's rate in rounds of all layers), "slope" (the rate falls linearly
# from 1 + slope to 1 - slope times the usual one) and "shift" (pixels that a crop may be off).
_BEFORE: dict[str, Any] = {"clip": 1.0}
_DEEP: dict[str, Any] = _BEFORE | {"stages": [1.0, 1.0, 1.0, 0.5]}
TRIES: dict[float, dict[str, dict[str, Any]]] = {
    9.0: {
        "base": _BEFORE | {"lr": 0.658},
        "lr-0.46": _BEFORE | {"lr": 0.46},
        "lr-0.94": _BEFORE | {"lr": 0.94},
        "lr-1.3": _BEFORE | {"lr": 1.3},
        "length-1": _BEFORE | {"length": 1.0, "lr": 1.3},
        "length-0.25": _BEFORE | {"length": 0.25, "lr": 0.33},
        "views-8": _BEFORE | {"augment": 8, "lr": 0.658},
        "views-2": _BEFORE | {"augment": 2, "lr": 0.658},
        "clip-3": {"clip": 3.0, "lr": 0.22},
        "head-4": _BEFORE | {"head": 4.0, "lr": 0.658},
        "head-0.25": _BEFORE | {"head": 0.25, "lr": 0.658},
        "slope-1-lr-0.94": _BEFORE | {"slope": 1.0, "lr": 0.94},
        "shift-2": _BEFORE | {"shift": 2, "lr": 0.658},
        "deep-longer": _BEFORE | {"stages": [1.0, 1.0, 1.0, 2.0], "lr": 0.658},
        "deep-shorter": _DEEP | {"lr": 0.658},
        "front-shorter": _BEFORE | {"stages": [0.5, 0.5, 1.0, 1.0], "lr": 0.658},
        "front-frozen": _BEFORE | {"stages": [8.0, 8.0, 1.0, 1.0], "lr": 0.658},
        "no-noise": _BEFORE | {"scheme": "none", "lr": 0.658},
        "d5-lr94": _DEEP | {"lr": 0.94},
        "d25": _BEFORE | {"stages": [1.0, 1.0, 1.0, 0.25], "lr": 0.658},
        "m7-d35": _BEFORE | {"stages": [1.0, 1.0, 0.7, 0.35], "lr": 0.658},
        "m5-d5": _BEFORE | {"stages": [1.0, 1.0, 0.5, 0.5], "lr": 0.658},
        "d5-shift2-head4": _DEEP | {"shift": 2, "head": 4.0, "lr": 0.658},
        "d5-clip3": _DEEP | {"clip": 3.0, "lr": 0.22},
        "f2-d5-lr94": _BEFORE | {"stages": [2.0, 2.0, 1.0, 0.5], "lr": 0.94},
        "d35-lr94": _BEFORE | {"stages": [1.0, 1.0, 1.0, 0.35], "lr": 0.94},
        "e15": _BEFORE | {"even": 1.5, "lr": 0.658},
        "e15-c3": {"even": 1.5, "clip": 3.0, "lr": 0.25},
        "e15-c3-s2": {"even": 1.5, "clip": 3.0, "lr": 0.31, "shift": 2},
        "e1-c3": {"even": 1.0, "clip": 3.0, "lr": 0.2},
        "e2-c3": {"even": 2.0, "clip": 3.0, "lr": 0.31},
    },
    3.0: {
        "base": _BEFORE,
        "d5": _DEEP,
        "d25": _BEFORE | {"stages": [1.0, 1.0, 1.0, 0.25]},
        "d5-lr35": _DEEP | {"lr": 0.35},
        "e15": _BEFORE | {"even": 1.5},
        "e15-c3": {"even": 1.5, "clip": 3.0, "lr": 0.09},
    },
    1.0: {"e15": _BEFORE | {"even": 1.5}, "e15-c3": {"even": 1.5, "clip": 3.0, "lr": 0.038}},
}


class Fewer(Clients):
    """Clients that draw a part of each batch, and send as much as if they had drawn all of it."""

    def _drawn(self, number: int, piece: list[int], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        draws = self._draws(11, number, piece)
        lots = np.concatenate([rng.random(count) for rng, count in zip(draws, counts.tolist(), strict=True)])
        return lots < self.config.sampling_rate * SHARE

    def _clipped_sums(self, *given: Any) -> torch.Tensor:  # noqa: ANN401  as `Clients` has them
        return super()._clipped_sums(*given) / SHARE


def tried(name: str, changes: dict[str, Any], epsilon: float, seed: int, place: str) -> dict[str, Any]:
    """One run, and how good each average of its weights is."""
    settings, gradients._CUDA_BYTES = dict(changes), _MEMORY  # noqa: SLF001
    length, stages, head = settings.pop("length", 0.5), settings.pop("stages", None), settings.pop("head", 1.0)
    slope, shift, even = settings.pop("slope", 0.0), settings.pop("shift", 4), settings.pop("even", None)
    (config,) = started(epsilons=(epsilon,), seeds=(seed,), evaluate_every=10**6, **settings)
    source = finetune.held_out(data.load("cifar10", Path(place)))
    module = finetune.begun(finetune.START, config.model, source.classes, length=even)
    if even is None:
        _lengthen(module, [length * each for each in stages or [1.0] * 4])
    _patch(config, head, slope, shift, module)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, Path(folder) / "run.jsonl", dataset=source, module=module)
        run.clients = Fewer(run.clients.config, run.clients.x, run.clients.y, run.clients.ends)
        averages = {decay: run.state.weights.clone() for decay in DECAYS}
        curve: list[tuple[int, float]] = []
        norms: list[float] = []

        def watch(line: Line) -> None:
            if isinstance(line, Round):
                for decay, average in averages.items():
                    now = min(decay, line.round / (9 + line.round))
                    average.mul_(now).add_(run.state.weights, alpha=1 - now)
                if line.round % 60 == 0:
                    curve.append((line.round, _scores(run, averages[0.99])["accuracy"]))
                    norms.append(float(run.state.weights.norm()))

        began = time.monotonic()
        run.finish(watch)
        seconds = time.monotonic() - began
        found = {str(decay): _scores(run, average) for decay, average in averages.items()}
    return {
        "name": name, "changes": changes, "epsilon": epsilon, "seed": seed, "seconds": round(seconds, 1),
        "by_decay": found, "curve": curve, "norms": norms,
    }  # fmt: skip


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _lengthen(module: torch.nn.Module, stages: list[float]) -> None:
    """Multiply the filters of the stem and of each stage."""
    place = {16: 0, 64: 1, 128: 2, 256: 3}
    for layer in module.modules():
        if isinstance(layer, models.StandardisedConv):
            with torch.no_grad():
                layer.weight.mul_(stages[place[layer.out_channels]])


def _patch(config: Config, head: float, slope: float, shift: int, module: torch.nn.Module) -> None:
    """Tries that no setting has; a process runs one try after the other, each with all of these set."""
    last, usual = sum(p.numel() for p in models.last(module).parameters()), _STEPPED
    body = config.rounds - config.head_rounds

    def stepped(config: Config, old: Any, *given: Any, **more: Any) -> Any:  # noqa: ANN401  as `step` has them
        late = old.round - config.head_rounds
        if slope and late >= 0:
            config = dataclasses.replace(config, lr=config.lr * (1 + slope * (1 - (2 * late + 1) / body)))
        after = usual(config, old, *given, **more)
        if head != 1 and late >= 0:
            moved = after.weights[-last:] - old.weights[-last:]
            after.weights[-last:] += (head - 1) * moved
        return after

    step.stepped = stepped
    views._SHIFT = shift  # noqa: SLF001


_STEPPED = step.stepped


def _scores(run: Run, weights: torch.Tensor) -> dict[str, float]:
    """Accuracy and loss on what is held out, plain and as the mean over an image and its mirror image."""
    gradients.assign(run.model, weights)
    with torch.no_grad():
        pieces = [torch.stack([run.model(x), run.model(x.flip(3))]) for x in run.test_x.split(1000)]
    one, other = torch.cat(pieces, 1)
    found = {}
    for name, scores in (("", one), ("_mirror", (one + other) / 2)):
        found[f"accuracy{name}"] = float((scores.argmax(1) == run.test_y).double().mean())
        found[f"loss{name}"] = float(torch.nn.functional.cross_entropy(scores, run.test_y))
    return found


def show(lines: list[dict[str, Any]]) -> None:
    """The table: accuracy by decay, then that of 0.99 with mirror images, its loss, and seconds."""
    print(f"{'':22} eps seed " + " ".join(f"{decay:>6g}" for decay in DECAYS) + "  mirror   loss  seconds")
    for line in lines:
        by = line["by_decay"]
        cells = " ".join(f"{100 * by[str(decay)]['accuracy']:6.2f}" for decay in DECAYS)
        best = by["0.99"]
        rest = f"{100 * best['accuracy_mirror']:7.2f} {best['loss']:6.3f} {line['seconds']:7.1f}"
        print(f"{line['name']:22} {line['epsilon']:3g} {line['seed']:4d} {cells} {rest}", flush=True)


def main() -> None:
    """Run the tries, several at a time, and keep each as it ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", nargs="?")
    parser.add_argument("--only", help="Names of tries, with commas between them.")
    parser.add_argument("--tries", type=json.loads, default={}, help="Other tries, as JSON: changes by name.")
    parser.add_argument("--epsilon", default="9,3,1", help="Budgets, with commas between them.")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    if given.record is not None:
        show(json.loads(given.record.read_text(encoding="utf-8"))["runs"])
        return
    wanted = []
    for epsilon in map(float, given.epsilon.split(",")):
        tries = given.tries or TRIES[epsilon]
        names = list(tries) if given.only is None else given.only.split(",")
        seeds = map(int, given.seeds.split(","))
        wanted += [(name, tries[name], epsilon, seed, given.data) for seed in seeds for name in names]
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(tried, *one) for one in wanted]):
            if (error := done.exception()) is not None:
                print(f"failed: {error!r}", flush=True)
                continue
            found.append(done.result())
            show(found[-1:])
            if given.out is not None:
                kept = ",\n".join(map(json.dumps, found))
                conditions = json.dumps(bench.conditions() | {"device": _device()})
                given.out.write_text(f'{{"conditions": {conditions},\n"runs": [\n{kept}\n]}}\n', encoding="utf-8")
    show(sorted(found, key=lambda line: -line["by_decay"]["0.99"]["accuracy"]))


if __name__ == "__main__":
    main()
