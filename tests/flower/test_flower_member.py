"""The mod as a member of a federation: rosters that change, one ledger for all of them, and one state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from lightdp import gaussian
from lightdp.federation import Federation, Member, Table
from lightdp.flower import _vault
from support.flower_grid import LocalGrid
from support.flower_talk import RUN, a_plan, a_record_app, an_app, enrolment, record_of, records_of, refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightdp.planning import Plan

NEXT = b"the run after it"


class Society:
    """A federation and the nodes that may be in it, by position."""

    def __init__(self, plan: Plan, nodes: int, *, fresh: bool = True) -> None:
        _vault._KEPT.clear()
        self.plan, self.grid = plan, LocalGrid(an_app(lambda w: w + 0.1), nodes)
        self.grid.fresh = fresh
        self.federation = Federation(plan, length=4, run=RUN, least=2)
        self.arrays = ArrayRecord({"w": Array(np.zeros(4))})

    def order(self, at: int, **content: Any) -> Message:
        record = RecordDict({"arrays": self.arrays, "config": ConfigRecord(), "lightdp": ConfigRecord(content)})
        return Message(record, self.grid.nodes[at].id, "train")

    def key(self, at: int, run: bytes = RUN) -> Message:
        return self.grid.handle(at, self.order(at, plan=self.plan.to_json(), run=run, length=4, nonce=bytes(32)))

    def enrol(self, nodes: Iterable[int]) -> None:
        for at in nodes:
            self.federation.enrol(enrolment(self.key(at)))

    def start(self, at: int, table: Table, *, closing: bool = False) -> Message:
        server = table.server
        start, roster = server.announce(since=0, closing=closing), server.roster()
        return self.order(at, run=RUN, start=start, roster=roster, closing=closing)

    def place(self, name: str) -> int:
        return next(at for at, node in enumerate(self.grid.nodes) if f"node-{node.id}" == name)

    def play(self, table: Table, without: Iterable[int] = ()) -> np.ndarray[Any, Any] | None:
        """A round of a roster: its mean, or None if a node refused for want of budget."""
        for name in table.names:
            if (at := self.place(name)) in without:
                continue
            reply = self.grid.handle(at, self.start(at, table))
            if reply.has_error():
                assert str(reply.error.reason).startswith("lightdp/budget: another round could exceed the plan's"), (
                    reply
                )
                return None
            upload = reply.content.array_records["arrays"]["lightdp"].numpy().tobytes()
            assert self.federation.receive(upload, sender=name) == (table, True)
        return self.federation.close(table.number).mean()

    def record(self, at: int) -> dict[str, Any]:
        node = self.grid.nodes[at]
        path = Path(node.config["lightdp-state"]) / f"node-{node.id}.json"
        return record_of(path)

    def member(self, at: int) -> Member:
        record = self.record(at)

        class Stored:
            def load(self) -> bytes:
                return str(record["client"]).encode()

            def save(self, state: bytes) -> None:
                raise AssertionError(state)

            append = save

        return Member.restore(self.plan, length=4, store=Stored(), moved=True)


@pytest.mark.parametrize("fresh", [True, False], ids=["new processes", "same processes"])
def test_members_come_and_go_and_every_ledger_is_that_of_the_server(fresh: bool) -> None:
    everybody = Society(a_plan(epsilon=1e6, clip=10.0, rounds=40, calibration="repair"), 7, fresh=fresh)
    federation = everybody.federation
    everybody.enrol(range(4))
    assert federation.form() == [0]
    for _ in range(2):
        table = federation.turn()
        assert table is not None
        assert everybody.play(table) == pytest.approx(np.full(4, 0.1), abs=0.2)
    everybody.enrol([4, 5])  # newcomers wait
    federation.leave(f"node-{everybody.grid.nodes[0].id}")
    federation.end(0)
    assert federation.form() == [1]
    everybody.enrol([6])
    table = federation.rosters[1]
    assert [everybody.place(name) for name in table.names] == [1, 2, 3, 4, 5]
    for _ in range(3):
        assert everybody.play(table, without=[5]) is not None
    spent = federation.epsilon()
    for at in range(1, 6):
        name = f"node-{everybody.grid.nodes[at].id}"
        member = everybody.member(at)
        assert sorted(member.answered()) == ([0, 1] if at < 4 else [1] if at < 5 else [])
        if at < 5:
            assert member.epsilon() >= spent[name] * (1 - 1e-9)  # the last round counts at its worst
    assert sorted(everybody.member(0).answered()) == [0]
    assert json.loads(str(everybody.key(1).content.config_records["lightdp"]["answered"])) == {"0": "3", "1": "7"}
    assert enrolment(everybody.key(1)) == federation._messages[f"node-{everybody.grid.nodes[1].id}"]


def test_one_budget_counts_for_all_rosters_of_a_run() -> None:
    everybody = Society(a_plan(rounds=6, calibration="exact"), 3)
    federation, rounds = everybody.federation, 0
    everybody.enrol(range(3))
    while rounds < 20:
        (number,) = federation.form() or [None]  # type: ignore[list-item]
        if number is None or everybody.play(federation.rosters[number]) is None:
            break
        rounds += 1
        federation.end(number)
    assert rounds == 6  # a roster for each round, and no more rounds than the plan pays for
    for at in range(3):
        member = everybody.member(at)
        assert member.mu() ** 2 == pytest.approx(gaussian.mu(8.0, 1e-5) ** 2, rel=1e-6)
        assert member.epsilon() == pytest.approx(federation.epsilon()[member.name], rel=1e-6)
        assert member.epsilon() <= 8.0


def test_a_node_keeps_its_own_budget_whatever_the_server_counts() -> None:
    everybody = Society(a_plan(rounds=6, calibration="exact"), 3)
    everybody.enrol(range(3))
    rounds = 0
    for number in range(10):  # each roster is new to the server, which forgets the others
        federation = Federation(everybody.plan, length=4, run=RUN, least=2)
        for at in range(3):
            federation.enrol(enrolment(everybody.key(at)))
        federation.cohorts.next_number = number
        everybody.federation = federation
        assert federation.form() == [number]
        rounds += everybody.play(federation.rosters[number]) is not None
    assert rounds == 6


def test_rosters_have_growing_numbers_and_sizes_within_bounds() -> None:
    everybody = Society(a_plan(rounds=20), 7)
    federation = everybody.federation
    everybody.enrol(range(3))
    federation.form()
    first = federation.rosters[0]
    message = everybody.start(0, first)
    assert everybody.play(first) is not None
    federation.end(0)
    federation.form()
    second = federation.rosters[1]
    assert everybody.play(second) is not None
    assert refused(everybody.grid.handle(0, message), "round 0 was answered")  # of the first: it is still answered
    other = Federation(everybody.plan, length=4, run=RUN, least=2)
    for at in range(7):
        other.enrol(enrolment(everybody.key(at)))
    for number, why in ((1, "rosters must have growing numbers: 1 was joined, got 1"), (0, "growing numbers")):
        other.cohorts.next_number = number
        (made, _) = other.form()
        table = other.rosters[made]
        at = everybody.place(table.names[0])
        if at < 3:
            assert refused(everybody.grid.handle(at, everybody.start(at, table)), why)
        other.end(made)
        other.end(made + 1)


def test_a_roster_that_is_larger_than_the_plan_allows_is_refused() -> None:
    plan = a_plan(rounds=20)
    everybody = Society(plan, 6)
    everybody.enrol(range(6))
    federation = Federation(plan.among(6), length=4, run=RUN)
    for at in range(6):
        federation.enrol(enrolment(everybody.key(at)))
    (number,) = federation.form()
    table = federation.rosters[number]
    reply = everybody.grid.handle(0, everybody.start(0, table))
    assert refused(reply, "lightdp/protocol: a roster of this federation has 2 to 5 clients, got 6")


@pytest.mark.parametrize("size", [2, 4, 5])
def test_the_plan_of_a_roster_of_another_size_is_the_one_that_follows(size: int) -> None:
    """A server that puts another number of members under the plan as it is would give them too little noise."""
    everybody = Society(a_plan(rounds=20, colluders=0), 5)
    everybody.enrol(range(size))
    (number,) = everybody.federation.form(force=True)
    table = everybody.federation.rosters[number]
    assert table.server.plan.clients == size
    assert everybody.play(table) is not None
    wrong = Federation(a_plan(rounds=20, colluders=0, epsilon=9.0).among(size), length=4, run=RUN)
    for at in range(size):
        wrong.enrol(enrolment(everybody.key(at)))
    wrong.cohorts.next_number = 1
    wrong.form()
    reply = everybody.grid.handle(0, everybody.start(0, wrong.rosters[1]))
    assert refused(reply, "lightdp/wire: roster is of another run or plan")


@pytest.mark.parametrize("calibration", ["exact", "repair"])
def test_the_next_run_books_all_rosters_of_the_last(calibration: Any) -> None:
    everybody = Society(a_plan(rounds=20, calibration=calibration), 3)
    federation = everybody.federation
    everybody.enrol(range(3))
    for number in range(3):
        assert federation.form() == [number]
        for _ in range(2):
            assert everybody.play(federation.rosters[number]) is not None
        federation.end(number)
    whole = gaussian.mu(8.0, 1e-5) ** 2
    for at in range(3):
        worst = everybody.member(at).mu(worst=True) ** 2
        assert everybody.key(at, run=NEXT).has_content()
        booked = float(everybody.record(at)["before"])
        assert booked == pytest.approx(worst, rel=1e-6)
        assert worst <= booked < 0.75 * whole
        if calibration == "exact":
            assert booked == pytest.approx(whole * 6 / 20, rel=1e-6)


def test_a_closing_round_of_a_roster_that_has_ended_for_others_is_answered_once() -> None:
    everybody = Society(a_plan(rounds=20, calibration="repair"), 4)
    federation = everybody.federation
    everybody.enrol(range(4))
    federation.form()
    table = federation.rosters[0]
    assert everybody.play(table, without=[3]) is not None
    message = everybody.start(0, table, closing=True)
    reply = everybody.grid.handle(0, message)
    upload = reply.content.array_records["arrays"]["lightdp"].numpy().tobytes()
    assert federation.receive(upload, sender=f"node-{everybody.grid.nodes[0].id}") == (table, True)
    assert refused(everybody.grid.handle(0, message), "lightdp/protocol: round 1 was answered, or is over")


def test_sampled_batches_count_without_amplification_in_whichever_roster_they_were() -> None:
    plan = a_plan(unit="record", sampling_rate=0.5, rounds=6, calibration="exact")
    everybody = Society(plan, 3)
    everybody.grid.app = a_record_app(lambda w: w[None])
    for node in everybody.grid.nodes:
        node.config |= records_of(1.0) | {"lightdp-record-rate": 0.5}
    everybody.enrol(range(3))
    for number in range(6):  # more than a member answers at a time
        assert everybody.federation.form() == [number]
        assert everybody.play(everybody.federation.rosters[number]) is not None
        everybody.federation.end(number)
    assert sorted(everybody.member(0).answered()) == [2, 3, 4, 5]
    assert everybody.key(0, run=NEXT).has_content()
    assert everybody.record(0)["before"] == pytest.approx(6 * (plan.sensitivity / plan.scale) ** 2, rel=1e-6)
