"""A client: trains the received model on the data of its node."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import lightdp.flower
from minimal import task

app = ClientApp(mods=[lightdp.flower.mod])  # nothing but masked bytes leaves


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round."""
    [weights] = message.content.array_records["arrays"].to_numpy_ndarrays()
    weights = task.trained(weights, *task.data(context.node_config))
    return Message(RecordDict({"arrays": ArrayRecord([weights])}), reply_to=message)
