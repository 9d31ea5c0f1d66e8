from __future__ import annotations

import dataclasses
import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import lightdp
from lightdp import gaussian, noise_graph, planning, stragglers
from lightdp.errors import ArgumentError, InfeasibleError
from lightdp.planning import GAMMA_MAX, Plan, _calibrate, compare
from support import oracles

ALL = ("exact", "repair", "paper", "local", "smpc", "central")


def planned(clients: int, colluders: int, missing: int, epsilon: float = 3.0, rounds: int = 1, **more: Any) -> Plan:
    settings = {"delta": 1e-5, "rounds": rounds, "epsilon": epsilon} | more
    return lightdp.plan(clients=clients, colluders=colluders, stragglers=missing, **settings)


# gamma, sigma_U, sigma_K, sigma_eff, true epsilon; one round, delta = 1e-5, sensitivity 1
REFERENCE = [
    ((50, 10, 10), "paper", (0.079656, 0.947735, 0.267482, 1.866189, 2.153548)),
    ((50, 40, 10), "paper", (0.057681, 1.379717, 0.331366, 1.684623, 2.415632)),
    ((50, 15, 30), "paper", (0.041768, 1.113421, 0.227551, 1.711616, 2.372853)),
    ((50, 10, 10), "exact", (0.377860, 0.406626, 0.249955, 1.390593, 3.0)),
    ((50, 15, 30), "exact", (0.138803, 0.613120, 0.228426, 1.390593, 3.0)),
]


@pytest.mark.parametrize(("case", "calibration", "expected"), REFERENCE)
def test_reference_values(case: tuple[int, int, int], calibration: str, expected: tuple[float, ...]) -> None:
    p = planned(*case, calibration=calibration)
    found = (p.gamma, p.sigma_individual, p.sigma_pairwise, p.sigma_effective, p.epsilon())
    assert found == pytest.approx(expected, abs=5.1e-7)


# noise in the mean of local, paper, exact, SMPC + DP, repair with gamma = 3
NOISE = [
    ((50, 10, 0), ("0.0387", "0.0166", "0.00097", "0.00097", "0.00128")),
    ((50, 10, 10), ("0.0432", "0.0284", "0.0110", "0.00144", "0.00164")),
    ((50, 15, 30), ("0.0594", "0.0657", "0.0394", "0.0119", "0.0051")),
]


@pytest.mark.parametrize(("case", "expected"), NOISE)
def test_reference_noise_in_the_mean(case: tuple[int, int, int], expected: tuple[str, ...]) -> None:
    found = [oracles.before_rounding(planned(*case, calibration=c)) for c in ("local", "paper", "exact", "smpc")]
    many = 1_000_000  # rounds, for one of which repair keeps the worst; variances grow with them
    repair = planned(*case, rounds=many, calibration="repair", gamma=3.0, late="unseen")
    found.append(oracles.before_rounding(repair) / many)
    for value, text in zip(found, expected, strict=True):
        assert abs(value - float(text)) <= 0.51 * 10 ** -len(text.split(".")[1])


def test_the_paper_is_false_for_large_epsilon() -> None:
    assert planned(50, 10, 10, 30.0, calibration="paper").epsilon() == pytest.approx(36.48, abs=0.005)


def test_published_noise_is_20_times_that_of_smpc_and_11_times_at_the_same_true_epsilon() -> None:
    smpc = planned(50, 10, 10, calibration="smpc", wire_steps=16)
    paper = planned(50, 10, 10, calibration="paper", wire_steps=16)
    assert paper.noise_in_mean() / smpc.noise_in_mean() == pytest.approx(19.7, abs=0.05)
    at_true = next(row for row in compare(smpc) if row.scheme.name == "paper")
    assert at_true.plan is not None
    assert at_true.plan.epsilon() == pytest.approx(3, rel=1e-9)
    assert at_true.plan.noise_in_mean() / smpc.noise_in_mean() == pytest.approx(10.95, abs=0.05)


COUNTS = st.integers(2, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1), st.integers(0, n - 2)))


@given(case=COUNTS, gamma=st.floats(1e-4, 100))
@settings(max_examples=80, deadline=None)
def test_exact_gamma_beats_every_other(case: tuple[int, int, int], gamma: float) -> None:
    best = planned(*case)
    other = planned(*case, gamma=gamma)
    least, more = oracles.before_rounding(best), oracles.before_rounding(other)
    assert least <= more * (1 + 1e-9) or best.gamma == GAMMA_MAX


@given(m=st.floats(1e-6, 40), n=st.integers(2, 100))
@settings(max_examples=80, deadline=None)
def test_exact_gamma_is_the_closed_form_in_mpmath(m: float, n: int) -> None:
    with mpmath.workdps(60):
        x = mpmath.mpf(m)
        root = (-x + mpmath.sqrt(x * x + x * n * (n - 1 - x))) / (x * n) if x < n - 1 else mpmath.mpf(0)
    assert _calibrate.exact_gamma(m, n) == pytest.approx(float(min(root, GAMMA_MAX)), rel=1e-9)


def paper_objective(gamma: float, m: float, n: int) -> float:
    """The paper's own problem in gamma: noise times the sigma_U² that its constraint asks for (Proposition 4)."""
    constraint = ((n - 1) * gamma + 1) * ((n - 1) * gamma**2 + (gamma + 1) ** 2) / (n * gamma + 1) ** 2
    return (m * gamma + 1) * constraint


@given(m=st.floats(0, 60), n=st.integers(1, 100))
@settings(max_examples=100, deadline=None)
def test_paper_gamma_minimises_the_papers_own_problem(m: float, n: int) -> None:
    gamma = _calibrate.paper_gamma(m, n)
    grid = np.concatenate([[0], np.geomspace(1e-6, 10, 400)])
    assert paper_objective(gamma, m, n) <= min(paper_objective(g, m, n) for g in grid) * (1 + 1e-9)
    if gamma > 0:
        found = minimize_scalar(lambda g: paper_objective(g, m, n), bounds=(0, 1), method="bounded")
        assert paper_objective(gamma, m, n) <= found.fun * (1 + 1e-9)


def test_paper_sigma_meets_its_printed_constraint_with_equality() -> None:
    p = planned(50, 10, 10, calibration="paper")
    n, u, k = 40, p.sigma_individual**2, p.sigma_pairwise**2
    left = ((n - 1) * k + u) / ((n * k + u) ** 2 * u**2) * ((n - 1) * k**2 + (k + u) ** 2)
    assert left == pytest.approx(9 / (2 * math.log(2 / 1e-5)), rel=1e-9)


@given(
    case=COUNTS,
    calibration=st.sampled_from(ALL),
    epsilon=st.floats(1e-3, 100),
    delta=st.floats(-30, -1).map(lambda x: 10**x),
    rounds=st.integers(1, 10**4),
    clip=st.floats(1e-3, 1e3),
    adjacency=st.sampled_from(["add-remove", "replace"]),
    unit=st.sampled_from(["record", "client"]),
)
@settings(max_examples=200, deadline=None)
def test_every_plan_keeps_its_budget_and_wastes_nothing(
    case: tuple[int, int, int], calibration: str, epsilon: float, delta: float, rounds: int, **more: Any
) -> None:
    if calibration == "smpc" and case[0] <= case[1] + case[2]:
        with pytest.raises(InfeasibleError, match="smpc needs clients > colluders"):
            planned(*case, epsilon, rounds, delta=delta, calibration=calibration, **more)
        return
    p = planned(*case, epsilon, rounds, delta=delta, calibration=calibration, **more)
    assert p.noise_in_mean() > 0
    assert 2 <= p.wire_bits <= 64
    if calibration != "paper":
        assert epsilon * (1 - 1e-6) <= p.epsilon() <= epsilon


@given(case=COUNTS, calibration=st.sampled_from(["exact", "paper"]))
@settings(max_examples=60, deadline=None)
def test_effective_sigma_is_that_of_the_matrix_of_honest_clients(case: tuple[int, int, int], calibration: str) -> None:
    p = planned(*case, calibration=calibration)
    n = case[0]
    u, k = np.full(n, p.sigma_individual**2), oracles.star(n, p.sigma_pairwise**2)
    exact = noise_graph.effective_noise(noise_graph.covariance(u, k, colluders=range(case[1])))
    assert exact == pytest.approx(np.full(n - case[1], p.sigma_effective), rel=1e-9)


def test_noise_in_the_mean_is_what_a_simulated_round_leaves() -> None:
    """(D3) with random straggler sets on a sparse graph; 20 % more noise is told apart."""
    rng = np.random.default_rng(5)
    p = planned(12, 2, 4, degree=6, straggler_law=stragglers.custom(4, [0, 0, 0.5, 0, 0.5]))
    adjacent = p.graph.adjacency()
    means = []
    for _ in range(20_000):
        s = rng.choice([2, 4])
        used = np.ones(12, dtype=bool)
        used[rng.choice(12, s, replace=False)] = False
        wires = int(adjacent[np.ix_(used, ~used)].sum())
        own = np.rint(p.sigma_individual * rng.standard_normal(12 - s) / p.wire_grid) * p.wire_grid
        means.append((own.sum() + p.sigma_pairwise * rng.standard_normal(wires).sum()) / (12 - s))
    spread = 5 * math.sqrt(2 / len(means))
    assert np.var(means) == pytest.approx(p.noise_in_mean(), rel=spread)
    assert np.var(means) != pytest.approx(1.2 * p.noise_in_mean(), rel=spread)


@pytest.mark.parametrize("case", [(2, 0, 0), (2, 1, 0), (50, 49, 10), (50, 0, 48), (50, 0, 0), (3, 2, 1)])
@pytest.mark.parametrize("calibration", ["exact", "repair", "paper", "local", "central"])
def test_corner_cases_are_valid(case: tuple[int, int, int], calibration: str) -> None:
    p = planned(*case, calibration=calibration)
    assert math.isfinite(p.noise_in_mean())
    assert str(p)


def test_without_honest_peers_the_exact_plan_is_local_dp() -> None:
    assert planned(50, 49, 10).gamma == 0
    assert planned(50, 49, 10).sigma_individual == planned(50, 49, 10, calibration="local").sigma_individual


def test_without_stragglers_the_exact_plan_is_central_dp_among_the_honest() -> None:
    p = planned(50, 10, 0)
    assert p.gamma == GAMMA_MAX
    assert p.sigma_individual**2 * 40 == pytest.approx(p.sigma_effective**2, rel=0.001)


def test_where_stragglers_outweigh_honest_peers_pairwise_noise_is_not_used() -> None:
    assert planned(50, 45, 10).gamma == 0  # m = 4.7 >= n − 1 = 4
    assert planned(50, 45, 10, calibration="paper").gamma == 0


@pytest.mark.parametrize(
    ("momentum", "ema", "grace", "weight", "within"),
    [(0.0, 0.0, 0, 2.0, (3, 4.5)), (0.9, 0.0, 0, 2 / 19**0.5, (6, 9)), (0.9, 0.95, 0, 2 / 741**0.5, (12, 25)),
     (0.9, 0.0, 1, 4 / 19**0.5, (4, 7))],
)  # fmt: skip
def test_repair_gamma_minimises_lasting_noise_and_weighted_residuals(
    momentum: float, ema: float, grace: int, weight: float, within: tuple[float, float]
) -> None:
    asked: dict[str, Any] = {
        "rounds": 150, "calibration": "repair", "momentum": momentum, "ema": ema, "grace": grace, "masks": "gaussian"
    }  # fmt: skip
    p = planned(50, 10, 10, **asked)

    def carried(gamma: float) -> float:
        q = planned(50, 10, 10, **asked, gamma=gamma)
        return oracles.before_rounding(q) + weight * q.transient_in_mean() / 150

    assert p.noise_carried() - p.noise_in_mean() == pytest.approx(weight * p.transient_in_mean() / 150)
    assert carried(p.gamma) <= min(carried(g) for g in np.geomspace(0.01, 1000, 200)) * (1 + 1e-9)
    assert within[0] < p.gamma < within[1]


def test_repair_for_the_worst_case_costs_more_noise_and_assumes_the_bound_in_every_round() -> None:
    asked: dict[str, Any] = {
        "rounds": 150,
        "calibration": "repair",
        "gamma": 5.0,
        "late": "unseen",
        "masks": "gaussian",
    }
    expected, worst = planned(50, 10, 10, **asked), planned(50, 10, 10, **asked, reserve="worst")
    assert worst.sigma_individual > expected.sigma_individual
    mu = worst.sensitivity / worst.sigma_individual / math.sqrt(float(noise_graph.gain(30, 5.0))) * math.sqrt(150)
    assert gaussian.epsilon(mu, 1e-5) == pytest.approx(3, rel=1e-9)


@pytest.mark.parametrize("calibration", ["exact", "repair"])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_sampled_plans_keep_the_budget(calibration: str, adjacency: str) -> None:
    p = planned(50, 10, 10, rounds=60, calibration=calibration, sampling_rate=0.1, adjacency=adjacency)
    whole = planned(50, 10, 10, rounds=60, calibration=calibration, adjacency=adjacency)
    assert 0.99 * 3 <= p.epsilon() <= 3
    assert p.noise_multiplier < whole.noise_multiplier / 3


def test_replace_doubles_the_sensitivity() -> None:
    assert planned(50, 10, 10, adjacency="replace").sensitivity == 2
    ratio = planned(50, 10, 10, adjacency="replace").sigma_individual / planned(50, 10, 10).sigma_individual
    assert ratio == pytest.approx(2)


def test_sparse_graphs_need_more_noise_and_the_certificate_agrees() -> None:
    p = planned(20, 3, 2, degree=8, rounds=10, calibration="exact")
    pairwise = p.sigma_pairwise**2 * p.graph.adjacency()
    certified = noise_graph.certified_noise(np.full(20, p.sigma_individual**2), pairwise, 3)
    assert certified.min() == pytest.approx(p.sigma_effective, rel=1e-9)
    assert p.sigma_individual > planned(20, 3, 2, rounds=10, calibration="exact").sigma_individual


def test_the_wire_never_wraps_in_a_simulated_sum() -> None:
    """(W1): the sum of noise at its 1 − 2⁻⁴⁰ quantile and of updates at their bound still fits, one bit less not."""
    p = planned(50, 10, 10, rounds=150, unit="client", calibration="repair", parameters=10**6)
    half = p.wire_grid * 2 ** (p.wire_bits - 1)
    variance = 50 * p.sigma_individual**2 + (40 + 50) * 10 * p.sigma_pairwise**2
    z = -float(mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - mpmath.log(2.0**-41 / 150e6), -9))
    assert 50 * p.clip + z * math.sqrt(variance) <= half <= 2.1 * (50 * p.clip + z * math.sqrt(variance))


def test_known_records_and_ranges_tighten_the_wire() -> None:
    wide = planned(50, 10, 10, records=50_000)
    assert wide.upload_range == 1000
    assert planned(50, 10, 10, coordinate_range=10.0).wire_bits < wide.wire_bits
    assert planned(50, 10, 10, unit="client").upload_range == 1


def test_a_plan_is_a_frozen_value_that_can_be_asked_for_again() -> None:
    p = planned(50, 10, 10, rounds=150)
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.noise = planning.Noise(1.0, 1.0, 1.0)  # type: ignore[misc]
    assert planning.solve(p.request) == p


def test_the_page_rounds_epsilon_up_and_names_unit_adversary_and_noise() -> None:
    text = str(planned(50, 10, 10, rounds=150, parameters=1000, calibration="exact"))
    for part in ("ε = 3.0000 at δ = 1e-05", "one record", "any 10 other clients", "σ_U 4.98014", "49 key agreements"):
        assert part in text
    assert "ε = 2.1536" in str(planned(50, 10, 10, calibration="paper"))  # 2.153548
    assert "NOT the server" in str(planned(50, 10, 10, calibration="central"))
    assert max(len(line) for line in text.splitlines()) <= 100


def test_compare_gives_every_feasible_scheme_the_same_true_epsilon() -> None:
    for row in compare(planned(50, 10, 10, rounds=150)):
        assert row.plan is not None
        assert row.plan.epsilon() == pytest.approx(3, rel=1e-9)
    rows = {row.scheme.name: row for row in compare(planned(50, 40, 10))}
    assert rows["smpc"].plan is None
    assert "clients > colluders + stragglers" in rows["smpc"].reason


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clients": 1}, "clients must be in 2..4294967294, got clients=1"),
        ({"colluders": 50}, r"colluders must be in 0..49, got colluders=50"),
        ({"colluders": -1}, r"colluders must be in 0..49, got colluders=-1"),
        ({"stragglers": 49}, r"stragglers must be in 0..48, got stragglers=49"),
        ({"epsilon": 0}, "epsilon must be > 0, got epsilon=0"),
        ({"epsilon": math.nan}, "epsilon must be finite, got epsilon=nan"),
        ({"epsilon": 1e300}, r"epsilon must be in \[1e-09, 1e\+09\], got epsilon=1e\+300"),
        ({"clients": 10**400}, r"clients must be in 2..4294967294"),
        ({"clip": 1e308}, r"clip must be in"),
        ({"delta": 0}, r"delta must be in \(0, 1\), got delta=0"),
        ({"delta": 1}, r"delta must be in \(0, 1\), got delta=1"),
        ({"rounds": 0}, "rounds must be in 1..4294967296, got rounds=0"),
        ({"rounds": 1.5}, "rounds must be an integer, got rounds=1.5"),
        ({"clip": -1}, "clip must be > 0, got clip=-1"),
        ({"records": 100_000}, r"delta must be < 1/records = 1e-05, got delta=1e-05"),
        ({"gamma": -1}, r"gamma must be in \[0, 1024\], got gamma=-1"),
        ({"gamma": 1.0, "calibration": "paper"}, "gamma can be given for auto, exact and repair only"),
        ({"calibration": "best"}, "calibration must be one of auto, exact, repair.*got calibration='best'"),
        ({"sampling_rate": 0}, r"sampling_rate must be in \(0, 1\], got sampling_rate=0"),
        (
            {"sampling_rate": 0.1, "unit": "client"},
            "must be 1 for unit='client', got sampling_rate=0.1; for clients that take turns, set population",
        ),
        ({"degree": 7, "calibration": "paper"}, "needs the complete graph, got degree=7"),
        ({"straggler_law": stragglers.uniform(3)}, r"straggler_law must cover 0..10, got a law on 0..3"),
    ],
)
def test_unsafe_requests_are_refused_by_name(changed: dict[str, Any], message: str) -> None:
    asked = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 1, "epsilon": 3.0, "delta": 1e-5}
    with pytest.raises(ArgumentError, match=message):
        lightdp.plan(**(asked | changed))


def test_a_sampled_plan_says_where_more_epsilon_would_change_nothing() -> None:
    asked: dict[str, Any] = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "delta": 1e-5}
    loud = lightdp.plan(**asked, sampling_rate=0.01, epsilon=20.0)
    said = planning.holds_for(loud)
    assert said is not None
    _, found, rest = said.partition("ε = 20 was asked for; less noise than this is not resolved, so ")
    assert found
    enough = float(rest.removesuffix(" would give the same."))
    assert loud.epsilon() <= enough < 11
    assert lightdp.plan(**asked, sampling_rate=0.01, epsilon=enough).sigma_individual == loud.sigma_individual
    assert lightdp.plan(**asked, sampling_rate=0.01, epsilon=0.9 * enough).sigma_individual > loud.sigma_individual


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "It holds for a server that lies to clients; 4 % of μ² is kept for lies and one more late upload."),
        (
            {"stragglers": 35, "rounds": 20},
            "is kept for lies and one more late upload; with fewer stragglers it would be less.",
        ),
        (
            {"late": "unseen"},
            "a server that follows the protocol and does not see uploads which come too late.",
        ),
        (
            {"late": "unseen", "calibration": "exact"},
            "It holds for a server that does not see uploads which come too late.",
        ),
        ({"sampling_rate": 0.1}, "It holds for a server that follows the protocol: batches are sampled (R2)."),
        (
            {"sampling_rate": 0.1, "calibration": "exact"},
            "It holds for a server that follows the protocol: batches are sampled (R2).",
        ),
        (
            {"sampling_rate": 0.1, "calibration": "exact", "late": "unseen"},
            "a server that follows the protocol and does not see uploads which come too late.",
        ),
        ({"calibration": "exact"}, None),
    ],
)
def test_a_plan_says_what_a_server_may_do_and_what_is_kept_for_it(changed: dict[str, Any], said: str | None) -> None:
    asked = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "epsilon": 3.0, "delta": 1e-5}
    page = " ".join(str(lightdp.plan(**asked | {"calibration": "repair"} | changed)).split())
    assert (said in page) if said else ("It holds for a server" not in page)


@pytest.mark.parametrize(
    ("clients", "bound", "rounds", "taken"),
    [(10, 2, 3, "exact"), (20, 4, 3, "exact"), (10, 2, 10, "repair"), (50, 10, 20, "repair")],
)
def test_auto_takes_what_leaves_less_noise_in_the_trained_model(
    clients: int, bound: int, rounds: int, taken: str
) -> None:
    p = planned(clients, bound, bound, rounds=rounds)
    left = {}
    for name in ("exact", "repair"):
        q = planned(clients, bound, bound, rounds=rounds, calibration=name)
        left[name] = q.noise_in_mean() + 2 / 19**0.5 * q.transient_in_mean() / rounds  # at a momentum of 0.9
        assert q.noise_carried() == pytest.approx(left[name])
        assert q.why is None
    assert taken == min(left, key=lambda name: left[name]) == p.request.calibration
    assert p == planned(clients, bound, bound, rounds=rounds, calibration=taken)
    assert p.why is not None
    assert f"{left[taken]:.4g} a round of the trained model, with " in p.why


def test_a_plan_by_auto_travels_as_one_of_the_calibration_that_was_taken() -> None:
    p = planned(20, 4, 4, rounds=60)
    there = Plan.from_json(p.to_json())
    assert (there.digest(), there.request.calibration, there.why) == (p.digest(), "repair", None)
    assert planned(20, 4, 4, rounds=60, gamma=2.0).gamma == 2.0


@pytest.mark.parametrize("late", [0.0, "unseen"])
def test_without_stragglers_auto_needs_no_repair(late: Any) -> None:
    assert planned(20, 4, 0, rounds=60, late=late).request.calibration == "exact"


def test_auto_plans_sampled_batches_both_ways() -> None:
    p = planned(10, 2, 2, rounds=40, sampling_rate=0.1)
    assert p.passed_over is not None
    assert {p.request.calibration, p.passed_over.request.calibration} == {"exact", "repair"}
    assert p.noise_carried() < p.passed_over.noise_carried()
    assert p.epsilon() <= 3
