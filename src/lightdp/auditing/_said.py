"""What a log says in words and settings, beside its plan and rounds: each check yields what does not hold."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from lightdp.auditing._exact import Rounds
from lightdp.errors import ArgumentError
from lightdp.planning import Plan
from lightdp.runlog import RunLog
from lightdp.schemes import schemes
from lightdp.training.config import Config
from lightdp.training.statement import SIMULATED, statement

_SHARED = (
    "clients",
    "colluders",
    "stragglers",
    "delta",
    "epsilon",
    "adjacency",
    "reserve",
    "sampling_rate",
    "population",
)


def notes(log: RunLog) -> list[str]:
    """What is to be said of every log: that a simulation protects nobody, and that its scheme is unknown here."""
    named, found = log.started.config.get("scheme"), []
    if log.started.plan is not None and log.started.config.get("fidelity") == "distribution":
        found.append(SIMULATED)
    if named is not None and not (isinstance(named, str) and named in schemes()):
        found.append(f"The scheme {str(named)[:40]!r} is not known here; settings and statement were not compared.")
    return found


def of_config(log: RunLog, plan: Plan) -> Iterator[str]:
    """Settings of the run that are not those of its plan."""
    config = dict(log.started.config)
    about = schemes().get(str(config.get("scheme")))
    if about is not None and about.adjust is not None:
        return  # its plan is its own
    expected = {name: getattr(plan.request, name) for name in _SHARED}
    expected |= {"rounds": 1 if config.get("epsilon_per") == "round" else plan.rounds, "degree": plan.graph.degree}
    expected |= {} if config.get("unit") == "paper" else {"unit": plan.unit, "clip": plan.clip}
    if config.get("unit") == "person" and plan.unit == "record":
        expected["unit"] = "person"  # whose noise is that of records
    if config.get("masks") not in {None, "auto"}:
        expected["masks"] = plan.masks.kind
    if about is not None:
        fits = about.calibration == plan.request.calibration
        fits |= about.calibration == "auto" and plan.calibration.chooses_gamma
        expected["scheme"] = config["scheme"] if fits else "another one"
    said = config | ({"degree": plan.clients - 1} if "degree" in config and config["degree"] is None else {})
    if config.get("epsilon_per") == "round":
        said |= {"rounds": plan.rounds}
    for name, value in expected.items():
        if name in said and said[name] != value:
            yield f"config: {name} = {said[name]!r} is not the plan's, {value!r}"


def of_statement(log: RunLog, plan: Plan | None, rounds: Rounds | None) -> Iterator[str]:
    """A statement at the end that is not the one which plan, settings and rounds give.

    Sentences about an attacker are compared by their share alone, since other versions say them otherwise.
    """
    config, end = log.started.config, log.ended
    named = config.get("scheme")
    if end is None or not end.statement or (isinstance(named, str) and named not in schemes()):
        return
    if plan is not None and rounds is None and not plan.gdp:
        return  # what an attacker finds follows from who was used
    names = {field.name for field in dataclasses.fields(Config)}
    try:
        settings = Config(**{name: value for name, value in config.items() if name in names})
        right = statement(settings, plan, end.epsilon, rounds or [], end.bounds)
    except (ArgumentError, TypeError) as error:
        yield f"config: cannot be read: {error}"
        return
    known = [_compared(each) for each in right]
    yield from (f"end: not what the rounds give: {each!r}" for each in end.statement if _compared(each) not in known)
    said = [_compared(each) for each in end.statement]
    yield from (f"end: its statement leaves out: {each!r}" for each in right if _compared(each) not in said)


def _compared(sentence: str) -> str:
    found = re.fullmatch(r"An attacker who .* at most ([0-9.]+ %) of (.*)\.", sentence)
    return sentence if found is None else f"An attacker: {found[1]}"
