"""Flower's own simulation engine runs it; without Flower, lightdp says what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from pathlib import Path


def test_lightdp_is_imported_without_flower_and_says_what_is_missing() -> None:
    script = """
import sys
import lightdp
assert not any(name.split(".")[0] in ("flwr", "ray", "torch") for name in sys.modules)
try:
    lightdp.nothing
except AttributeError as error:
    assert "nothing" in str(error)
sys.modules["flwr"] = None
try:
    lightdp.flower
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "lightdp.flower needs an extra; from a clone: pip install '.[flower]'"


SIMULATION = """
import json, sys
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
import lightdp
from lightdp.flower import _members
_members._ASK_AGAIN = 200.0  # a busy machine needs long for the first answers; who is asked twice may enrol twice

def opted_in(message, context, call_next):  # run_simulation, unlike `flwr run`, has no run_config
    run = {"lightdp-simulation": True}
    return call_next(message, Context(context.run_id, context.node_id, context.node_config, context.state, run))

client = ClientApp(mods=[opted_in, lightdp.flower.mod])

@client.train()
def train(message, context):
    weights = message.content["arrays"]["w"].numpy() + np.float32(0.1 * (1 + context.node_config["partition-id"]))
    metrics = MetricRecord({"num-examples": 9, "loss": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics}), reply_to=message)

@client.evaluate()
def evaluate(message, context):
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "x": 2.0})}), reply_to=message)

server = ServerApp()

@server.main()
def main(grid, context):
    plan = lightdp.plan(clients=3, colluders=1, stragglers=1, rounds=4, epsilon=1e6, delta=1e-5, unit="client",
                        calibration="repair", clip=9.0, grace=1)
    strategy = lightdp.flower.LightDP(FedAvg(), plan, wait=120)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros((2, 3), np.float32))}),
                            num_rounds=2)
    found = {"w": result.arrays["w"].numpy().tolist(), "train": {t: dict(m) for t, m in
             result.train_metrics_clientapp.items()}, "x": [m["x"] for m in result.evaluate_metrics_clientapp.values()],
             "stopped": strategy.stopped}
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)

run_simulation(server, client, num_supernodes=3, backend_config={"client_resources": {"num_cpus": 1}})
"""


def test_flowers_own_simulation_engine_runs_it(tmp_path: Path) -> None:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    (tmp_path / "app.py").write_text(SIMULATION)
    command = [sys.executable, str(tmp_path / "app.py"), str(tmp_path / "found.json")]
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)} | quiet | kept
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert (tmp_path / "found.json").exists(), done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert np.array(found["w"]) == pytest.approx(np.full((2, 3), 0.4), abs=0.1)
    assert [each["lightdp-used"] for each in found["train"].values()] == [3, 3]
    assert [each["lightdp-joined"] for each in found["train"].values()] == [0, 0]
    assert "loss" not in found["train"]["1"]
    assert found["x"] == [2.0, 2.0]
    assert found["stopped"] is None
