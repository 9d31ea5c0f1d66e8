"""What a training on Flower's nodes needs to go on after a crash, in one file: whole, or as it was before."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from lightdp._files import durable, locked
from lightdp.errors import ArgumentError
from lightdp.flower._settings import LOG

Arrays = dict[str, Array]

_VERSION = 1
_HASH, _SIZE = 32, 8  # bytes before the facts: a SHA-256 of all that follows, and the length of the facts
_ROWS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
_LARGE = 2**20  # bytes of an attribute; larger ones are data
_SCALARS = (bool, int, float, str, type(None))


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a checkpoint: two servers that go on from one file would spend its rounds twice.

    Raises:
        ArgumentError: another server holds it, or there is no such folder.
    """
    if not path.parent.is_dir():
        raise ArgumentError(f"checkpoint must be a file in a folder that exists, got checkpoint={os.fspath(path)!r}")
    with ExitStack() as held:
        try:
            held.enter_context(locked(f"{path}.lock", wait=False))
        except BlockingIOError:
            raise ArgumentError(
                f"checkpoint must be of one server at a time, got checkpoint={os.fspath(path)!r}: another one uses it"
            ) from None
        yield


def write(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Replace the file by a checkpoint, whole or not at all; it is on the disk when this returns.

    Args:
        path: the file.
        facts: JSON values.
        arrays: by any names.
    """
    kinds = {name: [each.dtype, list(each.shape), each.stype, len(each.data)] for name, each in arrays.items()}
    head = json.dumps({"checkpoint": _VERSION, "facts": facts, "arrays": kinds}).encode()
    parts = [len(head).to_bytes(_SIZE, "big"), head, *(each.data for each in arrays.values())]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    with durable(path) as file:
        file.write(digest.digest())
        for part in parts:
            file.write(part)


def read(path: Path) -> tuple[dict[str, Any], Arrays]:
    """What `write` was given.

    Raises:
        ArgumentError: the file is no whole checkpoint of this version.
    """
    try:
        data = path.read_bytes()
        if hashlib.sha256(memoryview(data)[_HASH:]).digest() != data[:_HASH]:
            raise ValueError("it is damaged")  # noqa: TRY301  as any other damage
        start = _HASH + _SIZE + int.from_bytes(data[_HASH : _HASH + _SIZE], "big")
        head = json.loads(data[_HASH + _SIZE : start])
        if head["checkpoint"] != _VERSION:
            raise ValueError(f"its version is {head['checkpoint']!r}")  # noqa: TRY301
        arrays = {}
        for name, (dtype, shape, stype, size) in head["arrays"].items():
            arrays[name] = Array(dtype=dtype, shape=tuple(shape), stype=stype, data=data[start : start + size])
            start += size
        return head["facts"], arrays
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"checkpoint must be a whole checkpoint, got checkpoint={os.fspath(path)!r}: {error}"
        ) from None


def results(result: Result) -> tuple[dict[str, Any], Arrays]:
    """A result as facts and arrays."""
    rows = {name: {str(t): dict(each) for t, each in getattr(result, name).items()} for name in _ROWS}
    return rows, {f"model/{key}": array for key, array in result.arrays.items()}


def result_of(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Result:
    """The result that `results` took apart."""
    model = {name.removeprefix("model/"): each for name, each in arrays.items() if name.startswith("model/")}
    rows = {name: {int(t): MetricRecord(each) for t, each in facts[name].items()} for name in _ROWS}
    return Result(arrays=ArrayRecord(model), **rows)


class State:
    """What changes in a strategy while it trains: its attributes that are numbers, texts or arrays.

    An attribute of another kind that changes is named in a warning, once: it begins anew after a crash.

    Args:
        strategy: before it has trained.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._first = {name: value for name, value in vars(strategy).items() if isinstance(value, _SCALARS)}
        self._said: set[str] = set()  # attributes that a warning has named
        self._others = {name: _digest(value) for name, value in vars(strategy).items() if _is_other(value)}

    def facts(self) -> tuple[dict[str, Any], Arrays]:
        """All such attributes but numbers and texts that are as they were."""
        facts: dict[str, Any] = {}
        arrays: Arrays = {}
        for name, value in vars(self._strategy).items():
            if isinstance(value, _SCALARS):
                if name not in self._first or self._first[name] != value:
                    facts[name] = ["scalar", value]
            elif (found := _arrays_of(value)) is not None:
                kind, items = found
                facts[name] = [kind, [key for key, _ in items]]
                arrays |= {f"strategy/{name}/{i}": array for i, (_, array) in enumerate(items)}
            elif (now := _digest(value)) is not None and self._others.get(name) != now:
                if name not in self._said:
                    LOG.warning(
                        "lightdp: the checkpoint keeps numbers, texts and arrays of the strategy, but not %s.%s, which "
                        "has changed: after a crash it begins anew", type(self._strategy).__name__, name,
                    )  # fmt: skip
                self._said.add(name)
        return facts, arrays

    def load(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Go on from what `facts` returned."""
        for name, (kind, value) in facts.items():
            own = [] if kind == "scalar" else [arrays[f"strategy/{name}/{i}"] for i in range(len(value))]
            made: dict[str, Any] = {
                "scalar": value,
                "array": own[0].numpy() if kind == "array" else None,
                "list": [each.numpy() for each in own],
                "dict": {key: each.numpy() for key, each in zip(value, own, strict=True)} if own else {},
                "record": ArrayRecord(dict(zip(value, own, strict=True))) if kind == "record" else None,
            }
            setattr(self._strategy, name, made[kind])


def _arrays_of(value: object) -> tuple[str, list[tuple[str, Array]]] | None:
    """A value that consists of arrays: how, and which ones by name; None for any other."""
    if isinstance(value, np.ndarray):
        return "array", [("", Array(value))]
    if isinstance(value, ArrayRecord):
        return "record", list(value.items())
    if isinstance(value, list) and value and _all_arrays(value):
        return "list", [(str(i), Array(each)) for i, each in enumerate(value)]
    if isinstance(value, dict) and value and all(isinstance(key, str) for key in value) and _all_arrays(value.values()):
        return "dict", [(key, Array(each)) for key, each in value.items()]
    return None


def _is_other(value: object) -> bool:
    return not isinstance(value, _SCALARS) and _arrays_of(value) is None


def _digest(value: object) -> bytes | None:
    """A hash of a value; None for functions and the like, and for what is too large to be looked at in each round."""
    try:
        data = pickle.dumps(value)
    except Exception:  # noqa: BLE001  whatever an attribute of a strategy may be
        return None
    return None if callable(value) or len(data) > _LARGE else hashlib.sha256(data).digest()


def _all_arrays(values: Iterable[object]) -> bool:
    return all(isinstance(each, np.ndarray) for each in values)
