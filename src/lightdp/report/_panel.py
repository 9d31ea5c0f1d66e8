"""What every panel is, and the axis of rounds that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightdp.report._chart import alt
from lightdp.runlog import RunLog


@dataclass(frozen=True)
class Panel:
    """One chart with its heading and what to know about it. A wide one has a row for itself, small ones share."""

    title: str
    note: str
    chart: alt.Chart | alt.LayerChart
    size: Literal["small", "half", "wide"] = "half"


def rounds_axis(field: str, logs: Sequence[RunLog]) -> alt.X:
    """The same axis in every panel, so that a run that ended early is seen to."""
    last = max(1, *(len(log.rounds) for log in logs))
    ticks = {"values": list(range(1, last + 1))} if last <= 10 else {"tickCount": 8}
    return alt.X(f"{field}:Q", title="round", axis=alt.Axis(grid=False, **ticks), scale=within(0.5, last + 0.5))


def within(low: float, high: float, **more: Any) -> alt.Scale:  # noqa: ANN401  as `alt.Scale`
    """A scale from `low` to `high` and no further."""
    return alt.Scale(domain=[low, high], nice=False, **more)
