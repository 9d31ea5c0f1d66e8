"""`lightdp.privacy_loss` against dp-accounting, which computes the same in loops, and against exact tails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.stats import norm

from lightdp import privacy_loss
from lightdp.privacy_loss import (
    Adjacency,
    Direction,
    LossDistribution,
    Losses,
    SmoothLosses,
    _composition,
    _sampled,
    composed,
)

STEP = 2.0**-8
RELATIONS = {"add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace": NeighboringRelation.REPLACE_ONE}
RATES = 0.001, 0.1, 0.9, 1.0
KINDS = [(z, rate, adjacency) for z in (0.7, 3.0) for rate in RATES for adjacency in ("add-remove", "replace")]


def theirs(z: float, rate: float, adjacency: Adjacency) -> PrivacyLossDistribution:
    return from_gaussian_mechanism(
        z, sampling_prob=rate, neighboring_relation=RELATIONS[adjacency], value_discretization_interval=STEP
    )


def ours(z: float, rate: float, adjacency: Adjacency, step: float = STEP) -> list[LossDistribution]:
    directions = privacy_loss.directions(adjacency, rate)
    return [privacy_loss.sampled(z, rate=rate, direction=each, step=step) for each in directions]


def written(losses: Losses) -> LossDistribution:
    return losses.written() if isinstance(losses, SmoothLosses) else losses


def in_extended_precision(kinds: list[tuple[LossDistribution, int]], places: NDArray[np.int64]) -> Any:
    """Probabilities of the sums of losses at these places, by transforms of 80 bits."""
    length = next_fast_len(places.size, real=True)
    product = np.ones(length // 2 + 1, np.clongdouble)
    for kind, count in kinds:
        wrapped = np.zeros(length, np.longdouble)
        np.add.at(wrapped, kind.places % length, kind.masses)
        product *= rfft(wrapped) ** count
    return np.roll(irfft(product, length), -(int(places[0]) % length))[: places.size]


@pytest.mark.parametrize(("z", "rate", "adjacency"), KINDS)
def test_composed_rounds_have_the_epsilon_and_delta_of_dp_accounting(
    z: float, rate: float, adjacency: Adjacency
) -> None:
    """A single round, many of a kind, and many of two kinds; theirs lack up to 2.5e-14 a round, by a rounded e^step."""
    one, two = theirs(z, rate, adjacency), theirs(1.5 * z, rate, adjacency)
    first, second = (ours(each, rate, adjacency) for each in (z, 1.5 * z))
    many = [composed([(each, 40)]) for each in first]
    mixed = [composed([(left, 40), (right, 7)]) for left, right in zip(first, second, strict=True)]
    oracles = one, one.self_compose(40), one.self_compose(40).compose(two.self_compose(7))
    every: list[Sequence[Losses]] = [first, many, mixed]
    for oracle, own in zip(oracles, every, strict=True):
        for epsilon in (0.0, 0.3, 2.0):
            assert max(each.delta(epsilon) for each in own) == pytest.approx(
                oracle.get_delta_for_epsilon(epsilon), abs=2e-12
            )
        for delta in (1e-7, 1e-3, 0.6):
            assert max(each.epsilon(delta) for each in own) == pytest.approx(
                oracle.get_epsilon_for_delta(delta), rel=1e-7, abs=1e-9
            )


@pytest.mark.parametrize(("rate", "z"), [(0.001, 0.7), (0.1, 1.5), (1.0, 9.0)])
@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
def test_some_points_of_a_large_grid_bound_all_of_them_and_hardly_differ(
    monkeypatch: pytest.MonkeyPatch, direction: Direction, rate: float, z: float
) -> None:
    """δ(ε) of one round and ε(δ) of many; with an eighth of the points, ε would be told apart."""
    step = 2.0**-12

    def losses(whole: int, dots: int) -> LossDistribution:
        monkeypatch.setattr(_sampled, "_WHOLE", whole)
        monkeypatch.setattr(_sampled, "_DOTS", dots)
        return privacy_loss.sampled(z, rate=rate, direction=direction, step=step)

    whole, some, few = losses(2**20, 1), losses(2**10, 2**11), losses(2**10, 2**8)
    assert some.places.size < whole.places.size / 2
    assert some.places[[0, -1]].tolist() == whole.places[[0, -1]].tolist()
    with np.errstate(divide="ignore"):
        places = whole.places[:: 2**5]
        exact = np.minimum(_sampled._deltas(direction, places, step, z, rate), 1)
    assert all(some.delta(place * step) >= each - 1e-12 for place, each in zip(places, exact, strict=True))
    for delta in (1e-9, 1e-5, 1e-2):
        least, own, most = (composed([(each, 100)]).epsilon(delta) for each in (whole, some, few))
        assert own == pytest.approx(least, rel=1e-4, abs=2e-6)
        assert own >= least * (1 - 1e-6) - 1e-7
        assert most == 0 or most > own + 1e-6


COMPOSED = [(0.1, {2.5: 150}), (0.01, {0.9: 600, 1.1: 400}), (0.001, {0.6: 10_000}), (1.0, {10.0: 1000})]


@pytest.mark.parametrize(("rate", "rounds"), COMPOSED)
def test_errors_of_transforms_are_below_a_fifth_of_what_is_allowed_for(rate: float, rounds: dict[float, int]) -> None:
    """Against transforms in extended precision, without what is left out here: at every ε of the grid."""
    for direction in privacy_loss.directions("add-remove", rate):
        kinds = [(privacy_loss.sampled(z, rate=rate, direction=direction, step=2.0**-12), n) for z, n in rounds.items()]
        own = written(composed(kinds))
        oracle = in_extended_precision(kinds, own.places)
        errors, losses = (own.masses - oracle).astype(float)[::-1], own.places[::-1] * own.step
        above = np.cumsum(errors) - np.exp(losses) * np.cumsum(errors * np.exp(-losses))
        assert np.abs(above[losses >= 0]).max() < 2.0**-50 * sum(rounds.values()) / 5


@pytest.mark.parametrize(("z", "rate", "step"), [(0.7, 0.9, 2.0**-8), (0.7, 0.2, 2.0**-12), (0.52, 0.0055, 2.0**-15)])
def test_probabilities_of_a_round_add_up_to_one_to_the_last_digits(z: float, rate: float, step: float) -> None:
    """A rounded e^step, of which steps that small are left, would take away up to 2.5e-14 in each round."""
    one = privacy_loss.sampled(z, rate=rate, direction="remove", step=step)
    assert math.fsum([*one.masses, one.infinite]) == pytest.approx(1.0, abs=1e-15)


SMOOTH = [
    (0.001, "replace", {0.6: 10_000}), (0.001, "remove", {0.9: 5000, 1.0: 5000, 0.35: 1}), (0.01, "add", {0.7: 2000}),
    (0.1, "remove", {1.5: 400, 2.5: 30}), (0.5, "replace", {9.0: 10_000}), (1.0, "remove", {10.0: 300}),
]  # fmt: skip


@pytest.mark.parametrize("short", [0, 2**30])
@pytest.mark.parametrize(("rate", "direction", "rounds"), SMOOTH)
def test_few_coefficients_give_what_all_probabilities_give(
    monkeypatch: pytest.MonkeyPatch, rate: float, direction: Direction, rounds: dict[float, int], short: int
) -> None:
    """ε and δ by blocks against the sums of all probabilities, themselves in extended precision."""
    kinds = [(privacy_loss.sampled(z, rate=rate, direction=direction, step=2.0**-12), n) for z, n in rounds.items()]
    monkeypatch.setattr(_composition, "_SHORT", short)
    smooth = composed(kinds)
    assert isinstance(smooth, SmoothLosses)
    assert smooth.kept.size < smooth.size / 100
    plain = smooth.written()
    exact = LossDistribution(
        plain.step, plain.places, in_extended_precision(kinds, plain.places).astype(float), plain.infinite
    )
    for delta in (0.6, 0.1, 1e-3, 1e-5, 1e-8):
        assert smooth.epsilon(delta) == pytest.approx(exact.epsilon(delta), rel=1e-4 * 1e-8 / delta + 1e-10, abs=1e-12)
        assert smooth.epsilon(delta) == pytest.approx(plain.epsilon(delta), rel=1e-5 * 1e-8 / delta + 1e-11, abs=1e-12)
    for epsilon in (0.0, plain.step, 0.3, 1.0, 4.0, float(plain.places[-1] * plain.step), 1e3):
        assert smooth.delta(epsilon) == pytest.approx(exact.delta(epsilon), abs=2.0**-50 * sum(rounds.values()) / 5)
    assert smooth.epsilon(smooth.infinite / 2) == math.inf


def test_losses_that_no_power_of_e_holds_have_distributions_too() -> None:
    one = privacy_loss.sampled(0.01, rate=0.5, direction="remove", step=1.0)
    assert one.places[-1] * one.step > 745
    assert math.fsum([*one.masses, one.infinite]) == pytest.approx(1.0, abs=1e-15)


def test_epsilons_that_no_power_of_e_holds_are_found_too() -> None:
    kind = privacy_loss.sampled(0.5, rate=1.0, direction="remove", step=2.0**-9)
    smooth = composed([(kind, 400)])
    assert isinstance(smooth, SmoothLosses)
    plain = smooth.written()
    for delta in (0.9, 0.5, 1e-3, 1e-6):
        assert smooth.epsilon(delta) == pytest.approx(plain.epsilon(delta), rel=1e-9)
    assert smooth.epsilon(0.5) > 745
    assert smooth.delta(820.0) == pytest.approx(plain.delta(820.0), rel=1e-9)
    assert 0 < smooth.delta(820.0) < smooth.delta(780.0) < 1


@pytest.mark.parametrize(("rate", "direction", "rounds"), SMOOTH)
def test_coefficients_that_are_not_looked_at_are_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch, rate: float, direction: Direction, rounds: dict[float, int]
) -> None:
    """Against the whole transform: none above e^-60 is missing; those by their definition are as exact as it."""
    kinds = [(privacy_loss.sampled(z, rate=rate, direction=direction, step=2.0**-12), n) for z, n in rounds.items()]
    low, high = privacy_loss.window(kinds)
    length = _composition._length(high - low + 1)
    monkeypatch.setattr(_composition, "_SHORT", 0)
    kept = _composition._candidates(kinds, length)
    assert kept.size < length / 50
    logs = np.zeros(length // 2 + 1)
    for kind, count in kinds:
        places = kind.places - _composition._center(kind)
        whole = rfft(np.bincount(places % length, kind.masses, length).astype(np.longdouble))
        logs += count * np.log(np.abs(whole)).astype(float)
        found = _composition._coefficients(kind, length, kept)
        assert np.abs(found - whole[kept]).max() < 4e-16
    assert set(np.flatnonzero(logs > _composition._NOTHING).tolist()) <= set(kept.tolist())


def test_losses_that_are_all_even_leave_coefficients_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last coefficient is as large as the first."""
    monkeypatch.setattr(_composition, "_SHORT", 0)
    kind = LossDistribution(1.0, np.array([-2, 0, 2]), np.array([0.25, 0.5, 0.25]), 0.0)
    low, high = privacy_loss.window([(kind, 10_000)])
    length = _composition._length(high - low + 1)
    kept = _composition._candidates([(kind, 10_000)], length)
    assert kept[0] == 0
    assert kept[-1] == length // 2
    found = composed([(kind, 10_000)])
    assert isinstance(found, LossDistribution)
    assert np.abs(found.masses[found.places % 2 == 1]).max() < 1e-12 * found.masses.max()
    assert found.masses.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
def test_delta_on_the_grid_is_the_integral_of_densities(kind: Direction) -> None:
    """δ(ε) = ∫ max(0, P − e^ε Q), by a sum over outputs; another noise multiplier or rate is rejected."""
    z, rate = 0.8, 0.3

    def delta(epsilon: float, z: float, rate: float) -> float:
        x = np.linspace(-12, 12, 200_001)
        plain, shares = norm.pdf(x, 0, z), {-1.0: rate * (kind != "add"), 1.0: rate * (kind != "remove")}
        upper, lower = ((1 - share) * plain + share * norm.pdf(x, mean, z) for mean, share in shares.items())
        return float(np.maximum(0.0, upper - math.exp(epsilon) * lower).sum() * (x[1] - x[0]))

    own = privacy_loss.sampled(z, rate=rate, direction=kind, step=STEP)
    for epsilon in (-32 * STEP, 0.0, 50 * STEP, 125 * STEP):
        found = own.delta(epsilon)
        if kind == "add" and epsilon > -math.log1p(-rate):
            assert found == pytest.approx(0.0, abs=1e-9)
            continue
        assert found == pytest.approx(delta(epsilon, z, rate), rel=1e-6, abs=1e-9)
        assert found != pytest.approx(delta(epsilon, 1.01 * z, rate), rel=1e-4)
        assert found != pytest.approx(delta(epsilon, z, 1.01 * rate), rel=1e-4)


def test_between_points_of_the_grid_delta_is_not_below_the_exact_one() -> None:
    coarse, fine = (ours(0.7, 0.2, "add-remove", step) for step in (0.25, 2.0**-10))
    for epsilon in np.linspace(-1, 3, 57):
        for above, exact in zip(coarse, fine, strict=True):
            assert above.delta(epsilon) >= exact.delta(epsilon) - 1e-12
    assert max(each.delta(0.125) for each in coarse) > max(each.delta(0.125) for each in fine) * 1.001


def test_probabilities_add_up_to_one_also_where_tails_were_cut() -> None:
    (one,), (other,) = (ours(z, 0.2, "replace") for z in (1.0, 1.5))
    for losses in (one, written(composed([(one, 30)])), written(composed([(one, 30), (other, 1)]))):
        assert -1e-12 < losses.masses.sum() + losses.infinite - 1 < 1e-9  # rounding errors below 0 count as 0
        assert losses.infinite > 0


def test_infinite_loss_above_delta_has_no_epsilon() -> None:
    losses = LossDistribution(1.0, np.arange(2), np.array([0.5, 0.4]), 0.1)
    assert losses.epsilon(0.05) == math.inf
    assert losses.epsilon(0.1) == pytest.approx(1.0)
    assert losses.delta(0.5) == pytest.approx(0.1 + 0.4 * -math.expm1(-0.5))
    assert losses.epsilon(losses.delta(0.5)) == pytest.approx(0.5)
    assert losses.epsilon(0.9) == 0


def test_losses_that_underflow_are_returned_as_they_are() -> None:
    losses = LossDistribution(1.0, np.array([800, 801]), np.array([0.5, 0.5]), 0.0)
    assert losses.epsilon(0.4) == 801.0
    assert losses.epsilon(0.7) == 800.0


@pytest.mark.parametrize("size", [1, 5000, 20_000])
def test_epsilon_is_found_in_every_block(size: int) -> None:
    """Of two losses that are `size` steps apart, δ alone decides which one counts."""
    masses = np.zeros(size + 1)
    masses[0], masses[-1] = 0.6, 0.4
    losses = LossDistribution(2.0**-12, np.arange(1, size + 2), masses, 0.0)
    points = (0.6, 2.0**-12), (0.4, (size + 1) * 2.0**-12)
    for epsilon in (0.5 * 2.0**-12, 0.5 * size * 2.0**-12):
        expected = sum(p * -math.expm1(epsilon - loss) for p, loss in points if loss > epsilon)
        assert losses.delta(epsilon) == pytest.approx(expected)
        assert losses.epsilon(expected) == pytest.approx(epsilon)
