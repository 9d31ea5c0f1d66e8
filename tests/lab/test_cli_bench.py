"""`lightdp bench masks`: what it records and prints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lightdp import stream
from support.command_line import Result, assert_refused, installed

if TYPE_CHECKING:
    from support.command_line import Run

QUICK = ["bench", "masks", "--dimension", "20000", "--peers", "3", "--rounds", "1"]


def test_bench_masks_records_every_method_and_the_path_in_use(run: Run) -> None:
    result = run(*QUICK, "--json")
    found = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert set(found) == {"rates", "client_round", "peak_memory_in_vectors"}
    path = stream.backend().split()[0]
    assert {"philox", "uniform", "numpy", path} <= set(found["rates"]["methods"])
    assert set(found["client_round"]["methods"]) == {"philox", "uniform", "upload"}
    for part in (found["rates"], found["client_round"]):
        assert part["conditions"]["backend"] == stream.backend()
        assert (part["d"], part["peers"], part["rounds"]) == (20000, 3, 1)
        for row in part["methods"].values():
            assert row["rate"] == pytest.approx(60000 / row["seconds"])
            assert all(math.isfinite(row[key]) and row[key] > 0 for key in ("seconds", "x_philox", "x_uniform"))
        assert part["methods"]["philox"]["x_philox"] == part["methods"]["uniform"]["x_uniform"] == 1
    if Path("/proc/self/status").exists():
        assert set(found["peak_memory_in_vectors"]) == {"1", "3"}


def test_bench_masks_prints_tables_and_the_path_in_use(run: Run) -> None:
    result = run(*QUICK)
    assert result.code == 0
    assert f"path in use: {stream.backend()}" in result.out
    for word in ("M samples/s", "× Philox", "× AES uniform", "whole round", "lightdp, numpy", "3 masks of 20,000"):
        assert word in result.out


@pytest.mark.parametrize("option", ["dimension", "peers", "rounds"])
def test_bench_masks_refuses_nothing_to_do(run: Run, option: str) -> None:
    assert_refused(run(*QUICK, f"--{option}=0"), f"{option}=0")


def test_bench_masks_refuses_a_path_that_is_not_there() -> None:
    done = installed(*QUICK, LIGHTDP_STREAM="abacus")
    assert_refused(Result(done.returncode, done.stdout, done.stderr), "LIGHTDP_STREAM='abacus'")
