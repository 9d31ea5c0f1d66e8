"""Counts of keystream bits: bit for bit, in sums, and as a binomial law; statistics also reject a wrong width."""

from __future__ import annotations

import hashlib
import json
import math
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lightdp import stream
from lightdp.errors import ArgumentError
from lightdp.stream import LENGTH_MAX, UNIT_MAX, WIDTHS, _backends
from support.streams import COMPILED, KEY, OTHER, PATHS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "stream.json").read_text())
KEYS = [hashlib.sha256(bytes([j])).digest() for j in range(70)]
SIGNS = [1 if j % 3 else -1 for j in range(70)]


def reference(key: bytes, bits: int, first: int, length: int) -> list[int]:
    """Counts by the text of the specification: single AES blocks, one byte after the other, in Python's integers."""
    cipher = Cipher(AES128(key[:16]), ECB()).encryptor()  # noqa: S305 - single blocks are what counter mode is made of
    width, begin = bits // 8, first * bits // 8
    blocks = range(begin // 16, (begin + length * width) // 16 + 1)
    counters = (int.from_bytes(key[16:], "little") ^ block for block in blocks)
    data = b"".join(cipher.update(counter.to_bytes(16, "little")) for counter in counters)[begin % 16 :]
    return [sum(byte.bit_count() for byte in data[i * width : (i + 1) * width]) - bits // 2 for i in range(length)]


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def sums(keys: Sequence[bytes], signs: Sequence[int], kind: tuple[int, int], span: tuple[int, int]) -> list[int]:
    bits, unit = kind
    each = [[sign * value for value in reference(key, bits, *span)] for key, sign in zip(keys, signs, strict=True)]
    return [wrapped(unit * sum(column)) for column in zip(*each, strict=True)] if each else [0] * span[1]


def by_path(
    name: str, keys: Sequence[bytes], signs: Sequence[int], kind: tuple[int, int], span: tuple[int, int]
) -> Any:
    out = np.zeros(span[1], np.int32)
    PATHS[name].count(out, span[0], b"".join(keys), np.array(signs, np.int8), kind)
    return out.tolist()


def counts(key: bytes, bits: int, length: int, start: int = 0) -> NDArray[np.int32]:
    out = np.zeros(length, np.int32)
    stream.count(out, [key], [1], bits=bits, unit=1, start=start)
    return out


# ---- bit for bit ----


@pytest.mark.parametrize("vector", VECTORS["counts"], ids=lambda v: f"{len(v['keys'])}keys{v['bits']}bits")
@pytest.mark.parametrize("name", PATHS)
def test_golden_counts_hold_on_every_path(name: str, vector: dict[str, Any]) -> None:
    keys, span = [bytes.fromhex(key) for key in vector["keys"]], (vector["start"], len(vector["values"]))
    assert by_path(name, keys, vector["signs"], (vector["bits"], vector["unit"]), span) == vector["values"]


def test_golden_counts_follow_from_the_specification() -> None:
    assert {vector["bits"] for vector in VECTORS["counts"]} == set(WIDTHS)
    for vector in VECTORS["counts"]:
        keys, span = [bytes.fromhex(key) for key in vector["keys"]], (vector["start"], len(vector["values"]))
        assert sums(keys, vector["signs"], (vector["bits"], vector["unit"]), span) == vector["values"]


def test_the_known_answer_follows_from_the_specification() -> None:
    keys, signs = [bytes(range(j, j + 32)) for j in range(37)], [-1 if j % 3 else 1 for j in range(37)]
    each = [sums(keys, signs, (bits, 2**27 + bits), (100, 700)) for bits in WIDTHS]
    total = np.array([wrapped(sum(column)) for column in zip(*each, strict=True)], "<i4")
    assert hashlib.sha256(total.tobytes()).hexdigest() == _backends.KNOWN[2] == VECTORS["known_counts"]["sha256"]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("keys", [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 70])
def test_any_number_of_keys_is_counted_as_the_specification_says(name: str, bits: int, keys: int) -> None:
    span = 5 * keys + 1, 19
    assert by_path(name, KEYS[:keys], SIGNS[:keys], (bits, 3), span) == sums(KEYS[:keys], SIGNS[:keys], (bits, 3), span)


@pytest.mark.parametrize("name", COMPILED)
@given(
    span=st.tuples(
        st.integers(0, 3000) | st.integers(0, LENGTH_MAX - 3000),
        st.sampled_from([0, 1, 511, 512, 513, 1024]) | st.integers(0, 3000),
    ),
    signs=st.lists(st.sampled_from([-1, 1]), max_size=len(KEYS)),
    kind=st.tuples(st.sampled_from(WIDTHS), st.integers(1, UNIT_MAX)),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_compiled_and_numpy_counts_are_identical(
    name: str, span: tuple[int, int], signs: list[int], kind: tuple[int, int]
) -> None:
    keys = KEYS[: len(signs)]
    assert by_path(name, keys, signs, kind, span) == by_path("numpy", keys, signs, kind, span)


@pytest.mark.parametrize("name", PATHS)
def test_more_keys_than_are_counted_at_once(name: str) -> None:
    keys = [hashlib.sha256(b"%d" % j).digest() for j in range(1030)]
    signs = [1, -1, 1] * 343 + [1]
    for number in (1023, 1024, 1030):
        call = keys[:number], signs[:number], (8, 1), (7, 3)
        assert by_path(name, *call) == sums(*call)
    assert by_path(name, KEYS[:1] * 1030, [1] * 1030, (64, 1), (0, 9)) == sums(KEYS[:1], [1], (64, 1030), (0, 9))


@pytest.mark.parametrize("name", COMPILED)
def test_the_kernel_refuses_buffers_it_could_overrun(name: str) -> None:
    sign, kind = np.ones(1, np.int8), (16, 1)
    for out, keys, signs in [
        (np.zeros(3, np.int8), KEY, sign),
        (np.zeros(4, np.int32), KEY[:31], sign),
        (np.zeros(4, np.int32), KEY + OTHER, sign),
        (np.frombuffer(bytearray(9), np.int8)[1:], KEY, sign),
    ]:
        with pytest.raises(ValueError, match="out: aligned int32"):
            PATHS[name].count(out, 0, keys, signs, kind)
    for wrong in (0, 4, 12, 24, 128, -8):
        with pytest.raises(ValueError, match="bits: 8, 16, 32 or 64"):
            PATHS[name].count(np.zeros(4, np.int32), 0, KEY, sign, (wrong, 1))
    with pytest.raises(ValueError, match="start is too large"):
        PATHS[name].count(np.zeros(4, np.int32), 2**52, KEY, sign, kind)


# ---- sums ----


def test_every_pair_of_counts_cancels_to_exactly_zero() -> None:
    clients, d = 8, 3000
    keys = {pair: hashlib.sha256(bytes(pair)).digest() for pair in combinations(range(clients), 2)}
    total = np.zeros(d, np.int32)
    for i in range(clients):
        mine = np.zeros(d, np.int32)
        chosen = {pair: key for pair, key in keys.items() if i in pair}
        signs = [1 if pair[0] == i else -1 for pair in chosen]
        stream.count(mine, [*chosen.values()], signs, bits=16, unit=777)
        assert np.count_nonzero(mine) > 0.9 * d
        total += mine
    assert not total.any()


@given(
    cuts=st.lists(st.integers(0, 9000), max_size=4),
    threads=st.integers(1, 5) | st.none(),
    bits=st.sampled_from(WIDTHS),
)
@settings(deadline=None, max_examples=25, derandomize=True)
def test_cuts_and_threads_do_not_change_the_counts(cuts: list[int], threads: int | None, bits: int) -> None:
    out = np.zeros(9000, np.int32)
    for low, high in pairwise([0, *sorted(cuts), 9000]):
        stream.count(out[low:high], KEYS[:5], SIGNS[:5], bits=bits, unit=11, start=123 + low, threads=threads)
    assert out.tolist() == by_path("numpy", KEYS[:5], SIGNS[:5], (bits, 11), (123, 9000))


@pytest.mark.parametrize("name", PATHS)
def test_counts_are_added_modulo_2_to_the_32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backends, "IN_USE", PATHS[name])
    former = np.array([2**31 - 1, -(2**31), 0, 5] * 500, np.int32)
    out = former.copy()
    stream.count(out, KEYS[:9], SIGNS[:9], bits=64, unit=UNIT_MAX)
    expected = sums(KEYS[:9], SIGNS[:9], (64, UNIT_MAX), (0, 2000))
    assert out.tolist() == [wrapped(int(a) + b) for a, b in zip(former, expected, strict=True)]
    stream.count(out, KEYS[:9], [-sign for sign in SIGNS[:9]], bits=64, unit=UNIT_MAX)
    assert np.array_equal(out, former)


def test_no_keys_add_nothing_and_no_values_need_no_keys() -> None:
    out = np.arange(7, dtype=np.int32)
    stream.count(out, [], [], bits=8, unit=1)
    stream.count(out[:0], KEYS, SIGNS, bits=8, unit=1)
    assert out.tolist() == list(range(7))


def test_numbers_of_any_integer_type_are_taken() -> None:
    found = np.zeros((2, 100), np.int32)
    stream.count(found[0], [KEY], [-1], bits=16, unit=9, start=3, threads=1)
    numbers: dict[str, Any] = {"bits": np.int64(16), "unit": np.int32(9), "start": np.uint8(3), "threads": np.int64(1)}
    stream.count(found[1], (KEY,), np.array([-1]), **numbers)  # type: ignore[arg-type]
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"out": np.zeros(4, np.int64)}, "out must be a contiguous, aligned, writable int32 vector, got int64"),
        ({"out": np.zeros(8, np.int32)[::2]}, "out must be"),
        ({"out": np.frombuffer(bytes(16), np.int32)}, "out must be"),
        ({"out": [0, 0]}, "out must be a contiguous, aligned, writable int32 vector, got list"),
        ({"keys": [KEY]}, "signs must be as many as keys, got 2 for 1 keys"),
        ({"keys": [KEY, KEY[:31]]}, "key must be 32 bytes, got 31 bytes"),
        ({"keys": [KEY, bytearray(32)]}, "key must be 32 bytes, got bytearray"),
        ({"signs": [1, 0]}, "sign must be .1 or -1, got sign=0"),
        ({"signs": [1, 2]}, "sign must be in -1..1, got sign=2"),
        ({"signs": [1, -1.0]}, "sign must be an integer, got sign=-1.0"),
        ({"signs": [1, True]}, "sign must be an integer, got sign=True"),
        ({"bits": 4}, "bits must be in 8..64, got bits=4"),
        ({"bits": 24}, "bits must be one of 8, 16, 32, 64, got bits=24"),
        ({"bits": 16.0}, "bits must be an integer, got bits=16.0"),
        ({"unit": 0}, "unit must be in 1..2147483647, got unit=0"),
        ({"unit": 2**31}, "unit must be in 1..2147483647, got unit=2147483648"),
        ({"unit": 1.5}, "unit must be an integer, got unit=1.5"),
        ({"start": -1}, "start must be in 0.."),
        ({"start": LENGTH_MAX - 3}, "start must be in 0.."),
        ({"threads": 0}, "threads must be >= 1"),
    ],
)
def test_wrong_arguments_are_named_and_leave_the_buffer_untouched(changed: dict[str, Any], message: str) -> None:
    out = np.full(4, 9, np.int32)
    right: dict[str, Any] = {"out": out, "keys": [KEY, OTHER], "signs": [1, -1], "bits": 16, "unit": 1}
    with pytest.raises(ArgumentError, match=message):
        stream.count(**(right | changed))
    assert out.tolist() == [9] * 4


# ---- the law ----


def mean(values: NDArray[Any], bits: int) -> float:
    return float(2 * stats.norm.sf(abs(values.mean()) / math.sqrt(bits / 4 / len(values))))


def variance(values: NDArray[Any], bits: int) -> float:
    """The variance of z² is (2 − 2/w) of the fourth power of the deviation."""
    z = (values**2).mean() / (bits / 4) - 1
    return float(2 * stats.norm.sf(abs(z) / math.sqrt((2 - 2 / bits) / len(values))))


def chi_square(values: NDArray[Any], bits: int) -> float:
    """Of all values that are expected ten times or more, the others together at each end."""
    expected = stats.binom.pmf(np.arange(bits + 1), bits, 0.5) * len(values)
    seen = np.bincount(np.clip(values + bits // 2, 0, bits), minlength=bits + 1)
    low = int(np.argmax(expected >= 10))
    cells = [0, *range(low + 1, bits - low + 1)] if low else [*range(bits + 1)]
    return float(stats.chisquare(np.add.reduceat(seen, cells), np.add.reduceat(expected, cells)).pvalue)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("test", [variance, chi_square])
def test_counts_are_binomial_and_those_of_another_width_are_not(test: Callable[..., float], bits: int) -> None:
    values = counts(KEY, bits, 1 << 20)
    assert np.abs(values).max() <= bits // 2
    assert test(values, bits) > 1e-3
    for wrong in set(WIDTHS) - {bits}:
        assert test(counts(KEY, wrong, 1 << 20), bits) < 1e-9
    lossy = values.copy()
    lossy[::8] -= 1  # as if a bit of some were lost
    assert chi_square(lossy, bits) < 1e-9


@pytest.mark.parametrize("bits", WIDTHS)
def test_counts_have_mean_zero_and_a_small_bias_shows(bits: int) -> None:
    values = counts(OTHER, bits, 1 << 20)
    assert mean(values, bits) > 1e-3
    assert mean(values + 0.02 * bits**0.5, bits) < 1e-9


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_sum_over_keys_is_binomial_with_the_bits_of_all(bits: int) -> None:
    out = np.zeros(1 << 18, np.int32)
    stream.count(out, KEYS[:21], SIGNS[:21], bits=bits, unit=1)
    for test in (mean, variance, chi_square):
        assert test(out, 21 * bits) > 1e-3
    for test in (variance, chi_square):
        assert test(out, 20 * bits) < 1e-9
        assert test(out, 22 * bits) < 1e-9


def test_neighbours_keys_and_widths_are_uncorrelated_as_far_as_they_share_no_bits() -> None:
    z = counts(KEY, 16, 1 << 20)
    other = counts(bytes([KEY[0] ^ 1]) + KEY[1:], 16, 1 << 20)
    for x, y in [(z, other), *((z[lag:], z[:-lag]) for lag in (1, 2, 7, 8, 255, 256, 1024))]:
        for a, b in ((x, y), (x**2, y**2)):
            assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(len(a)) < 4
            assert abs(np.corrcoef(a, b + 0.01 * a)[0, 1]) * math.sqrt(len(a)) > 4
    assert np.array_equal(counts(KEY, 8, 2000).reshape(-1, 2).sum(axis=1), z[:1000])  # so a key serves one width alone
