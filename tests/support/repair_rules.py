"""The rules of (R1) and (R5) for one client, as they are written, from the beginning each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightdp.repair import RETRIES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightdp.client_set import ClientSet


@dataclass
class Rules:
    """Which upload of a client repairs which round.

    Attributes:
        me: the client.
        neighbours: who shares noise with it.
        used: the final set of each round, as far as they are known.
        sent: rounds in which the client sent.
        grace: rounds by which sets are known later.
    """

    me: int
    neighbours: Sequence[int]
    used: Sequence[ClientSet | Collection[int]]
    sent: Collection[int]
    grace: int
    _carried: dict[int, int | None] = field(default_factory=dict)

    def absent(self, of: int) -> tuple[int, ...]:
        """Neighbours that the client missed in a round in which it was used itself."""
        used = self.used[of]
        return tuple(j for j in self.neighbours if j not in used) if self.me in used else ()

    def fates(self, of: int, before: int) -> list[str]:
        """What became of each upload before a round that carried the repair of `of`, as far as it is known then."""
        carriers = [s for s in sorted(self.sent) if of < s < before and self.carries(s) == of]
        return [
            "open" if s >= before - self.grace else "used" if self.me in self.used[s] else "missed" for s in carriers
        ]

    def owes(self, of: int, before: int) -> bool:
        """Whether, when uploads of round `before` are made, the repair of `of` waits or is in flight."""
        if not self.absent(of):
            return False
        fates = self.fates(of, before)
        return "used" not in fates and fates.count("missed") <= RETRIES

    def carries(self, number: int) -> int | None:
        """Which round the upload of a round repairs."""
        if number not in self._carried:
            known = range(min(max(number - self.grace, 0), len(self.used)))
            waiting = (of for of in known if self.owes(of, number) and "open" not in self.fates(of, number))
            self._carried[number] = next(waiting, None)
        return self._carried[number]

    def given_up(self) -> list[int]:
        """Rounds whose repair was in as many uploads as may carry it, none of which was used."""
        end = len(self.used) + self.grace
        owed = [of for of in range(len(self.used)) if self.absent(of)]
        return [of for of in owed if self.fates(of, end).count("missed") > RETRIES]
