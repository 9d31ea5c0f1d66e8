"""The planner's picture: noise levels against colluders, stragglers and ε, and what stays in the mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightdp import gaussian
from lightdp._validate import rounded_up
from lightdp.errors import ArgumentError
from lightdp.planning import Plan, compare, solve
from lightdp.report._chart import Chart, alt, data
from lightdp.schemes import BUILT_IN
from lightdp.stragglers import uniform

_POINTS = 48
_FEW = 5  # values of plans that take seconds each; so few get dots, since a line needs two to be seen
_LEVELS = {"individual σ_U": "sigma_individual", "pairwise σ_K": "sigma_pairwise"}
_SWEEPS = {
    "colluders": "colluders C̄",
    "stragglers": "stragglers S̄ (uniform on 0..S̄)",
    "epsilon": "ε of the whole training",
}
_LINES = {"gridColor": "#e5e7eb", "domainColor": "#9ca3af", "tickColor": "#9ca3af"}
_LOOK = {
    "font": "DejaVu Sans, Helvetica, Arial, sans-serif", "padding": 16, "view": {"stroke": None},
    "axis": _LINES | {"labelFontSize": 11, "titleFontSize": 12},
    "legend": {"labelFontSize": 12, "symbolStrokeWidth": 3},
}  # fmt: skip


def plan_chart(chosen: Plan) -> Chart:
    """The paper's figure of (σ_K, σ_U) for paper, exact and repair, and noise in the mean against S̄ for all."""
    value = rounded_up(gaussian.mu(chosen.budget, chosen.delta, up=True), 3)
    mu = f"{'' if chosen.gdp else 'at this δ as with '}μ = {value}"
    of = f" of {chosen.request.population:,} in turn" if chosen.request.cohorts > 1 else ""
    settings = (
        f"N = {chosen.clients:,}{of}, C̄ = {chosen.colluders:,}, S̄ = {chosen.stragglers:,}, {chosen.rounds:,} rounds, "
        f"ε = {chosen.budget:g} at δ = {chosen.delta:g} ({mu}), clip {chosen.clip:g}; in each panel one of them varies"
    )
    levels, noises = {swept: _levels(chosen, swept) for swept in _SWEEPS}, _noises(chosen)
    drawn = {row["scheme"] for row in noises} | {label for found in levels.values() for _, label, _ in found}
    note = "Upper panels: the paper's σ as printed, for the ε it claims. Lower panel: its γ, with the σ that keeps ε."
    said = [settings, note] if BUILT_IN["paper"].label in drawn else [settings]
    head = {"subtitle": said, "anchor": "start", "fontSize": 17, "subtitleColor": "#4b5563"}
    title = alt.Title("Noise that keeps the guarantee", **head)
    above = alt.hconcat(*(_level_panels(swept, found, drawn) for swept, found in levels.items()), spacing=28)
    return alt.vconcat(above, _noise_panel(chosen, noises, drawn), spacing=28, title=title).configure(**_LOOK)


def _levels(chosen: Plan, swept: str) -> list[tuple[float, str, Plan]]:
    """Plans of each scheme, with the value that varies and the scheme's label."""
    values = _values(chosen, swept, first=1 if swept == "stragglers" else 0)  # S̄ = 0 takes any γ
    found = []
    for value in values:
        for name in ("paper", "exact", "repair"):
            try:
                found.append((value, BUILT_IN[name].label, _replan(chosen, swept, value, name)))
            except ArgumentError:  # the paper's calibration has no sparse graphs
                continue
    return found


def _level_panels(swept: str, found: list[tuple[float, str, Plan]], drawn: set[str]) -> alt.VConcatChart:
    few = len({x for x, _, _ in found}) <= _FEW
    panels = []
    for kind, field in _LEVELS.items():
        rows = [{"x": x, "scheme": label, "sigma": getattr(plan, field), "kind": kind} for x, label, plan in found]
        line = data(rows).mark_line(strokeWidth=2.5, interpolate="monotone", point=few)
        panels.append(_against(line, swept, alt.Y("sigma:Q", title=kind), drawn).properties(width=250, height=150))
    return alt.vconcat(*panels, spacing=12)


def _noises(chosen: Plan) -> list[dict[str, Any]]:
    """At the same true guarantee, so the paper's γ appears with noise scaled to keep it."""
    return [
        {"x": value, "scheme": row.scheme.label, "noise": row.noise_in_mean}
        for value in _values(chosen, "stragglers")
        for row in compare(_replan(chosen, "stragglers", value, "exact"))
        if row.plan is not None
    ]


def _noise_panel(chosen: Plan, rows: list[dict[str, Any]], drawn: set[str]) -> alt.LayerChart:
    line = data(rows).mark_line(strokeWidth=2.5, point=len({row["x"] for row in rows}) <= _FEW)
    y = alt.Y("noise:Q", title="noise variance left in the mean", scale=alt.Scale(type="log", nice=False))
    here = data([{"x": chosen.stragglers}]).mark_rule(strokeDash=[4, 4], color="#9ca3af").encode(x="x:Q")
    title = alt.Title("Every scheme at the same true guarantee", anchor="start")
    return alt.layer(here, _against(line, "stragglers", y, drawn)).properties(width=870, height=260, title=title)


def _against(line: alt.Chart, swept: str, y: alt.Y, drawn: set[str]) -> alt.Chart:
    """Colours are the same in every panel, so that one legend serves all; it has the schemes that are drawn."""
    planned = [scheme for scheme in reversed(BUILT_IN.values()) if scheme.label in drawn]
    step = alt.Undefined if swept == "epsilon" else 1  # of whole clients
    scale = alt.Scale(domain=[scheme.label for scheme in planned], range=[scheme.colour for scheme in planned])
    return line.encode(
        x=alt.X("x:Q", title=_SWEEPS[swept], scale=alt.Scale(nice=False), axis=alt.Axis(tickMinStep=step)),
        y=y,
        color=alt.Color("scheme:N", scale=scale, legend=alt.Legend(title=None, orient="top", columns=6)),
        tooltip=["scheme:N", "x:Q", alt.Tooltip(y.shorthand, format=".4g")],
    )


def _values(chosen: Plan, swept: str, first: int = 0) -> list[float]:
    points = _POINTS if chosen.sampling_rate == 1 else _FEW
    if swept == "epsilon":
        return np.geomspace(chosen.budget / 4, chosen.budget * 4, points).tolist()
    top = chosen.clients - 1
    if swept == "stragglers":  # as far as secure aggregation goes, and as far as was asked
        top = min(max(chosen.clients - chosen.colluders - 1, chosen.stragglers, 1), chosen.clients - 2)
    return np.unique(np.linspace(min(first, top), top, min(top + 1, points)).round().astype(int)).tolist()


def _replan(chosen: Plan, swept: str, value: float, calibration: str) -> Plan:
    """The plan with another value of `swept`; a swept S̄ brings the uniform law with it."""
    law = {"straggler_law": uniform(int(value))} if swept == "stragglers" else {}
    return solve(chosen.request.but(**{swept: value, "calibration": calibration}, **law))
