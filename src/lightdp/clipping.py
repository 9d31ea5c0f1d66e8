"""Clipping that keeps its promise in exact arithmetic: the sensitivity Δ is enforced, never assumed (P4)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lightdp._validate import positive
from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

Array: TypeAlias = "NDArray[np.floating[Any]]"
Arrays: TypeAlias = "Array | Sequence[Array]"

_CHUNK = 1 << 13  # values that are widened to float64 at once; above 10,000 a BLAS would wake other threads


def clip_norm(arrays: Arrays, clip: float, *, out: Arrays | None = None) -> float:
    """Scale a float32 or float64 array, or a list of them as one long vector, to L2 norm at most `clip`.

    Guaranteed for the numbers that are left, taken as real numbers: their norm is not above `clip`, nor is it
    below min(norm before, clip) by more than a relative 2^-20 (2^-36 if all are float64; subnormals aside).
    Arrays of every shape count, () included. Works in place or into `out`, which must not overlap `arrays`
    unless it is the same. Returns the factor; 1.0 means that no value changed.

    NaN and infinity are refused before anything is written.
    """
    sources = _floats("arrays", arrays)
    targets = sources if out is None else _floats("out", out)
    _refuse_mismatch(sources, targets)
    factor = _factor(sources, positive("clip", clip))
    for source, target in zip(sources, targets, strict=True):
        if factor < 1:  # as if in float64 and then rounded to the type of the target, which for two float32 is one step
            kind = np.float32 if source.dtype == np.float32 and float(np.float32(factor)) == factor else np.float64
            np.multiply(source, kind(factor), out=target, dtype=kind, casting="same_kind")
        elif target is not source:
            target[...] = source
    return factor


def clamp(vector: Array, bound: float) -> None:
    """Clamp each coordinate to [-bound, bound], in place (W1).

    This projects onto a convex set: it never moves two vectors apart, so it raises no sensitivity.
    NaN and infinity are refused before anything is written.
    """
    _largest("vector", _floats("vector", [vector]))
    if not vector.flags.writeable:
        raise ArgumentError("vector must be writeable, got one that is read-only")
    with np.errstate(over="ignore"):
        limit = vector.dtype.type(positive("bound", bound))
    if float(limit) > bound:
        limit = np.nextafter(limit, vector.dtype.type(0))
    np.clip(vector, -limit, limit, out=vector)


def _factor(arrays: list[Array], clip: float) -> float:
    """A factor in [0, 1] after which the rounded vector is inside the ball, and hardly smaller than needed.

    Every step errs to the private side. Squares of float32 are exact in float64. Otherwise values are scaled first, by
    a power of two, which is exact, so that squares do not overflow and lose less than 2^-1000 each by underflow. A dot
    product of n squares is off by less than 2 n u, u = 2^-53, in any order. A product rounded to float64 and then to a
    type of unit v grows by a factor below 1 + 2 v, or by at most the smallest subnormal. The rest is rational, and
    rounded down at the end, for float32 alone to a float32.
    """
    single = all(array.dtype == np.float32 for array in arrays)
    exponent = 0 if single else max(math.frexp(_largest("arrays", arrays))[1], -1000)
    parts, values = [], 0
    for piece in (piece for array in arrays for piece in _pieces(array)):
        scaled = piece * math.ldexp(1.0, -exponent) if exponent != 0 else piece
        parts.append(float(scaled @ scaled))
        values += piece.size
    if not all(map(math.isfinite, parts)):
        _largest("arrays", arrays)  # says where
    if not any(parts):
        return 1.0
    total = Fraction(math.nextafter(math.fsum(parts), math.inf))  # fsum rounds once
    squares = total * (1 + Fraction(2 * _CHUNK, 2**53)) + Fraction(values, 2**1000)
    root = math.nextafter(math.sqrt(math.nextafter(float(squares), math.inf)), math.inf)
    norm = Fraction(root) * Fraction(2) ** exponent
    if norm <= Fraction(clip):
        return 1.0
    kinds = [np.finfo(array.dtype) for array in arrays]
    unit = max(Fraction(float(kind.eps)) for kind in kinds)  # 2 v
    least = max(Fraction(float(kind.smallest_subnormal)) for kind in kinds)
    room = Fraction(clip) - least * (math.isqrt(values) + 1)
    exact = max(room / (norm * (1 + unit)), Fraction(0))
    kind = np.float32 if single and exact >= Fraction(1, 2**126) else np.float64  # float32 has no small factors
    factor = kind(float(exact))
    return float(factor if Fraction(float(factor)) <= exact else np.nextafter(factor, kind(0)))


def _largest(name: str, arrays: list[Array]) -> float:
    """The largest absolute value; refuses values that are not finite."""
    largest = 0.0
    for index, array in enumerate(arrays):
        if array.size > 0:
            low, high = float(array.min()), float(array.max())
            if not (math.isfinite(low) and math.isfinite(high)):
                raise ArgumentError(f"{name} must be finite, got NaN or infinity in array {index}")
            largest = max(largest, -low, high)
    return largest


def _pieces(array: Array) -> Iterator[NDArray[np.float64]]:
    """The values in float64, a chunk at a time, whatever the shape and the strides."""
    yield from np.nditer(
        array,
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_dtypes=[np.dtype(np.float64)],
        buffersize=_CHUNK,
    )


def _floats(name: str, arrays: Arrays) -> list[Array]:
    result = [arrays] if isinstance(arrays, np.ndarray) else list(arrays)
    for array in result:
        kind = getattr(array, "dtype", None) if isinstance(array, np.ndarray) else type(array).__name__
        if kind not in {np.dtype("f4"), np.dtype("f8")}:
            raise ArgumentError(f"{name} must be float32 or float64 arrays, got {kind}")
    return result


def _refuse_mismatch(sources: list[Array], targets: list[Array]) -> None:
    if [(a.shape, a.dtype) for a in sources] != [(a.shape, a.dtype) for a in targets]:
        raise ArgumentError("out must have the shapes and types of arrays")
    for i, target in enumerate(targets):
        if not target.flags.writeable:
            raise ArgumentError(f"arrays must be writeable, got array {i} read-only")
        for j, source in enumerate(sources):
            if np.may_share_memory(source, target) and not (i == j and source is target):
                raise ArgumentError(f"arrays must not overlap, got arrays {i} and {j}")
