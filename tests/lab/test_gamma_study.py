from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from lightdp.training.arrivals import arrivals
from lightdp.training.channel import Distribution

ROOT = Path(__file__).parents[2]
DIMENSION = 40_000


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gamma", ROOT / "benchmarks/gamma.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gamma"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def made(study: ModuleType, parameters: int, rounds: int, **job: Any) -> tuple[Any, Any]:
    asked = study.Job(seed=3, **job)
    config = study.settled(asked, "digits", "cpu", rounds)
    plan = config.plan(1000, parameters, 1)
    return study.Scheduled(plan, config, parameters, torch.device("cpu"), asked), plan


def test_without_schedule_and_delay_sums_are_those_of_the_simulator(study: ModuleType) -> None:
    ours, plan = made(study, 10, rounds=30)
    theirs, who = Distribution(plan, 10, 3, "cpu"), arrivals("uniform", clients=20, bound=4, seed=3)
    for number in range(30):
        update = [([0], torch.full((1, 10), float(number)))]
        mine, other = (each.round(number, who(number + 1), update) for each in (ours, theirs))
        torch.testing.assert_close(mine.total, other.total, rtol=1e-5, atol=1e-4)
        assert (mine.lasting, mine.residual) == pytest.approx((other.lasting, other.residual))
    assert ours.debts.keys() == theirs.noise.keys()
    torch.testing.assert_close(ours.close(30), theirs.close(30))


@pytest.mark.parametrize(("schedule", "delay"), [("constant", 2), ("rising", 1), ("falling-mild", 2)])
def test_after_the_closing_rounds_only_individual_noise_is_left(study: ModuleType, schedule: str, delay: int) -> None:
    ours, plan = made(study, DIMENSION, rounds=12, gamma=1000.0, schedule=schedule, delay=delay)
    who, total, expected = arrivals("uniform", clients=20, bound=4, seed=3), torch.zeros(DIMENSION), 0.0
    for number in range(12):
        found = ours.round(number, who(number + 1), [])
        used, share = len(who(number + 1).used), study.scales(schedule, 12)[number] ** -2
        assert found.lasting == pytest.approx(plan.individual_in_sum(used) * share)
        assert found.residual == pytest.approx(plan.residual_in_sum(used) * share)
        total, expected = total + found.total, expected + found.lasting
    uploads = sum(len(owing) for _, owing, _ in ours.debts.values())
    assert uploads > 0
    total += ours.close(12)
    expected += plan.individual_in_sum(uploads) / study.scales(schedule, 12)[-1] ** 2
    assert float(total.square().mean()) == pytest.approx(expected, rel=5 * math.sqrt(2 / DIMENSION))  # 3.5 %


def test_repairs_wait_as_long_as_asked(study: ModuleType) -> None:
    for delay in (1, 2):
        ours, _ = made(study, 3, rounds=10, delay=delay)
        some, everybody = (arrivals(kind, clients=20, bound=4, seed=3) for kind in ("uniform", "none"))
        assert len(some(1).used) < 20
        ours.round(0, some(1), [])
        for number in range(1, delay):
            ours.round(number, everybody(number + 1), [])
            assert list(ours.debts) == [0]
        ours.round(delay, everybody(delay + 1), [])
        assert ours.debts == {}


@pytest.mark.parametrize("rounds", [1, 7, 150])
def test_a_schedule_costs_what_the_plan_does(study: ModuleType, rounds: int) -> None:
    for schedule in study.SCHEDULES:
        squares = np.square(study.scales(schedule, rounds))
        assert squares.mean() == pytest.approx(1)
        steps = np.diff(squares) * {"constant": 0, "rising": -1, "falling": 1}[schedule.removesuffix("-mild")]
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
