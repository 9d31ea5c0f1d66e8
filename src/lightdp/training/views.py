"""Views of a record: images with the same meaning, whose gradients are averaged before they are clipped.

The mean over its views is still one clipped vector for each record, so views cost no privacy. It varies less than the
gradient of the record alone, and the model sees more images than there are records (augmentation multiplicity).

`lightdp.training.clients` draws views and passes them to `lightdp.training.gradients.clipped_sums`: random crops and
mirror images for models of images, the mirror image alone for scattering features, which are computed only once.

>>> import numpy as np
>>> images = torch.arange(25.0).reshape(1, 1, 5, 5)
>>> drawn = torch.from_numpy(draw(np.random.default_rng(0), records=1, count=3))
>>> crops(images, drawn).shape
torch.Size([1, 3, 1, 5, 5])
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightdp.errors import ArgumentError

_SHIFT = 4  # pixels that a crop may be off in each direction


def draw(rng: np.random.Generator, records: int, count: int) -> NDArray[np.int64]:  # noqa: TID251  protects nothing
    """For each record and view: how far down (0..8), how far right (0..8), and whether mirrored. (records, count, 3)

    Args:
        rng: decides only which views are seen; it protects nothing.
        records: how many records.
        count: views of each.
    """
    return rng.integers([2 * _SHIFT + 1, 2 * _SHIFT + 1, 2], size=(records, count, 3))


def crops(x: Tensor, drawn: Tensor) -> Tensor:
    """Crops of images that were padded by reflection, 4 pixels a side. (n, count, c, h, w)

    Args:
        x: images with sides above 4. (n, c, h, w)
        drawn: the offsets and mirrorings of `draw`; (4, 4, 0) is the image itself. (n, count, 3)

    Raises:
        ArgumentError: x holds no images, or too small ones.
    """
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
