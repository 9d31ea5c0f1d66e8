"""What the inner strategy sees of Flower's grid."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy


class NoNodesError(TimeoutError):
    """An inner strategy went on asking for nodes."""


class Narrow:
    """A grid that shows the inner strategy certain nodes, and ends its waiting for more of them."""

    def __init__(self, grid: Grid, wait: float, nodes: list[int] | None = None) -> None:
        self._grid, self._nodes, self._wait = grid, nodes, wait
        self._deadline, self._calls = time.monotonic() + wait, 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  everything else is the grid's own
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        """The nodes to choose from."""
        self._calls += 1
        if self._calls > 2 and time.monotonic() > self._deadline:  # once to count, once to choose, then it is waiting
            raise NoNodesError(f"{type(self._grid).__name__} had too few nodes for {self._wait:g} s")
        return list(self._grid.get_node_ids()) if self._nodes is None else self._nodes


@contextmanager
def all_of_them(strategy: Strategy, nodes: int) -> Iterator[None]:
    """While this lasts, a strategy that samples nodes takes all that it is shown: a cohort was chosen already.

    Args:
        strategy: the inner strategy.
        nodes: how many it is shown.
    """
    wanted = {"fraction_train": 1.0, "min_train_nodes": nodes, "min_available_nodes": nodes}
    before = {name: value for name in wanted if (value := vars(strategy).get(name)) is not None}
    for name in before:
        setattr(strategy, name, wanted[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(strategy, name, value)
