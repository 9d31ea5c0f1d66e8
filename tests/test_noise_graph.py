from __future__ import annotations

import hashlib
import itertools
import tracemalloc

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightdp import noise_graph
from lightdp.errors import ArgumentError, InfeasibleError
from lightdp.noise_graph import Graph
from support import oracles

SEEDS = st.integers(0, 2**32 - 1)


def random_network(seed: int, n: int, density: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    k = np.triu(rng.uniform(0.01, 3, (n, n)) * (rng.uniform(size=(n, n)) < density), 1)
    return rng.uniform(0.1, 2, n), k + k.T


@given(seed=SEEDS, n=st.integers(2, 12))
@settings(max_examples=50, deadline=None)
def test_effective_noise_agrees_with_an_mpmath_inverse(seed: int, n: int) -> None:
    u, k = random_network(seed, n, 0.6)
    c = noise_graph.covariance(u, k)
    inverse = mpmath.inverse(mpmath.matrix(c.tolist()))
    expected = [1 / mpmath.sqrt(inverse[i, i]) for i in range(n)]
    assert noise_graph.effective_noise(c) == pytest.approx([float(x) for x in expected], rel=1e-9)


@given(n=st.integers(2, 30), gamma=st.floats(0, 1000), individual=st.floats(0.01, 100), colluders=st.integers(0, 28))
@settings(max_examples=50, deadline=None)
def test_closed_form_of_the_complete_graph_agrees_with_the_matrix(
    n: int, gamma: float, individual: float, colluders: int
) -> None:
    colluders = min(colluders, n - 1)
    c = noise_graph.covariance(np.full(n, individual), oracles.star(n, gamma * individual), colluders=range(colluders))
    closed = np.sqrt(individual * noise_graph.gain(n - colluders, gamma))
    assert noise_graph.effective_noise(c) == pytest.approx(np.full(n - colluders, closed), rel=1e-9)


@given(seed=SEEDS, n=st.integers(2, 7), colluders=st.integers(0, 6), density=st.sampled_from([0.4, 0.7, 1.0]))
@settings(max_examples=60, deadline=None)
def test_certified_noise_is_below_the_exact_one_for_every_set_of_colluders(
    seed: int, n: int, colluders: int, density: float
) -> None:
    colluders = min(colluders, n - 1)
    u, k = random_network(seed, n, density)
    certified = noise_graph.certified_noise(u, k, colluders)
    for size in range(colluders + 1):
        for bad in itertools.combinations(range(n), size):
            exact = noise_graph.effective_noise(noise_graph.covariance(u, k, colluders=bad))
            good = [i for i in range(n) if i not in bad]
            assert np.all(certified[good] <= exact * (1 + 1e-12))


def test_certified_noise_equals_the_closed_form_for_equal_variances() -> None:
    for n, colluders, gamma in ((50, 10, 0.4), (50, 49, 2.0), (2, 0, 1.0), (2, 1, 1.0)):
        certified = noise_graph.certified_noise(np.full(n, 2.0), oracles.star(n, 2.0 * gamma), colluders)
        assert certified == pytest.approx(np.sqrt(2.0 * noise_graph.gain(n - colluders, gamma)), rel=1e-12)


@given(seed=SEEDS, n=st.integers(3, 8))
@settings(max_examples=40, deadline=None)
def test_cutting_wires_never_helps_and_unseen_uploads_never_hurt(seed: int, n: int) -> None:
    u, k = random_network(seed, n)
    base = noise_graph.effective_noise(noise_graph.covariance(u, k))[0]
    assert noise_graph.effective_noise(noise_graph.covariance(u, k, colluders=[n - 1]))[0] <= base * (1 + 1e-12)
    assert noise_graph.effective_noise(noise_graph.covariance(u, k, unseen=[n - 1]))[0] >= base * (1 - 1e-12)


def test_covariance_is_that_of_simulated_uploads() -> None:
    """(E1) by simulation with a colluder and an unseen straggler; a 20 % wrong σ is rejected."""
    rng = np.random.default_rng(3)
    n, colluder, straggler, samples = 5, 1, 3, 200_000
    u, k = random_network(7, n)
    total = {i: np.sqrt(u[i]) * rng.standard_normal(samples) for i in range(n)}
    for i, j in itertools.combinations(range(n), 2):
        shared = np.sqrt(k[i, j]) * rng.standard_normal(samples)
        if colluder not in (i, j):
            total[i] = total[i] + shared
            total[j] = total[j] - shared
    seen = [i for i in range(n) if i not in (colluder, straggler)]
    sample = np.cov(np.array([total[i] for i in seen]))
    expected = noise_graph.covariance(u, k, colluders=[colluder], unseen=[straggler])
    tolerance = 6 * np.sqrt(2 / samples) * expected.max()
    assert np.abs(sample - expected).max() < tolerance
    assert np.abs(1.2**2 * sample - expected).max() > 3 * tolerance


def test_likelihood_ratio_roc_matches_mu_and_rejects_a_wrong_sigma() -> None:
    """From the adversary's seat: the best test on one client has the ROC of one Gaussian with sigma_eff (E2)."""
    rng = np.random.default_rng(11)
    n, colluders, unseen, shift, samples = 6, (4,), (2,), 1.5, 200_000
    u, k = random_network(5, n)
    c = noise_graph.covariance(u, k, colluders=colluders, unseen=unseen)
    factor = np.linalg.cholesky(c)
    weights = np.linalg.solve(c, np.eye(len(c))[0])  # the likelihood ratio is monotone in weights · y

    def power(scale: float) -> float:
        null = weights @ (scale * factor @ rng.standard_normal((len(c), samples)))
        other = weights @ (scale * factor @ rng.standard_normal((len(c), samples))) + weights[0] * shift
        threshold = np.quantile(null, 0.9)
        return float(np.mean(other > threshold))

    mu = shift / noise_graph.effective_noise(c)[0]
    expected = float(mpmath.ncdf(mu - 1.2815515655446004))
    spread = 5 * np.sqrt(0.25 / samples * 4)
    assert abs(power(1.0) - expected) < spread
    assert abs(power(0.8) - expected) > 2 * spread
    assert abs(power(1.2) - expected) > 2 * spread


def connected_without(adjacency: np.ndarray, removed: tuple[int, ...]) -> bool:
    left = [i for i in range(len(adjacency)) if i not in removed]
    reached, frontier = {left[0]}, [left[0]]
    while frontier:
        here = frontier.pop()
        for there in left:
            if adjacency[here, there] and there not in reached:
                reached.add(there)
                frontier.append(there)
    return len(reached) == len(left)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (5, 2), (6, 3), (7, 4), (8, 5), (9, 8), (10, 9)])
@pytest.mark.parametrize("seed", [0, 1])
def test_circulant_graphs_are_regular_and_as_connected_as_can_be(n: int, k: int, seed: int) -> None:
    a = Graph(n, k, seed).adjacency()
    assert np.array_equal(a, a.T)
    assert not a.diagonal().any()
    assert a.sum(axis=1).tolist() == [k] * n
    for removed in itertools.combinations(range(n), k - 1):
        if n - len(removed) > 1:
            assert connected_without(a, removed)


@pytest.mark.parametrize(("n", "k"), [(9, 2), (9, 4), (12, 5), (12, 10), (30, 7)])
def test_neighbours_on_the_ring_are_the_nearest_and_perhaps_the_opposite(n: int, k: int) -> None:
    graph = Graph(n, k, 3)
    seat = {client: at for at, client in enumerate(graph._seats.tolist())}
    apart = [[min((seat[i] - seat[j]) % n, (seat[j] - seat[i]) % n) for j in range(n)] for i in range(n)]
    near = [[j for j in range(n) if 0 < apart[i][j] <= k // 2 or (k % 2 and apart[i][j] == n // 2)] for i in range(n)]
    assert graph.neighbours().tolist() == near
    assert graph.rows([n - 1, 0]).tolist() == [near[n - 1], near[0]]
    flags = np.random.default_rng(k).random(n) < 0.6
    assert graph.degrees(flags).tolist() == [sum(flags[j] for j in row) for row in near]


def test_relabelling_depends_on_the_seed_and_on_nothing_else() -> None:
    assert np.array_equal(Graph(30, 4, 5).neighbours(), Graph(30, 4, 5).neighbours())
    assert not np.array_equal(Graph(30, 4, 5).neighbours(), Graph(30, 4, 6).neighbours())
    stream = hashlib.shake_256(b"lightdp graph v1" + bytes(7) + b"\x01").digest(64)
    expected = sorted(range(8), key=lambda i: stream[8 * i : 8 * i + 8])
    assert Graph(8, 2, 1)._seats.tolist() == expected == [2, 1, 3, 0, 7, 4, 5, 6]  # all clients must agree on it


def test_price_of_sparsity_is_what_the_certified_noise_says() -> None:
    n, k, colluders, gamma = 20, 6, 2, 1.7
    sparse = noise_graph.certified_noise(np.ones(n), gamma * Graph(n, k).adjacency(), colluders).min()
    whole = noise_graph.certified_noise(np.ones(n), oracles.star(n, gamma), colluders).min()
    assert noise_graph.price_of_sparsity(Graph(n, k), colluders, gamma) == pytest.approx(whole / sparse, rel=1e-12)
    assert noise_graph.price_of_sparsity(Graph(n, n - 1), colluders, gamma) == pytest.approx(1)


@pytest.mark.parametrize(
    "graph", [Graph(2, 1), Graph(7, 6, 3), Graph(12, 11), Graph(9, 2, 1), Graph(30, 5, 7), Graph(30, 4, 8)]
)
def test_the_neighbours_of_one_client_are_its_row(graph: Graph) -> None:
    for i, row in enumerate(graph.neighbours()):
        assert graph.neighbours_of(i).tolist() == row.tolist()
    for nobody in (-1, graph.clients):
        with pytest.raises(ArgumentError, match="client must"):
            graph.neighbours_of(nobody)


@pytest.mark.parametrize("degree", [2000, 19_999])
def test_the_neighbours_of_one_client_take_the_memory_of_a_row(degree: int) -> None:
    tracemalloc.start()
    try:
        assert len(Graph(20_000, degree).neighbours_of(7)) == degree
        assert tracemalloc.get_traced_memory()[1] < 4_000_000  # the whole graph takes 320 MB and 3.2 GB
    finally:
        tracemalloc.stop()


def test_more_colluders_than_neighbours_leave_local_noise() -> None:
    assert noise_graph.certified_noise(np.ones(6), 3.0 * Graph(6, 2).adjacency(), 4) == pytest.approx(np.ones(6))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Graph(1, 1), "clients must be >= 2, got clients=1"),
        (lambda: Graph(5, 5), r"degree must be in 1..4, got degree=5"),
        (lambda: Graph(5, 3), "degree must be even when clients=5 is odd, got degree=3"),
        (lambda: noise_graph.certified_noise([1, 1], [[0, 1], [2, 0]], 0), "pairwise must be symmetric"),
        (lambda: noise_graph.certified_noise([1, np.nan], [[0, 1], [1, 0]], 0), "individual must hold finite"),
        (
            lambda: noise_graph.certified_noise([1, 1], [[0, 1], [1, 0]], 2),
            r"colluders must be in 0..1, got colluders=2",
        ),
        (lambda: noise_graph.covariance([1, 1, 1], [[0, 1], [1, 0]]), "individual must be"),
    ],
)
def test_bad_arguments_are_named(call: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()  # type: ignore[operator]


def test_a_network_without_ground_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="no individual noise"):
        noise_graph.effective_noise([[1.0, -1.0], [-1.0, 1.0]])
