"""What the records of the study of γ say: accuracy by γ, how far rules for γ are from the best one, and schedules.

Each γ is taken at the learning rate of its best mean accuracy, and so is SMPC+DP. Between two γ that were run, accuracy
is interpolated in log γ. Standard errors are those of paired differences over seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightdp.training.config import Config

Line = dict[str, Any]
Kind = dict[str, Any]
Values = NDArray[np.float64]
"""Accuracies, in points, or their differences: one for each seed."""

SMPC = 0.0  # the γ of SMPC+DP in records


def passes(decay: float) -> float:
    """(1 − decay)/(1 + decay): the share of white noise's variance that an average with this decay lets pass."""
    return (1 - decay) / (1 + decay)


RULES: dict[str, Callable[[float, float, int], float]] = {
    "the rule": lambda momentum, ema, delay: 2 * delay * math.sqrt(passes(momentum) * passes(ema)),
    "w = 1": lambda momentum, ema, delay: 1.0,  # noqa: ARG005  whatever they are
    "w = (1−m)/(1+m)": lambda momentum, ema, delay: delay * passes(momentum) * passes(ema),
}
"""The weight w of a residual beside noise that stays, by momentum, ema and delay; the first is that of plans (D5)."""


def by_weight(settings: Mapping[str, Any], weight: float) -> float:
    """The γ that plans choose if a residual counts `weight` times, 0 < weight <= 2, beside noise that stays.

    Plans do so at momentum (4 − w²)/(4 + w²), without averages.

    >>> settings = {"clients": 20, "colluders": 4, "stragglers": 4, "rounds": 60, "arrivals": "uniform"}
    >>> [round(by_weight(settings, weight), 2) for weight in (2.0, 1.0)]
    [3.55, 5.05]
    """
    changed = {"scheme": "repair", "gamma": None, "ema": 0.0, "momentum": (4 - weight**2) / (4 + weight**2)}
    plan = Config(**dict(settings) | changed).plan(1000, 10, 1)  # γ depends on neither
    if plan is None:
        raise ValueError("repair has a plan")
    return plan.gamma


def error(values: Values) -> float:
    """The standard error of the mean; NaN for a single seed."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Curve:
    """Accuracy by γ at one momentum, ema, schedule and delay.

    Attributes:
        seeds: those that have all runs.
        tried: accuracies in points by γ and learning rate, the latter as a factor of the usual one.
    """

    seeds: tuple[int, ...]
    tried: dict[float, dict[float, Values]]

    @classmethod
    def of(cls, runs: Sequence[Line], kind: Kind) -> Curve:
        """From the lines of a record: as many seeds and learning rates as have all γ, SMPC+DP included."""
        found: dict[tuple[int, float], dict[float, float]] = {}
        for line in runs:
            rival = kind | {"schedule": "constant", "delay": 1}
            if (rival if line["scheme"] == "smpc" else kind).items() <= line.items():
                gamma = float(f"{line['gamma_used']:.5g}")  # a search finds it, to more digits than machines agree on
                found.setdefault((line["seed"], line["factor"]), {})[gamma] = 100 * line["accuracy"]
        gammas = sorted(set().union(*found.values()))
        whole = {key for key, each in found.items() if len(each) == len(gammas)}
        factors = sorted({factor for _, factor in whole})
        choices = [
            (tuple(sorted(seed for seed in {key[0] for key in whole} if all((seed, f) in whole for f in some))), some)
            for size in range(1, len(factors) + 1)
            for some in itertools.combinations(factors, size)
        ]
        seeds, kept = max(choices, key=lambda choice: len(choice[0]) * len(choice[1]), default=((), ()))
        tried = {g: {f: np.array([found[seed, f][g] for seed in seeds]) for f in kept} for g in gammas}
        return cls(seeds, tried if seeds else {})

    @cached_property
    def best(self) -> dict[float, tuple[float, Values]]:
        """The best learning rate by γ, and its accuracies."""
        return {
            gamma: max(rates.items(), key=lambda each: (each[1].mean(), -each[0]))
            for gamma, rates in self.tried.items()
        }

    @property
    def gammas(self) -> list[float]:
        """The γ of repair that were run."""
        return [gamma for gamma in self.best if gamma != SMPC]

    def ahead(self, gamma: float) -> Values | None:
        """Accuracy minus that of SMPC+DP; None outside of what was run."""
        low = max((run for run in self.gammas if run <= gamma), default=None)
        high = min((run for run in self.gammas if run >= gamma), default=None)
        if low is None or high is None:
            return None
        part = 0.0 if low == high else math.log(gamma / low) / math.log(high / low)
        return (1 - part) * self.best[low][1] + part * self.best[high][1] - self.best[SMPC][1]

    def regret(self, gamma: float) -> Values | None:
        """How far below the best γ that was run; None outside of what was run."""
        ours, top = self.ahead(gamma), max((self.best[g][1] for g in self.gammas), key=lambda each: each.mean())
        return None if ours is None else top - self.best[SMPC][1] - ours


PLAIN: Kind = {"schedule": "constant", "delay": 1}


def kinds(runs: Sequence[Line]) -> Iterator[tuple[Kind, Curve]]:
    """The curves of a record: by momentum, then with averaged weights, then with residuals of two rounds."""
    wanted = [{"momentum": momentum, "ema": 0.0} | PLAIN for momentum in sorted({line["momentum"] for line in runs})]
    wanted += [{"momentum": 0.9, "ema": 0.95} | PLAIN, {"momentum": 0.9, "ema": 0.0} | PLAIN | {"delay": 2}]
    for kind in wanted:
        curve = Curve.of(runs, kind)
        if curve.gammas and SMPC in curve.best:
            yield kind, curve


def tables(record: dict[str, Any]) -> Iterator[str]:
    """Lines of text: accuracy by γ, regrets of the rules, schedules, and residuals of two rounds."""
    runs, data, settings = record["runs"], record["data"], record["settings"]
    for kind, curve in kinds(runs):
        told = ", ".join(f"{name} {value}" for name, value in kind.items() if name != "schedule")
        factor, smpc = curve.best[SMPC]
        yield f"{data}, {told}, seeds {len(curve.seeds)}: SMPC+DP {smpc.mean():.2f} % at lr × {factor:g}"
        for gamma in curve.gammas:
            factor, ours = curve.best[gamma]
            yield f"  γ {gamma:6.2f}: {ours.mean():.2f} %, {_told(ours - smpc)} at lr × {factor:g}"
        for name, rule in RULES.items():
            gamma = by_weight(settings, rule(kind["momentum"], kind["ema"], kind["delay"]))
            regret = curve.regret(gamma)
            found = "not run" if regret is None else f"{_told(-regret)} to the best"
            yield f"  {name}: γ {gamma:.2f}, {found}"
    yield from _schedules(runs, data)
    yield from _delayed(runs, data)


def _schedules(runs: Sequence[Line], data: str) -> Iterator[str]:
    """Each schedule against constant noise at the same γ, momentum 0.9 and ema."""
    for ema, schedule in itertools.product((0.0, 0.95), sorted({line["schedule"] for line in runs} - {"constant"})):
        kind = {"momentum": 0.9, "ema": ema, "delay": 1}
        lines = [line for line in runs if line["gamma"] is None]
        ours, rival = (Curve.of(lines, kind | {"schedule": each}) for each in (schedule, "constant"))
        if ours.gammas and rival.gammas:
            yield f"{data}, ema {ema}, noise {schedule} minus constant: {_difference(ours, rival, ours.gammas[0])}"


def _delayed(runs: Sequence[Line], data: str) -> Iterator[str]:
    """Residuals of two rounds against one, at each γ and each at its best."""
    two, one = (Curve.of(runs, {"momentum": 0.9, "ema": 0.0} | PLAIN | {"delay": delay}) for delay in (2, 1))
    for gamma in two.gammas:
        yield f"{data}, γ {gamma:.2f}, residuals of two rounds minus one: {_difference(two, one, gamma)}"


def _difference(ours: Curve, rival: Curve, gamma: float) -> str:
    """Both on the seeds and learning rates that they share, each at its best one."""
    pair = ours, rival
    seeds = sorted({*ours.seeds} & {*rival.seeds})
    factors = ours.tried[gamma].keys() & rival.tried[gamma].keys()
    at = [[each.seeds.index(seed) for seed in seeds] for each in pair]
    mine, theirs = (
        max((each.tried[gamma][factor][rows] for factor in sorted(factors)), key=np.mean)
        for each, rows in zip(pair, at, strict=True)
    )
    return f"{_told(mine - theirs)}, seeds {len(seeds)}"


def _told(difference: Values) -> str:
    return f"{difference.mean():+.2f}" + ("" if len(difference) == 1 else f" ± {error(difference):.2f}")
