"""Samples of a stream, by every path that computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from lightdp import stream
from lightdp.stream import SIGMA_MAX, Term

if TYPE_CHECKING:
    from numpy.typing import NDArray

PATHS = stream.paths()
COMPILED = [name for name in PATHS if name != "numpy"]
KEY, OTHER = bytes(range(32)), bytes(range(32, 64))
TERMS = st.builds(Term, st.binary(min_size=32, max_size=32), st.sampled_from([-1, 1]), st.floats(1e-3, SIGMA_MAX))


def samples(key: bytes, sigma: float, count: int, start: int = 0) -> NDArray[np.int32]:
    out = np.zeros(count, np.int32)
    stream.accumulate(out, [Term(key, 1, sigma)], start=start, threads=None)
    return out


def by_path(path: stream.Path, length: int, start: int, terms: list[Term]) -> NDArray[np.int32]:
    out = np.zeros(length, np.int32)
    scales = np.array([term.sign * np.float32(term.sigma) for term in terms], np.float32)
    path.accumulate(out, start, b"".join(term.key for term in terms), scales)
    return out
