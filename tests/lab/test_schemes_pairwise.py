from __future__ import annotations

import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import ECB

from lightdp.errors import ProtocolError
from lightdp.wire import Accumulator
from lightdp_lab.schemes import SCHEMES, Faults, Grid, Links, Net, RoundFailedError, Task
from lightdp_lab.schemes._masks import add_masks
from lightdp_lab.schemes.pairwise import Client, Pairwise

TASK = Task(clients=6, colluders=1, stragglers=2, dimension=5000, epsilon=8.0, rounds=5)


def updates() -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    drawn = np.random.default_rng(1).normal(size=(TASK.clients, TASK.dimension))
    return list((drawn / np.linalg.norm(drawn, axis=1, keepdims=True) * TASK.clip).astype(np.float32))


def quiet(step: float = 1e-4) -> Pairwise:
    """Without noise, so that sums are exact."""
    scheme = Pairwise(TASK)
    scheme.__dict__["grid"] = Grid(step, 20, 0.0)
    return scheme


@pytest.mark.parametrize(("dtype", "length"), [("<u2", 40_001), ("<u4", 16_385)])
def test_masks_are_the_counter_mode_of_aes(dtype: str, length: int) -> None:
    key = bytes(range(32))
    out = np.arange(length).astype(dtype)
    add_masks(out, [(key, 1), (b"\x01" * 32, 1), (b"\x01" * 32, -1)])
    first = int.from_bytes(key[16:], "big")
    counters = b"".join((first + i).to_bytes(16, "big") for i in range(-(-out.nbytes // 16)))
    cipher = Cipher(AES128(key[:16]), ECB()).encryptor()  # noqa: S305  oracle
    stream = np.frombuffer(cipher.update(counters), dtype)[:length]
    assert np.array_equal(out, np.arange(length).astype(dtype) + stream)


def test_masks_cancel_exactly_when_everybody_comes() -> None:
    scheme, given = quiet(), updates()
    scheme.set_up(Net(TASK.clients))
    result = scheme.round(given, Net(TASK.clients))
    expected = np.sum([np.rint(x.astype(np.float64) / 1e-4) for x in given], axis=0) * 1e-4
    assert result.total == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("peers", ["relayed", "direct"])
def test_one_lost_client_takes_the_round_along_and_the_next_comes_off(peers: str) -> None:
    scheme, links = quiet(), Links(peers=peers)  # type: ignore[arg-type]
    scheme.set_up(Net(TASK.clients, links))
    for faults in (Faults(lost={0: frozenset({3})}), Faults(down=frozenset({0}))):
        with pytest.raises(RoundFailedError, match="5 clients, 6 needed") as failure:
            scheme.round(updates(), Net(TASK.clients, links, faults))
        assert failure.value.stage == "upload"
    assert len(scheme.round(updates(), Net(TASK.clients, links)).used) == TASK.clients


def test_an_upload_shows_nothing_of_the_update() -> None:
    scheme, sent = quiet(), []

    class Tap(Net):
        def up(self, client: int, message: bytes) -> bytes | None:
            sent.append(message)
            return super().up(client, message)

    scheme.set_up(Net(TASK.clients))
    scheme.round(updates(), Tap(TASK.clients))
    for message, update in zip(sent, updates(), strict=True):
        total = Accumulator(TASK.dimension, 20)
        total.add(message)
        assert abs(np.corrcoef(total.total(), update)[0, 1]) < 0.08
        assert total.total().std() == pytest.approx(2**20 / np.sqrt(12), rel=0.03)


def test_a_round_is_masked_once() -> None:
    grid = Grid(1e-4, 20, 0.0)
    clients = [Client(i, grid) for i in range(2)]
    clients[0].join([client.public for client in clients])
    clients[0].upload(struct.pack("<Q", 4), np.zeros(5, np.float32))
    with pytest.raises(ProtocolError, match="later than 4"):
        clients[0].upload(struct.pack("<Q", 4), np.ones(5, np.float32))


def test_a_list_of_keys_without_ones_own_is_refused() -> None:
    clients = [Client(i, Grid(1e-4, 20, 0.0)) for i in range(3)]
    keys = [client.public for client in clients]
    for wrong in ([keys[1], keys[0], keys[2]], [keys[0], keys[1], keys[1]]):
        with pytest.raises(ProtocolError, match="list of keys"):
            clients[0].join(wrong)


def test_a_client_lost_in_the_key_agreement_ends_it() -> None:
    for faults, stage in ((Faults(down=frozenset({2})), "keys"), (Faults(lost={1: frozenset({2})}), "roster")):
        with pytest.raises(RoundFailedError) as failure:
            Pairwise(TASK).set_up(Net(TASK.clients, faults=faults))
        assert failure.value.stage == stage


def test_its_noise_covers_colluders_and_no_stragglers() -> None:
    sigma = SCHEMES["central"](TASK).noise(TASK.clients)
    scheme = Pairwise(TASK)
    own = (scheme.grid.sigma * scheme.grid.step) ** 2
    assert own * (TASK.clients - TASK.colluders) == pytest.approx(sigma, rel=1e-4)
    assert scheme.noise(TASK.clients) < SCHEMES["secagg"](TASK).noise(TASK.clients)
