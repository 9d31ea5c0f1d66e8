from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
import tenseal

from lightdp_lab.schemes import SCHEMES, Faults, Grid, Links, Net, RoundFailedError, Task
from lightdp_lab.schemes.ckks import Ckks

if TYPE_CHECKING:
    from numpy.typing import NDArray

Lost = dict[int, frozenset[int]]
TASK = Task(clients=6, colluders=1, stragglers=2, dimension=5000, epsilon=8.0, rounds=5)  # a full ciphertext and a part
PIECES = 2


@pytest.fixture(scope="module")
def scheme() -> Ckks:
    scheme = Ckks(TASK)
    scheme.set_up(Net(TASK.clients))
    return scheme


def updates(seed: int = 0) -> list[NDArray[np.float32]]:
    drawn = np.random.default_rng(seed).normal(size=(TASK.clients, TASK.dimension))
    return list((drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32))


def listen(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.integer]]:
    """The integers that clients encrypt from now on."""
    sent: list[NDArray[np.integer]] = []
    encode = Grid.encode

    def encoded(grid: Grid, update: NDArray[np.floating]) -> NDArray[np.integer]:
        sent.append(encode(grid, update))
        return sent[-1]

    monkeypatch.setattr(Grid, "encode", encoded)
    return sent


class Watched(Net):
    """Keeps what the server gets and gives; may change what arrives."""

    def __init__(self, whose: int | None = None, when: int = 0, how: str = "") -> None:
        super().__init__(TASK.clients)
        self.got: list[tuple[int, int, bytes]] = []
        self.whose, self.when, self.how = whose, when, how

    def up(self, client: int, message: bytes) -> bytes | None:
        if (client, len(self.stages) - 1) == (self.whose, self.when):
            middle = len(message) // 2
            message = {
                "flipped": message[:middle] + bytes([message[middle] ^ 4]) + message[middle + 1 :],
                "short": message[:-100],
                "empty": b"",
                "another": self.got[0][2],
            }[self.how]
        self.got.append((len(self.stages) - 1, client, message))
        return super().up(client, message)


@pytest.mark.parametrize("peers", ["relayed", "direct"])
@pytest.mark.parametrize(
    "lost",
    [{}, {0: frozenset({4, 5})}, {1: frozenset({0, 2})}, {0: frozenset({4, 5}), 1: frozenset({0, 1})}],
    ids=["none", "upload", "decrypt", "both"],
)
def test_the_sum_is_exact_with_losses_up_to_the_bound_at_each_stage(
    scheme: Ckks, monkeypatch: pytest.MonkeyPatch, peers: Literal["relayed", "direct"], lost: Lost
) -> None:
    sent = listen(monkeypatch)
    net = Net(TASK.clients, Links(peers=peers), Faults(lost=lost))
    result = scheme.round(updates(), net)
    assert result.used == frozenset(range(TASK.clients)) - lost.get(0, frozenset())
    assert np.allclose(result.total, np.sum(sent, axis=0) * scheme.grid.step, rtol=0, atol=1e-9)
    assert net.trips == 2


@pytest.mark.parametrize(
    ("lost", "stage", "why"),
    [
        ({0: frozenset({0, 1, 5})}, "upload", "3 clients, 4 needed"),
        ({1: frozenset({0, 1, 2})}, "decrypt", "0 clients, 1 needed"),
    ],
)
def test_one_loss_more_fails_by_name(scheme: Ckks, lost: Lost, stage: str, why: str) -> None:
    with pytest.raises(RoundFailedError) as failure:
        scheme.round(updates(), Net(TASK.clients, faults=Faults(lost=lost)))
    assert (failure.value.stage, failure.value.why) == (stage, why)


def test_a_key_that_does_not_arrive_fails_the_set_up() -> None:
    with pytest.raises(RoundFailedError, match="deal: client 3"):
        Ckks(TASK).set_up(Net(TASK.clients, faults=Faults(down=frozenset({3}))))


@pytest.mark.parametrize(("stage", "how"), [(0, "flipped"), (0, "short"), (0, "empty"), (1, "flipped"), (1, "empty")])
def test_damaged_messages_never_make_a_wrong_sum(scheme: Ckks, stage: int, how: str) -> None:
    with pytest.raises(RoundFailedError):
        scheme.round(updates(), Watched(1, stage, how))


def test_a_ciphertext_of_another_length_is_refused(scheme: Ckks) -> None:
    with pytest.raises(RoundFailedError, match="another length"):
        scheme.round(updates(), Watched(1, 0, "another"))  # both its pieces are somebody's first


def test_the_server_cannot_decrypt_and_a_client_can(scheme: Ckks) -> None:
    net = Watched()
    scheme.round(updates(), net)
    first = net.got[0][2]
    assert not scheme._server.has_secret_key()
    with pytest.raises(ValueError, match="secret"):
        tenseal.ckks_vector_from(scheme._server, first).decrypt()
    opened = np.asarray(tenseal.ckks_vector_from(scheme._client, first).decrypt())  # what a colluder shows it
    assert np.abs(opened - np.rint(opened)).max() < 0.01
    assert not scheme.about.private


def test_the_same_update_never_looks_the_same_and_hides_its_integers(
    scheme: Ckks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Grid, "encode", lambda *_: np.full(TASK.dimension, 77, np.int64))
    net = Watched()
    scheme.round(updates(), net)
    uploads = [message for stage, _, message in net.got if stage == 0]
    assert len(uploads) == TASK.clients * PIECES
    assert len(set(uploads)) == len(uploads)
    for message in uploads:
        counts = np.bincount(np.frombuffer(message, np.uint8), minlength=256) / len(message)
        assert counts[1:].max() < 0.02  # bytes of residues are uniform; zero bytes are padding of 64-bit words


def test_answers_are_integers_so_that_no_error_of_the_decryption_leaves_a_client(
    scheme: Ckks, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, net = listen(monkeypatch), Watched()
    scheme.round(updates(), net)
    answers = {message for stage, _, message in net.got if stage == 1}
    assert answers == {scheme.grid.pack(np.sum(sent, axis=0))}


def test_clients_that_answer_differently_fail_the_round(scheme: Ckks) -> None:
    with pytest.raises(RoundFailedError, match="do not agree"):
        scheme.round(updates(), Watched(2, 1, "flipped"))


def test_what_is_far_from_an_integer_is_not_rounded(scheme: Ckks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grid, "encode", lambda *_: np.full(TASK.dimension, 0.07))  # 0.42 after all six
    with pytest.raises(RoundFailedError, match="no sum of integers"):
        scheme.round(updates(), Net(TASK.clients))


def test_errors_of_a_sum_stay_far_below_half_a_step(scheme: Ckks) -> None:
    values = np.random.default_rng(0).integers(-2000, 2000, (40, 4096))
    vectors = [tenseal.ckks_vector_from(scheme._server, next(scheme._encrypt(row))) for row in values]
    total = vectors[0]
    for vector in vectors[1:]:
        total += vector
    error = np.asarray(tenseal.ckks_vector_from(scheme._client, total.serialize()).decrypt()) - values.sum(axis=0)
    assert 0 < error.std() < 0.5 / 1000


def test_the_modulus_stays_within_128_bit_security() -> None:
    for clients in (4, 50, 1000):
        task = Task(clients=clients, colluders=1, stragglers=1, dimension=10)
        made = Ckks(task)
        assert made.grid.bits + 24 <= made.modulus <= 60
        assert 2 * made.modulus <= 218  # of the homomorphic encryption standard, for degree 8192


def test_one_colluder_is_named_where_schemes_are_listed() -> None:
    made = SCHEMES["ckks"].about
    assert "no colluder" in made.title
    assert "one client that helps the server" in made.broken_by
    assert not made.private
    assert SCHEMES["paillier"].about.private
