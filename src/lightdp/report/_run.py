"""The figures of runs side by side, and what to know before they are compared."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from lightdp._validate import rounded_up
from lightdp.schemes import schemes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightdp.report._record import Run

_STOPPED = {None: "at its end", "budget": "at the budget"}
_UNITS = {"paper": "client, assumed"}
LONG = {
    "accuracy": "test accuracy, final model",
    "ε true": "ε true, largest client",
    "noise": "lasting noise std a round",
    "up": "up, client and round",
    "down": "down, client and round",
}


def labels(runs: Sequence[Run]) -> list[str]:
    """A short name for each run, each a different one: its scheme and, where that is not enough, its file."""
    titles = [schemes()[run.scheme].label for run in runs]
    often = Counter(titles)
    named = [
        title if often[title] == 1 else printable(f"{title} · {run.path.stem}")
        for title, run in zip(titles, runs, strict=True)
    ]
    often = Counter(named)
    return [name if often[name] == 1 else f"{name} #{place}" for place, name in enumerate(named, 1)]


def facts(run: Run) -> dict[str, str]:
    """The figures of a run by their headings, in the same order for every run; a dash where there is none."""
    end, private = run.end, run.plan is not None
    return {
        "accuracy": _shown(run.accuracy, lambda x: f"{100 * x:.2f} %"),
        "ε claimed": _shown(run.claimed, lambda x: f"{x:g}") if private else "∞",
        "ε true": _shown(run.epsilon, rounded_up) if private else "∞",
        "δ": _shown(run.delta, lambda x: f"{x:g}"),
        "unit": _shown(run.unit, lambda x: _UNITS.get(x, printable(x))),
        "adjacency": _shown(run.adjacency, printable),
        "noise": _shown(run.noise, lambda x: f"{x:.3g}"),
        "up": _shown(None if end is None else end.bytes_up, _size),
        "down": _shown(None if end is None else end.bytes_down, _size),
        "rounds": f"{len(run.rounds):,}",
        "stopped": "no end recorded" if end is None else _STOPPED[end.stopped],
        "seconds": _shown(None if end is None else end.seconds, lambda x: f"{x:,.1f}"),
    }


def run_table(runs: Sequence[Run]) -> Table:
    """The figures of the runs, a column for each."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for label in labels(runs):
        table.add_column(Text(label), justify="right", overflow="fold")
    figures = [facts(run) for run in runs]
    for name in figures[0] if figures else ():
        warn = ["bold red" if name == "ε true" and run.exceeds else "" for run in runs]
        cells = (Text(row[name], style) for row, style in zip(figures, warn, strict=True))
        table.add_row(LONG.get(name, name), *cells)
    return table


def caveats(runs: Sequence[Run]) -> list[str]:
    """What keeps the runs from being compared, or one of them from being trusted, in plain sentences."""
    named = list(zip(labels(runs), runs, strict=True))
    result = [f"{name}: no privacy is guaranteed to anybody." for name, run in named if run.plan is None]
    result += [
        f"{name} trusts the server, which sees every client's update." for name, run in named if run.scheme == "central"
    ]
    result += [
        f"{name} spent ε = {rounded_up(run.epsilon)}, more than the {run.claimed:g} it claims."
        for name, run in named
        if run.exceeds and run.epsilon is not None
    ]
    result += [
        f"The ε of {name} rests on an assumed sensitivity that no theorem bounds."
        for name, run in named
        if run.unit == "paper"
    ]
    result += [
        f"{name} has no end recorded: it was cut off after round {len(run.rounds):,}, or is still running. "
        "Its figures are the last that were recorded."
        for name, run in named
        if run.end is None
    ]
    private = [run for run in runs if run.plan is not None]
    for what in ("unit", "adjacency", "delta"):
        values = sorted({str(getattr(run, what)) for run in private})
        if len(values) > 1:
            result.append(f"The runs differ in {what} ({', '.join(map(printable, values))}): their ε do not compare.")
    for what in ("data", "model", "clients"):
        values = sorted({str(run.config.get(what)) for run in runs})
        if len(values) > 1:
            result.append(f"The runs differ in {what}: {', '.join(map(printable, values))}.")
    return result


def printable(text: str) -> str:
    """`text` on one line and without characters that steer a terminal or cannot be written."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _shown(value: Any, show: Callable[[Any], str]) -> str:  # noqa: ANN401  whatever `show` takes
    return "–" if value is None else show(value)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"
