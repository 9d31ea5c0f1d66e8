"""Gaussian noise from 256-bit keys: two clients of a pair get the same integers; data is masked in one pass (W1), (W2).

`accumulate` adds noise to integers, `masked` rounds data together with its own noise; a `Term` is one noise vector.

Samples. g(key, σ) is a sequence of int32, fixed by key and σ alone, in tiles of 1024 samples:

1. Tile n takes bytes 6144 n ... 6144 n + 6143 of the key's AES-256-CTR keystream (128-bit big-endian counter
   from zero, so that block 384 n comes first) as 1536 little-endian words of 32 bits: a[512], b[512], c[512].
2. (a[i], b[i], c[i]) give samples i (a sine) and 512 + i (a cosine) of the tile: Box-Muller in IEEE binary32.
   Each + − × / √ and each conversion of an integer rounds by itself, to nearest, ties to even; none is fused:
   - U = float(a mod 2^31) × 2^31 + float((b mod 2^31) | 1), so that u = U / 2^62 is in [2^-62, 1], never 0.
   - U = 2^(62 + e) m with m in [√½, √2): subtract 0x5e3504f3 from the bits of U; the upper 9 bits are e; the
     lower 23 plus 0x3f3504f3 are the bits of m. With w = (m − 1) / (m + 1), −2 ln u = −2 e ln 2 − 4 artanh w.
   - radius = √(float(2^23 e) × L − A(w × w) × w) × S, with S = float(σ) × 2^15; the top bit of c is its sign.
   - x = float(int32(2 c mod 2^32)) × 2^-32 is in [−½, ½]. With s = B(x × x) × x = √2 sin(πx/2) and
     k = C(x × x) = √2 cos(πx/2), the sine of πx is s × k and its cosine 1 − s × s.
   A, B, C (Horner's rule; near-minimax fits) and L are constants of `lightdp._native.plain`.
3. j, the nearest integer (ties to even) to radius × sine or cosine, counts 2^-15 of a grid unit; the sample
   is (j + 2^14) >> 15. A binary32 rounded straight to the grid would favour even integers; this favours none.

Accuracy, in grid units:

| property | value |
| --- | --- |
| mean | 2^-16 |
| variance | σ² + 1/12; 1/12 is the rounding, which dominates for σ < 1: choose a grid that makes σ large |
| largest sample | 9.27 σ, which a true Gaussian exceeds once in 5e19 samples |
| resolution | u has 24 significant bits, x steps of 2^-25; given those, z is right to 5e-7 of the radius |

Side channels. Time: no table, index or branch depends on a key, a sample or data (except the refusal of data that is
out of range); signs and scales are public. The division and the root of each pair see no subnormal; whether they take
constant time depends on the processor. Memory: the kernel wipes its round keys; Python's `bytes` last until they are
collected.

A compiled kernel (x86-64 with AES-NI and AVX2, faster with VAES and with AVX-512; 64-bit ARMv8 with NEON and AES) and
numpy with `cryptography`, on any processor of either byte order, give the same samples. Each backend must reproduce
known answers when this module is imported; `backend()` names the one in use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lightdp import _validate, errors
from lightdp._native import kernel, plain

SIGMA_MAX = 4096.0  # samples up to 9.27 σ with 15 bits below the unit: j stays inside int32
LENGTH_MAX = 2**40  # samples for each key: its AES blocks stay far from the birthday bound
TILE = plain.TILE

Floats = NDArray[np.float32] | NDArray[np.float64]
Integers = NDArray[np.int32]
Path = Callable[..., bool]  # as `plain.accumulate`

# Compiled backends, the fastest first.
_COMPILED: dict[str, Path] = {} if kernel is None else {n: partial(kernel.accumulate, n) for n in kernel.BACKENDS}


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
        if not isinstance(self.key, bytes) or len(self.key) != 32:
            got = f"{len(self.key)} bytes" if isinstance(self.key, bytes) else type(self.key).__name__
            raise errors.ArgumentError(f"key must be 32 bytes, got {got}")
        if (type(self.sign) is not int or abs(self.sign) != 1) and _validate.integer("sign", self.sign, -1, 1) == 0:
            raise errors.ArgumentError("sign must be +1 or -1, got sign=0")
        usual = isinstance(self.sigma, float) and 0 < self.sigma <= SIGMA_MAX
        if not usual and _validate.positive("sigma", self.sigma) > SIGMA_MAX:
            raise errors.ArgumentError(f"sigma must be <= {SIGMA_MAX:g} grid units, got sigma={self.sigma:g}")


def accumulate(out: Integers, terms: Sequence[Term], *, start: int = 0, threads: int | None = 1) -> None:
    """Add Σ sign × g(key, σ)[start : start + len(out)] over the terms to `out`, modulo 2^32.

    Formal guarantee: the same samples on every machine and backend, for any number of threads and however a vector is
    split into calls; a term and its opposite cancel exactly. Memory beside `out` is a few tiles and the keys.

    Args:
        out: one-dimensional, contiguous, writable int32.
        terms: any number of them.
        start: index of the first sample, >= 0; start + len(out) <= LENGTH_MAX.
        threads: number of threads (the kernel releases the GIL). None: as many as the process has cores, or
            OMP_NUM_THREADS if that is fewer.

    Raises:
        ArgumentError: an argument is wrong; `out` is unchanged.

    >>> out = np.zeros(4, np.int32)
    >>> accumulate(out, [Term(bytes(32), +1, 100.0)])
    >>> out
    array([ -31,  200, -191,  -75], dtype=int32)
    >>> accumulate(out, [Term(bytes(32), -1, 100.0)])
    >>> out
    array([0, 0, 0, 0], dtype=int32)
    """
    if not (isinstance(out, np.ndarray) and out.dtype == np.int32 and out.ndim == 1 and out.flags.carray):
        raise errors.ArgumentError(f"out must be a contiguous, aligned, writable int32 vector, got {_kind(out)}")
    _run(out, _validate.integer("start", start, 0, LENGTH_MAX - out.size), terms, threads)


def masked(
    values: Floats, terms: Sequence[Term], *, step: float, sigma: float, own: Sequence[bytes], threads: int | None = 1
) -> Integers:
    """`values` in steps plus noise of their own, rounded once, plus Σ sign × g(key, σ) over the terms (W1).

    With w = g(own[0], sigma), f = g(own[1], SIGMA_MAX) and g = g(own[2], SIGMA_MAX), the result is

        round(values / step + (w + 2^-11 f + 2^-22 g)) + Σ sign × g(key, σ)   modulo 2^32

    in IEEE binary64, to the nearest integer, ties to even. The noise in brackets is exact; the quotient and the sum
    are rounded once each.

    Formal guarantee: the same integers on every machine and backend and for any number of threads.

    Args:
        values: float32 or float64 vector, not changed; |values| / step must be below 2^50.
        terms: any number of them.
        step: size of a step, > 0.
        sigma: standard deviation of the values' own noise, in steps, in (0, SIGMA_MAX].
        own: three keys that are used for nothing else.
        threads: as in `accumulate`.

    Raises:
        ArgumentError: an argument is wrong, or a value is not finite or too large.

    >>> masked(np.zeros(3), [], step=0.5, sigma=100.0, own=[bytes([k]) * 32 for k in range(3)])
    array([ -28,  203, -192], dtype=int32)
    """
    if not (isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype in {np.dtype("f4"), np.dtype("f8")}):
        raise errors.ArgumentError(f"values must be a float32 or float64 vector, got {_kind(values)}")
    if len(own) != 3:
        raise errors.ArgumentError(f"own must be three keys, got {len(own)}")
    noise = [Term(key, 1, each) for key, each in zip(own, (sigma, SIGMA_MAX, SIGMA_MAX), strict=True)]
    out = np.zeros(_validate.integer("length", values.size, 0, LENGTH_MAX), np.int32)
    data = np.require(values, None, ["C", "A"]), _validate.positive("step", step)
    if not _run(out, 0, [*noise, *terms], threads, data):
        raise errors.ArgumentError(f"values must be finite and below 2^50 steps of step={step:g}")
    return out


def _run(out: Integers, start: int, terms: Sequence[Term], threads: int | None, *data: tuple[Floats, float]) -> bool:
    """Runs the backend on tile-aligned slices in threads; False if any value was out of range."""
    for term in terms:
        if not isinstance(term, Term):
            raise errors.ArgumentError(f"terms must hold Term, got {type(term).__name__}")
    workers = _cores() if threads is None else _validate.integer("threads", threads, 1)
    keys = b"".join(term.key for term in terms)
    scales = np.array([term.sign * 2**15 * np.float32(term.sigma) for term in terms], np.float32)
    share = max(-(-out.size // (TILE * workers)), 1) * TILE  # samples for each thread, in whole tiles

    def part(first: int) -> bool:
        cut = slice(first, first + share)
        return _PATH(out[cut], start + first, keys, scales, *((values[cut], step) for values, step in data))

    if share >= out.size:
        return part(0)
    with ThreadPoolExecutor(workers) as pool:
        return all(pool.map(part, range(0, out.size, share)))


def _kind(value: object) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def backend() -> str:
    """The backend in use: "vaes512", "vaes", "aesni", "armv8" or "numpy", with a note if the kernel fails its test.

    The environment variable LIGHTDP_STREAM, read at import, requires one; if it is not available, the import fails.

    >>> backend().split()[0] in {"vaes512", "vaes", "aesni", "armv8", "numpy"}
    True
    """
    return _BACKEND


def paths() -> dict[str, Path]:
    """All implementations that this machine runs, by name, the fastest first; each makes the same noise.

    >>> [*paths()][-1]
    'numpy'
    """
    return {**_COMPILED, "numpy": plain.accumulate}


def _cores() -> int:
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(int(wanted), there) if wanted.isdecimal() and int(wanted) > 0 else there


def _correct(path: Path) -> bool:
    """Checks known answers: two keys, both signs, parts of the first and last of 66 tiles; data of both types."""
    out = np.zeros(65 * TILE, np.int32)
    path(out, 1000, bytes(range(64)), np.array([4096.0, -1000.1], np.float32) * np.float32(2**15))
    data = np.zeros(3 * TILE + 1, np.int32)
    scales = np.array([1024.0, 4096.0, 4096.0, -1000.1], np.float32) * np.float32(2**15)
    for kind in (np.float32, np.float64):
        path(data, 1000, bytes(range(128)), scales, (np.arange(-TILE, 2 * TILE + 1, dtype=kind), 0.1))
    return tuple(hashlib.sha256(each.astype("<i4").tobytes()).hexdigest() for each in (out, data)) == _KNOWN


def _choose(wanted: str | None, compiled: dict[str, Path]) -> tuple[str, Path]:
    """The wanted backend, or the fastest; if any compiled one gave a wrong answer, numpy alone is trusted."""
    if not _correct(plain.accumulate):
        raise errors.LightDPError("lightdp.stream fails its known answer in numpy: no noise can be made here")
    wrong = [name for name, path in compiled.items() if not _correct(path)]
    paths = {"numpy": plain.accumulate} if wrong else {**compiled, "numpy": plain.accumulate}
    name = next(iter(paths)) if wanted is None else _validate.choice("LIGHTDP_STREAM", wanted, paths)
    return (f"{name} (native self-test failed)" if wrong else name), paths[name]


_KNOWN = (
    "732fac5175175dc4464fe47288d610bfa8d7adf393da5c94caef27aef6e4eeaa",
    "3d99c494e2b15d3787ca8de79d3961f047effcca24032d2476c715ee50e64d0d",
)
_BACKEND, _PATH = _choose(os.environ.get("LIGHTDP_STREAM"), _COMPILED)
