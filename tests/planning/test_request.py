"""What is asked is checked once and travels whole; noise is never half there."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp import sampling, stragglers
from lightdp.errors import ArgumentError
from lightdp.planning import Noise, Plan, Request, solve

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED: dict[str, Any] = {
    "clients": 20, "colluders": 4, "stragglers": 4, "rounds": 60, "epsilon": 3, "delta": 1e-5,
}  # fmt: skip


def test_a_plan_is_a_request_and_the_noise_that_was_found_for_it() -> None:
    found = lightdp.plan(**ASKED, calibration="repair")
    assert found == solve(Request(**ASKED, calibration="repair"))
    assert found == Plan(found.request, found.noise)
    for field in dataclasses.fields(Request):
        if hasattr(found, field.name) and field.name not in ("epsilon", "gamma", "masks", "calibration", "graph"):
            assert getattr(found, field.name) == getattr(found.request, field.name), field.name


def test_plan_takes_and_shows_the_fields_of_a_request() -> None:
    assert list(inspect.signature(lightdp.plan).parameters) == [field.name for field in dataclasses.fields(Request)]
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'epsilons'"):
        lightdp.plan(**ASKED, epsilons=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("field", ["gamma", "sigma_individual", "sigma_effective"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_no_plan_exists_with_noise_that_is_no_number(field: str, wrong: float) -> None:
    sound: dict[str, Any] = {"gamma": 1.0, "sigma_individual": 1.0, "sigma_effective": 1.0}
    with pytest.raises(ArgumentError, match=field):
        Noise(**sound | {field: wrong})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"clip": 1, "epsilon": 3}, {"clip": 1.0, "epsilon": np.float64(3)}),
        ({"gamma": 1}, {"gamma": np.float32(1)}),
        ({"degree": 6, "graph_seed": 7}, {"degree": np.int64(6), "graph_seed": np.int64(7)}),
    ],
)
def test_numbers_of_other_types_are_one_request(a: dict[str, Any], b: dict[str, Any]) -> None:
    one, other = (solve(Request(**{**ASKED, "calibration": "repair", **changed})) for changed in (a, b))
    assert one == other
    assert one.digest() == other.digest()
    assert one.to_json() == other.to_json()


CHANGES: list[dict[str, Any]] = [
    {"clients": 21}, {"colluders": 3}, {"stragglers": 3}, {"rounds": 61}, {"epsilon": 3.1}, {"delta": 2e-5},
    {"calibration": "exact"}, {"clip": 2.0}, {"unit": "client"}, {"adjacency": "replace"}, {"degree": 10},
    {"degree": 10, "graph_seed": 1}, {"straggler_law": "binomial:0.1"}, {"gamma": 2.0}, {"reserve": "worst"},
    {"late": "unseen"}, {"records": 1000}, {"parameters": 10}, {"coordinate_range": 3.0},
]  # fmt: skip


def test_the_digest_tells_every_setting_and_the_noise_apart() -> None:
    plain = lightdp.plan(**ASKED, calibration="repair")
    digests = [plain.digest(), Plan(plain.request, dataclasses.replace(plain.noise, gamma=7.0)).digest()]
    digests += [lightdp.plan(**{**ASKED, "calibration": "repair", **changed}).digest() for changed in CHANGES]
    assert len(set(digests)) == len(digests)


def test_a_digest_composes_no_privacy_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sampled batches that took half a second, for each client and each message of Flower's."""
    found = lightdp.plan(**ASKED | {"rounds": 10}, sampling_rate=0.1)

    def refuse(*_: object, **__: object) -> float:
        raise AssertionError("a composition")

    monkeypatch.setattr(sampling, "epsilon", refuse)
    assert len(found.digest()) == 32
    lightdp.protocol.Client.new(found, length=3, run=bytes(16), name="a")
    with pytest.raises(AssertionError, match="a composition"):
        found.epsilon()


@pytest.mark.parametrize("changed", CHANGES)
def test_another_party_computes_the_same_plan(changed: dict[str, Any]) -> None:
    made = lightdp.plan(**{**ASKED, "calibration": "repair", **changed})
    text = made.to_json()
    assert "sigma" not in text
    again = Plan.from_json(text)
    assert again.digest() == made.digest()
    assert again.noise == made.noise


@pytest.mark.parametrize(
    ("spec", "same"),
    [
        ("uniform", lambda: stragglers.uniform(4)),
        ("binomial:0.05", lambda: stragglers.binomial(4, 20, 0.05)),
        ("pmf:0.5,0.25,0.25", lambda: stragglers.custom(4, [0.5, 0.25, 0.25])),
    ],
)
def test_straggler_laws_are_asked_for_by_name(spec: str, same: Callable[[], stragglers.StragglerLaw]) -> None:
    assert Request(**ASKED, straggler_law=spec).law == same()


@pytest.mark.parametrize("spec", ["normal", "binomial", "binomial:x", "pmf:", "pmf:1,a", "binomial:2"])
def test_a_straggler_law_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(ArgumentError, match="straggler_law"):
        Request(**ASKED, straggler_law=spec)


def test_no_key_has_two_meanings() -> None:
    found = lightdp.plan(**ASKED | {"epsilon": 3.0}, calibration="paper")
    asked, told = found.request.to_dict(), found.to_dict()
    assert {name for name in asked if asked[name] != told[name]} == {
        "gamma",
        "masks",
    }  # None and "auto" asked for the best
    assert (told["epsilon"], told["epsilon_true"]) == (3.0, found.epsilon())
    assert found.epsilon() > 6
    json.dumps(told, allow_nan=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"degree": 20}, r"degree must be in 1..19"),
        ({"degree": "x"}, "degree must be an integer"),
        ({"clients": 5, "stragglers": 1, "degree": 3}, "degree must be even"),
        ({"graph_seed": -1}, "graph_seed must be"),
        ({"epsilon": 10**400}, "epsilon must be a number that a float can hold"),
        ({"epsilon": np.ones(2)}, "epsilon must be a number that a float can hold"),
        ({"straggler_law": 5}, "straggler_law must be a law or its name, got int"),
        ({"calibration": np.array(["exact", "repair"])}, "calibration must be one of"),
    ],
)
def test_no_request_exists_that_is_not_valid(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Request(**ASKED | changed)


@pytest.mark.parametrize("text", ["[" * 200_000, "{}", "[]", '{"clients": 2}', '{"straggler_law": {"pmf": [1e400]}}'])
def test_hostile_requests_end_in_an_argument_error(text: str) -> None:
    with pytest.raises(ArgumentError):
        Plan.from_json(text)
    whole = json.loads(lightdp.plan(**ASKED).to_json()) | {"epsilon": 10**400}
    with pytest.raises(ArgumentError):
        Plan.from_json(json.dumps(whole))


@pytest.mark.parametrize("graph", ["random:0", "random:1", "random:51", "random:999", "circulant:0", "circulant:100"])
def test_degrees_that_a_graph_cannot_have_are_refused_alike(graph: str) -> None:
    kind, most = ("random", "2 to 50") if graph.startswith("random") else ("circulant", "1 to 99")
    with pytest.raises(ArgumentError) as refused:
        lightdp.plan(clients=100, colluders=5, stragglers=5, rounds=9, epsilon=3, delta=1e-5, graph=graph)
    assert str(refused.value) == (
        f"graph {kind}:DEGREE must have a degree from {most} for clients=100, got graph={graph!r}"
    )
