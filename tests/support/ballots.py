"""What must become of the uploads of a round that are bound to different things (W4), kept by hand beside a server."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from lightdp.planning import Plan


class Bound(Protocol):
    """An upload: whose it is, and what it is bound to."""

    client: int
    given: bytes | None


S = TypeVar("S", bound=Bound)


def early(plan: Plan) -> int:
    """How many must be bound alike before a round's set is final, so that they are on time."""
    majority = plan.clients // 2 + 1
    return max(plan.colluders + 1, min(majority, plan.clients - plan.stragglers))


@dataclass(eq=False)
class Ballot(Generic[S]):
    """One round: uploads that may be in its sum, and clients whose uploads were left out."""

    came: tuple[S, ...] = ()
    left_out: frozenset[int] = frozenset()
    named: frozenset[int] = frozenset()  # of these
    chosen: tuple[bytes | None, ...] = ()  # what the sum is bound to, once that is chosen
    votes: dict[bytes | None, int] = field(default_factory=dict)  # of two sums at most, before

    def copied(self) -> Ballot[S]:
        return Ballot(self.came, self.left_out, self.named, self.chosen, dict(self.votes))

    def takes(self, s: S) -> bool:
        """Whether an upload can be in the sum."""
        return s.given in self.chosen if self.chosen else s.given in self.votes or len(self.votes) < 2

    def receives(self, s: S) -> bool:
        """Note an upload; whether it can be in the sum."""
        if self.takes(s):
            self.came = (*self.came, s)
            self.votes[s.given] = self.votes.get(s.given, 0) + 1
            return True
        gone = set() if self.chosen else {given for given, count in self.votes.items() if count == 1}
        self._leaves_out(gone)
        self.left_out |= {s.client}
        if not self.chosen:
            self.votes = {given: count - 1 for given, count in self.votes.items() if count > 1}
        return False

    def settles(self, least: int = 1) -> None:
        """Choose what most uploads are bound to, of equals the first, if these are enough."""
        [(best, count)] = Counter(s.given for s in self.came).most_common(1) or [(None, 0)]
        if not self.chosen and count >= least:
            self.chosen = (best,)
        if self.chosen:
            self._leaves_out({s.given for s in self.came} - {*self.chosen})

    def newly_left_out(self) -> frozenset[int]:
        """Who is newly left out."""
        found = self.left_out - self.named
        self.named |= found
        return found

    def crashes(self, on_time: frozenset[int]) -> None:
        """Of a server that resumes only who was on time is left, and all who were left out are named once more."""
        self.came = tuple(s for s in self.came if s.client in on_time)
        self.named, self.votes = frozenset(), {}

    def _leaves_out(self, gone: set[bytes | None]) -> None:
        self.left_out |= {s.client for s in self.came if s.given in gone}
        self.came = tuple(s for s in self.came if s.given not in gone)
