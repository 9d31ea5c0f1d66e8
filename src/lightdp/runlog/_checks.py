"""What the fields of a log may hold: a check raises an `ArgumentError` that names the field and its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, TypeAlias

from lightdp._validate import choice, integer, non_negative, number, probability, share
from lightdp.errors import ArgumentError
from lightdp.schemes import BUILT_IN

Check: TypeAlias = Callable[[str, Any], Any]

CALIBRATIONS = tuple(name for name in BUILT_IN if name not in {"none", "auto"})
"""The calibrations that the plan of a log may have."""


def _typed(kind: type, words: str) -> Check:
    def check(name: str, value: object) -> object:
        if not isinstance(value, kind):
            raise ArgumentError(f"{name} must be {words}, got {name}={value!r}")
        return value

    return check


_text, _mapping, _list = _typed(str, "text"), _typed(dict, "an object"), _typed(list, "a list of sentences")


def _count(name: str, value: object) -> int:
    return integer(name, value, 0)


def identity(*names: str) -> Check:
    """A check of an object with a digest, and texts under other names."""

    def check(name: str, value: object) -> None:
        found = _mapping(name, value)
        for key in (*names, "digest"):
            _text(f"{name}: {key}", found.get(key))
        for key in ("new", "unused"):
            _sentences(f"{name}: {key}", found.get(key, []))

    return check


def _sentences(name: str, value: object) -> None:
    for sentence in _list(name, value):
        _text(name, sentence)


def _clients(name: str, value: object) -> None:
    before = -1
    for client in _typed(list, "a list of clients")(name, value):
        before = integer(name, client, before + 1)


def by_round(name: str, value: object) -> None:
    for key, clients in _mapping(name, value).items():
        if not key.isascii() or not key.isdecimal() or int(key) < 1:
            raise ArgumentError(f"{name} must have rounds as keys, got {key!r}")
        _clients(name, clients)


def one_of(*options: str) -> Check:
    return lambda name, value: choice(name, _text(name, value), options)


def plan(name: str, value: object) -> None:
    found = _mapping(name, value)
    claim = "epsilon_claimed" if "epsilon_claimed" in found else "epsilon"
    checks: dict[str, Check] = {"calibration": one_of(*CALIBRATIONS), claim: non_negative}
    checks |= {"delta": probability, "unit": _text, "adjacency": _text}
    try:
        require(checks, found)
        for inner, check in checks.items():
            check(inner, found[inner])
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from None


def partition(name: str, value: object) -> None:
    rows = _mapping(name, value).get("counts", [])
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise ArgumentError(f"{name}: counts must be a list of rows of one length")
    for count in chain.from_iterable(rows):
        _count(f"{name}: counts", count)
    for count in _typed(list, "a list of numbers")(f"{name}: persons", _mapping(name, value).get("persons", [])):
        _count(f"{name}: persons", count)


def require(names: Iterable[str], content: Mapping[str, Any]) -> None:
    missing = [name for name in names if name not in content]
    if missing:
        raise ArgumentError(f"must have {', '.join(missing)}")


def _objects(name: str, value: object) -> list[Any]:
    return [_mapping(name, each) for each in _typed(list, "a list of objects")(name, value)]


def formed(name: str, value: object) -> None:
    for each in _objects(name, value):
        require(("roster", "members"), each)
        integer(f"{name}: roster", each["roster"], 0)
        members = _typed(list, "a list of clients")(f"{name}: members", each["members"])
        _clients(f"{name}: members", sorted(integer(f"{name}: members", client, 0) for client in members))


def closed(name: str, value: object) -> None:
    for each in _objects(name, value):
        require(("roster",), each)
        integer(f"{name}: roster", each["roster"], 0)
        _clients(f"{name}: joined_clients", each.get("joined_clients", []))
        for flag in ("early", "open"):
            _typed(bool, "true or false")(f"{name}: {flag}", each.get(flag, False))


def shares(name: str, value: object) -> None:
    for key, each in _mapping(name, value).items():
        share(f"{name}: {key}", each)


def bounds(name: str, value: object) -> None:
    for key, each in _mapping(name, value).items():
        require(("low", "high", "clear"), _mapping(f"{name}: {key}", each))
        low, high = (number(f"{name}: {key}: {end}", each[end]) for end in ("low", "high"))
        _typed(bool, "true or false")(f"{name}: {key}: clear", each["clear"])
        if not low < high:
            raise ArgumentError(f"{name}: {key} must have low < high, got low={low:g}, high={high:g}")


def _amounts(name: str, value: object) -> None:
    for each in _typed(list, "a list of numbers")(name, value):
        non_negative(name, each)


# For each type of a field: its name in the reference page, and its check where the field has none of its own.
TYPES: dict[str, tuple[str, Check]] = {
    "int": ("integer", _count),
    "float": ("number", number),
    "str": ("text", _text),
    "Mapping[str, Any]": ("object", _mapping),
    "Sequence[str]": ("list of texts", _sentences),
    "Sequence[int]": ("list of integers, ascending", _clients),
    "Sequence[float]": ("list of numbers", _amounts),
    "Sequence[Mapping[str, Any]]": ("list of objects", _objects),
}
