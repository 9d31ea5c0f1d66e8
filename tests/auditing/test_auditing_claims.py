"""`lightdp audit --claim`: the true figures of noise that others describe, against mpmath and dp-accounting."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from lightdp import gaussian
from lightdp._validate import rounded_up
from lightdp.auditing import claimed
from lightdp.auditing._mechanisms import Svt, _renyi
from lightdp.errors import ArgumentError, LightDPError
from support import oracles

if TYPE_CHECKING:
    from support.command_line import Run

FLIP = "clip=1 sensitivity=1e-4 epsilon=10 delta=1e-5"
FLAMBY = "epsilon={} delta=1e-4 planned_rounds={} rounds=1500 sampling_rate={}"
NVFLARE = "mechanism=svt parameters=7033290 fraction=0.1 selection=0.1 noise_var=0.1 epsilon=0.1 delta=1e-5"


@pytest.mark.parametrize("rounds", [1, 20])
def test_the_classical_formula_has_the_mu_of_its_noise(rounds: int) -> None:
    """σ = sensitivity sqrt(2 ln(1.25/δ))/ε, computed apart; μ = sqrt(T) clip/σ."""
    with mpmath.workdps(40):
        sigma = mpmath.mpf("0.7") * mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25") / mpmath.mpf("1e-5"))) / 4
        mu = mpmath.sqrt(rounds) * mpmath.mpf("1.5") / sigma
    found = claimed(f"clip=1.5 sensitivity=0.7 epsilon=4 delta=1e-5 rounds={rounds}")
    assert found.whole.mu == pytest.approx(float(mu), rel=1e-12)
    assert oracles.delta(found.whole.epsilon, float(mu)) == pytest.approx(1e-5, rel=1e-6)
    assert found.whole.power == pytest.approx(float(oracles.power(float(mu), 0.01)), rel=1e-9)
    assert found.whole.accuracy == pytest.approx(float(mpmath.ncdf(mu / 2)), rel=1e-9)
    assert (found.per_round, found.holds) == (True, found.one.epsilon <= 4)


def test_the_classical_formula_holds_for_the_clip_it_was_made_for() -> None:
    assert claimed("clip=1 sensitivity=1 epsilon=0.9 delta=1e-5").holds
    assert not claimed("clip=1 sensitivity=0.5 epsilon=0.9 delta=1e-5").holds
    assert not claimed("clip=1 sensitivity=1 epsilon=0.9 delta=1e-5 adjacency=replace").holds


def test_noise_given_as_it_is_is_exact() -> None:
    by_sigma = claimed("clip=2 sigma=10 rounds=25 delta=1e-5")
    by_ratio = claimed("clip=2 noise_multiplier=5 rounds=25 delta=1e-5")
    assert by_sigma.whole == by_ratio.whole
    assert by_sigma.whole.mu == pytest.approx(1.0)
    assert by_sigma.whole.epsilon == pytest.approx(4.3772, abs=1e-4)  # of μ = 1, as in `gaussian`
    assert by_sigma.holds  # nothing was claimed


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_noise_planned_for_the_rounds_that_happen_holds_and_for_fewer_does_not(rate: float) -> None:
    claim = f"epsilon=3 delta=1e-5 planned_rounds=50 sampling_rate={rate}"
    right, twice = claimed(f"{claim} rounds=50"), claimed(f"{claim} rounds=100")
    assert right.holds
    assert right.whole.epsilon == pytest.approx(3.0, rel=1e-3)
    assert not twice.holds
    assert twice.whole.epsilon > 3.9


def test_sampled_figures_are_those_of_dp_accounting() -> None:
    found = claimed("noise_multiplier=1.2 rounds=200 sampling_rate=0.05 delta=1e-5").whole
    theirs = pld.from_gaussian_mechanism(1.2, sampling_prob=0.05, value_discretization_interval=1e-4).self_compose(200)
    assert found.epsilon == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=2e-3)
    assert found.accuracy == pytest.approx((1 + theirs.get_delta_for_epsilon(0.0)) / 2, rel=1e-3)
    assert gaussian.epsilon(found.mu, 1e-5) == pytest.approx(found.epsilon)
    assert found.power < 1e-5 + math.exp(found.epsilon) * 0.01


@pytest.mark.parametrize(
    ("claim", "low", "high"),
    [
        (FLIP, 2.1e8, 2.2e8),
        (FLAMBY.format(1, 750, 0.02), 1.45, 1.50),
        (FLAMBY.format(1, 120, 0.125), 4.15, 4.25),
        (FLAMBY.format(5, 750, 0.02), 7.1, 7.2),
        (FLAMBY.format(5, 120, 0.125), 22.9, 23.1),
    ],
)
def test_published_claims_are_off_by_as_much_as_the_docs_say(claim: str, low: float, high: float) -> None:
    found = claimed(claim)
    assert low < found.claimed_for.epsilon < high
    assert not found.holds


def test_the_sparse_vector_filter_spends_what_its_own_accountant_says() -> None:
    found = claimed(NVFLARE)
    assert isinstance(found.mechanism, Svt)
    assert found.mechanism.pure == pytest.approx(70_333, abs=0.5)
    assert 3700 < found.one.epsilon < 3800  # at δ = 1e-5; Laplace losses average out, so far below the pure ε
    assert (found.one.power, found.one.accuracy, found.holds) == (1.0, 1.0, False)


def test_renyi_divergences_of_laplace_noise_are_the_integral() -> None:
    for epsilon, order in ((0.1, 2.0), (1.0, 1.5), (3.0, 8.0)):
        points = [-60, 0, epsilon, 60 + epsilon]

        def moment(x: mpmath.mpf, epsilon: float = epsilon, order: float = order) -> mpmath.mpf:
            return mpmath.exp(-order * abs(x) - (1 - order) * abs(x - epsilon)) / 2

        assert float(_renyi(epsilon, np.array([order]))[0]) == pytest.approx(
            float(mpmath.log(mpmath.quad(moment, points))) / (order - 1)
        )


def test_renyi_divergences_give_the_delta_that_every_order_bounds() -> None:
    """δ <= exp((a − 1)(D_a − ε))/(a − 1) · (1 − 1/a)^a for each order a; at the ε that is given the least is δ."""
    svt, orders = Svt(parameters=500, fraction=1.0, selection=1e-15, each=0.1), 1 + np.geomspace(1e-3, 1e4, 40_001)
    epsilon = svt.epsilon(1, 1e-5)
    logs = (orders - 1) * (500 * _renyi(0.1, orders) - epsilon) - np.log(orders - 1) + orders * np.log1p(-1 / orders)
    assert math.exp(logs.min()) == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("count", [1, 40, 2000])
def test_laplace_rounds_are_bounded_from_above_and_not_by_much(count: int) -> None:
    svt = Svt(parameters=count, fraction=1.0, selection=1e-12, each=0.1)
    theirs = pld.from_laplace_mechanism(10.0, value_discretization_interval=1e-4).self_compose(count)
    exact = theirs.get_epsilon_for_delta(1e-5)
    assert exact * (1 - 1e-3) <= svt.epsilon(1, 1e-5) <= 1.15 * exact + 0.02
    assert theirs.get_delta_for_epsilon(0.0) <= svt.advantage(1) + 1e-6
    assert svt.epsilon(1, 1e-5) <= svt.pure


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("", "claim must have delta, got none"),
        ("epsilon=1", "claim must have delta"),
        ("delta=1e-5", "claim must have one of sigma, noise_multiplier, sensitivity, planned_rounds, got none"),
        ("delta=1e-5 sigma=1 noise_multiplier=2", "got sigma, noise_multiplier"),
        ("delta=1e-5 sensitivity=1", "claim must have epsilon, got none"),
        ("delta=1e-5 sigma=-1", "sigma must be > 0, got sigma=-1"),
        ("delta=1e-5 sigma=nan", "sigma must be finite, got sigma=nan"),
        ("delta=1e-5 sigma=one", "sigma must be a number, got sigma='one'"),
        ("delta=1e-5 sigma=1e-200", "sigma must give noise between 1e-12 and 1e.12 clips, got sigma=1e-200"),
        ("delta=2 sigma=1", r"delta must be in \(0, 1\), got delta=2"),
        ("delta=1e-5 sigma=1 rounds=1.5", "rounds must be an integer, got rounds=1.5"),
        ("delta=1e-5 sigma=1 rounds=inf", "rounds must be an integer, got rounds=inf"),
        ("delta=1e-5 sigma=1 rounds=0", r"rounds must be in 1..1000000000, got rounds=0"),
        ("delta=1e-5 sigma=1 color=red", "claim must have names of mechanism, clip, .*, got color"),
        ("delta=1e-5 sigma=1 claimed_for=ever", "claimed_for must be one of training, round"),
        ("mechanism=svt delta=1e-5 parameters=9 selection=-1", "selection must be > 0, got selection=-1"),
        ("delta=1e-5 sigma=1 sigma=2", "each name once, got 'sigma=2'"),
        ("delta=1e-5 sigma", "NAME=VALUE with spaces between, each name once, got 'sigma'"),
        ("delta=1e-5 sigma=1 mechanism=magic", "mechanism must be one of gaussian, svt, got mechanism='magic'"),
        ("delta=1e-5 sigma=1 adjacency=both", "adjacency must be one of add-remove, replace"),
        ("delta=1e-5 sigma=1 sampling_rate=0", "sampling_rate must be > 0, got sampling_rate=0"),
        ("delta=1e-5 sigma=1 sampling_rate=0.1 rounds=2000000", "rounds must be <= 1000000"),
        ("mechanism=svt delta=1e-5 parameters=9 noise_var=1e300", r"noise_var must be <= 1e.12, got noise_var=1e.300"),
        ("mechanism=svt delta=1e-5", "claim must have parameters"),
        ("mechanism=svt delta=1e-5 parameters=10 clip=1", "got clip"),
    ],
)
def test_a_claim_that_says_nothing_is_refused_by_name(claim: str, words: str) -> None:
    with pytest.raises(LightDPError, match=words) as error:
        claimed(claim)
    assert isinstance(error.value, ArgumentError)


def test_the_command_prints_the_truth_and_exits_with_one_if_the_claim_does_not_hold(run: Run) -> None:
    bad = run("audit", "--claim", FLIP)
    assert bad.code == 1
    for words in ("2.132e+08", "100.00 %", "DOES NOT HOLD  claimed is ε = 10; one round gives"):
        assert words in bad.out
    good = run("audit", "--claim", "sigma=5 delta=1e-5 rounds=25", "--json")
    assert good.code == 0
    assert json.loads(good.out)["all_rounds"]["mu"] == pytest.approx(1.0)
    wrong = run("audit", "--claim", "sigma=5")
    assert (wrong.code, wrong.out) == (2, "")
    assert "claim must have delta" in wrong.err


def test_a_claim_above_its_epsilon_by_little_does_not_hold_unless_an_accountant_searched() -> None:
    """ε of μ = 1 at δ = 1e-5 is 4.37718: what is computed in closed form has no room of a thousandth."""
    exact = gaussian.epsilon(1.0, 1e-5)
    assert claimed(f"noise_multiplier=5 rounds=25 delta=1e-5 epsilon={exact}").holds
    assert not claimed(f"noise_multiplier=5 rounds=25 delta=1e-5 epsilon={exact * (1 - 1e-6)}").holds
    given = claimed("noise_multiplier=2 rounds=50 sampling_rate=0.1 delta=1e-5").whole.epsilon
    assert not claimed(f"noise_multiplier=2 rounds=50 sampling_rate=0.1 delta=1e-5 epsilon={given * (1 - 5e-4)}").holds
    assert claimed("epsilon=3 delta=1e-5 planned_rounds=50 rounds=50 sampling_rate=0.1").tolerance == 1e-3
    assert claimed("epsilon=3 delta=1e-5 planned_rounds=50 rounds=50").tolerance == 1e-9


def test_figures_of_sampled_batches_are_called_bounds(run: Run) -> None:
    sampled = run("audit", "--claim", "noise_multiplier=2 rounds=50 sampling_rate=0.1 delta=1e-5 epsilon=0.1")
    assert "at most, 50 rounds" in sampled.out
    assert "true, 50 rounds" not in sampled.out
    assert "50 rounds give up to ε =" in " ".join(sampled.out.split())
    assert "true, 50 rounds" in run("audit", "--claim", "noise_multiplier=2 rounds=50 delta=1e-5").out


def test_a_claim_for_a_round_says_what_all_rounds_give(run: Run) -> None:
    claim = "clip=1 sensitivity=1 epsilon=0.9 delta=1e-5 rounds=20"
    found, done = claimed(claim), run("audit", "--claim", claim)
    assert done.code == 0
    words = f"holds for one round; 20 rounds give ε = {rounded_up(found.whole.epsilon)} at δ = 1e-05 (μ = "
    assert words in " ".join(done.out.split())
    whole = claimed(f"{claim} claimed_for=training")
    assert (found.holds, whole.holds) == (True, False)
    assert claimed("noise_multiplier=5 rounds=25 delta=1e-5 epsilon=1 claimed_for=round").holds


def test_json_has_one_shape_and_the_mu_of_the_claim() -> None:
    facts = claimed("noise_multiplier=5 rounds=25 delta=1e-5 epsilon=4").to_dict()
    assert facts["mu_claimed"] == pytest.approx(gaussian.mu(4.0, 1e-5))
    assert facts["claimed_for"] == "training"
    assert set(facts["all_rounds"]) == {"rounds", "mu", "epsilon", "found", "right"}
    assert facts["all_rounds"]["found"] == pytest.approx(gaussian.power(1.0, 0.01))


def test_the_selection_of_the_sparse_vector_technique_counts_apart_from_the_claim() -> None:
    """Its divergence is that of randomised response with its ε, the worst of pure ε: ε tanh(ε/2)."""
    svt = claimed("mechanism=svt parameters=10 fraction=0.1 selection=2 noise_var=0.5 delta=1e-5 epsilon=9").mechanism
    assert isinstance(svt, Svt)
    assert (svt.selection, svt.each) == (2.0, 0.5)
    with mpmath.workdps(30):
        p = mpmath.exp(2) / (1 + mpmath.exp(2))
        selection = p * mpmath.log(p / (1 - p)) + (1 - p) * mpmath.log((1 - p) / p)
        each = mpmath.mpf("0.5") - 1 + mpmath.exp(mpmath.mpf("-0.5"))
        bound = mpmath.sqrt(1 - mpmath.exp(-(selection + each)))
        pure = mpmath.tanh(mpmath.mpf("2.5") / 2)
    assert svt.advantage(1) == pytest.approx(float(min(bound, pure)), rel=1e-6)
    small = Svt(parameters=200, fraction=1.0, selection=0.5, each=0.01)
    with mpmath.workdps(30):
        p = mpmath.exp(0.5) / (1 + mpmath.exp(0.5))
        total = (2 * p - 1) * mpmath.mpf("0.5") + 200 * (mpmath.mpf("0.01") - 1 + mpmath.exp(mpmath.mpf("-0.01")))
    assert float(mpmath.sqrt(1 - mpmath.exp(-total))) < math.tanh(small.pure / 2)  # so it is the one that counts
    assert small.advantage(1) == pytest.approx(float(mpmath.sqrt(1 - mpmath.exp(-total))), rel=1e-6)
