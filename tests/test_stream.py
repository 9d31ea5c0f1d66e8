from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
from fractions import Fraction
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lightdp import stream
from lightdp._check import ArgumentError, LightDPError
from lightdp._native import plain
from lightdp.stream import LENGTH_MAX, SIGMA_MAX, TILE, Term

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

VECTORS = json.loads((Path(__file__).parent / "vectors" / "stream.json").read_text())
PATHS = {**stream._COMPILED, "numpy": plain.accumulate}
KEY, OTHER = bytes(range(32)), bytes(range(32, 64))
SIGMA = 1000.0


def samples(key: bytes, sigma: float, count: int, start: int = 0) -> NDArray[np.int32]:
    out = np.zeros(count, np.int32)
    stream.accumulate(out, [Term(key, 1, sigma)], start=start, threads=None)
    return out


def by_path(path: stream.Path, count: int, start: int, terms: list[Term]) -> NDArray[np.int32]:
    out = np.zeros(count, np.int32)
    scales = np.array([term.sign * 2**15 * np.float32(term.sigma) for term in terms], np.float32)
    path(out, start, b"".join(term.key for term in terms), scales)
    return out


def reference(key: bytes, sigma: float, index: int) -> int:
    """One sample by the text of the specification, with scalars, single AES blocks and no bit patterns."""
    f = np.float32
    tile, place = divmod(index, 1024)
    i, cosine = place % 512, place >= 512
    cipher = Cipher(AES256(key), ECB()).encryptor()  # noqa: S305 - single blocks are what counter mode is made of

    def word(position: int) -> int:
        block, offset = divmod(6144 * tile + 4 * position, 16)
        return int(struct.unpack_from("<I", cipher.update(block.to_bytes(16, "big")), offset)[0])

    a, b, c = word(i), word(512 + i), word(1024 + i)
    big = f(a % 2**31) * f(2**31) + f(b % 2**31 | 1)
    m, e = np.frexp(big)  # m in [1/2, 1)
    m, e = (m, int(e) - 62) if m >= f(0.5**0.5) else (m * f(2), int(e) - 63)
    w = (m - f(1)) / (m + f(1))
    v = w * w
    series = (v * f(plain.A[0]) + f(plain.A[1])) * v + f(plain.A[2])
    radius = np.sqrt(f(2**23 * e) * f(plain.L) - series * w) * (f(sigma) * f(2**15))
    radius = -radius if c >= 2**31 else radius
    x = f(2 * (c % 2**31) - (2**32 if c % 2**31 >= 2**30 else 0)) * f(2**-32)
    y = x * x
    s = (((y * f(plain.B[0]) + f(plain.B[1])) * y + f(plain.B[2])) * y + f(plain.B[3])) * x
    k = ((y * f(plain.C[0]) + f(plain.C[1])) * y + f(plain.C[2])) * y + f(plain.C[3])
    j = int(np.rint(radius * (f(1) - s * s if cosine else s * k)))
    return (j + 2**14) // 2**15


@cache
def long() -> NDArray[np.float64]:
    """2^21 samples in units of their theoretical standard deviation."""
    return np.asarray(samples(KEY, SIGMA, 1 << 21) / np.sqrt(SIGMA**2 + 1 / 12))


# ---- the specification ----


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda v: f"start{v['start']}")
@pytest.mark.parametrize("name", PATHS)
def test_golden_vectors_hold_on_every_path(name: str, vector: dict[str, object]) -> None:
    term = Term(bytes.fromhex(str(vector["key"])), int(str(vector["sign"])), float(str(vector["sigma"])))
    expected = vector["samples"]
    assert isinstance(expected, list)
    assert by_path(PATHS[name], len(expected), int(str(vector["start"])), [term]).tolist() == expected


def test_golden_vectors_follow_from_the_specification() -> None:
    for vector in VECTORS["vectors"]:
        key, first = bytes.fromhex(vector["key"]), vector["start"]
        indices = range(first, first + len(vector["samples"]))
        assert [vector["sign"] * reference(key, vector["sigma"], i) for i in indices] == vector["samples"]


def test_the_known_answer_is_the_one_of_the_vectors() -> None:
    assert VECTORS["known_answer"]["sha256"] == stream._KNOWN[0]
    out = np.zeros(65 * TILE, np.int32)
    stream.accumulate(out, [Term(KEY, 1, SIGMA_MAX), Term(OTHER, -1, 1000.1)], start=1000)
    assert hashlib.sha256(out.astype("<i4").tobytes()).hexdigest() == stream._KNOWN[0]
    for i in (0, 23, 24, 600, 65 * TILE - 1):
        assert out[i] == reference(KEY, SIGMA_MAX, 1000 + i) - reference(OTHER, 1000.1, 1000 + i)


TERMS = st.builds(Term, st.binary(min_size=32, max_size=32), st.sampled_from([-1, 1]), st.floats(1e-3, SIGMA_MAX))


@pytest.mark.parametrize("name", stream._COMPILED)
@given(
    count=st.sampled_from([0, 1, 511, 512, 1023, 1024, 1025]) | st.integers(0, 5000),
    start=st.integers(0, 5000) | st.integers(0, LENGTH_MAX - 5000),
    terms=st.lists(TERMS, max_size=4),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_compiled_and_numpy_samples_are_bit_identical(name: str, count: int, start: int, terms: list[Term]) -> None:
    expected = by_path(plain.accumulate, count, start, terms)
    assert np.array_equal(by_path(PATHS[name], count, start, terms), expected)


@pytest.mark.parametrize("name", stream._COMPILED)
def test_compiled_and_numpy_agree_over_millions_of_samples(name: str) -> None:
    terms = [Term(KEY, 1, SIGMA_MAX)]
    assert np.array_equal(by_path(PATHS[name], 1 << 22, 0, terms), by_path(plain.accumulate, 1 << 22, 0, terms))


@pytest.mark.parametrize("name", stream._COMPILED)
def test_the_kernel_refuses_buffers_it_could_overrun(name: str) -> None:
    scale = np.ones(1, np.float32)
    for out, keys, scales in [
        (np.zeros(3, np.int8), KEY, scale),
        (np.zeros(4, np.int32), KEY[:31], scale),
        (np.zeros(4, np.int32), KEY + OTHER, scale),
        (np.frombuffer(bytearray(9), np.int8)[1:], KEY, scale),
    ]:
        with pytest.raises(ValueError, match="aligned int32"):
            stream._COMPILED[name](out, 0, keys, scales)


@pytest.mark.parametrize(("a", "b"), [(0, 0), (0, 1), (1, 0), (2**31 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1)])
@pytest.mark.parametrize("c", [0, 1, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 2**32 - 1])
def test_the_ends_of_the_uniforms_stay_finite_and_within_reach(a: int, b: int, c: int) -> None:
    words = np.empty((1, 3, 512), np.uint32)
    words[0] = [[a], [b], [c]]
    pair = plain._gauss(words, np.float32(SIGMA_MAX * 2**15), np.empty((7, 1, 512), np.float32))[[0, -1]]
    reach = np.sqrt(-2 * np.log((b % 2**31 | 1) / 2.0**62)) if a == 0 else 9
    assert np.hypot(*pair.astype(float)) / SIGMA_MAX <= reach + 1e-3
    if (a, b) == (0, 0):
        assert np.hypot(*pair.astype(float)) / SIGMA_MAX == pytest.approx(9.27, abs=0.01)


def test_values_before_rounding_are_right_to_5e_7_of_the_radius() -> None:
    raw = samples(KEY, SIGMA_MAX, 3 << 16).view(np.uint32) * np.uint32(2654435761)
    words = np.bitwise_xor(raw, raw >> 15, dtype=np.uint32).reshape(-1, 3, 512)
    words[::2, 0] >>= np.uint32(20)  # tails
    work, scale = np.empty((7, len(words), 512), np.float32), np.float32(SIGMA_MAX * 2**15)
    plain._gauss(words, scale, work)
    a, b, c = words.transpose(1, 0, 2)
    big = (a & 0x7FFFFFFF).astype(np.float32) * np.float32(2**31) + (b & 0x7FFFFFFF | 1).astype(np.float32)
    radius = np.sqrt(-2 * np.log(big.astype(float) / 2.0**62)) * float(scale) * np.where(c >> 31, -1, 1)
    x = (c + c).view(np.int32).astype(np.float32).astype(float) / 2**32
    exact = np.stack([radius * np.sin(np.pi * x), radius * np.cos(np.pi * x)], axis=1)
    error = np.abs(work[5:].reshape(-1, 2, 512) - exact) - 0.5  # work holds the nearest integers
    assert (error <= 5e-7 * np.abs(radius)[:, None]).all()


# ---- sums ----


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
    assert np.array_equal(out, by_path(plain.accumulate, 9000, 123, terms))


def test_sigma_scales_the_same_underlying_samples() -> None:
    fine, coarse = samples(KEY, 4096, 10000), samples(KEY, 256, 10000)
    assert np.abs(fine / 16 - coarse).max() <= 0.5 + 1 / 16


def test_no_terms_add_nothing() -> None:
    out = np.arange(7, dtype=np.int32)
    stream.accumulate(out, [])
    assert out.tolist() == list(range(7))


# ---- data, with noise of its own ----

OWN = [bytes([7 * k]) * 32 for k in range(1, 4)]


def data(count: int, kind: type, scale: float = 1.0) -> NDArray[Any]:
    return (samples(bytes(32), 1000.0, count) * (scale / 777)).astype(kind)


@pytest.mark.parametrize("name", stream._COMPILED)
@given(
    values=st.builds(
        data,
        st.sampled_from([0, 1, 3, 1023, 1024, 1025]) | st.integers(0, 5000),
        st.sampled_from([np.float32, np.float64]),
    ),
    terms=st.lists(TERMS, max_size=3),
    step=st.floats(1e-9, 1e9),
    sigma=st.floats(1e-3, SIGMA_MAX),
)
@settings(deadline=None, max_examples=80, derandomize=True)
def test_data_is_masked_by_compiled_paths_and_numpy_alike(
    name: str, values: NDArray[Any], terms: list[Term], step: float, sigma: float
) -> None:
    found = []
    for path in (PATHS[name], plain.accumulate):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream, "_PATH", path)
            found.append(stream.masked(values, terms, step=step, sigma=sigma, own=OWN))
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("name", PATHS)
def test_a_call_that_begins_inside_a_tile_masks_data_as_the_whole_does(name: str) -> None:
    values, keys = data(3000, np.float32), b"".join([*OWN, KEY])
    scales = np.array([1000.0, SIGMA_MAX, SIGMA_MAX, -500.0], np.float32) * np.float32(2**15)
    whole, cut = np.zeros((2, 3000), np.int32)
    assert PATHS[name](whole, 100, keys, scales, (values, 0.01))
    for low, high in ((0, 700), (700, 701), (701, 3000)):
        assert PATHS[name](cut[low:high], 100 + low, keys, scales, (values[low:high], 0.01))
    assert np.array_equal(whole, cut)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_masked_data_is_rounded_once_in_exact_arithmetic(kind: type) -> None:
    values, step = data(2000, kind, 50.0), 2.0**-7  # a power of two: quotients are exact
    terms = [Term(KEY, -1, 700.0), Term(OTHER, 1, 30.0)]
    found = stream.masked(values, terms, step=step, sigma=1000.0, own=OWN)
    w, f, g = (samples(key, sigma, 2000) for key, sigma in zip(OWN, (1000.0, SIGMA_MAX, SIGMA_MAX), strict=True))
    pairwise = samples(OTHER, 30.0, 2000) - samples(KEY, 700.0, 2000)
    for i in range(2000):
        exact = Fraction(float(values[i])) / Fraction(step) + int(w[i]) + Fraction(int(f[i]), 2**11)
        exact += Fraction(int(g[i]), 2**22)
        assert int(found[i]) == round(exact) + int(pairwise[i])


@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_threads_do_not_change_masked_data_and_the_input_stays(threads: int | None) -> None:
    values = data(9000, np.float32)
    before, terms = values.copy(), [Term(KEY, 1, 50.0)]
    expected = stream.masked(values.astype(np.float64), terms, step=0.1, sigma=9.0, own=OWN)
    assert np.array_equal(stream.masked(values, terms, step=0.1, sigma=9.0, own=OWN, threads=threads), expected)
    assert np.array_equal(values, before)


def test_data_may_be_a_strided_view() -> None:
    values = data(4000, np.float32)
    options: dict[str, Any] = {"step": 0.1, "sigma": 9.0, "own": OWN}
    assert np.array_equal(stream.masked(values[::-2], [], **options), stream.masked(values[::-2].copy(), [], **options))


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_data_wraps_modulo_2_to_the_32_up_to_2_to_the_50_steps(name: str, kind: type) -> None:
    expected = [2**50, -(2**50), 2**40 + 2**33, 5 * 2**31, -(2**31)]
    out, small = np.zeros((2, 5), np.int32)
    keys, scales = b"".join(OWN), np.full(3, 2.0**15, np.float32)
    assert PATHS[name](out, 0, keys, scales, (np.array(expected, kind), 1.0))
    assert PATHS[name](small, 0, keys, scales, (np.zeros(5, kind), 1.0))
    assert [(int(a) - int(b) - c) % 2**32 for a, b, c in zip(out, small, expected, strict=True)] == [0] * 5


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [2.0**51, -(2.0**52), 1e38, np.inf, -np.inf, np.nan])
def test_data_beyond_all_noise_is_refused(name: str, kind: type, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_PATH", PATHS[name])
    values = data(3000, kind)
    values[2500] = bad
    for threads in (1, 2):
        with pytest.raises(ArgumentError, match=r"finite and below 2\^50 steps of step=0.5"):
            stream.masked(values, [], step=0.5, sigma=9.0, own=OWN, threads=threads)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"values": np.zeros(3, np.int32)}, "values must be a float32 or float64 vector, got int32"),
        ({"values": np.zeros((3, 1))}, "values must be"),
        ({"values": np.zeros(3, ">f4")}, "values must be"),
        ({"values": [0.0]}, "values must be a float32 or float64 vector, got list"),
        ({"step": 0.0}, "step must be > 0"),
        ({"step": float("nan")}, "step must be finite"),
        ({"sigma": 4097.0}, "sigma must be <= 4096"),
        ({"sigma": 0.0}, "sigma must be > 0"),
        ({"own": [KEY, KEY[:31], KEY]}, "key must be 32 bytes"),
        ({"own": [KEY, KEY]}, "own must be three keys, got 2"),
        ({"terms": [(KEY, 1, 1.0)]}, "terms must hold Term, got tuple"),
        ({"threads": 0}, "threads must be >= 1"),
    ],
)
def test_wrong_arguments_of_masked_are_refused(changed: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"values": np.zeros(3), "terms": [], "step": 1.0, "sigma": 9.0, "own": OWN}
    with pytest.raises(ArgumentError, match=message):
        stream.masked(**(right | changed))


@pytest.mark.parametrize("name", stream._COMPILED)
def test_the_kernel_refuses_data_it_could_overrun(name: str) -> None:
    out, keys, scales = np.zeros(4, np.int32), b"".join(OWN), np.ones(3, np.float32)
    for values in (np.zeros(3, np.float32), np.zeros(5, np.float32), np.zeros(9, np.float32), np.zeros(3)):
        with pytest.raises(ValueError, match="values: one aligned"):
            PATHS[name](out, 0, keys, scales, (values, 1.0))
    with pytest.raises(ValueError, match="values: one aligned"):
        PATHS[name](out, 0, keys[:64], scales[:2], (np.zeros(4), 1.0))
    assert not out.any()


# ---- refusals ----


@pytest.mark.parametrize(
    ("key", "sign", "sigma", "message"),
    [
        (b"short", 1, 1.0, "key must be 32 bytes, got 5 bytes"),
        (bytearray(32), 1, 1.0, "key must be 32 bytes, got bytearray"),
        (KEY, 0, 1.0, "sign must be .1 or -1, got sign=0"),
        (KEY, 2, 1.0, "sign must be in -1..1, got sign=2"),
        (KEY, 1, 0.0, "sigma must be > 0"),
        (KEY, 1, float("nan"), "sigma must be finite"),
        (KEY, 1, 4096.1, "sigma must be <= 4096"),
    ],
)
def test_a_wrong_term_is_refused(key: bytes, sign: int, sigma: float, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Term(key, sign, sigma)


@pytest.mark.parametrize(
    "out",
    [
        np.zeros(4, np.int64),
        np.zeros((2, 2), np.int32),
        np.zeros(8, np.int32)[::2],
        np.zeros(4, np.int32).astype(">i4"),
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
        ({"terms": [Term(KEY, 1, 1.0), (KEY, 1, 1.0)]}, "terms must hold Term, got tuple"),
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


# ---- which path ----


def run(wanted: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import lightdp.stream; print(lightdp.stream.backend())"]
    return subprocess.run(
        command, env={**os.environ, "LIGHTDP_STREAM": wanted}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", PATHS)
def test_the_environment_chooses_a_path(name: str) -> None:
    assert run(name).stdout == f"{name}\n"


def test_an_unavailable_path_is_an_error() -> None:
    assert "LIGHTDP_STREAM must be one of" in run("abacus").stderr


def test_the_fastest_path_is_the_default() -> None:
    assert stream._choose(None, stream._COMPILED)[0] == next(iter(PATHS))


def test_without_the_kernel_numpy_serves() -> None:
    assert stream._choose(None, {}) == ("numpy", plain.accumulate)


def test_a_kernel_that_answers_wrongly_is_not_used() -> None:
    def wrong(out: NDArray[np.int32], *rest: Any) -> bool:
        out[-1] += 1
        return plain.accumulate(out, *rest)

    assert stream._choose(None, {"vaes": wrong}) == ("numpy (native self-test failed)", plain.accumulate)
    with pytest.raises(ArgumentError, match="LIGHTDP_STREAM must be one of numpy"):
        stream._choose("vaes", {"vaes": wrong})


@pytest.mark.parametrize("spoilt", [np.float32, np.float64])
def test_a_kernel_that_rounds_data_wrongly_is_not_used(spoilt: type) -> None:
    def wrong(out: NDArray[np.int32], *rest: Any) -> bool:
        if len(rest) > 3 and rest[3][0].dtype == spoilt:
            out[0] += 1
        return plain.accumulate(out, *rest)

    assert stream._choose(None, {"vaes": wrong})[0] == "numpy (native self-test failed)"


def test_numpy_that_answers_wrongly_makes_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "L", plain.L * 1.0001)
    with pytest.raises(LightDPError, match="known answer"):
        stream._choose(None, {})


# ---- statistics (fixed keys; each test also rejects a scale that is 2 % wrong) ----


def ks(z: NDArray[np.float64]) -> float:
    return float(stats.kstest(z, "norm").pvalue)


def moments(z: NDArray[np.float64]) -> float:
    n = len(z)
    scores = [z.mean() * np.sqrt(n), (z.var() - 1) * np.sqrt(n / 2), ((z**4).mean() - 3) * np.sqrt(n / 96)]
    return float(2 * stats.norm.sf(np.abs(scores).max()) * len(scores))


def tails(z: NDArray[np.float64]) -> float:
    edges = np.array([0, 2, 2.5, 3, 3.5, 4, np.inf])
    seen = np.concatenate([np.histogram(side, edges)[0] for side in (z[z > 0], -z[z < 0])])
    chance = np.tile(np.diff(stats.norm.cdf(edges)), 2)
    expected = chance / chance.sum() * seen.sum()
    return float(stats.chisquare(seen, expected).pvalue)


@pytest.mark.parametrize("test", [ks, moments, tails], ids=["ks", "moments", "tails"])
def test_samples_are_gaussian_and_a_two_percent_wrong_scale_is_not(test: Callable[..., float]) -> None:
    assert test(long()) > 1e-3
    assert test(long() * 1.02) < 1e-9
    assert test(long() / 1.02) < 1e-9


def test_neighbours_and_the_two_halves_of_a_pair_are_uncorrelated() -> None:
    z = long()
    for values in (z, z**2 - 1):
        spread = values.var()
        for lag in (1, 2, 3, 511, 512, 513, 1023, 1024, 2048):
            assert abs(np.mean(values[lag:] * values[:-lag])) / spread * np.sqrt(len(z)) < 4
    assert abs(np.mean((z[1:] + 0.01 * z[:-1]) * z[:-1])) * np.sqrt(len(z)) > 4


def test_keys_that_differ_in_one_bit_give_independent_samples() -> None:
    other = samples(bytes([KEY[0] ^ 1]) + KEY[1:], SIGMA, 1 << 21) / SIGMA
    for power in (1, 2):
        x, y = long() ** power, other**power
        assert abs(np.corrcoef(x, y)[0, 1]) * np.sqrt(len(x)) < 4
        assert abs(np.corrcoef(x, y + 0.01 * x)[0, 1]) * np.sqrt(len(x)) > 4


@pytest.mark.parametrize("sigma", [1.5, 100.0, SIGMA_MAX])
def test_low_bits_of_the_integers_are_unbiased(sigma: float) -> None:
    values = samples(OTHER, sigma, 1 << 22)
    for bit in (0, 1) if sigma > 2 else (0,):
        ones = values >> bit & 1
        assert abs(ones.mean() - 0.5) * 2 * np.sqrt(len(values)) < 4
        assert abs((ones | (np.arange(len(values)) % 256 == 0)).mean() - 0.5) * 2 * np.sqrt(len(values)) > 4


@pytest.mark.parametrize("sigma", [1.0, 3.0, 100.0])
def test_the_variance_is_sigma_squared_plus_a_twelfth(sigma: float) -> None:
    values = samples(OTHER, sigma, 1 << 22).astype(float)
    expected = sigma**2 + 1 / 12
    assert abs(values.var() / expected - 1) * np.sqrt(len(values) / 2) < 4
    assert abs(values.mean() - 2**-16) / np.sqrt(expected) * np.sqrt(len(values)) < 4
    if sigma <= 3:
        assert abs(values.var() / sigma**2 - 1) * np.sqrt(len(values) / 2) > 4


@pytest.mark.parametrize(("said", "expected"), [("1", 1), ("0", 2), ("", 2), ("many", 2), ("64", 2)])
def test_all_cores_are_those_of_the_process_or_fewer_if_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, said: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert stream._cores() == expected
