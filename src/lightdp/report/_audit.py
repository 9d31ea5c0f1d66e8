"""The page of an audit of a plan: what was measured beside what is claimed. Made of `Audit.to_dict` alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from lightdp._validate import counted, rounded_down, rounded_up
from lightdp.report._audit_log import log_page, log_panels
from lightdp.report._chart import SOFT, TONES, Chart, alt, data, heading, sheet, within
from lightdp.report._frame import save_page
from lightdp.report._panel import Card, Page, Panel, Section, Table

_CLAIMS = {"budget": "budget", "worst": "odometer, at worst", "announced": "odometer, as announced"}
_COLOURS = {"budget": TONES["grey"], "odometer, at worst": TONES["orange"], "odometer, as announced": TONES["violet"]}
_COLOURS |= {"exact": TONES["blue"]}
_SECRETS = {"secret 0": TONES["grey"], "secret 1": TONES["blue"]}
_SIGNS = {"worst": "the signs that show best", "improved": "signs that no change of one or two betters"}
_LIES = {
    "none": "tells everybody the truth", "rotation": "tells rotating lies", "search": "tells lies that a search found",
    "models": "sends one client in each round another model",
}  # fmt: skip
_POINTS, _EVERY = 80, 4  # points of a curve, and which of them are in its table
_HEIGHT = 240
_LEGEND = alt.Legend(title=None, orient="top", offset=4, columns=2)  # fits a phone


def save_audit(found: Mapping[str, Any], path: Path, command: str | None = None) -> None:
    """Write an audit in the format of the suffix of `path`: .html is the page, .png and .svg are its charts.

    The file is written whole or not at all, and the page needs no network.

    Args:
        found: what `lightdp.Audit.to_dict` returned, or what `lightdp audit run.jsonl --json` prints; a log whose
            clients have no μ of their own has no charts.
        path: the file.
        command: the command line that makes the page, which is shown on it.

    Raises:
        ArgumentError: the suffix is another one, or the folder refuses the file.
    """
    if "log" not in found:
        save_page(lambda: audit_page(found), path, command, "html", chart=lambda: audit_chart(found))
        return
    drawn = log_panels(found)
    save_page(lambda: log_page(found), path, command, "html", chart=(lambda: _stacked(drawn)) if drawn else None)


def audit_page(found: Mapping[str, Any]) -> Page:
    """What is on the page."""
    asked = found["plan"]
    rest = ", clients refused the rest" if found["ended"] else ""
    plan = [[str(key), _value(value)] for key, value in asked.items()]
    checks = [
        [each["group"], f"{'' if each['holds'] else '!'}{each['ratio']:.4f}", f"{each['chance']:.2g}", each["where"]]
        for each in found["deviations"]
    ]
    clip = "The clip was not audited: with unit record the application clips each record."
    if found["clip"] is not None:
        low, high = found["clip"]["norm"]
        clip = (
            f"An update far beyond the clip of {found['clip']['clip']:g} left with a norm of {low:.4g} to {high:.4g}."
        )
    groups = ["group", "variance over expected", "chance, at most", "at the oddest place"]
    return Page(
        kind="audit",
        title="Audit: it holds" if found["holds"] else "Audit: it does not hold",
        lead=f"{counted(asked['clients'], 'client')}, {counted(asked['colluders'], 'colluder')}, up to "
        f"{counted(asked['stragglers'], 'straggler')}, {found['data_rounds']} rounds played of {asked['turns']} "
        f"planned{rest}, δ = {asked['delta']:g}",
        cards=_cards(found),
        caveats=found["problems"],
        caveat="What does not hold",
        sections=[
            Section(
                "Claimed and measured",
                panels=audit_panels(found),
                tables=[Table(["", "μ", "ε", "found"], _rows(found), note=_setting(found))],
            ),
            Section("Checks of the noise", tables=[Table(groups, checks, words=groups[-1:], note=clip)]),
            Section("Plan", tables=[Table(["setting", "value"], plan, words=["value"], dense=True)]),
        ],
        docs="How to audit a plan",
    )


def audit_chart(found: Mapping[str, Any]) -> Chart:
    """All panels under each other."""
    return _stacked(audit_panels(found))


def _stacked(panels: Sequence[Panel]) -> Chart:
    titled = [panel.chart.properties(width=760, title=heading(panel.title, panel.note, size=14)) for panel in panels]
    return sheet(alt.vconcat(*titled, spacing=30).resolve_scale(color="independent"))


def audit_panels(found: Mapping[str, Any]) -> list[Panel]:
    """Intervals on μ, the two distributions of the score, and the trade-off between the attacker's errors."""
    return [_intervals(found), _scores(found), _trade_off(found)]


def _cards(found: Mapping[str, Any]) -> list[Card]:
    def degree(key: str, name: str) -> str:
        value = found[key][name]
        if key == "exact" and found["signs"] != "worst":  # other signs may show more
            return f"≥ {rounded_down(value)}"
        return f"= {rounded_up(value)}"

    of = {"exact": ("Exact", "of what was sent"), "worst": ("Odometer", f"of client {found['victim']}, at worst")}
    of |= {"budget": ("Budget", "of the plan")}
    cards = [
        Card(head, f"μ {degree(key, 'mu')}", f"{words}, ε {degree(key, 'epsilon')}")
        for key, (head, words) in of.items()
    ]
    each = f"each an experiment, over {found['uploads']} uploads; confidence {found['confidence']}"
    return [*cards, Card("Coordinates", f"{found['values']:,}", each)]


def _value(value: object) -> str:
    return "none" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)


def _setting(found: Mapping[str, Any]) -> str:
    """Who attacks whom, and how."""
    victim = found["victim"]
    helped = f" and its colluders {', '.join(map(str, found['colluders']))}" if found["colluders"] else ""
    return (
        f"Found, for the odometer at worst: {found['attacker']} Client {victim} against the server{helped}, who see "
        f"every upload. The data of client {victim} moves every coordinate by one whole sensitivity in each round or "
        f"not at all, with {_SIGNS[found['signs']]}. Server: {_LIES[found['lies']]}; schedule: {found['schedule']}."
    )


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
    names = [*_COLOURS, *(row["name"] for row in bars)]
    scale = alt.Scale(zero=False, padding=20, nice=False)
    dashes = alt.condition("datum.claim === 'exact'", alt.value([1, 0]), alt.value([6, 4]))
    claim = data(rules).encode(
        x=alt.X("mu:Q", title="μ", scale=scale),
        color=alt.Color("claim:N", legend=None, scale=alt.Scale(domain=[*_COLOURS], range=[*_COLOURS.values()])),
        tooltip=["claim:N", alt.Tooltip("mu:Q", format=".4f")],
    )
    y = alt.Y(
        "name:N", title=None, sort=names, scale=alt.Scale(domain=names), axis=alt.Axis(labelLimit=200, grid=False)
    )
    tips = ["name:N", alt.Tooltip("low:Q", format=".4f"), alt.Tooltip("high:Q", format=".4f")]
    base = data(bars).encode(y=y, tooltip=tips)
    spans = base.mark_bar(height=8, color=TONES["blue"], opacity=0.55)
    spans = spans.encode(x=alt.X("low:Q", scale=scale), x2="high:Q")
    ends = base.mark_tick(color=TONES["blue"], thickness=3, size=20).encode(x="low:Q")
    places = claim.mark_point(filled=True, size=90, opacity=1).encode(y=alt.Y("claim:N", sort=names, title=None))
    layers = claim.mark_rule(strokeWidth=1.5).encode(strokeDash=dashes), spans, ends, places
    note = "Intervals at the confidence of the audit; a tick is a lower end, which must lie left of every claim."
    return Panel("Measured and claimed μ", note, alt.layer(*layers).properties(height=26 * len(names)), "wide")


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
    scale = alt.Scale(domain=[*_SECRETS], range=[*_SECRETS.values()])
    colour = alt.Color("arm:N", legend=_LEGEND, scale=scale)
    x, y = (
        alt.X("score:Q", title="score, in standard deviations", scale=alt.Scale(nice=False)),
        alt.Y("density:Q", title=None, stack=None),
    )
    bars = data(measured).mark_area(opacity=0.35, interpolate="step").encode(x=x, y=y, color=colour)
    lines = data(predicted).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour)
    note = f"The best linear score over {found['values']:,} coordinates; lines: as the exact μ predicts."
    pairs = zip(measured, predicted, strict=True)
    rows = [[f"{a['score']:.3g}", a["arm"], f"{a['density']:.4g}", f"{b['density']:.4g}"] for a, b in pairs]
    table = Table(["score", "secret", "density measured", "density predicted"], rows, words=["secret"])
    chart = alt.layer(bars, lines).properties(height=_HEIGHT)
    return Panel("What the attacker sees", note, chart, table=table)


def _trade_off(found: Mapping[str, Any]) -> Panel:
    """True against false positives: the best that each claim allows, and what the score reached."""
    false = np.logspace(-4, 0, _POINTS, endpoint=False)
    curves = {"budget": found["budget"]["mu"], "odometer, at worst": found["worst"]["mu"]}
    curves |= {"exact": found["exact"]["mu"]}
    lines: list[dict[str, Any]] = [
        {"false": float(x), "true": float(ndtr(ndtri(x) + mu)), "curve": name}
        for name, mu in curves.items()
        for x in false
    ]
    above = [_above(found["scores"][key]) for key in ("secret_0", "secret_1")]
    points = [{"false": x, "true": y} for x, y in zip(*above, strict=True) if 1e-4 <= x < 1]
    scale = alt.Scale(domain=[*curves], range=[_COLOURS[name] for name in curves])
    x = alt.X("false:Q", title="false-positive rate", scale=within(1e-4, 1, type="log"))
    x = x.axis(values=[1e-4, 1e-3, 1e-2, 0.1, 1], format="~%")
    y = alt.Y("true:Q", title=None, scale=within(0, 1), axis=alt.Axis(format="%"))
    curve = data(lines).mark_line(strokeWidth=2)
    curve = curve.encode(x=x, y=y, color=alt.Color("curve:N", legend=_LEGEND, scale=scale))
    dots = data(points).mark_point(filled=True, size=28, color=SOFT, opacity=0.8).encode(x=x, y=y)
    note = "True-positive rate of the best attack; dots: measured, lines: the most that each μ allows."
    rows = [["measured", f"{100 * row['false']:.3g} %", f"{100 * row['true']:.3g} %"] for row in points]
    rows += [
        [row["curve"], f"{100 * row['false']:.3g} %", f"{100 * row['true']:.3g} %"]
        for place, row in enumerate(lines)
        if place % _EVERY == 0
    ]
    table = Table(["attack", "false positives", "true positives"], rows, note="Of each line every fourth point.")
    chart = alt.layer(curve, dots).properties(height=_HEIGHT)
    return Panel("The attacker's trade-off", note, chart, table=table)


def _above(counts: Sequence[float]) -> list[float]:
    """The share of scores above each inner edge."""
    total = max(sum(counts), 1)
    return [share / total for share in itertools.accumulate(reversed(counts))]
