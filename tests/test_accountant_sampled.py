"""The odometer where batches are sampled: compositions instead of sums, as few as will do."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

import lightdp
from lightdp import gaussian, sampling
from lightdp.accountant import Odometer, SampledComposer
from lightdp.errors import BudgetError

if TYPE_CHECKING:
    from lightdp.planning import Plan


def planned(clients: int, colluders: int, missing: int, **more: Any) -> Plan:
    settings = {"rounds": 150, "epsilon": 3.0, "delta": 1e-5} | more
    return lightdp.plan(clients=clients, colluders=colluders, stragglers=missing, **settings)


@pytest.mark.parametrize("calibration", ["exact", "repair"])
def test_sampled_rounds_are_amplified_and_late_ones_still_counted(calibration: str) -> None:
    plan = planned(20, 2, 2, rounds=20, calibration=calibration, sampling_rate=0.1)
    odometer = Odometer(plan, [0, 1])
    for _ in range(5):
        odometer.admit()
        odometer.record(range(20))
    equal = odometer.epsilon()
    assert equal[0] == equal[1]
    odometer.record([c for c in range(20) if c != 1])
    odometer.record(range(20))
    after = odometer.epsilon()
    assert after[1] > after[0] > equal[0] if calibration == "repair" else after[1] == after[0] > equal[0]
    whole = math.sqrt(5) / plan.noise_multiplier
    assert equal[0] < 0.5 * gaussian.epsilon(whole, 1e-5)


def test_sampled_budget_stops_hard() -> None:
    plan = planned(10, 2, 0, rounds=5, sampling_rate=0.2)
    odometer = Odometer(plan)
    for _ in range(5):
        odometer.admit()
        odometer.record(range(10))
    with pytest.raises(BudgetError, match="round 6 could take client"):
        odometer.admit()
    assert plan.budget * 0.99 < odometer.max_epsilon() == odometer.epsilon().max() <= plan.budget


def refusal(odometer: Odometer, *, forget: bool = False) -> str | None:
    """What `admit` says against the next round; if it is to `forget`, by compositions of its own for this round."""
    if forget:
        composer = odometer._composer
        assert isinstance(composer, SampledComposer)
        composer._fits, composer._ahead = np.empty(0), 0
    try:
        odometer.admit()
    except BudgetError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    "settings",
    [
        {"calibration": "repair", "late": "unseen"},
        {"calibration": "repair", "late": "unseen", "adjacency": "replace"},
        {"calibration": "repair", "late": "unseen", "degree": 4},
        {"calibration": "repair", "late": 0.0},
        {"calibration": "exact"},
        {"calibration": "exact", "adjacency": "replace", "late": "unseen"},
        {"calibration": "local", "late": "unseen"},
        {"calibration": "smpc"},
        {"calibration": "central"},
        {"calibration": "paper", "sampling_rate": 0.9},
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values()),
)
@pytest.mark.parametrize("seed", [0, 1])
def test_looking_ahead_decides_each_sampled_round_as_a_look_at_that_round_alone(
    settings: dict[str, Any], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    plan = planned(8, 1, 2, **{"rounds": 8, "sampling_rate": 0.2} | settings)
    tracked = [1, 5] if seed else None
    quick, slow = Odometer(plan, tracked), Odometer(plan, tracked)
    for _ in range(100):
        said = refusal(slow, forget=True)
        assert refusal(quick) == said
        if said is not None:
            return
        missing = rng.choice(8, 8 if rng.random() < 0.05 else rng.integers(0, 3), replace=False).tolist()
        used = sorted(set(range(8)) - set(missing))
        late = [c for c in missing if rng.random() < 0.2] if seed else None  # seen though the plan may say unseen
        for odometer in (quick, slow):
            odometer.record(used, late)
        if rng.random() < 0.2:
            quick = copy.deepcopy(quick)
    pytest.fail("the budget never ended")


@pytest.mark.parametrize("calibration", ["exact", "repair"])
def test_a_training_with_sampled_batches_is_admitted_by_few_compositions(
    calibration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed: list[Any] = []
    epsilon = sampling.epsilon

    def counted(rounds: Any, **settings: Any) -> float:
        composed.append(rounds)
        return epsilon(rounds, **settings)

    rng = np.random.default_rng(5)
    odometer = Odometer(planned(12, 2, 3, rounds=60, calibration=calibration, late="unseen", sampling_rate=0.1), [0])
    monkeypatch.setattr(sampling, "epsilon", counted)
    while refusal(odometer) is None and odometer.rounds < 100:
        if odometer.rounds < 60:  # the plan's rounds; beyond them, what does not fit must be found out, but once
            assert 0 < len(composed) <= 10
        odometer.record(sorted(set(range(12)) - set(rng.choice(12, rng.integers(0, 4), replace=False).tolist())))
    assert 60 < odometer.rounds < 100
    assert len(composed) <= 20


def test_a_dear_round_that_the_plan_rules_out_ends_what_looking_ahead_had_promised() -> None:
    """Late uploads that were seen after all, before as many rounds are over as were looked ahead."""
    plan = planned(8, 1, 2, rounds=40, calibration="repair", late="unseen", sampling_rate=0.2)
    quick, slow = Odometer(plan, [0]), Odometer(plan, [0])
    assert refusal(quick) is None
    promised = len(cast("SampledComposer", quick._composer)._fits)
    while refusal(slow, forget=True) is None and slow.rounds < promised:
        assert refusal(quick) is None
        for odometer in (quick, slow):
            odometer.record(range(1, 8), late=[0])
    assert refusal(quick) == refusal(slow, forget=True)
    assert slow.rounds + 1 < promised
