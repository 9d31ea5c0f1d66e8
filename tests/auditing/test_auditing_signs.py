"""The signs that show best, against all signs one by one and against signs that the test plants."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lightdp.auditing._signs import _improved, worst_signs


def drawn(size: int, seed: int) -> np.ndarray:
    root = np.random.default_rng(seed).standard_normal((size, size + 2))
    return root @ root.T


@pytest.mark.parametrize("size", [1, 2, 3, 8, 11])
def test_few_uploads_have_the_signs_that_show_best(size: int) -> None:
    precision = drawn(size, size)
    cost, signs, complete = worst_signs(precision)
    assert complete
    assert cost == pytest.approx(max(s @ precision @ s for s in map(np.array, itertools.product((1, -1), repeat=size))))
    assert signs @ precision @ signs == pytest.approx(cost)


def test_no_upload_costs_nothing() -> None:
    cost, signs, complete = worst_signs(np.zeros((0, 0)))
    assert (cost, signs.size, complete) == (0.0, 0, True)


@pytest.mark.parametrize(("size", "complete"), [(16, True), (17, False), (40, False)])
def test_signs_that_stand_out_are_found(size: int, complete: bool) -> None:
    planted = np.where(np.random.default_rng(size).random(size) < 0.5, -1.0, 1.0)
    cost, signs, tried_all = worst_signs(np.eye(size) + np.outer(planted, planted))
    assert tried_all is complete
    assert cost == pytest.approx(size + size**2)
    assert abs(signs @ planted) == size


@pytest.mark.parametrize("seed", range(5))
def test_beyond_16_no_change_of_one_or_two_signs_betters_it(seed: int) -> None:
    precision = drawn(20, seed)
    cost, signs, _ = worst_signs(precision)
    for changed in itertools.chain(itertools.combinations(range(20), 1), itertools.combinations(range(20), 2)):
        other = signs.copy()
        other[list(changed)] *= -1
        assert other @ precision @ other <= cost * (1 + 1e-9)


@pytest.mark.parametrize(("together", "from_ones"), [(1, True), (2, True), (3, False)])
def test_starts_that_small_changes_do_not_better_are_left_by_others(together: int, from_ones: bool) -> None:
    """Uploads that go together in groups: from all ones alone, groups of up to two can be turned."""
    groups = 18 // together
    blocks = np.kron(np.eye(groups), np.ones((together, together)))
    planted = np.repeat(np.where(np.arange(groups) % 2 == 0, 1.0, -1.0), together)
    precision = 3 * blocks + 0.1 * np.outer(planted, planted) + 0.5 * np.eye(18)
    best = planted @ precision @ planted
    assert best > np.ones(18) @ precision @ np.ones(18)
    assert worst_signs(precision)[0] == pytest.approx(best)
    alone = _improved(precision, np.ones(18))
    assert (alone @ precision @ alone == pytest.approx(best)) == from_ones
