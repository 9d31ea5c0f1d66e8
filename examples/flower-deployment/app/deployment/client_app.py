"""A client: one step on its own images. A slow one sleeps in some rounds, by its node's configuration."""

from __future__ import annotations

import time

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import lightdp.flower
from deployment import task

app = ClientApp(mods=[lightdp.flower.record_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model."""
    node = context.node_config
    if str(message.content.config_records["config"]["server-round"]) in str(node.get("slow-rounds", "")).split(","):
        time.sleep(float(node["slow-seconds"]))
    received = message.content.array_records["arrays"]
    [(name, weights)] = received.items()
    total = lightdp.flower.RecordSum(received, context)  # clips each image's part, to the node's own number
    total.add({name: task.parts(weights.numpy(), str(node["data"]), total.clip)})
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": total.arrays(), "metrics": metrics}), reply_to=message)
