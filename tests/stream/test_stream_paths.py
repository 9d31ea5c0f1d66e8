"""Which path computes a stream, and on how many cores."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp._native import plain
from lightdp.errors import ArgumentError, LightDPError
from lightdp.stream import Path, _backends, _sums
from support.streams import PATHS

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run(wanted: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import lightdp.stream; print(lightdp.stream.backend())"]
    return subprocess.run(
        command, env={**os.environ, "LIGHTDP_STREAM": wanted}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", PATHS)
def test_the_environment_chooses_a_path(name: str) -> None:
    assert run(name).stdout == f"{name}\n"


def test_an_unavailable_path_is_an_error() -> None:
    assert "LIGHTDP_STREAM must be one of" in run("abacus").stderr


def test_the_fastest_path_is_the_default() -> None:
    assert _backends.choose(None, _backends.COMPILED)[0] == next(iter(PATHS))


def test_without_the_kernel_numpy_serves() -> None:
    assert _backends.choose(None, {}) == ("numpy", _backends.NUMPY)


def test_a_kernel_that_answers_wrongly_is_not_used() -> None:
    def wrong(out: NDArray[np.int32], *rest: Any) -> bool:
        out[-1] += 1
        return plain.accumulate(out, *rest)

    assert _backends.choose(None, {"vaes": Path(wrong, plain.draw)}) == (
        "numpy (native self-test failed)",
        _backends.NUMPY,
    )
    with pytest.raises(ArgumentError, match="LIGHTDP_STREAM must be one of numpy"):
        _backends.choose("vaes", {"vaes": Path(wrong, plain.draw)})


@pytest.mark.parametrize("spoilt", [np.float32, np.float64])
def test_a_kernel_that_rounds_data_wrongly_is_not_used(spoilt: type) -> None:
    def wrong(out: NDArray[np.int32], *rest: Any) -> bool:
        if len(rest) > 3 and rest[3][0].dtype == spoilt:
            out[0] += 1
        return plain.accumulate(out, *rest)

    assert _backends.choose(None, {"vaes": Path(wrong, plain.draw)})[0] == "numpy (native self-test failed)"


def test_a_kernel_that_draws_wrongly_is_not_used() -> None:
    def wrong(out: NDArray[np.int32], *rest: Any) -> None:
        plain.draw(out, *rest)
        out[-1] += 1

    right = {"vaes": Path(plain.accumulate, plain.draw)}
    assert _backends.choose(None, right) == ("vaes", right["vaes"])
    spoilt = {"vaes": Path(plain.accumulate, wrong)}
    assert _backends.choose(None, spoilt) == ("numpy (native self-test failed)", _backends.NUMPY)


def test_numpy_that_answers_wrongly_makes_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "L", plain.L * 1.0001)
    with pytest.raises(LightDPError, match="known answer"):
        _backends.choose(None, {})


@pytest.mark.parametrize(("said", "expected"), [("1", 1), ("0", 2), ("", 2), ("many", 2), ("64", 2)])
def test_all_cores_are_those_of_the_process_or_fewer_if_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, said: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert _sums._cores() == expected
