"""Layers that compute what a model's own do, faster: norms that take in what follows them, channels last."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from lightdp.training.models import _Residual as Residual

try:
    from lightdp.training import _norms
except ImportError:  # no triton, so no CUDA or no compiler
    _norms = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class Norm(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """`nn.GroupNorm` for channels last, where tensor cores want them and torch's own kernels do not.

    Also takes in what often follows, a sum with `skip` and a ReLU. Statistics are in float32.
    """

    def __init__(self, norm: nn.GroupNorm, *, relu: bool = False) -> None:
        super().__init__()
        self.weight, self.bias, self.groups, self.eps = norm.weight, norm.bias, norm.num_groups, norm.eps
        self.relu = relu
        self.watch: Callable[[nn.Module, Tensor], None] | None = None

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        """The same as `nn.GroupNorm` and what it takes in, up to rounding.

        Weights and biases may be (lanes, c), for as many records of each lane. A backward pass gives the layer and
        the gradients of (weight, bias) by record, (2, n, c), to `watch`, if set.
        """
        tap = None if self.watch is None else _tap(x, partial(self.watch, self))
        fits = x.ndim == 4 and _norms is not None
        if x.is_cuda and fits and _norms.block(x.shape[1], self.groups, x[0, 0].numel()) is not None:
            return _norms.group_norm(x, self.weight, self.bias, skip, tap, self.groups, self.eps, self.relu)
        if tap is None and self.weight.ndim == 1:
            y = nn.functional.group_norm(x, self.groups, self.weight, self.bias, self.eps)
        else:
            own = torch.stack([self.weight, self.bias]).view(2, -1, x.shape[1])
            own = own.repeat_interleave(len(x) // own.shape[1], 1)  # of each record
            scale, shift = (own if tap is None else own + tap).view(*own.shape, *[1] * (x.ndim - 2))
            y = nn.functional.group_norm(x, self.groups, eps=self.eps) * scale + shift
        y = y if skip is None else y + skip
        return y.relu() if self.relu else y


def _tap(x: Tensor, watch: Callable[[Tensor], None]) -> Tensor:
    """Zeros to add to (weight, bias) of each record, (2, n, c), so that their gradients are those of the record."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    tap = torch.zeros(2, *x.shape[:2], dtype=dtype, device=x.device, requires_grad=True)
    tap.register_hook(watch)
    return tap


class _Sum(nn.Module):  # type: ignore[misc]
    """A residual block whose main way ends in a norm that takes in the sum."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.main, self.skip = block.main, block.skip

    def forward(self, x: Tensor) -> Tensor:
        """The positive part of the sum of both ways."""
        *first, norm = self.main
        skip = self.skip(x)
        for layer in first:
            x = layer(x)
        return norm(x, skip)


def channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value


def with_norms(model: nn.Module) -> nn.Module:
    """The same function with the same names of parameters, whose norms take in what follows them."""
    for parent in list(model.modules()):
        children = list(parent.named_children())
        for (name, child), (after, follower) in pairwise([*children, ("", None)]):
            relu = type(parent) is nn.Sequential and type(follower) is nn.ReLU
            if type(child) is nn.GroupNorm and child.affine:
                setattr(parent, name, Norm(child, relu=relu))
            elif relu and type(child) is Residual and type(norm := [*child.main.children()][-1]) is nn.GroupNorm:
                child.main[-1] = Norm(norm, relu=True)
                setattr(parent, name, _Sum(child))
            else:
                continue
            if relu:
                setattr(parent, after, nn.Identity())
    return model


def reorder(model: nn.Module, rows: Tensor) -> None:
    """Bring rows (m, d) with kernels as (outputs, height, width, inputs) to the order of `model.parameters()`."""
    at = 0
    for p in model.parameters():
        if p.ndim == 4:
            piece = rows[:, at : at + p.numel()]
            last = piece.clone().unflatten(1, p.permute(0, 2, 3, 1).shape)
            piece.copy_(last.permute(0, 1, 4, 2, 3).flatten(1))
        at += p.numel()
