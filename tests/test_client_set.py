"""Sets of clients: like sets of integers, and as bytes."""

from __future__ import annotations

import copy
import pickle
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, WireError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SETS = st.sets(st.integers(0, 19))


@given(flags=arrays.arrays(np.bool_, st.integers(1, 70)))
def test_set_of_clients_round_trips(flags: NDArray[np.bool_]) -> None:
    data = ClientSet(flags).to_bytes()
    assert [data[i // 8] >> i % 8 & 1 for i in range(flags.size)] == flags.tolist()
    assert ClientSet.from_bytes(data, flags.size).flags.tolist() == flags.tolist()
    assert ClientSet.from_bytes(data, flags.size).flags.dtype == np.bool_


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x00\x02", b"\x00\x80", b"\x00\x00\x00"])
def test_set_with_clients_that_do_not_exist_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        ClientSet.from_bytes(data, 9)


@given(left=SETS, right=SETS)
def test_operations_are_those_of_sets_of_integers(left: set[int], right: set[int]) -> None:
    a, b = ClientSet.of(20, left), ClientSet.of(20, right)
    assert list(a) == sorted(left)
    assert len(a) == len(left)
    assert [i in a for i in range(-1, 21)] == [i in left for i in range(-1, 21)]
    assert set(a & b) == left & right
    assert set(a | b) == left | right
    assert set(a - b) == left - right
    assert set(~a) == set(range(20)) - left
    assert (a == b) == (left == right)
    assert hash(a) == hash(ClientSet.of(20, sorted(left, reverse=True)))
    assert bool(a) == bool(left)
    assert a.isdisjoint(b) == left.isdisjoint(right)
    assert (a <= b) == (left <= right)
    assert a.holds(range(20)) == [i in left for i in range(20)]
    assert [a.holds([i]) for i in range(20)] == [[i in left] for i in range(20)]
    assert a.holds([]) == []


@pytest.mark.parametrize("clients", [1, 7, 8, 9, 4096, 4097, 10_000])
@pytest.mark.parametrize("members", [0, 1, 4, 5, 40])
def test_sets_of_few_and_of_many_clients_are_alike(clients: int, members: int) -> None:
    chosen = sorted({(7919 * i + clients - 1) % clients for i in range(members)})
    found = ClientSet.of(clients, chosen)
    assert list(found) == chosen
    assert [i in found for i in range(-1, clients + 1)] == [i in set(chosen) for i in range(-1, clients + 1)]
    assert np.flatnonzero(found.flags).tolist() == chosen
    assert all(int_like in found for int_like in np.array(chosen, np.int64))
    assert found.holds(range(clients)) == found.flags.tolist()
    with pytest.raises(ArgumentError, match="same clients"):
        found.isdisjoint(ClientSet.none(clients + 1))
    with pytest.raises(ArgumentError, match="same clients"):
        _ = found <= ClientSet.none(clients + 1)


def test_none_and_all_and_sets_of_other_sizes() -> None:
    assert list(ClientSet.none(3)) == []
    assert list(ClientSet.all(3)) == [0, 1, 2]
    assert ClientSet.none(3) != ClientSet.none(4)
    assert ClientSet.none(3) != {0}
    with pytest.raises(ArgumentError, match="same clients, got 3 and 4"):
        _ = ClientSet.none(3) | ClientSet.all(4)
    with pytest.raises(ArgumentError, match="late must be a set of 4 clients, got one of 3"):
        ClientSet.of(4, ClientSet.none(3), name="late")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([4], r"used must be in 0..3, got used=4"),
        ([-1], r"used must be in 0..3, got used=-1"),
        ([1.0], r"used must be an integer, got used=1.0"),
        ([True], "used must be an integer, got used=True"),
    ],
)
def test_members_that_are_no_clients_are_refused_by_name(members: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ClientSet.of(4, members, name="used")


@pytest.mark.parametrize("flags", [np.zeros(3), np.zeros((2, 2), bool), [True, False]])
def test_flags_that_are_no_boolean_vector_are_refused(flags: Any) -> None:
    with pytest.raises(ArgumentError, match="flags must be a boolean vector, got"):
        ClientSet(flags)


def test_a_set_never_changes() -> None:
    flags = np.array([True, False])
    known = ClientSet(flags)
    flags[:] = True
    assert list(known) == [0]
    for same in (known, copy.deepcopy(known), pickle.loads(pickle.dumps(known)), ~known, known & known):  # noqa: S301
        with pytest.raises(ValueError, match="read-only"):
            same.flags[0] = False
    assert copy.deepcopy(known) == known == pickle.loads(pickle.dumps(known))  # noqa: S301  our own bytes


def test_a_million_clients_cost_milliseconds() -> None:
    flags = np.arange(10**6) % 3 == 0
    begun = time.perf_counter()
    used = ClientSet(flags)
    late = ~used & ClientSet.from_bytes((~used).to_bytes(), 10**6)
    assert len(late) == 666_666
    assert late != used
    assert 1 in late
    assert hash(late) == hash(~used)
    assert time.perf_counter() - begun < 0.1  # as Python integers it would be a second
