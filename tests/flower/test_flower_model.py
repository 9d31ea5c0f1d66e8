"""Strategy and mod together: the model that comes out, whatever happened to messages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Strategy
from scipy import stats

from lightdp import masks
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, step, the_change, trained, weights

if TYPE_CHECKING:
    from pathlib import Path

    from support.flower_tape import Tape

FAULTS: dict[str, dict[tuple[int, int], Any]] = {
    "none": {},
    "drop": {(2, 0): "drop", (6, 3): "drop"},
    "lost": {(1, 0): "lost", (2, 0): "lost", (4, 2): "lost"},
    "late": {(1, 0): "late", (2, 0): "late", (3, 1): "late", (6, 2): "late"},
    "errors": {(2, 0): "error", (2, 4): "error", (5, 1): "error"},
    "garbage": {(2, 0): "garbage", (3, 2): "lost", (3, 3): "impostor"},
    "disguised": {(0, 1): "disguised", (0, 2): "disguised", (2, 0): "disguised", (3, 1): "disguised", (4, 2): "late"},
    "crash": {(2, 0): "crash", (3, 3): "crash"},
    "replay": {(2, 0): "replay", (3, 3): "twice", (4, 0): "twice"},
    "void": {(2, i): "late" for i in range(3)} | {(3, i): "drop" for i in range(3)},
    "away": {(t, 4): "drop" for t in range(1, 6)},
    "mixed": {(1, 0): "late", (2, 1): "crash", (3, 2): "twice", (4, 3): "error", (5, 4): "lost", (6, 0): "drop"},
}


def _by_chance(seed: int) -> dict[tuple[int, int], Any]:
    draw = np.random.default_rng(seed)
    kinds = ["disguised", "drop", "lost", "late", "error", "crash", "replay", "twice", "garbage"]
    places = [(t, i) for t in range(1, 8) for i in range(5)]
    return {place: str(draw.choice(kinds)) for place in places if draw.random() < 0.3}


FAULTS |= {f"by chance {seed}": _by_chance(seed) for seed in range(3)}
GRACE = {
    "late at the end": {(1, 0): "slow", (5, 0): "drop", (6, 1): "late", (7, 2): "late", (7, 3): "late"},
    "too few twice": {(t, i): "slow" for t in (2, 3) for i in range(4)},
    "at the end too few": {(2, 1): "later", (6, 3): "later"} | {(6, i): "slow" for i in (0, 1, 2, 4)},
    "two debts": {(1, 0): "drop", (2, 1): "drop", (3, 2): "later", (4, 2): "drop", (5, 3): "late", (6, 4): "drop"},
}
CASES = [(name, calibration, 0) for name in FAULTS for calibration in ("repair", "exact")]
CASES += [(name, "repair", 1) for name in ("void", "mixed", "by chance 0", *GRACE)]
CASES += [("by chance 1", "exact", 1)]


@pytest.mark.parametrize(("faults", "calibration", "grace"), CASES)
def test_the_model_is_the_sum_of_what_was_used_and_no_mask_is_used_twice(
    faults: str, calibration: Any, grace: int, tape: Tape, tmp_path: Path
) -> None:
    plan = planned(calibration=calibration, grace=grace, wire_steps=16)  # so fine that masks show beside all roundings
    grid = LocalGrid(an_app(), 5)
    for node in grid.nodes:
        node.config["lightdp-state"] = str(tmp_path)
    grid.faults = (FAULTS | GRACE)[faults]
    strategy, result = trained(grid, plan)
    assert strategy.stopped is None
    assert len(tape.used()) == sum(len(each.used) + len(each.joined) for each in tape.rounds)
    lattice = masks.Grid.of(plan, 40)
    rounding = len(tape.used()) * lattice.wire_step / 2 / plan.clients + 1e-9
    expected = tape.total("fine") * lattice.step / plan.clients
    assert the_change(result) == pytest.approx(expected, abs=rounding)
    closing = [(t, i) for t, i in grid.faults if t > 6 and not (grace and grid.faults[t, i] == "late")]
    if calibration == "repair" and not closing:  # whoever straggled, no pairwise noise stays
        assert the_change(result) == pytest.approx(tape.total("data") * lattice.step / plan.clients, abs=rounding)
        assert rounding < plan.sigma_pairwise / 4  # which would be seen
    assert max(Counter((each.name, each.round) for each in tape.made).values()) == 1
    added = Counter((each.name, key) for each in tape.made for key in each.keys)
    assert max(added.values()) == 1
    sent = {(each.round + 1, tape.names.index(each.name)) for each in tape.made}
    fine = {"replay", "twice", "disguised"} | ({"late", "slow"} if grace else set())
    came = [{i for i in range(5) if (t, i) in sent and grid.faults.get((t, i), "twice") in fine} for t in range(1, 7)]
    if grid.pushed.count("train") == 6:  # nothing was sent after which a late answer would come
        came[5] -= {i for i in range(5) if grid.faults.get((6, i)) == "late"}
    assert tape.finals()[:6] == [c if len(c) >= 3 else set() for c in came]


@pytest.mark.parametrize("calibration", ["repair", "exact"])
def test_the_noise_in_the_model_has_the_variance_that_the_plan_names(calibration: Any) -> None:
    size, plan = 20_000, planned(calibration=calibration, epsilon=50.0)
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(1, 0): "drop", (3, 1): "late", (3, 2): "lost"}
    _, result = trained(grid, plan, initial_arrays=weights(size))
    used = [[i for i in range(5) if grid.faults.get((t, i)) is None] for t in range(1, 7)]
    signal = sum(step(i, size) for each in used for i in each) / 5
    uploads = sum(len(each) for each in used)
    stays = sum(len(each) * (5 - len(each)) for each in used) if calibration == "exact" else 0
    variance = uploads * (plan.sigma_individual**2 + plan.wire_grid**2 / 12) + stays * plan.sigma_pairwise**2
    dither = np.random.default_rng(1).uniform(-0.5, 0.5, size)  # between the steps of the wire, which would show
    scale = (variance + plan.wire_grid**2 / 12) ** 0.5 / 5
    noise = the_change(result, size) - signal + dither * plan.wire_grid / 5
    assert stats.kstest(noise / scale, "norm").pvalue > 1e-6
    for wrong in (0.9, 1.1):
        assert stats.kstest(noise / scale * wrong, "norm").pvalue < 1e-6


@pytest.mark.parametrize("inner", [FedAvg(), FedProx(proximal_mu=0.1), FedAvgM(server_learning_rate=0.5)])
def test_linear_strategies_work_on_the_mean(inner: Strategy, tape: Tape) -> None:
    plan = planned(rounds=3)
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(1, 0): "drop"}
    _, result = trained(grid, plan, inner)
    rate = getattr(inner, "server_learning_rate", 1.0)
    lattice = masks.Grid.of(plan, 40)
    expected = rate * tape.total("data") * lattice.step / 5
    assert the_change(result) == pytest.approx(expected, abs=3 * lattice.wire_step)


def test_momentum_of_the_inner_strategy_works_on_the_means(tape: Tape) -> None:
    plan = planned(rounds=3, calibration="exact")
    _, result = trained(LocalGrid(an_app(), 5), plan, FedAvgM(server_momentum=0.5))
    model, momentum = np.zeros(40), np.zeros(40)
    for each in tape.rounds:
        momentum = 0.5 * momentum + each.mean()
        model += momentum
    assert the_change(result) == pytest.approx(model, abs=1e-9)


def test_a_non_linear_strategy_gets_the_exact_mean(tape: Tape) -> None:
    plan = planned(rounds=1, calibration="exact")
    _, result = trained(LocalGrid(an_app(), 5), plan, FedAdam(eta=0.1, beta_1=0.0, beta_2=0.0, tau=1e-3))
    mean = tape.rounds[0].mean()
    assert the_change(result) == pytest.approx(0.1 * mean / (np.abs(mean) + 1e-3), rel=1e-6)
