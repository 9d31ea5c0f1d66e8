"""Data, model and local training: scikit-learn's digits (no download) and a linear model in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn

if TYPE_CHECKING:
    from flwr.app import UserConfig

TEST = 360  # images that no client has


def model() -> nn.Module:
    """64 pixels to 10 digits, from zero."""
    net = nn.Linear(64, 10)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return net


def test_data() -> tuple[Tensor, Tensor]:
    """The images that no client has."""
    x, y = _shuffled()
    return x[:TEST], y[:TEST]


def client_data(node_config: UserConfig) -> tuple[Tensor, Tensor]:
    """One client's share, independent and identically distributed."""
    partition, partitions = int(node_config["partition-id"]), int(node_config["num-partitions"])
    x, y = _shuffled()
    return x[TEST:][partition::partitions], y[TEST:][partition::partitions]


def train(net: nn.Module, x: Tensor, y: Tensor, *, steps: int, rate: float) -> float:
    """Gradient steps on all of a client's images; returns the last loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of images that are classified correctly."""
    with torch.no_grad():
        return float((net(x).argmax(1) == y).double().mean())


def _shuffled() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x / 16, dtype=torch.float32)[order], torch.tensor(y)[order]
