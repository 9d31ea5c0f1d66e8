"""Independent oracles: the theory computed another way, slowly and plainly."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import mpmath
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from lightdp.planning import Plan


def before_rounding(plan: Plan) -> float:
    """(D3) without the q²/12 that rounding to the wire adds to each upload (W1)."""
    if plan.calibration.floats:
        return plan.noise_in_mean()
    return plan.noise_in_mean() - plan.wire_grid**2 / 12 * plan.law.mean(lambda s: 1 / (plan.clients - s))


def delta(epsilon: float, mu: float) -> mpmath.mpf:
    """(E5) with enough digits that its cancellation does not matter."""
    with mpmath.workdps(60 + 2 * max(0, -math.floor(math.log10(mu)))):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)

        def phi(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

        return phi(m / 2 - e / m) - mpmath.exp(e) * phi(-m / 2 - e / m)


def power(mu: float, false_positives: float) -> mpmath.mpf:
    """Φ(z + μ) where Φ(z) is the rate of false positives, z by Newton's method on many digits."""
    with mpmath.workdps(50):
        wanted = mpmath.log(mpmath.mpf(false_positives))
        z = mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - wanted, -mpmath.sqrt(2 * abs(wanted)))
        return mpmath.ncdf(z + mpmath.mpf(mu))


def star(n: int, variance: float) -> NDArray[np.float64]:
    """Pairwise variances of the complete graph."""
    return variance * (1 - np.eye(n))


def seen_uploads(  # noqa: C901  one protocol, played once, in the open
    clients: int,
    gamma: float,
    rounds: Sequence[tuple[Collection[int], Collection[int]]],
    *,
    adjacency: NDArray[np.bool_],
    colluders: Collection[int] = (),
    retries: int,
    grace: int = 0,
    bare: Collection[int] = (),
) -> tuple[NDArray[np.float64], list[tuple[int, int]]]:
    """The protocol with repair, played on symbols: every upload of an honest client that the adversary sees.

    Each is a row of coefficients over all noise of honest clients, in units of its standard deviation (σ_U = 1);
    what colluders know is subtracted. With each row, its (round, client). retries = -1 plays it without repair. With
    grace the used clients of a round are known one round later, and a repair in flight is not sent a second time (R5).
    Rounds that are `bare` have no pairwise noise of their own.
    """
    pairs = list(itertools.combinations(range(clients), 2))
    column = {pair: at for at, pair in enumerate(pairs)}
    individual, pairwise = len(rounds) * clients, len(rounds) * len(pairs)
    scale = np.concatenate([np.ones(individual), np.full(pairwise, np.sqrt(gamma))])
    honest = [c for c in range(clients) if c not in colluders]

    def add(row: NDArray[np.float64], t: int, i: int, j: int, sign: float) -> None:
        if i in honest and j in honest and adjacency[i, j]:
            at = individual + t * len(pairs) + column[min(i, j), max(i, j)]
            row[at] += sign if i < j else -sign

    rows, owners = [], []
    owed: dict[int, list[tuple[int, list[int], int]]] = {i: [] for i in range(clients)}  # round, absent, tries left
    flying: dict[tuple[int, int], tuple[int, list[int], int]] = {}
    for t, (used, late) in enumerate(rounds):
        if retries >= 0 and (final := t - 1 - grace) >= 0:
            settled = rounds[final][0]
            for i in range(clients):
                if (i, final) in flying:
                    then, absent, tries = flying.pop((i, final))
                    owed[i] += [(then, absent, tries - 1)] if i not in settled and tries > 1 else []
                absent = [j for j in range(clients) if j not in settled and adjacency[i, j]]
                owed[i] += [(final, absent, retries + 1)] if i in settled and absent else []
        for i in [*used, *late]:
            row = np.zeros(individual + pairwise)
            row[t * clients + i] = 1
            for j in range(clients):
                if j != i and t not in bare:
                    add(row, t, i, j, 1)
            if owed[i]:
                flying[i, t] = min(owed[i])
                owed[i].remove(flying[i, t])
                then, absent, _ = flying[i, t]
                for j in absent:
                    add(row, then, i, j, -1)
            if i in honest:
                rows.append(row * scale)
                owners.append((t, i))
    return np.array(rows, dtype=np.float64).reshape(len(rows), individual + pairwise), owners


def loss_matrix(
    clients: int,
    gamma: float,
    rounds: Sequence[tuple[Collection[int], Collection[int]]],
    *,
    client: int,
    adjacency: NDArray[np.bool_],
    colluders: Collection[int] = (),
    retries: int,
    grace: int = 0,
    bare: Collection[int] = (),
    closing: Collection[int] = (),
) -> NDArray[np.float64]:
    """K such that a change v_t of the client's data in each of its seen rounds has exactly mu² = v'Kv, σ_U = 1.

    Rounds that are `closing` have no data.
    """
    matrix, owners = seen_uploads(
        clients, gamma, rounds, adjacency=adjacency, colluders=colluders, retries=retries, grace=grace, bare=bare
    )
    mine = [at for at, (t, owner) in enumerate(owners) if owner == client and t not in closing]
    if not mine:
        return np.zeros((0, 0))
    return np.linalg.inv(matrix @ matrix.T)[np.ix_(mine, mine)].astype(np.float64)


def worst_mu_squared(matrix: NDArray[np.float64]) -> float:
    """The largest v'Kv over signs v."""
    signs = (np.array(v) for v in itertools.product([1.0, -1.0], repeat=len(matrix)))
    return max(float(v @ matrix @ v) for v in signs)
