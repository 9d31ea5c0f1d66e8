"""One ledger for all rosters (C1), against the exact covariance of everything that members of a federation sent."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp import gaussian
from lightdp.client_set import ClientSet
from lightdp.errors import BudgetError, ProtocolError
from lightdp.federation import Federation, Member
from lightdp.repair import RETRIES
from lightdp.wire import Announcement, Kind, Message
from support.covariance import Made, View

if TYPE_CHECKING:
    from lightdp.federation._federation import Table
    from lightdp.planning import Plan

RUN = b"a run of 16 byte"
ABOVE = 1 + 1e-9


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 4, "colluders": 0, "stragglers": 2, "rounds": 12, "epsilon": 8.0}
    return lightdp.plan(**(asked | {"delta": 1e-5, "unit": "client", "calibration": "repair"} | changed))


class Training:
    """A federation that follows the protocol, and members whose uploads come, come late, or are lost."""

    def __init__(self, plan: Plan, monkeypatch: pytest.MonkeyPatch, members: int, **settings: Any) -> None:
        self.plan, self.settings, self.view = plan, settings, View(monkeypatch)
        self.federation = Federation(plan, length=2, run=RUN, **settings)
        self.members: dict[str, Member] = {}
        self.delayed: list[bytes] = []
        self.received: set[bytes] = set()
        self.refused = 0
        for _ in range(members):
            self.enrol()

    def enrol(self) -> str:
        name = f"member-{len(self.members):02}"
        self.members[name] = Member.new(self.plan, length=2, run=RUN, name=name)
        self.federation.enrol(self.members[name].enrol())
        return name

    def form(self, *, force: bool = False) -> list[int]:
        made = self.federation.form(force=force)
        for number in made:
            table = self.federation.rosters[number]
            self.view.names[table.server.roster_hash] = table.names
            for name in table.names:
                assert self.members[name].join(table.server.roster()) == number
        return made

    def asks(self, table: Table, name: str, *, closing: bool = False) -> bytes | None:
        start = table.server.announce(since=0, closing=closing)
        table.rounds.asked(table.server.round, table.index[name])
        try:
            return self.members[name].begin(start).upload(None if closing else np.full(2, 0.1))
        except BudgetError:
            self.refused += 1
            return None

    def arrives(self, message: bytes) -> None:
        alive = {table.server.roster_hash for table in self.federation.rosters.values()}
        if Message.roster_of(message) in alive:
            self.federation.receive(message)
            self.received.add(message)
            return
        with pytest.raises(ProtocolError, match="roster that has ended"):
            self.federation.receive(message)

    def plays(self, table: Table, fates: dict[str, str], *, closing: bool = False) -> None:
        """A round: each member is "here", "late" (it may come at any time), "lost" or "away"."""
        table.server.announce(closing=closing)
        for name, fate in fates.items():
            if fate == "away" or (message := self.asks(table, name, closing=closing)) is None:
                continue
            if fate == "here":
                self.arrives(message)
            elif fate == "late":
                self.delayed.append(message)
        self.federation.close(table.number, closing=closing)

    def ends(self, table: Table, here: list[str]) -> None:
        for _ in range(1 + self.plan.grace):
            self.plays(table, dict.fromkeys(here, "here"), closing=True)
        self.federation.end(table.number)

    def crashes(self) -> None:
        self.federation = Federation.resume(self.federation.past(), self.plan, **self.settings)

    def stopped(self) -> bool:
        return self.refused > 0

    def was_seen(self, made: Made) -> bool:
        return made.message in self.received

    def check(self, colluders: list[str]) -> float:
        """Every ledger is above what is true; returns the largest share of a ledger that is."""
        budget, share = gaussian.mu(self.plan.budget, self.plan.delta, up=True) ** 2, 0.0
        for name, member in self.members.items():
            if name in colluders:
                continue
            everything = self.view.exact(name, colluders)
            assert everything <= member.mu() ** 2 * ABOVE
            assert everything <= member.mu(worst=True) ** 2 * ABOVE
            assert everything <= budget * ABOVE
            assert member.epsilon(worst=True) <= self.plan.budget
            if everything > 0:
                share = max(share, everything / member.mu() ** 2)
                said = self.federation.epsilon().get(name, 0.0)
                assert (
                    gaussian.epsilon(math.sqrt(self.view.exact(name, colluders, self.was_seen)), 1e-5) <= said * ABOVE
                )
        return share


FATES = ("here", "here", "here", "here", "late", "lost", "away")


@pytest.mark.parametrize("grace", [0, 1])
@pytest.mark.parametrize("seed", range(8))
def test_ledgers_bound_what_all_rosters_reveal_together(seed: int, grace: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random trainings: stragglers, late and lost uploads, void rounds, crashes, members that join and leave."""
    rng = random.Random(seed)  # noqa: S311  a schedule, not a secret
    plan = planned(
        grace=grace, colluders=rng.choice([0, 1]), degree=rng.choice([None, 2]), gamma=rng.choice([None, 20])
    )
    training = Training(plan, monkeypatch, rng.randint(4, 9), least=3, patience=2)
    training.form()
    for _ in range(14):
        table = training.federation.turn()
        if table is None:
            break
        for message in [each for each in training.delayed if rng.random() < 0.5]:
            training.delayed.remove(message)
            training.arrives(message)
        mood = rng.random()  # of the round: as usual, all here, or most of them away
        weights = FATES if mood < 0.7 else ("here",) if mood < 0.85 else ("away", "lost", "here")
        if rng.random() < 0.15:
            for name in rng.sample(table.names, 2):
                made = training.asks(table, name)
                if made is not None and rng.random() < 0.5:
                    training.arrives(made)
            training.crashes()
            continue
        training.plays(table, {name: rng.choice(weights) for name in table.names})
        if rng.random() < 0.2:
            training.federation.leave(rng.choice(table.names))
        if rng.random() < 0.2:
            training.enrol()
        for number in training.federation.failing():
            failing = training.federation.rosters[number]
            training.ends(failing, [name for name in failing.names if rng.random() < 0.8])
        training.form(force=rng.random() < 0.5)
    everybody = sorted(training.members)
    colluders = everybody[1 : 1 + plan.colluders]
    assert 0 < training.check(colluders) <= ABOVE


@pytest.mark.parametrize("sizes", [(4, 5), (5, 4, 4)])
def test_where_nobody_straggles_the_ledger_of_all_rosters_is_exact(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One roster after the other, of several sizes, each with its own noise: μ² add up to the last digits."""
    training = Training(planned(stragglers=1, epsilon=30.0, rounds=40), monkeypatch, 3)
    for size in sizes:
        while len(waiting := training.federation.cohorts.waiting) > size:
            training.federation.leave(max(waiting))
        while len(training.federation.cohorts.waiting) < size:
            training.enrol()
        (number,) = training.form()
        table = training.federation.rosters[number]
        assert len(table.names) == size
        for _ in range(3):
            training.plays(table, dict.fromkeys(table.names, "here"))
        training.ends(table, list(table.names))
    name = "member-00"
    expected = 0.0
    for size in sizes:
        plan = training.plan.among(size)
        expected += 3 * float(plan.used_cost(size)) * (plan.sensitivity / plan.sigma_individual) ** 2
    assert training.view.exact(name) == pytest.approx(expected, rel=1e-9)
    assert training.members[name].mu() ** 2 == pytest.approx(expected, rel=1e-9)
    assert training.members[name].mu(worst=True) ** 2 > 1.01 * expected  # room for lies in each of them


def test_a_member_stops_at_one_budget_for_all_rosters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Re-formed again and again: what it spent elsewhere counts, and each roster keeps room for lies of its own."""
    training = Training(planned(rounds=6, stragglers=1), monkeypatch, 4)
    training.form()
    table = training.federation.turn()
    assert table is not None
    while not training.refused:
        training.plays(table, dict.fromkeys(table.names, "here"))
    alone = sum(made.name == "member-00" for made in training.view.made)
    assert alone >= 6
    monkeypatch.undo()
    training = Training(planned(rounds=6, stragglers=1), monkeypatch, 4)
    while training.form():
        table = training.federation.turn()
        assert table is not None
        for _ in range(2):
            training.plays(table, dict.fromkeys(table.names, "here"))
        training.ends(table, list(table.names))
    assert training.check([]) > 0.5
    assert 2 < sum(made.name == "member-00" and not made.closing for made in training.view.made) < alone


@pytest.mark.parametrize("rounds", [20, 60])
def test_a_liar_who_rotates_in_every_roster_gets_no_more_than_the_budget(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(W5) in each roster that the member was in: it was told a used round each time, and more is true."""
    clients = 6
    plan = planned(clients=clients, stragglers=4, rounds=rounds, gamma=100.0, reserve="worst")
    training = Training(plan, monkeypatch, clients)
    names = sorted(training.members)
    others, nobody = ClientSet.of(clients, range(1, clients)), ClientSet.none(clients)
    rosters = 0
    while not training.stopped():
        (number,) = training.form()
        roster = training.federation.rosters[number].server.roster_hash
        told: dict[str, list[ClientSet]] = {name: [] for name in names}

        def ask(name: str, *, closing: bool, roster: bytes = roster, told: dict[str, list[ClientSet]] = told) -> None:
            now = len(told[name])
            payload = Announcement(round=now, clients=clients, past=tuple(told[name]), closing=closing).to_bytes()
            start = Message(kind=Kind.ANNOUNCE, run=RUN, round=now, roster=roster, payload=payload).to_bytes()
            try:
                training.members[name].begin(start).upload(None if closing else np.zeros(2))
            except BudgetError:
                assert name == names[0]
                training.refused += 1

        for peer in range(1, clients):
            ask(names[0], closing=False)
            if training.stopped():
                break
            for i in range(1, peer + 1):
                ask(names[i], closing=i < peer)
            for i, name in enumerate(names):
                used = ClientSet.of(clients, [0, peer])
                told[name].append(nobody if 0 < i < peer else others if i == peer else used)
        for _ in range(1 + RETRIES):
            for name in names:
                ask(name, closing=True)
                told[name].append(nobody)
        rosters += 1
        training.federation.end(number)
    exact, victim = training.view.exact(names[0]), training.members[names[0]]
    budget = gaussian.mu(plan.budget, plan.delta, up=True) ** 2
    data = sum(made.name == names[0] and not made.closing for made in training.view.made)
    as_told = data * float(plan.used_cost(2)) * (plan.sensitivity / plan.sigma_individual) ** 2
    assert rosters >= 3
    assert 1.1 * as_told < exact <= victim.mu(worst=True) ** 2 * ABOVE
    assert 0.7 * budget < exact <= budget * ABOVE


def test_no_key_is_used_in_two_rosters_of_the_same_members(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(planned(), monkeypatch, 4)
    for _ in range(2):
        training.form()
        table = training.federation.turn()
        assert table is not None
        training.plays(table, dict.fromkeys(table.names, "here"))
        training.federation.end(table.number)
    first, second = ([made for made in training.view.made if made.roster == roster] for roster in training.view.names)
    assert len(first) == len(second) == 4
    assert not {key for made in first for key in made.keys} & {key for made in second for key in made.keys}
    assert all(len(made.keys) == 3 for made in first)
