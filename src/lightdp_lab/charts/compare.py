"""Compared schemes as one sheet: a row of dots for each figure, and round time against N and against d."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import altair as alt

from lightdp.report import LOOK, Chart
from lightdp_lab.registry import ALL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OTHER = "#475569"
_ROW = 23
_WIDTH = 158
_LABEL = 13  # pixels between two names at the ends of lines
_LINES = 400
_HEIGHT = 330
_OURS = "LightDP"
_BOLD = {"condition": {"test": f"indexof(datum.value, '{_OURS}') === 0", "value": "bold"}, "value": "normal"}
_HOLLOW = {
    "stroke": alt.Stroke("colour:N", scale=None, legend=None),
    "fill": alt.Fill("fill:N", scale=None, legend=None),
}


def compare_chart(record: Mapping[str, Any]) -> Chart:
    """The sheet of a record of `lightdp_lab.compare`; hollow dots and dashed lines were not measured."""
    setting = record["setting"]
    rows = [_row(row) for row in record["rows"] if row["impossible"] is None]
    panels = [
        _dots(rows, "completed", "Rounds that came off", "%", first=True),
        _dots(rows, "noise", "Noise in the mean", "variance"),
        _dots(rows, "bytes", "A client's traffic", "bytes"),
        _dots(rows, "client", "A client's work", "seconds"),
        _dots(rows, "server", "The server's work", "seconds"),
        _dots(rows, "modelled", "A round takes", "seconds"),
    ]
    sheet = [alt.hconcat(*panels, spacing=18)]
    both = (
        _lines(record, "clients", f"Round time against N, at d = {setting['dimension']:,}", "clients N"),
        _lines(record, "dimension", f"Round time against d, at N = {setting['clients']:,}", "dimension d"),
    )
    lines = [panel for panel in both if panel is not None]
    if lines:
        sheet.append(alt.hconcat(*lines, spacing=60))
    title = alt.Title(
        "Every scheme at the same true privacy, on the same links", subtitle=_words(record), anchor="start",
        fontSize=18, subtitleColor="#526077", subtitleFontSize=12, offset=18,
    )  # fmt: skip
    own = {"color": "independent", "x": "independent", "y": "independent"}
    return (
        alt.vconcat(*sheet, spacing=40)
        .resolve_scale(**own)
        .properties(title=title)
        .configure(**LOOK, padding=22, background="white")
    )


def _words(record: Mapping[str, Any]) -> list[str]:
    at = record["setting"]
    who = f"{at['clients']:,} clients, of which {at['colluders']:,} may collude and {at['stragglers']:,} may be missing"
    privacy = f"ε = {at['epsilon']:g} at δ = {at['delta']:g} over {at['rounds']:,} rounds"
    faults = f"each link fails with probability {at['failure']:g}, each client drops out with {at['dropout']:g}"
    speed = f"{at['uplink'] / 1e6:g} Mbit/s up, {at['downlink'] / 1e6:g} down, {at['latency']:g} s one way"
    lines = [f"{who}; {at['dimension']:,} values; {privacy}", f"{faults}; {speed}"]
    measured = all(row.get("measured", True) for row in record["rows"]) and all(
        entry["measured"] for entry in record.get("scaling", ())
    )
    return (
        lines if measured else [*lines, "hollow dots and dashed lines: extrapolated from smaller sizes, not measured"]
    )


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    name = row["title"] + ("" if row["links"] == "any" else f", {row['links']}")
    return {
        "name": name,
        "colour": _colour(row["scheme"]),
        "measured": row["measured"],
        "completed": 100 * row["completed"] / row["rounds"],
        "bytes": row["up"] + row["down"] + row["peer"],
        "label_completed": f"{row['completed']} of {row['rounds']}",
        **{key: row[key] for key in ("noise", "client", "server", "modelled")},
    }


def _colour(scheme: str) -> str:
    return ALL[scheme].colour if scheme in ALL else _OTHER


def _dots(rows: Sequence[Mapping[str, Any]], key: str, title: str, unit: str, *, first: bool = False) -> alt.LayerChart:
    """A dot for each scheme at its figure, on a logarithmic scale except for shares."""
    positive = [row[key] for row in rows if row[key] > 0] or [1.0]
    low, high = min(positive) / 1.6, max(positive) * 1.1
    if key == "completed":
        low, high = 0.0, 100.0
    shown = []
    for row in rows:
        value = row[key]
        words = row["label_completed"] if key == "completed" else _short(value, unit) if value > 0 else "none"
        hollow = key not in ("completed", "noise") and not row["measured"]
        place = {"name": row["name"], "colour": row["colour"], "value": max(value, low), "low": low}
        look = {"words": f"~{words}", "fill": "white"} if hollow else {"words": words, "fill": row["colour"]}
        shown.append(place | look)
    kind = alt.Scale(domain=[low, high], nice=False, type="linear" if key == "completed" else "log")
    axis = alt.Axis(
        labels=first, minExtent=0, labelFontSize=12, labelLimit=280, labelFontWeight=_BOLD, labelColor="#1e293b"
    )
    base = alt.Chart(alt.Data(values=shown)).encode(
        y=alt.Y("name:N", sort=[row["name"] for row in rows], title=None, axis=axis)
    )
    x = alt.X("value:Q", scale=kind, axis=None)
    colour = alt.Color("colour:N", scale=None, legend=None)
    rule = base.mark_rule(strokeWidth=2, opacity=0.35).encode(x=x, x2="low:Q", color=colour)
    tips = [alt.Tooltip("name:N", title="scheme"), alt.Tooltip("words:N", title=title)]
    dot = base.mark_point(size=75, opacity=1, filled=False, strokeWidth=2).encode(x=x, tooltip=tips, **_HOLLOW)
    words = base.mark_text(align="left", dx=9, fontSize=10.5, color="#475569").encode(x=x, text="words:N")
    under = {"modelled": "modelled", "completed": unit, "noise": unit}.get(key, "a round")
    head = alt.Title(title, subtitle=under, anchor="start", fontSize=13, subtitleColor="#64748b", offset=8)
    band = base.transform_filter(f"indexof(datum.name, '{_OURS}') === 0").mark_rect(color="#eff6ff")
    return alt.layer(band, rule, dot, words).properties(width=_WIDTH, height=_ROW * len(rows), title=head)


def _short(value: float, unit: str) -> str:
    """Three digits and a unit that keeps them short."""
    steps = {
        "bytes": ((1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1, " B")),
        "seconds": ((1, " s"), (1e-3, " ms"), (1e-6, " µs")),
    }
    for size, suffix in steps.get(unit, ()):
        if value >= size:
            return f"{value / size:,.0f}{suffix}" if value >= 100 * size else f"{value / size:.3g}{suffix}"
    return f"{value:.2g}"


def _lines(record: Mapping[str, Any], key: str, title: str, axis: str) -> alt.LayerChart | None:
    other = "dimension" if key == "clients" else "clients"
    fixed = record["setting"][other]
    titles = {row["scheme"]: row["title"] for row in record["rows"]}
    points = [
        {
            "x": entry[key],
            "y": entry["modelled"],
            "name": titles[entry["scheme"]],
            "scheme": entry["scheme"],
            "colour": _colour(entry["scheme"]),
            "fill": _colour(entry["scheme"]) if entry["measured"] else "white",
            "measured": entry["measured"],
            "width": 3.2 if titles[entry["scheme"]].startswith(_OURS) else 1.8,
        }
        for entry in record.get("scaling", ())
        if entry[other] == fixed and entry["scheme"] in titles
    ]
    if len({point["x"] for point in points}) < 2:
        return None
    low, high = min(point["y"] for point in points) / 1.3, max(point["y"] for point in points) * 1.3
    ends = sorted({point["x"] for point in points})
    x = alt.X("x:Q", title=axis, scale=alt.Scale(type="log", domain=[ends[0], ends[-1]], nice=False))
    x = x.axis(values=ends, format="~s" if key == "dimension" else "d", grid=False)
    y = alt.Y("y:Q", title="seconds, modelled", scale=alt.Scale(type="log", domain=[low, high], nice=False))
    decades = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    y = y.axis(format=",~g", values=[10.0**power for power in decades])
    colour = alt.Color("colour:N", scale=None, legend=None)
    layers = []
    for dashed in (False, True):
        pieces = [
            point | {"piece": f"{scheme}{number}"}
            for scheme in titles
            for number, pair in enumerate(_pairs([point for point in points if point["scheme"] == scheme]))
            if dashed == (not pair[1]["measured"])
            for point in pair
        ]
        if pieces:
            base = alt.Chart(alt.Data(values=pieces))
            line = base.mark_line(strokeDash=[4, 4] if dashed else [1, 0], clip=True)
            width = alt.StrokeWidth("width:Q", scale=None, legend=None)
            layers.append(line.encode(x=x, y=y, color=colour, detail="piece:N", strokeWidth=width))
    base = alt.Chart(alt.Data(values=points))
    tips = [alt.Tooltip("name:N", title="scheme"), "x:Q", alt.Tooltip("y:Q", title="seconds", format=".3g")]
    dots = base.mark_point(size=45, opacity=1, filled=False, strokeWidth=1.8)
    layers.append(dots.encode(x=x, y=y, tooltip=tips, **_HOLLOW))
    layers += _ends(points, low, high)
    head = alt.Title(title, anchor="start", fontSize=14, offset=10)
    return alt.layer(*layers).properties(width=_LINES, height=_HEIGHT, title=head)


def _pairs(points: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    ordered = sorted(points, key=lambda point: point["x"])
    return list(itertools.pairwise(ordered))


def _ends(points: list[dict[str, Any]], low: float, high: float) -> list[alt.Chart]:
    """The name of each line beside its last point, moved apart where they would overlap."""
    last = {point["scheme"]: point for point in sorted(points, key=lambda point: point["x"])}
    span = math.log(high / low)
    placed = sorted(last.values(), key=lambda point: -point["y"])
    heights = [_HEIGHT * math.log(high / point["y"]) / span for point in placed]
    heights = _apart(heights)
    rows = [point | {"at": height} for point, height in zip(placed, heights, strict=True)]
    return [
        alt.Chart(alt.Data(values=[row]))
        .mark_text(align="left", fontSize=11, fontWeight="bold" if row["name"].startswith(_OURS) else "normal")
        .encode(
            x=alt.value(_LINES + 12),
            y=alt.value(row["at"]),
            text=alt.value(row["name"]),
            color=alt.value(row["colour"]),
        )
        for row in rows
    ]


def _apart(heights: list[float]) -> list[float]:
    """Ascending places, each at least a line of text below the one before, as near as that allows to those wanted."""
    groups: list[tuple[float, int]] = []  # of the first name, and how many stand below each other
    for height in heights:
        groups.append((height, 1))
        while len(groups) > 1 and groups[-2][0] + groups[-2][1] * _LABEL > groups[-1][0]:
            (above, many), (below, few) = groups[-2:]
            middle = (many * above + few * (below - many * _LABEL)) / (many + few)
            groups[-2:] = [(middle, many + few)]
    return [start + _LABEL * place for start, count in groups for place in range(count)]
