"""What rounds cost clients: a `Ledger` for each client, and the ledgers of a few clients side by side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightdp.repair import Window

CLOSE = 1e-10
"""More than the relative rounding errors of a sum of as many rounds as a training can have."""


@dataclass
class Ledger:
    """Costs of the rounds of one client.

    Attributes:
        usual: how many rounds had each cost that follows from the number of used clients alone.
        rare: costs of other rounds.
        windows: late rounds that peers may still repair, by their places in `rare`.
    """

    usual: Counter[float] = field(default_factory=Counter)
    rare: list[float] = field(default_factory=list)
    windows: dict[int, Window] = field(default_factory=dict)

    def costs(self) -> NDArray[np.float64]:
        """The cost of every round, the largest first. (rounds,)"""
        kinds = sorted((self.usual + Counter(self.rare)).items(), reverse=True)
        return np.repeat([cost for cost, _ in kinds], [count for _, count in kinds])

    def total(self) -> float:
        """The sum of all costs, correctly rounded."""
        return math.fsum([*(count * cost for cost, count in self.usual.items()), *self.rare])

    def copied(self) -> Ledger:
        """A ledger that goes on by itself."""
        windows = {at: replace(window) for at, window in self.windows.items()}
        return Ledger(self.usual.copy(), self.rare.copy(), windows)


class Ledgers(Protocol):
    """The ledgers of the tracked clients, numbered from 0: a `LedgerList` for a few, a `LedgerTable` for many."""

    def __getitem__(self, at: int) -> Ledger:
        """The ledger of one client."""

    def __iter__(self) -> Iterator[Ledger]:
        """All ledgers, one after the other."""

    def copied(self) -> Ledgers:
        """Ledgers that go on by themselves."""

    def emptied(self) -> Ledgers:
        """Ledgers of the same clients without rounds."""

    def put(self, cost: float, count: int) -> None:
        """Count so many more rounds of this cost for each client."""

    def add(self, elsewhere: Sequence[Mapping[float, int]]) -> None:
        """Count more rounds of each client: how many have which cost."""

    def totals(self, at: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
        """`Ledger.total` of each client, or of those `at` these places. (clients,)"""

    def about(self) -> NDArray[np.float64]:
        """`totals` up to a relative error of `CLOSE`, in less time. (clients,)"""

    def largest(self) -> Ledger:
        """The ledger with the largest total."""

    def dominating(self) -> NDArray[np.float64]:
        """Bounds all ledgers: its r-th largest cost is the maximum of their r-th largest costs."""


class LedgerList:
    """The ledgers of a few clients, each by itself.

    Args:
        ledgers: of each client.
    """

    def __init__(self, ledgers: list[Ledger]) -> None:
        self._ledgers = ledgers

    def __getitem__(self, at: int) -> Ledger:
        return self._ledgers[at]

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._ledgers)

    def copied(self) -> LedgerList:
        """Ledgers that go on by themselves."""
        return LedgerList([ledger.copied() for ledger in self._ledgers])

    def emptied(self) -> LedgerList:
        """Ledgers of the same clients without rounds."""
        return LedgerList([Ledger() for _ in self._ledgers])

    def put(self, cost: float, count: int) -> None:
        """Count so many more rounds of this cost for each client."""
        for ledger in self._ledgers:
            ledger.usual[cost] += count

    def add(self, elsewhere: Sequence[Mapping[float, int]]) -> None:
        """Count more rounds of each client: how many have which cost."""
        for ledger, more in zip(self._ledgers, elsewhere, strict=True):
            for cost, count in more.items():
                ledger.usual[cost] += count

    def totals(self, at: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
        """`Ledger.total` of each client, or of those `at` these places. (clients,)"""
        return np.array([ledger.total() for ledger in self._ledgers])[at]

    def about(self) -> NDArray[np.float64]:
        """`totals` up to a relative error of `CLOSE`, in less time. (clients,)"""
        return self.totals()

    def largest(self) -> Ledger:
        """The ledger with the largest total."""
        return max(self._ledgers, key=Ledger.total)

    def dominating(self) -> NDArray[np.float64]:
        """Bounds all ledgers: its r-th largest cost is the maximum of their r-th largest costs."""
        columns = [ledger.costs() for ledger in self._ledgers]
        result = np.zeros(max(column.size for column in columns))
        for column in columns:
            np.maximum(result[: column.size], column, out=result[: column.size])
        return result
