"""The file of a start: weights in half precision and the command that made them, in the format of safetensors.

Reading runs nothing, and checks every number before it is used.

>>> from pathlib import Path
>>> write(Path("start.safetensors"), {"weight": torch.ones(2, 3)}, {"command": "lightdp prior make"})
>>> weights, facts = read(Path("start.safetensors"))
>>> weights["weight"].shape, weights["weight"].dtype, facts["command"]
(torch.Size([2, 3]), torch.float32, 'lightdp prior make')
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from lightdp.errors import ArgumentError
from lightdp.training import weights as files
from lightdp.training.models import Fixed

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
    files.write(path, weights, overwrite=True, half=True, facts=facts)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The weights of a file, in single precision, and what it says of itself.

    Raises:
        ArgumentError: there is no such file, it is damaged, or a weight is not finite.
    """
    file = files.read(path)
    found = {name: value.float() for name, value in file.tensors.items()}
    for name, value in found.items():
        if not bool(value.isfinite().all()):
            raise ArgumentError(f"start must be finite, got {str(path)!r} with another value of {name}")
    return found, dict(file.facts)


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
