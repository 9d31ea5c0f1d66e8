from __future__ import annotations

import gzip
import io
import os
import pickle
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightdp._check import ArgumentError, MissingExtraError
from lightdp.training import data
from lightdp.training.data import _cifar10, _fashion_mnist

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

RNG = np.random.default_rng(1)
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "real" not in request.node.name:
        monkeypatch.delenv(data.VARIABLE, raising=False)


# --- names ---


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ArgumentError, match=r"must be one of digits, fashion-mnist, cifar10 or a path ending in .npz, got data='mnist'"
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
    with pytest.raises(MissingExtraError, match=r"data='digits' needs an extra: pip install 'lightdp-fl\[train\]'"):
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
            r"the pictures have shape \(8, 8\), not \(28, 28\)",
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


def test_real_fashion_mnist_has_7000_pictures_of_each_kind() -> None:
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


# --- cifar10 ---


def _cifar(n: int = 3) -> dict[str, tuple[NDArray[np.uint8], list[int]]]:
    """Pictures (n, 3072) and labels of each batch."""
    return {name: (RNG.integers(0, 256, (n, 3072), np.uint8), RNG.integers(0, 10, n).tolist()) for name in BATCHES}


def _binary(batch: tuple[NDArray[np.uint8], list[int]]) -> bytes:
    return np.column_stack([np.array(batch[1], np.uint8), batch[0]]).tobytes()


def _python2(batch: tuple[NDArray[np.uint8], list[int]], order: str = "C") -> bytes:
    """A batch as Python 2 and the numpy of its day pickled it: protocol 2, text as byte strings."""
    x, labels = batch

    def text(value: bytes) -> bytes:
        return b"T" + len(value).to_bytes(4, "little") + value

    def integer(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + integer(0) + b"\x85" + text(b"b") + b"tR"
    byte = b"cnumpy\ndtype\n(" + text(b"u1") + integer(0) + integer(1) + b"tR"
    byte += b"(" + integer(3) + text(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    shape = integer(x.shape[0]) + integer(x.shape[1]) + b"\x86"
    fortran = b"\x88" if order == "F" else b"\x89"
    state = b"(" + integer(1) + shape + byte + fortran + text(x.tobytes(order)) + b"tb"  # type: ignore[arg-type]
    items = text(b"batch_label") + text(b"testing batch") + text(b"data") + empty + state
    items += text(b"labels") + b"](" + b"".join(map(integer, labels)) + b"e"
    return b"\x80\x02}(" + items + b"u."


def _python3(batch: tuple[NDArray[np.uint8], list[int]]) -> bytes:
    return pickle.dumps({"data": batch[0], "labels": batch[1]}, protocol=4)


def _tar(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _same(cifar: data.Dataset, batches: dict[str, tuple[NDArray[np.uint8], list[int]]]) -> None:
    train = np.concatenate([batches[name][0] for name in BATCHES[:5]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(cifar.train_x, train.astype(np.float32) / 255)
    assert np.array_equal(cifar.test_x, batches[BATCHES[5]][0].reshape(-1, 3, 32, 32).astype(np.float32) / 255)
    assert cifar.train_y.tolist() == [label for name in BATCHES[:5] for label in batches[name][1]]
    assert cifar.test_y.tolist() == batches[BATCHES[5]][1]
    assert cifar.classes == 10
    assert cifar.train_x.flags.c_contiguous


@pytest.mark.parametrize("inner", [".", "cifar-10-batches-bin"])
def test_binary_batches_are_read_from_a_folder(inner: str, tmp_path: Path) -> None:
    batches = _cifar()
    _write(tmp_path / inner, {f"{name}.bin": _binary(batch) for name, batch in batches.items()})
    _same(data.load("cifar10", tmp_path), batches)


@pytest.mark.parametrize("inner", [".", "cifar-10-batches-py"])
@pytest.mark.parametrize("pickled", [_python2, _python3, lambda batch: _python2(batch, "F")])
def test_python_batches_are_read_from_a_folder(
    pickled: Callable[[tuple[NDArray[np.uint8], list[int]]], bytes], inner: str, tmp_path: Path
) -> None:
    batches = _cifar()
    _write(tmp_path / inner, {name: pickled(batch) for name, batch in batches.items()})
    _same(data.load("cifar10", tmp_path), batches)


def test_archives_are_read_where_they_are(tmp_path: Path) -> None:
    batches = _cifar()
    binary = {f"cifar-10-batches-bin/{name}.bin": _binary(batch) for name, batch in batches.items()}
    python = {f"cifar-10-batches-py/{name}": _python2(batch) for name, batch in batches.items()}
    for name, files in (("cifar-10-binary.tar.gz", binary), ("cifar-10-python.tar.gz", python)):
        _write(tmp_path, {name: _tar({"cifar-10-batches/readme.html": b"hello", **files})})
        _same(data.load("cifar10", tmp_path / name), batches)
    assert {path.name for path in tmp_path.iterdir()} == {"cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"}


def test_cifar10_is_found_through_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = _cifar()
    archive = _tar({f"cifar-10-batches-bin/{name}.bin": _binary(batch) for name, batch in batches.items()})
    _write(tmp_path / "cifar10", {"cifar-10-binary.tar.gz": archive})
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    _same(data.load("cifar10"), batches)


def test_a_complete_set_of_batches_is_preferred_to_a_part_of_another(tmp_path: Path) -> None:
    batches = _cifar()
    _write(tmp_path, {name: _python2(batch) for name, batch in batches.items()})
    _write(tmp_path, {"test_batch.bin": b"damaged"})
    _same(data.load("cifar10", tmp_path), batches)


@pytest.mark.parametrize("path", [None, "absent"])
def test_cifar10_that_is_not_there_says_where_to_get_it(path: str | None, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        data.load("cifar10", None if path is None else tmp_path / path)
    message = str(caught.value)
    assert "\n" not in message
    assert ("in no folder, as $LIGHTDP_DATA is not set" if path is None else str(tmp_path / path)) in message
    assert "get cifar-10-binary.tar.gz or cifar-10-python.tar.gz from https://www.cs.toronto.edu/~kriz/" in message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_3.bin", None, "data_batch_3.bin not found in it"),
        ("data_batch_3.bin", b"\x01" * 3072, "data_batch_3.bin has 3072 bytes, not whole records of 3073 bytes"),
        ("data_batch_3.bin", b"\x0a" * 3073, r"the labels must be 0\.\.9, got \d+ different ones in \d\.\.10"),
        ("test_batch.bin", b"", r"the test records have shape \(0, 3, 32, 32\)"),
    ],
)
def test_a_damaged_binary_batch_is_one_line(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    _write(tmp_path, {f"{batch}.bin": _binary(values) for batch, values in _cifar().items()})
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ArgumentError, match=message) as caught:
        data.load("cifar10", tmp_path)
    assert "\n" not in str(caught.value)
    assert "kriz/cifar.html" in str(caught.value)


class _Evil:
    """Would leave a file behind if it were unpickled without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_cannot_run_anything(tmp_path: Path) -> None:
    batches = _cifar()
    _write(tmp_path, {name: _python2(batch) for name, batch in batches.items()})
    mark = tmp_path / "mark"
    evil = pickle.dumps({"data": _Evil(mark), "labels": [0]}, protocol=2)
    (tmp_path / "test_batch").write_bytes(evil)
    with pytest.raises(ArgumentError, match=r"test_batch is not a batch of the python version .* asks for posix.mkdir"):
        data.load("cifar10", tmp_path)
    assert not mark.exists()
    pickle.loads(evil)  # noqa: S301  our own: what careless reading would have done
    assert mark.exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"data": np.zeros((2, 3072)), "labels": [0, 1]}, "an array of type 'f8'"),
        ({"data": np.array([[None] * 3072]), "labels": [0]}, "an array of type 'O8'"),
        ({"data": np.zeros((2, 3071), np.uint8), "labels": [0, 1]}, "cannot reshape array of size 6142"),
        ({"data": np.zeros((2, 3072), np.uint8)}, "KeyError"),
        ({"data": [1, 2], "labels": [0, 1]}, "'list' object has no attribute 'values'"),
        ([1, 2], "is not a batch of the python version"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, [1]]}, "labels that are no list of integers"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1.0]}, "labels that are no list of integers"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 2**70]}, "labels that are no list of integers in 0..9"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0, -1]}, "labels that are no list of integers in 0..9"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "the test labels must be 2 integers"),
    ],
)
def test_a_pickle_of_something_else_is_one_line(batch: Any, message: str, tmp_path: Path) -> None:
    _write(tmp_path, {name: _python2(values) for name, values in _cifar().items()})
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol=4))
    with pytest.raises(ArgumentError, match=message) as caught:
        data.load("cifar10", tmp_path)
    assert "\n" not in str(caught.value)


def test_links_and_huge_members_of_an_archive_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        link = tarfile.TarInfo("test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        large = tarfile.TarInfo("data_batch_1.bin")
        large.size = 3073
        archive.addfile(large, io.BytesIO(bytes(3073)))
    _write(tmp_path, {"x.tar": target.getvalue()})
    monkeypatch.setattr(_cifar10, "_LARGEST", 3072)
    with pytest.raises(ArgumentError, match=r"data_batch_1.bin, .*test_batch.bin not found in it"):
        data.load("cifar10", tmp_path / "x.tar")


@given(where=st.integers(0, 10**6), flip=st.integers(0, 255), cut=st.booleans())
@example(where=0, flip=0, cut=True)
def test_whatever_happens_to_an_archive_is_one_line(
    where: int, flip: int, cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    good = _DAMAGEABLE["x.tar.gz"]
    place = tmp_path_factory.mktemp("archive") / "x.tar.gz"
    _damaged_or_read(good, where, flip, cut=cut, place=place, load=lambda: data.load("cifar10", place))


@given(where=st.integers(0, 10**6), flip=st.integers(0, 255), cut=st.booleans())
def test_whatever_happens_to_a_pickle_is_one_line(
    where: int, flip: int, cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pickle")
    good = _DAMAGEABLE["test_batch"]
    _write(folder, dict.fromkeys(BATCHES, good))
    place = folder / "test_batch"
    head = where % 260 if where % 2 else where  # half of the time in what surrounds the pictures
    _damaged_or_read(good, head, flip, cut=cut, place=place, load=lambda: data.load("cifar10", folder))


def _damaged_or_read(
    good: bytes, where: int, flip: int, *, cut: bool, place: Path, load: Callable[[], data.Dataset]
) -> None:
    where %= len(good)
    place.write_bytes(good[:where] if cut else good[:where] + bytes([flip]) + good[where + 1 :])
    try:
        loaded = load()
    except ArgumentError as error:
        assert "\n" not in str(error)  # noqa: PT017  it need not be raised
    else:
        assert np.isfinite(loaded.train_x).all()


_ONE = (np.arange(3072, dtype=np.int64).astype(np.uint8)[None], [7])
_DAMAGEABLE = {"x.tar.gz": _tar({f"{name}.bin": _binary(_ONE) for name in BATCHES}), "test_batch": _python2(_ONE)}


def test_webp_without_pillow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, {f"train_{i}.webps": b"RIFF" for i in range(1, 6)} | {"test.webps": b"", "labels.npy": b""})
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ArgumentError, match=r"cifar10 as WebP \(train_1.webps\) needs Pillow: pip install pillow"):
        data.load("cifar10", tmp_path)


def _webp(x: NDArray[np.uint8]) -> bytes:
    """Pictures (n, 3, 32, 32) as lossless strips of two."""
    pillow: Any = pytest.importorskip("PIL.Image", reason="needs Pillow: pip install pillow")
    strips = []
    for two in np.split(x.transpose(0, 2, 3, 1), range(2, len(x), 2)):
        target = io.BytesIO()
        pillow.fromarray(two.reshape(-1, 32, 3)).save(target, "WEBP", lossless=True, exact=True)
        strips.append(target.getvalue())
    return b"".join(strips)


def _webp_folder(folder: Path) -> dict[str, tuple[NDArray[np.uint8], list[int]]]:
    batches = _cifar()
    target = io.BytesIO()
    np.save(target, np.array([label for _, labels in batches.values() for label in labels], np.uint8))
    names = [f"train_{i}.webps" for i in range(1, 6)] + ["test.webps"]
    strips = [_webp(x.reshape(-1, 3, 32, 32)) for x, _ in batches.values()]
    _write(folder, dict(zip(names, strips, strict=True)) | {"labels.npy": target.getvalue()})
    return batches


def test_webp_strips_are_read_from_a_folder(tmp_path: Path) -> None:
    batches = _webp_folder(tmp_path)
    _same(data.load("cifar10", tmp_path), batches)


def _saved(values: Any) -> bytes:
    target = io.BytesIO()
    np.save(target, values)
    return target.getvalue()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train_2.webps", lambda b: b[:-1], "train_2.webps is cut short, or no WebP file begins at byte"),
        ("train_2.webps", lambda b: b + b"RI", "train_2.webps is cut short, or no WebP file begins at byte"),
        (
            "train_2.webps",
            lambda b: b[:8] + bytes(len(b) - 8),
            r"train_2.webps has a wrong strip at byte 0|is cut short",
        ),
        ("test.webps", lambda _: b"", r"labels.npy has shape \(18,\) for 15 pictures"),
        ("labels.npy", lambda _: _saved(np.zeros(17, np.uint8)), r"labels.npy has shape \(17,\) for 18 pictures"),
        ("labels.npy", lambda _: _saved(np.uint8(1)), r"labels.npy has shape \(\) for 18 pictures"),
        ("labels.npy", lambda _: _saved(np.full(18, None)), "allow_pickle=False"),
        ("labels.npy", lambda _: _saved(np.full(18, 0.5)), "the training labels must be 15 integers, got float64"),
        ("labels.npy", lambda b: b[:-1], r"cannot read the data in"),
        ("labels.npy", lambda b: b[:6] + b"\x02" + b[7:], r"cannot read the data in"),
    ],
)
def test_damaged_webp_strips_are_one_line(
    name: str, change: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    _webp_folder(tmp_path)
    (tmp_path / name).write_bytes(change((tmp_path / name).read_bytes()))
    with pytest.raises(ArgumentError, match=message) as caught:
        data.load("cifar10", tmp_path)
    assert "\n" not in str(caught.value)


def test_real_cifar10_has_6000_pictures_of_each_kind() -> None:
    try:
        place = _cifar10.SOURCE.find(None)
    except ArgumentError as error:
        pytest.skip(str(error))
    if (place / "test.webps").is_file():
        pytest.importorskip("PIL.Image", reason="CIFAR-10 is here as WebP: pip install pillow")
    cifar = data.load("cifar10")
    assert cifar.train_x.shape == (50_000, 3, 32, 32)
    assert cifar.test_x.shape == (10_000, 3, 32, 32)
    assert np.bincount(cifar.train_y).tolist() == [5000] * 10
    assert np.bincount(cifar.test_y).tolist() == [1000] * 10
    assert cifar.train_x.mean(axis=(0, 2, 3)) == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-3)  # well known


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
        ({"x": np.full((6, 2), np.nan), "y": _Y}, "the training records hold values that are not finite"),
        ({"x": np.full((6, 2), 1e39), "y": _Y}, "the training records hold values that are not finite"),
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
    for content in (b"", b"text", _saved(_X), pickle.dumps(_X)):
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
    _damaged_or_read(target.getvalue(), where, flip, cut=cut, place=place, load=lambda: data.load(str(place)))
