"""Plans for cohorts of a population (C1): noise for the rounds that a client takes part in, never for fewer."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lightdp
from lightdp import gaussian, sampling
from lightdp.errors import ArgumentError, LightDPError
from lightdp.federation import Cohorts
from lightdp.planning import Plan, Request, memberships, noise_ratio, remedies
from lightdp.schemes import server_and
from lightdp.stragglers import binomial, custom, uniform

ASKED: dict[str, Any] = {
    "clients": 20, "colluders": 4, "stragglers": 4, "rounds": 50, "epsilon": 8.0, "delta": 1e-5,
}  # fmt: skip
CALIBRATIONS = ("exact", "repair", "local", "smpc", "central")


@pytest.mark.parametrize("calibration", CALIBRATIONS)
@pytest.mark.parametrize(("population", "rounds", "turns"), [(100, 50, 10), (119, 50, 10), (39, 50, 50), (60, 50, 17)])
def test_noise_is_that_of_a_training_of_as_many_rounds_as_a_client_takes_part_in(
    calibration: Any, population: int, rounds: int, turns: int
) -> None:
    """With the same γ: which one is best depends on how long residuals wait, and changes no guarantee."""
    given_gamma: dict[str, Any] = {"gamma": 2.0} if calibration in ("exact", "repair") else {}
    asked = ASKED | {"calibration": calibration, "rounds": rounds} | given_gamma
    found = lightdp.plan(**asked, population=population)
    alone = lightdp.plan(**asked | {"rounds": turns})
    assert found.turns == turns
    assert found.noise == alone.noise
    assert (found.epsilon(), found.mu, found.power()) == (alone.epsilon(), alone.mu, alone.power())
    assert found.epsilon() <= 8
    assert math.sqrt(turns) * found.sensitivity / found.sigma_effective == pytest.approx(gaussian.mu(8.0, 1e-5))


def test_sampled_batches_are_composed_over_the_rounds_that_a_client_takes_part_in() -> None:
    asked = ASKED | {"sampling_rate": 0.1, "calibration": "exact", "gamma": 1.0}
    found, alone = lightdp.plan(**asked, population=100), lightdp.plan(**asked | {"rounds": 10})
    assert found.noise == alone.noise
    direct = sampling.epsilon({found.noise_multiplier: 10}, rate=0.1, delta=1e-5, adjacency="add-remove")
    assert found.epsilon() == direct <= 8


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(4, 12),
    spare=st.integers(0, 40),
    rounds=st.integers(1, 40),
    grace=st.integers(0, 1),
    calibration=st.sampled_from(["exact", "repair"]),
)
def test_a_client_of_cohorts_that_take_turns_stays_within_its_budget(
    clients: int, spare: int, rounds: int, grace: int, calibration: Any
) -> None:
    """Members of every roster play as often as turns come to them, and the plan of its size has the noise for it."""
    found = lightdp.plan(
        clients=clients, population=clients + spare, colluders=1, stragglers=1, rounds=rounds, epsilon=4, delta=1e-5,
        unit="client", calibration=calibration, grace=grace,
    )  # fmt: skip
    cohorts: Cohorts[int] = Cohorts(clients, bears=lambda _: 1)
    for member in range(clients + spare):
        cohorts.join(member)
    cohorts.form()
    assert len(cohorts.rosters) == found.request.cohorts
    counts = dict.fromkeys(cohorts.rosters, 0)
    for _ in range(rounds):
        turn = cohorts.turn()
        assert turn is not None
        counts[turn.number] += 1
        cohorts.played(turn.number, turn.members)
    for number, cohort in cohorts.rosters.items():
        plan = found.among(len(cohort.members))
        assert counts[number] <= plan.turns == found.turns
        odometer = lightdp.Odometer(plan, [0])
        for _ in range(counts[number]):  # a plan lasts for all its rounds at least where nobody straggles
            odometer.admit()
            odometer.record(range(plan.clients))
        assert odometer.max_epsilon() <= 4


@pytest.mark.parametrize("wrong", [19, 0, -1, 2**32, 20.5, "many"])
def test_a_population_smaller_than_a_cohort_is_refused_by_name_and_value(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"population must be .*population='?(19|0|-1|4294967296|20.5|many)"):
        Request(**ASKED, population=wrong)


def test_the_papers_calibration_has_no_cohorts() -> None:
    with pytest.raises(ArgumentError, match="same clients in every round, got population=100"):
        Request(**ASKED, population=100, calibration="paper")
    rows = {row.scheme.name: row for row in lightdp.planning.compare(lightdp.plan(**ASKED, population=100))}
    assert rows["paper"].plan is None
    assert "population=100" in rows["paper"].reason
    assert all(row.plan is not None and row.plan.turns == 10 for name, row in rows.items() if name != "paper")


def test_a_population_of_one_cohort_changes_no_noise() -> None:
    plain, one = lightdp.plan(**ASKED), lightdp.plan(**ASKED, population=39)
    assert one.noise == plain.noise
    assert one.digest() != plain.digest()


def test_residuals_that_wait_for_their_rosters_turn_count_as_often_as_rosters_take_turns() -> None:
    plain, cohorts = Request(**ASKED), Request(**ASKED, population=119)
    assert cohorts.transient_weight == pytest.approx(5 * plain.transient_weight, rel=1e-12)
    found = lightdp.plan(**ASKED, population=100, calibration="repair")
    assert found.gamma < lightdp.plan(**ASKED | {"rounds": 10}, calibration="repair", momentum=0.9).gamma * 1.01
    weight = found.request.transient_weight / 50
    assert found.noise_carried() == found.noise_in_mean() + weight * found.transient_in_mean()


# the plan of a roster of another size


SETTINGS: list[dict[str, Any]] = [
    {}, {"population": 100}, {"population": 119, "records": 7001}, {"degree": 7}, {"degree": 8, "graph_seed": 3},
    {"calibration": "exact"}, {"straggler_law": "binomial:0.1"}, {"grace": 1}, {"records": 7001, "parameters": 50},
    {"calibration": "local"},
]  # fmt: skip


@pytest.mark.parametrize("changed", SETTINGS, ids=str)
@pytest.mark.parametrize("size", [5, 6, 13, 19, 20, 21, 22, 39])
def test_every_party_computes_the_same_plan_for_a_roster_of_another_size(changed: dict[str, Any], size: int) -> None:
    made = lightdp.plan(**ASKED | {"calibration": "repair"} | changed)
    here, there = made.among(size), Plan.from_json(made.to_json()).among(size)
    assert here.digest() == there.digest()
    assert (here.clients, here.colluders, here.turns) == (size, 4, made.turns)
    assert here.stragglers == min(4, size - 2)
    assert here.graph.complete == (made.graph.complete or size <= made.graph.degree + 1)
    assert here.graph.degree >= min(made.graph.degree, size - 1)
    assert here.honest == here.graph.closed_honest(4)
    assert here.epsilon() <= here.budget == made.budget
    if here.calibration.chooses_gamma:
        assert here.gamma == made.gamma


@pytest.mark.parametrize("changed", [{}, {"degree": 7}, {"straggler_law": "binomial:0.1"}, {"population": 100}])
def test_a_roster_of_the_planned_size_has_the_plan_itself(changed: dict[str, Any]) -> None:
    made = lightdp.plan(**ASKED | changed)
    assert made.among(20).digest() == made.digest()


@pytest.mark.parametrize("size", [1, 4, 0, -3, 2.5])
def test_too_few_clients_for_the_colluders_are_refused(size: Any) -> None:
    with pytest.raises(ArgumentError, match=r"clients|colluders"):
        lightdp.plan(**ASKED).among(size)


def test_fewer_clients_need_more_noise_and_more_need_less() -> None:
    made = lightdp.plan(**ASKED, population=100, calibration="repair")
    noise = [made.among(size).sigma_individual for size in (8, 12, 16, 20, 28, 39)]
    assert noise == sorted(noise, reverse=True)


@settings(max_examples=100, deadline=None)
@given(records=st.integers(100, 10**5 - 1), population=st.integers(20, 130), size=st.integers(5, 39))
def test_a_client_clamps_to_one_range_in_rosters_of_all_sizes(records: int, population: int, size: int) -> None:
    """An average client of the population has as many records in each of them."""
    asked = Request(**ASKED | {"delta": 1e-7}, population=population, records=records)
    assert asked.norm_range == math.ceil(records / population)
    assert asked.among(size).norm_range == asked.norm_range


def test_noise_is_told_beside_the_records_of_an_average_client_of_the_population() -> None:
    asked = ASKED | {"calibration": "repair", "unit": "record", "gamma": 2.0}
    cohorts = lightdp.plan(**asked, population=100, records=9000)
    alone = lightdp.plan(**asked | {"rounds": 10}, records=1800)
    assert noise_ratio(cohorts, 50) == pytest.approx(noise_ratio(alone, 50), rel=1e-12)
    grown = next(each for each in remedies(cohorts, 10**6) if each.setting == "clients")
    assert f"population={grown.plan.request.population:,}" in grown.words


# what cohorts cost and gain


def test_memberships_are_the_plans_that_one_would_ask_for() -> None:
    found = lightdp.plan(**ASKED, population=100, calibration="repair", records=9000)
    cohorts, everybody, fixed = memberships(found)
    assert cohorts.plan is found
    whole = ASKED | {"clients": 100, "colluders": 20, "stragglers": 20, "records": 9000}
    assert everybody.plan is not None
    assert fixed.plan is not None
    assert everybody.plan.digest() == lightdp.plan(**whole, calibration="repair").digest()
    assert fixed.plan.digest() == lightdp.plan(**ASKED, calibration="repair", records=1800).digest()
    assert everybody.plan.noise_in_mean() < found.noise_in_mean() < fixed.plan.noise_in_mean()
    assert memberships(lightdp.plan(**ASKED)) == ()


def test_figures_of_the_specification_hold_as_ratios() -> None:
    """0.0178 : 0.0057 : 0.0008, whose colluders, stragglers, δ and clip it does not say."""
    found = lightdp.plan(**ASKED, population=100, calibration="repair")
    cohorts, everybody, fixed = (row.plan.noise_in_mean() for row in memberships(found) if row.plan is not None)
    assert fixed / cohorts == pytest.approx(178 / 57, rel=0.03)
    assert cohorts / everybody == pytest.approx(57 / 8, rel=0.06)


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        ("uniform", uniform(20)),
        ("binomial:0.1", binomial(20, 100, 0.1)),
        ("pmf:0.5,0.25,0,0,0.25", custom(20, [0.5, 0, 0, 0, 0, 0.25, *[0] * 14, 0.25])),
    ],
)
def test_all_of_the_population_straggle_as_a_cohort_does(law: str, expected: Any) -> None:
    found = lightdp.plan(**ASKED, population=100, straggler_law=law)
    everybody = memberships(found)[1].plan
    assert everybody is not None
    assert everybody.law == expected


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"population": 2**31}, "more than 1,000,000"),
        ({"population": 100_000, "wire_steps": 1, "coordinate_range": 1e5}, "fit the wire"),
    ],
)
def test_a_membership_that_cannot_be_planned_says_why(changed: dict[str, Any], reason: str) -> None:
    found = lightdp.plan(**ASKED | {"clients": 4, "colluders": 1, "stragglers": 1} | changed)
    everybody = memberships(found)[1]
    assert everybody.plan is None
    assert reason in everybody.reason
    assert everybody.reason in " ".join(str(found).split())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_plan_with_a_population_has_a_page(data: st.DataObject) -> None:
    clients = data.draw(st.integers(2, 30))
    asked = {
        "clients": clients,
        "population": data.draw(st.integers(clients, 200)),
        "colluders": data.draw(st.integers(0, clients - 1)),
        "stragglers": data.draw(st.integers(0, clients - 2)),
        "rounds": data.draw(st.integers(1, 60)),
        "epsilon": 3.0,
        "delta": 1e-5,
        "grace": data.draw(st.integers(0, 1)),
        "degree": data.draw(st.sampled_from([None, *range(2 - clients % 2, clients)])),
    }
    try:
        found = lightdp.plan(**asked)
    except LightDPError:
        return
    text, population = " ".join(str(found).split()), int(asked["population"])
    if population < 2 * clients:
        assert f"one roster of {population} plays in every round" in text
        assert f"clients, {asked['rounds']} round" in text
    else:
        assert f"{clients} of {population} clients" in text
        assert f"takes part in {found.turns} of {asked['rounds']} round" in text
    assert ("all other figures are for" in text) == (population % clients != 0)
    assert server_and(int(asked["colluders"]), " of each cohort") in text
