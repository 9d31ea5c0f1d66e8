"""Who owes which repair, and for how long (R1)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightdp.client_set import ClientSet
from lightdp.noise_graph import Graph
from lightdp.repair import RETRIES, Debt, Debtors, Repairs, Settled, Window, late_cost, lie_cost, worst_cost
from support.repair_rules import Rules


def some(*clients: int) -> ClientSet:
    return ClientSet.of(5, clients)


def settled(repairs: Repairs, number: int, used: ClientSet, sent: ClientSet) -> Settled:
    """A round without grace: its uploads are made, and then its set is known."""
    repairs.ride(number, sent)
    return repairs.close(number, used)


def test_a_used_client_owes_what_its_absent_neighbours_left_until_it_is_used_again() -> None:
    repairs = Repairs(Graph(5, 4))
    old, new = Debt(0, RETRIES + 1), Debt(1, RETRIES + 1)
    assert settled(repairs, 0, some(0, 1, 2), some(0, 1, 2)).paid == {}
    assert repairs.waiting == {old: some(0, 1, 2)}
    found = settled(repairs, 1, some(0, 3, 4), some(0, 3, 4))
    assert (found.paid, found.given_up) == ({old: some(0)}, {})
    assert repairs.waiting == {old: some(1, 2), new: some(0, 3, 4)}
    assert [repairs.owed(i) for i in range(5)] == [(new,), (old,), (old,), (new,), (new,)]
    settled(repairs, 2, ClientSet.all(5), ClientSet.all(5))
    assert repairs.waiting == {}


def test_a_repair_that_comes_too_late_is_sent_again_and_then_given_up() -> None:
    repairs = Repairs(Graph(5, 4))
    settled(repairs, 0, some(0, 1, 2, 3), some(0, 1, 2, 3))
    for number in range(1, RETRIES + 1):
        assert not settled(repairs, number, some(), some(0)).given_up
        assert repairs.owed(0) == (Debt(0, RETRIES + 1 - number),)
        assert repairs.owed(1) == (Debt(0, RETRIES + 1),)
    found = settled(repairs, 9, some(1, 2, 3, 4), some(0, 1, 2, 3, 4))
    assert found.given_up == {Debt(0, 1): some(0)}
    assert found.paid == {Debt(0, RETRIES + 1): some(1, 2, 3)}
    assert repairs.owed(0) == ()
    assert repairs.owed(1) == (Debt(9, RETRIES + 1),)


def test_clients_that_failed_in_different_rounds_share_a_debt_again() -> None:
    """Client 0 fails in round 1 and client 1 in round 2: both have one try less, of the same round."""
    repairs = Repairs(Graph(5, 4))
    settled(repairs, 0, some(0, 1), some(0, 1))
    settled(repairs, 1, some(), some(0))
    settled(repairs, 2, some(), some(1))
    assert repairs.waiting == {Debt(0, RETRIES): some(0, 1)}


def test_under_grace_a_repair_is_in_flight_until_the_set_of_its_round_is_known() -> None:
    """Client 0 is used in rounds 0 and 1; the repair of 0 rides in 2 and, since that was late, in 4.

    The set of round t is known before uploads of round t + 2 are made.
    """
    repairs, zero = Repairs(Graph(5, 4), [0]), some(0)
    first, second, again = Debt(0, RETRIES + 1), Debt(1, RETRIES + 1), Debt(0, RETRIES)
    assert repairs.ride(0, zero) == repairs.ride(1, zero) == {}
    repairs.close(0, some(0, 1, 2, 3))
    assert repairs.ride(2, zero) == {first: zero}
    assert repairs.next(0) is None
    repairs.close(1, some(0, 1, 2, 3))
    assert repairs.ride(3, zero) == {second: zero}
    assert repairs.owed(0) == (first, second)
    assert repairs.close(2, some(1, 2, 3, 4)).paid == {}
    assert repairs.next(0) == again
    assert repairs.ride(4, zero) == {again: zero}
    assert repairs.close(3, ClientSet.all(5)).paid == {second: zero}
    assert repairs.ride(5, zero) == {}
    assert repairs.close(4, ClientSet.all(5)).paid == {again: zero}
    assert (repairs.owed(0), repairs.waiting, repairs.flying) == ((), {}, {})


def test_the_oldest_debt_rides_first() -> None:
    repairs = Repairs(Graph(5, 4), [0])
    repairs.close(0, some(0, 1, 2, 3))
    repairs.close(1, some(0, 1, 2, 3))
    assert repairs.next(0) == Debt(0, RETRIES + 1)
    assert repairs.ride(2, some(0)) == {Debt(0, RETRIES + 1): some(0)}
    assert repairs.next(0) == Debt(1, RETRIES + 1)


@given(data=st.data(), degree=st.sampled_from([2, 4, 5]), grace=st.integers(0, 1))
@settings(deadline=None)
def test_debts_are_those_of_the_rules_whoever_is_tracked(data: st.DataObject, degree: int, grace: int) -> None:
    """Against the rules applied to all that happened, for a client with random sets and uploads."""
    graph, me, rounds = Graph(6, degree), 3, 7
    flags = st.lists(st.booleans(), min_size=6, max_size=6)
    used = [ClientSet(np.array(data.draw(flags))) for _ in range(rounds)]
    sent = [each | ClientSet(np.array(data.draw(flags))) for each in used]
    everybody, one = Repairs(graph), Repairs(graph, [me])
    mine = {number for number, each in enumerate(sent) if me in each}
    rules = Rules(me, graph.neighbours_of(me).tolist(), used, mine, grace)

    def mine_of(debtors: Debtors) -> list[Debt]:
        return [debt for debt, clients in debtors.items() if me in clients]

    for number in range(rounds):
        riding, alone = everybody.ride(number, sent[number]), one.ride(number, sent[number])
        assert mine_of(riding) == mine_of(alone)
        carried = next((debt.round for debt in mine_of(riding)), None)
        assert carried == (rules.carries(number) if me in sent[number] else None)
        if number >= grace:
            final = number - grace
            whole, part = everybody.close(final, used[final]), one.close(final, used[final])
            assert [mine_of(each) for each in whole] == [mine_of(each) for each in part]
        owed = everybody.owed(me)
        assert owed == one.owed(me)
        assert {debt.round for debt in owed} == {of for of in range(number + 1 - grace) if rules.owes(of, number + 1)}
        for debt in owed:
            assert everybody.absent(used[debt.round])[me] == one.absent(used[debt.round])[0]
            assert everybody.absent(used[debt.round])[me] == len(rules.absent(debt.round))
            assert debt.tries == RETRIES + 1 - rules.fates(debt.round, number + 1).count("missed")
        assert len(owed) <= 1 + grace


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
    assert worst_cost(0.0, 5, 2, seen=False) == worst_cost(0.0, 5, 2) == worst_cost(3.0, 1, 0) == 1.0
    assert worst_cost(4.0, 40, 10, grace=1) > worst_cost(4.0, 40, 10) > worst_cost(4.0, 40, 10, seen=False)


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
    room = worst_cost(gamma, honest, stragglers, crossed=crossed)
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


@given(
    retries=st.lists(st.integers(0, RETRIES), min_size=6, max_size=6),
    waiting=st.lists(st.booleans(), min_size=6, max_size=6),
    honest=st.integers(1, 6),
)
def test_a_window_counts_the_most_retries_that_honest_peers_may_have(
    retries: list[int], waiting: list[bool], honest: int
) -> None:
    window = Window(2.0, honest, np.array(waiting), 0.2, np.array(retries))
    most = (
        sorted(retries)[-honest:],
        sorted([RETRIES if w else r for r, w in zip(retries, waiting, strict=True)])[-honest:],
    )
    for all_late, chosen in zip((False, True), most, strict=True):
        crossed = 0.2 + sum(chosen) / (honest * 7)
        assert window.cost(7, all_late=all_late) == late_cost(2.0, honest, crossed, sum(chosen))
    assert window.riders() == min(sum(waiting), honest)
