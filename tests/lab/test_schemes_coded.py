from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.wire import packed_size
from lightdp_lab.schemes import Faults, Grid, Links, Net, RoundFailedError, Task
from lightdp_lab.schemes._coded import Letters, agree
from lightdp_lab.schemes.lightsecagg import LightSecAgg
from lightdp_lab.schemes.swiftagg import SwiftAgg

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lightdp_lab.schemes._coded import Coded
    from lightdp_lab.schemes._net import Peers

    Scribe = Callable[[int, int, bytes], bytes]

TASK = Task(clients=13, colluders=1, stragglers=2, dimension=301, epsilon=8.0, rounds=5)
EVERYBODY = frozenset(range(TASK.clients))
SEALED = 28  # bytes around a letter: nonce and tag
MAKE: dict[str, Callable[[], Coded]] = {
    "lightsecagg": lambda: LightSecAgg(TASK),
    "lightsecagg, U = 5": lambda: LightSecAgg(TASK, survivors=5),
    "swiftagg+": lambda: SwiftAgg(TASK, groups=1),
    "swiftagg+, 2 groups": lambda: SwiftAgg(TASK, groups=2),
    "swiftagg+, 3 groups": lambda: SwiftAgg(TASK, groups=3),
}
every = pytest.mark.parametrize("name", MAKE)


class Tap(Net):
    """A network that is listened to, and on which letters may be rewritten."""

    def __init__(
        self,
        faults: Faults | None = None,
        peers: Peers = "relayed",
        scribe: Scribe | None = None,
        garbled: tuple[str, Collection[int], bytes] | None = None,
    ) -> None:
        super().__init__(TASK.clients, Links(peers=peers), faults)
        self.ups: list[tuple[str, int, bytes]] = []
        self.letters: list[tuple[int, int, bytes]] = []
        self._scribe, self._garbled, self._relaying = scribe, garbled, False

    def up(self, client: int, message: bytes) -> bytes | None:
        if not self._relaying:
            self.ups.append((self._now.name, client, message))
            if self._garbled is not None and self._garbled[0] == self._now.name and client in self._garbled[1]:
                message = self._garbled[2] * (len(message) // len(self._garbled[2]))
        return super().up(client, message)

    def between(self, sender: int, receiver: int, message: bytes) -> bytes | None:
        self.letters.append((sender, receiver, message))
        if self._scribe is not None:
            message = self._scribe(sender, receiver, message)
        self._relaying = True
        arrived = super().between(sender, receiver, message)
        self._relaying = False
        return arrived


@cache
def quiet(name: str) -> Coded:
    """A scheme without noise, whose sum is known to the last step; set up once, as rounds depend on none before."""
    scheme = MAKE[name]()
    scheme.grid = Grid(scheme.grid.step, scheme.grid.bits, 0.0)
    scheme.set_up(Net(TASK.clients))
    return scheme


def updates(seed: int = 0) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    drawn = np.random.default_rng(seed).normal(size=(TASK.clients, TASK.dimension))
    return list((drawn * 3).astype(np.float32))  # far beyond the clip: values take several steps


def steps(scheme: Coded, who: Collection[int]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return sum((np.rint(updates()[i] / np.float64(scheme.grid.step)) for i in who), np.zeros(TASK.dimension))


def check(scheme: Coded, net: Net, used: Collection[int]) -> None:
    """The sum of these clients and nobody else, exactly."""
    result = scheme.round(updates(), net)
    assert result.used == frozenset(used)
    assert np.array_equal(np.rint(result.total / scheme.grid.step), steps(scheme, used))


@every
@pytest.mark.parametrize("peers", ["relayed", "direct"])
def test_the_sum_is_exact_on_the_grid(name: str, peers: Peers) -> None:
    check(quiet(name), Tap(peers=peers), EVERYBODY)


@every
@pytest.mark.parametrize("stage", range(5))
@pytest.mark.parametrize("peers", ["relayed", "direct"])
def test_as_many_as_the_task_says_may_drop_at_any_stage(name: str, stage: int, peers: Peers) -> None:
    scheme, lost = quiet(name), frozenset({1, 9})
    uploads_at = 1 if isinstance(scheme, LightSecAgg) else 0  # whoever is lost later is in the sum
    used = EVERYBODY - lost if stage <= uploads_at else EVERYBODY
    check(scheme, Tap(Faults(lost={stage: lost}), peers), used)


@every
def test_losses_at_several_stages_add_up_to_the_same_bound(name: str) -> None:
    check(quiet(name), Tap(Faults(lost={0: frozenset({12}), 2: frozenset({3})})), EVERYBODY - {12})


@pytest.mark.parametrize(
    ("name", "stage", "lost", "fails"),
    [
        ("lightsecagg", 0, {0, 1, 5}, "upload"),
        ("lightsecagg", 1, {0, 1, 5}, "upload"),
        ("lightsecagg", 2, {0, 1, 5}, "recovery"),
        ("lightsecagg, U = 5", 0, {0, 1, 5}, "upload"),
        ("lightsecagg, U = 5", 1, {0, 1, 5}, "upload"),
        ("swiftagg+", 0, {0, 1, 5}, "reports"),
        ("swiftagg+", 1, {0, 1, 5}, "reports"),
        ("swiftagg+", 2, {0, 1, 5}, "sums 1"),
        ("swiftagg+, 2 groups", 0, {0, 7, 8}, "reports"),
        ("swiftagg+, 2 groups", 1, {0, 7, 8}, "reports"),
        ("swiftagg+, 2 groups", 2, {0, 7, 8}, "sums 2"),
        ("swiftagg+, 2 groups", 3, {6, 7, 8}, "sums 2"),
        ("swiftagg+, 3 groups", 3, {4, 9, 10}, "sums 3"),
    ],
)
def test_one_past_the_bound_is_a_typed_failure(name: str, stage: int, lost: set[int], fails: str) -> None:
    net = Tap(Faults(lost={stage: frozenset(lost)}))
    with pytest.raises(RoundFailedError) as failure:
        quiet(name).round(updates(), net)
    assert failure.value.stage == fails
    assert fails in {stage.name for stage in net.stages}


def test_losses_in_one_chain_cost_one_position() -> None:
    check(quiet("swiftagg+, 2 groups"), Tap(Faults(lost={2: frozenset({0, 6, 3, 9})})), EVERYBODY)


def test_a_smaller_u_survives_more_losses_at_recovery() -> None:
    late = Faults(lost={2: frozenset(range(8))})
    check(quiet("lightsecagg, U = 5"), Tap(late), EVERYBODY)
    with pytest.raises(RoundFailedError, match="recovery: 5 answers came, 11 are needed"):
        quiet("lightsecagg").round(updates(), Tap(late))


@every
def test_a_client_cut_off_from_its_peers_is_left_out_by_all(name: str) -> None:
    cut = frozenset((min(4, j), max(4, j)) for j in EVERYBODY - {4})
    check(quiet(name), Tap(Faults(cut=cut), peers="direct"), EVERYBODY - {4})


@every
def test_one_broken_link_costs_nobody_the_sum(name: str) -> None:
    check(quiet(name), Tap(Faults(cut=frozenset({(0, 1)})), peers="direct"), EVERYBODY)


def test_a_broken_chain_silences_its_positions_and_one_too_many_the_round() -> None:
    scheme = quiet("swiftagg+, 2 groups")
    assert isinstance(scheme, SwiftAgg)
    links = [(chain[0], chain[1]) for chain in map(scheme.chain, range(3))]
    net = Tap(Faults(cut=frozenset(links[:2])), peers="direct")
    check(scheme, net, EVERYBODY)
    assert len([client for stage, client, _ in net.ups if stage == "sums 2"]) == scheme.positions - 2
    with pytest.raises(RoundFailedError, match="sums 2: 3 positions came through, 4 are needed"):
        scheme.round(updates(), Tap(Faults(cut=frozenset(links)), peers="direct"))


@every
def test_random_faults_end_in_the_exact_sum_or_in_a_typed_failure(name: str) -> None:
    scheme, rng, came = quiet(name), np.random.default_rng(5), 0
    for _ in range(25):
        links = Links(peers="direct", failure=0.02)
        silent, stage = rng.random(TASK.clients) < 0.03, rng.integers(4, size=TASK.clients)
        lost = {k: frozenset(np.flatnonzero(silent & (stage == k)).tolist()) for k in range(4)}
        faults = replace(Faults.drawn(links, TASK.clients, rng), lost=lost)
        try:
            result = scheme.round(updates(), Net(TASK.clients, links, faults))
        except RoundFailedError:
            continue
        came += 1
        assert len(result.used) >= scheme.least
        assert np.array_equal(np.rint(result.total / scheme.grid.step), steps(scheme, result.used))
    assert came > 0


@every
@pytest.mark.parametrize("byte", [0, 20, -1])
def test_a_letter_that_was_tampered_with_counts_as_lost(name: str, byte: int) -> None:
    def scribe(sender: int, receiver: int, letter: bytes) -> bytes:
        changed = bytearray(letter)
        changed[byte] ^= sender == 4 and receiver != 4
        return bytes(changed)

    check(quiet(name), Tap(scribe=scribe), EVERYBODY - {4})


@every
def test_letters_of_an_earlier_round_do_not_open(name: str) -> None:
    scheme, before = quiet(name), Tap()
    check(scheme, before, EVERYBODY)
    old = {(sender, receiver): letter for sender, receiver, letter in reversed(before.letters)}
    check(
        scheme,
        Tap(scribe=lambda sender, receiver, letter: old[sender, receiver] if sender == 4 else letter),
        EVERYBODY - {4},
    )


@pytest.mark.parametrize(
    ("name", "stage", "garbage", "used"),
    [
        ("lightsecagg", "upload", b"12345", EVERYBODY - {3, 4}),  # cut short
        ("lightsecagg", "recovery", b"\xff", EVERYBODY),  # elements that are none
        ("swiftagg+", "reports", b"\xff", EVERYBODY),
        ("swiftagg+, 2 groups", "sums 2", b"\xff", EVERYBODY),
    ],
)
def test_bytes_that_mean_nothing_count_as_lost(name: str, stage: str, garbage: bytes, used: frozenset[int]) -> None:
    check(quiet(name), Tap(garbled=(stage, {3, 4} if stage != "sums 2" else {7, 8}, garbage)), used)
    with pytest.raises(RoundFailedError, match=stage):
        quiet(name).round(updates(), Tap(garbled=(stage, {6, 7, 8}, garbage)))


def test_an_upload_of_bytes_that_are_no_elements_fails_the_round() -> None:
    scheme = quiet("lightsecagg")
    size = packed_size(TASK.dimension, scheme.field.bits)
    whole = b"\xff" * size + ClientSet.of(TASK.clients, EVERYBODY).to_bytes()
    with pytest.raises(RoundFailedError, match="upload: packed vector of 301 values has padding"):
        scheme.round(updates(), Tap(garbled=("upload", {3}, whole)))


def test_letters_open_only_for_their_receiver_sender_and_context() -> None:
    ends = [Letters(i) for i in range(3)]
    for end in ends:
        end.meet([other.public for other in ends])
    letter = ends[0].seal(1, b"here", b"hello")
    assert ends[1].open(0, b"here", letter) == b"hello"
    assert b"hello" not in letter
    assert letter != ends[0].seal(1, b"here", b"hello")
    for receiver, sender, context, message in (
        (1, 0, b"there", letter),
        (1, 2, b"here", letter),
        (2, 0, b"here", letter),
        (0, 1, b"here", letter),  # reflected
        (1, 0, b"here", b"short"),
    ):
        with pytest.raises(ProtocolError, match=f"of client {sender} for client {receiver} was tampered with"):
            ends[receiver].open(sender, context, message)


def test_an_upload_is_uniform_whatever_the_update() -> None:
    scheme = quiet("lightsecagg")
    net = Tap()
    nothing = [np.zeros(TASK.dimension, np.float32)] * TASK.clients
    scheme.round(nothing, net)
    size = packed_size(TASK.dimension, scheme.field.bits)
    uploads = [scheme.field.unpack(m[:size], TASK.dimension) for stage, _, m in net.ups if stage == "upload"]
    assert len(uploads) == TASK.clients
    assert stats.kstest(np.concatenate(uploads) / scheme.field.p, "uniform").pvalue > 1e-6
    assert stats.kstest(np.concatenate(uploads) / scheme.field.p * 0.95, "uniform").pvalue < 1e-6
    assert all((a != b).mean() > 0.9 for a, b in itertools.combinations(uploads, 2))


@every
def test_nothing_that_is_sent_holds_a_quantised_update_in_the_clear(name: str) -> None:
    scheme, net = quiet(name), Tap()
    scheme.round(updates(), net)
    messages = [message for *_, message in (*net.ups, *net.letters)]
    for i in range(TASK.clients):
        plain = scheme.field.of(np.rint(updates()[i] / np.float64(scheme.grid.step)).astype(np.int64))
        for length in (TASK.dimension, scheme.code.length):
            clear = scheme.field.pack(plain[:length])
            assert not any(clear[:24] in message for message in messages)


def test_opened_shares_of_an_update_are_uniform() -> None:
    scheme = quiet("swiftagg+, 2 groups")
    assert isinstance(scheme, SwiftAgg)
    net = Tap()
    scheme.round([np.zeros(TASK.dimension, np.float32)] * TASK.clients, net)
    context = scheme._context(b"share")
    sent = [letter for letter in net.letters if scheme.group(letter[0]) == scheme.group(letter[1])]
    opened = [scheme.letters[j].open(i, context, letter) for i, j, letter in sent]
    shares = [scheme.field.unpack(m, scheme.code.length) for m in opened]
    assert len(shares) == 12 * 5 + 6  # sent to its group by everybody, and by the one left over
    one = [shares[k] for k in range(0, len(shares), 6)]  # few enough that they are independent
    assert stats.kstest(np.concatenate(one) / scheme.field.p, "uniform").pvalue > 1e-6


def test_a_client_sums_up_no_set_that_is_too_small_or_that_it_does_not_hold() -> None:
    scheme = quiet("lightsecagg")
    assert isinstance(scheme, LightSecAgg)
    share = scheme.field.pack(np.ones(scheme.code.length, np.uint32))
    mine = dict.fromkeys(range(12), share)

    def asked(who: Collection[int]) -> bytes:
        return scheme._answer(ClientSet.of(TASK.clients, who).to_bytes(), mine, EVERYBODY)

    assert (scheme.field.unpack(asked(range(11)), scheme.code.length) == 11).all()
    for who in (range(10), range(2, 13)):
        with pytest.raises(ProtocolError, match="11 needed, all of them held"):
            asked(who)
    with pytest.raises(WireError):
        scheme._answer(b"\xff", mine, EVERYBODY)


def test_bytes_are_those_of_the_papers() -> None:
    n, d = TASK.clients, TASK.dimension
    net = Tap(peers="direct")
    light = quiet("lightsecagg")
    assert isinstance(light, LightSecAgg)
    light.round(updates(), net)
    share = packed_size(-(-d // (11 - 1)), light.field.bits)
    assert [len(stage.peer) for stage in net.stages] == [n, 0, 0]
    assert net.stages[0].peer[3] == (n - 1) * (share + SEALED)
    assert net.stages[1].up[3] == packed_size(d, light.field.bits) + 2
    assert net.stages[2].up[3] == share
    net = Tap(peers="direct")
    swift = quiet("swiftagg+, 2 groups")
    assert isinstance(swift, SwiftAgg)
    swift.round(updates(), net)
    share = packed_size(-(-d // 3), swift.field.bits)  # n = 6 positions, K = 6 - T - D
    assert net.stages[0].peer[3] == 5 * (share + SEALED)
    assert net.stages[0].peer[12] == 6 * (share + SEALED)
    assert net.stages[2].peer == dict.fromkeys(range(6), share + SEALED)
    assert net.stages[3].up == dict.fromkeys(range(6, 12), share)


def test_more_clients_make_more_groups_and_at_least_one() -> None:
    assert SwiftAgg(Task(clients=50, colluders=10, stragglers=10, dimension=9)).groups == 1
    many = SwiftAgg(Task(clients=200, colluders=10, stragglers=10, dimension=9))
    assert (many.groups, many.positions, many.code.pieces) == (5, 40, 20)
    assert sorted({many.group(i) for i in range(200)}) == list(range(5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LightSecAgg(TASK, survivors=12), r"survivors must be in 2\.\.11"),
        (lambda: LightSecAgg(TASK, survivors=1), r"survivors must be in 2\.\.11"),
        (lambda: SwiftAgg(TASK, groups=0), "groups must be >= 1"),
        (lambda: SwiftAgg(TASK, groups=5), "groups must leave more than 3 in each, got groups=5"),
    ],
)
def test_settings_that_cannot_work_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_agreed_on_misses_nothing(seed: int) -> None:
    held = np.random.default_rng(seed).random((9, 10)) < 0.93
    feasible = any(held[list(rows)].all(axis=0).sum() >= 6 for rows in itertools.combinations(range(9), 5))
    failure = RoundFailedError("upload", "nobody")
    if not feasible:
        with pytest.raises(RoundFailedError):
            agree(held, 5, 6, failure)
        return
    rows, columns = agree(held, 5, 6, failure)
    assert (len(rows) >= 5, len(columns) >= 6) == (True, True)
    assert held[np.ix_(rows, columns)].all()


def test_agreement_leaves_out_only_who_is_missing() -> None:
    held = np.ones((6, 7), np.bool_)
    held[:, 2] = False
    held[4] = False
    failure = RoundFailedError("upload", "nobody")
    rows, columns = agree(held, 4, 5, failure)
    assert (rows.tolist(), columns.tolist()) == ([0, 1, 2, 3, 5], [0, 1, 3, 4, 5, 6])
    for least in ((6, 5), (4, 7)):
        with pytest.raises(RoundFailedError, match="upload: nobody"):
            agree(held, *least, failure)
