"""What the paper shows, as runs: its tables and figures cell by cell, under its own noise and under ours.

The profile "paper" is what it prints: an ε for each round, its own σ, a sensitivity that nothing enforces. It leaves
open δ, the partition, local epochs and clipping; what stands here for them is a choice, and `choices` varies the two
that matter most. The profiles "exact" and "repair" are the same cells with a guarantee for the whole training: records
are what is protected, their gradients are clipped, and ε is exact.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, get_args

from lightdp._validate import choice, integer
from lightdp.errors import ArgumentError
from lightdp.planning import Plan
from lightdp.training.config import PLACES, Config
from lightdp_lab.registry import ALL
from lightdp_lab.schemes import SCHEMES

Target = Literal["rounds", "table2", "table3", "choices", "links", "time"]
Profile = Literal["paper", "exact", "repair"]
TARGETS, PROFILES = get_args(Target), get_args(Profile)

EPSILONS = (3.0, 6.0, 9.0)
MIDDLE = {"colluders": 10, "stragglers": 10}
FAILING, DIRECT = "links:0.05", "direct:0.05"  # arrivals, and links between clients, with one probability
RATE = 8.0  # learning rate of scattering + linear where noise is that of SMPC + DP in the middle at ε = 3, times:
_TUNED = {0.0: 1.0243, 0.95: 0.9083}  # that of LightDP with repair, for which it was tuned, by decay of the average


class Table(NamedTuple):
    """A table of the paper: what varies along a row, what is fixed, and the accuracies (%) it prints for each ε."""

    varies: str
    values: tuple[int, ...]
    fixed: dict[str, int]
    printed: dict[float, tuple[float, ...]]


TABLES: dict[Target, Table] = {
    "table2": Table("colluders", (10, 20, 30, 40), {"stragglers": 10}, {
        3.0: (50.8, 49.6, 47.5, 45.8), 6.0: (54.5, 52.1, 50.6, 49.7), 9.0: (61.9, 60.6, 57.9, 55.3),
    }),
    "table3": Table("stragglers", (0, 10, 20, 30), {"colluders": 15}, {
        3.0: (51.7, 50.2, 48.5, 47.2), 6.0: (53.2, 51.7, 50.4, 48.8), 9.0: (55.1, 53.4, 51.9, 50.9),
    }),
}  # fmt: skip

FINE: dict[str, Any] = {"wire_steps": 16, "rotate": False, "masks": "gaussian"}
"""A wire so fine that rounding, which the paper has none of, hardly shows, and its masks; unless runs say otherwise."""
_COMMON: dict[str, Any] = {"data": "cifar10", "partition": "dirichlet:0.5", "clients": 50, "rounds": 150} | FINE
_PAPER: dict[str, Any] = {
    "unit": "paper", "epsilon_per": "round", "clip": 10.0, "evaluate_every": 10,
    "epochs": 1, "batch": 32, "local_lr": 0.05, "lr": 1.0, "momentum": 0.0,
}  # fmt: skip
_TRAINING: dict[str, Any] = {"momentum": 0.9}
_LONG: dict[str, Any] = {"rounds": 300, "ema": 0.95, "evaluate_every": 50}
_GUARANTEED: dict[str, dict[str, Any]] = {
    "scattering-linear": {"mirror": True, "clip": 0.1, "evaluate_every": 10, "ema": 0.95},
    "scattering-cnn": _LONG | {"augment": 2, "sampling_rate": 0.16, "clip": 0.4},
    "wrn-16-4": _LONG | {"augment": 4, "sampling_rate": 0.08, "clip": 1.0},
}
# The models of each profile and their settings; the first is the one meant if none is named.
_MODELS: dict[Profile, dict[str, dict[str, Any]]] = {
    "paper": {"resnet18": {}, "scattering-linear": {"mirror": True}}, "exact": _GUARANTEED, "repair": _GUARANTEED,
}  # fmt: skip
_TRIALS = {"resnet18": 1, "wrn-16-4": 1, "scattering-cnn": 3, "scattering-linear": 5}
# Learning rates by ε; the nearest is taken. They come from few runs on a held-out tenth of the training data: of
# WRN-16-4 at ε = 6 with 0.8, 1.6 and 3.2, at ε = 3 with 1.6 and at ε = 9 with 3.2; what stands here lies between.
_LEARNING = {"scattering-cnn": {3.0: 1.4, 6.0: 2.0, 9.0: 2.8}, "wrn-16-4": {3.0: 1.2, 6.0: 1.6, 9.0: 2.4}}
_TABLE: dict[Profile, tuple[str, ...]] = {"paper": ("paper",), "exact": ("exact", "smpc"), "repair": ("repair", "smpc")}
# The profiles of each target, and the schemes of both.
_SCHEMES: dict[Target, dict[Profile, tuple[str, ...]]] = {
    "rounds": {
        "paper": ("paper", "smpc", "local-paper"),
        "exact": ("exact", "smpc", "central", "local"),
        "repair": ("repair", "smpc", "central", "local"),
    },
    "table2": _TABLE,
    "table3": _TABLE,
    "choices": {"paper": ("paper",)},
    "links": dict.fromkeys(("exact", "repair"), ("repair", "smpc")),
    "time": dict.fromkeys(("exact", "repair"), tuple(SCHEMES)),
}
_QUICK: dict[str, Any] = {"data": "digits", "clients": 10, "rounds": 10, "evaluate_every": 1}
_CHOICES = {"clip": (1.0, 3.0, 10.0, 30.0), "partition": ("dirichlet:0.1", "dirichlet:0.5", "iid")}
_RATES = (0.5, 32.0)


# Learning rate, clip and rounds by ε; those of the nearest are taken. Rates and clips come from short runs on a
# held-out tenth of the training data (`benchmarks/prior.py`) at ε = 1, 3 and 9; at ε = 6 the clip, and rate times clip,
# lie between.
_LEARNING_STARTED = {1.0: (0.105, 1.0, 410), 3.0: (0.25, 1.0, 430), 6.0: (0.27, 2.0, 410), 9.0: (0.26, 3.0, 410)}
_STARTED: dict[str, Any] = {
    "data": "cifar10", "partition": "dirichlet:0.5", "model": "wrn-16-4", "clients": 50, "head_rounds": 30,
    "head_lr": 6.0, "sampling_rate": 0.16, "augment": 4, "momentum": 0.9, "ema": 0.97, "evaluate_every": 30,
} | MIDDLE | FINE  # fmt: skip


def models(profile: Profile) -> tuple[str, ...]:
    """The models that a profile knows, the usual one first.

    >>> models("paper")
    ('resnet18', 'scattering-linear')
    """
    return tuple(_MODELS[profile])


def cells(
    target: Target, profile: Profile, *, model: str | None = None, trials: int | None = None,
    epsilons: tuple[float, ...] | None = None, schemes: tuple[str, ...] | None = None, quick: bool = False,
) -> list[Config]:  # fmt: skip
    """The runs of a table or figure, trial by trial, so that whatever is done first covers every cell.

    Cells in which a scheme is impossible, such as secure aggregation with C̄ + S̄ = N, are left out. With `quick` the
    clients are a fifth of the paper's and learn digits in a few rounds: to see that it works, not what comes out.

    >>> [(cell.epsilon, cell.colluders) for cell in cells("table2", "paper", epsilons=(3.0,))]
    [(3.0, 10), (3.0, 20), (3.0, 30), (3.0, 40)]

    Args:
        target: the table or figure.
        profile: "paper" for its own noise and an ε for each round, else one for the whole training.
        model: one of `models(profile)`; the usual one if None.
        trials: runs of each cell, with seeds from 0; as many as the model is usually given if None.
        epsilons: only these; the paper's if None.
        schemes: only these; all of the target's if None.
        quick: small runs on embedded data.

    Raises:
        ArgumentError: a name is unknown, or the target is not one of the profile.
    """
    choice("target", target, TARGETS)
    printed = choice("profile", profile, PROFILES) == "paper"
    if profile not in _SCHEMES[target]:
        wanted = " or ".join(_SCHEMES[target])
        raise ArgumentError(f"profile must be {wanted} for target={target!r}, got profile={profile!r}")
    name = models(profile)[0] if model is None else choice("model", model, models(profile))
    common = _COMMON | (_PAPER if printed else _TRAINING) | {"model": name} | _MODELS[profile][name]
    if epsilons is None:
        epsilons = EPSILONS[:1] if target in ("choices", "time") else EPSILONS
    found = [
        common | place | links | {"epsilon": epsilon, "scheme": scheme}
        for epsilon in epsilons
        for place in _places(target)
        for scheme in _SCHEMES[target][profile]
        if schemes is None or scheme in schemes
        for links in _links(target, scheme)
    ]
    if quick:
        found = [_quick(cell) for cell in found]
    found = [cell for cell in found if _possible(cell)]
    if not printed and not quick:
        found = [cell | {"lr": _rate(cell)} for cell in found]
    usual = 1 if quick or target == "time" else _TRIALS[name]
    seeds = range(integer("trials", usual if trials is None else trials, 1))
    return list(dict.fromkeys(Config(**cell, seed=seed) for seed in seeds for cell in found))


def _places(target: Target) -> list[dict[str, Any]]:
    """Who colludes and straggles, and what else varies."""
    if target in TABLES:
        table = TABLES[target]
        return [table.fixed | {table.varies: value} for value in table.values]
    if target == "links":
        both = [place for name in TABLES for place in _places(name)]
        return [place | {"arrivals": FAILING} for place in both if place["stragglers"] >= 10]
    if target == "choices":
        return [MIDDLE | {field: value} for field, values in _CHOICES.items() for value in values]
    return [MIDDLE | ({"arrivals": FAILING, "ema": 0.0} if target == "time" else {})]  # time: of the model as it is


def _links(target: Target, scheme: str) -> list[dict[str, Any]]:
    """Where time counts: both ways for clients to reach each other, if they do so at all."""
    if target != "time":
        return [{}]
    return [{"links": "relayed"}, *([{"links": DIRECT}] if ALL[scheme].talks else [])]


def _quick(cell: dict[str, Any]) -> dict[str, Any]:
    shrunk = {name: cell[name] // 5 for name in ("colluders", "stragglers")}
    plain = {"model": "cnn" if cell["model"] == "resnet18" else "linear", "mirror": False, "augment": 1}
    # features of digits are larger than scattering's
    own = {"local_lr": 0.2} if cell.get("unit") == "paper" else {"clip": 10 * cell["clip"]}
    return cell | _QUICK | shrunk | plain | own | {"sampling_rate": 1.0}


def _possible(cell: dict[str, Any]) -> bool:
    """Secure aggregation needs an honest client that does not straggle."""
    secure = ALL[cell["scheme"]].family in ("secure aggregation", "encryption")
    return not secure or cell["clients"] > cell["colluders"] + cell["stragglers"]


def _rate(cell: dict[str, Any]) -> float:
    """The server's learning rate. Of scattering + linear: the more noise, the smaller, and alike for all schemes.

    Tuning each scheme and ε by itself on held-out data (`benchmarks/schemes.py`) found rates near this line.
    """
    known = _LEARNING.get(cell["model"])
    if known is not None:
        return known[min(known, key=lambda epsilon: abs(epsilon - cell["epsilon"]))]
    reference = cell | MIDDLE | {"scheme": "smpc", "epsilon": 3.0, "arrivals": "uniform", "links": None}
    plan, middle = (Config(**one).plan(50_000, 1, 1) for one in (cell, reference))
    if plan is None or middle is None:
        return _RATES[1]
    rate = RATE * (_TUNED[cell.get("ema", 0.0)] * _before_rounding(middle) / _before_rounding(plan)) ** 0.5
    # Two digits would round rates of two schemes that differ by 5 % to one; `time`, with no averages, compares none.
    return float(f"{min(max(rate, _RATES[0]), _RATES[1]):.{3 if cell.get('ema') else 2}g}")


def _before_rounding(plan: Plan) -> float:
    """The noise in the mean for which rates were chosen."""
    rounding = 0.0 if plan.calibration.floats else plan.wire_grid**2 / 12
    return plan.noise_in_mean() - rounding * plan.law.mean(lambda s: 1 / (plan.clients - s))


def started(
    *, epsilons: tuple[float, ...] = (*EPSILONS, 1.0), seeds: tuple[int, ...] = (0, 1, 2),
    schemes: tuple[str, ...] = ("repair",), **changes: Any,  # noqa: ANN401  settings of `Config`
) -> list[Config]:  # fmt: skip
    """The runs of the record, trial by trial: CIFAR-10, 50 clients, C̄ = S̄ = 10, records, the whole training.

    >>> [(cell.epsilon, cell.lr) for cell in started(seeds=(0,))]
    [(3.0, 0.25), (6.0, 0.27), (9.0, 0.26), (1.0, 0.105)]

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
        Config(**_STARTED | _learning(epsilon) | {"epsilon": epsilon, "scheme": scheme, "seed": seed} | changes)
        for seed in seeds for epsilon in epsilons for scheme in schemes
    ]  # fmt: skip


def _learning(epsilon: float) -> dict[str, Any]:
    lr, clip, rounds = _LEARNING_STARTED[min(_LEARNING_STARTED, key=lambda known: abs(known - epsilon))]
    return {"lr": lr, "clip": clip, "rounds": rounds}


def same(config: Config) -> dict[str, Any]:
    """What tells this run from others: all of its settings, but not where it ran."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in PLACES}
