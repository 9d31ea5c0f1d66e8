from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from lightdp import gaussian
from lightdp._settings import read_toml
from lightdp._validate import rounded_up
from lightdp.errors import ArgumentError
from lightdp.runlog import RunLog
from lightdp.training import step
from lightdp.training.checkpoint import State
from lightdp.training.clients import _clipped
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from lightdp.training.statement import commit, statement
from support.toy_runs import QUICK, blobs, played

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def toy() -> Dataset:
    return blobs()


@pytest.mark.parametrize("scheme", ["none", "central", "smpc", "local", "paper", "exact", "repair"])
@pytest.mark.parametrize("unit", ["record", "client"])
def test_every_scheme_learns_and_keeps_its_log(tmp_path: Path, toy: Dataset, scheme: str, unit: str) -> None:
    path = tmp_path / "run.jsonl"
    local = {"local_lr": 0.2} if unit == "client" else {}
    config = Config(**(QUICK | {"scheme": scheme, "unit": unit, "epsilon": 200.0} | local))
    lines = list(Run(config, path, dataset=toy).lines())
    assert [json.loads(text) for text in path.read_text().splitlines()] == [line.to_dict() for line in lines]
    assert [line.kind for line in lines] == ["run", *["round"] * 6, "end"]
    log = RunLog.read(path)
    assert list(log.lines) == lines
    assert log.outcome.accuracy is not None
    assert log.outcome.accuracy > 0.9
    spent = [line.epsilon for line in log.rounds]
    if scheme == "none":
        assert spent == [None] * 6
        assert log.outcome.statement == ["No noise was added: nothing is guaranteed to anybody."]
    else:
        known = [epsilon for epsilon in spent if epsilon is not None]
        assert spent == sorted(known)
        assert scheme == "paper" or (log.outcome.epsilon is not None and log.outcome.epsilon <= 200)
    for line in log.rounds:
        assert line.used + line.late + line.lost == 8
        assert line.noise_std is not None
        assert (line.noise_std > 0) == (scheme != "none" and line.used > 0)


def test_protocol_and_distribution_agree_on_all_but_the_noise_itself(tmp_path: Path, toy: Dataset) -> None:
    real = played(tmp_path / "a.jsonl", toy, fidelity="protocol", epsilon=500.0)
    simulated = played(tmp_path / "b.jsonl", toy, epsilon=500.0)
    for a, b in zip(real.rounds, simulated.rounds, strict=True):
        for name in ("round", "epsilon", "used", "late", "lost"):
            assert getattr(a, name) == getattr(b, name)
        assert a.noise_std == pytest.approx(b.noise_std, rel=1e-6)
        assert a.residual_std == pytest.approx(b.residual_std, rel=1e-6)
    assert (real.accuracy or 0) > 0.9
    assert "protects nobody" not in " ".join(real.outcome.statement)
    assert "protects nobody" in " ".join(simulated.outcome.statement)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_none_in_the_log(
    tmp_path: Path, toy: Dataset, loss: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "evaluate", lambda *_: (0.5, loss))
    log = played(tmp_path / "run.jsonl", toy)
    assert [line.loss for line in log.rounds] == [None] * 6


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, toy: Dataset) -> None:
    with pytest.raises(ArgumentError, match="got device='cuda'"):
        played(tmp_path / "run.jsonl", toy, device="cuda")


@pytest.mark.parametrize("fidelity", ["distribution", "protocol"])
def test_a_client_that_is_late_in_every_round_becomes_a_straggler_and_the_others_go_on(
    tmp_path: Path, toy: Dataset, fidelity: str
) -> None:
    trace = tmp_path / "late.csv"
    trace.write_text("round,client,status\n" + "".join(f"{t},3,late\n" for t in range(1, 13)))
    log = played(
        tmp_path / "run.jsonl", toy, rounds=12, epsilon=3.0, arrivals=f"trace:{trace}", reserve="worst",
        fidelity=fidelity,
    )  # fmt: skip
    late = [line.late for line in log.rounds]
    assert len(late) == 12
    assert late[0] == 1
    assert late[-2:] == [0, 0]  # before, it may once be let in again: repairs that came in time need no room any more
    assert all(line.used == 7 for line in log.rounds)
    assert log.outcome.stopped is None
    assert log.epsilon is not None
    assert log.epsilon <= 3


@pytest.mark.parametrize("fidelity", ["distribution", "protocol"])
def test_training_stops_hard_at_the_budget(tmp_path: Path, toy: Dataset, fidelity: str) -> None:
    log = played(
        tmp_path / "run.jsonl", toy, scheme="repair", rounds=30, epsilon=2.0, arrivals="uniform", late_seen=1.0,
        late=0.0, fidelity=fidelity,
    )  # fmt: skip
    assert log.outcome.stopped == "budget"
    assert log.outcome.rounds < 30
    assert log.epsilon is not None
    assert log.epsilon <= 2


def test_clients_updates_are_clipped_and_records_too(tmp_path: Path, toy: Dataset) -> None:
    for unit, clip in (("client", 0.01), ("record", 0.02)):
        local = {"local_lr": 5.0} if unit == "client" else {}
        run = Run(Config(**(QUICK | {"unit": unit, "clip": clip} | local)), tmp_path / "r.jsonl", dataset=toy)
        pieces = list(run.clients.updates(run.model, 0, range(8), 0.3))
        norms = torch.cat([rows for _, rows in pieces]).norm(dim=1).cpu()
        sizes = torch.tensor(np.diff([0, *run.clients.ends]))
        assert torch.all(norms <= clip * (1 if unit == "client" else sizes))
        assert torch.all(norms > 0)


def test_clients_are_summed_up_together_only_where_no_clamp_can_bind(tmp_path: Path, toy: Dataset) -> None:
    run = Run(Config(**(QUICK | {"clip": 0.02, "sampling_rate": 0.5})), tmp_path / "r.jsonl", dataset=toy)
    ((piece, total),) = run.clients.updates(run.model, 3, range(1, 8), 1.0)
    ((same, rows),) = run.clients.updates(run.model, 3, range(1, 8), 0.3)
    assert piece == same == list(range(1, 8))
    assert (len(total), len(rows)) == (1, 7)
    assert float(rows.abs().max()) < 0.3
    assert torch.allclose(total[0], rows.sum(0), atol=1e-6)
    real = dataclasses.replace(run.clients, config=dataclasses.replace(run.config, fidelity="protocol"))
    assert len(next(real.updates(run.model, 3, range(8), 1.0))[1]) == 8


@pytest.fixture
def images() -> Dataset:
    """Stripes up and down, or across."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 160)
    down, across = np.indices((8, 8)) % 2
    stripes = np.where(y[:, None, None] == 1, down, across)
    x = (stripes + rng.normal(size=stripes.shape, scale=0.1)).astype(np.float32)[:, None]
    return Dataset(name="images", train_x=x[:120], train_y=y[:120], test_x=x[120:], test_y=y[120:], classes=2)


@pytest.mark.parametrize(("model", "augment"), [("cnn", 3), ("scattering-cnn", 2)])
def test_views_of_records_train_a_model(tmp_path: Path, images: Dataset, model: str, augment: int) -> None:
    settings = {"model": model, "scheme": "none", "rounds": 20, "lr": 0.3, "sampling_rate": 0.5, "augment": augment}
    run = Run(Config(**(QUICK | settings)), tmp_path / "run.jsonl", dataset=images)

    def summed(count: int) -> torch.Tensor:
        clients = dataclasses.replace(run.clients, config=dataclasses.replace(run.config, augment=count))
        return torch.cat([rows for _, rows in clients.updates(run.model, 0, range(8), 1e3)]).sum(0)

    assert torch.equal(summed(augment), summed(augment))
    assert 1e-3 < float((summed(augment) - summed(1)).norm() / summed(1).norm()) < 1
    assert (run.finish().accuracy or 0) > 0.9


def test_what_sampled_batches_cost_is_looked_at_with_the_accuracy(tmp_path: Path, toy: Dataset) -> None:
    log = played(tmp_path / "run.jsonl", toy, sampling_rate=0.5, evaluate_every=4)
    assert [line.epsilon is None for line in log.rounds] == [True, True, True, False, True, False]
    fourth, last, end = log.rounds[3].epsilon, log.rounds[-1].epsilon, log.outcome.epsilon
    assert fourth is not None
    assert last is not None
    assert end is not None
    assert 0 < fourth < last <= end <= 20
    assert [line.mu is None for line in log.rounds] == [True, True, True, False, True, False]
    assert gaussian.epsilon(log.outcome.mu or 0.0, log.outcome.delta or 0.0) == pytest.approx(end, rel=1e-9)
    stated = " ".join(log.outcome.statement)
    assert "(at this δ as with μ = " in stated
    found = re.search(r"not in the data finds at most ([0-9.]+) % of those in it", stated)
    assert found is not None
    assert float(found[1]) < 100  # two points of the curve say more than that nothing is hidden


def test_the_end_of_a_run_states_mu_and_the_attack_and_who_was_missing(tmp_path: Path, toy: Dataset) -> None:
    log = played(tmp_path / "run.jsonl", toy, arrivals="uniform", late_seen=0.5)
    end = log.outcome
    assert end.epsilon is not None
    assert end.delta is not None
    assert end.mu == log.mu == gaussian.mu(end.epsilon, end.delta, up=True)
    power = rounded_up(100 * gaussian.power(end.mu, 0.01), 1)
    assert f"μ = {rounded_up(end.mu)}" in end.statement[0]
    assert f"of the records not in the data finds at most {power} % of those in it" in end.statement[1]
    for line in log.rounds:
        assert line.late_clients is not None
        assert line.lost_clients is not None
        assert (len(line.late_clients), len(line.lost_clients)) == (line.late, line.lost)
    assert sum(line.late for line in log.rounds) > 0 < sum(line.lost for line in log.rounds)


def test_the_average_of_weights_soon_forgets_the_start(tmp_path: Path, toy: Dataset) -> None:
    run = Run(Config(**(QUICK | {"ema": 0.99, "rounds": 60})), tmp_path / "run.jsonl", dataset=toy)
    run.state.average.fill_(1.0)
    roster = run.members.rosters[0]
    path = []
    for _ in range(60):
        run.state.velocity.zero_()
        total = torch.full_like(run.state.weights, -roster.denominator)  # one further up each time
        run.state = step.stepped(run.config, run.state, roster, total)
        path.append(float(run.state.weights[0]))
    assert path[-1] == pytest.approx(60.0)
    assert 50 < float(run.state.average[0]) < 58


@pytest.mark.parametrize("unit", ["record", "client"])
def test_the_closing_round_takes_noise_of_the_last_sum_out_of_weights_and_average(
    tmp_path: Path, toy: Dataset, unit: Any
) -> None:
    run = Run(Config(**(QUICK | {"ema": 0.9, "momentum": 0.9, "unit": unit})), tmp_path / "run.jsonl", dataset=toy)
    draw = torch.Generator().manual_seed(0)
    first, last, noise = torch.randn(3, run.parameters, generator=draw) * 100

    def ended(totals: list[torch.Tensor], closing: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state, roster = State(*torch.zeros(3, run.parameters)), run.members.rosters[0]
        for total in totals:
            state = step.stepped(run.config, state, roster, total)
        ended = step.mended(run.config, state, roster, closing)
        return ended.weights, ended.average

    clean, mended = ended([first, last], torch.zeros_like(noise)), ended([first, last + noise], -noise)
    dirty = ended([first, last + noise], torch.zeros_like(noise))
    for wanted, found, other in zip(clean, mended, dirty, strict=True):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
        assert not torch.allclose(other, wanted, rtol=0, atol=1e-2 * float(wanted.abs().max()))


@pytest.mark.parametrize("clip", [2.0, 1e-20])
def test_updates_within_the_clip_stay_and_others_shrink_to_it(clip: float) -> None:
    rows = torch.nn.functional.normalize(torch.randn(5, 5000, generator=torch.Generator().manual_seed(0)).double())
    rows = (rows * torch.tensor([0.01, 0.79, 0.999, 1.0001, 50.0])[:, None] * clip).float()
    found = _clipped(rows.clone(), clip)
    assert torch.equal(found[:3], rows[:3])
    norms = found.double().norm(dim=1)
    assert torch.all(norms <= clip)
    assert torch.all(norms[3:] > 0.99999 * clip)
    assert torch.equal(_clipped(rows[:2].clone(), clip), rows[:2])


def test_any_module_can_be_trained(tmp_path: Path, toy: Dataset) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    config = Config(**(QUICK | {"epsilon": 500.0}))
    log = Run(config, tmp_path / "run.jsonl", dataset=toy, module=module).finish()
    assert log.started.parameters == 5 * 8 + 8 + 8 * 2 + 2
    assert (log.accuracy or 0) > 0.9


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scheme": "best"}, "scheme must be one of none"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got momentum=1"),
        ({"late_seen": 2.0}, r"late_seen must be in \[0, 1\], got late_seen=2"),
        ({"lr": 0.0}, "lr must be > 0, got lr=0"),
        ({"fidelity": "protocol", "scheme": "central"}, "fidelity must be distribution for scheme='central'"),
        (
            {"unit": "client", "sampling_rate": 0.5},
            "must be 1 for unit='client', got .*; for clients .* set population",
        ),
        ({"mirror": True}, "mirror needs model='scattering-linear', got model='linear'"),
        ({"augment": 0}, "augment must be"),
        ({"augment": 2}, "augment needs a convolutional model, got model='linear'"),
        ({"augment": 2, "model": "cnn", "unit": "client"}, "augment must be 1 for unit='client', got augment=2"),
        ({"augment": 3, "model": "scattering-cnn"}, "augment must be at most 2 for model='scattering-cnn'"),
        ({"rounds": 0}, "rounds must be"),
        ({"epochs": 5}, "epochs needs unit='client' or 'paper': .*, got epochs=5"),
        ({"batch": 16}, "batch needs unit='client' or 'paper'"),
        ({"local_lr": 0.2}, "local_lr needs unit='client' or 'paper': .*, got local_lr=0.2"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, toy: Dataset, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Run(Config(**(QUICK | changed)), tmp_path / "run.jsonl", dataset=toy)


def test_a_toml_file_has_the_same_names_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('scheme = "exact"\nepsilon = 6.0\n')
    assert read_toml(Config, path) == {"scheme": "exact", "epsilon": 6.0}
    path.write_text("sampling-rate = 0.5\n")  # as the flag is written
    assert read_toml(Config, path) == {"sampling_rate": 0.5}
    path.write_text("sampling-rate = 0.5\nsampling_rate = 1.0\n")
    with pytest.raises(ArgumentError, match="config must say each name once"):
        read_toml(Config, path)
    path.write_text("epsilonn = 6.0\n")
    with pytest.raises(ArgumentError, match="got epsilonn in"):
        read_toml(Config, path)
    path.write_text("epsilon = = 6\n")
    with pytest.raises(ArgumentError, match="config must be a readable TOML file"):
        read_toml(Config, path)


def test_the_papers_profile_says_that_no_theorem_bounds_it() -> None:
    config = Config(**(QUICK | {"unit": "paper", "scheme": "paper"}))
    plan = config.plan(300, 12, 30)
    assert plan is not None
    assert plan.sensitivity == pytest.approx(2 * config.local_lr * config.clip / 30)
    sentences = " ".join(statement(config, plan, 9.2, []))
    assert "no theorem bounds it" in sentences
    assert "claim ε = 20" in sentences


def test_a_copy_names_the_commit_that_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTDP_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(tmp_path)
        assert commit() is None
        elsewhere.setenv("LIGHTDP_COMMIT", "0123abcd")
        assert commit() == "0123abcd"
    monkeypatch.setenv("LIGHTDP_COMMIT", "0123abcd")
    assert commit() == "0123abcd"
