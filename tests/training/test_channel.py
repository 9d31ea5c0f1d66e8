from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import lightdp
from lightdp.repair import RETRIES
from lightdp.training.arrivals import Arrivals
from lightdp.training.channel import Distribution, Protocol
from support import oracles
from support.grace import graceful

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lightdp.planning import Plan

LENGTH = 60_000

FIDELITIES: Any = [Distribution, partial(Protocol, given=partial(bytes, 32))]

# used and late clients of each round
TRAININGS: dict[str, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "everybody": [((0, 1, 2, 3, 4, 5), ())] * 2,
    "stragglers": [((0, 1, 2, 3), ()), ((0, 1, 4, 5), ()), ((0, 1, 2, 3, 4, 5), ()), ((1, 2, 3, 4, 5), ())],
    "late and void": [
        ((0, 1, 2, 3), (4,)),
        ((1, 2, 4, 5), (0, 3)),
        ((), (0, 1)),
        ((0, 1, 2, 3, 5), ()),
        ((0, 2, 3, 4), ()),
    ],
    "given up": [((0, 1, 2, 3), ()), *[((2, 3, 4, 5), (0, 1))] * 4, ((0, 1, 2, 3, 4, 5), ())],
}

# under grace (R5): clients used in a round, those in the sum of the next one, and late clients
GRACEFUL: dict[str, list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]] = {
    "late by one": [((0, 1, 2, 3), (4, 5), ()), ((0, 2, 3, 4, 5), (1,), ()), ((0, 1, 2, 3, 4, 5), (), ())],
    "late, lost and waiting": [
        ((0, 1, 2, 3), (4,), ()),
        ((), (0, 1, 2, 4), (5,)),
        ((1, 2, 3, 4, 5), (), (0,)),
        ((0, 2, 3, 5), (1,), ()),
        ((0, 1, 2, 3, 4), (), ()),
        ((0, 1, 3, 4), (), (2,)),
    ],
    "repairs late by one, too late and void": [
        ((0, 1, 2, 3), (), (4,)),
        ((0, 1, 2, 3), (4,), ()),
        ((2, 3, 4, 5), (0,), (1,)),
        ((0, 2, 3, 4, 5), (), (1,)),
        ((), (), (0, 1, 2)),
        ((1, 2, 3, 4), (5,), (0,)),
        ((0, 1, 2, 3, 4, 5), (), ()),
    ],
    "given up": [((0, 1, 2, 3), (), ()), *[((2, 3, 4, 5), (), (0, 1))] * 6, ((0, 1, 2, 3, 4), (5,), ())],
}


def planned(calibration: str, degree: int | None, *, grace: int = 0, rotate: bool = False) -> Plan:
    """Of this calibration, or "drawn", which is repair with drawn masks."""
    chosen: dict[str, Any] = {"calibration": calibration, "epsilon": 30, "masks": "auto"}
    if calibration == "drawn":
        chosen = {"calibration": "repair", "epsilon": 8, "masks": "drawn"}
    return lightdp.plan(
        clients=6, colluders=1, stragglers=2, rounds=20, delta=1e-5, unit="record", grace=grace,
        degree=degree, coordinate_range=1.0, parameters=LENGTH, rotate=rotate, **chosen,
    )  # fmt: skip


def theory(plan: Plan, rounds: list[Any]) -> NDArray[np.float64]:
    """Covariance of the sums of all rounds that are not void, from the protocol played on symbols."""
    retries = RETRIES if plan.repairs else -1
    rows, owners = oracles.seen_uploads(
        plan.clients, plan.gamma * plan.masks.variance, rounds, adjacency=plan.graph.adjacency(), retries=retries
    )
    sums = [
        np.sum([row for row, (r, i) in zip(rows, owners, strict=True) if r == t and i in used], axis=0)
        for t, (used, _) in enumerate(rounds)
        if used
    ]
    rounding = np.diag([len(used) for used, _ in rounds if used]) * plan.wire_grid**2 / 12
    return np.array(sums) @ np.array(sums).T * plan.sigma_individual**2 + rounding


def silent(clients: Sequence[int]) -> list[tuple[list[int], torch.Tensor]]:
    """Updates of nothing, two clients at a time."""
    pairs = [list(clients[i : i + 2]) for i in range(0, len(clients), 2)]
    return [(pair, torch.zeros(len(pair), LENGTH)) for pair in pairs]


def sent(
    channel: Distribution | Protocol, number: int, used: tuple[int, ...], late: tuple[int, ...]
) -> torch.Tensor | None:
    """The sum of a round in which everybody has nothing to say."""
    return channel.round(number, Arrivals.of(6, used, late), silent).total


def played(channel: Distribution | Protocol, rounds: list[Any]) -> NDArray[np.float64]:
    sums = [sent(channel, t, *sets) for t, sets in enumerate(rounds)]
    return np.array([total.numpy() for total in sums if total is not None], dtype=np.float64)


@pytest.mark.parametrize("fidelity", FIDELITIES, ids=["distribution", "protocol"])
@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize(
    ("calibration", "degree", "rotate"),
    [
        ("repair", None, False), ("repair", None, True), ("repair", 4, False), ("exact", None, False),
        ("drawn", None, False), ("drawn", 4, True),
    ],
)  # fmt: skip
def test_both_fidelities_leave_the_noise_of_the_theory_round_by_round(
    fidelity: Any, training: str, calibration: str, degree: int | None, rotate: bool
) -> None:
    plan, rounds = planned(calibration, degree, rotate=rotate), TRAININGS[training]
    expected = theory(plan, rounds)
    found = np.cov(played(fidelity(plan, LENGTH, 3), rounds), bias=True).reshape(expected.shape)
    spread = 6 * np.sqrt(2 / LENGTH) * np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.all(np.abs(found - expected) < spread + 0.002 * np.diag(expected).max())
    wrong = 1.1**2 * expected
    assert not np.all(np.abs(found - wrong) < spread + 0.002 * np.diag(expected).max())


@pytest.mark.parametrize("fidelity", FIDELITIES, ids=["distribution", "protocol"])
def test_the_closing_round_takes_out_all_that_is_left(fidelity: Any) -> None:
    plan, rounds = planned("repair", None), TRAININGS["stragglers"][:2]
    channel = fidelity(plan, LENGTH, 5)
    sums = played(channel, rounds)
    closing = channel.close(len(rounds)).numpy()
    left = (sums.sum(axis=0) + closing).var() / plan.sigma_individual**2 / (1 + 1 / 48)  # and of its rounding
    assert left == pytest.approx(4 + 4 + 6, rel=6 * np.sqrt(2 / LENGTH) + 0.002)  # individual noise of every upload


@pytest.mark.parametrize("fidelity", FIDELITIES, ids=["distribution", "protocol"])
def test_the_sum_is_that_of_the_used_updates(fidelity: Any) -> None:
    plan = planned("exact", None)
    channel, came = fidelity(plan, LENGTH, 3), Arrivals.of(6, (0, 1, 3, 4), (5,))

    def updates(clients: Sequence[int]) -> list[tuple[list[int], torch.Tensor]]:
        first, *others = clients
        return [([first], torch.full((1, LENGTH), 0.25)), (others, torch.full((len(others), LENGTH), 0.5))]

    total = channel.round(0, came, updates).total
    sure = 6 * float(total.std()) / LENGTH**0.5
    assert float(total.mean()) == pytest.approx(1.75, abs=sure)
    assert sure < 0.25
    assert channel.round(1, Arrivals.of(6, ()), silent).total is None


def test_a_restored_channel_goes_on_bit_by_bit() -> None:
    plan, rounds = planned("repair", None), TRAININGS["late and void"]
    whole = played(Distribution(plan, LENGTH, 9), rounds)
    first = Distribution(plan, LENGTH, 9)
    played(first, rounds[:3])
    second = Distribution(plan, LENGTH, 9)
    second.load(first.state())
    for t in (3, 4):
        total = sent(second, t, *rounds[t])
        assert total is not None
        assert np.array_equal(total.numpy().astype(np.float64), whole[t - 1])


@pytest.mark.parametrize("fidelity", FIDELITIES, ids=["distribution", "protocol"])
@pytest.mark.parametrize(
    ("training", "calibration", "degree"),
    [
        *((training, "repair", None) for training in GRACEFUL),
        *((training, "repair", 4) for training in [*GRACEFUL][1:3]),
        ([*GRACEFUL][1], "exact", None),
        ([*GRACEFUL][2], "drawn", None),
    ],
)
def test_under_grace_both_fidelities_leave_the_noise_of_the_theory_closing_rounds_included(
    fidelity: Any, training: str, calibration: str, degree: int | None
) -> None:
    plan, rounds = planned(calibration, degree, grace=1), GRACEFUL[training]
    expected, channel = graceful(plan, rounds), fidelity(plan, LENGTH, 3)
    sums = [
        channel.round(t, Arrivals.of(6, used, late, joins), silent).total
        for t, (used, joins, late) in enumerate(rounds)
    ]
    sums.append(channel.close(len(rounds)))
    found = np.cov(np.array([each.numpy() for each in sums if each is not None], dtype=np.float64), bias=True)
    assert found.shape == expected.shape
    size = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    spread = 6 * np.sqrt(2 / LENGTH) * size + 0.002 * np.diag(expected).max()
    assert np.all(np.abs(found - expected) < spread)
    assert not np.all(np.abs(found - 1.1**2 * expected) < spread)
