"""Servers that lie to members of a federation: one budget holds for all rosters, whatever is sent (C1), (W5)."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lightdp import gaussian
from lightdp.auditing._stories import Telling, _changed, rotation
from lightdp.client_set import ClientSet
from lightdp.errors import BudgetError, LightDPError, ProtocolError
from lightdp.federation import MemberState
from support.federated_lies import Liar, announcement, interleaved, roster_message
from support.federated_nodes import DiskError, Memory, planned

SETTINGS: list[dict[str, Any]] = [
    {},
    {"grace": 1},
    {"stragglers": 2},
    {"calibration": "exact"},
    {"clients": 5, "population": 10, "stragglers": 3, "colluders": 0},
]


def budget_of(liar: Liar) -> float:
    return gaussian.mu(liar.plan.budget, liar.plan.delta, up=True)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_liar_in_several_rosters_gets_no_more_than_one_budget(settings: Any) -> None:
    """The strongest lies that are known of one roster, told in four at once, or in one after the other."""
    plan = planned(**settings)
    alone = Liar(plan, plan.clients)
    at = alone.roster(range(plan.clients), 0)
    for telling in rotation(plan).story(plan):
        alone.tell(at, telling)
    for told in (interleaved, lambda *stories: ((at, each) for at, story in enumerate(stories) for each in story)):
        liar = Liar(plan, plan.clients)
        for number in range(4):
            liar.roster(range(plan.clients), number)
        for at, telling in told(*[rotation(plan).story(plan)] * 4):
            liar.tell(at, telling)
        assert alone.exact() * 2 > budget_of(liar) * 0.9  # four times as much in μ², if each had a budget of its own
        assert 0 < liar.exact() <= min(budget_of(liar), liar.members[0].mu(worst=True) * (1 + 1e-9))


@pytest.mark.parametrize("seed", range(6))
def test_random_lies_in_rosters_of_all_kinds_cost_what_the_member_says_or_less(seed: int) -> None:
    """Rosters of other members, of other sizes and of one number; each member is told other histories."""
    rng = random.Random(seed)  # noqa: S311  chooses lies, protects nothing
    plan = planned(**SETTINGS[seed % len(SETTINGS)])
    liar, stories, places = Liar(plan, plan.clients + 2), [], []
    for number in (0, 0, 1, 2, 5):
        chosen = [0, *rng.sample(range(1, plan.clients + 2), rng.randint(plan.clients - 2, plan.clients))]
        places.append(liar.roster(chosen, number))
        script, its = rotation(plan.among(len(chosen))), plan.among(len(chosen))
        for _ in range(rng.randint(0, 4)):
            script = _changed(script, its, rng)
        stories.append(script.story(its))
    for at, telling in interleaved(*stories):
        liar.tell(places[at], telling)
    assert liar.refused > 0
    for member in liar.members:
        assert liar.exact(member.name) <= min(budget_of(liar), member.mu(worst=True) * (1 + 1e-9))


def one_more(liar: Liar, places: list[int]) -> list[Any]:
    """Rounds of all these rosters, begun by member 0 on one state."""
    member = liar.members[0]
    for at in places:
        member.join(roster_message(liar.books[at].roster))
    return [member.begin(announcement(liar.books[at].roster, 0)) for at in places]


@pytest.mark.parametrize("claims", [False, True])
def test_of_rounds_begun_in_several_rosters_at_once_one_is_answered(claims: bool) -> None:
    plan = planned(calibration="exact", population=None, rounds=1)
    liar = Liar(plan, 4)
    begun = one_more(liar, [liar.roster(range(4), number) for number in range(4)])

    def answer(each: Any) -> bool:
        try:
            if claims:
                each.claim()
            each.upload(np.zeros(2))
        except ProtocolError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(answer, begun)) == 1
    member = liar.members[0]
    assert member.epsilon(worst=True) <= plan.budget
    for at in liar.books:
        with pytest.raises((BudgetError, ProtocolError)):
            member.begin(announcement(liar.books[at].roster, 0))


def test_a_claim_that_could_not_be_saved_is_none() -> None:
    liar = Liar(planned(), 4)
    store = liar.members[0]._store = Memory()
    first, second = one_more(liar, [liar.roster(range(4), number) for number in range(2)])
    store.fails = "before"
    with pytest.raises(DiskError):
        first.claim()
    second.upload(np.zeros(2))
    with pytest.raises(ProtocolError, match="begin it again"):
        first.upload(np.zeros(2))


def test_a_round_that_was_claimed_is_answered_once_whatever_else_is_joined_since() -> None:
    liar = Liar(planned(), 4)
    (begun,) = one_more(liar, [liar.roster(range(4), 0)])
    begun.claim()
    before = liar.members[0].mu(worst=True)
    for number in range(1, 6):  # the roster is not answered any more
        liar.members[0].join(roster_message(liar.books[liar.roster(range(4), number)].roster))
    assert liar.members[0].mu(worst=True) == pytest.approx(before, rel=1e-12)
    assert begun.upload(np.zeros(2))
    for again in (begun.claim, lambda: begun.upload(np.zeros(2))):
        with pytest.raises(ProtocolError):
            again()


def test_hundreds_of_rosters_leave_a_small_state_and_the_whole_ledger() -> None:
    """Each costs nothing until it is answered, and what was answered is counted for good."""
    plan = planned(rounds=8)
    store = Memory()
    liar = Liar(plan, 4)
    member = liar.members[0]
    member._store = store
    answered, largest, spent = 0, 0, 0.0
    for number in range(300):
        at = liar.roster(range(4), number)
        member.join(roster_message(liar.books[at].roster))
        if number % 15 == 0:
            answered += liar.tell(at, Telling(0, ()))
            assert member.mu() >= spent
            spent = member.mu()
        largest = max(largest, len(store.state))
    assert liar.refused > 0 < answered  # lies of all these rosters have taken the budget
    assert liar.exact() <= budget_of(liar)
    assert spent >= liar.exact() * (1 - 1e-12)
    state = MemberState.from_bytes(store.state)
    assert len(state.rosters) == len(member._hashes) == 4
    assert sum(state.spent.values()) >= answered
    assert largest < 30_000


def test_what_a_roster_that_has_ended_sent_comes_to_nothing() -> None:
    liar = Liar(planned(), 4)
    places = [liar.roster(range(4), number) for number in range(6)]
    first = liar.books[places[0]].roster
    member = liar.members[0]
    for at in places:
        member.join(roster_message(liar.books[at].roster))
    with pytest.raises(ProtocolError, match="rosters must have growing numbers: 5 was joined, got 0"):
        member.join(roster_message(first))
    with pytest.raises(ProtocolError, match="answers no more"):
        member.begin(announcement(first, 0))


def test_members_with_different_rosters_of_one_number_share_no_noise() -> None:
    liar = Liar(planned(), 5)
    places = [liar.roster(members, 0) for members in ((0, 1, 2, 3), (0, 1, 2, 4))]
    everyone = ClientSet.all(4)
    for number in range(2):
        assert liar.tell(places[0], Telling(0, ((everyone,),) * number))
        assert liar.tell(places[1], Telling(1, ((everyone,),) * number))
    keys = [{term.key for s in liar.seen if s.name == name for term in s.terms} for name in ("m00", "m01")]
    assert all(keys)
    assert not keys[0] & keys[1]
    assert liar.exact() <= liar.members[0].mu(worst=True)


def test_a_member_says_why_it_refuses() -> None:
    liar = Liar(planned(), 4)
    with pytest.raises(LightDPError) as refused:
        liar.members[0].join(announcement(liar.books[liar.roster(range(4), 0)].roster, 0))
    assert "roster" in str(refused.value).lower()
