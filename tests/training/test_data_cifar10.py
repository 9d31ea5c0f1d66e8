from __future__ import annotations

import io
import os
import pickle
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightdp.errors import ArgumentError
from lightdp.training import data
from lightdp.training.data import _cifar10
from support.data_files import damaged_or_read, nowhere, saved  # noqa: F401  a fixture for all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

RNG = np.random.default_rng(1)
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


def _cifar(n: int = 3) -> dict[str, tuple[NDArray[np.uint8], list[int]]]:
    """Images (n, 3072) and labels of each batch."""
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
    damaged_or_read(good, where, flip, cut=cut, place=place, load=lambda: data.load("cifar10", place))


@given(where=st.integers(0, 10**6), flip=st.integers(0, 255), cut=st.booleans())
def test_whatever_happens_to_a_pickle_is_one_line(
    where: int, flip: int, cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pickle")
    good = _DAMAGEABLE["test_batch"]
    _write(folder, dict.fromkeys(BATCHES, good))
    place = folder / "test_batch"
    head = where % 260 if where % 2 else where  # half of the time in what surrounds the images
    damaged_or_read(good, head, flip, cut=cut, place=place, load=lambda: data.load("cifar10", folder))


_ONE = (np.arange(3072, dtype=np.int64).astype(np.uint8)[None], [7])
_DAMAGEABLE = {"x.tar.gz": _tar({f"{name}.bin": _binary(_ONE) for name in BATCHES}), "test_batch": _python2(_ONE)}


def test_webp_without_pillow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, {f"train_{i}.webps": b"RIFF" for i in range(1, 6)} | {"test.webps": b"", "labels.npy": b""})
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ArgumentError, match=r"cifar10 as WebP \(train_1.webps\) needs Pillow: pip install pillow"):
        data.load("cifar10", tmp_path)


def _webp(x: NDArray[np.uint8]) -> bytes:
    """Images (n, 3, 32, 32) as lossless strips of two."""
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
        ("test.webps", lambda _: b"", r"labels.npy has shape \(18,\) for 15 images"),
        ("labels.npy", lambda _: saved(np.zeros(17, np.uint8)), r"labels.npy has shape \(17,\) for 18 images"),
        ("labels.npy", lambda _: saved(np.uint8(1)), r"labels.npy has shape \(\) for 18 images"),
        ("labels.npy", lambda _: saved(np.full(18, None)), "allow_pickle=False"),
        ("labels.npy", lambda _: saved(np.full(18, 0.5)), "the training labels must be 15 integers, got float64"),
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


def test_real_cifar10_has_6000_images_of_each_kind() -> None:
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
