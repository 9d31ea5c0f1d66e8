"""What clients compute on their own data: sums of clipped gradients of records."""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING

from lightdp._validate import integer, positive
from lightdp.errors import ArgumentError, MissingExtraError
from lightdp.training import fast

try:
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy
except ImportError:
    raise MissingExtraError("train", "Training") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

__all__ = ["assign", "clipped_sums", "flatten"]

_MARGIN = 1e-6  # more than rounding can add to a clipped norm: 9 · 2^-24 by `squares`, 2 · 2^-24 by the scaling
_LEAST_CLIP = 1e-12  # far above what squares lose by underflow
_MOST = 1e23  # a norm that, for the least clip, still leaves factors and what they shrink above float32's underflow
_MIXING = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)  # noqa: SLF001  the only common bases
_BYTES = 1 << 28  # working memory
_CUDA_BYTES = 1 << 35  # of records whose gradients are made together, where a GPU has four times as much
_SHAPES = {"cpu": 1 << 30, "cuda": 16}  # different numbers of records: a GPU's library prepares itself for each anew


def flatten(model: nn.Module) -> Tensor:
    """A copy of all parameters as one vector (d,), in the order of `model.parameters()`."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def assign(model: nn.Module, flat: Tensor) -> None:
    """Copy a vector in the order of `flatten` into the parameters, in place."""
    sizes = [p.numel() for p in model.parameters()]
    if flat.shape != (sum(sizes),):
        raise ArgumentError(f"flat must have shape ({sum(sizes)},), got {tuple(flat.shape)}")
    with torch.no_grad():
        for p, piece in zip(model.parameters(), flat.split(sizes), strict=True):
            p.copy_(piece.view_as(p))


def clipped_sums(  # noqa: PLR0917  records, whose they are, and the bound
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    owner: Tensor,
    clients: int,
    clip: float,
    *,
    views: Callable[[Tensor, slice | Tensor], Tensor] | None = None,
    half: bool = True,
    chunk_bytes: int | None = None,
) -> Tensor:
    """Each client's sum, over its records, of the gradient of cross-entropy clipped to L2 norm `clip`. (clients, d)

    Guaranteed for every record: the term it adds has norm at most `clip`, taken as real numbers. Norms are summed
    in float64, and what must shrink shrinks to (1 - 1e-6) clip, more than rounding to float32 can give back.
    Terms are added in the precision of the parameters; how that sum is rounded is not part of the bound.

    Record j belongs to client `owner[j]`; a client without records gets a zero row. With `views`, a record's gradient
    is the mean over views(x[rows], rows), (n, views, ...), of these records, and clipped after that. Working memory
    stays near `chunk_bytes`, by default 256 MiB, or up to 32 GiB on CUDA; linear models never form the gradient of a
    record. On CUDA, models of known layers compute gradients in bfloat16 before they are clipped, unless `half` is
    false. Refused: BatchNorm and Dropout in training mode, since a record's gradient must depend on that record alone,
    gradients that are not finite or beyond 1e23, a clip below 1e-12, and parameters of less than float32, in which
    rounding alone could lengthen a term.
    """
    clip, clients = positive("clip", clip), integer("clients", clients, 1)
    if clip < _LEAST_CLIP:
        raise ArgumentError(f"clip must be >= {_LEAST_CLIP:g}, got clip={clip:g}")
    kinds = {p.dtype for p in model.parameters()}
    if not kinds <= {torch.float32, torch.float64}:
        raise ArgumentError(f"model must have parameters in float32 or float64, got {sorted(map(str, kinds))}")
    refuse(model, x, y)
    if owner.shape != y.shape:
        raise ArgumentError(f"owner must have shape {tuple(y.shape)}, got {tuple(owner.shape)}")
    sums = torch.zeros_like(flatten(model)).repeat(clients, 1)
    if len(y) == 0:
        return sums
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
        half_and_freed = 4 if records is not None and x.is_cuda else 1  # layer by layer, unlike under vmap
        each = held // half_and_freed + 8 * sums.shape[1]
        gradients = partial(fast.by_vmap, model) if records is None else records.gradients
        add = partial(_add_any, gradients)
    room = _room(x.device) if chunk_bytes is None else integer("chunk_bytes", chunk_bytes, 1)
    size = max(1, room // each)
    step = max(1, size // _SHAPES[x.device.type])
    order = None if bool((owner[1:] >= owner[:-1]).all()) else owner.argsort(stable=True)
    ends = torch.bincount(owner, minlength=clients).cumsum(0).tolist()
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # a product in TF32 would round terms up past the bound
    try:
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            for start in range(0, len(y), size):
                stop = min(start + size, len(y))
                rows = _filled(start, stop, step, x.device)
                rows = rows if order is None else order[rows]
                seen = x[rows] if views is None else views(x[rows], rows)
                add(clip, sums, _segments(ends, start, stop), x=seen, y=y[rows])
            if records is not None:
                fast.reorder(model, sums)
    finally:
        torch.set_float32_matmul_precision(precision)
    return sums


# clipped sums


def _add_linear(
    layer: nn.Linear, clip: float, sums: Tensor, segments: Iterable[tuple[int, slice]], *, x: Tensor, y: Tensor
) -> None:
    """One record's gradient is (p - onehot(y)) ⊗ [features, 1]: its norm is a product, a sum of them a matmul."""
    features, bias = x.flatten(1), layer.bias is not None
    residuals = nn.functional.linear(features, layer.weight, layer.bias).softmax(1)  # (n, classes)
    residuals.scatter_add_(1, y[:, None], residuals.new_full((len(y), 1), -1.0))
    lengths = _moderate(fast.squares(features) + int(bias))
    residuals *= _factors(residuals.double().square().sum(1) * lengths, clip)[:, None]
    weights = sums[:, : layer.weight.numel()].unflatten(1, layer.weight.shape)
    for client, rows in segments:
        weights[client].addmm_(residuals[rows].T, features[rows])
        if bias:
            sums[client, layer.weight.numel() :] += residuals[rows].sum(0)


def _add_any(
    gradients: Callable[[Tensor, Tensor], list[Tensor]],
    clip: float,
    sums: Tensor,
    segments: Iterable[tuple[int, slice]],
    *,
    x: Tensor,
    y: Tensor,
) -> None:
    """The gradients of all records of a piece at once, clipped while they are added up."""
    flat = gradients(x, y)  # by parameter, each (n, numel)
    factors = _factors(torch.stack([fast.squares(g) for g in flat]).sum(0), clip).to(sums.dtype)
    pieces = sums.split([g.shape[1] for g in flat], dim=1)
    for client, rows in segments:
        for piece, g in zip(pieces, flat, strict=True):
            piece[client].addmv_(g[rows].T, factors[rows])


def _factors(squares: Tensor, clip: float) -> Tensor:
    return (clip * (1 - _MARGIN) / _moderate(squares).sqrt()).clamp_max(1.0)


def _moderate(squares: Tensor) -> Tensor:
    if not bool((squares < _MOST**2).all()):  # NaN is not below anything
        raise ArgumentError(
            f"gradients must be finite and below {_MOST:g} in norm: look at x and at the model's parameters"
        )
    return squares


def _room(device: torch.device) -> int:
    if device.type != "cuda":
        return _BYTES
    ours = torch.cuda.get_device_properties(device).total_memory * torch.cuda.get_per_process_memory_fraction(device)
    return min(_CUDA_BYTES, int(ours) // 4)


def _filled(start: int, stop: int, step: int, device: torch.device) -> slice | Tensor:
    """The numbers start..stop, filled up to a multiple of `step` by the last, which counts only once in `_segments`."""
    missing = (start - stop) % step
    if missing == 0:
        return slice(start, stop)
    return torch.arange(start, stop + missing, device=device).clamp_max(stop - 1)


def _segments(ends: list[int], start: int, stop: int) -> Iterator[tuple[int, slice]]:
    """The clients of the sorted records start..stop, and where theirs are, counted from start."""
    at = start
    while at < stop:
        client = bisect_right(ends, at)
        end = min(ends[client], stop)
        yield client, slice(at - start, end - start)
        at = end


# what local SGD needs too


def linear(model: nn.Module) -> nn.Linear | None:
    """The layer, if `model` is one `nn.Linear`, alone or after a plain `nn.Flatten`; types must match exactly."""
    layers = list(model.children()) if type(model) is nn.Sequential else [model]
    if any(m._forward_hooks or m._forward_pre_hooks for m in (model, *layers)):  # noqa: SLF001  no public name
        return None
    if len(layers) == 2 and type(layers[0]) is nn.Flatten and (layers[0].start_dim, layers[0].end_dim) == (1, -1):
        layers = layers[1:]
    return layers[0] if len(layers) == 1 and type(layers[0]) is nn.Linear else None


def refuse(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """Labels that do not fit the records, and layers that mix records or draw."""
    if x.shape[:1] != y.shape or y.is_floating_point():
        raise ArgumentError(f"y must be one label for each of the {len(x)} records, got shape {tuple(y.shape)}")
    for name, layer in model.named_modules():
        if layer.training and isinstance(layer, _MIXING):
            raise ArgumentError(
                f"model must not mix records or draw, got {type(layer).__name__} {name!r} in training mode"
            )


def record_bytes(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """What the backward pass of one record, or of its views, holds on to, twice: about the most that it needs."""
    own = {p.data_ptr() for p in model.parameters()}
    held = 0

    def keep(value: Tensor) -> None:  # what it returned would hold the graph that holds it, for ever
        nonlocal held
        held += value.nbytes if value.data_ptr() not in own else 0

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        cross_entropy(model(x), y)
    return 2 * held
