"""A server on the grid of this process that is killed and comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr.serverapp.strategy import FedAvg, Strategy

from lightdp.flower import LightDP
from support.flower_training import weights

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from support.flower_grid import LocalGrid


class Killed(BaseException):
    """As SIGKILL: nothing of the process is left but its files."""


def named(grid: LocalGrid) -> LocalGrid:
    """Nodes whose names do not depend on their ids, with a state file each."""
    for i, node in enumerate(grid.nodes):
        node.config["lightdp-name"] = f"site-{i}"
    return grid


def again(grid: LocalGrid) -> None:
    """The server comes back: a new run of Flower, and nodes with new ids."""
    for node in grid.nodes:
        node.id += 100
    grid._replies.clear()
    grid._later.clear()


def made(path: Path | None, plan: Any, inner: Strategy | None = None, **more: Any) -> LightDP:
    return LightDP(FedAvg(fraction_evaluate=0.0) if inner is None else inner, plan, wait=0.2, checkpoint=path, **more)


def started(
    path: Path | None, grid: LocalGrid, plan: Any, inner: Strategy | None = None, **more: Any
) -> tuple[LightDP, Any]:
    own = {name: more.pop(name) for name in ("log", "trained", "linear") if name in more}
    strategy = made(path, plan, inner, **own)
    options: dict[str, Any] = {"initial_arrays": weights(), "num_rounds": 6, "timeout": 0.3 if plan.grace else 1} | more
    return strategy, strategy.start(grid=grid, **options)


def killing(grid: LocalGrid, at: int, monkeypatch: pytest.MonkeyPatch, *, sent: bool) -> None:
    """Kill the server in its round `at`, before or after the nodes have answered."""
    real = grid.send_and_receive

    def exchange(messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        training = any("start" in each.content.config_records.get("lightdp", {}) for each in messages)
        if training and grid.round + 1 == at:
            if sent:
                real(messages, timeout=timeout)
            else:
                grid.round += 1
            raise Killed
        return real(messages, timeout=timeout)

    monkeypatch.setattr(grid, "send_and_receive", exchange)
