"""Model and training: handwritten digits by a linear model of fixed features, in numpy, one clipped step a round.

A step is a function of the received model and the client's images alone, so that whoever has both can say what a
client's update was before noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import lightdp

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SHAPE = (400, 10)  # 64 pixels, 335 mixtures of them and a constant; 10 digits
TEST = 360  # images that no client has
RECORDS = 1797 - TEST
RATE = 0.002  # of the sum of all clients' gradients


def plan(clients: int, population: int, *, stragglers: int) -> lightdp.Plan:
    """ε = 8 for each image over the whole training; uploads that come during the next round of a roster count."""
    return lightdp.plan(
        clients=clients,
        population=population,
        colluders=0,
        stragglers=stragglers,
        rounds=40,
        epsilon=8,
        delta=1e-5,
        unit="record",
        clip=RATE * clients,
        records=RECORDS,
        calibration="repair",
        grace=1,
        momentum=0.0,  # the server uses FedAvg
    )


def prepare(folder: Path, clients: int) -> None:
    """Share out scikit-learn's digits: a file for each node, and one of images that no node has."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # noqa: PLC0415  nodes start faster

    x, y = load_digits(return_X_y=True)
    mixtures = np.cos(1e3 * np.arange(64 * 335) ** 1.3).reshape(64, 335) / 10
    x, y = np.c_[x / 16, np.maximum(x / 16 @ mixtures, 0), np.ones(len(x))], np.eye(10)[y]
    mixed = np.argsort(np.sin(1e4 * np.arange(len(x))))
    parts = {"test": mixed[:TEST]} | {f"node-{k}": mixed[TEST:][k::clients] for k in range(clients)}
    for name, part in parts.items():
        np.savez(folder / f"{name}.npz", x=x[part], y=y[part])


def parts(weights: NDArray[np.float64], path: str | Path, scale: float) -> NDArray[np.float64]:
    """Minus the gradient of each of a client's images, times `scale`. (images, *SHAPE)"""
    with np.load(path) as data:
        x, y = data["x"], data["y"]
    scores = x @ weights
    scores = np.exp(scores - scores.max(1, keepdims=True))
    error = scores / scores.sum(1, keepdims=True) - y
    return -scale * x[:, :, None] * error[:, None, :]


def accuracy(weights: NDArray[np.float64], path: Path) -> float:
    """The share of images that are classified correctly."""
    with np.load(path) as data:
        return float(((data["x"] @ weights).argmax(1) == data["y"].argmax(1)).mean())
