"""Plans as they travel: a node computes them from their arguments, within bounded memory."""

from __future__ import annotations

import json
import logging
import re
import tracemalloc
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Strategy

import lightdp
from lightdp.errors import ArgumentError
from lightdp.flower import LightDP
from lightdp.flower._plans import planned
from lightdp.stragglers import binomial
from support.flower_talk import a_plan


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"calibration": "repair"},
        {"calibration": "repair", "gamma": 2.5, "reserve": "worst"},
        {"calibration": "paper"},
        {"calibration": "local"},
        {"gamma": 0.5, "degree": 2, "graph_seed": 4, "clients": 8, "stragglers": 3},
        {"straggler_law": binomial(1, 3, 0.1), "parameters": 99},
        {"unit": "record", "sampling_rate": 0.1, "records": 300, "coordinate_range": 4.0, "adjacency": "replace"},
    ],
)
def test_a_plan_travels_as_its_arguments(changed: dict[str, Any]) -> None:
    made = a_plan(**changed)
    again = planned(made.to_json())
    assert again.digest() == made.digest()
    assert "sigma" not in made.to_json()


def test_arguments_that_are_none_are_refused() -> None:
    with pytest.raises(ArgumentError, match="plan must be the arguments"):
        planned("[1, 2]")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"rounds": 2**32, "sampling_rate": 0.5, "delta": 0.1}, "rounds must be <= 1000000 where batches are sampled"),
        ({"stragglers": 2**40, "clients": 2**32 - 2}, "stragglers must be in 0"),
        ({"stragglers": 2**31, "clients": 2**32 - 2}, "straggler_law must cover 0..2147483648, got a law on 0..1"),
    ],
)
@pytest.mark.parametrize("calibration", ["exact", "repair"])
def test_a_plan_that_would_take_the_machines_memory_is_refused(
    asked: dict[str, Any], why: str, calibration: str
) -> None:
    text = json.loads(a_plan(unit="record", calibration=calibration).to_json()) | asked
    text |= {"degree": text["clients"] - 1}
    tracemalloc.start()
    try:
        with pytest.raises(ArgumentError, match=re.escape(why)):
            planned(json.dumps(text))
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("strategy", "changed", "line"),
    [
        (FedAvg(), {}, "tuned to momentum=0.9, but FedAvg has 0: lightdp.plan(..., momentum=0) tunes it"),
        (FedAvg(), {"calibration": "auto"}, "tuned to momentum=0.9, but FedAvg has 0:"),
        (FedProx(proximal_mu=0.1), {}, "tuned to momentum=0.9, but FedProx has 0:"),
        (
            FedAvgM(server_momentum=0.5),
            {},
            "tuned to momentum=0.9, but FedAvgM has 0.5: lightdp.plan(..., momentum=0.5)",
        ),
        (FedAvgM(server_momentum=0.5), {"momentum": 0.0}, "tuned to momentum=0, but FedAvgM has 0.5:"),
        (FedAvgM(server_momentum=0.9), {}, None),
        (FedAvg(), {"momentum": 0.0}, None),
        (FedAvg(), {"gamma": 2.0}, None),  # given, not chosen
        (FedAvg(), {"calibration": "exact"}, None),
        (FedAdam(), {"calibration": "exact"}, None),
    ],
)
def test_a_line_says_where_a_plan_is_tuned_to_another_momentum(
    strategy: Strategy, changed: dict[str, Any], line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    asked: dict[str, Any] = {"clients": 20, "colluders": 2, "stragglers": 2, "rounds": 50, "epsilon": 8, "delta": 1e-5}
    plan = lightdp.plan(**(asked | {"unit": "client", "calibration": "repair"} | changed))
    with caplog.at_level(logging.INFO):
        LightDP(strategy, plan)
    said = [record.getMessage() for record in caplog.records if "tuned to" in record.getMessage()]
    assert len(said) == (line is not None)
    assert line is None or line in said[0]
