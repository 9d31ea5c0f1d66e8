"""Private training from a start: the last layer first, on the features of the start, then all layers.

Both parts are rounds of one run with one plan, so that one ε covers them: `head_rounds` of `lightdp.training.config`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lightdp._files import contents
from lightdp.errors import ArgumentError
from lightdp.runlog import Line
from lightdp.training import models
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from lightdp_lab.prior import start
from lightdp_lab.reproduce import EPSILONS, FINE, MIDDLE, same
from lightdp_lab.results import summary

HEAD, ROUNDS = 30, 300
_RATES = {1.0: 0.4, 3.0: 0.8, 6.0: 1.4, 9.0: 2.0}  # learning rates by ε; the nearest is taken
_CELL: dict[str, Any] = {
    "data": "cifar10", "partition": "dirichlet:0.5", "model": "wrn-16-4", "clients": 50, "rounds": HEAD + ROUNDS,
    "head_rounds": HEAD, "sampling_rate": 0.16, "augment": 4, "clip": 1.0, "momentum": 0.9, "ema": 0.995,
    "evaluate_every": 55,
} | MIDDLE | FINE  # fmt: skip


def cells(
    *, epsilons: tuple[float, ...] = EPSILONS, seeds: tuple[int, ...] = (0, 1, 2),
    schemes: tuple[str, ...] = ("repair",), **changes: Any,  # noqa: ANN401  settings of `Config`
) -> list[Config]:  # fmt: skip
    """The runs of the record, trial by trial: CIFAR-10, 50 clients, C̄ = S̄ = 10, records, the whole training.

    >>> [(cell.epsilon, cell.lr) for cell in cells(seeds=(0,))]
    [(3.0, 0.8), (6.0, 1.4), (9.0, 2.0)]

    Args:
        epsilons: budgets.
        seeds: of the trials.
        schemes: whose noise.
        **changes: other settings than usual.
    """
    known = {field.name for field in dataclasses.fields(Config)}
    if unknown := sorted(set(changes) - known):
        raise ArgumentError(f"set must name settings of lightdp run, got {', '.join(unknown)}")
    return [
        Config(**_CELL | {"lr": _rate(epsilon), "epsilon": epsilon, "scheme": scheme, "seed": seed} | changes)
        for seed in seeds for epsilon in epsilons for scheme in schemes
    ]  # fmt: skip


def _rate(epsilon: float) -> float:
    return _RATES[min(_RATES, key=lambda known: abs(known - epsilon))]


def begun(path: Path, model: str, classes: int, *, length: float | None = None) -> nn.Module:
    """A model with the weights of a start, and a last layer of zeros.

    Args:
        path: the start.
        model: one of `lightdp.training.models.NAMES`.
        classes: how many labels there are.
        length: of each standardised filter, if not as it is in the file. What the model computes stays the same; a
            learning rate moves shorter filters further.
    """
    weights, _ = start.read(path)
    built = models.build(model, (3, 32, 32), classes, 0)
    start.put(built, weights)
    for layer in built.modules() if length is not None else ():
        if isinstance(layer, models.StandardisedConv):
            with torch.no_grad():
                centred = layer.weight - layer.weight.mean((1, 2, 3), keepdim=True)
                norms = centred.square().sum((1, 2, 3), keepdim=True).sqrt()
                layer.weight.copy_(centred * (length / norms.clamp_min(1e-6)))
    return built


def held_out(source: Dataset) -> Dataset:
    """The same data with a tenth of the training records, always the same, in place of the test records.

    Settings are chosen on it, so that no test record decides on them.
    """
    held = np.random.default_rng(0).permutation(len(source.train_y)) < len(source.train_y) // 10  # noqa: TID251  protects nothing
    return dataclasses.replace(
        source, name=f"{source.name}, a tenth held out", train_x=source.train_x[~held], train_y=source.train_y[~held],
        test_x=source.train_x[held], test_y=source.train_y[held],
    )  # fmt: skip


def trial(
    config: Config, path: Path, folder: Path, source: Dataset, *, length: float | None = None, note: str = "",
    watch: Callable[[Line], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """One run from a start, whole or from its checkpoint; its line is kept in the folder, and is not run again.

    Args:
        config: the settings.
        path: the start.
        folder: of the lines; its `.work` has logs and checkpoints of runs that are not over.
        source: the data.
        length: as for `begun`.
        note: what else tells this run from others, such as that a tenth was held out.
        watch: called with each line of the log.
    """
    facts = {"start": hashlib.sha256(contents(path, limit=1 << 30)).hexdigest(), "length": length, "note": note}
    key = {"config": same(config)} | facts
    kept = folder / f"prior-{config.model}.jsonl"
    for text in kept.read_text(encoding="utf-8").splitlines() if kept.exists() else ():
        line: dict[str, Any] = json.loads(text)
        if {name: line.get(name) for name in key} == key:
            return line
    work = folder / ".work"
    work.mkdir(parents=True, exist_ok=True)
    log = work / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]}.jsonl"
    module = begun(path, config.model, source.classes, length=length)
    run = Run(config, log, resume=log.with_suffix(".checkpoint").exists(), dataset=source, module=module)
    line = summary(run, run.finish(watch)) | facts | {"made_by": start.read(path)[1].get("command")}
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")
    for file_path in (log, log.with_suffix(".checkpoint")):
        file_path.unlink(missing_ok=True)
    return line
