"""The nodes behind the members of a federation: the key round, newcomers, and those who come back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from lightdp.errors import ProtocolError, code_of
from lightdp.federation import Federation
from lightdp.flower import _answered
from lightdp.flower._notices import Waiting, said, told
from lightdp.flower._settings import KEY, LOG

POLL = 0.5
"""Seconds between looks for nodes or replies."""
REFUSED = (ErrorCode.MOD_FAILED_PRECONDITION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)
"""Codes of errors for which asking again at once would not help."""
_ASK_AGAIN = 30.0  # seconds after which nodes that have not enrolled are asked again; a message may be lost with a node
_REFUSED_AGAIN = 300.0  # seconds after which nodes that refused are asked again; they are also if they reconnect
_HINT = "is lightdp.flower.mod the first of the app's mods, and the node's version of lightdp the server's?"


class Members:
    """Who is behind which node. A name is a member's for good; its node may get another id.

    Formal guarantee: a node has a name only if it has signed a nonce that was sent to it alone with the one-time key of
    the enrolment in this name. To repeat the enrolment of another, which all of its roster know, changes nothing.

    Args:
        federation: whose members they are.
        grid: of the server.
        configs: what messages carry beside ours, for mods that look at it.

    Attributes:
        nodes: names by node id, of all who have enrolled in this session. Of two nodes that prove to be one member, the
            last one has the name.
        refused: nodes that would not enrol when they were asked last, and why.
    """

    def __init__(self, federation: Federation, grid: Grid, configs: Mapping[str, ConfigRecord]) -> None:
        self.nodes: dict[int, str] = {}
        self.refused: dict[int, str] = {}
        self._federation, self._grid, self._configs = federation, grid, dict(configs)
        self._asked: dict[str, tuple[int, float, bytes]] = {}  # key messages without a reply: node, when, and nonce
        self._rest: dict[int, float] = {}  # nodes that refused or lost their name to another one, and when
        self._spent: set[str] = set()  # members without budget, by their own count or the server's

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
            missing = connected - set(self.nodes) - self._resting(connected)
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
        self._asked = {key: each for key, each in self._asked.items() if now - each[1] < _ASK_AGAIN}
        gone = self._gone()
        known = {node for node, name in self.nodes.items() if name not in gone}
        new = connected - known - self._resting(connected) - {node for node, _, _ in self._asked.values()}
        if new:
            messages = self._messages(new)
            self._grid.push_messages(messages)
            self._sent(messages)

    def _gone(self) -> set[str]:
        """Members that have budget and neither wait nor answer in a roster: they missed too much, or it was closed."""
        cohorts = self._federation.cohorts
        here = set(cohorts.waiting).union(
            *(set(each.members) - (each.gone(cohorts.patience) - each.left) for each in cohorts.rosters.values())
        )
        away = set(self.nodes.values()) - here - self._spent
        self._spent |= {name for name in away if not self._federation.has_room(name)}
        return away - self._spent

    def spent(self) -> set[str]:
        """Members that can take no further round, by their own count or the server's."""
        return self._spent | {name for name in self._federation.names if not self._federation.has_room(name)}

    def leave(self, node: int) -> None:
        """Let the member of a node go that says it has no budget left; it is not asked again as long as it is there."""
        name = self.nodes.get(node)
        if name is not None:
            self._spent.add(name)
            self._federation.leave(name)

    def node(self, name: str) -> int | None:
        """The node of a member; None if it has not enrolled in this session."""
        return next((node for node, each in self.nodes.items() if each == name), None)

    def content(self, order: ConfigRecord) -> RecordDict:
        """What a message carries that has no model: our order, and the strategy's configuration."""
        return RecordDict({**self._configs, KEY: order})

    def _messages(self, nodes: Iterable[int]) -> list[Message]:
        fed = self._federation
        order: dict[str, Any] = {"plan": fed.plan.to_json(), "run": fed.run, "length": fed.length}
        return [
            Message(self.content(ConfigRecord({**order, "nonce": os.urandom(32)})), node, MessageType.TRAIN)
            for node in sorted(nodes)
        ]

    def _sent(self, messages: Iterable[Message]) -> None:
        now = time.monotonic()
        for each in messages:
            nonce = _octets(each.content.config_records[KEY], "nonce")
            self._asked[each.metadata.message_id] = each.metadata.dst_node_id, now, nonce

    def _resting(self, connected: set[int]) -> set[int]:
        """Nodes that are not asked for a while, unless they go and come back."""
        since = time.monotonic() - _REFUSED_AGAIN
        self._rest = {node: when for node, when in self._rest.items() if node in connected and when > since}
        return set(self._rest)

    def _pulled(self) -> Iterable[Message]:
        return self._grid.pull_messages(list(self._asked)) if self._asked else []

    def _take(self, replies: Iterable[Message]) -> None:
        """Enrol."""
        failed: dict[int, str] = {}
        for reply in replies:
            node, _, nonce = self._asked.pop(reply.metadata.reply_to_message_id, (None, 0.0, b""))
            if node is None:
                LOG.warning("lightdp: a reply to no message of this run was left out")
            elif reply.has_error():
                reason = said(reply.error.reason)
                reason = reason if code_of(reason) is not None else f"{reason}; {_HINT}"
                if reply.error.code not in REFUSED or self._refuse(node, reason):
                    failed[node] = reason
            else:
                try:
                    self._enrol(node, reply, nonce)
                except Exception as error:  # noqa: BLE001  whatever a node sends, the others go on
                    reason = f"not an enrolment: {said(repr(error))}; {_HINT}"
                    if self._refuse(node, reason):
                        failed[node] = reason
        for line in told(failed.items()):
            LOG.warning("lightdp: not enrolled: %s", line)

    def _refuse(self, node: int, reason: str) -> bool:
        """Note why a node has not enrolled; returns whether that is news."""
        news = self.refused.get(node) != reason
        self.refused[node], self._rest[node] = reason, time.monotonic()
        return news

    def _enrol(self, node: int, reply: Message, nonce: bytes) -> None:
        record = reply.content.config_records[KEY]
        before = set(self._federation.names)
        name = self._federation.enrol(_octets(record, "enrolment"), proof=(nonce, _octets(record, "proof")))
        other = self.node(name)
        if other is not None and other != node:  # it has come back under another id, or is there twice
            LOG.info("lightdp: %s is node %d now, and was node %d", name, node, other)
            del self.nodes[other]
            self._rest[other] = time.monotonic()
        self.nodes[node] = name
        self.refused.pop(node, None)
        self._rest.pop(node, None)
        self._spent.discard(name)
        try:
            self._federation.heard(name, _answered.from_text(record["answered"]))
        except Exception as error:  # noqa: BLE001  as above
            LOG.warning("lightdp: what node %d says that it has answered was left out: %s", node, said(repr(error)))
        if self._federation.cohorts.next_number > 0 and name not in before:
            LOG.info("lightdp: node %d joins as %s: it will be in the next roster that is formed", node, name)


def _octets(record: ConfigRecord, key: str) -> bytes:
    value = record[key]
    if not isinstance(value, bytes):
        raise ProtocolError(f"{key} must be bytes, got {type(value).__name__}")
    return value
