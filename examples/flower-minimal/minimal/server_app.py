"""The server: averages what clients send, which it cannot read."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp, strategy

import lightdp.flower
from minimal import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """The whole training; its settings are in pyproject.toml."""
    config: dict[str, Any] = dict(context.run_config)
    plan = lightdp.plan(**{key[5:]: value for key, value in config.items() if key.startswith("plan.")})
    options: dict[str, Any] = {key: config[key] or None for key in ("wait", "least", "checkpoint", "log")}
    private = lightdp.flower.LightDP(strategy.FedAvg(fraction_evaluate=0.0), plan, **options)
    result = private.start(grid, ArrayRecord([task.model()]), timeout=config["timeout"])
    np.save(config["model"], result.arrays.to_numpy_ndarrays()[0])
