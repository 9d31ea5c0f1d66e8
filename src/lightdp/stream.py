"""Gaussian noise from a 256-bit key, added in place: a pair's two sides get the same integers (W1), (W2).

The samples. g(key, σ) is a sequence of int32, fixed by key and σ alone, in tiles of 1024 samples:

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

What they are worth, in grid units: variance σ² + 1/12 (1/12 is the rounding; for σ < 1 the grid dominates, so
choose one that makes σ large), mean 2^-16, reach 9.27 σ, which a true Gaussian exceeds once in 5e19 samples.
u keeps 24 significant bits and x steps of 2^-25; given those, z is right to 5e-7 of the radius.

Time: no table, index or branch depends on a key or a sample; signs and scales are public. The
division and the root of each pair see no subnormal; that they take constant time is up to the processor.
Memory: the kernel wipes its round keys; Python's `bytes` last until they are collected.

A compiled kernel (x86-64 with AES-NI and AVX2, more than twice as fast with VAES and AVX-512) and numpy with
`cryptography` give these same samples. Each path must reproduce a known answer when this module is imported;
`backend()` says which one is in use.
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

from lightdp import _check
from lightdp._native import plain

SIGMA_MAX = 4096.0  # with a reach of 9.27 σ and 15 bits below the unit, j stays inside int32
LENGTH_MAX = 2**40  # samples a key: its AES blocks stay far from the birthday bound
TILE = plain.TILE

Path = Callable[[NDArray[np.int32], int, bytes, NDArray[np.float32]], None]

try:
    from lightdp._native import kernel
except ImportError:  # installed without a compiler
    _COMPILED: dict[str, Path] = {}
else:
    _COMPILED = {name: partial(kernel.accumulate, name) for name in kernel.BACKENDS}  # fastest first


@dataclass(frozen=True, slots=True)
class Term:
    """One noise vector of a sum: sign × g(key, σ).

    Attributes:
        key: 32 secret bytes; `repr` does not show them.
        sign: +1 or -1.
        sigma: standard deviation in grid units, in (0, SIGMA_MAX].
    """

    key: bytes = field(repr=False)
    sign: int
    sigma: float

    def __post_init__(self) -> None:
        if not isinstance(self.key, bytes) or len(self.key) != 32:
            got = f"{len(self.key)} bytes" if isinstance(self.key, bytes) else type(self.key).__name__
            raise _check.ArgumentError(f"key must be 32 bytes, got {got}")
        if _check.integer("sign", self.sign, -1, 1) == 0:
            raise _check.ArgumentError("sign must be +1 or -1, got sign=0")
        if _check.positive("sigma", self.sigma) > SIGMA_MAX:
            raise _check.ArgumentError(f"sigma must be <= {SIGMA_MAX:g} grid units, got sigma={self.sigma:g}")


def accumulate(out: NDArray[np.int32], terms: Sequence[Term], *, start: int = 0, threads: int | None = 1) -> None:
    """Add Σ sign × g(key, σ)[start : start + len(out)] over the terms to `out`, modulo 2^32.

    Guaranteed: the same samples on every machine and path, for any number of threads and any cut of a vector
    into calls; a term and its opposite cancel exactly; memory beside `out` is a few tiles and keys, for any
    number of terms. Everything is checked before `out` is touched.

    Args:
        out: one-dimensional, contiguous, writable int32.
        terms: any number of them.
        start: index of the first sample, >= 0; start + len(out) <= LENGTH_MAX.
        threads: how many share the work (the kernel releases the GIL); None takes every core of this process, or as
            many as the environment's OMP_NUM_THREADS says, which keeps neighbours on one machine apart.
    """
    if not (isinstance(out, np.ndarray) and out.dtype == np.int32 and out.ndim == 1 and out.flags.carray):
        got = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise _check.ArgumentError(f"out must be a contiguous, aligned, writable int32 vector, got {got}")
    for term in terms:
        if not isinstance(term, Term):
            raise _check.ArgumentError(f"terms must hold Term, got {type(term).__name__}")
    start = _check.integer("start", start, 0, LENGTH_MAX - out.size)
    workers = _cores() if threads is None else _check.integer("threads", threads, 1)
    keys = b"".join(term.key for term in terms)
    scales = np.array([term.sign * 2**15 * np.float32(term.sigma) for term in terms], np.float32)
    share = -(-out.size // (TILE * workers)) * TILE  # samples a thread, in whole tiles
    if share >= out.size:
        _PATH(out, start, keys, scales)
        return
    with ThreadPoolExecutor(workers) as pool:
        firsts = range(0, out.size, share)
        jobs = [pool.submit(_PATH, out[i : i + share], start + i, keys, scales) for i in firsts]
    for job in jobs:
        job.result()


def backend() -> str:
    """The path in use: "vaes512", "vaes", "aesni" or "numpy", with a note if the kernel failed its known answer.

    The environment variable LIGHTDP_STREAM, read at import, demands one; if it is not there, import fails.
    """
    return _BACKEND


def _cores() -> int:
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(int(wanted), there) if wanted.isdecimal() and int(wanted) > 0 else there


def _correct(path: Path) -> bool:
    """Known answer: two keys, both signs, parts of the first and the last of 66 tiles."""
    out = np.zeros(65 * TILE, np.int32)
    path(out, 1000, bytes(range(64)), np.array([4096.0, -1000.1], np.float32) * np.float32(2**15))
    return hashlib.sha256(out.astype("<i4").tobytes()).hexdigest() == _KNOWN


def _choose(wanted: str | None, compiled: dict[str, Path]) -> tuple[str, Path]:
    """The wanted path, or the fastest; numpy alone is trusted once a compiled path has answered wrongly."""
    if not _correct(plain.accumulate):
        raise _check.LightDPError("lightdp.stream fails its known answer in numpy: no noise can be made here")
    wrong = [name for name, path in compiled.items() if not _correct(path)]
    paths = {"numpy": plain.accumulate} if wrong else {**compiled, "numpy": plain.accumulate}
    name = next(iter(paths)) if wanted is None else _check.choice("LIGHTDP_STREAM", wanted, paths)
    return (f"{name} (native self-test failed)" if wrong else name), paths[name]


_KNOWN = "732fac5175175dc4464fe47288d610bfa8d7adf393da5c94caef27aef6e4eeaa"
_BACKEND, _PATH = _choose(os.environ.get("LIGHTDP_STREAM"), _COMPILED)
