"""Bounds of columns, found in the first rounds: parts are clipped, the noise is the plan's, one ε counts all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightdp.auditing import recorded
from lightdp.errors import ArgumentError
from lightdp.runlog import ResumeError, RunLog
from lightdp.training import bounds, weights
from lightdp.training.clients import Clients
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.partition import of_owners
from lightdp.training.simulator import Run
from support.by_hand import GPU

EXACT: dict[str, Any] = {
    "clients": 6, "colluders": 1, "stragglers": 1, "rounds": 10, "epsilon": 4.0, "scheme": "exact", "arrivals": "none",
    "lr": 0.5,
}  # fmt: skip
NAMES = ("age", "crp", "change")


def table(count: int = 1200, persons: int | None = None, seed: int = 1) -> Dataset:
    """Three numbers of very different sizes, some missing, one feature that is scaled already, and two classes."""
    rng = np.random.default_rng(seed)
    age, crp, change = rng.uniform(33, 90, count), 10 ** rng.uniform(-2.0, 0.0, count), rng.normal(0, 3000, count)
    y = (age + 20 * rng.normal(size=count) > 60).astype(np.int64)
    x = np.stack([age, rng.uniform(-1, 1, count), crp, change], axis=1).astype(np.float32)
    x[rng.random(count) < 0.1, 2] = np.nan
    held = count // 5
    person = None if persons is None else rng.integers(0, persons, count - held)
    return Dataset(
        name="table", train_x=x[held:], test_x=x[:held], train_y=y[held:], test_y=y[:held], classes=2,
        train_person=person, unscaled=tuple(zip(NAMES, (0, 2, 3), strict=True)),
    )  # fmt: skip


def clients_of(source: Dataset, **changed: Any) -> Clients:
    config = Config(**(EXACT | changed))
    parts = of_owners(source, config.clients, "iid", 0, persons=config.unit == "person")
    return Clients.of(config, source, parts, torch.device("cpu"))


def exact(source: Dataset, run: Run) -> Any:
    """The histograms of all clients together, value by value, for records as units."""
    wanted = np.zeros((3, bounds.BINS))
    for column, place in enumerate((0, 2, 3)):
        for value in source.train_x[:, place].tolist():
            if not math.isnan(value):
                inside = (bounds.EDGES[:-1] <= value) & (value < bounds.EDGES[1:])
                wanted[column, inside] += 1
    part = run.config.clip / math.sqrt(3)
    step = 2.0 ** (math.floor(math.log2(part)) - 4)
    return wanted.ravel() * math.floor(part / step) * step


# --- one unit's part ---


@given(st.integers(0, 10_000), st.sampled_from([0.01, 1.0, 30.0]), st.integers(1, 4))
def test_a_unit_that_is_added_moves_the_sums_by_at_most_the_clip(seed: int, clip: float, columns: int) -> None:
    rng = np.random.default_rng(seed)
    records, units = 40, 7
    values = rng.normal(0, 1, (records, columns)) * 10.0 ** rng.integers(-9, 15, (records, columns))
    values[rng.random(values.shape) < 0.2] = np.nan
    values[rng.random(records) < 0.5] = values[0]  # a person with many equal rows
    unit, owner = rng.integers(0, units, records), rng.integers(0, 3, units)
    whole = bounds.sums(bounds.bins(values), unit, owner, 3, clip).astype(float)
    for gone in range(units):
        rest = bounds.sums(bounds.bins(values[unit != gone]), unit[unit != gone], owner, 3, clip).astype(float)
        moved = whole - rest
        assert np.linalg.norm(moved) <= clip
        assert (moved[np.arange(3) != owner[gone]] == 0).all()
    assert np.linalg.norm(whole) > 0


@pytest.mark.parametrize("columns", [1, 3, 4])
@pytest.mark.parametrize("records", [1000, 100_000, 1_000_000, 3_000_000])
def test_a_record_among_many_moves_the_sums_by_at_most_the_clip(records: int, columns: int) -> None:
    places, owner = np.full((records, columns), 70), np.zeros(records, np.int64)
    for clip in (1.0, 0.1):
        for gone in range(3):
            whole, rest = (
                bounds.sums(places[:n], np.arange(n), owner[:n], 1, clip).astype(float)
                for n in (records - gone, records - gone - 1)
            )
            assert np.linalg.norm(whole - rest) <= clip


def test_a_record_adds_as_much_to_each_column_and_a_full_one_as_much_as_is_allowed() -> None:
    values = np.array([[3.0, -0.3, 1e30], [np.nan, 5.0, 0.0]])
    one, two = (
        bounds.sums(bounds.bins(values[[row]]), np.array([0]), np.array([0]), 1, 2.0).reshape(3, -1) for row in (0, 1)
    )
    assert [bounds.EDGES[row.argmax()] for row in one] == [2.0, -0.5, 2.0**39]
    assert 2 * 15 / 16 <= np.linalg.norm(one) <= 2
    assert np.count_nonzero(two) == 2
    assert set(two[two > 0].tolist()) == {math.floor(2 / math.sqrt(3) * 16) / 16}


@pytest.mark.parametrize("unit", ["record", "person", "client"])
def test_clients_clip_by_unit(unit: Any) -> None:
    source = table(600, persons=50)
    held = clients_of(source, unit=unit, clip=0.5)
    pieces = list(held.histograms(0, range(6), 1e9))
    rows = torch.cat([rows for _, rows in pieces])
    assert rows.shape == (6, 3 * bounds.BINS)
    assert (rows >= 0).all()
    sizes = {"record": len(source.train_y), "person": sum(held.units), "client": 6}
    assert 0 < float(rows.double().sum(0).norm()) <= 0.5 * sizes[unit]
    if unit == "client":
        assert (rows.double().norm(dim=1) <= 0.5).all()


@pytest.mark.parametrize("unit", ["record", "person"])
def test_batches_are_drawn_as_those_of_gradients_are(unit: Any) -> None:
    held = clients_of(table(2000, persons=200), unit=unit, sampling_rate=0.3, clip=1e-3)
    whole = clients_of(table(2000, persons=200), unit=unit, clip=1e-3)
    shares = [
        sum(float(rows.sum()) for _, rows in held.histograms(number, range(6), 1e9))
        / sum(float(rows.sum()) for _, rows in whole.histograms(number, range(6), 1e9))
        for number in range(20)
    ]
    assert len(set(shares)) > 1
    assert np.mean(shares) == pytest.approx(0.3, abs=0.03)
    model = torch.nn.Linear(4, 2)
    drawn = [len(held._units(3, [0], *held._held([0]))[2].nonzero()[0]) for _ in range(2)]
    assert drawn[0] == drawn[1] < len(held._held([0])[0])
    assert next(held.updates(model, 3, [0], 1e9))[1].shape == (1, 10)


def test_coordinates_beyond_what_a_plan_lets_a_client_send_are_clamped() -> None:
    rows = next(clients_of(table()).histograms(0, range(6), 3.0))[1]
    assert float(rows.max()) == 3.0


# --- from histograms to bounds ---


def test_bounds_reach_from_the_first_to_the_last_bin_that_stands_out() -> None:
    rng = np.random.default_rng(0)
    counts = rng.normal(0, 10, 2 * bounds.BINS)
    for value, many in ((-3.0, 100.0), (40.0, 300.0), (100.0, 80.0)):
        counts[bounds.bins(np.array([value]))[0]] += many
    one, two = bounds.found(counts, ("one", "two"))
    assert one == ("one", -4.0, 128.0, True)
    assert not two.clear
    assert two.low < two.high
    assert bounds.found(np.zeros(bounds.BINS), ("void",)) == (("void", -1.0, 1.0, False),)


def test_empty_columns_stand_out_of_the_noise_in_few_trials() -> None:
    rng = np.random.default_rng(2)
    trials = [bounds.found(rng.normal(0, 7, 5 * bounds.BINS), "abcde") for _ in range(400)]
    assert sum(any(each.clear for each in found) for found in trials) <= 6


@given(st.floats(-1e12, 1e12))
def test_a_value_lies_in_its_bin(value: float) -> None:
    place = int(bounds.bins(np.array([value]))[0])
    assert bounds.EDGES[place] <= value <= bounds.EDGES[place + 1] or abs(value) > 2**40


def test_features_are_scaled_by_them_and_missing_ones_are_the_middle() -> None:
    x = torch.tensor([[30.0, 0.5], [float("nan"), 0.25], [100.0, 0.0]])
    unscaled = bounds.Unscaled([0], x[:, [0]])
    found = unscaled.scaled(x, [bounds.Bounds("age", 20.0, 60.0, clear=True)])
    assert found.tolist() == [[-0.5, 0.5], [0.0, 0.25], [1.0, 0.0]]
    assert unscaled.scaled(x, ()).tolist() == [[0.0, 0.5], [0.0, 0.25], [0.0, 0.0]]


# --- runs ---


@pytest.mark.parametrize(
    "changed",
    [{}, {"scheme": "repair", "arrivals": "uniform"}, {"scheme": "repair", "fidelity": "protocol"}, {"unit": "client"}],
)
def test_a_run_finds_bounds_learns_with_them_and_stands_an_audit(tmp_path: Path, changed: dict[str, Any]) -> None:
    more = {"epsilon": 1000.0, "local_lr": 0.5, "lr": 1.0, "rounds": 20} if changed.get("unit") == "client" else {}
    log = Run(Config(**(EXACT | changed | more)), tmp_path / "run.jsonl", dataset=table()).finish()
    found = log.outcome.bounds
    assert found is not None
    if not more:
        assert found["age"] == {"low": 32.0, "high": 128.0, "clear": True}
        assert found["change"]["low"] <= -2048
        assert found["change"]["high"] >= 2048
        assert 0.06 <= found["crp"]["high"] <= 1.0
        assert log.accuracy is not None
        assert log.accuracy > 0.7
    assert any("Bounds found in the first" in sentence for sentence in log.outcome.statement)
    assert log.epsilon is not None
    assert log.epsilon <= log.started.config["epsilon"]
    assert recorded(tmp_path / "run.jsonl").holds


@GPU
@pytest.mark.parametrize("changed", [{}, {"scheme": "repair", "fidelity": "protocol"}, {"unit": "person"}])
def test_bounds_are_found_on_a_gpu(tmp_path: Path, changed: dict[str, Any]) -> None:
    config = Config(**(EXACT | {"device": "cuda", "epsilon": 50.0} | changed))
    run = Run(config, tmp_path / "run.jsonl", dataset=table(persons=300))
    log = run.finish()
    assert run.clients.x.is_cuda
    assert log.outcome.bounds is not None
    assert log.outcome.bounds["age"] == {"low": 32.0, "high": 128.0, "clear": True}
    assert recorded(tmp_path / "run.jsonl").holds


def noise_in(path: Path, **changed: Any) -> tuple[Run, Any]:
    """A run, and the noise in the counts of its rounds that find bounds."""
    source, config = table(), Config(**(EXACT | {"rounds": 4, "bounds_rounds": 2} | changed))
    run = Run(config, path, dataset=source)
    run.finish()
    assert run.state.counts is not None
    return run, run.state.counts.double().cpu().numpy() - 2 * exact(source, run)


@pytest.mark.parametrize("fidelity", ["distribution", "protocol"])
@pytest.mark.parametrize("scheme", ["exact", "repair"])
def test_the_noise_in_the_counts_is_that_of_the_plan(tmp_path: Path, fidelity: str, scheme: str) -> None:
    run, noise = noise_in(tmp_path / "run.jsonl", fidelity=fidelity, scheme=scheme)
    assert run.plan is not None
    std = math.sqrt(2 * run.plan.individual_in_sum(6))
    assert stats.kstest(noise / std, "norm").pvalue > 1e-4
    assert chance(noise, std) > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert chance(noise, wrong * std) < 1e-6


def chance(noise: Any, std: float) -> float:
    """How likely noise of this standard deviation is to have squares as far from it as these."""
    below = float(stats.chi2.cdf(float(np.sum(noise**2)) / std**2, len(noise)))
    return 2 * min(below, 1 - below)


def test_with_little_noise_the_counts_are_the_sums_of_all_clients(tmp_path: Path) -> None:
    run, noise = noise_in(tmp_path / "run.jsonl", fidelity="protocol", epsilon=1e6)
    assert run.plan is not None
    assert np.abs(noise).max() < 5 * math.sqrt(2 * run.plan.individual_in_sum(6)) < 1.0


def test_repair_takes_residuals_out_of_counts_and_model(tmp_path: Path) -> None:
    """With a straggler in the first round, the noise that it leaves is out again after the second, where all came."""
    trace = tmp_path / "trace.csv"
    trace.write_text("round,client,status\n1,2,lost\n")
    changed = {"scheme": "repair", "arrivals": f"trace:{trace}", "gamma": 400.0, "reserve": "worst"}
    source, config = table(), Config(**(EXACT | {"rounds": 4, "bounds_rounds": 2} | changed))
    run = Run(config, tmp_path / "run.jsonl", dataset=source)
    run.finish()
    assert run.plan is not None
    assert run.state.counts is not None
    missing = (
        next(rows for clients, rows in run.clients.histograms(0, [2], 1e9) if clients == [2])[0].double().cpu().numpy()
    )
    noise = run.state.counts.double().cpu().numpy() - 2 * exact(source, run) + missing
    individual, residual = run.plan.individual_in_sum(5) + run.plan.individual_in_sum(6), 5 * run.plan.sigma_pairwise**2
    assert residual > 20 * individual
    assert noise.std() == pytest.approx(math.sqrt(individual), rel=0.15)


def test_epsilon_is_that_of_all_rounds_with_those_that_find_bounds(tmp_path: Path) -> None:
    run = Run(Config(**(EXACT | {"scheme": "central"})), tmp_path / "run.jsonl", dataset=table())
    log = run.finish()
    assert run.plan is not None
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(run.plan.noise_multiplier), 10))
    wanted = accountant.get_epsilon(1e-5)
    assert log.epsilon is not None
    assert log.epsilon == pytest.approx(wanted, abs=2e-2)
    assert log.epsilon <= 4.0 + 1e-9
    known = Run(
        Config(**(EXACT | {"scheme": "central"})), tmp_path / "known.jsonl", dataset=scaled(table())
    ).finish()  # all rounds train, for the same ε
    assert [line.epsilon for line in known.rounds] == [line.epsilon for line in log.rounds]


def scaled(source: Dataset) -> Dataset:
    """The same, without columns whose bounds are private."""
    train, test = (np.nan_to_num(x[:, [1]]) for x in (source.train_x, source.test_x))
    return Dataset("scaled", train, test, source.train_y, source.test_y, classes=2)


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_run_that_goes_on_finds_the_same_bounds(tmp_path: Path, stop: int) -> None:
    config = Config(**(EXACT | {"scheme": "repair", "arrivals": "uniform", "bounds_rounds": 3}))
    whole = Run(config, tmp_path / "whole.jsonl", dataset=table()).finish()
    cut = Run(config, tmp_path / "cut.jsonl", dataset=table())

    def halt(line: Any) -> None:
        if getattr(line, "round", 0) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.finish(halt)
    again = Run(config, tmp_path / "cut.jsonl", dataset=table(), resume=True).finish()
    assert again.outcome.bounds == whole.outcome.bounds
    assert [line.to_dict() for line in again.rounds] == [line.to_dict() for line in whole.rounds]
    with pytest.raises(ResumeError, match="dataset"):
        Run(config, tmp_path / "cut.jsonl", dataset=table(seed=2), resume=True).finish()


def test_while_bounds_are_found_the_model_learns_nothing_and_then_it_does(tmp_path: Path) -> None:
    run = Run(Config(**(EXACT | {"scheme": "none", "bounds_rounds": 4})), tmp_path / "run.jsonl", dataset=table())
    begin, lines = run.state.weights.clone(), run.lines()
    while run.state.round < 4:
        assert run.bounds == ()
        assert bool((run.clients.x[:, [0, 2, 3]] == 0).all())
        next(lines)
    assert torch.equal(run.state.weights, begin)
    assert [each.name for each in run.bounds] == [*NAMES]
    assert 0.9 < float(run.clients.x.abs().max()) <= 1.0
    log = list(lines)
    assert not torch.equal(run.state.weights, begin)
    assert log[-1].to_dict()["bounds"]["age"]["clear"]
    run.save(tmp_path / "model.safetensors")
    facts = weights.read(tmp_path / "model.safetensors").facts
    assert json.loads(facts["bounds"]) == log[-1].to_dict()["bounds"]
    assert "bounds" in json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bounds_rounds": 10}, "rounds must be more than the rounds that find private bounds, 10, got rounds=10"),
        ({"rounds": 1}, "rounds must be more than the rounds that find private bounds, 1, got rounds=1"),
        ({"grace": 1}, "columns must have known bounds with grace=1, got private ones"),
        ({"population": 12}, "columns must have known bounds with population=12, got private ones"),
        ({"churn": "0.1:0.1"}, "columns must have known bounds with churn='0.1:0.1', got private ones"),
        ({"unit": "paper"}, "columns must have known bounds with unit='paper', got private ones"),
    ],
)
def test_settings_that_do_not_go_with_private_bounds_are_named(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        Run(Config(**(EXACT | changed)), tmp_path / "run.jsonl", dataset=table())
    assert str(caught.value) == words
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("count", [0, -1, 1.5, "2"])
def test_rounds_that_find_bounds_are_counted(count: Any) -> None:
    with pytest.raises(ArgumentError, match="bounds_rounds"):
        Config(bounds_rounds=count)


def test_rounds_that_find_bounds_need_a_column_for_them(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="bounds_rounds needs a column whose bounds are private"):
        Run(Config(**(EXACT | {"bounds_rounds": 2})), tmp_path / "run.jsonl", dataset=scaled(table()))


@pytest.mark.parametrize(
    ("unscaled", "words"),
    [
        ((("age", 4),), "unscaled must be in 0..3"),
        ((("age", 0), ("crp", 0)), "unscaled must be different features"),
        ((("age", 0),), "train_x must be finite, got nan"),
    ],
)
def test_features_that_are_no_numbers_of_their_own_are_refused(unscaled: Any, words: str) -> None:
    source = table()
    with pytest.raises(ArgumentError, match=words):
        Dataset("x", source.train_x, source.test_x, source.train_y, source.test_y, 2, unscaled=unscaled)


@pytest.mark.parametrize(
    "bound", [{}, {"low": 1.0, "high": 1.0, "clear": True}, {"low": 0.0, "high": "1", "clear": True}, [0, 1]]
)
def test_a_log_with_wrong_bounds_is_refused(tmp_path: Path, bound: Any) -> None:
    path = tmp_path / "run.jsonl"
    Run(Config(**EXACT), path, dataset=table()).finish()
    *lines, last = path.read_text().splitlines()
    changed = json.loads(last)
    changed["bounds"]["age"] = bound
    path.write_text("\n".join([*lines, json.dumps(changed)]) + "\n")
    with pytest.raises(ArgumentError, match="bounds"):
        RunLog.read(path)
