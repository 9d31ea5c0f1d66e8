from __future__ import annotations

import pytest

from lightdp.errors import ArgumentError
from lightdp.training.config import Config


@pytest.mark.parametrize(("rounds", "taken"), [(60, "repair"), (1, "exact")])
def test_by_default_a_run_takes_the_calibration_that_leaves_less_noise(rounds: int, taken: str) -> None:
    plan = Config(rounds=rounds, late_seen=0.5).plan(1438, 650, 71)
    assert plan is not None
    assert plan.request.calibration == taken
    assert plan == Config(rounds=rounds, late_seen=0.5, scheme=taken).plan(1438, 650, 71)


@pytest.mark.parametrize("scheme", ["auto", "exact", "repair"])
def test_gamma_is_that_of_the_plan(scheme: str) -> None:
    plan = Config(scheme=scheme, gamma=2.5).plan(1438, 650, 71)
    assert plan is not None
    assert plan.gamma == 2.5


@pytest.mark.parametrize("scheme", ["none", "local", "smpc", "paper"])
def test_gamma_is_refused_where_nobody_chooses_it(scheme: str) -> None:
    with pytest.raises(ArgumentError, match=f"gamma needs a scheme that chooses it.*got scheme='{scheme}'"):
        Config(scheme=scheme, gamma=2.5)
