"""Drawn values: bit for bit, in sums with Gaussian noise, and as an exact law that one changed entry would break."""

from __future__ import annotations

import hashlib
import json
import math
import re
from functools import cache
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
from lightdp._native import plain
from lightdp._native.tables import TABLES
from lightdp.errors import ArgumentError
from lightdp.stream import LENGTH_MAX, UNIT_MAX, Draw, Term, _backends
from support.streams import COMPILED, KEY, OTHER, PATHS, TERMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
VECTORS = json.loads((ROOT / "tests" / "vectors" / "stream.json").read_text())
KEYS = [hashlib.sha256(b"%d" % j).digest() for j in range(1100)]
SIGNS = [1 if j % 3 else -1 for j in range(1100)]
OWN = [bytes([7 * k]) * 32 for k in range(1, 4)]
DRAWS = st.builds(
    Draw,
    st.binary(min_size=32, max_size=32),
    st.sampled_from([-1, 1]),
    st.sampled_from([1, 7]) | st.integers(1, UNIT_MAX),
)


def value(a: int, b: int, c: int) -> int:
    """A value from its three bytes, by the text of the specification."""
    if a == b == 255:
        return c - 256 * (c > 127)
    l0, h0, l1, h1, l2, h2 = TABLES
    return l0[a % 16] + h0[a // 16] + l1[b % 16] + h1[b // 16] + l2[c % 16] + h2[c // 16]


def octets(key: bytes, first: int, length: int) -> Iterator[tuple[int, int, int]]:
    """The three bytes of each value, from single AES blocks."""
    cipher = Cipher(AES128(key[:16]), ECB()).encryptor()  # noqa: S305 - single blocks are what counter mode is made of

    def octet(place: int) -> int:
        counter = int.from_bytes(key[16:], "little") ^ place // 16
        return cipher.update(counter.to_bytes(16, "little"))[place % 16]

    for i in range(first, first + length):
        begin = i // 1024 * 3072 + i % 1024
        yield octet(begin), octet(begin + 1024), octet(begin + 2048)


def wrapped(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def sums(keys: Sequence[bytes], signs: Sequence[int], unit: int, span: tuple[int, int]) -> list[int]:
    total = [0] * span[1]
    for key, sign in zip(keys, signs, strict=True):
        total = [each + sign * value(*three) for each, three in zip(total, octets(key, *span), strict=True)]
    return [wrapped(unit * each) for each in total]


def by_path(name: str, keys: Sequence[bytes], signs: Sequence[int], unit: int, span: tuple[int, int]) -> Any:
    out = np.zeros(span[1], np.int32)
    PATHS[name].draw(out, span[0], b"".join(keys), np.array(signs, np.int8), unit)
    return out.tolist()


def drawn(key: bytes, length: int, start: int = 0) -> NDArray[np.int32]:
    out = np.zeros(length, np.int32)
    stream.accumulate(out, [Draw(key, 1, 1)], start=start)
    return out


@cache
def crafted(place: int, other: int, count: int) -> list[bytes]:
    """Keys whose AES block `place` has ones only, and `other` a byte of ones: the cipher is inverted at one block."""
    found: list[bytes] = []
    for number in range(100 * count):
        half = hashlib.sha256(b"crafted %d" % number).digest()[:16]
        cipher = Cipher(AES128(half), ECB())  # noqa: S305
        counter = int.from_bytes(cipher.decryptor().update(b"\xff" * 16), "little") ^ place
        if 255 in cipher.encryptor().update((counter ^ other).to_bytes(16, "little")):
            found.append(half + counter.to_bytes(16, "little"))
        if len(found) == count:
            return found
    raise AssertionError("one key in 16 is such a one")


# ---- the tables ----


def test_tables_are_of_signed_bytes_and_no_sum_leaves_the_range() -> None:
    assert [len(table) for table in TABLES] == [16] * 6
    assert sum(map(max, TABLES)) <= 127
    assert sum(map(min, TABLES)) >= -127


def test_the_kernel_has_the_tables_of_numpy() -> None:
    text = (ROOT / "src" / "lightdp" / "_native" / "noise.h").read_text()
    rows = re.search(r"TABLES\[6\]\[16\].*?= \{(.*?)\};", text, re.DOTALL)
    assert rows is not None
    found = [tuple(map(int, row.split(","))) for row in re.findall(r"\{(.*?)\}", rows[1])]
    assert tuple(found) == TABLES


# ---- bit for bit ----


@pytest.mark.parametrize("vector", VECTORS["draws"], ids=lambda v: f"{len(v['keys'])}keys{v['start']}")
@pytest.mark.parametrize("name", PATHS)
def test_golden_draws_hold_on_every_path(name: str, vector: dict[str, Any]) -> None:
    keys, span = [bytes.fromhex(key) for key in vector["keys"]], (vector["start"], len(vector["values"]))
    assert by_path(name, keys, vector["signs"], vector["unit"], span) == vector["values"]


def test_golden_draws_follow_from_the_specification() -> None:
    for vector in VECTORS["draws"]:
        keys, span = [bytes.fromhex(key) for key in vector["keys"]], (vector["start"], len(vector["values"]))
        assert sums(keys, vector["signs"], vector["unit"], span) == vector["values"]


def test_the_known_answer_follows_from_the_specification_and_has_uniform_values() -> None:
    keys, signs, span = (
        [bytes(range(j, j + 32)) for j in range(19)],
        [-1 if j % 3 else 1 for j in range(19)],
        (1000, 11264),
    )
    total = np.array(sums(keys, signs, 2**22 + 1, span), "<i4")
    assert hashlib.sha256(total.tobytes()).hexdigest() == _backends.KNOWN[2] == VECTORS["known_draws"]["sha256"]
    assert sum(a == b == 255 for key in keys for a, b, _ in octets(key, *span)) == 5


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("keys", [0, 1, 2, 3, 49, 254, 255, 256, 300, 511, 1030])
def test_any_number_of_keys_is_added_as_the_specification_says(name: str, keys: int) -> None:
    span = 1024 * (keys % 3) + 1015, 19  # in two tiles
    assert by_path(name, KEYS[:keys], SIGNS[:keys], 3, span) == sums(KEYS[:keys], SIGNS[:keys], 3, span)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("keys", [255, 256, 1023, 1100])
def test_a_value_of_128_can_be_added_for_every_key_at_once(name: str, sign: int, keys: int) -> None:
    key, place = next(
        (key, i)
        for key in crafted(0, 64, 3000)
        for i, three in enumerate(octets(key, 0, 16))
        if three == (255, 255, 128)
    )
    assert by_path(name, [key] * keys, [sign] * keys, 1, (place, 1)) == [-128 * sign * keys]


@pytest.mark.parametrize(("place", "other"), [(0, 64), (64, 0)], ids=["first", "second"])
def test_two_bytes_of_ones_make_the_third_the_value_and_one_does_not(place: int, other: int) -> None:
    keys = crafted(place, other, 200)
    found = {name: [by_path(name, [key], [1], 1, (0, 16)) for key in keys] for name in PATHS}
    uniform, usual = [], 0
    for j, key in enumerate(keys):
        expected = []
        for a, b, c in octets(key, 0, 16):
            expected.append(value(a, b, c))
            assert 255 in (a, b)
            if a == b:
                uniform.append(expected[-1])
            usual += a != b
        for name in PATHS:
            assert found[name][j] == expected, name
    assert len(uniform) >= 200
    assert usual > 2000
    most = sum(map(max, TABLES))
    assert min(uniform) < -most  # which no sum of entries reaches
    assert max(uniform) > most


@pytest.mark.parametrize("name", COMPILED)
@given(
    span=st.tuples(
        st.integers(0, 3000) | st.integers(0, LENGTH_MAX - 5000),
        st.sampled_from([0, 1, 1023, 1024, 1025, 2048]) | st.integers(0, 5000),
    ),
    signs=st.lists(st.sampled_from([-1, 1]), max_size=70) | st.integers(240, 300).map(lambda n: [-1] * n),
    unit=st.integers(1, UNIT_MAX),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_compiled_and_numpy_draws_are_identical(name: str, span: tuple[int, int], signs: list[int], unit: int) -> None:
    keys = KEYS[: len(signs)]
    assert by_path(name, keys, signs, unit, span) == by_path("numpy", keys, signs, unit, span)


@pytest.mark.parametrize("name", COMPILED)
def test_millions_of_values_are_those_of_numpy(name: str) -> None:
    found, expected = np.zeros((2, 3 << 20), np.int32)
    for out, path in ((found, name), (expected, "numpy")):
        PATHS[path].draw(out, 5, b"".join(KEYS[:7]), np.array(SIGNS[:7], np.int8), 1)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", COMPILED)
def test_the_kernel_refuses_buffers_it_could_overrun(name: str) -> None:
    sign = np.ones(1, np.int8)
    for out, keys, signs in [
        (np.zeros(3, np.int8), KEY, sign),
        (np.zeros(4, np.int32), KEY[:31], sign),
        (np.zeros(4, np.int32), KEY + OTHER, sign),
        (np.frombuffer(bytearray(9), np.int8)[1:], KEY, sign),
    ]:
        with pytest.raises(ValueError, match="out: aligned int32"):
            PATHS[name].draw(out, 0, keys, signs, 1)
    with pytest.raises(ValueError, match="start is too large"):
        PATHS[name].draw(np.zeros(4, np.int32), 2**52, KEY, sign, 1)


# ---- sums ----


def test_every_pair_of_draws_cancels_to_exactly_zero() -> None:
    clients, d = 8, 3000
    keys = {pair: hashlib.sha256(bytes(pair)).digest() for pair in combinations(range(clients), 2)}
    total = np.zeros(d, np.int32)
    for i in range(clients):
        mine = np.zeros(d, np.int32)
        terms = [Draw(key, 1 if pair[0] == i else -1, 777) for pair, key in keys.items() if i in pair]
        stream.accumulate(mine, terms)
        assert np.count_nonzero(mine) > 0.9 * d
        total += mine
    assert not total.any()


@given(
    terms=st.lists(TERMS | DRAWS, max_size=6),
    cuts=st.lists(st.integers(0, 9000), max_size=4),
    threads=st.integers(1, 5) | st.none(),
)
@settings(deadline=None, max_examples=40, derandomize=True)
def test_terms_of_both_kinds_are_added_in_any_order_with_any_cuts_and_threads(
    terms: list[Term | Draw], cuts: list[int], threads: int | None
) -> None:
    out, expected = np.zeros((2, 9000), np.int32)
    for low, high in pairwise([0, *sorted(cuts), 9000]):
        stream.accumulate(out[low:high], terms, start=123 + low, threads=threads)
    for term in terms:
        if isinstance(term, Term):
            scale = np.array([term.sign * np.float32(term.sigma)], np.float32)
            plain.accumulate(expected, 123, term.key, scale)
        else:
            plain.draw(expected, 123, term.key, np.array([term.sign], np.int8), term.unit)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("name", PATHS)
def test_draws_are_added_modulo_2_to_the_32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backends, "IN_USE", PATHS[name])
    former = np.array([2**31 - 1, -(2**31), 0, 5] * 75, np.int32)
    out = former.copy()
    stream.accumulate(out, [Draw(key, 1, UNIT_MAX) for key in KEYS[:300]])
    expected = sums(KEYS[:300], [1] * 300, UNIT_MAX, (0, 300))
    assert out.tolist() == [wrapped(int(a) + b) for a, b in zip(former, expected, strict=True)]
    stream.accumulate(out, [Draw(key, -1, UNIT_MAX) for key in KEYS[:300]])
    assert np.array_equal(out, former)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("threads", [1, 2])
def test_masked_data_gets_the_noise_of_draws(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backends, "IN_USE", PATHS[name])
    values = np.linspace(-50, 50, 5000)
    terms: list[Draw | Term] = [Draw(KEY, -1, 30), Term(OTHER, 1, 40.0), Draw(OTHER, 1, 5), Draw(KEYS[0], 1, 30)]
    found = stream.masked(values, terms, step=0.1, sigma=9.0, own=OWN, threads=threads)
    expected = stream.masked(values, [], step=0.1, sigma=9.0, own=OWN)
    stream.accumulate(expected, [terms[1]])
    expected += 5 * drawn(OTHER, 5000) + 30 * (drawn(KEYS[0], 5000) - drawn(KEY, 5000))
    assert np.array_equal(found, expected)


def test_data_out_of_range_is_refused_with_draws_too() -> None:
    with pytest.raises(ArgumentError, match=r"finite and below 2\^50 steps of step=0.5"):
        stream.masked(np.full(3000, np.nan), [Draw(KEY, 1, 1)], step=0.5, sigma=9.0, own=OWN, threads=2)


def test_no_values_need_no_keys() -> None:
    out = np.arange(7, dtype=np.int32)
    stream.accumulate(out[:0], [Draw(KEY, 1, 1)])
    assert out.tolist() == list(range(7))


@pytest.mark.parametrize(
    ("key", "sign", "unit", "message"),
    [
        (b"short", 1, 1, "key must be 32 bytes, got 5 bytes"),
        (bytearray(32), 1, 1, "key must be 32 bytes, got bytearray"),
        (KEY, 0, 1, "sign must be .1 or -1, got sign=0"),
        (KEY, 2, 1, "sign must be in -1..1, got sign=2"),
        (KEY, -1.0, 1, "sign must be an integer, got sign=-1.0"),
        (KEY, True, 1, "sign must be an integer, got sign=True"),
        (KEY, 1, 0, f"unit must be in 1..{UNIT_MAX}, got unit=0"),
        (KEY, 1, UNIT_MAX + 1, f"unit must be in 1..{UNIT_MAX}, got unit={UNIT_MAX + 1}"),
        (KEY, 1, 1.5, "unit must be an integer, got unit=1.5"),
        (KEY, 1, True, "unit must be an integer, got unit=True"),
    ],
)
def test_a_wrong_draw_is_refused(key: bytes, sign: int, unit: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Draw(key, sign, unit)


def test_numbers_of_any_integer_type_make_a_draw_which_does_not_print_its_key() -> None:
    found = np.zeros((2, 100), np.int32)
    stream.accumulate(found[0], [Draw(KEY, -1, 9)])
    stream.accumulate(found[1], [Draw(KEY, np.int64(-1), np.uint8(9))])  # type: ignore[arg-type]
    assert np.array_equal(*found)
    assert repr(Draw(KEY, 1, 2)) == "Draw(sign=1, unit=2)"


# ---- the law ----


def law(tables: Sequence[Sequence[int]] = TABLES) -> NDArray[np.int64]:
    """How many of all 2^24 triples of bytes give -128 ... 127."""
    totals = [np.add.outer(tables[2 * k + 1], tables[2 * k]).reshape(-1) for k in range(3)]  # by byte
    pairs = np.bincount(np.add.outer(totals[0], totals[1]).reshape(-1)[:-1] + 256, minlength=512)  # but for both 255
    thirds = np.bincount(totals[2] + 256, minlength=512)
    return np.convolve(pairs, thirds)[512 - 128 : 512 + 128] + 1


def chi_square(seen: NDArray[np.int64], counts: NDArray[np.int64]) -> float:
    """Of all values that are expected ten times or more, the others together at each end."""
    expected = counts / counts.sum() * seen.sum()
    often = np.flatnonzero(expected >= 10)
    cells = [0, *range(often[0] + 1, often[-1] + 1)]
    return float(stats.chisquare(np.add.reduceat(seen, cells), np.add.reduceat(expected, cells)).pvalue)


@pytest.fixture(scope="module")
def histogram() -> NDArray[np.int64]:
    """Of 2^23 values of two keys."""
    values = np.concatenate([drawn(key, 1 << 22) for key in (KEY, OTHER)])
    return np.bincount(values + 128, minlength=256)


def test_the_law_is_that_of_single_triples() -> None:
    assert law().sum() == 2**24
    assert law().min() >= 1
    triples = np.random.default_rng(5).integers(0, 256, (1 << 16, 3))
    seen = np.bincount([value(*map(int, three)) + 128 for three in triples], minlength=256)
    assert chi_square(seen, law()) > 1e-3


def test_values_have_the_law_of_the_tables(histogram: NDArray[np.int64]) -> None:
    assert chi_square(histogram, law()) > 1e-3


@pytest.mark.parametrize("table", range(6))
@pytest.mark.parametrize("step", [-1, 1])
def test_a_table_with_one_entry_moved_by_one_is_rejected(histogram: NDArray[np.int64], table: int, step: int) -> None:
    for entry in range(16):
        tables = [list(each) for each in TABLES]
        tables[table][entry] += step
        assert chi_square(histogram, law(tables)) < 1e-6


def test_mean_and_variance_are_those_of_the_law(histogram: NDArray[np.int64]) -> None:
    values, n = np.arange(-128, 128), int(histogram.sum())
    moments = [(law() * values.astype(float) ** k).sum() / 2**24 for k in range(5)]
    for power in (1, 2):
        error = math.sqrt((moments[2 * power] - moments[power] ** 2) / n)
        assert abs((histogram * values.astype(float) ** power).sum() / n - moments[power]) < 4 * error


def test_neighbours_and_keys_are_uncorrelated() -> None:
    z = drawn(KEY, 1 << 20)
    other = drawn(bytes([KEY[0] ^ 1]) + KEY[1:], 1 << 20)
    for x, y in [(z, other), *((z[lag:], z[:-lag]) for lag in (1, 2, 15, 16, 64, 256, 1024, 3072))]:
        for a, b in ((x, y), (x**2, y**2)):
            assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(len(a)) < 4
            assert abs(np.corrcoef(a, b + 0.01 * a)[0, 1]) * math.sqrt(len(a)) > 4
