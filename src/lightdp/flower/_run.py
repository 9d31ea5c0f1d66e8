"""The server of one run: the key round, the announcements that train messages carry, and the replies to them."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode

from lightdp.accountant import Odometer
from lightdp.errors import BudgetError, LightDPError, ProtocolError, code_of
from lightdp.flower._arrays import values
from lightdp.flower._vault import KEY
from lightdp.protocol import Server
from lightdp.repair import Repairs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flwr.serverapp import Grid

    from lightdp.client_set import ClientSet
    from lightdp.planning import Plan
    from lightdp.protocol import Aggregate

_LOG = logging.getLogger("flwr.lightdp")
_POLL = 0.5  # seconds between looks for nodes
_ASK_AGAIN = 30.0  # seconds after which nodes that have not enrolled are asked again; a message may be lost with a node
_FINAL = (ErrorCode.MOD_FAILED_PRECONDITION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)  # asking again would not help


class Run:
    """One roster from its key round to its end.

    Replies are mapped to nodes by the message that they answer: an error reply may carry another node's id.

    Attributes:
        nodes: names in the roster by node id.
        late: how many uploads were seen too late.
        void: how many of the last rounds in a row were void.
    """

    def __init__(self, plan: Plan, length: int) -> None:
        self.plan = plan
        self.server = Server(plan, length=length, run=os.urandom(16))
        self.nodes: dict[int, str] = {}
        self.late = self.void = 0
        self._odometer: Odometer | None = None  # has counted all rounds but the last ones; None to count anew
        self._used: list[ClientSet] = []  # of each past round with data
        self._refused: set[str] = set()  # whose last answer was that another upload could exceed their budget
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
        reasons: dict[int, str] = {}  # of nodes that need not be asked again
        asked: dict[str, int] = {}  # messages without a reply, and their nodes
        while True:
            if asked:
                self._take_enrolments(asked, grid.pull_messages(list(asked)), reasons)
            connected = set(grid.get_node_ids())
            missing = sorted(connected - set(self.nodes) - set(reasons))
            if len(self.nodes) + len(missing) >= self.plan.clients > len(self.nodes):
                messages = [Message(RecordDict({KEY: order}), node, MessageType.TRAIN) for node in missing]
                timeout = min(max(deadline - time.monotonic(), 1.0), _ASK_AGAIN)
                replies = list(grid.send_and_receive(messages, timeout=timeout))
                asked |= _by_id(messages)
                self._take_enrolments(asked, replies, reasons)
            if len(self.nodes) == self.plan.clients:
                break
            if time.monotonic() >= deadline:
                raise ProtocolError(
                    f"{len(self.nodes)} of the plan's {self.plan.clients} clients enrolled within {wait:g} s, "
                    f"with {len(connected)} nodes connected" + "".join(f"; {reason}" for reason in reasons.values())
                )
            time.sleep(min(_POLL, wait))
        self.server.roster()
        _LOG.info("lightdp: key round done, %d clients in the roster", len(self.nodes))

    def _take_enrolments(self, asked: dict[str, int], replies: Iterable[Message], reasons: dict[int, str]) -> None:
        """Enrol as many nodes as the plan has clients; `reasons` gets those that need not be asked again."""
        for reply in replies:
            node = asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None or node in self.nodes or len(self.nodes) == self.plan.clients:
                continue
            if reply.has_error():
                _LOG.warning("lightdp: node %d did not enrol: %s", node, reply.error.reason)
                if reply.error.code in _FINAL:
                    reasons[node] = f"node {node}: {reply.error.reason}"
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
                reasons[node] = f"node {node}: not an enrolment: {error!r}; is lightdp.flower.mod among the app's mods?"
                _LOG.warning("lightdp: %s", reasons[node])

    def orders(self, grid: Grid) -> dict[int, ConfigRecord]:
        """Start a round: what the train message to each node of the roster carries."""
        for node in set(grid.get_node_ids()) - set(self.nodes) - self._strangers:
            self._strangers.add(node)
            _LOG.info("lightdp: node %d joined after the key round: it will be in the roster of the next start", node)
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

    def take(
        self, messages: list[Message], replies: Iterable[Message], *, closing: bool = False
    ) -> tuple[Aggregate, dict[str, float]]:
        """End the open round with the replies that came; messages without one stay pending.

        Returns:
            The sum, and the mean of each metric that all used replies have as a number.
        """
        self._pending |= _by_id(messages)
        metrics = [found for found in map(self._take, replies) if found is not None]
        result = self.server.close()
        if not closing:
            self._used.append(result.used)
            self.void = self.void + 1 if result.total is None else 0
        shared = set.intersection(*map(set, metrics)) if metrics else set()
        scalars = [name for name in sorted(shared) if not any(isinstance(each[name], list) for each in metrics)]
        return result, {name: float(np.mean([each[name] for each in metrics])) for name in scalars}

    def take_late(self, grid: Grid) -> None:
        """Look for replies to earlier rounds, whose uploads are late."""
        if self._pending:
            for reply in grid.pull_messages(list(self._pending)):
                self._take(reply)

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
        return self._refused | {names[i] for i in self.odometer.exhausted()}

    def spent(self) -> dict[str, float | int]:
        """The metrics of what was spent so far."""
        return {"lightdp-epsilon": self.odometer.max_epsilon(), "lightdp-late": self.late}

    def _take(self, reply: Message) -> dict[str, Any] | None:
        """Take in one reply; returns its metrics if it is an upload in time."""
        node = self._pending.pop(reply.metadata.reply_to_message_id, None)
        if node is None:
            _LOG.warning("lightdp: a reply to no message of this run was left out")
            return None
        if reply.has_error():
            _LOG.warning("lightdp: node %d sent no upload: %s", node, reply.error.reason)
            if code_of(reply.error.reason) == BudgetError.code:
                self._refused.add(self.nodes[node])
            return None
        try:
            (record,) = reply.content.array_records.values()
            in_time = self.server.receive(values(record[KEY]).tobytes(), sender=self.nodes[node])
        except Exception as error:  # noqa: BLE001  whatever a node sends, the round goes on
            _LOG.warning("lightdp: the reply of node %d is no upload and was left out: %s", node, error)
            return None
        self._refused.discard(self.nodes[node])
        if in_time:
            self._answered[node] = self.server.round
            return {name: value for each in reply.content.metric_records.values() for name, value in each.items()}
        self._answered.setdefault(node, 0)
        self.late += 1
        self._odometer = None
        return None


def _by_id(messages: Iterable[Message]) -> dict[str, int]:
    return {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
