"""Rounds whose sets are not final yet (R5): what is kept for them, under every calibration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lightdp
from lightdp.client_set import ClientSet
from lightdp.noise_graph import Graph
from lightdp.planning import Plan
from lightdp.repair import Repairs, worst_cost


def planned(**more: Any) -> Plan:
    asked = {"clients": 10, "colluders": 0, "stragglers": 4, "rounds": 9, "epsilon": 3.0, "delta": 1e-5, "grace": 1}
    return lightdp.plan(**(asked | {"unit": "client"} | more))


def squares(odometer: lightdp.Odometer) -> np.ndarray:
    """What each client has spent, in rounds of cost 1."""
    return (odometer.mu() * odometer.plan.scale / odometer.plan.sensitivity) ** 2


@pytest.mark.parametrize("calibration", ["exact", "local"])
def test_without_repair_who_was_on_time_and_who_may_be_late_pay_alike(calibration: str) -> None:
    odometer = lightdp.Odometer(planned(calibration=calibration, late=0.0))
    odometer.open(on_time=range(7), late=[7, 8])
    assert squares(odometer) == pytest.approx(0)
    assert squares(odometer.counted()) == pytest.approx([1.0] * 9 + [0.0])
    assert squares(odometer.counted(ahead=True)) == pytest.approx([2.0] * 9 + [1.0])
    odometer.record(used=range(8))
    assert odometer.waits is None


def test_a_client_that_is_late_may_still_be_used_where_late_uploads_are_unseen() -> None:
    plan = planned(calibration="repair", late="unseen")
    odometer = lightdp.Odometer(plan)
    odometer.open(on_time=range(7), late=[7])
    usual = float(plan.used_cost(plan.honest - plan.stragglers))
    assert squares(odometer.counted()) == pytest.approx([usual] * 8 + [0.0] * 2)


def test_repairs_of_a_late_round_are_expected_in_the_round_after_the_one_that_waits() -> None:
    plan = planned(calibration="repair", late=0.0, gamma=20.0)
    odometer = lightdp.Odometer(plan, [0])
    odometer.record(used=range(1, 10), late=[0])  # its repairs can ride from round 2 on
    odometer.open(on_time=range(10), late=[])
    least = plan.honest - plan.stragglers
    alone = worst_cost(plan.gamma, plan.honest, plan.stragglers, grace=1)
    crossed = worst_cost(plan.gamma, plan.honest, plan.stragglers, crossed=1 / least, grace=1)
    kept = squares(odometer.counted(ahead=True))[0] - squares(odometer.counted())[0]
    assert kept == pytest.approx(crossed)
    assert crossed > 1.02 * alone


def test_a_copy_of_repairs_goes_on_by_itself() -> None:
    repairs, everyone = Repairs(Graph(4, 3)), ClientSet.all(4)
    repairs.ride(0, everyone)
    repairs.close(0, ClientSet.of(4, [0, 1, 2]))
    before = repairs.copied()
    assert [*before.ride(1, everyone).values()] == [ClientSet.of(4, [0, 1, 2])]
    assert repairs.next(0) is not None
    assert not repairs.flying
    assert before.next(0) is None
    repairs.ride(1, ClientSet.of(4, [0]))
    assert [*before.flying[1].values()] == [ClientSet.of(4, [0, 1, 2])]
