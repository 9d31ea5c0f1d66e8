from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from lightdp.errors import ArgumentError, WireError
from lightdp.wire import encode
from lightdp_lab.schemes._coded import Code
from lightdp_lab.schemes._field import Field

BITS = (8, 13, 16, 17, 24, 31, 32)
KEY = bytes(range(32))


def drawn(field: Field, shape: tuple[int, ...], seed: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    return np.random.default_rng(seed).integers(field.p, size=shape).astype(np.uint32)


def interpolated(field: Field, xs: list[int], ys: list[int], at: int) -> int:
    """By Newton's divided differences on Python's integers: another road than the code's."""
    p, table = field.p, list(ys)
    for k in range(1, len(xs)):
        for i in range(len(xs) - 1, k - 1, -1):
            table[i] = (table[i] - table[i - 1]) * pow(xs[i] - xs[i - k], -1, p) % p
    value = 0
    for x, c in zip(reversed(xs), reversed(table), strict=True):
        value = (value * (at - x) + c) % p
    return value


def determinant(rows: list[list[int]], p: int) -> int:
    """Modulo p, by Laplace."""
    if not rows:
        return 1
    return (
        sum(
            (-1) ** k * rows[0][k] * determinant([[*row[:k], *row[k + 1 :]] for row in rows[1:]], p)
            for k in range(len(rows))
        )
        % p
    )


@pytest.mark.parametrize("bits", BITS)
def test_the_modulus_is_the_largest_prime_of_its_bits(bits: int) -> None:
    def prime(n: int) -> bool:
        return all(n % k for k in range(2, math.isqrt(n) + 1))

    p = Field(bits).p
    assert prime(p)
    assert not any(prime(n) for n in range(p + 1, 1 << bits))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("terms", [1, 7, 300])
def test_products_are_exact_also_at_the_largest_elements(bits: int, terms: int) -> None:
    field = Field(bits)
    left, right = drawn(field, (5, terms)), drawn(field, (terms, 4099), 1)
    left[0], right[:, -1] = field.p - 1, field.p - 1
    columns = [0, 17, 4095, 4096, 4098]
    expected = left.astype(object) @ right[:, columns].astype(object) % field.p
    assert (field.matmul(left, right)[:, columns] == expected).all()


def test_a_product_too_long_to_be_exact_is_refused() -> None:
    field = Field(31)
    with pytest.raises(ArgumentError, match="fewer columns"):
        field.matmul(np.ones((1, 1 << 21), np.uint32), np.ones((1 << 21, 1), np.uint32))


@pytest.mark.parametrize("multiple", [0, 1, 2, 12345])
@pytest.mark.parametrize("bits", BITS)
def test_reduction_is_right_around_multiples_of_the_modulus(bits: int, multiple: int) -> None:
    field = Field(bits)
    near = [multiple * field.p + k for k in (-1, 0, 1)] + [2**52 // field.p * field.p + k for k in (-1, 0)]
    values = [v for v in near if v >= 0]
    assert field._reduced(np.array(values, np.float64)).tolist() == [v % field.p for v in values]


@pytest.mark.parametrize("bits", [8, 17])
def test_elements_from_a_key_are_uniform_and_a_bias_would_show(bits: int) -> None:
    field, cells = Field(bits), 251 if bits == 8 else 500
    elements = field.uniform(400_000, KEY)
    assert elements.max() < field.p
    counts, edges = np.histogram(elements, bins=np.linspace(0, field.p, cells + 1))
    expected = np.diff(np.ceil(edges)) * len(elements) / field.p
    assert stats.chisquare(counts, expected).pvalue > 1e-4
    biased = np.where(elements == 0, 1, elements) if bits == 8 else elements * 0.97
    counts, _ = np.histogram(biased, bins=edges)
    assert stats.chisquare(counts, expected).pvalue < 1e-9


def test_a_key_gives_one_sequence_and_entropy_another_each_time() -> None:
    field = Field(13)
    assert np.array_equal(field.uniform(200_000, KEY)[:70_000], field.uniform(70_000, KEY))
    assert not np.array_equal(field.uniform(100), field.uniform(100))
    assert field.uniform(0).size == 0


@pytest.mark.parametrize("bits", BITS)
def test_sums_differences_and_signs_are_those_of_the_integers(bits: int) -> None:
    field = Field(bits)
    a, b = drawn(field, (500,)), drawn(field, (500,), 1)
    a[:3], b[:3] = [0, field.p - 1, field.p - 1], [0, field.p - 1, 0]
    assert (field.add(a, b) == (a.astype(object) + b) % field.p).all()
    assert (field.subtract(a, b) == (a.astype(object) - b) % field.p).all()
    signed = np.array([-field.p // 2 + 1, -1, 0, 1, field.p // 2])
    assert (field.centred(field.of(signed)) == signed).all()


@pytest.mark.parametrize("bits", BITS)
def test_packed_elements_come_back_and_add_up(bits: int) -> None:
    field = Field(bits)
    vectors = [drawn(field, (333,), seed) for seed in range(9)]
    vectors[0][:] = vectors[1][:] = field.p - 1
    packed = [field.pack(v) for v in vectors]
    assert abs(len(packed[0]) - 333 * bits / 8) <= 4 * bits
    assert all(np.array_equal(field.unpack(m, 333), v) for m, v in zip(packed, vectors, strict=True))
    assert packed == [bytes(encode(v.view(np.int32), shift=0, bits=bits)) for v in vectors]
    assert (field.total(packed, 333) == sum(v.astype(object) for v in vectors) % field.p).all()


def test_bytes_that_are_no_elements_are_refused() -> None:
    field = Field(13)
    with pytest.raises(WireError, match="below p=8191"):
        field.unpack(field.pack(np.array([1, 8191], np.uint32)), 2)
    with pytest.raises(WireError, match="must have"):
        field.unpack(field.pack(np.array([1, 2], np.uint32)), 40)
    packed = bytearray(field.pack(np.ones(30, np.uint32)))
    packed[-1] |= 0x80
    with pytest.raises(WireError, match="30 values has padding that is not zero"):
        field.unpack(bytes(packed), 30)
    with pytest.raises(ArgumentError, match=r"bits must be in 8\.\.32"):
        Field(33)


@pytest.mark.parametrize("bits", [13, 31])
def test_interpolation_agrees_with_divided_differences(bits: int) -> None:
    field = Field(bits)
    xs, targets = [3, 0, 11, 7, 200], [1, 2, 3, 99]
    ys = drawn(field, (5,)).tolist()
    found = field.matmul(field.lagrange(xs, targets), np.array(ys, np.uint32)[:, None])[:, 0]
    assert found.tolist() == [interpolated(field, xs, ys, t) for t in targets]
    with pytest.raises(ArgumentError, match="distinct"):
        field.lagrange([1, 1 + field.p], [0])


@pytest.mark.parametrize(("pieces", "private", "dimension"), [(4, 2, 301), (1, 3, 10), (5, 0, 3), (3, 1, 3)])
def test_any_k_plus_t_shares_give_the_vector_back(pieces: int, private: int, dimension: int) -> None:
    code = Code(Field(13), dimension, pieces, private, shares=pieces + private + 2)
    vector = drawn(code.field, (dimension,))
    shares = code.encode(vector)
    assert shares.shape == (pieces + private + 2, code.length)
    for who in itertools.combinations(range(code.shares), code.needed):
        assert np.array_equal(code.decode(who, [shares[j] for j in who]), vector)


def test_shares_are_values_of_the_polynomial_through_pieces_and_random_pieces() -> None:
    code = Code(Field(17), 6, pieces=3, private=2, shares=7)
    vector, key = drawn(code.field, (6,)), KEY
    behind = code.field.uniform(4, key)
    shares = code.encode(vector, key)
    for column in range(2):
        ys = [*vector.reshape(3, 2)[:, column].tolist(), *behind.reshape(2, 2)[:, column].tolist()]
        for j in range(7):
            assert shares[j, column] == interpolated(code.field, list(range(5)), ys, 5 + j)


def test_the_sum_of_shares_is_a_share_of_the_sum() -> None:
    code = Code(Field(13), 50, pieces=3, private=2, shares=6)
    a, b = drawn(code.field, (50,)), drawn(code.field, (50,), 1)
    shares = code.field.add(code.encode(a), code.encode(b))
    assert np.array_equal(code.decode([1, 2, 4, 5, 0], [shares[j] for j in (1, 2, 4, 5, 0)]), code.field.add(a, b))


def test_the_code_is_mds_and_t_private() -> None:
    code = Code(Field(8), 4, pieces=2, private=2, shares=5)
    p, matrix = code.field.p, code.matrix.tolist()
    for rows in itertools.combinations(matrix, 4):
        assert determinant(list(rows), p) != 0
    for some in itertools.combinations([row[2:] for row in matrix], 2):
        assert determinant(list(some), p) != 0


def test_one_share_of_a_private_code_takes_each_value_once_whatever_the_secret() -> None:
    code = Code(Field(8), 1, pieces=1, private=1, shares=3)
    everything = np.arange(code.field.p, dtype=np.uint32)
    for secret in (0, 1, 200):
        rows = np.stack([np.full_like(everything, secret), everything])
        for share in code.field.matmul(code.matrix, rows):
            assert sorted(share.tolist()) == everything.tolist()
    bare = Code(Field(8), 1, pieces=1, private=0, shares=3)
    assert (bare.encode(np.array([7], np.uint32)) == 7).all()  # without random pieces there is nothing that hides
