"""A client: one step on its own images. A slow one sleeps in some rounds, by its node's configuration."""

from __future__ import annotations

import time

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import lightdp.flower
from deployment import task

app = ClientApp(mods=[lightdp.flower.mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model."""
    node = context.node_config
    if str(message.content.config_records["config"]["server-round"]) in str(node.get("slow-rounds", "")).split(","):
        time.sleep(float(node["slow-seconds"]))
    [weights] = message.content.array_records["arrays"].to_numpy_ndarrays()
    trained = weights + task.update(weights, str(node["data"]), float(node["lightdp-record-clip"]))
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord([trained]), "metrics": metrics}), reply_to=message)
