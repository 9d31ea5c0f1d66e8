from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from lightdp import stragglers
from lightdp.errors import ArgumentError
from lightdp.noise_graph import Graph


def test_uniform_gives_every_count_the_same_probability() -> None:
    law = stragglers.uniform(10)
    assert law.pmf.tolist() == pytest.approx([1 / 11] * 11)
    assert law.mean(lambda s: s) == pytest.approx(5)


@pytest.mark.parametrize(("bound", "clients", "p"), [(0, 5, 0.3), (5, 5, 0.3), (10, 50, 0.05), (300, 1000, 0.4)])
def test_binomial_is_the_truncated_binomial(bound: int, clients: int, p: float) -> None:
    expected = binom.pmf(np.arange(bound + 1), clients, p)
    assert stragglers.binomial(bound, clients, p).pmf == pytest.approx(expected / expected.sum(), rel=1e-9, abs=1e-300)


def test_binomial_of_a_million_clients_is_finite_and_sums_to_one() -> None:
    law = stragglers.binomial(200_000, 10**6, 0.15)
    assert math.isclose(law.pmf.sum(), 1)
    assert law.mean(lambda s: s) == pytest.approx(150_000, rel=1e-6)


def test_custom_is_padded_up_to_the_bound() -> None:
    assert stragglers.custom(3, [0.5, 0.5]).pmf.tolist() == [0.5, 0.5, 0, 0]


def test_laws_are_values() -> None:
    assert stragglers.uniform(1) == stragglers.custom(1, [0.5, 0.5])
    assert hash(stragglers.uniform(1)) == hash(stragglers.custom(1, [0.5, 0.5]))
    assert stragglers.uniform(1) != stragglers.uniform(2)
    with pytest.raises(ValueError, match="read-only"):
        stragglers.uniform(1).pmf[0] = 1


@pytest.mark.parametrize("rounds", [1, 7, 150])
@pytest.mark.parametrize("levels", [1, 4, 16])
def test_quantiles_never_have_fewer_stragglers_than_the_law(rounds: int, levels: int) -> None:
    law = stragglers.binomial(10, 50, 0.1)
    counts = law.quantiles(rounds, levels)
    assert sum(counts.values()) == rounds
    for s in range(11):  # stochastic dominance, on the private side
        assert sum(c for t, c in counts.items() if t <= s) <= rounds * law.pmf[: s + 1].sum() + 1e-9


def test_quantiles_of_very_many_rounds_take_no_memory() -> None:
    assert stragglers.uniform(3).quantiles(2**60, 4) == dict.fromkeys(range(4), 2**58)


@pytest.mark.parametrize(
    ("pmf", "message"),
    [
        ([0.5, 0.4], "pmf must sum to 1, got a sum of 0.9"),
        ([0.5, math.nan], "pmf must hold finite probabilities >= 0"),
        ([1.5, -0.5], "pmf must hold finite probabilities >= 0"),
        ([], "pmf must list 1 to 3 probabilities"),
        ([0.25] * 4, "pmf must list 1 to 3 probabilities for 0..2"),
    ],
)
def test_a_bad_pmf_is_refused(pmf: list[float], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        stragglers.custom(2, pmf)


def test_a_bad_failure_probability_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"failure must be in \(0, 1\), got failure=1"):
        stragglers.binomial(3, 10, 1.0)


def test_quantiles_of_no_round_are_none() -> None:
    assert stragglers.uniform(3).quantiles(0, 8) == {}


@pytest.mark.parametrize(("clients", "degree"), [(50, 49), (50, 22), (50, 3), (12, 11), (2000, 800)])
def test_stragglers_among_neighbours_follow_the_hypergeometric_law(clients: int, degree: int) -> None:
    law = stragglers.binomial(10, clients, 0.1)
    found = law.among(clients, degree)
    x = np.arange(min(10, degree) + 1)
    expected = sum(p * hypergeom.pmf(x, clients - 1, s, degree) for s, p in enumerate(law.pmf))
    assert found.pmf == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert found.mean(lambda s: s) == pytest.approx(law.mean(lambda s: s) * degree / (clients - 1))


def test_of_the_complete_graph_every_straggler_is_a_neighbour() -> None:
    law = stragglers.uniform(7)
    assert law.among(20, 19).pmf == pytest.approx(law.pmf)


def test_neighbours_of_used_clients_are_missing_as_often_as_on_a_real_graph() -> None:
    """The law of a client's absent neighbours in the rounds in which it is used, by playing rounds."""
    rng, law, graph = np.random.default_rng(0), stragglers.uniform(8), Graph(20, 6, seed=3)
    rounds, neighbours = 20_000, graph.neighbours()
    missing = rng.random((rounds, 20)).argsort(axis=1).argsort(axis=1) < rng.integers(0, 9, rounds)[:, None]
    absent = missing[:, neighbours].sum(axis=2)[~missing]  # of used clients
    share = np.bincount(absent, minlength=7) / len(absent)
    used = law.pmf * (1 - law.counts / 20)  # clients are used more often in rounds with few stragglers
    expected = stragglers.custom(8, used / used.sum()).among(20, 6).pmf
    bound = 6 * np.sqrt(expected * (1 - expected) / rounds)  # rounds are independent, clients of one are not
    assert np.all(np.abs(share - expected) <= bound)
    assert np.any(np.abs(share - law.pmf[:7]) > bound)  # not every straggler is a neighbour


@pytest.mark.parametrize("degree", [3_999, 600])
def test_a_law_with_many_counts_is_rounded_to_more_stragglers(monkeypatch: pytest.MonkeyPatch, degree: int) -> None:
    law = stragglers.binomial(1_500, 4_000, 0.3)
    found = law.among(4_000, degree)
    monkeypatch.setattr(stragglers, "_BLOCKS", 10_000)
    exact = law.among(4_000, degree)
    assert np.all(np.cumsum(found.pmf) <= np.cumsum(exact.pmf) + 1e-12)
    few, all_of_them = (each.mean(lambda s: s) for each in (exact, found))
    assert few < all_of_them < 1.003 * few


def test_the_worst_law_has_the_most_stragglers_in_every_round() -> None:
    assert stragglers.uniform(3).worst() == stragglers.custom(3, [0, 0, 0, 1])


def test_odds_are_means_of_the_law_for_each_number_of_clients() -> None:
    law = stragglers.binomial(20, 50, 0.2)
    for clients in (21, 50, 50, 21):
        each = [law.pmf[s] / (clients - s) for s in range(21)]
        assert law.odds(clients) == pytest.approx((math.fsum(s * x for s, x in enumerate(each)), math.fsum(each)))


def test_a_law_that_is_in_use_is_not_made_again_and_one_that_is_not_is_not_kept() -> None:
    law = stragglers.parse("binomial:0.2", bound=20, clients=50)
    assert stragglers.parse("binomial:0.2", bound=20, clients=50) is law
    for other in (("binomial:0.2", 20, 51), ("binomial:0.2", 21, 50), ("uniform", 20, 50)):
        assert stragglers.parse(*other) != law
    gone = weakref.ref(law)
    del law
    gc.collect()
    assert gone() is None
