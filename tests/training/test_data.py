from __future__ import annotations

import gzip
import io
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp.errors import ArgumentError, MissingExtraError
from lightdp.training import data
from lightdp.training.data import _fashion_mnist
from support.data_files import damaged_or_read, nowhere, saved  # noqa: F401  a fixture for all

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

RNG = np.random.default_rng(1)
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


# --- names ---


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ArgumentError,
        match=r"must be one of digits, heart, .* or a path ending in .csv, .parquet or .npz, got data='mnist'",
    ):
        data.load("mnist")


def test_data_that_needs_no_path_refuses_one() -> None:
    with pytest.raises(ArgumentError, match="data='digits' takes no path, got path='x'"):
        data.load("digits", Path("x"))


# --- digits ---


def test_digits_are_1438_and_359_pictures_in_the_unit_interval() -> None:
    digits = data.load("digits")
    assert digits.train_x.shape == (1438, 1, 8, 8)
    assert digits.test_x.shape == (359, 1, 8, 8)
    assert digits.train_x.dtype == np.float32
    assert digits.train_y.dtype == np.int64
    assert (digits.train_x.min(), digits.train_x.max()) == (0, 1)
    assert digits.classes == 10


def test_digits_are_the_embedded_records_each_once_with_its_label() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    points, labels = datasets.load_digits(return_X_y=True)
    digits = data.load("digits")
    x = np.concatenate([digits.train_x, digits.test_x]).reshape(-1, 64) * 16
    rows = np.column_stack([x, np.concatenate([digits.train_y, digits.test_y])])
    expected = np.column_stack([points, labels])
    assert np.array_equal(rows[np.lexsort(rows.T)], expected[np.lexsort(expected.T)])


def test_the_digits_held_out_are_the_same_in_every_version() -> None:
    earlier = [0, 6, 3, 8, 1, 8, 4, 1, 5, 8, 9, 7]
    assert data.load("digits").test_y[:12].tolist() == earlier


def test_digits_without_scikit_learn_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        MissingExtraError, match=r"data='digits' needs an extra; from a clone: pip install '\.\[train\]'"
    ):
        data.load("digits")


# --- fashion-mnist ---


def _idx(values: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def _fashion(folder: Path) -> dict[str, NDArray[np.uint8]]:
    """A small Fashion-MNIST: training files plain, test files compressed."""
    arrays = {}
    for (images, labels), n in ((TRAIN, 12), (TEST, 5)):
        arrays[images] = RNG.integers(0, 256, (n, 28, 28), np.uint8)
        arrays[labels] = RNG.integers(0, 10, n, np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for name in TRAIN:
        (folder / name).write_bytes(_idx(arrays[name]))
    for name in TEST:
        (folder / f"{name}.gz").write_bytes(gzip.compress(_idx(arrays[name])))
    return arrays


def test_idx_files_are_read_plain_or_compressed(tmp_path: Path) -> None:
    arrays = _fashion(tmp_path)
    fashion = data.load("fashion-mnist", tmp_path)
    assert fashion.train_x.shape == (12, 1, 28, 28)
    assert np.array_equal(fashion.train_x[:, 0], arrays[TRAIN[0]].astype(np.float32) / 255)
    assert np.array_equal(fashion.test_x[:, 0], arrays[TEST[0]].astype(np.float32) / 255)
    assert np.array_equal(fashion.train_y, arrays[TRAIN[1]])
    assert np.array_equal(fashion.test_y, arrays[TEST[1]])
    assert fashion.classes == 10


def test_fashion_mnist_is_found_through_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fashion(tmp_path / "fashion-mnist")
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    assert len(data.load("fashion-mnist").train_x) == 12


def test_fashion_mnist_that_is_not_there_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        data.load("fashion-mnist", tmp_path / "absent")
    message = str(caught.value)
    assert "\n" not in message
    for part in (*TRAIN, *TEST, str(tmp_path / "absent"), "apt-get install dataset-fashion-mnist", "$LIGHTDP_DATA"):
        assert part in message


def _change(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            _change(TRAIN[0], lambda b: b[:-1]),
            "train-images-idx3-ubyte holds 9407 values, its header says 12 × 28 × 28",
        ),
        (_change(TRAIN[0], lambda b: b + b"x"), "train-images-idx3-ubyte holds 9409 values"),
        (_change(TRAIN[0], lambda b: b[:9]), "train-images-idx3-ubyte does not begin like an IDX file"),
        (_change(TRAIN[0], lambda _: b""), "train-images-idx3-ubyte does not begin like an IDX file"),
        (_change(TRAIN[0], lambda b: b[:2] + b"\x0d" + b[3:]), "does not begin like an IDX file of bytes in 3 dim"),
        (_change(TRAIN[1], lambda b: b[:3] + b"\x03" + b[4:]), "train-labels-idx1-ubyte does not begin like an IDX"),
        (_change(TRAIN[0], lambda b: b[:4] + b"\xff" * 12 + b[16:]), "its header says 4294967295 × 4294967295"),
        (
            _change(TRAIN[1], lambda b: b[:-1] + b"\x0a"),
            r"the labels must be 0\.\.9, got \d+ different ones in 0\.\.10",
        ),
        (
            _change(TRAIN[1], lambda b: b[:7] + b"\x0b" + b[8:-1]),
            "the training labels must be 12 integers, got uint8 of",
        ),
        (_change(TEST[0] + ".gz", lambda b: b[:-9]), "Compressed file ended before the end-of-stream marker"),
        (_change(TEST[0] + ".gz", lambda _: b"no gzip"), "Not a gzipped file"),
        (_change(TEST[0] + ".gz", lambda b: b[:-8] + bytes(4) + b[-4:]), "CRC check failed"),
        (lambda folder: (folder / f"{TEST[1]}.gz").unlink(), "No such file or directory"),
        (
            lambda folder: (folder / TRAIN[0]).write_bytes(_idx(np.zeros((12, 8, 8), np.uint8))),
            r"the images have shape \(8, 8\), not \(28, 28\)",
        ),
        (
            lambda folder: (folder / f"{TEST[0]}.gz").write_bytes(gzip.compress(_idx(np.zeros((5, 8, 8), np.uint8)))),
            r"the test records have shape \(5, 1, 8, 8\), the training records \(12, 1, 28, 28\)",
        ),
    ],
)
def test_a_damaged_idx_file_is_one_line(damage: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    _fashion(tmp_path)
    damage(tmp_path)
    with pytest.raises(ArgumentError, match=message) as caught:
        data.load("fashion-mnist", tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"cannot read the data in {tmp_path}: ")
    assert "apt-get install dataset-fashion-mnist" in str(caught.value)


def test_real_fashion_mnist_has_7000_images_of_each_kind() -> None:
    try:
        place = _fashion_mnist.SOURCE.find(None)
    except ArgumentError as error:
        pytest.skip(str(error))
    fashion = data.load("fashion-mnist", place)
    assert fashion.train_x.shape == (60_000, 1, 28, 28)
    assert fashion.test_x.shape == (10_000, 1, 28, 28)
    assert np.bincount(fashion.train_y).tolist() == [6000] * 10
    assert np.bincount(fashion.test_y).tolist() == [1000] * 10
    assert fashion.train_x.mean() == pytest.approx(0.2860, abs=1e-4)  # as published with the data


# --- npz ---


def _npz(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_an_npz_with_four_arrays_keeps_its_split(tmp_path: Path) -> None:
    x, y = RNG.random((7, 4)), np.array([0, 1, 2, 1, 0, 2, 2], np.uint8)
    name = _npz(tmp_path / "own.npz", x_train=x[:5], y_train=y[:5], x_test=x[5:], y_test=y[5:])
    own = data.load(name)
    assert own.name == name
    assert np.array_equal(own.train_x, x[:5].astype(np.float32))
    assert np.array_equal(own.test_x, x[5:].astype(np.float32))
    assert own.train_y.tolist() == [0, 1, 2, 1, 0]
    assert own.test_y.tolist() == [2, 2]
    assert own.classes == 3


def test_an_npz_with_x_and_y_is_split_80_to_20_in_a_fixed_order(tmp_path: Path) -> None:
    x = np.arange(100, dtype=np.float32).reshape(50, 2)
    name = _npz(tmp_path / "own.npz", x=x, y=np.arange(50) % 2)
    first, second = data.load(name), data.load(name)
    assert (len(first.train_x), len(first.test_x)) == (40, 10)
    assert np.array_equal(first.test_x, second.test_x)
    assert sorted(np.concatenate([first.train_x, first.test_x])[:, 0].tolist()) == x[:, 0].tolist()
    assert np.array_equal(first.train_y, first.train_x[:, 0] // 2 % 2)  # labels stay with their records
    assert first.test_x[:, 0].tolist() != sorted(first.test_x[:, 0].tolist())


def test_bytes_of_an_npz_are_scaled_and_grey_pictures_get_a_channel(tmp_path: Path) -> None:
    x = np.full((5, 6, 6), 255, np.uint8)
    own = data.load(_npz(tmp_path / "own.npz", x=x, y=np.array([0, 1, 0, 1, 1])))
    assert own.train_x.shape == (4, 1, 6, 6)
    assert own.train_x.max() == 1
    wide = data.load(_npz(tmp_path / "wide.npz", x=x.astype(np.int64), y=np.array([0, 1, 0, 1, 1])))
    assert wide.train_x.max() == 255


_X, _Y = np.zeros((6, 2)), np.array([0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": _X, "y_train": _Y}, "x_test, y_test not found in it"),
        ({"x": _X}, "x_train, y_train, x_test, y_test not found in it"),
        ({"x": np.full((6, 2), np.nan), "y": _Y}, "train_x must be finite, got nan"),
        ({"x": np.full((6, 2), 1e39), "y": _Y}, "train_x must be finite, got inf"),
        ({"x": _X, "y": _Y[:5]}, r"x \(6, 2\) and y \(5,\) must hold 5 or more records with one label each"),
        ({"x": _X[:4], "y": _Y[:4]}, "must hold 5 or more records"),
        ({"x": _X, "y": _Y[:, None]}, r"x \(6, 2\) and y \(6, 1\) must hold"),
        ({"x": _X, "y": _Y * 1.0}, "the training labels must be 5 integers, got float64"),
        ({"x": _X, "y": _Y == 0}, "the training labels must be 5 integers, got bool"),
        ({"x": _X, "y": _Y + 1}, r"the labels must be 0\.\.1, got 2 different ones in 1\.\.2"),
        ({"x": _X, "y": _Y - 1}, r"the labels must be 0\.\.1, got 2 different ones in -1\.\.0"),
        ({"x": _X, "y": _Y * 5}, r"the labels must be 0\.\.1, got 2 different ones in 0\.\.5"),
        ({"x": _X, "y": _Y.astype(np.uint64) * 2**63}, r"got 2 different ones in 0\.\.9223372036854775808"),
        ({"x": _X, "y": _Y * 0}, "all records have the same label"),
        ({"x": _X[:, 0], "y": _Y}, r"x must have shape \(n, features\) or .*, got \(6,\)"),
        ({"x": _X[:, :0], "y": _Y}, r"the training records have shape \(5, 0\)"),
        ({"x": np.array([["a"]] * 6), "y": _Y}, "x must hold numbers, got <U1"),
        ({"x": np.full((6, 2), None), "y": _Y}, "allow_pickle=False"),
        ({"x": np.zeros((6, 8, 8, 3)), "y": _Y}, r"x must have its channels first, got shape \(6, 8, 8, 3\)"),
        (
            {"x_train": _X, "y_train": _Y, "x_test": _X[:, :1], "y_test": _Y},
            r"the test records have shape \(6, 1\), the training records \(6, 2\)",
        ),
    ],
)
def test_a_wrong_npz_is_one_line(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        data.load(_npz(tmp_path / "own.npz", **arrays))
    assert "\n" not in str(caught.value)
    assert "numpy.savez writes such files" in str(caught.value)


def test_an_npz_that_is_no_npz_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="No such file or directory"):
        data.load(str(tmp_path / "absent.npz"))
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(ArgumentError, match="Is a directory"):
        data.load(str(tmp_path / "folder.npz"))
    for content in (b"", b"text", saved(_X), pickle.dumps(_X)):
        (tmp_path / "own.npz").write_bytes(content)
        with pytest.raises(ArgumentError, match=r"it is cut short or no \.npz file"):
            data.load(str(tmp_path / "own.npz"))


@given(where=st.integers(0, 10**6), flip=st.integers(0, 255), cut=st.booleans())
def test_whatever_happens_to_an_npz_is_one_line(
    where: int, flip: int, cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = io.BytesIO()
    np.savez(target, x=_X, y=_Y)
    place = tmp_path_factory.mktemp("npz") / "own.npz"
    damaged_or_read(target.getvalue(), where, flip, cut=cut, place=place, load=lambda: data.load(str(place)))


GOOD: dict[str, Any] = {
    "name": "mine",
    "train_x": np.zeros((4, 3), np.float32),
    "test_x": np.zeros((2, 3), np.float32),
    "train_y": np.array([0, 1, 0, 1]),
    "test_y": np.array([0, 1]),
    "classes": 2,
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_x": np.zeros((4, 3))}, "train_x must be of float32, got float64"),
        ({"test_x": np.zeros((2, 3), np.uint8)}, "test_x must be of float32, got uint8"),
        ({"train_x": [[0.0] * 3] * 4}, "train_x must be a numpy array of float32, got list"),
        ({"train_x": np.zeros(4, np.float32)}, r"train_x must have shape \(n, features\) and hold records, got shape"),
        (
            {"test_x": np.zeros((2, 5), np.float32)},
            r"test_x must have shape \(n, 3\) and hold records, got shape \(2, 5",
        ),
        ({"test_x": np.zeros((0, 3), np.float32)}, r"test_x must have .* hold records, got shape \(0, 3\)"),
        ({"train_x": np.full((4, 3), np.inf, np.float32)}, "train_x must be finite, got inf"),
        ({"train_y": np.array([0.0, 1.0, 0.0, 1.0])}, "train_y must be of int64, got float64"),
        ({"train_y": np.array([0, 1])}, r"train_y must have shape \(4,\), a label for each record, got \(2,\)"),
        ({"test_y": np.array([[0], [1]])}, r"test_y must have shape \(2,\)"),
        ({"test_y": np.array([0, 2])}, r"test_y must be in 0\.\.1, got 0\.\.2"),
        ({"train_y": np.array([0, -1, 0, 1])}, r"train_y must be in 0\.\.1, got -1\.\.1"),
        ({"classes": 1}, "classes must be >= 2, got classes=1"),
    ],
)
def test_wrong_arrays_are_refused_by_name(changed: dict[str, Any], message: str) -> None:
    assert data.Dataset(**GOOD).classes == 2
    with pytest.raises(ArgumentError, match=message) as caught:
        data.Dataset(**(GOOD | changed))
    assert "\n" not in str(caught.value)
