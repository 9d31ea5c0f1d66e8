"""What a round costs each scheme against N and against d, with colluders and stragglers in proportion to N.

Each cell is played at its own size. Only where the cells before tell that a round would take longer than a cell is
given, or more memory than is free, it lies on the line through two smaller sizes of the same N, and is marked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from threadpoolctl import threadpool_limits

from lightdp.errors import ArgumentError, MissingExtraError
from lightdp_lab.compare import FIGURES, PLAYED, SHORTEST, Setting, median
from lightdp_lab.schemes import SCHEMES, Cost, Player, Scheme, Task, climb

COUNTS = (10, 20, 50, 100, 200)
SIZES = (10_000, 100_000, 1_000_000, 11_000_000)
_Known = dict[tuple[int, int], Cost]  # by N and d
_TURNS = 3  # rounds of a cell that is quick
_QUICK = 1.0  # seconds of all of them
_SHARE = 8  # of a cell's time that is spent on smaller sizes, where its own would take too long


def cells(setting: Setting) -> list[tuple[int, int]]:
    """All N and d: first those of the setting's N, then those of its d, small ones first.

    >>> from lightdp_lab.compare import Setting
    >>> from lightdp_lab.schemes import Task
    >>> cells(Setting(Task(clients=50, dimension=10_000)))[:2]
    [(50, 10000), (50, 100000)]
    """
    clients, dimension = setting.task.clients, setting.task.dimension
    sizes = [(clients, size) for size in sorted({*SIZES, dimension})]
    return sizes + [(count, dimension) for count in sorted({*COUNTS} - {clients})]


def scale(setting: Setting, record: dict[str, Any], progress: Callable[[str], None] = lambda _: None) -> None:
    """Fill "scaling" of a record of `compare` with the same setting.

    Each entry has "scheme", "clients", "dimension", the figures of a round with the setting's faults (or without, if
    that one fails: "clean") and whether they were measured. The cell of the setting itself is the record's own row.
    Where even short vectors take too long, or a scheme cannot be had, there is none. Ctrl-C keeps what is done.

    Args:
        setting: that of the record.
        record: changed in place.
        progress: is given the scheme and size before each is played.
    """
    rows = {row["scheme"]: row for row in reversed(record["rows"]) if row["impossible"] is None}
    own = (setting.task.clients, setting.task.dimension)
    try:
        with threadpool_limits(1):
            for name in setting.schemes:
                row, known = rows.get(name), _Known()
                if row is not None:
                    figures = {figure: row[figure] for figure in (*FIGURES, *PLAYED)}
                    known[own] = Cost(dimension=own[1], extrapolated=not row["measured"], **figures)
                for at in cells(setting):
                    progress(f"{SCHEMES[name].about.title}, N = {at[0]:,}, d = {at[1]:,}")
                    cost, clean = known.get(at), row is not None and row["clean"]
                    if at != own or cost is None or cost.extrapolated:
                        cost, clean = _cell(setting, SCHEMES[name], at, known)
                    if cost is not None:
                        known[at] = cost
                        entry = {"scheme": name, "clients": at[0], "dimension": at[1]}
                        entry |= {figure: getattr(cost, figure) for figure in FIGURES}
                        record["scaling"].append(entry | {"measured": not cost.extrapolated, "clean": clean})
    except KeyboardInterrupt:
        record["stopped"] = True


def _cell(setting: Setting, scheme: type[Scheme], at: tuple[int, int], known: _Known) -> tuple[Cost | None, bool]:
    """One size, None if it cannot be had, and whether its round had no faults."""
    line = known.get(at) or _line(known, *at)
    cost = line or _other(known, *at)
    try:
        task = _task(setting.planned, *at)
        if cost is None or not cost.fits(setting.cell_seconds):
            cost = line or _climbed(setting, scheme, task)
        if cost is not None and cost.extrapolated and cost.fits(setting.cell_seconds):
            return _played(setting, scheme, task, int(cost.trips))
    except (ArgumentError, MissingExtraError):
        return None, False
    return cost, False


def _task(task: Task, clients: int, dimension: int) -> Task:
    share = {name: getattr(task, name) * clients // task.clients for name in ("colluders", "stragglers")}
    return dataclasses.replace(task, clients=clients, dimension=dimension, **share)


def _line(known: _Known, clients: int, dimension: int) -> Cost | None:
    """On the line through the two largest of the smaller sizes of the same N."""
    same = [cost for (count, _), cost in known.items() if count == clients and cost.dimension < dimension]
    small = sorted(same, key=lambda cost: cost.dimension)[-2:]
    return small[0].towards(small[1], dimension) if len(small) == 2 else None


def _other(known: _Known, clients: int, dimension: int) -> Cost | None:
    """A first estimate from one other cell: at most in proportion to d and to fewer clients, with N² to more."""
    found = [(count, size) for count, size in known if count == clients or size == dimension]
    if not found:
        return None
    count, size = max(found, key=lambda key: (key[0] <= clients, key[1] <= dimension, key))
    factor = max(clients / count, 1) * clients / count * dimension / size
    cost = known[count, size]
    return dataclasses.replace(cost, wall=factor * cost.wall, memory=factor * cost.memory, extrapolated=True)


def _played(setting: Setting, scheme: type[Scheme], task: Task, stages: int) -> tuple[Cost, bool]:
    """The cost of a round, the median of a few if they are quick, and whether it had to be one without faults."""
    peers = setting.peers[0]
    player = Player(scheme, task, setting.links(peers), setting.seed)
    faults = setting.faults(0, peers, stages, task.clients)
    first = player.round(faults)
    clean = first.failure is not None
    if clean:
        first = player.round()
        if first.failure is not None:
            raise ArgumentError(f"{scheme.about.name} fails even without faults: {first.failure}")
    more = min(int(_QUICK / max(first.cost.wall, 1e-9)), _TURNS) - 1
    again = [player.round(None if clean else faults) for _ in range(more)]
    return median([first.cost, *(one.cost for one in again if one.failure is None)]), clean


def _climbed(setting: Setting, scheme: type[Scheme], task: Task) -> Cost | None:
    """From the sizes that a share of the time allows: measured if the cell's own is among them, else on a line."""
    links = setting.links(setting.peers[0])
    _, found = climb(scheme, task, links, seconds=setting.cell_seconds / _SHARE, seed=setting.seed)
    if found[-1].dimension == task.dimension:
        return found[-1]
    return found[-2].towards(found[-1], task.dimension) if found[-1].dimension >= SHORTEST else None
