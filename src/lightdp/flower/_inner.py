"""The inner strategy: which ones go with a plan, and what they see of the grid."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from lightdp.errors import ArgumentError
from lightdp.flower._settings import planned

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from lightdp.planning import Plan

_LOG = logging.getLogger("flwr.lightdp")
_LINEAR = (FedAvg.aggregate_train, FedAvgM.aggregate_train)  # FedProx is FedAvg for the server
_SEPARATE = (
    strategies.Bulyan, strategies.FedMedian, strategies.FedTrimmedAvg, strategies.FedXgbBagging,
    strategies.FedXgbCyclic, strategies.Krum, strategies.MultiKrum, strategies.QFedAvg,
    strategies.DifferentialPrivacyClientSideAdaptiveClipping, strategies.DifferentialPrivacyClientSideFixedClipping,
    strategies.DifferentialPrivacyServerSideAdaptiveClipping, strategies.DifferentialPrivacyServerSideFixedClipping,
)  # fmt: skip  # they need each client's update for itself


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


def refuse(strategy: Strategy, plan: Plan, *, linear: bool) -> None:
    """Raise if the two cannot work together."""
    name = type(strategy).__name__
    if isinstance(strategy, _SEPARATE):
        raise ArgumentError(f"strategy must not need each client's own update, which lightdp hides, got {name}")
    if plan.repairs and not linear and type(strategy).aggregate_train not in _LINEAR:
        raise ArgumentError(
            f"strategy must be linear for calibration='repair', got {name}: noise that stragglers leave in a round is "
            "taken out in the next, which a non-linear update would not undo (R3); use calibration='exact', or say "
            "linear=True if it is linear"
        )
    if (fraction := getattr(strategy, "fraction_train", 1.0)) != 1.0:
        raise ArgumentError(
            f"fraction_train must be 1, got fraction_train={fraction}: noise cancels only if every client is asked"
        )
    for bound in ("min_train_nodes", "min_available_nodes"):
        asked = getattr(strategy, bound, 0)
        if asked > plan.clients:
            raise ArgumentError(f"{bound} must be at most the plan's {plan.clients} clients, got {bound}={asked}")
    if type(strategy).start is not Strategy.start:
        _LOG.warning("lightdp: %s has a start of its own, which is not used", name)
    if planned(plan.to_json()).digest() != plan.digest():
        raise ArgumentError("plan must be as lightdp.plan makes it")
