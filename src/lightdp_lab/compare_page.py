"""The page of `lightdp compare`: every scheme at the same privacy, in the frame of all pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightdp._validate import rounded_up
from lightdp.report import Card, Page, Section, Table, save_page
from lightdp_lab.charts.compare import compare_chart, compare_panels, setting_words, short_title
from lightdp_lab.compare import full_title
from lightdp_lab.compare_words import broke, exceeds, figure, mu_of, notes
from lightdp_lab.registry import ALL

_COSTS = {
    "up, kB": ("up", 1e3), "down, kB": ("down", 1e3), "peer, kB": ("peer", 1e3),
    "client, ms": ("client", 1e-3), "server, ms": ("server", 1e-3), "round, s": ("modelled", 1.0),
}  # fmt: skip

_AMONG = "least among schemes that hide updates from the server, keep ε and completed every round"
_SEEN = {
    "none": "the server sees every update, and no noise protects it",
    "central": "the server sees every update; noise protects against those who see the models alone",
    "encryption": "all clients share one key, so one client that helps the server lets it read every update",
}  # by the family of a scheme that is not private


def save_compare(record: Mapping[str, Any], path: Path, command: str | None = None) -> None:
    """Write a record of `lightdp_lab.compare` in the format of the suffix of `path`: .html is a page.

    Args:
        record: what `lightdp compare --json` prints.
        path: the file; .png and .svg are the charts of the page on one sheet.
        command: the command line that makes the page, which is shown on it.

    Raises:
        ArgumentError: the suffix is another one, or the folder refuses the file.
    """
    save_page(lambda: compare_page(record), path, command, "plot", chart=lambda: compare_chart(record))


def compare_page(record: Mapping[str, Any]) -> Page:
    """What is on the page."""
    figures, times = compare_panels(record)
    lead, *rest = setting_words(record)
    sections = [
        Section("Figure by figure", rest, figures, [_table(record)]),
        Section("What to know", notes(record)),
    ]
    if times:
        sections.insert(1, Section("How a round grows", panels=times))
    return Page(
        kind="compare",
        title="Every scheme at the same true privacy",
        lead=f"{lead}.",
        cards=_cards(record),
        caveats=_caveats(record),
        sections=sections,
        docs="Every scheme, by numbers",
    )


def _cards(record: Mapping[str, Any]) -> list[Card]:
    """The least of a few figures among schemes that keep the asked privacy from the server, and who has it."""
    at = record["setting"]
    able = [row for row in record["rows"] if row["impossible"] is None]
    every = [row for row in able if row["completed"] == row["rounds"]]
    kept = f"of {len(able)} schemes and links, with each link failing with probability {at['failure']:g}"
    cards = [Card("Completed every round", str(len(every)), kept)]
    trusted = [row for row in every if row["private"] and not exceeds(row, at) and row["epsilon"] is not None]
    shown = {"Least noise": ("noise", 1.0, "variance in the mean"), "Least work": ("client", 1e-3, "ms of a client")}
    shown |= {"Fastest round": ("modelled", 1.0, "s, modelled")}
    for head, (key, unit, words) in shown.items() if trusted else ():
        best = min(trusted, key=lambda row: row[key])
        cards.append(Card(head, figure(best[key] / unit, _mark(best)), f"{words}: {short_title(best)}; {_AMONG}"))
    return cards


def _caveats(record: Mapping[str, Any]) -> list[str]:
    """Schemes that miss the asked privacy, or rest on trust."""
    at = record["setting"]
    able = [row for row in record["rows"] if row["impossible"] is None]
    missed = [
        f"{short_title(row)} claims ε = {at['epsilon']:g}; its true ε is {rounded_up(row['epsilon'], 2)} "
        f"(μ = {mu_of(row['epsilon'], at)}). Its noise is "
        f"shown scaled to a true ε = {at['epsilon']:g}."
        for row in able
        if exceeds(row, at)
    ]
    return missed + [f"{short_title(row)}: {_seen(row)}." for row in able if not row["private"]]


def _seen(row: Mapping[str, Any]) -> str:
    """What the server learns from a scheme that does not hide updates from it."""
    family = ALL[row["scheme"]].family if row["scheme"] in ALL else ""
    return _SEEN.get(family, f"it does not always hide updates from the server; what breaks it: {row['broken_by']}")


def _table(record: Mapping[str, Any]) -> Table:
    """As `lightdp compare` prints it."""
    head = ["scheme", "done", "noise", "trips", *_COSTS, "what broke it"]
    rows = []
    for row in record["rows"]:
        if row["impossible"] is not None:
            rows.append([full_title(row), "–", *[""] * (len(head) - 3), f"impossible: {row['impossible']}"])
            continue
        done = f"{'' if row['completed'] == row['rounds'] else '!'}{row['completed']}/{row['rounds']}"
        costs = (figure(row[key] / unit, _mark(row)) for key, unit in _COSTS.values())
        rows.append([full_title(row), done, f"{row['noise']:.3g}", f"{row['trips']:g}", *costs, broke(row) or "–"])
    return Table(head, rows, words=head[-1:], title="All figures")


def _mark(row: Mapping[str, Any]) -> str:
    return "" if row["measured"] else "~"
