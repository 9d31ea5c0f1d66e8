"""The noise of `lightdp.stream` in numpy, for machines without the compiled kernel: the same bits.

Works on batches of tiles in buffers that are reused: every operation names its output.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import ECB
from numpy.typing import NDArray

from lightdp._native.tables import TABLES

Data = tuple[NDArray[np.float32] | NDArray[np.float64], float]
_Keyed = tuple[CipherContext, NDArray[np.uint64]]

TILE = 1024
_PAIRS = TILE // 2
_TILE_BYTES = 5 * TILE
_ROW = 64  # blocks whose counters one inner loop of numpy makes: a tile has five rows, or three if values are drawn
_BATCH = 96  # tiles in one numpy call: enough to hide its overhead, few enough for the cache
_KEYS = 255  # whose drawn values, up to 128 each, a sum of 16 bits holds

# Polynomials in the square of w or x, highest power first: 4 artanh(w)/w, √½ sin(πx 2^-17)/x,
# √½ cos(πx 2^-17); and −2 ln 2 × 2^-23.
A = tuple(map(float.fromhex, ("0x1.a6e112p-1", "0x1.554262p+0", "0x1.000002p+2")))
B = tuple(map(float.fromhex, ("0x1.c1e5e0p-85", "-0x1.d38ba2p-50", "0x1.1c57d4p-16")))
C = tuple(map(float.fromhex, ("-0x1.d8df1ep-103", "0x1.6f4004p-67", "-0x1.bea562p-33", "0x1.6a09e6p-1")))
L = -float.fromhex("0x1.62e430p-23")

_BY_BYTE = [
    bytes((low[b % 16] + high[b // 16]) % 256 for b in range(256))
    for low, high in zip(TABLES[::2], TABLES[1::2], strict=True)
]


def accumulate(
    out: NDArray[np.int32], start: int, keys: bytes, scales: NDArray[np.float32], data: Data | None = None
) -> bool:
    """Does what `kernel.accumulate` does, bit for bit: adds Σ g(key, σ) to `out`, modulo 2^32.

    Args:
        out: the samples from index `start` on are added to it.
        start: index of the first sample.
        keys: 32 bytes for each term.
        scales: σ for each term; a negative one subtracts.
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


def draw(out: NDArray[np.int32], start: int, keys: bytes, signs: NDArray[np.int8], unit: int) -> None:
    """Does what `kernel.draw` does: adds unit × Σ sign × d(key) to `out`, modulo 2^32.

    Args:
        out: the values from index `start` on are added to it.
        start: index of the first value.
        keys: 32 bytes each.
        signs: +1 or -1 for each key.
        unit: what a value counts for, below 2^31.
    """
    tile, skip = divmod(start, TILE)
    ciphers = _ciphers(keys)
    for low in range(-skip, out.size, _BATCH * TILE):  # out[low] is the first value of a tile
        tiles = min(_BATCH, -(-(out.size - low) // TILE))
        if low == -skip or tiles < _BATCH:
            streams, work = [_Stream(tiles) for _ in range(3)], np.empty((2, tiles * TILE), np.uint8)
            sums, scaled = np.empty(tiles * TILE, np.int16), np.empty(tiles * TILE, np.int32)
        first = tile + (low + skip) // TILE
        for place, stream in enumerate(streams):  # first, second and third bytes
            stream.begin(range(3 * first + place, 3 * (first + tiles), 3))
        target = out[max(low, 0) : low + tiles * TILE]
        for some in range(0, len(ciphers), _KEYS):
            sums[:] = 0
            for cipher, sign in zip(ciphers[some : some + _KEYS], signs[some : some + _KEYS], strict=True):
                for stream in streams:
                    stream.fill(cipher)
                (np.add if sign > 0 else np.subtract)(sums, _drawn(streams, work), out=sums)
            np.multiply(sums, np.int32(unit), out=scaled)
            target += scaled[max(-low, 0) :][: target.size]


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
    ciphers = _ciphers(keys)
    for low in range(-skip, out.size, _BATCH * TILE):  # out[low] is the first sample of a tile
        tiles = min(_BATCH, -(-(out.size - low) // TILE))
        if low == -skip or tiles < _BATCH:
            stream, work = _Stream(5 * tiles), np.empty((7, tiles, _PAIRS), np.float32)
        first = tile + (low + skip) // TILE
        stream.begin(range(5 * first, 5 * (first + tiles)))
        target = out[max(low, 0) : low + tiles * TILE]
        for cipher, scale in zip(ciphers, scales, strict=True):
            stream.fill(cipher)
            samples = _gauss(stream.octets, abs(scale), work)[max(-low, 0) :][: target.size]
            (np.add if scale > 0 else np.subtract)(target, samples, out=target)


def _ciphers(keys: bytes) -> list[_Keyed]:
    """AES for each key, and the half of it that is added (xor) to counters, once for each block of a row."""
    return [
        (
            Cipher(AES128(keys[i : i + 16]), ECB()).encryptor(),  # noqa: S305  counter mode, whose counters are ours
            np.tile(np.frombuffer(keys, "<u8", 2, i + 16), _ROW),
        )
        for i in range(0, len(keys), 32)
    ]


class _Stream:
    """So many rows of blocks of a keystream, of one key after the other."""

    def __init__(self, rows: int) -> None:
        self._counters, self._blocks = np.zeros((2, rows, 2 * _ROW), "<u8")
        self._bytes = bytearray(self._blocks.nbytes + 15)
        self.octets = np.frombuffer(self._bytes, np.uint8, self._blocks.nbytes)

    def begin(self, rows: range) -> None:
        """Choose the rows: row r has blocks 64 r ... 64 r + 63."""
        firsts = np.array(rows, np.uint64) * np.uint64(_ROW)
        np.add(firsts[:, None], np.arange(_ROW, dtype=np.uint64), out=self._counters[:, ::2])

    def fill(self, keyed: _Keyed) -> None:
        """Make the keystream of a key."""
        np.bitwise_xor(self._counters, keyed[1], out=self._blocks)
        keyed[0].update_into(self._blocks.data.cast("B"), self._bytes)

    def translated(self, table: bytes) -> NDArray[np.uint8]:
        """For each byte the one that a table of 256 has for it."""
        return np.frombuffer(self._bytes.translate(table), np.uint8, self.octets.size)


def _drawn(streams: list[_Stream], work: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Streams of the first, second and third of n bytes -> n drawn values, a view of `work` (2, n)."""
    value, other = work
    a, b, c = (stream.octets for stream in streams)
    first, second, third = (stream.translated(table) for stream, table in zip(streams, _BY_BYTE, strict=True))
    np.add(np.add(first, second, out=value), third, out=value)  # modulo 256
    both = np.equal(np.bitwise_and(a, b, out=other), 255).view(np.uint8)
    np.multiply(np.subtract(c, value, out=other), both, out=other)
    return np.add(value, other, out=value).view(np.int8)


def _gauss(stream: NDArray[np.uint8], scale: np.float32, work: NDArray[np.float32]) -> NDArray[np.int32]:
    """Steps 2 and 3: tiles of keystream -> as many samples as they have, a view of `work` (7, tiles, 512)."""
    tiles = stream.reshape(-1, _TILE_BYTES)
    a, b = tiles[:, : 8 * _PAIRS].view("<i4").reshape(-1, 2, _PAIRS).transpose(1, 0, 2)
    c = tiles[:, 8 * _PAIRS :].view("<u2")
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
    np.subtract(c, np.float32(32767.5), out=w)  # x
    _horner(B, np.multiply(w, w, out=big), q)
    q *= w  # s
    _horner(C, big, w)  # k
    for place, word, turned in ((0, a, np.subtract(w, q, out=big)), (1, b, np.add(w, q, out=q))):
        np.bitwise_xor(np.bitwise_and(word, -0x80000000, out=whole), radius.view(np.int32), out=whole)
        np.multiply(whole.view(np.float32), turned, out=fine[:, place])
    odd = fine.view(np.int32)
    odd |= 1  # no tie
    samples = work[:2].view(np.int32).reshape(fine.shape)
    np.copyto(samples, np.rint(fine, out=fine), casting="unsafe")
    return samples.reshape(-1)


def _horner(coefficients: tuple[float, ...], x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Highest power first; every step rounds twice."""
    np.multiply(x, coefficients[0], out=out)
    for coefficient in coefficients[1:-1]:
        out += coefficient
        out *= x
    out += coefficients[-1]
