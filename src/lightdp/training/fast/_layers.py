"""Layers that compute the same as a model's own, faster: norms that take in the sum and ReLU after them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from lightdp.training.fast._gpu import norms
from lightdp.training.models import Fixed, Residual


class Norm(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """`nn.GroupNorm` for channels last, the layout that tensor cores want, with an optional sum and ReLU after it.

    Statistics are in float32.
    """

    def __init__(self, norm: nn.GroupNorm, *, relu: bool = False) -> None:
        super().__init__()
        self.weight, self.bias, self.groups, self.eps = norm.weight, norm.bias, norm.num_groups, norm.eps
        self.relu = relu
        self.watch: Callable[[nn.Module, Tensor], None] | None = None

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        """The same as `nn.GroupNorm`, plus `skip`, then ReLU, up to rounding.

        Weights and biases may be (lanes, c), with equally many records in each lane. If `watch` is set, a backward
        pass calls it with the layer and the gradients of (weight, bias) by record, (2, n, c).
        """
        tap = None if self.watch is None else _tap(x, partial(self.watch, self))
        fits = x.is_cuda and x.ndim == 4 and norms is not None
        if fits and norms.block(x.shape[1], self.groups, x[0, 0].numel()) is not None:
            return norms.group_norm(x, self.weight, self.bias, skip, tap, self.groups, self.eps, self.relu)
        if tap is None and self.weight.ndim == 1:
            y = nn.functional.group_norm(x, self.groups, self.weight, self.bias, self.eps)
        else:
            own = torch.stack([self.weight, self.bias]).view(2, -1, x.shape[1])
            own = own.repeat_interleave(len(x) // own.shape[1], 1)  # of each record
            scale, shift = (own if tap is None else own + tap).view(*own.shape, *[1] * (x.ndim - 2))
            y = nn.functional.group_norm(x, self.groups, eps=self.eps) * scale + shift
        y = y if skip is None else y + skip
        return y.relu() if self.relu else y


_LINE = 16  # values of float32 in 64 bytes, where torch's own memory begins


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`nn.functional.linear`, such that on a CPU no row's result depends on its place among equally many.

    Libraries sum up in another order where a row begins inside 64 bytes, so rows are filled up by zeros to whole ones.
    """
    if not x.is_cuda:
        x, weight = whole_lines(x), whole_lines(weight)
    return nn.functional.linear(x, weight, bias)


def whole_lines(rows: Tensor) -> Tensor:
    rows = nn.functional.pad(rows, (0, -rows.shape[-1] % _LINE)).contiguous()
    return rows.clone() if rows.data_ptr() % (4 * _LINE) else rows


class _Dense(torch.autograd.Function):  # type: ignore[misc]
    """`dense` without a bias, whose backward pass is like it; of a weight that needs no gradient."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return dense(x, weight)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *slopes: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return dense(slopes[0], weight.T), None


class Dense(nn.Linear):  # type: ignore[misc]
    """`nn.Linear` by `dense`, in both directions; its parameters get no gradient."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Linear`, up to rounding."""
        if x.is_cuda:
            return super().forward(x)
        y = _Dense.apply(x, self.weight)
        return y if self.bias is None else y + self.bias


class _FixedDense(Fixed):
    """`Fixed` by `dense`, likewise."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.is_cuda else _Dense.apply(x, self.weight) + self.bias


def with_dense(model: nn.Module) -> nn.Module:
    """Replace linear layers and fixed maps by such as use `dense`, in place; a model that is one layer by a new one.

    All parameters are frozen: `Dense` gives its own no gradient.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Dense(child))
            elif type(child) is Fixed:
                setattr(parent, name, _FixedDense(child.weight, child.bias))
    return (Dense(model) if type(model) is nn.Linear else model).requires_grad_(requires_grad=False)


def _tap(x: Tensor, watch: Callable[[Tensor], None]) -> Tensor:
    """Zeros to add to (weight, bias) of each record, (2, n, c); `watch` gets their gradients, those of the record."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    tap = torch.zeros(2, *x.shape[:2], dtype=dtype, device=x.device, requires_grad=True)
    tap.register_hook(watch)
    return tap


class _Sum(nn.Module):  # type: ignore[misc]
    """A residual block whose main branch ends in a norm that adds the skip branch itself."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.main, self.skip = block.main, block.skip

    def forward(self, x: Tensor) -> Tensor:
        """The positive part of the sum of both branches."""
        skip = self.skip(x)
        return self.main[-1](self.main[:-1](x), skip)


def with_norms(model: nn.Module) -> nn.Module:
    """Replace norms by `Norm`, in place: the same function with the same names of parameters."""
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
