"""(E1)-(E4): which clients share pairwise noise, and how much noise protects each client.

Read variances as conductances: σ_ij² is a wire between clients i and j, σ_i² a wire from i to ground. The
covariance of what the adversary cannot subtract is the grounded Laplacian C = L + D of that circuit (E1), and
client i is protected by σ_eff,i² = 1/(C⁻¹)_ii, its effective conductance to ground (E2). A colluder cuts its
wires. By Rayleigh's monotonicity law cutting wires never raises a conductance, so the worst case is always the
largest set of colluders.

>>> individual, pairwise = np.full(4, 1.0), 0.5 * Graph(clients=4, degree=3).adjacency()
>>> effective_noise(covariance(individual, pairwise, colluders=[3])).round(4)
array([1.291, 1.291, 1.291])
>>> round(float(gain(honest=3, gamma=0.5)) ** 0.5, 4)  # the closed form of the complete graph
1.291
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightdp._validate import integer, non_negative, positive
from lightdp.errors import ArgumentError, InfeasibleError


@dataclass(frozen=True)
class Graph:
    """A regular graph: each of `clients` shares pairwise noise with `degree` others.

    `degree` = clients − 1 is the complete graph. A smaller degree is the Harary graph, which stays connected if any
    degree − 1 clients are removed: clients on a ring, each paired with its nearest on both sides (and, for an odd
    degree, with the one opposite).

    Attributes:
        clients: number of clients, >= 2.
        degree: number of neighbours of each client, in 1..clients − 1; even if `clients` is odd.
        seed: public number below 2^64, the same for all clients, that shuffles their places on the ring.

    Raises:
        ArgumentError: an attribute is out of range.

    >>> Graph(clients=5, degree=2, seed=1).neighbours().tolist()
    [[3, 4], [2, 3], [1, 4], [0, 1], [0, 2]]
    """

    clients: int
    degree: int
    seed: int = 0

    def __post_init__(self) -> None:
        integer("clients", self.clients, 2)
        integer("degree", self.degree, 1, self.clients - 1)
        integer("seed", self.seed, 0, 2**64 - 1)
        if self.degree % 2 and self.clients % 2:
            raise ArgumentError(f"degree must be even when clients={self.clients} is odd, got degree={self.degree}")

    @property
    def complete(self) -> bool:
        """Whether all clients share noise with all others."""
        return self.degree == self.clients - 1

    @property
    def random(self) -> bool:
        """Whether clients are placed by the hash of their roster; see `lightdp.random_graph`."""
        return False

    @property
    def met(self) -> float:
        """The chance that two clients are neighbours."""
        return self.degree / (self.clients - 1)

    @property
    def most(self) -> int:
        """The most neighbours that a client may have."""
        return self.degree

    def placed(self, place: bytes) -> Graph:  # noqa: ARG002  random graphs are
        """The graph with its clients placed by the hash of their roster: itself, unless it is random."""
        return self

    def degrees(self, among: ArrayLike) -> NDArray[np.int64]:
        """How many neighbours each client has among these. (clients,)

        Args:
            among: flags. (clients,)

        >>> Graph(clients=5, degree=2, seed=1).degrees([True, False, False, True, True])
        array([2, 1, 1, 1, 1])
        """
        flags = np.asarray(among, dtype=bool)
        if self.complete:
            return np.asarray(np.count_nonzero(flags) - flags, dtype=np.int64)
        seats, half = self._seats, self.degree // 2
        ring = flags[seats].astype(np.int64)
        around = np.concatenate([[0], ring[self.clients - half :], ring, ring[:half]]).cumsum()
        found = around[2 * half + 1 :] - around[: self.clients] - ring
        if self.degree % 2:
            found += np.roll(ring, self.clients // 2)
        result = np.empty_like(found)
        result[seats] = found
        return result

    def closed_honest(self, colluders: int) -> int:
        """The fewest honest clients in a client's neighbourhood, itself included, if `colluders` clients collude.

        >>> Graph(clients=50, degree=49).closed_honest(10), Graph(clients=50, degree=20).closed_honest(10)
        (40, 11)
        """
        return max(self.degree - colluders, 0) + 1

    def neighbours(self) -> NDArray[np.int64]:
        """The neighbours of every client, each row sorted. (clients, degree)"""
        return self.rows(range(self.clients))

    def neighbours_of(self, client: int) -> NDArray[np.int64]:
        """The neighbours of one client, sorted, in the memory of a row and not of the whole graph. (degree,)

        >>> Graph(clients=5, degree=2, seed=1).neighbours_of(3).tolist()
        [0, 1]
        """
        integer("client", client, 0, self.clients - 1)
        return np.delete(np.arange(self.clients), client) if self.complete else self.rows([client])[0]

    def rows(self, clients: Sequence[int]) -> NDArray[np.int64]:
        """The neighbours of some clients, each sorted, without making the whole graph. (clients, degree)

        >>> Graph(clients=5, degree=2, seed=1).rows([3]).tolist()
        [[0, 1]]
        """
        if self.complete:  # as below, without sorting
            rest = np.arange(self.clients - 1)
            return rest[None, :] + (rest[None, :] >= np.asarray(clients)[:, None])
        ring = np.empty(self.clients, np.int64)
        ring[self._seats] = np.arange(self.clients)
        return np.sort(self._seats[(ring[clients][:, None] + self._offsets()) % self.clients], axis=1)

    def _offsets(self) -> NDArray[np.int64]:
        """Where on the ring the neighbours of a seat are, counted from it. (degree,)"""
        half = np.arange(1, self.degree // 2 + 1)
        return np.concatenate([half, -half, [self.clients // 2] if self.degree % 2 else []]).astype(np.int64)

    def adjacency(self) -> NDArray[np.bool_]:
        """The adjacency matrix. (clients, clients)"""
        matrix = np.zeros((self.clients, self.clients), dtype=bool)
        np.put_along_axis(matrix, self.neighbours(), values=True, axis=1)
        return matrix

    @cached_property
    def _seats(self) -> NDArray[np.int64]:
        """The client on each seat of the ring: a permutation that is the same on every platform."""
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

    Raises:
        ArgumentError: the variances have the wrong shape or sign, or no client has individual noise.

    >>> covariance([1.0, 1.0, 1.0], 0.5 * Graph(3, 2).adjacency(), unseen=[2])
    array([[ 2. , -0.5],
           [-0.5,  2. ]])
    """
    u, k = _variances(individual, pairwise)
    honest, seen = np.ones((2, len(u)), dtype=bool)
    honest[list(colluders)] = False
    seen[[*colluders, *unseen]] = False
    return np.diag(u[seen] + k[np.ix_(seen, honest)].sum(axis=1)) - k[np.ix_(seen, seen)]


def effective_noise(covariance: ArrayLike) -> NDArray[np.float64]:
    """(E2): σ_eff,i = 1/sqrt((C⁻¹)_ii) of every client, by a Cholesky factorisation.

    Formal guarantee: to the adversary of (E1), client i's uploads look like one Gaussian mechanism with this σ.

    Args:
        covariance: C of `covariance`. (n, n)

    Raises:
        InfeasibleError: C is singular: some connected clients have no individual noise.

    >>> effective_noise([[2.0, 0.0], [0.0, 4.0]]).round(4)
    array([1.4142, 2.    ])
    """
    from scipy.linalg import LinAlgError, cholesky, lapack  # noqa: PLC0415  slow to import; plans do not need it

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

    Args:
        honest: a >= 1, one number or an array.
        gamma: γ = σ_K²/σ_U² >= 0.

    >>> gain([1, 40], gamma=0.25)
    array([1. , 8.8])
    """
    return (np.asarray(honest, dtype=float) * gamma + 1) / (gamma + 1)


def certified_noise(individual: ArrayLike, pairwise: ArrayLike, colluders: int) -> NDArray[np.float64]:
    """(E4): a lower bound on the σ_eff of every client against any `colluders` other clients.

    Keeps only the client's own star: its wire to ground and, through each neighbour k, the series of two wires
    1/(1/σ_k² + 1/σ_ik²), less the `colluders` largest of them.

    Formal guarantee: for every set of at most `colluders` clients, `effective_noise` of the others is not smaller.

    Args:
        individual: variances σ_i². (N,)
        pairwise: variances σ_ij², symmetric. (N, N)
        colluders: size of the set, in 0..N − 1.

    >>> certified_noise(np.full(4, 1.0), 0.5 * Graph(4, 3).adjacency(), colluders=1).round(4)
    array([1.291, 1.291, 1.291, 1.291])
    """
    u, k = _variances(individual, pairwise)
    colluders = integer("colluders", colluders, 0, len(u) - 1)
    with np.errstate(divide="ignore"):
        star = 1 / (1 / u[None, :] + 1 / k)  # (N, N); 0 where there is no wire
    kept = len(u) - colluders  # the client's own 0 on the diagonal is always among the smallest
    smallest = np.partition(star, kept - 1, axis=1)[:, :kept]
    return np.sqrt(u + smallest.sum(axis=1))


def price_of_sparsity(graph: Graph, colluders: int, gamma: float) -> float:
    """The σ that a sparse graph needs over that of the complete one, at the same γ and for any colluders (E4).

    Args:
        graph: the sparse graph.
        colluders: number of colluders, below the number of clients.
        gamma: γ >= 0.

    >>> round(price_of_sparsity(Graph(clients=50, degree=20), colluders=10, gamma=0.25), 3)
    1.713
    """
    gamma = non_negative("gamma", gamma)
    whole = gain(graph.clients - integer("colluders", colluders, 0, graph.clients - 1), gamma)
    return math.sqrt(float(whole / gain(graph.closed_honest(colluders), gamma)))


def _variances(individual: ArrayLike, pairwise: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    u, k = np.asarray(individual, dtype=float), np.asarray(pairwise, dtype=float)
    if u.ndim != 1 or k.shape != (len(u), len(u)):
        raise ArgumentError(f"individual must be (N,) and pairwise (N, N), got {u.shape} and {k.shape}")
    for name, values in (("individual", u), ("pairwise", k)):
        if (wrong := values[~np.isfinite(values) | (values < 0)]).size > 0:
            raise ArgumentError(f"{name} must hold finite variances >= 0, got {wrong[0]:g}")
    if np.any(k != k.T) or np.any(np.diag(k) != 0):
        raise ArgumentError("pairwise must be symmetric with a zero diagonal")
    positive("the sum of individual variances", u.sum())
    return u, k
