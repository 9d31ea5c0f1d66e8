"""Who is in which roster, and whose turn it is: the bookkeeping of a training whose members come and go (C1)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lightdp._validate import integer
from lightdp.errors import ArgumentError

M = TypeVar("M", bound=Hashable)

_SHUFFLE = secrets.SystemRandom().shuffle


@dataclass(eq=False)
class Cohort(Generic[M]):
    """The members of one roster.

    Attributes:
        number: of the roster.
        members: who they are, for good.
        bears: how many of them may be gone.
        missed: how many of its last rounds in a row each member missed.
        left: members that said so, or can take no further round.
        rounds: how many it has had in the present turn.
        void: to how many of its last rounds in a row too few of them came.
    """

    number: int
    members: tuple[M, ...]
    bears: int
    missed: dict[M, int] = field(default_factory=dict)
    left: set[M] = field(default_factory=set)
    rounds: int = 0
    void: int = 0

    def gone(self, patience: int) -> set[M]:
        """Members that left, or missed so many rounds in a row; these are back once they answer again."""
        return self.left | {member for member, missed in self.missed.items() if missed >= patience}


class Cohorts(Generic[M]):
    """Forms rosters of those who wait, lets them take turns, and closes those that lost too many.

    Rosters are fixed and take turns, so a member is in one roster at a time and keeps room for lies (W5) once. Each has
    at least `size` members and fewer than twice as many, so that nobody is left over.

    >>> cohorts = Cohorts(size=2, bears=lambda members: 0, shuffle=lambda members: None)
    >>> for name in ("ann", "bob", "eve", "dan", "joe"):
    ...     cohorts.join(name)
    >>> cohorts.form()
    [0, 1]
    >>> [cohort.members for cohort in cohorts.rosters.values()]
    [('ann', 'eve', 'joe'), ('bob', 'dan')]
    >>> for _ in range(3):
    ...     turn = cohorts.turn()
    ...     cohorts.played(turn.number, turn.members)
    ...     print(turn.number)
    0
    1
    0

    Args:
        size: least number of members of a roster where enough wait.
        bears: how many of so many members may be gone before the roster is closed: its plan's stragglers.
        least: members of which a roster is formed if no more come; `size` by default.
        patience: how many of its rounds in a row a member may miss before it counts as gone.
        consecutive: rounds of a turn.
        shuffle: puts a list into random order, in place.

    Attributes:
        rosters: those that take turns, by number.
        next_number: of the next roster that is formed.
    """

    def __init__(
        self,
        size: int,
        *,
        bears: Callable[[int], int],
        least: int | None = None,
        patience: int = 3,
        consecutive: int = 1,
        shuffle: Callable[[list[M]], None] = _SHUFFLE,
    ) -> None:
        self.size = integer("size", size, 2)
        self.least = self.size if least is None else integer("least", least, 2, size)
        self.patience, self.consecutive = integer("patience", patience, 1), integer("consecutive", consecutive, 1)
        self.rosters: dict[int, Cohort[M]] = {}
        self.next_number = 0
        self._bears, self._shuffle = bears, shuffle
        self._waiting: dict[M, None] = {}  # in the order in which they came
        self._homes: dict[M, int] = {}  # the roster of each member that is in one
        self._order: list[int] = []  # of turns: the first is the roster that plays, or played last

    @property
    def waiting(self) -> list[M]:
        """Members that are in no roster, in the order in which they came."""
        return [*self._waiting]

    def waits(self, member: M) -> bool:
        """Whether a member waits for a roster."""
        return member in self._waiting

    def home(self, member: M) -> Cohort[M] | None:
        """The roster of a member, or None."""
        return self.rosters[self._homes[member]] if member in self._homes else None

    def join(self, member: M) -> None:
        """Let a member wait for a roster; one that is in a roster is welcome back there."""
        home = self.home(member)
        if home is not None:
            home.left.discard(member)
            home.missed.pop(member, None)
        else:
            self._waiting.setdefault(member)

    def leave(self, member: M) -> None:
        """Let a member go: it waits for nothing, and its roster has one less to bear."""
        if member in self._waiting:
            del self._waiting[member]
        elif (home := self.home(member)) is not None:
            home.left.add(member)

    def form(self, *, force: bool = False) -> list[int]:
        """Make rosters of those who wait, if there are enough of them.

        Args:
            force: whether `least` are enough; otherwise `size`.

        Returns:
            The numbers of the new rosters. They come after the others in turn.
        """
        if len(self._waiting) < (self.least if force else self.size):
            return []
        members, self._waiting = self.waiting, {}
        self._shuffle(members)
        count = max(len(members) // self.size, 1)
        made = []
        for at in range(count):
            chosen = tuple(members[at::count])
            self.rosters[self.next_number] = Cohort(self.next_number, chosen, self._bears(len(chosen)))
            self._homes |= dict.fromkeys(chosen, self.next_number)
            made.append(self.next_number)
            self.next_number += 1
        self._order += made
        return made

    def renumber(self, number: int) -> int:
        """Give a roster of which nobody has heard yet the next number, and return it."""
        cohort, new = self.rosters.pop(number), self.next_number
        cohort.number = new
        self.rosters[new] = cohort
        self._order[self._order.index(number)] = new
        self.next_number += 1
        return new

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of the rosters, in the order of their turns."""
        return tuple(self._order)

    def turn(self) -> Cohort[M] | None:
        """The roster whose turn it is; None if there is none."""
        if not self._order:
            return None
        return self.rosters[self._order[0]]

    def played(self, number: int, came: Iterable[M], *, left_out: int = 0) -> None:
        """Count a round of a roster, and end its turn after as many as a turn has.

        Args:
            number: of the roster.
            came: members whose uploads came in time, or joined since.
            left_out: how many of these are bound to something else, and in no sum.
        """
        cohort, seen = self.rosters[number], set(came)
        absent = [member for member in cohort.members if member not in seen]
        cohort.missed = {member: cohort.missed.get(member, 0) + 1 for member in absent}
        cohort.void = cohort.void + 1 if len(seen) - left_out < len(cohort.members) - cohort.bears else 0
        cohort.rounds += 1
        if cohort.rounds >= self.consecutive:
            cohort.rounds = 0
            self._order.remove(number)
            self._order.append(number)

    def failing(self) -> list[int]:
        """Rosters that have lost more members than they can bear; of several, also those whose rounds stay void."""
        return [
            number
            for number, each in self.rosters.items()
            if len(each.gone(self.patience)) > each.bears or (each.void >= self.patience and len(self.rosters) > 1)
        ]

    def close(self, number: int) -> None:
        """End a roster: those who are not gone wait for another one."""
        cohort = self.rosters.pop(number)
        self._order.remove(number)
        gone = cohort.gone(self.patience)
        for member in cohort.members:
            del self._homes[member]
            if member not in gone:
                self._waiting[member] = None

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values, for members that are such."""
        return {
            "waiting": self.waiting,
            "next": self.next_number,
            "rosters": [
                {
                    "number": each.number,
                    "members": list(each.members),
                    "missed": [[member, count] for member, count in each.missed.items()],
                    "left": [member for member in each.members if member in each.left],
                    "rounds": each.rounds,
                    "void": each.void,
                }
                for each in (self.rosters[number] for number in self._order)
            ],
        }

    def load_dict(self, facts: dict[str, Any]) -> None:
        """Go on from what `to_dict` returned.

        Raises:
            ArgumentError: the facts are something else.
        """
        try:
            rosters = {
                int(each["number"]): Cohort(
                    int(each["number"]),
                    tuple(each["members"]),
                    self._bears(len(each["members"])),
                    {member: int(count) for member, count in each["missed"]},
                    set(each["left"]),
                    int(each["rounds"]),
                    int(each["void"]),
                )
                for each in facts["rosters"]
            }
            self._waiting, self.next_number = dict.fromkeys(facts["waiting"]), integer("next", facts["next"], 0)
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"cohorts must be as to_dict returned them, got {error!r}") from None
        self.rosters, self._order = dict(sorted(rosters.items())), list(rosters)
        self._homes = {member: number for number, each in rosters.items() for member in each.members}
