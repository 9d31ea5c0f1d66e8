"""What pages are made of: cards, panels with their numbers, tables and sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightdp.report._chart import alt, within
from lightdp.runlog import RunLog

MOST, _FEWEST = 300, 20  # points of all lines of a panel, and at least of each


@dataclass(frozen=True)
class Table:
    """Rows under headings, as text; the first column names the row.

    Attributes:
        head: the headings.
        rows: of as many cells each; a cell that begins with "!" is shown as a warning, without the mark.
        words: headings of columns of words, which are aligned to the left.
        title: above it, if any.
        note: below it, if any.
        dense: whether it is a long list of settings, set close.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()
    title: str = ""
    note: str = ""
    dense: bool = False


@dataclass(frozen=True)
class Panel:
    """One chart with its heading, what to know about it, and its numbers as a table.

    A wide one has a row for itself, small ones share.
    """

    title: str
    note: str
    chart: alt.Chart | alt.LayerChart
    size: Literal["small", "half", "wide"] = "half"
    table: Table | None = None


@dataclass(frozen=True)
class Card:
    """One of the few numbers that matter: what it is, the number, and a few words."""

    head: str
    figure: str
    note: str


@dataclass(frozen=True)
class Section:
    """A part of a page: paragraphs, then charts, then tables."""

    title: str
    words: Sequence[str] = ()
    panels: Sequence[Panel] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Page:
    """Everything on a page but its frame.

    Attributes:
        kind: "plan", "runs", "audit", "compare" or "results".
        title: one line.
        lead: one sentence below it.
        cards: the few numbers that matter.
        sections: the rest.
        caveats: what to know first, in sentences.
        caveat: the heading above them.
        docs: the page of the documentation that explains it, by its title.
    """

    kind: str
    title: str
    lead: str
    cards: Sequence[Card]
    sections: Sequence[Section]
    caveats: Sequence[str] = ()
    caveat: str = "Before you rely on it"
    docs: str = ""


def crossed(
    rows: Sequence[Mapping[str, Any]], down: tuple[str, str], across: str, value: str, show: Callable[[Any], str]
) -> Table:
    """The rows of a chart as a table: a line for each value of one field, a column for each of another.

    >>> rows = [{"round": 1, "run": "a", "value": 0.5}, {"round": 1, "run": "b", "value": 0.25}]
    >>> table = crossed(rows, ("round", "round"), "run", "value", str)
    >>> table.head, table.rows
    (['round', 'a', 'b'], [['1', '0.5', '0.25']])

    Args:
        rows: of the chart.
        down: the field of the lines, and its heading.
        across: the field of the columns.
        value: the field of the cells.
        show: a value as text.
    """
    name, head = down
    columns = [*dict.fromkeys(str(row[across]) for row in rows)]
    cells = {(row[name], str(row[across])): show(row[value]) for row in rows}
    lines = sorted({row[name] for row in rows})
    return Table(
        [head, *columns], [[f"{line:g}", *(cells.get((line, column), "–") for column in columns)] for line in lines]
    )


def rounds_axis(name: str, logs: Sequence[RunLog]) -> alt.X:
    """The same axis in every panel, so that a run that ended early is seen to."""
    last = max(1, *(len(log.rounds) for log in logs))
    ticks = {"values": list(range(1, last + 1))} if last <= 10 else {"tickCount": 6}
    return alt.X(f"{name}:Q", title="round", axis=alt.Axis(grid=False, **ticks), scale=within(0.5, last + 0.5))


def few(rows: Sequence[Sequence[Mapping[str, Any]]], among: int | None = None) -> list[dict[str, Any]]:
    """The rows of all lines, of a long one every second, third, ... and the last, so that a page stays small.

    >>> [row["round"] for row in few([[{"round": number} for number in range(1, 1001)]])][-2:]
    [996, 1000]

    Args:
        rows: of each line, in their order.
        among: how many lines share the page's room; those given if None.
    """
    most = max(_FEWEST, MOST // (len(rows) if among is None else among))
    return [dict(row) for line in rows for row in [*reversed(line[:: -max(1, -(-len(line) // most))])]]
