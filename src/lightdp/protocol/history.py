"""What one client knows of a run: who was used in each past round, and what follows from it.

Everything a client decides (keys, repairs, cost) is a function of the roster, the announced sets and the rounds in
which it sent. So its state on disk is these facts alone, and a restart recomputes the rest.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import link
from lightdp.repair import RETRIES
from lightdp.wire import members

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightdp.planning import Plan


@dataclass(frozen=True)
class Repair:
    """Pairwise terms of a round in which the client was used, to be taken out of the sum again (R1)."""

    round: int
    absent: tuple[int, ...]
    tries: int  # uploads that may still carry it


class ClientHistory:
    """The announced past of one client's run (W4), and what it makes of it."""

    def __init__(self, plan: Plan, me: int, start: bytes, neighbours: Iterable[int]) -> None:
        self.plan = plan
        self.me = me
        self.neighbours = tuple(neighbours)
        self.odometer = Odometer(plan, [me])
        self.used: list[bytes] = []  # a bitmap for each past round
        self.sent: set[int] = set()
        self.closing: int | None = None  # the round in which it sent without data
        self.chains = [start]  # chains[t] goes into the keys of round t
        self.repair: Repair | None = None

    @property
    def pending(self) -> bool:
        """Whether it has sent data in a round of which it does not know yet who was used."""
        return len(self.used) in self.sent and len(self.used) != self.closing

    def copied(self) -> ClientHistory:
        """A history that learns apart from this one; what never changes is shared."""
        return copy.deepcopy(self, {id(fixed): fixed for fixed in (self.plan, self.neighbours)})

    def learn(self, history: Iterable[tuple[int, bytes]]) -> None:
        """Take in the sets of past rounds.

        Raises:
            ProtocolError: they leave a gap, contradict what is known, or break the protocol's rules.
        """
        for number, used in history:
            if number > len(self.used):
                raise ProtocolError(f"announcement leaves out round {len(self.used)}")
            if number == len(self.used):
                self._add(number, used)
            elif self.used[number] != used:
                raise ProtocolError(f"announcement of round {number} contradicts an earlier one")

    def _add(self, number: int, used: bytes) -> None:
        flags = members(used, self.plan.clients)
        mine = bool(flags[self.me])
        if mine and number not in self.sent:
            raise ProtocolError(
                f"announcement says that client {self.me} was used in round {number}, which it did not send"
            )
        late: list[int] = []
        if self.plan.late == "seen" or not flags.any():  # uploads of a void round came in time: they were seen
            late = [c for c in np.flatnonzero(~flags).tolist() if c != self.me or number in self.sent]
        try:
            self.odometer.record(np.flatnonzero(flags).tolist(), late)
        except ArgumentError as error:
            raise ProtocolError(f"announcement of round {number} breaks the protocol: {error}") from None
        self.used.append(used)
        self.chains.append(link(self.chains[-1], round=number, announcement=used))
        if mine:
            absent = tuple(j for j in self.neighbours if not flags[j])
            repairs = self.plan.repairs and absent != ()
            self.repair = Repair(number, absent, RETRIES + 1) if repairs else None
        elif self.repair is not None and number in self.sent:
            tries = self.repair.tries - 1
            self.repair = Repair(self.repair.round, self.repair.absent, tries) if tries > 0 else None
