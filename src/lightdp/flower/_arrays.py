"""The arrays of a model as one vector, and back.

Float arrays (16, 32 and 64 bits, any shape, 0-d included) make up the vector, in the order of their names. Integer
and boolean arrays, such as the batch counters of normalisation layers, never leave a client: the server's stay.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from lightdp.errors import ArgumentError

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


def length(arrays: Mapping[str, Array]) -> int:
    """Number of values in the vector of these arrays."""
    result = sum(array.size for _, array, _ in _floats(arrays))
    if result == 0:
        raise ArgumentError(f"arrays must hold floats, got {list(arrays)}")
    return result


def places(arrays: Mapping[str, Array]) -> Iterator[tuple[str, tuple[int, ...], slice]]:
    """The float arrays: their names, shapes and places in the vector."""
    return ((key, array.shape, place) for key, array, place in _floats(arrays))


def difference(trained: Mapping[str, Array], received: Mapping[str, Array]) -> NDArray[Any]:
    """The vector of trained − received, in float64 if one of the received arrays is, otherwise in float32."""
    if set(trained) != set(received):
        raise ArgumentError(f"trained arrays must be {sorted(received)}, got {sorted(trained)}")
    before = list(_floats(received))
    kind = np.float64 if any(array.dtype == np.float64 for _, array, _ in before) else np.float32
    vector = np.empty(sum(array.size for _, array, _ in before), kind)
    for key, old, place in before:
        new = values(trained[key])
        if new.shape != old.shape or new.dtype.kind not in "fiub":
            wanted = f"numbers of shape {old.shape}"
            raise ArgumentError(f"trained array {key} must be {wanted}, got {new.dtype} {new.shape}")
        with np.errstate(all="ignore"):  # the caller looks for what is not finite
            np.subtract(new, old, out=vector[place].reshape(old.shape), dtype=kind, casting="unsafe")
    return vector


def moved(arrays: Mapping[str, Array], vector: NDArray[np.float64]) -> ArrayRecord:
    """`arrays` + `vector`, in the original types; values that a type cannot hold become its largest."""
    result = dict(arrays)
    for key, old, place in _floats(arrays):
        limits, flat, step = np.finfo(old.dtype), old.ravel(), vector[place]
        new = np.empty_like(flat)
        for low in range(0, old.size, _PIECE):
            part = flat[low : low + _PIECE].astype(np.float64)
            part += step[low : low + _PIECE]
            new[low : low + _PIECE] = np.clip(part, limits.min, limits.max, out=part)
        result[key] = Array(new.reshape(old.shape))
    return ArrayRecord(result)


def typed(arrays: Mapping[str, Array], like: Mapping[str, Array]) -> ArrayRecord:
    """`arrays` in the types of `like`; integers are those of `like`."""
    result = dict(like)
    for key, old, _ in _floats(like):
        new = values(arrays[key])
        result[key] = arrays[key] if new.dtype == old.dtype else Array(np.asarray(new, dtype=old.dtype))
    return ArrayRecord(result)


def _floats(arrays: Mapping[str, Array]) -> Iterator[tuple[str, NDArray[Any], slice]]:
    """The float arrays with their names and places in the vector."""
    start = 0
    for key in sorted(arrays):
        array = values(arrays[key])
        if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
            yield key, array, slice(start, start + array.size)
            start += array.size
        elif array.dtype.kind not in "iub":
            raise ArgumentError(f"array {key} must be of floats of at most 64 bits or integers, got {array.dtype}")
