"""What the commands of `lightdp prior` do, with plain lines of progress on standard error."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lightdp.errors import ArgumentError
from lightdp.runlog import Line, Round
from lightdp.training import data
from lightdp.training.config import Config
from lightdp_lab.prior import beside, finetune, pretrain, start
from lightdp_lab.prior import probe as probing
from lightdp_lab.prior.recipe import Recipe
from lightdp_lab.reproduce import cells, started

_BETWEEN = 10.0  # seconds between two lines of progress


def make(
    recipe: Recipe, *, out: Path, seconds: float | None = None, device: str = "auto",
    watch: Callable[[pretrain.Made], None] | None = None,
) -> None:  # fmt: skip
    """Make a start, and say what was made.

    Args:
        recipe: how.
        out: the file.
        seconds: the most that it may take.
        device: auto, cpu or cuda.
        watch: shows progress in place of plain lines.
    """
    if out.suffix != ".safetensors" or not out.parent.is_dir():
        raise ArgumentError(f"out must be a .safetensors file in an existing folder, got out={str(out)!r}")
    began = time.monotonic()
    made = pretrain.make(recipe, out, seconds=seconds, device=_device(device), watch=watch or _lines(began))
    _say(f"{made.command}\nwrote {out} ({out.stat().st_size / 1e6:.1f} MB) in {time.monotonic() - began:.0f} s")


def probe(*, start: Path, data_path: Path | None = None, held_out: bool = False, device: str = "auto") -> None:
    """Print the accuracy of a linear model on the features of a start.

    Args:
        start: the file.
        data_path: folder or archive of CIFAR-10.
        held_out: test on a tenth of the training records.
        device: auto, cpu or cuda.
    """
    source, name = _data("cifar10", data_path, held_out=held_out), _model(start)
    accuracy = probing.linear(finetune.begun(start, name, source.classes), source, _device(device))
    _say(f"{start}: a linear model on its features has {accuracy:.2%} ({source.name}), without noise")


def train(
    *, start: Path, epsilon: str = "3,6,9", seeds: str = "0,1,2", schemes: str = "repair",
    data_path: Path | None = None, held_out: bool = False, length: float = finetune.LENGTH, changes: Sequence[str] = (),
    results: Path = Path("results"), device: str = "auto",
) -> None:  # fmt: skip
    """Train privately from a start, and print a line for each run; what the results have is not run again.

    Args:
        start: the file.
        epsilon: budgets, with commas between them.
        seeds: of the trials, likewise.
        schemes: whose noise, likewise.
        data_path: folder or archive of CIFAR-10.
        held_out: test on a tenth of the training records.
        length: of every standardised filter.
        changes: NAME=VALUE, settings of `lightdp run`.
        results: folder of the lines.
        device: auto, cpu or cuda.
    """
    configs = started(
        epsilons=_several("epsilon", epsilon, float), seeds=_several("seeds", seeds, int),
        schemes=tuple(name.strip() for name in schemes.split(",")), **{"device": _device(device)} | _settings(changes),
    )  # fmt: skip
    train_all(configs, start, results, data_path, held_out=held_out, length=length)


def train_all(
    configs: Sequence[Config], start: Path, results: Path, data_path: Path | None, *, held_out: bool = False,
    length: float = finetune.LENGTH,
) -> None:  # fmt: skip
    """Run what the results do not have of these, one after the other, and print a line for each.

    Args:
        configs: the runs.
        start: as for `train`, like what follows.
        results: folder of the lines.
        data_path: folder or archive of the data.
        held_out: test on a tenth of the training records.
        length: of every standardised filter.
    """
    source = _data(configs[0].data, data_path, held_out=held_out)
    for config in configs:
        line = finetune.trial(
            config, start, results, source, length=length, note="a tenth held out" if held_out else "",
            watch=_rounds(time.monotonic(), config.rounds),
        )  # fmt: skip
        _tell(config, line)


def linear(
    *, start: Path, epsilon: str = "3", seeds: str = "0,1,2", schemes: str = "repair", data_path: Path | None = None,
    held_out: bool = False, scale: float = beside.SCALE, changes: Sequence[str] = (), results: Path = Path("results"),
    device: str = "auto",
) -> None:  # fmt: skip
    """Train a linear model privately on scattering features and those of a start, and print a line for each run.

    Settings are those of scattering + linear at C̄ = S̄ = 10, but for `changes`.

    Args:
        start: as for `train`, like what follows.
        epsilon: budgets.
        seeds: of the trials.
        schemes: whose noise.
        data_path: folder or archive of CIFAR-10.
        held_out: test on a tenth of the training records.
        scale: of the start's features.
        changes: NAME=VALUE.
        results: folder of the lines.
        device: auto, cpu or cuda.
    """
    if not 0 <= scale < math.inf:
        raise ArgumentError(f"scale must be finite and >= 0, got scale={scale:g}")
    changed = _settings(changes)
    if unknown := sorted(set(changed) - {field.name for field in dataclasses.fields(Config)}):
        raise ArgumentError(f"set must name settings of lightdp run, got {', '.join(unknown)}")
    trials = _several("seeds", seeds, int)
    if min(trials) < 0:
        raise ArgumentError(f"seeds must be >= 0, got seeds={seeds!r}")
    configs = [
        dataclasses.replace(config, **{"device": _device(device)} | changed)
        for config in cells(
            "rounds", "repair", model="scattering-linear", trials=max(trials) + 1,
            epsilons=_several("epsilon", epsilon, float), schemes=tuple(name.strip() for name in schemes.split(",")),
        ) if config.seed in trials
    ]  # fmt: skip
    if not configs:
        raise ArgumentError(f"schemes must name some of repair, smpc, central and local, got schemes={schemes!r}")
    source = _data("cifar10", data_path, held_out=held_out)
    prepared = beside.features(start, source, _device(device), scale)
    for config in configs:
        line = beside.trial(
            config, start, results, source, prepared, scale=scale, note="a tenth held out" if held_out else "",
            watch=_rounds(time.monotonic(), config.rounds),
        )  # fmt: skip
        _tell(config, line)


def _tell(config: Config, line: dict[str, Any]) -> None:
    curve = " ".join(f"{round}:{accuracy:.4f}" for round, accuracy, *_ in line["curve"])  # noqa: A001
    spent = "none" if line["epsilon"] is None else f"{line['epsilon']:.3f}"
    name = f"{config.scheme} budget {config.epsilon:g} lr {config.lr:g} seed {config.seed}"
    _say(f"{name}: accuracy {line['accuracy']:.4f}, spent {spent}, {line['seconds']:.0f} s, {curve}")


def _settings(given: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE, with values as TOML writes them, or plain words."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ArgumentError(f"set must be NAME=VALUE, got set={text!r}")
        try:
            found[name.strip().replace("-", "_")] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip().replace("-", "_")] = value
    return found


def _several(name: str, text: str, kind: type) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"{name} must be numbers with commas between them, got {name}={text!r}") from None


def _data(name: str, path: Path | None, *, held_out: bool) -> data.Dataset:
    source = data.load(name, path)
    return finetune.held_out(source) if held_out else source


def _model(path: Path) -> str:
    return start.read(path)[1].get("model", "wrn-16-4")


def _device(name: str) -> str:
    there = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" != there:
        raise ArgumentError("device must be one that torch can use here, got device='cuda'")
    return there if name == "auto" else name


def _lines(began: float) -> Callable[[pretrain.Made], None]:
    last = [began]

    def show(made: pretrain.Made) -> None:
        now = time.monotonic()
        if now - last[0] > _BETWEEN or made.step == made.steps:
            last[0] = now
            rate = f"{made.rate:,.0f} views/s"
            sys.stderr.write(f"{now - began:.0f} s: step {made.step} of {made.steps}, loss {made.loss:.3f}, {rate}\n")

    return show


def _rounds(began: float, rounds: int) -> Callable[[Line], None]:
    last = [began]

    def show(line: Line) -> None:
        now = time.monotonic()
        if isinstance(line, Round) and (now - last[0] > _BETWEEN or line.accuracy is not None):
            last[0] = now
            seen = "" if line.accuracy is None else f", accuracy {line.accuracy:.4f}"
            sys.stderr.write(f"{now - began:.0f} s: round {line.round} of {rounds}{seen}\n")

    return show


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
