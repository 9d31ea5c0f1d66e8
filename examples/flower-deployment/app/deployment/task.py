"""Data, model and training: scikit-learn's digits, a linear model in numpy, one clipped step a round.

A step is a function of the received model and the client's images alone, so that whoever has both can say what a
client's update was before noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sklearn.datasets import load_digits

import lightdp

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHAPE = (65, 10)  # 64 pixels and a constant, 10 digits
TEST = 360  # images that no client has
RECORDS = 1797 - TEST
RATE = 0.004  # of the sum of all clients' gradients


def plan(clients: int) -> lightdp.Plan:
    """ε = 8 for each image over the whole training, with room for several uploads that come too late."""
    return lightdp.plan(
        clients=clients,
        colluders=1,
        stragglers=2,
        rounds=40,
        epsilon=8,
        delta=1e-5,
        unit="record",
        clip=RATE * clients,
        records=RECORDS,
        calibration="repair",
    )


def data() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Images, (n, 65), and labels, (n, 10), in one order for everybody."""
    x, y = load_digits(return_X_y=True)
    order = np.argsort(np.sin(1e4 * np.arange(len(x))))  # some order that mixes the writers
    return np.c_[x / 16, np.ones(len(x))][order], np.eye(10)[y[order]]


def update(weights: NDArray[np.float64], partition: int, partitions: int) -> NDArray[np.float64]:
    """What a client adds to the model: minus the sum of its images' gradients, each clipped to norm 1, scaled.

    One image changes it by at most RATE · partitions, which is the plan's clip.
    """
    x, y = (part[TEST:][partition::partitions] for part in data())
    scores = np.exp(x @ weights)
    error = scores / scores.sum(1, keepdims=True) - y
    norms = np.linalg.norm(error, axis=1) * np.linalg.norm(x, axis=1)  # of each image's gradient
    return -RATE * partitions * x.T @ (error / np.maximum(norms, 1)[:, None])


def accuracy(weights: NDArray[np.float64]) -> float:
    """The share of the test images that are read rightly."""
    x, y = (part[:TEST] for part in data())
    return float(((x @ weights).argmax(1) == y.argmax(1)).mean())
