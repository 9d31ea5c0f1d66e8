"""Who owes which repair, and for how long (R1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp.client_set import ClientSet
from lightdp.noise_graph import Graph
from lightdp.repair import RETRIES, Debt, Repairs, Window, late_cost, worst_cost, worst_late_cost


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
    window = Window(3, some(1, 2, 3, 4).flags, 0.2, np.zeros(5, np.int64))
    assert window.cost(5) == 0.2
    assert window.cost(5, all_late=True) == pytest.approx(min(1.0, 0.2 + RETRIES * (1 / 3 + 1 / 5)))
    for _ in range(RETRIES + 3):
        window.close(some(1, 2), some(3))
    assert window.retries.tolist() == [0, 0, 0, RETRIES, 0]
    assert window.cost(5) == pytest.approx(0.2 + RETRIES / 3 * (1 / 3 + 1 / 5))
    assert (window.riders(), window.riders(some(4)), window.riders(some(1))) == (2, 1, 0)
    window.close(some(3, 4), some())
    assert not window.waiting.any()


def test_costs_without_pairwise_noise_or_peers_are_those_of_local_noise() -> None:
    assert late_cost(0.0, 5, 5) == late_cost(1.0, 0, 5) == worst_late_cost(1.0, 3, 3) == 1.0
    assert worst_cost(0.0, 5, 2, "unseen") == 1.0
    assert worst_cost(4.0, 40, 10, "seen") > worst_cost(4.0, 40, 10, "unseen")


def test_room_for_lies_comes_on_top_of_cross_terms() -> None:
    """(W5): with many stragglers lies cost more than any late round, and cross terms with repairs come beside them."""
    alone = worst_cost(4.0, 12, 9, "seen")
    assert alone > worst_late_cost(4.0, 12, 9)
    assert worst_cost(4.0, 12, 9, "seen", 0.1) == pytest.approx(alone + 0.1)
