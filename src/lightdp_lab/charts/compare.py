"""Compared schemes: a column of dots for each figure, and round time against N and against d."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from lightdp.report import Chart, Panel, Table, decades, heading, line_names, sheet
from lightdp_lab.compare import full_title, speeds
from lightdp_lab.registry import ALL

_OTHER = "#475569"
_ROW = 23
_WIDTH = 158
_LINES = 400
_HEIGHT = 330
_OURS = "LightDP"
_BOLD = {"condition": {"test": f"indexof(datum.value, '{_OURS}') === 0", "value": "bold"}, "value": "normal"}
_COLOUR, _STROKE = (channel("colour:N", scale=None, legend=None) for channel in (alt.Color, alt.Stroke))
_BAND = "rgba(71, 71, 205, 0.08)"
_HOLLOW = "rgba(255, 255, 255, 0)"
_FILL = alt.Fill("fill:N", scale=None, legend=None)
# Title and subtitle of each row of dots.
_PANELS = {
    "completed": ("Completed rounds", "%"),
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
    rows = _possible(record)
    dots = [
        _dots(rows, key, limit=280 if key == "completed" else 0).properties(
            width=_WIDTH, title=heading(*words, size=13)
        )
        for key, words in _PANELS.items()
    ]
    stacked = [alt.hconcat(*dots, spacing=18)]
    if lines := [panel.chart.properties(width=_LINES, title=heading(panel.title, size=14)) for panel in _both(record)]:
        stacked.append(alt.hconcat(*lines, spacing=40))
    whole = alt.vconcat(*stacked, spacing=40).resolve_scale(color="independent", x="independent", y="independent")
    title = heading("Every scheme at the same true privacy, on the same links", *setting_words(record), size=18)
    return sheet(whole.properties(title=title))


def compare_panels(record: Mapping[str, Any]) -> tuple[list[Panel], list[Panel]]:
    """The figures as a panel each, and round time against N and against d where it was measured."""
    rows = _possible(record)
    panels = []
    for key, (title, under) in _PANELS.items():
        table = Table(["scheme", title], [[short_title(row), _text(row, key)[0]] for row in rows])
        panels.append(Panel(title, under, _dots(rows, key, limit=170), table=table))
    return panels, _both(record)


def _possible(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in record["rows"] if row["impossible"] is None]


def _both(record: Mapping[str, Any]) -> list[Panel]:
    setting = record["setting"]
    both = (
        _lines(record, "clients", f"Round time against N, at d = {setting['dimension']:,}", "clients N"),
        _lines(record, "dimension", f"Round time against d, at N = {setting['clients']:,}", "dimension d"),
    )
    return [panel for panel in both if panel is not None]


def setting_words(record: Mapping[str, Any]) -> list[str]:
    """What was asked of all schemes, and what was not measured."""
    at = record["setting"]
    who = f"{at['clients']:,} clients, of which {at['colluders']:,} may collude and {at['stragglers']:,} may be missing"
    privacy = f"ε = {at['epsilon']:g} at δ = {at['delta']:g} over {at['rounds']:,} rounds, for all data of one client"
    faults = f"each link fails with probability {at['failure']:g}, each client drops out with {at['dropout']:g}"
    lines = [f"{who}; {at['dimension']:,} values; {privacy}", f"{faults}; {speeds(at)}"]
    if not all(one.get("measured", True) for one in (*record["rows"], *record["scaling"])):
        lines.append("hollow dots and dashed lines: extrapolated from smaller sizes, not measured")
    return lines


def short_title(row: Mapping[str, Any]) -> str:
    """The short name of a row, with its links where they matter."""
    return full_title({**row, "title": _label(row["scheme"], row["title"])})


def _label(scheme: str, title: str) -> str:
    """The short name of a scheme that we know by this title."""
    return ALL[scheme].label if scheme in ALL and ALL[scheme].title == title else title


def _colour(scheme: str) -> str:
    return ALL[scheme].colour if scheme in ALL else _OTHER


def _dots(rows: Sequence[Mapping[str, Any]], key: str, *, limit: int) -> alt.LayerChart:
    """A dot for each scheme at its figure, on a logarithmic scale except for shares; names of `limit` pixels."""
    shares, title = key == "completed", _PANELS[key][0]
    values = [_value(row, key) for row in rows]
    positive = [value for value in values if value > 0] or [1.0]
    low, high = (0.0, 100.0) if shares else (min(positive) / 1.6, max(positive) * 1.1)
    shown = []
    for row, value in zip(rows, values, strict=True):
        (words, hollow), colour = _text(row, key), _colour(row["scheme"])
        look = {"words": words, "fill": _HOLLOW if hollow else colour}
        shown.append({"name": short_title(row), "colour": colour, "value": max(value, low), "low": low} | look)
    axis = alt.Axis(
        labels=limit > 0,
        minExtent=0,
        labelFontSize=12,
        labelLimit=max(limit, 1),
        labelFontWeight=_BOLD,
        labelColor="#1e293b",
    )
    y = alt.Y("name:N", sort=[short_title(row) for row in rows], title=None, axis=axis)
    scale = alt.Scale(domain=[low, high], nice=False, type="linear" if shares else "log")
    x = alt.X("value:Q", scale=scale, axis=None)
    base = alt.Chart(alt.Data(values=shown)).encode(y=y)
    band = base.transform_filter(f"indexof(datum.name, '{_OURS}') === 0").mark_rect(color=_BAND)
    rule = base.mark_rule(strokeWidth=2, opacity=0.35).encode(x=x, x2="low:Q", color=_COLOUR)
    tips = [alt.Tooltip("name:N", title="scheme"), alt.Tooltip("words:N", title=title)]
    dot = base.mark_point(size=75, opacity=1, filled=False, strokeWidth=2)
    dot = dot.encode(x=x, tooltip=tips, stroke=_STROKE, fill=_FILL)
    words = base.mark_text(align="left", dx=9, fontSize=10.5, color="#526077").encode(x=x, text="words:N")
    return alt.layer(band, rule, dot, words).properties(height=_ROW * len(rows))


def _text(row: Mapping[str, Any], key: str) -> tuple[str, bool]:
    """A figure in words, and whether it was extrapolated."""
    value = _value(row, key)
    if key == "completed":
        return f"{row['completed']} of {row['rounds']}", False
    words, hollow = _short(value, key) if value > 0 else "none", key != "noise" and not row["measured"]
    return (f"~{words}" if hollow else words), hollow


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


def _lines(record: Mapping[str, Any], key: str, title: str, axis: str) -> Panel | None:
    """Round time along `key`, dashed where it was not measured; None if there are not two sizes."""
    other = "dimension" if key == "clients" else "clients"
    titles = {row["scheme"]: row["title"] for row in record["rows"]}
    lines: dict[str, list[dict[str, Any]]] = {scheme: [] for scheme in titles}
    for entry in sorted(record["scaling"], key=lambda entry: entry[key]):
        scheme, measured = entry["scheme"], entry["measured"]
        if entry[other] == record["setting"][other] and scheme in titles:
            colour, name = _colour(scheme), titles[scheme]
            point = {"x": entry[key], "y": entry["modelled"], "name": name, "measured": measured, "colour": colour}
            look = {"fill": colour if measured else _HOLLOW, "width": 3.2 if name.startswith(_OURS) else 1.8}
            lines[scheme].append(point | look)
    points = [point for line in lines.values() for point in line]
    sizes = sorted({point["x"] for point in points})
    if len(sizes) < 2:
        return None
    low, high = min(point["y"] for point in points) / 1.3, max(point["y"] for point in points) * 1.3
    x = alt.X("x:Q", title=axis, scale=alt.Scale(type="log", domain=[sizes[0], sizes[-1]], nice=False))
    x = x.axis(values=sizes, format="~s" if key == "dimension" else "d", grid=False)
    y = alt.Y("y:Q", title="seconds, modelled", scale=alt.Scale(type="log", domain=[low, high], nice=False))
    y = y.axis(format=",~g", values=decades(low, high))
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
    ends = [
        {"name": _label(scheme, line[-1]["name"]), "value": line[-1]["y"], "colour": line[-1]["colour"],
         "bold": line[-1]["name"].startswith(_OURS)}
        for scheme, line in lines.items() if line
    ]  # fmt: skip
    layers.append(line_names(ends, (low, high), _HEIGHT, log=True))
    cells = [[name, *(_at(lines[scheme], size) for size in sizes)] for scheme, name in titles.items() if lines[scheme]]
    letter = "N" if key == "clients" else "d"
    table = Table(["scheme", *(f"{letter} = {size:,}" for size in sizes)], cells, note="Seconds; ~: not measured.")
    chart = alt.layer(*layers).properties(height=_HEIGHT)
    return Panel(title, "Seconds of a round on these links, modelled; dashed: not measured.", chart, table=table)


def _at(line: Sequence[Mapping[str, Any]], size: float) -> str:
    """The seconds of a scheme at one size."""
    return next((f"{'' if p['measured'] else '~'}{p['y']:.3g}" for p in line if p["x"] == size), "–")
