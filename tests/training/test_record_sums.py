"""No record moves a sum of clipped gradients by more than the clip, also where rounding could help it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lightdp.training import fast, gradients, models, persons  # noqa: E402
from support.by_hand import GPU  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor


@pytest.mark.parametrize(("size", "clip"), [(100.0, 0.1), (1000.0, 1.0), (1e4, 1.0)])
def test_a_record_moves_a_sum_by_no_more_than_the_clip_whatever_maps_take_away(size: float, clip: float) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        models.StandardisedConv(1, 4, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(144, 2, bias=False)
    )
    nn.init.normal_(model[3].weight)
    x = size + 1e-3 * torch.randn(1001, 1, 8, 8)  # gradients of the kernels lie nearly along what their map removes
    y = torch.zeros(1001, dtype=torch.long)
    whole, without = (gradients.clipped_sums(model, x[k:], y[k:], y[k:], 1, clip)[0].double() for k in (0, 1))
    assert float((whole - without).norm()) <= 1.001 * clip


def test_clipped_sums_of_a_model_in_float64_are_mapped() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(models.StandardisedConv(1, 4, 3, bias=False), nn.Flatten(), nn.Linear(144, 2)).double()
    x, y = torch.rand(3, 1, 8, 8).double(), torch.tensor([0, 1, 0])
    found = gradients.clipped_sums(model, x, y, torch.zeros(3, dtype=torch.long), 1, 1e3)
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(found[0], plain, rtol=1e-9, atol=1e-12)


DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def _moved(model: nn.Module, x: Tensor, y: Tensor, kept: Tensor, clip: float) -> float:
    """How far the sum moves when the other records go, in clips."""
    one = [torch.zeros(n, dtype=torch.long, device=x.device) for n in (len(y), int(kept.sum()))]
    whole = gradients.clipped_sums(model, x, y, one[0], 1, clip).double()
    left = gradients.clipped_sums(model, x[kept], y[kept], one[1], 1, clip).double()
    return float((whole - left).norm()) / clip


def _each(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return gradients.clipped_sums(model, x, y, torch.arange(len(y), device=x.device), len(y), 1.0)


def _ties(weight: Tensor, size: float, seed: int) -> None:
    """Two classes whose logits are equal for symmetric features: rounding decides, by a lead of more than 100."""
    row = size * torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        weight.copy_(torch.stack([row, row.flip(0), -row.abs()]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_no_record_changes_the_rounding_of_others(norm: bool, seed: int, device: str) -> None:
    """Weights at which rounding chooses the class; places and numbers of records must not choose it."""
    generator = torch.Generator().manual_seed(100 + seed)
    head = nn.Linear(999, 3, bias=False)
    _ties(head.weight, 1e6, seed)
    model = nn.Sequential(nn.GroupNorm(1, 999), nn.ReLU(), head) if norm else head
    if norm:
        nn.init.constant_(model[0].bias, 1e4)
    x, y = torch.rand(33, 999, generator=generator).to(device), torch.full((33,), 2, device=device)
    x, model = x + x.flip(1), model.to(device)
    every = torch.arange(33, device=device)
    for n in (2, 5, 9, 33):
        for gone in (0, n // 2, n - 1):
            kept = every[:n] != gone
            assert torch.equal(_each(model, x[:n], y[:n])[kept], _each(model, x[:n][kept], y[:n][kept]))
            assert _moved(model, x[:n], y[:n], kept, 0.1) <= 1 + 1e-5
    assert _moved(model, x, y, every > 1, 0.1) > 1.5  # two records
    kept = every > 0
    whole = persons.clipped_sums(model, x, y, every, every, 33, 0.1)
    left = persons.clipped_sums(model, x[kept], y[kept], every[:32], every[:32], 32, 0.1)
    assert torch.equal(whole[1:], left)


@pytest.mark.parametrize("seed", range(3))
def test_no_record_changes_the_rounding_of_others_in_a_model_of_unknown_layers(seed: int) -> None:
    """Taken together, in passes of equally many, one record moved such sums by up to 4.5 clips."""
    generator = torch.Generator().manual_seed(200 + seed)
    model = nn.Sequential(nn.Softplus(), nn.Linear(999, 3, bias=False))
    _ties(model[1].weight, 1e6, seed)
    assert not fast.knows(model)
    x = torch.rand(33, 999, generator=generator)
    x, y, every = x + x.flip(1), torch.full((33,), 2), torch.arange(33)
    whole, alone = _each(model, x, y), persons.clipped_sums(model, x, y, every, every, 33, 1.0)
    for gone in range(0, 33, 4):
        kept = every != gone
        assert torch.equal(whole[kept], _each(model, x[kept], y[kept]))
        assert _moved(model, x, y, kept, 0.1) <= 1 + 1e-5
        left = persons.clipped_sums(model, x[kept], y[kept], every[:32], every[:32], 32, 1.0)
        assert torch.equal(alone[kept], left)


@pytest.mark.parametrize(("inputs", "side", "outputs"), [(1, 9, 25), (6, 8, 1), (1, 5, 21), (7, 7, 3)])
def test_no_record_changes_the_rounding_of_a_convolution_of_odd_sizes(inputs: int, side: int, outputs: int) -> None:
    """Products of gradients and inputs that begin inside 64 bytes were added up in another order."""
    torch.manual_seed(inputs)
    layers = nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(outputs * side**2, 3)
    model, x, y = nn.Sequential(*layers), torch.randn(32, inputs, side, side), torch.randint(0, 3, (32,))
    whole, every = _each(model, x, y), torch.arange(32)
    for gone in (0, 3, 17):
        kept = every != gone
        assert torch.equal(whole[kept], _each(model, x[kept], y[kept]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [0.0, 100.0, 1e4])
def test_no_record_changes_the_rounding_of_others_in_a_wrn(bias: float, device: str) -> None:
    """The last layer chooses a class by how the features of a record alone differ from those in company."""
    generator = torch.Generator().manual_seed(0)
    model = models.build("wrn-16-4", (3, 8, 8), 3, seed=0).to(device)
    nn.init.constant_(next(layer for layer in model.modules() if isinstance(layer, nn.GroupNorm)).bias, bias)
    x = torch.rand(2, 3, 8, 8, generator=generator).to(device)
    y, kept = torch.tensor([2, 2], device=device), torch.tensor([False, True], device=device)
    body = fast.Records(model, half=False).model[:-1]
    with torch.autocast(device, torch.bfloat16, enabled=x.is_cuda):  # as clipped sums compute there
        company, alone = body(x)[1].double(), body(x[kept])[0].double()
    middle = (company + alone) / 2
    apart = company - alone
    apart -= middle * (apart @ middle) / middle.square().sum()
    apart /= apart.norm().clamp_min(1e-30)
    for sign in (1, -1):
        with torch.no_grad():
            model[-1].weight.copy_(1e12 * torch.stack([sign * apart, -sign * apart, -middle / middle.norm()]))
        assert torch.equal(_each(model, x, y)[kept], _each(model, x[kept], y[kept]))
        assert 0.9 < _moved(model, x, y, kept, 1e-3) <= 1 + 1e-5


@GPU
@pytest.mark.parametrize("size", [84, 1352])
def test_terms_of_a_wrn_on_a_gpu_do_not_depend_on_places(size: int) -> None:
    """In bfloat16, at sizes of whole passes; in float32 they do (W6)."""
    generator = torch.Generator().manual_seed(1)
    model = models.build("wrn-16-4", (3, 32, 32), 5, seed=0).cuda()
    x = torch.rand(size + 1, 4, 3, 32, 32, generator=generator).cuda()
    y = torch.randint(5, (size + 1,), generator=generator).cuda()
    taken = fast.Records(model, half=True)
    (whole, norms), (later, norms_later) = (taken.terms(x[k : k + size], y[k : k + size]) for k in (0, 1))
    assert torch.equal(norms[1:], norms_later[:-1])
    for a, b in zip(whole, later, strict=True):
        assert torch.equal(a[1:], b[:-1])


def test_a_record_whose_term_is_shortened_before_the_sum_leaves_the_terms_of_others() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(models.StandardisedConv(1, 4, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(144, 2))
    x, y = torch.randn(3, 1, 1, 8, 8), torch.zeros(3, dtype=torch.long)
    x[0] = 1e4 + 1e-3 * x[0]
    nn.init.normal_(model[3].weight)
    other = x.clone()
    other[0] = x[1]
    found, plain = (fast.Records(model, half=False).terms(each, y)[0] for each in (x, other))
    for a, b in zip(found, plain, strict=True):
        assert torch.equal(a[1:], b[1:])
