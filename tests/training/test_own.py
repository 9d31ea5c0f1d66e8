"""Modules and data of the user's own: what fits is trained; what does not ends in one line, and nothing is written."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lightdp.errors import ArgumentError
from lightdp.training import identity, own
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from support.by_hand import GPU
from support.toy_runs import QUICK, blobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Forward = Callable[[nn.Module, torch.Tensor], Any]


@pytest.fixture
def toy() -> Dataset:
    return blobs()


class Own(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A linear model of five features and two classes whose forward pass is given."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.given = forward
        self.calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        return self.given(self, x)


def raising(_: nn.Module, x: torch.Tensor) -> Any:
    raise KeyError(f"first line {x.ndim}\nsecond line")


def counting(net: nn.Module, x: torch.Tensor) -> Any:
    net.calls += 1
    return net.layer(x) * net.calls


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    net[0].weight.requires_grad_(requires_grad=False)
    return net


def filled(value: float) -> nn.Module:
    net = nn.Linear(5, 2)
    nn.init.constant_(net.bias, value)
    return net


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "features": (lambda: nn.Linear(4, 2), r"take records of shape \(5,\), got Linear that refuses them: mat1 and mat2"),
    "image": (lambda: nn.Conv2d(1, 2, 3), r"take records of shape \(5,\), got Conv2d that refuses them: "),
    "classes": (lambda: nn.Linear(5, 3), r"give floats of shape \(2, 2\) for 2 records, got Linear with torch.float32"),
    "one logit": (lambda: nn.Linear(5, 1), r"got Linear with torch.float32 of shape \(2, 1\)"),
    "flat": (lambda: nn.Sequential(nn.Linear(5, 2), nn.Flatten(0)), r"with torch.float32 of shape \(4,\)"),
    "turned": (lambda: Own(lambda net, x: net.layer(x)[None]), r"with torch.float32 of shape \(1, 2, 2\)"),
    "one for all": (lambda: Own(lambda net, x: net.layer(x).mean(0)), r"with torch.float32 of shape \(2,\)"),
    "labels": (lambda: Own(lambda net, x: (net.layer(x) > 0).long()), r"with torch.int64 of shape \(2, 2\)"),
    "complex": (lambda: Own(lambda net, x: net.layer(x) * 1j), r"with torch.complex64 of shape \(2, 2\)"),
    "pair": (lambda: Own(lambda net, x: (net.layer(x), x)), r"got Own with tuple"),
    "dict": (lambda: Own(lambda net, x: {"logits": net.layer(x)}), "got Own with dict"),
    "numpy": (lambda: Own(lambda net, x: net.layer(x).detach().cpu().numpy()), "got Own with ndarray"),
    "nothing": (lambda: Own(lambda *_: None), "got Own with NoneType"),
    "detached": (lambda: Own(lambda net, x: net.layer(x).detach()), "depend on its parameters, got Own with constants"),
    "no part": (lambda: Own(lambda _, x: x[:, :2]), "depend on its parameters, got Own with constants"),
    "nan logits": (lambda: Own(lambda net, x: net.layer(x) / 0), "give finite logits, got Own with -?(inf|nan)"),
    "nan weights": (lambda: filled(float("nan")), "finite parameters, got Linear with another value in bias"),
    "infinite": (lambda: filled(float("inf")), "finite parameters, got Linear with another value in bias"),
    "double": (lambda: nn.Linear(5, 2).double(), "parameters of float32, got Linear with weight of torch.float64"),
    "half": (lambda: nn.Linear(5, 2).half(), "parameters of float32, got Linear with weight of torch.float16"),
    "frozen": (frozen, "train all its parameters, got Sequential with frozen 0.weight"),
    "lazy": (lambda: nn.LazyLinear(2), "known shapes, got LazyLinear with lazy ones: call it once"),
    "empty": (nn.Identity, "module must have parameters to train, got Identity without any"),
    "of size 0": (lambda: nn.ParameterList([torch.zeros(0)]), "have parameters to train, got ParameterList without"),
    "list": (lambda: nn.ModuleList([nn.Linear(5, 2)]), "got ModuleList that refuses them: "),
    "meta": (lambda: nn.Linear(5, 2, device="meta"), "got Linear that refuses them: Cannot copy out of meta tensor"),
    "raising": (lambda: Own(raising), r"got Own that refuses them: 'first line 2\\nsecond line'$"),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2)),
        "not mix records or draw, got BatchNorm1d",
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(5, 2), nn.Dropout(1e-9)), "not mix records or draw, got Dropout '1'"),
    "drawing": (
        lambda: Own(lambda net, x: functional.dropout(net.layer(x))),
        "give the same logits each time, got Own",
    ),
    "counting": (lambda: Own(counting), "give the same logits each time, got Own with others the second time"),
    "mixing": (lambda: Own(lambda net, x: net.layer(x - x.mean(0))), "treat each record by itself, got Own"),
    "leaving": (
        lambda: Own(lambda net, x: net.layer(x) * bool(net.layer.weight.detach().cpu().numpy().max() < 1e9)),
        "trained record by record, got Own: ",
    ),
    "class": (lambda: nn.Linear, "module must be a torch.nn.Module, got type"),
    "function": (lambda: lambda x: x, "module must be a torch.nn.Module, got function"),
    "state": (lambda: nn.Linear(5, 2).state_dict(), "module must be a torch.nn.Module, got OrderedDict"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_module_that_cannot_be_trained_is_refused_in_one_line(tmp_path: Path, toy: Dataset, wrong: str) -> None:
    make, message = WRONG[wrong]
    with pytest.raises(ArgumentError, match=message) as caught:
        Run(Config(**QUICK), tmp_path / "run.jsonl", dataset=toy, module=make())
    assert str(caught.value).startswith(("module must ", "model must "))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", ["features", "mixing", "drawing", "batch norm", "double"])
def test_the_same_is_refused_where_whole_clients_are_protected(tmp_path: Path, toy: Dataset, wrong: str) -> None:
    make, message = WRONG[wrong]
    with pytest.raises(ArgumentError, match=message):
        Run(Config(**QUICK, unit="client"), tmp_path / "run.jsonl", dataset=toy, module=make())


FIT: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: Own(lambda net, x: net.layer(x) + x[:, :2]),
    "branch of shapes": lambda: Own(lambda net, x: net.layer(x if x.ndim > 1 else x[None])),
    "eval batch norm": lambda: nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2).eval()),
    "eval dropout": lambda: nn.Sequential(nn.Linear(5, 2), nn.Dropout(0.5).eval()),
    "in place": lambda: nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)),
    "unused part": lambda: nn.ModuleDict({"a": nn.Linear(5, 2)})["a"],
    "zero": lambda: filled(0.0),
}


@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize("fit", FIT)
def test_a_module_that_fits_is_trained_in_place(tmp_path: Path, toy: Dataset, fit: str, unit: Any) -> None:
    torch.manual_seed(0)
    module = FIT[fit]()
    before = {name: value.clone() for name, value in module.named_parameters()}
    run = Run(Config(**(QUICK | {"epsilon": 500.0, "unit": unit})), tmp_path / "run.jsonl", dataset=toy, module=module)
    assert all(torch.equal(value.cpu(), before[name]) for name, value in module.named_parameters())
    log = run.finish()
    assert run.model is module
    assert not all(torch.equal(value.cpu(), before[name]) for name, value in module.named_parameters())
    with torch.no_grad():
        found = module(torch.from_numpy(toy.test_x).to(run.device)).argmax(1).cpu().numpy()
    assert float(np.mean(found == toy.test_y)) == log.accuracy  # the model has the weights that were evaluated


def test_trying_a_module_changes_neither_it_nor_torchs_generator(toy: Dataset) -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[1].eval()
    drawing = Own(lambda net, x: functional.dropout(net.layer(x)))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    x, y = torch.from_numpy(toy.test_x), torch.from_numpy(toy.test_y)
    assert own.module(module, Config(**QUICK), x, y, 2) is module
    with pytest.raises(ArgumentError, match="same logits each time"):
        own.module(drawing, Config(**QUICK), x, y, 2)
    assert [part.training for part in module] == [True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


# data

X, Y = np.zeros((6, 5), np.float32), np.array([0, 1, 0, 1, 0, 1])
ARRAYS: dict[str, Any] = {"name": "mine", "train_x": X, "train_y": Y, "test_x": X, "test_y": Y, "classes": 2}


def at(array: Any, value: float) -> Any:
    result = array.copy()
    result[1] = value
    return result


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_x": torch.zeros(6, 5)}, "train_x must be a numpy array of float32, got Tensor"),
        ({"train_x": X.tolist()}, "train_x must be a numpy array of float32, got list"),
        ({"train_x": X.astype(np.float64)}, "train_x must be of float32, got float64"),
        ({"test_x": X.astype(np.uint8)}, "test_x must be of float32, got uint8"),
        ({"train_x": X.astype(">f4")}, "train_x must be of float32, got >f4"),
        ({"train_x": X.astype(str)}, "train_x must be of float32, got <U"),
        ({"train_x": np.ma.masked_equal(at(X, 1), 1)}, "train_x must be a plain numpy array, got a masked one"),
        ({"test_y": np.ma.masked_less(Y, 1)}, "test_y must be a plain numpy array, got a masked one"),
        ({"train_x": X[:, 0]}, "train_x must have shape"),
        ({"train_x": X[:0]}, r"train_x must have shape .* got shape \(0, 5\)"),
        ({"train_x": X[:5]}, r"train_y must have shape \(5,\), a label for each record, got \(6,\)"),
        ({"test_x": X[:, :4]}, r"test_x must have shape \(n, 5\) and hold records, got shape \(6, 4\)"),
        ({"train_x": at(X, float("nan"))}, "train_x must be finite, got nan"),
        ({"test_x": at(X, float("-inf"))}, "test_x must be finite, got -inf"),
        ({"train_y": Y.astype(np.float32)}, "train_y must be of int64, got float32"),
        ({"train_y": Y.astype(np.int32)}, "train_y must be of int64, got int32"),
        ({"train_y": Y.astype(bool)}, "train_y must be of int64, got bool"),
        ({"train_y": np.eye(2, dtype=np.int64)[Y]}, r"train_y must have shape \(6,\)"),
        ({"train_y": Y + 1}, r"train_y must be in 0..1, got 1..2"),
        ({"test_y": Y - 1}, r"test_y must be in 0..1, got -1..0"),
        ({"classes": 1}, "classes must be >= 2, got classes=1"),
        ({"classes": 2.0}, "classes must be an integer, got classes=2.0"),
    ],
)
def test_arrays_that_are_no_data_set_are_refused_in_one_line(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        Run(Config(**QUICK), tmp_path / "run.jsonl", dataset=Dataset(**(ARRAYS | changed)))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("given", "changed", "message"),
    [
        (ARRAYS, {}, "dataset must be a lightdp.Dataset, got dict"),
        ((X, Y), {}, "dataset must be a lightdp.Dataset, got tuple"),
        ("digits", {}, "dataset must be a lightdp.Dataset, got str"),
        (torch.utils.data.TensorDataset(torch.zeros(6, 5)), {}, "dataset must be a lightdp.Dataset, got TensorDataset"),
        (Dataset(**ARRAYS), {}, "clients"),  # more of them than records
        (blobs(), {"model": "cnn"}, r"model cnn needs images \(channels, height, width\), got shape=\(5,\)"),
        (blobs(), {"model": "scattering-linear"}, "model scattering-linear needs images"),
        (blobs(), {"model": "cnn", "augment": 2, "module": True}, r"views need images .* got records of shape \(5,\)"),
    ],
)
def test_what_is_no_data_set_or_fits_no_model_is_refused_in_one_line(
    tmp_path: Path, given: Any, changed: dict[str, Any], message: str
) -> None:
    module = nn.Linear(5, 2) if changed.pop("module", False) else None
    with pytest.raises(ArgumentError, match=message) as caught:
        Run(Config(**(QUICK | changed)), tmp_path / "run.jsonl", dataset=given, module=module)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("strange", ["backwards", "read-only", "transposed"])
def test_arrays_in_any_order_and_that_cannot_be_written_train_alike(tmp_path: Path, toy: Dataset, strange: str) -> None:
    def other(array: Any) -> Any:
        if strange == "backwards":
            return array[::-1].copy()[::-1]
        found = np.asfortranarray(array) if strange == "transposed" else array.copy()
        found.flags.writeable = strange != "read-only"
        return found

    arrays = {name: other(getattr(toy, name)) for name in ("train_x", "train_y", "test_x", "test_y")}
    logs = [
        Run(Config(**QUICK), tmp_path / f"{number}.jsonl", dataset=data).finish()
        for number, data in enumerate((toy, dataclasses.replace(toy, **arrays)))
    ]
    assert logs[0].rounds == logs[1].rounds
    assert logs[0].started.dataset == logs[1].started.dataset


# names and digests


def test_the_log_names_data_and_module_and_their_digests(tmp_path: Path, toy: Dataset) -> None:
    module = Own(lambda net, x: net.layer(x))
    log = Run(Config(**QUICK), tmp_path / "run.jsonl", dataset=toy, module=module).finish()
    arrays = hashlib.sha256()
    for name, kind in (("train_x", "<f4"), ("test_x", "<f4"), ("train_y", "<i8"), ("test_y", "<i8")):
        array = getattr(toy, name)
        arrays.update(f"{name} {kind} {array.shape}\n".encode() + array.tobytes())
    arrays.update(b"classes 2\n")
    layout = b"layer.weight torch.float32 (2, 5)\nlayer.bias torch.float32 (2,)\n"
    assert log.started.dataset == {"name": "toy", "digest": arrays.hexdigest()}
    assert log.started.module == {"name": f"{__name__}.Own", "digest": hashlib.sha256(layout).hexdigest()}
    assert log.started.start is None
    assert (log.data, log.model) == ("toy", f"{__name__}.Own")


@pytest.mark.parametrize("name", ["train_x", "test_x", "train_y", "test_y"])
def test_any_value_of_the_data_changes_its_digest(toy: Dataset, name: str) -> None:
    changed = getattr(toy, name).copy()
    changed[(3, *[0] * (changed.ndim - 1))] = 1 - changed[(3, *[0] * (changed.ndim - 1))]
    assert identity.of_dataset(dataclasses.replace(toy, **{name: changed})) != identity.of_dataset(toy)
    assert identity.of_dataset(dataclasses.replace(toy, classes=3)) != identity.of_dataset(toy)


# GPUs


@GPU
@pytest.mark.parametrize("fidelity", ["distribution", "protocol"])
@pytest.mark.parametrize("changed", [{}, {"unit": "client"}, {"grace": 1, "late_by_one": 0.9}, {"population": 20}])
def test_both_fidelities_train_on_a_gpu_and_keep_the_model(
    tmp_path: Path, toy: Dataset, fidelity: Any, changed: dict[str, Any]
) -> None:
    settings = QUICK | {"epsilon": 500.0, "device": "cuda", "fidelity": fidelity, "momentum": 0.9} | changed
    run = Run(Config(**settings), tmp_path / "run.jsonl", dataset=toy)
    log = run.finish()
    assert {run.state.weights.device.type, run.state.velocity.device.type, run.state.average.device.type} == {"cuda"}
    assert (log.accuracy or 0) > 0.9
    run.save(tmp_path / "model.pt")
    again = Config(**(settings | {"device": "cpu", "start": str(tmp_path / "model.pt")}))
    assert Run(again, tmp_path / "again.jsonl", dataset=toy).evaluate()[0] == pytest.approx(log.accuracy, abs=0.02)


@GPU
@pytest.mark.parametrize("fit", FIT)
def test_own_modules_train_on_a_gpu(tmp_path: Path, toy: Dataset, fit: str) -> None:
    torch.manual_seed(0)
    config = Config(**(QUICK | {"epsilon": 500.0, "device": "cuda"}))
    assert (Run(config, tmp_path / "run.jsonl", dataset=toy, module=FIT[fit]()).finish().accuracy or 0) > 0.5
