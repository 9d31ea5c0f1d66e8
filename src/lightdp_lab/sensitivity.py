"""How far one record really moves an update that nothing clips, beside the sensitivity that the paper assumes (P4)."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

import numpy as np
import torch

from lightdp.training import models, partition, sgd
from lightdp.training.config import Config
from lightdp_lab.reproduce import same
from lightdp_lab.results import prepared


def settings(config: Config, replaced: int) -> dict[str, Any]:
    """By which such a line is found."""
    return same(dataclasses.replace(config, scheme="none")) | {"replaced": replaced}


def moved(config: Config, replaced: int) -> dict[str, Any]:
    """The line that is kept: how far the update of the median client moves when one of its records is another.

    Each of `replaced` trials puts a record of somebody else's in the place of one of the client's and trains as
    before, from the same start on the same batches. "ratio" is how far the update moved as a multiple of
    Δ = 2 η clip/|D_i|, which would be at most 1 if Δ were a sensitivity.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    source, train_x, _ = prepared(config.data, config.data_path, config.model, config.mirror, device)
    parts = partition.split(source.train_y, config.clients, config.partition, config.seed)
    mine = sorted(parts, key=len)[len(parts) // 2]
    rng = np.random.default_rng([config.seed, replaced])  # noqa: TID251  which records to look at
    others = rng.choice(np.setdiff1d(np.arange(len(source.train_y)), mine), replaced, replace=False)
    rows = torch.from_numpy(np.concatenate([mine, others]))
    x, y = train_x[rows.to(device)], torch.from_numpy(source.train_y)[rows].to(device)
    own, places = torch.arange(len(mine)), rng.choice(len(mine), replaced, replace=False).tolist()
    plans = [own, *(torch.where(own == place, len(mine) + trial, own) for trial, place in enumerate(places))]
    model = models.build(config.model, tuple(x.shape[1:]), source.classes, config.seed).to(device)
    updates = sgd.local_updates(
        model, x, y, plans, numbers=[0] * len(plans), epochs=config.epochs, batch=config.batch, lr=config.local_lr,
        seed=config.seed, round=0, half=False,
    )  # fmt: skip
    assumed = 2 * config.local_lr * config.clip / len(mine)
    ratios = [float(torch.linalg.vector_norm(row - updates[0])) / assumed for row in updates[1:]]
    return {
        "config": settings(config, replaced),
        "records": len(mine),
        "assumed": assumed,
        "ratio": {"median": statistics.median(ratios), "largest": max(ratios)},
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }
