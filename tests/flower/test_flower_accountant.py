"""The accountant is one of Flower's, exact where theirs is a bound."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from flwr.serverapp import GaussianPrivacyEvent, PrivacyAccountant, RdpAccountant
from flwr.serverapp.strategy import FedAvg

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError
from lightdp.flower import Accountant, LightDP
from support.flower_adders import a_plan


def test_the_accountant_is_one_of_flowers() -> None:
    plan = a_plan(epsilon=5.0)
    accountant: PrivacyAccountant = Accountant(plan)
    assert accountant.config.target_delta == 1e-5
    assert accountant.config.max_epsilon == 5.0
    assert accountant.config.population_size == 3
    assert accountant.get_privacy_spent().epsilon == 0.0
    replaced = Accountant(a_plan(adjacency="replace"))
    assert replaced.config.neighboring_relation.value == "replace-one"
    with pytest.raises(ArgumentError, match="whole clients, got a plan of unit='record'"):
        Accountant(a_plan(unit="record"))
    assert LightDP(FedAvg(), a_plan(unit="record")).privacy_spent() is None


def test_rounds_that_cost_no_epsilon_at_the_plans_delta_still_have_a_delta() -> None:
    plan = a_plan(epsilon=0.01, delta=0.01, rounds=200)
    accountant, odometer = Accountant(plan), Odometer(plan)
    accountant.follow(lambda: odometer.mu().max(), lambda: odometer.rounds)
    assert accountant.get_delta(0.0) == 0
    odometer.record([0, 1, 2], [])
    assert odometer.max_epsilon() == 0
    assert accountant.get_delta(0.0) >= gaussian.delta(0.0, odometer.mu().max()) > 0
    accountant.follow(lambda: 0.0, lambda: 0)
    assert accountant.get_delta(0.0) > 0


def test_the_accountant_follows_the_odometer_exactly() -> None:
    plan = a_plan(epsilon=5.0, calibration="repair")
    accountant, odometer = Accountant(plan), Odometer(plan)
    accountant.follow(lambda: odometer.mu().max(), lambda: odometer.rounds)
    odometer.record([0, 1], [2])
    odometer.record([0, 1, 2], [])
    assert accountant.get_epsilon(1e-5) == pytest.approx(odometer.max_epsilon(), rel=1e-9)
    assert accountant.get_epsilon(1e-7) == pytest.approx(odometer.epsilon(1e-7).max(), rel=1e-9)
    assert accountant.num_releases == 2
    assert accountant.get_delta(odometer.max_epsilon()) == pytest.approx(1e-5, rel=1e-6)
    assert accountant.get_delta(odometer.max_epsilon()) >= 1e-5
    again = Accountant(plan)
    again.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert again.get_epsilon(1e-5) == pytest.approx(odometer.max_epsilon(), rel=1e-7)
    assert again.num_releases == 2
    with pytest.raises(ArgumentError, match="same plan"):
        Accountant(a_plan()).load_state_dict(accountant.state_dict())


def test_other_releases_compose_and_stay_below_flowers_own_bound() -> None:
    plan = a_plan(epsilon=5.0)
    accountant = Accountant(plan)
    event = GaussianPrivacyEvent(noise_multiplier=2.0, sample_size=3, population_size=3)
    theirs = RdpAccountant(accountant.config)
    for each in (accountant, theirs):
        each.compose(event, count=4)
    exact = gaussian.epsilon(4**0.5 / 2.0, 1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(exact, rel=1e-9)
    assert exact <= theirs.get_epsilon(1e-5) <= 1.3 * exact
    assert accountant.would_exceed(event, max_epsilon=exact)
    assert not accountant.would_exceed(event, max_epsilon=2 * exact)
    assert accountant.would_exceed(event, count=10)
    with pytest.raises(ArgumentError, match="count must be >= 1"):
        accountant.compose(event, count=0)


def test_one_run_with_drawn_masks_costs_what_its_ledger_says_and_more_beside_other_releases() -> None:
    plan = a_plan(clients=10, epsilon=5.0, calibration="repair", masks="drawn")
    accountant, odometer = Accountant(plan), Odometer(plan)
    accountant.follow(lambda: odometer.mu().max(), lambda: odometer.rounds, length=5)
    assert accountant.get_epsilon(1e-12) == accountant.get_delta(3.0) == 0
    odometer.record(range(10), [])
    fails, mu = plan.masks.fails(5), odometer.mu().max()
    assert accountant.get_epsilon(1e-5) == pytest.approx(odometer.max_epsilon(), rel=1e-9)
    assert accountant.get_epsilon(9e-6) == math.inf  # of a smaller δ than the plan's nothing is said
    assert accountant.get_delta(odometer.max_epsilon()) == pytest.approx(1e-5, rel=1e-6)
    for epsilon in (0.1, 0.5 * odometer.max_epsilon()):
        found = accountant.get_delta(epsilon)
        assert gaussian.delta(epsilon, mu) <= found <= fails.delta(epsilon, mu)
        assert accountant.get_epsilon(found) == pytest.approx(epsilon, rel=1e-9)
    before = accountant.get_epsilon(1e-5)
    accountant.compose(GaussianPrivacyEvent(noise_multiplier=1e6, sample_size=10, population_size=10))
    after = accountant.get_epsilon(1e-5)
    assert before < after == pytest.approx(fails.epsilon(mu, 1e-5), rel=1e-9)
    assert after < before + 2e-3
    assert accountant.would_exceed(GaussianPrivacyEvent(1e6, 10, 10), max_epsilon=before)
    assert "drawn masks" in str(accountant.get_privacy_spent())
    again = Accountant(plan)
    again.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert again.get_epsilon(1e-5) == pytest.approx(after, rel=1e-9)
    accountant.follow(lambda: 0.0, lambda: 0)  # a second run, in which nothing was released
    assert accountant.get_epsilon(1e-5) == pytest.approx(after, rel=1e-9)


def test_many_values_leave_nothing_of_delta_for_a_large_epsilon() -> None:
    plan = a_plan(clients=10, epsilon=5.0, calibration="repair", masks="drawn")
    found = []
    for length in (10, 10**9):
        accountant = Accountant(plan)
        accountant.follow(lambda: 0.1, lambda: 1, length=length)
        accountant.compose(GaussianPrivacyEvent(noise_multiplier=0.25, sample_size=10, population_size=10))
        found.append(accountant.get_epsilon(1e-5))
    assert found[0] < found[1] == math.inf
    with pytest.raises(ArgumentError, match="fails must be a list of three numbers"):
        accountant.load_state_dict(accountant.state_dict() | {"fails": 1.0})


@pytest.mark.parametrize("others", [0, 1])
def test_delta_never_grows_with_epsilon_and_no_epsilon_holds_that_is_not_said(others: int) -> None:
    """Around the budget, above it, and where e^ε times what may fail is much."""
    plan = a_plan(clients=10, epsilon=5.0, calibration="repair", masks="drawn")
    accountant, whole = Accountant(plan), gaussian.mu(5.0, 1e-5)
    for share in (0.5, 1 - 1e-14, 1.0, 1.01):
        accountant = Accountant(plan)
        accountant.follow(lambda share=share: share * whole, lambda: 1, length=10**6)  # type: ignore[misc]
        if others:
            accountant.compose(GaussianPrivacyEvent(noise_multiplier=1e3, sample_size=10, population_size=10))
        places = [0.0, 1.0, 4.0, 4.99, 5 - 1e-12, 5.0, 5 + 1e-12, 5.01, 5.5, 6.0, 8.0, 12.0, 25.0, 60.0, 900.0]
        found = [accountant.get_delta(epsilon) for epsilon in places]
        assert all(one >= other for one, other in itertools.pairwise(found))
        assert min(found) >= 1e-5
        mu = share * whole
        assert all(each >= gaussian.delta(epsilon, mu) for epsilon, each in zip(places, found, strict=True))
        for epsilon, each in zip(places, found, strict=True):
            said = accountant.get_epsilon(each) if each < 1 else 0.0
            assert said <= epsilon + 5e-3
    assert accountant.get_epsilon(9e-6) == math.inf


def test_an_epsilon_of_the_whole_budget_is_covered() -> None:
    plan = a_plan(clients=10, epsilon=5.0, calibration="repair", masks="drawn")
    accountant = Accountant(plan)
    accountant.follow(lambda: gaussian.mu(5.0, 1e-5, up=True), lambda: 1)
    assert accountant.get_epsilon(1e-5) == pytest.approx(5.0, rel=1e-9)
