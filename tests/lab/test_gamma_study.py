from __future__ import annotations

import dataclasses
import doctest
import importlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from lightdp.training.arrivals import Arrivals, arrivals
from lightdp.training.channel import Distribution
from lightdp.training.clients import Piece

ROOT = Path(__file__).parents[2]
DIMENSION = 40_000


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")  # as where its programs run
        yield importlib.import_module("gamma")


@pytest.fixture(scope="module")
def channel(study: ModuleType) -> ModuleType:
    return sys.modules[study.Scheduled.__module__]


@pytest.fixture(scope="module")
def tables(study: ModuleType) -> ModuleType:
    return sys.modules[study.by_weight.__module__]


def made(study: ModuleType, parameters: int, rounds: int, **job: Any) -> tuple[Any, Any]:
    varied = {"schedule": "constant", "delay": 1} | job
    config = study.settled(study.Job(seed=3, **job), "digits", "cpu", rounds)
    plan = config.plan(1000, parameters, 1)
    return study.Scheduled(plan, parameters, 3, "cpu", **{name: varied[name] for name in ("schedule", "delay")}), plan


def nothing(clients: Sequence[int]) -> list[Piece]:  # noqa: ARG001  no client has an update
    return []


def constant(clients: Sequence[int], value: float) -> list[Piece]:
    return [([*clients], torch.full((len(clients), 10), value))]


def test_examples_are_right(channel: ModuleType, tables: ModuleType) -> None:
    for module in (channel, tables):
        found = doctest.testmod(module)
        assert (found.failed, found.attempted > 0) == (0, True)


def test_without_schedule_and_delay_sums_are_those_of_the_simulator(study: ModuleType) -> None:
    ours, plan = made(study, 10, rounds=30)
    theirs, who = Distribution(plan, 10, 3, "cpu"), arrivals("uniform", clients=20, bound=4, seed=3)
    for number in range(30):
        updates = partial(constant, value=float(number))
        mine, other = (each.round(number, who(number + 1), updates) for each in (ours, theirs))
        torch.testing.assert_close(mine.total, other.total, rtol=1e-5, atol=1e-4)
        assert (mine.lasting, mine.residual) == pytest.approx((other.lasting, other.residual))
    assert ours.debts.keys() == theirs.noise.keys()
    torch.testing.assert_close(ours.close(30), theirs.close(30))


@pytest.mark.parametrize(("schedule", "delay"), [("constant", 2), ("rising", 1), ("falling-mild", 2)])
def test_after_the_closing_rounds_only_individual_noise_is_left(
    study: ModuleType, channel: ModuleType, schedule: str, delay: int
) -> None:
    ours, plan = made(study, DIMENSION, rounds=12, gamma=1000.0, schedule=schedule, delay=delay)
    who, total, expected = arrivals("uniform", clients=20, bound=4, seed=3), torch.zeros(DIMENSION), 0.0
    for number in range(12):
        found = ours.round(number, who(number + 1), nothing)
        used, share = len(who(number + 1).used), channel.scales(schedule, 12)[number] ** -2
        assert found.lasting == pytest.approx(plan.individual_in_sum(used) * share)
        assert found.residual == pytest.approx(plan.residual_in_sum(used) * share)
        total, expected = total + found.total, expected + found.lasting
    uploads = sum(len(owing) for _, owing, _ in ours.debts.values())
    assert uploads > 0
    total += ours.close(12)
    expected += plan.individual_in_sum(uploads) / channel.scales(schedule, 12)[-1] ** 2
    assert float(total.square().mean()) == pytest.approx(expected, rel=5 * math.sqrt(2 / DIMENSION))  # 3.5 %


def test_repairs_wait_as_long_as_asked(study: ModuleType) -> None:
    for delay in (1, 2):
        ours, _ = made(study, 3, rounds=10, delay=delay)
        some, everybody = (arrivals(kind, clients=20, bound=4, seed=3) for kind in ("uniform", "none"))
        assert len(some(1).used) < 20
        ours.round(0, some(1), nothing)
        for number in range(1, delay):
            ours.round(number, everybody(number + 1), nothing)
            assert list(ours.debts) == [0]
        ours.round(delay, everybody(delay + 1), nothing)
        assert ours.debts == {}


def test_an_upload_carries_one_repair_the_oldest(study: ModuleType) -> None:
    ours, _ = made(study, 3, rounds=10, delay=2)
    some, others, nobody, everybody = (range(18), range(17), (), range(20))
    for number, used in enumerate((some, others, nobody, everybody)):
        ours.round(number, Arrivals.of(20, used=used), nothing)
    assert {past: owing for past, (_, owing, _) in ours.debts.items()} == {1: frozenset(others)}  # all paid round 0
    ours.round(4, Arrivals.of(20, used=everybody), nothing)
    assert ours.debts == {}


@pytest.mark.parametrize("rounds", [1, 7, 150])
def test_a_schedule_costs_what_the_plan_does(channel: ModuleType, rounds: int) -> None:
    for schedule in channel.SCHEDULES:
        squares = np.square(channel.scales(schedule, rounds))
        assert squares.mean() == pytest.approx(1)
        steps = (
            np.diff(squares) * {"constant": 0, "rising": -1, "falling": 1, "ending": -1}[schedule.removesuffix("-mild")]
        )
        assert np.all(steps > 0) or schedule == "constant"


def test_each_seed_is_tested_on_a_tenth_that_it_does_not_train_on(study: ModuleType) -> None:
    tested = []
    whole = study.prepared("digits", None, "linear", False, "cpu")[0]
    for seed in range(10):
        split, train, test = study.held_out(seed, "digits", None, "cpu")
        assert len(train) + len(test) == len(whole.train_y)
        np.testing.assert_array_equal(test.numpy(), split.test_x)
        np.testing.assert_array_equal(train.numpy(), split.train_x)
        tested.append(split.test_x)
    both = np.sort(np.concatenate(tested), axis=0), np.sort(whole.train_x, axis=0)
    np.testing.assert_array_equal(*both)  # the ten tenths are the training data, so none of the test data


def test_a_run_that_is_kept_is_not_run_again(study: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record = study.Record(path, "digits")
    record.session("cpu", 1)
    job = study.Job(seed=1, gamma=8.0, schedule="rising")
    record.add(study.played(job, "digits", None, "cpu", 3))
    again = study.Record(path, "digits")
    assert job in again
    assert dataclasses.replace(job, gamma=None) not in again
    line = json.loads(path.read_text())["runs"][0]
    assert (line["gamma_used"], line["rounds"], line["session"]) == (8.0, 3, 0)
    with pytest.raises(SystemExit, match="other settings"):
        study.Record(path, "cifar10")


def line(seed: int, gamma: float, accuracy: float, factor: float = 1.0, **other: Any) -> dict[str, Any]:
    scheme = "repair" if gamma > 0 else "smpc"
    at = {"seed": seed, "scheme": scheme, "gamma_used": gamma, "factor": factor, "accuracy": accuracy}
    return at | {"momentum": 0.9, "ema": 0.0, "schedule": "constant", "delay": 1} | other


KIND = {"momentum": 0.9, "ema": 0.0, "schedule": "constant", "delay": 1}


def test_each_gamma_is_taken_at_its_best_learning_rate_and_paired_by_seed(tables: ModuleType) -> None:
    runs = [line(seed, 0.0, 0.5 + seed / 10) for seed in (0, 1)]
    runs += [line(seed, 0.0, 0.1, factor=2.0) for seed in (0, 1)]
    for gamma, plain, double in ((1.0, 0.4, 0.2), (4.0, 0.2, 0.6)):
        runs += [line(seed, gamma + 1e-7 * seed, plain + seed / 10) for seed in (0, 1)]
        runs += [line(seed, gamma, double + seed / 5, factor=2.0) for seed in (0, 1)]
    curve = tables.Curve.of(runs, KIND)
    assert {gamma: factor for gamma, (factor, _) in curve.best.items()} == {0.0: 1.0, 1.0: 1.0, 4.0: 2.0}
    np.testing.assert_allclose(curve.ahead(1.0), [-10, -10])
    np.testing.assert_allclose(curve.ahead(4.0), [10, 20])
    np.testing.assert_allclose(curve.ahead(2.0), [0, 5])  # half way in log γ
    np.testing.assert_allclose(curve.regret(2.0), [10, 15])
    assert tables.error(curve.regret(2.0)) == pytest.approx(2.5)
    assert (curve.ahead(0.9), curve.regret(4.1)) == (None, None)


def test_seeds_that_lack_runs_are_left_out_with_as_few_others_as_may_be(tables: ModuleType) -> None:
    runs = [line(seed, gamma, 0.5, factor) for seed in range(3) for gamma in (0.0, 1.0, 2.0) for factor in (0.5, 1, 2)]
    runs = [each for each in runs if (each["seed"], each["factor"]) != (1, 0.5)]  # both seeds without it
    runs = [each for each in runs if each["seed"] < 2 or each["factor"] == 2]  # seed 2 has one learning rate
    curve = tables.Curve.of(runs[:-1], KIND)
    assert (curve.seeds, {*curve.tried[1.0]}) == ((0, 1), {1, 2})
    assert tables.Curve.of(runs, KIND | {"delay": 2}).gammas == []


def test_the_rule_of_the_tables_is_that_of_plans(study: ModuleType, tables: ModuleType) -> None:
    for momentum, ema in ((0.0, 0.0), (0.5, 0.0), (0.95, 0.0), (0.9, 0.95)):
        config = dataclasses.replace(study.settled(study.Job(seed=0), "cifar10", "cpu"), momentum=momentum, ema=ema)
        plan = dataclasses.replace(config, gamma=None).plan(1000, 10, 1)
        weights = {name: rule(momentum, ema, 1) for name, rule in tables.RULES.items()}
        assert plan is not None
        assert tables.by_weight(study.SETTINGS["cifar10"], weights["the rule"]) == pytest.approx(plan.gamma, rel=1e-4)
        others = [tables.by_weight(study.SETTINGS["cifar10"], each) for each in [*weights.values()][1:]]
        assert all(abs(math.log(other / plan.gamma)) > 0.05 for other in others)


def test_records_that_are_kept_can_be_gone_on_with(study: ModuleType, tables: ModuleType) -> None:
    for name in study.SETTINGS:
        kept = study.Record(ROOT / f"benchmarks/records/gamma-{name}.json", name).content
        jobs = [tuple(run[field] for field in vars(study.Job(seed=0))) for run in kept["runs"]]
        assert len({*jobs}) == len(jobs)
        assert {run["session"] for run in kept["runs"]} == {*range(len(kept["sessions"]))}
        found = [run["gamma_used"] for run in kept["runs"] if run["gamma"] is None and run["scheme"] == "repair"]
        np.testing.assert_allclose(found, tables.by_weight(kept["settings"], 1.0), rtol=1e-5)
