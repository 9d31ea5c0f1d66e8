"""Real clients whose masks are drawn (B2): their sums, repairs, states, and clients that have another kind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lightdp import gaussian
from lightdp.errors import WireError
from lightdp.protocol import Client, File, Server
from lightdp.stream import Draw
from support.parties import RUN, Tape, joined, planned, play, residual

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def left(tapes: list[Tape]) -> NDArray[np.int32]:
    """Pairwise noise in the sum of all uploads, in fine steps."""
    return np.add.reduce([tape.fine[0] - tape.data[0] for tape in tapes], axis=0, dtype=np.int32)


@pytest.mark.parametrize("degree", [None, 4])
@pytest.mark.parametrize("grace", [0, 1])
def test_stragglers_leave_drawn_noise_and_repairs_and_closing_rounds_take_it_out(
    tapes: list[Tape], degree: int | None, grace: int
) -> None:
    plan = planned(clients=7, degree=degree, grace=grace, masks="drawn")
    server, clients = joined(plan, 400)
    used = [0, 1, 3, 4, 6]
    play(server, clients, used)
    assert all(isinstance(term, Draw) for tape in tapes for term in tape.terms[0])
    found = residual(clients, 0, used, 400)
    assert found.any()
    assert not (found % tapes[0].grid.unit).any()
    assert np.array_equal(left(tapes), found)
    play(server, clients, [0, 1, 2, 3, 4], since=0)
    for _ in range(plan.closing_rounds):
        start = server.announce(since=0, closing=True)
        for client in clients:
            server.receive(client.begin(start).upload(None))
        server.close()
    assert not left(tapes).any()


def test_a_client_with_another_kind_of_masks_refuses_the_roster() -> None:
    """All else is the same, γ included."""
    drawn = planned(masks="drawn")
    other = planned(masks="gaussian", gamma=drawn.gamma)
    assert (drawn.gamma, drawn.clients, drawn.wire_bits) == (other.gamma, other.clients, other.wire_bits)
    server = Server(drawn, length=4, run=RUN)
    clients = [Client.new(other if i == 3 else drawn, length=4, run=RUN, name=f"client-{i}") for i in range(5)]
    for client in clients:
        server.enrol(client.enrol())
    for i, client in enumerate(clients):
        if i == 3:
            with pytest.raises(WireError, match="roster is of another run or plan"):
                client.join(server.roster(client.name))
        else:
            client.join(server.roster(client.name))


def test_a_client_that_comes_back_from_its_file_has_the_same_masks(tmp_path: Path, tapes: list[Tape]) -> None:
    plan = planned(masks="drawn")
    server, clients = joined(plan, 50, folder=tmp_path)
    play(server, clients, [0, 1, 2, 3])
    again = [Client.restore(plan, length=50, store=File(tmp_path / f"client-{i:02}.json")) for i in range(5)]
    start = server.announce(since=0, closing=True)
    for client in again:
        server.receive(client.begin(start).upload(None))
    server.close()
    assert {type(term) for tape in tapes[4:] for term in tape.terms[0]} == {Draw}
    assert not left(tapes).any()


def test_drawn_masks_keep_the_budget_against_any_server_as_gaussian_ones_do() -> None:
    """What is counted at worst lies below what uploads behind their own noise alone would cost."""
    for masks in ("gaussian", "drawn"):
        plan = planned(clients=7, masks=masks, stragglers=0, rounds=300, gamma=4.0, parameters=400)
        assert plan.withstands_lies
        server, clients = joined(plan, 400)
        for _ in range(20):
            play(server, clients, range(7), since=0)
        alone = gaussian.epsilon(math.sqrt(20) * plan.sensitivity / plan.sigma_individual, plan.delta)
        assert clients[0].epsilon() <= clients[0].epsilon(worst=True) * (1 + 1e-12)
        assert clients[0].epsilon(worst=True) < min(alone, plan.budget)
