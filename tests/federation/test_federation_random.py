"""Federations on random graphs: each member knows its neighbours alone, also after a restart."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import lightdp
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.federation import Federation, Member, MemberState
from lightdp.planning import Plan
from support.federated_nodes import RUN, Memory

CLIENTS, LENGTH = 24, 4


@cache
def planned() -> Plan:
    return lightdp.plan(
        clients=CLIENTS, colluders=1, stragglers=2, rounds=6, epsilon=8, delta=1e-5, unit="client", graph="random:8",
        calibration="repair", gamma=4.0,
    )  # fmt: skip


class Everyone:
    def __init__(self) -> None:
        self.federation = Federation(planned(), length=LENGTH, run=RUN)
        self.stores = {f"member-{i:02}": Memory() for i in range(CLIENTS)}
        self.members = {
            name: Member.new(planned(), length=LENGTH, run=RUN, name=name, store=store)
            for name, store in self.stores.items()
        }
        for member in self.members.values():
            self.federation.enrol(member.enrol())

    def round(self, number: int) -> int:
        """Play a round of a roster; returns how many were used."""
        table = self.federation.rosters[number]
        for name, member in self.members.items():
            member.join(table.server.roster(name))
            start = table.server.announce(since=0)
            self.federation.receive(member.begin(start).upload(np.zeros(LENGTH)), sender=name)
        return len(self.federation.close(number).used)

    def restart(self) -> None:
        self.members = {
            name: Member.restore(planned(), length=LENGTH, store=store) for name, store in self.stores.items()
        }


def test_members_join_their_own_excerpts_and_go_on_from_their_states() -> None:
    everyone = Everyone()
    (number,) = everyone.federation.form()
    assert everyone.round(number) == CLIENTS
    graph = everyone.federation.rosters[number].server.plan.graph
    everyone.restart()
    for place, store in enumerate(everyone.stores.values()):
        part = MemberState.from_bytes(store.load()).rosters[number]
        assert part.roster is not None
        assert sorted(part.roster.enrolments) == sorted([place, *graph.neighbours_of(place).tolist()])
        assert part.roster.hash == everyone.federation.rosters[number].server.roster_hash
    assert everyone.round(number) == CLIENTS
    assert 0 < everyone.members["member-00"].epsilon() <= planned().budget


def test_a_member_refuses_the_roster_of_another() -> None:
    everyone = Everyone()
    (number,) = everyone.federation.form()
    server, first = everyone.federation.rosters[number].server, everyone.members["member-00"]
    stranger = next(i for i in range(1, CLIENTS) if 0 not in server.plan.graph.neighbours_of(i))
    neighbour = int(server.plan.graph.neighbours_of(0)[0])
    with pytest.raises(WireError, match="does not contain the enrolment of member-00"):
        first.join(server.roster(f"member-{stranger:02}"))
    for wrong in (server.roster(f"member-{neighbour:02}"), server.roster()):
        with pytest.raises(WireError, match="roster must show client 0 and its"):
            first.join(wrong)
    assert first.answered() == {}
    assert first.join(server.roster("member-00")) == number


def test_a_roster_that_places_badly_gets_another_number(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone, placed, tried = Everyone(), Plan.placed, list[bytes]()

    def at_the_third(plan: Plan, place: bytes, *, checked: bool = False) -> Plan:
        tried.append(place)
        if len(tried) < 3:
            raise ArgumentError("the roster must give every client more neighbours")
        return placed(plan, place, checked=checked)

    monkeypatch.setattr(Plan, "placed", at_the_third)
    assert everyone.federation.form() == [2]
    assert len(set(tried)) == 3
    cohorts = everyone.federation.cohorts
    assert (list(everyone.federation.rosters), list(cohorts.rosters), cohorts.order) == ([2], [2], (2,))
    assert (cohorts.rosters[2].number, cohorts.next_number) == (2, 3)
    assert everyone.round(2) == CLIENTS
    again = Federation.resume(everyone.federation.past([]), planned())
    assert again.rosters[2].server.roster_hash == everyone.federation.rosters[2].server.roster_hash


def test_a_plan_whose_rosters_always_place_badly_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_plan: Plan, _place: bytes) -> Plan:
        raise ArgumentError("the roster must give every client more neighbours")

    everyone = Everyone()
    monkeypatch.setattr(Plan, "placed", never)
    with pytest.raises(ProtocolError, match="16 rosters in a row left a member too few neighbours"):
        everyone.federation.form()
