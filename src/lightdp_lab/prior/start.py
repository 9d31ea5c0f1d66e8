"""The file of a start: weights in half precision and the command that made them, in the format of safetensors.

Eight bytes give the length of a JSON object, which gives the type, shape and place of each tensor; their bytes follow.
Reading runs nothing, and checks every number before it is used.

>>> from pathlib import Path
>>> write(Path("start.safetensors"), {"weight": torch.ones(2, 3)}, {"command": "lightdp prior make"})
>>> weights, facts = read(Path("start.safetensors"))
>>> weights["weight"].shape, weights["weight"].dtype, facts["command"]
(torch.Size([2, 3]), torch.float32, 'lightdp prior make')
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightdp._files import contents, durable
from lightdp.errors import ArgumentError
from lightdp.training.models import Fixed

_TYPES: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
_LARGEST = 1 << 30  # bytes
_RAISED = 0.3  # of the mean variance
_LENGTH = 4.0  # of features: the gradient of the last layer is then a part, not most, of a record's gradient


def write(path: Path, weights: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
    """Write weights in half precision, whole or not at all.

    Args:
        path: replaced if it is there.
        weights: tensors by name.
        facts: what the file says of itself.

    Raises:
        ArgumentError: a weight is not finite in half precision.
    """
    header: dict[str, Any] = {"__metadata__": dict(facts)}
    pieces, at = list[bytes](), 0
    for name, value in weights.items():
        half = value.detach().cpu().to(torch.float16)
        if not bool(half.isfinite().all()):
            raise ArgumentError(f"weights must be finite in half precision, got {name} with others")
        piece = half.numpy().astype(_TYPES["F16"], copy=False).tobytes()
        header[name] = {"dtype": "F16", "shape": list(half.shape), "data_offsets": [at, at + len(piece)]}
        pieces.append(piece)
        at += len(piece)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with durable(path) as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(pieces))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The weights of a file, in single precision, and what it says of itself.

    Raises:
        ArgumentError: there is no such file, or it is damaged.
    """
    try:
        raw = contents(path, limit=_LARGEST)
        end = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:end])
        facts = header.pop("__metadata__", {})
        return {name: _tensor(entry, raw[end:]) for name, entry in header.items()}, facts
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"start must be a whole .safetensors file, got {str(path)!r}: {error}") from None


def _tensor(entry: Mapping[str, Any], data: bytes) -> Tensor:
    kind, (start, end) = _TYPES[entry["dtype"]], entry["data_offsets"]
    if not 0 <= start <= end <= len(data) or end - start != kind.itemsize * math.prod(entry["shape"]):
        raise ValueError(f"{entry['shape']} numbers do not lie at {start} to {end} of {len(data)} bytes")
    values = np.frombuffer(data[start:end], kind).reshape(entry["shape"]).astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    return torch.from_numpy(values)


def put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model all weights and fixed maps of a start but its last layer, which starts at zero, in place.

    Raises:
        ArgumentError: a weight is missing or has another shape.
    """
    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
    own = {id(value) for value in last.parameters()}
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if id(value) in own:
                value.zero_()
                continue
            if name not in weights or weights[name].shape != value.shape:
                got = tuple(weights[name].shape) if name in weights else "none"
                raise ArgumentError(f"start must have {name} of shape {tuple(value.shape)}, got {got}")
            value.copy_(weights[name])


def mapped(model: nn.Sequential) -> nn.Sequential:
    """The model with a fixed map, still zero, before its last layer, whose place in the sequence grows by one.

    >>> mapped(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)))[1].weight.shape
    torch.Size([4, 4])
    """
    width = model[-1].in_features
    return nn.Sequential(*model[:-1], Fixed(torch.zeros(width, width), torch.zeros(width)), model[-1])


def whitening(features: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix and the bias of a map after which these features have mean 0, little correlation and mean length 4.

    Variances are raised by a part of their mean first, since those of other images differ.

    Args:
        features: of public images. (n, width)
    """
    spread, mean = features - features.mean(0), features.mean(0)
    values, vectors = torch.linalg.eigh(spread.T @ spread / len(spread))
    matrix = vectors @ torch.diag((values.clamp_min(0) + _RAISED * values.mean() + 1e-12).rsqrt()) @ vectors.T
    matrix *= _LENGTH / (spread @ matrix).norm(dim=1).mean().clamp_min(1e-12)
    return matrix, -matrix @ mean
