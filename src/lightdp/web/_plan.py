"""The planner: settings of a query, the plan that `lightdp.plan` makes of them, and what it costs and means."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from lightdp import attack, planning
from lightdp._validate import integer, rounded_up
from lightdp.errors import ArgumentError
from lightdp.planning import Plan, Request
from lightdp.web._copied import texts
from lightdp.web._measured import nearest, nearest_model

_HELP = {field.name: field.metadata["help"] for field in dataclasses.fields(Request)}
_MOST_SAMPLED = 10_000  # turns of a client with sampled batches, which take long to add up
_FIELD = re.compile(r"(?:the )?([a-z_]+)\b")


@dataclasses.dataclass(frozen=True)
class Control:
    """A setting of the page: a field and, unless it is a choice, a slider from `low` to `high`.

    Attributes:
        name: of the field of `Request`.
        label: beside the field.
        kind: int, float or str.
        low: left end of the slider.
        high: right end; larger values may be typed, up to `most`.
        most: the largest value that a request may ask for.
        log: whether the slider is logarithmic.
        options: of a choice.
        start: the value on a page without a query; None leaves it to `Request`.
        group: heading on the page.
    """

    name: str
    label: str
    kind: type
    low: float = 0
    high: float = 0
    most: float = math.inf
    log: bool = False
    options: tuple[str, ...] = ()
    start: Any = None
    group: str = "Clients"

    @property
    def help(self) -> str:
        """What the setting means, as `lightdp plan --help` says it."""
        return _HELP[self.name]


CALIBRATIONS = ("auto", "repair", "exact", "paper", "local", "smpc", "central")
CONTROLS = (
    Control("clients", "Clients", int, 2, 1000, 10**6, log=True, start=50),
    Control("colluders", "Colluders", int, 0, 200, 10**6, start=10),
    Control("stragglers", "Stragglers", int, 0, 200, 10**6, start=10),
    Control("population", "Population", int, 2, 100_000, 10**8, log=True),
    Control("epsilon", "Budget ε", float, 0.1, 20, log=True, start=3.0, group="Privacy"),
    Control("delta", "δ", float, 1e-12, 1e-2, log=True, start=1e-5, group="Privacy"),
    Control("unit", "Unit", str, options=("record", "client"), start="record", group="Privacy"),
    Control("adjacency", "Neighbours", str, options=("add-remove", "replace"), start="add-remove", group="Privacy"),
    Control("clip", "Clip", float, 0.01, 100, log=True, start=1.0, group="Privacy"),
    Control("rounds", "Rounds", int, 1, 2000, 10**6, log=True, start=150, group="Training"),
    Control("sampling_rate", "Sampling rate", float, 0.001, 1, log=True, start=1.0, group="Training"),
    Control("parameters", "Parameters", int, 10, 10**8, log=True, start=10_000, group="Training"),
    Control("records", "Records in all", int, 10, 10**8, log=True, start=50_000, group="Training"),
    Control("calibration", "Calibration", str, options=CALIBRATIONS, start="auto", group="Noise"),
    Control("grace", "Grace", str, options=("0", "1"), start="0", group="Noise"),
)
"""All settings of the page, in their order."""
_KNOWN = {control.name: control for control in CONTROLS}


def settings(query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The settings of a page's query, with its starting values if there are none; their types are right.

    >>> settings([("clients", "20"), ("epsilon", "1e0")])
    {'clients': 20, 'epsilon': 1.0}

    Raises:
        ArgumentError: a name is unknown or occurs twice, or a value is no number, or more than the page computes.
    """
    found: dict[str, Any] = {}
    given = [(name, text.strip()) for name, text in query]
    for name, text in given:
        if name not in _KNOWN:
            raise ArgumentError(f"settings must be of this page, got {name!r}")
        if name in found:
            raise ArgumentError(f"{name} must be given once, got {name}={text!r} too")
        if text:
            found[name] = _value(_KNOWN[name], text)
    if not given:
        return {control.name: _typed(control) for control in CONTROLS if control.start is not None}
    rounds, clients = found.get("rounds", 1), max(found.get("clients", 2), 2)
    turns = -(-rounds // max(found.get("population", clients) // clients, 1))
    if found.get("sampling_rate", 1.0) != 1 and turns > _MOST_SAMPLED:
        raise ArgumentError(
            f"rounds must give a client at most {_MOST_SAMPLED:,} turns with sampled batches on this page, got "
            f"{turns:,}; lightdp plan computes more"
        )
    return found


def _typed(control: Control) -> Any:  # noqa: ANN401  of the control's kind
    return int(control.start) if control.name == "grace" else control.start


def _value(control: Control, text: str) -> Any:  # noqa: ANN401  of the control's kind
    name = control.name
    if control.kind is str and name != "grace":
        return text[:80]
    try:
        value = float(text) if control.kind is float else int(text)
    except ValueError:
        kind = "a number" if control.kind is float else "an integer"
        raise ArgumentError(f"{name} must be {kind}, got {name}={text[:80]!r}") from None
    if control.kind is int and control.most < math.inf:
        integer(name, value, 0, int(control.most))
    return value


def field_of(message: str) -> str | None:
    """The setting that an error is about: the one that it begins with."""
    found = _FIELD.match(message)
    return found[1] if found is not None and found[1] in _KNOWN else None


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The plan of `settings`, and what the page says of it.

    Raises:
        ArgumentError: `lightdp.plan` refuses the settings.
    """
    return _answer(tuple(sorted(asked.items())))


@lru_cache(maxsize=256)
def _plan(asked: tuple[tuple[str, Any], ...]) -> Plan:
    try:
        return planning.plan(**dict(asked))
    except TypeError as error:
        missing = re.findall("'([a-z_]+)'", str(error))
        raise ArgumentError(f"{missing[0]} must be given" if missing else str(error)) from None


@lru_cache(maxsize=256)
def _answer(asked: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    plan = _plan(asked)
    length, degree = plan.request.parameters, plan.graph.degree if plan.gamma > 0 else 0
    size = None if length is None else math.ceil(plan.wire_bits * length / 8)
    facts = plan.to_dict()  # ε, μ and power take a while where batches are sampled, and are computed once
    return {
        "plan": facts,
        "title": plan.calibration.title,
        "deployable": plan.deployable,
        "epsilon": rounded_up(facts["epsilon_true"]),
        "mu": rounded_up(facts["mu"]),
        "power": rounded_up(100 * min(facts["power"], 1.0), 1),
        "attacker": attack.sentence(facts["power"], plan.unit, plan.adjacency),
        "sampled": planning.holds_for(plan) if plan.sampling_rate < 1 else None,
        "std": math.sqrt(plan.noise_in_mean()),
        "residual": math.sqrt(plan.transient_in_mean()),
        "norm": None if length is None else math.sqrt(length * plan.noise_in_mean()),
        "ratio": None if length is None else planning.noise_ratio(plan, length),
        "bits": plan.wire_bits,
        "upload": size,
        "received": None if size is None else size * plan.clients,
        "peers": degree,
        "masks": None if length is None else degree * length,
        "turns": plan.turns,
        "copy": texts(dict(asked), plan),
        "measured": nearest(plan),
        "model": nearest_model(plan),
    }


def others(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What may take longer: all schemes at the same guarantee, who takes part, advice, and the plan as text."""
    return _others(tuple(sorted(asked.items())))


@lru_cache(maxsize=256)
def _others(asked: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    plan = _plan(asked)
    length = plan.request.parameters
    compared = planning.compare(plan)
    rows = [
        {
            "scheme": row.scheme.name,
            "title": row.title,
            "noise_in_mean": row.noise_in_mean,
            "cells": row.cells(compared[0].noise_in_mean),
            "private": row.scheme.private,
            "chosen": row.scheme.name == plan.request.calibration,
        }
        for row in compared
    ]
    members = [
        {"title": each.title, "reason": each.reason or None}
        | ({} if each.plan is None else {"turns": each.plan.turns, "noise_in_mean": each.plan.noise_in_mean()})
        for each in planning.memberships(plan)
    ]
    advice = None if length is None else planning.noise_advice(plan, length)
    return {"schemes": rows, "members": members, "advice": advice, "page": str(plan)}
