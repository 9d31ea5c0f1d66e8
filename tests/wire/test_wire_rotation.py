"""(W1): the rotation against its matrix, in exact arithmetic, and how far coordinates spread."""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest
from scipy.linalg import hadamard

from lightdp._native import kernel
from lightdp.errors import ArgumentError
from lightdp.wire import Rotation
from lightdp.wire.rotation import _rotate


def turned_by(rotation: Rotation, vector: np.ndarray) -> np.ndarray:
    result = np.array(vector, np.float64)
    rotation.apply(result)
    return result


SHAPES = [(1, 1), (2, 1), (2, 2), (3, 2), (7, 4), (8, 8), (9, 8), (21, 4), (100, 64), (257, 16)]


def matrix(length: int, block: int, seed: bytes) -> np.ndarray:
    """The map as the docstring of `Rotation` says it, with one bit of SHAKE-256 for each sign."""
    stream = hashlib.shake_256(b"lightdp rotation" + seed).digest(length + block)
    signs = (1 - 2 * ((byte >> (7 - k)) & 1) for byte in stream for k in range(8))
    result = np.eye(length)
    starts = [*range(0, length - block + 1, block)] + ([length - block] if length % block else [])
    for start in starts:
        turn = np.eye(length)
        part = slice(start, start + block)
        turn[part, part] = hadamard(block) / math.sqrt(block) @ np.diag(list(itertools.islice(signs, block)))
        result = turn @ result
    return result


@pytest.mark.parametrize(("length", "block"), SHAPES)
def test_the_rotation_is_its_matrix_and_orthonormal(length: int, block: int) -> None:
    rotation, seed = Rotation(length, block, b"a seed"), b"a seed"
    made = np.array([turned_by(rotation, row) for row in np.eye(length)]).T
    assert np.allclose(made, matrix(length, block, seed), atol=1e-14)
    assert np.allclose(made.T @ made, np.eye(length), atol=1e-14)


@pytest.mark.parametrize(("length", "block"), [*SHAPES, (100_000, 65536), (100_000, 256)])
def test_inverting_gives_the_vector_back(length: int, block: int) -> None:
    vector, rotation = np.random.default_rng(3).standard_normal(length), Rotation(length, block, b"x")
    turned = turned_by(rotation, vector)
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector), rel=1e-12)
    rotation.invert(turned)
    assert np.abs(turned - vector).max() <= 2 * rotation.error(block) * np.linalg.norm(vector)


def test_the_map_is_linear_so_sums_can_be_turned_back() -> None:
    rng, rotation = np.random.default_rng(4), Rotation(1000, 512, b"x")
    vectors = rng.standard_normal((20, 1000))
    total = np.sum([turned_by(rotation, each) for each in vectors], axis=0)
    rotation.invert(total)
    assert total == pytest.approx(vectors.sum(axis=0), abs=1e-11)


@pytest.mark.skipif(kernel is None, reason="no compiled kernel here")
@pytest.mark.parametrize("block", [2**k for k in range(16)])
@pytest.mark.parametrize("back", [False, True])
def test_kernel_and_numpy_give_the_same_bits(block: int, back: bool) -> None:
    rng = np.random.default_rng(block)
    values = rng.standard_normal(3 * block) * np.exp(rng.uniform(-20, 20, 3 * block))
    signs = rng.choice(np.array([-1, 1], np.int8), 3 * block)
    ours, plain = values.copy(), values.copy()
    kernel.rotate(ours, signs, block, 1 / math.sqrt(block), back)
    _rotate(plain, signs, block, 1 / math.sqrt(block), back)
    assert np.array_equal(ours, plain)


@pytest.mark.skipif(kernel is None, reason="no compiled kernel here")
@pytest.mark.parametrize(
    ("values", "signs", "block"),
    [(8, 7, 1), (8, 8, 3), (8, 8, 0), (8, 8, 16), (12, 12, 8)],
)
def test_the_kernel_refuses_what_it_would_read_beyond(values: int, signs: int, block: int) -> None:
    with pytest.raises(ValueError, match="aligned float64 in whole blocks"):
        kernel.rotate(np.zeros(values), np.ones(signs, np.int8), block, 1.0, False)


@pytest.mark.parametrize("block", [64, 4096, 2**15])
def test_floating_point_errs_less_than_is_said(block: int) -> None:
    """Against 64-bit mantissas, on vectors of all sizes; the bound is not so wide that it would hide a wrong level."""
    rng, length = np.random.default_rng(6), block + block // 2
    rotation = Rotation(length, block, b"x")
    for spread in (0, 3, 12):
        vector = rng.standard_normal(length) * np.exp(spread * rng.standard_normal(length))
        exact = vector.astype(np.longdouble)
        for part, signs in rotation._parts(exact):  # type: ignore[arg-type]
            _rotate(part, signs, block, 1 / np.sqrt(np.longdouble(block)), False)
        error = np.linalg.norm((turned_by(rotation, vector) - exact).astype(np.float64))
        assert error <= rotation.error(block) * np.linalg.norm(vector)
    assert rotation.error(block) < 1e-14


@pytest.mark.parametrize("where", ["first", "last", "all", "tail"])
def test_coordinates_exceed_t_deviations_as_rarely_as_hoeffding_says(where: str) -> None:
    """Vectors that are all in one coordinate, and constant ones, which a transform without signs makes a spike."""
    length, block = 1500, 1024
    vector = np.zeros(length)
    vector[{"first": slice(0, 1), "last": slice(-1, None), "all": slice(None), "tail": slice(-100, None)}[where]] = 1.0
    vector /= np.linalg.norm(vector)
    turned = np.abs([turned_by(Rotation(length, block, bytes([k])), vector) for k in range(100)]) * math.sqrt(block)
    for t in (2.0, 3.0, 4.0):
        assert (turned > t).mean() <= 2 * math.exp(-(t**2) / 2)
    assert turned.max() < 6
    assert np.linalg.norm(turned, axis=1) == pytest.approx(math.sqrt(block), rel=1e-12)


def test_runs_have_their_own_signs() -> None:
    vector = np.ones(64)
    turned = {turned_by(Rotation(64, 64, bytes([k]) * 16), vector).tobytes() for k in range(20)}
    assert len(turned) == 20
    first, second = (turned_by(Rotation(64, 64, b"x"), vector) for _ in range(2))
    assert np.array_equal(first, second)


def test_known_answer() -> None:
    turned = turned_by(Rotation(6, 4, bytes(range(16))), np.arange(1.0, 7.0))
    assert turned == pytest.approx(matrix(6, 4, bytes(range(16))) @ np.arange(1.0, 7.0), abs=1e-14)
    assert (4 * turned).tolist() == [-20.0, 4.0, 2.0, 26.0, 6.0, -18.0]


@pytest.mark.parametrize(("length", "block"), [(4, 8), (8, 6), (8, 0), (0, 1), (8, -8)])
def test_wrong_lengths_are_refused(length: int, block: int) -> None:
    with pytest.raises(ArgumentError, match=r"length must be|block must be"):
        Rotation(length, block, b"x")
