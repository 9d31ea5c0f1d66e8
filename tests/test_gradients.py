from __future__ import annotations

import copy
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from lightdp._check import ArgumentError  # noqa: E402
from lightdp.training import _lanes, _layers, gradients, models  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

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


# parameters as one vector


def test_flatten_and_assign_are_inverse_and_in_the_order_of_parameters() -> None:
    model = convolutional()
    flat = gradients.flatten(model)
    assert torch.equal(flat[:36], next(model.parameters()).detach().reshape(-1))
    gradients.assign(model, flat + 1)
    assert torch.equal(gradients.flatten(model), flat + 1)


def test_flatten_is_a_copy() -> None:
    model = linear()
    gradients.flatten(model).zero_()
    assert bool((gradients.flatten(model) != 0).any())


def test_assign_refuses_another_length() -> None:
    with pytest.raises(ArgumentError, match=r"flat must have shape \(185,\), got \(184,\)"):
        gradients.assign(linear(), torch.zeros(184))


# clipped sums


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("clip", [0.5, 2.0, 100.0])
def test_sums_are_those_of_one_record_after_the_other(make: Any, clip: float) -> None:
    model = make()
    x, y, owner = records(30, model)
    sums = gradients.clipped_sums(model, x, y, owner, 4, clip)
    expected = sums_by_record(model, x, y, owner, clients=4, clip=clip)
    assert sums.dtype == torch.float32
    assert close(sums, expected, 5e-6)
    assert not close(sums, sums_by_record(model, x, y, owner, clients=4, clip=clip * 1.001), 5e-6) or clip == 100.0


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("chunk_bytes", [1, 30_000])
def test_pieces_do_not_change_the_sums(make: Any, chunk_bytes: int) -> None:
    model = make()
    x, y, owner = records(20, model)
    whole = gradients.clipped_sums(model, x, y, owner, 4, 1.0)
    assert close(gradients.clipped_sums(model, x, y, owner, 4, 1.0, chunk_bytes=chunk_bytes), whole, 1e-5)


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("ordered", [False, True])
def test_pieces_that_are_filled_up_count_every_record_once(
    make: Any, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    x, y, owner = records(23, model)
    owner = owner.sort()[0] if ordered else owner
    whole = gradients.clipped_sums(model, x, y, owner, 4, 1.0)
    monkeypatch.setitem(gradients._SHAPES, "cpu", 2)
    assert len(gradients._filled(20, 23, 4, x.device)) == 4  # type: ignore[arg-type]  # a tensor, since 3 is no multiple
    for chunk_bytes in (30_000, 1 << 20):
        found = gradients.clipped_sums(model, x, y, owner, 4, 1.0, chunk_bytes=chunk_bytes)
        assert close(found, whole, 1e-5)


@pytest.mark.parametrize("make", MODELS)
def test_sorted_and_unsorted_owners_agree(make: Any) -> None:
    model = make()
    x, y, owner = records(30, model)
    order = owner.argsort(stable=True)
    assert torch.equal(
        gradients.clipped_sums(model, x, y, owner, 4, 1.0),
        gradients.clipped_sums(model, x[order], y[order], owner[order], 4, 1.0),
    )


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("clip", [1e-3, 0.7, 3.0])
def test_no_term_is_longer_than_clip_and_clipped_ones_are_hardly_shorter(make: Any, clip: float) -> None:
    model = make()
    x, y, _ = records(64, model)
    terms = gradients.clipped_sums(model, x, y, torch.arange(64), 64, clip).double().norm(dim=1)
    assert float(terms.max()) <= clip
    assert float(terms.max()) >= clip * (1 - 3e-6)


def test_many_small_features_beside_a_large_one_count_in_full() -> None:
    """Added one by one in float32 after the large one, their squares would be lost and the term too long."""
    model = nn.Linear(40_000, 2, bias=False)
    x = torch.full((1, 40_000), 2.0**-13)
    x[0, 0] = 1.0
    y = torch.zeros(1, dtype=torch.int64)
    term = gradients.clipped_sums(model, x, y, torch.zeros(1, dtype=torch.int64), 1, 1e-3)
    assert 1e-3 * (1 - 3e-6) <= float(term.double().norm()) <= 1e-3


@pytest.mark.parametrize("make", [lambda: linear(bias=False), convolutional])
def test_a_record_without_gradient_adds_nothing(make: Any) -> None:
    model = make()
    x, y, _ = records(2, model)
    if isinstance(model[0], nn.Flatten):
        x[0] = 0.0
    else:  # so sure of itself that the probability rounds to one
        with torch.no_grad():
            model[-1].bias[int(y[0])] = 1e4
        y[1] = (y[0] + 1) % CLASSES
    sums = gradients.clipped_sums(model, x, y, torch.tensor([0, 1]), 2, 1.0)
    assert torch.equal(sums[0], torch.zeros_like(sums[0]))
    assert float(sums[1].norm()) > 0.5


@pytest.mark.parametrize("make", MODELS)
def test_a_client_without_records_gets_a_zero_row(make: Any) -> None:
    model = make()
    x, y, _ = records(6, model)
    sums = gradients.clipped_sums(model, x, y, torch.tensor([3, 1, 1, 3, 1, 3]), 5, 1.0)
    assert (sums != 0).any(dim=1).tolist() == [False, True, False, True, False]


def test_no_records_at_all_give_zeros() -> None:
    x, y, owner = records(0, linear())
    assert torch.equal(gradients.clipped_sums(linear(), x, y, owner, 3, 1.0), torch.zeros(3, 185))


def test_working_memory_decides_how_many_records_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolutional()
    sizes: list[int] = []
    original = gradients._add_any

    def watched(*given: Any, x: Tensor, y: Tensor) -> None:
        sizes.append(len(x))
        original(*given, x=x, y=y)

    monkeypatch.setattr(gradients, "_add_any", watched)
    x, y, owner = records(40, model)
    gradients.clipped_sums(model, x, y, owner, 4, 1.0, chunk_bytes=80_000)
    d = len(gradients.flatten(model))
    assert 1 < max(sizes) * 4 * d <= 80_000
    assert sum(sizes) == 40


def test_what_the_layers_hold_for_the_backward_pass_counts_as_working_memory() -> None:
    model = convolutional()
    x, y, _ = records(3, model)
    assert gradients._record_bytes(model, x, y) >= 4 * 3 * 144  # of the convolution, the norm and tanh alone


def test_nothing_holds_the_records_afterwards() -> None:
    model = convolutional()
    x, y, owner = records(20, model)
    alive = weakref.ref(x.untyped_storage())
    gradients.clipped_sums(model, x, y, owner, 4, 1.0)
    del x
    gc.collect()
    assert alive() is None


def test_reduced_precision_and_autocast_of_the_caller_do_not_reach_the_sums() -> None:
    model = linear()
    x, y, owner = records(30, model)
    expected = gradients.clipped_sums(model, x, y, owner, 4, 1.0)
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            sums = gradients.clipped_sums(model, x, y, owner, 4, 1.0)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(sums, expected)


class _Doubled(nn.Linear):  # type: ignore[misc]  # torch is untyped here
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _hooked() -> nn.Module:
    layer = nn.Linear(36, CLASSES)
    layer.register_forward_hook(lambda _module, _inputs, output: output * 2)
    return layer


def test_only_exactly_linear_models_take_the_closed_form() -> None:
    assert all(gradients._linear(model) is not None for model in (linear(), linear()[1], nn.Sequential(linear()[1])))
    others = [
        convolutional(),
        _Doubled(36, CLASSES),
        _hooked(),
        nn.Sequential(nn.Linear(36, 4), nn.Linear(4, CLASSES)),
        nn.Sequential(nn.Flatten(0), nn.Linear(36, CLASSES)),
        nn.Sequential(nn.Tanh(), nn.Linear(36, CLASSES)),
    ]
    assert all(gradients._linear(model) is None for model in others)


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(1), nn.Dropout(0.5)])
def test_layers_that_mix_records_or_draw_are_refused_in_training_mode_only(layer: nn.Module) -> None:
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(36, CLASSES))
    x, y, owner = records(4, model)
    with pytest.raises(ArgumentError, match=rf"got {type(layer).__name__} '0' in training mode"):
        gradients.clipped_sums(model, x, y, owner, 4, 1.0)
    with pytest.raises(ArgumentError, match="in training mode"):
        gradients.local_updates(model, x, y, [torch.arange(4)], epochs=1, batch=2, lr=0.1, seed=0, round=0)
    model.eval()
    assert close(
        gradients.clipped_sums(model, x, y, owner, 4, 1.0),
        sums_by_record(model, x, y, owner, clients=4, clip=1.0),
        5e-6,
    )


@pytest.mark.parametrize("make", [linear, convolutional])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_are_refused(make: Any, value: float) -> None:
    model = make()
    x, y, owner = records(4, model)
    x[2, 0, 0, 0] = value
    with pytest.raises(ArgumentError, match="must be finite"):
        gradients.clipped_sums(model, x, y, owner, 4, 1.0)


def test_wrong_arguments_are_named() -> None:
    model = linear()
    x, y, owner = records(4, model)
    with pytest.raises(ArgumentError, match=r"owner must be in 0\.\.2"):
        gradients.clipped_sums(model, x, y, torch.tensor([0, 3, 1, 2]), 3, 1.0)
    with pytest.raises(ArgumentError, match="owner must have shape"):
        gradients.clipped_sums(model, x, y, owner[:3], 4, 1.0)
    with pytest.raises(ArgumentError, match="y must be one label"):
        gradients.clipped_sums(model, x, y[:3], owner[:3], 4, 1.0)
    with pytest.raises(ArgumentError, match="clip must be > 0"):
        gradients.clipped_sums(model, x, y, owner, 4, 0.0)
    with pytest.raises(ArgumentError, match="batch must be >= 1"):
        gradients.local_updates(model, x, y, [torch.arange(4)], epochs=1, batch=0, lr=0.1, seed=0, round=0)


# local updates

PARTS = [torch.arange(0, 11), torch.arange(11, 15), torch.arange(0), torch.arange(15, 40)]


def plans_of(seed: int, number: int, *, epochs: int = 2, batch: int = 4) -> list[Tensor]:
    key = (seed, gradients._BATCHES, number)
    return [gradients._batches(part, epochs, batch, (*key, client)) for client, part in enumerate(PARTS)]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("way", ["_one_by_one", "_together"])
def test_each_way_gives_the_updates_of_a_plain_loop(make: Any, way: str) -> None:
    model = make()
    x, y, _ = records(40, model)
    expected = updates_by_hand(model, x, y, plans_of(3, 5), 0.1)
    updates = getattr(gradients, way)(model, x, y, plans_of(3, 5), 0.1)
    assert float(expected.norm()) > 0.1
    assert close(updates, expected, 1e-5)
    assert torch.equal(updates[2], torch.zeros_like(updates[2]))


def test_clients_in_groups_of_bounded_memory_train_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolutional()
    x, y, _ = records(40, model)
    expected = gradients._together(model, x, y, plans_of(0, 1), 0.1)
    monkeypatch.setattr(gradients, "_BYTES", 1)
    assert close(gradients._together(model, x, y, plans_of(0, 1), 0.1), expected, 1e-5)


@pytest.mark.parametrize("together", [0, 1 << 30])
def test_local_updates_follow_their_batches_and_leave_the_model(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_TOGETHER", together)
    model = convolutional()
    x, y, _ = records(40, model)
    received = gradients.flatten(model)
    updates = gradients.local_updates(model, x, y, PARTS, epochs=2, batch=4, lr=0.1, seed=3, round=5)
    assert close(updates, updates_by_hand(model, x, y, plans_of(3, 5), 0.1), 1e-5)
    assert torch.equal(gradients.flatten(model), received)
    assert all(p.grad is None for p in model.parameters())


def test_one_batch_of_everything_is_one_step_of_gradient_descent() -> None:
    model = linear()
    x, y, _ = records(40, model)
    updates = gradients.local_updates(model, x, y, [torch.arange(40)], epochs=1, batch=64, lr=0.5, seed=0, round=0)
    assert close(updates[0], -0.5 * gradient(model, x, y), 1e-5)


def test_clients_without_any_records_get_zero_rows() -> None:
    x, y, _ = records(4, linear())
    nobody = [torch.arange(0)] * 2
    updates = gradients.local_updates(linear(), x, y, nobody, epochs=1, batch=2, lr=0.1, seed=0, round=0)
    assert torch.equal(updates, torch.zeros(2, 185))


def test_every_epoch_uses_every_record_once_and_only_its_last_batch_is_short() -> None:
    part = torch.arange(100, 111)
    plan = gradients._batches(part, 3, 4, (1, 2))
    assert plan.shape == (9, 4)
    for epoch in plan.split(3):
        assert torch.equal(epoch[epoch >= 0].sort().values, part)
        assert (epoch >= 0).sum(dim=1).tolist() == [4, 4, 3]
    assert not torch.equal(plan[:3], plan[3:6])


def test_batches_are_a_function_of_seed_round_and_client() -> None:
    part = torch.arange(50)
    plans = [
        gradients._batches(part, 1, 10, key) for key in [(0, 21, 1, 2), (1, 21, 1, 2), (0, 21, 2, 2), (0, 21, 1, 3)]
    ]
    assert torch.equal(plans[0], gradients._batches(part, 1, 10, (0, 21, 1, 2)))
    assert all(not torch.equal(plans[0], other) for other in plans[1:])


def test_other_clients_do_not_change_a_clients_batches() -> None:
    model = linear()
    x, y, _ = records(40, model)
    settings: dict[str, Any] = {"epochs": 1, "batch": 4, "lr": 0.1, "seed": 0, "round": 1}
    alone = gradients.local_updates(model, x, y, PARTS[:1], **settings)
    assert close(gradients.local_updates(model, x, y, PARTS, **settings)[:1], alone, 1e-5)


# what runs on a GPU


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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


def residual() -> nn.Module:
    """Every kind of layer that deep models here have."""
    torch.manual_seed(0)

    def conv(inputs: int, outputs: int, size: int, stride: int) -> list[nn.Module]:
        kind = models._StandardisedConv if stride == 1 else nn.Conv2d
        return [kind(inputs, outputs, size, stride, padding=size // 2, bias=False), nn.GroupNorm(4, outputs)]

    main = nn.Sequential(*conv(8, 16, 3, 2), nn.ReLU(), *conv(16, 16, 3, 1))
    block = models._Residual(main, nn.Sequential(*conv(8, 16, 1, 2)))
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)]
    return nn.Sequential(*conv(1, 8, 3, 1), nn.ReLU(), block, nn.ReLU(), *ends)


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("make", [convolutional, residual])
def test_lanes_give_the_updates_of_a_plain_loop(make: Any, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lanes, "_LANES", lanes)
    model = make()
    x, y, _ = records(40, model)
    for number in (5, 6):  # the second finds the lanes of the first, with weights from it
        plans = plans_of(3, number)
        updates = _lanes.train(model, x, y, plans, 0.1, dtype=torch.float32)
        assert close(updates, updates_by_hand(model, x, y, plans, 0.1), 1e-3)
        assert not close(updates, updates_by_hand(model, x, y, plans, 0.101), 1e-3)
        assert torch.equal(updates[2], torch.zeros_like(updates[2]))
        gradients.assign(model, gradients.flatten(model) + updates.mean(0))


def test_a_lane_takes_the_longest_client_that_waits_as_soon_as_it_is_free() -> None:
    assert _lanes._queues([3, 0, 5, 4, 1], 2) == [[2, 4], [3, 0]]
    assert _lanes._queues([2], 3) == [[0], [], []]


@GPU
@pytest.mark.parametrize(("half", "tolerance"), [(False, 2e-2), (True, 0.1)])
@pytest.mark.parametrize("make", [convolutional, residual, lambda: models.build("resnet18", (1, 16, 16), CLASSES, 0)])
def test_lanes_on_a_gpu_give_the_updates_of_a_plain_loop(make: Any, half: bool, tolerance: float) -> None:
    torch.backends.cudnn.allow_tf32 = False
    model = make().cuda()
    x, y, _ = (t.cuda() for t in records(40, model))
    x = x if len(list(model.parameters())) < 20 else nn.functional.interpolate(x, (16, 16))
    for number in (5, 6):  # the second replays the graph of the first
        settings: dict[str, Any] = {"epochs": 1, "batch": 8, "lr": 0.01, "seed": 3, "round": number}
        updates = gradients.local_updates(model, x, y, PARTS, half=half, **settings)
        plans = plans_of(3, number, epochs=1, batch=8)
        assert close(updates, updates_by_hand(model, x, y, plans, 0.01), tolerance)
        assert not close(updates, updates_by_hand(model, x, y, plans, 0.012), tolerance)
        gradients.assign(model, gradients.flatten(model) + updates.mean(0))
