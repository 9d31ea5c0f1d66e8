"""Local SGD of many clients on one GPU: lanes, each with weights of its own, that take every step together.

A batch of 32 leaves most of a GPU idle, and starting its hundreds of small kernels takes longer than they run. So
the batches of several clients go through one model whose layers have separate weights for each lane, by kernels of our
own, and a whole step is captured once as a CUDA graph and replayed. A lane that has finished a client takes the next;
when none is left, steps use fewer lanes.
"""

from __future__ import annotations

import copy
import heapq
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence

from lightdp.training.fast._gpu import kernels
from lightdp.training.fast._layers import with_norms
from lightdp.training.fast._layout import channels_last, inputs_last, padding, reorder
from lightdp.training.models import StandardisedConv

_LANES = 16  # with batches of 32, the kernels then start just fewer programs than a GPU of 132 processors runs at once
_FEWER = (12, 8, 4)  # lanes of a step when the others have nothing left to do


def mean_loss(model: nn.Module, parameters: dict[str, Tensor], x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """Mean cross-entropy over the records `rows` (..., batch), ignoring those that are -1, summed over lanes.

    x and y hold the records of all lanes one after the other, with any record in place of -1.
    """
    scores = functional_call(model, parameters, (x,))
    scores = scores.float() if scores.dtype == torch.bfloat16 else scores
    there = (rows >= 0).to(scores.dtype)
    shares = there / there.sum(-1, keepdim=True).clamp_min(1)
    return cross_entropy(scores, y, reduction="none") @ shares.flatten()


class _Convolution(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """Images (lanes · b, c, h, w), channels last, with kernels (lanes, outputs, side, side, c) of each lane."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:  # noqa: ANN401
        """The images' convolutions with the kernels of their lanes."""
        x = channels_last(x)
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return kernels.convolution(x, weight, stride, padding)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """The gradients of the images, if needed, and of the kernels."""
        (x, weight), g, settings = ctx.saved_tensors, channels_last(g), (ctx.stride, ctx.padding)
        dx = kernels.image_gradients(g, weight, x.shape, *settings) if ctx.needs_input_grad[0] else None
        dw = kernels.weight_gradients(x, g, len(weight), weight.shape[2], *settings, dtype=weight.dtype)
        return dx, dw.view(weight.shape), None, None


class _Conv(nn.Module):  # type: ignore[misc]
    """A convolution whose weight is (lanes, outputs, height, width, inputs) and whose bias is (lanes, outputs)."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = [layer]  # in a list, so that it is no submodule
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """The same as the layer in each lane, up to rounding."""
        (layer,), weight = self.layer, self.weight
        lanes, outputs = weight.shape[:2]
        if isinstance(layer, StandardisedConv):
            weight = layer.standard(weight.flatten(0, 1))[0].unflatten(0, (lanes, outputs))
        if kernels is not None and kernels.fits(layer, x) and kernels.fits_lanes(layer, x):
            missing = -x.shape[1] % 16  # tensor cores take 16 at once
            if missing > 0:
                x, weight = pad(x, (0, 0, 0, 0, 0, missing)), pad(weight, (0, missing))
            y = _Convolution.apply(x, weight, layer.stride[0], padding(layer)[0])
        else:
            grouped = x.unflatten(0, (lanes, -1)).transpose(0, 1).flatten(1, 2)
            kernel = weight.flatten(0, 1).permute(0, 3, 1, 2)
            y = conv2d(grouped, kernel, None, layer.stride, layer.padding, groups=lanes)
            y = y.unflatten(1, (lanes, outputs)).transpose(0, 1).flatten(0, 1)
        if self.bias is None:
            return y
        return (y.unflatten(0, (lanes, -1)) + self.bias[:, None, :, None, None]).flatten(0, 1)


class _Linear(nn.Module):  # type: ignore[misc]
    """A dense layer whose weight is (lanes, outputs, inputs) and whose bias is (lanes, outputs)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """The same as the layer in each lane."""
        rows = x.reshape(len(self.weight), -1, x.shape[-1])
        y = torch.bmm(rows, self.weight.transpose(1, 2))
        return (y if self.bias is None else y + self.bias[:, None]).view(*x.shape[:-1], -1)


def _with_lanes(model: nn.Module) -> nn.Module:
    """Replace layers, in place, by those that are called with the parameters of all lanes, under the same names."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Conv2d | nn.Linear):
                setattr(parent, name, (_Conv if isinstance(child, nn.Conv2d) else _Linear)(child))
    return model


class _Lanes:
    """The weights of each lane, in float32 and in the type that a step computes in, and that step.

    Rows of weights have the parameters one after the other, kernels as (outputs, height, width, inputs).
    """

    def __init__(  # noqa: PLR0917  what the graph of a step depends on
        self, model: nn.Module, x: Tensor, y: Tensor, count: int, batch: int, lr: float, dtype: torch.dtype
    ) -> None:
        size = sum(p.numel() for p in model.parameters())
        self.rows = torch.full((count, batch), -1, device=x.device)
        self.weights = torch.zeros(count, -(-size // 16) * 16, device=x.device)  # every lane on a boundary
        self.used = self.weights.to(dtype, copy=True)
        twin = _with_lanes(with_norms(copy.deepcopy(model)))
        names = [name for name, _ in model.named_parameters()]

        def first(lanes: int) -> Callable[[], None]:
            """A step of the first lanes."""
            rows, wide = self.rows[:lanes], _views(model, self.weights[:lanes])
            narrow = [view.detach().requires_grad_() for view in _views(model, self.used[:lanes])]

            def step() -> None:
                records = rows.clamp_min(0).flatten()
                seen = channels_last(x[records].to(dtype))
                value = mean_loss(twin, dict(zip(names, narrow, strict=True)), seen, y[records], rows)
                gradients = torch.autograd.grad(value, narrow, allow_unused=True, materialize_grads=True)
                with torch.no_grad():
                    for w, used, g in zip(wide, narrow, gradients, strict=True):
                        _descend(w, used, g, lr)

            return step

        counts = [count, *(fewer for fewer in _FEWER if fewer < count)]
        pool = torch.cuda.graph_pool_handle() if x.is_cuda else None  # nothing in it outlives a step
        self.steps = {lanes: _captured(first(lanes), pool) if x.is_cuda else first(lanes) for lanes in counts}


def _views(model: nn.Module, flat: Tensor) -> list[Tensor]:
    """The parameters of all lanes, (lanes, ...), as parts of rows (lanes, d)."""
    shapes = [inputs_last(p).shape for p in model.parameters()]
    sizes = [shape.numel() for shape in shapes]
    pieces = flat[:, : sum(sizes)].split(sizes, 1)
    return [piece.unflatten(1, shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _descend(weights: Tensor, used: Tensor, gradient: Tensor, lr: float) -> None:
    """One step of SGD in float32, and its result in the type that the next step computes in."""
    if kernels is not None and weights.is_cuda:
        kernels.descend(weights, used, gradient, lr)
    else:
        weights.sub_(gradient, alpha=lr)
        used.copy_(weights)


def _captured(step: Callable[[], None], pool: Any) -> Callable[[], None]:  # noqa: ANN401  torch has no public name
    """The step as a CUDA graph, after three runs in which libraries and compilers set themselves up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()
    return graph.replay


_kept: WeakKeyDictionary[nn.Module, tuple[object, _Lanes]] = WeakKeyDictionary()


def train_lanes(
    model: nn.Module, x: Tensor, y: Tensor, plans: list[Tensor], lr: float, *, dtype: torch.dtype
) -> Tensor:
    """The update of each client by local SGD. (clients, d)

    The CUDA graph of a step is kept for the next call with the same model, settings, and data at the same address.

    Args:
        model: where every client starts; one that `knows` accepts.
        x: records of all clients. (n, ...)
        y: their labels. (n,)
        plans: for each client its batches, as rows of indices that are filled up by -1. (steps, batch)
        lr: learning rate.
        dtype: what a step computes in; weights are kept in float32.
    """
    received = torch.cat([inputs_last(p.detach()).reshape(-1) for p in model.parameters()]).float()
    updates = torch.zeros(len(plans), len(received), device=x.device)
    lanes = _lanes_for(model, x, y, len(plans), (plans[0].shape[1], lr, dtype))
    queues = _queues([len(plan) for plan in plans], len(lanes.rows))
    starts, ends = defaultdict(list), defaultdict(list)
    for lane, queue in enumerate(queues):
        at = 0
        for client in queue:
            starts[at].append(lane)
            at += len(plans[client])
            ends[at - 1].append((lane, client))
    waiting = [torch.cat([plans[client] for client in queue] or [plans[0][:0]]) for queue in queues]
    for step, rows in enumerate(pad_sequence(waiting, padding_value=-1).to(x.device)):
        for lane in starts[step]:
            lanes.weights[lane, : len(received)] = received
            lanes.used[lane, : len(received)] = received
        lanes.rows.copy_(rows)
        busy = sum(step < len(plan) for plan in waiting)  # the first lanes; a step may include idle ones after them
        lanes.steps[min(count for count in lanes.steps if count >= busy)]()
        for lane, client in ends[step]:
            torch.sub(lanes.weights[lane, : len(received)], received, out=updates[client])
    reorder(model, updates)
    return updates


def _queues(steps: list[int], lanes: int) -> list[list[int]]:
    """The clients that each lane trains one after the other: the longest first, to the lane that is free first.

    The lanes with the most steps come first.
    """
    queues: list[list[int]] = [[] for _ in range(lanes)]
    loads = [(0, lane) for lane in range(lanes)]
    for client in sorted((c for c, count in enumerate(steps) if count > 0), key=lambda c: -steps[c]):
        load, lane = loads[0]
        queues[lane].append(client)
        heapq.heapreplace(loads, (load + steps[client], lane))
    return [queues[lane] for _, lane in sorted(loads, reverse=True)]


def _lanes_for(model: nn.Module, x: Tensor, y: Tensor, count: int, settings: tuple[int, float, torch.dtype]) -> _Lanes:
    """Lanes for `count` clients: those of the last call, if they are enough and everything else is the same."""
    place = [(t.data_ptr(), t.shape, t.stride()) for t in (x, y)]
    fixed, wanted = (place, settings, model.training), min(count, _LANES)
    known, lanes = _kept.pop(model, (None, None))
    if lanes is None or known != fixed or len(lanes.rows) < wanted:
        del lanes  # before the new ones take memory
        lanes = _Lanes(model, x, y, wanted, *settings)
    _kept[model] = fixed, lanes
    return lanes
