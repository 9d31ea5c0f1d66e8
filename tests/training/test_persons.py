from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from lightdp.auditing import recorded
from lightdp.errors import ArgumentError
from lightdp.training import partition, persons
from lightdp.training.clients import Clients
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from support.by_hand import GPU
from support.toy_runs import QUICK

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CLASSES, CLIP = 3, 0.4
CPU = torch.device("cpu")


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))


def convolutional() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, CLASSES))


def unknown() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Softplus(), nn.Linear(5, CLASSES))


MODELS = pytest.mark.parametrize("make", [linear, convolutional, unknown])


def held() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Six persons with 1 to 9 records each, at three clients."""
    rng = torch.Generator().manual_seed(5)
    person = torch.repeat_interleave(torch.arange(6), torch.tensor([1, 9, 2, 4, 1, 3]))
    x = torch.randn(len(person), 1, 6, 6, generator=rng) * 10 ** torch.linspace(-3, 1, len(person))[:, None, None, None]
    return x, torch.randint(0, CLASSES, (len(person),), generator=rng), person, torch.tensor([0, 0, 1, 1, 2, 2])


def brute_force(model: nn.Module, x: torch.Tensor, y: torch.Tensor, person: torch.Tensor, owner: torch.Tensor) -> Any:
    """Each person by autograd alone: the gradient of the summed loss, in float64, clipped."""
    double = [p.detach().double().requires_grad_() for p in model.parameters()]
    names = [name for name, _ in model.named_parameters()]
    sums = torch.zeros(int(owner.max()) + 1, sum(p.numel() for p in double), dtype=torch.float64)
    for who in person.unique().tolist():
        mine = person == who
        scores = torch.func.functional_call(model, dict(zip(names, double, strict=True)), (x[mine].double(),))
        loss = nn.functional.cross_entropy(scores, y[mine], reduction="sum")
        flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, double)])
        sums[owner[who]] += flat * min(1.0, CLIP / float(flat.norm()))
    return sums


@MODELS
@pytest.mark.parametrize("chunk_bytes", [None, 1, 20_000])
def test_sums_are_those_of_each_person_by_itself(make: Callable[[], nn.Module], chunk_bytes: int | None) -> None:
    model, (x, y, person, owner) = make(), held()
    found = persons.clipped_sums(model, x, y, person, owner, 3, CLIP, chunk_bytes=chunk_bytes)
    expected = brute_force(model, x, y, person, owner)
    assert torch.allclose(found.double(), expected, atol=5e-6)
    alone = brute_force(model, x, y, torch.arange(len(y)), owner[person])  # what clipping records would give
    assert not torch.allclose(found.double(), alone, atol=1e-2)


@MODELS
def test_all_records_of_a_person_move_an_upload_by_at_most_the_clip(make: Callable[[], nn.Module]) -> None:
    model, (x, y, person, owner) = make(), held()
    moved = []
    for who in range(6):
        without = person != who
        before = persons.clipped_sums(model, x[~without], y[~without], person[~without], owner, 3, CLIP).double()
        assert float(before.norm()) <= CLIP
        changed = x.clone()
        changed[~without] = 1e3 * torch.randn(changed[~without].shape, generator=torch.Generator().manual_seed(who))
        full = persons.clipped_sums(model, x, y, person, owner, 3, CLIP).double()
        removed = persons.clipped_sums(model, x[without], y[without], person[without], owner, 3, CLIP).double()
        replaced = persons.clipped_sums(model, changed, y, person, owner, 3, CLIP).double()
        assert float((full - removed).norm()) <= CLIP + 1e-6
        assert float((replaced - removed).norm()) <= CLIP + 1e-6
        assert float((full - replaced).norm()) <= 2 * CLIP + 1e-6
        moved.append(float((replaced - removed).norm()))
    assert max(moved) > 0.99 * CLIP  # a saturated model may be content with some records


def test_a_client_without_persons_has_a_zero_row_and_no_records_give_zeros() -> None:
    model, (x, y, person, owner) = linear(), held()
    assert not persons.clipped_sums(model, x, y, person, owner, 5, CLIP)[3:].any()
    assert not persons.clipped_sums(model, x[:0], y[:0], person[:0], owner, 2, CLIP).any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"person": torch.arange(20).flip(0)}, "person must be ascending"),
        ({"person": torch.arange(3)}, r"person must have shape \(20,\)"),
        ({"owner": torch.tensor([0, 0, 1, 1, 2, 9])}, r"owner must be in 0\.\.2, got 0\.\.9"),
        ({"owner": torch.tensor([0])}, r"person must be in 0\.\.0, got 0\.\.5"),
        ({"clip": 0.0}, "clip must be > 0"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], words: str) -> None:
    x, y, person, owner = held()
    good = {"model": linear(), "x": x, "y": y, "person": person, "owner": owner, "clients": 3, "clip": CLIP}
    with pytest.raises(ArgumentError, match=words):
        persons.clipped_sums(**(good | change))


# --- in a run ---


def people(records: int = 600, count: int = 120) -> Dataset:
    """Two blobs, persons with 1 to about 10 records each, in no order."""
    rng = np.random.default_rng(4)
    person = np.concatenate([np.arange(count), rng.integers(0, count, records - count)])
    y = person % 2
    x = (rng.normal(size=(records, 5)) + 2 * (2 * y[:, None] - 1)).astype(np.float32)
    return Dataset("people", x, x, y, y, 2, train_person=person * 7 - 3)


def test_records_of_a_person_are_drawn_to_one_client_side_by_side() -> None:
    source = people()
    for how in ("iid", "dirichlet:0.5", "shards:2"):
        parts = partition.of_owners(source, 7, how, seed=3, persons=True)
        assert sorted(np.concatenate(parts).tolist()) == list(range(600))
        seen: set[int] = set()
        for part in parts:
            assert source.train_person is not None
            whose = source.train_person[part]
            assert len(set(whose.tolist())) == 1 + np.count_nonzero(np.diff(whose))
            assert not seen & set(whose.tolist())
            seen |= set(whose.tolist())


def clients_of(config: Config) -> Clients:
    source = people()
    parts = partition.of_owners(source, config.clients, "iid", config.seed, persons=True)
    return Clients.of(config, source, parts, CPU)


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_batches_hold_all_records_of_a_person_or_none(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(**(QUICK | {"unit": "person", "sampling_rate": rate, "fidelity": "protocol", "scheme": "repair"}))
    clients, seen = clients_of(config), []
    real = persons.clipped_sums

    def watched(*given: Any) -> torch.Tensor:
        seen.append(given)
        return real(*given)

    monkeypatch.setattr(persons, "clipped_sums", watched)
    model = nn.Linear(5, 2)
    for _ in clients.updates(model, 3, range(8), bound=1e9):
        pass
    taken = [(tuple(row.tolist())) for given in seen for row in given[1]]
    assert clients.person is not None
    wanted = [tuple(row.tolist()) for row in clients.x]
    inside = np.isin(np.arange(600), [wanted.index(row) for row in taken])
    shares = [inside[clients.person == who].mean() for who in np.unique(clients.person)]
    assert set(shares) == ({1.0} if rate == 1 else {0.0, 1.0})
    assert abs(np.mean(shares) - rate) < 5 * (0.25 / 120) ** 0.5


def test_each_client_counts_its_persons() -> None:
    clients = clients_of(Config(**(QUICK | {"unit": "person"})))
    assert clients.units == [15] * 8


@pytest.mark.parametrize("more", [{}, {"fidelity": "protocol", "scheme": "repair"}, {"sampling_rate": 0.5}])
def test_a_run_of_persons_says_so_everywhere_and_stands_an_audit(tmp_path: Path, more: dict[str, Any]) -> None:
    path = tmp_path / "run.jsonl"
    config = Config(**(QUICK | {"unit": "person", "clip": 2.0, "epsilon": 50.0} | more))
    run = Run(config, path, dataset=people())
    log = run.finish()
    assert log.unit == log.outcome.unit == "person"
    assert log.started.partition is not None
    assert log.started.partition["persons"] == [15] * 8
    assert log.started.plan is not None
    assert (log.started.plan["unit"], run.plan.request.records if run.plan else None) == ("record", 120)
    assert log.outcome.statement[0].startswith("Whether any one person of a client, with all records, was in ")
    assert any(sentence.startswith("All of this is for one person") for sentence in log.outcome.statement)
    assert "of the persons not in the data" in log.outcome.statement[1]
    assert log.outcome.accuracy is not None
    assert log.outcome.accuracy > 0.9
    assert recorded(path).holds


@GPU
@pytest.mark.parametrize("more", [{}, {"fidelity": "protocol", "scheme": "repair"}, {"sampling_rate": 0.5}])
def test_a_run_of_persons_on_a_gpu_learns_and_stands_an_audit(tmp_path: Path, more: dict[str, Any]) -> None:
    path = tmp_path / "run.jsonl"
    config = Config(**(QUICK | {"unit": "person", "clip": 2.0, "epsilon": 50.0, "device": "cuda"} | more))
    run = Run(config, path, dataset=people())
    log = run.finish()
    assert run.state.weights.is_cuda
    assert log.outcome.accuracy is not None
    assert log.outcome.accuracy > 0.9
    assert recorded(path).holds


def test_unit_person_needs_persons(tmp_path: Path) -> None:
    source = people()
    nobody = Dataset("x", source.train_x, source.test_x, source.train_y, source.test_y, 2)
    with pytest.raises(ArgumentError, match=r"unit='person' needs data with persons \(--person-column\)"):
        Run(Config(**(QUICK | {"unit": "person"})), tmp_path / "a.jsonl", dataset=nobody)
    with pytest.raises(ArgumentError, match="person_column needs unit='person', got unit='client'"):
        Config(unit="client", data="a.csv", label="y", person_column="who")
    with pytest.raises(ArgumentError, match="augment must be 1 for unit='person'"):
        Config(unit="person", augment=2, model="cnn")
    with pytest.raises(ArgumentError, match="clients must be at most the number of persons, 120, got clients=200"):
        Run(Config(unit="person", clients=200), tmp_path / "a.jsonl", dataset=source)
