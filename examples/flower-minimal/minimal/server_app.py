"""The server: averages what clients send, which it cannot read."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import lightdp.flower
from minimal import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The whole training; its settings are in pyproject.toml."""
    config = context.run_config
    plan = lightdp.plan(**{key[5:]: value for key, value in config.items() if key.startswith("plan.")})
    strategy = lightdp.flower.LightDP(
        FedAvg(fraction_evaluate=0.0), plan, wait=float(config["wait"]), least=int(config["least"]),
        checkpoint=str(config["checkpoint"]) or None, log=str(config["log"]) or None,
    )  # fmt: skip
    result = strategy.start(grid, ArrayRecord([task.model()]), timeout=float(config["timeout"]))
    np.save(str(config["model"]), result.arrays.to_numpy_ndarrays()[0])
