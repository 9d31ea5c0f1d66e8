"""Who owes which repair, and for how long (R1)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp.client_set import ClientSet
from lightdp.noise_graph import Graph
from lightdp.repair import RETRIES, Debt, Repairs, Window, late_cost, lie_cost, worst_cost


def some(*clients: int) -> ClientSet:
    return ClientSet.of(5, clients)


def test_a_used_client_owes_what_its_absent_neighbours_left_until_it_is_used_again() -> None:
    repairs = Repairs(Graph(5, 4))
    assert repairs.close(0, some(0, 1, 2), some(0, 1, 2)).paid == {}
    assert repairs.owed == dict.fromkeys((0, 1, 2), Debt(0, 2, RETRIES + 1))
    settled = repairs.close(1, some(0, 3, 4), some(0, 3, 4))
    assert (settled.paid, settled.given_up) == ({0: Debt(0, 2, RETRIES + 1)}, {})
    assert repairs.owed == {i: Debt(0 if i in {1, 2} else 1, 2, RETRIES + 1) for i in (1, 2, 0, 3, 4)}
    repairs.close(2, ClientSet.all(5), ClientSet.all(5))
    assert repairs.owed == {}


def test_a_repair_that_comes_too_late_is_sent_again_and_then_given_up() -> None:
    repairs = Repairs(Graph(5, 4))
    repairs.close(0, some(0, 1, 2, 3), some(0, 1, 2, 3))
    for number in range(1, RETRIES + 1):
        assert not repairs.close(number, some(), some(0)).given_up
        assert (repairs.owed[0].tries, repairs.owed[1].tries) == (RETRIES + 1 - number, RETRIES + 1)
    settled = repairs.close(9, some(1, 2, 3, 4), some(0, 1, 2, 3, 4))
    assert settled.given_up == {0: Debt(0, 1, 1)}
    assert list(settled.paid) == [1, 2, 3]
    assert 0 not in repairs.owed
    assert repairs.owed[1] == Debt(9, 1, RETRIES + 1)


@given(data=st.data(), degree=st.sampled_from([2, 4, 5]))
def test_debts_are_those_of_the_neighbours_whoever_is_tracked(data: st.DataObject, degree: int) -> None:
    graph = Graph(6, degree)
    everybody, one = Repairs(graph), Repairs(graph, [3])
    adjacency = graph.adjacency()
    for number in range(4):
        used = ClientSet(np.array(data.draw(st.lists(st.booleans(), min_size=6, max_size=6))))
        sent = used | ClientSet(np.array(data.draw(st.lists(st.booleans(), min_size=6, max_size=6))))
        whole, mine = everybody.close(number, used, sent), one.close(number, used, sent)
        assert everybody.owed.get(3) == one.owed.get(3)
        assert (whole.paid.get(3), whole.given_up.get(3)) == (mine.paid.get(3), mine.given_up.get(3))
        for i in used:
            absent = int((adjacency[i] & ~used.flags).sum())
            assert everybody.owed.get(i) == (Debt(number, absent, RETRIES + 1) if absent else None)


def test_a_window_closes_peer_by_peer_and_never_for_one_that_is_away() -> None:
    window = Window(2.0, 3, some(1, 2, 3, 4).flags, 0.2, np.zeros(5, np.int64))
    assert window.cost(5) == late_cost(2.0, 3, 0.2)
    assert window.cost(5, all_late=True) == pytest.approx(late_cost(2.0, 3, 0.2 + RETRIES / 5, 3 * RETRIES))
    for _ in range(RETRIES + 3):
        window.close(some(1, 2), some(3))
    assert window.retries.tolist() == [0, 0, 0, RETRIES, 0]
    assert window.cost(5) == pytest.approx(late_cost(2.0, 3, 0.2 + RETRIES / 3 / 5, RETRIES))
    assert (window.riders(), window.riders(some(4)), window.riders(some(1))) == (2, 1, 0)
    window.close(some(3, 4), some())
    assert not window.waiting.any()


def test_costs_without_pairwise_noise_or_peers_are_those_of_local_noise() -> None:
    assert late_cost(0.0, 5, 0.2) == late_cost(1.0, 0, 0.2) == late_cost(1.0, 5, 2.0) == 1.0
    assert worst_cost(0.0, 5, 2, "unseen") == worst_cost(0.0, 5, 2, "seen") == worst_cost(3.0, 1, 0, "seen") == 1.0
    assert worst_cost(4.0, 40, 10, "seen") > worst_cost(4.0, 40, 10, "unseen")


def star(gamma: float, copies: Sequence[int]) -> float:
    """The exact cost of an upload whose noise with each peer is in so many other uploads, by a matrix inverse (E2)."""
    rows = [[1.0] * len(copies)]
    rows += [[-float(j == peer) for j in range(len(copies))] for peer, n in enumerate(copies) for _ in range(n)]
    pairwise = np.array(rows)
    return float(np.linalg.inv(np.eye(len(rows)) + gamma * pairwise @ pairwise.T)[0, 0])


@pytest.mark.parametrize("gamma", [0.1, 2.0, 50.0])
@pytest.mark.parametrize("peers", [1, 4, 9])
def test_a_late_round_costs_what_the_exact_covariance_says_if_peers_repair_alike(gamma: float, peers: int) -> None:
    for retries in range(RETRIES + 1):
        exact = star(gamma, [2 + retries] * peers)
        assert late_cost(gamma, peers, 0.0, retries * peers) == pytest.approx(exact, rel=1e-12)
    uneven = [2 + RETRIES, *[2] * (peers - 1)]
    assert late_cost(gamma, peers, 0.0, RETRIES) >= star(gamma, uneven) - 1e-12


@given(spread=st.floats(0.01, 10), crossed=st.floats(0, 3))
def test_a_late_round_with_cross_terms_costs_the_least_of_all_ways_to_share_it(spread: float, crossed: float) -> None:
    shares = np.linspace(0, 1, 20001)
    least = float((shares**2 * spread + (1 - shares) ** 2 + shares * crossed).min())
    cost = late_cost(1e9, 1000, crossed, (spread - 2e-3) * 1000**2)  # s = spread
    assert least - 1e-6 <= cost <= least + 1e-6
    assert cost <= min(1.0, spread + crossed) + 1e-9


@pytest.mark.parametrize("gamma", [0.1, 2.0, 50.0])
@pytest.mark.parametrize("used", [2, 3, 8, 30])
def test_a_used_round_costs_no_more_than_the_lies_told_in_it_are_charged(gamma: float, used: int) -> None:
    """(W5): u(a) + k e(a), met where all peers leave; also with the explanation that keeps cross terms as they are."""
    fair, lie = (1 + gamma) / (used * gamma + 1), lie_cost(gamma, used, 0)
    one, four = gamma / (1 + gamma), gamma / (1 + (2 + RETRIES) * gamma)
    whole = 1 + (used - 1) * one
    for leave in range(used):
        exact = star(gamma, [2 + RETRIES] * leave + [1] * (used - 1 - leave))
        explained = (whole - 1 - leave * one + (1 + leave * one) ** 2 / (1 + leave * four)) / whole**2
        moved = (1 + leave * one) * four / (1 + leave * four) / whole  # of each n_j of a peer that leaves
        assert exact - 1e-12 <= explained <= fair + leave * lie + 1e-12
        assert moved <= one / whole + 1e-12
    assert explained == pytest.approx(exact) == pytest.approx(fair + (used - 1) * lie)


@given(gamma=st.floats(0.05, 500), honest=st.integers(2, 60), missing=st.floats(0, 1), crossed=st.floats(0, 1.5))
def test_room_is_kept_for_the_worst_of_all_rounds_and_lies(
    gamma: float, honest: int, missing: float, crossed: float
) -> None:
    """(W5) by trying every number of peers that lied before, in rounds with every number of used peers."""
    stragglers = round(missing * (honest - 1))
    least, lie = honest - stragglers, lie_cost(gamma, honest, stragglers)
    room = worst_cost(gamma, honest, stragglers, "seen", crossed)
    tried = []
    for peers in range(least, honest):
        fresh = np.arange(peers + 1)  # of the used peers: they have not lied before and retry their repairs
        spread = 1 / gamma / peers + (2 + RETRIES) * fresh / peers**2
        x = crossed + fresh / peers * (1 / least + RETRIES / honest)
        late = 1 - np.maximum(1 - x / 2, 0) ** 2 / (1 + spread)
        tried.append(float((late + (honest - 1 - fresh) * lie).max()))
    used = [min(1.0, (1 + gamma) / (a * gamma + 1) + crossed) + (honest - 1) * lie for a in range(least, honest + 1)]
    best = max([*tried, *used])
    assert best - 1e-12 <= room
    if honest > 20 and best > max(used):
        assert room <= best * 1.01  # the largest between two whole numbers of peers


def test_lies_about_late_rounds_add_less_than_those_about_used_ones() -> None:
    for gamma, peers in itertools.product((0.01, 0.3, 4.0, 900.0), range(1, 40)):
        more = star(gamma, [2 + RETRIES] * peers) - star(gamma, [2] * peers)
        assert more <= peers * lie_cost(gamma, max(peers, 2), 0) * 2 / 3 + 1e-12
