"""Random schedules of whole federations; `benchmarks/fuzz_federation.py` runs thousands of them."""

from __future__ import annotations

import pytest

from support.federated import CASES, scheduled

QUICK = [case for case in CASES if case != "sampled"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", QUICK)
def test_ledgers_bound_what_was_revealed_sums_are_exact_and_no_mask_is_used_twice(case: str, seed: int) -> None:
    assert scheduled(case, seed).sent


@pytest.mark.parametrize("case", QUICK)
def test_the_same_holds_for_a_dozen_schedules_more(case: str) -> None:
    for seed in range(3, 15):
        assert scheduled(case, seed).sent, seed


def test_the_same_holds_for_sampled_batches() -> None:
    assert scheduled("sampled", 0, steps=6).sent
