"""Two views of an image that should get similar features: crops of other sizes, mirrored, in other colours."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample

_LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue are
_TURN = 0.1  # of a whole turn of colours


def view(images: Tensor, side: int, draw: torch.Generator, *, smallest: float = 0.15, jitter: float = 0.4) -> Tensor:
    """One random view of each image, with values in [0, 1]. (n, 3, side, side)

    >>> view(torch.rand(2, 3, 64, 64), 32, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])

    Args:
        images: with values in [0, 1]. (n, 3, height, width)
        side: of the views.
        draw: makes all random numbers, on the device of the images.
        smallest: the least share of an image that a crop shows.
        jitter: how much brightness, contrast and saturation change, relative to 1, in four of five views; one of five
            is grey.
    """
    return _recoloured(_cropped(images, side, draw, smallest), draw, jitter).clamp_(0, 1)


def _cropped(images: Tensor, side: int, draw: torch.Generator, smallest: float) -> Tensor:
    """Crops that are sampled twice as fine as they are wanted, so that shrinking makes no false patterns."""
    n = len(images)
    area = smallest + (1 - smallest) * _uniform(draw, n)
    ratio = torch.exp(math.log(4 / 3) * (2 * _uniform(draw, n) - 1))
    width, height = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
    x, y = ((2 * _uniform(draw, n) - 1) * (1 - size) for size in (width, height))
    width = torch.where(_uniform(draw, n) < 0.5, width, -width)
    nothing = torch.zeros_like(width)
    maps = torch.stack([torch.stack([width, nothing, x], 1), torch.stack([nothing, height, y], 1)], 1)
    grid = affine_grid(maps, [n, 3, 2 * side, 2 * side], align_corners=False)
    return avg_pool2d(grid_sample(images, grid, padding_mode="reflection", align_corners=False), 2)


def _recoloured(images: Tensor, draw: torch.Generator, jitter: float) -> Tensor:
    """Other brightness, contrast, saturation and hue: one linear map of the colours of each image."""
    n, device = len(images), images.device
    some = _uniform(draw, n, 1, 1) < 0.8
    bright, contrast, saturation = (
        1 + some * jitter * (2 * _uniform(draw, n, 1, 1) - 1) for _ in range(3)
    )  # fmt: skip
    angle = some * 2 * math.pi * _TURN * (2 * _uniform(draw, n, 1, 1) - 1)
    saturation = torch.where(_uniform(draw, n, 1, 1) < 0.2, 0.0, saturation)
    unit = torch.eye(3, device=device)
    grey = torch.tensor([_LUMA] * 3, device=device)
    mean = torch.full((3, 3), 1 / 3, device=device)
    axis = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], device=device) / math.sqrt(3)
    turn = angle.cos() * (unit - mean) + mean + angle.sin() * axis  # about the axis of greys
    colours = (grey + saturation * (unit - grey)) @ turn * (bright * contrast)  # (n, 3, 3)
    middle = (images * torch.tensor(_LUMA, device=device).view(1, 3, 1, 1)).sum(1).mean((1, 2)).view(n, 1, 1, 1)
    offset = (bright * (1 - contrast))[..., None] * middle
    return torch.einsum("nij,njhw->nihw", colours, images) + offset


def _uniform(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=draw, device=draw.device)
