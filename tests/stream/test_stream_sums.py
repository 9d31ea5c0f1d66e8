"""Streams added up: masks cancel, cuts and threads do not show, and what is refused changes nothing."""

from __future__ import annotations

import hashlib
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightdp import stream
from lightdp.errors import ArgumentError
from lightdp.stream import LENGTH_MAX, SIGMA_MAX, Term
from support.streams import KEY, OTHER, PATHS, by_path, samples

if TYPE_CHECKING:
    from numpy.typing import NDArray


def test_every_pair_of_masks_cancels_to_exactly_zero() -> None:
    clients, d = 8, 3000
    keys = {pair: hashlib.sha256(bytes(pair)).digest() for pair in combinations(range(clients), 2)}
    total = np.zeros(d, np.int32)
    for i in range(clients):
        mine = np.zeros(d, np.int32)
        terms = [Term(key, 1 if pair[0] == i else -1, 777.7) for pair, key in keys.items() if i in pair]
        stream.accumulate(mine, terms)
        assert np.count_nonzero(mine) > 0.99 * d
        total += mine
    assert not total.any()


def test_adding_and_subtracting_a_term_restores_any_content_modulo_2_to_the_32() -> None:
    former = samples(OTHER, SIGMA_MAX, 5000) * np.int32(123457)
    former[:2] = np.iinfo(np.int32).max, np.iinfo(np.int32).min
    out = former.copy()
    stream.accumulate(out, [Term(KEY, 1, SIGMA_MAX)])
    assert not np.array_equal(out, former)
    stream.accumulate(out, [Term(KEY, -1, SIGMA_MAX)])
    assert np.array_equal(out, former)


@given(cuts=st.lists(st.integers(0, 9000), max_size=4), threads=st.integers(1, 5))
@settings(deadline=None, max_examples=25, derandomize=True)
def test_cuts_and_threads_do_not_change_the_samples(cuts: list[int], threads: int) -> None:
    terms, out = [Term(KEY, 1, 50.0), Term(OTHER, -1, 60.0)], np.zeros(9000, np.int32)
    edges = [0, *sorted(cuts), 9000]
    for low, high in pairwise(edges):
        stream.accumulate(out[low:high], terms, start=123 + low, threads=threads)
    assert np.array_equal(out, by_path(PATHS["numpy"], 9000, 123, terms))


def test_sigma_scales_the_same_underlying_samples() -> None:
    fine, coarse = samples(KEY, 4096, 10000), samples(KEY, 256, 10000)
    assert np.abs(fine / 16 - coarse).max() <= 0.5 + 1 / 16


def test_no_terms_add_nothing() -> None:
    out = np.arange(7, dtype=np.int32)
    stream.accumulate(out, [])
    assert out.tolist() == list(range(7))


# ---- refusals ----


@pytest.mark.parametrize(
    ("key", "sign", "sigma", "message"),
    [
        (b"short", 1, 1.0, "key must be 32 bytes, got 5 bytes"),
        (bytearray(32), 1, 1.0, "key must be 32 bytes, got bytearray"),
        (KEY, 0, 1.0, "sign must be .1 or -1, got sign=0"),
        (KEY, 2, 1.0, "sign must be in -1..1, got sign=2"),
        (KEY, True, 1.0, "sign must be an integer, got sign=True"),
        (KEY, 1.0, 1.0, "sign must be an integer, got sign=1.0"),
        (KEY, 1, True, "sigma must be a number, got sigma=True"),
        (KEY, 1, "9", "sigma must be a number, got sigma='9'"),
        (KEY, 1, 0.0, "sigma must be > 0"),
        (KEY, 1, float("nan"), "sigma must be finite"),
        (KEY, 1, 4096.1, "sigma must be <= 4096"),
    ],
)
def test_a_wrong_term_is_refused(key: bytes, sign: int, sigma: float, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Term(key, sign, sigma)


def test_numbers_of_any_type_make_a_term() -> None:
    numbers: list[Any] = [9, 9.0, np.float32(9), np.int64(9)]
    found = [samples(KEY, sigma, 100).tolist() for sigma in numbers]
    assert found == [found[0]] * 4
    assert Term(KEY, np.int64(-1), 9).sign == -1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "out",
    [
        np.zeros(4, np.int64),
        np.zeros((2, 2), np.int32),
        np.zeros(8, np.int32)[::2],
        np.zeros(4, np.dtype("i4").newbyteorder()),
        np.frombuffer(bytes(16), np.int32),
        [0, 0],
    ],
)
def test_a_wrong_buffer_is_refused(out: NDArray[np.int32]) -> None:
    with pytest.raises(ArgumentError, match="out must be"):
        stream.accumulate(out, [Term(KEY, 1, 1.0)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"terms": [Term(KEY, 1, 1.0), (KEY, 1, 1.0)]}, "terms must hold Term or Draw, got tuple"),
        ({"start": -1}, "start must be in 0.."),
        ({"start": LENGTH_MAX - 3}, "start must be in 0.."),
        ({"start": 1.5}, "start must be an integer"),
        ({"threads": 0}, "threads must be >= 1"),
    ],
)
def test_refusals_leave_the_buffer_untouched(arguments: dict[str, object], message: str) -> None:
    out = np.full(4, 9, np.int32)
    with pytest.raises(ArgumentError, match=message):
        stream.accumulate(out, **{"terms": [Term(KEY, 1, 1.0)], **arguments})  # type: ignore[arg-type]
    assert out.tolist() == [9] * 4


def test_a_term_does_not_print_its_key() -> None:
    assert repr(Term(KEY, 1, 2.0)) == "Term(sign=1, sigma=2.0)"
