from __future__ import annotations

import math
from typing import TYPE_CHECKING

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lightdp import gaussian
from lightdp.errors import ArgumentError
from support import oracles

if TYPE_CHECKING:
    from collections.abc import Callable

EPSILONS = st.one_of(st.just(0.0), st.floats(1e-6, 1000), st.floats(-6, 3).map(lambda x: 10**x))
DELTAS = st.one_of(st.floats(1e-300, 1, exclude_max=True), st.floats(-300, -1e-9).map(lambda x: 10**x))


@given(epsilon=EPSILONS, log_mu=st.floats(-8, 2.5))
@settings(max_examples=300, deadline=None)
def test_log_delta_errs_by_less_than_a_tenth_of_its_slack(epsilon: float, log_mu: float) -> None:
    mu = 10**log_mu
    assume(epsilon / mu - mu / 2 < 45)
    exact = oracles.delta(epsilon, mu)
    assume(exact < 1 - mpmath.mpf(10) ** -14)
    true = float(mpmath.log(exact))
    assert abs(gaussian._log_delta(epsilon, mu) - true) <= 0.1 * gaussian._SLACK * max(1.0, -true)


@given(epsilon=EPSILONS, delta=DELTAS)
@settings(max_examples=200, deadline=None)
def test_mu_is_on_the_private_side_exactly_and_tight(epsilon: float, delta: float) -> None:
    mu = gaussian.mu(epsilon, delta)
    assert oracles.delta(epsilon, mu) <= delta
    if delta < 0.9:
        assert oracles.delta(epsilon, mu * (1 + 1e-8)) > delta


@given(epsilon=EPSILONS, delta=DELTAS)
@settings(max_examples=200, deadline=None)
def test_mu_to_report_is_on_the_other_side_exactly_and_tight(epsilon: float, delta: float) -> None:
    mu = gaussian.mu(epsilon, delta, up=True)
    if mu == math.inf:
        assert delta > 1 - 1e-9
    else:
        assert oracles.delta(epsilon, mu) >= delta
        if delta < 0.9:
            assert oracles.delta(epsilon, mu * (1 - 1e-8)) < delta


@given(log_mu=st.floats(-6, 2), delta=st.floats(1e-12, 0.5))
@settings(max_examples=100, deadline=None)
def test_the_mu_of_an_epsilon_covers_the_noise_that_the_epsilon_is_of(log_mu: float, delta: float) -> None:
    assert gaussian.mu(gaussian.epsilon(10**log_mu, delta), delta, up=True) >= 10**log_mu


@given(log_mu=st.floats(-6, 2), false_positives=st.floats(-300, -0.3).map(lambda x: 10**x))
@settings(max_examples=200, deadline=None)
def test_power_is_that_of_the_likelihood_ratio_test_rounded_up_and_tight(log_mu: float, false_positives: float) -> None:
    exact = oracles.power(10**log_mu, false_positives)
    found = gaussian.power(10**log_mu, false_positives)
    assert found >= exact or found == 1
    assert found <= float(exact) * (1 + 1e-10)


def test_power_is_the_best_of_all_epsilons() -> None:
    """TPR <= δ + e^ε FPR for every ε, with equality at the best one; a 1 % smaller μ falls below the least of them."""
    bounds = [gaussian.delta(e, 1.3) + math.exp(e) * 0.01 for e in np.linspace(0, 8, 4001)]
    assert min(bounds) == pytest.approx(gaussian.power(1.3, 0.01), rel=1e-6)
    assert min(bounds) > gaussian.power(0.99 * 1.3, 0.01) * 1.01


@given(log_mu=st.floats(-6, 2), delta=DELTAS)
@settings(max_examples=200, deadline=None)
def test_epsilon_is_on_the_private_side_exactly_and_tight(log_mu: float, delta: float) -> None:
    mu = 10**log_mu
    epsilon = gaussian.epsilon(mu, delta)
    assert oracles.delta(epsilon, mu) <= delta
    if epsilon > 1e-6 and delta < 0.9:
        assert oracles.delta(epsilon * (1 - 1e-6), mu) > delta


@given(log_mu=st.floats(2, 9), delta=st.floats(-300, -1e-3).map(lambda x: 10**x))
@settings(max_examples=100, deadline=None)
def test_huge_epsilons_are_on_the_private_side_too(log_mu: float, delta: float) -> None:
    epsilon = gaussian.epsilon(10**log_mu, delta)
    mu = gaussian.mu(epsilon, delta)
    assert oracles.delta(epsilon, 10**log_mu) <= delta
    assert oracles.delta(epsilon, mu) <= delta
    assert mu == pytest.approx(10**log_mu, rel=1e-9)


@given(epsilon=EPSILONS, log_mu=st.floats(-6, 2))
@settings(max_examples=200, deadline=None)
def test_delta_rounds_up_exactly(epsilon: float, log_mu: float) -> None:
    mu = 10**log_mu
    assert gaussian.delta(epsilon, mu) >= oracles.delta(epsilon, mu)


@given(epsilon=st.floats(1e-3, 1000), delta=st.floats(1e-300, 0.99))
@settings(deadline=None)
def test_epsilon_inverts_mu(epsilon: float, delta: float) -> None:
    assert gaussian.epsilon(gaussian.mu(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-9)


def test_limits() -> None:
    assert gaussian.delta(1.0, 0.0) == 0.0
    assert gaussian.delta(1000.0, 1e-3) == 5e-324  # an underflow must not claim pure DP
    assert gaussian.delta(1.0, math.inf) == 1.0
    assert gaussian.epsilon(0.0, 1e-5) == 0.0
    assert gaussian.epsilon(math.inf, 1e-5) == math.inf
    assert gaussian.epsilon(5.0, 1.0) == 0.0
    assert gaussian.mu(1.0, 1.0) == math.inf
    assert gaussian.mu(1.0, 1.0, up=True) == math.inf
    assert gaussian.mu(math.inf, 1e-5) == gaussian.mu(math.inf, 1e-5, up=True) == math.inf
    assert gaussian.power(0.0, 0.01) == pytest.approx(0.01, rel=1e-11)
    assert gaussian.power(math.inf, 0.01) == 1.0
    assert gaussian.power(50.0, 0.01) == 1.0
    assert gaussian.mu(0.0, 0.5) == pytest.approx(2 * 0.6744897501960817, rel=1e-9)  # 2 Φ⁻¹(3/4)


@pytest.mark.parametrize("multiplier", [0.7, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("rounds", [1, 150])
def test_epsilon_agrees_with_dp_accounting_and_is_never_above_its_pessimistic_estimate(
    multiplier: float, rounds: int
) -> None:
    theirs = pld.from_gaussian_mechanism(multiplier).self_compose(rounds).get_epsilon_for_delta(1e-5)
    ours = gaussian.epsilon(math.sqrt(rounds) / multiplier, 1e-5)
    assert ours == pytest.approx(theirs, abs=1e-3)
    assert ours <= theirs


def test_delta_is_the_power_of_the_best_test_by_simulation() -> None:
    """E[(1 − e^(ε − L))₊] over the privacy loss L ~ N(mu²/2, mu²) is delta; a 20 % wrong mu is rejected."""
    rng = np.random.default_rng(1)
    mu, epsilon, samples = 1.3, 0.8, 400_000

    def simulated(true_mu: float) -> float:
        loss = true_mu**2 / 2 + true_mu * rng.standard_normal(samples)
        return float(np.mean(np.maximum(0, -np.expm1(epsilon - loss))))

    spread = 5 / math.sqrt(samples)
    assert abs(simulated(mu) - gaussian.delta(epsilon, mu)) < spread
    assert abs(simulated(1.2 * mu) - gaussian.delta(epsilon, mu)) > 3 * spread


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian.mu(-1, 1e-5), "epsilon must be >= 0, got epsilon=-1"),
        (lambda: gaussian.mu(math.nan, 1e-5), "epsilon must be finite, got epsilon=nan"),
        (lambda: gaussian.mu(1, 0), r"delta must be in \(0, 1\], got delta=0"),
        (lambda: gaussian.epsilon(1, 1.5), r"delta must be in \(0, 1\], got delta=1.5"),
        (lambda: gaussian.epsilon(-1, 0.1), "mu must be >= 0, got mu=-1"),
        (lambda: gaussian.epsilon(-1, 1.0), "mu must be >= 0, got mu=-1"),
        (lambda: gaussian.delta(1.0, -1), "mu must be >= 0, got mu=-1"),
        (lambda: gaussian.power(-1, 0.01), "mu must be >= 0, got mu=-1"),
        (lambda: gaussian.power(1, 0), r"false_positives must be in \(0, 1\), got false_positives=0"),
        (lambda: gaussian.mu("3", 1e-5), "epsilon must be a number, got epsilon='3'"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_named(call: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 3.0])
@pytest.mark.parametrize("delta", [5e-324, 1e-322, 1e-310])
def test_deltas_that_are_no_normal_floats_have_a_mu(epsilon: float, delta: float) -> None:
    mu = gaussian.mu(epsilon, delta)
    assert 0 <= mu < 10
    assert mu == 0 or gaussian.log_delta(epsilon, mu) <= math.log(delta)


def test_the_least_mu_has_a_delta() -> None:
    assert 0 < gaussian.delta(0.0, 5e-324) < 1e-320


@pytest.mark.parametrize(
    ("function", "low", "high", "root"),
    [
        (lambda x: x**3 - 2, 0.0, 2.0, 2 ** (1 / 3)),
        (lambda x: math.exp(x) - 1e-5, -20.0, 1.0, math.log(1e-5)),
        (lambda x: 1.0 if x > 0.3 else -1.0, 0.0, 1.0, 0.3),
        (lambda x: (x - 1) ** 9, 0.0, 3.7, 1.0),
        (lambda x: math.atan(x - 1e-20), 0.0, 1.0, 1e-20),
        (lambda x: 1e-5 - x, 1.0, 0.0, 1e-5),
    ],
)
def test_roots_are_found_to_the_last_digits_in_few_steps(
    function: Callable[[float], float], low: float, high: float, root: float
) -> None:
    asked: list[float] = []
    found = gaussian._root(lambda x: asked.append(x) or function(x), low, high)  # type: ignore[func-returns-value]
    assert found == pytest.approx(root, rel=1e-15, abs=0)
    assert len(asked) < 150
