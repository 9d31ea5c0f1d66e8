"""A server that tells every client a history of its own, against what client 0 reserved before it answered (R1), (W4).

Clients are their histories alone: who adds and repairs which noise follows from them. The adversary sees every upload.
The last test plays the strongest known attack against real clients, keys and bytes.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp import gaussian
from lightdp.client_set import ClientSet
from lightdp.errors import BudgetError, ProtocolError
from lightdp.protocol.history import ClientHistory
from lightdp.repair import RETRIES
from lightdp.wire import Accumulator, Announcement, Kind, Message, Upload
from support.parties import RUN, joined

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from lightdp.accountant import Ledger
    from lightdp.planning import Plan
    from lightdp.protocol import Client

Wire = tuple[int, int, int, bytes]  # two clients, the round, the chain: what their stream key is made of


def planned(clients: int, **changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": clients, "colluders": 0, "stragglers": 1, "rounds": 1, "epsilon": 1.0}
    return lightdp.plan(**(asked | {"delta": 1e-5, "unit": "client", "calibration": "repair"} | changed))


class Liar:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        neighbours = plan.graph.neighbours().tolist()
        self.histories = [ClientHistory(plan, i, bytes(32), neighbours[i]) for i in range(plan.clients)]
        self.uploads: list[tuple[bool, dict[Wire, int]]] = []  # whether it has data of client 0, and its pairwise noise
        self.reserved = 0.0  # by client 0, before its last upload with data

    def tell(self, client: int, past: Sequence[Collection[int]], *, closing: bool = False) -> bool:
        """Tell who was used in the rounds after those that the client knows, for an upload; False if refused."""
        history = self.histories[client].copied()
        sets = [ClientSet.of(self.plan.clients, used) for used in past]
        try:
            history.learn(enumerate(sets, start=len(history.used)))
        except ProtocolError:
            return False
        now = len(history.used)
        if now < max(history.sent, default=-1) + 1:
            return False
        if client == 0 and not closing:
            self.reserved = self.cost(history.odometer._costs.reserved(history.odometer._ledgers, ahead=True)[0])
        noise: dict[Wire, int] = {}
        repair = history.repair
        parts = [] if closing else [(now, history.neighbours, 1)]
        for of, peers, sign in [*parts, *([] if repair is None else [(*repair, -1)])]:
            for peer in peers:
                wire = (min(client, peer), max(client, peer), of, history.chains[of])
                noise[wire] = sign if client < peer else -sign
        self.histories[client] = history.answered(now, closing=closing)
        self.uploads.append((client == 0 and not closing, noise))
        return True

    def cost(self, ledger: Ledger) -> float:
        return ledger.total()

    def charged(self) -> float:
        return self.cost(self.histories[0].odometer._ledgers[0])

    def true(self) -> float:
        """(E2): μ² of client 0's uploads together, in units of (Δ/σ_U)², for the worst signs of their changes."""
        wires = sorted({wire for _, noise in self.uploads for wire in noise})
        pairwise = np.array([[noise.get(wire, 0) for wire in wires] for _, noise in self.uploads], dtype=float)
        covariance = self.plan.gamma * pairwise @ pairwise.T + np.eye(len(self.uploads))
        mine = np.flatnonzero([has for has, _ in self.uploads])
        precision = np.linalg.inv(covariance)[np.ix_(mine, mine)]
        signs = np.array(list(itertools.product((1, -1), repeat=len(mine))))
        return float(np.einsum("si,ij,sj->s", signs, precision, signs).max())

    def flush(self) -> None:
        """All peers repair what they share with client 0, three times, in closing rounds, which hide nothing else."""
        peers = set(range(1, self.plan.clients))
        for past, peer in itertools.product((peers, (), ()), peers):
            self.tell(peer, [past], closing=True)


@pytest.mark.parametrize("gamma", [0.3, 3.0, 30.0])
def test_peers_that_are_told_to_repair_a_used_upload_cost_more_than_is_charged_and_less_than_reserved(
    gamma: float,
) -> None:
    liar = Liar(planned(8, gamma=gamma))
    everybody = set(range(8))
    for past in ([], [everybody]):
        for client in everybody:
            assert liar.tell(client, past)
    honest = liar.true()
    liar.flush()
    liar.histories[0].learn([(1, ClientSet.all(8))])
    assert liar.charged() == pytest.approx(honest)
    assert honest * 1.1 < liar.true() <= liar.reserved


@pytest.mark.parametrize("seed", range(60))
def test_no_random_story_costs_more_than_was_reserved(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  a schedule, not a secret
    clients, stragglers = rng.choice([3, 4, 5, 6]), rng.choice([1, 2])
    stragglers = min(stragglers, clients - 2)
    everybody = set(range(clients))
    degree = rng.choice([2, clients - 1])
    liar = Liar(planned(clients, stragglers=stragglers, gamma=rng.choice([0.1, 1.0, 10.0]), degree=degree))
    for now, client in itertools.product(range(rng.randint(1, 5)), everybody):
        known = len(liar.histories[client].used)
        missing = [everybody - set(rng.sample(range(clients), rng.randint(0, stragglers))) for _ in range(known, now)]
        past = [rng.choice([everybody, everybody - {0}, everybody - {client}, used, set()]) for used in missing]
        if client == 0 or rng.random() < 0.8:
            liar.tell(client, past, closing=rng.random() < 0.2)
    liar.flush()
    if liar.reserved > 0:
        assert liar.true() <= liar.reserved


def rotation(liar: Liar) -> None:
    """(W5): client 0 and one group of peers after the other are said to be used; each group is told that 0 was not.

    The groups are as small as the protocol allows. Each, once told, repairs what it shares with client 0 three times.
    """
    clients, least = liar.plan.clients, liar.plan.clients - liar.plan.stragglers
    groups = [range(start, start + least - 1) for start in range(1, clients - least + 2, least - 1)]
    told: list[list[set[int]]] = [[] for _ in range(clients)]
    gone: set[int] = set()
    for group in groups:
        for client in sorted({0, *group} | gone):
            known = len(liar.histories[client].used)
            assert liar.tell(client, told[client][known:], closing=client in gone)
        for client in range(clients):
            mine = set(range(1, clients)) if client in group else {0, *group}
            told[client].append(set() if client in gone else mine)
        gone |= {*group}
    for _ in range(1 + RETRIES):
        for client in range(clients):
            known = len(liar.histories[client].used)
            liar.tell(client, told[client][known:], closing=True)
            told[client].append(set())


@pytest.mark.parametrize("gamma", [5.0, 100.0])
@pytest.mark.parametrize(("clients", "stragglers"), [(8, 6), (8, 5), (10, 7), (12, 10), (6, 2)])
def test_rotating_lies_cost_no_more_than_was_reserved(clients: int, stragglers: int, gamma: float) -> None:
    liar = Liar(planned(clients, stragglers=stragglers, gamma=gamma))
    rotation(liar)
    assert liar.true() <= liar.reserved
    if (stragglers, gamma) == (clients - 2, 100.0):  # room for one late round, which costs at most 1, would not do
        used = (1 + gamma) / (2 * gamma + 1)
        assert liar.true() > (clients - 2) * used + 1


def test_a_rotating_liar_gets_no_more_than_the_budget_out_of_real_clients() -> None:
    """Keys, masks and bytes of real clients; each coordinate is one experiment of the best linear test."""
    clients, length = 8, 4000
    plan = planned(clients, stragglers=6, gamma=100.0, epsilon=8.0, rounds=7, reserve="worst", unit="record",
                   coordinate_range=4.0)  # fmt: skip
    _, parties = joined(plan, length)
    told: list[list[bytes]] = [[] for _ in range(clients)]
    secret = np.arange(length) % 2 == 0
    seen: list[NDArray[np.floating[Any]]] = []
    noise: list[dict[Wire, int]] = []
    mine: list[int] = []

    def ask(i: int, *, closing: bool = False) -> None:
        party: Client = parties[i]
        roster, now = party._state.roster, len(told[i])
        assert roster is not None
        payload = Announcement(round=now, clients=clients, used=b"".join(told[i]), closing=closing).to_bytes()
        start = Message(kind=Kind.ANNOUNCE, run=RUN, round=now, roster=roster.hash, payload=payload).to_bytes()
        data = None if closing else (secret * (i == 0)).astype(np.float32)
        message = Message.from_bytes(party.begin(start).upload(data), run=RUN, roster=roster.hash)
        bits, history = party._grid.bits, party._history
        assert history is not None
        total = Accumulator(length, bits)
        total.add(Upload.from_bytes(message.payload, length=length, bits=bits).packed)
        seen.append(total.total() * party._grid.wire_step)
        parts = [] if closing else [(now, history.neighbours, 1)]
        parts += [] if history.repair is None else [(*history.repair, -1)]
        keys = {}
        for of, peers, sign in parts:
            for peer in peers:
                keys[min(i, peer), max(i, peer), of, history.chains[of]] = sign if i < peer else -sign
        noise.append(keys)
        mine.append(int(i == 0 and not closing))

    used = {i: ClientSet.of(clients, [0, i]).to_bytes() for i in range(1, clients)}
    others = ClientSet.of(clients, range(1, clients)).to_bytes()
    for peer in range(1, clients):  # groups of one
        for i in range(peer + 1):
            ask(i, closing=0 < i < peer)
        for i in range(clients):
            told[i].append(bytes(1) if 0 < i < peer else others if i == peer else used[peer])
    for _ in range(1 + RETRIES):
        for i in range(clients):
            ask(i, closing=True)
            told[i].append(bytes(1))
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
    assert exact <= gaussian.mu(plan.budget, plan.delta)
