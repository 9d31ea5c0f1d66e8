"""Who is in which roster of a run, whose turn it is, and what each client has spent in all of its rosters (C1).

`lightdp.federation.Cohorts` keeps the books; here members come and go by chance (`lightdp.training.churn`), and leave
once they have no budget for another round. A run without population and churn has one roster of all clients for good.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import BudgetError
from lightdp.federation import Cohorts
from lightdp.planning import Plan
from lightdp.training import churn, rounds
from lightdp.training.config import Config
from lightdp.training.roster import Roster

_PURPOSE = int.from_bytes(b"mate")
_FOREVER = 2**62


class Membership:
    """The rosters of a run, and the one ledger of each client.

    Guarantee: a client takes part in a round only if its roster's reserve for it and all that it spent in earlier
    rosters, each at its worst, are within the budget of the plan.

    Args:
        config: the settings.
        plan: the noise of a roster of `config.clients`; None for none.
        make: from number, members and plan to a roster.

    Attributes:
        rosters: those that take turns, by number.
        away: clients that have left and may come back.
        out: clients that have no budget for another round, and are in no roster.
        formed: rosters that were formed since the last round, as the log has them.
        closed: rosters that were closed since the last round, likewise.
    """

    def __init__(
        self, config: Config, plan: Plan | None, make: Callable[[int, tuple[int, ...], Plan | None, int], Roster]
    ) -> None:
        self.config, self.plan, self._make = config, plan, make
        self.rosters: dict[int, Roster] = {}
        self.away: set[int] = set()
        self.out: set[int] = set()
        self.formed: list[dict[str, Any]] = []
        self.closed: list[dict[str, Any]] = []
        self._moved = -1  # the last round before which members came and went
        self._plans: dict[int, Plan | None] = {} if config.federated else {config.clients: plan}
        self._empty = None if plan is None else Odometer(plan, [0])  # of a client that is new
        self._spent: dict[int, dict[float, int]] = {}  # by clients in rosters that are over; replaced, never changed
        self._cohorts: Cohorts[int] = Cohorts(
            config.clients, bears=self._bears, least=config.least, consecutive=config.consecutive,
            patience=config.patience if config.federated else _FOREVER, shuffle=self._shuffle,
        )  # fmt: skip
        for size in {self._cohorts.least, 2 * config.clients - 1} if config.federated else ():
            self._plan(size)  # or there is none, before anything is trained
        for client in range(config.members):
            self._cohorts.join(client)
        self._form()

    @property
    def waiting(self) -> list[int]:
        """Clients that are in no roster, and wait for one."""
        return sorted(self._cohorts.waiting)

    @property
    def spent(self) -> list[int]:
        """Clients that have no budget for another round."""
        return sorted(self.out.union(*(each.left for each in self._cohorts.rosters.values())))

    def come_and_go(self, number: int) -> None:
        """Let members leave and come back before a round; nobody says so to the server who leaves a roster."""
        if number <= self._moved:
            return  # a run that went on from a checkpoint
        self._moved = number
        leaving, coming = churn.changed(self.config.churn, self.config.members, self.config.seed, number)
        before = set(self.away)
        self.away |= set(leaving)
        self.away -= before & set(coming)
        for client in sorted(self.away ^ before):
            if client not in self.away and client not in self.out:
                self._cohorts.join(client)
            elif self._cohorts.waits(client):
                self._cohorts.leave(client)

    def next(self) -> tuple[Roster, ClientSet] | None:
        """The roster whose turn it is, and its members without budget; None if no roster can be formed now.

        Rosters are formed of those who wait. A roster that has lost more members than it can bear is returned too:
        whoever asks closes it, by `close`, and asks again.

        Raises:
            BudgetError: too many clients have used up their budgets.
        """
        for number in self._cohorts.failing():
            return self.rosters[number], ClientSet.none(len(self.rosters[number].members))
        self._form()
        cohort = self._cohorts.turn()
        if cohort is None:
            able = self.config.members - len(self.out)
            if able < self._cohorts.least:
                raise BudgetError(f"{len(self.out)} clients have used up their budgets")
            return None
        roster = self.rosters[cohort.number]
        exhausted = self._exhausted(roster)
        cohort.left = set(roster.named(exhausted))
        if len(exhausted) > cohort.bears and not self.config.federated:
            raise BudgetError(f"{len(exhausted)} clients have used up their budgets")
        return roster, exhausted

    @property
    def hopeless(self) -> bool:
        """Whether no roster can be formed any more: nobody comes back, and too few wait."""
        return not self.rosters and churn.chances(self.config.churn)[1] == 0

    def failing(self, roster: Roster) -> bool:
        """Whether a roster has lost more members than it can bear."""
        return roster.number in self._cohorts.failing()

    def present(self, roster: Roster) -> ClientSet:
        """The members of a roster that are there."""
        return ~roster.places(self.away)

    def played(self, roster: Roster, sent: ClientSet) -> None:
        """Count a round of a roster, for whose turn it is and who is gone."""
        self._cohorts.played(roster.number, roster.named(sent))

    def close(self, roster: Roster) -> None:
        """End a roster: what it cost is kept, and its members that are there and have budget left wait for another."""
        gone = self._cohorts.rosters[roster.number].left
        self._cohorts.close(roster.number)
        new = {client: squares for client, squares in zip(roster.members, roster.squares(), strict=True) if squares}
        more = {client: dict(Counter(self._spent.get(client, {})) + squares) for client, squares in new.items()}
        self._spent = self._spent | more
        for client in roster.members:
            if client in gone or not self._affordable(client):
                self.out.add(client)
            if client in self.out or client in self.away:
                self._cohorts.leave(client)
            else:
                self._cohorts.join(client)
        del self.rosters[roster.number]
        self.closed.append(self._end(roster))

    def epsilon(self) -> list[float] | None:
        """What each client has spent in all its rosters, those that are closed at their worst; None without noise."""
        if self.plan is None:
            return None
        found = [0.0] * self.config.members
        for roster in self.rosters.values():
            for client, epsilon in zip(roster.members, roster.epsilon(self._spent), strict=True):
                found[client] = epsilon
        seated = {client for roster in self.rosters.values() for client in roster.members}
        for client, squares in self._spent.items():
            if client not in seated:
                found[client] = self._alone(squares)
        return found

    def max_epsilon(self) -> float | None:
        """The ε of the client that has spent most; None without noise."""
        if self.plan is None:
            return None
        total = lambda squares: math.fsum(square * count for square, count in squares.items())  # noqa: E731
        most = max(self._spent.values(), key=total, default={})
        return max([self._alone(most), *(roster.max_epsilon(self._spent) for roster in self.rosters.values())])

    def facts(self, roster: Roster | None) -> dict[str, Any]:
        """What the line of a round says of members, and of rosters that were formed and closed since the last one.

        Args:
            roster: whose round it is.
        """
        if not self.config.federated:
            return {}
        formed, closed, self.formed, self.closed = self.formed, self.closed, [], []
        return {
            "roster": None if roster is None else roster.number, "formed": formed, "closed": closed,
            "away_clients": sorted(self.away), "waiting_clients": self.waiting, "spent_clients": self.spent,
        }  # fmt: skip

    def ending(self) -> dict[str, Any]:
        """What the last line says of them, once all rosters are closed."""
        grace = self.config.grace_rounds
        if not self.config.federated:
            return rounds.joined(self.rosters[0].came, grace)
        closed = [*self.closed, *map(self._end, self.rosters.values())]
        return {"epsilon_clients": self.epsilon(), "closed": closed}

    def _end(self, roster: Roster) -> dict[str, Any]:
        joined = rounds.joined(roster.came, self.config.grace_rounds, roster.members)
        return {"roster": roster.number} | {name: found for name, found in joined.items() if name != "joined"}

    def state(self) -> dict[str, Any]:
        """For a checkpoint; later rounds do not change the value."""
        return {
            "cohorts": self._cohorts.to_dict(),
            "rosters": {number: roster.state() for number, roster in self.rosters.items()},
            "away": sorted(self.away),
            "out": sorted(self.out),
            "moved": self._moved,
            "formed": [*self.formed],
            "closed": [*self.closed],
            "spent": self._spent,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; nothing if that is empty."""
        if not state:
            return
        self._cohorts.load_dict(state["cohorts"])
        self.rosters, self.formed, self.closed = {}, [*state["formed"]], [*state["closed"]]
        for number, facts in state["rosters"].items():
            self.rosters[number] = self._made(number, facts["members"])
            self.rosters[number].load(facts, self.config.grace_rounds)
        self.away, self.out, self._moved = set(state["away"]), set(state["out"]), state["moved"]
        self._spent = state["spent"]

    def _alone(self, squares: Mapping[float, int]) -> float:
        """The ε of these rounds of a client."""
        if self.plan is None or not squares:
            return 0.0
        total = math.fsum(square * count for square, count in squares.items())
        return gaussian.epsilon(math.sqrt(total), self.plan.delta)

    def _form(self) -> None:
        """Form rosters of those who wait: of `least` only where none is left.

        On Flower's nodes more are waited for first, for so many seconds as `wait` says; then `least` are a roster also
        beside others. Here no time passes.
        """
        for number in self._cohorts.form(force=not self._cohorts.rosters):
            members = tuple(sorted(self._cohorts.rosters[number].members))
            self.rosters[number] = self._made(number, members)
            self.formed.append({"roster": number, "members": [*members]})

    def _made(self, number: int, members: tuple[int, ...]) -> Roster:
        return self._make(number, members, self._plan(len(members)), self._bears(len(members)))

    def _plan(self, clients: int) -> Plan | None:
        """The noise of a roster of so many clients."""
        if clients not in self._plans:
            self._plans[clients] = None if self.plan is None else self.plan.among(clients)
        return self._plans[clients]

    def _bears(self, clients: int) -> int:
        plan = self._plan(clients)
        return min(self.config.stragglers, clients - 2) if plan is None else plan.stragglers

    def _exhausted(self, roster: Roster) -> ClientSet:
        """Members that the next round could take over their budgets, by the count of the server or their own (R8)."""
        if roster.odometer is None or self.config.unbounded:
            return ClientSet.none(len(roster.members))
        return roster.channel.away(roster.odometer.exhausted(roster.elsewhere(self._spent)))

    def _affordable(self, client: int) -> bool:
        """Whether a client has budget for one round of a new roster."""
        if self._empty is None or self.config.unbounded:
            return True
        return not self._empty.exhausted([self._spent.get(client, {})])

    def _shuffle(self, clients: list[int]) -> None:
        if not self.config.federated:
            return
        clients.sort()
        entropy = [self.config.seed, _PURPOSE, self._cohorts.next_number]
        np.random.default_rng(entropy).shuffle(clients)  # noqa: TID251  who is with whom protects nothing
