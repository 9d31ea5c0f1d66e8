"""The log that Flower's strategy writes is shown as that of a simulation."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("flwr")

from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from lightdp.flower import LightDP
from lightdp.runlog import RunLog
from support.asked import BASE, BEARER, Asked
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, weights

if TYPE_CHECKING:
    from pathlib import Path


def test_a_training_on_flower_is_listed_followed_and_audited(tmp_path: Path) -> None:
    def evaluate(current: int, _: Any) -> MetricRecord:
        return MetricRecord({"accuracy": current / 8, "f1": 0.5})

    strategy = LightDP(FedAvg(fraction_evaluate=0.0), planned(), wait=1, log=tmp_path / "run.jsonl")
    strategy.start(LocalGrid(an_app(), 5), weights(), num_rounds=3, timeout=1, evaluate_fn=evaluate)
    asked, log = Asked(tmp_path), RunLog.read(tmp_path / "run.jsonl")
    (run,) = asked.get("/api/runs", headers=BEARER).json()["runs"]
    assert (run["status"], run["rounds"], run["accuracy"], run["epsilon"]) == ("finished", 3, 0.375, log.epsilon)
    assert asked.get("/api/events?run=run.jsonl", headers=BEARER).text.count('"round":') == 3
    rows = list(csv.DictReader(io.StringIO(asked.get("/runs/csv?run=run.jsonl", headers=BEARER).text)))
    assert [row["server.f1"] for row in rows] == ["0.5"] * 3
    assert asked.post("/api/audit?run=run.jsonl", headers=BEARER | {"origin": BASE}).json()["holds"] is True
