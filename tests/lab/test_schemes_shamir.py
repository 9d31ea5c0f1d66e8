from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
from scipy import stats

from lightdp.errors import ArgumentError, WireError
from lightdp_lab.schemes._shamir import FIELD, LIMBS, SIZE, combine, split

PRIME = 2**32 - 5
SECRETS = [bytes(32), b"\xff" * 32, bytes(range(32))]


def at_zero(points: list[int], values: list[int]) -> int:
    """Lagrange's formula in Python's integers, one value at a time."""
    total = 0
    for i, (x, y) in enumerate(zip(points, values, strict=True)):
        term = y
        for j, other in enumerate(points):
            if j != i:
                term = term * other * pow(other - x, PRIME - 2, PRIME) % PRIME
        total += term
    return total % PRIME


def test_the_field_is_prime() -> None:
    assert FIELD.p == PRIME
    assert all(PRIME % divisor for divisor in itertools.chain([2], range(3, 65537, 2)))


@pytest.mark.parametrize("points", [[1, 2, 3], [5, 1, 4], [2**31 - 1, 7, 3]])
def test_any_threshold_of_shares_gives_the_secrets(points: list[int]) -> None:
    shares = split(SECRETS, 3, [1, 2, 3, 4, 5, 7, 2**31 - 1])
    rows = [[1, 2, 3, 4, 5, 7, 2**31 - 1].index(x) for x in points]
    assert combine(points, shares[rows]) == SECRETS


def test_shares_are_values_of_polynomials_of_the_stated_degree() -> None:
    points = [3, 1, 10, 6, 8]
    shares = split(SECRETS, 4, points)
    for secret, limb in itertools.product(range(len(SECRETS)), range(LIMBS)):
        values = shares[:, secret, limb].astype(object).tolist()
        checked = SECRETS[secret] + hashlib.sha256(SECRETS[secret]).digest()[:6]
        number = int.from_bytes(checked, "little") >> 31 * limb
        assert at_zero(points[:4], values[:4]) == at_zero(points[1:], values[1:]) == number % 2**31


def test_one_share_too_few_gives_no_secret() -> None:
    shares = split(SECRETS, 4, [1, 2, 3, 4])
    with pytest.raises(WireError, match="do not belong together"):
        combine([1, 2, 3], shares[:3])


def test_below_the_threshold_shares_are_uniform_whatever_the_secret() -> None:
    for secret in SECRETS[:2]:
        shares = (split([secret] * 400, 3, [1, 2, 3])[:2] / PRIME).reshape(-1)
        assert stats.kstest(shares, "uniform").pvalue > 1e-4
        assert stats.kstest(shares * 0.95, "uniform").pvalue < 1e-4
        assert abs(np.corrcoef(*shares.reshape(2, -1))[0, 1]) < 0.1


def test_a_changed_share_is_found_out() -> None:
    for limb, bit in itertools.product(range(LIMBS), (0, 7, 30)):
        shares = split(SECRETS, 2, [1, 2])
        shares[0, 1, limb] ^= 1 << bit
        with pytest.raises(WireError, match="do not belong together"):
            combine([1, 2], shares)


def test_a_share_is_as_long_as_it_says() -> None:
    assert len(split(SECRETS[:1], 1, [1])[0, 0].tobytes()) == SIZE == 40


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"threshold must be in 1\.\.2"):
        split(SECRETS, 3, [1, 2])
    with pytest.raises(ArgumentError, match="point must be in"):
        split(SECRETS, 1, [0, 1])
    with pytest.raises(ArgumentError, match="points must differ"):
        split(SECRETS, 1, [1, 1])
    with pytest.raises(ArgumentError, match="secret must be 32 bytes"):
        split([b"short"], 1, [1])
    with pytest.raises(ArgumentError, match="shares must be"):
        combine([1, 2], split(SECRETS, 1, [1]))
