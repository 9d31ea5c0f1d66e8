from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import KeyPair
from lightdp.wire import Accumulator
from lightdp_lab.schemes import Faults, Grid, Links, Net, RoundFailedError, Task
from lightdp_lab.schemes import _secagg as parties
from lightdp_lab.schemes.secagg import SecAgg, SecAggPlus

if TYPE_CHECKING:
    from collections.abc import Callable

TASK = Task(clients=12, colluders=2, stragglers=3, dimension=700, epsilon=8.0, rounds=5)
GRID = Grid(1e-4, 20, 0.0)  # without noise, so that sums are exact
KINDS: dict[str, Callable[[], SecAgg]] = {
    "secagg": lambda: SecAgg(TASK),
    "ring of 6": lambda: SecAgg(TASK, degree=6),
    "secagg+": lambda: SecAggPlus(TASK),
}
LINKS = [Links(), Links(peers="direct")]


def quiet(kind: str = "secagg") -> SecAgg:
    scheme = KINDS[kind]()
    scheme.__dict__["grid"] = GRID
    return scheme


def updates() -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    drawn = np.random.default_rng(2).normal(size=(TASK.clients, TASK.dimension))
    return list((drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * TASK.clip).astype(np.float32))


def exact(used: frozenset[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.sum([np.rint(updates()[i].astype(np.float64) / GRID.step) for i in used], axis=0) * GRID.step


class Tampering(Net):
    """Changes one byte of what one client sends, or gets, in one stage."""

    def __init__(self, stage: str, sender: int, receiver: int | None = None) -> None:
        super().__init__(TASK.clients)
        self._where, self._sender, self._receiver = stage, sender, receiver

    def _changed(self, message: bytes | None) -> bytes | None:
        return None if message is None else message[:5] + bytes([message[5] ^ 64]) + message[6:]

    def up(self, client: int, message: bytes) -> bytes | None:
        here = (self.stages[-1].name, client, None) == (self._where, self._sender, self._receiver)
        return self._changed(super().up(client, message)) if here else super().up(client, message)

    def between(self, sender: int, receiver: int, message: bytes) -> bytes | None:
        arrived = super().between(sender, receiver, message)
        here = (self.stages[-1].name, sender, receiver) == (self._where, self._sender, self._receiver)
        return self._changed(arrived) if here else arrived


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", range(4))
def test_so_many_may_be_lost_at_any_stage_and_the_sum_is_exact(kind: str, stage: int, links: Links) -> None:
    lost = frozenset({0, 5, 11})
    net = Net(TASK.clients, links, Faults(lost={stage: lost}))
    result = quiet(kind).round(updates(), net)
    assert result.used == frozenset(range(TASK.clients)) - (lost if stage < 3 else frozenset())
    assert result.total == pytest.approx(exact(result.used), abs=1e-9)
    assert [stage.name for stage in net.stages] == ["advertise", "share", "upload", "unmask"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", range(3))
def test_one_more_before_the_upload_ends_the_round(kind: str, stage: int) -> None:
    with pytest.raises(RoundFailedError, match="8 clients, 9 needed") as failure:
        quiet(kind).round(updates(), Net(TASK.clients, faults=Faults(lost={stage: frozenset({0, 1, 5, 11})})))
    assert failure.value.stage == ("advertise" if stage == 0 else "upload")


def test_at_the_end_threshold_many_are_enough_and_one_fewer_is_not() -> None:
    scheme = quiet()
    spare = TASK.clients - scheme.threshold
    result = scheme.round(updates(), Net(TASK.clients, faults=Faults(lost={3: frozenset(range(spare))})))
    assert result.total == pytest.approx(exact(frozenset(range(TASK.clients))), abs=1e-9)
    with pytest.raises(RoundFailedError) as failure:
        scheme.round(updates(), Net(TASK.clients, faults=Faults(lost={3: frozenset(range(spare + 1))})))
    assert failure.value.stage == "unmask"


def test_a_neighbourhood_with_too_few_shares_ends_the_round() -> None:
    scheme = quiet("ring of 6")
    lost = frozenset(range(TASK.clients - scheme.threshold))  # t answer, but nobody has all of them as peers
    with pytest.raises(RoundFailedError, match="shares of client") as failure:
        scheme.round(updates(), Net(TASK.clients, faults=Faults(lost={3: lost})))
    assert failure.value.stage == "unmask"


def test_direct_links_that_are_cut_only_take_masks_away() -> None:
    cut = frozenset({(0, 1), (0, 2), (3, 9), (4, 5)})
    faults = Faults(cut=cut, lost={2: frozenset({2, 9})})
    result = quiet().round(updates(), Net(TASK.clients, Links(peers="direct"), faults))
    assert result.used == frozenset(range(TASK.clients)) - {2, 9}
    assert result.total == pytest.approx(exact(result.used), abs=1e-9)


def test_a_client_cut_off_from_too_many_peers_ends_the_round() -> None:
    scheme = quiet()
    spare = TASK.clients - scheme.threshold
    links = Links(peers="direct")
    for cuts in (spare, spare + 1):
        net = Net(TASK.clients, links, Faults(cut=frozenset((0, j) for j in range(1, 1 + cuts))))
        if cuts == spare:
            assert scheme.round(updates(), net).total == pytest.approx(exact(frozenset(range(12))), abs=1e-9)
        else:  # it gives up, and what its peers hold does not open its masks
            with pytest.raises(RoundFailedError, match="shares of client 0") as failure:
                scheme.round(updates(), net)
            assert failure.value.stage == "unmask"


def test_who_gets_a_tampered_share_gives_up_and_is_recovered() -> None:
    result = quiet().round(updates(), Tampering("share", 3, 7))
    assert result.used == frozenset(range(TASK.clients)) - {7}
    assert result.total == pytest.approx(exact(result.used), abs=1e-9)


def test_a_tampered_answer_ends_the_round() -> None:
    with pytest.raises(RoundFailedError, match="do not belong together") as failure:
        quiet().round(updates(), Tampering("unmask", 0))
    assert failure.value.stage == "unmask"


def test_a_mask_that_only_one_side_has_ends_the_round() -> None:
    class OneWay(Net):
        def between(self, sender: int, receiver: int, message: bytes) -> bytes | None:
            return None if (sender, receiver) == (2, 6) else super().between(sender, receiver, message)

    with pytest.raises(RoundFailedError, match="do not agree") as failure:
        quiet().round(updates(), OneWay(TASK.clients))
    assert failure.value.stage == "upload"


def test_an_upload_shows_nothing_of_the_update_even_with_all_pairwise_masks_gone() -> None:
    scheme, sent = quiet(), {}

    class Tap(Net):
        def up(self, client: int, message: bytes) -> bytes | None:
            sent[self.stages[-1].name, client] = message
            return super().up(client, message)

    result = scheme.round(updates(), Tap(TASK.clients))
    vectors = []
    for i in range(TASK.clients):
        total = Accumulator(TASK.dimension, GRID.bits)
        total.add(sent["upload", i][2:])
        vectors.append(total.total().astype(np.int64))
        assert abs(np.corrcoef(vectors[-1], updates()[i])[0, 1]) < 0.2
        assert vectors[-1].std() == pytest.approx(2**20 / np.sqrt(12), rel=0.1)
    pairwise_gone = GRID.decode(np.sum(vectors, axis=0))
    assert abs(np.corrcoef(pairwise_gone, result.total)[0, 1]) < 0.2


def played(scheme: SecAgg, upto: int) -> list[parties.Client]:
    """Clients that know each other and, after step 3, have uploaded."""
    clients, server = [parties.Client(i, scheme) for i in range(TASK.clients)], parties.Server(scheme)
    server.keys = {i: client.advertise() for i, client in enumerate(clients)}
    sealed = [client.share(server.roster(i)) for i, client in enumerate(clients)] if upto >= 2 else []
    if upto >= 3:
        for i, client in enumerate(clients):
            client.upload([(j, shares[i]) for j, shares in enumerate(sealed) if i in shares], updates()[i])
    return clients


def test_a_client_reveals_one_share_of_each_peer_and_only_once() -> None:
    client = played(quiet(), 3)[4]
    flags = np.arange(TASK.clients) != 7
    answer = parties.table(client.unmask(ClientSet(flags).to_bytes()), TASK.clients)[:, 0]
    for j, share in enumerate(answer):
        assert np.array_equal(share, client._held[j][parties.SEED if j != 7 else parties.PAIR])
        assert not np.array_equal(share, client._held[j][parties.PAIR if j != 7 else parties.SEED])
    with pytest.raises(ProtocolError, match="step 4 after step 4"):
        client.unmask(ClientSet(np.arange(TASK.clients) != 8).to_bytes())


@pytest.mark.parametrize("flags", [np.arange(12) != 4, np.arange(12) < 8])
def test_a_client_answers_no_list_without_itself_or_too_short(
    flags: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> None:
    with pytest.raises(ProtocolError, match="needed"):
        played(quiet(), 3)[4].unmask(ClientSet(flags).to_bytes())


@pytest.mark.parametrize("wrong", ["oneself", "twice", "cut", "too few"])
def test_a_list_of_keys_that_is_wrong_is_refused(wrong: str) -> None:
    entries = [i.to_bytes(4, "little") + KeyPair.generate().public * 2 for i in range(TASK.clients)]
    lists = {
        "oneself": b"".join(entries),
        "twice": b"".join([*entries[1:], entries[1]]),
        "cut": b"".join(entries[1:])[:-1],
        "too few": b"".join(entries[1:3]),
    }
    with pytest.raises(ProtocolError, match="needed" if wrong == "too few" else "list of peers"):
        played(quiet(), 1)[0].share(lists[wrong])


def test_shares_of_another_key_than_the_advertised_end_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    class Liar(parties.Client):
        def share(self, keys: bytes) -> dict[int, bytes]:
            if self.me == 5:
                self._secrets[parties.PAIR] = bytes(range(32))
            return super().share(keys)

    monkeypatch.setattr("lightdp_lab.schemes.secagg.Client", Liar)
    with pytest.raises(RoundFailedError, match="another key") as failure:
        quiet().round(updates(), Net(TASK.clients, faults=Faults(lost={2: frozenset({5})})))
    assert failure.value.stage == "unmask"


@pytest.mark.parametrize("clients", [3, 8, 50, 51])
def test_the_threshold_is_above_colluders_and_leaves_stragglers(clients: int) -> None:
    for colluders in range(clients // 2):
        for stragglers in range(clients // 2):
            t = SecAgg(Task(clients, colluders, stragglers, 10)).threshold
            assert colluders < t <= clients - stragglers
            assert 2 * t > clients + colluders or t == clients - stragglers


@pytest.mark.parametrize(
    ("clients", "colluders", "stragglers"), [(12, 2, 2), (50, 10, 10), (200, 20, 20), (200, 40, 0), (30, 0, 3)]
)
def test_the_degree_is_the_least_whose_failures_are_rare(clients: int, colluders: int, stragglers: int) -> None:
    task = Task(clients, colluders, stragglers, 10)

    def rare(degree: int, threshold: int) -> bool:
        hidden = clients * stats.hypergeom(clients - 1, colluders, degree).sf(threshold - 1)
        opened = clients * stats.hypergeom(clients - 1, stragglers, degree).sf(degree - threshold)
        whole = stats.hypergeom(clients, colluders + stragglers, degree).pmf(degree) * clients**2 / 2
        return bool(max(hidden, opened, whole) <= 2**-40)

    scheme = SecAggPlus(task)
    assert scheme.threshold >= 2
    assert rare(scheme.degree, scheme.threshold)
    assert scheme.threshold == 2 or not rare(scheme.degree, scheme.threshold - 1)
    assert not any(rare(scheme.degree - 2, t) for t in range(2, scheme.degree - 1))


def test_a_ring_gives_everybody_the_same_number_of_mutual_peers_in_new_order_each_round() -> None:
    scheme, rings = quiet("ring of 6"), []
    for _ in range(2):
        server = parties.Server(scheme)
        server.keys = dict.fromkeys(range(TASK.clients), bytes(64))
        peers = [{row[0] for row in parties._KEYS.iter_unpack(server.roster(i))} for i in range(TASK.clients)]
        assert all(len(mine) == 6 and i not in mine for i, mine in enumerate(peers))
        assert all(i in peers[j] for i, mine in enumerate(peers) for j in mine)
        rings.append(peers)
    assert rings[0] != rings[1]


def test_colluders_and_lost_do_not_cut_the_ring() -> None:
    task = Task(60, 6, 6, 10)
    scheme, rng = SecAggPlus(task), np.random.default_rng(3)
    assert scheme.degree < 20
    for _ in range(200):
        places = np.sort(rng.choice(60, 48, replace=False))  # of those who are left, on the ring
        gaps = np.diff(places, append=places[0] + 60)
        assert (gaps > scheme.degree // 2).sum() <= 1


def test_fewer_peers_cost_a_client_fewer_bytes() -> None:
    nets = []
    for degree in (None, 4):
        scheme = SecAgg(TASK, degree)
        nets.append(Net(TASK.clients))
        scheme.round(updates(), nets[-1])
    assert nets[1].stages[1].up[0] * 2 < nets[0].stages[1].up[0]


def test_bad_degrees_are_named() -> None:
    with pytest.raises(ArgumentError, match="degree must be even"):
        SecAgg(TASK, degree=5)
    with pytest.raises(ArgumentError, match=r"degree must be in 1\.\.11"):
        SecAgg(TASK, degree=12)
