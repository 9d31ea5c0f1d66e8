"""How our charts look: colours and names from the registry of schemes, one configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from lightdp.errors import MissingExtraError
from lightdp.schemes import BUILT_IN

try:
    import altair as alt
except ImportError:
    raise MissingExtraError("report", "A chart") from None

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Chart: TypeAlias = alt.TopLevelMixin

__all__ = ["FONT", "LOOK", "Chart", "alt", "data", "scheme_colour", "styled"]

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
LOOK: dict[str, Any] = {
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelColor": "#526077",
        "titleColor": "#526077",
        "domain": False,
        "ticks": False,
        "labelPadding": 6,
        "gridColor": "#e2e8f0",
    },
    "legend": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
}
"""The configuration of charts of runs and of compared schemes."""


def scheme_colour() -> alt.Color:
    """The colour channel of the field `scheme`: the same in every panel, so that one legend serves all."""
    planned = [scheme for scheme in reversed(BUILT_IN.values()) if scheme.planned is not None]
    scale = alt.Scale(domain=[scheme.label for scheme in planned], range=[scheme.colour for scheme in planned])
    return alt.Color("scheme:N", scale=scale, legend=alt.Legend(title=None, orient="top", columns=6))


def styled(chart: alt.VConcatChart, title: str, subtitle: list[str]) -> Chart:
    """`chart` with a title and the house configuration."""
    head = alt.Title(title, subtitle=subtitle, anchor="start", fontSize=17, subtitleColor="#4b5563")
    axis = {"gridColor": "#e5e7eb", "domainColor": "#9ca3af", "tickColor": "#9ca3af"}
    return chart.properties(title=head).configure(
        font="DejaVu Sans, Helvetica, Arial, sans-serif",
        padding=16,
        view={"stroke": None},
        axis=axis | {"labelFontSize": 11, "titleFontSize": 12},
        legend={"labelFontSize": 12, "symbolStrokeWidth": 3},
    )


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of these rows, without marks."""
    return alt.Chart(alt.Data(values=list(rows)))
