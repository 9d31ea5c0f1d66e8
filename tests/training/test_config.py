from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lightdp.errors import ArgumentError
from lightdp.training.config import Config


@pytest.mark.parametrize(("rounds", "taken"), [(60, "repair"), (1, "exact")])
def test_by_default_a_run_takes_the_calibration_that_leaves_less_noise(rounds: int, taken: str) -> None:
    plan = Config(rounds=rounds, late_seen=0.5).plan(1438, 650, 71)
    assert plan is not None
    assert plan.request.calibration == taken
    assert plan == Config(rounds=rounds, late_seen=0.5, scheme=taken).plan(1438, 650, 71)


@pytest.mark.parametrize("scheme", ["auto", "exact", "repair"])
def test_gamma_is_that_of_the_plan(scheme: str) -> None:
    plan = Config(scheme=scheme, gamma=2.5).plan(1438, 650, 71)
    assert plan is not None
    assert plan.gamma == 2.5


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"late_seen": 0.5}, "late_seen=0.5"),
        ({"late_seen": 0.5, "grace": 1}, "late_seen=0.5"),
        ({"late_by_one": 0.25}, "late_by_one=0.25"),
        ({"arrivals": "latency:1:0.5:2"}, "arrivals='latency:1:0.5:2'"),
        ({"arrivals": "trace:a.csv"}, "arrivals='trace:a.csv'"),
    ],
)
def test_uploads_that_may_come_too_late_are_not_planned_as_unseen(settings: dict[str, Any], cause: str) -> None:
    with pytest.raises(ArgumentError, match=f"^late must be a share .*, as by {cause}, got late='unseen'$"):
        Config(**settings, late="unseen")


@pytest.mark.parametrize("settings", [{}, {"arrivals": "none"}, {"late_by_one": 1.0, "grace": 1}])
def test_where_no_upload_can_be_too_late_unseen_is_the_default(settings: dict[str, Any]) -> None:
    assert Config(**settings, late="unseen").plan(1438, 650, 71) == Config(**settings).plan(1438, 650, 71)


def test_late_explains_the_default_of_a_run() -> None:
    plans = [Config(**kind).plan(1438, 650, 71) for kind in ({}, {"arrivals": "latency:1:0.5:2"}, {"late_seen": 0.5})]
    assert [plan.request.late for plan in plans if plan is not None] == ["unseen", 0.1, 0.5]
    (late,) = (field.metadata["help"] for field in dataclasses.fields(Config) if field.name == "late")
    assert (
        "by default the share that --late-seen and --late-by-one make, unseen if that is 0; with latencies 0.1" in late
    )


@pytest.mark.parametrize("scheme", ["none", "local", "smpc", "paper"])
def test_gamma_is_refused_where_nobody_chooses_it(scheme: str) -> None:
    with pytest.raises(ArgumentError, match=f"gamma needs a scheme that chooses it.*got scheme='{scheme}'"):
        Config(scheme=scheme, gamma=2.5)


def test_the_records_of_a_run_are_those_of_its_whole_population() -> None:
    """So a client clamps to what an average one of them has, in whichever cohort it is."""
    found = Config(clients=10, population=40, stragglers=2, colluders=2).plan(1438, 650, 30)
    assert found is not None
    assert found.request.records == 1438
    assert found.request.norm_range == 36 * found.clip
    with pytest.raises(ArgumentError, match="delta must be < 1/records = 1e-05, got delta=1e-05"):
        Config(clients=10, population=40, stragglers=2, colluders=2).plan(100_000, 650, 30)


@pytest.mark.parametrize("masks", ["gaussian", "drawn"])
def test_masks_are_those_of_the_plan(masks: Any) -> None:
    plan = Config(scheme="repair", masks=masks).plan(1438, 650, 71)
    assert plan is not None
    assert plan.masks.kind == masks


def test_masks_are_drawn_where_that_is_asked_for_and_worth_it() -> None:
    asked: list[tuple[int, Any]] = [(10, "auto"), (50, "auto"), (50, "gaussian")]
    plans = [
        Config(clients=n, colluders=n // 5, stragglers=n // 5, rounds=150, masks=masks).plan(50_000, 10, 1)
        for n, masks in asked
    ]
    assert [plan.masks.kind for plan in plans if plan is not None] == ["gaussian", "drawn", "gaussian"]
    assert Config().masks == "auto"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"masks": "bits"}, "masks must be one of auto, gaussian, drawn, got masks='bits'"),
        ({"masks": "drawn", "scheme": "none"}, "masks='drawn' need a scheme that repairs.*got scheme='none'"),
        ({"masks": "drawn", "scheme": "exact"}, "masks='drawn' need a scheme that repairs.*got scheme='exact'"),
    ],
)
def test_masks_that_a_run_cannot_have_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Config(**settings)
