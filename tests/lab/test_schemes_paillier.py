from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Literal

import gmpy2
import numpy as np
import pytest

from lightdp.errors import ArgumentError, MissingExtraError
from lightdp_lab.schemes import SCHEMES, Faults, Links, Net, RoundFailedError, Task, paillier
from lightdp_lab.schemes._threshold import Key, combine, deal, lagrange, safe_prime, sieve
from lightdp_lab.schemes.paillier import Paillier, Slots

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

Lost = dict[int, frozenset[int]]
TASK = Task(clients=7, colluders=2, stragglers=2, dimension=100, epsilon=8.0, rounds=5)
BITS = 256
ASKED = 5  # C̄ + 1 answers are needed, S̄ may stay away


@pytest.fixture(scope="module")
def scheme() -> Paillier:
    scheme = Paillier(TASK, bits=BITS)
    scheme.set_up(Net(TASK.clients))
    return scheme


@pytest.fixture(scope="module")
def dealt() -> tuple[Key, list[int]]:
    return deal(BITS, clients=6, needed=3)


def updates(seed: int = 0) -> list[NDArray[np.float32]]:
    drawn = np.random.default_rng(seed).normal(size=(TASK.clients, TASK.dimension))
    return list((drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32))


def listen(scheme: Paillier, monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.int64]]:
    """The integers that clients encrypt from now on."""
    sent: list[NDArray[np.int64]] = []
    fill = type(scheme.slots).fill

    def filled(slots: Slots, values: NDArray[np.int64]) -> list[int]:
        sent.append(values)
        return fill(slots, values)

    monkeypatch.setattr(type(scheme.slots), "fill", filled)
    return sent


def opened(key: Key, shares: list[int], ciphertext: int, who: Iterable[int]) -> int:
    exponent = 2 * math.factorial(len(shares))
    partial = {i: [int(pow(int(ciphertext), exponent * int(shares[i]), int(key.square)))] for i in who}
    return int(combine(key, len(shares), partial)[0])


@pytest.mark.parametrize("bits", [64, 128, 257])
def test_safe_primes_are_prime_twice_and_of_their_length(bits: int) -> None:
    for _ in range(3):
        p = safe_prime(bits)
        assert p >> (bits - 2) == 3
        for number in (p, (p - 1) // 2):
            assert gmpy2.is_strong_prp(number, 3)
            assert gmpy2.is_strong_selfridge_prp(number)


def test_the_sieve_takes_out_multiples_of_small_primes_and_nothing_else() -> None:
    small, start = [5, 7, 11, 13], 6 * 10**6 + 5
    halves = [start + 6 * k for k in range(500)]
    kept = [k for k, half in enumerate(halves) if all(half % p != 0 and (2 * half + 1) % p != 0 for p in small)]
    assert sieve(start, small, 500) == kept
    assert 100 < len(kept) < 300


def test_safe_primes_differ() -> None:
    assert len({int(safe_prime(128)) for _ in range(4)}) == 4


def test_lagrange_weights_give_the_value_at_zero_of_any_polynomial() -> None:
    polynomial = [123456789, -987, 65]
    for who in itertools.permutations(range(6), 3):
        weights, scale = lagrange(6, who)
        values = [sum(a * (i + 1) ** k for k, a in enumerate(polynomial)) for i in who]
        assert sum(w * v for w, v in zip(weights, values, strict=True)) == scale * polynomial[0]
        assert math.factorial(6) % scale == 0


def test_any_three_of_six_open_a_sum_of_ciphertexts(dealt: tuple[Key, list[int]]) -> None:
    key, shares = dealt
    plain = [5, int(key.n) // 2, int(key.n) - 7, 1 << 200]
    product = math.prod(int(key.encrypt(gmpy2.mpz(m))) for m in plain) % int(key.square)
    for who in itertools.combinations(range(6), 3):
        assert opened(key, shares, product, who) == sum(plain) % int(key.n)


def test_two_of_six_open_nothing(dealt: tuple[Key, list[int]]) -> None:
    key, shares = dealt
    with pytest.raises(RoundFailedError, match="do not fit together"):
        opened(key, shares, key.encrypt(gmpy2.mpz(5)), (0, 4))


def test_a_ciphertext_is_fresh_and_its_blinding_an_nth_power(dealt: tuple[Key, list[int]]) -> None:
    key, _ = dealt
    first, second = (int(key.encrypt(gmpy2.mpz(41))) for _ in range(2))
    assert first != second
    n, square = int(key.n), int(key.square)
    for ciphertext in (first, second):  # what is left without 1 + 41 n opens to 0, as n-th powers alone do
        blinding = ciphertext * pow(1 + 41 * n, -1, square) % square
        assert blinding != 1
        assert opened(key, dealt[1], blinding, (1, 2, 5)) == 0


def test_powers_of_the_base_are_as_tabled(dealt: tuple[Key, list[int]]) -> None:
    key, _ = dealt
    assert len(key.powers) == BITS // 16
    for k, byte in [(0, 0), (0, 1), (3, 200), (15, 255)]:
        assert key.powers[k][byte] == pow(int(key.base), byte * 256**k, int(key.square))
        assert len(key.powers[k]) == 256


def test_shares_are_of_a_key_that_is_one_modulo_n(dealt: tuple[Key, list[int]]) -> None:
    key, shares = dealt  # (1 + n)^d = 1 + n d, so interpolating it in the open shows d modulo n
    weights, scale = lagrange(6, (0, 2, 3))
    total = sum(w * int(s) for w, s in zip(weights, (shares[0], shares[2], shares[3]), strict=True))
    assert total % int(key.n) != 0
    assert pow(1 + int(key.n), total, int(key.square)) == 1 + int(key.n) * (total % int(key.n))
    assert total % int(key.n) == scale % int(key.n)


def test_slots_hold_the_extremes_of_everybody(scheme: Paillier) -> None:
    slots = scheme.slots
    for edge in (-slots.reach, slots.reach):
        plain = slots.fill(np.full(TASK.dimension, 3 * edge))  # three times as much is held at the edge
        total = [TASK.clients * value for value in plain]
        assert max(total) < 1 << (BITS - 1)
        assert (slots.read(total, TASK.clients) == TASK.clients * edge).all()


def test_slots_add_like_integers(scheme: Paillier) -> None:
    reach = scheme.slots.reach
    values = np.random.default_rng(1).integers(-reach, reach, (4, TASK.dimension), endpoint=True)
    plain = [sum(column) for column in zip(*(scheme.slots.fill(row) for row in values), strict=True)]
    assert np.array_equal(scheme.slots.read(plain, 4), values.sum(axis=0))


def test_a_plaintext_that_no_clients_make_is_refused(scheme: Paillier) -> None:
    zero = scheme.slots.fill(np.zeros(TASK.dimension, np.int64))
    for bad in (gmpy2.mpz(1) << (BITS - 2), gmpy2.mpz((1 << scheme.slots.width) - 1)):
        with pytest.raises(RoundFailedError, match="does not fit"):
            scheme.slots.read([bad, *zero[1:]], 1)


@pytest.mark.parametrize("peers", ["relayed", "direct"])
@pytest.mark.parametrize(
    "lost",
    [{}, {0: frozenset({5, 6})}, {1: frozenset({0, 4})}, {0: frozenset({5, 6}), 1: frozenset({0, 4})}],
    ids=["none", "upload", "decrypt", "both"],
)
def test_the_sum_survives_its_bound_of_losses_at_each_stage(
    scheme: Paillier, monkeypatch: pytest.MonkeyPatch, peers: Literal["relayed", "direct"], lost: Lost
) -> None:
    sent = listen(scheme, monkeypatch)
    net = Net(TASK.clients, Links(peers=peers), Faults(lost=lost))
    result = scheme.round(updates(), net)
    assert result.used == frozenset(range(TASK.clients)) - lost.get(0, frozenset())
    assert np.allclose(result.total, np.sum(sent, axis=0) * scheme.grid.step, rtol=0, atol=1e-9)  # exact
    assert net.trips == 2


@pytest.mark.parametrize(
    ("lost", "stage", "why"),
    [
        ({0: frozenset({0, 1, 6})}, "upload", "4 clients, 5 needed"),
        ({1: frozenset({0, 1, 4})}, "decrypt", "2 clients, 3 needed"),
        ({0: frozenset({0, 1}), 1: frozenset({2, 3, 6})}, "decrypt", "2 clients, 3 needed"),
    ],
)
def test_one_loss_more_fails_by_name(scheme: Paillier, lost: Lost, stage: str, why: str) -> None:
    with pytest.raises(RoundFailedError) as failure:
        scheme.round(updates(), Net(TASK.clients, faults=Faults(lost=lost)))
    assert (failure.value.stage, failure.value.why) == (stage, why)


def test_a_key_that_does_not_arrive_fails_the_set_up() -> None:
    with pytest.raises(RoundFailedError, match="deal: client 3"):
        Paillier(TASK, bits=BITS).set_up(Net(TASK.clients, faults=Faults(down=frozenset({3}))))


class Recorded(Net):
    """Keeps what clients send."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self.sent: list[bytes] = []

    def up(self, client: int, message: bytes) -> bytes | None:
        self.sent.append(message)
        return super().up(client, message)


class Damaged(Net):
    """What this client sends at this stage arrives changed."""

    def __init__(self, client: int, stage: int, how: str) -> None:
        super().__init__(TASK.clients)
        self.whose, self.when, self.how = client, stage, how

    def up(self, client: int, message: bytes) -> bytes | None:
        if client == self.whose and len(self.stages) == self.when + 1:
            message = {
                "flipped": message[:9] + bytes([message[9] ^ 4]) + message[10:],
                "short": message[:-1],
                "large": b"\xff" * len(message),
                "empty": b"",
            }[self.how]
        return super().up(client, message)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("how", ["flipped", "short", "large", "empty"])
def test_damaged_messages_never_make_a_wrong_sum(scheme: Paillier, stage: int, how: str) -> None:
    with pytest.raises(RoundFailedError):
        scheme.round(updates(), Damaged(1, stage, how))


def test_an_upload_is_as_large_as_its_ciphertexts_and_never_the_same(scheme: Paillier) -> None:
    nets = [Recorded(TASK.clients), Recorded(TASK.clients)]
    for net in nets:
        scheme.round([np.zeros(TASK.dimension, np.float32)] * TASK.clients, net)
    uploads = [message for net in nets for message in net.sent]
    size = scheme.slots.ciphertexts * BITS // 4
    assert all(net.stages[0].up == dict.fromkeys(range(TASK.clients), size) for net in nets)
    assert all(net.stages[1].down == dict.fromkeys(range(ASKED), size) for net in nets)
    words = [upload[k : k + BITS // 4] for upload in uploads for k in range(0, size, BITS // 4)]
    assert len(set(words)) == len(words)
    plain = scheme.slots.fill(np.zeros(TASK.dimension, np.int64))[0]
    assert all(int.from_bytes(word, "little") % int(scheme.key.n) != 1 for word in words)  # 1 + n M unblinded
    assert all(int.from_bytes(word, "little") != plain for word in words)


def test_a_round_with_a_modulus_of_2048_bits_gives_the_exact_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(clients=3, colluders=1, stragglers=1, dimension=300, epsilon=8.0, rounds=5)
    scheme, net = Paillier(task), Net(3)
    sent = listen(scheme, monkeypatch)
    scheme.set_up(net)
    assert net.stages[0].down == dict.fromkeys(range(3), 3 * 512)
    assert scheme.key.n.bit_length() == 2048
    result = scheme.round([np.full(300, 1 / 20, np.float32)] * 3, Net(3))
    assert np.allclose(result.total, np.sum(sent, axis=0) * scheme.grid.step, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("bits", "message"), [(128, "bits must be >= 256, got bits=128"), (264, "bits must be a multiple of 16")]
)
def test_bad_moduli_are_named(bits: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Paillier(TASK, bits=bits)


def test_schemes_are_listed_without_the_extra_and_refuse_to_be_made() -> None:
    code = """
import sys
sys.modules["gmpy2"] = sys.modules["tenseal"] = None
from lightdp.errors import MissingExtraError
from lightdp_lab.schemes import SCHEMES, Task
for name in ("paillier", "ckks"):
    try:
        SCHEMES[name](Task(clients=4, colluders=1, stragglers=1, dimension=5))
    except MissingExtraError as error:
        print(name, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["paillier", "ckks"]
    assert done.stdout.count(".[schemes]") == 2


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paillier, "gmpy2", None)
    with pytest.raises(MissingExtraError, match="Threshold Paillier needs an extra"):
        SCHEMES["paillier"](TASK)
