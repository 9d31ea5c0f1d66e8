"""Servers that tell every client a history of its own, against what client 0 reserved before it answered (W5)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp import gaussian
from lightdp.auditing import Script, climb, of_reserved, of_worst, play, rotation
from lightdp.auditing._schedule import answered, random_rounds, told
from lightdp.auditing._search import Near, search
from lightdp.auditing._search import truth as told_truth
from lightdp.auditing._stories import Played, Telling
from lightdp.planning import Plan
from lightdp.repair import lies_cost

if TYPE_CHECKING:
    from collections.abc import Callable


def planned(clients: int, **changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": clients, "colluders": 0, "stragglers": 1, "rounds": 1, "epsilon": 1.0}
    return lightdp.plan(**(asked | {"delta": 1e-5, "unit": "client", "calibration": "repair"} | changed))


def truth(plan: Plan, rounds: int) -> Script:
    honest = plan.clients - plan.colluders
    everybody = np.ones((honest, rounds, plan.clients), dtype=bool)
    return Script(everybody, np.ones((honest, rounds), dtype=bool), np.zeros((honest, rounds), dtype=bool))


@pytest.mark.parametrize("gamma", [0.3, 3.0, 30.0])
def test_peers_that_are_told_to_repair_a_used_upload_cost_more_than_is_charged_and_less_than_reserved(
    gamma: float,
) -> None:
    plan = planned(8, gamma=gamma)
    honest = truth(plan, 5)
    honest.asked[:, 2:] = False
    honest.asked[0, 2] = honest.closing[0, 2] = True  # announces round 1 to client 0
    script = Script(honest.told.copy(), honest.asked.copy(), honest.closing.copy())
    script.told[1:, 1, 0] = False  # peers are told that client 0 was late in its last round with data
    script.told[1:, 2:] = False
    script.asked[1:, 2:] = script.closing[1:, 2:] = True
    fair, told = play(plan, honest.story(plan)), play(plan, script.story(plan))
    assert fair.exact()[0] == pytest.approx(fair.announced)
    assert told.announced == fair.announced
    assert fair.exact()[0] * 1.1 < told.exact()[0] <= told.worst < told.reserved + 1e-12


@pytest.mark.parametrize("gamma", [0.5, 5.0, 100.0])
@pytest.mark.parametrize(
    ("clients", "colluders", "stragglers"), [(8, 0, 6), (8, 0, 5), (10, 0, 7), (12, 0, 10), (6, 0, 2), (10, 2, 6)]
)
@pytest.mark.parametrize("grace", [0, 1])
def test_rotating_lies_cost_no_more_than_was_reserved(
    clients: int, colluders: int, stragglers: int, gamma: float, grace: int
) -> None:
    plan = planned(clients, colluders=colluders, stragglers=stragglers, gamma=gamma, grace=grace)
    script = rotation(plan)
    played = play(plan, script.story(plan))
    assert len(played.sent) == script.asked.sum()  # no client refuses
    cost, _ = played.exact()
    assert cost <= played.reserved
    assert cost <= played.worst
    if plan.honest - stragglers == 2 and gamma == 100.0:  # room for one late round, which costs at most 1, would not do
        used = (1 + gamma) / (2 * gamma + 1)
        assert cost > ((1 + grace) * (clients - colluders - 1) - 1) * used + 1
        if grace and clients - colluders > 8:  # nor would room for lies about one round
            assert cost > played.reserved - lies_cost(gamma, plan.honest, stragglers)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("grace", [0, 1])
def test_no_story_that_a_search_finds_costs_more_than_was_reserved(grace: int, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  a search, not a secret
    clients = rng.randint(3, 12)
    colluders = rng.choice([0, 1]) if clients > 4 else 0
    degree = clients - 1 if rng.random() < 0.7 or clients < 6 else 4
    stragglers = rng.randint(1, max(min(clients, degree + 1) - colluders - 2, 1))
    shape = {"colluders": colluders, "stragglers": stragglers, "degree": degree, "grace": grace}
    plan = planned(clients, **shape, gamma=10 ** rng.uniform(-1, 2.5))
    script = rotation(plan, rng.randint(2, 6)) if seed % 2 else truth(plan, rng.randint(2, 6))
    found = [played for _, played in climb(plan, script, seed=seed, steps=40) if played.reserved > 0]
    assert len(found) > 20
    ratios = [played.exact()[0] / np.array([played.reserved, played.worst]) for played in found]
    assert np.max(ratios) <= 1
    assert np.max(ratios, axis=0)[0] > (0.1 if degree == clients - 1 else 0.005)  # not met for want of a story


def test_a_search_finds_worse_lies_than_it_began_with() -> None:
    plan = planned(8, stragglers=5, gamma=5.0)
    ratios = [played.exact()[0] / played.reserved for _, played in climb(plan, rotation(plan), seed=3, steps=100)]
    assert max(ratios) > ratios[0] + 0.05


def test_stories_that_clients_refuse_leave_no_trace() -> None:
    plan = planned(4)
    good = truth(plan, 2).story(plan)
    doubled = play(plan, [*good, *good])
    assert len(doubled.sent) == len(good)
    assert doubled.exact()[0] == pytest.approx(play(plan, good).exact()[0])


def test_many_uploads_take_the_signs_that_no_flip_betters() -> None:
    plan = planned(5, stragglers=2, gamma=8.0)
    script = truth(plan, 14)
    script.told[:, ::3, 0] = False
    played = play(plan, script.story(plan))
    cost, signs = played.exact()
    precision = np.linalg.inv(played.covariance())[np.ix_(played.mine, played.mine)]
    assert signs.size == 14
    assert cost == pytest.approx(signs @ precision @ signs)
    flipped = [s @ precision @ s for s in signs * (1 - 2 * np.eye(signs.size))]
    assert max(flipped) <= cost + 1e-9
    assert cost <= played.worst


def test_with_budgets_a_story_ends_where_clients_refuse_it() -> None:
    plan = planned(5, colluders=1, stragglers=1, rounds=2)
    script = truth(plan, 30)
    free, kept = (play(plan, script.story(plan), budget=budget) for budget in (False, True))
    assert (len(free.sent), free.refused) == (4 * 30, 0)
    assert kept.refused == 4 * 30 - len(kept.sent) > 0
    assert [each.telling for each in kept.sent] == [
        each for each, why in answered(plan, script.story(plan)) if why is None
    ]
    most = (gaussian.mu(plan.budget, plan.delta, up=True) * plan.scale / plan.sensitivity) ** 2
    assert kept.worst <= most * (1 + 1e-9) < free.worst


def test_messages_to_colluders_are_left_out() -> None:
    plan = planned(5, colluders=2)
    story = truth(plan, 2).story(plan)
    told = play(plan, [*story, Telling(3, ()), Telling(4, story[-1].past)])
    assert (len(told.sent), told.refused) == (len(story), 0)


@pytest.mark.parametrize("goal", [of_reserved, of_worst, lambda played: -len(played.sent)])
def test_a_climb_raises_its_goal(goal: Callable[[Played], float]) -> None:
    plan = planned(8, stragglers=5, gamma=5.0)
    tried = [played for _, played in climb(plan, rotation(plan), seed=3, steps=60, goal=goal)]
    assert max(map(goal, tried)) > goal(tried[0])
    assert max(map(goal, tried[40:])) > np.median([*map(goal, tried[:20])])  # it goes on from what was better


@pytest.mark.parametrize(
    ("clients", "colluders", "stragglers", "rounds"), [(8, 0, 6, 5), (10, 2, 2, 8), (5, 1, 1, 3), (7, 1, 4, 3)]
)
def test_a_search_comes_nearer_to_what_is_claimed_than_truth_and_rotation(
    clients: int, colluders: int, stragglers: int, rounds: int
) -> None:
    plan = planned(clients, colluders=colluders, stragglers=stragglers, rounds=rounds, epsilon=8.0)
    starts = {"truth": told_truth(plan, random_rounds(plan, min(rounds, 5), 0)), "rotation": rotation(plan)}
    shares: list[float] = []
    script, near = search(plan, starts, seed=0, steps=100, progress=shares.append)
    played = play(plan, script.story(plan), budget=True)
    assert near["search"] == Near.of(played)
    assert near["search"].mean > max(near["truth"].mean, near["rotation"].mean)
    assert max(near["search"].worst, near["search"].budget) <= 1 + 1e-9
    assert shares[-1] == 1.0


def test_an_odometer_at_worst_says_no_more_than_the_budget() -> None:
    played = play(plan := planned(5, colluders=1, rounds=2, epsilon=8.0), rotation(plan).story(plan), budget=True)
    most = (gaussian.mu(plan.budget, plan.delta) * plan.scale / plan.sensitivity) ** 2
    near = Near.of(played)
    assert played.worst > most
    assert near.worst == near.budget == pytest.approx((played.exact()[0] / most) ** 0.5)


@pytest.mark.parametrize("grace", [0, 1])
def test_the_truth_as_a_script_is_the_schedule(grace: int) -> None:
    plan = planned(6, colluders=1, stragglers=3, rounds=6, epsilon=8.0, grace=grace)
    drawn = random_rounds(plan, 5, 4)
    story = told_truth(plan, drawn).story(plan)
    honest = [each for each in told(drawn) if each.client < 5]
    assert sorted(story, key=lambda each: (len(each.past), each.client)) == sorted(
        honest, key=lambda each: (len(each.past), each.client)
    )
