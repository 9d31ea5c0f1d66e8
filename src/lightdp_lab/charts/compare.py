"""Compared schemes as one sheet: a row of dots for each figure, and round time against N and against d."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from lightdp.report import LOOK, Chart
from lightdp_lab.compare import full_title, speeds
from lightdp_lab.registry import ALL

_OTHER = "#475569"
_ROW = 23
_WIDTH = 158
_LABEL = 13  # pixels between two names at the ends of lines
_LINES = 400
_HEIGHT = 330
_OURS = "LightDP"
_BOLD = {"condition": {"test": f"indexof(datum.value, '{_OURS}') === 0", "value": "bold"}, "value": "normal"}
_COLOUR, _STROKE = (channel("colour:N", scale=None, legend=None) for channel in (alt.Color, alt.Stroke))
_FILL = alt.Fill("fill:N", scale=None, legend=None)
# Title and subtitle of each row of dots.
_PANELS = {
    "completed": ("Rounds that came off", "%"),
    "noise": ("Noise in the mean", "variance"),
    "bytes": ("A client's traffic", "a round"),
    "client": ("A client's work", "a round"),
    "server": ("The server's work", "a round"),
    "modelled": ("A round takes", "modelled"),
}
_UNITS: dict[str, tuple[tuple[float, str], ...]] = {"bytes": ((1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1, " B"))}
_UNITS |= dict.fromkeys(("client", "server", "modelled"), ((1, " s"), (1e-3, " ms"), (1e-6, " µs")))


def compare_chart(record: Mapping[str, Any]) -> Chart:
    """The sheet of a record of `lightdp_lab.compare`; hollow dots and dashed lines were not measured."""
    setting = record["setting"]
    rows = [row for row in record["rows"] if row["impossible"] is None]
    sheet = [alt.hconcat(*(_dots(rows, key) for key in _PANELS), spacing=18)]
    both = (
        _lines(record, "clients", f"Round time against N, at d = {setting['dimension']:,}", "clients N"),
        _lines(record, "dimension", f"Round time against d, at N = {setting['clients']:,}", "dimension d"),
    )
    if lines := [panel for panel in both if panel is not None]:
        sheet.append(alt.hconcat(*lines, spacing=60))
    title = alt.Title(
        "Every scheme at the same true privacy, on the same links", subtitle=_words(record), anchor="start",
        fontSize=18, subtitleColor="#526077", subtitleFontSize=12, offset=18,
    )  # fmt: skip
    whole = alt.vconcat(*sheet, spacing=40).resolve_scale(color="independent", x="independent", y="independent")
    return whole.properties(title=title).configure(**LOOK, padding=22, background="white")


def _words(record: Mapping[str, Any]) -> list[str]:
    at = record["setting"]
    who = f"{at['clients']:,} clients, of which {at['colluders']:,} may collude and {at['stragglers']:,} may be missing"
    privacy = f"ε = {at['epsilon']:g} at δ = {at['delta']:g} over {at['rounds']:,} rounds"
    faults = f"each link fails with probability {at['failure']:g}, each client drops out with {at['dropout']:g}"
    lines = [f"{who}; {at['dimension']:,} values; {privacy}", f"{faults}; {speeds(at)}"]
    if not all(one.get("measured", True) for one in (*record["rows"], *record["scaling"])):
        lines.append("hollow dots and dashed lines: extrapolated from smaller sizes, not measured")
    return lines


def _colour(scheme: str) -> str:
    return ALL[scheme].colour if scheme in ALL else _OTHER


def _dots(rows: Sequence[Mapping[str, Any]], key: str) -> alt.LayerChart:
    """A dot for each scheme at its figure, on a logarithmic scale except for shares."""
    shares, (title, under) = key == "completed", _PANELS[key]
    values = [_value(row, key) for row in rows]
    positive = [value for value in values if value > 0] or [1.0]
    low, high = (0.0, 100.0) if shares else (min(positive) / 1.6, max(positive) * 1.1)
    shown = []
    for row, value in zip(rows, values, strict=True):
        words = f"{row['completed']} of {row['rounds']}" if shares else _short(value, key) if value > 0 else "none"
        hollow, colour = key not in ("completed", "noise") and not row["measured"], _colour(row["scheme"])
        look = {"words": f"~{words}", "fill": "white"} if hollow else {"words": words, "fill": colour}
        shown.append({"name": full_title(row), "colour": colour, "value": max(value, low), "low": low} | look)
    axis = alt.Axis(
        labels=shares, minExtent=0, labelFontSize=12, labelLimit=280, labelFontWeight=_BOLD, labelColor="#1e293b"
    )
    y = alt.Y("name:N", sort=[full_title(row) for row in rows], title=None, axis=axis)
    scale = alt.Scale(domain=[low, high], nice=False, type="linear" if shares else "log")
    x = alt.X("value:Q", scale=scale, axis=None)
    base = alt.Chart(alt.Data(values=shown)).encode(y=y)
    band = base.transform_filter(f"indexof(datum.name, '{_OURS}') === 0").mark_rect(color="#eff6ff")
    rule = base.mark_rule(strokeWidth=2, opacity=0.35).encode(x=x, x2="low:Q", color=_COLOUR)
    tips = [alt.Tooltip("name:N", title="scheme"), alt.Tooltip("words:N", title=title)]
    dot = base.mark_point(size=75, opacity=1, filled=False, strokeWidth=2)
    dot = dot.encode(x=x, tooltip=tips, stroke=_STROKE, fill=_FILL)
    words = base.mark_text(align="left", dx=9, fontSize=10.5, color="#475569").encode(x=x, text="words:N")
    head = alt.Title(title, subtitle=under, anchor="start", fontSize=13, subtitleColor="#64748b", offset=8)
    return alt.layer(band, rule, dot, words).properties(width=_WIDTH, height=_ROW * len(rows), title=head)


def _value(row: Mapping[str, Any], key: str) -> float:
    if key == "completed":
        return 100 * row["completed"] / row["rounds"]
    return row["up"] + row["down"] + row["peer"] if key == "bytes" else row[key]


def _short(value: float, key: str) -> str:
    """Three digits and a unit that keeps them short."""
    for size, suffix in _UNITS.get(key, ()):
        if value >= size:
            return f"{value / size:,.0f}{suffix}" if value >= 100 * size else f"{value / size:.3g}{suffix}"
    return f"{value:.2g}"


def _lines(record: Mapping[str, Any], key: str, title: str, axis: str) -> alt.LayerChart | None:
    """Round time along `key`, dashed where it was not measured; None if there are not two sizes."""
    other = "dimension" if key == "clients" else "clients"
    titles = {row["scheme"]: row["title"] for row in record["rows"]}
    lines: dict[str, list[dict[str, Any]]] = {scheme: [] for scheme in titles}
    for entry in sorted(record["scaling"], key=lambda entry: entry[key]):
        scheme, measured = entry["scheme"], entry["measured"]
        if entry[other] == record["setting"][other] and scheme in titles:
            colour, name = _colour(scheme), titles[scheme]
            point = {"x": entry[key], "y": entry["modelled"], "name": name, "measured": measured, "colour": colour}
            look = {"fill": colour if measured else "white", "width": 3.2 if name.startswith(_OURS) else 1.8}
            lines[scheme].append(point | look)
    points = [point for line in lines.values() for point in line]
    sizes = sorted({point["x"] for point in points})
    if len(sizes) < 2:
        return None
    low, high = min(point["y"] for point in points) / 1.3, max(point["y"] for point in points) * 1.3
    x = alt.X("x:Q", title=axis, scale=alt.Scale(type="log", domain=[sizes[0], sizes[-1]], nice=False))
    x = x.axis(values=sizes, format="~s" if key == "dimension" else "d", grid=False)
    y = alt.Y("y:Q", title="seconds, modelled", scale=alt.Scale(type="log", domain=[low, high], nice=False))
    decades = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    y = y.axis(format=",~g", values=[10.0**power for power in decades])
    width = alt.StrokeWidth("width:Q", scale=None, legend=None)
    layers = []
    for measured, dash in ((True, [1, 0]), (False, [4, 4])):
        pieces = [
            point | {"piece": f"{scheme}{number}"}
            for scheme, line in lines.items()
            for number, pair in enumerate(itertools.pairwise(line))
            if pair[1]["measured"] == measured
            for point in pair
        ]
        if pieces:
            drawn = alt.Chart(alt.Data(values=pieces)).mark_line(strokeDash=dash, clip=True)
            layers.append(drawn.encode(x=x, y=y, color=_COLOUR, detail="piece:N", strokeWidth=width))
    tips = [alt.Tooltip("name:N", title="scheme"), "x:Q", alt.Tooltip("y:Q", title="seconds", format=".3g")]
    dots = alt.Chart(alt.Data(values=points)).mark_point(size=45, opacity=1, filled=False, strokeWidth=1.8)
    layers.append(dots.encode(x=x, y=y, tooltip=tips, stroke=_STROKE, fill=_FILL))
    layers += _names([line[-1] for line in lines.values() if line], low, high)
    head = alt.Title(title, anchor="start", fontSize=14, offset=10)
    return alt.layer(*layers).properties(width=_LINES, height=_HEIGHT, title=head)


def _names(ends: list[dict[str, Any]], low: float, high: float) -> list[alt.Chart]:
    """The name of each line beside its last point, moved apart where they would overlap."""
    ends = sorted(ends, key=lambda point: -point["y"])
    heights = _apart([_HEIGHT * math.log(high / point["y"]) / math.log(high / low) for point in ends])
    result = []
    for point, height in zip(ends, heights, strict=True):
        weight = "bold" if point["name"].startswith(_OURS) else "normal"
        text = alt.Chart(alt.Data(values=[point])).mark_text(align="left", fontSize=11, fontWeight=weight)
        place = {"x": alt.value(_LINES + 12), "y": alt.value(height)}
        result.append(text.encode(**place, text=alt.value(point["name"]), color=alt.value(point["colour"])))
    return result


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
