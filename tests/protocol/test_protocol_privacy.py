"""What a client says it has spent, where it stops, and what the best adversary learns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lightdp import gaussian, noise_graph, stream
from lightdp.accountant import Odometer
from lightdp.errors import BudgetError
from lightdp.protocol.rounds import used_sets
from lightdp.repair import RETRIES
from lightdp.wire import Accumulator, Message, Upload
from support import oracles
from support.parties import RUN, joined, planned, play, seat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lightdp.protocol import Client


def test_the_odometer_of_a_client_is_that_of_the_theory() -> None:
    plan = planned()
    server, clients = joined(plan, 5)
    schedule = [[0, 1, 2, 3, 4], [1, 2, 3], [0, 1, 4], [0, 1, 2, 3]]
    for present in schedule:
        play(server, clients, present, since=0)
    clients[0].begin(server.announce(since=0)).upload(np.zeros(5))
    theory = Odometer(plan, [0])
    for used in schedule:
        theory.record(used, [j for j in range(1, 5) if j not in used])  # client 0 missed round 1 without sending
    assert clients[0].epsilon() == theory.counted(ahead=True).epsilon()[0] > theory.epsilon()[0] > 0


@pytest.mark.parametrize("used", [[0, 1, 2, 3, 4], [0, 1, 2], [1, 2, 3], []])
@pytest.mark.parametrize("late", [0.0, "unseen"])
def test_an_upload_counts_at_its_dearest_until_it_is_known_who_was_used(used: list[int], late: float | str) -> None:
    server, clients = joined(planned(late=late), 5)
    upload = [client.begin(server.announce()).upload(np.zeros(5)) for client in clients]
    at_most = clients[0].epsilon()
    for i in used:
        server.receive(upload[i])
    server.close()
    start = server.announce(since=0, closing=True)
    clients[0].begin(start).upload(None)  # which has no data and costs nothing
    assert 0 <= clients[0].epsilon() <= at_most <= clients[0].plan.budget
    assert at_most > 0
    assert (clients[0].epsilon() == 0) == (late == "unseen" and used == [1, 2, 3])


def test_training_stops_at_the_budget_and_nothing_leaves(tmp_path: Path) -> None:
    plan = planned(calibration="exact", rounds=3)
    server, clients = joined(plan, 5, folder=tmp_path)
    for _ in range(3):
        play(server, clients, range(5))
    state = (tmp_path / "client-00.json").read_bytes()
    with pytest.raises(BudgetError, match=r"round 4 could take client 0 to epsilon=.*over the budget of 8"):
        clients[0].begin(server.announce()).upload(np.zeros(5))
    assert (tmp_path / "client-00.json").read_bytes() == state


def test_a_check_refuses_a_round_that_the_budget_does_not_last_for() -> None:
    server, clients = joined(planned(rounds=3, stragglers=0, calibration="exact"), 5)
    for _ in range(3):
        play(server, clients, range(5))
    with pytest.raises(BudgetError, match="round 4 could take client 0"):
        clients[0].begin(server.announce())


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
        uploads = {
            i: clients[i].begin(start).upload(secret * 1.0 if i == 0 else np.zeros(length)) for i in [*used, *late]
        }
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
    bound = math.sqrt(odometer._ledgers[0].total()) / plan.scale
    assert exact <= bound * (1 + 1e-9)
    if case in ("exact", "repair, no stragglers"):  # nothing is lost to the bound: both rounds cost (E3)
        assert bound == pytest.approx(math.sqrt(2 / float(noise_graph.gain(4, plan.gamma))) / plan.sigma_individual)
    assert achieved != pytest.approx(exact * 1.2, abs=error)  # a σ that is wrong by 20 % would be seen


def _without_colluders(upload: bytes, client: Client, colluders: Sequence[int]) -> NDArray[np.float64]:
    """An upload as numbers, less all that colluders know of its noise."""
    history, roster, grid = client._history, client._state.roster, seat(client).grid
    assert history is not None
    assert roster is not None
    message = Message.from_bytes(upload, run=RUN, roster=roster.hash)
    total = Accumulator(client.length, grid.bits)
    total.add(Upload.from_bytes(message.payload, length=client.length, bits=grid.bits).packed)
    known = np.zeros(client.length, np.int32)
    sets = used_sets(history.rounds)[: message.round]
    last = max((t for t, used in enumerate(sets) if history.me in used), default=None)
    for spy in colluders:
        stream.accumulate(known, seat(client).pairwise(history, message.round, (spy,)))
        if last is not None and client.plan.repairs and spy not in sets[last]:
            stream.accumulate(known, seat(client).pairwise(history, last, (spy,), undo=True))
    return total.total() * grid.wire_step - known * grid.step


@pytest.mark.parametrize("calibration", ["repair", "exact"])
def test_at_worst_every_upload_was_seen_where_late_ones_were_said_to_stay_unseen(calibration: str) -> None:
    """A server that tells a client in each round that it came too late, and keeps its uploads."""
    plan = planned(late="unseen", calibration=calibration, stragglers=2)
    server, clients = joined(plan, 5)
    for _ in range(6):
        start = server.announce()
        for i in (0, 1, 2):
            server.receive(clients[i].begin(start).upload(np.zeros(5)))
        clients[3].begin(start).upload(np.zeros(5))  # never taken in
        server.close()
    clients[3].begin(server.announce())
    told = clients[3].epsilon(), clients[3].mu()
    seen = math.sqrt(6) * plan.sensitivity / plan.scale
    assert clients[3].mu(worst=True) == pytest.approx(seen)
    assert clients[3].epsilon(worst=True) == pytest.approx(gaussian.epsilon(seen, plan.delta))
    assert told[0] < clients[3].epsilon(worst=True)
    assert told[1] < clients[3].mu(worst=True)


def test_at_worst_is_within_the_budget_where_that_is_a_theorem() -> None:
    plan = planned(rounds=2, stragglers=2)
    server, clients = joined(plan, 5)
    start = server.announce()
    for client in clients:
        server.receive(client.begin(start).upload(np.zeros(5)))
    server.close()
    clients[0].begin(server.announce()).upload(np.zeros(5))
    assert clients[0].epsilon() * (1 - 1e-12) <= clients[0].epsilon(worst=True) <= plan.budget
    assert clients[0].mu(worst=True) <= gaussian.mu(plan.budget, plan.delta, up=True)


def test_at_worst_sampled_batches_count_as_whole_with_repair_and_as_sampled_without() -> None:
    """Without repair no cost depends on what a server does, so amplification holds against any."""
    for calibration in ("repair", "exact"):
        plan = planned(unit="record", sampling_rate=0.2, rounds=4, calibration=calibration)
        server, clients = joined(plan, 5)
        play(server, clients, range(5))
        clients[0].begin(server.announce())
        whole = gaussian.epsilon(clients[0].mu(worst=True), plan.delta)
        assert 0 < clients[0].epsilon() < whole
        assert clients[0].epsilon(worst=True) == (whole if calibration == "repair" else clients[0].epsilon())
