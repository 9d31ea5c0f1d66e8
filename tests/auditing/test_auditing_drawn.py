"""Audits of plans with drawn masks: their uploads, faults in these, and logs of their runs (B2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp import drawn, gaussian, masks, stream
from lightdp.auditing import recorded
from lightdp.auditing._stage import excess, made
from support.audited_logs import Lines, a_plan, lines_of, saved, some_rounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightdp.auditing import Audit
    from lightdp.planning import Plan

SURE = 1 - 1e-8


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 20, "colluders": 4, "stragglers": 4, "rounds": 10, "epsilon": 8.0}
    return lightdp.plan(
        **asked | {"delta": 1e-5, "calibration": "repair", "unit": "client", "masks": "drawn"} | changed
    )


def named(found: Audit) -> set[str]:
    return {problem.partition(":")[0] for problem in found.problems}


def altered(monkeypatch: pytest.MonkeyPatch, grid: Callable[[masks.Grid], masks.Grid]) -> None:
    """Masks, of everybody, as on another grid."""
    real = masks.pairwise_terms
    monkeypatch.setattr(masks, "pairwise_terms", lambda keys, me, own, **more: real(keys, me, grid(own), **more))


def test_drawn_masks_hold_by_a_million_values() -> None:
    found = lightdp.audit(planned(), values=1_000_000, play=3, confidence=SURE)
    assert found.plan.masks.kind == "drawn"
    assert found.problems == ()
    linear, _, covariance = found.measurements
    assert linear.high is not None
    assert covariance.high is not None
    assert covariance.high < found.exact.mu < found.announced.mu  # variance beyond γ hides more than is counted
    assert linear.high > covariance.low
    assert {each.group for each in found.deviations} == {"uploads", "own noise", "fresh keys", "model"}


@pytest.mark.parametrize(
    "changed",
    [{"grace": 1}, {"clients": 16, "degree": 10, "colluders": 2}, {"unit": "record"}, {"adjacency": "replace"}],
)
def test_other_plans_hold_too(changed: dict[str, Any]) -> None:
    assert lightdp.audit(planned(**changed), values=30_000, play=3, confidence=SURE).problems == ()


@pytest.mark.parametrize("lies", ["rotation", "search"])
def test_lies_are_within_what_the_ledger_counts(lies: Any) -> None:
    found = lightdp.audit(planned(clients=8, colluders=1, stragglers=2), lies=lies, values=20_000, confidence=SURE)
    assert found.problems == ()
    assert found.exact.mu < found.worst.mu


@pytest.mark.parametrize(
    ("times", "names", "values"),
    [(0.8, {"uploads", "own noise", "covariance method"}, 100_000), (0.97, {"uploads", "own noise"}, 200_000)],
)
def test_units_that_are_too_small_are_found(
    times: float, names: set[str], values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered(monkeypatch, lambda grid: replace(grid, unit=round(times * grid.unit)))
    assert names <= named(lightdp.audit(planned(), values=values, play=3, confidence=SURE))


def test_gaussian_masks_in_place_of_drawn_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the variance that γ asks for: drawn ones have more."""
    ratio = drawn.SIGMA / drawn.VARIANCE**0.5
    altered(monkeypatch, lambda grid: replace(grid, unit=0, sigma_pairwise=ratio * grid.sigma_pairwise))
    assert {"uploads"} <= named(lightdp.audit(planned(), values=100_000, play=3, confidence=SURE))


@pytest.mark.parametrize("kind", ["gaussian", "drawn"])
def test_variance_and_kurtosis_are_those_of_real_masks(kind: str) -> None:
    grid, length = masks.Grid.of(planned(masks=kind), 10), 4_000_000
    out = np.zeros(length, np.int32)
    stream.accumulate(out, masks.pairwise_terms({1: b"m" * 32}, 0, grid), threads=None)
    steps = out / grid.sigma_pairwise
    variance = made(grid)[1] / grid.step**2 / grid.sigma_pairwise**2
    assert np.mean(steps**2) == pytest.approx(variance, rel=6 * (2 / length) ** 0.5)
    assert np.mean(steps**4) / np.mean(steps**2) ** 2 - 3 == pytest.approx(excess(grid), abs=6 * (26 / length) ** 0.5)
    assert (excess(grid) > 0.04) == (kind == "drawn")


def a_log(**changed: Any) -> tuple[Plan, Lines]:
    plan = a_plan(**{"masks": "drawn"} | changed)
    return plan, lines_of(plan, some_rounds(plan, 4))


@pytest.mark.parametrize("changed", [{}, {"grace": 1}, {"degree": 5}])
def test_a_log_of_drawn_masks_holds(changed: dict[str, Any], tmp_path: Path) -> None:
    plan, lines = a_log(**changed)
    if plan.grace:
        lines = lines_of(plan, some_rounds(plan, 4, void=None))
    found = recorded(saved(tmp_path / "run.jsonl", lines))
    assert found.problems == ()
    assert found.plan is not None
    assert found.plan.masks == plan.masks
    assert found.spent is not None
    if found.exact is not None:  # what the algebra says of γ alone, below what is counted for masks too
        mu = float(found.exact.squares.max()) ** 0.5 * plan.sensitivity / plan.sigma_individual
        assert mu < gaussian.mu(found.spent, plan.delta)


def without(plan: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in plan.items() if name not in names}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda plan: plan | {"mask_cost": 0.0}, "plan: mask_cost = 0.0 does not follow from its noise"),
        (lambda plan: plan | {"masks": "gaussian"}, "plan: sigma_pairwise = "),
        (lambda plan: without(plan, "masks", "mask_cost", "mask_bits"), "plan: sigma_pairwise = "),
    ],
)
def test_a_log_that_says_other_masks_than_its_noise_has_does_not_hold(
    changes: Callable[[dict[str, Any]], dict[str, Any]], words: str, tmp_path: Path
) -> None:
    _, lines = a_log()
    lines[0]["plan"] = changes(lines[0]["plan"])
    found = recorded(saved(tmp_path / "run.jsonl", lines))
    assert any(each.startswith(words) for each in found.problems), found.problems


def test_masks_that_a_plan_cannot_have_cannot_be_read(tmp_path: Path) -> None:
    plan = a_plan("exact")
    lines = lines_of(plan, some_rounds(plan, 3))
    lines[0]["plan"] |= {"masks": "drawn"}
    with pytest.raises(lightdp.errors.ArgumentError, match="plan cannot be read: masks='drawn' need repair"):
        recorded(saved(tmp_path / "run.jsonl", lines))


def test_a_log_from_before_there_were_drawn_masks_holds(tmp_path: Path) -> None:
    _, lines = a_log(masks="gaussian")
    lines[0]["plan"] = without(lines[0]["plan"], "masks", "mask_cost", "mask_bits")
    assert recorded(saved(tmp_path / "run.jsonl", lines)).problems == ()


def test_settings_that_ask_for_other_masks_are_found(tmp_path: Path) -> None:
    _, lines = a_log()
    lines[0]["config"]["masks"] = "gaussian"
    found = recorded(saved(tmp_path / "run.jsonl", lines))
    assert found.problems == ("config: masks = 'gaussian' is not the plan's, 'drawn'",)


def test_numbers_of_clients_alone_bound_what_was_spent(tmp_path: Path) -> None:
    plan, lines = a_log()
    for line in lines[1:-1]:
        del line["late_clients"], line["lost_clients"]
    found = recorded(saved(tmp_path / "run.jsonl", lines))
    assert found.bounds is not None
    assert found.bounds[0] <= lines[-1]["epsilon"] <= found.bounds[1]
    least = plan.masks.cost * (plan.sensitivity / plan.scale) ** 2
    assert gaussian.mu(found.bounds[0], plan.delta) ** 2 > least
