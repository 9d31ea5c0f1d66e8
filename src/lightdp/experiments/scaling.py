"""What a round costs each scheme against N and against d, with colluders and stragglers in proportion to N.

Each cell is played at its own size. Only where the cells before tell that a round would take longer than a cell is
given, or more memory than is free, it lies on the line through two smaller sizes of the same N, and is marked.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from lightdp._check import ArgumentError, MissingExtraError
from lightdp.experiments.compare import FIGURES, median
from lightdp.schemes import SCHEMES, Cost, Player, climb

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightdp.experiments.compare import Setting
    from lightdp.schemes import Scheme, Task

COUNTS = (10, 20, 50, 100, 200)
SIZES = (10_000, 100_000, 1_000_000, 11_000_000)
_TURNS = 3  # rounds of a cell that is quick
_QUICK = 1.0  # seconds of all of them
_SHARE = 8  # of a cell's time that is spent on smaller sizes, where its own would take too long
_SHORTEST = 1024  # a line through shorter vectors would tell more of fixed costs than of slopes


def cells(setting: Setting) -> list[tuple[int, int]]:
    """All N and d: first those of the setting's N, then those of its d, small ones first."""
    clients, dimension = setting.task.clients, setting.task.dimension
    sizes = [(clients, size) for size in sorted({*SIZES, dimension})]
    return sizes + [(count, dimension) for count in sorted({*COUNTS} - {clients})]


def scale(setting: Setting, record: dict[str, Any], told: Callable[[str], None] = lambda _: None) -> None:
    """Fill "scaling" of a record of `compare` with the same setting.

    Each entry has "scheme", "clients", "dimension", the figures of a round with the setting's faults (or without, if
    that one fails: "clean") and whether they were measured. The cell of the setting itself is the record's own row.
    Where even short vectors take too long, or a scheme cannot be had, there is none. Ctrl-C keeps what is done.
    """
    rows = {row["scheme"]: row for row in reversed(record["rows"]) if row["impossible"] is None}
    try:
        with threadpool_limits(1):
            for name in setting.schemes:
                known: dict[tuple[int, int], Cost] = {}
                if name in rows:
                    known[setting.task.clients, setting.task.dimension] = _row_cost(rows[name], setting.task.dimension)
                for clients, dimension in cells(setting):
                    told(f"{SCHEMES[name].title}, N = {clients:,}, d = {dimension:,}")
                    entry = _cell(setting, SCHEMES[name], (clients, dimension), known)
                    if entry is not None:
                        record["scaling"].append(entry)
    except KeyboardInterrupt:
        record["stopped"] = True


def _row_cost(row: dict[str, Any], dimension: int) -> Cost:
    figures = {name: row[name] for name in (*FIGURES, "wall", "memory")}
    return Cost(dimension=dimension, extrapolated=not row["measured"], **figures)


def _cell(
    setting: Setting, scheme: type[Scheme], at: tuple[int, int], known: dict[tuple[int, int], Cost]
) -> dict[str, Any] | None:
    """One size. `known` are the costs by N and d so far, to which it adds its own."""
    cost, clean = known.get(at), False
    if cost is None or cost.extrapolated:
        guess = _guess(known, *at) if cost is None else cost
        try:
            task = _task(setting.task, *at)
            if guess is not None and guess.fits(setting.cell_seconds):
                cost, clean = _played(setting, scheme, task, int(guess.trips))
            elif cost is None:
                cost = _on_a_line(setting, scheme, task, known)
        except (ArgumentError, MissingExtraError):
            return None
        if cost is None:
            return None
        known[at] = cost
    return {
        "scheme": scheme.name,
        "clients": at[0],
        "dimension": at[1],
        **{name: getattr(cost, name) for name in FIGURES},
        "measured": not cost.extrapolated,
        "clean": clean,
    }


def _task(task: Task, clients: int, dimension: int) -> Task:
    share = {name: getattr(task, name) * clients // task.clients for name in ("colluders", "stragglers")}
    return dataclasses.replace(task, clients=clients, dimension=dimension, **share)


def _guess(known: dict[tuple[int, int], Cost], clients: int, dimension: int) -> Cost | None:
    """What a cell should cost: on a line in d; from other N at most in proportion below, and with N² above."""
    same = sorted((cost for (count, _), cost in known.items() if count == clients), key=lambda cost: cost.dimension)
    smaller = [cost for cost in same if cost.dimension < dimension]
    if len(smaller) > 1:
        return smaller[-2].towards(smaller[-1], dimension)
    if same:
        nearest = smaller[-1] if smaller else same[0]
        return _times(nearest, dimension / nearest.dimension)
    counts = sorted(count for count, size in known if size == dimension)
    if not counts:
        return None
    below = max((count for count in counts if count < clients), default=None)
    count = counts[0] if below is None else below
    return _times(known[count, dimension], clients / count if below is None else (clients / count) ** 2)


def _times(cost: Cost, factor: float) -> Cost:
    return dataclasses.replace(cost, wall=factor * cost.wall, memory=factor * cost.memory)


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
            raise ArgumentError(f"{scheme.name} fails even without faults: {first.failure}")
    more = min(int(_QUICK / max(first.cost.wall, 1e-9)), _TURNS) - 1
    again = [player.round(None if clean else faults) for _ in range(more)]
    return median([first.cost, *(one.cost for one in again if one.failure is None)]), clean


def _on_a_line(setting: Setting, scheme: type[Scheme], task: Task, known: dict[tuple[int, int], Cost]) -> Cost | None:
    """From two smaller sizes of the same N: those that are known, or what a share of the time allows."""
    found = [cost for (count, _), cost in known.items() if count == task.clients]
    found = [cost for cost in found if _SHORTEST <= cost.dimension < task.dimension]
    if len(found) < 2:
        links = setting.links(setting.peers[0])
        _, found = climb(scheme, task, links, seconds=setting.cell_seconds / _SHARE, seed=setting.seed)
    if len(found) < 2 or max(cost.dimension for cost in found) < _SHORTEST:
        return None
    small, large = sorted(found, key=lambda cost: cost.dimension)[-2:]
    return large if large.dimension == task.dimension else small.towards(large, task.dimension)
