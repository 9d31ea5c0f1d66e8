"""Files of weights: written whole, read without trust, and taken by name."""

from __future__ import annotations

import collections
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightdp import _files
from lightdp.errors import ArgumentError
from lightdp.training import models, weights
from lightdp.training.config import Config
from lightdp.training.simulator import Run
from support.toy_runs import QUICK, blobs

SUFFIXES = (".pt", ".safetensors")


@pytest.fixture(autouse=True)
def readable(request: pytest.FixtureRequest) -> None:
    if "safetensors" in request.node.name:
        pytest.importorskip("safetensors")


def net(classes: int = 2, seed: int = 0, hidden: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(5, hidden), nn.BatchNorm1d(hidden).eval(), nn.Tanh(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


def same(one: nn.Module, other: nn.Module, *, but: tuple[str, ...] = ()) -> bool:
    wanted, found = one.state_dict(), other.state_dict()
    return all(torch.equal(wanted[name], found[name]) != (name in but) for name in wanted)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_model_comes_back_as_it_was_with_its_buffers(tmp_path: Path, suffix: str) -> None:
    path, kept, other = tmp_path / f"model{suffix}", net(seed=1), net(seed=2)
    kept[1].running_mean.fill_(0.5)
    weights.write(path, kept)
    assert weights.begin(other, weights.read(path), 2) == weights.Taken((), ())
    assert same(kept, other)


def test_a_pt_file_is_what_torch_loads(tmp_path: Path) -> None:
    weights.write(tmp_path / "model.pt", net(seed=1))
    other = net(seed=2)
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert same(net(seed=1), other)


def test_a_safetensors_file_has_the_published_layout(tmp_path: Path) -> None:
    """Length of a header, a header in JSON, and the bytes of each tensor at the place that it names."""
    path, model = tmp_path / "model.safetensors", net(seed=1)
    weights.write(path, model)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert header.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        start, stop = header[name]["data_offsets"]
        assert header[name]["shape"] == [*value.shape]
        assert data[8 + length + start : 8 + length + stop] == value.numpy().tobytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_tied_weights_are_kept_and_come_back(tmp_path: Path, suffix: str) -> None:
    def tied(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2))
        model[1].weight = model[0].weight
        return model

    weights.write(tmp_path / f"tied{suffix}", tied(1))
    other = tied(2)
    weights.begin(other, weights.read(tmp_path / f"tied{suffix}"), 2)
    assert same(tied(1), other)
    assert other[0].weight is other[1].weight


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_is_whole_or_not_there_and_replaces_none_unasked(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"model{suffix}"
    with monkeypatch.context() as patched:
        patched.setattr(_files, "flush", lambda _: os.write(10**6, b""))  # the disk fails before the file is on it
        with pytest.raises(OSError, match="Bad file descriptor"):
            weights.write(path, net())
    assert list(tmp_path.iterdir()) == []
    weights.write(path, net(seed=1))
    before = path.read_bytes()
    with pytest.raises(ArgumentError, match="save_model must be a new file: --overwrite replaces it, got"):
        weights.write(path, net(seed=2))
    assert path.read_bytes() == before
    weights.write(path, net(seed=2), overwrite=True)
    assert path.read_bytes() != before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_tensors_are_kept_in_half_precision_with_facts(tmp_path: Path) -> None:
    pytest.importorskip("safetensors.torch")
    path, facts = tmp_path / "start.safetensors", {"command": "lightdp prior make", "steps": "25"}
    weights.write(path, {"a": torch.arange(6.0).view(2, 3) / 7, "n": torch.tensor([3])}, half=True, facts=facts)
    found = weights.read(path)
    assert found.facts == facts
    assert {name: value.dtype for name, value in found.tensors.items()} == {"a": torch.float16, "n": torch.int64}
    torch.testing.assert_close(found.tensors["a"].float(), torch.arange(6.0).view(2, 3) / 7, rtol=1e-3, atol=0)
    weights.write(tmp_path / "plain.safetensors", net())
    assert weights.read(tmp_path / "plain.safetensors").facts == {}
    for wrong, words in (({"a": torch.tensor([1e6])}, "finite in half precision, got a"), ({}, "which can hold facts")):
        name = "b.safetensors" if wrong else "b.pt"
        with pytest.raises(ArgumentError, match=words):
            weights.write(tmp_path / name, wrong, half=True, facts={"command": "c"})
        assert not (tmp_path / name).exists()


# what is taken


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("kind", "error"),
    [(torch.float64, 0.0), (torch.float16, 1e-3), (torch.bfloat16, 1e-2), (torch.float8_e4m3fn, 0.1)],
)
def test_weights_in_any_precision_are_taken_in_single(
    tmp_path: Path, suffix: str, kind: torch.dtype, error: float
) -> None:
    path, kept, other = tmp_path / f"half{suffix}", net(seed=1), net(seed=2)
    halved = {name: v.to(kind) if v.is_floating_point() else v for name, v in kept.state_dict().items()}
    _store(path, halved)
    weights.begin(other, weights.read(path), 2)
    for wanted, found in zip(kept.parameters(), other.parameters(), strict=True):
        assert found.dtype == torch.float32
        assert float((wanted - found).detach().abs().max()) <= error
    assert error == 0 or not same(kept, other)


def _store(path: Path, tensors: Any) -> None:
    if path.suffix == ".pt":
        torch.save(tensors, path)
    else:
        library: Any = pytest.importorskip("safetensors.torch")
        library.save_file(tensors, path)


def test_the_head_is_new_where_classes_differ_or_the_file_has_none(tmp_path: Path) -> None:
    model = net(classes=4, seed=2)
    weights.write(tmp_path / "ten.pt", net(classes=10, seed=1))
    taken = weights.begin(model, weights.read(tmp_path / "ten.pt"), 4)
    assert taken == weights.Taken(("3.weight", "3.bias"), ())
    body = {f"{at}.{name}" for at in (0, 1) for name in net()[at].state_dict()}
    wanted, before = net(classes=10, seed=1).state_dict(), net(classes=4, seed=2).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, (wanted if name in body else before)[name])
    # a body without a head, and one with a head of another name
    body_only = {name: value for name, value in wanted.items() if name in body}
    torch.save(body_only | {"projection.weight": torch.zeros(7, 7)}, tmp_path / "body.pt")
    taken = weights.begin(net(seed=3), weights.read(tmp_path / "body.pt"), 2)
    assert taken == weights.Taken(("3.weight", "3.bias"), ("projection.weight",))


def test_a_model_of_the_lab_takes_a_start_in_half_precision_and_keeps_its_seeded_head(tmp_path: Path) -> None:
    shape = (3, 8, 8)
    prior, model = (models.build("wrn-16-4", shape, classes, seed) for classes, seed in ((7, 1), (10, 2)))
    torch.save({name: value.half() for name, value in prior.state_dict().items()}, tmp_path / "prior.pt")
    taken = weights.begin(model, weights.read(tmp_path / "prior.pt"), 10)
    head = [*model.state_dict()][-2:]
    assert taken.new == tuple(head)
    fresh = models.build("wrn-16-4", shape, 10, 2).state_dict()
    for name, value in model.state_dict().items():
        wanted = fresh[name] if name in head else prior.state_dict()[name].half().float()
        assert torch.equal(value, wanted)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"0.weight": None}, r"start must have 0.weight, got .*start.pt with 8 others \(0.bias, "),
        ({"0.weight": torch.zeros(3, 4)}, r"start must have 0.weight of shape \(3, 5\), got \(3, 4\) in .*start.pt"),
        ({"3.weight": torch.zeros(2, 4)}, r"start must have 3.weight of shape \(2, 3\), got \(2, 4\) in"),
        ({"3.weight": torch.zeros(7, 4)}, r"start must have 3.weight of shape \(2, 3\), got \(7, 4\) in"),
        ({"3.weight": torch.zeros(6)}, r"start must have 3.weight of shape \(2, 3\), got \(6,\) in"),
        ({"1.running_mean": None}, "start must have 1.running_mean, got"),
        ({"0.bias": torch.tensor([0.0, float("nan"), 0.0])}, "start must be finite, got another value of 0.bias in"),
        (
            {"0.bias": torch.full((3,), 1e300, dtype=torch.float64)},
            "start must be finite, got another value of 0.bias in",
        ),
        ({"0.bias": torch.zeros(3, dtype=torch.int64)}, "start must have 0.bias of torch.float32, got torch.int64 in"),
        ({"0.bias": torch.zeros(3) * 1j}, "start must have 0.bias of torch.float32, got torch.complex64 in"),
        ({"1.num_batches_tracked": torch.tensor(0.5)}, "of torch.int64, got torch.float32 in"),
        ({"0.bias": torch.zeros(3).to_sparse()}, r"hold tensors by name, got .* with '0.bias': torch.sparse_coo"),
        ({"0.bias": [0.0, 0.0, 0.0]}, r"start must hold tensors by name, got .* with '0.bias': list"),
        ({3: torch.zeros(3)}, r"start must hold tensors by name, got .* with 3: torch.strided"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")  # of torch 2.11
def test_a_start_that_does_not_fit_is_refused_in_one_line_and_changes_nothing(
    tmp_path: Path, changed: dict[Any, Any], message: str
) -> None:
    path, model = tmp_path / "start.pt", net(seed=2)
    tensors = collections.OrderedDict({**net(seed=1).state_dict(), **changed})
    torch.save({name: value for name, value in tensors.items() if value is not None}, path)
    with pytest.raises(ArgumentError, match=message) as caught:
        weights.begin(model, weights.read(path), 2)
    assert "\n" not in str(caught.value)
    assert same(net(seed=2), model)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["gone", "folder", "empty", "text", "cut", "zeros", "pipe"])
def test_what_is_no_file_of_weights_is_refused_in_one_line(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"start{suffix}"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "cut":
        weights.write(path, net())
        path.write_bytes(path.read_bytes()[:-20])
    elif kind != "gone":
        path.write_bytes({"empty": b"", "text": b"my notes\n" * 99, "zeros": bytes(4096)}[kind])
    with pytest.raises(ArgumentError, match=r"^start must (be|hold) .*start") as caught:
        weights.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [[torch.zeros(3)], torch.zeros(3), {}, {"state_dict": {"a": torch.zeros(3)}}, 7])
def test_a_pt_file_of_something_else_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "start.pt")
    with pytest.raises(ArgumentError, match="start must hold tensors by name, got start="):
        weights.read(tmp_path / "start.pt")


def test_a_whole_module_in_a_file_is_not_executed(tmp_path: Path) -> None:
    torch.save(net(), tmp_path / "start.pt")
    with pytest.raises(ArgumentError, match="start must be a whole file of weights, got start="):
        weights.read(tmp_path / "start.pt")


# runs


@pytest.mark.parametrize("precision", [torch.float32, torch.float16])
def test_a_run_begins_with_the_weights_of_its_start_and_says_what_is_new(
    tmp_path: Path, precision: torch.dtype
) -> None:
    torch.save({name: value.to(precision) for name, value in _plain(9, 1).state_dict().items()}, tmp_path / "nine.pt")
    config = Config(**QUICK, start=str(tmp_path / "nine.pt"))
    run = Run(config, tmp_path / "run.jsonl", dataset=blobs(), module=_plain(2, 2))
    wanted = _plain(9, 1)[0].weight.to(precision).float()
    assert torch.equal(run.state.weights[:15].cpu(), wanted.detach().reshape(-1))
    assert torch.equal(run.state.average, run.state.weights)
    log = run.finish()
    assert log.started.start is not None
    assert log.started.start["new"] == ["2.weight", "2.bias"]
    assert any(sentence.startswith("It began with the weights of ") for sentence in log.outcome.statement)


def _plain(classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, classes))


def test_the_model_that_is_kept_has_the_accuracy_of_the_log_also_with_averaged_weights(tmp_path: Path) -> None:
    config = Config(**(QUICK | {"ema": 0.9, "momentum": 0.5}))
    run = Run(config, tmp_path / "run.jsonl", dataset=blobs())
    log = run.finish()
    run.save(tmp_path / "model.pt")
    found = torch.load(tmp_path / "model.pt", weights_only=True)
    assert torch.equal(torch.cat([value.reshape(-1) for value in found.values()]), run.state.average.cpu())
    assert not torch.equal(run.state.average, run.state.weights)
    start = Config(**QUICK, start=str(tmp_path / "model.pt"))
    assert Run(start, tmp_path / "next.jsonl", dataset=blobs()).evaluate()[0] == log.accuracy
