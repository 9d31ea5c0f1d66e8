"""The server's side of one run: the key round, what rides in train messages, and what comes back."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

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


class Run:
    """One roster from its key round to its end.

    Replies are mapped to nodes by the message that they answer: an error reply may carry another node's id.

    Attributes:
        nodes: names in the roster by node id.
        odometer: what each client of the roster has spent, from what was used and what was seen too late.
        refused: nodes whose last answer was that another upload could exceed their budget.
        metrics: allow-listed metrics of the open round's used replies.
    """

    def __init__(self, plan: Plan, length: int) -> None:
        self.plan, self.id = plan, os.urandom(16)
        self.server = Server(plan, length=length, run=self.id)
        self.nodes: dict[int, str] = {}
        self.odometer = Odometer(plan)
        self.refused: set[int] = set()
        self.metrics: list[dict[str, Any]] = []
        self._used: list[ClientSet] = []  # of each past round
        self._answered: dict[int, int] = {}  # the last round of which a node's upload was seen
        self._pending: dict[str, int] = {}  # messages without a reply, and their nodes
        self._repairs = Repairs(plan.graph)
        self._strangers: set[int] = set()
        self._closing = False

    def enrol(self, grid: Grid, wait: float) -> None:
        """The key round: one message to every node and one back, until the plan's number of clients has enrolled.

        Raises:
            ProtocolError: after `wait` seconds there are too few; the message says what the others answered.
        """
        deadline = time.monotonic() + wait
        order = ConfigRecord({"plan": self.plan.to_json(), "run": self.id, "length": self.server.length})
        reasons: dict[int, str] = {}  # of nodes that need not be asked again
        asked: dict[str, int] = {}  # every message that was sent, and its node
        while True:
            if asked:
                reasons |= self._take_enrolments(asked, grid.pull_messages(list(asked)))
            connected = set(grid.get_node_ids())
            missing = sorted(connected - set(self.nodes) - set(reasons))
            if len(self.nodes) + len(missing) >= self.plan.clients > len(self.nodes):
                messages = [Message(RecordDict({KEY: order}), node, MessageType.TRAIN) for node in missing]
                timeout = min(max(deadline - time.monotonic(), 1.0), _ASK_AGAIN)
                replies = list(grid.send_and_receive(messages, timeout=timeout))
                asked |= {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
                reasons |= self._take_enrolments(asked, replies)
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

    def _take_enrolments(self, asked: dict[str, int], replies: Iterable[Message]) -> dict[int, str]:
        """Take in as many as the plan has clients; returns what is wrong with nodes that need not be asked again."""
        reasons = {}
        for reply in replies:
            node = asked.pop(reply.metadata.reply_to_message_id, None)
            if node is None or node in self.nodes or len(self.nodes) == self.plan.clients:
                continue
            if reply.has_error():
                _LOG.warning("lightdp: node %d did not enrol: %s", node, reply.error.reason)
                if reply.error.code in (ErrorCode.MOD_FAILED_PRECONDITION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION):
                    reasons[node] = f"node {node}: {reply.error.reason}"
                continue
            try:
                name = self.server.enrol(_bytes(reply.content.config_records[KEY]["enrolment"]))
                if name in self.nodes.values():
                    raise ProtocolError(f"another node enrolled as {name}")
                self.nodes[node] = name
            except (LightDPError, KeyError) as error:
                reasons[node] = f"node {node}: not an enrolment: {error!r}; is lightdp.flower.mod among the app's mods?"
                _LOG.warning("lightdp: %s", reasons[node])
        return reasons

    def orders(self, grid: Grid) -> dict[int, ConfigRecord]:
        """Start a round: what rides in the train message of each node of the roster."""
        for node in set(grid.get_node_ids()) - set(self.nodes) - self._strangers:
            self._strangers.add(node)
            _LOG.info("lightdp: node %d joined after the key round: it will be in the roster of the next start", node)
        return {node: self._order(node, closing=False) for node in self.nodes}

    def closing_orders(self) -> dict[int, ConfigRecord]:
        """Start the closing round (R4): messages for those who have something to repair; empty if nobody has."""
        self._closing = True
        carriers = {self.server.names[i] for i in self._repairs.owed}
        return {node: self._order(node, closing=True) for node, name in self.nodes.items() if name in carriers}

    def _order(self, node: int, *, closing: bool) -> ConfigRecord:
        start = self.server.announce(since=self._answered.get(node, 0), closing=closing)
        order = ConfigRecord({"run": self.id, "start": start, "closing": closing})
        if node not in self._answered:  # it may not have the roster yet
            order["roster"] = self.server.roster()
        return order

    def take(self, messages: list[Message], replies: Iterable[Message]) -> Aggregate:
        """End the open round with the replies that came; messages without one stay pending."""
        self.metrics = []
        self._pending |= {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        for reply in replies:
            self._take(reply)
        result = self.server.close()
        if self._closing:
            return result
        used = result.used
        self._used.append(used)
        self.odometer.record(used, self.server.late(result.round))
        if self.plan.repairs:
            self._repairs.close(result.round, used, used | self.server.late(result.round))
        return result

    def exhausted(self) -> set[int]:
        """(R8): nodes that can take no further round, by their own word or by what the server has counted."""
        names = {self.server.names[i] for i in self.odometer.exhausted()}
        return self.refused | {node for node, name in self.nodes.items() if name in names}

    def take_late(self, grid: Grid) -> int:
        """Look for replies to earlier rounds; count their uploads as late. Returns how many there were."""
        before = sum(len(self.server.late(t)) for t in range(len(self._used)))
        if self._pending:
            for reply in grid.pull_messages(list(self._pending)):
                self._take(reply)
        late = sum(len(self.server.late(t)) for t in range(len(self._used))) - before
        if late > 0:
            self.odometer = Odometer(self.plan)
            for t, used in enumerate(self._used):
                self.odometer.record(used, self.server.late(t))
        return late

    def _take(self, reply: Message) -> None:
        """One reply: an upload in time, a late one, or something that counts as none."""
        node = self._pending.pop(reply.metadata.reply_to_message_id, None)
        if node is None:
            _LOG.warning("lightdp: a reply to no message of this run was left out")
            return
        if reply.has_error():
            _LOG.warning("lightdp: node %d sent no upload: %s", node, reply.error.reason)
            if code_of(reply.error.reason) == BudgetError.code:
                self.refused.add(node)
            return
        try:
            (record,) = reply.content.array_records.values()
            in_time = self.server.receive(values(record[KEY]).tobytes(), sender=self.nodes[node])
        except Exception as error:  # noqa: BLE001  whatever a node sends, the round goes on
            _LOG.warning("lightdp: the reply of node %d is no upload and was left out: %s", node, error)
            return
        self._answered[node] = self.server.round if in_time else self._answered.get(node, 0)
        self.refused.discard(node)
        if in_time:
            self.metrics.append({k: v for each in reply.content.metric_records.values() for k, v in each.items()})


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise ProtocolError(f"an enrolment must be bytes, got {type(value).__name__}")
    return value
