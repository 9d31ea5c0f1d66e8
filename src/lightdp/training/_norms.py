"""GroupNorm of images on a GPU, with the sum and the ReLU behind it, as one kernel each way. Needs triton.

A program takes some channels of one record, whole groups of them, keeps all their positions in registers, and so
reads every value once. Channels come last, as tensor cores want them; statistics are in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]  # only where torch has CUDA
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 1 << 14  # values of a program


def block(channels: int, groups: int, positions: int) -> int | None:
    """How many channels a program takes, a power of two and whole groups, or None for a shape that does not fit."""
    width, power = channels // groups, channels & -channels  # the latter divides channels
    size = max(width, min(power, max(8, power // 4)))
    return size if power % width == 0 and _power(positions) * size <= _LARGEST else None


def _power(value: int) -> int:
    return 1 << (value - 1).bit_length()


@triton.jit  # type: ignore[untyped-decorator]  # triton is untyped
def _of_groups(values: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:  # noqa: N803  triton's values and constants
    """For each channel the sum over its group. (channels,)"""
    size: tl.constexpr = values.shape[0]
    sums = tl.sum(tl.reshape(values, (size // WIDTH, WIDTH)), 1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (size // WIDTH, WIDTH)), (size,))


# fmt: off
@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # noqa: PLR0917  triton passes by position
    x: tl.tensor, weight: tl.tensor, bias: tl.tensor, skip: tl.tensor, y: tl.tensor, moments: tl.tensor,
    eps: tl.tensor, n: tl.tensor, hw: tl.tensor, c: tl.tensor,
    P: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr, SKIP: tl.constexpr,  # noqa: N803
) -> None:
    record, channels, at = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C), tl.arange(0, P)
    places = (record.to(tl.int64) * hw + at)[:, None] * c + channels[None, :]
    there = (at < hw)[:, None]
    values = tl.load(x + places, mask=there, other=0).to(tl.float32)
    mean = _of_groups(tl.sum(values, 0), WIDTH) / (hw * WIDTH)
    values = tl.where(there, values - mean[None, :], 0.0)
    inverse = tl.rsqrt(_of_groups(tl.sum(values * values, 0), WIDTH) / (hw * WIDTH) + eps)
    w, b = tl.load(weight + channels).to(tl.float32), tl.load(bias + channels).to(tl.float32)
    values = values * inverse[None, :] * w[None, :] + b[None, :]
    if SKIP:
        values += tl.load(skip + places, mask=there, other=0).to(tl.float32)
    if RELU:
        values = tl.maximum(values, 0.0)
    tl.store(y + places, values.to(y.dtype.element_ty), mask=there)
    tl.store(moments + record * c + channels, mean)
    tl.store(moments + (n + record) * c + channels, inverse)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # noqa: PLR0917
    dy: tl.tensor, x: tl.tensor, weight: tl.tensor, bias: tl.tensor, y: tl.tensor, moments: tl.tensor,
    dx: tl.tensor, dskip: tl.tensor, sums: tl.tensor, n: tl.tensor, hw: tl.tensor, c: tl.tensor,
    P: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr, SKIP: tl.constexpr,  # noqa: N803
) -> None:
    record, channels, at = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C), tl.arange(0, P)
    places = (record.to(tl.int64) * hw + at)[:, None] * c + channels[None, :]
    there = (at < hw)[:, None]
    g = tl.load(dy + places, mask=there, other=0).to(tl.float32)
    values = tl.load(x + places, mask=there, other=0).to(tl.float32)
    mean, inverse = tl.load(moments + record * c + channels), tl.load(moments + (n + record) * c + channels)
    w, b = tl.load(weight + channels).to(tl.float32), tl.load(bias + channels).to(tl.float32)
    values = (values - mean[None, :]) * inverse[None, :]
    if RELU:
        if SKIP:
            g = tl.where(tl.load(y + places, mask=there, other=0) > 0, g, 0.0)
            tl.store(dskip + places, g.to(dskip.dtype.element_ty), mask=there)
        else:
            g = tl.where(values * w[None, :] + b[None, :] > 0, g, 0.0)
    dw, db = tl.sum(g * values, 0), tl.sum(g, 0)
    tl.store(sums + record * c + channels, dw)
    tl.store(sums + (n + record) * c + channels, db)
    along = _of_groups(dw * w, WIDTH) / (hw * WIDTH)
    shift = _of_groups(db * w, WIDTH) / (hw * WIDTH)
    g = (g * w[None, :] - shift[None, :] - values * along[None, :]) * inverse[None, :]
    tl.store(dx + places, g.to(dx.dtype.element_ty), mask=there)
# fmt: on


def _launch(kernel: Any, x: Tensor, groups: int, *given: Any, relu: bool, skip: bool) -> None:  # noqa: ANN401
    n, c, hw = x.shape[0], x.shape[1], x.shape[2] * x.shape[3]
    size, positions = block(c, groups, hw), _power(hw)
    if size is None:
        raise ValueError(f"no kernel for {groups} groups of shape {tuple(x.shape)}")
    settings = {"P": positions, "C": size, "WIDTH": c // groups, "RELU": relu, "SKIP": skip}
    kernel[n, c // size](*given, n, hw, c, **settings, num_warps=min(16, max(1, positions * size >> 10)))


@torch.library.custom_op(  # type: ignore[untyped-decorator]  # torch is untyped here
    "lightdp::group_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor bias, Tensor? skip, Tensor? tap, int groups, float eps, bool relu)"
    " -> (Tensor, Tensor)",
)
def group_norm(  # noqa: PLR0917  an operator of torch
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    skip: Tensor | None,
    tap: Tensor | None,  # noqa: ARG001  only its gradient counts
    groups: int,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor]:
    """x normalised, plus `skip`, its positive part; and (mean, 1 / deviation) by record and channel. (2, n, c)

    `tap`, zeros of (2, n, c), gets the gradients of (weight, bias) by record.
    """
    x = _last(x)
    y, moments = _outputs(x)
    given = (x, weight, bias, x if skip is None else _last(skip), y, moments, eps)
    _launch(_forward, x, groups, *given, relu=relu, skip=skip is not None)
    return y, moments


@torch.library.custom_op(  # type: ignore[untyped-decorator]
    "lightdp::group_norm_backward",
    mutates_args=(),
    schema="(Tensor dy, Tensor x, Tensor weight, Tensor bias, Tensor moments, Tensor? y, int groups, bool relu)"
    " -> (Tensor, Tensor, Tensor)",
)
def _group_norm_backward(  # noqa: PLR0917
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, moments: Tensor, y: Tensor | None, groups: int, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, by record of (weight, bias), (2, n, c), and if y is given, of what was added."""
    x, dy = _last(x), _last(dy)
    (dx, sums), dskip = _outputs(x), _like(x, y)
    given = (dy, x, weight, bias, x if y is None else _last(y), moments, dx, dskip, sums)
    _launch(_backward, x, groups, *given, relu=relu, skip=y is not None)
    return dx, sums, dskip


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _outputs(x: Tensor) -> tuple[Tensor, Tensor]:
    moments = torch.empty((2, *x.shape[:2]), dtype=torch.float32, device=x.device)
    return torch.empty_like(x, memory_format=torch.channels_last), moments


def _like(x: Tensor, y: Tensor | None) -> Tensor:
    return x.new_empty(0) if y is None else torch.empty_like(x, memory_format=torch.channels_last)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ANN401
    x, weight, bias, skip, _, groups, _, relu = inputs
    ctx.save_for_backward(x, weight, bias, output[1], output[0] if skip is not None and relu else None)
    ctx.groups, ctx.relu, ctx.skip = groups, relu, skip is not None


def _differentiate(ctx: Any, dy: Tensor, _moments: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    dx, sums, masked = _group_norm_backward(dy, *ctx.saved_tensors, ctx.groups, ctx.relu)
    dw, db = sums.sum(1).to(ctx.saved_tensors[1].dtype) if any(ctx.needs_input_grad[1:3]) else (None, None)
    tapped = sums if ctx.needs_input_grad[4] else None
    return dx, dw, db, (masked if ctx.relu else dy) if ctx.skip else None, tapped, None, None, None


group_norm.register_fake(lambda x, *_: _outputs(x))
_group_norm_backward.register_fake(lambda _dy, x, _w, _b, _m, y, *_: (*_outputs(x), _like(x, y)))
group_norm.register_autograd(_differentiate, setup_context=_save)
