"""Clipping whose bound holds in exact arithmetic: the sensitivity Δ is enforced, never assumed (P4).

A vector that is scaled to norm C in floating point may end a little outside the ball, because the norm, the factor
and each product are rounded. Here every rounding error is bounded and taken to the private side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightdp._validate import positive
from lightdp.errors import ArgumentError

Array: TypeAlias = "NDArray[np.floating[Any]]"
Arrays: TypeAlias = "Array | Sequence[Array]"

_CHUNK = 1 << 13  # values that are widened to float64 at once; above 10,000 a BLAS would use other threads


def clip_norm(arrays: Arrays, clip: float, *, out: Arrays | None = None) -> float:
    """Scale arrays, taken together as one long vector, to L2 norm at most `clip`, in place or into `out` (P4).

    Formal guarantee, for the resulting floats taken as real numbers: their norm is not above `clip`, nor below
    min(norm before, clip) by more than a relative 2^-20 (2^-36 if all arrays are float64; subnormals aside).

    | input | result |
    | --- | --- |
    | norm at most `clip` | unchanged, factor 1.0 |
    | arrays of any shape, () and (0,) included | all values count |
    | NaN or infinity | `ArgumentError`, nothing is written |
    | strided views | clipped; their surroundings stay |

    Args:
        arrays: a float32 or float64 array, or a sequence of them.
        clip: bound on the norm, > 0.
        out: arrays of the same shapes and types for the result; they must not overlap `arrays`, unless they are the
            same objects. None clips in place.

    Returns:
        The factor by which the values were multiplied, in [0, 1].

    Raises:
        ArgumentError: an argument is wrong; nothing is written.

    >>> vector = np.array([30.0, 40.0])
    >>> round(clip_norm(vector, 5.0), 6)
    0.1
    >>> bool(np.hypot(*vector) <= 5.0)
    True
    """
    sources = _floats("arrays", arrays)
    targets = sources if out is None else _floats("out", out)
    _refuse_mismatch(sources, targets)
    factor = _factor(sources, positive("clip", clip))
    for source, target in zip(sources, targets, strict=True):
        if factor < 1:
            _scale(source, factor, target)
        elif target is not source:
            target[...] = source
    return factor


def within_norm(vector: Array, clip: float) -> Array:
    """`vector` itself if its norm is at most `clip`, otherwise a copy scaled to it, as `clip_norm` does (P4).

    Args:
        vector: a float32 or float64 array, which is not changed.
        clip: bound on the norm, > 0.

    Raises:
        ArgumentError: an argument is wrong, or `vector` holds NaN or infinity.

    >>> vector = np.array([30.0, 40.0])
    >>> within_norm(vector, 50.1) is vector
    True
    >>> within_norm(vector, 5.0).round(6), vector
    (array([3., 4.]), array([30., 40.]))
    """
    factor = _factor(_floats("vector", [vector]), positive("clip", clip))
    if factor == 1:
        return vector
    result = np.empty_like(vector)
    _scale(vector, factor, result)
    return result


def clamp(vector: Array, bound: float) -> None:
    """Clamp each coordinate to [-bound, bound], in place (W1).

    Formal guarantee: no coordinate exceeds `bound`, also where its type cannot represent `bound`. Clamping projects
    onto a convex set: it never moves two vectors apart, so it raises no sensitivity.

    Args:
        vector: a writable float32 or float64 array.
        bound: > 0.

    Raises:
        ArgumentError: an argument is wrong, or `vector` holds NaN or infinity; nothing is written.

    >>> vector = np.array([0.5, -3.0])
    >>> clamp(vector, 1.0)
    >>> vector
    array([ 0.5, -1. ])
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

    Every step errs to the private side:
    - Squares of float32 are exact in float64. Other values are first scaled by a power of two, which is exact, so that
      squares do not overflow and lose less than 2^-1000 each by underflow.
    - A dot product of n squares has a relative error below 2 n u, u = 2^-53, in any order.
    - A product rounded to float64 and then to a type of unit v grows by a factor below 1 + 2 v, or by at most the
      smallest subnormal.
    - The rest is rational arithmetic, rounded down at the end (to a float32 if all arrays are float32).
    """
    single = all(array.dtype == np.float32 for array in arrays)
    exponent = 0 if single else max(math.frexp(_largest("arrays", arrays))[1], -1000)
    values, parts = sum(array.size for array in arrays), []
    for piece in (piece for array in arrays for piece in _pieces(array)):
        scaled = piece * math.ldexp(1.0, -exponent) if exponent != 0 else piece
        parts.append(float(scaled @ scaled))
    if not all(map(math.isfinite, parts)):
        _largest("arrays", arrays)  # raises, naming the array
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


def _scale(source: Array, factor: float, target: Array) -> None:
    """As if in float64, then rounded to the target's type; for two float32 that is one rounding."""
    kind = np.float32 if source.dtype == np.float32 and float(np.float32(factor)) == factor else np.float64
    np.multiply(source, kind(factor), out=target, dtype=kind, casting="same_kind")


def _largest(name: str, arrays: list[Array]) -> float:
    """The largest absolute value; refuses values that are not finite."""
    largest = 0.0
    for index, array in enumerate(arrays):
        extremes = abs(float(array.min(initial=0.0))), abs(float(array.max(initial=0.0)))
        if not all(map(math.isfinite, extremes)):
            raise ArgumentError(f"{name} must be finite, got NaN or infinity in array {index}")
        largest = max(largest, *extremes)
    return largest


def _pieces(array: Array) -> Iterator[NDArray[np.float64]]:
    """The values in float64, a chunk at a time, for any shape and strides."""
    yield from np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], op_dtypes=["f8"], buffersize=_CHUNK)


def _floats(name: str, arrays: Arrays) -> list[Array]:
    result = [arrays] if isinstance(arrays, np.ndarray) else list(arrays)
    for array in result:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
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
