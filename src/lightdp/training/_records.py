"""The gradient of every record by one ordinary pass over all of them, for models made of layers known here.

A pass keeps what goes into each layer and the gradient of what comes out. From these a record's own gradient is a
product of matrices, over all positions of all its views. `vmap(grad(...))` finds the same by grouped convolutions,
which are far slower.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, pad

from lightdp.errors import ArgumentError
from lightdp.training import _layers
from lightdp.training.models import _Residual as Residual
from lightdp.training.models import _StandardisedConv as StandardisedConv

try:
    from lightdp.training import _kernels as kernels
except ImportError:  # no triton, so no CUDA or no compiler
    kernels = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from torch import Tensor

_CONVOLUTIONS = (nn.Conv2d, StandardisedConv)
_KNOWN = {
    *(*_CONVOLUTIONS, nn.Linear, nn.GroupNorm),
    *(nn.Sequential, Residual, nn.Identity, nn.ReLU, nn.Tanh, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d),
}


def knows(model: nn.Module) -> bool:
    """Whether every layer is used once, treats records apart, and has known gradients; types must match exactly."""
    layers = [layer for _, layer in model.named_modules(remove_duplicate=False)]
    return len(set(layers)) == len(layers) and all(map(_knows, layers)) and type(model) is not nn.GroupNorm


def _knows(layer: nn.Module) -> bool:
    if layer._forward_hooks or layer._forward_pre_hooks:  # noqa: SLF001  no public name
        return False
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if type(layer) in _CONVOLUTIONS:
        plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        return plain and (type(layer) is nn.Conv2d or layer.bias is None)
    return type(layer) in _KNOWN


def by_vmap(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """What `Records.gradients` gives, for any model, kernels in the order of `model.parameters()`."""

    def loss(parameters: dict[str, Tensor], views: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, parameters, (views,)), label.expand(len(views)))

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with torch.enable_grad():
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    return [gradients[name].flatten(1) for name in parameters]


def squares(rows: Tensor) -> Tensor:
    """The squared norm of each row in float64, right to 18 · 2^-24: only norms of 16 values each are in float32."""
    if rows.is_cuda and rows.dtype == torch.float32 and kernels is not None:
        return kernels.squares(rows)
    whole = rows.shape[1] // 16 * 16
    groups = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (whole // 16, 16)), dim=2)
    return groups.double().square().sum(1) + rows[:, whole:].double().square().sum(1)


class Records:
    """A copy of `model`, with the parameters it has now, that gives the gradients of many records at once.

    On CUDA with `half` it computes in bfloat16, channels last; gradients are summed up and given in float32.
    """

    def __init__(self, model: nn.Module, *, half: bool) -> None:
        self.model = _layers.with_norms(copy.deepcopy(model)).requires_grad_(requires_grad=False)
        self.half, self.tape = half, _Tape()
        for layer in self.model.modules():
            if isinstance(layer, _layers.Norm):
                layer.watch = self.tape.norm
            elif isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(self.tape.watch)
            elif isinstance(layer, nn.ReLU):
                layer.inplace = False  # what a watched layer gave, or the caller's records, must stay as they are

    def gradients(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """Of the mean cross-entropy of each record's views x (n, views, ...), by parameter: each (n, numel).

        Kernels are in the order (outputs, height, width, inputs); `_layers.reorder` brings sums of them back.
        """
        self.tape.count = len(x)
        images, views = x.flatten(0, 1), x.shape[1]
        half = self.half and x.is_cuda and x.dtype == torch.float32
        if half:
            images = _layers.channels_last(images.bfloat16())
        with torch.enable_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            scores = self.model(images)
            scores = scores.float() if half else scores
            (cross_entropy(scores, y.repeat_interleave(views), reduction="sum") / views).backward()
        found, self.tape.found = self.tape.found, {}
        return [found[p] if p in found else p.new_zeros(len(x), p.numel()) for p in self.model.parameters()]


class _Tape:
    """What the layers of a pass over the views of `count` records leave behind.

    It does not know the model, so that a model which is dropped goes at once, with all its memory.
    """

    def __init__(self) -> None:
        self.count = 0
        self.found: dict[Tensor, Tensor] = {}  # gradients (n, numel) by parameter

    def watch(self, layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Called when a layer has given its output; `keep` follows when the gradient of that is there."""
        (x,) = given
        if isinstance(layer, nn.Conv2d) and x.ndim != 4:
            raise ArgumentError(f"x must be images (n, channels, height, width) for {layer}, got {tuple(x.shape)}")
        output = output if output.requires_grad else output.detach().requires_grad_()
        output.register_hook(lambda g: self.keep(layer, x, g))
        return output

    def keep(self, layer: nn.Module, x: Tensor, g: Tensor) -> None:
        """The gradients of a layer's parameters from what went in and the gradient of what came out."""
        if isinstance(layer, nn.Conv2d):
            weight = _of_convolution(layer, x, g, self.count)
            g = g.permute(0, 2, 3, 1)
        else:
            weight = _of_linear(x, g, self.count)
        self._add(layer.weight, weight.flatten(1))
        if layer.bias is not None:
            self._add(layer.bias, g.reshape(self.count, -1, g.shape[-1]).sum(1, dtype=weight.dtype))

    def norm(self, layer: nn.Module, g: Tensor) -> None:
        """The same of a norm, from gradients (2, images, channels) by image."""
        for parameter, piece in zip((layer.weight, layer.bias), g.unflatten(1, (self.count, -1)).sum(2), strict=True):
            self._add(parameter, piece)

    def _add(self, parameter: Tensor, g: Tensor) -> None:
        known = self.found.get(parameter)
        self.found[parameter] = g if known is None else known + g


def _of_linear(x: Tensor, g: Tensor, count: int) -> Tensor:
    """For inputs x (..., inputs) and gradients g (..., outputs): (count, outputs, inputs), in float32 at least."""
    g = g.reshape(count, -1, g.shape[-1]).transpose(1, 2)  # (count, outputs, views · positions)
    x = x.reshape(count, g.shape[2], -1)
    return torch.bmm(g, x, out_dtype=torch.float32) if g.dtype == torch.bfloat16 else torch.bmm(g, x)


def _of_convolution(layer: nn.Conv2d, x: Tensor, g: Tensor, count: int) -> Tensor:
    """For inputs x and gradients g of images: (count, outputs, kernel height · width · inputs)."""
    if kernels is not None and kernels.fits(layer, x):
        settings = {"side": layer.kernel_size[0], "stride": layer.stride[0], "padding": kernels.padding(layer)[0]}
        weight = kernels.weight_gradients(x, g, count, **settings)
    else:
        weight = _of_linear(_windows(layer, x).flatten(3), g.permute(0, 2, 3, 1), count)
    if isinstance(layer, StandardisedConv):
        _pull(layer, weight)
    return weight


def _windows(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """What each output sees of x: (images, height, width, kernel height, kernel width, inputs)."""
    around = layer._reversed_padding_repeated_twice  # noqa: SLF001  the only place where "same" is in numbers
    x = pad(_layers.channels_last(x), around).permute(0, 2, 3, 1)
    for axis, (size, step) in enumerate(zip(layer.kernel_size, layer.stride, strict=True), 1):
        x = x.unfold(axis, size, step)
    return x.permute(0, 1, 2, 4, 5, 3)


def _pull(layer: StandardisedConv, g: Tensor) -> None:
    """From gradients of standardised to those of the layer's own weights, in place: (n, outputs, inputs).

    With the centred weights c and their length s, what is used is u = c / s; so g turns into what is left of it
    without its mean and its part along u, divided by s.
    """
    used, lengths = layer.standard(layer.weight)
    used = used.permute(0, 2, 3, 1).flatten(1)
    if kernels is not None and g.is_cuda:
        kernels.pull(g, used, lengths)
        return
    along = torch.einsum("nok,ok->no", g, used)
    g.sub_(g.mean(2, keepdim=True)).addcmul_(along[..., None], used, value=-1).div_(lengths.flatten(1))
