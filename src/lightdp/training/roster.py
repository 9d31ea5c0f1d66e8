"""One roster of a run: its noise, the channel between its members and the server, and what its rounds have cost."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.training import rounds
from lightdp.training.arrivals import Arrivals
from lightdp.training.channel import Channel
from lightdp.training.rounds import Came


class Impulse(NamedTuple):
    """How much of a past sum is in velocity, weights and average of weights now, in units of what one step adds.

    >>> Impulse.new(decay=0.5).later(momentum=0.5, decay=0.5)
    Impulse(velocity=0.5, weights=1.5, average=1.0)
    """

    velocity: float
    weights: float
    average: float

    @classmethod
    def new(cls, decay: float) -> Impulse:
        """Of the sum that came in with the last step, at whose average weights had this decay."""
        return cls(1.0, 1.0, 1 - decay)

    def later(self, momentum: float, decay: float) -> Impulse:
        """After one more step, with another sum."""
        velocity = self.velocity * momentum
        weights = self.weights + velocity
        return Impulse(velocity, weights, self.average * decay + (1 - decay) * weights)


@dataclass(eq=False)
class Roster:
    """Members that share noise, numbered from 0 in their order.

    Attributes:
        number: of the roster.
        members: clients of the run, ascending.
        plan: its noise; None for none.
        channel: from their updates to the noisy sum.
        stragglers: how many of them may miss a round.
        denominator: what a sum is divided by, the same in every round (R3).
        odometer: what each member has spent in this roster; None without noise.
        came: who came to each of its rounds. The list is replaced, never changed in place.
        impulse: of its last sum.
    """

    number: int
    members: tuple[int, ...]
    plan: Plan | None
    channel: Channel
    stragglers: int
    denominator: float
    odometer: Odometer | None = field(init=False)
    came: list[Came] = field(default_factory=list)
    impulse: Impulse | None = None
    _kept: list[tuple[bytes, ...]] = field(default_factory=list)  # `came` as a checkpoint has it, likewise replaced

    def __post_init__(self) -> None:
        self.odometer = None if self.plan is None else Odometer(self.plan)

    @property
    def least(self) -> int:
        """The fewest uploads that are summed."""
        return len(self.members) - self.stragglers

    def named(self, chosen: ClientSet | Sequence[int]) -> list[int]:
        """Members by their numbers in the run."""
        return [*chosen] if self._plain else [self.members[place] for place in chosen]

    def places(self, clients: set[int]) -> ClientSet:
        """Those of the clients that are members, by their places here."""
        return ClientSet.of(len(self.members), [self.place[each] for each in clients if each in self.place])

    @cached_property
    def place(self) -> dict[int, int]:
        """The place of each member here."""
        return {client: place for place, client in enumerate(self.members)}

    @cached_property
    def _plain(self) -> bool:
        """Whether the members are all clients of the run, and so have their numbers."""
        return self.members == tuple(range(len(self.members)))

    def count(self, arrived: Arrivals, grace: int) -> None:
        """Count a round."""
        self.came = [*self.came, rounds.came(arrived)]
        self._kept = [*self._kept, tuple(each.to_bytes() for each in self.came[-1])]
        if self.odometer is not None:
            rounds.count(self.odometer, self.came, grace)

    def settle(self) -> None:
        """Count a last round whose set was not final: nothing follows that could use more of its uploads."""
        if self.odometer is not None and self.odometer.waits is not None and self.came:
            self.odometer.record(*rounds.final(self.came[-1]))

    def elsewhere(self, before: Mapping[int, Mapping[float, int]]) -> list[Mapping[float, int]] | None:
        """What each member spent `before`; None if none of them did.

        Args:
            before: of clients of the run that were in other rosters, the μ² of their rounds there.
        """
        found = [before.get(client, {}) for client in self.members] if before else []
        return found if any(found) else None

    def epsilon(self, before: Mapping[int, Mapping[float, int]]) -> list[float]:
        """What each member has spent, also `before`, with the last round as it will be final; nothing without noise.

        Args:
            before: as for `elsewhere`.
        """
        if (own := self._settled) is None:
            return []
        elsewhere = self.elsewhere(before)
        if elsewhere is None:
            return own.epsilon().tolist()
        return [gaussian.epsilon(math.sqrt(total), own.plan.delta) for total in _totals(own, elsewhere)]

    def max_epsilon(self, before: Mapping[int, Mapping[float, int]]) -> float:
        """The largest `epsilon`; 0 without noise."""
        if (own := self._settled) is None:
            return 0.0
        elsewhere = self.elsewhere(before)
        if elsewhere is None:
            return own.max_epsilon()
        return gaussian.epsilon(math.sqrt(max(_totals(own, elsewhere))), own.plan.delta)

    @property
    def _settled(self) -> Odometer | None:
        """The odometer with the last round as it will be final; to be read."""
        if self.odometer is None or self.odometer.waits is None:
            return self.odometer
        settled = self.odometer.copied()
        settled.record(*rounds.final(self.came[-1]))
        return settled

    def squares(self) -> list[Counter[float]]:
        """μ² of every round of each member at its worst (W5); nothing of a member that never sent an upload."""
        if self.odometer is None:
            return [Counter() for _ in self.members]
        nobody = ClientSet.none(len(self.members))
        sent = functools.reduce(operator.or_, (each for one in self.came for each in one), nobody)
        found = self.odometer.counted(worst=True).squares()
        return [each if place in sent else Counter() for place, each in enumerate(found)]

    def state(self) -> dict[str, Any]:
        """For a checkpoint; later rounds do not change the value."""
        impulse = None if self.impulse is None else tuple(self.impulse)
        return {"members": self.members, "came": self._kept, "impulse": impulse, "channel": self.channel.state()}

    def load(self, state: Mapping[str, Any], grace: int) -> None:
        """Go on from what `state` returned."""
        size, self._kept = len(self.members), state["came"]
        sets = ([ClientSet.from_bytes(each, size) for each in one] for one in self._kept)
        self.came = [(used, joins, late) for used, joins, late in sets]
        self.impulse = None if state["impulse"] is None else Impulse(*state["impulse"])
        self.channel.load(state["channel"])
        if self.odometer is not None:
            for over in range(1, len(self.came) + 1):
                rounds.count(self.odometer, self.came[:over], grace)


def _totals(own: Odometer, elsewhere: Sequence[Mapping[float, int]]) -> list[float]:
    """μ² of each client in this roster and elsewhere: they add up, as a run with several rosters has whole batches."""
    more = [math.fsum(square * count for square, count in squares.items()) for squares in elsewhere]
    return (own.mu() ** 2 + more).tolist()
