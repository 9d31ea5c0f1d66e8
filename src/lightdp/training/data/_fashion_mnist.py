"""Fashion-MNIST: 70,000 grey images of ten kinds of clothes, 28 × 28, in four IDX files."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lightdp.training.data._made import VARIABLE, Part, Source

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _read(folder: Path) -> tuple[Part, Part]:
    """The four files of a folder, each plain or compressed."""
    train_x, train_y, test_x, test_y = (_idx(folder, name) for name in _FILES)
    if train_x.shape[1:] != (28, 28):
        raise ValueError(f"the images have shape {train_x.shape[1:]}, not (28, 28)")
    return (train_x[:, None], train_y), (test_x[:, None], test_y)


def _idx(folder: Path, name: str) -> NDArray[np.uint8]:
    """0, 0, 8 for bytes, the number of dimensions, each of them as 4 bytes big-endian, then the content."""
    plain = folder / name
    content = plain.read_bytes() if plain.is_file() else gzip.decompress(Path(f"{plain}.gz").read_bytes())
    dimensions = 3 if "images" in name else 1
    head = 4 + 4 * dimensions
    if len(content) < head or content[:4] != bytes([0, 0, 8, dimensions]):
        raise ValueError(f"{name} does not begin like an IDX file of bytes in {dimensions} dimensions")
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, head, 4)]
    if len(content) - head != math.prod(shape):
        raise ValueError(f"{name} holds {len(content) - head} values, its header says {' × '.join(map(str, shape))}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


SOURCE = Source(
    name="fashion-mnist",
    sought=f"{', '.join(_FILES)} (or with .gz)",
    where="get it with `apt-get install dataset-fashion-mnist`, or from https://github.com/zalandoresearch/fashion-mnist,"
    f" and pass its folder or put the files in ${VARIABLE}/fashion-mnist",
    files=(*_FILES, *(f"{name}.gz" for name in _FILES)),
    read=_read,
    usual=(Path("/usr/share/datasets/fashion-mnist"),),  # of the Debian package
)
