"""Modules and data of the user's own, tried before anything is trained or written.

Whatever is wrong with them ends in one line that names it, not in a traceback of torch from the middle of a run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from lightdp.errors import ArgumentError
from lightdp.training import fast, gradients, sgd, views
from lightdp.training.config import Config
from lightdp.training.data import Dataset

Found = TypeVar("Found")
_SAME = 1e-2  # of the largest logit: more than a GPU's rounding, which differs between batches


def dataset(given: object) -> Dataset:
    """The data set, whose own checks have been made when it was.

    >>> dataset({"x": 1})
    Traceback (most recent call last):
      ...
    lightdp.errors.ArgumentError: dataset must be a lightdp.Dataset, got dict

    Args:
        given: what the user gave.

    Raises:
        ArgumentError: it is something else, or has masked arrays, whose masks would be ignored.
    """
    if not isinstance(given, Dataset):
        raise ArgumentError(f"dataset must be a lightdp.Dataset, got {type(given).__name__}")
    for name in ("train_x", "test_x", "train_y", "test_y"):
        if isinstance(getattr(given, name), np.ma.MaskedArray):
            raise ArgumentError(f"{name} must be a plain numpy array, got a masked one")
    return given


def module(given: object, config: Config, x: Tensor, y: Tensor, classes: int) -> nn.Module:
    """The module, after a trial on up to two records: it must give logits for each, and learn from each by itself.

    The trial runs on a copy, so nothing of the module changes, and torch's generators stay as they are.

    >>> config, x, y = Config(), torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> module(nn.Linear(4, 3), config, x, y, classes=3)
    Linear(in_features=4, out_features=3, bias=True)
    >>> module(nn.Linear(4, 2), config, x, y, classes=3)
    Traceback (most recent call last):
      ...
    lightdp.errors.ArgumentError: module must give floats of shape (2, 3) for 2 records, got Linear with torch.float32 \
of shape (2, 2)

    Args:
        given: a model of the user's own.
        config: how it will be trained.
        x: records as it will get them. (n, ...)
        y: their labels. (n,)
        classes: how many labels there are.

    Raises:
        ArgumentError: it is no module; its parameters are missing, frozen, not float32 or not finite; it refuses such
            records, gives something else than finite logits, or not the same for a record alone; or it mixes records
            or draws random numbers while it is trained.
    """
    if not isinstance(given, nn.Module):
        raise ArgumentError(f"module must be a torch.nn.Module, got {type(given).__name__}")
    _check_parameters(given)
    name, x, y = type(given).__name__, x[:2], y[:2]
    with torch.random.fork_rng([x.device] if x.is_cuda else []):
        takes = f"module must take records of shape {tuple(x.shape[1:])}, got {name} that refuses them"
        tried = _try(takes, lambda: copy.deepcopy(given).to(x.device))
        first = _logits(name, _try(takes, partial(tried, x)), (len(x), classes))
        if not first.requires_grad:
            raise ArgumentError(f"module must give logits that depend on its parameters, got {name} with constants")
        if not _close(first, _try(takes, partial(tried, x))):
            raise ArgumentError(f"module must give the same logits each time, got {name} with others the second time")
        gradients.refuse(given, x, y)  # BatchNorm or Dropout in training mode
        alone = torch.cat([_logits(name, _try(takes, partial(tried, record)), (1, classes)) for record in x.split(1)])
        if not _close(first, alone):
            raise ArgumentError(f"module must treat each record by itself, got {name} with other logits for one alone")
        _try(f"module must be trained record by record, got {name}", lambda: _step(tried, config, x, y))
    return given


def crops(config: Config, x: Tensor) -> None:
    """Refuse views of records that have none.

    Args:
        config: how many views there are.
        x: records as the model gets them. (n, ...)

    Raises:
        ArgumentError: records have no crops, and were to be augmented by them.
    """
    if config.augment > 1 and not config.model.startswith("scattering"):
        views.crops(x[:1], torch.full((1, 1, 3), 4, device=x.device))


def _check_parameters(given: nn.Module) -> None:
    name, known = type(given).__name__, dict(given.named_parameters())
    if any(isinstance(value, nn.parameter.UninitializedParameter) for value in known.values()):
        raise ArgumentError(f"module must have parameters of known shapes, got {name} with lazy ones: call it once")
    if math.fsum(value.numel() for value in known.values()) == 0:
        raise ArgumentError(f"module must have parameters to train, got {name} without any")
    if frozen := [key for key, value in known.items() if not value.requires_grad]:
        raise ArgumentError(f"module must train all its parameters, got {name} with frozen {', '.join(frozen[:3])}")
    for key, value in known.items():
        if value.dtype != torch.float32:
            raise ArgumentError(f"module must have parameters of float32, got {name} with {key} of {value.dtype}")
        if not value.is_meta and not bool(torch.isfinite(value).all()):
            raise ArgumentError(f"module must have finite parameters, got {name} with another value in {key}")


def _logits(name: str, found: object, wanted: tuple[int, int]) -> Tensor:
    """What the module gave for so many records, if it is what it should be."""
    if not isinstance(found, Tensor) or tuple(found.shape) != wanted or not found.is_floating_point():
        got = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ArgumentError(f"module must give floats of shape {wanted} for {wanted[0]} records, got {name} with {got}")
    if not bool(torch.isfinite(found).all()):
        value = float(found.detach()[~torch.isfinite(found)][0])
        raise ArgumentError(f"module must give finite logits, got {name} with {value}")
    return found


def _step(tried: nn.Module, config: Config, x: Tensor, y: Tensor) -> None:
    """What a round does with two clients of one record each."""
    if config.unit == "record":
        gradients.clipped_sums(tried, x, y, torch.arange(len(x), device=x.device), len(x), config.clip)
        return
    if x.is_cuda and fast.knows(tried):
        return  # it would capture a CUDA graph of the copy
    sgd.local_updates(
        tried, x, y, [torch.tensor([i]) for i in range(len(x))], epochs=config.epochs, batch=config.batch,
        lr=config.local_lr, seed=0, round=0,
    )  # fmt: skip


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= _SAME * one.abs().max().clamp_min(1e-6))


def _try(what: str, call: Callable[[], Found]) -> Found:
    """What the call returns; whatever else it raises, one line with the first of its own."""
    try:
        return call()
    except ArgumentError:
        raise
    except Exception as error:  # the module's own code may raise anything
        raise ArgumentError(f"{what}: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
