"""(E1)-(E4): who shares pairwise noise with whom, and how much noise protects each client.

Read variances as conductances: σ_ij² is a wire between clients i and j, σ_i² a wire from i to ground. The
covariance of what the adversary cannot subtract is the grounded Laplacian C = L + D of that circuit (E1), and
client i is protected by σ_eff,i² = 1/(C⁻¹)_ii, its effective conductance to ground (E2). A colluder cuts its
wires. By Rayleigh's monotonicity law cutting wires never raises a conductance, so the worst case is always the
largest set of colluders.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lightdp._validate import integer, non_negative, positive
from lightdp.errors import ArgumentError, InfeasibleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Graph:
    """A regular graph: each of `clients` shares pairwise noise with `degree` others.

    `degree` = clients − 1 is the complete graph. Less is the Harary graph, which stays connected whichever
    degree − 1 clients are cut: clients on a ring, each paired with its nearest on both sides (and, for an odd
    degree, with the one opposite). A `seed`, public and common to all, shuffles who sits where.
    """

    clients: int
    degree: int
    seed: int = 0

    def __post_init__(self) -> None:
        integer("clients", self.clients, 2)
        integer("degree", self.degree, 1, self.clients - 1)
        integer("seed", self.seed, 0, 2**64 - 1)
        if self.degree % 2 and self.clients % 2:
            raise ArgumentError(
                f"degree must be even when clients is odd, got degree={self.degree}, clients={self.clients}"
            )

    @property
    def complete(self) -> bool:
        """Whether everybody shares noise with everybody."""
        return self.degree == self.clients - 1

    def closed_honest(self, colluders: int) -> int:
        """A client and those of its neighbours that surely do not collude: n for the complete graph."""
        return max(self.degree - colluders, 0) + 1

    def neighbours(self) -> NDArray[np.int64]:
        """The neighbours of every client, each row sorted. (clients, degree)"""
        if self.complete:
            rest = np.arange(self.clients - 1)
            return rest[None, :] + (rest[None, :] >= np.arange(self.clients)[:, None])
        half = np.arange(1, self.degree // 2 + 1)
        offsets = np.concatenate([half, -half, [self.clients // 2] if self.degree % 2 else []]).astype(np.int64)
        seats = self._seats()
        ring = (np.arange(self.clients)[:, None] + offsets) % self.clients
        result = np.empty((self.clients, self.degree), dtype=np.int64)
        result[seats] = np.sort(seats[ring], axis=1)
        return result

    def adjacency(self) -> NDArray[np.bool_]:
        """The adjacency matrix. (clients, clients)"""
        matrix = np.zeros((self.clients, self.clients), dtype=bool)
        np.put_along_axis(matrix, self.neighbours(), values=True, axis=1)
        return matrix

    def _seats(self) -> NDArray[np.int64]:
        """The client on each seat of the ring: a permutation that every platform computes alike."""
        stream = hashlib.shake_256(b"lightdp graph v1" + self.seed.to_bytes(8, "big")).digest(8 * self.clients)
        return np.argsort(np.frombuffer(stream, dtype=">u8"), kind="stable")


def covariance(
    individual: ArrayLike, pairwise: ArrayLike, *, colluders: Sequence[int] = (), unseen: Sequence[int] = ()
) -> NDArray[np.float64]:
    """(E1): the grounded Laplacian L + D of the honest clients whose uploads the adversary sees.

    Args:
        individual: variances σ_i². (N,)
        pairwise: variances σ_ij², symmetric, 0 where two clients share no noise. (N, N)
        colluders: clients whose noise the adversary knows: their wires are cut.
        unseen: honest stragglers whose uploads never arrive: wires to them end in the ground.

    Returns:
        The covariance over the clients that are neither, in ascending order.
    """
    u, k = _variances(individual, pairwise)
    honest = np.ones(len(u), dtype=bool)
    honest[list(colluders)] = False
    seen = honest.copy()
    seen[list(unseen)] = False
    wires = k[np.ix_(seen, seen)]
    return np.diag(u[seen] + k[np.ix_(seen, honest)].sum(axis=1)) - wires


def effective_noise(covariance: ArrayLike) -> NDArray[np.float64]:
    """(E2): σ_eff,i = 1/sqrt((C⁻¹)_ii) of every client, by a Cholesky factorisation."""
    from scipy.linalg import LinAlgError, cholesky, lapack  # noqa: PLC0415  slow to import; plans need it not

    try:
        factor = cholesky(np.asarray(covariance, dtype=float), lower=True)
    except LinAlgError:
        raise InfeasibleError("covariance must be positive definite: some clients have no individual noise") from None
    inverse, _ = lapack.dtrtri(factor, lower=1)
    return 1 / np.sqrt(np.einsum("ij,ij->j", inverse, inverse))


def gain(honest: ArrayLike, gamma: float) -> NDArray[np.float64]:
    """(E3): σ_eff²/σ_U² = (aγ + 1)/(γ + 1), for a client with a − 1 honest neighbours and equal variances.

    | case | gain |
    | --- | --- |
    | γ = 0 or a = 1 | 1: local DP |
    | γ → ∞ | a: central DP among the honest |

    Exact for the complete graph, where a = N − C̄; a lower bound (E4) for any other.
    """
    return (np.asarray(honest, dtype=float) * gamma + 1) / (gamma + 1)


def certified_noise(individual: ArrayLike, pairwise: ArrayLike, colluders: int) -> NDArray[np.float64]:
    """(E4): a σ_eff of every client that no set of `colluders` other clients can bring below.

    Keeps only the client's own star: its wire to ground and, through each neighbour k, the series of two wires
    1/(1/σ_k² + 1/σ_ik²), less the `colluders` largest of them.
    """
    u, k = _variances(individual, pairwise)
    colluders = integer("colluders", colluders, 0, len(u) - 1)
    with np.errstate(divide="ignore"):
        star = 1 / (1 / u[None, :] + 1 / k)  # (N, N); 0 where there is no wire
    kept = len(u) - colluders  # the client's own 0 on the diagonal is always among the smallest
    smallest = np.partition(star, kept - 1, axis=1)[:, :kept]
    return np.sqrt(u + smallest.sum(axis=1))


def price_of_sparsity(graph: Graph, colluders: int, gamma: float) -> float:
    """How many times the σ of the complete graph a sparse one needs at the same γ, whoever colludes (E4)."""
    gamma = non_negative("gamma", gamma)
    whole = gain(graph.clients - integer("colluders", colluders, 0, graph.clients - 1), gamma)
    return math.sqrt(float(whole / gain(graph.closed_honest(colluders), gamma)))


def _variances(individual: ArrayLike, pairwise: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    u, k = np.asarray(individual, dtype=float), np.asarray(pairwise, dtype=float)
    if u.ndim != 1 or k.shape != (len(u), len(u)):
        raise ArgumentError(f"individual must be (N,) and pairwise (N, N), got {u.shape} and {k.shape}")
    for name, values in (("individual", u), ("pairwise", k)):
        if not np.all(np.isfinite(values)) or np.any(values < 0):
            wrong = values[~np.isfinite(values) | (values < 0)]
            raise ArgumentError(f"{name} must hold finite variances >= 0, got {wrong[0]:g}")
    if np.any(k != k.T) or np.any(np.diag(k) != 0):
        raise ArgumentError("pairwise must be symmetric with a zero diagonal")
    positive("the sum of individual variances", u.sum())
    return u, k
