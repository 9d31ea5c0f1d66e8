"""Gradients of many records at once are those of each record alone, and views are what they say."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lightdp.errors import ArgumentError  # noqa: E402
from lightdp.training import fast, gradients, models, views  # noqa: E402
from lightdp.training.clients import Clients  # noqa: E402
from lightdp.training.config import Config  # noqa: E402
from lightdp.training.fast import _records  # noqa: E402
from support.by_hand import GPU  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

SHAPES = {
    "linear": (2, 6, 6),
    "cnn": (2, 9, 7),
    "scattering-linear": (81, 2, 2),
    "scattering-cnn": (81, 3, 2),
    "resnet18": (2, 8, 8),
    "wrn-16-4": (3, 8, 8),
}


def built(name: str) -> nn.Module:
    """The model away from its start, where norms have scales 1 and biases are 0."""
    model = models.build(name, SHAPES[name], 5, seed=0)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.1)
    return model


def records(shape: tuple[int, ...], n: int = 3, count: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, count, *shape, generator=generator), torch.randint(5, (n,), generator=generator)


def gap(found: Tensor, expected: Tensor) -> float:
    """The largest error of a record's gradient, relative to its norm."""
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


def both(model: nn.Module, x: Tensor, y: Tensor, *, half: bool = True) -> tuple[Tensor, Tensor]:
    records_of = fast.Records(model, half=half)
    found = torch.cat(records_of.gradients(x, y), 1)
    fast.reorder(model, found)
    return found, torch.cat(fast.by_vmap(model, x, y), 1)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", models.NAMES)
def test_every_record_has_the_gradient_of_its_views_alone(name: str, count: int) -> None:
    model = built(name).double()
    x, y = records(SHAPES[name], count=count)
    found, expected = both(model, x.double(), y)
    assert fast.knows(model)
    assert gap(found, expected) < 1e-9
    assert gap(found, expected.roll(1, 0)) > 1e-2


@pytest.mark.parametrize("name", ["cnn", "wrn-16-4"])
def test_float32_is_as_exact_as_elsewhere(name: str) -> None:
    model = built(name)
    x, y = records(SHAPES[name])
    found, _ = both(model, x, y)
    _, exact = both(model.double(), x.double(), y)
    assert found.dtype == torch.float32
    gaps = sorted(gap(a[None], b[None]) for a, b in zip(found, exact, strict=True))
    assert gaps[len(gaps) // 2] < 1e-4
    assert gaps[-1] < 0.05  # on some processors rounding takes an activation of one record across a ReLU's kink


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(2, 3, (3, 2), (2, 1), padding=(0, 1)), nn.GroupNorm(3, 3), nn.MaxPool2d(2)],
        [nn.Conv2d(2, 4, 4, padding="same", bias=False), nn.GroupNorm(2, 4, affine=False), nn.ReLU()],
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding")  # that an even kernel needs a copy
def test_strides_uneven_padding_and_layers_without_parameters_are_known(layers: list[nn.Module]) -> None:
    torch.manual_seed(0)
    size = nn.Flatten()(nn.Sequential(*layers)(torch.zeros(1, 2, 9, 7))).shape[1]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, 5)).double()
    x, y = records((2, 9, 7))
    found, expected = both(model, x.double(), y)
    assert gap(found, expected) < 1e-9


@pytest.mark.parametrize("first", [[nn.Linear(4, 6)], [nn.ReLU(inplace=True), nn.Linear(4, 6)]])
def test_layers_that_work_in_place_change_neither_gradients_nor_records(first: list[nn.Module]) -> None:
    model = nn.Sequential(*first, nn.ReLU(inplace=True), nn.Linear(6, 5)).double()
    x, y = records((4,))
    x = x.double()
    before = x.clone()
    found = torch.cat(fast.Records(model, half=False).gradients(x, y), 1)
    assert torch.equal(x, before)
    assert model[-2].inplace
    assert fast.knows(model)
    for layer in model:
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
    assert gap(found, torch.cat(fast.by_vmap(model, x, y), 1)) < 1e-9


def test_one_parameter_in_two_layers_gets_both_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 5)).double()
    model[2].weight = model[0].weight
    x, y = records((4,))
    found, expected = both(model, x.double(), y)
    assert fast.knows(model)
    assert gap(found, expected) < 1e-9


@pytest.mark.parametrize("name", ["cnn", "wrn-16-4"])
def test_sums_of_terms_become_sums_of_gradients(name: str) -> None:
    model = built(name).double()
    x, y = records(SHAPES[name])
    shares = torch.tensor([[0.5, 2.0, 0.0], [1.0, 0.0, 3.0]], dtype=torch.float64)
    records_of = fast.Records(model, half=False)
    terms, squares = records_of.terms(x.double(), y)
    sums = shares @ torch.cat(terms, 1)
    records_of.finish(sums)
    expected = torch.cat(fast.by_vmap(model, x.double(), y), 1)
    assert gap(sums, shares @ expected) < 1e-9
    torch.testing.assert_close(squares, expected.square().sum(1), rtol=1e-8, atol=0)


@pytest.mark.parametrize("rest", [1.0, 1e-2, 0.0])
def test_norms_after_the_map_are_never_too_small(rest: float) -> None:
    """Where most of a gradient is lost by the map, rounding must not hide what is left."""
    generator = torch.Generator().manual_seed(0)
    layer = models.StandardisedConv(3, 4, 3, bias=False)
    used, lengths = _records._map(layer)
    g = rest * torch.randn(5, *used.shape, generator=generator) + 7.0 + 5.0 * used
    found, before = _records._pulled_squares(g.flatten(1), used, lengths)
    divided = (g.double() / lengths.double()[:, None]).square().sum((1, 2))
    torch.testing.assert_close(before, divided, rtol=1e-9, atol=0)
    exact = g.double()
    _records._pull(exact, used.double(), lengths.double())
    norms = exact.square().sum((1, 2))
    assert bool((found >= norms).all())
    assert bool((found <= norms * (1 + 1e-4) + 1e-9 * g.square().sum((1, 2)) / lengths.min() ** 2).all())


def test_weights_that_only_one_of_two_layers_standardises_are_not_known() -> None:
    plain, other = nn.Conv2d(2, 2, 3, padding=1, bias=False), models.StandardisedConv(2, 2, 3, padding=1, bias=False)
    assert fast.knows(nn.Sequential(plain, other))
    other.weight = plain.weight
    assert not fast.knows(nn.Sequential(plain, other))


@pytest.mark.parametrize("inputs", [1, 3])
def test_one_row_is_brought_back_into_order(inputs: int) -> None:
    model = nn.Sequential(nn.Conv2d(inputs, 2, (2, 3)), nn.Flatten(), nn.Linear(2, 5))
    row = torch.arange(2.0 * 6 * inputs + 17)[None]
    kernel = row[0, : 12 * inputs].clone().view(2, 2, 3, inputs).permute(0, 3, 1, 2).flatten()
    expected = torch.cat([kernel, row[0, 12 * inputs :]])
    fast.reorder(model, row)
    assert torch.equal(row[0], expected)


def test_a_copy_that_is_dropped_goes_at_once() -> None:
    records_of = fast.Records(built("wrn-16-4"), half=True)
    records_of.gradients(*records(SHAPES["wrn-16-4"]))
    gone = weakref.ref(records_of.model)
    gc.disable()
    try:
        del records_of
        assert gone() is None
    finally:
        gc.enable()


class _Own(nn.Linear):  # type: ignore[misc]  # torch is untyped here
    """Nothing is known of a class that may do anything."""


def _hooked() -> nn.Module:
    layer = nn.Linear(4, 5)
    layer.register_forward_hook(lambda _layer, _given, output: 2 * output)
    return layer


def _shared() -> nn.Module:
    norm = nn.GroupNorm(1, 4)
    return nn.Sequential(norm, nn.Tanh(), norm, nn.Linear(4, 5))


@pytest.mark.parametrize(
    "model",
    [
        _Own(4, 5),
        _hooked(),
        _shared(),
        nn.GroupNorm(1, 5),
        nn.Sequential(nn.Softmax(0), nn.Linear(4, 5)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 5)),
        nn.Sequential(nn.Conv2d(2, 4, 3, groups=2)),
        nn.Sequential(nn.Conv2d(2, 4, 3, dilation=2)),
        nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular")),
        nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 5)),
    ],
    ids=lambda model: str(model).split("\n", maxsplit=1)[0][:20],
)
def test_layers_that_are_not_known_are_left_to_vmap(model: nn.Module) -> None:
    assert not fast.knows(model)


@pytest.mark.parametrize("name", ["cnn", "linear"])
def test_clipping_comes_after_the_mean_over_views(name: str) -> None:
    model = built(name)
    x, y = records(SHAPES[name], n=6)
    owner, seen = torch.tensor([1, 0, 1, 1, 0, 1]), x[:, 0]
    sums = gradients.clipped_sums(model, seen, y, owner, 2, 0.5, views=lambda _, rows: x[rows])
    each = torch.cat(fast.by_vmap(model.double(), x.double(), y), 1)
    each *= (0.5 / each.norm(dim=1, keepdim=True)).clamp_max(1)
    expected = torch.stack([each[owner == client].sum(0) for client in range(2)])
    assert gap(sums, expected) < 1e-4
    single = gradients.clipped_sums(model.float(), seen, y, owner, 2, 0.5)
    assert gap(single, expected) > 1e-2


def test_convolutions_of_what_is_no_batch_of_images_are_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(4, 5))
    with pytest.raises(ArgumentError, match="x must be images"):
        fast.Records(model, half=True).gradients(torch.zeros(3, 1, 4, 4), torch.zeros(3, dtype=torch.int64))


@GPU
@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize(("half", "tolerance"), [(False, 0.1), (True, 0.3)])
def test_a_gpu_gives_the_same_up_to_its_precision(name: str, half: bool, tolerance: float) -> None:
    model = built(name).cuda()
    x, y = (t.cuda() for t in records(SHAPES[name]))
    found, _ = both(model, x, y, half=half)
    _, exact = both(model.double(), x.double(), y)
    assert gap(found, exact) < tolerance


@GPU
@pytest.mark.parametrize("name", ["scattering-cnn", "wrn-16-4"])
def test_no_term_is_longer_than_clip_on_a_gpu(name: str) -> None:
    model = built(name).cuda()
    x, y = (t.cuda() for t in records(SHAPES[name], n=50))
    owner = torch.arange(50, device="cuda")
    sums = gradients.clipped_sums(model, x[:, 0], y, owner, 50, 1e-3, views=lambda _, rows: x[rows])
    norms = sums.double().norm(dim=1)
    assert float(norms.max()) <= 1e-3
    assert float(norms.min()) >= 1e-3 * (1 - 3e-6)


# views


def test_a_crop_that_is_not_off_is_the_image_and_a_mirrored_one_its_mirror_image() -> None:
    x = torch.rand(2, 3, 9, 6, generator=torch.Generator().manual_seed(0))
    drawn = torch.tensor([[[4, 4, 0], [4, 4, 1], [4, 6, 0], [1, 4, 1]]] * 2)
    found = views.crops(x, drawn)
    assert found.shape == (2, 4, 3, 9, 6)
    assert torch.equal(found[:, 0], x)
    assert torch.equal(found[:, 1], x.flip(3))
    assert torch.equal(found[:, 2, :, :, :4], x[:, :, :, 2:])
    assert torch.equal(found[:, 2, :, :, 4], x[:, :, :, 4])  # reflected at the last column, 5
    assert torch.equal(found[:, 3, :, 3:], x.flip(3)[:, :, :6])
    assert torch.equal(found[:, 3, :, 2], x.flip(3)[:, :, 1])


def test_draws_cover_all_crops_evenly() -> None:
    drawn = views.draw(np.random.default_rng(0), 4000, 3)
    assert drawn.shape == (4000, 3, 3)
    for axis, values in enumerate((9, 9, 2)):
        counts = np.bincount(drawn[..., axis].ravel(), minlength=values)
        assert len(counts) == values
        assert abs(counts / 12_000 * values - 1).max() < 0.1


def test_mirrored_features_are_those_of_mirrored_images() -> None:
    images = torch.rand(2, 3, 16, 8, generator=torch.Generator().manual_seed(0))
    features = models.prepare("scattering-cnn", images, "cpu")
    clients = Clients(Config(model="scattering-cnn", augment=2), features, torch.zeros(2, dtype=torch.int64), [2])
    found = clients._views(0, [0], [2])(features, slice(None))
    assert torch.equal(found[:, 0], features)
    assert torch.allclose(found[:, 1], models.prepare("scattering-cnn", images.flip(3), "cpu"), atol=1e-3)
    assert not torch.allclose(found[:, 1], features.flip(3), atol=1e-1)


def test_crops_of_small_images_and_of_vectors_are_refused() -> None:
    for shape in [(2, 3, 4, 8), (2, 64)]:
        with pytest.raises(ArgumentError, match="views need images with sides above 4"):
            views.crops(torch.zeros(shape), torch.zeros(2, 1, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("device", "half"), [("cpu", False), *(pytest.param("cuda", h, marks=GPU) for h in (False, True))]
)
@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("views", [1, 3])
def test_copies_of_a_record_have_equal_gradients_wherever_they_stand(
    name: str, views: int, device: str, half: bool
) -> None:
    model = built(name).to(device)
    x, y = (t.to(device) for t in records(SHAPES[name], n=1, count=views))
    found = torch.cat(fast.Records(model, half=half).gradients(x.expand(7, *x.shape[1:]), y.expand(7)), 1)
    assert torch.equal(found, found[:1].expand_as(found))


def test_one_record_at_a_time_is_computed_in_one_thread_and_afterwards_in_as_many_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []

    class Counting(nn.Linear):  # type: ignore[misc]  # torch is untyped here
        def forward(self, x: Tensor) -> Tensor:
            found.append(torch.get_num_threads())
            return super().forward(x)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fast.by_vmap(Counting(4, 5), torch.randn(3, 1, 4), torch.zeros(3, dtype=torch.long))
        assert (found, torch.get_num_threads()) == ([1, 1, 1], 2)
        monkeypatch.setattr(Counting, "forward", None)
        with pytest.raises(TypeError):
            fast.by_vmap(Counting(4, 5), torch.randn(3, 1, 4), torch.zeros(3, dtype=torch.long))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
