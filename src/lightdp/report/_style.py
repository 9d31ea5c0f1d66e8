"""How our charts look: one configuration, one font."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from lightdp.errors import MissingExtraError

try:
    import altair as alt
except ImportError:
    raise MissingExtraError("report", "A chart") from None

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Chart: TypeAlias = alt.TopLevelMixin

__all__ = ["FONT", "LOOK", "SOFT", "Chart", "alt", "data"]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
SOFT = "#526077"
_SMALL = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
_QUIET = {"labelColor": SOFT, "titleColor": SOFT, "gridColor": "#e2e8f0"}
_BARE = {"domain": False, "ticks": False, "labelPadding": 6}
LOOK: dict[str, Any] = {"font": FONT, "view": {"stroke": None}, "axis": _SMALL | _QUIET | _BARE, "legend": _SMALL}
"""The configuration of charts of runs and of compared schemes."""


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of these rows, without marks."""
    return alt.Chart(alt.Data(values=list(rows)))
