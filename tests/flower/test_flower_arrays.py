"""Arrays of every kind: they come back as they went, and what is no number is refused."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from lightdp.errors import ArgumentError
from lightdp.flower import LightDP, _arrays
from support.flower_adders import a_plan, plus, zeros
from support.flower_grid import LocalGrid

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp


def trained(app: ClientApp, initial: ArrayRecord, inner: Strategy | None = None, **changed: Any) -> ArrayRecord:
    strategy = LightDP(FedAvg() if inner is None else inner, a_plan(**changed), wait=0.01)
    return strategy.start(grid=LocalGrid(app, 3), initial_arrays=initial, timeout=1).arrays


@pytest.mark.parametrize("inner", [FedAvg(), FedAvgM(server_momentum=0.0, server_learning_rate=1.0)])
def test_every_shape_and_type_comes_back_as_it_went(inner: Strategy) -> None:
    initial: dict[str, Any] = {
        "z-matrix": np.ones((3, 2), np.float32),
        "scalar": np.array(2.0, np.float16),
        "a-double": np.full((2, 1, 2), -1.0),
        "empty": np.zeros((0, 4), np.float32),
        "big-endian": np.zeros(3, ">f4"),
        "fortran": np.asfortranarray(np.zeros((2, 3))),
        "counter": np.array(7),
        "bytes": np.arange(3, dtype=np.uint8),
    }
    arrays = trained(plus(0.25), ArrayRecord({key: Array(value) for key, value in initial.items()}), inner)
    assert list(arrays) == list(initial)
    for key, value in initial.items():
        found = arrays[key].numpy()
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        moved = 1.0 if value.dtype.kind == "f" else 0.0
        assert found.astype(float) == pytest.approx(value.astype(float) + moved, abs=0.1)  # 6 σ


def test_integer_arrays_never_leave_a_client() -> None:
    initial = ArrayRecord({"w": Array(np.zeros(2)), "seen": Array(np.array(0))})
    arrays = trained(plus(0.0, lambda key, old: old + 17 if key == "seen" else old), initial)
    assert arrays["seen"].numpy() == 0


def test_a_torch_model_with_batch_normalisation_trains() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    arrays = trained(plus(0.25), ArrayRecord(model.state_dict()))
    model.load_state_dict(arrays.to_torch_state_dict())
    for key, value in model.state_dict().items():
        step = 1.0 if value.is_floating_point() else 0.0
        assert value.double().numpy() == pytest.approx(before[key].double().numpy() + step, abs=0.1)  # 6 σ


def test_a_list_of_arrays_as_scikit_learn_models_have_trains() -> None:
    initial = [np.zeros((1, 4)), np.zeros(1)]
    found = trained(plus(0.5), ArrayRecord(initial)).to_numpy_ndarrays()
    assert [each.shape for each in found] == [(1, 4), (1,)]
    assert np.concatenate([each.ravel() for each in found]) == pytest.approx(np.full(5, 2.0), abs=0.1)


def test_updates_are_clipped_as_one_vector() -> None:
    initial = ArrayRecord({"a": Array(np.zeros(3)), "b": Array(np.array(0.0))})
    arrays = trained(plus(100.0), initial, rounds=1, clip=0.5)
    found = np.concatenate([array.numpy().ravel() for array in arrays.values()])
    assert found == pytest.approx(np.full(4, 0.25), abs=0.02)


@pytest.mark.parametrize(
    "given",
    [
        np.array(3.5, np.float32), np.zeros((0, 3)), np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3).T,
        np.arange(4, dtype=">f4"), np.arange(5, dtype=np.float16)[::2], np.array([True, False]), np.array([1j]),
        np.zeros(3, [("ä☃", "f4")]),
    ],
)  # fmt: skip  # the last has another version of the format
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_values_are_those_that_flower_reads(given: Any) -> None:
    array = Array(given)
    expected = array.numpy()
    found = _arrays.values(array)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "given",
    [
        np.array(3.5, np.float32), np.zeros((0, 3)), np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3).T,
        np.arange(4, dtype=">f4"), np.arange(5, dtype=np.float16)[::2], np.array([True, False]),
        np.frombuffer(b"read only", np.uint8),
    ],
)  # fmt: skip
def test_arrays_that_are_written_are_those_that_flower_writes(given: Any) -> None:
    found, expected = _arrays.as_array(given), Array(given)
    assert (found.dtype, found.shape, found.stype) == (expected.dtype, expected.shape, expected.stype)
    assert found.data == Array(np.asarray(given, order="C")).data
    for read in (found.numpy(), _arrays.values(found)):
        assert (read.dtype, read.tolist()) == (given.dtype, given.tolist())


@pytest.mark.parametrize("cut", [0, 5, 9, 100, -1])
def test_values_of_broken_bytes_are_refused(cut: int) -> None:
    whole = Array(np.arange(50.0))
    with pytest.raises((ValueError, EOFError)):
        _arrays.values(Array(whole.dtype, whole.shape, whole.stype, whole.data[:cut]))


def test_values_are_never_objects() -> None:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
    with pytest.raises(ValueError, match="OBJECT"):
        _arrays.values(Array("object", (1,), "numpy.ndarray", data))


def test_long_arrays_of_any_order_move_by_their_part_of_the_vector() -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "a": np.asfortranarray(rng.normal(size=(300, 301)).astype(np.float32)),
        "b": rng.normal(size=70_001),
    }
    step = rng.normal(size=300 * 301 + 70_001)
    after = _arrays.moved(ArrayRecord({key: Array(value) for key, value in arrays.items()}), step)
    assert np.array_equal(after["a"].numpy(), (arrays["a"] + step[: 300 * 301].reshape(300, 301)).astype(np.float32))
    assert np.array_equal(after["b"].numpy(), arrays["b"] + step[300 * 301 :])


def test_arrays_move_by_the_sum_over_the_number_of_clients_in_float64() -> None:
    total = np.array([1.0, 2.0**-40, -7.0])
    after = _arrays.moved(ArrayRecord({"w": Array(np.array([0.5, 1.0, 0.1]))}), total, over=3)
    assert after["w"].numpy().tolist() == [0.5 + 1 / 3, 1.0 + 2.0**-40 / 3, 0.1 - 7 / 3]
    assert total.tolist() == [1.0, 2.0**-40, -7.0]


def test_what_a_type_cannot_hold_becomes_its_largest_value() -> None:
    moved = _arrays.moved(ArrayRecord({"w": Array(np.array([60000.0, 0.0], np.float16))}), np.array([1e6, -1e6]))
    assert moved["w"].numpy().tolist() == [65504.0, -65504.0]


@pytest.mark.parametrize("odd", [np.array([1j]), np.array(["text"]), np.zeros(2, np.longdouble)])
def test_arrays_that_are_no_numbers_are_refused_before_anything_is_sent(odd: Any) -> None:
    grid = LocalGrid(plus(1.0), 3)
    with pytest.raises(ArgumentError, match="array odd must be of floats of at most 64 bits or integers"):
        LightDP(FedAvg(), a_plan()).start(
            grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros(2)), "odd": Array(odd)}), timeout=1
        )
    assert grid.left == []


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep memory by rules of their own")
def test_memory_of_long_vectors_is_reused_in_the_next_round_and_was_not_before() -> None:
    code = """
import resource
from lightdp.flower import _arrays
alive = [bytes(1000) for _ in range(100_000)]  # as in a process that has trained
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def rounds():
    for _ in range(5):
        held = [bytes([k]) * 4_000_000 for k in range(1, 5)]
        del held
for keep in (False, True):
    if keep:
        _arrays.reuse_memory(1_000_000)
    rounds()
    before = faults()
    rounds()
    print(faults() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())
    assert without > 5000
    assert kept < 500


def test_a_model_without_floats_is_refused() -> None:
    with pytest.raises(ArgumentError, match="arrays must hold floats"):
        _arrays.length(ArrayRecord({"n": Array(np.array(3))}))


def test_trained_arrays_must_have_the_names_that_were_received() -> None:
    with pytest.raises(ArgumentError, match=r"trained arrays must be among \['w'\], got \['v', 'w'\]"):
        _arrays.difference({"v": Array(np.zeros(5)), **zeros()}, zeros())
