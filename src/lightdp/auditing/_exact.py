"""The exact μ of every client of a run whose rounds are known, from the covariance of all uploads (E1), (E2), (R1).

Each upload that the adversary sees is a row of coefficients over all pairwise noise: the round's own, and what the
client takes out again of an earlier round. With γ and the unit matrix of individual noise that is the covariance of all
uploads together, and one inverse has the loss of every honest client.

Who colludes is not in a log. On the complete graph two clients with the same history (used, late and lost in the same
rounds) can be exchanged without changing the covariance, so only how many of each history collude matters. Where that
leaves few choices, all are tried; otherwise those that were used most, seen late most and missing most, and a few more.
What is found is then a lower end of the worst case, whose upper end is the odometer.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.repair import RETRIES

MOST_UPLOADS = 2000
"""More uploads than these are not solved for: it takes their number cubed."""
_CHOICES = 64  # of colluders that are all tried
_SIGNED = 10  # uploads of one client for which all signs are tried

Rounds = Sequence[tuple[ClientSet, ClientSet]]
"""Used and late clients of each round, as they are final; a void round uses nobody."""
_Debt = tuple[int, int]
"""A round to repair, and uploads that may still carry the repair."""


@dataclass(frozen=True)
class Exact:
    """The largest exact μ² of each client that was found over choices of colluders.

    Attributes:
        squares: in units of (Δ/σ_U)². (clients,)
        choices: how many choices of colluders were tried.
        complete: whether these are all, up to clients with the same history.
    """

    squares: NDArray[np.float64]
    choices: int
    complete: bool


def exact(plan: Plan, rounds: Rounds, *, closing: bool) -> Exact | None:
    """The exact μ² of each client, over choices of the plan's colluders; None where that is not computed.

    It is not for more than `MOST_UPLOADS` uploads or clients, nor on a sparse graph, whose clients are not alike.

    A client's data may change every upload by Δ; signs are the worst that are found.

    Args:
        plan: the noise, by a calibration that clients run themselves.
        rounds: who was used and who was late in each.
        closing: whether closing rounds followed in which everybody repaired what was left.
    """
    uploads = sum(len(used) + len(late) for used, late in rounds)
    if not plan.graph.complete or max(uploads, plan.clients) > MOST_UPLOADS:
        return None
    sent = _Sent(plan, rounds, closing=closing)
    histories = [bytes(2 * used.flags[i] + late.flags[i] for used, late in rounds) for i in range(plan.clients)]
    choices, complete = _choices(plan, histories)
    result, tried = np.zeros(plan.clients), 0
    for colluders in choices:
        found = sent.squares(colluders, histories)
        same = np.array([found.get(history, 0.0) for history in histories])
        result, tried = np.maximum(result, same), tried + 1
    return Exact(result, tried, complete)


class _Sent:
    """All uploads that the adversary sees, as rows over the noise of each pair and round."""

    def __init__(self, plan: Plan, rounds: Rounds, *, closing: bool) -> None:
        self.plan = plan
        self.peers = plan.graph.neighbours() if plan.gamma > 0 else np.empty((plan.clients, 0), dtype=np.int64)
        self._rows: list[NDArray[np.int64]] = []
        self._keys: list[NDArray[np.int64]] = []
        self._signs: list[NDArray[np.int64]] = []
        self._used = [used for used, _ in rounds]
        owners: list[int] = []
        self.data: dict[int, list[int]] = defaultdict(list)  # rows of each client that hold data
        self._owed: dict[int, list[_Debt]] = defaultdict(list)
        flying: dict[int, dict[int, _Debt]] = {}
        for number in range(len(rounds) + (1 + plan.grace if closing else 0)):
            if plan.repairs and 0 <= (final := number - 1 - plan.grace) < len(rounds):
                self._settle(final, flying.pop(final, {}))
            with_data = number < len(rounds)
            riding = flying[number] = {}
            owing = [i for i, debts in self._owed.items() if debts]
            for i in (*rounds[number][0], *rounds[number][1]) if with_data else owing:
                if with_data:
                    self.data[i].append(len(owners))
                    self._add(len(owners), number, i, self.peers[i], 1)
                if self._owed[i]:
                    riding[i] = min(self._owed[i], key=lambda debt: debt[0])
                    self._owed[i].remove(riding[i])
                    then, _ = riding[i]
                    self._add(len(owners), then, i, self._absent(then, i), -1)
                owners.append(i)
        self.owners = np.array(owners, dtype=np.int64)

    def _absent(self, number: int, client: int) -> NDArray[np.int64]:
        """Peers of a client that a round did not use."""
        peers = self.peers[client]
        return peers[~self._used[number].flags[peers]]

    def _settle(self, number: int, riding: Mapping[int, _Debt]) -> None:
        """Repairs whose uploads a round did not use are owed again, and its used clients owe what others left (R5)."""
        used = self._used[number]
        for i, (then, tries) in riding.items():
            if i not in used and tries > 1:
                self._owed[i].append((then, tries - 1))
        for i in used:
            if self._absent(number, i).size:
                self._owed[i].append((number, RETRIES + 1))

    def _add(self, row: int, number: int, client: int, peers: NDArray[np.int64], sign: int) -> None:
        low, high = np.minimum(client, peers), np.maximum(client, peers)
        self._rows.append(np.full(peers.size, row))
        self._keys.append((number * self.plan.clients + low) * self.plan.clients + high)
        self._signs.append(np.where(client < peers, sign, -sign))

    def squares(self, colluders: ClientSet, histories: Sequence[bytes]) -> dict[bytes, float]:
        """μ² of one client of each history that has honest ones, in units of (Δ/σ_U)²."""
        if not self.data:
            return {}
        rows, keys, signs = (np.concatenate(part) for part in (self._rows, self._keys, self._signs))
        clients = self.plan.clients
        flags = colluders.flags
        kept = ~(flags[keys % clients] | flags[keys // clients % clients])  # neither end of the wire colludes
        columns, places = np.unique(keys[kept], return_inverse=True)
        shape = len(self.owners), max(len(columns), 1)
        wires = csr_matrix((signs[kept].astype(float), (rows[kept], places)), shape=shape)
        honest = np.flatnonzero(~flags[self.owners])
        covariance = np.eye(honest.size) + self.plan.gamma * (wires[honest] @ wires[honest].T).toarray()
        precision = np.linalg.inv(covariance)
        at = np.full(len(self.owners), -1)
        at[honest] = np.arange(honest.size)
        result: dict[bytes, float] = {}
        for client, mine in self.data.items():
            if not flags[client] and histories[client] not in result:
                places = at[mine]
                result[histories[client]] = _largest(precision[np.ix_(places, places)])
        return result


def _largest(matrix: NDArray[np.float64]) -> float:
    """The largest v'Kv over signs v: of all, if they are few, else of those that no single change betters."""
    size = len(matrix)
    if size <= _SIGNED:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=size)))
        return float(np.einsum("si,ij,sj->s", signs, matrix, signs).max())
    best = np.where(np.linalg.eigh(matrix)[1][:, -1] >= 0, 1.0, -1.0)
    while ((gain := np.diag(matrix) - best * (matrix @ best)) > 1e-12).any():
        best[gain.argmax()] *= -1
    return float(best @ matrix @ best)


def _choices(plan: Plan, histories: Sequence[bytes]) -> tuple[list[ClientSet], bool]:
    """Choices of colluders to try, and whether they are all there are up to clients of one history."""
    classes: dict[bytes, list[int]] = defaultdict(list)
    for client, history in enumerate(histories):
        classes[history].append(client)
    members, wanted = list(classes.values()), plan.colluders
    found = list(itertools.islice(_counts([len(each) for each in members], wanted), _CHOICES + 1))
    if len(found) <= _CHOICES:
        chosen = [[i for each, count in zip(members, counts, strict=True) for i in each[:count]] for counts in found]
        return [ClientSet.of(plan.clients, each) for each in chosen], True
    tallies = [Counter(history) for history in histories]
    orders = [sorted(range(plan.clients), key=lambda i: -tallies[i][status]) for status in (2, 1, 0)]
    # each order twice, so that those who collude first are looked at too
    starts = (0, min(wanted, plan.clients - wanted))
    sets = {frozenset(order[start : start + wanted]) for order in orders for start in starts}
    return [ClientSet.of(plan.clients, each) for each in sets], False


def _counts(sizes: Sequence[int], wanted: int) -> Iterator[tuple[int, ...]]:
    """All ways to take `wanted` from classes of these sizes."""
    if not sizes:
        if wanted == 0:
            yield ()
        return
    rest = sum(sizes[1:])
    for count in range(max(wanted - rest, 0), min(sizes[0], wanted) + 1):
        for others in _counts(sizes[1:], wanted - count):
            yield (count, *others)


def mu_of(plan: Plan, square: float) -> float:
    """μ of a sum of costs in units of (Δ/σ_U)²."""
    return math.sqrt(square) * plan.sensitivity / plan.sigma_individual
