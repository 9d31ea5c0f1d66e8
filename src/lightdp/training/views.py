"""Views of a record: images that mean the same, whose gradients are averaged before they are clipped.

The mean over its views is one vector for each record, so privacy is that of one gradient; it varies less than the
gradient of the record alone, and the model sees more images than there are (augmentation multiplicity).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lightdp.errors import ArgumentError
from lightdp.training import models

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["crops", "draw", "mirrored"]

_SHIFT = 4  # pixels that a crop may be off in each direction


def draw(rng: np.random.Generator, records: int, count: int) -> NDArray[np.int64]:  # noqa: TID251  protects nothing
    """For each record and view: how far down, how far right, and whether mirrored. (records, count, 3)"""
    return rng.integers([2 * _SHIFT + 1, 2 * _SHIFT + 1, 2], size=(records, count, 3))


def crops(x: Tensor, drawn: Tensor) -> Tensor:
    """Crops of images (n, c, h, w) that are padded by reflection, 4 pixels a side, as `drawn`: (n, count, c, h, w)."""
    if x.ndim != 4 or min(x.shape[2:]) <= _SHIFT:
        raise ArgumentError(f"views need images with sides above {_SHIFT}, got records of shape {tuple(x.shape[1:])}")
    height, width = x.shape[2:]
    padded = torch.nn.functional.pad(x, (_SHIFT,) * 4, mode="reflect")
    down, right, mirror = drawn.unbind(2)
    along = torch.arange(width, device=x.device)
    rows = down[..., None] + torch.arange(height, device=x.device)
    columns = right[..., None] + torch.where(mirror[..., None] == 1, width - 1 - along, along)
    record = torch.arange(len(x), device=x.device)[:, None, None, None]
    return padded[record, :, rows[..., None], columns[..., None, :]].movedim(-1, 2)


def mirrored(x: Tensor) -> Tensor:
    """Scattering features and those of the mirrored images: (n, 2, c, h, w)."""
    return torch.stack([x, models.mirrored(x)], 1)
