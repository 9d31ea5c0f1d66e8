"""GroupNorm of images on a GPU, with the sum and the ReLU after it, as one kernel each way. Needs triton.

A program takes some channels of one record, in whole groups, and keeps all their positions in registers. In the
backward pass these would be too many values: there it loops over them in pieces, twice, and the second loop reads from
the cache. Programs of one record follow each other, since one memory access spans more than a program's channels.
Images have their channels last; statistics are in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]  # only where torch has CUDA
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from lightdp.training.fast._layout import channels_last

_LARGEST = 1 << 15  # values of a program
_PIECE = 1 << 12  # of these, at a time in the backward pass


def block(channels: int, groups: int, positions: int) -> int | None:
    """How many channels a program takes, a power of two and whole groups, or None for a shape that does not fit."""
    width, power = channels // groups, channels & -channels  # the latter divides channels
    size = max(width, min(power, max(32, power // 4)))
    while size > max(width, 8) and _power(positions) * size > _LARGEST:
        size //= 2
    return size if power % width == 0 and _power(positions) * size <= _LARGEST else None


def _power(value: int) -> int:
    return 1 << (value - 1).bit_length()


@triton.jit  # type: ignore[untyped-decorator]  # triton is untyped
def _of_groups(values: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:  # noqa: N803  triton's values and constants
    """For each channel the sum over its group. (channels,)"""
    size: tl.constexpr = values.shape[0]
    sums = tl.sum(tl.reshape(values, (size // WIDTH, WIDTH)), 1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (size // WIDTH, WIDTH)), (size,))


@triton.jit  # type: ignore[untyped-decorator]
def _place(c: tl.tensor, C: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:  # noqa: N803
    """The record of a program, and its channels."""
    blocks = c // C
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks * C + tl.arange(0, C)


# fmt: off
@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # noqa: PLR0917  triton passes by position
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, skip: tl.tensor, y: tl.tensor, moments: tl.tensor,
    eps: tl.tensor, each: tl.tensor, n: tl.tensor, hw: tl.tensor, c: tl.tensor,
    P: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr, SKIP: tl.constexpr,  # noqa: N803
) -> None:
    record, channels = _place(c, C)
    at = tl.arange(0, P)
    places = (record.to(tl.int64) * hw + at)[:, None] * c + channels[None, :]
    there = (at < hw)[:, None]
    values = tl.load(x + places, mask=there, other=0).to(tl.float32)
    mean = _of_groups(tl.sum(values, 0), WIDTH) / (hw * WIDTH)
    values = tl.where(there, values - mean[None, :], 0.0)
    inverse = tl.rsqrt(_of_groups(tl.sum(values * values, 0), WIDTH) / (hw * WIDTH) + eps)
    own = (record // each) * c + channels
    w, b = tl.load(weight + own).to(tl.float32), tl.load(bias + own).to(tl.float32)
    values = values * inverse[None, :] * w[None, :] + b[None, :]
    if SKIP:
        values += tl.load(skip + places, mask=there, other=0).to(tl.float32)
    if RELU:
        values = tl.maximum(values, 0.0)
    tl.store(y + places, values.to(y.dtype.element_ty), mask=there)
    tl.store(moments + record * c + channels, mean)
    tl.store(moments + (n + record) * c + channels, inverse)


@triton.jit  # type: ignore[untyped-decorator]
def _piece(  # noqa: PLR0917
    dy: tl.tensor, x: tl.tensor, y: tl.tensor, places: tl.tensor, there: tl.tensor,
    mean: tl.tensor, inverse: tl.tensor, w: tl.tensor, b: tl.tensor, RELU: tl.constexpr, SKIP: tl.constexpr,  # noqa: N803
) -> tuple[tl.tensor, tl.tensor]:
    """The gradient of what went into the ReLU, and the normalised values; with SKIP, y tells what the ReLU let pass."""
    g = tl.load(dy + places, mask=there, other=0).to(tl.float32)
    values = (tl.load(x + places, mask=there, other=0).to(tl.float32) - mean[None, :]) * inverse[None, :]
    if SKIP:
        g = tl.where(tl.load(y + places, mask=there, other=0) > 0, g, 0.0)
    elif RELU:
        g = tl.where(values * w[None, :] + b[None, :] > 0, g, 0.0)
    return g, values


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # noqa: PLR0917
    dy: tl.tensor, x: tl.tensor, weight: tl.tensor, bias: tl.tensor, y: tl.tensor, moments: tl.tensor,
    dx: tl.tensor, dskip: tl.tensor, sums: tl.tensor, each: tl.tensor, n: tl.tensor, hw: tl.tensor, c: tl.tensor,
    P: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr, SKIP: tl.constexpr,  # noqa: N803
    B: tl.constexpr,  # noqa: N803
) -> None:
    record, channels = _place(c, C)
    mean, inverse = tl.load(moments + record * c + channels), tl.load(moments + (n + record) * c + channels)
    own = (record // each) * c + channels
    w, b = tl.load(weight + own).to(tl.float32), tl.load(bias + own).to(tl.float32)
    by_w, by_b = tl.zeros((B, C), tl.float32), tl.zeros((B, C), tl.float32)
    for start in range(0, P, B):
        at = start + tl.arange(0, B)
        places, there = (record.to(tl.int64) * hw + at)[:, None] * c + channels[None, :], (at < hw)[:, None]
        g, values = _piece(dy, x, y, places, there, mean, inverse, w, b, RELU, SKIP)
        if SKIP:
            tl.store(dskip + places, g.to(dskip.dtype.element_ty), mask=there)
        by_w += g * values
        by_b += g
    dw, db = tl.sum(by_w, 0), tl.sum(by_b, 0)
    tl.store(sums + record * c + channels, dw)
    tl.store(sums + (n + record) * c + channels, db)
    along = _of_groups(dw * w, WIDTH) / (hw * WIDTH)
    shift = _of_groups(db * w, WIDTH) / (hw * WIDTH)
    for start in range(0, P, B):
        at = start + tl.arange(0, B)
        places, there = (record.to(tl.int64) * hw + at)[:, None] * c + channels[None, :], (at < hw)[:, None]
        g, values = _piece(dy, x, y, places, there, mean, inverse, w, b, RELU, SKIP)
        g = (g * w[None, :] - shift[None, :] - values * along[None, :]) * inverse[None, :]
        tl.store(dx + places, g.to(dx.dtype.element_ty), mask=there)
# fmt: on


def _launch(kernel: Any, x: Tensor, groups: int, *given: Any, relu: bool, skip: bool) -> None:  # noqa: ANN401
    n, c, hw = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    size, positions = block(c, groups, hw), _power(hw)
    if size is None:
        raise ValueError(f"no kernel for {groups} groups of shape {tuple(x.shape)}")
    settings = {"P": positions, "C": size, "WIDTH": c // groups, "RELU": relu, "SKIP": skip}
    warps = max(2, positions * size >> 11)
    if kernel is _backward:
        settings["B"], warps = min(positions, max(1, _PIECE // size)), max(1, positions * size >> 10)
    kernel[(n * (c // size),)](*given, n, hw, c, **settings, num_warps=min(8, warps))


class _GroupNorm(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """x normalised, plus `skip`, its positive part. Weights and biases are (c,), or (lanes, c)."""

    @staticmethod
    def forward(  # noqa: PLR0917  an operator of torch
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, skip: Tensor | None,  # noqa: ANN401
        tap: Tensor | None, groups: int, eps: float, relu: bool,  # noqa: ARG004  only the gradient of `tap` counts
    ) -> Tensor:  # fmt: skip
        """Keep (mean, 1 / deviation) by record and channel for the backward pass."""
        x, weight, bias = channels_last(x), weight.contiguous(), bias.contiguous()
        y, moments = torch.empty_like(x), torch.empty((2, *x.shape[:2]), device=x.device)
        given = (x, weight, bias, x if skip is None else channels_last(skip), y, moments, eps, _each(x, weight))
        _launch(_forward, x, groups, *given, relu=relu, skip=skip is not None)
        ctx.save_for_backward(x, weight, bias, moments, y if skip is not None and relu else None)
        ctx.groups, ctx.relu, ctx.skip = groups, relu, skip is not None
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """`tap`, zeros of (2, n, c), gets the gradients of (weight, bias) by record."""
        x, weight, bias, moments, y = ctx.saved_tensors
        dy, dx, sums = channels_last(dy), torch.empty_like(x), torch.empty_like(moments)
        dskip = x if y is None else torch.empty_like(x)
        given = (dy, x, weight, bias, x if y is None else y, moments, dx, dskip, sums, _each(x, weight))
        _launch(_backward, x, ctx.groups, *given, relu=ctx.relu, skip=y is not None)
        dw, db = None, None
        if any(ctx.needs_input_grad[1:3]):
            dw, db = sums.unflatten(1, (-1, _each(x, weight))).sum(2).to(weight.dtype).view(2, *weight.shape)
        added = (dskip if ctx.relu else dy) if ctx.skip else None
        return dx, dw, db, added, sums if ctx.needs_input_grad[4] else None, None, None, None


group_norm = _GroupNorm.apply


def _each(x: Tensor, weight: Tensor) -> int:
    """The number of records that share weights."""
    return x.shape[0] if weight.ndim == 1 else x.shape[0] // weight.shape[0]
