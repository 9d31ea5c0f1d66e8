"""How good a start is: a linear model on its features, without noise. A yardstick that protects nobody."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lightdp.training.data import Dataset


def features(model: nn.Module, x: Tensor) -> Tensor:
    """What the last layer gets of each record, the mean of the image and its mirror image. (n, width)

    >>> features(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), torch.ones(3, 3, 2, 2)).shape
    torch.Size([3, 12])

    Args:
        model: layers, the last of them linear.
        x: images. (n, channels, height, width)
    """
    body, half = model[:-1], x.is_cuda
    with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=half):
        return torch.cat([(body(part).float() + body(part.flip(3)).float()) / 2 for part in x.split(2000)])


def linear(model: nn.Module, source: Dataset, device: torch.device | str, *, iterations: int = 200) -> float:
    """Test accuracy of multinomial logistic regression on the features of a model.

    Args:
        model: as for `features`.
        source: images and labels; what the accuracy is of is its test part.
        device: where.
        iterations: of L-BFGS at most.
    """
    model = model.to(device)
    train, test = (features(model, torch.from_numpy(x).to(device)) for x in (source.train_x, source.test_x))
    spread, mean = torch.std_mean(train, 0)
    train, test = ((x - mean) / (spread + 1e-6) for x in (train, test))
    labels = torch.from_numpy(source.train_y).to(device)
    layer = nn.Linear(train.shape[1], source.classes, device=device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    search = torch.optim.LBFGS(layer.parameters(), max_iter=iterations, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        value = cross_entropy(layer(train), labels) + 1e-4 * layer.weight.square().sum()
        value.backward()
        return value

    search.step(loss)
    with torch.no_grad():
        found = layer(test).argmax(1).cpu()
    return float((found == torch.from_numpy(source.test_y)).double().mean())
