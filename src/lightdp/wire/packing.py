"""(W1): one rounding to the wire grid, integers modulo 2^b, bit-packed.

With g = gcd(b, 32), p = 32/g values of b bits fill b/g words of 32 bits exactly. A vector of d values has c
= ceil(d/p) columns; value k c + l, for 0 <= k < p and 0 <= l < c, is the k-th value of column l. Column l
is the integer sum_k value_k 2^(b k); its w-th 32-bit word is stored as word w c + l, little-endian. The
fewer than p values that fill up the last columns are zero. Neighbouring values thus have the same bit offset, and
packing is a handful of shifts of long contiguous rows, in the compiled kernel or, with the same bytes, in numpy.

A client encodes, a server adds:

>>> uploads = [encode(np.array([100, -30, 7], np.int32), shift=2, bits=8) for _ in range(2)]
>>> total = Accumulator(length=3, bits=8)
>>> for upload in uploads:
...     total.add(upload)
>>> total.total()  # twice 25, -7.5 -> -8 and 1.75 -> 2
array([ 50, -16,   4], dtype=int32)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lightdp._native import kernel
from lightdp._validate import integer
from lightdp.errors import ArgumentError, WireError

_COMPILED = kernel is not None and sys.byteorder == "little"
_ROW = 1 << 15  # values in one numpy call: temporaries stay in the cache


def packed_size(length: int, bits: int) -> int:
    """The number of bytes of a packed vector: whole columns, so that fewer than 32 values are padding.

    Args:
        length: number of values.
        bits: bits of a packed value.

    >>> packed_size(1000, bits=10)
    1260
    """
    unit = math.gcd(bits, 32)
    return -(-length * unit // 32) * (bits // unit) * 4


def encode(fine: NDArray[np.int32], *, shift: int, bits: int) -> memoryview:
    """Round a fixed-point vector to the wire grid and pack it modulo 2^bits (W1).

    A value v becomes v / 2^shift rounded to the nearest integer, ties to the even one, modulo 2^bits. As
    bits + shift <= 32, it does not matter whether the fine grid wrapped modulo 2^32 before. The error is at
    most half a wire unit. If v is spread over many wire units, as noise is, the error has mean 0 and variance
    (1 + 2 / 4^shift) / 12 squared wire units (0 for shift = 0).

    Args:
        fine: contiguous int32 vector of at least one value, not changed.
        shift: a wire unit is 2^shift fine units; 0 <= shift <= 32 - bits.
        bits: bits of a packed value, in 2..32.

    Returns:
        `packed_size(len(fine), bits)` bytes.

    Raises:
        ArgumentError: an argument is out of range.

    >>> bytes(encode(np.array([6, 10], np.int32), shift=2, bits=16)).hex()  # 1.5 -> 2 and 2.5 -> 2
    '02000200'
    """
    if fine.dtype != np.int32 or fine.ndim != 1 or fine.size == 0 or not fine.flags.c_contiguous:
        raise ArgumentError(f"fine must be a contiguous int32 vector, got {fine.dtype} of shape {fine.shape}")
    bits = integer("bits", bits, 2, 32)
    shift = integer("shift", shift, 0, 32 - bits)
    packed = np.zeros(packed_size(fine.size, bits) // 4, "<u4")
    pack = kernel.pack if _COMPILED and fine.flags.aligned else _pack
    pack(fine.view(np.uint32), packed, shift, bits)
    return packed.data.cast("B")


class Accumulator:
    """The sum modulo 2^bits of packed vectors, in memory of one vector.

    Args:
        length: number of values of a vector, >= 1.
        bits: bits of a packed value, in 2..32.

    >>> sums = Accumulator(length=2, bits=16)
    >>> sums.add(bytes.fromhex("02000200"))
    >>> sums.add(bytes.fromhex("ffff0100"))
    >>> sums.total()
    array([1, 3], dtype=int32)
    """

    def __init__(self, length: int, bits: int) -> None:
        self.length = integer("length", length, 1)
        self.bits = integer("bits", bits, 2, 32)
        self._sum = np.zeros(self.length, np.uint32)  # only the low `bits` bits mean anything

    def add(self, packed: bytes | bytearray | memoryview) -> None:
        """Add a packed vector.

        Formal guarantee: only the canonical encoding of a vector is accepted, and a refused one changes nothing.

        Raises:
            WireError: `packed` has another size, or padding that is not zero.
        """
        words = checked(packed, self.length, self.bits)
        if _COMPILED and words.flags.aligned:
            kernel.unpack(self._sum, words, 0, self.bits)
        else:
            _unpack(self._sum, words, self.bits)

    def total(self) -> NDArray[np.int32]:
        """The sum so far in wire units, as integers in [-2^(bits-1), 2^(bits-1)). (length,)"""
        total = np.left_shift(self._sum, 32 - self.bits).view(np.int32)
        total >>= 32 - self.bits
        return total


def checked(packed: bytes | bytearray | memoryview, length: int, bits: int) -> NDArray[np.uint32]:
    """The words of a packed vector, if they are those of its only encoding.

    Raises:
        WireError: it has another size, or padding that is not zero.
    """
    if len(packed) != (size := packed_size(length, bits)):
        raise WireError(f"packed vector must have {size} bytes, got {len(packed)}")
    words = np.frombuffer(packed, "<u4")
    places, padding = _padding(length, bits)
    if (words[places] & padding).any():
        raise WireError(f"packed vector of {length} values has padding that is not zero")
    return words


def _pack(values: NDArray[np.uint32], packed: NDArray[np.uint32], shift: int, bits: int) -> None:
    """Round `values` and pack them into `packed`, which must be zero."""
    scratch = np.empty(min(_ROW, values.size), np.uint32)
    for row, low, high, offset in _rows(values.size, bits):
        value = values[row]
        field = np.right_shift(value, shift, out=scratch[: value.size])
        if shift > 0:  # add a half, less one fine unit, plus the bit that sends ties to the even side
            field &= 1
            field += value
            field += (1 << (shift - 1)) - 1
        field &= ((1 << bits) - 1) << shift
        if offset + bits > 32:
            packed[high] |= field >> (shift + 32 - offset)
        (np.left_shift if offset >= shift else np.right_shift)(field, abs(offset - shift), out=field)
        packed[low] |= field


def _unpack(values: NDArray[np.uint32], words: NDArray[np.uint32], bits: int) -> None:
    """Add the values that `words` hold to `values`."""
    for row, low, high, offset in _rows(values.size, bits):
        values[row] += words[low] >> offset
        if offset + bits > 32:
            values[row] += words[high] << (32 - offset)


def _rows(length: int, bits: int) -> Iterator[tuple[slice, slice, slice, int]]:
    """Runs of values with one bit offset: the values, their words, the next words, the offset."""
    lanes = 32 // math.gcd(bits, 32)
    columns = -(-length // lanes)
    for start in range(0, columns, _ROW):
        for lane in range(lanes):
            first = lane * columns + start
            run = min(_ROW, columns - start, length - first)
            if run > 0:
                word, offset = divmod(lane * bits, 32)
                low = word * columns + start
                high = low + columns
                yield slice(first, first + run), slice(low, low + run), slice(high, high + run), offset


@lru_cache(maxsize=64)
def _padding(length: int, bits: int) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
    """The words of a packed vector that hold padding (fewer than 32 values), and the bits of it in each."""
    lanes = 32 // math.gcd(bits, 32)
    columns = -(-length // lanes)
    found: dict[int, int] = {}
    for position in range(length, lanes * columns):
        lane, column = divmod(position, columns)
        word, offset = divmod(lane * bits, 32)
        field = ((1 << bits) - 1) << offset
        for place, part in ((word * columns + column, field % 2**32), ((word + 1) * columns + column, field >> 32)):
            if part > 0:
                found[place] = found.get(place, 0) | part
    return np.array([*found], np.intp), np.array([*found.values()], np.uint32)
