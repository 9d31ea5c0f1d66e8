"""Which implementation makes the noise: the fastest that reproduces known answers, or the one that is asked for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lightdp import _validate, errors
from lightdp._native import kernel, plain

TILE = plain.TILE


@dataclass(frozen=True, slots=True)
class Path:
    """One implementation of both kinds of noise.

    Attributes:
        accumulate: adds Gaussian samples, as `plain.accumulate`.
        draw: adds drawn values, as `plain.draw`.
    """

    accumulate: Callable[..., bool]
    draw: Callable[..., None]


NUMPY = Path(plain.accumulate, plain.draw)


def _compiled(name: str) -> Path:
    return Path(partial(kernel.accumulate, name), partial(kernel.draw, name))


def backend() -> str:
    """The backend in use: "vaes512", "vaes", "aesni", "armv8" or "numpy", with a note if the kernel fails its test.

    The environment variable LIGHTDP_STREAM, read at import, requires one; if it is not available, the import fails.

    >>> backend().split()[0] in {"vaes512", "vaes", "aesni", "armv8", "numpy"}
    True
    """
    return NAME


def paths() -> dict[str, Path]:
    """All implementations that this machine runs, by name, the fastest first; each makes the same noise.

    >>> [*paths()][-1]
    'numpy'
    """
    return {**COMPILED, "numpy": NUMPY}


def correct(path: Path) -> bool:
    """Checks known answers of samples, of data and of drawn values."""
    found = _samples(path), _data(path), _draws(path)
    return tuple(hashlib.sha256(each.astype("<i4").tobytes()).hexdigest() for each in found) == KNOWN


def _samples(path: Path) -> NDArray[np.int32]:
    """Two keys, both signs, parts of the first and last of 66 tiles."""
    out = np.zeros(65 * TILE, np.int32)
    path.accumulate(out, 1000, bytes(range(64)), np.array([4096.0, -1000.1], np.float32))
    return out


def _data(path: Path) -> NDArray[np.int32]:
    """Data of both types."""
    out = np.zeros(3 * TILE + 1, np.int32)
    scales = np.array([1024.0, 4096.0, 4096.0, -1000.1], np.float32)
    for kind in (np.float32, np.float64):
        path.accumulate(out, 1000, bytes(range(128)), scales, (np.arange(-TILE, 2 * TILE + 1, dtype=kind), 0.1))
    return out


def _draws(path: Path) -> NDArray[np.int32]:
    """Nineteen keys, both signs, parts of the first and last of 12 tiles; five values take the uniform branch."""
    out = np.zeros(11 * TILE, np.int32)
    keys = b"".join(bytes(range(j, j + 32)) for j in range(19))
    path.draw(out, 1000, keys, np.array([-1 if j % 3 else 1 for j in range(19)], np.int8), 2**22 + 1)
    return out


def choose(wanted: str | None, compiled: dict[str, Path]) -> tuple[str, Path]:
    """The wanted backend, or the fastest; if any compiled one gave a wrong answer, numpy alone is trusted."""
    if not correct(NUMPY):
        raise errors.LightDPError("lightdp.stream fails its known answer in numpy: no noise can be made here")
    wrong = [name for name, path in compiled.items() if not correct(path)]
    found = {"numpy": NUMPY} if wrong else {**compiled, "numpy": NUMPY}
    name = next(iter(found)) if wanted is None else _validate.choice("LIGHTDP_STREAM", wanted, found)
    return (f"{name} (native self-test failed)" if wrong else name), found[name]


KNOWN = (
    "fc988c7a090b14b77b4da345270efe58bb00a04431317e6f4af2efbf89a67753",
    "84d0e30bf490c8ba6f0425a4d2d504cb3f706cf56ca212e2aa558084c281604c",
    "58ee7c443eb6dae651b866fb77fdea1d897821973d770ee5e129e2800a11ec77",
)
COMPILED: dict[str, Path] = (
    {} if kernel is None else {name: _compiled(name) for name in kernel.BACKENDS}
)  # fastest first
NAME, IN_USE = choose(os.environ.get("LIGHTDP_STREAM"), COMPILED)
