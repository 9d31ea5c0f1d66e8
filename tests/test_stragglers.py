from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from lightdp import stragglers
from lightdp.errors import ArgumentError


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
