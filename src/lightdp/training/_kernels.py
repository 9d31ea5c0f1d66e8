"""What gradients of every record need on a GPU beside torch's own kernels. Needs triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]  # only where torch has CUDA
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]

if TYPE_CHECKING:
    from torch import Tensor, nn


# fmt: off
@triton.jit  # type: ignore[untyped-decorator]  # triton is untyped
def _weight(  # noqa: PLR0917  triton passes by position
    g: tl.tensor, x: tl.tensor, out: tl.tensor, positions: tl.tensor,
    h: tl.constexpr, w: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, C: tl.constexpr,  # noqa: N803, E741
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,  # noqa: N803
    BO: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,  # noqa: N803
) -> None:
    record, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, tile = tile % ROWS, tile // ROWS
    c = (tile % ((C + BC - 1) // BC)) * BC + tl.arange(0, BC)
    o = (tile // ((C + BC - 1) // BC)) * BO + tl.arange(0, BO)
    views = positions // (h * w)
    g += record * positions * O
    x += record * views * (H * W * C)
    first = tl.zeros((BO, BC), tl.float32)
    second = tl.zeros((BO, BC), tl.float32)
    third = tl.zeros((BO, BC), tl.float32)
    for start in range(0, positions, BP):
        p = start + tl.arange(0, BP)
        there, at = p < positions, p % (h * w)
        up, left = (at // w) * STRIDE + row - PAD, (at % w) * STRIDE - PAD
        there_x = there & (up >= 0) & (up < H)
        source = x + ((p // (h * w)) * (H * W) + up * W + left)[:, None] * C + c[None, :]
        dy = tl.trans(tl.load(g + p[:, None] * O + o[None, :], mask=there[:, None] & (o < O)[None, :], other=0))
        inside = (c < C)[None, :] & (there_x & (left >= 0) & (left < W))[:, None]
        first = tl.dot(dy, tl.load(source, mask=inside, other=0), first)
        if COLUMNS == 3:
            inside = (c < C)[None, :] & (there_x & (left + 1 >= 0) & (left + 1 < W))[:, None]
            second = tl.dot(dy, tl.load(source + C, mask=inside, other=0), second)
            inside = (c < C)[None, :] & (there_x & (left + 2 >= 0) & (left + 2 < W))[:, None]
            third = tl.dot(dy, tl.load(source + 2 * C, mask=inside, other=0), third)
    target = out + record * (O * ROWS * COLUMNS * C) + (o[:, None] * ROWS + row) * (COLUMNS * C) + c[None, :]
    inside = (o < O)[:, None] & (c < C)[None, :]
    tl.store(target, first, mask=inside)
    if COLUMNS == 3:
        tl.store(target + C, second, mask=inside)
        tl.store(target + 2 * C, third, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _pull(
    g: tl.tensor, used: tl.tensor, lengths: tl.tensor, m: tl.tensor, B: tl.constexpr,  # noqa: N803
) -> None:
    record, o, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, B)
    place = g + (record * tl.num_programs(1) + o) * m + at
    values, u = tl.load(place, mask=at < m, other=0), tl.load(used + o * m + at, mask=at < m, other=0)
    values = values - tl.sum(values, 0) / m - tl.sum(values * u, 0) * u
    tl.store(place, values / tl.load(lengths + o), mask=at < m)


@triton.jit  # type: ignore[untyped-decorator]
def _squares(rows: tl.tensor, out: tl.tensor, m: tl.tensor, B: tl.constexpr) -> None:  # noqa: N803
    record, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * B + tl.arange(0, B)
    values = tl.load(rows + record * m + at, mask=at < m, other=0).to(tl.float64)
    tl.store(out + record * tl.num_programs(1) + piece, tl.sum(values * values, 0))
# fmt: on


def pull(g: Tensor, used: Tensor, lengths: Tensor) -> None:
    """`_records._pull` by one kernel: g (n, outputs, m) in place."""
    _pull[len(g), len(used)](g, used.contiguous(), lengths, g.shape[2], triton.next_power_of_2(g.shape[2]), num_warps=4)


def squares(rows: Tensor) -> Tensor:
    """The squared norm of each row of float32, summed up in float64. (n,)"""
    rows = rows.contiguous()
    out = torch.empty(len(rows), triton.cdiv(rows.shape[1], 4096), dtype=torch.float64, device=rows.device)
    _squares[out.shape](rows, out, rows.shape[1], 4096, num_warps=4)
    return out.sum(1)


def fits(layer: nn.Conv2d, x: Tensor) -> bool:
    """Whether there is a kernel: square kernels of side 1 or 3, padded evenly, in half precision."""
    even = len(set(layer.stride)) == 1 and len(set(_padding(layer))) == 1
    return x.is_cuda and x.dtype == torch.bfloat16 and layer.kernel_size in {(1, 1), (3, 3)} and even


def _padding(layer: nn.Conv2d) -> list[int]:
    return layer._reversed_padding_repeated_twice  # noqa: SLF001  the only place where "same" is in numbers


def weight_gradients(layer: nn.Conv2d, x: Tensor, g: Tensor, records: int) -> Tensor:
    """For inputs x and gradients g of outputs, as many views of each record: (records, outputs, inputs · kernel).

    In the order (outputs, height, width, inputs) of the kernel, in float32, and without writing down what each output
    sees: a program takes one record, some outputs, some inputs and one row of the kernel, and goes through all
    positions of all views, so that each value of g that it reads serves every column of that row.
    """
    x, g = (t.contiguous(memory_format=torch.channels_last) for t in (x, g))
    side, (outputs, inputs) = layer.kernel_size[0], layer.weight.shape[:2]
    bo, bc = (min(64, max(16, triton.next_power_of_2(size))) for size in (outputs, inputs))
    bo = 128 if outputs % 128 == 0 else bo
    out = torch.empty(records, outputs, side * side * inputs, device=x.device)
    grid = records, side * triton.cdiv(inputs, bc) * triton.cdiv(outputs, bo)
    _weight[grid](
        g, x, out, len(g) // records * g.shape[2] * g.shape[3], *g.shape[2:], *x.shape[2:], outputs, inputs,
        side, side, layer.stride[0], _padding(layer)[0], bo, bc, 64,
        num_warps=8 if bo == 128 else 4, num_stages=3,
    )  # fmt: skip
    return out
