"""How our charts look: one palette, one name for each scheme, one configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from lightdp.errors import MissingExtraError

try:
    import altair as alt
except ImportError:
    raise MissingExtraError("report", "A chart") from None

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightdp.runlog import RunLog

Chart: TypeAlias = alt.TopLevelMixin

__all__ = ["LABELS", "LOOK", "NAMES", "Chart", "alt", "data", "label", "palette", "scheme_colour", "styled"]

NAMES = {
    "local": "local DP",
    "paper": "LightDP paper",
    "exact": "LightDP exact",
    "repair": "LightDP repair",
    "smpc": "SMPC + DP",
    "central": "central DP",
}
LABELS = NAMES | {
    "plain": "FedAvg, no privacy",
    "local-paper": "local DP, paper's σ",
    "exact-sparse": "LightDP exact, sparse",
    "pairwise": "pairwise encryption",
    "secagg": "SecAgg + DP",
    "secagg+": "SecAgg+ + DP",
    "dordis": "Dordis",
    "lightsecagg": "LightSecAgg + DP",
    "swiftagg+": "SwiftAgg+ + DP",
    "paillier": "Paillier + DP",
    "ckks": "CKKS + DP",
}
"""The same for runs, which may also play a compared scheme."""
COLOURS = {
    "central": "#6b7280",
    "smpc": "#0d9488",
    "repair": "#2563eb",
    "exact": "#7c3aed",
    "paper": "#ea580c",
    "local": "#be123c",
}
EVERY = COLOURS | {
    "plain": "#a8a29e",
    "local-paper": "#fb7185",
    "exact-sparse": "#a78bfa",
    "pairwise": "#f59e0b",
    "secagg": "#0f766e",
    "secagg+": "#10b981",
    "dordis": "#65a30d",
    "lightsecagg": "#0284c7",
    "swiftagg+": "#22d3ee",
    "paillier": "#db2777",
    "ckks": "#d946ef",
}
"""Colours of compared schemes, by name."""
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


def known(log: RunLog) -> str:
    """The scheme of a run by a name that has a label and a colour: of an unknown scheme, the calibration."""
    if log.started.plan is None or log.scheme in LABELS:
        return log.scheme
    return log.started.plan["calibration"]


def label(log: RunLog) -> str:
    """What the scheme of a run is called."""
    return LABELS.get(known(log), "no noise")


def palette() -> dict[str, str]:
    """A colour for each scheme that a run may have, and for none."""
    return EVERY | {"none": "#a16207"}


def scheme_colour() -> alt.Color:
    """The colour channel of the field `scheme`: the same in every panel, so that one legend serves all."""
    scale = alt.Scale(domain=list(NAMES.values()), range=[COLOURS[scheme] for scheme in NAMES])
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
