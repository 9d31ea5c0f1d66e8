"""(B2): the law of drawn masks, the Gaussians in it, and what is counted for the rest, each by an oracle of its own."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from lightdp import drawn, gaussian
from lightdp._native.tables import TABLES
from lightdp.errors import InfeasibleError

RNG = np.random.default_rng(3)


def enumerated() -> Counter[int]:
    """How many of the 2^24 keystreams give which value, by the text of the specification."""
    low0, high0, low1, high1, low2, high2 = TABLES
    third = Counter(low2[c % 16] + high2[c // 16] for c in range(256))
    found: Counter[int] = Counter(range(-128, 128))
    pairs: Counter[int] = Counter()
    for a in range(256):
        for b in range(256):
            if not a == b == 255:
                pairs[low0[a % 16] + high0[a // 16] + low1[b % 16] + high1[b // 16]] += 1
    for x, many in pairs.items():
        for y, some in third.items():
            found[x + y] += many * some
    return found


def uncovered(parts: tuple[drawn.Part, ...], scale: float = 1.0) -> list[Any]:
    """p(x) less all Gaussians of the parts, for x = -128 ... 127, in 60 digits; `scale` widens them."""
    law = enumerated()
    with mpmath.workdps(60):
        left = {x: mpmath.mpf(law[x]) / 2**24 for x in range(-200, 201)}
        for part in parts:
            sigma = mpmath.mpf(part.sigma) * scale
            shape = {x: mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * sigma**2)) for x in range(-part.reach, part.reach + 1)}
            whole = mpmath.fsum(shape.values())
            for place, chance in part.places.items():
                for at in {place, -place}:
                    for x, height in shape.items():
                        left[x + at] -= mpmath.mpf(chance) * height / whole
        return [left[x] for x in range(-200, 201)]


def test_the_law_is_that_of_the_specification() -> None:
    law = enumerated()
    assert drawn.counts().tolist() == [law[x] for x in range(-128, 128)]
    assert sum(law.values()) == 2**24
    assert math.isclose(drawn.VARIANCE, sum(x * x * many for x, many in law.items()) / 2**24, rel_tol=1e-14)


def test_the_parts_are_in_the_law_everywhere_and_what_is_left_is_lost() -> None:
    left = uncovered(drawn.PARTS)
    assert min(left) >= 0
    assert math.isclose(float(mpmath.fsum(left)), drawn.LOST, rel_tol=1e-6)
    assert drawn.LOST < 1.2e-5
    assert drawn.PARTS[0].weight > 0.99
    assert drawn.SIGMA == drawn.PARTS[0].sigma == max(part.sigma for part in drawn.PARTS)


@pytest.mark.parametrize("scale", [1.01, 1.2])
def test_wider_gaussians_are_not_in_the_law(scale: float) -> None:
    assert min(uncovered(drawn.PARTS, scale)) < 0


def test_what_is_beyond_the_reach_is_bounded() -> None:
    for part in drawn.PARTS:
        with mpmath.workdps(60):
            inside = mpmath.fsum(
                mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(part.sigma) ** 2))
                for x in range(-part.reach, part.reach + 1)
            )
            whole = mpmath.fsum(
                mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(part.sigma) ** 2)) for x in range(-400, 401)
            )
            exact = float(1 - inside / whole)
        assert exact <= part.beyond <= 8 * exact


def test_the_lattice_is_as_invisible_as_it_says() -> None:
    gamma = drawn.GAMMA_MAX
    for part in drawn.PARTS:
        kappa = drawn.KAPPA
        with mpmath.workdps(60):
            precision = 1 / mpmath.mpf(part.sigma) ** 2 + 5 / mpmath.mpf(kappa) ** 2
            worst = mpmath.mpf(0)
            for phase in (0, mpmath.mpf(1) / 4, mpmath.mpf(1) / 2):  # looks that put the middle of the posterior there
                lattice = mpmath.fsum(mpmath.exp(-((x - phase) ** 2) * precision / 2) for x in range(-300, 301))
                smooth = mpmath.sqrt(2 * mpmath.pi / precision)
                norm = mpmath.fsum(
                    mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(part.sigma) ** 2)) for x in range(-400, 401)
                )
                ideal = part.sigma * mpmath.sqrt(2 * mpmath.pi)
                worst = max(worst, abs(lattice / smooth * ideal / norm - 1))
        assert worst <= part.ripple(gamma) <= 1.2 * worst
        assert worst < 1.3e-16


def test_units_give_masks_at_least_gamma_and_a_fine_lattice() -> None:
    for gamma in (0.01, 0.5, 3.0, 7.6, 10.0):
        for sigma in (32.0, 64.0, 1024.0):
            if gamma > 1 and sigma < 1024:
                continue
            unit = drawn.unit(sigma, gamma)
            assert (unit * drawn.SIGMA / sigma) ** 2 >= gamma
            assert sigma / unit >= drawn.KAPPA
    with pytest.raises(InfeasibleError, match="gamma=12"):
        drawn.unit(1024.0, 12.0)


def test_moments_are_those_of_the_law_of_either_sign() -> None:
    values = np.arange(-128, 128)
    for t in (0.01, -0.2, 1.0):
        exact = max(
            mpmath.log(
                mpmath.fsum(int(n) * mpmath.exp(s * t * int(x)) for n, x in zip(drawn.counts(), values, strict=True))
                / 2**24
            )
            for s in (1, -1)
        )
        assert math.isclose(drawn.log_moment(t), float(exact), rel_tol=1e-9)
    assert drawn.log_moment(100.0) == 12800.0


def test_too_many_values_or_too_large_an_epsilon_do_not_fit() -> None:
    assert drawn.fits(7.6, 3.0, 1e-5, 40 * 198 * 2.0**24, repeated=40 * 2.0**24)
    assert not drawn.fits(7.6, 12.0, 1e-5, 40 * 198 * 2.0**30, repeated=1.0)
    assert not drawn.fits(7.6, 3.0, 1e-5, 40 * 198 * 2.0**24, repeated=40 * 2.0**28)  # seen eight times
    assert drawn.fits(7.6, 12.0, 1e-5, 1e8, repeated=1e6)
    assert not drawn.fits(7.6, 3.0, 1e-15, 40 * 198 * 2.0**30, repeated=1.0)
    assert not drawn.fits(drawn.GAMMA_MAX * 1.01, 3.0, 1e-5, 1.0, repeated=1.0)


# ---- alpha ----


def losses(gamma: float, least: int, honest: int, f: int) -> float:
    """What a coordinate costs more if f of its masks are lost, in the rounds that cost most: by explanations (R1)."""
    found = 0.0
    stays, leaves = gamma / (1 + gamma), gamma / (1 + 4 * gamma)
    for a in range(least, honest + 1):
        whole = 1 + (a - 1) * stays
        for k in range(a):  # peers that leave, each with 4 noises of its own
            n_i = (1 + k * stays) / (whole * (1 + k * leaves))
            move = stays / whole
            if f <= a - 1 - k:
                found = max(found, (n_i + f * move) ** 2 - n_i**2 - f * move**2 / stays)
            gone = leaves * n_i
            if f <= k:
                found = max(found, (n_i + f * gone) ** 2 - n_i**2 - f * gone**2 / leaves)
    for a in range(least, honest):
        for repairs in (1, 2, 3, 4):
            s = (repairs + 1 / gamma) / a
            for x in (0.0, 1 / least, 1 / least + 2 / honest, 1 / least + 2 / honest + (honest - 1) / least**2):
                w = max((1 - x / 2) / (1 + s), 0)
                found = max(found, (1 - w + f * w / a) ** 2 - (1 - w) ** 2 - f * (w / a) ** 2 * (1 + 1 / gamma))
    return found


@pytest.mark.parametrize(("gamma", "honest", "stragglers"), [(7.6, 40, 10), (2.5, 16, 4), (0.3, 12, 6), (10.0, 90, 5)])
def test_no_round_costs_more_for_lost_masks_than_is_counted(gamma: float, honest: int, stragglers: int) -> None:
    counted = drawn.lost_costs(gamma, honest, stragglers, 0, 6)
    for f in range(1, 7):
        assert losses(gamma, honest - stragglers, honest, f) <= counted[f - 1] * (1 + 1e-12)
    assert losses(gamma, honest - stragglers, honest, 1) > 0.6 * counted[0]
    assert (drawn.lost_costs(gamma, honest, stragglers, 1, 6) >= counted).all()  # grace: more cross terms


def test_alpha_holds_against_an_adversary_who_sees_masks_of_peers_first_and_without_these_it_would_not() -> None:
    """Each round peers are asked first. If one of their masks is lost, the client is given their model, else another.

    So many rounds that losses are common. What is counted for the masks of the client alone is too little.
    """
    gamma, honest, stragglers, most, trainings = 7.6, 40, 10, 5_000, 4_000
    one, chance = drawn.lost_costs(gamma, honest, stragglers, 0, 1)[0], 1e-3
    total = np.zeros(trainings)
    for _ in range(most):
        seen, fresh = RNG.binomial(honest - 1, drawn.LOST, (2, trainings))
        total += one * np.where(seen > 0, seen, fresh)  # two in one round are too rare to matter
    for part in drawn.PARTS[1:]:
        more = ((drawn.SIGMA / part.sigma) ** 2 - 1) / (gamma * 30**2)
        total += RNG.binomial((honest - 1) * most, part.weight, trainings) * more
    counted = drawn.cost(gamma, honest, stragglers, most, 1.0, fails=chance)
    assert np.mean(total > counted) <= chance
    assert np.mean(total > drawn.cost(gamma, honest, stragglers, most // 2, 1.0, fails=chance)) > 4 * chance
    assert np.mean(total > counted / 3) > 0.5


Round = tuple[tuple[bool, ...], int, bool]
"""Who was asked, how many of their masks are lost, whether the client has answered."""


def best(uploads: tuple[int, ...], mine: int, rate: float, lost: float, costs: list[float]) -> float:
    """The largest E exp(rate x what rounds cost) that an adversary reaches, by trying all that it can do.

    It asks peers, each so often, and in each round the client once at most, with the model that peers were given or
    with another one, after it has seen which masks of those peers are lost.
    """

    @cache
    def value(left: tuple[int, ...], own: int, rounds: tuple[Round, ...]) -> float:
        fresh: Round = ((False,) * len(left), 0, False)
        found = 1.0
        for at, (asked, gone, done) in enumerate([*rounds, fresh]):
            others = [*rounds[:at], *rounds[at + 1 :]]

            def then(uploads: tuple[int, ...], mine: int, one: Round, others: list[Round] = others) -> float:
                return value(uploads, mine, tuple(sorted([*others, one])))

            for peer, few in enumerate(left):
                if few == 0 or asked[peer] or done:
                    continue
                after = tuple(each - (k == peer) for k, each in enumerate(left))
                now = tuple(each or k == peer for k, each in enumerate(asked))
                kept, gets = then(after, own, (now, gone, False)), then(after, own, (now, gone + 1, False))
                found = max(found, (1 - lost) * kept + lost * gets)
            if own > 0 and not done:
                for known, unknown in ((gone, asked.count(False)), (0, len(left))):
                    cost = sum(
                        math.comb(unknown, k)
                        * lost**k
                        * (1 - lost) ** (unknown - k)
                        * math.exp(rate * costs[known + k])
                        for k in range(unknown + 1)
                    )
                    found = max(found, cost * then(left, own - 1, (asked, gone, True)))
        return found

    return value(uploads, mine, ())


@pytest.mark.parametrize("lost", [0.02, 0.2])
@pytest.mark.parametrize("rate", [0.5, 3.0])
def test_no_order_in_which_an_adversary_asks_beats_the_bound_on_lost_masks(lost: float, rate: float) -> None:
    """(1 + λ)^N of (B2), against the best of all adversaries with two or three peers."""
    for uploads, mine in (((2, 2), 2), ((1, 1, 1), 1), ((2, 1, 1), 2)):
        peers = len(uploads)
        costs = [0.3 * f + 0.2 * f * f for f in range(2 * peers + 1)]
        others = 2 * peers - 1
        cluster = sum(
            math.comb(others, k) * lost**k * (1 - lost) ** (others - k) * math.exp(rate * costs[1 + k])
            for k in range(others + 1)
        )
        draws = sum(uploads) + peers * mine
        bound = (1 + lost * (cluster - 1)) ** draws
        reached = best(uploads, mine, rate, lost, costs)
        alone = (
            sum(  # the same rounds in any order that is fixed beforehand
                math.comb(peers, k) * lost**k * (1 - lost) ** (peers - k) * math.exp(rate * costs[k])
                for k in range(peers + 1)
            )
            ** mine
        )
        assert alone < reached <= bound


def test_alpha_is_what_its_formula_says() -> None:
    """By hand, in 40 digits: the best rate of Chernoff's bound, over what one lost mask costs."""
    gamma, honest, stragglers, most, delta, fails = 7.6, 40, 10, 150, 1e-5, 1e-6
    draws, others = 2 * most * (honest - 1), 2 * (honest - 1) - 1
    with mpmath.workdps(40):
        lost = mpmath.mpf(drawn.LOST)
        most_lost = next(k for k in range(1, 99) if 2**32 * draws * lost * mpmath.binomial(others, k) * lost**k < 1e-13)
        costs = [mpmath.mpf(c) for c in drawn.lost_costs(gamma, honest, stragglers, 0, most_lost)]
        falls = [mpmath.binomial(others, k) * lost**k for k in range(most_lost + 1)]

        def alpha(rate: Any) -> Any:
            narrow = mpmath.fsum(
                part.weight * mpmath.expm1(rate * ((drawn.SIGMA / part.sigma) ** 2 - 1) / (gamma * 30**2))
                for part in drawn.PARTS
            )
            loses = lost * mpmath.fsum(
                fall * mpmath.expm1(rate * costs[min(k, most_lost - 1)]) for k, fall in enumerate(falls)
            )
            return (draws * (mpmath.log1p(narrow) + mpmath.log1p(loses)) - mpmath.log((fails - 1e-8) * delta)) / rate

        exact = min(alpha(mpmath.mpf(rate)) for rate in np.geomspace(10, 2000, 400))
    found = drawn.cost(gamma, honest, stragglers, most, delta, fails=fails)
    assert float(exact) * (1 - 1e-6) <= found <= float(exact) * 1.003


def test_alpha_grows_with_rounds_and_falls_with_delta_clients_and_what_may_fail() -> None:
    def found(honest: int = 40, most: int = 150, delta: float = 1e-5, fails: float = 1e-6, grace: int = 0) -> float:
        return drawn.cost(7.6, honest, 10, most, delta, fails=fails, grace=grace)

    assert found(most=300) > found()
    assert found(delta=1e-9) > found()
    assert found(fails=1e-7) > found()
    assert found(grace=1) > found()
    assert found(honest=90) < found()
    assert drawn.cost(7.6, 1, 0, 150, 1e-5, fails=1e-6) == found(fails=1e-8) == math.inf


@pytest.mark.parametrize("honest", [400_000, 700_000, 1_000_000, 2_000_000])
def test_alpha_is_finite_for_rosters_that_lose_many_masks_in_every_round(honest: int) -> None:
    found = drawn.cost(1.0, honest, 1000, 2, 1e-5, fails=1e-6)
    expected = 2 * 2 * (honest - 1) * drawn.LOST * drawn.lost_costs(1.0, honest, 1000, 0, 1)[0]
    assert expected < found < math.inf


def test_alpha_is_above_the_exact_quantile_of_one_coordinate() -> None:
    """If all change is in one coordinate, the number of lost masks is binomial: its quantile is a lower bound."""
    most, peers = 150, 39
    at = stats.binom.isf(1e-11, 2 * most * peers, drawn.LOST)
    single = drawn.lost_costs(7.6, 40, 10, 0, 1)[0]
    found = drawn.cost(7.6, 40, 10, most, 1e-5, fails=1e-6)
    assert at * single <= found <= 1.5 * (at + 1) * single


def test_covered_makes_the_room_that_it_says() -> None:
    for delta in (1e-3, 1e-5, 1e-12):
        for mu in np.geomspace(1e-4, 10, 60):
            epsilon = gaussian.epsilon(mu, delta)
            steepness = epsilon / mu - mu / 2
            if steepness > 0:
                left = delta * (1 - drawn.room(steepness))
                assert gaussian.delta(epsilon, mu / math.sqrt(drawn.COVERED)) <= left
                assert drawn.room(steepness) > 4e-5 * (1 + steepness**2)


def test_steepness_grows_with_what_was_spent() -> None:
    for delta in (1e-3, 1e-5, 1e-12):
        mus = np.geomspace(1e-3, 10, 100)
        found = [gaussian.epsilon(mu, delta) / mu - mu / 2 for mu in mus]
        assert all(b > a for a, b in pairwise(found) if a > 0)
