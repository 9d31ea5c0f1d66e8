"""The gradient of every record from one ordinary pass over all of them, for models made of known layers.

A pass keeps what goes into each layer and the gradient of what comes out. From these, the gradient of one record is a
matrix product over all positions of all its views. `vmap(grad(...))` finds the same by grouped convolutions, which are
far slower.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, pad

from lightdp.errors import ArgumentError
from lightdp.training.fast._gpu import kernels
from lightdp.training.fast._layers import Norm, whole_lines, with_dense, with_norms
from lightdp.training.fast._layout import channels_last, padding, reorder
from lightdp.training.models import Fixed, Residual, StandardisedConv

_TOGETHER = 100  # records of a pass of `outputs`; an H200 rounds 512 channels by place in passes of 250 to 512
_LONGER = 10.0  # times its gradient: a term that is summed up in float32 before its map
_KNOWN = {
    *(nn.Conv2d, StandardisedConv, nn.Linear, nn.GroupNorm, nn.Flatten, nn.Sequential, Residual, nn.Identity, Fixed),
    *(nn.ReLU, nn.Tanh, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d),
}


def knows(model: nn.Module) -> bool:
    """Whether every layer is used once, treats records apart, and has known gradients; types must match exactly.

    >>> knows(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))), knows(nn.Sequential(nn.Flatten(), nn.Softmax(0)))
    (True, False)
    """
    layers = [layer for _, layer in model.named_modules(remove_duplicate=False)]
    once = len(set(layers)) == len(layers) and not _shares_standardised(layers)
    return once and all(map(_knows, layers)) and type(model) is not nn.GroupNorm


def _shares_standardised(layers: list[nn.Module]) -> bool:
    """Whether weights are standardised in one layer and used as they are in another: no one map leads to them."""
    apart: tuple[set[Tensor], set[Tensor]] = (set(), set())
    for layer in layers:
        apart[isinstance(layer, StandardisedConv)].update(layer.parameters(recurse=False))
    return not apart[0].isdisjoint(apart[1])


def _knows(layer: nn.Module) -> bool:
    if layer._forward_hooks or layer._forward_pre_hooks:  # noqa: SLF001  no public name
        return False
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if isinstance(layer, nn.Conv2d) and (layer.groups, layer.dilation, layer.padding_mode) != (1, (1, 1), "zeros"):
        return False
    return type(layer) in _KNOWN and not (type(layer) is StandardisedConv and layer.bias is not None)


def by_vmap(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Like `Records.gradients`, for any model; kernels are in the order of `model.parameters()`.

    On a CPU each record is taken by itself, in one thread: kernels that take several round by where a record stands
    (W6), and threads that share one record wait for each other longer than they compute.

    >>> [g.tolist() for g in by_vmap(nn.Linear(1, 2, bias=False), torch.zeros(3, 1, 1), torch.tensor([0, 1, 0]))]
    [[[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
    """

    def loss(parameters: dict[str, Tensor], views: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, parameters, (views,)), label.expand(len(views)))

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with torch.enable_grad():
        if x.is_cuda:
            gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        else:
            with _one_thread():
                found = [grad(loss)(parameters, views.clone(), label) for views, label in zip(x, y, strict=True)]
            gradients = {name: torch.stack([each[name] for each in found]) for name in parameters}
    return [gradients[name].flatten(1) for name in parameters]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch computes in the caller's thread alone; afterwards in as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def squares(rows: Tensor) -> Tensor:
    """The squared norm of each row in float64, with relative error below 18 · 2^-24.

    Only norms of 16 values each are computed in float32.

    >>> squares(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
    [25.0, 1.0]
    """
    if rows.is_cuda and rows.dtype == torch.float32 and kernels is not None:
        return kernels.squares(rows)
    whole = rows.shape[1] // 16 * 16
    groups = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (whole // 16, 16)), dim=2)
    return groups.double().square().sum(1) + rows[:, whole:].double().square().sum(1)


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """What layers make of records (n, ...), always of equally many at a time, as gradients are found (W6).

    On CUDA models that `knows` accepts compute in bfloat16, as in `Records`: convolutions in float32 round by where a
    record stands there.

    >>> outputs(nn.Linear(1, 2, bias=False), torch.zeros(3, 1)).tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """
    half = x.is_cuda and x.dtype == torch.float32 and knows(model)
    model = copy.deepcopy(model)
    model = with_dense(with_norms(model) if half else model)
    found = []
    with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=half):
        for start in range(0, len(x), _TOGETHER):
            part = x[torch.arange(start, start + _TOGETHER, device=x.device).clamp_max(len(x) - 1)]
            part = model(channels_last(part.bfloat16()) if half else part)[: len(x) - start]
            found.append(part.float() if half else part)
    return torch.cat(found)


class Records:
    """A copy of `model`, with its current parameters, that gives the gradients of many records at once.

    On CUDA with `half` it computes in bfloat16, channels last; gradients are summed and returned in float32.

    Gradients of standardised kernels are found by way of those of the weights in use, from which a linear map leads to
    them. For a sum it is enough to map the sum: `terms` leaves the map out, and `finish` brings it in. What the map
    takes away may not be much longer than what it leaves, or rounding the sum would move it by more than the clip:
    `terms` takes it away from each record where it is.

    Args:
        model: one that `knows` accepts; later changes of its parameters do not reach the copy.
        half: whether CUDA may compute in bfloat16.
    """

    def __init__(self, model: nn.Module, *, half: bool) -> None:
        self.model = with_dense(with_norms(copy.deepcopy(model)))
        self.half, self.tape = half, _Tape()
        layers = [layer for layer in self.model.modules() if isinstance(layer, StandardisedConv)]
        self.maps = {layer.weight: _map(layer) for layer in layers}
        for layer in self.model.modules():
            if isinstance(layer, Norm):
                layer.watch = self.tape.norm
            elif isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(self.tape.watch)
            elif isinstance(layer, nn.ReLU):
                layer.inplace = False  # outputs of watched layers and the caller's records must not change

    def gradients(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Of the mean cross-entropy of each record's views x (n, views, ...), by parameter: each (n, numel).

        Kernels are in the order (outputs, height, width, inputs); `reorder` brings sums of them back. y is (n,).
        """
        found = self._used(x, y)
        for (used, lengths), g in ((self.maps[p], found[p]) for p in self.maps):
            _pull(g.unflatten(1, used.shape), used, lengths)
        return self._listed(found)

    def terms(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        """Like `gradients`, before the maps of standardised kernels; and the squared norm of each after them. (n,)

        Guarantee: squared norms have a relative error below 18 · 2^-24, as those of `squares`, or are larger. No term
        is more than about `_LONGER` times as long as the gradient it stands for.
        """
        found = self._used(x, y)
        pairs = [_pulled_squares(g, *self.maps[p]) if p in self.maps else (squares(g),) * 2 for p, g in found.items()]
        after, before = (torch.stack(each).sum(0) for each in zip(*pairs, strict=True))
        longer = before > _LONGER**2 * after
        if bool(longer.any()):
            for (used, lengths), g in ((self.maps[p], found[p]) for p in self.maps):
                part = g[longer]
                _pull(part.unflatten(1, used.shape), used, torch.ones_like(lengths))  # `finish` takes nothing more away
                g[longer] = part
        return self._listed(found), after

    def finish(self, sums: Tensor) -> None:
        """From sums (m, d) of `terms`, in float64, to those of gradients, in place and in the model's own order."""
        parameters = list(self.model.parameters())
        for p, piece in zip(parameters, sums.split([p.numel() for p in parameters], 1), strict=True):
            if p in self.maps:
                used, lengths = self.maps[p]
                _pull(piece.unflatten(1, used.shape), used.double(), lengths.double())
        reorder(self.model, sums)

    def _listed(self, found: dict[Tensor, Tensor]) -> list[Tensor]:
        """By parameter in the model's order; what no layer uses has none."""
        count = self.tape.count
        return [found[p] if p in found else p.new_zeros(count, p.numel()) for p in self.model.parameters()]

    def _used(self, x: Tensor, y: Tensor) -> dict[Tensor, Tensor]:
        """By parameter, with gradients of the weights in use in place of those of standardised kernels."""
        self.tape.count = len(x)
        images, views = x.flatten(0, 1), x.shape[1]
        half = self.half and x.is_cuda and x.dtype == torch.float32
        if half:
            images = channels_last(images.bfloat16())
        with torch.enable_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            scores = self.model(images)
            scores = scores.float() if half else scores
            (cross_entropy(scores, y.repeat_interleave(views), reduction="sum") / views).backward()
        found, self.tape.found = self.tape.found, {}
        return found


class _Tape:
    """The gradients that a pass over the views of `count` records leaves behind.

    It does not refer to the model, so that a dropped model frees all its memory at once.
    """

    def __init__(self) -> None:
        self.count = 0
        self.found: dict[Tensor, Tensor] = {}  # gradients (n, numel) by parameter

    def watch(self, layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Forward hook of a layer: `keep` runs once the gradient of its output is known."""
        (x,) = given
        if isinstance(layer, nn.Conv2d) and x.ndim != 4:
            raise ArgumentError(f"x must be images (n, channels, height, width) for {layer}, got {tuple(x.shape)}")
        output = output if output.requires_grad else output.detach().requires_grad_()
        output.register_hook(lambda g: self.keep(layer, x, g))
        return output

    def keep(self, layer: nn.Module, x: Tensor, g: Tensor) -> None:
        """Add the gradients of a layer's parameters, from its input x and the gradient g of its output."""
        if isinstance(layer, nn.Conv2d):
            weight = _of_convolution(layer, x, g, self.count)
            g = g.permute(0, 2, 3, 1)
        else:
            weight = _of_linear(x, g, self.count)
        self._add(layer.weight, weight.flatten(1))
        if layer.bias is not None:
            self._add(layer.bias, g.reshape(self.count, -1, g.shape[-1]).sum(1, dtype=weight.dtype))

    def norm(self, layer: nn.Module, g: Tensor) -> None:
        """Add the gradients of a norm's parameters, from those by image, g (2, images, channels)."""
        for parameter, piece in zip((layer.weight, layer.bias), g.unflatten(1, (self.count, -1)).sum(2), strict=True):
            self._add(parameter, piece)

    def _add(self, parameter: Tensor, g: Tensor) -> None:
        self.found[parameter] = self.found[parameter] + g if parameter in self.found else g


def _of_linear(x: Tensor, g: Tensor, count: int) -> Tensor:
    """For inputs x (..., inputs) and gradients g (..., outputs): (count, outputs, inputs), in float32 at least."""
    g = g.reshape(count, -1, g.shape[-1]).transpose(1, 2)  # (count, outputs, views · positions)
    x = x.reshape(count, g.shape[2], -1).to(g.dtype)  # as autocast gave it to the layer
    if not x.is_cuda:
        outputs, inputs = g.shape[1], x.shape[2]
        return torch.bmm(whole_lines(g.transpose(1, 2)).transpose(1, 2), whole_lines(x))[:, :outputs, :inputs]
    return torch.bmm(g, x, out_dtype=torch.float32) if g.dtype == torch.bfloat16 else torch.bmm(g, x)


def _of_convolution(layer: nn.Conv2d, x: Tensor, g: Tensor, count: int) -> Tensor:
    """For inputs x and gradients g of images: (count, outputs, kernel height · width · inputs)."""
    if kernels is not None and kernels.fits(layer, x):
        weight = kernels.weight_gradients(x, g, count, layer.kernel_size[0], layer.stride[0], padding(layer)[0])
    else:  # what each output sees: (images, height, width, inputs, kernel height, kernel width)
        windows = pad(channels_last(x), padding(layer)).permute(0, 2, 3, 1)
        for axis, (size, step) in enumerate(zip(layer.kernel_size, layer.stride, strict=True), 1):
            windows = windows.unfold(axis, size, step)
        weight = _of_linear(windows.permute(0, 1, 2, 4, 5, 3).flatten(3), g.permute(0, 2, 3, 1), count)
    return weight


def _map(layer: StandardisedConv) -> tuple[Tensor, Tensor]:
    """The weights that the layer uses, (outputs, kernel height · width · inputs), and by what they were divided."""
    used, lengths = layer.standard(layer.weight)
    return used.permute(0, 2, 3, 1).flatten(1).contiguous(), lengths.flatten()


def _pull(g: Tensor, used: Tensor, lengths: Tensor) -> None:
    """From gradients of standardised to those of the layer's own weights, in place: (n, outputs, inputs).

    With the centred weights c and their length s, the layer uses u = c / s. So g loses its mean and its part along
    u, and is divided by s.
    """
    if kernels is not None and g.is_cuda and g.dtype == torch.float32:
        kernels.pull(g, used, lengths)
    else:
        along = torch.einsum("nok,ok->no", g, used)
        g.sub_(g.mean(2, keepdim=True)).addcmul_(along[..., None], used, value=-1).div_(lengths[:, None])


def _pulled_squares(g: Tensor, used: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The squared norm of each row (n, numel) after `_pull`, without it, and if only divided: from sums by filter.

    |g - a - b u|^2 = |g|^2 - m a^2 - b^2 (2 - |u|^2) + 2 a b sum(u), with the mean a of the m values and b = <g, u>.
    Little may be left of |g|^2, so all is in float64, and 1e-10 of it is added, more than that can lose.
    """
    if kernels is not None and g.is_cuda and g.dtype == torch.float32:
        total, along, whole = kernels.moments(g, used).unbind(2)
    else:
        exact = g.double().unflatten(1, used.shape)
        total, along = exact.sum(2), torch.einsum("nok,ok->no", exact, used.double())
        whole = exact.square().sum(2)
    own = used.double()
    mean, lean, tall = total / own.shape[1], own.sum(1), own.square().sum(1)
    left = whole - total * mean - along.square() * (2 - tall) + 2 * mean * along * lean
    pair = torch.stack([left.clamp_min(0) + 1e-10 * whole, whole]) / lengths.double().square()
    after, before = pair.sum(2)
    return after, before
