"""The ledgers of many clients as arrays: one operation for all of them, and memory for what differs.

A cost that follows from the number of used clients alone is a column of counts; other costs are pairs of a client and
a number. No array changes once it is made, so a copy of a table shares them all.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightdp.accountant._ledger import CLOSE, Ledger
from lightdp.repair import Window

_AT_ONCE = 1024  # clients whose ledgers are made together


class Rare(NamedTuple):
    """Costs of single rounds: of the clients at these places in the table, in ascending order."""

    at: NDArray[np.int64]
    costs: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LateRound:
    """A round that came too late for some clients, while their peers may still repair it.

    Attributes:
        at: these clients, as places in the table, in ascending order. (late,)
        honest: how many peers of each were used in the round and are honest for sure. (late,)
        crossed: cross terms of each with its other rounds, if all repairs come in time. (late,)
        costs: what the round costs each by now. (late,)
        window: which clients may still repair it, and which may have tried to: the same for all of `at`.
        near: neighbours of each, filled up with N; None where all clients are neighbours. (late, most neighbours)
    """

    at: NDArray[np.int64]
    honest: NDArray[np.int64]
    crossed: NDArray[np.float64]
    costs: NDArray[np.float64]
    window: Window
    near: NDArray[np.int64] | None

    def only(self, kept: NDArray[np.bool_]) -> LateRound:
        """The same round for some of its clients."""
        some = {name: getattr(self, name)[kept] for name in ("at", "honest", "crossed", "costs")}
        return replace(self, **some, near=None if self.near is None else self.near[kept])

    def count(self, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many neighbours of each client are among `flags`, which hold none of its clients. (late,) or (1,)"""
        if self.near is None:
            return np.array([np.count_nonzero(flags)])
        found = np.append(flags, [False])[self.near].view(np.uint8)
        return found.sum(axis=1, dtype=np.uint32).astype(np.int64)


class LedgerTable:
    """The ledgers of many clients.

    Args:
        clients: how many.

    Attributes:
        clients: as given.
        usual: how many rounds of each client had a cost that follows from the number of used clients alone.
        rare: costs of other rounds.
        late: late rounds that peers may still repair, oldest first.
    """

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.usual: dict[float, NDArray[np.int32]] = {}
        self.rare: list[Rare] = []
        self.late: list[LateRound] = []
        self._usual_sum = np.zeros(clients)  # up to rounding errors
        self._rare_sum, self._rare_error = np.zeros((2, clients))  # together exact to twice the precision

    def __getitem__(self, at: int) -> Ledger:
        usual = Counter({cost: int(column[at]) for cost, column in self.usual.items() if column[at] > 0})
        rare = []
        for clients, costs in self._entries():
            place = int(np.searchsorted(clients, at))
            if place < clients.size and clients[place] == at:
                rare.append(float(costs[place]))
        return Ledger(usual, rare)

    def __iter__(self) -> Iterator[Ledger]:
        clients, costs = self._by_client()
        prices = list(self.usual)
        for first in range(0, self.clients, _AT_ONCE):
            end = min(first + _AT_ONCE, self.clients)
            columns = [self.usual[price][first:end] for price in prices]
            counts = np.stack(columns, axis=1).tolist() if columns else [[]] * (end - first)
            edges = np.searchsorted(clients, np.arange(first, end + 1)).tolist()
            for row, start, stop in zip(counts, edges, edges[1:], strict=False):
                usual = Counter({price: count for price, count in zip(prices, row, strict=True) if count > 0})
                yield Ledger(usual, costs[start:stop].tolist())

    def copied(self) -> LedgerTable:
        """Ledgers that go on by themselves."""
        result = copy.copy(self)
        result.usual, result.rare, result.late = self.usual.copy(), self.rare.copy(), self.late.copy()
        return result

    def emptied(self) -> LedgerTable:
        """Ledgers of the same clients without rounds."""
        return LedgerTable(self.clients)

    def put(self, cost: float, count: int) -> None:
        """Count so many more rounds of this cost for each client."""
        self.count(cost, np.full(self.clients, count, np.int32))

    def add(self, elsewhere: Sequence[Mapping[float, int]]) -> None:
        """Count more rounds of each client: how many have which cost."""
        found: dict[float, dict[int, int]] = {}
        for at, (more, _) in enumerate(zip(elsewhere, range(self.clients), strict=True)):
            for cost, count in more.items():
                found.setdefault(cost, {})[at] = count
        for cost, counts in found.items():
            column = np.zeros(self.clients, np.int32)
            column[[*counts]] = [*counts.values()]
            self.count(cost, column)

    def count(self, cost: float, rounds: NDArray[np.int32] | NDArray[np.bool_]) -> None:
        """Count so many more rounds of each client, of a cost that follows from the number of used clients.

        Args:
            cost: of each of them.
            rounds: how many. (clients,)
        """
        before = self.usual.get(cost)
        self.usual[cost] = rounds.astype(np.int32) if before is None else before + rounds
        self._usual_sum = self._usual_sum + cost * rounds

    def tally(self, at: NDArray[np.int64], costs: NDArray[np.float64]) -> None:
        """Count one more round of some clients, of costs that follow from the number of used clients: few differ.

        Args:
            at: their places in the table.
            costs: of each.
        """
        prices = np.unique(costs)
        kinds = np.searchsorted(prices, costs).astype(np.uint16 if prices.size < 2**16 else np.int64)
        order = np.argsort(kinds, kind="stable")
        ends = np.searchsorted(kinds, np.arange(prices.size), side="right", sorter=order)
        for price, some in zip(prices.tolist(), np.split(at[order], ends), strict=False):
            column = self.usual[price].copy() if price in self.usual else np.zeros(self.clients, np.int32)
            column[some] += 1
            self.usual[price] = column
        total = self._usual_sum.copy()
        total[at] += costs
        self._usual_sum = total

    def charge(self, at: NDArray[np.int64], costs: NDArray[np.float64]) -> None:
        """Count one more round of some clients, of a cost for each.

        Args:
            at: their places in the table, in ascending order.
            costs: of each.
        """
        if at.size == 0:
            return
        self.rare.append(Rare(at, costs))
        total, error = self._rare_sum.copy(), self._rare_error.copy()
        total[at], lost = _added(total[at], costs)
        error[at] += lost
        self._rare_sum, self._rare_error = total, error

    def totals(self, at: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
        """`Ledger.total` of each client, or of those `at` these places. (clients,)"""
        total, error = self._rare_sum[at], self._rare_error[at]
        for cost, column in self.usual.items():
            total, lost = _added(total, np.multiply(column[at], cost, dtype=np.float64))
            error = error + lost
        for late in self.late:
            total, lost = _added(total, self._scattered(late)[at])
            error = error + lost
        return np.asarray(total + error)

    def about(self) -> NDArray[np.float64]:
        """`totals` up to a relative error of `CLOSE`, in less time. (clients,)"""
        about = self._usual_sum + self._rare_sum
        for late in self.late:
            about[late.at] += late.costs
        return about

    def largest(self) -> Ledger:
        """The ledger with the largest total."""
        about = self.about()
        near = np.flatnonzero(about >= (1 - 2 * CLOSE) * about.max())
        return self[int(near[np.argmax(self.totals(near))])]

    def dominating(self) -> NDArray[np.float64]:
        """Bounds all ledgers: its r-th largest cost is the maximum of their r-th largest costs.

        A client with r costs of at least c makes the r-th of the result at least c, and so all before it.
        """
        clients, costs = self._by_client()
        rounds = np.bincount(clients, minlength=self.clients) + sum(self.usual.values())
        result = np.zeros(int(rounds.max()))
        order = np.argsort(-costs, kind="stable")
        clients, costs = clients[order], costs[order]
        so_far, start = np.zeros(self.clients, np.int64), 0  # costs of each client that were taken, the largest first
        prices = sorted(self.usual, reverse=True)
        ends = np.searchsorted(-costs, -np.array(prices), side="right").tolist()
        for price, end in zip([*prices, None], [*ends, costs.size], strict=True):
            among = clients[start:end]
            order = np.argsort(among, kind="stable")
            first = np.searchsorted(among[order], among[order])
            rank = so_far[among[order]] + np.arange(among.size) - first
            np.maximum.at(result, rank, costs[start:end][order])
            so_far += np.bincount(among, minlength=self.clients)
            if price is not None:
                so_far += self.usual[price]
                result[: int(so_far.max())][-1:] = np.maximum(result[: int(so_far.max())][-1:], price)
            start = end
        return np.maximum.accumulate(result[::-1])[::-1]

    def _entries(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        yield from self.rare
        yield from ((late.at, late.costs) for late in self.late)

    def _by_client(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """All costs that are no counts, and the client of each, in ascending order."""
        entries = [*self._entries()]
        clients = np.concatenate([np.empty(0, np.int64), *(at for at, _ in entries)])
        order = np.argsort(clients, kind="stable")
        return clients[order], np.concatenate([np.empty(0), *(costs for _, costs in entries)])[order]

    def _scattered(self, late: LateRound) -> NDArray[np.float64]:
        result = np.zeros(self.clients)
        result[late.at] = late.costs
        return result


def _added(total: NDArray[np.float64], more: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rounded sum of two arrays, and what rounding lost of it, exactly (Knuth's TwoSum)."""
    result = total + more
    part = result - total
    return result, (total - (result - part)) + (more - part)
