from __future__ import annotations

import itertools
import math
import runpy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
import oracles
from lightdp import masks, network, stream
from lightdp._check import ArgumentError, BudgetError, LightDPError, ProtocolError, WireError
from lightdp.accountant import Odometer
from lightdp.design import RETRIES
from lightdp.keys import Identity, Pins
from lightdp.protocol import Client, File, Server
from lightdp.wire import Accumulator, Announcement, Kind, Message, Upload, bitmap, members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lightdp.design import Plan

RUN = b"a run of 16 byte"


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 5, "colluders": 1, "stragglers": 2, "rounds": 30, "epsilon": 8.0}
    return lightdp.plan(**(asked | {"delta": 1e-5, "unit": "client", "calibration": "repair"} | changed))


def joined(plan: Plan, length: int, *, folder: Path | None = None, **options: Any) -> tuple[Server, list[Client]]:
    server = Server(plan, length=length, run=RUN, **options)
    names = [f"client-{i:02}" for i in range(plan.clients)]
    stores = [None if folder is None else File(folder / f"{name}.json") for name in names]
    clients = [
        Client(plan, length=length, run=RUN, name=name, store=store, **options)
        for name, store in zip(names, stores, strict=True)
    ]
    for client in clients:
        server.enrol(client.enrol())
    for client in clients:
        client.join(server.roster())
    return server, clients


@dataclass
class Tape:
    """What every upload was made of, in fine steps."""

    grid: masks.Grid
    data: list[NDArray[np.int32]] = field(default_factory=list)  # rounded data and individual noise
    fine: list[NDArray[np.int32]] = field(default_factory=list)  # the whole upload
    terms: list[list[stream.Term]] = field(default_factory=list)


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """Record what `masks` adds up; the last tape is the last upload."""
    recorded: list[Tape] = []
    real = masks._fine

    def recording(
        vector: Any, grid: masks.Grid, terms: Sequence[stream.Term], keys: Sequence[bytes], **more: Any
    ) -> NDArray[np.int32]:
        fine = real(vector, grid, terms, keys, **more)
        tape = Tape(grid)
        tape.data.append(real(vector, grid, [], keys))
        tape.fine.append(fine)
        tape.terms.append(list(terms))
        recorded.append(tape)
        return fine

    monkeypatch.setattr(masks, "_fine", recording)
    return recorded


def play(
    server: Server, clients: list[Client], present: Sequence[int], update: Any = None, *, since: int | None = None
) -> Any:
    start = server.announce(since=since)
    for i in present:
        assert server.receive(clients[i].upload(start, np.zeros(server.length) if update is None else update))
    return server.close()


def residual(clients: list[Client], of: int, used: Sequence[int], length: int) -> NDArray[np.int32]:
    """(R1): what the stragglers of a round left in its sum, in fine steps."""
    out = np.zeros(length, np.int32)
    absent = [j for j in range(len(clients)) if j not in used]
    for i in used:
        story = clients[i]._story
        assert story is not None
        peers = tuple(j for j in story.neighbours if j in absent)
        stream.accumulate(out, clients[i]._pairwise(story, of, peers))
    return out


def test_the_sum_of_all_uploads_is_data_plus_individual_noise_exactly(tapes: list[Tape]) -> None:
    server, clients = joined(planned(), 1000)
    result = play(server, clients, range(5), np.linspace(-0.01, 0.01, 1000))
    summed = np.sum([tape.fine[0] for tape in tapes], axis=0, dtype=np.int32)
    assert np.array_equal(summed, np.sum([tape.data[0] for tape in tapes], axis=0, dtype=np.int32))
    assert result.used.all()
    grid = tapes[0].grid
    rounding = result.total / grid.wire_step - summed / 2**grid.shift
    assert np.abs(rounding).max() <= 0.5 * 5


@pytest.mark.parametrize("degree", [None, 4])
def test_stragglers_leave_what_theory_names_and_the_next_round_takes_it_out(tapes: list[Tape], degree: Any) -> None:
    plan = planned(clients=7, degree=degree)
    server, clients = joined(plan, 400)
    used = [0, 1, 3, 4, 6]
    play(server, clients, used)
    left = residual(clients, 0, used, 400)
    noise = np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32)
    assert left.any()
    assert np.array_equal(noise, left)
    tapes.clear()
    play(server, clients, range(7), since=0)
    noise = np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32)
    assert np.array_equal(noise, -left)


def test_after_a_closing_round_no_pairwise_noise_is_left(tapes: list[Tape]) -> None:
    server, clients = joined(planned(), 300)
    for present in ([0, 1, 2, 3, 4], [0, 1, 2], [1, 2, 3, 4], [0, 2, 4], [0, 1, 3]):
        play(server, clients, present, since=0)
    start = server.announce(since=0, closing=True)
    for client in clients:
        server.receive(client.upload(start, None))
    server.close()
    assert not np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32).any()
    with pytest.raises(ProtocolError, match="the run is closed"):
        server.announce()


def test_a_repair_rides_in_three_uploads_at_most_and_waits_while_its_client_is_away(tapes: list[Tape]) -> None:
    server, clients = joined(planned(), 10)
    play(server, clients, [0, 1, 2, 3])
    others = [1, 2, 3]
    for _ in range(6):  # away: nothing is sent, so nothing is lost
        play(server, clients, others, since=0)
    for carries in (True, True, True, False):
        start = server.announce(since=0)
        tapes.clear()
        clients[0].upload(start, np.zeros(10))  # and comes too late
        assert (len(tapes[0].terms[0]) == 4 + 1) is carries
        for i in others:
            server.receive(clients[i].upload(start, np.zeros(10)))
        server.close()


def test_without_repair_nothing_is_taken_out_again(tapes: list[Tape]) -> None:
    server, clients = joined(planned(calibration="exact"), 50)
    play(server, clients, [0, 1, 2])
    tapes.clear()
    play(server, clients, range(5), since=0)
    assert not np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32).any()


def test_a_client_clips_to_the_plan() -> None:
    plan = planned(epsilon=1e6, rounds=1)  # hardly any noise
    server, clients = joined(plan, 4)
    result = play(server, clients, range(5), np.full(4, 100.0))
    assert np.linalg.norm(result.total) == pytest.approx(5 * plan.clip, rel=0.01)


def test_records_are_clamped_to_the_plans_range() -> None:
    plan = planned(epsilon=1e6, rounds=1, unit="record", coordinate_range=2.0)
    server, clients = joined(plan, 3)
    assert play(server, clients, range(5), np.array([1.0, 50.0, -50.0])).mean() == pytest.approx([1, 2, -2], abs=0.05)


def test_weights_are_masked_with_the_update_and_their_sum_comes_back() -> None:
    plan = planned(epsilon=1e6, rounds=1)
    server, clients = joined(plan, 2, weighted=True)
    start = server.announce()
    for client, weight in zip(clients, (1.0, 0.5, 0.25, 0.0, 0.25), strict=True):
        server.receive(client.upload(start, np.array([0.5, 0.1]), weight=weight))
    result = server.close()
    assert result.weight == pytest.approx(2, abs=0.05)
    assert result.total is not None
    assert result.weight is not None
    assert result.total / result.weight == pytest.approx([0.5, 0.1], abs=0.02)
    heaviest = clients[0]._vector(np.full(2, 1e6), 1.0)
    assert np.linalg.norm(heaviest) <= plan.clip


def test_the_mean_divides_by_the_same_number_in_every_round() -> None:
    server, clients = joined(
        planned(epsilon=1e6, calibration="exact"),
        2,
    )
    full = play(server, clients, range(5), np.array([0.5, 0.0])).mean()
    part = play(server, clients, range(3), np.array([0.5, 0.0]), since=0).mean()
    assert (full[0], part[0]) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.3, abs=0.01))


@pytest.mark.parametrize("late", ["seen", "unseen"])
def test_fewer_than_the_minimum_make_a_void_round_that_is_counted_and_training_goes_on(
    tapes: list[Tape], late: str
) -> None:
    server, clients = joined(planned(late=late), 20)
    result = play(server, clients, [0, 1])
    assert result.total is None
    assert not result.used.any()
    assert server.late(0) == {0, 1}
    with pytest.raises(ProtocolError, match="round 0 was void"):
        result.mean()
    tapes.clear()
    assert play(server, clients, range(5), since=0).used.all()
    assert not np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32).any()
    server.announce()
    spent = []
    for client in (clients[0], clients[2]):
        client.upload(server.announce(since=0), np.zeros(20))
        spent.append(client.epsilon())
    assert spent[0] > spent[1] > 0  # what was sent in the void round was seen


def test_late_uploads_are_recorded_and_never_added() -> None:
    server, clients = joined(planned(), 10)
    start = server.announce()
    uploads = [client.upload(start, np.zeros(10)) for client in clients]
    for upload in uploads[:4]:
        assert server.receive(upload)
    before = server.close()
    assert server.receive(uploads[4]) is False
    assert server.late(0) == {4}
    assert before.used.tolist() == [True] * 4 + [False]
    with pytest.raises(ProtocolError, match="client 4 has answered round 0 before"):
        server.receive(uploads[4])
    with pytest.raises(ProtocolError, match="client 0 has answered round 0 before"):
        server.receive(uploads[0])


def test_the_odometer_of_a_client_is_that_of_the_theory() -> None:
    plan = planned()
    server, clients = joined(plan, 5)
    schedule = [[0, 1, 2, 3, 4], [1, 2, 3], [0, 1, 4], [0, 1, 2, 3]]
    for present in schedule:
        play(server, clients, present, since=0)
    server.announce(since=0)
    clients[0].upload(server.announce(since=0), np.zeros(5))
    theory = Odometer(plan, [0])
    for used in schedule:
        theory.record(used, [j for j in range(1, 5) if j not in used])  # client 0 missed round 1 without sending
    assert clients[0].epsilon() == theory.epsilon()[0] > 0


def test_training_stops_at_the_budget_and_nothing_leaves(tmp_path: Path) -> None:
    plan = planned(calibration="exact", rounds=3)
    server, clients = joined(plan, 5, folder=tmp_path)
    for _ in range(3):
        play(server, clients, range(5))
    state = (tmp_path / "client-00.json").read_bytes()
    with pytest.raises(BudgetError, match=r"round 4 could take client 0 to epsilon=.*over the budget of 8"):
        clients[0].upload(server.announce(), np.zeros(5))
    assert (tmp_path / "client-00.json").read_bytes() == state


def test_a_check_refuses_a_round_that_the_budget_does_not_last_for() -> None:
    server, clients = joined(planned(rounds=3, stragglers=0, calibration="exact"), 5)
    for _ in range(3):
        play(server, clients, range(5))
    with pytest.raises(BudgetError, match="round 4 could take client 0"):
        clients[0].check(server.announce())


# ---- what a client refuses ----


def test_a_check_answers_nothing_and_refuses_what_was_answered(tmp_path: Path) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    first, state = server.announce(), (tmp_path / "client-00.json").read_bytes()
    for _ in range(2):
        clients[0].check(first)
    assert (tmp_path / "client-00.json").read_bytes() == state
    assert clients[0].rounds_answered == 0
    assert server.receive(clients[0].upload(first, np.zeros(5)))
    for attempt in (clients[0].check, lambda message: clients[0].upload(message, np.zeros(5))):
        with pytest.raises(ProtocolError, match="round 0 was answered"):
            attempt(first)


def test_a_check_of_one_message_lets_no_other_one_pass() -> None:
    server, clients = joined(planned(), 5)
    first = server.announce()
    clients[0].check(first)
    with pytest.raises(WireError):
        clients[0].upload(first[:-1], np.zeros(5))
    clients[0].upload(first, np.zeros(5))
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        clients[0].upload(first, np.zeros(5))


def test_an_upload_after_a_check_learns_what_the_checked_message_tells(tapes: list[Tape]) -> None:
    server, clients = joined(planned(), 5)
    play(server, clients, [0, 1, 2, 3])
    start = server.announce()
    clients[0].check(start)
    clients[0].upload(start, np.zeros(5))
    assert len(tapes[-1].terms[-1]) == 5  # four peers, and the repair of the one that was absent
    assert clients[0].rounds_answered == 2


def test_a_round_is_answered_once_in_order_and_with_its_past() -> None:
    server, clients = joined(planned(), 5)
    first = server.announce()
    clients[0].upload(first, np.zeros(5))
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        clients[0].upload(first, np.ones(5))
    for client in clients[1:4]:
        server.receive(client.upload(first, np.zeros(5)))
    server.close()
    play(server, clients, [1, 2, 3])
    with pytest.raises(ProtocolError, match="announcement leaves out round 0"):
        clients[4].upload(server.announce(), np.zeros(5))
    assert clients[4].upload(server.announce(since=0), np.zeros(5))


def forged(server: Server, used: Sequence[Sequence[int]], at: int) -> bytes:
    """An announcement of round `at` by a server that tells another story."""
    past = b"".join(bitmap(np.isin(np.arange(server.plan.clients), list(group))) for group in used)
    payload = Announcement(round=at, clients=server.plan.clients, used=past).to_bytes()
    return Message(kind=Kind.ANNOUNCE, run=RUN, round=at, roster=server._fixed().hash, payload=payload).to_bytes()


def test_false_stories_are_refused_and_change_nothing() -> None:
    server, clients = joined(planned(), 5)
    play(server, clients, [0, 1, 2])
    before = clients[0].epsilon()
    with pytest.raises(ProtocolError, match="used must name at least 3 clients"):
        clients[0].upload(forged(server, [[0, 1]], 1), np.zeros(5))
    with pytest.raises(ProtocolError, match="client 3 was used in round 0, which it did not send"):
        clients[3].upload(forged(server, [[0, 1, 3]], 1), np.zeros(5))
    with pytest.raises(ProtocolError, match="expected round 0, got round 2"):
        clients[0].upload(forged(server, [], 2), np.zeros(5))
    clients[0].upload(server.announce(), np.zeros(5))
    server.receive(clients[1].upload(server.announce(), np.zeros(5)))
    with pytest.raises(ProtocolError, match="announcement of round 0 contradicts an earlier one"):
        clients[0].upload(forged(server, [[0, 1, 4], [0, 1, 2]], 2), np.zeros(5))
    assert clients[0].epsilon() >= before


def test_clients_that_were_told_different_stories_do_not_cancel(tapes: list[Tape]) -> None:
    server, clients = joined(planned(), 50)
    play(server, clients, [0, 1, 2, 3, 4])
    tapes.clear()
    honest = server.announce()
    for client in clients[:4]:
        client.upload(honest, np.zeros(50))
    clients[4].upload(forged(server, [[0, 2, 3, 4]], 1), np.zeros(50))
    noise = np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32)
    assert np.abs(noise).mean() > tapes[0].grid.sigma_pairwise


def test_a_changed_roster_a_foreign_plan_and_wrong_pins_are_refused() -> None:
    plan = planned(clients=2, stragglers=0)
    server, clients = joined(plan, 5)
    clients[0].join(server.roster())  # the same again is no change
    other, _ = joined(plan, 5)
    with pytest.raises(WireError, match="does not contain the enrolment"):
        Client(plan, length=5, run=RUN, name="client-00").join(other.roster())
    stranger = Client(planned(clients=2, stragglers=0, epsilon=9.0), length=5, run=RUN, name="client-00")
    with pytest.raises(WireError, match="another run or plan"):
        stranger.join(server.roster())
    identity = Identity.generate()
    pins = Pins.parse(f"client-01 {identity.public.hex()}")
    careful = Client(plan, length=5, run=RUN, name="client-00", pins=pins)
    third = Server(plan, length=5, run=RUN)
    third.enrol(careful.enrol())
    third.enrol(Client(plan, length=5, run=RUN, name="client-01").enrol())
    with pytest.raises(WireError, match="client-01 with an identity other than the pinned one"):
        careful.join(third.roster())
    fourth = Server(plan, length=5, run=RUN)
    fourth.enrol(careful.enrol())
    fourth.enrol(Client(plan, length=5, run=RUN, name="client-01", identity=identity).enrol())
    careful.join(fourth.roster())
    again = Server(plan, length=5, run=RUN)
    again.enrol(careful.enrol())
    again.enrol(Client(plan, length=5, run=RUN, name="client-01", identity=identity).enrol())
    with pytest.raises(ProtocolError, match="the roster must not change in a run"):
        careful.join(again.roster())


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (np.zeros(4), r"update must be a vector of 5 floats, got \(4,\)"),
        (np.array([0, 0, math.nan, 0, 0]), "must be finite"),
        (np.array([0, 0, math.inf, 0, 0]), "must be finite"),
        ([0.0] * 5, "update must be a vector of 5 floats"),
    ],
)
def test_a_bad_update_is_refused_and_the_round_stays_open(update: Any, message: str) -> None:
    server, clients = joined(planned(), 5)
    start = server.announce()
    with pytest.raises(ArgumentError, match=message):
        clients[0].upload(start, update)
    assert server.receive(clients[0].upload(start, np.zeros(5)))


def test_messages_out_of_place_are_refused() -> None:
    plan = planned(clients=2, stragglers=0)
    client, server = Client(plan, length=5, run=RUN, name="a"), Server(plan, length=5, run=RUN)
    for call, message in (
        (lambda: client.upload(b"", np.zeros(5)), "no roster yet"),
        (server.announce, "the roster is not fixed yet"),
        (server.roster, "2 clients must enrol, 0 have"),
        (lambda: client.join(client.enrol()), "expected ROSTER, got ENROL"),
    ):
        with pytest.raises(ProtocolError, match=message):
            call()
    server.enrol(client.enrol())
    with pytest.raises(ProtocolError, match="a enrolled before with other keys"):
        server.enrol(Client(plan, length=5, run=RUN, name="a").enrol())
    with pytest.raises(ArgumentError, match="weighted needs unit='client'"):
        Client(planned(unit="record"), length=5, run=RUN, name="a", weighted=True)


# ---- restarts ----


def test_a_restored_client_goes_on_as_if_nothing_had_happened(tmp_path: Path, tapes: list[Tape]) -> None:
    plan = planned()
    server, clients = joined(plan, 30, folder=tmp_path)
    play(server, clients, [0, 1, 2])
    start = server.announce(since=0)
    clients[0].upload(start, np.zeros(30))
    clients[0] = Client.restore(plan, length=30, store=File(tmp_path / "client-00.json"))
    with pytest.raises(ProtocolError, match="round 1 was answered"):
        clients[0].upload(start, np.ones(30))
    for i in (1, 2, 3, 4):
        server.receive(clients[i].upload(start, np.zeros(30)))
    server.close()
    tapes.clear()
    play(
        server,
        [Client.restore(plan, length=30, store=File(tmp_path / f"client-0{i}.json")) for i in range(5)],
        range(5),
        since=0,
    )
    left = [residual(clients, t, used, 30) for t, used in ((0, [0, 1, 2]), (1, [1, 2, 3, 4]))]
    # clients 1 and 2 repaired round 0 in round 1; client 0's part, lost with its upload, comes now with round 1's
    noise = np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32)
    story = clients[0]._story
    assert story is not None
    mine = np.zeros(30, np.int32)
    stream.accumulate(mine, clients[0]._pairwise(story, 0, (3, 4), undo=True))
    assert np.array_equal(noise, mine - left[1])


def test_state_is_private_and_written_before_the_upload_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, clients = joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    assert path.stat().st_mode & 0o777 == 0o600

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(File, "save", full)
    start = server.announce()
    with pytest.raises(OSError, match="no space left"):
        clients[0].upload(start, np.zeros(5))
    monkeypatch.undo()
    assert server.receive(clients[0].upload(start, np.zeros(5)))  # nothing left before, so the round is still open
    with pytest.raises(ProtocolError, match="round 0 was answered"):
        Client.restore(planned(), length=5, store=File(path)).upload(start, np.zeros(5))


def test_a_state_of_another_plan_or_no_state_is_refused(tmp_path: Path) -> None:
    joined(planned(), 5, folder=tmp_path)
    path = tmp_path / "client-00.json"
    with pytest.raises(ArgumentError, match="must be those of the state"):
        Client.restore(planned(epsilon=9.0), length=5, store=File(path))
    path.write_text('{"version": 2}')
    with pytest.raises(ArgumentError, match="a client's state of version 1"):
        Client.restore(planned(), length=5, store=File(path))
    path.write_text("not json")
    with pytest.raises(ArgumentError, match="store must hold a client's state"):
        Client.restore(planned(), length=5, store=File(path))
    path.unlink()
    with pytest.raises(ArgumentError, match="path must hold a client's state"):
        Client.restore(planned(), length=5, store=File(path))


def test_a_client_restored_before_it_had_a_roster_joins_with_the_key_it_enrolled(tmp_path: Path) -> None:
    plan = planned(clients=2, stragglers=0)
    server = Server(plan, length=5, run=RUN)
    server.enrol(Client(plan, length=5, run=RUN, name="a", store=File(tmp_path / "a.json")).enrol())
    server.enrol(Client(plan, length=5, run=RUN, name="b").enrol())
    again = Client.restore(plan, length=5, store=File(tmp_path / "a.json"))
    server.enrol(again.enrol())  # the same enrolment
    again.join(server.roster())
    assert server.receive(again.upload(server.announce(), np.zeros(5)))


def test_whoever_is_not_pinned_counts_as_a_colluder() -> None:
    plan = planned(clients=4, stragglers=0, colluders=1)
    identities = [Identity.generate() for _ in range(4)]

    def roster(pinned: int) -> tuple[Client, bytes]:
        pins = Pins.parse("\n".join(f"c{i} {identities[i].public.hex()}" for i in range(1, 1 + pinned)))
        careful = Client(plan, length=5, run=RUN, name="c0", identity=identities[0], pins=pins)
        server = Server(plan, length=5, run=RUN)
        server.enrol(careful.enrol())
        for i in range(1, 4):
            server.enrol(Client(plan, length=5, run=RUN, name=f"c{i}", identity=identities[i]).enrol())
        return careful, server.roster()

    careful, message = roster(pinned=2)
    careful.join(message)
    careful, message = roster(pinned=1)
    with pytest.raises(WireError, match=r"at most 1 clients that are not pinned, got \['c2', 'c3'\]"):
        careful.join(message)


def test_an_upload_in_the_name_of_another_is_refused() -> None:
    server, clients = joined(planned(), 5)
    message = clients[1].upload(server.announce(), np.zeros(5))
    with pytest.raises(ProtocolError, match="client-00 sent an upload of client-01"):
        server.receive(message, sender="client-00")
    assert server.receive(message, sender="client-01")


# ---- the adversary's seat ----

SEATS: dict[str, tuple[str, list[tuple[list[int], list[int]]], list[int]]] = {
    "exact": ("exact", [([0, 1, 2, 3, 4], []), ([0, 1, 2, 4], [])], [4]),
    "repair, no stragglers": ("repair", [([0, 1, 2, 3, 4], []), ([0, 1, 2, 3, 4], [])], [4]),
    "repair, stragglers": ("repair", [([0, 1, 2, 3], []), ([0, 1, 2, 3, 4], []), ([0, 1, 4], [])], [4]),
    "repair, late uploads seen": ("repair", [([1, 2, 3, 4], [0]), ([0, 1, 2, 4], [3]), ([0, 1, 2, 3, 4], [])], [4]),
}


@pytest.mark.parametrize("case", SEATS)
def test_the_best_distinguisher_achieves_the_planned_mu_and_no_more(case: str) -> None:
    """Server and colluder against client 0, with real masks and bytes: each coordinate is one experiment."""
    calibration, rounds, colluders = SEATS[case]
    length = 300_000
    plan = planned(calibration=calibration, unit="record", coordinate_range=4.0)
    server, clients = joined(plan, length)
    secret = np.arange(length) % 2 == 0  # half of the coordinates hold a record, half do not
    seen: list[NDArray[np.float64]] = []
    for used, late in rounds:
        start = server.announce(since=0)
        uploads = {i: clients[i].upload(start, (secret * 1.0 if i == 0 else np.zeros(length))) for i in [*used, *late]}
        for i in used:
            server.receive(uploads[i])
        server.close()
        for i in late:
            server.receive(uploads[i])
        honest = [i for i in [*used, *late] if i not in colluders]
        seen += [_without_colluders(uploads[i], clients[i], colluders) for i in honest]
    retries = RETRIES if calibration == "repair" else -1  # -1: nothing is ever repaired
    matrix, owners = oracles.seen_uploads(
        5, plan.gamma, rounds, adjacency=plan.graph.adjacency(), colluders=colluders, retries=retries
    )
    covariance = matrix @ matrix.T * plan.sigma_individual**2
    shift = np.array([1.0 if owner == 0 else 0.0 for _, owner in owners])
    weights = np.linalg.solve(covariance, shift)
    statistic = weights @ np.array(seen)
    achieved = (statistic[secret].mean() - statistic[~secret].mean()) / statistic.std()
    achieved /= math.sqrt(1 - achieved**2 / 4)  # the spread of the mixture is larger than that of either half
    error = 6 * 2 / math.sqrt(length)
    exact = math.sqrt(shift @ weights)
    assert achieved == pytest.approx(exact, abs=error)
    odometer = Odometer(plan, [0])
    for used, late in rounds:
        odometer.record(used, late)
    bound = math.sqrt(math.fsum(odometer._ledgers[0].costs(odometer._cost))) / plan.sigma_individual
    assert exact <= bound * (1 + 1e-9)
    if case in ("exact", "repair, no stragglers"):  # nothing is lost to the bound: both rounds cost (E3)
        assert bound == pytest.approx(math.sqrt(2 / float(network.gain(4, plan.gamma))) / plan.sigma_individual)
    assert achieved != pytest.approx(exact * 1.2, abs=error)  # a σ that is wrong by 20 % would be seen


def _without_colluders(upload: bytes, client: Client, colluders: Sequence[int]) -> NDArray[np.float64]:
    """An upload as numbers, less all that colluders know of its noise."""
    story, roster, grid = client._story, client._roster, client._grid
    assert story is not None
    assert roster is not None
    message = Message.from_bytes(upload, run=RUN, roster=roster.hash)
    total = Accumulator(client.length, grid.bits)
    total.add(Upload.from_bytes(message.payload, length=client.length, bits=grid.bits).packed)
    known = np.zeros(client.length, np.int32)
    sets = [np.flatnonzero(members(used, client.plan.clients)) for used in story.used[: message.round]]
    last = max((t for t, used in enumerate(sets) if story.me in used), default=None)
    for spy in colluders:
        stream.accumulate(known, client._pairwise(story, message.round, (spy,)))
        if last is not None and client.plan.calibration == "repair" and spy not in sets[last]:
            stream.accumulate(known, client._pairwise(story, last, (spy,), undo=True))
    return total.total() * grid.wire_step - known * grid.step


def test_the_example_runs_and_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent.parent / "examples/two_clients.py"
    assert len(path.read_text().splitlines()) < 60
    runpy.run_path(str(path))
    assert "ann has spent ε = " in capsys.readouterr().out


def test_every_refusal_is_one_of_ours() -> None:
    kinds = (ArgumentError, BudgetError, ProtocolError, WireError)
    assert all(issubclass(kind, LightDPError) for kind in kinds)
    assert not any(issubclass(a, b) for a, b in itertools.permutations(kinds, 2))
