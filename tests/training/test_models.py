"""Models are functions of one record each, of their seed alone, and work where private training needs them."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from lightdp.errors import ArgumentError
from lightdp.training.models import NAMES, build, prepare

SHAPES: dict[str, list[tuple[int, ...]]] = {
    "linear": [(64,), (1, 8, 8), (3, 32, 32)],
    "cnn": [(1, 8, 8), (1, 28, 28), (3, 32, 32)],
    "scattering-linear": [(81, 2, 2), (81, 7, 7), (243, 8, 8)],
    "scattering-cnn": [(81, 2, 2), (81, 7, 7), (243, 8, 8)],
    "resnet18": [(3, 16, 16)],
    "wrn-16-4": [(1, 16, 16)],
}
CASES = [(name, shape) for name in NAMES for shape in SHAPES[name]]


def records(shape: tuple[int, ...], n: int = 3, seed: int = 1) -> torch.Tensor:
    return torch.rand((n, *shape), generator=torch.Generator().manual_seed(seed))


def loss(model: nn.Module, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("linear", (3, 32, 32), 3072 * 10 + 10),
        ("linear", (64,), 64 * 10 + 10),
        ("scattering-linear", (243, 8, 8), 243 * 64 * 10 + 10),
        ("cnn", (1, 28, 28), 16 * 26 + 32 * 401 + 64 * (32 * 49 + 1) + 650),
        ("cnn", (1, 8, 8), 16 * 26 + 32 * 401 + 64 * (32 * 4 + 1) + 650),
        ("scattering-cnn", (243, 8, 8), 64 * (243 * 9 + 1) + 64 * 577 + 10 * (64 * 16 + 1)),
        ("resnet18", (3, 32, 32), 11_173_962),
        ("wrn-16-4", (3, 32, 32), 2_748_890),
    ],
)
def test_parameter_count(name: str, shape: tuple[int, ...], count: int) -> None:
    assert sum(p.numel() for p in build(name, shape, 10, 0).parameters()) == count


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_gives_one_logit_a_class_and_starts_near_even_odds(name: str, shape: tuple[int, ...]) -> None:
    x = records(shape)
    y = torch.tensor([0, 1, 2])
    logits = build(name, shape, 7, 3)(x)
    assert logits.shape == (3, 7)
    assert 0 < nn.functional.cross_entropy(logits, y).item() < 2 * torch.tensor(7.0).log().item()


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_gradient_of_a_record_under_vmap_is_its_gradient_alone(name: str, shape: tuple[int, ...]) -> None:
    # in float64: in float32 rounding may move an activation across the kink of ReLU
    model, x, y = build(name, shape, 5, 0).double(), records(shape).double(), torch.tensor([0, 3, 4])
    parameters = dict(model.named_parameters())
    per_record = vmap(grad(lambda p, a, b: loss(model, p, a, b)), in_dims=(None, 0, 0))(parameters, x, y)
    for i in range(len(x)):
        alone = torch.autograd.grad(loss(model, parameters, x[i], y[i]), list(parameters.values()))
        for key, expected in zip(parameters, alone, strict=True):
            torch.testing.assert_close(per_record[key][i], expected, rtol=1e-7, atol=1e-9, msg=key)


@pytest.mark.parametrize("name", ["cnn", "scattering-cnn", "resnet18", "wrn-16-4"])
def test_clients_with_their_own_parameters_train_under_vmap(name: str) -> None:
    shape = SHAPES[name][0]
    model, x, y = build(name, shape, 5, 0).double(), records(shape, 2).double(), torch.tensor([0, 3])
    clients = {key: torch.stack([p.detach(), 1.1 * p.detach()]) for key, p in model.named_parameters()}
    gradients = vmap(grad(lambda p, a, b: loss(model, p, a, b)))(clients, x, y)
    for i in range(2):
        own = {key: p[i].clone().requires_grad_() for key, p in clients.items()}
        alone = torch.autograd.grad(loss(model, own, x[i], y[i]), list(own.values()))
        for key, expected in zip(own, alone, strict=True):
            torch.testing.assert_close(gradients[key][i], expected, rtol=1e-7, atol=1e-9, msg=key)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_output_of_a_record_ignores_the_others(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 5, 0)
    if name.endswith("linear"):
        nn.init.normal_(model[1].weight, generator=torch.Generator().manual_seed(0))
    x = records(shape)
    other = torch.cat([x[:1], records(shape, 2, seed=2)])
    torch.testing.assert_close(model(x)[:1], model(other)[:1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(x)[1:], model(other)[1:], rtol=1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_has_no_buffers_and_nothing_that_depends_on_the_batch_or_on_chance(name: str) -> None:
    model = build(name, SHAPES[name][0], 5, 0)
    forbidden = nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd
    assert not list(model.buffers())
    assert not [layer for layer in model.modules() if isinstance(layer, forbidden) or getattr(layer, "inplace", False)]
    assert all(p.requires_grad and p.device.type == "cpu" and p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_a_function_of_the_seed_alone(name: str) -> None:
    shape = SHAPES[name][0]
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = digest(build(name, shape, 5, 9))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(6)
    assert digest(build(name, shape, 5, 9)) == first
    assert (digest(build(name, shape, 5, 10)) == first) == name.endswith("linear")


def test_weights_have_the_stated_variance() -> None:
    convolutions = [m for m in build("resnet18", (3, 8, 8), 10, 0).modules() if isinstance(m, nn.Conv2d)]
    for layer in convolutions[5:]:
        fan_in = layer.weight[0].numel()
        assert layer.weight.square().mean().item() * fan_in == pytest.approx(2, rel=0.03)


def test_activations_keep_their_size_through_standardised_weights() -> None:
    convolution = build("wrn-16-4", (3, 8, 8), 10, 0)[0]
    x = torch.randn((64, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    scaled = functional_call(convolution, {"weight": 7 * convolution.weight + 3}, (x,))
    torch.testing.assert_close(scaled, convolution(x), rtol=1e-3, atol=1e-4)
    assert convolution(x)[..., 1:-1, 1:-1].square().mean().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("name", ["linear", "scattering-linear"])
def test_linear_models_start_at_zero(name: str) -> None:
    assert all(not p.any() for p in build(name, (4, 2, 2), 3, 1).parameters())


@pytest.mark.parametrize("name", ["linear", "cnn", "resnet18", "wrn-16-4"])
def test_plain_models_take_the_records_as_they_are(name: str) -> None:
    x = records((1, 8, 8))
    assert torch.equal(prepare(name, x, "cpu"), x)


@pytest.mark.parametrize(("shape", "expected"), [((3, 32, 32), (243, 8, 8)), ((1, 28, 28), (81, 7, 7))])
def test_prepared_features_have_the_shape_that_build_takes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    features = prepare("scattering-linear", records(shape), torch.device("cpu"))
    assert tuple(features.shape) == (3, *expected)
    for name in ("scattering-linear", "scattering-cnn"):
        assert build(name, tuple(features.shape[1:]), 10, 0)(features).shape == (3, 10)


def test_prepared_features_are_normalised_within_each_record() -> None:
    maps = prepare("scattering-cnn", records((3, 16, 16)), "cpu").unflatten(1, (3, 81))
    for part in maps.split([1, 8, 8, 64], dim=2):
        torch.testing.assert_close(part.mean((2, 3, 4)), torch.zeros(3, 3), atol=1e-4, rtol=0)
        torch.testing.assert_close(part.var((2, 3, 4), correction=0), torch.ones(3, 3), atol=0.05, rtol=0)


@pytest.mark.parametrize(("shape", "columns"), [((3, 32, 32), 4), ((1, 28, 28), 4), ((1, 8, 8), 1)])
def test_mirrored_features_are_half_of_the_mean_of_both_images(shape: tuple[int, ...], columns: int) -> None:
    x = records(shape)
    both = [prepare("scattering-linear", image, "cpu") for image in (x, x.flip(3))]
    mirrored = prepare("scattering-linear", x, "cpu", mirror=True)
    torch.testing.assert_close(mirrored, (sum(both) / 2)[..., :columns], atol=1e-3, rtol=0)
    torch.testing.assert_close(prepare("scattering-linear", x.flip(3), "cpu", mirror=True), mirrored, atol=1e-3, rtol=0)
    assert not torch.allclose(both[0][..., :columns], mirrored, atol=1e-2)


def test_brightness_and_colours_are_told_apart() -> None:
    grey = records((1, 16, 16)).expand(3, 3, 16, 16)
    maps = prepare("scattering-linear", grey, "cpu").unflatten(1, (3, 81))
    assert float(maps[:, 0].abs().max()) > 1
    torch.testing.assert_close(maps[:, 1:, 0], torch.zeros(3, 2, 4, 4), atol=1e-3, rtol=0)  # no colour anywhere


def test_prepared_features_of_a_record_ignore_the_others() -> None:
    x = records((1, 8, 8), 600)  # more than one batch
    whole = prepare("scattering-linear", x, "cpu")
    for i in (0, 511, 512, 599):
        alone = prepare("scattering-linear", x[i : i + 1], "cpu")
        torch.testing.assert_close(whole[i : i + 1], alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "seed", "message"),
    [
        ("mlp", (3, 32, 32), 10, 0, "model must be one of linear, .*model='mlp'"),
        ("cnn", (64,), 10, 0, r"needs images .*shape=\(64,\)"),
        ("cnn", (0, 8, 8), 10, 0, "shape must be >= 1"),
        ("linear", (64,), 1, 0, "classes must be >= 2, got classes=1"),
        ("linear", (64,), 10, -1, "seed must be in"),
    ],
)
def test_refuses(name: str, shape: tuple[int, ...], classes: int, seed: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build(name, shape, classes, seed)


def test_refuses_to_prepare_records_that_are_not_images() -> None:
    with pytest.raises(ArgumentError, match=r"needs images .*\(5, 64\)"):
        prepare("scattering-linear", torch.zeros(5, 64), "cpu")
