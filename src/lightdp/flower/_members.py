"""The nodes behind the members of a federation: the key round, newcomers, and those who come back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from lightdp.errors import LightDPError, ProtocolError, code_of
from lightdp.federation import Federation
from lightdp.flower._notices import Waiting, told
from lightdp.flower._settings import KEY, LOG

POLL = 0.5
"""Seconds between looks for nodes or replies."""
REFUSED = (ErrorCode.MOD_FAILED_PRECONDITION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
"""Codes of errors for which asking again would not help."""
_ASK_AGAIN = 30.0  # seconds after which nodes that have not enrolled are asked again; a message may be lost with a node
_HINT = "is lightdp.flower.mod the first of the app's mods, and the node's version of lightdp the server's?"


class Members:
    """Who is behind which node. A name is a member's for good; its node may get another id.

    Args:
        federation: whose members they are.
        grid: of the server.
        configs: what messages carry beside ours, for mods that look at it.

    Attributes:
        nodes: names by node id, of all who have enrolled in this session.
        refused: nodes that will not enrol, and why.
    """

    def __init__(self, federation: Federation, grid: Grid, configs: Mapping[str, ConfigRecord]) -> None:
        self.nodes: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self._federation, self._grid, self._configs = federation, grid, dict(configs)
        self._asked: dict[str, tuple[int, float]] = {}  # key messages without a reply: node, and when they were sent

    def gather(self, wait: float, *, wanted: int, least: int) -> None:
        """The key round: one message to every node and one back.

        Nodes are asked as soon as `least` of them are there: an answer takes a while, too.

        Args:
            wait: seconds after which fewer than `wanted` are enough.
            wanted: how many are waited for.
            least: how many must have enrolled then.

        Raises:
            ProtocolError: there are too few; the message says what the others answered.
        """
        deadline, waiting = time.monotonic() + wait, Waiting("connected", wanted)
        while True:
            over = time.monotonic() >= deadline
            self._take(self._pulled())
            connected = set(self._grid.get_node_ids())
            waiting.see(len(connected))
            missing = connected - set(self.nodes) - set(self.refused)
            if missing and len(self.nodes) + len(missing) >= least:
                messages = self._messages(missing)
                timeout = min(max(deadline - time.monotonic(), 1.0), _ASK_AGAIN)
                replies = list(self._grid.send_and_receive(messages, timeout=timeout))
                self._sent(messages)
                self._take(replies)
            over = over or time.monotonic() >= deadline
            if len(self.nodes) >= (least if over else wanted):
                return
            if over:
                others = "".join(f"; {line}" for line in told(self.refused.items()))
                raise ProtocolError(
                    f"{len(self.nodes)} of at least {least} clients enrolled within {wait:g} s, "
                    f"with {len(connected)} nodes connected{others}"
                )
            time.sleep(min(POLL, wait))

    def welcome(self) -> None:
        """Take in enrolments that have come, and ask nodes for theirs that are new, or whose members were gone."""
        self._take(self._pulled())
        now, connected = time.monotonic(), set(self._grid.get_node_ids())
        self._asked = {key: (node, sent) for key, (node, sent) in self._asked.items() if now - sent < _ASK_AGAIN}
        cohorts = self._federation.cohorts
        missing = {name for each in cohorts.rosters.values() for name in each.gone(cohorts.patience) - each.left}
        known = {node for node, name in self.nodes.items() if name not in missing}
        new = connected - known - set(self.refused) - {node for node, _ in self._asked.values()}
        if new:
            messages = self._messages(new)
            self._grid.push_messages(messages)
            self._sent(messages)

    def node(self, name: str) -> int | None:
        """The node of a member; None if it has not enrolled in this session."""
        return next((node for node, each in self.nodes.items() if each == name), None)

    def content(self, order: ConfigRecord) -> RecordDict:
        """What a message carries that has no model: our order, and the strategy's configuration."""
        return RecordDict({**self._configs, KEY: order})

    def _messages(self, nodes: Iterable[int]) -> list[Message]:
        fed = self._federation
        order = ConfigRecord({"plan": fed.plan.to_json(), "run": fed.run, "length": fed.length})
        return [Message(self.content(order), node, MessageType.TRAIN) for node in sorted(nodes)]

    def _sent(self, messages: Iterable[Message]) -> None:
        now = time.monotonic()
        self._asked |= {each.metadata.message_id: (each.metadata.dst_node_id, now) for each in messages}

    def _pulled(self) -> Iterable[Message]:
        return self._grid.pull_messages(list(self._asked)) if self._asked else []

    def _take(self, replies: Iterable[Message]) -> None:
        """Enrol."""
        failed: dict[int, str] = {}
        for reply in replies:
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is None:
                LOG.warning("lightdp: a reply to no message of this run was left out")
            elif reply.has_error():
                reason = str(reply.error.reason)
                failed[node] = reason if code_of(reason) is not None else f"{reason}; {_HINT}"
                if reply.error.code in REFUSED:
                    self.refused[node] = failed[node]
            else:
                try:
                    self._enrol(node, reply)
                except (LightDPError, KeyError, TypeError, ValueError) as error:
                    failed[node] = self.refused[node] = f"not an enrolment: {error!r}; {_HINT}"
        for line in told(failed.items()):
            LOG.warning("lightdp: not enrolled: %s", line)

    def _enrol(self, node: int, reply: Message) -> None:
        record = reply.content.config_records[KEY]
        enrolment = record["enrolment"]
        if not isinstance(enrolment, bytes):
            raise ProtocolError(f"an enrolment must be bytes, got {type(enrolment).__name__}")
        before = set(self._federation.names)
        name = self._federation.enrol(enrolment)
        other = self.node(name)
        if other is not None and other != node:
            if other in set(self._grid.get_node_ids()):
                raise ProtocolError(f"another node enrolled as {name}")
            del self.nodes[other]  # it has come back under another id
        self.nodes[node] = name
        with suppress(KeyError, TypeError, ValueError, AttributeError):  # a node may send anything here
            answered = json.loads(str(record["answered"]))
            self._federation.heard(name, {int(number): int(first) for number, first in answered.items()})
        if self._federation.cohorts.next_number > 0 and name not in before:
            LOG.info("lightdp: node %d joins as %s: it will be in the next roster that is formed", node, name)
