"""How loud noise is beside an update, against formulas written out, and that what is advised does what it says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import lightdp
from lightdp.errors import ArgumentError
from lightdp.planning import noise_advice, noise_ratio, remedies

ASKED: dict[str, Any] = {
    "clients": 50, "colluders": 5, "stragglers": 5, "rounds": 20, "epsilon": 8, "delta": 1e-5, "unit": "client",
}  # fmt: skip


def again(**changed: Any) -> lightdp.Plan:
    return lightdp.plan(**(ASKED | {"calibration": "repair"} | changed))


def test_the_ratio_of_individual_noise_alone_is_that_of_the_formula() -> None:
    plan = again(calibration="exact", gamma=0.0, clip=2.0, wire_steps=16)
    stragglers = np.arange(6)
    variance = plan.sigma_individual**2 * np.mean(1 / (50 - stragglers))  # of the mean, uniform on 0..5
    assert noise_ratio(plan, 1000) == pytest.approx(
        math.sqrt(1000 * variance) / 2.0, rel=1e-3
    )  # rounding adds 1/12/256
    assert noise_ratio(plan, 4000) == pytest.approx(2 * noise_ratio(plan, 1000))


def test_the_ratio_does_not_depend_on_the_clip_and_that_of_records_divides_by_a_clients_batch() -> None:
    assert noise_ratio(again(clip=1e-3), 10) == pytest.approx(noise_ratio(again(clip=7.0), 10))
    known = again(unit="record", records=2000, coordinate_range=1.0)
    unknown = again(unit="record", coordinate_range=1.0)
    assert noise_ratio(known, 10) == pytest.approx(noise_ratio(unknown, 10) / (2000 / 50))


def test_every_remedy_reaches_the_target_and_the_next_value_does_not() -> None:
    plan = again(rounds=200)
    found = {each.setting: each for each in remedies(plan, 1000, target=3.0)}
    assert set(found) == {"clients", "rounds", "parameters", "unit"}
    for each in found.values():
        assert each.ratio <= 3
    clients, rounds = found["clients"].plan.clients, found["rounds"].plan.rounds
    shares = {"colluders": -(-clients // 10), "stragglers": -(-clients // 10)}
    assert noise_ratio(again(rounds=200, clients=clients, **shares), 1000) == pytest.approx(found["clients"].ratio)
    assert noise_ratio(again(rounds=200, clients=clients - 1, **shares), 1000) > 3
    assert noise_ratio(again(rounds=rounds), 1000) <= 3 < noise_ratio(again(rounds=rounds + 1), 1000)
    variance = plan.noise_in_mean()
    assert f"{math.floor(3.0**2 / variance):,} parameters in place of 1,000" == found["parameters"].words
    held = math.ceil(math.sqrt(1000 * again(rounds=200, unit="record").noise_in_mean()) / 3.0)
    assert f"at least {held:,} of them at each client" in found["unit"].words


def test_more_clients_bring_more_records() -> None:
    plan = again(unit="record", records=500)
    (more, *_) = remedies(plan, 100_000, target=0.2)
    assert more.setting == "clients"
    assert more.plan.request.records == math.ceil(500 * more.plan.clients / 50)
    assert not any(each.setting == "unit" for each in remedies(plan, 100_000, target=0.2))


def test_a_law_given_value_by_value_keeps_its_stragglers() -> None:
    (more, *_) = remedies(again(straggler_law="pmf:0.5,0.3,0.2"), 1000)
    assert more.setting == "clients"
    assert more.plan.stragglers == 5
    assert more.ratio <= 1


def test_parameters_that_the_plan_knows_change_with_the_remedy() -> None:
    plan = again(parameters=100_000, records=50, unit="record")
    (fewer,) = (each for each in remedies(plan, 100_000) if each.setting == "parameters")
    number = fewer.plan.request.parameters
    assert number is not None
    assert noise_ratio(fewer.plan, number) <= 1 < noise_ratio(again(parameters=plan.request.parameters), 100_000)


def test_where_noise_is_quiet_nothing_is_advised_and_where_nothing_helps_that_is_said() -> None:
    assert remedies(again(), 100) == ()
    assert noise_advice(again(), 100).endswith("times the clip, the most that an update can have")
    assert "; at most 1 times with clients=" in noise_advice(again(), 1000)
    alone = again(clients=2, colluders=1, stragglers=0, epsilon=1e-9, rounds=1)
    assert "rounds=" not in noise_advice(alone, 10**6)


def test_sampled_batches_are_advised_without_solving_for_them_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = again(unit="record", sampling_rate=0.1, calibration="exact", rounds=3)
    monkeypatch.setattr("lightdp.planning._advice.solve", None)
    (only,) = remedies(plan, 10**6)
    assert only.setting == "parameters"


def test_wrong_lengths_and_targets_are_refused() -> None:
    with pytest.raises(ArgumentError, match="length must be"):
        noise_ratio(again(), 0)
    with pytest.raises(ArgumentError, match="target must be"):
        remedies(again(), 10, target=0.0)


def test_one_parameter_is_in_the_singular() -> None:
    words = {each.setting: each.words for each in remedies(again(rounds=200), 1000, target=0.25)}
    assert words["parameters"] == "1 parameter in place of 1,000"
