"""The strongest known lies against real clients, keys and bytes (W5); tests/auditing has the search over stories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import lightdp
from lightdp import gaussian
from lightdp.auditing._stories import Wire
from lightdp.client_set import ClientSet
from lightdp.errors import BudgetError
from lightdp.protocol import Client
from lightdp.repair import RETRIES
from lightdp.wire import Accumulator, Announcement, Kind, Message, Upload
from support.parties import RUN, joined, seat


def test_a_rotating_liar_gets_no_more_than_the_budget_out_of_real_clients() -> None:
    """Keys, masks and bytes of real clients; each coordinate is one experiment of the best linear test."""
    clients, length = 8, 4000
    plan = lightdp.plan(
        clients=clients, colluders=0, stragglers=6, rounds=7, epsilon=8.0, delta=1e-5, calibration="repair",
        gamma=100.0, reserve="worst", coordinate_range=4.0,
    )  # fmt: skip
    _, parties = joined(plan, length)
    told: list[list[ClientSet]] = [[] for _ in range(clients)]
    secret = np.arange(length) % 2 == 0
    seen: list[NDArray[np.floating[Any]]] = []
    noise: list[dict[Wire, int]] = []
    mine: list[int] = []

    def ask(i: int, *, closing: bool = False) -> None:
        party: Client = parties[i]
        roster, now = party._state.roster, len(told[i])
        assert roster is not None
        payload = Announcement(round=now, clients=clients, past=tuple(told[i]), closing=closing).to_bytes()
        start = Message(kind=Kind.ANNOUNCE, run=RUN, round=now, roster=roster.hash, payload=payload).to_bytes()
        data = None if closing else (secret * (i == 0)).astype(np.float32)
        message = Message.from_bytes(party.begin(start).upload(data), run=RUN, roster=roster.hash)
        grid, history = seat(party).grid, party._history
        assert history is not None
        bits = grid.bits
        total = Accumulator(length, bits)
        total.add(Upload.from_bytes(message.payload, length=length, bits=bits).packed)
        seen.append(total.total() * grid.wire_step)
        parts = [] if closing else [(now, history.neighbours, 1)]
        parts += [] if history.repair is None else [(*history.repair, -1)]
        keys: dict[Wire, int] = {}
        for of, peers, sign in parts:
            for peer in peers:
                keys[min(i, peer), max(i, peer), of, history.chain(of), None] = sign if i < peer else -sign
        noise.append(keys)
        mine.append(int(i == 0 and not closing))

    used = {i: ClientSet.of(clients, [0, i]) for i in range(1, clients)}
    others, nobody = ClientSet.of(clients, range(1, clients)), ClientSet.none(clients)
    for peer in range(1, clients):  # groups of one
        for i in range(peer + 1):
            ask(i, closing=0 < i < peer)
        for i in range(clients):
            told[i].append(nobody if 0 < i < peer else others if i == peer else used[peer])
    for _ in range(1 + RETRIES):
        for i in range(clients):
            ask(i, closing=True)
            told[i].append(nobody)
    with pytest.raises(BudgetError):
        ask(0)
    wires = sorted({wire for each in noise for wire in each})
    pairwise = np.array([[each.get(wire, 0) for wire in wires] for each in noise], dtype=float)
    covariance = plan.sigma_individual**2 * (plan.gamma * pairwise @ pairwise.T + np.eye(len(noise)))
    shift = np.array(mine, dtype=float)
    best = np.linalg.solve(covariance, shift)
    exact = float(np.sqrt(shift @ best))
    statistic = best @ np.array(seen) / exact  # N(μ, 1) where the secret is 1, N(0, 1) where it is 0
    measured = statistic[secret].mean() - statistic[~secret].mean()
    assert measured == pytest.approx(exact, abs=5 * math.sqrt(4 / length))
    assert statistic[~secret].std() == pytest.approx(1, abs=5 / math.sqrt(length))
    victim = parties[0]
    assert victim.epsilon() < gaussian.epsilon(exact, plan.delta) <= victim.epsilon(worst=True) <= plan.budget
