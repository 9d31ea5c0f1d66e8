"""(B2): which masks plans have, what these cost in noise and in a ledger, and how far their sums reach."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest

import lightdp
from lightdp import drawn, gaussian
from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError, BudgetError, InfeasibleError
from lightdp.planning import NEVER, Masks, Plan, Request, compare, solve
from lightdp.planning._wire import drawn_reach
from lightdp.repair import RETRIES, worst_cost
from support import oracles

README: dict[str, Any] = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "epsilon": 3, "delta": 1e-5}
GAUSSIAN = "fcb57f3e5754c886"  # how the digest of README's plan began before there were other masks


def planned(**changed: Any) -> Plan:
    return lightdp.plan(**(README | changed))


def admitted(odometer: Odometer) -> bool:
    try:
        odometer.admit()
    except BudgetError:
        return False
    return True


def test_readmes_plan_is_drawn_and_its_noise_is_what_the_cost_asks_for() -> None:
    """σ_U by hand: μ² of the budget is COVERED × (all rounds and α) × (Δ/σ_U)²."""
    p, usual = planned(), planned(masks="gaussian")
    assert (p.masks.kind, p.masks.bits, usual.masks) == ("drawn", 24, Masks())
    assert p.gamma == usual.gamma
    total = 150 * (usual.sigma_individual / usual.sigma_effective) ** 2  # of Gaussian masks, in (Δ/σ_U)²
    least = (1 + p.gamma) / (40 * p.gamma + 1)  # no round with data costs less
    most = p.masks.each // 39
    assert p.masks.each == 39 * most
    assert total < most * least < total + 3 * least
    alpha = drawn.cost(p.gamma, 40, 10, most, 1e-5, fails=drawn.room(3.0) / 50 - 4e-6)
    assert p.masks.cost == alpha
    mu = float(mpmath.findroot(lambda mu: oracles.delta(3, mu) - mpmath.mpf("1e-5"), 0.72))
    assert p.sigma_individual == pytest.approx(math.sqrt((1 + 1e-4) * (total + alpha)) / mu, rel=1e-9)
    assert p.mask_cost == pytest.approx((p.sigma_individual / usual.sigma_individual) ** 2 - 1, rel=1e-9)
    assert 0.01 < p.mask_cost <= 0.02
    assert p.epsilon() <= 3
    assert p.sigma_effective == usual.sigma_effective
    assert p.noise_in_mean() / usual.noise_in_mean() == pytest.approx(1 + p.mask_cost, rel=1e-9)


def test_pairwise_noise_has_the_variance_of_drawn_values() -> None:
    p, usual = planned(), planned(masks="gaussian")
    values = np.arange(-128, 128)
    true = float(np.average(values**2, weights=drawn.counts())) / drawn.SIGMA**2
    assert p.masks.variance == pytest.approx(true, rel=1e-12)
    assert p.sigma_pairwise**2 == pytest.approx(p.gamma * true * p.sigma_individual**2, rel=1e-12)
    more = true * (p.sigma_individual / usual.sigma_individual) ** 2
    assert p.transient_in_mean() == pytest.approx(more * usual.transient_in_mean(), rel=1e-12)
    assert p.residual_in_sum(45) == pytest.approx(more * usual.residual_in_sum(45), rel=1e-12)


@pytest.mark.parametrize(
    "changed",
    [
        {"rounds": 20},  # α is paid once
        {"clients": 20, "colluders": 4, "stragglers": 4, "rounds": 60},  # a lost mask is a larger part
        {"calibration": "exact"},
        {"sampling_rate": 0.5},
        {"graph": "random:16"},
        {"delta": 0.02},
        {"gamma": 11.0},
        {"gamma": 0.0},
        {"rounds": 2**32},
        {"epsilon": 150.0},
    ],
)
def test_where_drawn_masks_are_not_possible_or_not_worth_it_they_are_gaussian(changed: dict[str, Any]) -> None:
    p = planned(**({"calibration": "repair"} | changed))
    assert p.masks == Masks()
    assert p.mask_cost == 0
    assert p.scale == (p.sigma_individual if p.repairs else p.sigma_effective)
    assert p.digest() == planned(**({"calibration": "repair"} | changed), masks="gaussian").digest()


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"calibration": "exact"}, ArgumentError, "masks='drawn' need repair.* got calibration='exact'"),
        ({"calibration": "local"}, ArgumentError, "masks='drawn' need repair.* got calibration='local'"),
        ({"sampling_rate": 0.5}, ArgumentError, "masks='drawn' need whole batches, got sampling_rate=0.5"),
        ({"graph": "random:16"}, ArgumentError, "masks='drawn' need a graph that is complete or circulant"),
        ({"delta": 0.02}, ArgumentError, "masks='drawn' need delta <= 0.01, got delta=0.02"),
        ({"gamma": 11.0}, InfeasibleError, 'masks="drawn" need gamma <= .* got gamma=11'),
        ({"gamma": 0.0}, InfeasibleError, "masks='drawn' need pairwise noise, got gamma=0"),
        (
            {"rounds": 90_000, "gamma": 7.0, "parameters": 10},
            InfeasibleError,
            "masks='drawn' need a smaller budget, fewer clients or rounds: no bound is known",
        ),
        (
            {"rounds": 10**6, "gamma": 7.0, "parameters": 10},
            InfeasibleError,
            "masks='drawn' need fewer clients or rounds: a client may have 4,194,304 masks .* 39 honest peers",
        ),
        (
            {"clients": 6_000_000, "rounds": 1, "parameters": 10},
            InfeasibleError,
            "masks='drawn' need fewer clients or rounds: .* with 5,999,989 honest peers",
        ),
        (
            {"epsilon": 150.0},
            InfeasibleError,
            "masks='drawn' need fewer parameters, or a smaller gamma or epsilon, got 16777216, as none.* epsilon=150",
        ),
        ({"masks": "bits"}, ArgumentError, "masks must be .*, got masks='bits'"),
    ],
)
def test_drawn_masks_are_refused_with_the_reason(changed: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        planned(**({"masks": "drawn"} | changed))


def test_drawn_masks_that_are_asked_for_may_cost_more_than_auto_takes() -> None:
    p = planned(rounds=20, masks="drawn")
    assert p.masks.kind == "drawn"
    assert p.request.calibration == "repair"
    assert p.mask_cost > 0.02
    assert p.epsilon() <= 3


def test_where_nobody_asked_for_a_gamma_drawn_masks_may_have_a_smaller_one() -> None:
    """The best γ of this plan is above what they can have; automatically they are taken within 2 % alone."""
    asked: dict[str, Any] = {"colluders": 5, "stragglers": 5}
    usual, found, auto = (planned(masks=masks, **asked) for masks in ("gaussian", "drawn", "auto"))
    assert usual.gamma > drawn.GAMMA_MAX > found.gamma > 0.6 * usual.gamma
    assert found.masks.kind == "drawn"
    assert 1.02 < found.noise_in_mean() / usual.noise_in_mean() < 1.06
    assert auto.digest() == usual.digest()
    assert Plan.from_json(found.to_json()).digest() == found.digest()
    few = planned(masks="drawn", parameters=1000, **asked)
    assert found.gamma < few.gamma
    assert "for 5.0 % more noise variance" in " ".join(str(found).split())
    assert "for 1.9 % more noise variance" in " ".join(str(planned()).split())
    much = lightdp.plan(clients=20, colluders=2, stragglers=0, rounds=50, epsilon=3, delta=1e-5, masks="drawn")
    assert much.masks.kind == "drawn"  # although the best γ is 1024
    near, best = (planned(clients=100, masks=masks) for masks in ("auto", "gaussian"))
    assert near.masks.kind == "drawn"
    assert near.gamma < best.gamma
    assert near.noise_in_mean() <= 1.02 * best.noise_in_mean()


def test_digests_and_texts() -> None:
    p, usual = planned(), planned(masks="gaussian")
    assert usual.digest().hex().startswith(GAUSSIAN)
    assert p.digest() != usual.digest()
    assert p.digest() == planned(masks="drawn").digest()
    for each in (p, usual):
        assert json.loads(each.to_json())["masks"] == each.masks.kind
        found = Plan.from_json(each.to_json())
        assert (found.noise, found.digest(), found.to_json()) == (each.noise, each.digest(), each.to_json())
    written = json.loads(p.to_json())
    del written["masks"]  # by a version that knew Gaussian masks alone
    assert Plan.from_json(json.dumps(written)).digest() == usual.digest()
    shown = p.to_dict()
    assert (shown["masks"], shown["mask_bits"], shown["mask_cost"]) == ("drawn", 24, p.mask_cost)
    assert usual.to_dict()["mask_bits"] == 40
    text = " ".join(str(p).split())
    assert (
        "49 drawn values a parameter and round, of 24 random bits instead of 40, for 1.9 % more noise variance" in text
    )
    assert "49 Gaussian samples a parameter and round" in str(usual)


def test_other_rosters_and_other_requests_choose_masks_anew() -> None:
    p = planned(masks="drawn")
    assert p.among(50).digest() == p.digest()
    assert p.among(49).masks.kind == "drawn"
    assert p.among(20).masks.kind == "gaussian"  # too few peers
    assert Plan.from_json(p.to_json()).among(20).digest() == p.among(20).digest()
    assert p.request.but(calibration="local").masks == "auto"
    assert planned(masks="gaussian").request.but(rounds=100).masks == "gaussian"
    assert planned(masks="gaussian").among(49).masks.kind == "gaussian"
    assert [row.noise_in_mean for row in compare(p)] == [row.noise_in_mean for row in compare(planned())]


def test_the_ledger_counts_alpha_once_and_every_cost_covered() -> None:
    p = planned()
    odometer = Odometer(p, [0, 1, 2])
    assert not odometer.mu().any()
    assert odometer.epsilon().tolist() == [0, 0, 0]
    assert odometer.squares() == [{}, {}, {}]
    odometer.record([*range(1, 50)], late=[])
    assert odometer.mu()[0] == 0  # never sent
    assert odometer.squares()[0] == {}
    k = (1 + p.gamma) / (39 * p.gamma + 1)
    unit = (1 + 1e-4) / p.sigma_individual**2
    for count in (1, 2):
        expected = unit * (count * k + p.masks.cost)
        assert odometer.mu()[1] ** 2 == pytest.approx(expected, rel=1e-12)
        assert odometer.epsilon()[1] == pytest.approx(gaussian.epsilon(math.sqrt(expected), 1e-5), rel=1e-9)
        squares = odometer.squares()[1]
        total = math.fsum(square * each for square, each in squares.items())
        assert total >= expected * (1 - 1e-15)
        assert total == pytest.approx(expected, rel=1e-12)
        assert sorted(squares.values()) == ([1, 1] if count == 1 else [1, 2])
        odometer.record([*range(1, 50)], late=[])


def test_costs_of_two_rosters_have_an_alpha_each() -> None:
    p = planned()
    one = Odometer(p, [0])
    one.record(range(50), late=[])
    both = one.beside(one.squares())
    assert both.mu()[0] ** 2 == pytest.approx(2 * one.mu()[0] ** 2, rel=1e-9)


@pytest.mark.parametrize(
    "changed", [{}, {"grace": 1}, {"degree": 30, "gamma": 5.0}, {"reserve": "worst"}, {"late": 0.2}]
)
def test_the_budget_lasts_the_rounds_of_the_plan_and_not_many_more(changed: dict[str, Any]) -> None:
    p = planned(masks="drawn", parameters=10**5, **changed)
    rng, odometer = np.random.default_rng(7), Odometer(p)
    while admitted(odometer):
        away = int(rng.choice(11, p=p.law.pmf))
        missing = rng.permutation(50)[:away]
        late = [int(c) for c in missing if rng.random() < p.request.late_share]
        odometer.record([c for c in range(50) if c not in missing], late=late)
        assert odometer.max_epsilon() <= 3
    rounds = odometer.rounds
    assert rounds >= 149  # one of the clients may have been late more often than is provided for
    assert rounds <= p.masks.each // (p.honest - 1)
    if not changed:
        assert 150 <= rounds <= 160


def test_small_deltas_pay_for_failures() -> None:
    """At the plan's δ and above failures are covered; below it nothing is said, as e^ε times some of them may grow."""
    p = planned()
    odometer = Odometer(p, [0])
    odometer.record(range(50))
    mu = float(odometer.mu()[0])
    assert odometer.epsilon(1e-5)[0] == pytest.approx(gaussian.epsilon(mu, 1e-5), rel=1e-9)
    assert odometer.epsilon(1e-4)[0] == pytest.approx(gaussian.epsilon(mu, 1e-4), rel=1e-9)
    assert odometer.epsilon(9e-6)[0] == math.inf
    assert Odometer(p, [0]).epsilon(9e-6)[0] == 0
    assert p.epsilon(9e-6) == math.inf
    # also where another δ is put in the place of the plan's
    assert Plan(p.request.but(delta=1e-9), p.noise).epsilon() == math.inf
    usual = planned(masks="gaussian")
    assert usual.epsilon(1e-10) == pytest.approx(gaussian.epsilon(usual.mu, 1e-10), rel=1e-9)


def test_the_ledger_bounds_the_exact_loss_of_masks_with_their_variance() -> None:
    """Wider masks than γ says never cost more than the ledger of γ, with late uploads, repairs and void rounds."""
    p = planned(clients=12, colluders=2, stragglers=4, masks="drawn", gamma=4.0)
    rng = np.random.default_rng(3)
    for _ in range(40):
        colluders = rng.permutation(np.arange(1, 12))[:2].tolist()
        rounds: list[tuple[list[int], list[int]]] = []
        for _ in range(rng.integers(1, 6)):
            missing = rng.permutation(12)[: 12 if rng.random() < 0.1 else rng.integers(0, 5)].tolist()
            late = [c for c in missing if rng.random() < 0.7]
            rounds.append(([c for c in range(12) if c not in missing], late))
        matrix = oracles.loss_matrix(
            12,
            p.gamma * p.masks.variance,
            rounds,
            client=0,
            adjacency=p.graph.adjacency(),
            colluders=colluders,
            retries=RETRIES,
        )
        odometer = Odometer(p, [0])
        for used, late in rounds:
            odometer.record(used, [c for c in range(12) if c in late or (c > 0 and c not in used)])
        counted = float(odometer.mu()[0] * p.sigma_individual) ** 2
        if len(matrix) == 0:
            assert counted == 0
            continue
        assert oracles.worst_mu_squared(matrix) + p.masks.cost <= counted


def test_masks_that_are_narrower_than_gamma_would_be_noticed() -> None:
    """The oracle is sharp: a tenth less variance than γ exceeds what the ledger counts for rounds alone."""
    p = planned(clients=12, colluders=2, stragglers=4, masks="drawn", gamma=4.0)
    adjacency = p.graph.adjacency()
    rounds: list[tuple[list[int], list[int]]] = [([*range(12)], [])] * 5
    exact = [
        oracles.worst_mu_squared(
            oracles.loss_matrix(12, each, rounds, client=0, adjacency=adjacency, colluders=[3, 5], retries=RETRIES)
        )
        for each in (0.9 * p.gamma, p.gamma)
    ]
    odometer = Odometer(p, [0])
    for used, late in rounds:
        odometer.record(used, late)
    counted = (float(odometer.mu()[0]) * p.sigma_individual) ** 2 / p.masks.covered - p.masks.cost
    assert exact[0] > 1.005 * counted
    assert exact[1] == pytest.approx(counted, rel=1e-9)


def test_the_reserve_for_the_last_round_is_part_of_the_noise() -> None:
    """All rounds at their worst end the training in time, with α counted before the first one."""
    p = planned(masks="drawn", reserve="worst")
    odometer, worst, k = Odometer(p, [0]), worst_cost(p.gamma, 40, 10), (1 + p.gamma) / (30 * p.gamma + 1)
    while admitted(odometer):
        odometer.record(range(40), late=[])
    left = (p.mu * p.sigma_individual) ** 2 / p.masks.covered - p.masks.cost - odometer.rounds * k
    assert left < worst <= (left + k) * (1 + 1e-12)


def exceeds(own: float, wires: int, unit: float, reach: float, terms: int = 4096) -> float:
    """P(|noise| > reach) by numerical inversion of the exact characteristic function, in 1/`terms` of a wide period."""
    period = 6 * reach
    t = 2 * math.pi * np.arange(1, terms) / period
    values, weights = np.arange(-128, 128), drawn.counts() / 2**24
    once = np.exp(1j * np.multiply.outer(t * unit, values)) @ weights
    transform = np.exp(-(t**2) * own / 2) * once**wires
    # Fourier series of the indicator of [-reach, reach] on a circle of that length
    inside = 2 * reach / period + np.sum(2 * np.real(transform) * 2 * np.sin(t * reach) / (t * period))
    return 1 - float(inside)


@pytest.mark.parametrize(
    ("own", "wires", "unit"), [(50.0, 800, 0.24), (50.0, 3, 0.24), (2.0, 40, 1.0), (400.0, 5, 0.1)]
)
def test_reach_bounds_tails_of_sums_and_is_not_far_above_them(own: float, wires: int, unit: float) -> None:
    """Against the exact law of a sum, at tails that floating point resolves, and a simulation."""
    for log_tail in (-5.0, -10.0, -18.0):
        reach = drawn_reach(own, wires, unit, log_tail)
        assert 0 < exceeds(own, wires, unit, reach) <= 2 * math.exp(log_tail)
        assert exceeds(own, wires, unit, 0.82 * reach) > 2 * math.exp(log_tail) * 0.5
    rng, size = np.random.default_rng(5), 200_000
    sums = rng.standard_normal(size) * math.sqrt(own)
    for _ in range(wires):
        sums += unit * rng.choice(np.arange(-128, 128), size, p=drawn.counts() / 2**24)
    assert np.mean(np.abs(sums) > drawn_reach(own, wires, unit, -7.0)) <= 2 * math.exp(-7.0)
    assert np.max(np.abs(sums)) < drawn_reach(own, wires, unit, -41 * math.log(2))


def test_reach_of_gaussian_looking_sums_is_that_of_chernoff() -> None:
    """Without masks, or with many, the bound is √(2 ln 1/p) deviations."""
    for log_tail in (-20.0, -60.0):
        assert drawn_reach(9.0, 0, 1.0, log_tail) == pytest.approx(3 * math.sqrt(-2 * log_tail), rel=2e-3)
        deviation = math.sqrt(1e5 * drawn.VARIANCE)
        assert drawn_reach(0.0, 10**5, 1.0, log_tail) == pytest.approx(deviation * math.sqrt(-2 * log_tail), rel=5e-3)


def test_bits_follow_from_the_reach_of_drawn_sums() -> None:
    """By hand: 40 used clients with 10 stragglers each repair 10 more; tails of 2^-41 over all values."""
    p = planned(parameters=10_000, unit="client", rotate=False)
    assert p.masks.kind == "drawn"
    own = 50 * p.sigma_individual**2 * (1 + 1 / 12 / 4)
    wires = 40 * 20
    unit = math.ceil(1024 * math.sqrt(p.gamma) / 11.5) * p.sigma_individual / 1024
    log_tail = -41 * math.log(2) - math.log(150 * 10_000)
    rates = np.linspace(0.3, 3, 2000) * math.sqrt(-2 * log_tail / (own + wires * unit**2 * drawn.VARIANCE))
    logs = np.array([math.log(drawn.counts() @ np.exp(t * unit * np.arange(-128.0, 128)) / 2**24) for t in rates])
    reach = float(np.min((rates**2 * own / 2 + wires * logs - log_tail) / rates))
    half = p.wire_grid * 2 ** (p.wire_bits - 1)
    assert 50 + reach <= half <= 2 * (50 + reach * 1.01 + p.wire_grid)


def test_a_coarse_grid_makes_units_and_bits_larger_or_masks_gaussian() -> None:
    fine = planned(masks="drawn")
    assert fine.wire.fine == 1024
    coarse = planned(masks="drawn", coordinate_range=1e5)
    assert coarse.wire.fine == coarse.wire.steps << (32 - coarse.wire_bits) <= 1024
    assert drawn.unit(coarse.wire.fine, coarse.gamma) >= 1  # is fine enough
    asked = {"gamma": 5.0, "coordinate_range": 4e6}
    with pytest.raises(InfeasibleError, match=r'masks="drawn" need .* got gamma=5'):
        planned(masks="drawn", **asked)
    found = planned(**asked)
    assert (found.masks, found.wire.fine, found.request.masks) == (Masks(), 32, "auto")
    assert found.digest() == planned(masks="gaussian", **asked).digest()


def test_masks_are_a_part_of_the_noise() -> None:
    p = planned()
    assert replace(p.noise) == p.noise
    assert p.noise.masks is p.masks
    assert p.scale == pytest.approx(p.sigma_individual / math.sqrt(1.0001), rel=1e-12)
    assert solve(Request(**README)).masks == p.masks


def test_what_may_fail_covers_the_lattice_at_any_epsilon() -> None:
    """Of 100 rosters: in each, δ(ε − 2η) may exceed δ by 2e-6 of it, which bounds η wherever ε/μ − μ/2 >= 2."""
    shift, most = planned(masks="drawn").masks.fails(10).shift / 100, 0.0
    with mpmath.workdps(40):
        for delta in ("1e-2", "1e-3", "1e-5", "1e-12"):
            for epsilon in (0.1, 1, 10, 50, 100):
                mu = mpmath.mpf(gaussian.mu(epsilon, float(delta)))
                if epsilon / mu - mu / 2 >= 2:
                    allowed = mpmath.mpf(delta) * (1 + mpmath.mpf("2e-6"))
                    most = max(most, float(mpmath.findroot(
                        lambda x, e=epsilon, m=mu, a=allowed: oracles.delta(e - x, m) - a, 1e-7
                    )))  # fmt: skip
    assert 0.5 * shift < most <= shift


def test_what_may_fail_grows_with_values_and_masks() -> None:
    p = planned(masks="drawn")
    one, many = p.masks.fails(1), p.masks.fails(10**7)
    tail = math.fsum(part.weight * part.beyond for part in drawn.PARTS)
    assert p.masks.everywhere == 100 * 2 * (p.masks.each // (p.honest - 1)) * (2 * p.clients - p.colluders)
    assert many.tails == pytest.approx(2 * p.masks.everywhere * 1e7 * tail, rel=1e-6, abs=0)
    assert one.tails < many.tails
    assert one.fixed == many.fixed == pytest.approx(4.5e-4 * 1e-5, rel=1e-9)
    assert planned(masks="gaussian").masks.fails(10**7) == NEVER
    assert (one + many).shift == 2 * one.shift
