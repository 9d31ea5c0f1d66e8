"""A server that dies, and one that resumes from what it saved."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lightdp.errors import ArgumentError, ProtocolError
from lightdp.federation import Federation
from support.federated_nodes import LENGTH, Party, planned


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
