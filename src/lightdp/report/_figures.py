"""The figures of runs side by side, and what to know before they are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

from lightdp._validate import counted, rounded_up
from lightdp.runlog import RunLog
from lightdp.schemes import schemes

_STOPPED = {
    None: "at its end",
    "budget": "at the budget",
    "members": "too few members",
    "void": "after rounds with too few uploads",
    "refused": "when every client refused",
}
_UNITS = {"record": "one record", "person": "one person", "client": "one client", "paper": "one client, assumed"}
_MOST_NAMES = 12  # clients whose figures are shown one by one
_MOST_RUNS = 4  # side by side in a terminal of 100 columns, without folding numbers
ONE_LATE = "entered the model one round late"
LONG = {
    "accuracy": "test accuracy, final model",
    "accuracy by client": "test accuracy by client: least / median / largest",
    "ε true": "ε true, largest client",
    "μ": "μ, largest client",
    "noise": "lasting noise std a round",
    "up": "up, client and round",
    "down": "down, client and round",
    "rosters": "rosters formed",
    "ε by client": "ε by client: least / median / largest",
}


def labels(logs: Sequence[RunLog]) -> list[str]:
    """A short name for each run, each a different one: its scheme and, where that is not enough, its file.

    That of a run whose features no ε covers begins with NOT PRIVATE.
    """
    titles = [f"{'NOT PRIVATE · ' if log.not_private else ''}{schemes()[log.scheme].label}" for log in logs]
    often = Counter(titles)
    named = [
        title if often[title] == 1 else printable(f"{title} · {log.path.stem}")
        for title, log in zip(titles, logs, strict=True)
    ]
    often = Counter(named)
    return [name if often[name] == 1 else f"{name} #{place}" for place, name in enumerate(named, 1)]


def facts(log: RunLog) -> dict[str, str]:
    """The figures of a run by their headings, in the same order for every run; a dash where there is none.

    Figures of members are of runs whose rosters change; these and figures of clients by name stand last.
    """
    end, private = log.ended, log.started.plan is not None
    return {
        "accuracy": _shown(log.accuracy, lambda x: f"{100 * x:.2f} %"),
        "ε claimed": _shown(log.claimed, lambda x: f"{x:g}") if private else "∞",
        "ε true": _shown(log.epsilon, rounded_up) if private else "∞",
        "μ": _shown(log.mu, lambda x: f"{rounded_up(x)}{'' if log.gdp else ' at δ'}") if private else "∞",
        "δ": _shown(log.delta, lambda x: f"{x:g}"),
        "unit": _shown(log.unit, lambda x: _UNITS.get(x, printable(x))),
        "adjacency": _shown(log.adjacency, printable),
        "noise": _shown(log.noise, lambda x: f"{x:.3g}"),
        "up": _shown(None if end is None else end.bytes_up, _size),
        "down": _shown(None if end is None else end.bytes_down, _size),
        "rounds": f"{len(log.rounds):,}",
        "stopped": "no end recorded" if end is None else _STOPPED[end.stopped],
        "seconds": _shown(None if end is None else end.seconds, lambda x: f"{x:,.1f}"),
        **_members(log),
        **_by_client(log),
    }


def _by_client(log: RunLog) -> dict[str, str]:
    """Accuracy at clients that have names; of many, the extremes and the median."""
    found = None if log.ended is None else log.ended.accuracy_clients
    if not found:
        return {}
    if len(found) <= _MOST_NAMES:
        return {f"accuracy, {printable(name)}": f"{100 * each:.2f} %" for name, each in found.items()}
    values = sorted(found.values())
    shown = " / ".join(f"{100 * each:.2f} %" for each in (values[0], median(values), values[-1]))
    return {"accuracy by client": shown}


def _members(log: RunLog) -> dict[str, str]:
    """The figures of a run whose rosters change; nothing of others."""
    if not log.federated:
        return {}
    spent = sorted(log.ended.epsilon_clients or ()) if log.ended is not None else []
    return {
        "population": f"{log.population:,}",
        "rosters": f"{len(log.rosters):,}",
        "ε by client": f"{rounded_up(spent[0])} / {rounded_up(median(spent))} / {rounded_up(spent[-1])}"
        if spent
        else "–",
    }


def side_by_side(logs: Sequence[RunLog]) -> list[dict[str, str]]:
    """The figures of each run, with the same headings for all of them."""
    found = [facts(log) for log in logs]
    names = dict.fromkeys(name for row in found for name in row)
    return [{name: row.get(name, "–") for name in names} for row in found]


def run_tables(logs: Sequence[RunLog]) -> list[Table]:
    """The figures of runs for the terminal, a column for each, a table for each four; an ε above its claim is red."""
    runs = list(zip(labels(logs), side_by_side(logs), logs, strict=True))
    tables = []
    for start in range(0, len(runs), _MOST_RUNS):
        shown = runs[start : start + _MOST_RUNS]
        columns = (Column(Text(label), justify="right", overflow="fold") for label, _, _ in shown)
        table = Table(Column(no_wrap=True), *columns, box=SIMPLE_HEAD, pad_edge=False)
        for name in shown[0][1]:
            cells = (Text(row[name], "bold red" if name == "ε true" and log.exceeds else "") for _, row, log in shown)
            table.add_row(LONG.get(name, name), *cells)
        tables.append(table)
    return tables


def uploads(log: RunLog) -> list[str]:
    """What became of the uploads of all rounds, in plain sentences; nothing where no upload was late.

    Args:
        log: of the run.
    """
    total = sum(line.used + line.late + line.lost for line in log.rounds)
    if total == 0 or not (log.grace or any(line.late for line in log.rounds)):
        return []
    joined = sum(map(log.late_by_one, log.rounds))
    void = sum(line.late for line in log.rounds if line.used == 0 and log.late_by_one(line) == 0)
    counts = {
        "on time": sum(line.used for line in log.rounds),
        ONE_LATE: joined,
        "too late": sum(line.late for line in log.rounds) - joined - void,
        "in void rounds": void,
        "lost": sum(line.lost for line in log.rounds),
    }
    shares = ", ".join(f"{count / total:.1%} {words}" for words, count in counts.items() if count > 0)
    return [f"Uploads: {shares}.", *waited(log)]


def waited(log: RunLog) -> list[str]:
    """How many rounds waited for late uploads, if any did: in the log none of their uploads is on time."""
    if log.waited == 0:
        return []
    return [f"{counted(log.waited, 'round')} waited for late uploads: there even uploads on time {ONE_LATE}."]


def caveats(logs: Sequence[RunLog]) -> list[str]:
    """What keeps the runs from being compared, or one of them from being trusted, in plain sentences."""
    kinds = zip(*map(_caveats, labels(logs), logs), strict=True)
    result = [*dict.fromkeys(sentence for log in logs for sentence in log.not_private)]
    result += [sentence for kind in kinds for sentence in kind if sentence is not None]
    private = [log for log in logs if log.started.plan is not None]
    for what in ("unit", "adjacency", "delta"):
        values = sorted({str(getattr(log, what)) for log in private})
        if len(values) > 1:
            result.append(f"The runs differ in {what} ({', '.join(map(printable, values))}): their ε do not compare.")
    for what in ("data", "model", "clients"):
        found = [log.started.config.get(what) if what == "clients" else getattr(log, what) for log in logs]
        values = sorted({"not recorded" if value is None else str(value) for value in found})
        if len(values) > 1:
            result.append(f"The runs differ in {what}: {', '.join(map(printable, values))}.")
    return result


def _caveats(name: str, log: RunLog) -> list[str | None]:
    """What to know of one run, kind by kind; None where it does not apply."""
    private, scheme, figures = log.started.plan is not None, schemes()[log.scheme], facts(log)
    spent = f"ε = {figures['ε true']} (μ = {figures['μ']})"
    until = f"it was cut off after round {len(log.rounds):,}, or is still running"
    applies = {
        f"{name}: no privacy is guaranteed to anybody.": not private,
        f"{name} protects only against {scheme.against(0)}.": private and not scheme.private,
        f"{name} spent {spent}, more than the {figures['ε claimed']} it claims.": log.exceeds,
        f"The ε of {name} rests on an assumed sensitivity that no theorem bounds.": log.unit == "paper",
        f"{name} has no end recorded: {until}. Its figures are the last that were recorded.": log.ended is None,
    }
    return [sentence if holds else None for sentence, holds in applies.items()]


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
