"""The planner's picture: noise levels against colluders, stragglers and ε, and what stays in the mean."""

from __future__ import annotations

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
    of = "" if chosen.request.population is None else f" of {chosen.request.population:,} in turn"
    settings = (
        f"N = {chosen.clients:,}{of}, C̄ = {chosen.colluders:,}, S̄ = {chosen.stragglers:,}, {chosen.rounds:,} rounds, "
        f"ε = {chosen.budget:g} at δ = {chosen.delta:g} ({mu}), clip {chosen.clip:g}; in each panel one of them varies"
    )
    note = "Upper panels: the paper's σ as printed, for the ε it claims. Lower panel: its γ, with the σ that keeps ε."
    head = {"subtitle": [settings, note], "anchor": "start", "fontSize": 17, "subtitleColor": "#4b5563"}
    title = alt.Title("Noise that keeps the guarantee", **head)
    levels = alt.hconcat(*(_level_panels(chosen, swept) for swept in _SWEEPS), spacing=28)
    return alt.vconcat(levels, _noise_panel(chosen), spacing=28, title=title).configure(**_LOOK)


def _level_panels(chosen: Plan, swept: str) -> alt.VConcatChart:
    values = _values(chosen, swept, first=1 if swept == "stragglers" else 0)  # S̄ = 0 takes any γ
    found = []
    for value in values:
        for name in ("paper", "exact", "repair"):
            try:
                found.append((value, BUILT_IN[name].label, _replan(chosen, swept, value, name)))
            except ArgumentError:  # the paper's calibration has no sparse graphs
                continue
    panels = []
    for kind, field in _LEVELS.items():
        rows = [{"x": x, "scheme": label, "sigma": getattr(plan, field), "kind": kind} for x, label, plan in found]
        line = data(rows).mark_line(strokeWidth=2.5, interpolate="monotone", point=len(values) <= _FEW)
        panels.append(_against(line, swept, alt.Y("sigma:Q", title=kind)).properties(width=250, height=150))
    return alt.vconcat(*panels, spacing=12)


def _noise_panel(chosen: Plan) -> alt.LayerChart:
    """At the same true guarantee, so the paper's γ appears with noise scaled to keep it."""
    values = _values(chosen, "stragglers")
    rows = [
        {"x": value, "scheme": row.scheme.label, "noise": row.noise_in_mean}
        for value in values
        for row in compare(_replan(chosen, "stragglers", value, "exact"))
        if row.plan is not None
    ]
    line = data(rows).mark_line(strokeWidth=2.5, point=len(values) <= _FEW)
    y = alt.Y("noise:Q", title="noise variance left in the mean", scale=alt.Scale(type="log", nice=False))
    here = data([{"x": chosen.stragglers}]).mark_rule(strokeDash=[4, 4], color="#9ca3af").encode(x="x:Q")
    title = alt.Title("Every scheme at the same true guarantee", anchor="start")
    return alt.layer(here, _against(line, "stragglers", y)).properties(width=870, height=260, title=title)


def _against(line: alt.Chart, swept: str, y: alt.Y) -> alt.Chart:
    """Colours are the same in every panel, so that one legend serves all."""
    planned = [scheme for scheme in reversed(BUILT_IN.values()) if scheme.planned is not None]
    scale = alt.Scale(domain=[scheme.label for scheme in planned], range=[scheme.colour for scheme in planned])
    return line.encode(
        x=alt.X("x:Q", title=_SWEEPS[swept], scale=alt.Scale(nice=False)),
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
