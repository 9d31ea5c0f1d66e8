"""The rows of the pictures of docs/results.md."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING, Any

from lightdp.planning import plan
from lightdp_lab import reproduce
from lightdp_lab.differences import ONE_ROUND
from lightdp_lab.registry import ALL
from lightdp_lab.reproduce import EPSILONS, MIDDLE, TABLES
from lightdp_lab.tables import MODELS, guaranteed, known, title

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightdp_lab.reproduce import Profile
    from lightdp_lab.results import Results


def charts(results: Results) -> dict[str, list[dict[str, Any]]]:
    """The rows of each picture of the page."""
    found = {"rounds": _rounds(results), "models": _models(results), "time": _time(results), "noise": _noise()}
    return {name: list(rows) for name, rows in found.items()}


def _rounds(results: Results) -> Iterator[dict[str, Any]]:
    """Mean accuracy at each round that all trials were tested at."""
    kinds: list[tuple[Profile, str]] = [("paper", model) for model in reproduce.models("paper")]
    kinds += [("exact", "scattering-linear"), ("repair", "scattering-linear")]
    found = {cell.config: cell for profile, model in kinds for cell in known(results, "rounds", profile, model=model)}
    for config, cell in found.items():
        if not cell.trials:
            continue
        guarantee = "as printed: ε for each round" if config.unit == "paper" else "ε for the whole training"
        at = {"scheme": config.scheme, "epsilon": config.epsilon, "model": MODELS[config.model]}
        at |= {"guarantee": guarantee, "trials": cell.trials}
        curves = [{number: accuracy for number, accuracy, *_ in line["curve"]} for line in cell.lines]
        for number in sorted(set.intersection(*map(set, curves))):
            values = [curve[number] for curve in curves]
            yield at | {"round": number, "accuracy": statistics.mean(values), "low": min(values), "high": max(values)}


def _models(results: Results) -> Iterator[dict[str, Any]]:
    for epsilon in EPSILONS:
        row = {"epsilon": epsilon, "what": "the paper: ResNet-18, ε for each round", "scheme": "paper"}
        yield row | {"accuracy": TABLES["table2"].printed[epsilon][0] / 100}
    for model in reproduce.models("repair"):
        for scheme in ("repair", "central"):
            for cell in guaranteed(results, "rounds", scheme, model=model):
                if cell.accuracy is not None:
                    row = {"epsilon": cell.config.epsilon, "what": f"{MODELS[model]}, {title(scheme)}"}
                    yield row | {"scheme": scheme, "accuracy": cell.accuracy}


def _time(results: Results) -> Iterator[dict[str, Any]]:
    for cell in known(results, "time", "repair"):
        links = "relayed" if cell.config.links == "relayed" else "direct"
        at = {"scheme": cell.config.scheme, "title": ALL[cell.config.scheme].title, "links": links}
        for line in cell.lines[:1]:
            for number, accuracy, seconds in line["curve"]:
                yield at | {"round": number, "accuracy": accuracy, "seconds": seconds}


def _noise() -> Iterator[dict[str, Any]]:
    """σ_U and σ_K for an ε of one round, along each of C̄, S̄ and ε.

    Repair needs the rounds that follow: its noise is that of 150 rounds, which grows by √150, for one of them.
    """
    ways = {
        "colluders": range(0, 46, 5),
        "stragglers": range(0, 41, 5),
        "epsilon": (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0),
    }
    for varies, values in ways.items():
        for value, scheme in itertools.product(values, ("paper", "exact", "repair")):
            rounds = 150 if scheme == "repair" else 1
            at = MIDDLE | {"epsilon": 3.0, "rounds": rounds, varies: value, "calibration": scheme}
            one = plan(**ONE_ROUND | at)
            for name, sigma in (("σ_U", one.sigma_individual), ("σ_K", one.sigma_pairwise)):
                row = {"varies": varies, "value": float(value), "scheme": scheme, "noise": name}
                yield row | {"sigma": sigma / math.sqrt(rounds)}
