from __future__ import annotations

import itertools
import math
import os
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

import lightdp
from lightdp import drawn, masks, stream
from lightdp._native import plain
from lightdp.errors import ArgumentError, InfeasibleError
from lightdp.masks import Grid
from lightdp.wire import Accumulator, Rotation, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightdp.planning import Plan

KINDS = ("gaussian", "drawn")
KEYS = [bytes([k]) * 32 for k in range(1, 4)]


def own_noise(length: int, start: int, grid: Grid) -> NDArray[np.float64]:
    """Individual noise in fine steps, on a grid of 2^-22."""
    scales = np.array([grid.sigma_individual, stream.SIGMA_MAX, stream.SIGMA_MAX], np.float32)
    return plain.own_noise(length, start, b"".join(KEYS), scales)


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {
        "clients": 10,
        "colluders": 2,
        "stragglers": 2,
        "rounds": 20,
        "epsilon": 3.0,
        "delta": 1e-5,
    }
    return lightdp.plan(**(asked | {"unit": "client"} | changed))


@given(
    calibration=st.sampled_from(["exact", "repair", "paper", "local"]),
    clients=st.integers(2, 1000),
    epsilon=st.floats(0.01, 50),
    length=st.integers(1, 10**8),
)
@settings(max_examples=100)
def test_every_plan_has_a_grid_that_fits(calibration: str, clients: int, epsilon: float, length: int) -> None:
    plan = planned(calibration=calibration, clients=clients, colluders=clients // 4, stragglers=0, epsilon=epsilon)
    grid = Grid.of(plan, length)
    assert grid.bits + grid.shift <= 32
    sigma = plan.wire.steps * 2**grid.shift
    assert sigma >= 16
    assert sigma == 1024 or grid.bits + grid.shift == 32 or sigma * math.sqrt(plan.gamma) > stream.SIGMA_MAX / 2
    assert sigma**2 <= grid.sigma_individual**2 + 4 <= (sigma + 1 / 16) ** 2 + 4
    assert grid.sigma_pairwise <= stream.SIGMA_MAX
    assert grid.sigma_pairwise / sigma >= math.sqrt(plan.gamma) * (1 - 1e-6)
    finest = grid.step * 2.0**-22
    covered = plan.sigma_individual / plan.sensitivity * (plan.sensitivity + math.sqrt(length) * finest)
    assert grid.step * sigma >= covered * (1 - 1e-12)
    assert grid.wire_step == pytest.approx(plan.wire_grid, rel=0.01 if length < 10**7 else 0.5)


def test_the_largest_gamma_still_leaves_128_steps_of_individual_noise() -> None:
    grid = Grid.of(planned(stragglers=0), 1000)
    assert (grid.sigma_individual, grid.sigma_pairwise) == (128, 4096)


def test_sums_that_do_not_fit_32_bits_are_refused() -> None:
    """Local DP, which may send floats: of the others there is no such plan."""
    with pytest.raises(InfeasibleError, match=r"sums need 46 bits a parameter and at most 32 fit .*coordinate_range"):
        Grid.of(planned(unit="record", coordinate_range=1e12, calibration="local"), 10)


def test_noise_that_covers_rounding_only_by_swelling_without_bound_is_refused() -> None:
    plan = planned(rounds=10**6, epsilon=1e-3, calibration="local")
    with pytest.raises(InfeasibleError, match="100000000 values cannot be rounded finely enough for noise of"):
        Grid.of(plan, 10**8)


def test_a_delta_beyond_the_reach_of_the_noise_is_refused() -> None:
    asked: dict[str, Any] = {"clients": 8, "colluders": 1, "stragglers": 2, "rounds": 100, "epsilon": 3.0}
    with pytest.raises(InfeasibleError, match=r"delta must be >= 8.0e-12 for 100 rounds .* got delta=7e-12"):
        Grid.of(lightdp.plan(**asked, delta=7e-12, unit="client"), 10**6)
    assert Grid.of(lightdp.plan(**asked, delta=9e-12, unit="client"), 10**6)
    reach = float(np.sqrt(-2 * np.log(2.0**-62)))
    assert math.erfc(reach / math.sqrt(2)) == pytest.approx(masks._BEYOND, rel=0.1, abs=0)


def test_schemes_without_client_noise_are_refused() -> None:
    with pytest.raises(ArgumentError, match="got calibration='central'"):
        Grid.of(planned(calibration="central"), 10)


def test_individual_noise_is_gaussian_with_the_right_scale_and_no_other() -> None:
    grid = Grid.of(planned(), 1)
    noise = own_noise(400_000, 0, grid) / grid.sigma_individual
    assert kstest(noise, "norm").pvalue > 0.001
    assert kstest(noise / 1.02, "norm").pvalue < 1e-6
    assert kstest(noise / 0.98, "norm").pvalue < 1e-6


@pytest.mark.parametrize(("room", "sigma"), [(2**26, 16), (2**12, 1024)])
def test_individual_noise_has_the_variance_of_the_plan_on_the_coarsest_grid_too(room: int, sigma: int) -> None:
    """The finer two of the three Gaussians, 4 squared fine steps, are part of σ_U² and not beside it."""
    plan = planned(unit="record", coordinate_range=room * planned().sigma_individual / 10)
    grid = Grid.of(plan, 1)
    assert plan.sigma_individual / grid.step == pytest.approx(sigma, rel=1e-6)
    spread = math.sqrt(2 / 2_000_000)
    found = own_noise(2_000_000, 0, grid).var() / sigma**2
    assert found == pytest.approx(1 + 1 / 12 / sigma**2, rel=6 * spread)
    assert 6 * spread < 4 / 16**2  # what they would add


def test_rotation_adds_what_floating_point_may_move_two_inputs_apart() -> None:
    asked: dict[str, Any] = {"unit": "record", "records": 10**9, "delta": 1e-12, "parameters": 10**5, "rotate": True}
    plan = planned(**asked, coordinate_range=1e8)
    grid, more = Grid.of(plan, 10**5), 2 * Rotation.error(65536) * math.sqrt(10**5) * 1e8
    apart = plan.sensitivity + more + math.sqrt(10**5) * grid.step * 2.0**-22
    sigma = grid.step * (plan.wire.steps << grid.shift)
    assert sigma == pytest.approx(plan.sigma_individual * apart / plan.sensitivity, rel=1e-12)
    assert more > 1e-4
    with pytest.raises(InfeasibleError, match="100000 values cannot be rounded finely enough"):
        Grid.of(planned(**asked, coordinate_range=1e13), 10**5)


def test_individual_noise_fills_the_gaps_of_the_fine_grid() -> None:
    """Or rounding the data before it would cost √d steps of sensitivity (W1)."""
    noise = own_noise(200_000, 0, Grid.of(planned(), 1))
    assert kstest(noise - np.floor(noise), "uniform").pvalue > 0.001
    scaled = noise * 2**22
    assert np.array_equal(scaled, np.rint(scaled))
    assert np.mean(scaled % 2) == pytest.approx(0.5, abs=0.01)  # down to the last bit


@pytest.mark.parametrize("kind", KINDS)
def test_an_upload_is_data_and_noise_rounded_once_to_fine_steps_plus_whole_pairwise_noise(kind: str) -> None:
    grid = Grid.of(planned(calibration="repair", masks=kind), 100_000)
    vector = np.linspace(-1, 1, 100_000)
    terms = masks.pairwise_terms({3: bytes(32), 7: b"7" * 32}, 5, grid)
    assert [term.sign for term in terms] == [-1, 1]
    pairwise = np.zeros(100_000, np.int32)
    stream.accumulate(pairwise, terms)
    data = np.rint(vector / grid.step + own_noise(100_000, 0, grid))
    assert np.array_equal(masks._fine(vector, grid, terms, KEYS), data.astype(np.int32) + pairwise)


def test_noise_does_not_depend_on_how_a_vector_is_cut() -> None:
    grid = Grid.of(planned(), 1)
    whole = own_noise(3000, 0, grid)
    assert np.array_equal(whole[1000:], own_noise(2000, 1000, grid))


@pytest.mark.parametrize("kind", KINDS)
def test_all_pairwise_noise_cancels_to_exactly_zero(kind: str) -> None:
    clients, length = 12, 5000
    grid = Grid.of(planned(clients=clients, calibration="repair", masks=kind), length)
    total = np.zeros(length, np.int32)
    for i in range(clients):
        keys = {j: bytes([min(i, j), max(i, j)]) * 16 for j in range(clients) if j != i}
        stream.accumulate(total, masks.pairwise_terms(keys, i, grid))
    assert not total.any()
    assert len(list(itertools.combinations(range(clients), 2))) == 66


@pytest.mark.parametrize("kind", KINDS)
def test_repair_is_the_exact_opposite(kind: str) -> None:
    grid = Grid.of(planned(calibration="repair", masks=kind), 100)
    keys = {1: b"a" * 32, 9: b"b" * 32}
    out = np.zeros(100, np.int32)
    stream.accumulate(out, masks.pairwise_terms(keys, 4, grid) + masks.pairwise_terms(keys, 4, grid, undo=True))
    assert not out.any()


@given(
    clients=st.integers(30, 1000),
    epsilon=st.floats(0.05, 8),
    gamma=st.floats(1, 6),
    length=st.integers(1, 10**6),
)
@settings(max_examples=50)
def test_drawn_masks_come_in_units_that_give_at_least_gamma(
    clients: int, epsilon: float, gamma: float, length: int
) -> None:
    asked: dict[str, Any] = {"clients": clients, "colluders": clients // 4, "stragglers": 0, "epsilon": epsilon}
    plan = planned(**asked, calibration="repair", gamma=gamma, masks="drawn", parameters=length)
    grid, sigma = Grid.of(plan, length), plan.wire.steps * 2.0 ** Grid.of(plan, length).shift
    assert grid.unit * drawn.SIGMA >= math.sqrt(gamma) * sigma * (1 - 1e-6)
    assert (grid.unit - 1) * drawn.SIGMA < math.sqrt(gamma) * sigma
    assert sigma >= drawn.KAPPA * grid.unit
    assert grid.sigma_pairwise**2 == pytest.approx(grid.unit**2 * drawn.VARIANCE)
    assert grid == replace(Grid.of(planned(**asked, calibration="repair", gamma=gamma, masks="gaussian"), length),
                           step=grid.step, bits=grid.bits, shift=grid.shift, unit=grid.unit,
                           sigma_pairwise=grid.sigma_pairwise)  # fmt: skip


def test_drawn_masks_have_the_variance_that_the_plan_says_and_no_other() -> None:
    plan, length = planned(calibration="repair", masks="drawn"), 400_000
    grid = Grid.of(plan, length)
    terms = masks.pairwise_terms({1: b"k" * 32}, 0, grid)
    assert [type(term) for term in terms] == [stream.Draw]
    out = np.zeros(length, np.int32)
    stream.accumulate(out, terms)
    found = (out * grid.step).var() / plan.sigma_pairwise**2
    sure = 6 * math.sqrt(2 / length)
    assert 1 - sure < found < 1 + sure + 2 / grid.unit  # the unit is rounded up
    assert plan.sigma_pairwise**2 > 1.1 * plan.gamma * plan.sigma_individual**2


def test_plans_without_drawn_masks_have_gaussian_ones() -> None:
    for plan in (planned(masks="gaussian", calibration="repair"), planned(calibration="exact")):
        grid = Grid.of(plan, 10)
        assert grid.unit == 0
        assert [type(term) for term in masks.pairwise_terms({1: b"k" * 32}, 0, grid)] == [stream.Term]


def test_uploads_longer_than_the_cost_of_drawn_masks_counts_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = lightdp.plan(
        clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5, unit="client", masks="drawn"
    )
    assert drawn.VALUES_MAX == 2**32
    monkeypatch.setattr(drawn, "VALUES_MAX", 1000)
    assert Grid.of(plan, 1000).unit > 0
    with pytest.raises(InfeasibleError, match="masks='drawn' need at most 1,000 values, got 1,001"):
        Grid.of(plan, 1001)


def test_more_values_than_drawn_masks_cover_are_refused() -> None:
    plan = planned(calibration="repair", masks="drawn", epsilon=8.0)
    assert Grid.of(plan, 10**6).unit > 0
    with pytest.raises(InfeasibleError, match=r"masks='drawn' are not within delta=1e-05 for 4000000000 values"):
        Grid.of(plan, 4 * 10**9)


def test_a_grid_too_coarse_for_whole_units_is_refused() -> None:
    """Where a wide range leaves σ_U few fine steps: 16 are 5.3 units of 3, and 8 of 2."""
    asked: dict[str, Any] = {"unit": "record", "calibration": "repair"}
    wide = 1.3 * 2**26 * planned(**asked, gamma=2.3, masks="drawn").sigma_individual / 10
    assert Grid.of(planned(**asked, gamma=1.9, masks="drawn", coordinate_range=wide), 10).unit == 2
    assert Grid.of(planned(**asked, gamma=2.3, masks="gaussian", coordinate_range=wide), 10).unit == 0
    with pytest.raises(InfeasibleError, match=r"a finer grid than sigma=16 steps, got gamma=2\.3: take masks="):
        Grid.of(planned(**asked, gamma=2.3, masks="drawn", coordinate_range=wide), 10)


def test_every_upload_draws_new_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    system = os.urandom

    def urandom(count: int) -> bytes:
        asked.append(count)
        return system(count)

    monkeypatch.setattr(os, "urandom", urandom)
    grid = Grid.of(planned(), 50)
    first, second = masks.mask(np.zeros(50), grid, []), masks.mask(np.zeros(50), grid, [])
    assert asked == [32] * 6
    assert bytes(first) != bytes(second)


def test_the_wire_adds_a_twelfth_of_its_step_squared_and_nothing_else() -> None:
    grid = Grid.of(planned(), 300_000)
    fine = masks._fine(np.zeros(300_000), grid, [], KEYS)
    total = Accumulator(300_000, grid.bits)
    total.add(encode(fine, shift=grid.shift, bits=grid.bits))
    error = total.total() - fine / 2**grid.shift
    assert np.abs(error).max() <= 0.5
    assert error.mean() == pytest.approx(0, abs=0.005)
    assert error.var() == pytest.approx(1 / 12, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_grow_with_peers_and_stays_below_three_vectors(kind: str) -> None:
    length = 1_000_000
    plan = planned(clients=50, calibration="repair", masks=kind)
    vector = np.zeros(length, np.float32)
    peaks = []
    for peers in (1, 49):
        grid = Grid.of(plan, length)
        terms = masks.pairwise_terms({j: bytes([j]) * 32 for j in range(1, peers + 1)}, 0, grid)
        tracemalloc.start()
        masks.mask(vector, grid, terms)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 3 * vector.nbytes
    assert peaks[1] < 1.05 * peaks[0]
