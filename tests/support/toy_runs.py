"""Small runs on two blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.runlog import RunLog

QUICK: dict[str, Any] = {"clients": 8, "colluders": 2, "stragglers": 2, "rounds": 6, "epsilon": 20.0, "lr": 1.0}


def blobs() -> Dataset:
    """Two blobs that a linear model tells apart."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    x = (rng.normal(size=(400, 5)) + 3 * (2 * y[:, None] - 1)).astype(np.float32)
    return Dataset(name="toy", train_x=x[:300], train_y=y[:300], test_x=x[300:], test_y=y[300:], classes=2)


def played(path: Path, toy: Dataset, **changed: Any) -> RunLog:
    return Run(Config(**(QUICK | changed)), path, dataset=toy).finish()
