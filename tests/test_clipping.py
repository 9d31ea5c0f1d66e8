"""The guarantee of clipping, checked with exact fractions."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lightdp.clipping import clamp, clip_norm, within_norm
from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Array = NDArray[np.floating[Any]]


def square(values: Iterable[Array]) -> Fraction:
    """The squared norm as a rational number, without any rounding."""
    return sum((Fraction(float(v)) ** 2 for array in values for v in array.flat), Fraction(0))


def floats(dtype: str, shape: Any = None) -> st.SearchStrategy[Array]:
    width: Literal[32, 64] = 32 if dtype == "f4" else 64
    elements = st.floats(allow_nan=False, allow_infinity=False, width=width)
    near_one = st.floats(-2, 2, width=width)
    shape = arrays.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=6) if shape is None else shape
    return st.one_of(arrays.arrays(dtype, shape, elements=near_one), arrays.arrays(dtype, shape, elements=elements))


LISTS = st.lists(st.one_of(floats("f4"), floats("f8")), max_size=4)
BOUNDS = st.one_of(st.floats(0.001, 8), st.floats(5e-324, 1e308))


# --- norms ---


@given(values=LISTS, clip=BOUNDS)
def test_norm_is_never_above_the_clip_in_exact_arithmetic(values: list[Array], clip: float) -> None:
    factor = clip_norm(values, clip)
    assert square(values) <= Fraction(clip) ** 2
    assert 0 <= factor <= 1


@given(vector=floats("f4", st.integers(1, 300)), ulps=st.integers(-3, 3))
def test_norm_is_not_above_a_clip_that_it_nearly_equals(vector: Array, ulps: int) -> None:
    clip = float(np.linalg.norm(vector.astype("f8")))
    for _ in range(abs(ulps)):
        clip = math.nextafter(clip, math.copysign(math.inf, ulps))
    if clip > 0:
        clip_norm(vector, clip)
        assert square([vector]) <= Fraction(clip) ** 2


@pytest.mark.parametrize(("dtype", "loss"), [("f4", 2.0**-20), ("f8", 2.0**-36)])
@given(data=st.data(), clip=st.floats(1e-3, 1e3))
def test_norm_is_hardly_smaller_than_it_may_be(dtype: str, loss: float, data: st.DataObject, clip: float) -> None:
    vector = data.draw(arrays.arrays(dtype, 20, elements=st.floats(-1e4, 1e4, width=16)))
    allowed = min(square([vector]), Fraction(clip) ** 2)
    clip_norm(vector, clip)
    assert square([vector]) >= allowed * (1 - Fraction(loss)) ** 2


@given(values=LISTS, clip=BOUNDS)
def test_factor_is_what_the_values_were_multiplied_by(values: list[Array], clip: float) -> None:
    before = [array.copy() for array in values]
    factor = clip_norm(values, clip)
    for old, new in zip(before, values, strict=True):
        product = np.asarray(old.astype("f8") * factor).astype(old.dtype)
        assert np.array_equal(new, old if factor == 1 else product)


@given(values=LISTS, clip=BOUNDS)
def test_out_gets_what_in_place_would_give_and_the_input_stays(values: list[Array], clip: float) -> None:
    before = [array.copy() for array in values]
    out = [np.full_like(array, 7) for array in values]
    factor = clip_norm(values, clip, out=out)
    assert all(map(np.array_equal, values, before))
    assert clip_norm(values, clip) == factor
    assert all(map(np.array_equal, values, out))


@given(vector=st.one_of(floats("f4"), floats("f8")), clip=BOUNDS)
def test_vector_within_the_norm_is_itself_or_a_copy_as_clipping_makes_it(vector: Array, clip: float) -> None:
    before, expected = vector.copy(), vector.copy()
    factor = clip_norm(expected, clip)
    found = within_norm(vector, clip)
    assert (found is vector) == (factor == 1)
    assert np.array_equal(found, expected)
    assert (found.dtype, found.shape) == (vector.dtype, vector.shape)
    assert np.array_equal(vector, before)


def test_vector_inside_the_ball_is_left_alone() -> None:
    vector = np.array([3, 4], "f4")
    assert clip_norm(vector, 5.001) == 1.0
    assert vector.tolist() == [3, 4]


def test_vector_outside_the_ball_keeps_its_direction() -> None:
    vector = np.array([30, 40], "f4")
    assert clip_norm(vector, 5.0) == pytest.approx(0.1, rel=1e-6)
    assert vector == pytest.approx([3, 4], rel=1e-6)


def test_arrays_without_dimensions_count_and_are_scaled() -> None:
    scalar, vector = np.array(30, "f4"), np.array([40.0])
    clip_norm([scalar, vector], 5.0)
    assert float(scalar) == pytest.approx(3, rel=1e-6)
    assert float(vector[0]) == pytest.approx(4, rel=1e-6)


def test_list_is_clipped_as_one_vector() -> None:
    whole = np.linspace(-1, 1, 50, dtype="f4")
    parts = [whole[:7].copy(), whole[7:7].copy(), whole[7:].reshape(-1, 1).copy()]
    assert clip_norm(parts, 0.5) == pytest.approx(clip_norm(whole, 0.5), rel=2.0**-36)
    assert np.concatenate([part.ravel() for part in parts]) == pytest.approx(whole, rel=2.0**-22)


def test_long_vector_with_all_errors_on_one_side_stays_inside() -> None:
    vector = np.full(300_000, 1 + 2.0**-23, "f4")  # every square rounds to the same side
    clip_norm(vector, 1.0)
    value = Fraction(float(vector[0]))
    assert np.ptp(vector) == 0
    assert value**2 * vector.size <= 1


def test_subnormal_results_that_all_round_up_stay_inside() -> None:
    least = 2.0**-149
    vector = np.ones(10_000, "f4")
    clip_norm(vector, 51 * least)  # exactly scaled, each value is 0.51 of the least float and rounds to all of it
    assert square([vector]) <= Fraction(51 * least) ** 2


@pytest.mark.parametrize("view", [np.s_[::2], np.s_[::-1], np.s_[:, 1:3]])
def test_strided_view_is_clipped_and_its_surroundings_are_not(view: Any) -> None:
    base = np.arange(1.0, 41.0).reshape(8, 5)
    before, inside = base.copy(), np.zeros(base.shape, bool)
    inside[view] = True
    clip_norm(base[view], 1.0)
    assert square([base[view]]) <= 1
    assert np.array_equal(base[~inside], before[~inside])


@pytest.mark.parametrize("zeros", [[], [np.zeros(0, "f4")], [np.zeros((2, 3))]])
def test_nothing_and_zero_are_inside_every_ball(zeros: list[Array]) -> None:
    assert clip_norm(zeros, 5e-324) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_value_that_is_not_finite_is_refused_and_nothing_changes(bad: float, dtype: str) -> None:
    good, spoilt = np.full(3, 9, dtype), np.array([1, bad, 9], dtype)
    with pytest.raises(ArgumentError, match="finite, got NaN or infinity in array 1"):
        clip_norm([good, spoilt], 1.0)
    with pytest.raises(ArgumentError, match="finite"):
        clamp(spoilt, 1.0)
    assert good.tolist() == [9, 9, 9]
    assert spoilt[2] == 9


@pytest.mark.parametrize("clip", [0, -1, math.nan, math.inf, "1", None])
def test_bound_that_is_not_a_positive_number_is_refused(clip: Any) -> None:
    with pytest.raises(ArgumentError, match="clip"):
        clip_norm(np.ones(2), clip)
    with pytest.raises(ArgumentError, match="bound"):
        clamp(np.ones(2), clip)


@pytest.mark.parametrize("wrong", [np.ones(2, int), np.ones(2, "f2"), [1.0, 2.0], [np.float64(1)]], ids=str)
def test_anything_but_arrays_of_floats_is_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="float32 or float64"):
        clip_norm(wrong, 1.0)


def test_out_of_another_shape_or_type_is_refused() -> None:
    for out in (np.ones(3), np.ones(2, "f4"), [np.ones(2), np.ones(2)]):
        with pytest.raises(ArgumentError, match="out"):
            clip_norm(np.ones(2), 1.0, out=out)


def test_arrays_that_overlap_are_refused() -> None:
    base = np.ones(10)
    with pytest.raises(ArgumentError, match="overlap"):
        clip_norm([base[:6], base[4:]], 1.0)
    with pytest.raises(ArgumentError, match="overlap"):
        clip_norm([base[:5], base[5:]], 1.0, out=[base[5:], base[:5]])
    assert base.tolist() == [1] * 10


def test_read_only_array_is_refused() -> None:
    vector = np.ones(4)
    vector.flags.writeable = False
    with pytest.raises(ArgumentError, match="writeable"):
        clip_norm(vector, 1.0)
    with pytest.raises(ArgumentError, match="writeable"):
        clamp(vector, 1.0)
    assert clip_norm(vector, 1.0, out=np.empty(4)) < 1


def test_vector_that_is_not_finite_is_within_no_norm() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ArgumentError, match="finite"):
            within_norm(np.array([1.0, bad]), 5.0)


def test_float32_is_not_copied_whole() -> None:
    vector = np.ones(1_000_000, "f4")
    tracemalloc.start()
    clip_norm(vector, 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < vector.nbytes / 4


# --- coordinates ---


@given(vector=st.one_of(floats("f4"), floats("f8")), bound=st.floats(5e-324, 1.7e308))
def test_no_coordinate_is_above_the_bound_and_the_others_stay(vector: Array, bound: float) -> None:
    before = vector.copy()
    clamp(vector, bound)
    for old, new in zip(before.flat, vector.flat, strict=True):
        assert abs(Fraction(float(new))) <= Fraction(bound)
        if abs(float(old)) <= bound:
            assert new == old
        else:
            assert abs(float(new)) >= bound * (1 - 2.0**-22) - 1e-44
            assert math.copysign(1, new) == math.copysign(1, old)


@given(
    pair=st.integers(1, 6).flatmap(lambda d: st.tuples(*[arrays.arrays("f8", d, elements=st.floats(-9, 9))] * 2)),
    bound=st.floats(0.1, 9),
)
def test_clamping_never_moves_two_vectors_apart(pair: tuple[Array, Array], bound: float) -> None:
    before = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(*map(np.ndarray.tolist, pair), strict=True))
    for vector in pair:
        clamp(vector, bound)
    after = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(*map(np.ndarray.tolist, pair), strict=True))
    assert after <= before
