"""The samples and counts of `lightdp.stream` in numpy, for machines without the compiled kernel: the same bits.

Works on batches of tiles in buffers that are reused: every operation names its output.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Data = tuple[NDArray[np.float32] | NDArray[np.float64], float]

TILE = 1024
_PAIRS = TILE // 2
_TILE_BYTES = 6 * TILE
_COUNTED = 1 << 17  # bytes of keystream that one numpy call counts
_BATCH = 96  # tiles in one numpy call: enough to hide its overhead, few enough for the cache

# Polynomials in the square of w or x, highest power first: 4 artanh(w)/w, √2 sin(πx/2)/x,
# √2 cos(πx/2); and −2 ln 2 × 2^-23.
A = tuple(map(float.fromhex, ("0x1.a6e112p-1", "0x1.554262p+0", "0x1.000002p+2")))
B = tuple(map(float.fromhex, ("-0x1.af30fcp-8", "0x1.cdabb0p-4", "-0x1.d3ba9cp-1", "0x1.1c5832p+1")))
C = tuple(map(float.fromhex, ("-0x1.d8dc86p-6", "0x1.6f402cp-2", "-0x1.bea566p+0", "0x1.6a09e6p+0")))
L = -float.fromhex("0x1.62e430p-23")


def accumulate(
    out: NDArray[np.int32], start: int, keys: bytes, scales: NDArray[np.float32], data: Data | None = None
) -> bool:
    """Does what `kernel.accumulate` does, bit for bit: adds Σ g(key, σ) to `out`, modulo 2^32.

    Args:
        out: the samples from index `start` on are added to it.
        start: index of the first sample.
        keys: 32 bytes for each term.
        scales: 2^15 σ for each term; a negative scale subtracts.
        data: values and the size of a step; the first three terms are then the values' own noise.

    Returns:
        False if a value is too large or not a number; `out` is then undefined.
    """
    if data is None:
        _accumulate(out, start, keys, scales)
        return True
    values, step = data
    for low in range(0, out.size, _BATCH * TILE):
        with np.errstate(over="ignore"):
            part = values[low : low + _BATCH * TILE] / np.float64(step)
        part += own_noise(part.size, start + low, keys[:96], scales[:3])
        if not np.abs(part).max() < 2.0**51:
            return False
        out[low : low + part.size] += np.rint(part, out=part).astype(np.int64).astype(np.int32)  # modulo 2^32
    _accumulate(out, start, keys[96:], scales[3:])
    return True


def count(out: NDArray[np.int32], start: int, keys: bytes, signs: NDArray[np.int8], bits_unit: tuple[int, int]) -> None:
    """Does what `kernel.count` does: adds unit × Σ sign × c(key, bits) to `out`, modulo 2^32.

    Args:
        out: the counts from index `start` on are added to it.
        start: index of the first value.
        keys: 32 bytes each.
        signs: +1 or -1 for each key.
        bits_unit: bits of each value, 8, 16, 32 or 64, and what a bit counts for, below 2^31.
    """
    width, unit = bits_unit[0] // 8, bits_unit[1]
    block, skip = divmod(start * width, 16)
    ciphers = [_keystream(keys[i : i + 32], block) for i in range(0, len(keys), 32)]
    for cipher in ciphers:
        cipher.update(bytes(skip))
    for low in range(0, out.size, _COUNTED // width):
        target = out[low : low + _COUNTED // width]
        size = target.size * width
        if low == 0 or size < _COUNTED:
            zeros, stream = bytes(size), bytearray(size + 15)
            octets, (ones, sums) = np.frombuffer(stream, np.uint8, size), np.empty((2, size), np.uint8)
            total = np.empty(target.size, np.int32)
        total[:] = 0
        for first in range(0, len(ciphers), 31):  # each adds -4 ... 4 to a byte's sum, modulo 256: an int8 holds it
            some = signs[first : first + 31]
            sums[:] = -4 * int(some.sum()) % 256
            for cipher, sign in zip(ciphers[first : first + 31], some, strict=True):
                cipher.update_into(zeros, stream)
                (np.add if sign > 0 else np.subtract)(sums, np.bitwise_count(octets, out=ones), out=sums)
            for part in range(width):
                total += sums.view(np.int8)[part::width]
        total *= np.int32(unit)
        target += total


def own_noise(length: int, start: int, keys: bytes, scales: NDArray[np.float32]) -> NDArray[np.float64]:
    """Three terms on three scales, each 2^11 times finer than the last: w + (2^11 f + g) 2^-22, exact (W1)."""
    whole, fine = np.zeros((2, length), np.int32)
    _accumulate(whole, start, keys[:32], scales[:1])
    _accumulate(fine, start, keys[32:64], scales[1:2])
    fine <<= 11  # below 2^28: no sample of σ <= 4096 reaches 2^17
    _accumulate(fine, start, keys[64:], scales[2:])
    return fine * np.float64(2.0**-22) + whole


def _accumulate(out: NDArray[np.int32], start: int, keys: bytes, scales: NDArray[np.float32]) -> None:
    tile, skip = divmod(start, TILE)
    ciphers = [_keystream(keys[i : i + 32], tile * _TILE_BYTES // 16) for i in range(0, len(keys), 32)]
    for low in range(-skip, out.size, _BATCH * TILE):  # out[low] is the first sample of a tile
        tiles = min(_BATCH, -(-(out.size - low) // TILE))
        if low == -skip or tiles < _BATCH:
            zeros, stream = bytes(tiles * _TILE_BYTES), bytearray(tiles * _TILE_BYTES + 15)
            words = np.frombuffer(stream, "<u4", tiles * 3 * _PAIRS).reshape(tiles, 3, _PAIRS)
            work = np.empty((7, tiles, _PAIRS), np.float32)
        target = out[max(low, 0) : low + tiles * TILE]
        for cipher, scale in zip(ciphers, scales, strict=True):
            cipher.update_into(zeros, stream)
            samples = _gauss(words, abs(scale), work)[max(-low, 0) :][: target.size]
            (np.add if scale > 0 else np.subtract)(target, samples, out=target)


def _keystream(key: bytes, block: int) -> CipherContext:
    return Cipher(AES256(key), CTR(block.to_bytes(16, "big"))).encryptor()


def _gauss(words: NDArray[np.uint32], scale: np.float32, work: NDArray[np.float32]) -> NDArray[np.int32]:
    """Steps 2 and 3: words (tiles, 3, 512) -> samples (tiles × 1024,), a view of `work` (7, tiles, 512)."""
    a, b, c = words.view(words.dtype.str.replace("u", "i")).transpose(1, 0, 2)
    radius, w, big, q = work[:4]
    bits, whole, fine = big.view(np.int32), work[4].view(np.int32), work[5:].reshape(-1, 2, _PAIRS)
    big[...] = np.bitwise_and(a, 0x7FFFFFFF, out=whole)
    big *= 2.0**31
    radius[...] = np.bitwise_or(np.bitwise_and(b, 0x7FFFFFFF, out=whole), 1, out=whole)
    big += radius  # U
    bits -= 0x5E3504F3
    radius[...] = np.bitwise_and(bits, -0x800000, out=whole)
    radius *= L
    bits &= 0x7FFFFF
    bits += 0x3F3504F3  # big is m
    np.subtract(big, 1, out=w)
    big += 1
    w /= big
    _horner(A, np.multiply(w, w, out=big), q)
    radius -= np.multiply(q, w, out=q)
    np.multiply(np.sqrt(radius, out=radius), scale, out=radius)
    turned = radius.view(np.int32)
    turned ^= np.bitwise_and(c, -0x80000000, out=whole)
    w[...] = np.add(c, c, out=whole)
    w *= 2.0**-32  # x
    _horner(B, np.multiply(w, w, out=big), q)
    q *= w  # s
    _horner(C, big, w)  # k
    np.multiply(radius, np.multiply(w, q, out=w), out=fine[:, 0])  # sine: s × k
    np.multiply(radius, np.subtract(1, np.multiply(q, q, out=q), out=q), out=fine[:, 1])  # cosine: 1 − s × s
    samples = work[:2].view(np.int32).reshape(fine.shape)
    np.copyto(samples, np.rint(fine, out=fine), casting="unsafe")
    samples += 1 << 14
    samples >>= 15
    return samples.reshape(-1)


def _horner(coefficients: tuple[float, ...], x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Highest power first; every step rounds twice."""
    np.multiply(x, coefficients[0], out=out)
    for coefficient in coefficients[1:-1]:
        out += coefficient
        out *= x
    out += coefficients[-1]
