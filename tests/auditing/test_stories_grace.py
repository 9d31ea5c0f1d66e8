"""Lies under grace (R5), made by hand: sets that are final one round later leave two rounds to lie about (W5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp.auditing import Script, climb, play
from lightdp.repair import RETRIES, lie_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightdp.auditing._stories import Played
    from lightdp.planning import Plan

ROUNDS = 12


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 6, "colluders": 0, "stragglers": 3, "rounds": 1, "epsilon": 1.0, "grace": 1}
    return lightdp.plan(**(asked | {"delta": 1e-5, "unit": "client", "calibration": "repair"} | changed))


def truth(plan: Plan, data: int = 3) -> Script:
    """Everybody sends and is used one round late, in some rounds with data and many that repair."""
    told = np.ones((plan.clients, ROUNDS, plan.clients), dtype=bool)
    asked, closing = np.ones((plan.clients, ROUNDS), dtype=bool), np.zeros((plan.clients, ROUNDS), dtype=bool)
    closing[:, data:] = True
    asked[0, data:] = False
    return Script(told, asked, closing, np.zeros_like(told))


def two_rounds(script: Script) -> None:
    """Peers are told that client 0 was too late in rounds 1 and 2; it is told that it was used in both."""
    script.told[1:, 1:3, 0] = False
    script.told[1:, 3:] = False


def one_round(script: Script) -> None:
    script.told[1:, 2, 0] = False
    script.told[1:, 3:] = False


def on_time_alone(script: Script) -> None:
    """All are told the same final sets, but not who of them was on time."""
    assert script.on_time is not None
    script.on_time[1::2, 1] = True


def on_time_then_two_rounds(script: Script) -> None:
    """The lie begins with who was on time in round 2, and goes on with the final sets of rounds 1 and 2."""
    on_time_alone(script)
    two_rounds(script)
    assert script.on_time is not None
    script.on_time[:, 1] = False
    script.on_time[1:, 2, 1:] = True


def never_sent(script: Script) -> None:
    """Clients 4 and 5 stay away from round 1, of which client 0 is told that they were used."""
    two_rounds(script)
    script.asked[4:, 1] = False


def void(script: Script) -> None:
    """Peers are told that round 1, which client 0 is told it was used in, was void, and then of lies about round 2."""
    two_rounds(script)
    script.told[1:, 1] = False


def closing(script: Script) -> None:
    """Peers are told that round 2 has no data, and repair noise of it that they never added."""
    two_rounds(script)
    script.closing[1:, 2] = True


def older_debt(script: Script) -> None:
    """Client 0 was late in round 0, as all know. Its repair rides in round 2, and peers are told that was in vain."""
    script.told[:, 0, 0] = False
    script.told[1:, 2:] = False


def piled_up(script: Script) -> None:
    """Peers hear of rounds 0 and 1, in which client 0 was late, only in round 3, and all their repairs are in vain."""
    script.told[:, :2, 0] = False
    script.asked[1:, 2] = False
    script.told[0, 2] = [True, True, True, False, False, False]
    script.asked[1:3, 2] = True
    script.told[1:, 2:] = False


STORIES = [
    two_rounds, one_round, on_time_alone, on_time_then_two_rounds, never_sent, void, closing, older_debt, piled_up,
]  # fmt: skip


@pytest.mark.parametrize("gamma", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("story", STORIES)
def test_no_lie_that_was_made_by_hand_costs_more_than_was_reserved(
    story: Callable[[Script], None], gamma: float
) -> None:
    plan = planned(gamma=gamma)
    script = truth(plan)
    story(script)
    played = play(plan, script.story(plan))
    assert played.refused == 0
    cost, _ = played.exact()
    assert 0 < cost <= played.reserved
    assert cost <= played.worst


def test_a_peer_lies_about_two_rounds_under_grace_and_each_costs_what_one_did() -> None:
    """With all peers lying and no other noise in their uploads the bound of one round is met, and met again."""
    plan = planned(gamma=300.0)
    costs = []
    for story in (lambda _: None, one_round, two_rounds):
        script = truth(plan)
        story(script)
        costs.append(play(plan, script.story(plan)).exact()[0])
    lie = (plan.clients - 1) * lie_cost(plan.gamma, plan.clients, 0)  # everybody is used
    assert costs[1] - costs[0] == pytest.approx(lie)
    assert costs[2] - costs[0] == pytest.approx(2 * lie)


def test_each_of_two_rounds_is_repaired_in_three_uploads_and_never_both_in_one() -> None:
    plan = planned()
    script = truth(plan)
    two_rounds(script)
    sent = [each for each in play(plan, script.story(plan)).sent if each.telling.client == 1]
    repaired = [{wire[2] for wire in each.wires if wire[2] != len(each.telling.past)} for each in sent]
    assert max(map(len, repaired)) == 1
    rounds = [of for each in repaired for of in each]
    assert {of: rounds.count(of) for of in rounds} == {1: 1 + RETRIES, 2: 1 + RETRIES}


def test_a_lie_about_who_was_on_time_ends_shared_noise_and_nothing_else() -> None:
    plan = planned(gamma=30.0)
    honest, script = truth(plan), truth(plan)
    on_time_alone(script)
    fair, told = (play(plan, each.story(plan)) for each in (honest, script))
    keys = [
        {wire[3] for each in one.sent if len(each.telling.past) == 2 for wire in each.wires} for one in (fair, told)
    ]
    assert [len(each) for each in keys] == [1, 2]
    assert told.announced == fair.announced
    assert told.exact()[0] < fair.exact()[0]  # in round 2 half of the noise of client 0 is in no other upload


@pytest.mark.parametrize("grace", [0, 1])
def test_a_peer_repeats_noise_of_at_most_one_round_more_than_grace_and_each_in_three_uploads(grace: int) -> None:
    """The step of (W5) on which the room for lies rests, counted on real histories of random stories.

    Counted are rounds of which client 0 is told that it and the peer were used, and uploads of the peer that hold noise
    of theirs beside that of the round.
    """
    plan, most = planned(grace=grace, stragglers=4), 0
    for seed in range(4):
        script = truth(plan, data=5)
        script.asked[0] = True
        script.told[1:, 1:5, 0] = False  # of four rounds peers are told that client 0 was late
        script.told[1:, 5:] = False
        for _, played in climb(plan, script, seed=seed, steps=12, goal=lambda _: 0.0):  # goes on from every change
            most = max([most, *repeated(played, grace)])
    assert most == 1 + grace


def repeated(played: Played, grace: int) -> Iterator[int]:
    """Of how many used rounds of client 0 each peer repeats noise."""
    mine = [each for each in played.sent if each.telling.client == 0]
    last = mine[-1].telling.past if mine else ()
    used = [last[number + grace][0] for number in range(max(len(last) - grace, 0))]  # as client 0 is told
    for peer in range(1, played.plan.clients):
        uploads = [each.wires for each in played.sent if each.telling.client == peer]
        counts = []
        for each in mine:
            number = len(each.telling.past)
            if number < len(used) and {0, peer} <= {*used[number]} and not each.telling.closing:
                (wire,) = (wire for wire in each.wires if wire[1:3] == (peer, number))
                counts.append(sum(wire in wires for wires in uploads) - 1)
        assert max(counts, default=0) <= 1 + RETRIES
        yield sum(count > 0 for count in counts)
