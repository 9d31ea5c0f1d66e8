"""The server of a federation, step by step."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lightdp
from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.federation import Federation, Member, Table
from lightdp.keys import Identity, Pins
from support.federated_nodes import LENGTH, RUN, planned


class Party:
    """A federation and members that do as they are asked."""

    def __init__(self, count: int, plan: Any = None, **options: Any) -> None:
        self.plan = planned() if plan is None else plan
        self.options: dict[str, Any] = {"least": self.plan.clients - 1, "patience": 1} | options
        self.fed = Federation(self.plan, length=LENGTH, run=RUN, **self.options)
        self.members: dict[str, Member] = {}
        for i in range(count):
            self.join(f"m{i:02}")

    def join(self, name: str) -> None:
        self.members[name] = Member.new(self.plan, length=LENGTH, run=RUN, name=name)
        self.fed.enrol(self.members[name].enrol())

    def make(self, table: Table, name: str, *, closing: bool = False) -> bytes:
        self.members[name].join(table.server.roster())
        start = table.server.announce(since=0, closing=closing)
        table.rounds.asked(table.server.round, table.index[name])
        return self.members[name].begin(start).upload(None if closing else np.zeros(LENGTH))

    def play(self, table: Table, names: Any = None, *, closing: bool = False) -> Any:
        table.server.announce(closing=closing)
        table.rounds._asked.setdefault(table.server.round, set())  # who is not named was not asked
        for name in table.names if names is None else names:
            self.fed.receive(self.make(table, name, closing=closing), sender=name)
        return self.fed.close(table.number, closing=closing)

    def crash(self) -> None:
        self.fed = Federation.resume(self.fed.past(), self.plan, **self.options)

    def first(self) -> Table:
        self.fed.form(force=True)
        return self.fed.rosters[0]


def test_members_without_a_roster_wait_and_newcomers_are_in_the_next_one() -> None:
    party = Party(4)
    assert party.fed.form() == [0]
    party.join("m04")
    assert party.fed.form() == []
    assert party.fed.cohorts.waiting == ["m04"]
    for name in ("m05", "m06"):
        party.join(name)
    assert party.fed.form() == []
    assert party.fed.form(force=True) == [1]
    assert party.fed.rosters[1].names == ("m04", "m05", "m06")
    assert party.fed.rosters[1].server.plan.digest() == party.plan.among(3).digest()


def test_a_least_number_for_which_there_is_no_plan_is_refused() -> None:
    plan = lightdp.plan(clients=4, colluders=2, stragglers=0, rounds=4, epsilon=8, delta=1e-5, unit="client")
    with pytest.raises(ArgumentError):
        Federation(plan, length=LENGTH, run=RUN, least=2)


def test_an_enrolment_that_another_repeats_is_refused_for_want_of_a_proof_and_changes_nothing() -> None:
    party, nonce, old = Party(4), b"n" * 32, b"o" * 32
    ann, eve = party.members["m00"], party.members["m01"]
    party.first()
    missed = party.fed.cohorts.rosters[0].missed
    missed["m00"] = 1
    elsewhere = Member.new(party.plan, length=LENGTH, run=bytes(16), name="m00")
    elsewhere._state = replace(elsewhere._state, pair=ann._state.pair)  # the same key for another run
    for proof in (eve.prove(nonce), ann.prove(old), elsewhere.prove(nonce), bytes(64), b""):
        with pytest.raises(WireError, match="m00 did not sign this"):
            party.fed.enrol(ann.enrol(), proof=(nonce, proof))
    with pytest.raises(ArgumentError, match="nonce must be 32 bytes"):
        ann.prove(nonce[:31])
    assert missed == {"m00": 1}
    assert party.fed.enrol(ann.enrol(), proof=(nonce, ann.prove(nonce))) == "m00"
    assert missed == {}


def test_names_identities_and_keys_are_taken_once_and_pins_hold() -> None:
    identities = {name: Identity.generate() for name in ("ann", "bob")}
    pins = Pins({name: each.public for name, each in identities.items()})
    fed = Federation(planned(), length=LENGTH, run=RUN, pins=pins)
    ann = Member.new(planned(), length=LENGTH, run=RUN, name="ann", identity=identities["ann"])
    assert fed.enrol(ann.enrol()) == fed.enrol(ann.enrol()) == "ann"
    other = Member.new(planned(), length=LENGTH, run=RUN, name="ann", identity=identities["ann"])
    with pytest.raises(ProtocolError, match="ann enrolled before with other keys"):
        fed.enrol(other.enrol())
    for name, identity in (("bob", identities["ann"]), ("eve", Identity.generate())):
        with pytest.raises(WireError):
            fed.enrol(Member.new(planned(), length=LENGTH, run=RUN, name=name, identity=identity).enrol())
    assert fed.names == ("ann",)


def test_a_roster_that_lost_too_many_is_closed_and_its_other_members_wait_with_what_they_spent() -> None:
    party = Party(4)
    table = party.first()
    party.play(table)
    before = party.fed.epsilon()
    for name in ("m00", "m01"):
        party.fed.leave(name)
    assert party.fed.failing() == [0]
    party.play(table, ["m02", "m03"], closing=True)
    party.fed.end(0)
    assert sorted(party.fed.cohorts.waiting) == ["m02", "m03"]
    assert party.fed.turn() is None
    assert party.fed.rosters == {}
    after = party.fed.epsilon()
    assert set(after) == set(before)
    assert all(
        after[name] > 1.01 * before[name] > 0 for name in after
    )  # at its worst: peers may still be told anything
    party.join("m04")
    assert party.fed.form(force=True) == [1]
    assert party.fed.epsilon()["m02"] == after["m02"]
    assert party.fed.epsilon()["m04"] == 0
    party.play(party.fed.rosters[1])
    assert party.fed.epsilon()["m02"] > after["m02"]
    assert party.fed.max_epsilon() == max(party.fed.epsilon().values())
    for name in ("m02", "m03", "m04"):
        assert party.fed.epsilon()[name] <= party.members[name].epsilon(worst=True)


def test_a_member_that_missed_too_often_counts_as_gone_until_it_answers_or_enrols() -> None:
    party = Party(4, patience=2)
    table = party.first()
    for _ in range(2):
        party.play(table, ["m00", "m01", "m02"])
    cohort = party.fed.cohorts.rosters[0]
    assert cohort.gone(2) == {"m03"}
    party.play(table)
    assert cohort.gone(2) == set()


def test_members_without_budget_leave_and_are_in_no_other_roster() -> None:
    party = Party(4, planned(calibration="exact", population=None, rounds=2), patience=9)
    table = party.first()
    party.play(table)
    assert party.fed.failing() == []
    party.play(table)
    assert party.fed.exhausted(0) == set(table.names)
    assert party.fed.failing() == [0]
    party.fed.end(0)
    for name in table.names:
        party.fed.enrol(party.members[name].enrol())
    assert party.fed.form(force=True) == []


def test_a_roster_whose_closing_has_begun_is_failing_whoever_comes_back() -> None:
    """It would have its turn otherwise, and no further round with data."""
    party = Party(4, planned(grace=1))
    table = party.first()
    party.play(table)
    for name in ("m00", "m01"):
        party.fed.leave(name)
    party.play(table, ["m02", "m03"], closing=True)
    party.crash()
    for member in party.members.values():
        party.fed.enrol(member.enrol())
    assert party.fed.cohorts.failing() == []
    assert party.fed.failing() == [0]


@pytest.mark.parametrize("grace", [0, 1])
def test_a_server_that_dies_in_any_closing_round_resumes(grace: int) -> None:
    for dies_in in range(1 + grace):
        party = Party(4, planned(grace=grace))
        table = party.first()
        party.play(table, ["m00", "m01", "m02"])
        for _ in range(dies_in):
            party.play(table, closing=True)
        party.fed.rosters[0].server.announce(closing=True)
        party.crash()
        table = party.fed.rosters[0]
        while not table.server.closed:
            party.play(table, closing=True)
        party.fed.end(0)


def test_uploads_that_come_after_a_crash_are_in_a_sum_or_recorded() -> None:
    """Under grace those of the round that was open are in the next sum, which the server has for sure."""
    for grace in (0, 1):
        party = Party(4, planned(grace=grace))
        table = party.first()
        table.server.announce()
        uploads = [party.make(table, name) for name in table.names]
        party.crash()
        assert [party.fed.receive(upload)[1] for upload in uploads] == [grace == 1] * 4
        table = party.fed.rosters[0]
        assert table.server.round == 1
        result = party.play(table, [])
        assert len(result.joined) == 4 * grace
        assert (result.total is not None) is (grace == 1)


def test_rounds_lost_in_a_crash_are_charged_to_all_who_do_not_say_that_they_sent_nothing() -> None:
    party = Party(4)
    table = party.first()
    table.server.announce()
    for name in ("m00", "m01"):
        party.make(table, name)
    party.crash()
    for name in ("m00", "m02"):
        party.fed.heard(name, party.members[name].answered())
    spent = party.fed.epsilon()
    assert spent["m02"] == 0
    assert min(spent["m00"], spent["m01"], spent["m03"]) > 0
    assert spent["m00"] <= party.members["m00"].epsilon(worst=True)


@pytest.mark.parametrize("grace", [0, 1])
def test_after_a_crash_the_server_charges_each_member_what_it_counts_itself(grace: int) -> None:
    """m00 missed round 0 and answered round 1; round 2 was open, and m01 alone had answered it."""
    party = Party(4, planned(calibration="exact", grace=grace), patience=9)
    table = party.first()
    for names in (["m01", "m02", "m03"], None):
        table.server.announce()
        for name in table.names:
            table.rounds.asked(table.server.round, table.index[name])
        party.play(table, names)
    table.server.announce()
    party.make(table, "m01")
    party.crash()
    before = party.fed.mu()
    for name, member in party.members.items():
        party.fed.heard(name, member.answered())
    own = {name: member.mu() for name, member in party.members.items()}
    assert party.fed.mu() == pytest.approx(own, rel=1e-12)
    assert own["m01"] > own["m02"] > own["m00"] > 0
    assert all(before[name] > own[name] for name in ("m00", "m02"))  # until they said what they had answered


def test_a_member_counts_more_than_the_server_if_its_upload_never_came_until_it_says_so() -> None:
    party = Party(4, planned(calibration="exact"), patience=9)
    table = party.first()
    table.server.announce()
    party.make(table, "m00")  # lost on its way
    party.play(table, ["m01", "m02", "m03"])
    assert party.fed.mu()["m00"] == 0 < party.members["m00"].mu()
    party.fed.heard("m00", party.members["m00"].answered())
    assert party.fed.mu()["m00"] == pytest.approx(party.members["m00"].mu(), rel=1e-12)
    assert party.fed.mu() == pytest.approx({name: party.members["m00"].mu() for name in party.members}, rel=1e-12)
    for comes in (False, True):
        table.server.announce()
        upload = party.make(table, "m00")
        party.fed.heard("m00", party.members["m00"].answered())  # while the round is open
        for name in ("m01", "m02", "m03"):
            party.fed.receive(party.make(table, name))
        if comes:
            party.fed.receive(upload)
        assert len(party.fed.close(0).used) == 3 + comes
        assert party.fed.mu() == pytest.approx({name: each.mu() for name, each in party.members.items()}, rel=1e-12)


def test_a_member_that_lies_about_its_rounds_is_charged_for_what_came_and_at_most_for_all() -> None:
    party = Party(4, planned(calibration="exact"), patience=9)
    table = party.first()
    for _ in range(2):
        party.play(table, ["m00", "m01", "m02"])
    spent = party.fed.mu()
    party.fed.heard("m00", {0: ()})
    assert party.fed.mu() == spent
    party.fed.heard("m03", {0: {0, 1, 2, 3, 500}})
    assert party.fed.mu()["m03"] == pytest.approx(spent["m00"], rel=1e-12)
    party.fed.heard("m00", {7: ()})  # it may have forgotten an older roster
    party.crash()
    charged = party.fed.mu()
    party.fed.heard("m01", {7: ()})
    assert party.fed.mu() == charged


def test_a_server_that_resumes_knows_all_that_was_saved() -> None:
    party = Party(9, consecutive=2)
    party.fed.form()
    for _ in range(3):
        table = party.fed.turn()
        assert table is not None
        party.play(table, table.names[1:])
    for name in party.fed.rosters[0].names[:2]:
        party.fed.leave(name)
    party.fed.end(0)
    before, cohorts = party.fed.epsilon(), party.fed.cohorts.to_dict()
    party.crash()
    for name, member in party.members.items():
        party.fed.heard(name, member.answered())
    assert party.fed.epsilon() == pytest.approx(before, rel=1e-12)
    assert party.fed.cohorts.to_dict() == cohorts
    assert party.fed.names == tuple(party.members)
    assert party.fed.form(force=True) == [2]  # no number is used twice


def test_what_is_no_past_of_this_federation_is_refused() -> None:
    party = Party(4)
    party.play(party.first())
    past = party.fed.past()
    with pytest.raises(ArgumentError, match="plan must be that of the past"):
        Federation.resume(past, planned(epsilon=4.0))
    for wrong in (b"", b"{}", b"[]", past[:-1], past.replace(b'"federation": 1', b'"federation": 2')):
        with pytest.raises(ArgumentError, match="the past must be"):
            Federation.resume(wrong, party.plan)
    facts = json.loads(past)
    for name in facts:
        with pytest.raises(ArgumentError):
            Federation.resume(json.dumps({key: value for key, value in facts.items() if key != name}), party.plan)  # type: ignore[arg-type]


def test_uploads_of_other_rosters_or_senders_change_nothing() -> None:
    party = Party(4)
    table = party.first()
    table.server.announce()
    upload = party.make(table, "m00")
    with pytest.raises(ProtocolError, match="m01 sent an upload of m00"):
        party.fed.receive(upload, sender="m01")
    with pytest.raises(ProtocolError, match="must be of round 3"):
        party.fed.receive(upload, round=3)
    party.fed.receive(upload)
    party.fed.end(0)
    with pytest.raises(ProtocolError, match="ended, or was never formed"):
        party.fed.receive(upload)


def test_costs_of_rounds_that_round_to_one_number_all_count() -> None:
    """Two costs one step apart may have the same μ²: none of their rounds may be forgotten."""
    odometer = Odometer(planned(), [0])
    costs = [0.49]  # so that its product with Δ²/σ² has coarser steps than itself
    for _ in range(20):
        costs.append(math.nextafter(costs[-1], 1))
    odometer._ledgers[0].usual = Counter(dict.fromkeys(costs, 2))
    (squares,) = odometer.squares()
    assert len(squares) < len(costs)  # some did
    assert sum(squares.values()) == 2 * len(costs)
    assert math.sqrt(sum(square * count for square, count in squares.items())) >= odometer.mu()[0]


def test_members_that_are_pinned_no_more_are_in_no_new_roster() -> None:
    party = Party(9)
    party.fed.form()
    party.play(party.first())
    known = {name: member._state.enrolment.identity for name, member in party.members.items()}
    gone = party.fed.rosters[0].names[0]
    party.options["pins"] = Pins({name: each for name, each in known.items() if name != gone})
    party.crash()
    assert gone in party.fed.rosters[0].names  # its roster goes on, and has one less to bear
    assert party.fed.cohorts.rosters[0].left == {gone}
    with pytest.raises(WireError, match=f"{gone} is not pinned"):
        party.fed.enrol(party.members[gone].enrol())
    party.fed.end(0)
    assert gone not in party.fed.cohorts.waiting


def test_a_roster_that_had_all_its_rounds_is_ended_also_by_a_server_that_resumes() -> None:
    for grace in (0, 1):
        party = Party(4, planned(grace=grace, population=None, rounds=1), patience=1000)
        table = party.first()
        while not table.server.full:
            assert party.fed.failing() == []
            party.play(table, [])
        assert party.fed.failing() == [0]
        party.crash()
        table = party.fed.rosters[0]
        assert (table.server.closing, table.server.closed) == (True, grace == 0)
        assert set(party.fed.epsilon().values()) == {0.0}  # there was no round with data that could have been lost


def test_a_round_is_closed_as_what_it_was_announced_as() -> None:
    party = Party(4)
    table = party.first()
    party.play(table)
    table.server.announce(closing=True)
    with pytest.raises(ProtocolError, match="closing=True"):
        party.fed.close(0)
    party.fed.close(0, closing=True)


def test_a_server_that_is_rolled_back_gets_no_second_answer_and_goes_on_with_a_new_roster() -> None:
    party = Party(4, patience=2)
    table = party.first()
    old = party.fed.past()
    for _ in range(2):
        party.play(table)
    spent = {name: member.mu(worst=True) for name, member in party.members.items()}
    party.fed = Federation.resume(old, party.plan, **party.options)
    for name, member in party.members.items():
        party.fed.heard(name, member.answered())
    table = party.fed.rosters[0]
    for _ in range(2):
        start = table.server.announce(since=0)
        for name, member in party.members.items():
            assert member.join(table.server.roster()) == 0
            with pytest.raises(ProtocolError, match=r"was answered|contradicts"):
                member.begin(start).upload(np.zeros(LENGTH))
            assert member.mu(worst=True) == spent[name]
        party.fed.close(0)
    assert party.fed.failing() == [0]
    party.fed.end(0)
    for member in party.members.values():
        party.fed.enrol(member.enrol())
    assert party.fed.form() == [1]
    party.play(party.fed.rosters[1])
    assert all(member.mu() > spent[name] for name, member in party.members.items())


def test_the_roster_whose_turn_it_was_has_it_after_a_crash() -> None:
    party = Party(12, consecutive=1)
    party.fed.form()
    for number in (0, 1):
        party.play(party.fed.rosters[number])
    assert party.fed.cohorts.order == (2, 0, 1)
    party.crash()
    assert party.fed.cohorts.order == (2, 0, 1)
    assert [*party.fed.rosters] == [0, 1, 2]
    turn = party.fed.turn()
    assert turn is not None
    assert turn.number == 2


def test_a_member_whose_uploads_come_one_round_late_has_missed_none() -> None:
    party = Party(4, planned(grace=1), patience=2)
    table, late = party.first(), []
    for _ in range(3):
        table.server.announce()
        late.append(party.make(table, "m00"))
        for name in ("m01", "m02", "m03"):
            party.fed.receive(party.make(table, name))
        if len(late) > 1:
            assert party.fed.receive(late[-2])[1]
        party.fed.close(0)
        assert party.fed.cohorts.rosters[0].gone(2) == set()
    assert "m00" not in party.fed.cohorts.rosters[0].missed


def test_a_round_is_void_after_a_crash_if_it_may_have_been_announced() -> None:
    party = Party(9)
    first, second = party.fed.form()
    for _ in range(2):  # crashes
        party.fed = Federation.resume(party.fed.past([second]), party.plan, **party.options)
    assert [party.fed.rosters[number].server.round for number in (first, second)] == [0, 2]
    party.fed = Federation.resume(party.fed.past([]), party.plan, **party.options)
    assert [party.fed.rosters[number].server.round for number in (first, second)] == [0, 2]
    party.crash()
    assert [party.fed.rosters[number].server.round for number in (first, second)] == [1, 3]


@pytest.mark.parametrize("grace", [0, 1])
def test_rounds_that_more_members_have_answered_than_may_straggle_are_void(grace: int) -> None:
    """As those of a server that was killed before it saved them; fewer members may lie, and change nothing."""
    party = Party(4, planned(grace=grace))
    table = party.first()
    past = party.fed.past([])
    table.server.announce()
    for name in table.names:
        party.make(table, name)
    party.fed = Federation.resume(past, party.plan, **party.options)
    table = party.fed.rosters[0]
    assert table.server.plan.stragglers == 1
    party.fed.heard(table.names[0], {0: {0, 10**9}})
    assert table.server.round == 0
    for name in table.names[1:3]:
        party.fed.heard(name, party.members[name].answered())
    assert table.server.round == 1
    assert table.rounds.was_lost(0)
    party.fed.heard(table.names[3], {})  # says that it has not answered
    assert party.fed.epsilon()[table.names[3]] == 0
    assert min(party.fed.epsilon()[name] for name in table.names[:3]) > 0
    result = party.play(table)
    assert len(result.used) == 4


def test_what_members_say_while_a_round_is_open_ends_no_round() -> None:
    party = Party(4)
    table = party.first()
    table.server.announce()
    for name in table.names:
        upload = party.make(table, name)
        party.fed.heard(name, party.members[name].answered())
        party.fed.receive(upload)
    assert len(party.fed.close(0).used) == 4


def test_who_was_not_asked_has_not_spent_a_round_that_waits_for_late_uploads() -> None:
    """Otherwise a member that was away would count as without budget, and leave."""
    party = Party(4, planned(grace=1, population=None, rounds=1, calibration="exact"), patience=9)
    table = party.first()
    party.play(table, ["m00", "m01", "m02"])
    assert party.fed.epsilon()["m03"] == 0
    assert party.fed.exhausted(0) == {"m00", "m01", "m02"}
    again = Party(4, party.plan, patience=9)
    table = again.first()
    table.server.announce()
    for name in ("m00", "m01", "m02"):
        again.fed.receive(again.make(table, name))
    again.make(table, "m03")  # which may still come
    again.fed.close(0)
    assert again.fed.epsilon()["m03"] == again.fed.epsilon()["m00"] > 0


def test_what_was_spent_in_several_rosters_adds_up_and_ends_in_the_budget() -> None:
    """Without repair a round costs the same at any time, so it takes as many rounds as the plan has."""
    party = Party(4, planned(calibration="exact", population=None, rounds=3), patience=9)
    for number in range(3):
        party.fed.form()
        assert party.fed.cohorts.waiting == []
        party.play(party.fed.rosters[number])
        one = Odometer(party.plan, [0])
        for _ in range(number + 1):
            one.record(range(4))
        assert list(party.fed.epsilon().values()) == pytest.approx([one.epsilon()[0]] * 4, rel=1e-9)
        assert party.fed.exhausted(number) == (set(party.members) if number == 2 else set())
        party.fed.end(number)
    assert party.fed.form() == []
