"""(W1): the rotation against its matrix, in exact arithmetic, and how far coordinates spread."""

from __future__ import annotations

import hashlib
import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.linalg import hadamard

from lightdp._native import kernel
from lightdp.errors import ArgumentError
from lightdp.wire import Rotation
from lightdp.wire.rotation import _rotate

FEW = [(1, 1), (2, 1), (2, 2), (3, 2), (7, 4), (8, 8), (9, 8), (21, 4), (31, 4), (100, 64)]  # lengths and blocks
SHAPES = [*FEW, (8, 1), (32, 4), (19, 2), (257, 16)]  # and some with eight lanes
WAYS: tuple[str, ...] = () if kernel is None else kernel.ROTATIONS


def matrix(length: int, block: int, seed: bytes) -> np.ndarray:
    """The map as the docstring of `Rotation` says it, with one bit of SHAKE-256 for each sign."""
    stream = hashlib.shake_256(b"lightdp rotation" + seed).digest(length + block)
    signs = (1 - 2 * ((byte >> (7 - k)) & 1) for byte in stream for k in range(8))
    result, lanes = np.eye(length), 8 if 8 * block <= length else 1
    size = lanes * block
    starts = [*range(0, length - size + 1, size)] + ([length - size] if length % size else [])
    for start in starts:
        turn = np.eye(length)
        part = slice(start, start + size)
        column = hadamard(block) / math.sqrt(block) @ np.diag(list(itertools.islice(signs, block)))
        turn[part, part] = np.kron(column, np.eye(lanes))
        result = turn @ result
    return result


@pytest.mark.parametrize(("length", "block"), SHAPES)
def test_the_rotation_is_its_matrix_and_orthonormal(length: int, block: int) -> None:
    rotation, seed = Rotation(length, block, b"a seed"), b"a seed"
    made = np.array([rotation.apply(row) for row in np.eye(length)]).T
    assert np.allclose(made, matrix(length, block, seed), atol=1e-14)
    assert np.allclose(made.T @ made, np.eye(length), atol=1e-14)


@pytest.mark.parametrize(("length", "block"), [*SHAPES, (100_000, 65536), (100_000, 256), (100_000, 4096)])
def test_inverting_gives_the_vector_back(length: int, block: int) -> None:
    vector, rotation = np.random.default_rng(3).standard_normal(length), Rotation(length, block, b"x")
    turned = rotation.apply(vector)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector), rel=1e-12)
    rotation.invert(turned)
    assert np.abs(turned - vector).max() <= 2 * rotation.error(block) * np.linalg.norm(vector)


def test_the_map_is_linear_so_sums_can_be_turned_back() -> None:
    rng, rotation = np.random.default_rng(4), Rotation(1000, 512, b"x")
    vectors = rng.standard_normal((20, 1000))
    total = np.sum([rotation.apply(each) for each in vectors], axis=0)
    rotation.invert(total)
    assert total == pytest.approx(vectors.sum(axis=0), abs=1e-11)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block", [2**k for k in range(15)])
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("kind", [np.float32, np.float64, "back"])
def test_kernel_and_numpy_give_the_same_bits(way: str, block: int, lanes: int, kind: Any) -> None:
    rng, part = np.random.default_rng(block), lanes * block
    values = rng.standard_normal(2 * part) * np.exp(rng.uniform(-20, 20, 2 * part))
    values[0] = 1e12
    signs = rng.choice(np.array([-1, 1], np.int8), 2 * block)
    back = kind == "back"
    found = []
    for rotate in (partial(kernel.rotate, way), _rotate):
        out = values.copy() if back else np.full(2 * part, np.nan)
        assert rotate(out, out if back else values.astype(kind), signs, part, 1 / math.sqrt(block), 1e5, 1.0, back)
        found.append(out)
    assert np.array_equal(found[0], found[1])
    assert (np.abs(found[0]).max() == 1) != back  # clamped


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("lanes", "part"), [(1, 4), (1, 4096), (8, 8), (8, 2048), (8, 4096)])
def test_the_kernel_says_what_is_not_finite(way: str, kind: Any, lanes: int, part: int) -> None:
    signs, rest = np.ones(2 * part // lanes, np.int8), (part, 1e-9, 1.0, 1.0, False)
    for place in {0, 3, part - 1, part + 1, 2 * part - 1}:
        for bad in (np.nan, np.inf, -np.inf):
            values = np.full(2 * part, np.finfo(kind).max, kind)
            assert kernel.rotate(way, np.empty(2 * part), values, signs, *rest)
            values[place] = bad
            assert not kernel.rotate(way, np.empty(2 * part), values, signs, *rest)


@pytest.mark.skipif(kernel is None, reason="no compiled kernel here")
@pytest.mark.parametrize(
    ("out", "values", "signs", "part"),
    [
        (8, 8, 7, 1), (8, 8, 8, 3), (8, 8, 8, 0), (8, 8, 8, 16), (12, 12, 12, 8), (8, 8, 2, 8), (16, 9, 2, 8),
        (8, 24, 1, 8), (8, 8, 0, 8), (0, 0, 0, 1), (64, 64, 8, 4), (8, 8, 8, 2**61), (8, 8, 1, 2**63),
    ],
)  # fmt: skip
def test_the_kernel_refuses_what_it_would_read_beyond(out: int, values: int, signs: int, part: int) -> None:
    for kind in (np.float32, np.float64):
        with pytest.raises(ValueError, match="aligned float64 in whole parts"):
            kernel.rotate(
                "plain", np.zeros(out), np.zeros(values, kind), np.ones(signs, np.int8), part, 1.0, 1.0, 1.0, False
            )


@pytest.mark.skipif(kernel is None, reason="no compiled kernel here")
def test_the_kernel_turns_back_in_place_and_only_in_ways_that_it_has() -> None:
    with pytest.raises(ValueError, match="or out itself, as back needs"):
        kernel.rotate("plain", np.zeros(8), np.zeros(8), np.ones(8, np.int8), 8, 1.0, 1.0, 1.0, True)
    with pytest.raises(ValueError, match="this machine has no way abacus"):
        kernel.rotate("abacus", np.zeros(8), np.zeros(8), np.ones(8, np.int8), 8, 1.0, 1.0, 1.0, False)


@pytest.mark.parametrize(("block", "length"), [(64, 96), (64, 700), (4096, 40_000), (2**15, 50_000)])
def test_floating_point_errs_less_than_is_said(block: int, length: int) -> None:
    """Against 64-bit mantissas, on vectors of all sizes; the bound is not so wide that it would hide a wrong level."""
    rng = np.random.default_rng(6)
    rotation = Rotation(length, block, b"x")
    for spread in (0, 3, 12):
        vector = rng.standard_normal(length) * np.exp(spread * rng.standard_normal(length))
        exact = _exactly(rotation, vector.astype(np.longdouble))
        error = np.linalg.norm((rotation.apply(vector) - exact).astype(np.float64))
        assert error <= rotation.error(block) * np.linalg.norm(vector)
    assert rotation.error(block) < 1e-14


def _exactly(rotation: Rotation, vector: np.ndarray) -> np.ndarray:
    size, scale = rotation.block * rotation.lanes, 1 / np.sqrt(np.longdouble(rotation.block))
    whole = rotation.length - rotation.length % size
    rows = whole // rotation.lanes
    for part, signs in ((vector[:whole], rotation._signs[:rows]), (vector[-size:], rotation._signs[rows:])):
        _rotate(part, part, signs, size, scale, math.inf, math.inf, False)
    return vector


@pytest.mark.parametrize(("length", "block"), SHAPES)
def test_coordinates_are_clamped_before_and_after(length: int, block: int) -> None:
    """By projections: what is within both bounds stays, and no two vectors move apart."""
    rng, rotation = np.random.default_rng(5), Rotation(length, block, b"x")
    small = rng.uniform(-1, 1, length) / length
    assert np.array_equal(rotation.apply(small, most=1, bound=1), rotation.apply(small))
    spike = np.zeros(length)
    spike[-1] = 1e300
    assert np.linalg.norm(rotation.apply(spike, most=3.0)) == pytest.approx(3.0)
    for scale in (0.1, 1.0, 10.0):
        one, two = scale * rng.standard_normal((2, length))
        turned = [rotation.apply(each, most=1.0, bound=0.5) for each in (one, two)]
        assert np.abs(turned).max() <= 0.5
        assert np.linalg.norm(turned[0] - turned[1]) <= np.linalg.norm(one - two) * (1 + 1e-14)


@pytest.mark.parametrize("length", [5, 40, 20_000])
@pytest.mark.parametrize("where", [0, -1])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(length: int, where: int, bad: float) -> None:
    for kind in (np.float32, np.float64):
        vector: Any = np.zeros(length, kind)
        vector[where] = bad
        with pytest.raises(ArgumentError, match="vector must be finite, got NaN or infinity"):
            Rotation(length, 4, b"x").apply(vector, most=1.0, bound=1.0)


def test_wrong_vectors_are_refused() -> None:
    rotation = Rotation(8, 4, b"x")
    wrong: Any
    for wrong in (
        np.zeros(8, int),
        np.zeros(8, np.float16),
        np.zeros(8, np.dtype("f4").newbyteorder()),
        np.zeros(8, complex),
    ):
        with pytest.raises(ArgumentError, match=f"vector must be float32 or float64, got {wrong.dtype}"):
            rotation.apply(wrong)
    for call in (rotation.apply, rotation.invert):
        with pytest.raises(ArgumentError, match=r"vector must have 8 values, got shape \(2, 4\)"):
            call(np.zeros((2, 4)))


def test_any_layout_is_rotated_and_none_is_changed() -> None:
    rotation, vector = Rotation(100, 8, b"x"), np.random.default_rng(1).standard_normal(100).astype(np.float32)
    wanted = rotation.apply(vector.astype(np.float64))
    unaligned = np.frombuffer(b"x" + vector.tobytes(), np.uint8)[1:].view(np.float32)
    for layout in (vector, np.repeat(vector, 2)[::2], vector[::-1].copy()[::-1], unaligned):
        layout.flags.writeable = False
        assert np.array_equal(rotation.apply(layout), wanted)
        assert np.array_equal(layout, vector)


@pytest.mark.parametrize("where", ["first", "last", "all", "tail"])
def test_coordinates_exceed_t_deviations_as_rarely_as_hoeffding_says(where: str) -> None:
    """Vectors that are all in one coordinate, and constant ones, which a transform without signs makes a spike."""
    length, block = 1500, 1024
    vector = np.zeros(length)
    vector[{"first": slice(0, 1), "last": slice(-1, None), "all": slice(None), "tail": slice(-100, None)}[where]] = 1.0
    vector /= np.linalg.norm(vector)
    turned = np.abs([Rotation(length, block, bytes([k])).apply(vector) for k in range(100)]) * math.sqrt(block)
    for t in (2.0, 3.0, 4.0):
        assert (turned > t).mean() <= 2 * math.exp(-(t**2) / 2)
    assert turned.max() < 6
    assert np.linalg.norm(turned, axis=1) == pytest.approx(math.sqrt(block), rel=1e-12)


def test_runs_have_their_own_signs() -> None:
    vector = np.ones(64)
    turned = {Rotation(64, 64, bytes([k]) * 16).apply(vector).tobytes() for k in range(20)}
    assert len(turned) == 20
    first, second = (Rotation(64, 64, b"x").apply(vector) for _ in range(2))
    assert np.array_equal(first, second)


def test_known_answer() -> None:
    turned = Rotation(6, 4, bytes(range(16))).apply(np.arange(1.0, 7.0))
    assert turned == pytest.approx(matrix(6, 4, bytes(range(16))) @ np.arange(1.0, 7.0), abs=1e-14)
    assert (4 * turned).tolist() == [-20.0, 4.0, 2.0, 26.0, 6.0, -18.0]


@pytest.mark.parametrize(("length", "block"), [(4, 8), (8, 6), (8, 0), (0, 1), (8, -8)])
def test_wrong_lengths_are_refused(length: int, block: int) -> None:
    with pytest.raises(ArgumentError, match=r"length must be|block must be"):
        Rotation(length, block, b"x")
