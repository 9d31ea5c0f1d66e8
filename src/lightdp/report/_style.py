"""How our charts look: colours and names from the registry of schemes, one configuration."""

from __future__ import annotations

from typing import TypeAlias

from lightdp.errors import MissingExtraError
from lightdp.schemes import BUILT_IN

try:
    import altair as alt
except ImportError:
    raise MissingExtraError("report", "A chart") from None

Chart: TypeAlias = alt.TopLevelMixin

__all__ = ["Chart", "alt", "scheme_colour", "styled"]


def scheme_colour() -> alt.Color:
    """The colour channel of the field `scheme`: the same in every panel, so that one legend serves all."""
    planned = [scheme for scheme in reversed(BUILT_IN.values()) if scheme.planned is not None]
    scale = alt.Scale(domain=[scheme.label for scheme in planned], range=[scheme.colour for scheme in planned])
    return alt.Color("scheme:N", scale=scale, legend=alt.Legend(title=None, orient="top", columns=6))


def styled(chart: alt.VConcatChart | alt.HConcatChart | alt.Chart, title: str, subtitle: list[str]) -> Chart:
    """`chart` with a title and the house configuration."""
    return (
        chart.properties(
            title=alt.Title(title, subtitle=subtitle, anchor="start", fontSize=17, subtitleColor="#4b5563")
        )
        .configure(font="DejaVu Sans, Helvetica, Arial, sans-serif", padding=16)
        .configure_view(stroke=None)
        .configure_axis(
            gridColor="#e5e7eb",
            domainColor="#9ca3af",
            tickColor="#9ca3af",
            labelFontSize=11,
            titleFontSize=12,
        )
        .configure_legend(labelFontSize=12, symbolStrokeWidth=3)
    )
