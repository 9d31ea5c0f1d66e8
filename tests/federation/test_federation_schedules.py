"""Random schedules of whole federations; `benchmarks/fuzz_federation.py` runs thousands of them."""

from __future__ import annotations

import pytest

from support.federated import CASES, scheduled


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", [case for case in CASES if case != "sampled"])
def test_ledgers_bound_what_was_revealed_sums_are_exact_and_no_mask_is_used_twice(case: str, seed: int) -> None:
    assert scheduled(case, seed).sent


def test_the_same_holds_for_sampled_batches() -> None:
    assert scheduled("sampled", 0, steps=6).sent
