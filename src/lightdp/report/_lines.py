"""The lines of a run's record: what each kind must hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lightdp._validate import choice, integer, non_negative, number, probability, share
from lightdp.errors import ArgumentError
from lightdp.schemes import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_STOPPED = ("budget",)
_MAY_MISS = ("modelled_seconds", "failed")  # where no network was modelled
_OF_PRIVACY = ("epsilon", "epsilon_claimed", "delta", "unit", "adjacency")


def parsed(line: bytes, *, last: bool) -> dict[str, Any]:
    """The JSON object of a line; the last one of a file may have been cut off."""
    try:
        content = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        hint = "; if the run was killed here, take this line out to read the others" if last else ""
        raise ArgumentError(f"must be JSON: {reason}{hint}") from None
    if not isinstance(content, dict):
        raise ArgumentError(f"must be a JSON object, got {type(content).__name__}")
    return content


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def checked(
    checks: Mapping[str, Callable[[str, Any], Any]], content: dict[str, Any], *, private: bool = False
) -> dict[str, Any]:
    """The checked fields; what speaks of privacy must be there where noise was planned."""
    missing = [name for name in checks if name not in content and name not in _MAY_MISS]
    if missing:
        raise ArgumentError(f"must have {', '.join(missing)}")
    for name in _OF_PRIVACY if private else ():
        if name in checks and content[name] is None:
            raise ArgumentError(f"{name} must not be null in a run with a plan")
    return {name: check(name, content[name]) for name, check in checks.items() if name in content}


def _or_none(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"{name} must be text, got {name}={value!r}")
    return value


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArgumentError(f"{name} must be an object, got {name}={value!r}")
    return value


def _sentences(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ArgumentError(f"{name} must be a list of sentences, got {name}={value!r}")
    return tuple(_text(name, sentence) for sentence in value)


def _count(name: str, value: object) -> int:
    return integer(name, value, 0)


def _stopped(name: str, value: object) -> str:
    return choice(name, _text(name, value), _STOPPED)


def _plan(name: str, value: object) -> dict[str, Any]:
    result = _mapping(name, value)
    wanted = {
        "calibration": lambda inner, found: choice(inner, _text(inner, found), [*BUILT_IN][1:]),
        "epsilon_claimed": non_negative,
        "delta": probability,
        "unit": _text,
        "adjacency": _text,
    }
    try:
        checked(wanted, result)
    except ArgumentError as error:
        raise ArgumentError(f"plan: {error}") from None
    return result


def _partition(name: str, value: object) -> dict[str, Any]:
    result = _mapping(name, value)
    rows = result.get("counts", [])
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise ArgumentError("partition: counts must be a list of rows of one length")
    for row in rows:
        for count in row:
            _count("partition: counts", count)
    return result


FIRST: dict[str, Callable[[str, Any], Any]] = {
    "config": _mapping,
    "plan": _or_none(_plan),
    "versions": _mapping,
    "commit": _or_none(_text),
    "partition": _partition,
    "parameters": _count,
    "device": _text,
}
ROUND: dict[str, Callable[[str, Any], Any]] = {
    "round": _count,
    "accuracy": _or_none(share),
    "loss": _or_none(number),
    "epsilon": _or_none(non_negative),
    "used": _count,
    "late": _count,
    "lost": _count,
    "noise_std": _or_none(non_negative),
    "residual_std": _or_none(non_negative),
    "modelled_seconds": _or_none(non_negative),
    "failed": _or_none(_text),
}
END: dict[str, Callable[[str, Any], Any]] = {
    "accuracy": _or_none(share),
    "epsilon": _or_none(non_negative),
    "epsilon_claimed": _or_none(non_negative),
    "delta": _or_none(probability),
    "unit": _or_none(_text),
    "adjacency": _or_none(_text),
    "rounds": _count,
    "stopped": _or_none(_stopped),
    "bytes_up": _or_none(non_negative),
    "bytes_down": _or_none(non_negative),
    "seconds": non_negative,
    "statement": _sentences,
}
