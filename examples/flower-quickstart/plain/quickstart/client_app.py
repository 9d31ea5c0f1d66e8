"""What a client does: train on its own images."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model."""
    net = task.model()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = task.client_data(context.node_config)
    config = context.run_config
    loss = task.train(net, x, y, steps=int(config["local-steps"]), rate=float(config["learning-rate"]))
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
