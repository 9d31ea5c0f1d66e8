"""Nodes that add a number to all they receive, under a plan with hardly any noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import lightdp

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightdp.planning import Plan


def a_plan(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 3, "colluders": 1, "stragglers": 1, "rounds": 4, "epsilon": 1e6, "delta": 1e-5}
    return lightdp.plan(**(asked | {"unit": "client", "clip": 10.0} | changed))


def plus(step: float, change: Callable[[str, Any], Any] | None = None) -> ClientApp:
    app = ClientApp(mods=[lightdp.flower.mod])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        arrays = {}
        for key, array in message.content.array_records["arrays"].items():
            old = array.numpy()
            new = np.asarray(old + np.asarray(step).astype(old.dtype)) if change is None else change(key, old)
            arrays[key] = Array(np.asarray(new))
        metrics = MetricRecord({"num-examples": 3})
        return Message(RecordDict({"model": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return app


def zeros() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(5))})
