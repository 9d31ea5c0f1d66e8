"""CIFAR-10: 60,000 colour images of ten kinds of things, 32 × 32, in five training batches and one test batch."""

from __future__ import annotations

import importlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightdp.errors import ArgumentError
from lightdp.training.data._made import VARIABLE, Part, Source

_PYTHON = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_BINARY = tuple(f"{name}.bin" for name in _PYTHON)
_WEBP = (*(f"train_{i}.webps" for i in range(1, 6)), "test.webps", "labels.npy")
_ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz")
_LARGEST = 1 << 28  # bytes of one file in an archive; a batch has 2^25


def _read(place: Path) -> tuple[Part, Part]:
    """The publishers' binary or python batches, in a folder or in their archive, or WebP strips and labels."""
    files = _files(place)
    layout = max((_BINARY, _PYTHON, _WEBP), key=lambda names: sum(name in files for name in names))
    if missing := [name for name in layout if name not in files]:
        raise ValueError(f"{', '.join(missing)} not found in it")
    if layout == _WEBP:
        images = [_webp_strips(name, files[name]) for name in layout[:-1]]
        labels = _webp_labels(files["labels.npy"], [len(x) for x in images])
    else:
        batch = _binary_batch if layout == _BINARY else _python_batch
        images, labels = map(list, zip(*(batch(name, files[name]) for name in layout), strict=True))
    return (np.concatenate(images[:5]), np.concatenate(labels[:5])), (images[5], labels[5])


def _files(place: Path) -> dict[str, bytes]:
    """The content of every known file of a folder or a tar archive; nothing is written to disk."""
    if place.is_dir():
        return {name: (place / name).read_bytes() for name in SOURCE.files if (place / name).is_file()}
    files = {}
    with tarfile.open(place) as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            wanted = name in SOURCE.files and member.isfile() and member.size <= _LARGEST
            if wanted and (content := archive.extractfile(member)) is not None:
                files[name] = content.read()
    return files


def _binary_batch(name: str, content: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Records of 3,073 bytes: the label, then 32 × 32 pixels in red, green and blue."""
    if len(content) % 3073:
        raise ValueError(f"{name} has {len(content)} bytes, not whole records of 3073 bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _python_batch(name: str, content: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """A pickled dictionary: data is an array of bytes (n, 3072), labels is a list of n integers."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        data, labels = (batch[key] if key in batch else batch[key.encode()] for key in ("data", "labels"))
        images = data.values.reshape(-1, 3, 32, 32)
    except Exception as error:  # a damaged pickle may end in any exception
        raise ValueError(f"{name} is not a batch of the python version ({error!r})") from error
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise ValueError(f"{name} has labels that are no list of integers in 0..9")
    return images, np.array(labels, dtype=np.int64)


class _Type:
    """Stands in for a pickled numpy type."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: bytes have none."""


class _Array:
    """Stands in for a pickled numpy array of bytes, so that no file reaches into numpy itself."""

    def __init__(self, *_: object) -> None:
        self.values = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Type, bool, bytes]) -> None:
        _, shape, kind, fortran, content = state
        if kind.code not in {"u1", b"u1"}:
            raise pickle.UnpicklingError(f"an array of type {kind.code!r}")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Unpickler(pickle.Unpickler):
    """Reads numbers, strings, bytes, lists, dictionaries and arrays of bytes; refuses every other object."""

    def find_class(self, module: str, name: str) -> type:
        """The stand-ins, and nothing else."""
        match module.replace("_core", "core"), name:  # numpy 2 renamed its inner module
            case ("numpy.core.multiarray", "_reconstruct") | ("numpy", "ndarray"):
                return _Array
            case ("numpy", "dtype"):
                return _Type
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _webp_strips(name: str, content: bytes) -> NDArray[np.uint8]:
    """Lossless WebP files one after the other, each with images of 32 × 32 from top to bottom. (n, 3, 32, 32)"""
    try:
        pillow: Any = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ArgumentError(f"cifar10 as WebP ({name}) needs Pillow: pip install pillow") from error
    strips, start = [np.empty((0, 32, 32, 3), np.uint8)], 0
    while start < len(content):
        end = start + 8 + int.from_bytes(content[start + 4 : start + 8], "little")
        if content[start : start + 4] != b"RIFF" or end > len(content):
            raise ValueError(f"{name} is cut short, or no WebP file begins at byte {start}")
        try:
            strips.append(_strip(pillow.open(io.BytesIO(content[start:end]), formats=["WEBP"])))
        except Exception as error:  # a damaged image may end in any exception
            raise ValueError(f"{name} has a wrong strip at byte {start} ({error})") from error
        start = end
    return np.concatenate(strips).transpose(0, 3, 1, 2)


def _strip(image: Any) -> NDArray[np.uint8]:  # noqa: ANN401  an image of Pillow, if that is installed
    """Images of a strip, whose size is checked before it is decoded. (n, 32, 32, 3)"""
    if image.width != 32 or image.height % 32:
        raise ValueError(f"it has {image.width} × {image.height} pixels, not 32 × 32 for each image")
    return np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)


def _webp_labels(content: bytes, counts: list[int]) -> list[NDArray[Any]]:
    """The labels of all batches, cut into batches."""
    labels = np.load(io.BytesIO(content), allow_pickle=False)
    if labels.shape != (sum(counts),):
        raise ValueError(f"labels.npy has shape {labels.shape} for {sum(counts)} images")
    return np.split(labels, np.cumsum(counts)[:-1])


SOURCE = Source(
    name="cifar10",
    sought=f"{', '.join(_ARCHIVES)}, {_BINARY[0]}, ..., {_PYTHON[0]}, ... or {_WEBP[0]}, ...",
    where=f"get {' or '.join(_ARCHIVES)} from https://www.cs.toronto.edu/~kriz/cifar.html and pass its path or put it"
    f" in ${VARIABLE}/cifar10",
    files=(*_BINARY, *_PYTHON, *_WEBP),
    read=_read,
    inner=("cifar-10-batches-bin", "cifar-10-batches-py", *_ARCHIVES),
)
