"""The theory of (R5), computed plainly: noise of a training in which uploads may be one round late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp.repair import RETRIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightdp.planning import Plan


def graceful(plan: Plan, rounds: list[Any]) -> NDArray[np.float64]:  # noqa: C901, PLR0912  one protocol, in the open
    """Covariance of the sums of a training under grace and of its closing rounds together, played on symbols.

    Each noise of one unit of variance has a column of its own. It follows (R5) client by client: the set of a round is
    known to uploads of the second round after it, and each upload takes one repair along, the oldest that waits.
    """
    n, last = plan.clients, len(rounds)
    columns: dict[tuple[Any, ...], int] = {}
    rows: dict[int, dict[int, dict[tuple[Any, ...], float]]] = {}
    waiting: dict[int, list[tuple[int, list[int], int]]] = {i: [] for i in range(n)}
    flying: dict[tuple[int, int], tuple[int, list[int], int]] = {}
    final = [{*used, *joins} for used, joins, _ in rounds] + [set(range(n))] * 2
    peers = plan.graph.neighbours().tolist()

    def pairwise(row: dict[tuple[Any, ...], float], t: int, i: int, others: list[int], sign: float) -> None:
        for j in others:
            wire = (t, min(i, j), max(i, j))
            row[wire] = row.get(wire, 0.0) + (sign if i < j else -sign) * plan.sigma_pairwise

    for t in range(last + 2):
        for i in range(n):
            if t >= 2:
                then, back = t - 2, flying.pop((t - 2, i), None)
                if back is not None and i not in final[then] and back[2] > 1:
                    waiting[i].append((back[0], back[1], back[2] - 1))
                absent = [j for j in peers[i] if j not in final[then]]
                if i in final[then] and absent:
                    waiting[i].append((then, absent, RETRIES + 1))
            waiting[i].sort()
        closing = t >= last
        senders = {i for i in range(n) if waiting[i]} if closing else {i for each in rounds[t] for i in each}
        rows[t] = {}
        for i in senders:
            row: dict[tuple[Any, ...], float] = {(t, i): plan.individual_in_sum(1) ** 0.5}
            if not closing:  # where all pairwise noise cancels, or is not made
                pairwise(row, t, i, peers[i], 1)
            if plan.repairs and waiting[i]:
                flying[t, i] = waiting[i].pop(0)
                pairwise(row, flying[t, i][0], i, flying[t, i][1], -1)
            rows[t][i] = row
    if not plan.repairs:
        rows[last], rows[last + 1] = {}, {}
    sums: list[list[dict[tuple[Any, ...], float]]] = [
        [rows[t][i] for i in rounds[t][0]] + ([rows[t - 1][i] for i in rounds[t - 1][1]] if t > 0 else [])
        for t in range(last)
    ]
    sums.append([*rows[last].values(), *rows[last + 1].values(), *(rows[last - 1][i] for i in rounds[-1][1])])
    for row in (row for parts in sums for row in parts):
        for name in row:
            columns.setdefault(name, len(columns))
    matrix = np.zeros((len(sums), len(columns)))
    for at, parts in enumerate(sums):
        for row in parts:
            for name, value in row.items():
                matrix[at, columns[name]] += value
    kept = matrix[[at for at, parts in enumerate(sums) if parts]]
    return kept @ kept.T
