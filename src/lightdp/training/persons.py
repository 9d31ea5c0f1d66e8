"""Sums of clipped gradients of persons: what a client uploads, before noise, when whole persons are protected.

A person may have many records, all of them at one client. The gradients of a person's records are added up, and that
sum is clipped: whatever a person's records are, and however many, an upload moves by at most `clip`. So the noise that
`lightdp.plan` finds for one record of this clip protects one person.

>>> import torch
>>> model = torch.nn.Linear(2, 3)
>>> x, y = torch.tensor([[300.0, 0.0], [0.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1, 2])
>>> sums = clipped_sums(model, x, y, person=torch.tensor([0, 0, 1]), owner=torch.tensor([0, 0]), clients=1, clip=0.5)
>>> sums.shape, bool(sums.norm() <= 1.0)
(torch.Size([1, 9]), True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from lightdp._validate import integer
from lightdp.errors import ArgumentError
from lightdp.training import fast, gradients

_Gradients = Callable[[Tensor, Tensor], list[Tensor]]  # of records, by parameter, each (n, numel)


def clipped_sums(  # noqa: PLR0917  records, whose they are, and the bound
    model: nn.Module, x: Tensor, y: Tensor, person: Tensor, owner: Tensor, clients: int, clip: float, *,
    half: bool = True, chunk_bytes: int | None = None,
) -> Tensor:  # fmt: skip
    """Each client's sum, over its persons, of their gradients clipped to L2 norm `clip`. (clients, d)

    Guarantee: the term that a person adds has norm at most `clip`, taken as real numbers, and depends on that
    person's records alone, up to the rounding of how they are added up. The norm is that of the sum of gradients as it
    was rounded, in float64, and longer sums are scaled to (1 - 2e-6) clip, as in `lightdp.training.gradients`.

    Args:
        model: gives logits for records; its parameters are float32 or float64.
        x: records, sorted by person. (n, ...)
        y: their labels. (n,)
        person: record j is of person `person[j]`, ascending. (n,)
        owner: person p is at client `owner[p]`. (persons,)
        clients: how many there are; a client without records gets a zero row.
        clip: the bound, at least 1e-12.
        half: whether CUDA may compute in bfloat16.
        chunk_bytes: working memory, as in `lightdp.training.gradients`.

    Raises:
        ArgumentError: as `lightdp.training.gradients.clipped_sums`, or records are not sorted by person.
    """
    sums, clip = gradients.checked(model, x, y, clients, clip)
    if person.shape != y.shape or owner.ndim != 1:
        raise ArgumentError(f"person must have shape {tuple(y.shape)}, got {tuple(person.shape)}")
    dtype = gradients.flatten(model).dtype
    if len(y) == 0:
        return sums.to(dtype)
    if not bool((person[1:] >= person[:-1]).all()):
        raise ArgumentError("person must be ascending, got records that are not sorted by person")
    for name, values, end in (("person", person, len(owner)), ("owner", owner, clients)):
        if int(values.min()) < 0 or int(values.max()) >= end:
            raise ArgumentError(f"{name} must be in 0..{end - 1}, got {int(values.min())}..{int(values.max())}")
    each, held = _by_record(model, x, y, half=half)
    room = gradients.room(x.device) if chunk_bytes is None else integer("chunk_bytes", chunk_bytes, 1)
    layer = gradients.linear(model)
    size = gradients.together(x.device, room // (held + 16 * sums.shape[1]), linear=layer is not None)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        for start, stop in _blocks(person, size):
            first = int(person[start])
            terms = sums.new_zeros(int(person[stop - 1]) - first + 1, sums.shape[1], dtype=dtype)
            for at in range(start, stop, size):
                end = min(at + size, stop)
                rows = gradients.filled(at, end, size, x.device)
                _add(terms, person[at:end] - first, torch.cat(each(x[rows], y[rows]), 1)[: end - at].to(dtype))
            terms *= gradients.factors(fast.squares(terms), clip).to(terms.dtype)[:, None]
            _add(sums, owner[first : first + len(terms)], terms.double())
        if layer is None and fast.knows(model):
            fast.reorder(model, sums)
    return sums.to(dtype)


def _by_record(model: nn.Module, x: Tensor, y: Tensor, *, half: bool) -> tuple[_Gradients, int]:
    """The gradients of each record, and how many bytes one takes beside them."""
    layer = gradients.linear(model)
    if layer is not None:
        return partial(_linear, layer), 8 * x[0].numel()
    known, bytes_each = fast.knows(model), gradients.record_bytes(model, x[:1], y[:1])
    found = fast.Records(model, half=half).gradients if known else partial(fast.by_vmap, model)
    return (lambda records, labels: found(records[:, None], labels)), bytes_each


def _linear(layer: nn.Linear, x: Tensor, y: Tensor) -> list[Tensor]:
    """(p - onehot(y)) ⊗ [features, 1] for each record."""
    features = x.flatten(1)
    residuals = fast.dense(features, layer.weight, layer.bias).softmax(1)  # (n, classes)
    residuals.scatter_add_(1, y[:, None], residuals.new_full((len(y), 1), -1.0))
    weights = (residuals[:, :, None] * features[:, None, :]).flatten(1)
    return [weights] if layer.bias is None else [weights, residuals]


def _blocks(person: Tensor, size: int) -> Iterator[tuple[int, int]]:
    """The records of whole persons, at most `size` of them at a time, or those of one person."""
    ends = (torch.nonzero(person[1:] != person[:-1]).flatten() + 1).tolist()
    ends.append(len(person))
    start = last = 0
    for end in ends:
        if end - start > size and last > start:
            yield start, last
            start = last
        last = end
    yield start, last


def _add(sums: Tensor, where: Tensor, rows: Tensor) -> None:
    """Add each row to the sum that `where` names, in an order that is the same every time."""
    if sums.is_cuda:
        sums.index_put_((where,), rows, accumulate=True)  # sorts, where index_add_ would race
    else:
        sums.index_add_(0, where, rows)
