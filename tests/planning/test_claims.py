from __future__ import annotations

from typing import Any

import pytest

import lightdp
from lightdp.errors import ArgumentError
from lightdp.planning import paper_claims


def planned(**changed: Any) -> lightdp.Plan:
    asked = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "epsilon": 3.0, "delta": 1e-5} | changed
    return lightdp.plan(**asked)


def test_claims_of_the_paper_next_to_the_truth() -> None:
    claims = paper_claims(planned(calibration="paper"))
    assert [round(c.true, 4) for c in claims] == [2.1535, 48.7564, 9.2376, 2.1535]
    assert {c.claimed for c in claims} == {3}
    assert [c.rounds for c in claims] == [1, 150, 150, 150]
    with pytest.raises(ArgumentError, match="calibration='exact'"):
        paper_claims(planned(calibration="exact"))
    with pytest.raises(ArgumentError, match=r"sampling_rate=0\.1"):  # the formulas are of whole batches
        paper_claims(planned(calibration="paper", sampling_rate=0.1))
