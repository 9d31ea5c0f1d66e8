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
    """The whole training."""
    config = context.run_config
    plan = lightdp.plan(
        clients=int(config["clients"]),
        colluders=1,
        stragglers=2,
        rounds=int(config["rounds"]),
        epsilon=float(config["epsilon"]),
        delta=1e-5,
        unit="client",
        clip=1.0,
        momentum=0.0,  # FedAvg has none
    )
    average = FedAvg(min_available_nodes=plan.clients, fraction_evaluate=0.0)
    strategy = lightdp.flower.LightDP(average, plan, checkpoint=str(config["checkpoint"]) or None)
    result = strategy.start(grid, ArrayRecord([task.model()]), num_rounds=plan.rounds, timeout=600)
    np.save(str(config["model"]), result.arrays.to_numpy_ndarrays()[0])
