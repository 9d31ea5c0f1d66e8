"""Charts of a page as text that is small: page.js undoes what `packed` does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import Any

_LEAST = 30  # characters of a part that is worth writing once


def packed(charts: Mapping[str, Any]) -> dict[str, Any]:
    """The same with rows as columns, and with parts that occur more than once written once.

    | as written | what it stands for |
    | --- | --- |
    | `{"$": {field: column, ...}}` | rows, all with these fields |
    | `{"*": [value, count, ...]}` | a column in which so many equal values follow each other |
    | `{"#": place}` | this one of the parts in "shared" |

    >>> packed({"a": [{"x": 1, "y": 0}, {"x": 2, "y": 0}]})
    {'shared': [], 'charts': {'a': {'$': {'x': [1, 2], 'y': [0, 0]}}}}

    Args:
        charts: by name, of JSON.
    """
    turned = {name: _turned(chart) for name, chart in charts.items()}
    often: Counter[str] = Counter()
    for chart in turned.values():
        _count(chart, often)
    places: dict[str, int] = {}
    shared: list[Any] = []

    def short(part: Any) -> Any:  # noqa: ANN401  of JSON
        text = _text(part)
        if len(text) < _LEAST or not isinstance(part, dict | list):
            return part
        if text in places:
            return {"#": places[text]}
        inner = {name: short(each) for name, each in _inside(part)}
        found = [*inner.values()] if isinstance(part, list) else inner
        if often[text] == 1:
            return found
        shared.append(found)
        places[text] = len(shared) - 1
        return {"#": places[text]}

    return {"shared": shared, "charts": {name: short(chart) for name, chart in turned.items()}}


def _turned(part: Any) -> Any:  # noqa: ANN401  of JSON
    """The same with rows as columns."""
    if isinstance(part, dict):
        return {name: _turned(each) for name, each in part.items()}
    if not isinstance(part, list):
        return part
    names = [*part[0]] if len(part) > 1 and isinstance(part[0], dict) else []
    if names and all(isinstance(row, dict) and [*row] == names for row in part):
        return {"$": {name: _column([_turned(row[name]) for row in part]) for name in names}}
    return [_turned(each) for each in part]


def _column(values: list[Any]) -> Any:  # noqa: ANN401  of JSON
    runs = ([*group] for _, group in groupby(values, _text))
    short = {"*": [each for run in runs for each in (run[0], len(run))]}
    return short if len(_text(short)) < len(_text(values)) else values


def _count(part: Any, often: Counter[str]) -> None:  # noqa: ANN401  of JSON
    """Add the parts of a part; those of one that was seen before are written with it."""
    text = _text(part)
    if len(text) < _LEAST or not isinstance(part, dict | list):
        return
    often[text] += 1
    if often[text] == 1:
        for _, each in _inside(part):
            _count(each, often)


def _inside(part: dict[str, Any] | list[Any]) -> list[tuple[Any, Any]]:
    return [*part.items()] if isinstance(part, dict) else [*enumerate(part)]


def _text(part: Any) -> str:  # noqa: ANN401  of JSON
    return json.dumps(part, separators=(",", ":"))
