"""The server of a federation, step by step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

import lightdp
from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.federation import Federation, Member
from lightdp.keys import Identity, Pins
from support.federated_nodes import LENGTH, RUN, Party, planned


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


def test_a_round_is_closed_as_what_it_was_announced_as() -> None:
    party = Party(4)
    table = party.first()
    party.play(table)
    table.server.announce(closing=True)
    with pytest.raises(ProtocolError, match="closing=True"):
        party.fed.close(0)
    party.fed.close(0, closing=True)


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
