"""The server of one run: the key round, the announcements that train messages carry, and the replies to them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import BudgetError, LightDPError, ProtocolError, code_of
from lightdp.flower._arrays import values
from lightdp.flower._settings import KEY, LOG
from lightdp.keys import Pins
from lightdp.planning import Plan
from lightdp.protocol import Aggregate, Server
from lightdp.repair import Repairs

Taken = tuple[Aggregate, dict[str, float]]

_POLL = 0.5  # seconds between looks for nodes
_ASK_AGAIN = 30.0  # seconds after which nodes that have not enrolled are asked again; a message may be lost with a node
_REFUSED = (ErrorCode.MOD_FAILED_PRECONDITION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)  # asking again would not help


class NoNodesError(TimeoutError):
    """An inner strategy went on asking for nodes."""


class Narrow:
    """A grid that shows the inner strategy certain nodes, and ends its waiting for more of them."""

    def __init__(self, grid: Grid, wait: float, nodes: list[int] | None = None) -> None:
        self._grid, self._nodes, self._wait = grid, nodes, wait
        self._deadline, self._calls = time.monotonic() + wait, 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  everything else is the grid's own
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        """The nodes to choose from."""
        self._calls += 1
        if self._calls > 2 and time.monotonic() > self._deadline:  # once to count, once to choose, then it is waiting
            raise NoNodesError(f"{type(self._grid).__name__} had too few nodes for {self._wait:g} s")
        return list(self._grid.get_node_ids()) if self._nodes is None else self._nodes


class Run:
    """One roster from its key round to its end.

    Replies are mapped to nodes by the message that they answer: an error reply may carry another node's id.

    Attributes:
        nodes: names in the roster by node id.
        late: how many uploads were seen too late.
        void: how many of the last rounds in a row were void.
    """

    def __init__(self, plan: Plan, length: int, pins: Pins | None = None) -> None:
        self.plan = plan
        self.server = Server(plan, length=length, run=os.urandom(16), pins=pins)
        self.nodes: dict[int, str] = {}
        self.late = self.void = 0
        self._odometer: Odometer | None = None  # has counted all rounds but the last ones; None to count anew
        self._used: list[ClientSet] = []  # of each past round with data
        self._reasons: dict[int, str] = {}  # of nodes whose last answer was a refusal
        self._answered: dict[int, int] = {}  # the last round that each node answered in time; 0 if all came too late
        self._pending: dict[str, int] = {}  # messages without a reply, and their nodes
        self._strangers: set[int] = set()

    def enrol(self, grid: Grid, wait: float) -> None:
        """The key round: one message to every node and one back, until the plan's number of clients has enrolled.

        Raises:
            ProtocolError: there are too few after `wait` seconds; the message says what the others answered.
        """
        deadline = time.monotonic() + wait
        order = ConfigRecord({"plan": self.plan.to_json(), "run": self.server.run, "length": self.server.length})
        while True:
            self._take_enrolments(self._pulled(grid))
            connected = set(grid.get_node_ids())
            missing = sorted(connected - set(self.nodes) - set(self._reasons))
            if len(self.nodes) + len(missing) >= self.plan.clients > len(self.nodes):
                messages = [Message(RecordDict({KEY: order}), node, MessageType.TRAIN) for node in missing]
                timeout = min(max(deadline - time.monotonic(), 1.0), _ASK_AGAIN)
                replies = list(grid.send_and_receive(messages, timeout=timeout))
                self._sent(messages)
                self._take_enrolments(replies)
            if len(self.nodes) == self.plan.clients:
                break
            if time.monotonic() >= deadline:
                others = "".join(f"; node {node}: {reason}" for node, reason in self._reasons.items())
                raise ProtocolError(
                    f"{len(self.nodes)} of the plan's {self.plan.clients} clients enrolled within {wait:g} s, "
                    f"with {len(connected)} nodes connected{others}"
                )
            time.sleep(min(_POLL, wait))
        self._pending, self._reasons = {}, {}
        self.server.roster()
        LOG.info("lightdp: key round done, %d clients in the roster", len(self.nodes))

    def _take_enrolments(self, replies: Iterable[Message]) -> None:
        """Enrol as many nodes as the plan has clients."""
        for node, reply in self._answers(replies, "did not enrol"):
            if node in self.nodes or len(self.nodes) == self.plan.clients:
                continue
            try:
                enrolment = reply.content.config_records[KEY]["enrolment"]
                if not isinstance(enrolment, bytes):
                    raise ProtocolError(f"an enrolment must be bytes, got {type(enrolment).__name__}")
                name = self.server.enrol(enrolment)
                if name in self.nodes.values():
                    raise ProtocolError(f"another node enrolled as {name}")
                self.nodes[node] = name
            except (LightDPError, KeyError) as error:
                self._reasons[node] = f"not an enrolment: {error!r}; is lightdp.flower.mod among the app's mods?"
                LOG.warning("lightdp: node %d: %s", node, self._reasons[node])

    def orders(self, grid: Grid) -> dict[int, ConfigRecord]:
        """Start a round: what the train message to each node of the roster carries."""
        for node in set(grid.get_node_ids()) - set(self.nodes) - self._strangers:
            self._strangers.add(node)
            LOG.info("lightdp: node %d joined after the key round: it will be in the roster of the next start", node)
        return {node: self._order(node, closing=False) for node in self.nodes}

    def closing_orders(self) -> dict[int, ConfigRecord]:
        """Start the closing round (R4): messages to the clients that owe a repair; empty if none does."""
        repairs = Repairs(self.plan.graph)
        for t, used in enumerate(self._used if self.plan.repairs else []):
            repairs.close(t, used, used | self.server.late(t))
        names = self.server.names
        owing = {names[i] for i in repairs.owed}
        return {node: self._order(node, closing=True) for node, name in self.nodes.items() if name in owing}

    def _order(self, node: int, *, closing: bool) -> ConfigRecord:
        start = self.server.announce(since=self._answered.get(node, 0), closing=closing)
        order = ConfigRecord({"run": self.server.run, "start": start, "closing": closing})
        if node not in self._answered:  # it may not have the roster yet
            order["roster"] = self.server.roster()
        return order

    def take(self, messages: list[Message], replies: Iterable[Message], *, closing: bool = False) -> Taken:
        """End the open round with the replies that came; messages without one stay pending.

        Returns:
            The sum, and the mean of each metric that all used replies have as a number.
        """
        self._sent(messages)
        metrics = self._take(replies)
        result = self.server.close()
        if not closing:
            self._used.append(result.used)
            self.void = self.void + 1 if result.total is None else 0
        shared = set.intersection(*map(set, metrics)) if metrics else set()
        scalars = [name for name in sorted(shared) if not any(isinstance(each[name], list) for each in metrics)]
        return result, {name: float(np.mean([each[name] for each in metrics])) for name in scalars}

    def take_late(self, grid: Grid) -> None:
        """Look for replies to earlier rounds, whose uploads are late."""
        self._take(self._pulled(grid))

    @property
    def odometer(self) -> Odometer:
        """What each client of the roster has spent, from the uploads that were used and those seen too late."""
        if self._odometer is None:
            self._odometer = Odometer(self.plan)
        for t in range(self._odometer.rounds, len(self._used)):
            self._odometer.record(self._used[t], self.server.late(t))
        return self._odometer

    def exhausted(self) -> set[str]:
        """(R8): clients that can take no further round, by their own answer or by the odometer."""
        names = self.server.names
        refused = {self.nodes[node] for node, reason in self._reasons.items() if code_of(reason) == BudgetError.code}
        return refused | {names[i] for i in self.odometer.exhausted()}

    def spent(self) -> dict[str, float | int]:
        """The metrics of what was spent so far."""
        epsilon = self.odometer.max_epsilon()
        mu = gaussian.mu(epsilon, self.odometer.plan.delta, up=True)
        return {"lightdp-epsilon": epsilon, "lightdp-mu": mu, "lightdp-late": self.late}

    def _sent(self, messages: Iterable[Message]) -> None:
        self._pending |= {message.metadata.message_id: message.metadata.dst_node_id for message in messages}

    def _pulled(self, grid: Grid) -> Iterable[Message]:
        return grid.pull_messages(list(self._pending)) if self._pending else []

    def _answers(self, replies: Iterable[Message], failed: str) -> Iterator[tuple[int, Message]]:
        """The replies to pending messages that are no errors, with their nodes."""
        for reply in replies:
            node = self._pending.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                LOG.warning("lightdp: a reply to no message of this run was left out")
            elif reply.has_error():
                LOG.warning("lightdp: node %d %s: %s", node, failed, reply.error.reason)
                if reply.error.code in _REFUSED:
                    self._reasons[node] = str(reply.error.reason)
            else:
                yield node, reply

    def _take(self, replies: Iterable[Message]) -> list[dict[str, Any]]:
        """Take in uploads; returns the metrics of those that came in time."""
        metrics = []
        for node, reply in self._answers(replies, "sent no upload"):
            try:
                (record,) = reply.content.array_records.values()
                in_time = self.server.receive(values(record[KEY]).tobytes(), sender=self.nodes[node])
            except Exception as error:  # noqa: BLE001  whatever a node sends, the round goes on
                LOG.warning("lightdp: the reply of node %d is no upload and was left out: %s", node, error)
                continue
            self._reasons.pop(node, None)
            self._answered[node] = self.server.round if in_time else self._answered.get(node, 0)
            if in_time:
                metrics.append({k: v for each in reply.content.metric_records.values() for k, v in each.items()})
            else:
                self.late, self._odometer = self.late + 1, None
        return metrics
