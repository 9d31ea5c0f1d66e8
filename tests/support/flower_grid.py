"""An in-process grid: Flower's own `Grid`, messages and ClientApp, without a network, with faults on demand.

Every message and context passes through Flower's own serialisation, as if each were handled by a new process. There
is no clock: a reply that is late is there when the next round has been sent.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from lightdp.flower import _settings, _vault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest
    from flwr.clientapp import ClientApp
    from flwr.supercore.run import Run

Fault = Literal[
    "drop",  # the node never gets the message
    "lost",  # the node answers, and the answer is lost
    "late",  # the answer comes after the deadline, when something else is sent
    "slow",  # the answer comes after the deadline, when it is looked for the third time
    "later",  # the answer comes when the round after the next one is sent
    "error",  # the node's ClientApp crashes before it begins; the reply is an error in another node's name
    "crash",  # the node is killed after its upload was made: the answer and the context are lost, files are not
    "replay",  # the node gets the message twice, one after the other
    "twice",  # the node gets the message twice at the same time, with the same context
    "garbage",  # the node's answer is no upload
    "disguised",  # the node's answer carries another node's id
    "impostor",  # the node sends the upload of the node before it in the list
]

LIMITS: dict[str, Any] = {
    "lightdp-unit": "client",
    "lightdp-max-epsilon": 1e9,
    "lightdp-max-delta": 0.5,
    "lightdp-state": "/nowhere/state.json",  # each node of a grid has one in a folder of the grid
}  # what a node must set

_RUNS = itertools.count(1)


@dataclass
class Node:
    id: int
    config: dict[str, Any] = field(default_factory=dict)
    state: RecordDict = field(default_factory=RecordDict)
    online: bool = True


class LocalGrid(Grid):
    """`faults` are by (training round, position of the node); rounds count from 1, the closing round included.

    Round 0 is the key round.

    Attributes:
        left: every reply that left a node, with its position, whether or not it arrived.
        pushed: what was sent, by kind: "key", "train" or the message type.
        before: called with the number of a training round before it is sent.
        fresh: whether each message is handled by a new process, or by one that lives on.
    """

    def __init__(self, app: ClientApp, nodes: int, *, run_config: dict[str, Any] | None = None) -> None:
        self.run_id = next(_RUNS)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run_id, SUPERLINK_NODE_ID, 1
        self.app, self.run_config = app, {} if run_config is None else run_config
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        own = LIMITS | {"lightdp-state": folder}
        self.nodes = [Node(1000 + 7 * i, {"partition-id": i, "num-partitions": nodes} | own) for i in range(nodes)]
        self.faults: dict[tuple[int, int], Fault] = {}
        self.left: list[tuple[int, Message]] = []
        self.pushed: list[str] = []
        self.before: Callable[[int], None] = lambda _: None
        self.fresh = True
        self.round = 0
        self._replies: dict[str, Message] = {}
        self._later: dict[str, tuple[int, Message]] = {}  # with the round in which it comes
        self._slow: dict[str, tuple[int, Message]] = {}  # with how often it was looked for

    # ---- what Flower asks of a grid ----

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node.id for node in self.nodes if node.online]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = sorted(messages, key=lambda message: message.metadata.dst_node_id)  # whatever the strategy drew
        kinds = {_kind(message) for message in messages}
        if kinds & {"train"}:
            self.round += 1
            self.before(self.round)
        self.pushed += sorted(kinds)
        due = [each for each, (number, _) in self._later.items() if number <= self.round]
        self._replies |= {each: self._later.pop(each)[1] for each in due}  # what was late last time has come
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            ids.append(message.metadata.message_id)
            at = next(i for i, node in enumerate(self.nodes) if node.id == message.metadata.dst_node_id)
            fault = self.faults.get((self.round, at)) if _kind(message) == "train" else None
            if _kind(message) == "key":
                fault = self.faults.pop((0, at), None)  # once: it is asked again
            self._deliver(at, message, fault)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = list(message_ids)
        for each in asked:
            if each in self._slow:
                seen, reply = self._slow.pop(each)
                if seen == 2:
                    self._replies[each] = reply
                else:
                    self._slow[each] = seen + 1, reply
        return self._pull(asked)

    def _pull(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(each) for each in message_ids if each in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        assert timeout is not None, "a round needs a deadline"
        return self._pull(self.push_messages(messages))

    # ---- nodes ----

    def simulate(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in Flower's simulation engine: no node has a configuration of its own, nor a file."""
        monkeypatch.setattr(_settings, "_in_ray", lambda: True)
        self.run_config |= {"lightdp-simulation": True}
        for node in self.nodes:
            node.config = {key: value for key, value in node.config.items() if not key.startswith("lightdp-")}

    def lose(self, count: int, since: int) -> None:
        """The first nodes are gone from round `since` on."""

        def before(current: int) -> None:
            for node in self.nodes[:count]:
                node.online = current < since

        self.before = before

    def restart(self, at: int) -> None:
        """The node's processes are gone, and what was in their memory; its files are not."""
        self.nodes[at].state = RecordDict()
        _vault._NEWEST.pop((self.run_id, self.nodes[at].id), None)
        _vault._KEPT.clear()

    def handle(
        self, at: int, message: Message, *, keep: bool = True, together: threading.Barrier | None = None
    ) -> Message:
        """The node's ClientApp in a process of its own, more or less; `together` with another one."""
        node = self.nodes[at]
        if self.fresh:
            _vault._KEPT.clear()
        context = _through_proto(Context(self.run_id, node.id, node.config, node.state, self.run_config))
        if together is not None:
            together.wait()
        try:
            reply = self.app(over_the_wire(message), context)
        except Exception as error:  # noqa: BLE001  as Flower's runtime does
            reply = Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error)}:<'{error}'>"), reply_to=message
            )
        if keep:
            node.state = _through_proto(context).state
        self.left.append((at, over_the_wire(reply)))
        return self.left[-1][1]

    def _deliver(self, at: int, message: Message, fault: Fault | None) -> None:
        reply = self._reply(at, message, fault)
        if reply is not None:
            key = message.metadata.message_id
            if fault in ("late", "later"):
                self._later[key] = self.round + (0 if fault == "late" else 2), reply
            elif fault == "slow":
                self._slow[key] = 0, reply
            else:
                self._replies[key] = reply

    def _reply(self, at: int, message: Message, fault: Fault | None) -> Message | None:
        """What comes back, if anything does."""
        if not self.nodes[at].online or fault == "error":
            code = ErrorCode.CLIENT_APP_CRASHED if fault == "error" else ErrorCode.NODE_UNAVAILABLE
            failure = Message(Error(code, "not available"), reply_to=message)
            failure.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
            return failure
        if fault == "drop":
            return None
        if fault == "twice":
            together = threading.Barrier(2)
            with ThreadPoolExecutor(2) as pool:
                both = list(pool.map(lambda _: self.handle(at, message, together=together), range(2)))
            (reply,) = [each for each in both if each.has_content()]
            return reply
        reply = self.handle(at, message, keep=fault != "crash")
        if fault == "replay":
            assert self.handle(at, message).has_error()
        if fault == "crash":
            self.restart(at)
        if fault == "garbage":
            return Message(RecordDict(), reply_to=message)
        if fault == "disguised":
            reply.metadata.__dict__["_src_node_id"] = self.nodes[at - 1].id
        if fault == "impostor":
            return Message(next(r for i, r in reversed(self.left) if i == at - 1).content, reply_to=message)
        return None if fault in ("lost", "crash") else reply


def over_the_wire(message: Message) -> Message:
    """The message as Flower sends it: deflated and inflated, with nothing shared."""
    key = message.object_id
    contents = {each: value.deflate() for each, value in get_all_nested_objects(message).items()}
    result = inflate_object_from_contents(key, contents)
    assert isinstance(result, Message)
    result.metadata.__dict__["_message_id"] = key
    return result


def _through_proto(context: Context) -> Context:
    return context_from_proto(context_to_proto(context))


def _kind(message: Message) -> str:
    if message.metadata.message_type != "train":
        return message.metadata.message_type
    order = message.content.config_records.get("lightdp")
    return "key" if order is not None and "plan" in order else "train"
