"""Local SGD: every way of running many clients gives what a plain loop gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lightdp.training import fast, gradients, models, sgd  # noqa: E402
from lightdp.training.fast import _lanes  # noqa: E402
from support.by_hand import CLASSES, GPU, MODELS, close, convolutional, gradient, linear, records, updates_by_hand  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor

PARTS = [torch.arange(0, 11), torch.arange(11, 15), torch.arange(0), torch.arange(15, 40)]


def plans_of(seed: int, number: int, *, epochs: int = 2, batch: int = 4) -> list[Tensor]:
    key = (seed, sgd._BATCHES, number)
    return [sgd._batches(part, epochs, batch, (*key, client)) for client, part in enumerate(PARTS)]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("way", ["_one_by_one", "_together"])
def test_each_way_gives_the_updates_of_a_plain_loop(make: Any, way: str) -> None:
    model = make()
    x, y, _ = records(40, model)
    expected = updates_by_hand(model, x, y, plans_of(3, 5), 0.1)
    updates = getattr(sgd, way)(model, x, y, plans_of(3, 5), 0.1)
    assert float(expected.norm()) > 0.1
    assert close(updates, expected, 1e-5)
    assert torch.equal(updates[2], torch.zeros_like(updates[2]))


def test_clients_in_groups_of_bounded_memory_train_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolutional()
    x, y, _ = records(40, model)
    expected = sgd._together(model, x, y, plans_of(0, 1), 0.1)
    monkeypatch.setattr(sgd, "_BYTES", 1)
    assert close(sgd._together(model, x, y, plans_of(0, 1), 0.1), expected, 1e-5)


@pytest.mark.parametrize("together", [0, 1 << 30])
def test_local_updates_follow_their_batches_and_leave_the_model(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgd, "_TOGETHER", together)
    model = convolutional()
    x, y, _ = records(40, model)
    received = gradients.flatten(model)
    updates = sgd.local_updates(model, x, y, PARTS, epochs=2, batch=4, lr=0.1, seed=3, round=5)
    assert close(updates, updates_by_hand(model, x, y, plans_of(3, 5), 0.1), 1e-5)
    assert torch.equal(gradients.flatten(model), received)
    assert all(p.grad is None for p in model.parameters())


def test_one_batch_of_everything_is_one_step_of_gradient_descent() -> None:
    model = linear()
    x, y, _ = records(40, model)
    updates = sgd.local_updates(model, x, y, [torch.arange(40)], epochs=1, batch=64, lr=0.5, seed=0, round=0)
    assert close(updates[0], -0.5 * gradient(model, x, y), 1e-5)


def test_clients_without_any_records_get_zero_rows() -> None:
    x, y, _ = records(4, linear())
    nobody = [torch.arange(0)] * 2
    updates = sgd.local_updates(linear(), x, y, nobody, epochs=1, batch=2, lr=0.1, seed=0, round=0)
    assert torch.equal(updates, torch.zeros(2, 185))


def test_every_epoch_uses_every_record_once_and_only_its_last_batch_is_short() -> None:
    part = torch.arange(100, 111)
    plan = sgd._batches(part, 3, 4, (1, 2))
    assert plan.shape == (9, 4)
    for epoch in plan.split(3):
        assert torch.equal(epoch[epoch >= 0].sort().values, part)
        assert (epoch >= 0).sum(dim=1).tolist() == [4, 4, 3]
    assert not torch.equal(plan[:3], plan[3:6])


def test_batches_are_a_function_of_seed_round_and_client() -> None:
    part = torch.arange(50)
    plans = [sgd._batches(part, 1, 10, key) for key in [(0, 21, 1, 2), (1, 21, 1, 2), (0, 21, 2, 2), (0, 21, 1, 3)]]
    assert torch.equal(plans[0], sgd._batches(part, 1, 10, (0, 21, 1, 2)))
    assert all(not torch.equal(plans[0], other) for other in plans[1:])


def test_other_clients_do_not_change_a_clients_batches() -> None:
    model = linear()
    x, y, _ = records(40, model)
    settings: dict[str, Any] = {"epochs": 1, "batch": 4, "lr": 0.1, "seed": 0, "round": 1}
    alone = sgd.local_updates(model, x, y, PARTS[:1], **settings)
    assert close(sgd.local_updates(model, x, y, PARTS, **settings)[:1], alone, 1e-5)


# lanes


def residual() -> nn.Module:
    """Every kind of layer that deep models here have."""
    torch.manual_seed(0)

    def conv(inputs: int, outputs: int, size: int, stride: int) -> list[nn.Module]:
        kind = models.StandardisedConv if stride == 1 else nn.Conv2d
        return [kind(inputs, outputs, size, stride, padding=size // 2, bias=False), nn.GroupNorm(4, outputs)]

    main = nn.Sequential(*conv(16, 32, 3, 2), nn.ReLU(), *conv(32, 32, 3, 1))
    block = models.Residual(main, nn.Sequential(*conv(16, 32, 1, 2)))
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)]
    return nn.Sequential(*conv(1, 16, 3, 1), nn.ReLU(), block, nn.ReLU(), *ends)


def dense() -> nn.Module:
    """A dense layer along the rows of an image."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Flatten(), nn.Linear(24, CLASSES, bias=False))


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("make", [convolutional, residual, dense])
def test_lanes_give_the_updates_of_a_plain_loop(make: Any, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lanes, "_LANES", lanes)
    monkeypatch.setattr(_lanes, "_FEWER", (2, 1))
    model = make()
    x, y, _ = records(40, model)
    for number in (5, 6):  # the second finds the lanes of the first, with weights from it
        plans = plans_of(3, number)
        updates = fast.train_lanes(model, x, y, plans, 0.1, dtype=torch.float32)
        assert close(updates, updates_by_hand(model, x, y, plans, 0.1), 1e-3)
        assert not close(updates, updates_by_hand(model, x, y, plans, 0.101), 1e-3)
        assert torch.equal(updates[2], torch.zeros_like(updates[2]))
        gradients.assign(model, gradients.flatten(model) + updates.mean(0))


def test_a_lane_takes_the_longest_client_that_waits_as_soon_as_it_is_free() -> None:
    assert _lanes._queues([3, 0, 5, 4, 1], 2) == [[3, 0], [2, 4]]  # seven steps, then six
    assert _lanes._queues([2], 3) == [[0], [], []]


@GPU
@pytest.mark.parametrize(
    ("make", "half", "lr", "tolerance"),
    [(convolutional, False, 0.1, 1e-3), (convolutional, True, 0.1, 5e-2), (residual, False, 0.1, 1e-3),
     (residual, True, 0.003, 0.1)],
)  # fmt: skip
def test_lanes_on_a_gpu_give_the_updates_of_a_plain_loop(
    make: Any, half: bool, lr: float, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are small, so that rounding stays small: what 1e-6 does to an update of ResNet-18 is tens of per cent."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(_lanes, "_FEWER", (2, 1))
    model = make().cuda()
    x, y, _ = (t.cuda() for t in records(40, model))
    for number in (5, 6):  # the second replays the graph of the first
        settings: dict[str, Any] = {"epochs": 2, "batch": 4, "seed": 3, "round": number}
        updates = sgd.local_updates(model, x, y, PARTS, half=half, lr=lr, **settings)
        assert close(updates, updates_by_hand(model, x, y, plans_of(3, number), lr), tolerance)
        assert not close(updates, updates_by_hand(model, x, y, plans_of(3, number), 1.2 * lr), tolerance)
        gradients.assign(model, gradients.flatten(model) + updates.mean(0))
