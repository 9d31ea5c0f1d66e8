"""Data with noise of its own and pairwise noise, rounded once."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightdp import stream
from lightdp.errors import ArgumentError
from lightdp.stream import SIGMA_MAX, Term, _backends
from support.streams import COMPILED, KEY, OTHER, PATHS, TERMS, samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

OWN = [bytes([7 * k]) * 32 for k in range(1, 4)]


def data(count: int, kind: type, scale: float = 1.0) -> NDArray[Any]:
    return (samples(bytes(32), 1000.0, count) * (scale / 777)).astype(kind)


@pytest.mark.parametrize("name", COMPILED)
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
def test_compiled_paths_mask_data_as_numpy_does(
    name: str, values: NDArray[Any], terms: list[Term], step: float, sigma: float
) -> None:
    found = []
    for path in (PATHS[name], PATHS["numpy"]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_backends, "IN_USE", path)
            found.append(stream.masked(values, terms, step=step, sigma=sigma, own=OWN))
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("name", PATHS)
def test_a_call_that_begins_inside_a_tile_masks_data_as_the_whole_does(name: str) -> None:
    values, keys = data(3000, np.float32), b"".join([*OWN, KEY])
    scales = np.array([1000.0, SIGMA_MAX, SIGMA_MAX, -500.0], np.float32)
    whole, cut = np.zeros((2, 3000), np.int32)
    assert PATHS[name].accumulate(whole, 100, keys, scales, (values, 0.01))
    for low, high in ((0, 700), (700, 701), (701, 3000)):
        assert PATHS[name].accumulate(cut[low:high], 100 + low, keys, scales, (values[low:high], 0.01))
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
    assert PATHS[name].accumulate(out, 0, keys, scales, (np.array(expected, kind), 1.0))
    assert PATHS[name].accumulate(small, 0, keys, scales, (np.zeros(5, kind), 1.0))
    assert [(int(a) - int(b) - c) % 2**32 for a, b, c in zip(out, small, expected, strict=True)] == [0] * 5


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [2.0**51, -(2.0**52), 1e38, np.inf, -np.inf, np.nan])
def test_data_beyond_all_noise_is_refused(name: str, kind: type, bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_backends, "IN_USE", PATHS[name])
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
        ({"values": np.zeros(3, np.dtype("f4").newbyteorder())}, "values must be"),
        ({"values": [0.0]}, "values must be a float32 or float64 vector, got list"),
        ({"step": 0.0}, "step must be > 0"),
        ({"step": float("nan")}, "step must be finite"),
        ({"sigma": 4097.0}, "sigma must be <= 4096"),
        ({"sigma": 0.0}, "sigma must be > 0"),
        ({"own": [KEY, KEY[:31], KEY]}, "key must be 32 bytes"),
        ({"own": [KEY, KEY]}, "own must be three keys, got 2"),
        ({"terms": [(KEY, 1, 1.0)]}, "terms must hold Term or Draw, got tuple"),
        ({"threads": 0}, "threads must be >= 1"),
    ],
)
def test_wrong_arguments_of_masked_are_refused(changed: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"values": np.zeros(3), "terms": [], "step": 1.0, "sigma": 9.0, "own": OWN}
    with pytest.raises(ArgumentError, match=message):
        stream.masked(**(right | changed))


@pytest.mark.parametrize("name", COMPILED)
def test_the_kernel_refuses_data_it_could_overrun(name: str) -> None:
    out, keys, scales = np.zeros(4, np.int32), b"".join(OWN), np.ones(3, np.float32)
    for values in (np.zeros(3, np.float32), np.zeros(5, np.float32), np.zeros(9, np.float32), np.zeros(3)):
        with pytest.raises(ValueError, match="values: one aligned"):
            PATHS[name].accumulate(out, 0, keys, scales, (values, 1.0))
    with pytest.raises(ValueError, match="values: one aligned"):
        PATHS[name].accumulate(out, 0, keys[:64], scales[:2], (np.zeros(4), 1.0))
    assert not out.any()
