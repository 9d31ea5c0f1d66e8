"""Five nodes that add a known vector to the model, trained on the grid of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy

import lightdp
from lightdp.flower import LightDP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightdp.planning import Plan
    from support.flower_grid import LocalGrid


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 5, "colluders": 1, "stragglers": 2, "rounds": 60, "epsilon": 1e4, "delta": 1e-5}
    return lightdp.plan(**(asked | {"unit": "client", "calibration": "repair", "clip": 0.5} | changed))


def step(at: int, size: int) -> NDArray[np.float64]:
    """What client `at` adds to a vector of weights, below the clip."""
    return np.cos(np.arange(size) + at) / size**0.5 / 4


def an_app() -> ClientApp:
    app = ClientApp(mods=[lightdp.flower.mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        assert list(message.content.config_records) == ["config"]  # what lightdp adds is not the app's to see
        weights = message.content.array_records["arrays"]["w"].numpy()
        weights = weights + step(int(context.node_config["partition-id"]), weights.size).astype(weights.dtype)
        metrics = MetricRecord({"num-examples": 10 * int(context.node_config["partition-id"]), "loss": 0.25})
        content = RecordDict({"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "at": float(context.node_config["partition-id"])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.query()
    def query(message: Message, _: Context) -> Message:
        return Message(message.content, reply_to=message)

    return app


def weights(size: int = 40) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.linspace(-1, 1, size))})


def trained(grid: LocalGrid, plan: Plan, inner: Strategy | None = None, **changed: Any) -> tuple[LightDP, Any]:
    strategy = LightDP(FedAvg() if inner is None else inner, plan, wait=0.01)
    options: dict[str, Any] = {"initial_arrays": weights(), "num_rounds": min(6, plan.rounds)}
    options["timeout"] = 0.5 if plan.grace else 1  # of which the grid knows nothing; but the strategy waits by itself
    return strategy, strategy.start(grid=grid, **(options | changed))


def the_change(result: Any, size: int = 40) -> NDArray[np.float64]:
    return np.asarray(result.arrays["w"].numpy() - weights(size)["w"].numpy(), dtype=np.float64)
