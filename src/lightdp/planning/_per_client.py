"""(D4): noise for clients that differ in privacy budget and reliability, as one convex program."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lightdp import attack, gaussian
from lightdp._validate import choice, integer, positive, probability
from lightdp.errors import ArgumentError, InfeasibleError, MissingExtraError
from lightdp.noise_graph import Graph, certified_noise, gain
from lightdp.planning._calibrate import GAMMA_MAX, exact_gamma

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Target = Literal["mean", "sum"]
_ROUND_UP = 1 + 1e-11  # on σ²: covers every rounding error between σ and the ε that is reported for it


@dataclass(frozen=True, kw_only=True, eq=False)
class PerClientPlan:
    """Noise for each client and each pair. Made by `plan_per_client`.

    Formal guarantee: client i, of whose data one unit moves an upload by at most `sensitivity`, has (`epsilons`[i],
    `delta`)-DP over `rounds` rounds against the server together with any `colluders` other clients, for every set of
    stragglers: `sigma_effective` is certified by (E4) on the returned variances, not on the solver's word.
    It is a design, for the same clients in every round: `lightdp.protocol` runs plans of equal clients, and only these
    have a population. Nothing is rounded, so noise is that before a wire.

    Attributes:
        graph: who shares pairwise noise with whom.
        colluders: C̄.
        rounds: T.
        delta: δ, common to all.
        sensitivity: Δ.
        epsilons: the budget of each client. (N,)
        straggling: the probability that a client misses a round. (N,)
        target: whether the noise in the "mean" of the used uploads or in their "sum" was minimised.
        sigma_individual: σ_i. (N,)
        sigma_pairwise: σ_ij, 0 where two clients share no noise. (N, N)
        sigma_effective: certified σ_eff,i. (N,)
        noise: expected noise variance in the target.
        noise_equal: the same for the best design with equal variances, (D2).
    """

    graph: Graph
    colluders: int
    rounds: int
    delta: float
    sensitivity: float
    epsilons: Floats
    straggling: Floats
    target: Target
    sigma_individual: Floats
    sigma_pairwise: Floats
    sigma_effective: Floats
    noise: float
    noise_equal: float

    def epsilon(self) -> Floats:
        """What each client's guarantee really is, rounded up. (N,)"""
        return np.array([gaussian.epsilon(float(m), self.delta) for m in self.mu])

    @property
    def mu(self) -> Floats:
        """μ of each client's whole training, which is μ-GDP (E5). (N,)"""
        return math.sqrt(self.rounds) * self.sensitivity / self.sigma_effective

    def to_dict(self) -> dict[str, Any]:
        """Settings and results as JSON values."""
        shown = {name: getattr(self, name) for name in ("colluders", "rounds", "delta", "sensitivity")}
        arrays = {"epsilon": self.epsilons, "epsilon_true": self.epsilon(), "straggling": self.straggling}
        arrays |= {"mu": self.mu, "power": np.array([gaussian.power(mu, attack.FALSE_POSITIVES) for mu in self.mu])}
        arrays |= {f"sigma_{kind}": getattr(self, f"sigma_{kind}") for kind in ("individual", "pairwise", "effective")}
        shown |= {name: values.tolist() for name, values in arrays.items()}
        return shown | {f"noise_in_{self.target}": self.noise, f"noise_in_{self.target}_equal": self.noise_equal}


def plan_per_client(
    *,
    epsilons: Sequence[float],
    straggling: Sequence[float],
    colluders: int,
    rounds: int,
    delta: float,
    sensitivity: float = 1.0,
    degree: int | None = None,
    graph_seed: int = 0,
    target: Target = "mean",
) -> PerClientPlan:
    """The variances that minimise the expected noise while each client keeps its own budget (D4).

    >>> found = plan_per_client(epsilons=[3.0] * 5, straggling=[0.02] * 4 + [0.5], colluders=1, rounds=10, delta=1e-5)
    >>> bool(found.sigma_individual[4] > found.sigma_individual[0])  # the unreliable client protects itself
    True
    >>> bool((found.epsilon() <= 3).all())
    True

    Clients straggle independently. Equal clients of a complete graph get equal variances, which loses nothing
    (the program is convex and symmetric) and keeps it small.

    Raises:
        ArgumentError: an argument is out of range; the message names it and its value.
        MissingExtraError: cvxpy is not installed.
    """
    budgets = np.array([positive("epsilons", e) for e in epsilons])
    failures = np.array([0.0 if p == 0 else probability("straggling", p) for p in straggling])
    if len(budgets) != len(failures):
        raise ArgumentError(f"epsilons and straggling must be of one length, got {len(budgets)} and {len(failures)}")
    clients = integer("the number of clients", len(budgets), 2)
    colluders = integer("colluders", colluders, 0, clients - 1)
    rounds, delta = integer("rounds", rounds, 1), probability("delta", delta)
    sensitivity = positive("sensitivity", sensitivity)
    choice("target", target, ("mean", "sum"))
    graph = Graph(clients, clients - 1 if degree is None else degree, graph_seed)

    mus = {e: gaussian.mu(e, delta) for e in set(budgets.tolist())}
    needed = np.array([(sensitivity / mus[e]) ** 2 * rounds for e in budgets.tolist()])  # σ_eff², (N,)
    on_individual, on_pairwise = _weights(failures, target)
    adjacent = graph.adjacency()
    on_pairwise = on_pairwise * adjacent

    if graph.complete:
        kinds = np.column_stack([needed, failures])
        _, first, member = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        sizes = np.bincount(member)
        links = np.tile(sizes, (len(sizes), 1)) - np.eye(len(sizes), dtype=int)  # neighbours by class
    else:
        first = member = np.arange(clients)
        sizes, links = np.ones(clients, dtype=int), adjacent.astype(int)
    last = clients - 1 - np.unique(member[::-1], return_index=True)[1]  # so pairs are of different clients if they can
    on_pairs = on_pairwise[np.ix_(first, last)]
    u_class, k_class = _solve(
        sizes, links, needed[first], on_individual=on_individual[first], on_pairwise=on_pairs, colluders=colluders
    )
    u, k = u_class[member], k_class[np.ix_(member, member)] * adjacent
    shortfall = float(np.max(needed / certified_noise(u, k, colluders) ** 2))
    scale = max(shortfall, 1.0) * _ROUND_UP  # what the solver's tolerance left open, and ours
    u, k = u * scale, k * scale

    def noise(individual: Floats, pairwise: Floats) -> float:
        return float(on_individual @ individual + (on_pairwise * pairwise).sum() / 2)

    honest = graph.closed_honest(colluders)
    gamma = exact_gamma(float(on_pairwise.sum() / 2 / on_individual.sum()), honest)
    equal = np.full(clients, needed.max() / float(gain(honest, gamma)) * _ROUND_UP)
    noise_equal = noise(equal, gamma * equal * adjacent)
    if noise(u, k) > noise_equal:  # an inaccurate solution of a program that equal variances solve best
        u, k = equal, gamma * equal * adjacent
    return PerClientPlan(
        graph=graph, colluders=colluders, rounds=rounds, delta=delta, sensitivity=sensitivity, epsilons=budgets,
        straggling=failures, target=target, sigma_individual=np.sqrt(u), sigma_pairwise=np.sqrt(k),
        sigma_effective=certified_noise(u, k, colluders), noise=noise(u, k), noise_equal=noise_equal,
    )  # fmt: skip


def _weights(failures: Floats, target: Target) -> tuple[Floats, Floats]:
    """How σ_i² and σ_ij² enter the expected noise: P(i used) and P(one of i, j used), for the mean over A² (D3).

    With A the number of used clients, 1/A² is the integral of −ln(x) x^(A−1) over [0, 1], which turns the
    expectations into products over clients; a Gauss rule in t, x = t³, integrates them to rounding error.
    """
    used = 1 - failures
    if target == "sum":
        one = np.outer(used, failures)
        return used, one + one.T
    nodes, weights = np.polynomial.legendre.leggauss(400)
    t = (nodes + 1) / 2
    x, mass = t**3, weights / 2 * 3 * t**2 * -3 * np.log(t)
    factors = failures[:, None] + used[:, None] * x  # (N, nodes)
    rest = mass * np.exp(np.log(factors).sum(axis=0))
    without = 1 / factors
    one = np.outer(used, failures) * ((without * rest) @ without.T)
    return used * (without @ rest), one + one.T


def _solve(
    sizes: Integers, links: Integers, needed: Floats, *, on_individual: Floats, on_pairwise: Floats, colluders: int
) -> tuple[Floats, Floats]:
    """Variances (classes,) and (classes, classes) of the convex program: minimise noise subject to (E4).

    The sum of the M smallest of the star's terms h is max over t of M t − Σ (t − h)₊; a term h <= uk/(u + k) is the
    second-order cone (u − h)(u + k) >= u².
    """
    try:
        import cvxpy as cp  # noqa: PLC0415  an optional dependency
    except ImportError:
        raise MissingExtraError("design", "A design per client") from None
    unit = needed.max()
    source, sink = np.nonzero(links)  # client class, neighbour class
    low, high = np.nonzero(np.triu(links + links.T))
    edge = np.zeros(links.shape, dtype=int)
    edge[low, high] = edge[high, low] = np.arange(len(low))
    pairs = sizes[low] * links[low, high] / np.where(low == high, 2, 1)

    u, k = cp.Variable(len(sizes), nonneg=True), cp.Variable(len(low), nonneg=True)
    h, over = cp.Variable(len(source)), cp.Variable(len(source), nonneg=True)
    t = cp.Variable(len(sizes), nonneg=True)
    u_sink, wire = u[sink], k[edge[source, sink]]
    degrees = links.sum(axis=1)
    kept = np.maximum(degrees - colluders, 0)
    star = np.zeros((len(sizes), len(source)))
    star[source, np.arange(len(source))] = links[source, sink] * (kept[source] > 0)
    constraints = [
        u + cp.multiply(kept, t) - star @ over >= needed / unit,
        over >= t[source] - h,
        cp.SOC(2 * u_sink - h + wire, cp.vstack([2 * u_sink, h + wire]), axis=0),
        wire <= GAMMA_MAX * u_sink,
    ]
    cost = (sizes * on_individual) @ u + (pairs * on_pairwise[low, high]) @ k
    problem = cp.Problem(cp.Minimize(cost / float(sizes @ on_individual)), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of an inaccurate solution: the caller certifies it
        problem.solve(solver=cp.CLARABEL)
    if problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
        raise InfeasibleError(f"the convex program for {len(sizes)} kinds of clients ended as {problem.status}")
    pairwise = np.zeros(links.shape)
    pairwise[low, high] = pairwise[high, low] = np.maximum(k.value, 0)
    return np.maximum(u.value, 0) * unit, pairwise * unit
