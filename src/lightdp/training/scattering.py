"""The wavelet scattering transform of images, order 2: fixed features that need no data and cost no privacy.

Linear models on scattering features are a strong baseline for private training: nothing has to be learned, with noise,
to get from pixels to edges and textures. `lightdp.training.models.prepare` normalises the features for training.

>>> scattering(torch.zeros(2, 3, 32, 32)).shape
torch.Size([2, 243, 8, 8])

Notation: u is a position in pixels, ω a frequency in radians per pixel, * a convolution, j a scale (2^j pixels),
θ = π l / L an orientation. The Morlet wavelet ψ_{j,θ} and the Gaussian φ are, in the Fourier domain,

    ψ̂(ω) = exp(-|ω - ξ|²_θ / 2) - κ exp(-|ω|²_θ / 2),   ξ = (3π/4) 2^-j (cos θ, sin θ),
    |ω|²_θ = (0.8 · 2^j)² (a² + 4 b²),   a along θ and b across it,   κ such that ψ̂(0) = 0,
    φ̂(ω) = exp(-(0.8 · 2^(J-1))² |ω|² / 2).
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product

from lightdp._validate import integer
from lightdp.errors import ArgumentError, MissingExtraError

try:
    import torch
    from torch import Tensor
except ImportError:
    raise MissingExtraError("train", "Training") from None

_Wavelets = dict[tuple[int, int], Tensor]  # (i, j): complex (2^(j-i), 2^(j-i), L, H / 2^j, W / 2^j), by alias
_Lowpass = list[tuple[Tensor, Tensor]]  # j: (h / 2^J, H / 2^j) and (W / 2^j, w / 2^J and zeros)
_SIGMA, _CENTRE, _SLANT = 0.8, 3 * math.pi / 4, 0.5  # of the wavelet at scale 0
_ALIASES = range(-2, 3)  # at the finest scale the next ones are below e^-50
_LINE = 16  # values of float32 in 64 bytes: maps that begin elsewhere are summed up in another order (W6)
_CHUNK_BYTES = 1 << 26  # of the largest layer at a time: large enough to keep cores or a GPU busy


def scattering(x: Tensor, J: int = 2, L: int = 8) -> Tensor:  # noqa: N803  the field's own names
    """The scattering coefficients of images x (n, c, h, w): (n, c (1 + L J + L² J (J-1) / 2), h / 2^J, w / 2^J).

    For each record and colour apart, in this order of channels:

        order 0:  x * φ
        order 1:  |x * ψ_{j,l}| * φ                      at 1 + j L + l
        order 2:  ||x * ψ_{j,l}| * ψ_{j',l'}| * φ        for j < j', in the order of (j, j', l, l')

    x is padded by reflection, 2^J pixels on each side. Maps of scale j are sampled every 2^j pixels on a grid that is
    centred in the image, so that a quarter turn of the image turns the maps and permutes l, exactly. The wavelets are
    scaled to Σ|ψ̂|² + |φ̂|² <= 1, so before sampling the transform moves no two padded images apart; sampled maps,
    counted 4^J times, keep to that within a percent. A constant image has order 0 only.

    Guarantee: no coefficient depends on another record, nor on anything learned. This is preprocessing of each record
    by itself, and costs no privacy. Memory beyond the result stays bounded for any n.

    Args:
        x: float32 images whose sides are multiples of 2^J and above 2^J.
        J: the number of scales, 1 to 8.
        L: the number of orientations, 1 to 64.

    Raises:
        ArgumentError: x or a number is out of range.
    """
    J, L = integer("J", J, 1, 8), integer("L", L, 1, 64)  # noqa: N806  likewise
    if x.ndim != 4 or x.dtype != torch.float32:
        raise ArgumentError(f"x must be float32 images (n, c, h, w), got {x.dtype} of shape {tuple(x.shape)}")
    n, c, h, w = x.shape
    if any(side % 2**J or side <= 2**J for side in (h, w)):
        raise ArgumentError(f"x must have sides that are multiples of {2**J} and above it, got {h} x {w}")
    wavelets, lowpass = _bank(J, L, h, w, x.device)
    channels = 1 + L * J + L * L * J * (J - 1) // 2
    maps, result = x.reshape(n * c, h, w), x.new_empty((n * c, channels, h >> J, w >> J))
    layer = 8 * max(filters[0, 0].numel() * (L if j else 1) for (_, j), filters in wavelets.items())  # bytes
    step = max(1, _CHUNK_BYTES // layer)
    for i in range(0, n * c, step):
        _transform(maps[i : i + step], wavelets, lowpass, result[i : i + step])
    return result.reshape(n, c * channels, h >> J, w >> J)


def _transform(x: Tensor, wavelets: _Wavelets, lowpass: _Lowpass, out: Tensor) -> None:
    """Write the coefficients of x (b, h, w) to out (b, channels, h / 2^J, w / 2^J)."""
    scales, channels = len(lowpass), wavelets[0, 0].shape[2]
    second = 1 + scales * channels
    u0 = torch.nn.functional.pad(x[:, None], (2**scales,) * 4, mode="reflect")  # (b, 1, H, W)
    _average(u0, lowpass[0], out[:, :1])
    f0 = torch.fft.fft2(u0)
    for j in range(scales):
        first = 1 + j * channels
        u1 = _modulus(f0, wavelets[0, j]).flatten(1, 2)  # (b, L, H / 2^j, W / 2^j)
        _average(u1, lowpass[j], out[:, first : first + channels])
        f1 = torch.fft.fft2(u1) if j < scales - 1 else None
        for k in range(j + 1, scales):
            u2 = _modulus(f1, wavelets[j, k]).flatten(1, 2)  # (b, L², H / 2^k, W / 2^k)
            _average(u2, lowpass[k], out[:, second : second + channels**2])
            second += channels**2


def _modulus(spectrum: Tensor, wavelets: Tensor) -> Tensor:
    """|u * ψ| on the coarser grid, for maps with this spectrum (b, p, H, W): (b, p, L, H / s, W / s).

    Sampling every s-th value is, in the Fourier domain, a mean over the s² aliases; only the small inverse
    transform is computed.
    """
    s, _, _, height, width = wavelets.shape
    aliases = spectrum.unflatten(-1, (s, width)).unflatten(-3, (s, height))[:, :, None]
    total = aliases[:, :, :, 0, :, 0] * wavelets[0, 0]
    for p, q in list(product(range(s), repeat=2))[1:]:
        total.addcmul_(aliases[:, :, :, p, :, q], wavelets[p, q])
    re, im = torch.view_as_real(torch.fft.ifft2(total)).unbind(-1)
    return re.square().addcmul_(im, im).sqrt_()  # four times as fast as abs() on a processor


def _average(u: Tensor, lowpass: tuple[Tensor, Tensor], out: Tensor) -> None:
    """Write u * φ on grid J, inside the image, to out: φ is separable, so these are two matrix products."""
    rows, columns = lowpass
    out.copy_((rows @ (u @ columns))[..., : out.shape[-1]])


@lru_cache(maxsize=8)
def _bank(scales: int, orientations: int, h: int, w: int, device: torch.device) -> tuple[_Wavelets, _Lowpass]:
    """The filters for images of h x w, made in float64: a wavelet step from grid i to grid j, and from j to J."""
    size = h + 2 * 2**scales, w + 2 * 2**scales
    steps = [(i, j) for j in range(scales) for i in range(max(j, 1))]
    wavelets = {(i, j): _wavelets(size, orientations, i, j) for i, j in steps}
    power = sum(wavelets[0, j].abs().square().sum(0) for j in range(scales))
    power = (power + power.flip((0, 1)).roll((1, 1), (0, 1))) / 2  # a real image has as much at -ω as at ω
    rows, columns = (torch.fft.fft(_smooth(side, scales, 0)[0]).abs().square() for side in size)
    passed = torch.outer(rows, columns)  # |φ̂|²
    gain = ((1 - passed) / power).flatten()[1:].min().sqrt()  # [1:]: at ω = 0, φ passes all and ψ nothing
    folded = {(i, j): _fold(gain * wavelets[i, j], 2 ** (j - i)).to(device, torch.complex64) for i, j in steps}
    lowpass = []
    for j in range(scales):  # [1:-1]: the padding is one sample of grid J on each side
        down, across = (_smooth(side, scales, j)[1:-1].to(device, torch.float32) for side in size)
        zeros = -len(across) % (_LINE // math.gcd(size[0] >> j, _LINE))
        lowpass.append((down, torch.nn.functional.pad(across.T, (0, zeros))))
    return folded, lowpass


def _wavelets(size: tuple[int, int], orientations: int, i: int, j: int) -> Tensor:
    """ψ̂ at scale j for every orientation, of maps on grid i: complex (L, H / 2^i, W / 2^i).

    Grid i has spacing 2^i, so frequencies that differ by 2π / 2^i are one: their values are summed. The phase
    moves the result by half the difference of the spacings, from the centre of grid i to that of grid j.
    """
    period, shift, widths = 2 * math.pi / 2**i, (2**j - 2**i) / 2, (_SIGMA * 2**j) ** 2 / 2
    angles = math.pi * torch.arange(orientations, dtype=torch.float64)[:, None, None] / orientations
    down, right = (2 * math.pi * torch.fft.fftfreq(side >> i, 2**i, dtype=torch.float64) for side in size)
    waves = bells = torch.zeros(orientations, size[0] >> i, size[1] >> i, dtype=torch.complex128)
    for p, q in product(_ALIASES, repeat=2):
        y, x = (down + p * period)[:, None], (right + q * period)[None, :]
        phase = torch.exp(1j * shift * (y + x))
        along, across = x * angles.cos() + y * angles.sin(), y * angles.cos() - x * angles.sin()
        waves = waves + phase * torch.exp(-widths * ((along - _CENTRE / 2**j) ** 2 + (across / _SLANT) ** 2))
        bells = bells + phase * torch.exp(-widths * (along**2 + (across / _SLANT) ** 2))
    return waves - waves[:, :1, :1] / bells[:, :1, :1] * bells


def _smooth(side: int, scales: int, j: int) -> Tensor:
    """* φ as a matrix, on a circle of `side` pixels, from grid j to grid J: (side / 2^J, side / 2^j). Rows sum to 1."""
    source, target = (2.0**k * torch.arange(side >> k, dtype=torch.float64) + (2**k - 1) / 2 for k in (j, scales))
    distance = (source - target[:, None] + side / 2) % side - side / 2
    turns = side * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)[:, None, None]
    weights = torch.exp(-(((distance + turns) / (_SIGMA * 2 ** (scales - 1))) ** 2) / 2).sum(0)
    return weights / weights.sum(1, keepdim=True)


def _fold(spectrum: Tensor, s: int) -> Tensor:
    """Filters (L, H, W) by alias, for sampling every s-th value: (s, s, L, H / s, W / s)."""
    filters, height, width = spectrum.shape
    return spectrum.reshape(filters, s, height // s, s, width // s).permute(1, 3, 0, 2, 4).contiguous() / s**2
