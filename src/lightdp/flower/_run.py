"""The server of one run: the key round, the announcements that train messages carry, and the replies to them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from lightdp import gaussian
from lightdp.errors import BudgetError, LightDPError, ProtocolError, code_of
from lightdp.federation import Rounds
from lightdp.flower._arrays import values
from lightdp.flower._notices import Deadlines, Waiting, told
from lightdp.flower._settings import KEY, LOG
from lightdp.keys import Pins
from lightdp.planning import Plan
from lightdp.protocol import Aggregate, Server

Taken = tuple[Aggregate, list[dict[str, Any]]]

_POLL = 0.5  # seconds between looks for nodes
_ASK_AGAIN = 30.0  # seconds after which nodes that have not enrolled are asked again; a message may be lost with a node
_SILENT = 3  # rounds after which a node is asked again although it has not answered; a message may be lost with it
_REFUSED = (ErrorCode.MOD_FAILED_PRECONDITION, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)  # asking again would not help


class Run:
    """One roster from its key round to its end.

    Replies are mapped to nodes by the message that they answer: an error reply may carry another node's id.

    Args:
        plan: of the strategy.
        length: number of floats in the model.
        grid: of the server.
        pins: as for `LightDP`.

    Attributes:
        nodes: names in the roster by node id.
        rounds: what came of them, from the end of the key round on.
        late: how many uploads were seen too late.
        sums: how many rounds had a sum.
        closed: rounds that have ended, without their sums, and whether they were closing ones.
        upload_bytes: of the last upload that came.
    """

    def __init__(self, plan: Plan, length: int, grid: Grid, pins: Pins | None = None) -> None:
        self.plan = plan
        self.server = Server(plan, length=length, run=os.urandom(16), pins=pins)
        self.rounds = Rounds(self.server)
        self.nodes: dict[int, str] = {}
        self.late = self.sums = 0
        self.closed: list[tuple[Aggregate, bool]] = []
        self.upload_bytes: int | None = None
        self._grid = grid
        self._index: dict[str, int] = {}  # in the roster, by name
        self._reasons: dict[int, str] = {}  # of nodes whose last answer was a refusal
        self._failures: dict[int, str] = {}  # of nodes whose last answer was no upload
        self._deadlines = Deadlines()
        self._answered: dict[int, int] = {}  # the last round that each node answered, whenever that came
        self._missed: dict[int, int] = {}  # in how many of the last rounds in a row a node was asked and not on time
        self._metrics: dict[int, list[dict[str, Any]]] = {}  # of uploads that are in no sum yet, by round
        self._pending: dict[str, tuple[int, int]] = {}  # messages without a reply: node and round
        self._asked: set[int] = set()  # nodes that got a message in the open round
        self._strangers: set[int] = set()

    def enrol(self, wait: float) -> None:
        """The key round: one message to every node and one back, until the plan's number of clients has enrolled.

        Raises:
            ProtocolError: there are too few after `wait` seconds; the message says what the others answered.
        """
        deadline, grid, waiting = time.monotonic() + wait, self._grid, Waiting("connected", self.plan.clients)
        order = ConfigRecord({"plan": self.plan.to_json(), "run": self.server.run, "length": self.server.length})
        while True:
            self._take_enrolments(self._pulled())
            connected = set(grid.get_node_ids())
            waiting.see(len(connected))
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
                others = "".join(f"; {line}" for line in told(self._reasons.items()))
                raise ProtocolError(
                    f"{len(self.nodes)} of the plan's {self.plan.clients} clients enrolled within {wait:g} s, "
                    f"with {len(connected)} nodes connected{others}"
                )
            time.sleep(min(_POLL, wait))
        self._pending, self._reasons, self._failures = {}, {}, {}
        self.server.roster()
        self._index = {name: i for i, name in enumerate(self.server.names)}
        LOG.info("lightdp: key round done, %d clients in the roster", len(self.nodes))

    def _take_enrolments(self, replies: Iterable[Message]) -> None:
        """Enrol as many nodes as the plan has clients."""
        wrong: dict[int, str] = {}
        for node, _, reply in self._answers(replies, "not enrolled"):
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
                hint = "is lightdp.flower.mod among the app's mods, and the node's version of lightdp the server's?"
                self._reasons[node] = f"not an enrolment: {error!r}; {hint}"
                wrong[node] = self._reasons[node]
        for line in told(wrong.items()):
            LOG.warning("lightdp: %s", line)

    def orders(self, wait: float) -> dict[int, ConfigRecord]:
        """Start a round: what the train message carries to each node of the roster that is asked.

        Flower's nodes answer one message after the other. So under grace a node that missed two rounds in a row is
        left out while it still works on an older round: its answers would come later and later. It is asked again
        once it has answered, or has been silent for long. If too few are left they are waited for, at most `wait`
        seconds, and then everybody is asked.
        """
        for node in set(self._grid.get_node_ids()) - set(self.nodes) - self._strangers:
            self._strangers.add(node)
            LOG.info("lightdp: node %d joined after the key round: it will be in the roster of the next start", node)
        ends, waiting = time.monotonic() + wait, Waiting("have answered an earlier round", self.server.minimum)
        while len(asked := set(self.nodes) - self._behind()) < self.server.minimum and time.monotonic() < ends:
            waiting.see(len(asked))
            time.sleep(min(_POLL, wait))
            self._take(self._pulled())
        self._deadlines.begin(self.server.round)
        self._asked = asked if len(asked) >= self.server.minimum else set(self.nodes)
        return {node: self._order(node, closing=False) for node in self._asked}

    def _behind(self) -> set[int]:
        """Nodes that still work on an older round, after two that they missed; none without grace."""
        newest = dict(sorted(self._pending.values(), key=lambda each: each[1]))  # by node
        since = self.server.round - _SILENT
        return {
            node
            for node, number in newest.items()
            if self.plan.grace and self._missed.get(node, 0) > 1 and number > max(self._answered.get(node, -1), since)
        }

    def closing_orders(self) -> dict[int, ConfigRecord] | None:
        """Start a closing round (R4): messages to the clients that owe a repair; None if nothing is left to close."""
        owing = self.rounds.owing()
        # uploads of the last round, also of a closing one, may still come, and make or pay debts
        if not owing and not self.rounds.wait and not (self.plan.grace and self._unanswered(set())):
            return None
        self.server.announce(closing=True)
        self._asked = {node for node, name in self.nodes.items() if self._index[name] in owing}
        return {node: self._order(node, closing=True) for node in self._asked}

    def _order(self, node: int, *, closing: bool) -> ConfigRecord:
        start = self.server.announce(since=self._answered.get(node, 0), closing=closing)
        order = ConfigRecord({"run": self.server.run, "start": start, "closing": closing})
        if node not in self._answered:  # it may not have the roster yet
            order["roster"] = self.server.roster()
        return order

    def take(self, messages: list[Message], replies: Iterable[Message], *, closing: bool = False) -> Taken:
        """End the open round with the replies that came; messages without one stay pending.

        Under grace late replies to the round before are looked for first: they are in the sum too.

        Returns:
            The sum, and the metrics of each upload in it.
        """
        self.take_late()
        self._sent(messages)
        for message in messages:
            self.rounds.asked(self.server.round, self._index[self.nodes[message.metadata.dst_node_id]])
        self._take(replies)
        self._deadlines.end(self.server.round)
        self._deadlines.advise()
        result = self.server.close()
        self.rounds.close(result, closing=closing)
        if not closing:
            for message in messages:
                node = message.metadata.dst_node_id
                on_time = self.rounds.was_on_time(self._index[self.nodes[node]])
                self._missed[node] = 0 if on_time else self._missed.get(node, 0) + 1
        self.sums += result.total is not None
        self.closed.append((replace(result, total=None), closing))
        before = self._metrics.pop(result.round - 1, [])
        return result, [
            *(before if result.joined else []),
            *(self._metrics.pop(result.round, []) if result.used else []),
        ]

    def take_late(self, wait: float = 0.0) -> None:
        """Look for replies to earlier rounds.

        Args:
            wait: under grace, seconds to wait for replies to the last round that has ended, of nodes that are not asked
                now. Others answer one message after the other.
        """
        ends = time.monotonic() + wait
        self._take(self._pulled())
        while self.plan.grace and self._unanswered(self._asked) and time.monotonic() < ends:
            time.sleep(min(_POLL, max(ends - time.monotonic(), 0)))
            self._take(self._pulled())

    def exchange(self, messages: list[Message], timeout: float) -> list[Message]:
        """Send and receive; under grace, the time that is left is for late replies."""
        began = time.monotonic()
        replies = list(self._grid.send_and_receive(messages, timeout=timeout)) if messages else []
        self.take_late(timeout - (time.monotonic() - began))
        return replies

    def _unanswered(self, without: set[int]) -> bool:
        """Whether a reply to the last round that has ended may still come, of other nodes than these."""
        last = self.server.round - 1
        return any(number == last and node not in without for node, number in self._pending.values())

    def exhausted(self) -> set[str]:
        """(R8): clients that can take no further round, by their own answer or by the odometer."""
        names = self.server.names
        refused = {self.nodes[node] for node, reason in self._reasons.items() if code_of(reason) == BudgetError.code}
        return refused | {names[i] for i in self.rounds.odometer.exhausted()}

    def ending(self, patience: int) -> tuple[str, str] | None:
        """Why there can be no other round, or must not be, in a word and a sentence; None if there can.

        Args:
            patience: how many void rounds in a row end a training.
        """
        void, refusals = self.rounds.void, set(self._reasons.values())
        if (exhausted := len(self.exhausted())) > self.plan.stragglers:  # fewer are stragglers for good (R8)
            words = f"the budget is used up: {exhausted} of {self.plan.clients} clients can take no further round"
            return "budget", words
        if void >= patience:
            return "void", f"{void} rounds in a row were void: fewer than {self.server.minimum} uploads came"
        if len(refusals) == 1 and set(self._reasons) == set(self.nodes):
            return "refused", f"every node refuses: {refusals.pop()}"
        return None

    def failures(self) -> str:
        """Why there are no uploads: what nodes said last, and how many have not answered."""
        silent = len({node for node, _ in self._pending.values()} - set(self._failures))
        return "; ".join([*told(self._failures.items()), *([f"{silent} nodes: no answer"] if silent else [])])

    def spent(self) -> dict[str, float | int]:
        """The metrics of what was spent so far; a round that waits for its set counts at its worst."""
        epsilon = self.rounds.odometer.counted().max_epsilon()
        mu = gaussian.mu(epsilon, self.plan.delta, up=True)
        return {"lightdp-epsilon": epsilon, "lightdp-mu": mu, "lightdp-late": self.late}

    def _sent(self, messages: Iterable[Message]) -> None:
        number = self.server.round
        self._pending |= {each.metadata.message_id: (each.metadata.dst_node_id, number) for each in messages}

    def _pulled(self) -> Iterable[Message]:
        return self._grid.pull_messages(list(self._pending)) if self._pending else []

    def _answers(self, replies: Iterable[Message], failed: str) -> Iterator[tuple[int, int, Message]]:
        """The replies to pending messages that are no errors, with their nodes and rounds."""
        errors: dict[int, str] = {}
        for reply in replies:
            node, number = self._pending.pop(reply.metadata.reply_to_message_id, (None, 0))
            if node is None:
                LOG.warning("lightdp: a reply to no message of this run was left out")
            elif reply.has_error():
                errors[node] = self._failures[node] = str(reply.error.reason)
                if reply.error.code in _REFUSED:
                    self._reasons[node] = errors[node]
            else:
                yield node, number, reply
        for line in told(errors.items()):
            LOG.warning("lightdp: %s: %s", failed, line)

    def _take(self, replies: Iterable[Message]) -> None:
        """Take in uploads."""
        wrong: dict[int, str] = {}
        for node, number, reply in self._answers(replies, "no upload"):
            try:
                (record,) = reply.content.array_records.values()
                upload = values(record[KEY]).tobytes()
                used = self.server.receive(upload, sender=self.nodes[node], round=number)
            except Exception as error:  # noqa: BLE001  whatever a node sends, the round goes on
                wrong[node] = self._failures[node] = f"its reply is no upload and was left out: {error}"
                continue
            self.upload_bytes = len(upload)
            self._reasons.pop(node, None)
            self._failures.pop(node, None)
            self._answered[node] = max(self._answered.get(node, 0), number)
            self.rounds.came(number, self._index[self.nodes[node]], used=used)
            if used:
                metrics = {k: v for each in reply.content.metric_records.values() for k, v in each.items()}
                self._metrics.setdefault(number, []).append(metrics)
            else:
                self.late += 1
                self._deadlines.came(number, reply.metadata.created_at)
        for line in told(wrong.items()):
            LOG.warning("lightdp: %s", line)
