"""(W1): bits, ranges and rotation of plans; what does not fit is no plan; rounding is in every noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lightdp
from lightdp import masks
from lightdp.errors import ArgumentError, InfeasibleError
from lightdp.planning import Plan, Request, compare, solve

README: dict[str, Any] = {"clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "epsilon": 3, "delta": 1e-5}
DIGITS: dict[str, Any] = {"parameters": 650, "records": 1437}
LARGE: dict[str, Any] = {"parameters": 100_000, "records": 50_000}


def planned(**changed: Any) -> Plan:
    return lightdp.plan(**(README | {"calibration": "repair"} | changed))


@pytest.mark.parametrize(
    ("known", "bits"),
    [
        ({}, 17),
        ({"wire_steps": 16}, 20),  # as it was before
        (DIGITS | {"rotate": False}, 13),
        (DIGITS | {"rotate": False, "wire_steps": 16}, 16),
        (DIGITS, 12),
        (LARGE, 13),
        (LARGE | {"masks": "gaussian"}, 12),  # whose variance is less
        (LARGE | {"rotate": False}, 17),
        ({"unit": "client"}, 12),
    ],
)
def test_bits_of_the_readmes_plan(known: dict[str, Any], bits: int) -> None:
    assert planned(**known).wire_bits == bits
    assert planned(**known).to_dict()["wire_bits"] == bits


@given(
    unit=st.sampled_from(["record", "client"]),
    calibration=st.sampled_from(["exact", "repair", "paper", "smpc"]),
    clients=st.integers(3, 2000),
    epsilon=st.floats(0.1, 50),
    steps=st.sampled_from([1, 2, 4, 8, 16]),
    parameters=st.one_of(st.none(), st.integers(1, 10**7)),
    records=st.one_of(st.none(), st.integers(1, 10**4)),
    rotate=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_sums_of_clamped_uploads_fit_and_hardly_any_room_is_left(
    unit: str, calibration: str, clients: int, epsilon: float, steps: int, **known: Any
) -> None:
    """Updates at their range and noise at its 1 − 2⁻⁴⁰ quantile still fit, with one bit less they do not."""
    known["rotate"] &= known["parameters"] is not None
    away = clients // 5
    asked = {"clients": clients, "colluders": away, "stragglers": away, "epsilon": epsilon, "delta": 1e-9}
    p = planned(**asked, unit=unit, calibration=calibration, wire_steps=steps, **known)
    assert p.wire_grid == p.sigma_individual / steps
    wires = (clients - away) * away + (clients * away if p.repairs else 0)
    own = clients * (p.sigma_individual**2 + p.wire_grid**2 / 12)
    values = 150 * (2**30 if known["parameters"] is None else known["parameters"])
    z = -float(mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - mpmath.log(2.0**-41 / values), -9))
    most = clients * p.wire.range + z * math.sqrt(own + wires * p.sigma_pairwise**2)
    half = p.wire_grid * 2 ** (p.wire_bits - 1)
    assert most * (1 - 1e-9) <= half - p.wire_grid
    assert p.wire_bits == 2 or half <= 2 * (most + p.wire_grid) * (1 + 1e-9)


def test_ranges_follow_what_is_known() -> None:
    assert planned(unit="client").upload_range == 1
    assert planned(unit="client", clip=3.0).wire.range == 3
    assert planned().upload_range == 1024
    assert planned(records=1451).upload_range == 30  # 29.02 on average
    assert planned(records=1451, coordinate_range=7.0).upload_range == 7
    turned = planned(**LARGE, masks="gaussian")
    assert (turned.upload_range, turned.wire.block) == (1000, 65536)
    assert turned.wire.range == pytest.approx(4.5 * 1000 / 256)
    assert 2 * math.exp(-(6**2) / 2) < 3.1e-8  # how often a rotated coordinate is clamped, at most


def test_uploads_are_rotated_where_that_saves_a_bit_unless_told_otherwise() -> None:
    assert not planned().rotates
    assert planned(**LARGE).rotates
    assert not planned(**LARGE, rotate=False).rotates
    assert planned(parameters=100_000).rotates
    client = planned(unit="client", parameters=100_000)
    assert not client.rotates
    assert planned(unit="client", parameters=100_000, rotate=True).wire_bits == client.wire_bits
    assert not planned(**LARGE, calibration="local", rotate=True).rotates  # floats


@pytest.mark.parametrize("per_client", [1, 30, 50, 500, 5000])
@pytest.mark.parametrize("parameters", [100, 256, 650, 10**5, 10**6, 10**7])
@pytest.mark.parametrize("clients", [10, 50])
def test_blocks_are_the_shortest_that_need_no_more_bits(per_client: int, parameters: int, clients: int) -> None:
    few = {"clients": clients, "colluders": 0, "stragglers": 0, "delta": 1e-9}
    p = planned(**few, parameters=parameters, records=per_client * clients, rotate=True)
    own = clients * (p.sigma_individual**2 + p.wire_grid**2 / 12)
    z = -float(mpmath.findroot(lambda x: mpmath.log(mpmath.ncdf(x)) - mpmath.log(2.0**-41 / 150 / parameters), -9))
    longest = max(2**k for k in range(30) if 2**k <= parameters)

    def bits(block: int) -> int:
        most = clients * 4.5 * per_client / math.sqrt(block) + z * math.sqrt(own)
        return math.ceil(math.log2(2 * most / p.wire_grid + 2))

    assert p.wire.block is not None
    assert min(longest, 256) <= p.wire.block <= longest
    assert p.wire_bits == bits(p.wire.block) == bits(longest)
    assert p.wire.block in {longest, 256} or bits(p.wire.block // 2) > p.wire_bits
    assert p.wire.range == pytest.approx(4.5 * per_client / math.sqrt(p.wire.block))


@pytest.mark.parametrize(("epsilon", "block", "wanted"), [(1, 2**19, 4.5 * 1024 / 2**9.5), (3, 2**20, 2.466)])
def test_no_block_is_so_short_that_its_range_is_cut(epsilon: float, block: int, wanted: float) -> None:
    """Where the range is guessed and cut to what fits, the longest block is taken, whose range is cut the least."""
    many = {"clients": 1_000_000, "colluders": 10, "stragglers": 10, "parameters": 2**20}
    p = planned(**many, epsilon=epsilon, rotate=True)
    assert (p.wire.block, p.wire_bits) == (block, 29)
    assert p.wire.range == pytest.approx(wanted, rel=1e-3)


@given(parameters=st.integers(1, 10**9), records=st.integers(1, 10**4), clients=st.integers(3, 500))
@settings(max_examples=60, deadline=None)
def test_the_default_never_needs_more_bits_than_either_choice(parameters: int, records: int, clients: int) -> None:
    asked: dict[str, Any] = {"parameters": parameters, "records": records, "clients": clients}
    few = {"colluders": 0, "stragglers": 1}
    free, plain, turned = (planned(**asked, **few, rotate=choice) for choice in (None, False, True))
    assert free.wire_bits == min(plain.wire_bits, turned.wire_bits)
    assert free.rotates == (turned.wire_bits < plain.wire_bits)


@pytest.mark.parametrize("clients", [10_000, 30_000, 100_000, 1_000_000])
@pytest.mark.parametrize("known", [{}, {"parameters": 100_000}])
def test_records_of_many_clients_fit_the_wire(clients: int, known: dict[str, Any]) -> None:
    p = planned(clients=clients, colluders=clients // 10, stragglers=clients // 10, unit="record", **known)
    grid = masks.Grid.of(p, 1000 if not p.rotates else 100_000)
    assert grid.bits + grid.shift <= 32
    assert math.sqrt(grid.sigma_individual**2 + 4) >= 16
    assert p.clip <= p.upload_range <= 1024 * p.clip
    assert p.upload_range == 1024 or (clients >= 30_000 and not p.rotates)  # clamped more only where it must be


@pytest.mark.parametrize("calibration", ["exact", "repair", "paper"])
@pytest.mark.parametrize("changed", [{"coordinate_range": 1e12}, {"records": 10**15, "delta": 1e-16}])
def test_what_does_not_fit_the_wire_is_no_plan(calibration: str, changed: dict[str, Any]) -> None:
    with pytest.raises(InfeasibleError, match=r"sums need \d+ bits a parameter and at most 29 fit .* at wire_steps=2"):
        planned(calibration=calibration, **changed)
    with pytest.raises(InfeasibleError, match=r"at most 32 fit the wire at wire_steps=16: reduce coordinate_range"):
        planned(calibration=calibration, **changed, wire_steps=16)


@pytest.mark.parametrize("calibration", ["local", "central", "smpc"])
def test_schemes_that_do_not_use_this_wire_are_exempt(calibration: str) -> None:
    assert planned(calibration=calibration, coordinate_range=1e12).wire_bits >= 32
    assert planned(calibration=calibration, coordinate_range=1e12).noise_in_mean() > 0


@pytest.mark.parametrize("calibration", ["exact", "repair", "paper", "smpc", "local", "central"])
@pytest.mark.parametrize("steps", [1, 2, 16])
def test_rounding_is_in_every_noise(calibration: str, steps: int) -> None:
    """q²/12 for each upload: 2.1 % of σ_U² at two steps; uploads that are floats are not rounded."""
    p = planned(calibration=calibration, wire_steps=steps)
    each = 0.0 if p.calibration.floats else p.sigma_individual**2 / steps**2 / 12
    server = p.sigma_effective**2 if calibration == "central" else 0.0
    for used in (1, 40, 50):
        assert p.individual_in_sum(used) == pytest.approx(server + used * (p.sigma_individual**2 + each), rel=1e-12)
    counts = 50 - np.arange(11)  # uniform stragglers
    stays = np.mean(p.sigma_individual**2 / counts + each / counts + server / counts**2)
    left = 0.0 if p.repairs else np.mean((50 - counts) / counts) * p.sigma_pairwise**2
    assert p.noise_in_mean() == pytest.approx(stays + left, rel=1e-12)
    assert {row.scheme.name: row.noise_in_mean for row in compare(p)}[calibration] == (
        p.noise_in_mean() if calibration != "paper" else pytest.approx(_scaled(p), rel=1e-9)
    )


def _scaled(p: Plan) -> float:
    """The paper's noise at the ε that it claims."""
    scale = planned(calibration="local").sigma_effective / p.sigma_effective
    return p.noise_in_mean() * scale**2


@pytest.mark.parametrize("steps", [1, 2])
def test_rounding_noise_that_is_so_coarse_has_no_bias_and_its_twelfth(steps: int) -> None:
    """Of round(x + σ z) in steps, summed over all integers on 60 digits, for every part of a step that x may be at."""
    with mpmath.workdps(60):
        leak = mpmath.exp(-2 * mpmath.pi**2 * steps**2)
        for tenth in range(10):
            x = mpmath.mpf(tenth) / 10
            chance = {
                k: mpmath.ncdf((k + 0.5 - x) / steps) - mpmath.ncdf((k - 0.5 - x) / steps)
                for k in range(-40 * steps, 40 * steps)
            }
            bias = sum(k * p for k, p in chance.items()) - x
            variance = sum((k - x) ** 2 * p for k, p in chance.items()) - bias**2
            assert abs(bias) <= leak / mpmath.pi * 1.01
            assert abs(variance - steps**2 - mpmath.mpf(1) / 12) <= (4 * steps**2 + 1) * leak
        assert leak < (1e-34 if steps == 2 else 3e-9)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"wire_steps": 3}, "wire_steps must be 1, 2, 4, 8 or 16, got wire_steps=3"),
        ({"wire_steps": 0}, r"wire_steps must be in 1..16, got wire_steps=0"),
        ({"wire_steps": 32}, r"wire_steps must be in 1..16, got wire_steps=32"),
        ({"wire_steps": 2.5}, r"wire_steps must be an integer, got wire_steps=2.5"),
        ({"rotate": 1}, "rotate must be True, False or None, got rotate=1"),
        ({"rotate": "yes"}, "rotate must be True, False or None, got rotate='yes'"),
        ({"rotate": True}, "rotate=True needs parameters.* got parameters=None"),
    ],
)
def test_wrong_settings_of_the_wire_are_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        planned(**changed)


def test_all_parties_agree_on_the_wire() -> None:
    """The choice that was made travels; who asked for it and who got it have one digest."""
    chosen = planned(**LARGE)
    told = Plan.from_json(chosen.to_json())
    assert json.loads(chosen.to_json())["rotate"] is True
    assert told.wire == chosen.wire
    assert told.digest() == chosen.digest() == planned(**LARGE, rotate=True).digest()
    others = [planned(**LARGE, rotate=False), planned(**LARGE, wire_steps=4), planned(**LARGE, coordinate_range=5.0)]
    assert len({chosen.digest(), *(other.digest() for other in others)}) == 4
    changed = solve(chosen.request)
    vars(changed)["wire"] = replace(chosen.wire, block=256)  # another version's choice
    assert changed.digest() != chosen.digest()
    assert solve(Request.from_json(chosen.request.to_json())).digest() == chosen.digest()


def test_the_page_says_bits_range_rotation_and_rounding() -> None:
    page = " ".join(str(planned(**LARGE, masks="gaussian")).split())
    assert "12 bits a parameter = 150.0 kB, rotated and clamped to ±17.58 before noise, rounded to σ_U/2 after" in page
    assert "17 bits a parameter, clamped to ±1024 before noise, rounded to σ_U/2" in " ".join(str(planned()).split())
    assert "32 bits a parameter, floats" in str(planned(calibration="central"))
