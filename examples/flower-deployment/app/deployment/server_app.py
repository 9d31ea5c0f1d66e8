"""The server: FedAvg made private, and a Grid that writes down what passes it.

A real server needs only the lines with `strategy`. The rest is evidence for `check.py`: every model that was sent,
every upload that came, and at the end the attempt to have an old round answered once more.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from deployment import task
from lightdp.flower import LightDP

if TYPE_CHECKING:
    from collections.abc import Iterable

app = ServerApp()
POLL = 0.3  # seconds between two looks for replies; Flower's own Grid takes 3


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, then ask again for what was answered."""
    config = context.run_config
    clients = int(config["clients"])
    plan = task.plan(clients)
    notes = Notes(grid, Path(str(config["folder"])), least=clients - plan.stragglers, linger=float(config["linger"]))
    try:
        strategy = Noted(FedAvg(fraction_evaluate=0.0, min_available_nodes=clients), plan)
        strategy.notes = notes
        result = strategy.start(
            grid=notes,
            initial_arrays=ArrayRecord([np.zeros(task.SHAPE)]),
            num_rounds=int(config["rounds"]),
            timeout=float(config["deadline"]),
        )
        notes.save_model("final", result.arrays)
        metrics = {turn: dict(record) for turn, record in result.train_metrics_clientapp.items()}
        notes.write("trained", metrics=metrics)
        notes.ask_again(int(config["again"]), float(config["deadline"]))
        notes.write("done")
    except BaseException as error:
        notes.write("failed", error=repr(error))
        raise


class Noted(LightDP):
    """A strategy that writes down when it has ended a round, from which on uploads are late."""

    notes: Notes

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord]:
        """As LightDP."""
        result = super().aggregate_train(server_round, replies)
        self.notes.write("closed", round=server_round)
        return result


class Notes(Grid):
    """A Grid that passes everything on and writes it down, a JSON line for each event."""

    def __init__(self, inner: Grid, folder: Path, *, least: int, linger: float) -> None:
        self.inner, self.folder, self.least, self.linger = inner, folder, least, linger
        self.sent: dict[str, tuple[int, int]] = {}  # by message: trip and node
        self.trips: list[list[Message]] = []

    def write(self, event: str, **facts: Any) -> None:  # noqa: ANN401  JSON values
        """One line."""
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, "time": time.time()} | facts) + "\n")

    def save_model(self, name: str, arrays: ArrayRecord) -> None:
        """One model."""
        np.save(self.folder / f"model-{name}.npy", arrays.to_numpy_ndarrays()[0])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send, and write down to whom, with which model and announcement."""
        messages = list(messages)
        if not messages:
            return []
        ids = list(self.inner.push_messages(messages))
        trip = len(self.trips)
        self.trips.append(messages)
        nodes = [message.metadata.dst_node_id for message in messages]
        self.sent |= {identity: (trip, node) for identity, node in zip(ids, nodes, strict=True)}
        orders = {str(node): _texts(message) for node, message in zip(nodes, messages, strict=True)}
        model = next(iter(messages[0].content.array_records.values()), None)
        if model is not None:
            self.save_model(str(trip), model)
        turn = dict(messages[0].content.config_records.get("config", {})).get("server-round")
        self.write("sent", trip=trip, round=turn, model=model is not None, orders=orders)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Receive, and write down from whom and what."""
        replies = list(self.inner.pull_messages(message_ids))
        for reply in replies:
            trip, node = self.sent[reply.metadata.reply_to_message_id]
            if reply.has_error():
                self.write("error", trip=trip, node=str(node), reason=reply.error.reason)
                continue
            arrays = [array.numpy() for record in reply.content.array_records.values() for array in record.values()]
            digests = [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]
            names = [name for record in reply.content.metric_records.values() for name in record]
            size = sum(array.nbytes for array in arrays)
            self.write("reply", trip=trip, node=str(node), arrays=digests, bytes=size, metrics=names, **_texts(reply))
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower's, with shorter naps; where a round can spare some, it does not wait long for them."""
        messages = list(messages)
        least = self.least if messages and messages[0].content.array_records else len(messages)
        ends = time.monotonic() + (3600 if timeout is None else timeout)
        waiting, replies = set(self.push_messages(messages)), []
        while waiting and time.monotonic() < ends:
            new = list(self.pull_messages(waiting))
            replies += new
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
            if sum(not reply.has_error() for reply in replies) >= least:
                ends = min(ends, time.monotonic() + self.linger)
            if waiting:
                time.sleep(POLL)
        self.write("collected", trip=len(self.trips) - 1, missing=len(waiting))
        return replies

    def ask_again(self, turn: int, timeout: float) -> None:
        """What a curious server would do: send a round's messages a second time, with another model.

        A node that just starts again is asked until it answers.
        """
        self.write("again")
        round_messages = [trip for trip in self.trips if trip[0].content.array_records][turn - 1]
        left = {message.metadata.dst_node_id: message.content.copy() for message in round_messages}
        ends = time.monotonic() + timeout
        while left and time.monotonic() < ends:
            again = []
            for node, content in left.items():
                content["arrays"] = ArrayRecord([np.ones(task.SHAPE)])
                content["config"] = ConfigRecord({"server-round": 0})  # in which nobody is slow
                again.append(Message(content, node, MessageType.TRAIN))
            for reply in self.send_and_receive(again, timeout=ends - time.monotonic()):
                if not reply.has_error() or "lightdp" in (reply.error.reason or ""):
                    left.pop(self.sent[reply.metadata.reply_to_message_id][1])

    def set_run(self, run: Any) -> None:  # noqa: ANN401  Flower's own type
        """As Grid."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:  # noqa: ANN401  Flower's own type
        """As Grid."""
        return self.inner.run

    def create_message(self, *arguments: Any, **options: Any) -> Message:  # noqa: ANN401  passed on
        """As Grid."""
        return self.inner.create_message(*arguments, **options)

    def get_node_ids(self) -> Iterable[int]:
        """As Grid."""
        return self.inner.get_node_ids()


def _texts(message: Message) -> dict[str, Any]:
    """What lightdp has put into a message, as JSON values."""
    order = dict(message.content.config_records.get("lightdp", ConfigRecord()))
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in order.items()}
