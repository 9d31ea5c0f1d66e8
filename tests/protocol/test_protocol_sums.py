"""What the sum of a round holds, with everybody there, with stragglers and with late uploads; and the example."""

from __future__ import annotations

import math
import runpy
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightdp.client_set import ClientSet
from lightdp.clipping import clip_norm
from lightdp.errors import ProtocolError
from lightdp.noise_graph import Graph
from lightdp.protocol.seat import Seat
from lightdp.protocol.vector import clipped, weight_share
from support.parties import Tape, joined, planned, play, residual, seat


def test_the_sum_of_all_uploads_is_data_plus_individual_noise_exactly(tapes: list[Tape]) -> None:
    server, clients = joined(planned(), 1000)
    result = play(server, clients, range(5), np.linspace(-0.01, 0.01, 1000))
    summed = np.sum([tape.fine[0] for tape in tapes], axis=0, dtype=np.int32)
    assert np.array_equal(summed, np.sum([tape.data[0] for tape in tapes], axis=0, dtype=np.int32))
    assert len(result.used) == result.used.clients
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
        server.receive(client.begin(start).upload(None))
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
        clients[0].begin(start).upload(np.zeros(10))  # and comes too late
        assert (len(tapes[0].terms[0]) == 4 + 1) is carries
        for i in others:
            server.receive(clients[i].begin(start).upload(np.zeros(10)))
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
        server.receive(client.begin(start).upload(np.array([0.5, 0.1]), weight=weight))
    result = server.close()
    assert result.weight == pytest.approx(2, abs=0.05)
    assert result.total is not None
    assert result.weight is not None
    assert result.total / result.weight == pytest.approx([0.5, 0.1], abs=0.02)
    heaviest = clipped(plan, np.full(2, 1e6), 1.0, 2, weighted=True)
    assert np.linalg.norm(heaviest) <= plan.clip


def test_sums_of_weights_do_not_wrap_where_the_range_of_an_update_is_narrow() -> None:
    server, clients = joined(planned(epsilon=1e6, rounds=1, coordinate_range=0.01), 2, weighted=True)
    result = play(server, clients, range(5), np.zeros(2))
    assert result.weight == pytest.approx(5, abs=0.5)


def test_the_mean_divides_by_the_same_number_in_every_round() -> None:
    server, clients = joined(
        planned(epsilon=1e6, calibration="exact"),
        2,
    )
    full = play(server, clients, range(5), np.array([0.5, 0.0])).mean()
    part = play(server, clients, range(3), np.array([0.5, 0.0]), since=0).mean()
    assert (full[0], part[0]) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.3, abs=0.01))


@pytest.mark.parametrize("late", [0.0, "unseen"])
def test_fewer_than_the_minimum_make_a_void_round_that_is_counted_and_training_goes_on(
    tapes: list[Tape], late: float | str
) -> None:
    server, clients = joined(planned(late=late), 20)
    result = play(server, clients, [0, 1])
    assert result.total is None
    assert not result.used
    assert list(server.late(0)) == [0, 1]
    with pytest.raises(ProtocolError, match="round 0 was void"):
        result.mean()
    tapes.clear()
    assert play(server, clients, range(5), since=0).used == ClientSet.all(5)
    assert not np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32).any()
    server.announce()
    spent = []
    for client in (clients[0], clients[2]):
        client.begin(server.announce(since=0)).upload(np.zeros(20))
        spent.append(client.epsilon())
    assert spent[0] > spent[1] > 0  # what was sent in the void round was seen


def test_late_uploads_are_recorded_and_never_added() -> None:
    server, clients = joined(planned(), 10)
    start = server.announce()
    uploads = [client.begin(start).upload(np.zeros(10)) for client in clients]
    for upload in uploads[:4]:
        assert server.receive(upload)
    before = server.close()
    assert server.receive(uploads[4]) is False
    assert list(server.late(0)) == [4]
    assert list(before.used) == [0, 1, 2, 3]
    with pytest.raises(ProtocolError, match="client 4 has answered round 0 before"):
        server.receive(uploads[4])
    with pytest.raises(ProtocolError, match="client 0 has answered round 0 before"):
        server.receive(uploads[0])


def test_the_example_runs_and_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "examples/two_clients.py"
    assert len(path.read_text().splitlines()) < 60
    found = runpy.run_path(str(path))
    assert found["plan"].gamma > 0  # there is noise to repair
    assert "ann has spent ε = " in capsys.readouterr().out


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("weight", [None, 1.0, 0.25])
@pytest.mark.parametrize("size", [0.1, 7.0])
@pytest.mark.parametrize("reach", [0.05, 100.0])
def test_an_update_is_clipped_weighted_and_clamped_and_itself_stays(
    unit: str, weight: float | None, size: float, reach: float
) -> None:
    plan = planned(unit=unit, clip=1.0, coordinate_range=reach)
    update = np.random.default_rng(3).normal(size=50).astype(np.float32)
    update *= np.float32(size / np.linalg.norm(update))
    before, share = update.copy(), 0.0 if weight is None else weight_share(plan)
    found = clipped(plan, update, 1.0 if weight is None else weight, 50, weighted=weight is not None)
    assert np.array_equal(update, before)
    assert not (size == 0.1 and (unit, weight, reach) == ("client", None, 100.0)) or found is update
    expected = update.astype(np.float64)
    if unit == "client":
        expected *= min(1.0, math.sqrt(1 - share**2) / size)
    expected = np.clip(expected * (1.0 if weight is None else weight), -plan.upload_range, plan.upload_range)
    assert found[:50] == pytest.approx(expected, rel=1e-5)
    assert found[50:].tolist() == ([] if weight is None else [np.float32(share * weight)])


def test_a_weighted_upload_is_within_the_clip_also_where_its_weight_is_rounded_up() -> None:
    """float32(0.1) > 0.1: an update that fills all that the weight leaves would be outside, in exact arithmetic."""
    plan = planned(clip=1.0)
    room = math.sqrt(1 - 0.1**2)
    first = np.nextafter(np.float32(room), np.float32(0))
    rest = np.float32(math.sqrt(1 - 0.1**2 - float(first) ** 2 - 5e-11))
    update = np.array([first, rest], np.float32)
    full = sum(Fraction(float(value)) ** 2 for value in update)
    assert clip_norm(update.copy(), room) == 1.0  # it would be left as it is
    assert full + Fraction(float(np.float32(0.1))) ** 2 > 1
    for weight in (1.0, 0.999999):
        assert sum(Fraction(float(value)) ** 2 for value in clipped(plan, update, weight, 2, weighted=True)) <= 1


def test_a_seat_takes_the_row_of_its_client_and_not_the_whole_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(clients=7, degree=4)
    _, clients = joined(plan, 5)
    rows = plan.graph.neighbours().tolist()

    def whole(_: Graph) -> None:
        raise AssertionError("the whole graph was made")

    monkeypatch.setattr(Graph, "neighbours", whole)
    for me, client in enumerate(clients):
        state = client._state
        assert state.roster is not None
        assert Seat(plan, state, state.roster, None, seat(client).grid)._neighbours == rows[me]
