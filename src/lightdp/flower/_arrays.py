"""The arrays of a model as one vector, and back.

Float arrays (16, 32 and 64 bits, any shape, 0-d included) make up the vector, in the order of their names. A message
with one ArrayRecord names them by their keys, one with several by `record/key`. A strategy may name some of them as
trained: then these alone make up the vector. Integer and boolean arrays, such as the batch counters of normalisation
layers, never leave a client: the server's stay. Nor do arrays that an app leaves out of its reply.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from lightdp.errors import ArgumentError

_KEPT = 31 << 18  # floats in 31 MiB, below the most that glibc keeps so
_PIECE = 1 << 16  # values that are moved at once: temporaries stay in the cache


def values(array: Array) -> NDArray[Any]:
    """As `array.numpy()`, but read-only and without a copy where its bytes are in the common version of the format."""
    if array.stype != "numpy.ndarray" or not array.data.startswith(b"\x93NUMPY\x01\x00"):
        return array.numpy()
    start = 10 + int.from_bytes(array.data[8:10], "little")
    shape, fortran, dtype = _header(array.data[:start])
    flat = np.frombuffer(array.data, dtype, math.prod(shape), start)
    return flat.reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=1024)  # each round has the same ones, and parsing one takes as long as a pass over many values
def _header(start: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type that the first bytes of an array in numpy's format tell."""
    head = io.BytesIO(start)
    np.lib.format.read_magic(head)
    return np.lib.format.read_array_header_1_0(head)


def as_array(new: NDArray[Any]) -> Array:
    """As `Array(new)`, with one copy of the values where that makes three.

    >>> made = as_array(np.arange(6, dtype=np.float32).reshape(2, 3))
    >>> made.dtype, made.shape, made.numpy().tolist()
    ('float32', (2, 3), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    """
    new = np.require(new, requirements="C")
    return Array(str(new.dtype), new.shape, "numpy.ndarray", b"".join((_start(new.shape, new.dtype), new.data)))


@lru_cache(maxsize=1024)
def _start(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The opposite of `_header`, for values in C order."""
    head = io.BytesIO()
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, facts)
    return head.getvalue()


@lru_cache(maxsize=1)
def reuse_memory(length: int) -> None:
    """Let this process reuse the memory of a round's vectors in the next one, instead of giving it back in between.

    glibc takes vectors that are longer than all that were freed before from the system and gives them back at once.
    Then each page of new memory costs a fault, and those of a round as much time as a training of a few steps. Freeing
    one block of the size of a round's vectors ends that, up to 32 MiB. Nothing is written to the block.
    """
    np.empty(min(8 * length, _KEPT), np.float32)


def records(content: RecordDict) -> dict[str, ArrayRecord]:
    """As `content.array_records`, which checks every record again."""
    return {key: each for key, each in content.items() if isinstance(each, ArrayRecord)}


def flat(content: RecordDict, *, several: bool | None = None) -> dict[str, Array]:
    """All arrays of a message by their names.

    Args:
        content: of the message.
        several: whether arrays are named `record/key`; by default, whether it has several ArrayRecords. For a reply,
            whether the message had.

    Raises:
        ArgumentError: there are none, or two of one name.

    >>> one = Array(np.zeros(1))
    >>> list(flat(RecordDict({"arrays": ArrayRecord({"w": one, "b": one})})))
    ['w', 'b']
    >>> list(flat(RecordDict({"encoder": ArrayRecord({"w": one}), "head": ArrayRecord({"w": one})})))
    ['encoder/w', 'head/w']
    """
    found = records(content)
    several = len(found) > 1 if several is None else several
    result: dict[str, Array] = {}
    for record, arrays in found.items():
        for key, array in arrays.items():
            name = f"{record}/{key}" if several else key
            if name in result:
                raise ArgumentError(f"arrays must have names of their own, got two that are {name!r}")
            result[name] = array
    if not result:
        raise ArgumentError("arrays must be in an ArrayRecord of the message, got none")
    return result


def grouped(arrays: Mapping[str, Array], like: RecordDict) -> dict[str, ArrayRecord]:
    """Arrays by their names as the ArrayRecords of a message, the opposite of `flat(like)`."""
    found = records(like)
    several = len(found) > 1
    return {
        record: ArrayRecord({key: arrays[f"{record}/{key}" if several else key] for key in old})
        for record, old in found.items()
    }


def chosen(arrays: Mapping[str, Array], trained: Collection[str] | None = None) -> list[str]:
    """The names of the arrays that make up the vector, in its order.

    Args:
        arrays: by their names.
        trained: names, or what stands before a dot or slash in them; None for all float arrays.

    Raises:
        ArgumentError: one of `trained` names no float array.

    >>> layers = {name: Array(np.zeros(2)) for name in ("body.0.weight", "body.1.weight", "head.weight")}
    >>> chosen(layers, ["body"])
    ['body.0.weight', 'body.1.weight']
    """
    floats = [name for name, _, _ in _floats(arrays)]
    if trained is None:
        return floats
    if isinstance(trained, str):
        raise ArgumentError(f"trained must be a list of names, got trained={trained!r}")
    found: set[str] = set()
    for each in trained:
        stem = each.rstrip("./")
        matching = {name for name in floats if name == each or name.startswith((f"{stem}.", f"{stem}/"))}
        if not matching:
            raise ArgumentError(f"trained must name float arrays of the model, got {each!r}; it has {floats}")
        found |= matching
    return sorted(found)


def length(arrays: Mapping[str, Array], names: Collection[str] | None = None) -> int:
    """Number of values in the vector of these arrays, or of those of them that are named."""
    result = sum(array.size for _, array, _ in _floats(arrays, names))
    if result == 0:
        raise ArgumentError(f"arrays must hold floats, got {list(arrays if names is None else names)}")
    return result


def places(
    arrays: Mapping[str, Array], names: Collection[str] | None = None
) -> Iterator[tuple[str, tuple[int, ...], slice]]:
    """The float arrays: their names, shapes and places in the vector."""
    return ((key, array.shape, place) for key, array, place in _floats(arrays, names))


def layout(content: RecordDict, names: Collection[str] | None = None) -> str:
    """SHA-256 of the names and shapes of the arrays that make up the vector of a message, in its order.

    Each counts by its record and key, so that a record that comes beside the model in some rounds changes nothing.

    >>> one = RecordDict({"model": ArrayRecord({"w": Array(np.zeros(2))})})
    >>> two = RecordDict({"model": one["model"], "control": ArrayRecord({"w": Array(np.zeros(2))})})
    >>> layout(one) == layout(two, ["model/w"]) != layout(two, ["control/w"])
    True
    """
    own = list(records(content))
    before = f"{own[0]}/" if len(own) == 1 else ""
    found = [[before + name, *shape] for name, shape, _ in places(flat(content), names)]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def difference(
    trained: Mapping[str, Array], received: Mapping[str, Array], names: Collection[str] | None = None
) -> NDArray[Any]:
    """The vector of trained − received, in float64 if one of the received arrays is, otherwise in float32.

    Arrays that are received and not trained have not changed: the vector is zero there.

    Args:
        trained: arrays of a reply.
        received: all arrays of the message.
        names: of those that make up the vector; None for all float arrays.

    Raises:
        ArgumentError: a trained array was not received or has another shape, or none of them is in the vector.
    """
    before = list(_floats(received, names))
    if not set(trained) <= set(received):
        raise ArgumentError(f"trained arrays must be among {sorted(received)}, got {sorted(trained)}")
    if set(trained).isdisjoint(key for key, _, _ in before):
        raise ArgumentError(f"trained arrays must have some of {[key for key, _, _ in before]}, got {sorted(trained)}")
    kind = np.float64 if any(array.dtype == np.float64 for _, array, _ in before) else np.float32
    vector = np.empty(sum(array.size for _, array, _ in before), kind)
    for key, old, place in before:
        if key not in trained:
            vector[place] = 0
            continue
        new = values(trained[key])
        if new.shape != old.shape or new.dtype.kind not in "fiub":
            wanted = f"numbers of shape {old.shape}"
            raise ArgumentError(f"trained array {key} must be {wanted}, got {new.dtype} {new.shape}")
        with np.errstate(all="ignore"):  # the caller looks for what is not finite
            np.subtract(new, old, out=vector[place].reshape(old.shape), dtype=kind, casting="unsafe")
    return vector


def moved(
    arrays: Mapping[str, Array], vector: NDArray[np.float64], names: Collection[str] | None = None, *, over: int = 1
) -> ArrayRecord:
    """`arrays` + `vector` / `over`, in the original types; values that a type cannot hold become its largest."""
    result = dict(arrays)
    for key, old, place in _floats(arrays, names):
        limits, flat_old, step = np.finfo(old.dtype), old.ravel(), vector[place]
        new = np.empty_like(flat_old)
        for low in range(0, old.size, _PIECE):
            part = step[low : low + _PIECE] / over
            part += flat_old[low : low + _PIECE]
            new[low : low + _PIECE] = np.clip(part, limits.min, limits.max, out=part)
        result[key] = as_array(new.reshape(old.shape))
    return ArrayRecord(result)


def typed(arrays: Mapping[str, Array], like: Mapping[str, Array]) -> ArrayRecord:
    """`arrays` in the types of `like`; integers are those of `like`."""
    result = dict(like)
    for key, old, _ in _floats(like):
        new = values(arrays[key])
        result[key] = arrays[key] if new.dtype == old.dtype else as_array(np.asarray(new, dtype=old.dtype))
    return ArrayRecord(result)


def _floats(
    arrays: Mapping[str, Array], names: Collection[str] | None = None
) -> Iterator[tuple[str, NDArray[Any], slice]]:
    """The float arrays, or those that are named, with their names and places in the vector."""
    if names is not None and (missing := sorted(set(names) - set(arrays))):
        raise ArgumentError(f"arrays must have all that are trained, got none of the names {missing}")
    start = 0
    for key in sorted(arrays if names is None else set(names)):
        array = values(arrays[key])
        if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
            yield key, array, slice(start, start + array.size)
            start += array.size
        elif array.dtype.kind not in "iub" or names is not None:
            wanted = "floats of at most 64 bits" + (" or integers" if names is None else ", as it is trained")
            raise ArgumentError(f"array {key} must be of {wanted}, got {array.dtype}")
