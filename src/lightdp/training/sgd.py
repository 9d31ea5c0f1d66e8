"""FedAvg's local work: what a client uploads, before noise, when all its records are protected together.

Each client starts from the server's model and trains it on its own records by plain SGD; its update is the difference.
`local_updates` computes the updates of many clients at once. It does not clip: `lightdp.training.clients` scales each
update to the plan's bound before anything else sees it.

A *plan* below is a client's batches, one a row, as indices of records; -1 fills up short batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from lightdp._validate import integer, positive
from lightdp.training import fast, gradients

_BATCHES = 21  # purpose of the shuffles, so that no other draw of the same seed and round repeats them
_TOGETHER = 1 << 20  # bytes of one batch below which clients train faster together than one by one, on a CPU
_BYTES = 1 << 28  # working memory of clients that train together


def local_updates(
    model: nn.Module, x: Tensor, y: Tensor, parts: Sequence[Tensor], *, numbers: Sequence[int] | None = None,
    epochs: int, batch: int, lr: float, seed: int, round: int, half: bool = True,  # noqa: A002  the protocol's word
) -> Tensor:  # fmt: skip
    """The trained minus the received parameters of each client. (clients, d)

    Several clients train at once, with the result of training one after the other, up to rounding. On CUDA, clients
    with a model of known layers (`lightdp.training.fast`) take their steps together, captured as a CUDA graph once for
    a model, its data and these settings. That computes in bfloat16 on float32 weights, which moves an update by a few
    per cent of its norm.

    >>> model = torch.nn.Linear(2, 3)
    >>> x, y, parts = torch.ones(4, 2), torch.tensor([0, 1, 2, 0]), [torch.tensor([0, 1, 2]), torch.tensor([3])]
    >>> local_updates(model, x, y, parts, epochs=2, batch=2, lr=0.1, seed=0, round=1).shape
    torch.Size([2, 9])

    Args:
        model: where every client starts; it is not changed.
        x: records of all clients. (n, ...)
        y: their labels. (n,)
        parts: for each client the positions of its records; a client without records gets a zero row.
        numbers: what the clients are called, by default 0, 1, ... A client's batches depend on its number, `seed` and
            `round` only, so other clients do not change them.
        epochs: passes over a client's records, each in a new order.
        batch: records of a step; the last step of an epoch takes what is left.
        lr: learning rate.
        seed: of the order of records.
        round: of the training, likewise.
        half: whether CUDA may compute in bfloat16, instead of float32 under torch's own settings.

    Raises:
        ArgumentError: an argument is out of range, or the model has BatchNorm or Dropout in training mode.
    """
    lr, epochs, batch = positive("lr", lr), integer("epochs", epochs, 1), integer("batch", batch, 1)
    key = (integer("seed", seed, 0), _BATCHES, integer("round", round, 0))
    gradients.refuse(model, x, y)
    names = range(len(parts)) if numbers is None else numbers
    plans = [_batches(part, epochs, batch, (*key, client)) for client, part in zip(names, parts, strict=True)]
    if not any(map(len, plans)):
        return torch.zeros_like(gradients.flatten(model)).repeat(len(plans), 1)
    linear = gradients.linear(model) is not None
    if not linear and x.is_cuda and x.dtype == torch.float32 and fast.knows(model):
        return fast.train_lanes(model, x, y, plans, lr, dtype=torch.bfloat16 if half else torch.float32)
    if linear or (not x.is_cuda and batch * gradients.record_bytes(model, x[:1], y[:1]) < _TOGETHER):
        return _together(model, x, y, plans, lr)
    return _one_by_one(model, x, y, plans, lr)


def _batches(part: Tensor, epochs: int, batch: int, key: tuple[int, ...]) -> Tensor:
    rng = np.random.default_rng(list(key))  # noqa: TID251  shuffling, nothing that protects
    records = part.detach().cpu().numpy()
    plan = np.full((epochs, -(-len(records) // batch) * batch), -1, dtype=np.int64)
    for epoch in plan:
        epoch[: len(records)] = rng.permutation(records)
    return torch.from_numpy(plan.reshape(-1, batch))


def _one_by_one(model: nn.Module, x: Tensor, y: Tensor, plans: list[Tensor], lr: float) -> Tensor:
    """The plain loop that the other two must agree with."""
    received = gradients.flatten(model)
    parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    sgd = torch.optim.SGD(parameters.values(), lr=lr)
    updates = received.new_empty(len(plans), len(received))
    for update, plan in zip(updates, plans, strict=True):
        for p, start in zip(parameters.values(), model.parameters(), strict=True):
            p.data.copy_(start)
        for rows in plan:
            batch = rows[rows >= 0].to(x.device)
            sgd.zero_grad()
            cross_entropy(functional_call(model, parameters, (x[batch],)), y[batch]).backward()
            sgd.step()
        torch.cat([p.detach().reshape(-1) for p in parameters.values()], out=update)
    return updates.sub_(received)


def _together(model: nn.Module, x: Tensor, y: Tensor, plans: list[Tensor], lr: float) -> Tensor:
    """Clients side by side under vmap, each with its own parameters, as many as fit into the working memory."""
    start = {name: p.detach() for name, p in model.named_parameters()}
    size = sum(p.numel() for p in start.values())
    slopes = vmap(grad(partial(fast.mean_loss, model)))
    updates = gradients.flatten(model).new_zeros(len(plans), size)
    order = sorted(range(len(plans)), key=lambda client: -len(plans[client]))  # the longest first
    several = max(1, _BYTES // (16 * size + 2 * x.element_size() * plans[0].shape[1] * x[0].numel()))
    for group in (order[at : at + several] for at in range(0, len(order), several)):
        parameters = {name: p.expand(len(group), *p.shape).clone() for name, p in start.items()}
        for step in range(len(plans[group[0]])):
            rows = torch.stack([plans[client][step] for client in group if step < len(plans[client])]).to(x.device)
            now = {name: p[: len(rows)] for name, p in parameters.items()}
            records = rows.clamp_min(0)
            for name, g in slopes(now, x[records], y[records], rows).items():
                now[name].sub_(g, alpha=lr)
        updates[group] = torch.cat([(p - start[name]).flatten(1) for name, p in parameters.items()], 1)
    return updates
