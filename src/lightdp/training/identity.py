"""What a run trains and on what, as its log names it, and digests by which `resume` knows both again.

A digest of data is a function of all records, without noise: whoever can guess them all can check the guess by it. So a
log of a run on private records is as private as they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from lightdp.training.data import Dataset
from lightdp.training.weights import File, Taken

Identity = Mapping[str, Mapping[str, Any] | None]
"""Of a run: its "dataset", its "module", and its "start" (None without a file of weights)."""


def of_dataset(source: Dataset) -> dict[str, str]:
    """Its name, and a SHA-256 of what it holds: of each array its name, type and shape, and then its bytes.

    >>> x, y = np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1])
    >>> one, two = (Dataset(name, x, x, y, y, classes=2) for name in ("one", "two"))
    >>> of_dataset(one)["digest"] == of_dataset(two)["digest"]
    True
    >>> of_dataset(Dataset("one", x, x, y, 1 - y, classes=2)) == of_dataset(one)
    False

    Args:
        source: the data.
    """
    digest = hashlib.sha256()
    for field in dataclasses.fields(source):
        value = getattr(source, field.name)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            digest.update(f"{field.name} {value.dtype.str} {value.shape}\n".encode())
            digest.update(np.ascontiguousarray(value).data)
        elif field.name not in ("name", "encoded") and value not in (None, ()):  # what most data sets do not have
            digest.update(f"{field.name} {value!r}\n".encode())
    return {"name": source.name, "digest": digest.hexdigest()}


def of_module(module: nn.Module, name: str | None = None) -> dict[str, str]:
    """Its name, and a SHA-256 of names, types and shapes of its parameters, and of its buffers with their values.

    >>> of_module(nn.Linear(4, 3))["name"]
    'torch.nn.modules.linear.Linear'
    >>> of_module(nn.Linear(4, 3))["digest"] == of_module(nn.Linear(4, 2))["digest"]
    False

    Args:
        module: the model.
        name: what it is called; by default the qualified name of its class.
    """
    digest = hashlib.sha256()
    for key, value in module.named_parameters():
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
    for key, value in module.named_buffers():
        digest.update(f"{key} {value.dtype} {tuple(value.shape)} {value.tolist()}\n".encode())
    kind = type(module)
    return {"name": name or f"{kind.__module__}.{kind.__qualname__}", "digest": digest.hexdigest()}


def of_start(file: File, taken: Taken) -> dict[str, Any]:
    """The file that a run begins with, the SHA-256 of its bytes, and what of it was not used.

    Args:
        file: the weights.
        taken: what the model took from it.
    """
    return {"file": str(file.path), "digest": file.digest, "new": [*taken.new], "unused": [*taken.unused]}
