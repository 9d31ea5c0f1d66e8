"""`lightdp audit` of a plan: real clients, keys and bytes, seen from the seat of the server and its colluders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightdp.planning import Plan

if TYPE_CHECKING:
    from rich.table import Table

Lies = Literal["none", "rotation", "search"]
VALUES = 100_000
"""How many coordinates are measured by default."""


@dataclass(frozen=True)
class Audit:
    """What an audit of a plan measured, and whether it holds."""

    plan: Plan
    problems: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing was found above what is claimed."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {"plan": self.plan.to_dict(), "problems": list(self.problems)}

    def shown(self) -> Iterable[str | Table]:
        """Lines and tables for the terminal."""
        return self.problems


def audit(
    plan: Plan,
    *,
    values: int = VALUES,
    confidence: float = 0.99,
    schedule: str | Path = "random",
    lies: Lies = "none",
    play: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Audit:
    """Run real clients under `plan` and measure what their bytes reveal about client 0."""
    raise NotImplementedError(plan, values, confidence, schedule, lies, play, seed, threads, progress)
