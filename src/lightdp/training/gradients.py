"""Sums of clipped gradients: what a client uploads, before noise, when single records are protected.

In each round a client sends the sum over its records of the gradient of the loss, with every record's gradient scaled
to an L2 norm of at most `clip` (DP-SGD). That bound is the sensitivity from which `lightdp.plan` computes the noise,
so this module guarantees it for real numbers, not only up to rounding; `clipped_sums` says what that rests on.

`clipped_sums` does the work for all simulated clients of a round. `flatten` and `assign` turn the parameters of a model
into one vector and back; the server's step, the noise and the wire see only such vectors.

>>> import torch
>>> model = torch.nn.Linear(2, 3)
>>> x, y = torch.tensor([[300.0, 0.0], [0.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1, 2])
>>> sums = clipped_sums(model, x, y, owner=torch.tensor([0, 1, 1]), clients=2, clip=0.5)
>>> sums.shape, bool(sums[0].norm() <= 0.5)
(torch.Size([2, 9]), True)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lightdp._validate import integer, positive
from lightdp.errors import ArgumentError
from lightdp.training import fast

_Terms = Callable[[Tensor, Tensor], tuple[list[Tensor], Tensor]]  # of records and labels: by parameter, squared norms
_Segments = list[tuple[int, slice]]  # the clients of a chunk of records, each with its rows
_MARGIN = 2e-6  # more than rounding can add to a clipped norm: 9 · 2^-24 by `squares`, 11 · 2^-24 by the scaling
_LEAST_CLIP = 1e-12  # far above what squares lose by underflow
_MOST = 1e23  # a norm that, for the least clip, still leaves factors and scaled values above float32's underflow
_MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)  # noqa: SLF001  the only common bases
_BYTES = 1 << 28  # working memory
_CUDA_BYTES = 1 << 36  # of records whose gradients are made together, where a GPU has twice as much
_TOGETHER = {"cpu": 16, "cuda": 4096}  # records of a pass at most: the last one is filled up; few keep no GPU busy
_LINEAR = {"cpu": 512, "cuda": 1 << 14}  # likewise, of a pass over a linear model


def flatten(model: nn.Module) -> Tensor:
    """A copy of all parameters as one vector (d,), in the order of `model.parameters()`.

    >>> flatten(torch.nn.Linear(2, 3)).shape
    torch.Size([9])
    """
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def assign(model: nn.Module, flat: Tensor) -> None:
    """Copy a vector in the order of `flatten` into the parameters, in place.

    >>> model = torch.nn.Linear(1, 2)
    >>> assign(model, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    >>> model.weight.tolist(), model.bias.tolist()
    ([[1.0], [2.0]], [3.0, 4.0])

    Raises:
        ArgumentError: `flat` is not a vector with one value for each parameter.
    """
    sizes = [p.numel() for p in model.parameters()]
    if flat.shape != (sum(sizes),):
        raise ArgumentError(f"flat must have shape ({sum(sizes)},), got {tuple(flat.shape)}")
    with torch.no_grad():
        for p, piece in zip(model.parameters(), flat.split(sizes), strict=True):
            p.copy_(piece.view_as(p))


def clipped_sums(  # noqa: PLR0917  records, whose they are, and the bound
    model: nn.Module, x: Tensor, y: Tensor, owner: Tensor, clients: int, clip: float, *,
    views: Callable[[Tensor, slice | Tensor], Tensor] | None = None, half: bool = True, chunk_bytes: int | None = None,
) -> Tensor:  # fmt: skip
    """Each client's sum, over its records, of the gradient of cross-entropy clipped to L2 norm `clip`. (clients, d)

    Guarantee: the term that a record adds has norm at most `clip`, taken as real numbers: norms are summed in float64,
    and longer gradients are scaled to (1 - 2e-6) clip, a margin wider than float32 can round up. It depends on this
    record alone as far as torch's kernels treat records alike wherever they stand among equally many: every pass takes
    the same number of records, which depends on the model and the working memory only (W6).

    Terms are added in the precision of the parameters within a pass, and in float64 from pass to pass. How the sum is
    rounded is not part of the bound: for n records, passes of c and float32 it is at most (c + 1) n 2^-24 clip, or
    ten times that with standardised kernels.

    Linear models never form the gradient of a record. On CUDA, models of known layers (`lightdp.training.fast`)
    compute gradients in bfloat16 before they are clipped.

    Args:
        model: gives logits for records; its parameters are float32 or float64.
        x: records of all clients. (n, ...)
        y: their labels. (n,)
        owner: record j belongs to client `owner[j]`. (n,)
        clients: how many there are; a client without records gets a zero row.
        clip: the bound, at least 1e-12.
        views: maps some records and their positions in x to views of them, (n, views, ...). A record's gradient is
            then the mean over its views, and is clipped after that.
        half: whether CUDA may compute in bfloat16; in float32 it was seen not to treat records alike (W6).
        chunk_bytes: working memory, by default 256 MiB, or up to 64 GiB on CUDA.

    Raises:
        ArgumentError: a shape does not fit; the model has BatchNorm or Dropout in training mode, whose gradients
            depend on other records or on chance; a gradient is not finite or has norm 1e23 or more; or the
            parameters are less precise than float32, where rounding alone could lengthen a term.
    """
    sums, clip = checked(model, x, y, clients, clip)
    if owner.shape != y.shape:
        raise ArgumentError(f"owner must have shape {tuple(y.shape)}, got {tuple(owner.shape)}")
    if len(y) == 0:
        return sums.to(flatten(model).dtype)
    low, high = int(owner.min()), int(owner.max())
    if low < 0 or high >= clients:
        raise ArgumentError(f"owner must be in 0..{clients - 1}, got {low}..{high}")
    layer = linear(model) if views is None else None
    records = fast.Records(model, half=half) if layer is None and fast.knows(model) else None
    if layer is not None:
        add, each = partial(_add_linear, layer), 8 * x[0].numel()
    else:
        views = (lambda records, _: records[:, None]) if views is None else views
        (one,) = views(x[:1], slice(1))
        held = record_bytes(model, one, y[:1].expand(len(one)))
        on_gpu = records is not None and x.is_cuda
        each = held // (4 if on_gpu else 1) + 8 * sums.shape[1]  # a GPU: in half, freed layer by layer
        add = partial(_add_any, partial(_by_vmap, model) if records is None else records.terms)
    free = room(x.device) if chunk_bytes is None else integer("chunk_bytes", chunk_bytes, 1)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # a product in TF32 would round terms up past the bound
    try:
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            for rows, segments in _chunks(owner, clients, together(x.device, free // each, linear=layer is not None)):
                seen = x[rows] if views is None else views(x[rows], rows)
                add(clip, sums, segments, x=seen, y=y[rows])
            if records is not None:
                records.finish(sums)
    finally:
        torch.set_float32_matmul_precision(precision)
    return sums.to(flatten(model).dtype)


def _chunks(owner: Tensor, clients: int, size: int) -> Iterator[tuple[slice | Tensor, _Segments]]:
    """Always `size` records, sorted by owner, and each of their clients with its part of the chunk.

    The last chunk is filled up by its last record, which is then in no client's part.
    """
    n = len(owner)
    order = None if bool((owner[1:] >= owner[:-1]).all()) else owner.argsort(stable=True)
    ends = torch.bincount(owner, minlength=clients).cumsum(0).tolist()
    for start in range(0, n, size):
        stop = min(start + size, n)
        rows = filled(start, stop, size, owner.device)
        cuts = sorted({start, *ends[bisect_right(ends, start) : bisect_left(ends, stop)], stop})
        segments = [(bisect_right(ends, a), slice(a - start, b - start)) for a, b in pairwise(cuts)]
        yield rows if order is None else order[rows], segments


def _add_linear(layer: nn.Linear, clip: float, sums: Tensor, segments: _Segments, *, x: Tensor, y: Tensor) -> None:
    """One record's gradient is (p - onehot(y)) ⊗ [features, 1]: its norm is a product, a sum of them a matmul."""
    features, bias = x.flatten(1), layer.bias is not None
    residuals = fast.dense(features, layer.weight, layer.bias).softmax(1)  # (n, classes)
    residuals.scatter_add_(1, y[:, None], residuals.new_full((len(y), 1), -1.0))
    lengths = _moderate(fast.squares(features) + int(bias))
    residuals *= factors(residuals.double().square().sum(1) * lengths, clip)[:, None]
    weights = sums[:, : layer.weight.numel()].unflatten(1, layer.weight.shape)
    for client, rows in segments:
        weights[client] += residuals[rows].T @ features[rows]
        if bias:
            sums[client, layer.weight.numel() :] += residuals[rows].sum(0)


def _by_vmap(model: nn.Module, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
    flat = fast.by_vmap(model, x, y)
    return flat, torch.stack([fast.squares(g) for g in flat]).sum(0)


def _add_any(each: _Terms, clip: float, sums: Tensor, segments: _Segments, *, x: Tensor, y: Tensor) -> None:
    """Compute the gradients of all records of a chunk at once; clip them while adding them up."""
    flat, squares = each(x, y)  # by parameter, each (n, numel)
    scales = factors(squares, clip)
    pieces = sums.split([g.shape[1] for g in flat], dim=1)
    for client, rows in segments:
        for piece, g in zip(pieces, flat, strict=True):
            piece[client] += g[rows].T @ scales[rows].to(g.dtype)


def _moderate(squares: Tensor) -> Tensor:
    if not bool((squares < _MOST**2).all()):  # False for NaN
        raise ArgumentError(f"gradients must be finite and below {_MOST:g} in norm: check x and the model's parameters")
    return squares


# what sums of persons and local SGD need too


def checked(model: nn.Module, x: Tensor, y: Tensor, clients: int, clip: float) -> tuple[Tensor, float]:
    """Sums that are still zero, (clients, d) in float64, and the clip.

    Raises:
        ArgumentError: as `clipped_sums` says of model, records and clip.
    """
    clip, clients = positive("clip", clip), integer("clients", clients, 1)
    if clip < _LEAST_CLIP:
        raise ArgumentError(f"clip must be >= {_LEAST_CLIP:g}, got clip={clip:g}")
    kinds = {p.dtype for p in model.parameters()}
    if not kinds <= {torch.float32, torch.float64}:
        raise ArgumentError(f"model must have parameters in float32 or float64, got {sorted(map(str, kinds))}")
    refuse(model, x, y)
    return torch.zeros_like(flatten(model), dtype=torch.float64).repeat(clients, 1), clip


def factors(squares: Tensor, clip: float) -> Tensor:
    """By how much to scale terms of these squared norms, as `fast.squares` finds them, so that none exceeds `clip`."""
    return (clip * (1 - _MARGIN) / _moderate(squares).sqrt()).clamp_max(1.0)


def room(device: torch.device) -> int:
    """Bytes of working memory."""
    if device.type != "cuda":
        return _BYTES
    ours = torch.cuda.get_device_properties(device).total_memory * torch.cuda.get_per_process_memory_fraction(device)
    return min(_CUDA_BYTES, int(ours) // 2)


def together(device: torch.device, fit: int, *, linear: bool) -> int:
    """How many records every pass takes, where so many fit into the working memory.

    Libraries choose other kernels for other numbers of records, which round otherwise. Weights can be such that the
    gradients of all records follow the rounding, so the number must not depend on how many records there are.
    """
    most = _LINEAR if linear else _TOGETHER
    return max(1, min(fit, most[device.type]))


def filled(start: int, stop: int, size: int, device: torch.device) -> slice | Tensor:
    """Rows from `start` to `stop`, and the last of them again until there are `size`."""
    if stop - start == size:
        return slice(start, stop)
    return torch.arange(start, start + size, device=device).clamp_max(stop - 1)


def linear(model: nn.Module) -> nn.Linear | None:
    """The layer, if `model` is one `nn.Linear`, alone or after a plain `nn.Flatten`; types must match exactly."""
    layers = list(model.children()) if type(model) is nn.Sequential else [model]
    fits = [type(layer) for layer in layers] in ([nn.Linear], [nn.Flatten, nn.Linear]) and fast.knows(model)
    return layers[-1] if fits else None


def refuse(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Raise `ArgumentError` for labels that do not fit the records, and for layers that mix records or draw."""
    if x.shape[:1] != y.shape or y.is_floating_point():
        raise ArgumentError(f"y must be one label for each of the {len(x)} records, got shape {tuple(y.shape)}")
    for name, layer in model.named_modules():
        if layer.training and isinstance(layer, _MIXING):
            kind = type(layer).__name__
            raise ArgumentError(f"model must not mix records or draw, got {kind} {name!r} in training mode")


def record_bytes(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """Twice the bytes that the backward pass of one record, or of its views, keeps: about its peak memory."""
    own = {p.data_ptr() for p in model.parameters()}
    held = 0

    def keep(value: Tensor) -> None:  # returning the value would make a cycle with the graph and leak it
        nonlocal held
        held += value.nbytes if value.data_ptr() not in own else 0

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        cross_entropy(model(x), y)
    return 2 * held
