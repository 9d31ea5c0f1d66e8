"""The page of an audit of a run's log: what the log says beside what its rounds give. Made of its dict alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightdp._validate import counted, rounded_up
from lightdp.report._chart import FAINT, TONES, alt, data, line_names, within
from lightdp.report._panel import Card, Page, Panel, Section, Table
from lightdp.schemes import schemes

_CARDS = {
    "budget": ("Budget", "what was asked for"),
    "logged": ("Log", "what the log says"),
    "recomputed": ("Recomputed", "from its rounds, the client that spent most"),
    "exact": ("Exact", "of what was sent, for the worst colluders"),
}
_VERDICTS = {"holds": "it holds", "does not hold": "it does not hold"}
_COLOURS = {"counted": TONES["orange"], "exact": TONES["blue"]}
_MOST = 200  # clients on the page, those that spent most
_HEIGHT = 240
_FOUND = "Found: the share of those in the data that the best attack finds if it wrongly accuses 1 % of the others."


def log_page(found: Mapping[str, Any]) -> Page:
    """What is on the page."""
    verdict = found["verdict"]
    sections = [
        Section("Said and recomputed", [f"{verdict[0].upper()}{verdict[1:]}."], tables=_figures(found)),
    ]
    if clients := _spent_most(found):
        sections.append(Section("Client by client", panels=log_panels(found), tables=[_clients(found, clients)]))
    if found.get("notes"):
        sections.append(Section("What was not checked, and what to know", found["notes"]))
    return Page(
        kind="audit",
        title=f"Audit of a log: {_VERDICTS.get(head := verdict.partition(':')[0], head)}",
        lead=_lead(found),
        cards=[
            Card(head, f"ε = {rounded_up(found[key]['epsilon'])}", f"{words}, μ = {rounded_up(found[key]['mu'])}")
            for key, (head, words) in _CARDS.items()
            if found.get(key) is not None
        ],
        caveats=found["problems"],
        caveat="What does not hold",
        sections=sections,
        docs="How to audit a plan",
    )


def log_panels(found: Mapping[str, Any]) -> list[Panel]:
    """μ of each client beside the budget; nothing where no client has one."""
    clients = _spent_most(found)
    if not clients:
        return []
    rows = [
        {"place": place, "client": row["name"], "mu": row[key], "kind": kind}
        for kind, key in (("counted", "mu"), ("exact", "mu_exact"))
        for place, row in enumerate(clients, 1)
        if row[key] is not None
    ]
    budget = found["budget"]["mu"] if found["budget"] is not None else None
    top = 1.05 * max(*(row["mu"] for row in rows), budget or 0.0, 1e-9)
    kinds = [kind for kind in _COLOURS if any(row["kind"] == kind for row in rows)]
    scale = alt.Scale(domain=kinds, range=[_COLOURS[kind] for kind in kinds])
    points = data(rows).mark_point(filled=True, size=45, opacity=0.9).encode(
        x=alt.X(
            "place:Q", title="clients, the one that spent most first", scale=within(0.5, len(clients) + 0.5),
            axis=alt.Axis(grid=False, tickMinStep=1, tickCount=6),
        ),
        y=alt.Y("mu:Q", title=None, scale=within(0, top)),
        color=alt.Color("kind:N", scale=scale, legend=None),
        tooltip=["client:N", "kind:N", alt.Tooltip("mu:Q", format=".4f")],
    )  # fmt: skip
    last = {row["kind"]: row["mu"] for row in rows}
    ends = [{"name": kind, "value": last[kind], "colour": _COLOURS[kind]} for kind in kinds]
    layers = [points]
    if budget is not None:
        rule = data([{"mu": budget}]).mark_rule(color=FAINT, strokeDash=[6, 4]).encode(y="mu:Q")
        ends.append({"name": "budget", "value": budget, "colour": FAINT})
        layers.insert(0, rule)
    layers.append(line_names(ends, (0, top), _HEIGHT))
    note = "μ of each client over the whole log, as the odometer counts it"
    note += ", and exactly, from the covariance of all uploads." if "exact" in kinds else "."
    return [Panel("What each client spent", note, alt.layer(*layers).properties(height=_HEIGHT), "wide")]


def _spent_most(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return sorted(found.get("clients", ()), key=lambda row: -row["mu"])[:_MOST]


def _lead(found: Mapping[str, Any]) -> str:
    """The log's name and, unless its lines contradict each other, what was run."""
    if "scheme" not in found:
        return str(found["log"])
    return f"{found['log']}: {schemes()[found['scheme']].title}, {counted(found['rounds'], 'round')}"


def _figures(found: Mapping[str, Any]) -> list[Table]:
    rows = [
        [row["name"], rounded_up(row["mu"]), rounded_up(row["epsilon"]), f"{rounded_up(100 * row['found'], 1)} %"]
        for row in found.get("figures", ())
    ]
    if not rows:
        return []
    head = ["", "μ" if found["gdp"] else "μ at this δ", f"ε at δ = {found['delta']:g}", "found"]
    return [Table(head, rows, note=_FOUND)]


def _clients(found: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> Table:
    exact = clients[0]["mu_exact"] is not None
    rows = [
        [row["name"], *(f"{row[key]:,}" for key in ("used", "late", "void"))]
        + [rounded_up(row[key]) for key in ("mu", "epsilon", *(["mu_exact"] if exact else []))]
        for row in clients
    ]
    left = len(found["clients"]) - len(clients)
    more = f"And {left:,} more, which spent less." if left else ""
    return Table(["client", "used", "late", "void", "μ", "ε", *(["μ exact"] if exact else [])], rows, note=more)
