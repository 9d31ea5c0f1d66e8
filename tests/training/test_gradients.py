"""Sums of clipped gradients, and the parameters as one vector."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lightdp.errors import ArgumentError  # noqa: E402
from lightdp.training import gradients, sgd  # noqa: E402
from support.by_hand import CLASSES, MODELS, close, convolutional, linear, records, sums_by_record  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

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
    *_, (last, _) = gradients._chunks(owner.sort()[0], 4, 8)
    assert last.tolist() == [*range(16, 23), 22]  # type: ignore[union-attr]  # a tensor, filled up
    expected = sums_by_record(model, x, y, owner, clients=4, clip=1.0)
    for most in (1, 8, 50):
        monkeypatch.setitem(gradients._TOGETHER, "cpu", most)
        monkeypatch.setitem(gradients._LINEAR, "cpu", most)
        assert close(gradients.clipped_sums(model, x, y, owner, 4, 1.0), expected, 1e-5)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_chunks_have_every_record_once_with_its_client(size: int) -> None:
    owner = torch.tensor([1, 1, 1, 1, 4, 4, 6])  # no records of 0, 2, 3, 5 and 7
    found = [
        client
        for rows, segments in gradients._chunks(owner, 8, size)
        for client, part in segments
        for _ in owner[rows][part]
    ]
    assert found == owner.tolist()
    assert all(part.start < part.stop for _, parts in gradients._chunks(owner, 8, size) for _, part in parts)


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


def test_terms_that_underflow_would_lengthen_are_refused() -> None:
    """The few values of a short row are squared in float64; at 3e38, residuals would shrink to subnormal numbers."""
    model = nn.Linear(15, 100)
    for p in model.parameters():
        nn.init.zeros_(p)
    x, one = torch.full((1, 15), 3e38), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"must be finite and below 1e\+23"):
        gradients.clipped_sums(model, x, one, one, 1, 1e-6)
    with pytest.raises(ArgumentError, match=r"clip must be >= 1e-12, got clip=1e-24"):
        gradients.clipped_sums(model, torch.full((1, 15), 1e-23), one, one, 1, 1e-24)
    term = gradients.clipped_sums(model, x / 1e17, one, one, 1, 1e-12)
    assert 1e-12 * (1 - 3e-6) <= float(term.double().norm()) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_whose_rounding_could_lengthen_a_term_are_refused(dtype: Any) -> None:
    model = linear().to(dtype)
    x, y, owner = records(4, linear())
    with pytest.raises(ArgumentError, match="float32 or float64, got"):
        gradients.clipped_sums(model, x.to(dtype), y, owner, 4, 0.5)


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
    assert len(set(sizes)) == 1
    assert 40 <= sum(sizes) < 40 + max(sizes)


def test_what_the_layers_hold_for_the_backward_pass_counts_as_working_memory() -> None:
    model = convolutional()
    x, y, _ = records(3, model)
    assert gradients.record_bytes(model, x, y) >= 4 * 3 * 144  # of the convolution, the norm and tanh alone


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
    assert all(gradients.linear(model) is not None for model in (linear(), linear()[1], nn.Sequential(linear()[1])))
    others = [
        convolutional(),
        _Doubled(36, CLASSES),
        _hooked(),
        nn.Sequential(nn.Linear(36, 4), nn.Linear(4, CLASSES)),
        nn.Sequential(nn.Flatten(0), nn.Linear(36, CLASSES)),
        nn.Sequential(nn.Tanh(), nn.Linear(36, CLASSES)),
    ]
    assert all(gradients.linear(model) is None for model in others)


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(1), nn.Dropout(0.5)])
def test_layers_that_mix_records_or_draw_are_refused_in_training_mode_only(layer: nn.Module) -> None:
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(36, CLASSES))
    x, y, owner = records(4, model)
    with pytest.raises(ArgumentError, match=rf"got {type(layer).__name__} '0' in training mode"):
        gradients.clipped_sums(model, x, y, owner, 4, 1.0)
    with pytest.raises(ArgumentError, match="in training mode"):
        sgd.local_updates(model, x, y, [torch.arange(4)], epochs=1, batch=2, lr=0.1, seed=0, round=0)
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
        sgd.local_updates(model, x, y, [torch.arange(4)], epochs=1, batch=0, lr=0.1, seed=0, round=0)
