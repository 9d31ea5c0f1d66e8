"""CKKS with one key pair that all clients hold: sums under encryption, for as long as no client helps the server."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightdp.errors import MissingExtraError
from lightdp.wire import Accumulator
from lightdp_lab.schemes._net import Net, RoundFailedError, ending
from lightdp_lab.schemes._scheme import Result, Smpc, Task, Updates

_DEGREE = 8192  # of the ring; half as many values in a ciphertext
_ROOM = 24  # bits of the modulus beyond those of a sum: its error, and a wide margin
_SURE = 0.25  # of a step: a decrypted value this near to an integer is that integer


class Ckks(Smpc, name="ckks"):
    """CKKS (Cheon et al. 2017) by TenSEAL (Benaissa et al. 2021) and DP noise; not secure against a single colluder.

    All clients hold the same secret key. One of them that hands it to the server opens every upload, in which lies
    only that client's part of the noise. So the task's guarantee holds only with C̄ = 0, and `private` says False.

    A dealer whom all trust draws the key pair. A round has two trips. Clients encrypt their noisy integers, 4096 to a
    ciphertext; the server adds ciphertexts. Then it sends the sum to S̄ + 1 of those who uploaded; they decrypt, round
    and answer with integers. Ring degree 8192, and one prime of 32 to 56 bits as modulus, since nothing is multiplied:
    far smaller than the 218 bits that 128-bit security allows.

    Rounding is part of the protection: CKKS decrypts with a small error that depends on the secret key, and a server
    that sees it next to the ciphertext finds the key (Li and Micciancio 2021). The integers are free of it. For the
    same reason all answers are equal, and the round fails if they are not.
    """

    def __init__(self, task: Task) -> None:
        try:
            self._seal: Any = importlib.import_module("tenseal")
        except ImportError:
            raise MissingExtraError("schemes", "CKKS") from None
        super().__init__(task)
        self.modulus = -(-(self.grid.bits + _ROOM) // 8) * 8  # bits; whole bytes, as ciphertexts travel compressed
        self.scale = 2.0 ** (self.modulus - 1 - self.grid.bits)

    def set_up(self, net: Net) -> None:
        """The dealer's part. It is no client; its seconds count as the server's, its private channels as downlinks."""
        net.stage("deal")
        read = partial(self._seal.context_from, n_threads=1)
        with net.server():
            moduli = [self.modulus, self.modulus]  # the second is for keys alone
            made = self._seal.context(self._seal.SCHEME_TYPE.CKKS, _DEGREE, coeff_mod_bit_sizes=moduli, n_threads=1)
            parts = {"save_public_key": True, "save_galois_keys": False, "save_relin_keys": False}
            secret = made.serialize(save_secret_key=True, **parts)
            self._server = read(made.serialize(save_secret_key=False, **parts))

        def take(_: int, message: bytes) -> None:
            self._client = read(message)  # everybody's is the same: one copy is kept

        net.hand_out([secret] * self.task.clients, take)

    def round(self, updates: Updates, net: Net) -> Result:
        """Upload ciphertexts; have their sum decrypted."""
        net.stage("upload")
        total, used = list[Any](), list[int]()
        for i in filter(net.works, range(len(updates))):
            with net.client(i):
                messages = list(self._encrypt(self.grid.encode(updates[i])))
            uploads = [net.up(i, message) for message in messages]
            if None not in uploads:
                with net.server():
                    for k, vector in enumerate(self._read("upload", self._server, uploads)):
                        if used:
                            total[k] += vector
                        else:
                            total.append(vector)
                used.append(i)
        self.demand("upload", len(used), self.least)

        net.stage("decrypt")
        with net.server():
            request = [vector.serialize() for vector in total]
        answers = []
        for i in used[: self.task.stragglers + 1]:
            heard = [net.down(i, message) for message in request]
            if None not in heard:
                with net.client(i):
                    answer = self.grid.pack(self._decrypt(heard))
                answers.append(net.up(i, answer))
        return Result(self._opened({answer for answer in answers if answer is not None}, net), frozenset(used))

    def _opened(self, answers: set[bytes], net: Net) -> NDArray[np.float64]:
        """The sum, on which all answers must agree."""
        self.demand("decrypt", len(answers), 1)
        with net.server(), ending("decrypt"):
            if len(answers) > 1:
                raise RoundFailedError("decrypt", "clients do not agree on the sum")
            opened = Accumulator(self.task.dimension, self.grid.bits)
            opened.add(answers.pop())
            return opened.total() * np.float64(self.grid.step)

    def _encrypt(self, values: NDArray[np.integer]) -> Iterator[bytes]:
        for k in range(0, len(values), _DEGREE // 2):
            piece = values[k : k + _DEGREE // 2].astype(np.float64)
            yield self._seal.ckks_vector(self._client, piece, self.scale).serialize()

    def _decrypt(self, messages: Iterable[bytes | None]) -> NDArray[np.int64]:
        vectors = self._read("decrypt", self._client, messages)
        near = np.concatenate([np.asarray(vector.decrypt(), np.float64) for vector in vectors])
        values = np.rint(near)
        if not (np.abs(near - values) < _SURE).all() or np.abs(values).max() >= 1 << (self.grid.bits - 1):
            raise RoundFailedError("decrypt", "what was decrypted is no sum of integers")
        return values.astype(np.int64)

    def _read(self, stage: str, context: Any, messages: Iterable[bytes | None]) -> Iterator[Any]:  # noqa: ANN401
        """The ciphertexts of a vector, one by one."""
        for k, message in enumerate(messages):
            try:
                vector = self._seal.ckks_vector_from(context, message)
            except (ValueError, RuntimeError):
                raise RoundFailedError(stage, "a message is not a ciphertext") from None
            if vector.size() != min(_DEGREE // 2, self.task.dimension - k * _DEGREE // 2):
                raise RoundFailedError(stage, "a ciphertext is of another length")
            yield vector
