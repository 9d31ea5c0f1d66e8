"""`lightdp audit --claim`: what noise that others claim to be private really gives.

A claim is a line of NAME=VALUE. Gaussian noise is given as it is (`sigma` or `noise_multiplier`), by the classical
formula from a `sensitivity` that somebody states, or as what an exact accountant chooses for `planned_rounds`. What is
true follows from the `clip`, by which a unit can move an update, and from the `rounds` that really happen. A filter by
the sparse vector technique is given by its own settings.
"""

from __future__ import annotations

import math
import re
from typing import Any

from lightdp import gaussian, sampling
from lightdp._validate import choice, integer, positive, probability, share
from lightdp.auditing._claimed import Claimed, Truth
from lightdp.auditing._mechanisms import Gaussian, Mechanism, Svt
from lightdp.errors import ArgumentError

_NAMES = {
    "gaussian": (
        "mechanism", "clip", "rounds", "delta", "epsilon", "claimed_for", "sensitivity", "sigma", "noise_multiplier",
        "planned_rounds", "sampling_rate", "adjacency",
    ),
    "svt": (
        "mechanism", "parameters", "fraction", "selection", "noise_var", "rounds", "delta", "epsilon", "claimed_for",
    ),
}  # fmt: skip
_WAYS = ("sigma", "noise_multiplier", "sensitivity", "planned_rounds")
_WORDS = ("mechanism", "adjacency", "claimed_for")
_PRECISION = 1e-3  # to which the multiplier of sampled batches is found
_EXTREME = 1e12  # more or less noise, in clips, is none or all


def claimed(text: str) -> Claimed:
    """The true μ and ε of a claim, and how well the best attack does.

    Formal guarantee: true figures are rounded up. For Gaussian noise on whole batches they are exact; with sampled
    batches they are upper bounds by privacy loss distributions, for the sparse vector technique by Rényi divergences.

    | name | meaning |
    | --- | --- |
    | mechanism | gaussian (by default) or svt |
    | clip | L2 bound of an update, or of a record's part; by default 1 |
    | rounds | rounds, or local steps, that really happen; by default 1 |
    | delta | δ |
    | epsilon | the ε that is claimed |
    | claimed_for | training, or round: what it is claimed for; by default round with `sensitivity` and svt |
    | sigma, noise_multiplier | standard deviation of the noise, or in clips |
    | sensitivity | σ = sensitivity · sqrt(2 ln(1.25/δ))/ε, as Flower's LocalDpMod has it |
    | planned_rounds | σ as an exact accountant chooses it for (ε, δ) over so many rounds |
    | sampling_rate | probability that a record is in a batch; by default 1 |
    | adjacency | add-remove (by default) or replace, which moves an update by twice the clip |
    | parameters, fraction | of svt: length of an update, share that is sent |
    | selection, noise_var | of svt: ε of the selection, ε of each value that is sent |

    Args:
        text: the claim, NAME=VALUE with spaces between.

    Raises:
        ArgumentError: a name is unknown, missing or has no such value.

    >>> found = claimed("clip=1 sensitivity=1e-4 epsilon=10 delta=1e-5")
    >>> f"{found.one.epsilon:.2g}", found.holds
    ('2.1e+08', False)
    >>> claimed("noise_multiplier=5 rounds=25 delta=1e-5").whole.mu
    1.0
    """
    facts = _read(text)
    kind = facts.get("mechanism", "gaussian")
    choice("mechanism", kind, _NAMES)
    if unknown := sorted(facts.keys() - set(_NAMES[kind])):
        raise ArgumentError(f"claim must have names of {', '.join(_NAMES[kind])}, got {', '.join(unknown)}")
    numbers = {name: _number(name, value) for name, value in facts.items() if name not in _WORDS}
    delta, rounds = probability("delta", _needed(numbers, "delta")), _count(numbers, "rounds")
    epsilon = positive("epsilon", numbers["epsilon"]) if "epsilon" in numbers else None
    mechanism = _svt(numbers) if kind == "svt" else _gaussian(numbers, facts.get("adjacency", "add-remove"), delta)
    usual = "round" if kind == "svt" or "sensitivity" in numbers else "training"
    per_round = choice("claimed_for", facts.get("claimed_for", usual), ("training", "round")) == "round"
    loose = "planned_rounds" in numbers and not mechanism.gdp
    one = _truth(mechanism, 1, delta)
    whole = one if rounds == 1 else _truth(mechanism, rounds, delta)
    return Claimed(
        text=text, mechanism=mechanism, delta=delta, epsilon=epsilon, per_round=per_round, one=one, whole=whole,
        tolerance=_PRECISION if loose else 1e-9,
    )  # fmt: skip


def _gaussian(numbers: dict[str, float], adjacency: Any, delta: float) -> Gaussian:  # noqa: ANN401  text, checked here
    """The noise of a claim, by whichever way it is given."""
    choice("adjacency", adjacency, ("add-remove", "replace"))
    ways = [name for name in _WAYS if name in numbers]
    if len(ways) != 1:
        raise ArgumentError(f"claim must have one of {', '.join(_WAYS)}, got {', '.join(ways) or 'none'}")
    clip, rate = positive("clip", numbers.get("clip", 1.0)), share("sampling_rate", numbers.get("sampling_rate", 1.0))
    positive("sampling_rate", rate)
    twice = 2.0 if adjacency == "replace" else 1.0
    value = positive(ways[0], numbers[ways[0]])
    if ways[0] in {"sigma", "noise_multiplier"}:
        multiplier = value / clip if ways[0] == "sigma" else value
    else:
        epsilon = positive("epsilon", _needed(numbers, "epsilon"))
        if ways[0] == "sensitivity":
            multiplier = value * math.sqrt(2 * math.log(1.25 / delta)) / epsilon / clip
        elif rate == 1:
            multiplier = twice * math.sqrt(_count(numbers, "planned_rounds")) / gaussian.mu(epsilon, delta)
        else:
            planned = {1.0: _count(numbers, "planned_rounds")}
            multiplier = sampling.noise_multiplier(epsilon, rounds=planned, rate=rate, delta=delta, adjacency=adjacency)
    if not 1 / _EXTREME <= multiplier <= _EXTREME:
        bounds = f"between {1 / _EXTREME:g} and {_EXTREME:g} clips"
        raise ArgumentError(f"{ways[0]} must give noise {bounds}, got {ways[0]}={value:g}")
    return Gaussian(multiplier=multiplier, clip=clip, rate=rate, adjacency=adjacency)


def _svt(numbers: dict[str, float]) -> Svt:
    return Svt(
        parameters=_count(numbers, "parameters", needed=True),
        fraction=share("fraction", numbers.get("fraction", 0.1)),
        selection=_budget(numbers, "selection"),
        each=_budget(numbers, "noise_var"),
    )


def _budget(numbers: dict[str, float], name: str) -> float:
    if (value := positive(name, numbers.get(name, 0.1))) > _EXTREME:
        raise ArgumentError(f"{name} must be <= {_EXTREME:g}, got {name}={value:g}")
    return value


def _truth(mechanism: Mechanism, rounds: int, delta: float) -> Truth:
    epsilon, mu = mechanism.epsilon(rounds, delta), mechanism.mu(rounds, delta)
    advantage = mechanism.advantage(rounds)
    return Truth(rounds, mu, epsilon, mechanism.power(rounds, delta), min(1.0, (1 + advantage) / 2))


def _read(text: str) -> dict[str, str]:
    """The names and values of a claim, each once."""
    facts: dict[str, str] = {}
    for part in text.split():
        found = re.fullmatch(r"([a-z_]+)=(\S+)", part)
        if found is None or found[1] in facts:
            raise ArgumentError(f"claim must be NAME=VALUE with spaces between, each name once, got {part!r}")
        facts[found[1]] = found[2]
    return facts


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ArgumentError(f"{name} must be a number, got {name}={value!r}") from None


def _needed(numbers: dict[str, float], name: str) -> float:
    if name not in numbers:
        raise ArgumentError(f"claim must have {name}, got none")
    return numbers[name]


def _count(numbers: dict[str, float], name: str, *, needed: bool = False) -> int:
    value = _needed(numbers, name) if needed else numbers.get(name, 1.0)
    if not value.is_integer():  # neither inf nor nan is
        raise ArgumentError(f"{name} must be an integer, got {name}={value:g}")
    return integer(name, int(value), 1, 10**9)
