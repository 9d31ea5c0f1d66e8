"""The last layer first: its rounds have the bound and the ε of any round, and leave the layers below alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from lightdp.errors import ArgumentError
from lightdp.training import fast, models, step
from lightdp.training.checkpoint import State
from lightdp.training.clients import Clients
from lightdp.training.config import Config
from lightdp.training.simulator import Run
from support.by_hand import GPU
from support.toy_runs import QUICK, blobs

if TYPE_CHECKING:
    from pathlib import Path

HEAD: dict[str, Any] = QUICK | {"model": "cnn", "rounds": 16, "head_rounds": 4}
BELOW, LAST = 24, 10  # parameters


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def run(path: Path, *, resume: bool = False, **changed: Any) -> Run:
    return Run(Config(**(HEAD | changed)), path, dataset=blobs(), module=module(), resume=resume)


@pytest.mark.parametrize("clip", [1e-3, 0.1, 100.0])
def test_a_record_moves_the_last_layer_alone_by_at_most_the_clip(clip: float) -> None:
    config, source, model = Config(**(HEAD | {"clip": clip, "clients": 300, "rounds": 20})), blobs(), module()
    clients = Clients.of(config, source, list(np.arange(300, dtype=np.int64)[:, None]), torch.device("cpu"))
    rows = torch.cat([rows for _, rows in clients.updates(model, 3, range(300), 1e9)])
    if len(rows) == 1:  # one row for all: then each record alone
        rows = torch.cat([next(clients.updates(model, 3, [who], 1e9))[1] for who in range(300)])
    assert rows.shape == (300, BELOW + LAST)
    assert (rows[:, :BELOW] == 0).all()
    assert (rows.double().norm(dim=1) <= clip).all()
    alone = [own(model, source.train_x[who], int(source.train_y[who])) for who in range(300)]
    wanted = torch.stack([row * min(1.0, clip / float(row.norm())) for row in alone])
    torch.testing.assert_close(rows[:, BELOW:], wanted, rtol=1e-4, atol=1e-7)


def own(model: nn.Sequential, x: Any, y: int) -> torch.Tensor:
    """The gradient of the last layer for one record, by autograd through the whole model."""
    loss = nn.functional.cross_entropy(model(torch.from_numpy(x)[None]), torch.tensor([y]))
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model[-1].parameters()))])


def test_after_the_rounds_of_the_last_layer_all_layers_have_gradients() -> None:
    clients = Clients.of(
        Config(**HEAD), blobs(), list(np.arange(296, dtype=np.int64).reshape(8, 37)), torch.device("cpu")
    )
    for number, there in ((3, False), (4, True)):
        _, rows = next(clients.updates(module(), number, [0, 1], 1e9))
        assert bool((rows[:, :BELOW] != 0).any()) == there


def test_layers_below_wait_then_join_over_ten_rounds() -> None:
    config = Config(**(HEAD | {"momentum": 0.0}))
    old = torch.zeros(BELOW + LAST)
    for number, share in ((0, 0.0), (3, 0.0), (4, 0.1), (8, 0.5), (13, 1.0), (15, 1.0)):
        state = State(old, old, old, round=number)
        moved = step._moved(config, state, torch.ones_like(old), LAST)
        torch.testing.assert_close(moved[:BELOW], torch.full((BELOW,), config.lr * share))
        torch.testing.assert_close(moved[BELOW:], torch.full((LAST,), config.lr))


def test_the_last_layer_alone_may_have_a_learning_rate_of_its_own() -> None:
    config, old = Config(**(HEAD | {"momentum": 0.0, "head_lr": 7.0})), torch.zeros(BELOW + LAST)
    for number, rate in ((0, 7.0), (3, 7.0), (4, config.lr), (15, config.lr)):
        moved = step._moved(config, State(old, old, old, round=number), torch.ones_like(old), LAST)
        torch.testing.assert_close(moved[BELOW:], torch.full((LAST,), rate))
    for changed in ({"head_lr": 0.0}, {"head_lr": 1e39}, {"head_lr": 1.0, "head_rounds": 0}):
        with pytest.raises(ArgumentError, match="head_lr"):
            Config(**(HEAD | changed))


def test_a_fixed_map_gets_no_gradient_and_passes_those_of_the_layers_around_it() -> None:
    torch.manual_seed(1)
    mapped = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), models.Fixed(torch.randn(4, 4), torch.randn(4)), nn.Linear(4, 2))
    x, y = torch.randn(6, 1, 5), torch.tensor([0, 1, 0, 1, 1, 0])
    assert fast.knows(mapped)
    found, wanted = fast.Records(mapped, half=False).gradients(x, y), fast.by_vmap(mapped, x, y)
    assert sum(g.shape[1] for g in found) == BELOW + LAST
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_rounds_of_the_last_layer_leave_the_others_as_they_start_and_cost_what_any_round_costs(tmp_path: Path) -> None:
    mine = run(tmp_path / "head.jsonl")
    begin, lines = mine.state.weights.clone(), mine.lines()
    while mine.state.round < 4:
        next(lines)
    assert torch.equal(mine.state.weights[:BELOW], begin[:BELOW])
    assert not torch.equal(mine.state.weights[BELOW:], begin[BELOW:])
    for _ in lines:
        pass
    assert not torch.equal(mine.state.weights[:BELOW], begin[:BELOW])
    plain = run(tmp_path / "all.jsonl", head_rounds=0)
    assert plain.plan == mine.plan
    assert plain.finish().outcome.epsilon == run(tmp_path / "again.jsonl").finish().outcome.epsilon


@pytest.mark.parametrize("cut", [3, 6])
def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path: Path, cut: int) -> None:
    whole = run(tmp_path / "whole.jsonl")
    whole.finish()
    lines = run(tmp_path / "cut.jsonl").lines()
    for _ in range(cut):
        next(lines)
    with pytest.raises(KeyboardInterrupt):
        lines.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    resumed = run(tmp_path / "cut.jsonl", resume=True)
    resumed.finish()
    assert torch.equal(resumed.state.weights, whole.state.weights)


@pytest.mark.parametrize(
    "changed",
    [{"head_rounds": -1}, {"head_rounds": 7}, {"unit": "client"}, {"model": "linear"}, {"head_rounds": 1.5}],
)
def test_settings_that_do_not_fit_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="head_rounds"):
        Config(**(HEAD | changed))


def test_the_last_layer_must_be_linear_and_last() -> None:
    model = module()
    assert models.last(model) is model[-1]
    for other in (model[:-1], nn.Sequential(model[-1]), nn.ModuleList(model), model[-1]):
        with pytest.raises(ArgumentError, match=r"head_rounds needs a torch\.nn\.Sequential"):
            models.last(other)


def test_features_of_a_record_do_not_depend_on_how_many_there_are() -> None:
    body = models.build("wrn-16-4", (3, 8, 8), 10, 0)[:-1].append(torch.nn.Linear(256, 37))
    x = torch.randn(259, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    whole = fast.outputs(body, x)
    for count in (1, 7, 100, 250, 258):
        assert torch.equal(fast.outputs(body, x[:count]), whole[:count])
    with torch.no_grad():
        assert torch.allclose(body(x[:7]), whole[:7], rtol=1e-4, atol=1e-4)


@GPU
@pytest.mark.parametrize("name", ["wrn-16-4", "resnet18", "cnn"])
def test_features_of_a_record_on_a_gpu_depend_on_it_alone(name: str) -> None:
    *layers, last = models.build(name, (3, 32, 32), 37, 0)
    body = nn.Sequential(*layers, models.Fixed(last.weight.detach(), torch.ones(37)))
    x = torch.rand(1100, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    assert fast.knows(body)
    exact = fast.outputs(body, x[:7])
    body, x = body.cuda(), x.cuda()
    whole = fast.outputs(body, x)
    assert whole.dtype == torch.float32
    assert float((whole[:7].cpu() - exact).norm() / exact.norm()) < 0.05
    for count in (1, 7, 100, 101, 1099):
        assert torch.equal(fast.outputs(body, x[:count]), whole[:count])
    for gone in (0, 99, 600):
        kept = torch.arange(1100, device="cuda") != gone
        assert torch.equal(fast.outputs(body, x[kept]), whole[kept])
    order = torch.randperm(1100, generator=torch.Generator().manual_seed(4)).cuda()
    assert torch.equal(fast.outputs(body, x[order]), whole[order])
    copies = fast.outputs(body, x[:1].expand(501, 3, 32, 32))
    assert torch.equal(copies, whole[:1].expand_as(copies))
