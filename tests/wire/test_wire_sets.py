"""Sets of clients as they travel: every set has one encoding, and no other bytes are read."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp.client_set import ClientSet
from lightdp.errors import WireError
from lightdp.wire import sets
from lightdp.wire.sets import packed_set, read_set

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "sets.json").read_text())


def by_hand(some: ClientSet) -> bytes:
    """The format of more than 1024 clients, bit by bit from its description."""
    members, clients = list(some), some.clients
    others = [i for i in range(clients) if i not in set(members)]
    listed, side = (others, 1) if len(others) < len(members) else (members, 0)
    value, head = 2 * len(listed) + side, []
    while True:
        value, group = divmod(value, 128)
        head.append(group + 128 * (value > 0))
        if value == 0:
            break
    if not listed:
        return bytes(head)
    k = max(k for k in range(40) if len(listed) * 2**k <= clients - len(listed))
    gaps = [after - before - 1 for before, after in itertools.pairwise([-1, *listed])]
    bits = [gap >> at & 1 for gap in gaps for at in range(k)]
    for gap in gaps:
        bits += [0] * (gap >> k) + [1]
    bits += [0] * (-len(bits) % 8)
    octets = [bits[at : at + 8] for at in range(0, len(bits), 8)]
    return bytes(head) + bytes(sum(bit << i for i, bit in enumerate(octet)) for octet in octets)


@given(st.integers(2, 3000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(0, 2**32))))
def test_sets_are_written_as_described_and_read_back(shape: tuple[int, int, int]) -> None:
    clients, count, seed = shape
    some = ClientSet.of(clients, np.random.default_rng(seed).choice(clients, count, replace=False).tolist())
    data = sets._packed_gaps(some)
    assert data == by_hand(some)
    assert sets._read_gaps(data + b"\xff", clients) == (some, len(data))
    travels = some.to_bytes() if clients <= 1024 else data
    assert packed_set(some) == travels
    assert read_set(travels + b"\xff", clients) == (some, len(travels))


@pytest.mark.parametrize("clients", range(1, 10))
def test_each_set_has_its_own_bytes_and_no_others_are_read(clients: int) -> None:
    """All sets of a few clients, and all bytes of up to two."""
    every = [ClientSet.of(clients, np.flatnonzero(flags).tolist()) for flags in np.ndindex(*(2,) * clients)]
    written = {sets._packed_gaps(each): each for each in every}
    assert len(written) == len(every) == 2**clients
    accepted = 0
    for data in itertools.chain(*(map(bytes, itertools.product(range(256), repeat=size)) for size in (1, 2))):
        try:
            found, size = sets._read_gaps(data, clients)
        except WireError:
            continue
        assert written[data[:size]] == found
        accepted += size == len(data)
    assert accepted == sum(len(data) <= 2 for data in written)


@given(data=st.binary(max_size=60), clients=st.sampled_from([1025, 2000, 100_000, 2**20]))
def test_random_bytes_are_refused_or_are_the_encoding_of_what_they_give(data: bytes, clients: int) -> None:
    try:
        found, size = read_set(data, clients)
    except WireError:
        return
    assert packed_set(found) == data[:size]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "begin with its size, got nothing"),
        ("80", "begin with its size"),
        ("ffffffffff", "begin with its size"),
        ("8000", "the shortest form"),
        ("d10f", "smaller side, got 1000"),
        ("ff1f", "smaller side"),
        ("02", "not where they are"),
        ("020000000000", "not where they are"),
        ("02ff0b", "beyond"),
        ("020014", "padding"),
    ],
)
def test_bytes_that_are_no_set_are_refused(data: str, why: str) -> None:
    with pytest.raises(WireError, match=why):
        read_set(bytes.fromhex(data), 2000)


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{each['clients']}-{len(each['listed'])}" for each in VECTORS])
def test_golden_vectors(vector: dict[str, object]) -> None:
    clients, listed = int(str(vector["clients"])), ClientSet.of(int(str(vector["clients"])), vector["listed"])  # type: ignore[arg-type]
    some = ~listed if vector["others"] else listed
    assert packed_set(some).hex() == vector["bytes"]
    assert read_set(bytes.fromhex(str(vector["bytes"])), clients)[0] == some


SIZES = {0: 1, 100: 160, 1_000: 1_050, 10_000: 6_200, 50_000: 12_510}


@pytest.mark.parametrize(("stragglers", "most"), SIZES.items())
def test_a_hundred_thousand_clients_take_no_more_than_a_bitmap_and_less_where_few_straggle(
    stragglers: int, most: int
) -> None:
    for missing in (np.random.default_rng(7).choice(100_000, stragglers, replace=False), np.arange(stragglers)):
        used = ~ClientSet.of(100_000, missing.tolist())
        data = packed_set(used)
        assert len(data) <= most
        assert read_set(data, 100_000) == (used, len(data))
