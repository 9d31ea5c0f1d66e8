"""CUDA kernels for gradients of every record and for lanes of clients. Needs triton."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]  # only where torch has CUDA
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor, nn

from lightdp.training.fast._layout import channels_last, padding

_PROGRAMS = 300  # keep a large GPU busy


# fmt: off
@triton.jit  # type: ignore[untyped-decorator]  # triton is untyped
def _convolution(  # noqa: PLR0917  triton passes by position
    x: tl.tensor, weight: tl.tensor, y: tl.tensor, lane_size: tl.tensor, positions: tl.tensor,
    h: tl.constexpr, w: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, C: tl.constexpr,  # noqa: N803, E741
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,  # noqa: N803
    BP: tl.constexpr, BO: tl.constexpr, BC: tl.constexpr,  # noqa: N803
) -> None:
    tile, lane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    p, o = (tile // (O // BO)) * BP + tl.arange(0, BP), (tile % (O // BO)) * BO + tl.arange(0, BO)
    c = tl.arange(0, BC)
    x += lane * (positions // (h * w)) * (H * W * C)
    weight += lane * lane_size
    y += lane * positions * O
    there, at = p < positions, p % (h * w)
    up, left = (at // w) * STRIDE - PAD, (at % w) * STRIDE - PAD
    corner = ((p // (h * w)) * (H * W) + up * W + left) * C
    sums = tl.zeros((BP, BO), tl.float32)
    for k in range(SIDE * SIDE * (C // BC)):
        tap, piece = k // (C // BC), k % (C // BC) * BC
        row, column = tap // SIDE, tap % SIDE
        inside = there & (up + row >= 0) & (up + row < H) & (left + column >= 0) & (left + column < W)
        source = x + (corner + (row * W + column) * C + piece)[:, None] + c[None, :]
        kernel = tl.load(weight + (o * (SIDE * SIDE * C) + tap * C + piece)[None, :] + c[:, None])
        sums = tl.dot(tl.load(source, mask=inside[:, None], other=0), kernel, sums)
    tl.store(y + p[:, None] * O + o[None, :], sums.to(y.dtype.element_ty), mask=there[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _image(  # noqa: PLR0917
    g: tl.tensor, weight: tl.tensor, dx: tl.tensor, lane_size: tl.tensor, images: tl.tensor,
    h: tl.constexpr, w: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr, C: tl.constexpr,  # noqa: N803, E741
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,  # noqa: N803
    BP: tl.constexpr, BC: tl.constexpr, BO: tl.constexpr,  # noqa: N803
) -> None:
    tile, lane, phase = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    p, c = (tile // (C // BC)) * BP + tl.arange(0, BP), (tile % (C // BC)) * BC + tl.arange(0, BC)
    o = tl.arange(0, BO)
    g += lane * images * (h * w * O)
    weight += lane * lane_size
    dx += lane * images * (H * W * C)
    columns_of_x: tl.constexpr = W // STRIDE
    image, at = p // (H // STRIDE * columns_of_x), p % (H // STRIDE * columns_of_x)
    down, across = phase // STRIDE, phase % STRIDE
    up, left = (at // columns_of_x) * STRIDE + down, (at % columns_of_x) * STRIDE + across
    first_row, first_column = (down + PAD) % STRIDE, (across + PAD) % STRIDE
    rows, columns = (SIDE - first_row + STRIDE - 1) // STRIDE, (SIDE - first_column + STRIDE - 1) // STRIDE
    top, side = (up + PAD - first_row) // STRIDE, (left + PAD - first_column) // STRIDE
    corner = (image * (h * w) + top * w + side) * O
    sums = tl.zeros((BP, BC), tl.float32)
    for k in range(rows * columns * (O // BO)):
        tap, piece = k // (O // BO), k % (O // BO) * BO
        i, j = tap // columns, tap % columns
        inside = (image < images) & (top - i >= 0) & (top - i < h) & (side - j >= 0) & (side - j < w)
        source = g + (corner - (i * w + j) * O + piece)[:, None] + o[None, :]
        place = (first_row + i * STRIDE) * SIDE + first_column + j * STRIDE
        kernel = tl.load(weight + ((piece + o) * (SIDE * SIDE) + place)[:, None] * C + c[None, :])
        sums = tl.dot(tl.load(source, mask=inside[:, None], other=0), kernel, sums)
    target = dx + ((image * H + up) * W + left)[:, None] * C + c[None, :]
    tl.store(target, sums.to(dx.dtype.element_ty), mask=(image < images)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _weight(  # noqa: PLR0917
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
    tl.store(target, first.to(out.dtype.element_ty), mask=inside)
    if COLUMNS == 3:
        tl.store(target + C, second.to(out.dtype.element_ty), mask=inside)
        tl.store(target + 2 * C, third.to(out.dtype.element_ty), mask=inside)


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
def _moments(g: tl.tensor, used: tl.tensor, out: tl.tensor, m: tl.tensor, B: tl.constexpr) -> None:  # noqa: N803
    record, o, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, B)
    place = record * tl.num_programs(1) + o
    values = tl.load(g + place * m + at, mask=at < m, other=0).to(tl.float64)
    u = tl.load(used + o * m + at, mask=at < m, other=0).to(tl.float64)
    tl.store(out + place * 3, tl.sum(values, 0))
    tl.store(out + place * 3 + 1, tl.sum(values * u, 0))
    tl.store(out + place * 3 + 2, tl.sum(values * values, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _squares(rows: tl.tensor, out: tl.tensor, m: tl.tensor, B: tl.constexpr) -> None:  # noqa: N803
    record, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = piece * B + tl.arange(0, B)
    values = tl.load(rows + record * m + at, mask=at < m, other=0).to(tl.float64)
    tl.store(out + record * tl.num_programs(1) + piece, tl.sum(values * values, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _descend(  # noqa: PLR0917
    weights: tl.tensor, used: tl.tensor, g: tl.tensor, lr: tl.tensor, lane_size: tl.tensor, m: tl.tensor,
    B: tl.constexpr,  # noqa: N803
) -> None:
    at, lane = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1).to(tl.int64)
    place = lane * lane_size + at
    step = tl.load(g + lane * m + at, mask=at < m, other=0).to(tl.float32) * lr
    values = tl.load(weights + place, mask=at < m, other=0) - step
    tl.store(weights + place, values, mask=at < m)
    tl.store(used + place, values.to(used.dtype.element_ty), mask=at < m)
# fmt: on


def convolution(x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
    """Convolve images x (lanes · b, c, h, w), channels last, with their lanes' kernels (lanes, outputs, side, side, c).

    Each lane's kernels are contiguous; lanes need not be. A program takes some positions and some outputs.
    """
    (n, inputs, *size), (lanes, outputs, side) = x.shape, weight.shape[:3]
    smaller = [(length + 2 * padding - side) // stride + 1 for length in size]
    y = torch.empty((n, outputs, *smaller), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    positions = n // lanes * smaller[0] * smaller[1]
    bo, bc = _block(outputs, 128), _block(inputs, 64)
    _convolution[triton.cdiv(positions, 128) * (outputs // bo), lanes](
        x, weight, y, weight.stride(0), positions, *smaller, *size, outputs, inputs, side, stride, padding,
        128, bo, bc, num_warps=8 if bo == 128 else 4, num_stages=3,
    )  # fmt: skip
    return y


def image_gradients(g: Tensor, weight: Tensor, shape: torch.Size, stride: int, padding: int) -> Tensor:
    """From the gradients g of the outputs of `convolution`, those of its images of `shape`.

    Image positions with the same remainder modulo the stride meet the same places of the kernel, so a program takes
    some of these and some inputs.
    """
    (n, inputs, *size), (lanes, outputs, side) = shape, weight.shape[:3]
    dx = torch.empty(tuple(shape), dtype=g.dtype, device=g.device, memory_format=torch.channels_last)
    positions = n // lanes * (size[0] // stride) * (size[1] // stride)
    bc, bo = _block(inputs, 128), _block(outputs, 64)
    _image[triton.cdiv(positions, 128) * (inputs // bc), lanes, stride**2](
        g, weight, dx, weight.stride(0), n // lanes, *g.shape[2:], *size, outputs, inputs, side, stride, padding,
        128, bc, bo, num_warps=8 if bc == 128 else 4, num_stages=3,
    )  # fmt: skip
    return dx


def _block(size: int, largest: int) -> int:
    """The largest power of two that divides `size`, but at most `largest`."""
    return min(size & -size, largest)


def descend(weights: Tensor, used: Tensor, g: Tensor, lr: float) -> None:
    """weights -= lr · g, and the result in the type of `used`; each (lanes, ...), not necessarily contiguous."""
    m = weights[0].numel()
    grid = triton.cdiv(m, 1024), len(weights)
    _descend[grid](weights, used, g.contiguous(), lr, weights.stride(0), m, 1024, num_warps=4)


def pull(g: Tensor, used: Tensor, lengths: Tensor) -> None:
    """`_records._pull` as one kernel: g (n, outputs, m) in place."""
    _pull[len(g), len(used)](g, used.contiguous(), lengths, g.shape[2], triton.next_power_of_2(g.shape[2]), num_warps=4)


def moments(g: Tensor, used: Tensor) -> Tensor:
    """For rows g (n, outputs · m) of float32 and used (outputs, m): sums of g, g · used and g² by filter, in float64.

    (n, outputs, 3)
    """
    g, (outputs, m) = g.contiguous(), used.shape
    out = torch.empty(len(g), outputs, 3, dtype=torch.float64, device=g.device)
    _moments[len(g), outputs](g, used.contiguous(), out, m, triton.next_power_of_2(m), num_warps=4)
    return out


def squares(rows: Tensor) -> Tensor:
    """The squared norm of each row of float32, summed in float64. (n,)"""
    rows = rows.contiguous()
    out = torch.empty(len(rows), triton.cdiv(rows.shape[1], 4096), dtype=torch.float64, device=rows.device)
    _squares[out.shape](rows, out, rows.shape[1], 4096, num_warps=4)
    return out.sum(1)


def fits(layer: nn.Conv2d, x: Tensor) -> bool:
    """Whether there is a kernel: square kernels of side 1 or 3, padded evenly, in half precision."""
    even = len(set(layer.stride)) == 1 and len(set(padding(layer))) == 1
    return x.is_cuda and x.dtype == torch.bfloat16 and layer.kernel_size in {(1, 1), (3, 3)} and even


def fits_lanes(layer: nn.Conv2d, x: Tensor) -> bool:
    """Whether `convolution` and `image_gradients` can run a layer that `fits`: whole blocks and whole strides."""
    return layer.out_channels % 16 == 0 and all(length % layer.stride[0] == 0 for length in x.shape[2:])


def weight_gradients(  # noqa: PLR0917  the settings of a convolution
    x: Tensor, g: Tensor, records: int, side: int, stride: int, padding: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """From inputs x and gradients g of outputs, equally many for each record: (records, outputs, inputs · kernel).

    Kernels are in the order (outputs, height, width, inputs). The input windows are never written out: a program
    takes one record, some outputs, some inputs and one row of the kernel, and loops over all positions of all views,
    so that each value of g that it reads serves every column of that row. Where records are few, each is split into
    parts, so that the whole GPU has work.
    """
    x, g = channels_last(x), channels_last(g)
    outputs, inputs, views = g.shape[1], x.shape[1], len(g) // records
    bo, bc = (min(64, max(16, triton.next_power_of_2(size))) for size in (outputs, inputs))
    bo = 128 if outputs % 128 == 0 else bo
    programs = side * triton.cdiv(inputs, bc) * triton.cdiv(outputs, bo)
    parts = 1
    while 2 * parts <= 8 and views % (2 * parts) == 0 and records * parts * programs < _PROGRAMS:
        parts *= 2
    kind = dtype if parts == 1 else torch.float32
    out = torch.empty(records * parts, outputs, side * side * inputs, device=x.device, dtype=kind)
    _weight[records * parts, programs](
        g, x, out, views // parts * g.shape[2] * g.shape[3], *g.shape[2:], *x.shape[2:], outputs, inputs,
        side, side, stride, padding, bo, bc, 32, num_warps=8 if bo == 128 else 4, num_stages=3,
    )  # fmt: skip
    return out if parts == 1 else out.unflatten(0, (records, parts)).sum(1, dtype=torch.float32).to(dtype)
