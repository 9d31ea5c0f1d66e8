"""Rotated uploads: sums, weights, repairs, restarts, and what a client never exceeds (W1), (P4)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.errors import ArgumentError
from lightdp.planning import Plan
from lightdp.protocol import Client, File, Server
from lightdp.protocol.vector import clipped, rotation
from lightdp.wire import Rotation
from support.parties import RUN, Tape, joined, planned, play

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 1000


def rotated(**changed: Any) -> Plan:
    return planned(**({"parameters": LENGTH, "rotate": True} | changed))


@pytest.mark.parametrize("unit", ["client", "record"])
def test_the_server_turns_the_sum_back(unit: str) -> None:
    plan = rotated(epsilon=1e6, rounds=1, unit=unit)  # hardly any noise
    update = np.zeros(LENGTH, np.float32)
    update[[0, 7, -1]] = 0.5, -0.25, 0.75
    server, clients = joined(plan, LENGTH)
    total = play(server, clients, range(5), update).total
    assert total == pytest.approx(5 * update, abs=0.02)


def test_weights_come_back_too() -> None:
    server, clients = joined(rotated(epsilon=1e6, rounds=1), LENGTH, weighted=True)
    start, update = server.announce(), np.zeros(LENGTH)
    update[3] = 0.5
    for client, weight in zip(clients, (1.0, 0.5, 0.25, 0.0, 0.25), strict=True):
        server.receive(client.begin(start).upload(update, weight=weight))
    result = server.close()
    assert result.weight == pytest.approx(2, abs=0.1)
    assert result.total is not None
    assert result.total[3] == pytest.approx(1.0, abs=0.02)


def test_what_stragglers_leave_is_repaired_and_only_own_noise_stays(tapes: list[Tape]) -> None:
    """The masks of a run cancel to the last bit; what is left of all sums has the variance of the plan."""
    plan, length = rotated(clients=7, parameters=20_000), 20_000
    server, clients = joined(plan, length)
    rounds = [[0, 1, 3, 4, 6], [0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5]]
    totals = [play(server, clients, present, np.full(length, 1e-3), since=0).total for present in rounds]
    start = server.announce(since=0, closing=True)
    for client in clients:
        server.receive(client.begin(start).upload(None))
    totals.append(server.close().total)
    assert not np.sum([t.fine[0] - t.data[0] for t in tapes], axis=0, dtype=np.int32).any()
    left = np.sum(totals, axis=0) - 1e-3 * 17
    assert left.var() == pytest.approx(plan.individual_in_sum(17 + 7), rel=6 * np.sqrt(2 / length))
    assert left.mean() == pytest.approx(0, abs=6 * left.std() / np.sqrt(length))


def test_uploads_are_within_the_clip_and_what_rotating_rounds_and_within_the_range() -> None:
    plan = rotated(clip=1.0, wire_steps=4)
    turn, rng = rotation(plan, LENGTH, RUN), np.random.default_rng(1)
    spike = np.zeros(LENGTH)
    spike[5] = 1e300
    for update in (rng.standard_normal(LENGTH), rng.standard_normal(LENGTH).astype(np.float32), spike):
        vector = clipped(plan, update, 1.0, LENGTH, weighted=False, turn=turn)
        square = sum(Fraction(float(value)) ** 2 for value in vector)
        assert (1 - 1e-5) ** 2 <= square <= (1 + Fraction(Rotation.error(512))) ** 2
        assert np.abs(vector).max() <= plan.wire.range
    weighted = clipped(
        plan, rng.standard_normal(LENGTH), 1.0, LENGTH, weighted=True, turn=rotation(plan, LENGTH + 1, RUN)
    )
    assert sum(Fraction(float(value)) ** 2 for value in weighted) <= 1


def test_an_update_that_the_signs_gather_is_clamped_and_wraps_no_sum() -> None:
    """The signs are public: whoever aims at them gets less than asked for, and no other coordinate suffers."""
    plan = rotated(epsilon=1e6, rounds=1)
    turn = rotation(plan, LENGTH, RUN)
    assert turn is not None
    aimed = np.zeros(LENGTH)
    aimed[2] = plan.clip
    turn.invert(aimed)  # becomes one coordinate when it is rotated
    server, clients = joined(plan, LENGTH)
    total = play(server, clients, range(5), aimed).total
    turned = turn.apply(np.array(total))
    assert plan.wire.range < 0.3 * plan.clip
    assert turned[2] == pytest.approx(5 * plan.wire.range, abs=0.01)
    assert np.delete(turned, 2) == pytest.approx(np.zeros(LENGTH - 1), abs=0.01)


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("where", [0, -1])
@pytest.mark.parametrize(
    ("bad", "message"),
    [(np.nan, "must be finite"), (np.inf, "must be finite"), (-np.inf, "must be finite"), (None, "got int64")],
)
def test_a_bad_update_is_refused_and_the_round_stays_open(
    unit: str, where: int, bad: float | None, message: str
) -> None:
    server, clients = joined(rotated(unit=unit), LENGTH)
    start = server.announce()
    update: Any = np.zeros(LENGTH, np.int64 if bad is None else np.float32)
    if bad is not None:
        update[where] = bad
    with pytest.raises(ArgumentError, match=message):
        clients[0].begin(start).upload(update)
    assert server.receive(clients[0].begin(start).upload(np.zeros(LENGTH, np.float32)))


def test_two_records_are_no_further_apart_after_rotation_and_clamps() -> None:
    """The sensitivity, with what `Grid` covers: for sums of many records, also where they are clamped."""
    plan = rotated(unit="record", records=5000)
    turn, rng = rotation(plan, LENGTH, RUN), np.random.default_rng(2)
    for scale in (1.0, 30.0, 1e4):
        many = scale * rng.standard_normal(LENGTH)
        one = rng.standard_normal(LENGTH)
        one *= plan.clip / np.linalg.norm(one)
        apart = clipped(plan, many + one, 1.0, LENGTH, weighted=False, turn=turn).astype(np.longdouble)
        apart -= clipped(plan, many, 1.0, LENGTH, weighted=False, turn=turn)
        assert np.linalg.norm(apart.astype(np.float64)) <= plan.clip * (1 + 1e-9)


def test_a_restored_client_rotates_as_before(tmp_path: Path) -> None:
    plan = rotated(epsilon=1e6, rounds=3)
    server, clients = joined(plan, LENGTH, folder=tmp_path)
    update = np.zeros(LENGTH)
    update[9] = 0.5
    play(server, clients, range(5), update)
    store = File(tmp_path / "client-02.json")
    clients[2] = Client.restore(plan, length=LENGTH, store=store)
    assert play(server, clients, range(5), update).total == pytest.approx(5 * update, abs=0.03)


def test_vectors_shorter_than_the_plans_are_refused() -> None:
    plan, said = rotated(), "length must be that of the plan, which rotates 1000 parameters, got 200"
    with pytest.raises(ArgumentError, match=said):
        Server(plan, length=200, run=RUN)
    with pytest.raises(ArgumentError, match=said):
        Client.new(plan, length=200, run=RUN, name="ann")
    assert Server(plan, length=3000, run=RUN)  # longer ones spread as far


def test_uploads_are_not_rotated_unless_the_plan_says_so() -> None:
    assert rotation(planned(), 10, RUN) is None
    assert rotation(rotated(rotate=False), LENGTH, RUN) is None
