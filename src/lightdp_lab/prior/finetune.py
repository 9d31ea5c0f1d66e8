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
from lightdp.runlog import Line
from lightdp.training import models
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from lightdp_lab.prior import start
from lightdp_lab.reproduce import FINE, same
from lightdp_lab.results import summary

START = Path("starts/wrn-16-4.safetensors")
"""The start of the record, in a clone of the repository."""
LENGTH = 1.5  # of its filters


def begun(path: Path, model: str, classes: int, *, length: float | None = LENGTH) -> nn.Module:
    """A model with the weights of a start, and a last layer of zeros.

    Args:
        path: the start.
        model: one of `lightdp.training.models.NAMES`.
        classes: how many labels there are.
        length: what every standardised filter is scaled to, once it is centred; None leaves all as they are. What the
            model computes stays the same; a learning rate turns shorter filters further, and their gradients are a
            larger part of what is clipped. In a start filters are the longer the wider the layer below.
    """
    weights, _ = start.read(path)
    built = start.mapped(models.build(model, (3, 32, 32), classes, 0))
    start.put(built, weights)
    for layer in built.modules():
        if isinstance(layer, models.StandardisedConv) and length is not None:
            with torch.no_grad():
                layer.weight.copy_(length * layer.standard(layer.weight)[0])
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
    config: Config, path: Path, folder: Path, source: Dataset, *, length: float = LENGTH, note: str = "",
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
    facts = {"start": digest(path), "filters": length, "note": note}

    def play(log: Path, *, resume: bool) -> dict[str, Any]:
        run = Run(
            config, log, resume=resume, dataset=source, module=begun(path, config.model, source.classes, length=length)
        )
        line = summary(run, run.finish(watch)) | facts | {"accuracy_mirrored": _mirrored(run)}
        return line | {"made_by": start.read(path)[1].get("command")}

    return once(folder / "held-out" if note else folder, config, facts, play)  # apart from what pages are made of


def digest(path: Path) -> str:
    """Of a start: SHA-256 of its file."""
    return hashlib.sha256(contents(path, limit=1 << 30)).hexdigest()


def once(
    folder: Path, config: Config, facts: dict[str, Any], play: Callable[..., dict[str, Any]]
) -> dict[str, Any]:  # fmt: skip
    """The line that a folder has of a run, or else the one that is made of it now, and kept.

    Args:
        folder: of the lines.
        config: the settings.
        facts: what else tells this run from others.
        play: given the file of a log, and whether to resume it, runs and returns the line.
    """
    key = {"config": same(config)} | facts
    kept = folder / f"training-prior-{config.model}.jsonl"
    usual = same(Config()) | FINE  # a setting that a line lacks is newer than the line, which ran without it
    for text in kept.read_text(encoding="utf-8").splitlines() if kept.exists() else ():
        line: dict[str, Any] = json.loads(text)
        line["config"] = usual | line["config"]
        if {name: line.get(name) for name in key} == key:
            return line
    work = folder / ".work"
    work.mkdir(parents=True, exist_ok=True)
    log = work / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]}.jsonl"
    line = play(log, resume=log.with_suffix(".checkpoint").exists())
    with kept.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")
    for file_path in (log, log.with_suffix(".checkpoint")):
        file_path.unlink(missing_ok=True)
    return line


def _mirrored(run: Run) -> float:
    """Accuracy by the mean score of an image and its mirror image, which costs no privacy; no table has it."""
    hits = 0
    with torch.no_grad():
        for x, y in zip(run.test_x.split(2000), run.test_y.split(2000), strict=True):
            hits += int(((run.model(x) + run.model(x.flip(-1))).argmax(1) == y).sum())
    return hits / len(run.test_y)
