"""The planner's page and picture: noise against colluders, stragglers and ε, and what stays in the mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from lightdp import attack, gaussian
from lightdp._validate import counted, rounded_up
from lightdp.errors import ArgumentError
from lightdp.planning import HEADINGS, Plan, compare, sections, solve
from lightdp.report._chart import FAINT, Chart, alt, data, decades, heading, line_names, sheet, within
from lightdp.report._frame import save_page
from lightdp.report._panel import Card, Page, Panel, Section, Table, crossed
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
_AGAINST = {"colluders": "colluders", "stragglers": "stragglers", "epsilon": "ε"}
_NOTES = {
    "individual σ_U": "Standard deviation of the noise that a client draws for itself.",
    "pairwise σ_K": "Standard deviation of the noise that two clients share, and that cancels in the sum.",
}
_PRINTED = "The paper's σ are drawn as printed, for the ε it claims."
_SMALL, _LARGE = 150, 260  # pixels
_TICKS = 5  # of an axis of clients, at most
_SAME = "Every scheme at the same true guarantee"


def save_plan(chosen: Plan, path: Path, command: str | None = None) -> None:
    """Write a plan in the format of the suffix of `path`: .html is a page, .png and .svg are its charts.

    The file is written whole or not at all, and the page needs no network.

    Args:
        chosen: the plan.
        path: the file.
        command: the command line that makes the page, which is shown on it.

    Raises:
        ArgumentError: the suffix is another one, or the folder refuses the file.
    """
    save_page(lambda: plan_page(chosen), path, command, "plot", chart=lambda: plan_chart(chosen))


def plan_page(chosen: Plan) -> Page:
    """What is on the page."""
    noise, *levels = plan_panels(chosen)
    said = [[head, _sentences(words)] for head, words in sections(chosen).items()]
    of = f" of {chosen.request.population:,}" if chosen.request.cohorts > 1 else ""
    return Page(
        kind="plan",
        title=f"Plan: {chosen.calibration.title}, {chosen.clients:,}{of} clients",
        lead=f"{_settings(chosen)}.",
        cards=_cards(chosen),
        sections=[
            Section("What it guarantees, and what it costs", tables=[Table(["", "plan"], said, words=["plan"])]),
            Section(_SAME, panels=[noise], tables=[_compared(chosen)]),
            Section("Noise that keeps the guarantee", panels=levels, words=["In each chart one setting varies."]),
        ],
        docs="What lightdp computes, and why it is right",
    )


def _sentences(words: list[str]) -> str:
    """One after the other: a new sentence where one begins with a capital, otherwise after a semicolon."""
    text = words[0]
    for more in words[1:]:
        text = f"{text.rstrip('.')}{'.' if more[0].isupper() else ';'} {more}"
    return text


def plan_chart(chosen: Plan) -> Chart:
    """The paper's figure of (σ_K, σ_U) for paper, exact and repair, and noise in the mean against S̄ for all."""
    noise, *levels = plan_panels(chosen)
    pairs = zip(levels[: len(_SWEEPS)], levels[len(_SWEEPS) :], strict=True)
    columns = [alt.vconcat(*(each.chart.properties(width=215) for each in pair), spacing=12) for pair in pairs]
    below = noise.chart.properties(width=860, title=heading(_SAME, size=14))
    note = [f"Upper charts: {_PRINTED} Lower chart: its γ, with the σ that keeps ε."] if _draws_paper(levels) else []
    title = heading("Noise that keeps the guarantee", f"{_settings(chosen)}; in each chart one of them varies", *note)
    return sheet(alt.vconcat(alt.hconcat(*columns, spacing=24), below, spacing=28, title=title))


def plan_panels(chosen: Plan) -> list[Panel]:
    """Noise in the mean of every scheme, then σ_U and σ_K along each of colluders, stragglers and ε."""
    levels = {swept: _levels(chosen, swept) for swept in _SWEEPS}
    return [
        _noise_panel(chosen, _noises(chosen)),
        *(_level_panel(swept, kind, found) for kind in _LEVELS for swept, found in levels.items()),
    ]


def _draws_paper(levels: list[Panel]) -> bool:
    return any(panel.table is not None and BUILT_IN["paper"].label in panel.table.head for panel in levels)


def _settings(chosen: Plan) -> str:
    value = rounded_up(gaussian.mu(chosen.budget, chosen.delta, up=True), 3)
    mu = f"{'' if chosen.gdp else 'at this δ as with '}μ = {value}"
    of = f" of {chosen.request.population:,} in turn" if chosen.request.cohorts > 1 else ""
    return (
        f"N = {chosen.clients:,}{of}, C̄ = {chosen.colluders:,}, S̄ = {chosen.stragglers:,}, {chosen.rounds:,} rounds, "
        f"ε = {chosen.budget:g} at δ = {chosen.delta:g} ({mu}), clip {chosen.clip:g}"
    )


def _cards(chosen: Plan) -> list[Card]:
    """The true guarantee, what an attacker finds, what is left in the mean, and what is sent."""
    stays, found = math.sqrt(chosen.noise_in_mean()), 100 * chosen.power()
    wrong = f"{100 * attack.FALSE_POSITIVES:g} %"
    of = f"noise multiplier {chosen.noise_multiplier:.4g}; σ_U {chosen.sigma_individual:.4g}, "
    of += f"σ_K {chosen.sigma_pairwise:.4g}{', drawn' if chosen.masks.kind == 'drawn' else ''}"
    return [
        Card("Guarantee", f"ε = {rounded_up(chosen.epsilon())}", f"at δ = {chosen.delta:g}, true, for all rounds"),
        Card("Attacker", f"{rounded_up(found, 1)} %", f"found at most, with {wrong} wrongly accused"),
        Card("Noise left", f"{stays:.3g}", f"std in a coordinate of a round's mean, for good; {of}"),
        Card("Upload", f"{chosen.wire_bits} bits", f"a parameter, {counted(chosen.rounds, 'round')}, one trip each"),
    ]


def _compared(chosen: Plan) -> Table:
    """Every scheme at the same true guarantee, or why it cannot have it."""
    found = compare(chosen)
    rows = [row.cells(found[0].noise_in_mean) for row in found]
    note = "Noise: variance in the mean of a round. Trips: messages up and down before the sum is known."
    return Table(HEADINGS, rows, words=HEADINGS[-1:], note=note)


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


def _level_panel(swept: str, kind: str, found: list[tuple[float, str, Plan]]) -> Panel:
    rows = [{"x": x, "scheme": label, "value": getattr(plan, _LEVELS[kind])} for x, label, plan in found]
    note = _NOTES[kind] + (f" {_PRINTED}" if BUILT_IN["paper"].label in {row["scheme"] for row in rows} else "")
    high = 1.05 * max([row["value"] for row in rows], default=0.0) or 1.0
    chart = _lines(rows, swept, kind, (0.0, high), _SMALL)
    table = crossed(rows, ("x", _AGAINST[swept]), "scheme", "value", _digits)
    return Panel(f"{kind[0].upper()}{kind[1:]} against {_AGAINST[swept]}", note, chart, "small", table)


def _noises(chosen: Plan) -> list[dict[str, Any]]:
    """At the same true guarantee, so the paper's γ appears with noise scaled to keep it."""
    return [
        {"x": value, "scheme": row.scheme.label, "value": row.noise_in_mean}
        for value in _values(chosen, "stragglers")
        for row in compare(_replan(chosen, "stragglers", value, "exact"))
        if row.plan is not None
    ]


def _noise_panel(chosen: Plan, rows: list[dict[str, Any]]) -> Panel:
    values = [row["value"] for row in rows]
    span = min(values) / 1.15, max(values) * 1.15
    here = data([{"x": chosen.stragglers}]).mark_rule(strokeDash=[4, 4], color=FAINT).encode(x="x:Q")
    lines = _lines(rows, "stragglers", "noise variance left in the mean", span, _LARGE, log=True)
    note = "Variance that a round leaves in a coordinate of the mean, against the most stragglers; dashed: this plan."
    table = crossed(rows, ("x", "stragglers"), "scheme", "value", _digits)
    return Panel("Noise left in the mean", note, alt.layer(here, lines).properties(height=_LARGE), "wide", table)


def _lines(
    rows: list[dict[str, Any]], swept: str, title: str, span: tuple[float, float], height: int, *, log: bool = False
) -> alt.LayerChart:
    """A line for each scheme, its name at its end; colours are the same in every chart."""
    colours = {scheme.label: scheme.colour for scheme in BUILT_IN.values()}
    scale = alt.Scale(domain=[*colours], range=[*colours.values()])
    x = alt.X("x:Q", title=_SWEEPS[swept], scale=alt.Scale(nice=False), axis=alt.Axis(grid=False))
    if swept != "epsilon":  # whole clients
        top = max(1, *(row["x"] for row in rows))
        x = x.axis(grid=False, format="d", tickCount=min(top, _TICKS)).scale(within(0, top))
    y = alt.Y("value:Q", title=title, scale=within(*span, type="log" if log else "linear"))
    y = y.axis(format="~r", **({"values": decades(*span)} if log else {"tickCount": 5}))
    few = len({row["x"] for row in rows}) <= _FEW
    curve = "monotone" if swept == "epsilon" else "linear"
    line = data(rows).mark_line(strokeWidth=2.5, interpolate=curve, point=few).encode(
        x=x, y=y, color=alt.Color("scheme:N", scale=scale, legend=None),
        tooltip=["scheme:N", "x:Q", alt.Tooltip("value:Q", format=".4g")],
    )  # fmt: skip
    last = {row["scheme"]: row["value"] for row in rows}
    ends = [{"name": name, "value": value, "colour": colours[name]} for name, value in last.items()]
    return alt.layer(line, line_names(ends, span, height, log=log)).properties(height=height)


def _digits(value: float) -> str:
    return f"{value:.4g}"


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
