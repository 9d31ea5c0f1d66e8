"""`lightdp plan-mixed`: clients of several kinds, from a file."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from lightdp import planning
from support.command_line import assert_refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.command_line import Run

MIXED = ["--colluders", "10", "--rounds", "150", "--delta", "1e-5"]
HEAD = "clients,straggling,epsilon\n"


@pytest.fixture
def kinds(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "kinds.csv"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_mixed_prints_a_line_per_kind(run: Run, kinds: Callable[[str], Path]) -> None:
    result = run("plan-mixed", kinds(f"{HEAD}40,0.02,3\n10,0.5,3\n"), *MIXED)
    assert (result.code, result.err) == (0, "")
    assert "50 clients of 2 kinds, 150 rounds" in result.out
    lines = [line.split() for line in result.out.splitlines()]
    first, second = (
        next(line for line in lines if line[:3] == kind) for kind in (["1", "40", "0.02"], ["2", "10", "0.5"])
    )
    assert (first[3], second[3]) == ("3.0000", "3.0000")
    assert (first[4], first[5]) == ("0.7192", "5.5")  # μ, and what an attacker finds (Φ(Φ⁻¹(0.01) + μ) = 5.41 %)
    assert float(first[7]) < float(second[7])  # σ_U: the flaky ones carry their own noise
    assert first[10] == second[9]  # σ_K is shared
    assert "times as much" in result.out


def test_mixed_json_agrees_with_the_design(run: Run, kinds: Callable[[str], Path]) -> None:
    found = json.loads(
        run(
            "plan-mixed",
            kinds("\ufeffclients, straggling, epsilon\n4,0.02,3\n2, 0.5, 5\n"),
            *MIXED[2:],
            "--colluders=1",
            "--json",
        ).out
    )
    expected = planning.plan_per_client(
        epsilons=[3] * 4 + [5] * 2, straggling=[0.02] * 4 + [0.5] * 2, colluders=1, rounds=150, delta=1e-5
    )
    assert found == expected.to_dict()


def test_mixed_shows_no_noise_of_a_single_client_with_itself(run: Run, kinds: Callable[[str], Path]) -> None:
    result = run("plan-mixed", kinds(f"{HEAD}1,0.2,3\n5,0.1,3\n"), *MIXED[2:], "--colluders=1")
    lines = [line.split() for line in result.out.splitlines()]
    assert len(next(line for line in lines if line[:3] == ["1", "1", "0.2"])) == 10
    assert len(next(line for line in lines if line[:3] == ["2", "5", "0.1"])) == 11


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["kinds.csv"]),
        (HEAD, ["kinds.csv"]),
        ("clients,epsilon\n5,3\n", ["kinds.csv", "straggling"]),
        (f"{HEAD}5,often,3\n", ["kinds.csv", "straggling"]),
        (f"{HEAD}5,0.1,3\n5,0.1\n", ["kinds.csv", "kind 2"]),
        (f"{HEAD}2.5,0.1,3\n", ["kinds.csv", "kind 1"]),
        (f"{HEAD}-5,0.1,3\n50,0.1,3\n", ["clients of kind 1", "-5"]),
        (f"{HEAD}50,0.1,3\n0,0.1,3\n", ["clients of kind 2", "=0"]),
        (f"{HEAD}1000000000000,0.1,3\n", ["clients of kind 1", "1000000000000"]),
        (f"{HEAD}50,0.1,nan\n", ["epsilons=nan"]),
        (f"{HEAD}50,0.1,0\n", ["epsilons=0"]),
        (f"{HEAD}50,1,3\n", ["straggling=1"]),
        (f"{HEAD}50,nan,3\n", ["straggling=nan"]),
        (f"{HEAD}10,0.1,3\n", ["colluders=10"]),
        (f"{HEAD}50,{'1' * 200_000},3\n", ["kinds.csv", "field larger"]),
    ],
)
def test_malformed_kinds_end_in_one_line(run: Run, kinds: Callable[[str], Path], text: str, words: list[str]) -> None:
    assert_refused(run("plan-mixed", kinds(text), *MIXED), *words)


def test_files_that_cannot_be_read_end_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(b"clients\xff")
    assert_refused(run("plan-mixed", tmp_path / "none.csv", *MIXED), "none.csv", "No such file")
    assert_refused(run("plan-mixed", tmp_path, *MIXED), str(tmp_path), "directory")
    assert_refused(run("plan-mixed", tmp_path / "latin.csv", *MIXED), "latin.csv")


def test_mixed_without_its_extra_names_it(
    run: Run, kinds: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    assert_refused(run("plan-mixed", kinds(f"{HEAD}50,0.1,3\n"), *MIXED), "pip install '.[design]'")
