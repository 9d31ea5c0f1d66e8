from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from lightdp import gaussian, privacy_loss, sampling
from lightdp.errors import InfeasibleError
from lightdp.privacy_loss import Direction, Losses, SmoothLosses, _sampled


def test_epsilon_of_mixed_rounds_agrees_with_the_accountant_of_dp_accounting() -> None:
    accountant = PLDAccountant()
    for z, count in ((1.5, 40), (2.5, 60)):
        accountant.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(z)), count)
    ours = sampling.epsilon({1.5: 40, 2.5: 60, 9.0: 0}, rate=0.1, delta=1e-5, adjacency="add-remove")
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-3)


@pytest.mark.parametrize(("adjacency", "sensitivity"), [("add-remove", 1.0), ("replace", 2.0)])
def test_whole_batches_are_plain_gaussian_noise(adjacency: sampling.Adjacency, sensitivity: float) -> None:
    theirs = sampling.epsilon({8.0: 50}, rate=1.0, delta=1e-5, adjacency=adjacency)
    exact = gaussian.epsilon(math.sqrt(50) * sensitivity / 8, 1e-5)
    assert exact <= theirs <= exact + 1e-3


@pytest.mark.parametrize(("z", "count", "delta"), [(5.0, 100, 1e-12), (10.0, 1000, 1e-11), (300.0, 10_000, 4e-11)])
def test_small_deltas_are_never_below_the_exact_epsilon(z: float, count: int, delta: float) -> None:
    """Rounding errors of Fourier transforms are covered: the first composition is short by 1e-4 without that."""
    theirs = sampling.epsilon({z: count}, rate=1.0, delta=delta, adjacency="add-remove")
    exact = gaussian.epsilon(math.sqrt(count) / z, delta)
    assert exact <= theirs <= exact * 1.03


@pytest.mark.parametrize(("count", "delta"), [(1, 1e-13), (150, 1e-15), (10_000, 1e-11)])
def test_deltas_that_floating_point_cannot_tell_are_refused(count: int, delta: float) -> None:
    with pytest.raises(InfeasibleError, match=rf"delta must be >= .* for {count} sampled rounds, got delta={delta:g}"):
        sampling.noise_multiplier(3.0, rounds={1.0: count}, rate=0.05, delta=delta, adjacency="add-remove")


def test_coarse_estimates_are_more_pessimistic() -> None:
    fine = sampling.epsilon({2.0: 100}, rate=0.1, delta=1e-5, adjacency="add-remove")
    assert fine <= sampling.epsilon({2.0: 100}, rate=0.1, delta=1e-5, adjacency="add-remove", coarse=8) < fine * 1.01


def test_no_rounds_cost_nothing() -> None:
    assert sampling.epsilon({}, rate=0.1, delta=1e-5, adjacency="add-remove") == 0


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_noise_multiplier_keeps_the_target_and_is_tight(adjacency: sampling.Adjacency) -> None:
    rounds = {1.0: 60, 1.3: 40}
    z = sampling.noise_multiplier(2.0, rounds=rounds, rate=0.05, delta=1e-5, adjacency=adjacency)
    for factor, keeps in ((1.0, True), (0.995, False)):
        scaled = {factor * z * f: c for f, c in rounds.items()}
        assert (sampling.epsilon(scaled, rate=0.05, delta=1e-5, adjacency=adjacency) <= 2.0) is keeps


def test_a_direction_is_composed_finely_only_where_it_may_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled rarely, a record more reveals far less than one less; nearly always, about as much."""
    asked: list[tuple[Direction, float]] = []
    original = sampling._composed.__wrapped__

    def counted(kinds: sampling._Kinds, rate: float, direction: Direction, step: float) -> Losses:
        asked.append((direction, step))
        return original(kinds, rate, direction, step)

    monkeypatch.setattr(sampling, "_composed", counted)
    directions: tuple[Direction, ...] = ("remove", "add")
    for rate, finely in ((0.01, False), (1 - 1e-9, True)):
        asked.clear()
        found = sampling.epsilon({2.0: 100}, rate=rate, delta=1e-5, adjacency="add-remove")
        step = sampling._step({2.0: 100}, rate)
        assert [("remove", step) in asked, ("add", step) in asked] == [True, finely]
        both = [original(((2.0, 100),), rate, each, step) for each in directions]
        assert found == max(each.epsilon(1e-5 - 100 * 2.0**-50) for each in both)


def test_noise_does_not_depend_on_what_was_asked_before() -> None:
    def noise(target: float, rounds: dict[float, int]) -> float:
        return sampling.noise_multiplier(target, rounds=rounds, rate=0.05, delta=1e-5, adjacency="add-remove")

    first = noise(2.0, {1.0: 60, 1.3: 40})
    for target in (1.9, 2.1, 0.3):
        noise(target, {1.0: 60, 1.3: 40})
    assert noise(2.0, {1.3: 40, 1.0: 60}) == first
    for cache in (sampling._noise_multiplier, sampling._composed, sampling._sampled):
        cache.cache_clear()
    assert noise(2.0, {1.3: 40, 1.0: 60}) == first


PINNED = [
    (0.1, {1.0: 150}, "add-remove", 2.6536802576763363),
    (0.16, {6.0: 200, 5.3: 200, 2.1: 1}, "add-remove", 1.1678201800326926),
    (0.01, {1.0: 1000}, "replace", 1.2966012116356256),
]


@pytest.mark.parametrize(("rate", "rounds", "adjacency", "expected"), PINNED)
def test_noise_is_what_plans_of_before_have(
    rate: float, rounds: dict[float, int], adjacency: sampling.Adjacency, expected: float
) -> None:
    """To nine digits, which the digest of a plan binds: another number refuses every state that was kept."""
    found = sampling.noise_multiplier(2.0, rounds=rounds, rate=rate, delta=1e-5, adjacency=adjacency)
    assert f"{found:.9g}" == f"{expected:.9g}"


def test_a_generous_target_stops_at_the_least_noise_that_is_resolved() -> None:
    z = sampling.noise_multiplier(500.0, rounds={1.0: 2}, rate=0.01, delta=1e-5, adjacency="add-remove")
    assert z == pytest.approx(0.3)


def test_epsilon_bounds_the_simulated_privacy_loss() -> None:
    """delta(ε) of one sampled round by simulation is what the PLD says; a 20 % wrong z is rejected."""
    rng = np.random.default_rng(2)
    z, rate, delta, samples = 1.0, 0.2, 0.02, 1_000_000
    epsilon = sampling.epsilon({z: 1}, rate=rate, delta=delta, adjacency="add-remove")

    def simulated(true_z: float) -> float:
        hit = rng.uniform(size=samples) < rate
        y = hit + true_z * rng.standard_normal(samples)
        loss = np.log1p(rate * np.expm1((2 * y - 1) / (2 * true_z**2)))
        return float(np.mean(np.maximum(0, -np.expm1(epsilon - loss))))

    assert simulated(z) == pytest.approx(delta, abs=0.001)
    assert simulated(0.8 * z) > delta + 0.005


@pytest.mark.parametrize(("count", "multiplier"), [(10**4, 0.3), (10**6, 0.3), (10**6, 1.3)])
def test_many_rounds_with_little_noise_are_composed_in_bounded_memory(count: int, multiplier: float) -> None:
    spread = math.sqrt(count) / multiplier  # of the loss of whole batches
    assert spread / sampling._step({multiplier: count}, rate=1.0) < 2**18


@pytest.mark.parametrize(("rounds", "adjacency"), [({0.3: 1, 1e4: 1}, "add-remove"), ({0.3: 1, 1e4: 10**5}, "replace")])
def test_noise_of_very_different_sizes_is_composed_in_bounded_memory(
    rounds: dict[float, int], adjacency: sampling.Adjacency
) -> None:
    step = sampling._step(rounds, rate=1e-6)
    for direction in privacy_loss.directions(adjacency, 1e-6):
        found = sampling._composed(tuple(sorted(rounds.items())), 1e-6, direction, step)
        size = found.size if isinstance(found, SmoothLosses) else found.masses.size
        assert size <= 2 * sampling._POINTS + 1
    alone = sampling.epsilon({0.3: 1}, rate=1e-6, delta=1e-9, adjacency=adjacency)
    assert sampling.epsilon(rounds, rate=1e-6, delta=1e-9, adjacency=adjacency) >= alone * (1 - 1e-6)


def test_noise_that_is_next_to_nothing_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"noise multipliers must be >= 0.01 .* got 0.0001"):
        sampling.epsilon({1e-4: 10}, rate=0.01, delta=1e-5, adjacency="add-remove")


def test_coarser_steps_are_pessimistic_and_hardly_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = {1.3: 4000}
    monkeypatch.setattr(_sampled, "_WHOLE", 2**30)  # thinned grids have errors of their own
    for kept in ("_sampled", "_composed"):
        monkeypatch.setattr(sampling, kept, getattr(sampling, kept).__wrapped__)
    fine = sampling.epsilon(rounds, rate=0.5, delta=1e-5, adjacency="add-remove")
    monkeypatch.setattr(sampling, "_POINTS", 2**18)
    coarse = sampling.epsilon(rounds, rate=0.5, delta=1e-5, adjacency="add-remove")
    assert fine < coarse < fine * (1 + 1e-4)


def test_more_sampled_rounds_than_were_ever_checked_are_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"rounds must be <= 1000000 .* got rounds=1000001"):
        sampling.epsilon({1.0: 10**6, 2.0: 1}, rate=0.5, delta=0.1, adjacency="add-remove")


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_delta_is_never_below_the_exact_one_and_inverts_epsilon(epsilon: float) -> None:
    whole = sampling.delta({2.0: 16}, rate=1.0, epsilon=epsilon, adjacency="add-remove")
    assert gaussian.delta(epsilon, 2.0) <= whole <= gaussian.delta(epsilon, 2.0) + 1e-3
    sampled = sampling.delta({2.0: 50}, rate=0.1, epsilon=epsilon, adjacency="add-remove")
    assert sampled < whole
    if epsilon > 0:
        back = sampling.epsilon({2.0: 50}, rate=0.1, delta=sampled, adjacency="add-remove")
        assert back == pytest.approx(epsilon, abs=1e-3)


def test_no_rounds_have_no_delta() -> None:
    assert sampling.delta({1.0: 0}, rate=0.1, epsilon=0.0, adjacency="replace") == 0
