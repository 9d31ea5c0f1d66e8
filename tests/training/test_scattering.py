"""The scattering transform against its definition in space, and the properties it is used for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lightdp.errors import ArgumentError
from lightdp.training import scattering as module
from lightdp.training.scattering import scattering

Array = NDArray[np.float64]


def images(n: int, c: int, side: int, seed: int = 0) -> torch.Tensor:
    return torch.rand((n, c, side, side), generator=torch.Generator().manual_seed(seed))


def smooth_images(n: int, side: int, margin: int) -> torch.Tensor:
    """Images with the spectrum of natural ones, with room to move on all sides."""
    noise = np.random.default_rng(3).standard_normal((n, side, side))
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side))
    field = np.fft.ifft2(np.fft.fft2(noise) / (frequency + 0.03)).real
    window = np.zeros(side)
    window[margin : side - margin] = np.hanning(side - 2 * margin)
    return torch.tensor(field * np.outer(window, window), dtype=torch.float32)[:, None]


# The definition, slowly: filters written out in space, in float64, and convolved position by position.


def torus(values: Array, side: int) -> Array:
    return (values + side / 2) % side - side / 2


def wavelet(u: Array, v: Array, side: int, j: int, angle: float) -> NDArray[np.complex128]:
    """The Morlet wavelet on the torus at rows u and columns v, which tile it; it sums to 0."""
    sigma, centre, slant = 0.8 * 2**j, 0.75 * math.pi / 2**j, 0.5
    wave = np.zeros((len(u), len(v)), complex)
    bell = np.zeros((len(u), len(v)))
    for p, q in itertools.product((-side, 0, side), repeat=2):
        y, x = (torus(u, side) + p)[:, None], (torus(v, side) + q)[None, :]
        along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
        envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * math.pi * sigma**2)
        wave += envelope * np.exp(1j * centre * along)
        bell += envelope
    return wave - wave.sum() / bell.sum() * bell


def positions(side: int, j: int) -> Array:
    return 2.0**j * np.arange(side >> j) + (2**j - 1) / 2


def convolve(u: Array, i: int, j: int, angle: float) -> NDArray[np.complex128]:
    """(u * ψ) on grid j of a square map u on grid i, both on the torus."""
    side, step = len(u) << i, 2 ** (j - i)
    first = positions(side, j)[0] - positions(side, i)  # from every position to the first of the result
    kernel = 4**i * wavelet(first, first, side, j, angle)
    result = np.zeros((side >> j, side >> j), complex)
    for a, b in np.ndindex(result.shape):
        result[a, b] = np.sum(u * np.roll(kernel, (step * a, step * b), (0, 1)))
    return result


def lowpass(u: Array, i: int, scales: int) -> Array:
    side = len(u) << i
    distance = torus(positions(side, scales)[1:-1, None] - positions(side, i), side)
    weights = np.exp(-(distance**2) / (2 * (0.8 * 2 ** (scales - 1)) ** 2))
    weights /= weights.sum(1, keepdims=True)
    return weights @ u @ weights.T


def gain(side: int, scales: int, orientations: int) -> float:
    """The largest factor of the wavelets with which no frequency passes more than whole (Littlewood-Paley)."""
    power = np.zeros((side, side))
    pixels = np.arange(side, dtype=float)
    for j, l in itertools.product(range(scales), range(orientations)):  # noqa: E741  the field's own letter
        shifted = pixels + (2**j - 1) / 2
        power += np.abs(np.fft.fft2(wavelet(shifted, shifted, side, j, math.pi * l / orientations))) ** 2
    power = (power + np.roll(power[::-1, ::-1], (1, 1), (0, 1))) / 2
    bell = np.exp(-(torus(pixels - (2**scales - 1) / 2, side) ** 2) / (2 * (0.8 * 2 ** (scales - 1)) ** 2))
    passed = np.abs(np.fft.fft(bell / bell.sum())) ** 2
    return math.sqrt(((1 - np.outer(passed, passed)).flat[1:] / power.flat[1:]).min())


def reference(image: Array, scales: int, orientations: int) -> Array:
    padded = np.pad(image, 2**scales, mode="reflect")
    factor = gain(len(padded), scales, orientations)
    angles = [math.pi * l / orientations for l in range(orientations)]  # noqa: E741  likewise
    first = {(j, a): factor * np.abs(convolve(padded, 0, j, a)) for j in range(scales) for a in angles}
    second = [
        lowpass(factor * np.abs(convolve(first[j, a], j, k, b)), k, scales)
        for j in range(scales)
        for k in range(j + 1, scales)
        for a in angles
        for b in angles
    ]
    return np.stack([lowpass(padded, 0, scales), *(lowpass(u, j, scales) for (j, _), u in first.items()), *second])


@pytest.mark.parametrize(("side", "scales", "orientations"), [(8, 2, 8), (12, 2, 3), (6, 1, 4), (16, 3, 2)])
def test_agrees_with_the_definition_in_space(side: int, scales: int, orientations: int) -> None:
    x = images(1, 1, side)
    expected = reference(x[0, 0].double().numpy(), scales, orientations)
    result = scattering(x, scales, orientations)[0].double().numpy()
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() < 1e-5
    assert np.abs(expected[-1]).max() > 1e-3  # far above what is tolerated


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((2, 3, 32, 32), (2, 243, 8, 8)), ((2, 1, 28, 28), (2, 81, 7, 7)), ((0, 3, 32, 32), (0, 243, 8, 8))],
)
def test_shape_of_the_result(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    result = scattering(torch.zeros(shape))
    assert tuple(result.shape) == expected
    assert result.dtype == torch.float32


def test_oblong_images_are_transformed_along_both_sides() -> None:
    x = images(1, 1, 16)[..., :8]
    turned = scattering(x.transpose(2, 3).contiguous())
    assert scattering(x).shape == (1, 81, 4, 2)
    torch.testing.assert_close(turned[:, :1].transpose(2, 3), scattering(x)[:, :1])


def test_a_constant_image_has_order_zero_only() -> None:
    result = scattering(torch.full((1, 1, 28, 28), 0.7))
    torch.testing.assert_close(result[:, 0], torch.full((1, 7, 7), 0.7))
    assert result[:, 1:].abs().max().item() < 1e-5


def test_a_quarter_turn_of_the_image_permutes_the_orientations() -> None:
    x = images(2, 1, 32)
    straight, turned = scattering(x), scattering(torch.rot90(x, dims=(2, 3)))
    back = torch.rot90(turned, -1, dims=(2, 3))
    torch.testing.assert_close(back[:, 0], straight[:, 0], atol=1e-5, rtol=0)
    first, first_back = (s[:, 1:17].reshape(2, 2, 8, 8, 8) for s in (straight, back))
    torch.testing.assert_close(first_back, first.roll(4, 2), atol=1e-5, rtol=0)
    second, second_back = (s[:, 17:].reshape(2, 8, 8, 8, 8) for s in (straight, back))
    torch.testing.assert_close(second_back, second.roll((4, 4), (1, 2)), atol=1e-5, rtol=0)
    assert (first_back - first).abs().max().item() > 1e-2  # the permutation matters


def test_a_wave_answers_loudest_in_its_own_orientation() -> None:
    t = torch.arange(32.0)
    for l in range(8):  # noqa: E741  likewise
        angle, frequency = math.pi * l / 8, 3 * math.pi / 8  # the centre of scale 1
        wave = torch.cos(frequency * (t[None, :] * math.cos(angle) + t[:, None] * math.sin(angle)))
        maps = scattering(wave[None, None])[0, :, 3:5, 3:5].mean((1, 2))
        assert int(maps[1:17].argmax()) == 8 + l


def test_small_translations_move_the_coefficients_less_than_the_pixels() -> None:
    x = smooth_images(8, 32, 4)
    moved = x.roll((1, 1), (2, 3))
    pixels = (x - moved).norm() / x.norm()
    a, b = scattering(x), scattering(moved)
    coefficients = (a - b)[:, 1:].norm() / a[:, 1:].norm()
    assert coefficients.item() < 0.4 * pixels.item()


def test_no_two_images_are_moved_apart() -> None:
    x = torch.cat([images(8, 1, 32), smooth_images(8, 32, 0)])
    y = torch.cat([images(8, 1, 32, seed=1), x[8:] + 0.1 * images(8, 1, 32, seed=2)])
    pad = torch.nn.ReflectionPad2d(4)
    before = (pad(x) - pad(y)).flatten(1).norm(dim=1)
    after = 4 * (scattering(x) - scattering(y)).flatten(1).norm(dim=1)
    assert (after <= before).all()
    assert (4 * scattering(x).flatten(1).norm(dim=1) <= pad(x).flatten(1).norm(dim=1)).all()


def test_the_loudest_image_found_by_ascent_is_not_amplified() -> None:
    x = images(4, 1, 16).requires_grad_()
    pad = torch.nn.ReflectionPad2d(4)
    ratio = torch.zeros(())
    for _ in range(60):
        ratio = 4 * module.scattering(x).flatten(1).norm(dim=1) / pad(x).flatten(1).norm(dim=1)
        (step,) = torch.autograd.grad(ratio.sum(), x)
        x = (x + 20 * step).detach().requires_grad_()
    assert 0.9 < ratio.max().item() <= 1.01


def test_no_record_or_colour_touches_another(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(5, 3, 16)
    whole = scattering(x)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 1)  # one map at a time
    torch.testing.assert_close(scattering(x), whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(scattering(x[2:3, 1:2]), whole[2:3, 81:162], atol=1e-6, rtol=0)


@pytest.mark.parametrize("side", [8, 20, 28, 32, 36])
def test_coefficients_of_a_record_do_not_depend_on_its_place(side: int) -> None:
    x = images(7, 1, side)
    whole = scattering(x)
    for gone in range(1, 7):
        assert torch.equal(scattering(x[gone:]), whole[gone:])


def test_is_deterministic_and_leaves_its_input_alone() -> None:
    x = images(3, 3, 32)
    before = x.clone()
    assert torch.equal(scattering(x), scattering(x))
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 3, 30, 32), "multiples of 4 and above it, got 30 x 32"),
        (torch.zeros(1, 3, 4, 4), "multiples of 4 and above it, got 4 x 4"),
        (torch.zeros(3, 32, 32), r"float32 images .*\(3, 32, 32\)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.float64), "float32 images .*float64"),
    ],
)
def test_refuses(x: torch.Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        scattering(x)


def test_refuses_scales_below_one() -> None:
    with pytest.raises(ArgumentError, match=r"J must be in 1\.\.8, got J=0"):
        scattering(torch.zeros(1, 1, 8, 8), J=0)
