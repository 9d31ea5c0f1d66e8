"""(S1): expanders that rosters place, and what a round on them gives."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import linalg
from scipy.stats import hypergeom

import lightdp
from lightdp.errors import ArgumentError
from lightdp.noise_graph import Graph, covariance, effective_noise
from lightdp.random_graph import BAD_DRAW, COVERED, DELTA_MAX, DRAWS, Certificate, RandomGraph, largest

SHAPES = [(60, 6), (97, 9), (200, 40), (300, 17), (50, 20), (1000, 30), (1000, 116)]


def placed(clients: int, degree: int, seed: int = 0) -> RandomGraph:
    return RandomGraph(clients, degree).placed(bytes([seed]) * 32)


@pytest.mark.parametrize(("clients", "degree"), SHAPES)
def test_graph_is_what_it_says(clients: int, degree: int) -> None:
    graph = placed(clients, degree, degree)
    matrix = graph.adjacency()
    assert np.array_equal(matrix, matrix.T)
    assert not matrix.diagonal().any()
    assert matrix.sum(axis=1).max() <= graph.reach
    assert np.linalg.eigvalsh(matrix.astype(float))[-2] <= graph.second + 1e-9
    assert matrix.sum() / clients / (clients - 1) == pytest.approx(graph.met, rel=0.05)
    assert 0.8 * degree <= matrix.sum() / clients <= 1.2 * degree
    flags = np.random.default_rng(degree).random(clients) < 0.7
    assert np.array_equal(graph.degrees(flags), matrix[:, flags].sum(axis=1))
    assert np.array_equal(graph.rows([3])[0], np.flatnonzero(matrix[3]))


@pytest.mark.parametrize(("clients", "degree"), [(97, 9), (200, 40), (1000, 116)])
def test_second_eigenvalue_of_all_seats_is_bounded(clients: int, degree: int) -> None:
    """With every seat taken nothing is cut away, and the bound is tight to a tenth where there is one layer."""
    shape = RandomGraph(clients, degree)
    full = _full(shape)
    found = np.linalg.eigvalsh(full)[-2]
    assert found <= shape.second * (1 + 1e-9)
    assert found >= 0.8 * shape.second
    assert np.linalg.eigvalsh(full)[-1] == pytest.approx(shape.reach)  # every row sums to it


def _full(shape: RandomGraph) -> np.ndarray:
    """The adjacency matrix of all seats with loops, from the defining equation alone."""
    q = shape.width
    matrix = np.zeros((shape.seats, shape.seats))
    for a in range(1, shape.height + 1):
        for b in range(q):
            for c in range(1, shape.height + 1):
                for layer in range(shape.layers):
                    d = (a * c + layer * (a * a + c * c) - b) % q
                    matrix[(a - 1) * q + b, (c - 1) * q + d] += 1
    assert matrix.max() == 1  # no two layers share an edge
    return matrix


def test_places_are_a_permutation_that_the_hash_decides() -> None:
    one, other = placed(500, 20, 1), placed(500, 20, 2)
    assert not np.array_equal(one.neighbours_of(0), other.neighbours_of(0))
    assert np.array_equal(one.neighbours_of(0), placed(500, 20, 1).neighbours_of(0))
    # a client's neighbours are evenly spread over all draws
    counts = np.zeros(60)
    draws = 4000
    for seed in range(draws):
        counts[RandomGraph(60, 6).placed(seed.to_bytes(32, "big")).neighbours_of(0)] += 1
    expected = draws * RandomGraph(60, 6).met
    assert counts[0] == 0
    assert np.abs(counts[1:] - expected).max() < 6 * math.sqrt(expected)


def test_neighbours_need_a_place() -> None:
    with pytest.raises(ArgumentError, match="placed by the hash"):
        RandomGraph(500, 20).neighbours_of(0)
    with pytest.raises(ArgumentError, match="degree=300"):
        RandomGraph(500, 300)
    with pytest.raises(ArgumentError, match="place"):
        RandomGraph(500, 20).placed(b"short")


@pytest.mark.parametrize("chance", [1e-3, 1e-12, 1e-30])
def test_largest_number_of_colluders_is_that_of_the_hypergeometric_law(chance: float) -> None:
    for seats, marked, drawn in ((1001, 100, 60), (100_300, 10_000, 128), (50, 3, 20), (1000, 0, 20)):
        x = largest(seats, marked, drawn, chance)
        assert _tail(seats - 1, marked, drawn, x) <= chance
        assert x == 0 or 1.05 * _tail(seats - 1, marked, drawn, x - 1) > chance


def _tail(population: int, marked: int, drawn: int, x: int) -> float:
    """P(X > x), with mpmath."""
    terms = (
        mpmath.binomial(marked, y) * mpmath.binomial(population - marked, drawn - y)
        for y in range(x + 1, min(marked, drawn) + 1)
    )
    return float(mpmath.fsum(terms) / mpmath.binomial(population, drawn))


def test_a_bad_draw_is_covered() -> None:
    """The factor on μ² leaves more of δ to the Gaussian's tail than bad draws take, at every ε and δ (S1)."""
    for delta in (1e-12, 1e-9, 1e-5, DELTA_MAX):
        for epsilon in (1e-6, 0.01, 0.5, 3.0, 30.0, 1000.0):
            mu = lightdp.gaussian.mu(epsilon, delta)
            with mpmath.workdps(50):
                left = _delta(epsilon, mu / math.sqrt(COVERED))
                assert left + BAD_DRAW * delta <= _delta(epsilon, mu)
    graph = RandomGraph(10_000, 198)
    near = graph.colluding(1000, 1e-5)
    bad = DRAWS * 10_000 * hypergeom.sf(near, graph.seats - 1, 1000, graph.reach)
    assert bad <= BAD_DRAW * 1e-5 < 100 * DRAWS * 10_000 * hypergeom.sf(near - 1, graph.seats - 1, 1000, graph.reach)


def _delta(epsilon: float, mu: float) -> mpmath.mpf:
    e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("gamma", [0.3, 5.0, 80.0])
@pytest.mark.parametrize("stragglers", ["random", "neighbours", "row"])
def test_certificate_bounds_the_exact_cost(gamma: float, stragglers: str) -> None:
    """Against the inverse of the covariance, for every honest client that was used, random and chosen stragglers."""
    rng = np.random.default_rng(5)
    for clients, degree, colluders, away in ((400, 60, 20, 30), (900, 29, 20, 20), (300, 100, 30, 30)):
        graph = placed(clients, degree, 7)
        matrix = graph.adjacency()
        bad = rng.choice(clients, colluders, replace=False)
        if stragglers == "random":
            missing = rng.choice(clients, away, replace=False)
        elif stragglers == "neighbours":  # of one client, as many as may be
            missing = graph.neighbours_of(0)[:away]
        else:  # seats of one row
            missing = np.argsort(graph._seating[0])[:away]
        used = np.ones(clients, dtype=bool)
        used[missing] = False
        near = int(matrix[:, bad].sum(axis=1).max())
        degrees = graph.degrees(used)
        certificate = graph.certificate(int(used.sum()), int(degrees[used].min()), colluders, near)
        honest = used.copy()
        honest[bad] = False
        exact = _costs(matrix[np.ix_(honest, honest)], gamma)
        bound = certificate.cost(gamma, degrees[honest] - near)
        assert (exact <= bound).all()
        if certificate.spread > 5:
            assert bound.max() < 4 * exact.max()  # and it is no empty bound


def _costs(matrix: np.ndarray, gamma: float) -> np.ndarray:
    return 1 / effective_noise(covariance(np.ones(len(matrix)), gamma * matrix)) ** 2


def test_certificate_on_ten_thousand_clients_by_a_sparse_solver() -> None:
    graph, rng, gamma = placed(10_000, 198, 3), np.random.default_rng(2), 50.0
    bad = rng.choice(10_000, 1000, replace=False)
    used = np.ones(10_000, dtype=bool)
    used[rng.choice(10_000, 1000, replace=False)] = False
    honest = used.copy()
    honest[bad] = False
    kept = np.flatnonzero(honest)
    place = np.full(10_000, -1)
    place[kept] = np.arange(len(kept))
    rows = [place[graph.neighbours_of(client)] for client in kept.tolist()]
    rows = [row[row >= 0] for row in rows]
    indices = np.concatenate(rows)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    matrix = sparse.csr_matrix((np.ones(len(indices)), indices, starts), shape=(len(kept), len(kept)))
    system = sparse.identity(len(kept)) + gamma * (sparse.diags(np.asarray(matrix.sum(axis=1)).ravel()) - matrix)
    degrees = graph.degrees(used)
    near = graph.colluding(1000, 1e-5)
    certificate = graph.certificate(int(used.sum()), int(degrees[used].min()), 1000, near)
    lowest = np.argsort(np.asarray(matrix.sum(axis=1)).ravel())[:3]
    for at in lowest:
        unit = np.zeros(len(kept))
        unit[at] = 1
        solution, failed = linalg.cg(system, unit, rtol=1e-10, maxiter=2000)
        assert failed == 0
        bound = float(certificate.cost(gamma, degrees[kept[at]] - near))
        assert solution[at] <= bound <= 4 * solution[at]


def test_certificate_without_spread_is_the_star() -> None:
    star = Certificate(others=500, spread=-3.0).cost(4.0, [9])
    assert star == pytest.approx((1 + 4) / (10 * 4 + 1) * COVERED)
    assert Certificate(others=500, spread=8.0).cost(0.0, [9]) == 1
    assert Certificate(others=500, spread=8.0).cost(4.0, [-2, 0]).tolist() == [1.0, 1.0]


def test_plans_of_random_graphs_reach_their_goals() -> None:
    """Less than twice the complete graph's noise, whether or not late uploads are seen (S1)."""
    for clients, degree in ((1000, 116), (10_000, 198), (100_000, 284)):
        asked: dict[str, Any] = {
            "clients": clients, "colluders": clients // 10, "stragglers": clients // 10, "rounds": 150, "epsilon": 3,
            "delta": 1e-5, "unit": "client", "calibration": "repair",
        }  # fmt: skip
        late: Any
        for late, most in (("unseen", 1.36), (None, 2.0)):
            whole, found = lightdp.plan(**asked, late=late), lightdp.plan(**asked, late=late, graph=f"random:{degree}")
            assert 1 < found.noise_carried() / whole.noise_carried() < most
            assert found.epsilon() <= 3
            assert lightdp.Plan.from_json(found.to_json()).digest() == found.digest() != whole.digest()


def test_auto_takes_the_least_degree_that_is_near_the_complete_graph() -> None:
    asked: dict[str, Any] = {
        "colluders": 100,
        "stragglers": 100,
        "rounds": 50,
        "epsilon": 3,
        "delta": 1e-5,
        "late": "unseen",
    }
    assert lightdp.plan(clients=1000, **asked, graph="auto").graph.complete
    found = lightdp.plan(clients=5000, **asked, graph="auto")
    whole = lightdp.plan(clients=5000, **asked)
    assert found.graph.random
    assert found.noise_carried() <= 1.25 * whole.noise_carried()
    fewer = lightdp.plan(clients=5000, **asked, graph=f"random:{found.graph.degree - 12}")
    assert fewer.noise_carried() > 1.25 * whole.noise_carried()


@pytest.mark.parametrize("graph", ["random", "random:10:3", "auto:3", "ring", 7])
def test_names_of_no_graph_are_refused(graph: Any) -> None:
    with pytest.raises(ArgumentError, match="graph must be"):
        lightdp.plan(clients=50, colluders=5, stragglers=5, rounds=5, epsilon=3, delta=1e-5, graph=graph)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sampling_rate": 0.1}, "sampling_rate"),
        ({"delta": 0.1}, "delta"),
        ({"calibration": "local"}, "calibration"),
        ({"graph_seed": 3}, "graph_seed"),
    ],
)
def test_what_random_graphs_cannot_is_refused(changed: dict[str, object], named: str) -> None:
    asked: dict[str, Any] = {"clients": 500, "colluders": 5, "stragglers": 5, "rounds": 5, "epsilon": 3, "delta": 1e-5}
    with pytest.raises(ArgumentError, match=named):
        lightdp.plan(**asked | {"degree": 40, "random": True} | changed)


def test_degrees_of_other_graphs_are_counted_alike() -> None:
    flags = np.random.default_rng(0).random(12) < 0.6
    for graph in (Graph(12, 11), Graph(12, 4, 5)):
        assert np.array_equal(graph.degrees(flags), graph.adjacency()[:, flags].sum(axis=1))


def test_degrees_are_counted_once_and_for_the_right_set() -> None:
    graph, other = (RandomGraph(clients=100, degree=20).placed(bytes([k]) * 32) for k in range(2))
    draw = np.random.default_rng(1)
    for _ in range(8):
        flags = draw.random(100) < 0.8
        for each in (graph, other):
            expected = each.adjacency().astype(np.int64) @ flags
            assert np.array_equal(each.degrees(flags), expected)
            assert each.degrees(flags.tolist()) is each.degrees(flags)
            with pytest.raises(ValueError, match="read-only"):
                each.degrees(flags)[0] = 0
    with pytest.raises(ArgumentError, match="a flag for each of 100 clients"):
        graph.degrees(np.ones(104, np.bool_))  # as many bytes of bits
