"""The rows of the pictures of docs/results.md."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from lightdp.planning import plan
from lightdp_lab import reproduce
from lightdp_lab.differences import ONE_ROUND
from lightdp_lab.registry import ALL
from lightdp_lab.reproduce import EPSILONS, MIDDLE, TABLES
from lightdp_lab.tables import MODELS, known, title

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightdp_lab.reproduce import Profile
    from lightdp_lab.results import Results


def charts(results: Results) -> dict[str, list[dict[str, Any]]]:
    """The rows of each picture of the page."""
    return {
        "rounds": list(_round_rows(results)),
        "models": list(_model_rows(results)),
        "time": list(_time_rows(results)),
        "noise": list(_noise_rows()),
    }


def _round_rows(results: Results) -> Iterator[dict[str, Any]]:
    """Mean accuracy at each round that all trials were tested at."""
    kinds: list[tuple[Profile, str]] = [("paper", model) for model in reproduce.models("paper")]
    kinds += [("exact", "scattering-linear"), ("repair", "scattering-linear")]
    seen = set()
    for profile, model in kinds:
        for cell in known(results, "rounds", profile, model=model):
            if not cell.trials or cell.config in seen:
                continue
            seen.add(cell.config)
            at = {
                "scheme": cell.config.scheme,
                "epsilon": cell.config.epsilon,
                "model": MODELS[model],
                "guarantee": "as printed: ε for each round" if profile == "paper" else "ε for the whole training",
                "trials": cell.trials,
            }
            curves = [{round_: accuracy for round_, accuracy, *_ in line["curve"]} for line in cell.lines]
            for number in sorted(set.intersection(*(set(curve) for curve in curves))):
                found = [curve[number] for curve in curves]
                yield at | {"round": number, "accuracy": statistics.mean(found), "low": min(found), "high": max(found)}


def _model_rows(results: Results) -> Iterator[dict[str, Any]]:
    table = TABLES["table2"]
    for epsilon in EPSILONS:
        row = {"epsilon": epsilon, "what": "the paper: ResNet-18, ε for each round", "scheme": "paper"}
        yield row | {"accuracy": table.printed[epsilon][0] / 100}
    for model in reproduce.models("repair"):
        for scheme in ("repair", "central"):
            for cell in known(results, "rounds", "repair", model=model, schemes=(scheme,)):
                what = f"{MODELS[model]}, {title(scheme)}"
                if cell.accuracy is not None:
                    row = {"epsilon": cell.config.epsilon, "what": what, "scheme": scheme}
                    yield row | {"accuracy": cell.accuracy}


def _time_rows(results: Results) -> Iterator[dict[str, Any]]:
    for cell in known(results, "time", "repair"):
        scheme, links = cell.config.scheme, "relayed" if cell.config.links == "relayed" else "direct"
        for line in cell.lines[:1]:
            for number, accuracy, seconds in line["curve"]:
                row = {"scheme": scheme, "title": ALL[scheme].title, "links": links}
                yield row | {"round": number, "accuracy": accuracy, "seconds": seconds}


def _noise_rows() -> Iterator[dict[str, Any]]:
    """σ_U and σ_K for an ε of one round, along each of C̄, S̄ and ε.

    Repair lives from the rounds that follow: its noise is that of 150 rounds, which grows by √150, for one of them.
    """
    ways: dict[str, list[float]] = {
        "colluders": [float(c) for c in range(0, 46, 5)],
        "stragglers": [float(s) for s in range(0, 41, 5)],
        "epsilon": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0],
    }
    for varies, values in ways.items():
        for value in values:
            for scheme in ("paper", "exact", "repair"):
                at: dict[str, Any] = MIDDLE | {"epsilon": 3.0} | {varies: value if varies == "epsilon" else int(value)}
                rounds = 150 if scheme == "repair" else 1
                one = plan(**ONE_ROUND | {"rounds": rounds}, **at, calibration=scheme)
                for name, sigma in (("σ_U", one.sigma_individual), ("σ_K", one.sigma_pairwise)):
                    row = {"varies": varies, "value": value, "scheme": scheme, "noise": name}
                    yield row | {"sigma": sigma / math.sqrt(rounds)}
