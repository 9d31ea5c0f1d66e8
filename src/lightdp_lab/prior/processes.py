"""Images of random processes, made on the device of the generator: no data goes in.

Dead leaves cover each other as things in the world do; their sizes follow a power law, as sizes in photographs do.
Untrained generators, with oriented kernels and styles that differ from image to image, give textures and soft forms.
Coloured noise has the spectrum of photographs. Leaves take their textures from both.

>>> images = sample(4, 32, torch.Generator().manual_seed(0), leaves=0.5)
>>> images.shape, bool((0 <= images).all() and (images <= 1).all())
(torch.Size([4, 3, 32, 32]), True)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, leaky_relu, pad

_TOGETHER = 2048  # images made at a time, which bounds memory
_KIN = 64  # images of one generator: kernels are new for each such group
_LEAVES = 48  # of an image
_TEXTURES = 128  # of each of two kinds, for the leaves of images that are made together
_COLOURS = 6  # of the palette of an image
_CHANNELS = 48
_SHARE = 0.15  # of the kernels of a generator that are not zero


def sample(count: int, side: int, draw: torch.Generator, *, leaves: float = 0.6) -> Tensor:
    """Images with values in [0, 1], in random order. (count, 3, side, side)

    Args:
        count: how many.
        side: their height and width, a power of two from 8 on.
        draw: makes all random numbers, on its device; they protect nothing.
        leaves: the share of dead leaves; the others are of generators.
    """
    made = []
    for start in range(0, count, _TOGETHER):
        several = min(_TOGETHER, count - start)
        first = round(leaves * several)
        textures = min(several, _TEXTURES)
        own = generated(several - first + textures, side, draw)
        bank = torch.cat([own[:textures], coloured(textures, side, draw)])
        plain = own[textures:]
        light = 0.6 * _normal(draw, len(plain), 1, 1, 1) + 0.25 * _normal(draw, len(plain), 3, 1, 1)
        plain = light + (0.6 + 0.7 * _uniform(draw, len(plain), 1, 1, 1)) * plain
        both = 0.5 + 0.22 * torch.cat([dead_leaves(first, bank, draw), plain])
        made.append(both[torch.randperm(several, generator=draw, device=draw.device)].clamp_(0, 1))
    return torch.cat(made)


def coloured(count: int, side: int, draw: torch.Generator) -> Tensor:
    """Noise whose amplitude falls by a power of the frequency, along a direction of its own. (count, 3, side, side)

    Each image has mean 0; its standard deviation is 1 over all pixels and colours.
    """
    down = torch.fft.fftfreq(side, device=draw.device)[:, None]
    right = torch.fft.rfftfreq(side, device=draw.device)
    angle, stretch = _uniform(draw, count, 1, 1, 1) * math.pi, torch.exp(0.9 * _uniform(draw, count, 1, 1, 1))
    along = right * angle.cos() + down * angle.sin()
    across = down * angle.cos() - right * angle.sin()
    frequency = ((along * stretch).square() + (across / stretch).square()).sqrt().clamp_min(1 / side)
    waves = torch.view_as_complex(_normal(draw, count, 3, side, side // 2 + 1, 2))
    noise = torch.fft.irfft2(waves * frequency ** -(0.5 + 2.5 * _uniform(draw, count, 1, 1, 1)), s=(side, side))
    noise = noise - noise.mean((2, 3), keepdim=True)
    return _scaled(torch.einsum("nij,njhw->nihw", _mixing(draw, count, 3), _each(noise)))


def generated(count: int, side: int, draw: torch.Generator) -> Tensor:
    """Images of untrained generators, scaled to mean 0 and standard deviation 1 each. (count, 3, side, side)

    A generator grows a small random map by doubling its sides, each time followed by a sparse convolution with oriented
    kernels, noise and a leaky ReLU; every size adds to the colours of the image. Styles, one for each image, scale and
    shift the channels.
    """
    return torch.cat([_grown(min(_KIN, count - at), side, draw) for at in range(0, count, _KIN)] or
                     [torch.empty(0, 3, side, side, device=draw.device)])  # fmt: skip


def _grown(count: int, side: int, draw: torch.Generator) -> Tensor:
    maps, size = _normal(draw, count, _CHANNELS, 4, 4), 4
    image = torch.zeros(count, 3, 4, 4, device=draw.device)
    coarse = 0.1 + 0.9 * _uniform(draw, count, 1, 1, 1)  # how much stays of a size at the next: from busy to smooth
    rough = torch.exp(-4 * _uniform(draw, count, 1, 1, 1))  # how much noise enters at each size
    while size < side:
        size *= 2
        maps, image = (interpolate(x, scale_factor=2, mode="bilinear", align_corners=False) for x in (maps, image))
        kernels = _oriented(3 if size <= 8 else 5, draw)
        grain = _normal(draw, count, 1, size, size) * _normal(draw, 1, _CHANNELS, 1, 1)
        maps = (maps + rough * grain) * torch.exp(0.8 * _normal(draw, count, _CHANNELS, 1, 1))
        maps = conv2d(pad(maps, (kernels.shape[-1] // 2,) * 4, "reflect"), kernels)
        maps = leaky_relu(1.5 * _each(maps) + 0.7 * _normal(draw, count, _CHANNELS, 1, 1), 0.2)
        maps = _each(maps, centred=False)
        seen = (_uniform(draw, count, 1, _CHANNELS) < 0.1) * _mixing(draw, count, _CHANNELS)
        image = image * coarse + _scaled(torch.einsum("nij,njhw->nihw", seen, maps))
    gain = 0.2 + 1.5 * _uniform(draw, count, 1, 1, 1)  # from soft to sharp edges
    return _scaled(torch.tanh(gain * _scaled(image)))


def _oriented(side: int, draw: torch.Generator) -> Tensor:
    """Waves under a Gaussian, each with its own direction, frequency and phase; most are zero."""
    shape = (_CHANNELS, _CHANNELS, 1, 1)
    down, right = torch.meshgrid(*[torch.linspace(-1, 1, side, device=draw.device)] * 2, indexing="ij")
    angle, phase = (2 * math.pi * _uniform(draw, *shape) for _ in range(2))
    along, across = right * angle.cos() + down * angle.sin(), down * angle.cos() - right * angle.sin()
    waves = torch.cos((1 + 3 * _uniform(draw, *shape)) * along + phase)
    kernels = waves * torch.exp(-1.5 * along.square() - 0.5 * across.square())
    edges = _uniform(draw, *shape) < 0.7  # these answer to edges and lines alone, the others also to brightness
    kernels = kernels - edges * kernels.mean((2, 3), keepdim=True)
    return (_uniform(draw, *shape) < _SHARE) * _normal(draw, *shape) * kernels


def dead_leaves(count: int, bank: Tensor, draw: torch.Generator) -> Tensor:
    """Shapes that cover each other, filled from a palette, with textures, gratings and shades. (count, 3, side, side)

    A shape is a circle in a norm of its own (from diamonds over ellipses to boxes), bent by a few waves around it,
    stretched and turned. The first are the largest, so that small ones are seen.

    Args:
        count: how many images.
        bank: textures of mean 0 and standard deviation 1. (textures, 3, side, side)
        draw: as for `sample`.
    """
    side, device = bank.shape[-1], draw.device
    down, right = torch.meshgrid(*[torch.linspace(-1, 1, side, device=device)] * 2, indexing="ij")
    vivid = 0.05 + 0.45 * _uniform(draw, count, 1, 1, 1)  # how far colours are from grey
    palette = 1.1 * _normal(draw, count, _COLOURS, 1, 1, 1) + vivid[:, None] * _normal(draw, count, _COLOURS, 3, 1, 1)
    density = 0.1 + 0.9 * _uniform(draw, count, 1, 1)  # from few leaves to many
    radii = _radii(count, draw)
    rows = torch.arange(count, device=device)

    def texture() -> Tensor:
        return bank[torch.randint(len(bank), (count,), generator=draw, device=device)]

    image = palette[:, 0] + _uniform(draw, count, 1, 1, 1) * texture()
    for radius in radii:
        u, v, inside = _shape(right, down, radius, draw)
        inside = (inside * (_uniform(draw, count, 1, 1) < density))[:, None]
        colour = palette[rows, torch.randint(_COLOURS, (count,), generator=draw, device=device)]
        colour = colour + 0.25 * _normal(draw, count, 1, 1, 1) + 0.3 * vivid * _normal(draw, count, 3, 1, 1)
        kind = _uniform(draw, count, 1, 1, 1)  # four tenths plain, four with a texture, two with a grating
        wave = torch.sin((6 + 50 * _uniform(draw, count, 1, 1)) * u + 6 * _uniform(draw, count, 1, 1))[:, None]
        filling = torch.where(kind < 0.4, 0.0, torch.where(kind < 0.8, texture(), wave))
        shade = (_normal(draw, count, 1, 1) * u + _normal(draw, count, 1, 1) * v).clamp(-2, 2)[:, None]
        colour = colour + 1.2 * _uniform(draw, count, 1, 1, 1) * filling + 0.4 * shade
        image = torch.lerp(image, colour, inside)
    return image


def _radii(count: int, draw: torch.Generator) -> Tensor:
    """The radius of each leaf, from 0.9 down to 0.06 by a power law; half of them in the order of their size."""
    smallest, largest = 0.06, 0.9
    radii = (largest * (smallest / largest) ** _uniform(draw, _LEAVES, count, 1, 1)).sort(0, descending=True).values
    other = radii[torch.randperm(_LEAVES, generator=draw, device=draw.device)]
    return torch.where(_uniform(draw, _LEAVES, count, 1, 1) < 0.5, radii, other)


def _shape(right: Tensor, down: Tensor, radius: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """One shape in each image: coordinates along and across it, in radii, and how much of each pixel it covers."""
    count, side = len(radius), right.shape[-1]
    centre_x, centre_y = (1.2 * (2 * _uniform(draw, count, 1, 1) - 1) for _ in range(2))
    angle, stretch = 2 * math.pi * _uniform(draw, count, 1, 1), torch.exp(0.5 * _normal(draw, count, 1, 1))
    x, y = right - centre_x, down - centre_y
    u = (x * angle.cos() + y * angle.sin()) / (radius * stretch)
    v = (y * angle.cos() - x * angle.sin()) / radius * stretch
    v = v + 0.3 * (_uniform(draw, count, 1, 1) < 0.3) * torch.sin(2 * u)  # some are bent
    power = torch.exp(2.3 * _uniform(draw, count, 1, 1))  # 1 to 10
    length = ((u.abs() + 1e-6) ** power + (v.abs() + 1e-6) ** power) ** (1 / power)
    around = torch.atan2(v, u)
    waves = 2 + torch.floor(5 * _uniform(draw, count, 1, 1))
    height = 0.5 * (_uniform(draw, count, 1, 1) - 0.4).clamp_min(0)
    edge = 1 + height * torch.cos(waves * around + 2 * math.pi * _uniform(draw, count, 1, 1))
    return u, v, ((edge - length) * radius * side / 2 + 0.5).clamp(0, 1)  # soft over about one pixel


def _mixing(draw: torch.Generator, count: int, inputs: int) -> Tensor:
    """From channels to colours: mostly brightness, with as much colour as each image draws. (count, 3, inputs)"""
    bright, vivid = _normal(draw, count, 1, inputs), 0.3 * _uniform(draw, count, 1, 1)
    return bright + vivid * _normal(draw, count, 3, inputs)


def _each(maps: Tensor, *, centred: bool = True) -> Tensor:
    """Every channel of every image scaled to mean square 1, and to mean 0 if wanted."""
    maps = maps - maps.mean((2, 3), keepdim=True) if centred else maps
    return maps / (maps.square().mean((2, 3), keepdim=True) + 1e-6).sqrt()


def _scaled(images: Tensor) -> Tensor:
    """Every image scaled to mean 0 and standard deviation 1 over pixels and colours."""
    images = images - images.mean((1, 2, 3), keepdim=True)
    return images / (images.square().mean((1, 2, 3), keepdim=True) + 1e-6).sqrt()


def _uniform(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(shape, generator=draw, device=draw.device)


def _normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.empty(shape, device=draw.device).normal_(generator=draw)
