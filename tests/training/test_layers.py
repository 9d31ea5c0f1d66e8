"""Layers that stand in for a model's own compute the same."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lightdp.training import models  # noqa: E402
from lightdp.training.fast import _layers  # noqa: E402
from support.by_hand import CLASSES, GPU, close, gradient, records  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor


def norm_and_inputs(groups: int, shape: tuple[int, ...]) -> tuple[nn.GroupNorm, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    norm = nn.GroupNorm(groups, shape[1], eps=1e-3)
    nn.init.normal_(norm.weight, generator=generator)
    nn.init.normal_(norm.bias, generator=generator)
    return norm, torch.randn(shape, generator=generator) * 2 + 1, torch.randn(shape, generator=generator)


def agree(norm: nn.GroupNorm, x: Tensor, skip: Tensor | None, *, relu: bool) -> None:
    """`Norm` gives the output and all gradients of torch's own norm, sum and ReLU in float64."""
    ours, exact = _layers.Norm(norm, relu=relu), copy.deepcopy(norm).double()
    values = [x] if skip is None else [x, skip]
    values = [v.detach().requires_grad_() for v in values]
    wide = [v.detach().double().requires_grad_() for v in values]
    y, expected = ours(*values), sum(wide[1:], exact(wide[0]))
    expected = expected.relu() if relu else expected
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x)
    found = torch.autograd.grad(y, [*values, *ours.parameters()], weights)
    sought = torch.autograd.grad(expected, [*wide, *exact.parameters()], weights.double())
    for a, b in zip((y, *found), (expected, *sought), strict=True):
        assert close(a.detach(), b.detach(), 5e-6)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_norm_is_group_norm_with_what_follows(channels_last: bool, relu: bool) -> None:
    norm, x, skip = norm_and_inputs(3, (4, 12, 5, 7))
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    agree(norm, x, None, relu=relu)
    agree(norm, x, skip, relu=relu)
    agree(norm, x[:, :, 0, 0], skip[:, :, 0, 0], relu=relu)


@GPU
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("groups", "shape"),
    [(32, (3, 64, 32, 32)), (32, (2, 512, 4, 4)), (2, (5, 4, 6, 6)), (3, (4, 12, 5, 7)), (4, (2, 12, 3, 3))],
)
def test_norm_on_a_gpu_is_group_norm_with_what_follows(groups: int, shape: tuple[int, ...], relu: bool) -> None:
    """The last shape has groups of three channels, for which there is no kernel."""
    norm, x, skip = (t.cuda() for t in norm_and_inputs(groups, shape))
    for layout in (torch.channels_last, torch.contiguous_format):
        agree(norm, x.contiguous(memory_format=layout), None, relu=relu)
        agree(norm, x.contiguous(memory_format=layout), skip, relu=relu)


@pytest.mark.parametrize("name", ["resnet18", "wrn-16-4"])
def test_swapping_norms_keeps_the_function_and_the_names_of_parameters(name: str) -> None:
    model = models.build(name, (1, 8, 8), CLASSES, seed=0)
    x, y, _ = records(4, nn.Flatten())
    x = nn.functional.pad(x, (1, 1, 1, 1))
    twin = _layers.with_norms(copy.deepcopy(model))
    assert [name for name, _ in twin.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert not any(isinstance(layer, nn.GroupNorm | nn.ReLU) for layer in twin.modules())
    assert close(gradient(twin, x, y), gradient(model, x, y), 1e-5)


def test_norms_take_in_only_what_follows_in_a_sequence() -> None:
    class Apart(nn.Module):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.relu = nn.GroupNorm(1, 2), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.relu(x))

    model, x = Apart(), torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(_layers.with_norms(copy.deepcopy(model))(x), model(x), atol=1e-5)
