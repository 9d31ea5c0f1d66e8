from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.errors import ArgumentError
from lightdp.schemes import schemes
from lightdp.training.arrivals import Arrivals
from lightdp.training.channel import Distribution
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from lightdp_lab.channel import Rehearsal
from lightdp_lab.registry import ALL
from lightdp_lab.schemes import SCHEMES, Net, Result, RoundFailedError, Smpc
from lightdp_lab.schemes.plain import Plain

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.runlog import RunLog

QUICK: dict[str, Any] = {"clients": 8, "colluders": 2, "stragglers": 2, "rounds": 6, "epsilon": 200.0, "lr": 1.0}
EVERYBODY = Arrivals.of(8, range(8))


class Masked(Smpc):
    """A sum in two stages that lasts as long as enough clients send, and a letter to the next client before it."""

    about = dataclasses.replace(ALL["secagg"], name="masked", title="masked", broken_by="a cut link")

    def round(self, updates: Any, net: Net) -> Result:
        net.stage("letters")
        for i in range(net.clients):
            if net.works(i) and net.between(i, (i + 1) % net.clients, b"letter") is None and net.faults.cut:
                raise RoundFailedError("letters", "a letter got lost")
        net.stage("upload")
        total, used = np.zeros(self.task.dimension, np.int64), set()
        for i, update in enumerate(updates):
            with net.client(i):
                message = self.grid.encode(update).tobytes()
            arrived = net.up(i, message)
            if arrived is not None:
                total += np.frombuffer(arrived, np.int32)
                used.add(i)
        self.demand("upload", len(used), self.least)
        return Result(self.grid.decode(total), frozenset(used))


class Silent(Plain):
    """Only its messages take modelled time."""

    about = dataclasses.replace(Plain.about, name="silent", title="silent")

    def round(self, updates: Any, net: Net) -> Result:
        net.stage("upload")
        for i, update in enumerate(updates):
            net.up(i, update.tobytes())
        return Result(np.sum(updates, axis=0, dtype=np.float64), frozenset(range(net.clients)))


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Masked, Silent):
        monkeypatch.setitem(SCHEMES, kind.about.name, kind)
        monkeypatch.setitem(schemes(), kind.about.name, kind.about)


@pytest.fixture
def toy() -> Dataset:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    x = (rng.normal(size=(400, 5)) + 3 * (2 * y[:, None] - 1)).astype(np.float32)
    return Dataset(name="toy", train_x=x[:300], train_y=y[:300], test_x=x[300:], test_y=y[300:], classes=2)


def config(**changed: Any) -> Config:
    return Config(**(QUICK | {"scheme": "masked"} | changed))


def played(path: Path, toy: Dataset, **changed: Any) -> RunLog:
    return Run(config(**changed), path, dataset=toy).finish()


def sums(run: Run) -> Distribution:
    channel = run.members.rosters[0].channel
    assert isinstance(channel, Distribution)
    return channel


@pytest.mark.parametrize("scheme", [*SCHEMES, "auto"])
def test_any_compared_scheme_trains_and_its_rounds_take_time(tmp_path: Path, toy: Dataset, scheme: str) -> None:
    log = played(tmp_path / "run.jsonl", toy, scheme=scheme, links="relayed", arrivals="none")
    assert (log.accuracy or 0) > 0.9
    assert all((line.modelled_seconds or 0) > 0.04 and line.failed is None for line in log.rounds)
    assert {line.used for line in log.rounds} == {8}
    about = log.started.network
    assert about is not None
    assert (about["links"], about["measured"], about["dimension_played"]) == ("relayed", True, 12)
    assert (log.outcome.bytes_up or 0) > 0
    assert '"failed": null' in log.path.read_text()


def test_without_links_the_old_schemes_model_no_time(tmp_path: Path, toy: Dataset) -> None:
    log = played(tmp_path / "run.jsonl", toy, scheme="repair")
    assert log.started.network is None
    assert log.clock == []
    assert "modelled_seconds" not in log.path.read_text()


def test_links_change_nothing_but_the_clock_of_the_old_schemes(tmp_path: Path, toy: Dataset) -> None:
    plain, timed = (
        played(tmp_path / f"{links}.jsonl", toy, scheme="exact", links=links) for links in (None, "relayed")
    )
    for a, b in zip(plain.rounds, timed.rounds, strict=True):
        assert a == dataclasses.replace(b, modelled_seconds=None, failed=None)
        assert b.modelled_seconds is not None
        assert b.modelled_seconds > 0


def test_the_noise_is_that_of_the_scheme_at_the_plans_scale(tmp_path: Path, toy: Dataset) -> None:
    for unit in ("record", "client"):
        run = Run(config(unit=unit, clip=0.3, epsilon=5.0), tmp_path / "run.jsonl", dataset=toy)
        assert run.plan is not None
        assert run.plan.request.calibration == "smpc"
        for used in (6, 8):
            expected = used * run.plan.sigma_individual**2 * (1 + 2 / 12 / 16**2)
            assert sums(run).lasting(used) == pytest.approx(expected, rel=1e-5)
        assert sums(run).lasting(6) != pytest.approx(sums(run).lasting(8), rel=0.1)


@pytest.mark.parametrize(("arrivals", "law"), [("links:0.1", "binomial:0.1"), ("uniform", "uniform")])
def test_what_is_played_is_planned_for_the_stragglers_of_the_run(arrivals: str, law: str) -> None:
    task = Rehearsal(config(scheme="exact-sparse", arrivals=arrivals), 12).short.task
    assert (task.straggler_law, task.dimension) == (law, 12)


def test_auto_takes_the_traffic_and_time_of_the_calibration_that_its_plan_took(tmp_path: Path, toy: Dataset) -> None:
    runs = [Run(config(scheme=name, links="relayed"), tmp_path / "a.jsonl", dataset=toy) for name in ("auto", "repair")]
    auto, repair = runs
    assert auto.plan is not None
    assert auto.plan.request.calibration == "repair"
    assert auto.bytes_up == repair.bytes_up


def test_a_failed_round_moves_nothing_spends_nothing_and_costs_time(tmp_path: Path, toy: Dataset) -> None:
    run = Run(config(links="direct:1"), tmp_path / "run.jsonl", dataset=toy)
    before = run.state.weights.clone()
    log = run.finish()
    assert all(line.failed == "letters" and (line.modelled_seconds or 0) > 0 for line in log.rounds)
    assert all(line.used == 0 and line.epsilon == 0 for line in log.rounds)
    assert bool((run.state.weights == before).all())
    whole = sums(Run(config(), tmp_path / "b.jsonl", dataset=toy)).meet(0, EVERYBODY)
    assert whole.network["modelled_seconds"] > log.clock[0]  # it would have gone on


def test_missing_clients_fall_silent_at_some_stage_and_may_have_sent_before() -> None:
    rehearsal = Rehearsal(config(), 12)
    came = Arrivals.of(8, range(6), (7,))
    ends = [rehearsal.meet(number, came) for number in range(20)]
    assert all({0, 1, 2, 3, 4, 5} == set(end.used) for end in ends)  # both stages lie before the end of the upload
    assert all(not end.late for end in ends)  # hidden: nobody saw it
    stages = [rehearsal._faults(number, came).lost for number in range(40)]
    assert {stage for lost in stages for stage in lost} == {0, 1}
    assert stages == [rehearsal._faults(number, came).lost for number in range(40)]
    void = rehearsal.meet(0, Arrivals.of(8, (), (0, 1, 2)))
    assert not void.used
    assert void.network["failed"] == "upload"


def test_long_vectors_are_extrapolated_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightdp_lab.channel._SECONDS", 0.02)
    far = Rehearsal(config(scheme="silent"), 30_000_000)
    assert not far.about()["measured"]
    assert far.about()["dimension_played"] < 30_000_000
    assert far.seconds(0) == [pytest.approx(0.05 + 8 * 4 * 30_000_000 / 10e6)]
    assert far.sent == pytest.approx(4 * 30_000_000, rel=0.01)


def test_local_dp_by_the_papers_formula_trains_past_its_claim(tmp_path: Path, toy: Dataset) -> None:
    log = played(tmp_path / "run.jsonl", toy, scheme="local-paper", epsilon=3.0, arrivals="none")
    plan = log.started.plan
    assert plan is not None
    assert plan["calibration"] == "local"
    assert log.epsilon == pytest.approx(plan["epsilon_true"])
    assert log.exceeds
    assert log.claimed == 3.0
    assert log.outcome.stopped is None
    assert any("claim ε = 3" in sentence for sentence in log.outcome.statement)


def test_the_statement_names_the_scheme_and_what_breaks_it(tmp_path: Path, toy: Dataset) -> None:
    sentences = " ".join(played(tmp_path / "run.jsonl", toy).outcome.statement)
    assert "those of masked" in sentences
    assert "broken by: a cut link" in sentences
    assert "the server together with any 2 other clients" in sentences


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scheme": "magic"}, "scheme must be one of none"),
        ({"links": "direct"}, "links must be relayed or direct:P"),
        ({"links": "direct:1.5"}, "links must be relayed or direct:P"),
        ({"links": "pigeons"}, "links must be relayed or direct:P"),
        ({"scheme": "smpc", "links": "relayed"}, "links need a scheme that has messages"),
        ({"fidelity": "protocol"}, "fidelity must be distribution for scheme='masked'"),
    ],
)
def test_bad_settings_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        config(**changed)
