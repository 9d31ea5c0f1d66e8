"""A member of a federation, step by step: what it joins, what it refuses, what it remembers."""

from __future__ import annotations

import copy
import json
import os
import pickle
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp import gaussian
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, BudgetError, ProtocolError, WireError
from lightdp.federation import Member, MemberState, _member
from lightdp.keys import Identity, Pins, Roster
from lightdp.protocol import Client, File
from lightdp.protocol.host import Host
from lightdp.protocol.vector import agreement
from lightdp.wire import Kind, Message
from support.federated_lies import announcement, roster_message
from support.federated_nodes import RUN, DiskError, Memory, planned

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.planning import Plan

LENGTH = 3


def member(name: str, plan: Plan | None = None, **options: Any) -> Member:
    asked: dict[str, Any] = {"length": LENGTH, "run": RUN, "name": name} | options
    return Member.new(planned() if plan is None else plan, **asked)


def roster(members: list[Member], number: int = 0, **changed: Any) -> Roster:
    plan = members[0].plan.among(len(members))
    asked: dict[str, Any] = {"length": LENGTH, "weighted": False} | changed
    agreed = agreement(plan, asked["length"], weighted=asked["weighted"])
    return Roster.of([each._state.enrolment for each in members], run=RUN, plan=agreed, number=number)


def total(squares: Any) -> float:
    return sum(square * count for square, count in squares.items())


def answer(one: Member, of: Roster, number: int = 0, past: list[tuple[ClientSet, ...]] | None = None) -> bytes:
    one.join(roster_message(of))
    return one.begin(announcement(of, number, past or [])).upload(np.zeros(LENGTH))


def test_numbers_of_rosters_grow_and_the_same_roster_again_changes_nothing() -> None:
    everyone = [member(name) for name in "abcd"]
    one, store = everyone[0], Memory()
    one._store = store
    third = roster_message(roster(everyone, 3))
    assert one.join(third) == one.join(third) == 3
    assert one.serial == 1
    for wrong in (roster(everyone, 2), roster([*everyone[:3], member("e")], 3)):
        with pytest.raises(ProtocolError, match="growing numbers: 3 was joined"):
            one.join(roster_message(wrong))
    assert one.join(roster_message(roster(everyone, 4))) == 4
    assert one.join(third) == 3  # it is still answered
    assert one.answered() == {3: set(), 4: set()}


def test_rosters_of_another_plan_shape_size_or_federation_are_refused_and_change_nothing() -> None:
    everyone = [member(f"m{i}") for i in range(9)]
    one = everyone[0]
    run = b"another, as long"
    strangers = [Member.new(planned(), length=LENGTH, run=run, name=name) for name in "abcd"]
    other = planned(epsilon=4.0)
    elsewhere = Roster.of([each._state.enrolment for each in strangers], run=run, plan=bytes(32))
    foreign = Roster.of(
        [each._state.enrolment for each in everyone[:4]], run=RUN, plan=agreement(other, LENGTH, weighted=False)
    )
    for wrong in (
        elsewhere, foreign, roster(everyone[1:5]), roster(everyone[:4], length=LENGTH + 1),
        roster(everyone[:4], weighted=True),
    ):  # fmt: skip
        with pytest.raises(WireError):
            one.join(roster_message(wrong))
    with pytest.raises(ProtocolError, match="has 2 to 7 clients, got 8"):
        one.join(roster_message(roster(everyone[:8])))
    assert one.answered() == {}
    assert one.serial == 0


def test_a_size_for_which_there_is_no_plan_is_refused() -> None:
    plan = planned(clients=6, population=None, colluders=3, stragglers=0)
    everyone = [member(name, plan) for name in "abcdef"]
    few = Roster.of([each._state.enrolment for each in everyone[:3]], run=RUN, plan=bytes(32))
    with pytest.raises(ProtocolError, match="cannot have 3 clients"):
        everyone[0].join(roster_message(few))


def test_a_member_may_refuse_the_plan_of_a_roster_before_it_is_computed() -> None:
    asked: list[int] = []

    def accept(request: Any) -> None:
        asked.append(request.clients)
        if request.clients < 4:
            raise ArgumentError(f"clients must be 4 or more, got clients={request.clients}")

    everyone = [member(name) for name in "abcd"]
    everyone[0] = member("a", accept=accept)
    with pytest.raises(ArgumentError, match="got clients=3"):
        everyone[0].join(roster_message(roster(everyone[:3])))
    assert everyone[0].join(roster_message(roster(everyone))) == 0
    assert asked[:2] == [3, 4]


def test_a_roster_with_more_strangers_than_colluders_is_refused() -> None:
    identities = {name: Identity.generate() for name in "abcd"}
    pins = Pins({name: each.public for name, each in identities.items()})
    everyone = [member(name, identity=each, pins=pins) for name, each in identities.items()]
    assert everyone[0].join(roster_message(roster([*everyone[:3], member("e")], 0))) == 0
    with pytest.raises(WireError, match="at most 1 clients that are not pinned"):
        everyone[0].join(roster_message(roster([*everyone[:2], member("e"), member("f")], 1)))


def test_pins_that_change_end_a_roster_and_not_the_member() -> None:
    identities = {name: Identity.generate() for name in "abcd"}
    store = Memory()
    everyone = [member(name, identity=each) for name, each in identities.items()]
    everyone[0] = one = member("a", identity=identities["a"], store=store)
    answer(one, joined := roster(everyone))
    pins = Pins({name: identities[name].public for name in "ab"})
    again = Member.restore(planned(), length=LENGTH, store=store, pins=pins)
    assert again.mu(worst=True) == one.mu(worst=True) > 0
    with pytest.raises(WireError, match="roster 0 is not answered any more"):
        again.begin(announcement(joined, 1, [(ClientSet.all(4),)]))
    assert again.join(roster_message(roster([*everyone[:2], member("c")], 1))) == 1


def test_one_budget_holds_for_all_rosters() -> None:
    plan = planned(calibration="exact", population=None, rounds=3)
    everyone = [member(name, plan) for name in "abcd"]
    for number in range(3):
        answer(everyone[0], roster(everyone, number))
    assert everyone[0].epsilon() == pytest.approx(plan.budget, rel=1e-9)
    with pytest.raises(BudgetError):
        answer(everyone[0], roster(everyone, 3))
    assert everyone[0].epsilon(worst=True) <= plan.budget
    assert everyone[0].mu(worst=True) <= gaussian.mu(plan.budget, plan.delta, up=True)


def test_what_was_spent_in_rosters_that_are_not_answered_any_more_stays_spent() -> None:
    plan, store = planned(calibration="exact", population=None, rounds=3), Memory()
    everyone = [member(name, plan) for name in "abcd"]
    everyone[0] = one = member("a", plan, store=store)
    for number in range(2):
        answer(one, roster(everyone, number))
    spent = one.mu()
    for number in range(2, 7):
        one.join(roster_message(roster(everyone, number)))
    assert [*one.answered()] == [3, 4, 5, 6]
    again = Member.restore(plan, length=LENGTH, store=store)
    for each in (one, again):
        assert each.mu() == each.mu(worst=True) == pytest.approx(spent, rel=1e-12)
    answer(again, roster(everyone, 7))
    with pytest.raises(BudgetError):
        answer(again, roster(everyone, 8))


def test_other_rosters_count_at_their_worst_while_they_are_answered_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers may still be told anything of them (W5), so what was announced of them is not enough."""
    everyone, seen = [member(name, planned(rounds=60)) for name in "abcd"], list[Any]()
    one, begin = everyone[0], Client.begin

    def spied(client: Client, message: bytes, *, elsewhere: Any = None) -> Any:
        seen.append(elsewhere)
        return begin(client, message, elsewhere=elsewhere)

    monkeypatch.setattr(Client, "begin", spied)
    first = roster(everyone)
    answer(one, first)
    one.begin(announcement(first, 1, [(ClientSet.all(4),)], closing=True)).upload(None)
    worst, told = (one._clients[0].squares(worst=each) for each in (True, False))
    assert total(worst) > total(told) > 0
    answer(one, roster(everyone, 1))
    assert seen == [{}, {}, worst]
    for number in range(2, 6):
        one.join(roster_message(roster(everyone, number)))
        if number == 4:
            assert one._state.spent == worst
    assert [*one.answered()] == [2, 3, 4, 5]


def test_nothing_leaves_and_nothing_changes_while_the_store_fails() -> None:
    store = Memory()
    everyone = [member(name) for name in "abcd"]
    everyone[0] = one = member("a", store=store)
    one.join(roster_message(joined := roster(everyone)))
    begun = one.begin(announcement(joined, 0))
    for act in (
        begun.claim,
        lambda: begun.upload(np.zeros(LENGTH)),
        lambda: one.join(roster_message(roster(everyone, 1))),
    ):
        before = one.serial, one.answered(), one.epsilon()
        store.fails = "before"
        with pytest.raises(DiskError):
            act()
        assert (one.serial, one.answered(), one.epsilon()) == before
    assert one.begin(announcement(joined, 0)).upload(np.zeros(LENGTH))
    assert one.answered() == {0: {0}}


def test_a_member_of_a_file_goes_on_where_it_was_and_one_of_two_copies_does(tmp_path: Path) -> None:
    everyone = [member(name) for name in "abcd"]
    everyone[0] = one = member("a", store=File(tmp_path / "a.state"))
    message = one.enrol()
    answer(one, first := roster(everyone))
    again, copied = (Member.restore(planned(), length=LENGTH, store=File(tmp_path / "a.state")) for _ in range(2))
    assert again.enrol() == message
    assert again.name == "a"
    assert (again.answered(), again.serial) == (one.answered(), one.serial)
    with pytest.raises(ProtocolError, match="was answered"):
        again.begin(announcement(first, 0))
    answer(again, first, 1, [(ClientSet.all(4),)])
    with pytest.raises(ProtocolError, match="saved by another client"):
        answer(copied, first, 1, [(ClientSet.all(4),)])


def test_an_enrolment_is_saved_before_it_leaves() -> None:
    one = member("a", store=(store := Memory(fails="before")))
    with pytest.raises(DiskError):
        one.enrol()
    message = one.enrol()
    assert Member.restore(planned(), length=LENGTH, store=store).enrol() == one.enrol() == message
    assert one.serial == 1


def test_copies_pickles_and_forks_are_refused() -> None:
    one = member("a")
    for copies in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ProtocolError, match="must not be copied"):
            copies(one)
    one._process = os.getpid() + 1
    for act in (one.enrol, lambda: one.begin(b""), lambda: one.join(roster_message(roster([one, member("b")])))):
        with pytest.raises(ProtocolError, match="forked"):
            act()


def test_a_state_of_another_plan_length_machine_or_of_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Memory()
    everyone = [member(name) for name in "abcd"]
    everyone[0] = one = member("a", store=store)
    answer(one, roster(everyone))
    for plan, length, weighted in ((planned(epsilon=4.0), 3, False), (planned(), 4, False), (planned(), 3, True)):
        with pytest.raises(ArgumentError, match="must be those of the state in store"):
            Member.restore(plan, length=length, weighted=weighted, store=store)
    base, entry = store.state.split(b"\n")
    facts, added = json.loads(base), json.loads(entry)
    secret = facts["pair"]
    wrong = [b"", b"[]", b"{}", store.state[:-1], base[:-1], entry, base + b"\n" + base, store.state + b"\n" + entry]
    faults = ({"roster": 1}, {"roster": "0"}, {"round": 1}, {"told": None}, {"check": 0}, {"serial": 4})
    wrong += [base + b"\n" + json.dumps(added | fault).encode() for fault in faults]
    wrong += [json.dumps({key: value for key, value in facts.items() if key != name}).encode() for name in facts]
    wrong.append(json.dumps(facts | {"rosters": {"1": facts["rosters"]["0"]}}).encode())
    wrong.append(json.dumps(facts | {"member": 3}).encode())
    for state in wrong:
        with pytest.raises(ArgumentError) as refused:
            Member.restore(planned(), length=LENGTH, store=Memory(state))
        assert secret not in str(refused.value)
    monkeypatch.setattr(Host, "here", classmethod(lambda cls: cls("elsewhere", "1")))
    with pytest.raises(ProtocolError, match="another machine"):
        Member.restore(planned(), length=LENGTH, store=store)
    assert Member.restore(planned(), length=LENGTH, store=store, moved=True).answered() == {0: {0}}


def test_a_state_is_a_value_that_reads_as_it_was_written() -> None:
    store, plan = Memory(), planned(rounds=60)
    everyone = [member(name, plan) for name in "abcd"]
    everyone[0] = one = member("a", plan, store=store)
    for number in range(6):
        answer(one, roster(everyone, number))
    state = MemberState.from_bytes(store.state)
    assert MemberState.from_bytes(state.to_bytes()).to_bytes() == state.to_bytes()
    assert store.state.count(b"\n") == 1  # the sixth roster was saved with all others, and its round after it
    assert (state.last, state.serial, len(state.rosters), sum(state.spent.values())) == (5, 12, 4, 2)


def test_a_member_without_a_roster_has_spent_nothing() -> None:
    one = member("a")
    assert (one.epsilon(), one.mu(), one.epsilon(worst=True), one.mu(worst=True), one.answered()) == (0, 0, 0, 0, {})
    with pytest.raises(ProtocolError, match="has not joined"):
        one.begin(announcement(roster([one, member("b"), member("c")]), 0))
    with pytest.raises(ProtocolError, match="expected ROSTER, got ENROL"):
        one.join(one.enrol())


def test_no_plan_is_solved_for_a_roster_before_its_enrolments_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = [member(f"m{i}") for i in range(5)]
    solved: list[str] = []
    own, good = everyone[0], roster(everyone).to_bytes()
    solve = _member._solved

    def watched(text: str) -> Plan:
        solved.append(text)
        return solve(text)

    monkeypatch.setattr(_member, "_solved", watched)
    claimed = struct.pack("<7sB16sI32sI", b"lightdp", 4, RUN, 1, bytes(32), 5)
    forged = good[:-1] + bytes([good[-1] ^ 1])
    others = roster([*everyone[1:], member("m5")]).to_bytes()
    for wrong in (claimed, good[:-200], forged, others):
        with pytest.raises(WireError):
            own.join(Message(kind=Kind.ROSTER, run=RUN, payload=wrong).to_bytes())
    foreign = Roster.of(roster(everyone).enrolments.values(), run=RUN, plan=bytes(32))
    pinned = member("m0", pins=Pins({"m1": bytes(32)}))
    with pytest.raises(WireError, match="m1 has an identity other than the pinned one"):
        pinned.join(roster_message(roster([pinned, *everyone[1:]])))
    assert solved == []
    with pytest.raises(WireError, match="of another run or plan"):
        own.join(roster_message(foreign))
    assert own.join(roster_message(roster(everyone))) == 0
    assert len(solved) >= 2
