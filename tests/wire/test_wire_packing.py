"""Packing against plain integers, compiled and not."""

from __future__ import annotations

import math
import struct
import tracemalloc
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lightdp.errors import ArgumentError, WireError
from lightdp.wire import Accumulator, encode, packed_size, packing
from support.wire_bytes import INT32, VECTORS, centred, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray


@st.composite
def grids(draw: st.DrawFn) -> tuple[int, int]:
    bits = draw(st.integers(2, 32))
    return draw(st.integers(0, 32 - bits)), bits


def half_even(value: int, shift: int) -> int:
    """Python's own rounding of exact fractions is the rule of `encode`."""
    return round(Fraction(value, 2**shift))


def pack_slowly(values: list[int], bits: int) -> bytes:
    """The layout as its definition says it, with one Python integer for each column."""
    lanes = 32 // math.gcd(bits, 32)
    columns = math.ceil(len(values) / lanes)
    words = bits * lanes // 32
    padded = [value % 2**bits for value in values] + [0] * (lanes * columns - len(values))
    result = [0] * (words * columns)
    for column in range(columns):
        number = sum(padded[k * columns + column] << (bits * k) for k in range(lanes))
        for w in range(words):
            result[w * columns + column] = number >> (32 * w) & 0xFFFFFFFF
    return struct.pack(f"<{len(result)}I", *result)


@given(fine=VECTORS, grid=grids())
def test_encoding_is_the_documented_layout_of_the_documented_rounding(
    fine: NDArray[np.int32], grid: tuple[int, int]
) -> None:
    shift, bits = grid
    before = fine.copy()
    packed = encode(fine, shift=shift, bits=bits)
    assert bytes(packed) == pack_slowly([half_even(int(v), shift) for v in fine], bits)
    assert len(packed) == packed_size(fine.size, bits)
    assert np.array_equal(fine, before)


@given(fine=VECTORS, grid=grids())
def test_decoding_gives_back_what_was_rounded_modulo_two_to_the_bits(
    fine: NDArray[np.int32], grid: tuple[int, int]
) -> None:
    shift, bits = grid
    expected = [centred(half_even(int(v), shift), bits) for v in fine]
    assert decode(encode(fine, shift=shift, bits=bits), fine.size, bits) == expected


@given(value=INT32, wraps=st.integers(-3, 3), grid=grids())
def test_wrapping_of_the_fine_grid_does_not_show_on_the_wire(value: int, wraps: int, grid: tuple[int, int]) -> None:
    shift, bits = grid
    true_value = value + wraps * 2**32
    (found,) = decode(encode(np.array([value], np.int32), shift=shift, bits=bits), 1, bits)
    assert found == centred(half_even(true_value, shift), bits)


@pytest.mark.parametrize("bits", range(2, 33))
@pytest.mark.parametrize("extra", [-33, -1, 0, 1, 70])
def test_vectors_longer_than_a_row_round_trip(bits: int, extra: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_ROW", 64)
    monkeypatch.setattr(packing, "_COMPILED", False)
    length = 64 * 32 * 2 + extra
    values = (np.arange(length, dtype=np.int64) * 2654435761 % 2**32).astype(np.uint32).view(np.int32)
    expected = [centred(int(v), bits) for v in values]
    assert decode(encode(values, shift=0, bits=bits), length, bits) == expected
    assert bytes(encode(values, shift=0, bits=bits)) == pack_slowly(list(map(int, values)), bits)


@pytest.mark.skipif(not packing._COMPILED, reason="installed without a compiler")
@pytest.mark.parametrize("bits", range(2, 33))
@pytest.mark.parametrize("columns", [1, 7, 4095, 4096, 4097, 9000])  # the kernel takes 4096 at a time
def test_the_kernel_packs_and_adds_as_numpy_does(bits: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = 32 // math.gcd(bits, 32)
    for length in {max(lanes * columns - missing, 1) for missing in (0, 1, lanes - 1)}:
        values = (np.arange(length, dtype=np.int64) * 2654435761 % 2**32).astype(np.uint32).view(np.int32)
        for shift in {0, min(6, 32 - bits), 32 - bits}:
            found = []
            for compiled in (True, False):
                monkeypatch.setattr(packing, "_COMPILED", compiled)
                packed = bytes(encode(values, shift=shift, bits=bits))
                accumulator = Accumulator(length, bits)
                for _ in range(2):
                    accumulator.add(packed)
                found.append((packed, accumulator.total().tobytes()))
            assert found[0] == found[1]


@pytest.mark.parametrize(
    ("values", "words", "shift", "bits"),
    [
        (np.zeros(32, np.int32), np.zeros(12, np.uint32), 0, 13),
        (np.zeros(32, np.int32), np.zeros(14, np.uint32), 0, 13),
        (np.zeros(33, np.int32), np.zeros(13, np.uint32), 0, 13),
        (np.zeros(32, np.int32), np.zeros(13, np.uint32), 20, 13),
        (np.zeros(32, np.int32), np.zeros(13, np.uint32), -1, 13),
        (np.zeros(32, np.int32), np.zeros(33, np.uint32), 0, 33),
        (np.zeros(32, np.int32), np.zeros(0, np.uint32), 0, 0),
        (np.zeros(4, np.int8)[1:], np.zeros(2, np.uint32), 0, 8),
    ],
)
def test_the_kernel_refuses_to_pack_beyond_its_buffers(values: Any, words: Any, shift: int, bits: int) -> None:
    kernel = pytest.importorskip("lightdp._native.kernel")
    for move in (kernel.pack, kernel.unpack):
        with pytest.raises(ValueError, match="words: aligned, as many as they fill"):
            move(values, words, shift, bits)


@given(
    uploads=st.integers(1, 70).flatmap(lambda d: st.lists(arrays.arrays(np.int32, d, elements=INT32), min_size=1)),
    grid=grids(),
)
def test_accumulator_sums_modulo_two_to_the_bits(uploads: list[NDArray[np.int32]], grid: tuple[int, int]) -> None:
    shift, bits = grid
    accumulator = Accumulator(uploads[0].size, bits)
    for fine in uploads:
        accumulator.add(encode(fine, shift=shift, bits=bits))
    sums = [sum(half_even(int(v), shift) for v in column) for column in zip(*uploads, strict=True)]
    assert accumulator.total().tolist() == [centred(value, bits) for value in sums]
    assert accumulator.total().dtype == np.int32


def test_rounding_error_has_mean_zero_and_the_stated_variance() -> None:
    shift = 4
    fine = np.arange(-(2**10), 2**10, dtype=np.int32)  # every residue, with even and odd results
    rounded = np.array(decode(encode(fine, shift=shift, bits=28), fine.size, 28))
    error = [Fraction(int(r)) - Fraction(int(v), 2**shift) for r, v in zip(rounded, fine, strict=True)]
    assert sum(error) == 0
    assert sum(e * e for e in error) / len(error) == (1 + Fraction(2, 4**shift)) / 12
    assert max(map(abs, error)) == Fraction(1, 2)


@pytest.mark.parametrize("bits", [2, 3, 8, 10, 13, 16, 20, 24, 31, 32])
def test_packed_size_wastes_less_than_one_column(bits: int) -> None:
    for length in range(1, 100):
        waste = 8 * packed_size(length, bits) - bits * length
        assert 0 <= waste < bits * 32


def test_accumulator_memory_does_not_grow_with_uploads() -> None:
    length, bits = 200_000, 14
    packed = bytes(encode(np.arange(length, dtype=np.int32), shift=0, bits=bits))
    tracemalloc.start()
    accumulator = Accumulator(length, bits)
    for _ in range(5):
        accumulator.add(packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * length + 4 * packing._ROW + 50_000


@pytest.mark.parametrize("size", [-4, -1, 1, 4])
def test_packed_vector_of_another_size_changes_nothing(size: int) -> None:
    accumulator = Accumulator(100, 12)
    good = bytes(encode(np.arange(100, dtype=np.int32), shift=0, bits=12))
    accumulator.add(good)
    with pytest.raises(WireError, match="bytes"):
        accumulator.add((good + bytes(4))[: len(good) + size])
    assert accumulator.total().tolist() == list(range(100))


@given(length=st.integers(1, 80), bits=st.integers(2, 32), data=st.data())
def test_every_bit_of_padding_must_be_zero(length: int, bits: int, data: st.DataObject) -> None:
    lanes = 32 // math.gcd(bits, 32)
    capacity = lanes * math.ceil(length / lanes)
    if capacity == length:
        return
    values = [0] * capacity
    values[data.draw(st.integers(length, capacity - 1))] = 1 << data.draw(st.integers(0, bits - 1))
    packed = pack_slowly(values, bits)
    accumulator = Accumulator(length, bits)
    with pytest.raises(WireError, match="padding"):
        accumulator.add(packed)
    assert not accumulator._sum.any()


def test_unaligned_vector_is_encoded_all_the_same() -> None:
    fine = np.arange(-50, 50, dtype=np.int32)
    shifted = np.frombuffer(b"x" + fine.tobytes(), np.int32, offset=1)
    assert bytes(encode(shifted, shift=2, bits=10)) == bytes(encode(fine, shift=2, bits=10))


def test_unaligned_upload_is_added_all_the_same() -> None:
    fine = np.arange(-50, 50, dtype=np.int32)
    shifted = memoryview(b"x" + bytes(encode(fine, shift=0, bits=10)))[1:]
    assert decode(shifted, 100, 10) == fine.tolist()


@pytest.mark.parametrize(("shift", "bits"), [(0, 1), (0, 33), (-1, 8), (25, 8), (1, 32)])
def test_grid_that_does_not_fit_is_refused(shift: int, bits: int) -> None:
    with pytest.raises(ArgumentError):
        encode(np.zeros(3, np.int32), shift=shift, bits=bits)


@pytest.mark.parametrize(
    "fine",
    [np.zeros(0, np.int32), np.zeros((2, 2), np.int32), np.zeros(4, np.int64), np.zeros(8, np.int32)[::2]],
)
def test_vector_of_another_kind_is_refused(fine: NDArray[Any]) -> None:
    with pytest.raises(ArgumentError, match="fine"):
        encode(fine, shift=0, bits=8)
