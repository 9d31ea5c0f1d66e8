"""Who is in which roster and whose turn it is: random lives of a federation against rules that are told here anew."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lightdp.errors import ArgumentError
from lightdp.federation import Cohorts


class Lives(RuleBasedStateMachine):
    """Members join, leave, miss rounds and come back; rosters are formed, take turns and are closed."""

    @initialize(
        size=st.integers(2, 5), fewer=st.integers(0, 2), patience=st.integers(1, 3), consecutive=st.integers(1, 3)
    )
    def start(self, size: int, fewer: int, patience: int, consecutive: int) -> None:
        self.size, self.least = size, max(size - fewer, 2)
        self.patience, self.consecutive = patience, consecutive
        self.cohorts = self.new()
        self.known: set[int] = set()  # all who joined and did not leave while they waited, or with their roster
        self.gone: dict[int, set[int]] = {}  # of each roster: who said so
        self.missed: Counter[int] = Counter()  # rounds in a row, of members of rosters
        self.numbers: list[int] = []  # of all rosters, as they were formed
        self.order: list[int] = []  # whose turn it is, as an independent queue
        self.in_turn = 0
        self.void: Counter[int] = Counter()  # rounds in a row to which too few came, of each roster

    def new(self) -> Cohorts[int]:
        return Cohorts(
            self.size, bears=lambda members: members // 3, least=self.least, patience=self.patience,
            consecutive=self.consecutive, shuffle=random.Random(0).shuffle,  # noqa: S311  an example must play again
        )  # fmt: skip

    def members(self, number: int) -> tuple[int, ...]:
        return self.cohorts.rosters[number].members

    def left(self, number: int) -> set[int]:
        away = {member for member in self.members(number) if self.missed[member] >= self.patience}
        return away | self.gone[number]

    @rule(member=st.integers(0, 25))
    def joins(self, member: int) -> None:
        self.cohorts.join(member)
        self.known.add(member)
        for number, gone in self.gone.items():
            if member in self.members(number):
                gone.discard(member)
                self.missed[member] = 0

    @rule(member=st.integers(0, 25))
    def leaves(self, member: int) -> None:
        home = self.cohorts.home(member)
        self.cohorts.leave(member)
        if home is None:
            self.known.discard(member)
        else:
            self.gone[home.number].add(member)

    @rule(force=st.booleans())
    def forms(self, *, force: bool) -> None:
        waiting = list(self.cohorts.waiting)
        made = self.cohorts.form(force=force)
        enough = self.least if force else self.size
        assert bool(made) == (len(waiting) >= enough)
        if not made:
            assert self.cohorts.waiting == waiting
            return
        assert not self.cohorts.waiting
        assert sorted(member for number in made for member in self.members(number)) == sorted(waiting)
        sizes = [len(self.members(number)) for number in made]
        assert len(made) == max(len(waiting) // self.size, 1)
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= min(self.size, len(waiting))
        assert max(sizes) < 2 * self.size
        for number in made:
            assert all(number > other for other in self.numbers)
            self.numbers.append(number)
            self.gone[number] = set()
            self.missed.update(dict.fromkeys(self.members(number), 0))
            assert self.cohorts.rosters[number].bears == len(self.members(number)) // 3
        self.order += made

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def plays(self, data: st.DataObject) -> None:
        turn = self.cohorts.turn()
        assert turn is not None
        assert turn.number == self.order[0]
        came = data.draw(st.sets(st.sampled_from(turn.members)))
        self.cohorts.played(turn.number, came)
        for member in turn.members:
            self.missed[member] = 0 if member in came else self.missed[member] + 1
        few = len(came) < len(turn.members) - len(turn.members) // 3
        self.void[turn.number] = self.void[turn.number] + 1 if few else 0
        self.in_turn += 1
        if self.in_turn == self.consecutive:
            self.in_turn = 0
            self.order.append(self.order.pop(0))

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def closes(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.cohorts.failing() or self.order))
        stay = [member for member in self.members(number) if member not in self.left(number)]
        self.known -= set(self.members(number)) - set(stay)
        waiting = list(self.cohorts.waiting)
        self.cohorts.close(number)
        assert self.cohorts.waiting == waiting + stay
        if number == self.order[0]:
            self.in_turn = 0
        self.order.remove(number)
        del self.gone[number]

    @rule()
    def crashes(self) -> None:
        """What travels through a file is the same, to the last turn and missed round."""
        facts = json.loads(json.dumps(self.cohorts.to_dict()))
        again = self.new()
        again.load_dict(facts)
        assert again.to_dict() == self.cohorts.to_dict()
        assert list(again.rosters) == sorted(self.cohorts.rosters)
        assert {n: vars(c) for n, c in again.rosters.items()} == {n: vars(c) for n, c in self.cohorts.rosters.items()}
        self.cohorts = again

    @invariant()
    def nobody_is_in_two_places_and_nobody_is_lost(self) -> None:
        if not hasattr(self, "cohorts"):
            return
        everywhere = [*self.cohorts.waiting, *(m for c in self.cohorts.rosters.values() for m in c.members)]
        assert len(everywhere) == len(set(everywhere))
        assert set(everywhere) == self.known

    @invariant()
    def rosters_fail_that_lost_more_than_they_can_bear(self) -> None:
        for number in getattr(self, "order", []):
            failing = len(self.left(number)) > len(self.members(number)) // 3
            failing |= self.void[number] >= self.patience and len(self.order) > 1
            assert (number in self.cohorts.failing()) == failing
        if hasattr(self, "order"):
            turn = self.cohorts.turn()
            assert (None if turn is None else turn.number) == (self.order[0] if self.order else None)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


@settings(max_examples=80, deadline=None)
@given(size=st.integers(2, 6), spare=st.integers(0, 30), consecutive=st.integers(1, 4), rounds=st.integers(1, 80))
def test_turns_are_fair_and_residuals_wait_for_as_many_rounds_as_there_are_rosters(
    size: int, spare: int, consecutive: int, rounds: int
) -> None:
    """(C1): rosters differ by one turn at most; from a round of a roster to its next one it is K rounds on average."""
    cohorts: Cohorts[int] = Cohorts(size, bears=lambda _: 0, consecutive=consecutive)
    for member in range(size + spare):
        cohorts.join(member)
    made = cohorts.form()
    when: dict[int, list[int]] = {number: [] for number in made}
    for t in range(rounds):
        turn = cohorts.turn()
        assert turn is not None
        when[turn.number].append(t)
        cohorts.played(turn.number, turn.members)
    counts = [len(times) for times in when.values()]
    assert max(counts) - min(counts) <= consecutive
    for times in when.values():
        gaps = [after - before for before, after in itertools.pairwise(times)]
        whole = len(gaps) - len(gaps) % consecutive  # those of whole turns
        assert sum(gaps[:whole]) == whole * len(made)


def test_who_is_together_is_drawn_by_lot() -> None:
    """The order in which members come decides nothing: 5 sigma on how often the first two are in one roster."""
    together = 0
    for _ in range(2000):
        cohorts: Cohorts[int] = Cohorts(2, bears=lambda _: 0)
        for member in range(4):
            cohorts.join(member)
        cohorts.form()
        together += any({0, 1} <= set(each.members) for each in cohorts.rosters.values())
    assert abs(together - 2000 / 3) < 5 * (2000 * 2 / 9) ** 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 1}, "size must be"),
        ({"least": 1}, "least must be in 2..4, got least=1"),
        ({"least": 5}, "least must be in 2..4, got least=5"),
        ({"patience": 0}, "patience must be >= 1, got patience=0"),
        ({"consecutive": 0}, "consecutive must be >= 1, got consecutive=0"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Cohorts(**dict[str, Any](size=4, bears=lambda _: 0) | wrong)


@pytest.mark.parametrize(
    "wrong",
    [None, [], {}, {"waiting": [], "next": -1, "rosters": []}, {"waiting": [], "next": 1, "rosters": [{"number": 0}]},
     {"waiting": [], "next": "x", "rosters": []}, {"waiting": 3, "next": 0, "rosters": []}],
    ids=str,
)  # fmt: skip
def test_what_to_dict_did_not_return_is_refused_and_changes_nothing(wrong: Any) -> None:
    cohorts: Cohorts[int] = Cohorts(2, bears=lambda _: 0)
    for member in range(3):
        cohorts.join(member)
    before = cohorts.to_dict()
    with pytest.raises(ArgumentError):
        cohorts.load_dict(wrong)
    assert cohorts.to_dict() == before


def test_of_several_rosters_one_whose_rounds_stay_void_is_failing_whoever_misses_them() -> None:
    cohorts: Cohorts[int] = Cohorts(size=4, bears=lambda _: 1, patience=3, shuffle=lambda _: None)
    for member in range(8):
        cohorts.join(member)
    assert cohorts.form() == [0, 1]
    first, second = (cohorts.rosters[number].members for number in (0, 1))
    for away in range(3):  # two members miss each round, and nobody three in a row
        assert cohorts.failing() == []
        cohorts.played(0, [first[away], first[(away + 1) % 4]])
        cohorts.played(1, second)
    assert cohorts.failing() == [0]
    again: Cohorts[int] = Cohorts(size=4, bears=lambda _: 1, patience=3)
    again.load_dict(cohorts.to_dict())
    assert again.failing() == [0]
    cohorts.played(0, first)
    assert cohorts.failing() == []
