"""What every channel is: from the updates of a round to a `Sum`, and which uploads repair what."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.repair import Debtors, Repairs, Settled
from lightdp.training.arrivals import Arrivals
from lightdp.training.clients import Piece

Updates: TypeAlias = Callable[[Sequence[int]], Iterable[Piece]]
"""From some clients, ascending, to their updates of a round."""


@dataclass(frozen=True)
class Sum:
    """A sum as the server gets it.

    Attributes:
        total: the noisy sum of updates; None if there is none. (parameters,)
        lasting: variance of the noise in a coordinate of it that stays in the model.
        residual: variance of the noise that later sums take out again.
    """

    total: torch.Tensor | None = None
    lasting: float = 0.0
    residual: float = 0.0

    @classmethod
    def of(cls, plan: Plan, total: torch.Tensor | None, individual: float, left: float, shared: float = 0.0) -> Sum:
        """A sum with noise of a plan.

        Args:
            plan: without repair, what stragglers leave stays.
            total: the noisy sum.
            individual: variance of the individual noise in it.
            left: variance of the noise that it shares with clients that are in no sum.
            shared: variance of the noise that it shares with uploads of the next sum, which cancel it (R5).
        """
        if plan.repairs:
            return cls(total, individual, left + shared)
        return cls(total, individual + left, shared)

    def plus(self, other: Sum) -> Sum:
        """Both sums together."""
        if self.total is None or other.total is None:
            return other if self.total is None else self
        return Sum(self.total + other.total, self.lasting + other.lasting, self.residual + other.residual)


class Channel(ABC):
    """What lies between the clients' updates and the server's sum, round by round.

    A round calls `away` (unless no budget bounds the training), `meet` and `round`, each once and in this order.
    A package that simulates a network sets `bytes_up`, `network` and `meet` of a channel that `direct` makes.

    Args:
        plan: the noise; None for none.
        parameters: length of an update.

    Attributes:
        bytes_up: bytes that a client sends in a round.
        network: what the log says about the simulated network; None without one.
        meet: from the number of a round, from 0, and who came to it, to who is in it after what the network loses. It
            is called before anybody computes an update. Without a network nobody is lost.
    """

    def __init__(self, plan: Plan | None, parameters: int) -> None:
        self.bytes_up: float = -(-parameters * (32 if plan is None else plan.wire_bits) // 8)
        self.network: dict[str, Any] | None = None
        self.meet: Callable[[int, Arrivals], Arrivals] = lambda _, came: came

    def away(self, exhausted: ClientSet) -> ClientSet:
        """Clients that stay away from the next round: the exhausted ones, and those that refuse it by their own count.

        Args:
            exhausted: clients that the next round could take over their budgets, by the count of the simulator.
        """
        return exhausted

    @abstractmethod
    def round(self, number: int, came: Arrivals, updates: Updates) -> Sum:
        """The noisy sum of a round: of its used updates and, under grace, of those that came late to the one before.

        Args:
            number: of the round, from 0.
            came: what `meet` returned.
            updates: of the clients that the channel asks for.
        """

    @abstractmethod
    def close(self, number: int, present: ClientSet | None = None) -> torch.Tensor | None:
        """What ends a roster: late updates of its last round, and the sums of its closing rounds (R4), together.

        Args:
            number: of the first closing round.
            present: who can come to closing rounds; by default everybody.
        """

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs of the channel now. Later rounds do not change the value."""
        return {}

    def load(self, state: dict[str, Any]) -> None:  # noqa: B027  nothing to load by default
        """Go on from what `state` returned."""


class Left(NamedTuple):
    """Variances of the pairwise noise that the uploads of a round do not cancel in their own sum.

    Attributes:
        used: shared by used clients with clients that are in no sum.
        next: shared with these by clients that are in the next sum.
        between: shared by used clients with those in the next sum, where it cancels.
    """

    used: float
    next: float
    between: float


class Schedule:
    """Which repairs ride in which uploads of a run (R1), when sets become final (R5), and what noise is left.

    Args:
        plan: the noise.

    Attributes:
        repairs: who owes which repair.
        waits: under grace, whom the last round will have used, once that is announced; None if there is none.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.repairs = plan, Repairs(plan.graph)
        self.waits: ClientSet | None = None

    def ride(self, number: int, senders: ClientSet) -> Debtors:
        """The repairs in the uploads of a round."""
        return self.repairs.ride(number, senders) if self.plan.repairs else {}

    def end(self, number: int, final: ClientSet) -> Settled:
        """End a round: its set is final or, under grace, that of the round before it.

        Args:
            number: of the round.
            final: clients that it uses in the end.
        """
        settled: ClientSet | None = final
        if self.plan.grace:
            number, settled, self.waits = number - 1, self.waits, final
        return Settled({}, {}) if settled is None or not self.plan.repairs else self.repairs.close(number, settled)

    def closing(self, number: int, present: ClientSet | None = None) -> Iterator[Debtors]:
        """The repairs in each closing round (R4), to which everybody `present` comes that has one to make."""
        everybody = ClientSet.all(self.plan.clients)
        coming = everybody if present is None else present
        for closing in range(number, number + 1 + self.plan.grace):
            yield self.ride(closing, coming)
            self.end(closing, everybody)
        if self.plan.grace:
            self.end(number + 2, everybody)
            self.waits = None

    def left(self, came: Arrivals) -> Left:
        """How much noise the uploads of a round leave in their sums."""
        absent, pairwise = self.repairs.absent(came.final), self.plan.sigma_pairwise**2
        whole = int(absent.sum())
        if not came.next:
            return Left(whole * pairwise, 0.0, 0.0)
        used = int(absent[came.used.flags].sum())
        between = int(self.repairs.absent(came.used).sum()) - used
        return Left(used * pairwise, (whole - used) * pairwise, between * pairwise)
