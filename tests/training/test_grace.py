"""Runs in which uploads may be one round late (R5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from lightdp import Odometer
from lightdp.errors import ArgumentError
from lightdp.training import gradients
from lightdp.training.config import Config
from lightdp.training.simulator import Run
from lightdp.training.step import share
from support.toy_runs import QUICK, blobs, played

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lightdp.runlog import Ended, Round, RunLog
    from lightdp.training.data import Dataset


@pytest.fixture
def toy() -> Dataset:
    return blobs()


def traced(folder: Path, *lines: str) -> str:
    path = folder / "trace.csv"
    path.write_text("\n".join(["round,client,status", *lines]) + "\n")
    return f"trace:{path}"


def final_sets(log: RunLog) -> list[tuple[set[int], set[int]]]:
    """Used and late clients of each round, from the lines of a log alone."""
    after: list[Round | Ended] = [*log.rounds[1:], log.outcome]
    found = []
    for line, following in zip(log.rounds, after, strict=True):
        late, joined = set(line.late_clients or ()), set(following.joined_clients or ())
        assert (line.late, following.joined) == (len(late), len(joined))
        assert joined <= late
        on_time = set(range(8)) - late - set(line.lost_clients or ())
        assert len(on_time) == line.used
        found.append((on_time | joined, late - joined))
    return found


def test_a_late_upload_enters_the_next_step_with_the_weights_of_its_own_round(tmp_path: Path, toy: Dataset) -> None:
    spec = traced(tmp_path, "1,3,next", "2,5,next", "2,6,late")
    config = Config(**(QUICK | {"scheme": "none", "rounds": 2, "grace": 1, "arrivals": spec, "momentum": 0.5}))
    run = Run(config, tmp_path / "run.jsonl", dataset=toy)
    start, scale = run.state.weights.clone(), share(config, run.members.rosters[0])

    def summed(weights: torch.Tensor, number: int, who: Sequence[int]) -> torch.Tensor:
        gradients.assign(run.model, weights)
        return torch.cat([rows for _, rows in run.clients.updates(run.model, number, who, 1e9)]).sum(0)

    first = summed(start, 0, [0, 1, 2, 4, 5, 6, 7])
    after_first = start + scale * first
    second = summed(after_first, 1, [0, 1, 2, 3, 4, 7]) + summed(start, 0, [3])
    wanted = after_first + scale * (0.5 * first + second) + scale * summed(after_first, 1, [5])
    log = run.finish()
    assert torch.allclose(run.state.weights, wanted, rtol=0, atol=1e-6)
    assert not torch.allclose(run.state.weights, wanted - scale * summed(after_first, 1, [5]), rtol=0, atol=1e-4)
    assert [(line.used, line.late, line.joined) for line in log.rounds] == [(7, 1, 0), (6, 2, 1)]
    assert (log.outcome.joined, log.outcome.joined_clients) == (1, [5])


def test_a_client_that_is_one_round_late_in_every_round_costs_and_counts_as_one_in_time(
    tmp_path: Path, toy: Dataset
) -> None:
    spec = traced(tmp_path, *(f"{t},3,next" for t in range(1, 13)))
    settings: dict[str, Any] = {"rounds": 12, "epsilon": 3.0, "arrivals": spec, "reserve": "worst"}
    run = Run(Config(**(QUICK | settings | {"grace": 1})), tmp_path / "run.jsonl", dataset=toy)
    log = run.finish()
    assert [line.joined for line in log.rounds] == [0] + [1] * 11
    assert log.outcome.joined == 1
    assert run.plan is not None
    everybody = Odometer(run.plan)
    for _ in range(12):
        everybody.record(range(8))
    assert log.epsilon == everybody.max_epsilon()
    without = played(tmp_path / "without.jsonl", toy, **settings)
    assert sum(line.late for line in without.rounds) < 12  # it has to stay away at last


@pytest.mark.parametrize("calibration", ["repair", "exact"])
def test_epsilon_is_that_of_the_final_sets_in_every_line(tmp_path: Path, toy: Dataset, calibration: str) -> None:
    run = Run(
        Config(**(QUICK | {
            "scheme": calibration, "rounds": 15, "stragglers": 3, "arrivals": "links:0.3", "late_by_one": 0.5,
            "late_seen": 0.2, "grace": 1, "seed": 2,
        })),
        tmp_path / "run.jsonl", dataset=toy,
    )  # fmt: skip
    log = run.finish()
    sets = final_sets(log)
    assert run.plan is not None
    odometer = Odometer(run.plan)
    for line, (used, late) in zip(log.rounds, sets, strict=True):
        assert len(used) >= 5 or not used
        odometer.record(used, late)
        assert line.epsilon == odometer.max_epsilon()
    assert log.epsilon == odometer.max_epsilon() <= 20
    assert any(late for _, late in sets)
    assert any(line.joined for line in log.rounds)


def test_a_round_with_too_few_in_time_waits_and_one_with_too_few_in_all_is_void(tmp_path: Path, toy: Dataset) -> None:
    late = ["2,0,next", "2,1,next", "2,2,next", "4,0,next", "4,1,lost", "4,2,lost", "4,3,late"]
    log = played(tmp_path / "run.jsonl", toy, arrivals=traced(tmp_path, *late), grace=1)
    assert [(line.used, line.late, line.lost, line.joined) for line in log.rounds] == [
        (8, 0, 0, 0), (0, 8, 0, 0), (8, 0, 0, 8), (0, 6, 2, 0), (8, 0, 0, 0), (8, 0, 0, 0),
    ]  # fmt: skip
    noise = [line.noise_std or 0.0 for line in log.rounds]
    assert noise[1] == noise[3] == 0
    assert noise[2] == pytest.approx(2**0.5 * noise[0], rel=1e-9)


@pytest.mark.parametrize("calibration", ["repair", "exact"])
def test_protocol_and_distribution_agree_on_all_but_the_noise_itself(
    tmp_path: Path, toy: Dataset, calibration: str
) -> None:
    changed: dict[str, Any] = {
        "epsilon": 500.0, "grace": 1, "late_by_one": 0.5, "late_seen": 0.2, "scheme": calibration, "stragglers": 3,
        "arrivals": "links:0.25", "rounds": 10,
    }  # fmt: skip
    real = played(tmp_path / "a.jsonl", toy, fidelity="protocol", **changed)
    simulated = played(tmp_path / "b.jsonl", toy, **changed)
    for a, b in zip(real.rounds, simulated.rounds, strict=True):
        for name in ("round", "epsilon", "used", "late", "lost", "joined", "joined_clients"):
            assert getattr(a, name) == getattr(b, name)
        assert a.noise_std == pytest.approx(b.noise_std, rel=1e-6)
        assert a.residual_std == pytest.approx(b.residual_std, rel=1e-6)
    assert real.epsilon == simulated.epsilon
    assert (real.accuracy or 0) > 0.9
    assert any(line.joined for line in real.rounds)


@pytest.mark.parametrize("fidelity", ["distribution", "protocol"])
def test_training_stops_hard_at_the_budget_and_takes_late_uploads_in(
    tmp_path: Path, toy: Dataset, fidelity: str
) -> None:
    log = played(
        tmp_path / "run.jsonl", toy, rounds=30, epsilon=2.0, late_seen=0.7, late_by_one=0.3, late=0.0,
        scheme="repair", grace=1, fidelity=fidelity,
    )  # fmt: skip
    assert log.outcome.stopped == "budget"
    assert 0 < log.outcome.rounds < 30
    assert log.epsilon is not None
    assert log.epsilon <= 2
    assert all(line.epsilon is not None and line.epsilon <= 2 for line in log.rounds)


@pytest.mark.parametrize("scheme", ["smpc", "central"])
def test_grace_is_for_uploads_that_count_alone(scheme: str) -> None:
    with pytest.raises(
        ArgumentError, match=f"grace must be 0 for scheme='{scheme}', whose uploads count only together"
    ):
        Config(scheme=scheme, grace=1)
    with pytest.raises(ArgumentError, match="grace must be"):
        Config(grace=2)


@pytest.mark.parametrize(
    ("changed", "late"),
    [
        ({}, "unseen"),
        ({"late_seen": 0.1}, 0.1),
        ({"late_by_one": 0.1, "late_seen": 0.2}, 0.1 + 0.2),
        ({"late_by_one": 0.1, "grace": 1}, "unseen"),
        ({"arrivals": "latency:1:0.5:2", "grace": 1}, 0.1),
        ({"arrivals": "latency:1:0.5:2", "grace": 0}, 0.0),
        ({"late": 0.25}, 0.25),
        ({"late": "0.25"}, 0.25),
        ({"late": "unseen", "late_by_one": 1.0, "grace": 1}, "unseen"),
    ],
)
def test_the_plan_knows_which_late_uploads_to_provide_for(changed: dict[str, Any], late: float | str) -> None:
    plan = Config(**(QUICK | changed)).plan(300, 12, 30)
    assert plan is not None
    assert plan.request.late == late
    assert plan.grace == changed.get("grace", 0)


@pytest.mark.parametrize(
    ("changed", "grace"), [({}, 0), ({"scheme": "none"}, 1), ({"scheme": "smpc"}, 0), ({"scheme": "exact"}, 1)]
)
def test_arrivals_with_latencies_have_grace_where_the_scheme_can(changed: dict[str, Any], grace: int) -> None:
    arrivals = {"arrivals": "latency:1:0.5:2"} if changed else {}
    assert Config(**(QUICK | changed | arrivals)).grace_rounds == grace


@pytest.mark.parametrize("late", ["seen", 1.5, "-1"])
def test_a_share_of_late_uploads_that_cannot_be_is_refused(late: Any) -> None:
    with pytest.raises(ArgumentError, match="late must be"):
        Config(**(QUICK | {"late": late})).plan(300, 12, 30)
