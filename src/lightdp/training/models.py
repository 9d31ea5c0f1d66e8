"""Models for private training: each output depends on its own record only, and the start on the seed only.

Privacy is counted per record: the gradient of one record must not depend on another. Statistics over a batch or over
the data set (BatchNorm, standardising features by their mean) would break that and leak, so everything here, features
included, is normalised within each record (GroupNorm). No model that is built has buffers, works in place or draws
random numbers in its forward pass: each runs under `torch.func.functional_call` with `vmap(grad(...))`, and in CUDA
graphs.

`prepare` turns records into what a model takes, `build` makes the model:

>>> x = prepare("scattering-linear", torch.rand(5, 1, 8, 8), "cpu")
>>> build("scattering-linear", tuple(x.shape[1:]), classes=10, seed=0)(x).shape
torch.Size([5, 10])
"""

from __future__ import annotations

import math

from lightdp._validate import choice, integer
from lightdp.errors import ArgumentError, MissingExtraError
from lightdp.training.scattering import scattering

try:
    import torch
    from torch import Tensor, nn
except ImportError:
    raise MissingExtraError("train", "Training") from None

from collections.abc import Iterator

EVALUATION_BATCH = 2000
"""Records that a model is given at once where it learns nothing; with other numbers, sums may be rounded otherwise."""
_BATCH = 512  # records whose features are made at once
_PARTS = (1, 8, 8, 64)  # channels normalised together: order 0, order 1 at two scales, order 2
_FLOOR = 1e-7  # added to variances; order 2 has little on photographs, so the usual 1e-5 would mute it
_ANGLES = [(8 - angle) % 8 for angle in range(8)]  # where mirroring takes each of the eight
_MIRRORED = [
    0,
    *(1 + 8 * j + a for j in range(2) for a in _ANGLES),
    *(17 + 8 * a + b for a in _ANGLES for b in _ANGLES),
]


def build(name: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A new model on the CPU that gives `classes` logits for each record.

    The parameters are a pure function of the arguments; torch's global generator is neither read nor moved. Linear
    models start at zero, where every class is equally likely.

    >>> sum(p.numel() for p in build("linear", (1, 8, 8), classes=10, seed=0).parameters())
    650

    Args:
        name: one of `NAMES`.
        shape: of one record as `prepare` gives it; (channels, height, width) unless the model is linear.
        classes: how many labels there are, at least 2.
        seed: of the random weights.

    Raises:
        ArgumentError: the name is unknown, a number is out of range, or the shape does not fit the model.
    """
    make = _MAKERS[choice("model", name, NAMES)]
    classes, seed = integer("classes", classes, 2), integer("seed", seed, 0, 2**63 - 1)
    shape = tuple(integer("shape", side, 1) for side in shape)
    if make is not _linear and len(shape) != 3:
        raise ArgumentError(f"model {name} needs images (channels, height, width), got shape={shape}")
    with torch.device("meta"):  # allocates nothing and draws nothing
        model = make(shape, classes)
    _initialise(model.to_empty(device="cpu"), seed)
    return model


def last(model: nn.Module) -> nn.Linear:
    """The last layer of a sequence of layers, a linear one.

    >>> last(build("cnn", (1, 8, 8), classes=10, seed=0))
    Linear(in_features=64, out_features=10, bias=True)

    Raises:
        ArgumentError: the model is something else.
    """
    if type(model) is not nn.Sequential or len(model) < 2 or type(model[-1]) is not nn.Linear:
        got = f"head_rounds with {type(model).__name__}"
        raise ArgumentError(f"head_rounds needs a torch.nn.Sequential that ends in a Linear, got {got}")
    return model[-1]


def prepare(name: str, x: Tensor, device: torch.device | str, *, mirror: bool = False) -> Tensor:
    """What model `name` is trained on, on `device`: x itself, or normalised scattering features of images x.

    Features are (n, c · 81, h / 4, w / 4). Three colours become brightness and two differences of colours, since
    what distinguishes objects is spread over all three of red, green and blue. Orders 1 and 2 enter by their square
    root, which evens out contrast. Each colour's order 0, its two scales of order 1 and its order 2 are scaled to
    mean 0 and variance 1 over one record.

    Guarantee: no statistic spans records, so features cost no privacy and are the same for any batch.

    >>> prepare("scattering-linear", torch.rand(2, 3, 32, 32), "cpu", mirror=True).shape
    torch.Size([2, 243, 8, 4])

    Args:
        name: one of `NAMES`.
        x: records. (n, ...)
        device: where the result is made.
        mirror: whether an image and its mirror image mean the same. Features are then the mean of both images'; they
            are symmetric, so only the left half, (w / 4 + 1) // 2 columns, is kept: half the parameters to learn,
            and half the noise.

    Raises:
        ArgumentError: the name is unknown, or a scattering model gets records that are not images.
    """
    if not choice("model", name, NAMES).startswith("scattering"):
        return x.to(device)
    if x.ndim != 4:
        raise ArgumentError(f"model {name} needs images (n, channels, height, width), got shape {tuple(x.shape)}")
    n, channels, height, width = x.shape
    columns = (width // 4 + 1) // 2 if mirror else width // 4
    result = torch.empty((n, 81 * channels, height // 4, columns), device=device)
    for images, features in zip(x.split(_BATCH), result.split(_BATCH), strict=True):
        maps = scattering(_opponents(images.to(device, torch.float32))).unflatten(1, (channels, 81))
        maps[:, :, 1:].clamp_min_(0).sqrt_()
        for part in maps.split(_PARTS, dim=2):
            variance, mean = torch.var_mean(part, (2, 3, 4), keepdim=True, correction=0)
            part.sub_(mean).div_((variance + _FLOOR).sqrt_())
        maps = maps.flatten(1, 2)
        features.copy_((maps + mirrored(maps))[..., :columns].mul_(0.5) if mirror else maps)
    return result


def mirrored(features: Tensor) -> Tensor:
    """The scattering features (n, c · 81, h, w) of the mirrored images: angle θ becomes π - θ in both orders."""
    return features.unflatten(1, (-1, 81))[:, :, _MIRRORED].flip(4).flatten(1, 2)


def _opponents(images: Tensor) -> Tensor:
    """Red, green, blue to brightness, red - blue, and green against both: a rotation."""
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(1)
    both = red + blue
    return torch.stack([(both + green) / 3**0.5, (red - blue) / 2**0.5, (both - 2 * green) / 6**0.5], 1)


def _initialise(model: nn.Module, seed: int) -> None:
    """Weights normal with variance 1 / fan-in (2 / fan-in for convolutions before ReLU), scales 1, biases 0.

    A model of one layer starts at zero: its loss is convex, and a random start would only be noise.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear | nn.GroupNorm)]
    rectified = any(isinstance(layer, nn.ReLU) for layer in model.modules())
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    for layer in layers if len(layers) > 1 else []:
        if isinstance(layer, nn.GroupNorm):
            nn.init.ones_(layer.weight)
        else:
            power = 2 if rectified and isinstance(layer, nn.Conv2d) else 1
            nn.init.normal_(layer.weight, 0, math.sqrt(power / layer.weight[0].numel()), generator=generator)


class Residual(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A residual block: `main(x) + skip(x)`."""

    def __init__(self, main: nn.Module, skip: nn.Module) -> None:
        super().__init__()
        self.main, self.skip = main, skip

    def forward(self, x: Tensor) -> Tensor:
        """The sum of both branches."""
        return self.main(x) + self.skip(x)


class StandardisedConv(nn.Conv2d):  # type: ignore[misc]  # likewise
    """A convolution whose weights are scaled to mean 0 and variance 1 / fan-in per filter before use."""

    def forward(self, x: Tensor) -> Tensor:
        """The convolution with standardised weights; a function of parameters, not of data."""
        return nn.functional.conv2d(x, self.standard(self.weight)[0], None, self.stride, self.padding)

    @staticmethod
    def standard(weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weights in use, and the lengths of the centred filters that they were divided by."""
        weight = weight - weight.mean((1, 2, 3), keepdim=True)
        lengths = (weight.square().sum((1, 2, 3), keepdim=True) + 1e-6).sqrt()
        return weight / lengths, lengths


class Fixed(nn.Module):  # type: ignore[misc]  # likewise
    """An affine map of features that is not trained, so that it gets neither gradients nor noise.

    A map that was chosen without private data, such as one that whitens features of public images, lets the layer after
    it learn from far fewer noisy sums.

    >>> Fixed(2 * torch.eye(3), torch.ones(3))(torch.ones(1, 3)).tolist()
    [[3.0, 3.0, 3.0]]

    Args:
        weight: (outputs, inputs)
        bias: (outputs,)
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """The map of each record. (n, outputs)"""
        return nn.functional.linear(x, self.weight, self.bias)


def _linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def _cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions and two dense layers with tanh, whose bounded activations keep gradients small (DP-SGD)."""
    layers = [*_pooled(shape[0], 16, 5), *_pooled(16, 32, 5), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32 * _halved(shape, 2), 64), nn.Tanh(), nn.Linear(64, classes))


def _scattering_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two convolutions with tanh on scattering maps, which are local averages already, so that one pool is enough."""
    layers = [*_pooled(shape[0], 64, 3), nn.Conv2d(64, 64, 3, padding="same"), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(64 * _halved(shape, 1), classes))


def _pooled(inputs: int, outputs: int, kernel: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, padding="same"), nn.Tanh(), nn.AvgPool2d(2, ceil_mode=True)]


def _halved(shape: tuple[int, ...], times: int) -> int:
    """Positions of an image after halving its sides, rounded up, this many times."""
    return math.prod(-(-side // 2**times) for side in shape[1:])


def _resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 with a 3 x 3 stem for small images and GroupNorm of 32 groups."""

    def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False), nn.GroupNorm(32, outputs)]

    layers = [*conv(shape[0], 64, 3), nn.ReLU()]
    for inputs, outputs, stride in _stages((64, 64, 128, 256, 512), strides=(1, 2, 2, 2)):
        main = nn.Sequential(*conv(inputs, outputs, 3, stride), nn.ReLU(), *conv(outputs, outputs, 3))
        skip = nn.Identity() if inputs == outputs else nn.Sequential(*conv(inputs, outputs, 1, stride))
        layers += [Residual(main, skip), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def _wrn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """WRN-16-4, normalised before each activation: GroupNorm of 16 groups and standardised weights."""

    def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Module:
        return StandardisedConv(inputs, outputs, size, stride, padding=size // 2, bias=False)

    def active(channels: int) -> list[nn.Module]:
        return [nn.GroupNorm(16, channels), nn.ReLU()]

    layers = [conv(shape[0], 16, 3)]
    for inputs, outputs, stride in _stages((16, 64, 128, 256), strides=(1, 2, 2)):
        main = [conv(inputs, outputs, 3, stride), *active(outputs), conv(outputs, outputs, 3)]
        if inputs == outputs:
            layers.append(Residual(nn.Sequential(*active(inputs), *main), nn.Identity()))
        else:
            layers += [*active(inputs), Residual(nn.Sequential(*main), conv(inputs, outputs, 1, stride))]
    return nn.Sequential(*layers, *active(256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))


def _stages(widths: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(inputs, outputs, stride) of two blocks a stage; the first of each changes width and size."""
    for inputs, outputs, stride in zip(widths[:-1], widths[1:], strides, strict=True):
        yield from ((inputs, outputs, stride), (outputs, outputs, 1))


_MAKERS = {
    "linear": _linear, "cnn": _cnn, "scattering-linear": _linear, "scattering-cnn": _scattering_cnn,
    "resnet18": _resnet18, "wrn-16-4": _wrn,
}  # fmt: skip
NAMES = tuple(_MAKERS)
