"""Small models and records, and what clients compute on them, written out one record and one batch at a time."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from lightdp.training import gradients  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CLASSES = 5


def linear(*, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES, bias=bias))


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(36, CLASSES),
    )


MODELS = [
    pytest.param(linear, id="linear"),
    pytest.param(lambda: linear(bias=False), id="linear-without-bias"),
    pytest.param(lambda: linear()[1], id="layer-alone"),
    pytest.param(convolutional, id="convolutional"),
]


def records(n: int, model: nn.Module, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (36,) if isinstance(model, nn.Linear) else (1, 6, 6)
    x = torch.rand(n, *shape, generator=generator) * 3
    return x, torch.randint(CLASSES, (n,), generator=generator), torch.randint(4, (n,), generator=generator)


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    g = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
    return torch.cat([piece.reshape(-1) for piece in g])


def sums_by_record(model: nn.Module, x: Tensor, y: Tensor, owner: Tensor, *, clients: int, clip: float) -> Tensor:
    model, x = copy.deepcopy(model).double(), x.double()
    sums = torch.zeros(clients, len(gradients.flatten(model)), dtype=torch.float64)
    for i, client in enumerate(owner.tolist()):
        g = gradient(model, x[i : i + 1], y[i : i + 1])
        sums[client] += g * min(1.0, clip / float(g.norm()))
    return sums


def updates_by_hand(model: nn.Module, x: Tensor, y: Tensor, plans: list[Tensor], lr: float) -> Tensor:
    received, updates = gradients.flatten(model), []
    for plan in plans:
        local = copy.deepcopy(model)
        for rows in plan:
            used = rows[rows >= 0]
            gradients.assign(local, gradients.flatten(local) - lr * gradient(local, x[used], y[used]))
        updates.append(gradients.flatten(local) - received)
    return torch.stack(updates)


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return float((a - b).norm()) <= tolerance * float(b.norm())
