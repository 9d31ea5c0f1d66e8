"""A start from noise: images, the file, the training that makes it, and private training from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lightdp.errors import ArgumentError
from lightdp.training.data import Dataset
from lightdp_lab.prior import commands, finetune, pretrain, probe, processes, start
from lightdp_lab.prior.augment import view
from lightdp_lab.prior.recipe import Recipe

TINY: dict[str, Any] = {"model": "cnn", "steps": 3, "batch": 4, "side": 32, "pool": 8, "fresh": 1}


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("leaves", [0.0, 0.5, 1.0])
def test_images_follow_from_the_seed_and_differ_from_each_other(leaves: float) -> None:
    images = processes.sample(6, 16, draw(), leaves=leaves)
    assert images.shape == (6, 3, 16, 16)
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    assert torch.equal(images, processes.sample(6, 16, draw(), leaves=leaves))
    assert not torch.equal(images, processes.sample(6, 16, draw(1), leaves=leaves))
    apart = torch.cdist(images.flatten(1), images.flatten(1)).fill_diagonal_(1.0)
    assert float(apart.min()) > 0.5
    assert float(images.std((1, 2, 3)).min()) > 0.01


def test_textures_have_mean_0_and_deviation_1() -> None:
    for images in (processes.coloured(5, 16, draw()), processes.generated(5, 16, draw())):
        torch.testing.assert_close(images.mean((1, 2, 3)), torch.zeros(5), atol=1e-4, rtol=0)
        torch.testing.assert_close(images.std((1, 2, 3)), torch.ones(5), atol=1e-2, rtol=0)


def test_a_view_of_one_colour_has_one_colour_and_views_differ() -> None:
    plain = torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1).expand(20, 3, 32, 32)
    seen = view(plain, 16, draw())
    assert seen.shape == (20, 3, 16, 16)
    assert float(seen.std((2, 3)).max()) < 1e-5
    assert float(seen[:, :, 0, 0].std(0).min()) > 0.01
    kept = view(plain, 16, draw(), jitter=0.0)
    assert float(kept.mean()) == pytest.approx(0.5, abs=0.02)
