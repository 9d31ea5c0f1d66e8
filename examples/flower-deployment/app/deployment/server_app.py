"""The server: FedAvg made private, which goes on after a crash, and a Grid that writes down what passes it.

A real server needs only the lines with `strategy`. The rest is evidence for `check.py`: every model that was sent,
every announcement, every upload that came, and at the end the attempt to have old rounds answered once more.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
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
    """Train, or go on; then ask again for what was answered."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    plan = task.plan(int(config["clients"]), int(config["population"]), stragglers=int(config["stragglers"]))
    notes = Notes(grid, folder, stragglers=plan.stragglers, linger=float(config["linger"]))
    try:
        strategy = Noted(
            FedAvg(fraction_evaluate=0.0, min_available_nodes=int(config["nodes"])),
            plan,
            wait=float(config["wait"]),
            patience=2,
            checkpoint=folder / "checkpoint",
        )
        strategy.notes = notes
        result = strategy.start(
            grid=notes,
            initial_arrays=ArrayRecord([np.zeros(task.SHAPE)]),
            num_rounds=int(config["rounds"]),
            timeout=float(config["deadline"]),
        )
        notes.save_model("final", result.arrays)
        metrics = {turn: dict(record) for turn, record in result.train_metrics_clientapp.items()}
        notes.write("trained", metrics=metrics, stopped=strategy.stopped)
        notes.ask_again(float(config["deadline"]))
        notes.write("done")
    except BaseException as error:
        notes.write("failed", error=repr(error))
        raise


class Noted(LightDP):
    """A strategy that writes down when it has ended a round."""

    notes: Notes

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord]:
        """As LightDP."""
        result = super().aggregate_train(server_round, replies)
        self.notes.write("closed", round=server_round)
        return result


class Notes(Grid):
    """A Grid that passes everything on and writes it down, a JSON line for each event."""

    def __init__(self, inner: Grid, folder: Path, *, stragglers: int, linger: float) -> None:
        self.inner, self.folder, self.stragglers, self.linger = inner, folder, stragglers, linger
        self.sent: dict[str, tuple[int, int]] = {}  # by message: trip and node
        self.trips = len([event for event in self.events() if event["event"] == "sent"])
        self.write("session", process=os.getpid())

    def events(self) -> list[dict[str, Any]]:
        """All that was written down, also by the process before a crash."""
        path = self.folder / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def write(self, event: str, **facts: Any) -> None:  # noqa: ANN401  JSON values
        """One line, whole whatever happens to this process."""
        line = json.dumps({"event": event, "time": time.time()} | facts) + "\n"
        file = os.open(self.folder / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def save_model(self, name: str, arrays: ArrayRecord) -> None:
        """One model."""
        np.save(self.folder / f"model-{name}.npy", arrays.to_numpy_ndarrays()[0])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Write down to whom, with which model and announcement, and send."""
        messages = list(messages)
        if not messages:
            return []
        trip, self.trips = self.trips, self.trips + 1
        nodes = [message.metadata.dst_node_id for message in messages]
        orders = {str(node): _texts(message) for node, message in zip(nodes, messages, strict=True)}
        model = next(iter(messages[0].content.array_records.values()), None)
        if model is not None:
            self.save_model(str(trip), model)
        turn = dict(messages[0].content.config_records.get("config", {})).get("server-round")
        self.write("sent", trip=trip, round=turn, model=model is not None, orders=orders)
        ids = list(self.inner.push_messages(messages))
        self.sent |= {identity: (trip, node) for identity, node in zip(ids, nodes, strict=True)}
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
            uploads = [array.tobytes()[:HEAD].hex() for array in arrays]
            names = [name for record in reply.content.metric_records.values() for name in record]
            self.write("reply", trip=trip, node=str(node), uploads=uploads, metrics=names, **_texts(reply))
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As Flower's, with shorter naps; where a round can spare some, it does not wait long for them."""
        messages = list(messages)
        spared = self.stragglers if messages and messages[0].content.array_records else 0
        ends = time.monotonic() + (3600 if timeout is None else timeout)
        waiting, replies = set(self.push_messages(messages)), []
        while waiting and time.monotonic() < ends:
            new = list(self.pull_messages(waiting))
            replies += new
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
            if sum(not reply.has_error() for reply in replies) >= max(len(messages) - spared, 1):
                ends = min(ends, time.monotonic() + self.linger)
            if waiting:
                time.sleep(POLL)
        self.write("collected", trip=self.trips - 1, missing=len(waiting))
        return replies

    def ask_again(self, timeout: float) -> None:
        """What a curious server would do: send the first message of each node that brought an upload, once more.

        The model is another one. A node that just starts again is asked until it answers.
        """
        self.write("again")
        events = self.events()
        answered = {(event["trip"], event["node"]) for event in events if event.get("uploads")}
        orders: dict[int, dict[str, Any]] = {}
        for event in events:
            if event["event"] == "sent" and event["model"]:
                for node, order in event["orders"].items():
                    if (event["trip"], node) in answered:
                        orders.setdefault(int(node), order)
        left, ends = set(orders) & set(self.get_node_ids()), time.monotonic() + timeout
        while left and time.monotonic() < ends:
            again = [Message(_content(orders[node]), node, MessageType.TRAIN) for node in left]
            for reply in self.send_and_receive(again, timeout=ends - time.monotonic()):
                if not reply.has_error() or "lightdp" in (reply.error.reason or ""):
                    left.discard(self.sent[reply.metadata.reply_to_message_id][1])

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


HEAD = 96  # bytes of an upload that are written down: more than say whose it is, of which roster and round
_BYTES = ("plan", "run", "start", "roster")


def _texts(message: Message) -> dict[str, Any]:
    """What lightdp has put into a message, as JSON values."""
    order = dict(message.content.config_records.get("lightdp", ConfigRecord()))
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in order.items()}


def _content(order: dict[str, Any]) -> RecordDict:
    """A train message with what `_texts` has written down, in a round in which nobody is slow."""
    own = {k: bytes.fromhex(v) if k in _BYTES and isinstance(v, str) else v for k, v in order.items()}
    config, model = ConfigRecord({"server-round": 0}), ArrayRecord([np.ones(task.SHAPE)])
    return RecordDict({"arrays": model, "config": config, "lightdp": ConfigRecord(own)})
