"""Runs with real clients whose masks are drawn: to what each round is bound (W4)."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from lightdp.protocol import ClientRound
from lightdp.training import bounds
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from support.toy_runs import QUICK, blobs

if TYPE_CHECKING:
    from pathlib import Path

DRAWN: dict[str, Any] = QUICK | {"scheme": "repair", "fidelity": "protocol", "masks": "drawn", "epsilon": 8.0}
COHORTS: dict[str, Any] = {"population": 15, "clients": 5, "colluders": 1, "stragglers": 1, "rounds": 12, "lr": 1.0}


@pytest.fixture
def toy() -> Dataset:
    return blobs()


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What rounds of clients are bound to, in order."""
    found: list[bytes] = []
    real = ClientRound.bind

    def bind(begun: ClientRound, given: bytes) -> ClientRound:
        found.append(given)
        return real(begun, given)

    monkeypatch.setattr(ClientRound, "bind", bind)
    return found


def weights(run: Run) -> bytes:
    parts = run.state.weights.cpu().numpy().tobytes(), json.dumps(bounds.facts(run.bounds)).encode()  # neither is long
    hashes = [len(part).to_bytes(8, "little") + hashlib.sha256(part).digest() for part in parts]
    return hashlib.sha256(b"lightdp digest" + b"".join(hashes)).digest()


@pytest.mark.parametrize("changed", [{}, {"grace": 1, "late_by_one": 0.4}, {"unit": "client"}, COHORTS])
def test_all_clients_of_a_round_are_bound_to_the_weights_that_they_train_from(
    tmp_path: Path, toy: Dataset, bound: list[bytes], changed: dict[str, Any]
) -> None:
    run = Run(Config(**DRAWN | changed), tmp_path / "run.jsonl", dataset=toy)
    expected, calls = weights(run), 0
    groups: list[set[bytes]] = []
    for line in run.lines():
        if hasattr(line, "used") and line.used:
            assert set(bound) == {expected}
            assert len(bound) >= line.used
            groups.append(set(bound))
            calls += 1
        bound.clear()
        expected = weights(run)
    assert calls >= 5
    assert len(set.union(*groups)) == calls  # the weights are others in each round


def test_weights_are_hashed_once_a_round_and_only_where_a_round_binds(
    tmp_path: Path, toy: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    real = Run._given

    def given(run: Run) -> bytes:
        hashed.append(run.config.masks)
        return real(run)

    monkeypatch.setattr(Run, "_given", given)
    for masks in ("drawn", "gaussian"):
        log = Run(Config(**DRAWN | {"masks": masks}), tmp_path / f"{masks}.jsonl", dataset=toy).finish()
        assert all(line.used for line in log.rounds)
    assert hashed == ["drawn"] * 6


def test_bounds_that_were_found_are_in_the_hash(tmp_path: Path, toy: Dataset) -> None:
    run = Run(Config(**DRAWN), tmp_path / "run.jsonl", dataset=toy)
    before = run._given()
    assert before == weights(run) == run._given()
    run.bounds = (bounds.Bounds("age", 0.0, 64.0, clear=True),)
    assert run._given() != before
    with_bounds = run._given()
    run.bounds = (bounds.Bounds("age", 0.0, 128.0, clear=True),)
    assert run._given() not in {before, with_bounds}
