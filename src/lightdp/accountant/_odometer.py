"""The odometer of (R1) and (R2): which rounds happened, what they cost, and whether another may begin."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lightdp._validate import integer
from lightdp.accountant._composers import Composer, GaussianComposer, SampledComposer
from lightdp.accountant._costs import ConstantCosts, Costs, Open, RepairCosts
from lightdp.accountant._ledger import Ledger, LedgerList, Ledgers
from lightdp.accountant._table import LedgerTable
from lightdp.accountant._table_costs import ConstantTableCosts, RepairTableCosts
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, BudgetError
from lightdp.neighbourhood import Neighbourhood, Whole
from lightdp.planning import Plan

_FEW = 64  # clients, up to which they are counted faster one by one than as arrays
_ROUND_UP = 1 + 4e-15  # more than the ten roundings from a cost to μ² and to a cost of another roster


class Odometer:
    """What each tracked client has spent, from the straggler sets that happened (R1)-(R2).

    Formal guarantee: if a client uploads only after `admit`, and every round is recorded, the adversary's view of its
    data is (`epsilon`, plan.delta)-DP and `epsilon` never exceeds plan.budget, for every sequence of straggler sets and
    whether or not the server saw uploads that came too late. If the server told clients different sets, the budget
    holds too, and `counted(worst=True)` bounds what is true (W5). With plan.late = "unseen" this holds as long as such
    uploads stay unseen: one that was seen after all is counted, but no budget was reserved for it. Straggler sets may
    depend on earlier rounds where whole batches are used (a privacy filter); with sampled batches they must not.

    | round of a client | its cost k under repair | otherwise |
    | --- | --- | --- |
    | used | (1 + γ)/(aγ + 1), more while peers repair a late round of it | 1 |
    | too late, perhaps seen | at most (2 + 1/γ)/a + 1/a_min, more for repairs that come late too, at most 1 | as used |
    | too late, unseen as the plan says | 0 | 0 |
    | in a void round, perhaps seen | as used, with a = n | as used |
    | never sent | 0 | 0 |

    >>> import lightdp
    >>> plan = lightdp.plan(
    ...     clients=50, colluders=10, stragglers=10, rounds=20, epsilon=3, delta=1e-5, calibration="exact"
    ... )
    >>> odometer = lightdp.Odometer(plan)
    >>> for _ in range(20):
    ...     odometer.admit()
    ...     odometer.record(used=range(45), late=[47])
    >>> odometer.max_epsilon() <= 3
    True
    >>> odometer.admit()
    Traceback (most recent call last):
    ...
    lightdp.errors.BudgetError: round 21 could take client 0 to epsilon=3.08427, over the budget of 3 at delta=1e-05

    Args:
        plan: the noise, the budget and δ.
        clients: whom to track, by default all clients of the plan.
        near: track the client of this neighbourhood alone, from sets of its places.

    Attributes:
        plan: as given.
        clients: whom it tracks.
        rounds: how many rounds were recorded.
        waits: the round after these, if it was announced and its set is not final yet (R5).
    """

    def __init__(self, plan: Plan, clients: Sequence[int] | None = None, *, near: Neighbourhood | None = None) -> None:
        self.plan = plan
        self.rounds = 0
        self.waits: Open | None = None
        self._near, self._among = near, plan.clients if near is None else near.clients  # the size of all sets
        clients = clients if near is None else [near.place]
        checked = [] if clients is None else [integer("clients", c, 0, self._among - 1) for c in clients]
        self.clients = list(range(plan.clients)) if clients is None else checked
        self._ledgers: Ledgers
        self._costs: Costs
        if len(self.clients) > _FEW:
            self._ledgers = LedgerTable(len(self.clients))
            self._costs = (RepairTableCosts if plan.repairs else ConstantTableCosts)(plan, self.clients)
        else:
            self._ledgers = LedgerList([Ledger() for _ in self.clients])
            self._costs = RepairCosts(plan, self.clients, near) if plan.repairs else ConstantCosts(plan, self.clients)
        self._composer: Composer = (GaussianComposer if plan.sampling_rate == 1 else SampledComposer)(plan)

    def admit(self, elsewhere: Mapping[float, int] | None = None) -> None:
        """Let the next round begin for every tracked client, whatever its stragglers will be.

        Args:
            elsewhere: what else each of them has spent of the same budget, as `squares` returns it: in other rosters.

        Raises:
            BudgetError: it could take a tracked client over the budget; nothing was spent.
        """
        after = self._after([elsewhere] * len(self.clients) if elsewhere else None)
        if over := self._over(after):
            most = over[int(np.argmax(after.totals()[over]))]
            client = self.clients[most] if self._near is None else self._near.me
            raise BudgetError(
                f"round {self.rounds + 1} could take client {client} to "
                f"epsilon={self._composer.epsilon(after[most]):.6g}, "
                f"over the budget of {self.plan.budget:g} at delta={self.plan.delta:g}"
            )

    def exhausted(self, elsewhere: Sequence[Mapping[float, int]] | None = None) -> ClientSet:
        """(R8): tracked clients that the next round could take over the budget. They stay away; others go on.

        Args:
            elsewhere: what else each tracked client has spent of the same budget, as `squares` returns it.
        """
        return ClientSet.of(self._among, [self.clients[at] for at in self._over(self._after(elsewhere))])

    def record(
        self,
        used: ClientSet | Iterable[int],
        late: ClientSet | Iterable[int] | None = None,
        *,
        whole: Whole | None = None,
    ) -> None:
        """Count a round that happened.

        Args:
            used: clients whose uploads the server added. Empty: the round was void, with fewer than the minimum.
            late: other clients whose uploads the adversary may have seen. By default every other client: one cannot
                know whether what was sent was seen. If the plan says that late uploads are unseen, then nobody, but
                still everybody of a void round, whose uploads came in time.
            whole: what the used clients are in all, where `used` names those of a neighbourhood.

        Raises:
            ArgumentError: the sets cannot be those of a round; nothing was counted.
        """
        used, late, whole = self._sets(used, late, whole)
        least = self.plan.clients - self.plan.stragglers
        if 0 < (found := whole.members) < least:
            raise ArgumentError(f"used must name at least {least} clients or, for a void round, none; got {found}")
        self._costs.record(self._ledgers, used, late, whole)
        self.rounds, self.waits = self.rounds + 1, None

    def open(self, on_time: ClientSet | Iterable[int], late: ClientSet | Iterable[int] | None = None) -> None:
        """Take in the next round before its set is final (R5): until `record` tells it, it counts at its worst.

        Args:
            on_time: clients whose uploads came in time.
            late: other clients who may have sent in the round; by default every other one.

        Raises:
            ArgumentError: a client is in both sets; nothing changed.
        """
        on_time = ClientSet.of(self._among, on_time, name="on_time")
        late = ~on_time if late is None else ClientSet.of(self._among, late, name="late")
        if not on_time.isdisjoint(late):
            raise ArgumentError(f"late must not name clients that were on time, got {list(on_time & late)} in both")
        self.waits = Open(on_time, late)

    def _sets(
        self, used: ClientSet | Iterable[int], late: ClientSet | Iterable[int] | None, whole: Whole | None
    ) -> tuple[ClientSet, ClientSet, Whole]:
        used = ClientSet.of(self._among, used, name="used")
        if whole is None and self._near is not None:
            raise ArgumentError("whole must be given with sets of a neighbourhood, got whole=None")
        whole = Whole(len(used)) if whole is None else whole
        integer("members", whole.members, len(used), self.plan.clients)
        if late is None:
            late = ClientSet.none(self._among) if not self.plan.late_is_seen and whole.members > 0 else ~used
        late = ClientSet.of(self._among, late, name="late")
        if not used.isdisjoint(late):
            raise ArgumentError(f"late must not name used clients, got {list(used & late)} in both")
        return used, late, whole

    def epsilon(self, delta: float | None = None) -> NDArray[np.float64]:
        """What each tracked client has spent, rounded up, at `delta` or the plan's δ. (clients,)"""
        return np.array([self._composer.epsilon(ledger, delta) for ledger in self._ledgers])

    def mu(self) -> NDArray[np.float64]:
        """What each tracked client has spent, as μ of μ-GDP. (clients,)

        With sampled batches it is what whole batches would have cost, which bounds it from above.
        """
        share, totals = self.plan.sensitivity / self.plan.scale, self._ledgers.totals()
        return np.asarray(np.sqrt(totals + self.plan.masks.cost * (totals > 0)) * share)

    def squares(self) -> list[Counter[float]]:
        """μ² of every round of each tracked client, rounded up, and how many have it; they add up over rosters (C1).

        What drawn masks add to all rounds together counts as one more of them (B2).
        """
        share = (self.plan.sensitivity / self.plan.scale) ** 2 * _ROUND_UP
        found = [Counter[float]() for _ in self.clients]
        for ledger, squares in zip(self._ledgers, found, strict=True):
            for cost, count in (ledger.usual + Counter(ledger.rare)).items():
                squares[cost * share] += count  # two costs may be rounded to one
            if self.plan.masks.cost > 0 and ledger.total() > 0:
                squares[self.plan.masks.cost * share] += 1
        return found

    def beside(self, elsewhere: Sequence[Mapping[float, int]]) -> Odometer:
        """An odometer that counts other rounds of each tracked client too, as `squares` returns them; to be read."""
        return self._with(self._added(self._ledgers.copied(), elsewhere))

    def counted(self, *, ahead: bool = False, worst: bool = False) -> Odometer:
        """An odometer that counts a round whose set is not final too, at its worst, and more if asked; to be read.

        Args:
            ahead: one more round too, at its worst case, whatever was announced to whom.
            worst: what is true at worst if clients were told different histories (W5).
        """
        if not ahead and not worst and self.waits is None:
            return self
        return self._with(self._reserved(ahead=ahead, lies=worst))

    def alone(self, uploads: int) -> Odometer:
        """An odometer of so many uploads of each client that were all seen and hid behind σ = `plan.scale` alone.

        That is the most that they cost if late="unseen" was not true, whatever was announced to whom.
        """
        ledgers = self._ledgers.emptied()
        ledgers.put(1.0, integer("uploads", uploads, 0))
        return self._with(ledgers)

    def max_epsilon(self) -> float:
        """The ε of the client that has spent most; with sampled batches an upper bound on it, by one composition."""
        return self._composer.max_epsilon(self._ledgers)

    def remaining(self, rounds: int = 0) -> float:
        """The ε left to the client that has spent most, after `rounds` more used rounds with S̄ stragglers each.

        Negative when the budget does not last that long.
        """
        after = self._reserved(ahead=False)
        after.put(self._costs.usual, integer("rounds", rounds, 0))
        return self.plan.budget - max(self._composer.epsilon(ledger) for ledger in after)

    def copied(self) -> Odometer:
        """An odometer that goes on by itself from here; what was composed so far is shared."""
        return self._with(self._ledgers.copied())

    def _with(self, ledgers: Ledgers) -> Odometer:
        result = copy.copy(self)
        vars(result)["_ledgers"] = ledgers
        return result

    def _reserved(self, *, ahead: bool, lies: bool = False) -> Ledgers:
        found: Ledgers = self._costs.reserved(self._ledgers, self.waits, ahead=ahead, lies=lies)
        return found

    def _added(self, ledgers: Ledgers, elsewhere: Sequence[Mapping[float, int]]) -> Ledgers:
        unit = (self.plan.sensitivity / self.plan.scale) ** 2
        ledgers.add([{square / unit: count for square, count in more.items()} for more in elsewhere])
        return ledgers

    def _after(self, elsewhere: Sequence[Mapping[float, int]] | None) -> Ledgers:
        """The ledgers after one more round, at its worst."""
        after = self._reserved(ahead=True)
        return after if elsewhere is None else self._added(after, elsewhere)

    def _over(self, after: Ledgers) -> list[int]:
        """Places of the tracked clients that are over the budget."""
        fits = self._composer.fit(after, left=self.plan.turns - self.rounds, usual=self._costs.usual)
        return [] if fits else self._composer.over(after)
