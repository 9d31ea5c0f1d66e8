"""How straight is the way of a round through the files? Counts calls and hops between files of lightdp.

A call is a Python function of lightdp that is entered; a hop is a call from one file of lightdp into another; hops are
different if they lead from or to different functions, which is what a reader follows. Counted are one round of
`lightdp run`, one of `lightdp run --fidelity protocol` (20 clients each, digits) and one train message of a Flower node
(10 clients). The numbers are exact and the same on every machine.

Run: python benchmarks/hops.py [--json]
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import lightdp
import lightdp.flower

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

ROOT = str(Path(lightdp.__file__).parent.parent)
AT = 5  # the round that is counted


class Count:
    """Calls of functions of lightdp, and those of them that come from another file of it."""

    def __init__(self) -> None:
        self.calls, self.hops, self.pairs = 0, 0, Counter[tuple[str, str]]()
        self.ways: set[tuple[str, ...]] = set()

    def __enter__(self) -> Self:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not _ours(frame) or frame.f_code.co_name.startswith("<"):
            return
        self.calls += 1
        caller = frame.f_back
        while caller is not None and not _ours(caller):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            self.hops += 1
            self.pairs[_name(caller), _name(frame)] += 1
            self.ways.add((_name(caller), caller.f_code.co_name, _name(frame), frame.f_code.co_name))

    def to_dict(self) -> dict[str, Any]:
        """For the table."""
        often = {f"{a} -> {b}": count for (a, b), count in self.pairs.most_common(6)}
        return {"calls": self.calls, "hops": self.hops, "ways": len(self.ways), "most": often}


def _ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(ROOT)


def _name(frame: FrameType) -> str:
    return str(Path(frame.f_code.co_filename).relative_to(ROOT).with_suffix(""))


def simulated(fidelity: str) -> Count:
    """One round of a run."""
    from lightdp.training.config import Config  # noqa: PLC0415  an optional dependency
    from lightdp.training.simulator import Run  # noqa: PLC0415  likewise

    with tempfile.TemporaryDirectory() as folder:
        run = Run(Config(rounds=AT + 1, fidelity=fidelity), Path(folder) / "run.jsonl")  # type: ignore[arg-type]
        count = Count()
        for number, _ in enumerate(run.lines()):
            if number == AT - 1:
                sys.setprofile(count._seen)  # noqa: SLF001  from line to line, which no `with` spans
            elif number == AT:
                sys.setprofile(None)
        return count


class Nodes:
    """A grid of nodes in this process; the first node's message of round `AT` is counted."""

    def __init__(self, nodes: int, app: Callable[[Message, Context], Message], folder: str) -> None:
        self.app, self.count, self.rounds = app, Count(), 0
        own: dict[str, Any] = {"lightdp-unit": "client", "lightdp-max-epsilon": 8.0, "lightdp-max-delta": 1e-5}
        own |= {"lightdp-state": folder}
        self.contexts = [Context(1, i + 1, {"partition-id": i} | own, RecordDict(), {}) for i in range(nodes)]

    def get_node_ids(self) -> list[int]:
        """All of them."""
        return [context.node_id for context in self.contexts]

    def pull_messages(self, _: Iterable[str]) -> list[Message]:
        """Nothing is ever late."""
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:  # noqa: ARG002
        """Every node answers."""
        replies, self.rounds = [], self.rounds + 1
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            context = self.contexts[message.metadata.dst_node_id - 1]
            if self.rounds == AT and context.node_id == 1:
                with self.count:
                    reply = lightdp.flower.mod(message, context, self.app)
            else:
                reply = lightdp.flower.mod(message, context, self.app)
            replies.append(reply)
        return replies


def flower() -> Count:
    """One train message of a node."""

    def app(message: Message, _: Context) -> Message:
        arrays = {key: Array(array.numpy() + 0.01) for key, array in message.content.array_records["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1
    plan = lightdp.plan(
        clients=10, colluders=2, stragglers=2, rounds=20, epsilon=8, delta=1e-5, unit="client", calibration="repair"
    )
    strategy = lightdp.flower.LightDP(FedAvg(fraction_evaluate=0.0), plan, wait=10.0)
    with tempfile.TemporaryDirectory() as folder:
        nodes = Nodes(10, app, folder)
        strategy.start(nodes, ArrayRecord({"w": Array(np.zeros(64))}), num_rounds=AT + 1, train_config=ConfigRecord())  # type: ignore[arg-type]
        return nodes.count


def main() -> None:
    """Count and print."""
    found = {
        "a round of lightdp run": simulated("distribution"),
        "a round of lightdp run --fidelity protocol": simulated("protocol"),
        "a Flower train message": flower(),
    }
    if "--json" in sys.argv:
        print(json.dumps({name: count.to_dict() for name, count in found.items()}, indent=1))
        return
    for name, count in found.items():
        print(f"{name}: {count.calls} calls, {count.hops} hops between files, {len(count.ways)} different")
        for way, times in count.to_dict()["most"].items():
            print(f"    {times:4} {way}")


if __name__ == "__main__":
    main()
