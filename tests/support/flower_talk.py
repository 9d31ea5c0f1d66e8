"""A server that says what it likes to three nodes with the mod, and what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import lightdp
from lightdp.federation import unwrapped
from lightdp.protocol import Server
from support.flower_grid import LocalGrid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightdp.planning import Plan

RUN = b"a run of 16 byte"


def a_plan(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 3, "colluders": 1, "stragglers": 1, "rounds": 8, "epsilon": 8.0, "delta": 1e-5}
    return lightdp.plan(**(asked | {"unit": "client"} | changed))


def an_app(change: Callable[[np.ndarray[Any, Any]], Any] = lambda w: w + 0.1) -> ClientApp:
    app = ClientApp(mods=[lightdp.flower.mod])

    @app.train("other")
    @app.train()
    def train(message: Message, _: Context) -> Message:
        arrays = {k: Array(np.asarray(change(v.numpy()))) for k, v in message.content.array_records["arrays"].items()}
        metrics = MetricRecord({"loss": 123.0, "num-examples": 77})
        secret = ConfigRecord({"secret": "of the data"})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "m": metrics, "c": secret}), reply_to=message)

    return app


def a_record_app(parts: Callable[[np.ndarray[Any, Any]], Any]) -> ClientApp:
    """An app that sums what `parts` makes of each array, one part for each record along the first axis."""
    app = ClientApp(mods=[lightdp.flower.record_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        received = message.content.array_records["arrays"]
        total = lightdp.flower.RecordSum(received, context)
        total.add({name: parts(array.numpy()) for name, array in received.items()})
        return Message(RecordDict({"arrays": total.arrays()}), reply_to=message)

    return app


def records_of(clip: float) -> dict[str, Any]:
    """What a node sets that lets its app clip records."""
    return {"lightdp-unit": "record", "lightdp-record-clip": clip}


class Talk:
    """A server that says what it likes to three nodes."""

    def __init__(self, app: ClientApp | None = None, plan: Plan | None = None) -> None:
        self.plan = a_plan() if plan is None else plan
        self.grid = LocalGrid(an_app() if app is None else app, 3)
        self.arrays = ArrayRecord({"w": Array(np.zeros(4))})
        self.server = Server(self.plan, length=4, run=RUN)

    def order(self, **content: Any) -> Message:
        record = RecordDict(
            {"arrays": self.arrays, "config": ConfigRecord({"lr": 0.1}), "lightdp": ConfigRecord(content)}
        )
        return Message(record, self.grid.nodes[0].id, "train")

    def key(self, at: int, **changed: Any) -> Message:
        order = {"plan": self.plan.to_json(), "run": RUN, "length": 4, "nonce": bytes(32)} | changed
        return self.grid.handle(at, self.order(**order))

    def sets(self, config: dict[str, Any]) -> Talk:
        """With this in the configuration of every node."""
        for node in self.grid.nodes:
            node.config |= config
        return self

    def mean(self) -> np.ndarray[Any, Any]:
        """Of a round that all three answer."""
        for at in range(3):
            upload = self.grid.handle(at, self.start()).content.array_records["arrays"]["lightdp"]
            assert self.server.receive(upload.numpy().tobytes())
        return self.server.close().mean()

    def enrol(self) -> None:
        for at in range(3):
            self.server.enrol(enrolment(self.key(at)))
        self.server.roster()

    def start(self, **changed: Any) -> Message:
        order = {"run": RUN, "start": self.server.announce(since=0), "roster": self.server.roster(), "closing": False}
        return self.order(**(order | changed))


def record_of(path: Path) -> dict[str, Any]:
    """What the state file of a node holds, with all lines of its client."""
    inner, record = unwrapped(path.read_bytes())
    assert record is not None
    return record | {"client": inner.decode()}


def enrolment(reply: Message) -> bytes:
    result = reply.content.config_records["lightdp"]["enrolment"]
    assert isinstance(result, bytes)
    return result


def refused(reply: Message, why: str) -> bool:
    assert reply.has_error(), "something left the node"
    assert why in str(reply.error.reason), reply.error.reason
    return True
