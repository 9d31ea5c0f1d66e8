"""Channels last: the memory layout of images and kernels that tensor cores want."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def channels_last(value: Tensor) -> Tensor:
    """Images in that layout; other shapes as they are."""
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value


def inputs_last(parameter: Tensor) -> Tensor:
    """A view of convolution kernels as (outputs, height, width, inputs); other parameters as they are."""
    return parameter.permute(0, 2, 3, 1) if parameter.ndim == 4 else parameter


def reorder(model: nn.Module, rows: Tensor) -> None:
    """Bring rows (m, d) of parameters with `inputs_last` to the order of `model.parameters()`, in place.

    >>> rows = torch.tensor([[0.0, 1.0, 2.0, 3.0]])  # one kernel of 1 x 2 pixels and 2 inputs
    >>> reorder(nn.Conv2d(2, 1, (1, 2), bias=False), rows)
    >>> rows.tolist()
    [[0.0, 2.0, 1.0, 3.0]]
    """
    parameters = list(model.parameters())
    for p, piece in zip(parameters, rows.split([p.numel() for p in parameters], 1), strict=True):
        if p.ndim == 4:
            last = piece.clone().unflatten(1, inputs_last(p).shape)
            piece.copy_(last.permute(0, 1, 4, 2, 3).flatten(1))


def padding(layer: nn.Conv2d) -> list[int]:
    """The padding of all four sides, in numbers also where the layer says "same"."""
    return layer._reversed_padding_repeated_twice  # noqa: SLF001  the only place where "same" is in numbers
