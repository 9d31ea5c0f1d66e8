"""The rounds of a federation on Flower's nodes: the announcements that messages carry, and the replies to them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from lightdp import gaussian
from lightdp._validate import counted
from lightdp.errors import BudgetError, code_of
from lightdp.federation import Federation, Table
from lightdp.flower._arrays import records, values
from lightdp.flower._members import POLL, REFUSED, Members
from lightdp.flower._metrics import metrics_of
from lightdp.flower._notices import Deadlines, Newcomers, Waiting, said, told
from lightdp.flower._settings import KEY, LOG
from lightdp.protocol import Aggregate

Taken = tuple[Aggregate, list[dict[str, Any]]]

_RENEWALS = 3  # how often new rosters are tried in a row before void rounds end the training
_ANSWERED = "was answered, or is over"  # a refusal of one round, after which the next one may do
_SILENT = 3  # rounds after which a node is asked again although it has not answered; a message may be lost with it
_APART = (
    "trained from something other than most nodes did (records of the message, run_config, or what is trained), so its "
    "noise does not cancel; compare configuration, lightdp and flwr"
)


@dataclass(frozen=True)
class Closed:
    """A round that has ended.

    Attributes:
        roster: the number of its roster.
        result: what came of it, without the sum.
        closing: whether it was a closing round, without data.
    """

    roster: int
    result: Aggregate
    closing: bool


class Run:
    """The rounds of a federation.

    Replies are mapped to nodes by the message that they answer: an error reply may carry another node's id.

    Args:
        federation: the members and rosters.
        grid: of the server.
        configs: what messages without a model carry beside ours.

    Attributes:
        federation: as given.
        members: the nodes behind its members.
        late: how many uploads were seen too late.
        sums: how many rounds had a sum.
        released: how many rounds with data there were.
        void: how many of the last rounds in a row were void.
        closed: rounds that have ended.
        tables: all rosters, also those that have ended.
        upload_bytes: of the last upload that came.
    """

    def __init__(self, federation: Federation, grid: Grid, configs: Mapping[str, ConfigRecord]) -> None:
        self.federation, self.members = federation, Members(federation, grid, configs)
        self.late = self.sums = self.released = self.void = 0
        self.closed: list[Closed] = []
        self.tables: dict[int, Table] = dict(federation.rosters)
        self.upload_bytes: int | None = None
        self._grid = grid
        self._reasons: dict[int, str] = {}  # of nodes whose last answer was a refusal
        self._failures: dict[int, str] = {}  # of nodes whose last answer was no upload
        self._deadlines = Deadlines()
        self._newcomers: Newcomers | None = None
        self._answered: dict[tuple[int, str], int] = {}  # the last round of a roster that each member answered
        self._missed: dict[int, int] = {}  # in how many of the last rounds in a row a node was asked and not on time
        self._metrics: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}  # of uploads in no sum yet, by client
        self._pending: dict[str, tuple[int, int, int]] = {}  # messages without a reply: node, roster and round
        self._renewals = 0  # how often rosters were formed since a round was not void
        self._minimum = 0  # uploads of which the last round needed so many
        self._asked: set[int] = set()  # nodes that got a message in the open round
        self._everyone: set[int] = set()  # nodes that got a message in any round
        self._left_out: dict[int, set[int]] = {}  # nodes whose uploads were left out last time, by roster

    # rosters

    def form(self, wait: float) -> bool:
        """Form rosters of those who wait, if there are enough; returns whether there is a roster to play.

        Beside rosters that play, `least` clients are enough once they have waited for as long. They get a roster of
        their own: to form one of theirs anew would cost the others what they keep for lies in it (C1).

        Args:
            wait: seconds to wait for more of them where there is no roster at all.
        """
        cohorts, ends = self.federation.cohorts, time.monotonic() + wait
        waiting = Waiting("can be in a roster", cohorts.least)
        if self._newcomers is None:
            self._newcomers = Newcomers(cohorts.size, cohorts.least, wait)
        while True:
            self.members.welcome()
            over = time.monotonic() >= ends
            due = self._newcomers.are_due(len(cohorts.waiting))
            first = not self.federation.rosters
            made = self.federation.form(force=(over or cohorts.next_number == 0) if first else due)
            self.tables |= self.federation.rosters
            if made and self._renewals < _RENEWALS:  # they may do better; but some nodes enrol, and then never answer
                self._renewals, self.void = self._renewals + 1, 0
            for number in made:
                LOG.info(
                    "lightdp: roster %d of %s", number, counted(len(self.federation.rosters[number].names), "client")
                )
            if self.federation.rosters:
                self._newcomers.see(len(cohorts.waiting))
            if self.federation.rosters or over or (cohorts.next_number > 0 and not self._more_may_come()):
                return bool(self.federation.rosters)
            waiting.see(len(cohorts.waiting))
            time.sleep(min(POLL, wait))

    def _more_may_come(self) -> bool:
        """Whether somebody who could be in a roster is not there yet: all who have budget are waited for."""
        cohorts = self.federation.cohorts
        return sum(self.federation.has_room(name) for name in self.federation.names) >= cohorts.least

    # rounds

    def nodes(self, table: Table) -> dict[int, str]:
        """The nodes of a roster's members, as far as they are there."""
        found = {self.members.node(name): name for name in table.names}
        return {node: name for node, name in found.items() if node is not None}

    def connected(self, table: Table) -> set[str]:
        """Members of a roster whose nodes are connected."""
        here = set(self._grid.get_node_ids())
        return {name for node, name in self.nodes(table).items() if node in here}

    def orders(self, table: Table, wait: float) -> dict[int, ConfigRecord]:
        """Start a round: what the train message carries to each node of the roster that is asked.

        Members that missed too many rounds are left out, and asked to enrol again. Flower's nodes answer one message
        after the other. So under grace a node that missed two rounds in a row is left out while it still works on an
        older round: its answers would come later and later. It is asked again once it has answered, or has been silent
        for long. If too few are left they are waited for, at most `wait` seconds, and then everybody is asked.
        """
        all_, least = set(self.nodes(table)), table.server.minimum
        cohorts = self.federation.cohorts
        gone = cohorts.rosters[table.number].gone(cohorts.patience)
        there = {node for node, name in self.nodes(table).items() if name not in gone}
        ends, waiting = time.monotonic() + wait, Waiting("have answered an earlier round", least)
        while len(asked := there - self._behind(table)) < least <= len(there) and time.monotonic() < ends:
            waiting.see(len(asked))
            time.sleep(min(POLL, wait))
            self._take(self._pulled())
        self._deadlines.begin((table.number, table.server.round))
        self._asked = asked if len(asked) >= least else all_
        self._everyone |= self._asked
        return {node: self._order(table, node, closing=False) for node in self._asked}

    def _behind(self, table: Table) -> set[int]:
        """Nodes that still work on an older round, after two that they missed; none without grace."""
        own = [(node, number) for node, roster, number in self._pending.values() if roster == table.number]
        newest = dict(sorted(own, key=lambda each: each[1]))  # by node
        since = table.server.round - _SILENT
        return {
            node
            for node, number in newest.items()
            if table.server.plan.grace
            and self._missed.get(node, 0) > 1
            and number > max(self._answered.get((table.number, self.members.nodes.get(node, "")), -1), since)
        }

    def must_close(self, table: Table) -> bool:
        """Whether a closing round of a roster has something to do."""
        # uploads of the last round, also of a closing one, may still come, and make or pay debts
        unsettled = table.rounds.wait or (table.server.plan.grace > 0 and self._unanswered(table, set()))
        return not table.server.closed and (unsettled or bool(table.rounds.owing()))

    def closing_orders(self, table: Table) -> dict[int, ConfigRecord]:
        """Start a closing round (R4): messages to the clients that owe a repair."""
        owing = table.rounds.owing()
        table.server.announce(closing=True)
        self._asked = {node for node, name in self.nodes(table).items() if table.index[name] in owing}
        return {node: self._order(table, node, closing=True) for node in self._asked}

    def _order(self, table: Table, node: int, *, closing: bool) -> ConfigRecord:
        last = self._answered.get((table.number, self.members.nodes[node]))
        start = table.server.announce(since=0 if last is None else last, closing=closing)
        order = ConfigRecord({"run": self.federation.run, "start": start, "closing": closing})
        if last is None:  # it may not have the roster yet
            order["roster"] = table.server.roster(self.members.nodes[node])
        return order

    def take(
        self, table: Table, messages: list[Message], replies: Iterable[Message], *, closing: bool = False
    ) -> Taken:
        """End the open round with the replies that came; messages without one stay pending.

        Under grace late replies to the round before are looked for first: they are in the sum too.

        Returns:
            The sum, and the metrics of each upload in it.
        """
        self.take_late()
        number, names = table.server.round, self.nodes(table)
        self._pending |= {
            each.metadata.message_id: (each.metadata.dst_node_id, table.number, number) for each in messages
        }
        for message in messages:
            table.rounds.asked(number, table.index[names[message.metadata.dst_node_id]])
        self._take(replies)
        self._deadlines.end((table.number, number))
        self._deadlines.advise()
        result, self._minimum = self.federation.close(table.number, closing=closing), table.server.minimum
        if not closing:
            self.released += 1
            if result.final:
                self.void = self._renewals = 0
            elif result.final is not None and not table.rounds.was_lost(result.round - table.server.plan.grace):
                self.void += 1  # a crash makes a round of every roster void, and says nothing of its members
            for message in messages:
                node = message.metadata.dst_node_id
                on_time = table.rounds.was_on_time(table.index[names[node]])
                self._missed[node] = 0 if on_time else self._missed.get(node, 0) + 1
        self.sums += result.total is not None
        self.closed.append(Closed(table.number, replace(result, total=None), closing))
        self._leave_out(table, result)
        for number, clients in result.left_out.items():
            taken = self._metrics.get((table.number, number), {})
            self.late += sum(taken.pop(client, None) is not None for client in clients)
        before = self._metrics.pop((table.number, result.round - 1), {})
        now = self._metrics.pop((table.number, result.round), {}) if result.used else {}
        joined = [metrics for client, metrics in before.items() if client in result.joined]
        return result, joined + [metrics for client, metrics in now.items() if client in result.used]

    def _leave_out(self, table: Table, result: Aggregate) -> None:
        """Say whose uploads were bound to something else, and are in no sum."""
        names = {table.names[client] for clients in result.left_out.values() for client in clients}
        found = {node: _APART for node, name in self.nodes(table).items() if name in names}
        self._failures |= found
        if found.keys() != self._left_out.get(table.number):  # once for each change
            for line in told(found.items()):
                LOG.warning("lightdp: upload left out: %s", line)
        self._left_out[table.number] = set(found)

    def take_late(self, wait: float = 0.0, table: Table | None = None) -> None:
        """Look for replies to earlier rounds.

        Args:
            wait: under grace, seconds to wait for replies to the last round of the roster that has ended, of nodes that
                are not asked now. Others answer one message after the other.
            table: the roster.
        """
        ends = time.monotonic() + wait
        self._take(self._pulled())
        while table is not None and table.server.plan.grace and time.monotonic() < ends:
            if not self._unanswered(table, self._asked):
                break
            time.sleep(min(POLL, max(ends - time.monotonic(), 0)))
            self._take(self._pulled())

    def exchange(self, table: Table, messages: list[Message], timeout: float) -> list[Message]:
        """Send and receive; under grace, the time that is left is for late replies."""
        began = time.monotonic()
        replies = list(self._grid.send_and_receive(messages, timeout=timeout)) if messages else []
        self.take_late(timeout - (time.monotonic() - began), table)
        return replies

    def _unanswered(self, table: Table, without: set[int]) -> bool:
        """Whether a reply to the last round of a roster that has ended may still come, of other nodes than these."""
        last = table.server.round - 1
        pending = self._pending.values()
        return any((roster, number) == (table.number, last) and node not in without for node, roster, number in pending)

    # what came of them

    def ending(self, patience: int) -> tuple[str, str] | None:
        """Why there must be no other round, in a word and a sentence; None if there may be one.

        Args:
            patience: how many void rounds in a row end a training.
        """
        if self.void >= patience and not self.federation.failing():  # otherwise another roster may do better
            return "void", self._void()
        refusals = set(self._reasons.values())
        if len(refusals) == 1 and self._everyone and self._everyone <= set(self._reasons):
            reason = refusals.pop()
            if code_of(reason) != BudgetError.code and _ANSWERED not in reason:
                return "refused", f"every node refuses: {reason}"
        return None

    def nobody_left(self) -> tuple[str, str]:
        """Why no roster can be formed, in a word and a sentence."""
        cohorts, names = self.federation.cohorts, self.federation.names
        spent, everybody = len(self.members.spent()), counted(len(names), "client")
        if len(names) - spent < cohorts.least:
            return "budget", f"the budget is used up: {spent} of {everybody} can take no further round"
        few = f"too few clients are left for a roster: {len(cohorts.waiting)} of at least {cohorts.least}"
        few += f"; {spent} of {everybody} can take no further round" if spent else ""
        return "members", few if self.void == 0 else f"{self._void()}, and {few}"

    def _void(self) -> str:
        rounds = "the last round was" if self.void == 1 else f"{self.void} rounds in a row were"
        apart = _APART in self._failures.values()
        return (
            f"{rounds} void: fewer than {counted(self._minimum, 'upload')} came{' from equal models' if apart else ''}"
        )

    def why_closed(self, number: int) -> str:
        """Why a roster must be ended, in words that follow its name."""
        cohorts, table = self.federation.cohorts, self.federation.rosters[number]
        cohort = cohorts.rosters[number]
        if table.server.closing or table.server.full:
            return "has had all its rounds"
        away = cohort.gone(cohorts.patience) - cohort.left
        lost = {"can take no further round": cohort.left, "missed too many": away}
        parts = [f"{len(clients)} {words}" for words, clients in lost.items() if clients]
        if len(cohort.left | away) > cohort.bears:
            return (
                f"can bear {cohort.bears} of its {counted(len(cohort.members), 'client')} missing: {', '.join(parts)}"
            )
        return f"had {counted(cohort.void, 'void round')} in a row"

    def failures(self) -> str:
        """Why there are no uploads: what nodes said last, and how many have not answered."""
        silent = len({node for node, _, _ in self._pending.values()} - set(self._failures))
        return "; ".join([*told(self._failures.items()), *([f"{silent} nodes: no answer"] if silent else [])])

    def spent(self) -> dict[str, float | int]:
        """The metrics of what was spent so far; a round that waits for its set counts at its worst."""
        epsilon = self.federation.max_epsilon()
        mu = gaussian.mu(epsilon, self.federation.plan.delta, up=True)
        return {"lightdp-epsilon": epsilon, "lightdp-mu": mu, "lightdp-late": self.late}

    def _pulled(self) -> Iterable[Message]:
        return self._grid.pull_messages(list(self._pending)) if self._pending else []

    def _answers(self, replies: Iterable[Message]) -> Iterator[tuple[int, int, Message]]:
        """The replies to pending messages that are no errors, with their nodes and rounds."""
        errors: dict[int, str] = {}
        for reply in replies:
            node, _, number = self._pending.pop(reply.metadata.reply_to_message_id, (None, 0, 0))
            if node is None:
                LOG.warning("lightdp: a reply to no message of this run was left out")
            elif reply.has_error():
                errors[node] = self._failures[node] = said(reply.error.reason)
                if reply.error.code in REFUSED:
                    self._reasons[node] = errors[node]
                    if code_of(errors[node]) == BudgetError.code:  # (R8), by its own count
                        self.members.leave(node)
            else:
                yield node, number, reply
        for line in told(errors.items()):
            LOG.warning("lightdp: no upload: %s", line)

    def _take(self, replies: Iterable[Message]) -> None:
        """Take in uploads."""
        wrong: dict[int, str] = {}
        for node, number, reply in self._answers(replies):
            name = self.members.nodes.get(node, "")
            try:
                (record,) = records(reply.content).values()
                upload = values(record[KEY]).data.cast("B")
                table, taken = self.federation.receive(upload, sender=name, round=number)
            except Exception as error:  # noqa: BLE001  whatever a node sends, the round goes on
                wrong[node] = self._failures[node] = f"its reply is no upload and was left out: {said(error)}"
                continue
            self.upload_bytes, roster = len(upload), table.number
            self._reasons.pop(node, None)
            self._failures.pop(node, None)
            self._answered[roster, name] = max(self._answered.get((roster, name), 0), number)
            if name in self.federation.cohorts.rosters[roster].missed:
                self.federation.cohorts.rosters[roster].missed[name] = 0  # it is slow, and not gone
            if taken:
                self._metrics.setdefault((roster, number), {})[table.index[name]] = metrics_of(reply.content)
            else:
                self.late += 1
                if not table.server.takes(number):  # otherwise it was left out, as `take` says
                    self._deadlines.came((roster, number), reply.metadata.created_at)
        for line in told(wrong.items()):
            LOG.warning("lightdp: %s", line)
