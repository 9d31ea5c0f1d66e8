"""The protocol itself: real keys, masks and bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

import torch

from lightdp.client_set import ClientSet
from lightdp.errors import BudgetError, ProtocolError
from lightdp.federation import Member, MemberRound
from lightdp.planning import Plan
from lightdp.protocol import Client, ClientRound, Server
from lightdp.training.arrivals import Arrivals
from lightdp.training.channel._channel import Channel, Schedule, Sum, Updates


class Protocol(Channel):
    """Real clients and a real server, in memory: real keys, masks and bytes.

    Its state is not in checkpoints, since real noise cannot be made again.

    Args:
        plan: the noise.
        parameters: length of an update.
        seed: names the run; keys and noise come from the machine's entropy.
        device: where sums go.
        clients: members of a federation, in the order of their names; by default clients of this run alone.
        number: of their roster.
        given: the hash, 32 bytes, of all that clients of the next round train from; asked for at most once a round, and
            only where rounds must be bound to it (W4).
    """

    def __init__(
        self, plan: Plan, parameters: int, seed: int, device: torch.device | str = "cpu", *,
        given: Callable[[], bytes], clients: Sequence[Member] | None = None, number: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(plan, parameters)
        self.plan, self.device, self.schedule, self._given = plan, device, Schedule(plan), given
        run, digits = seed.to_bytes(16, "little"), len(str(plan.clients))
        self.server = Server(plan, length=parameters, run=run, number=number)
        self._begun: dict[int, ClientRound | MemberRound] = {}  # of the next round, by clients that do not refuse it
        self._next: list[bytes] = []  # uploads that come during the next round
        self._late: deque[list[bytes]] = deque()  # uploads of each round that come once its set is final
        self._held = Sum()  # what is known of the noise in `_next`
        self.clients: Sequence[Client | Member] = clients or [
            Client.new(plan, length=parameters, run=run, name=f"client-{i:0{digits}}", threads=None)
            for i in range(plan.clients)
        ]
        for client in self.clients:
            self.server.enrol(client.enrol())
        for client in self.clients:
            client.join(self.server.roster(client.name))

    def away(self, exhausted: ClientSet) -> ClientSet:
        """With clients whose own odometers refuse: they do not know which of their peers had sent (R8)."""
        start, self._begun = self.server.announce(since=0), {}
        for i, client in enumerate(self.clients):
            with suppress(BudgetError):
                self._begun[i] = client.begin(start)
        return exhausted | ClientSet.of(len(self.clients), set(range(len(self.clients))) - self._begun.keys())

    def round(self, number: int, came: Arrivals, updates: Updates) -> Sum:
        """The noisy sum, from uploads of everybody who sent."""
        start, given = self.server.announce(since=0), cache(self._given)
        joining: list[bytes] = []
        late: list[bytes] = []
        for clients, rows in updates(tuple(came.sent)):
            for i, row in zip(clients, rows.cpu().numpy(), strict=True):
                begun = self._begun.pop(i, None) or self.clients[i].begin(start)
                message = (begun.bind(given()) if begun.binds else begun).upload(row)
                if i in came.used:
                    self.server.receive(message)
                else:
                    (joining if i in came.next else late).append(message)
        self._late.append(late)
        total, before, self._next = self._closed(), self._held, joining
        self.schedule.ride(number, came.sent)
        self.schedule.end(number, came.final)
        left, individual = self.schedule.left(came), self.plan.individual_in_sum
        now = Sum.of(self.plan, None, individual(len(came.used)), left.used, left.between)
        self._held = Sum.of(self.plan, None, individual(len(came.next)), left.next)
        if total is None:
            return Sum()
        return Sum(total, now.lasting + before.lasting, now.residual + before.residual)

    def close(self, number: int, present: ClientSet | None = None) -> torch.Tensor | None:
        """Late uploads of the last round, and the sums of the closing rounds."""
        sums = []
        self._deliver()
        with suppress(ProtocolError):
            sums.append(self._closed())  # a round that was announced before its clients refused it
        for riding in self.schedule.closing(number, present):
            start = self.server.announce(since=0, closing=True)
            for i in sorted(i for clients in riding.values() for i in clients):
                self.server.receive(self.clients[i].begin(start).upload(None))
            sums.append(self._closed())
        found = [each for each in sums if each is not None]
        return sum(found[1:], found[0]) if found else None

    def _deliver(self) -> None:
        """Let uploads come that are one round late."""
        for message in self._next:
            self.server.receive(message)
        self._next = []

    def _closed(self) -> torch.Tensor | None:
        """The sum of the open round, once late uploads of the round before have come; those later still follow."""
        self._deliver()
        total = self.server.close().total
        while len(self._late) > self.plan.grace:
            for message in self._late.popleft():
                self.server.receive(message)
        return None if total is None else torch.from_numpy(total).to(self.device, torch.float32)
