"""Sums of noise vectors, added to integers in place: arguments, slices and threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lightdp import _validate, errors
from lightdp.stream import _backends
from lightdp.stream._backends import TILE

SIGMA_MAX = 4096.0  # samples up to 9.27 σ have at least 8 bits below the unit
LENGTH_MAX = 2**40  # values of each key: its AES blocks stay far from the birthday bound
UNIT_MAX = 2**24  # a drawn value in such units is within an int32

Floats = NDArray[np.float32] | NDArray[np.float64]
Integers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Term:
    """One noise vector of a sum: sign × g(key, σ).

    Attributes:
        key: 32 secret bytes; `repr` does not show them.
        sign: +1 or -1.
        sigma: standard deviation in grid units, in (0, SIGMA_MAX].

    Raises:
        ArgumentError: an attribute is out of range.

    >>> Term(bytes(32), -1, 100.0)
    Term(sign=-1, sigma=100.0)
    """

    key: bytes = field(repr=False)
    sign: int
    sigma: float

    def __post_init__(self) -> None:  # a round makes thousands of these: calls only for what is unusual or wrong
        if not isinstance(self.key, bytes) or len(self.key) != 32 or type(self.sign) is not int or abs(self.sign) != 1:
            _check(self.key, self.sign)
        usual = isinstance(self.sigma, float) and 0 < self.sigma <= SIGMA_MAX
        if not usual and _validate.positive("sigma", self.sigma) > SIGMA_MAX:
            raise errors.ArgumentError(f"sigma must be <= {SIGMA_MAX:g} grid units, got sigma={self.sigma:g}")


@dataclass(frozen=True, slots=True)
class Draw:
    """One vector of drawn noise of a sum: sign × unit × d(key).

    Attributes:
        key: 32 secret bytes; `repr` does not show them.
        sign: +1 or -1.
        unit: steps of the grid that a value counts for, in 1..UNIT_MAX.

    Raises:
        ArgumentError: an attribute is out of range.

    >>> Draw(bytes(32), -1, 100)
    Draw(sign=-1, unit=100)
    """

    key: bytes = field(repr=False)
    sign: int
    unit: int

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or len(self.key) != 32 or type(self.sign) is not int or abs(self.sign) != 1:
            _check(self.key, self.sign)
        if type(self.unit) is not int or not 0 < self.unit <= UNIT_MAX:
            _validate.integer("unit", self.unit, 1, UNIT_MAX)


def _check(key: object, sign: object) -> None:
    if not isinstance(key, bytes) or len(key) != 32:
        got = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise errors.ArgumentError(f"key must be 32 bytes, got {got}")
    if _validate.integer("sign", sign, -1, 1) == 0:
        raise errors.ArgumentError("sign must be +1 or -1, got sign=0")


def accumulate(out: Integers, terms: Sequence[Term | Draw], *, start: int = 0, threads: int | None = 1) -> None:
    """Add Σ sign × g(key, σ)[start : start + len(out)] or sign × unit × d(key)[...] over the terms, modulo 2^32.

    Formal guarantee: the same integers on every machine and backend, for any number of threads and however a vector is
    split into calls; a term and its opposite cancel exactly. Memory beside `out` is a few tiles and the keys.

    Args:
        out: one-dimensional, contiguous, writable int32.
        terms: any number of them, of either kind.
        start: index of the first value, >= 0; start + len(out) <= LENGTH_MAX.
        threads: number of threads (the kernel releases the GIL). None: as many as the process has cores, or
            OMP_NUM_THREADS if that is fewer.

    Raises:
        ArgumentError: an argument is wrong; `out` is unchanged.

    >>> out = np.zeros(4, np.int32)
    >>> accumulate(out, [Term(bytes(32), +1, 100.0)])
    >>> out
    array([-87,  11,   5, 109], dtype=int32)
    >>> accumulate(out, [Term(bytes(32), -1, 100.0), Draw(bytes(range(32)), +1, 10)])
    >>> out
    array([-170,  160,   50,  -30], dtype=int32)
    """
    _add(out, _first(out, start), terms, threads)


def masked(
    values: Floats,
    terms: Sequence[Term | Draw],
    *,
    step: float,
    sigma: float,
    own: Sequence[bytes],
    threads: int | None = 1,
) -> Integers:
    """`values` in steps plus noise of their own, rounded once, plus the noise of the terms (W1).

    With w = g(own[0], sigma), f = g(own[1], SIGMA_MAX) and g = g(own[2], SIGMA_MAX), the result is

        round(values / step + (w + 2^-11 f + 2^-22 g)) + what `accumulate` adds for the terms   modulo 2^32

    in IEEE binary64, to the nearest integer, ties to even. The noise in brackets is exact; the quotient and the sum
    are rounded once each.

    Formal guarantee: the same integers on every machine and backend and for any number of threads.

    Args:
        values: float32 or float64 vector, not changed; |values| / step must be below 2^50.
        terms: any number of them, of either kind.
        step: size of a step, > 0.
        sigma: standard deviation of the values' own noise, in steps, in (0, SIGMA_MAX].
        own: three keys that are used for nothing else.
        threads: as in `accumulate`.

    Raises:
        ArgumentError: an argument is wrong, or a value is not finite or too large.

    >>> masked(np.zeros(3), [], step=0.5, sigma=100.0, own=[bytes([k]) * 32 for k in range(3)])
    array([-90,  13,   6], dtype=int32)
    """
    if not (isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype in {np.dtype("f4"), np.dtype("f8")}):
        raise errors.ArgumentError(f"values must be a float32 or float64 vector, got {_kind(values)}")
    if len(own) != 3:
        raise errors.ArgumentError(f"own must be three keys, got {len(own)}")
    noise = [Term(key, 1, each) for key, each in zip(own, (sigma, SIGMA_MAX, SIGMA_MAX), strict=True)]
    out = np.zeros(_validate.integer("length", values.size, 0, LENGTH_MAX), np.int32)
    data = np.require(values, None, ["C", "A"]), _validate.positive("step", step)
    if not _add(out, 0, [*noise, *terms], threads, data):
        raise errors.ArgumentError(f"values must be finite and below 2^50 steps of step={step:g}")
    return out


def _add(
    out: Integers, start: int, terms: Sequence[Term | Draw], threads: int | None, *data: tuple[Floats, float]
) -> bool:
    """Adds terms, and data if there is some; False if any value was out of range."""
    gaussian: list[Term] = []
    drawn: dict[int, list[Draw]] = {}
    for term in terms:
        if isinstance(term, Term):
            gaussian.append(term)
        elif isinstance(term, Draw):
            drawn.setdefault(int(term.unit), []).append(term)
        else:
            raise errors.ArgumentError(f"terms must hold Term or Draw, got {type(term).__name__}")
    keys = b"".join(term.key for term in gaussian)
    scales = np.array([term.sign * np.float32(term.sigma) for term in gaussian], np.float32)
    draws = [
        (b"".join(each.key for each in some), np.array([each.sign for each in some], np.int8), unit)
        for unit, some in drawn.items()
    ]

    def part(cut: slice) -> bool:
        some = ((values[cut], step) for values, step in data)
        if gaussian and not _backends.IN_USE.accumulate(out[cut], start + cut.start, keys, scales, *some):
            return False
        for each in draws:
            _backends.IN_USE.draw(out[cut], start + cut.start, *each)
        return True

    return _run(part, out.size, threads)


def _run(part: Callable[[slice], bool], size: int, threads: int | None) -> bool:
    """Runs `part` on tile-aligned slices in threads; False if any of them says so."""
    workers = _cores() if threads is None else _validate.integer("threads", threads, 1)
    share = max(-(-size // (TILE * workers)), 1) * TILE  # samples for each thread, in whole tiles
    cuts = [slice(first, first + share) for first in range(0, size, share)]
    if len(cuts) < 2:
        return part(slice(0, size))
    with ThreadPoolExecutor(workers) as pool:
        return all(pool.map(part, cuts))


def _first(out: Integers, start: int) -> int:
    """`start`, if `out` is a buffer that noise can be added to and has room behind it."""
    if not (isinstance(out, np.ndarray) and out.dtype == np.int32 and out.ndim == 1 and out.flags.carray):
        raise errors.ArgumentError(f"out must be a contiguous, aligned, writable int32 vector, got {_kind(out)}")
    return _validate.integer("start", start, 0, LENGTH_MAX - out.size)


def _kind(value: object) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def _cores() -> int:
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(int(wanted), there) if wanted.isdecimal() and int(wanted) > 0 else there
