"""The page of an audit: what its measurements found beside what is claimed. Made of `Audit.to_dict` alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from lightdp._validate import rounded_down, rounded_up
from lightdp.report._chart import FONT, FORMATS, LOOK, SOFT, Chart, alt, data, whole
from lightdp.report._page import scripts, spec, template
from lightdp.report._panel import Panel

_BLUE, _AMBER, _GREY, _LILAC = "#2563eb", "#f59e0b", "#64748b", "#d8b4fe"
_CLAIMS = {"budget": "budget", "worst": "odometer, at worst", "announced": "odometer, as announced"}
_POINTS = 80
_LEGEND = alt.Legend(title=None, orient="top", offset=4)


def save_audit(found: Mapping[str, Any], path: Path) -> None:
    """Write an audit in the format of the suffix of `path`: .html is the page, .png and .svg are its charts.

    The file is written whole or not at all, and the page needs no network.

    Args:
        found: what `lightdp.Audit.to_dict` returned.
        path: the file.

    Raises:
        ArgumentError: the suffix is another one, or the folder refuses the file.
    """
    with whole(path, "html") as file:
        if path.suffix == ".html":
            file.write_text(audit_page(found), encoding="utf-8", errors="replace")
        else:
            audit_chart(found).save(str(file), **FORMATS[path.suffix])


def audit_page(found: Mapping[str, Any]) -> str:
    """The page; everything in it is escaped."""
    drawn, asked = audit_panels(found), found["plan"]
    rest = ", clients refused the rest" if found["ended"] else ""
    return template("audit.html").render(
        title="Audit: it holds" if found["holds"] else "Audit: it does not hold",
        font=FONT,
        summary=f"{asked['clients']} clients, {asked['colluders']} colluders, up to {asked['stragglers']} stragglers, "
        f"{found['data_rounds']} rounds played of {asked['turns']} planned{rest}, δ = {asked['delta']:g}",
        found=found,
        rows=_rows(found),
        panels=drawn,
        specs={f"chart-{place}": spec(panel.chart) for place, panel in enumerate(drawn)},
        scripts=scripts(),
    )


def audit_chart(found: Mapping[str, Any]) -> Chart:
    """All panels under each other."""
    titled = [
        panel.chart.properties(
            width=760, title=alt.Title(panel.title, subtitle=panel.note, anchor="start", subtitleColor=SOFT)
        )
        for panel in audit_panels(found)
    ]
    own = {"color": "independent"}
    return alt.vconcat(*titled, spacing=30).resolve_scale(**own).configure(**LOOK, padding=20, background="white")


def audit_panels(found: Mapping[str, Any]) -> list[Panel]:
    """Intervals on μ, the two distributions of the score, and the trade-off between the attacker's errors."""
    return [_intervals(found), _scores(found), _trade_off(found)]


def _rows(found: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Name, μ, ε and the best attack's true positives for each claim, and the first three for each measurement."""
    rows = []
    for key, name in (_CLAIMS | {"exact": "exact, of what was sent"}).items():
        low = key == "exact" and found["signs"] != "worst"  # other signs may show more
        mu, epsilon, power = (
            f"≥ {rounded_down(value, places)}" if low else rounded_up(value, places)
            for value, places in ((found[key]["mu"], 4), (found[key]["epsilon"], 4), (100 * found[key]["found"], 1))
        )
        rows.append((name, mu, epsilon, f"{power} %"))
    for each in found["measurements"]:
        if each["high"] is None:
            rows.append((each["name"], f"≥ {rounded_down(each['low'])}", f"≥ {rounded_down(each['epsilon_low'])}", ""))
        else:
            ends = [(each["low"], each["high"]), (each["epsilon_of_low"], each["epsilon_of_high"])]
            mu, epsilon = (f"{rounded_down(low)} to {rounded_up(high)}" for low, high in ends)
            rows.append((each["name"], mu, epsilon, ""))
    return rows


def _intervals(found: Mapping[str, Any]) -> Panel:
    """Each measurement as an interval, with rules at what is claimed."""
    claims = [(name, found[key]["mu"]) for key, name in _CLAIMS.items()]
    rules = [{"claim": name, "mu": mu} for name, mu in [*claims, ("exact", found["exact"]["mu"])]]
    bars = [
        {"name": each["name"], "low": each["low"], "high": each["low"] if each["high"] is None else each["high"]}
        for each in found["measurements"]
    ]
    names = [row["claim"] for row in rules]
    scale = alt.Scale(zero=False, padding=20, nice=False)
    lines = data(rules).mark_rule(strokeWidth=2).encode(
        x=alt.X("mu:Q", title="μ", scale=scale, axis=alt.Axis(tickCount=8)),
        color=alt.Color("claim:N", legend=_LEGEND, scale=alt.Scale(domain=names, range=[_GREY, _AMBER, _LILAC, _BLUE])),
        strokeDash=alt.StrokeDash("claim:N", legend=None, scale=alt.Scale(domain=names, range=[[6, 4]] * 3 + [[1, 0]])),
        tooltip=["claim:N", alt.Tooltip("mu:Q", format=".4f")],
    )  # fmt: skip
    y = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=200))
    tips = ["name:N", alt.Tooltip("low:Q", format=".4f"), alt.Tooltip("high:Q", format=".4f")]
    base = data(bars).encode(y=y, tooltip=tips)
    spans = base.mark_bar(height=8, color=_BLUE, opacity=0.55).encode(x=alt.X("low:Q", scale=scale), x2="high:Q")
    ends = base.mark_tick(color=_BLUE, thickness=3, size=20).encode(x="low:Q")
    note = "Intervals at the confidence of the audit; a tick is a lower end, which must lie left of every claim."
    return Panel("Measured and claimed μ", note, alt.layer(lines, spans, ends).properties(height=150), "wide")


def _scores(found: Mapping[str, Any]) -> Panel:
    """The best score for both values of the secret, with the Gaussians that the exact μ predicts as lines."""
    scores, exact = found["scores"], found["exact"]["mu"]
    edges = scores["edges"]
    middles, width = [(low + high) / 2 for low, high in itertools.pairwise(edges)], edges[1] - edges[0]
    measured, predicted = [], []
    for name, key, centre in (("secret 0", "secret_0", 0.0), ("secret 1", "secret_1", exact)):
        total = max(sum(scores[key]), 1)
        shown = [
            (x, count)
            for x, count in zip(middles, scores[key], strict=True)
            if -5 < x < exact + 5  # beyond, nothing can be seen
        ]
        measured += [{"score": x, "density": count / total / width, "arm": name} for x, count in shown]
        predicted += [
            {"score": x, "density": math.exp(-((x - centre) ** 2) / 2) / math.sqrt(2 * math.pi), "arm": name}
            for x, _ in shown
        ]
    colour = alt.Color("arm:N", legend=_LEGEND, scale=alt.Scale(domain=["secret 0", "secret 1"], range=[_GREY, _BLUE]))
    x, y = (
        alt.X("score:Q", title="score, in standard deviations", scale=alt.Scale(nice=False)),
        alt.Y("density:Q", title=None, stack=None),
    )
    bars = data(measured).mark_area(opacity=0.35, interpolate="step").encode(x=x, y=y, color=colour)
    lines = data(predicted).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    note = f"The best linear score over {found['values']:,} coordinates; lines: as the exact μ predicts."
    return Panel("What the attacker sees", note, alt.layer(bars, lines).properties(height=240))


def _trade_off(found: Mapping[str, Any]) -> Panel:
    """True against false positives: the best that each claim allows, and what the score reached."""
    false = np.logspace(-4, 0, _POINTS, endpoint=False)
    curves = {"budget": found["budget"]["mu"], "odometer, at worst": found["worst"]["mu"]}
    curves |= {"exact": found["exact"]["mu"]}
    lines = [
        {"false": float(x), "true": float(ndtr(ndtri(x) + mu)), "curve": name}
        for name, mu in curves.items()
        for x in false
    ]
    above = [_above(found["scores"][key]) for key in ("secret_0", "secret_1")]
    points = [{"false": x, "true": y} for x, y in zip(*above, strict=True) if 1e-4 <= x < 1]
    scale = alt.Scale(domain=[*curves], range=[_GREY, _AMBER, _BLUE])
    x = alt.X("false:Q", title="false-positive rate", scale=alt.Scale(type="log", domain=[1e-4, 1]))
    y = alt.Y("true:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    curve = (
        data(lines).mark_line(strokeWidth=2).encode(x=x, y=y, color=alt.Color("curve:N", legend=_LEGEND, scale=scale))
    )
    dots = data(points).mark_point(filled=True, size=28, color="#0f172a", opacity=0.7).encode(x=x, y=y)
    note = "True-positive rate of the best attack; dots: measured, lines: the most that each μ allows."
    return Panel("The attacker's trade-off", note, alt.layer(curve, dots).properties(height=240))


def _above(counts: Sequence[float]) -> list[float]:
    """The share of scores above each inner edge."""
    total = max(sum(counts), 1)
    return [share / total for share in itertools.accumulate(reversed(counts))]
