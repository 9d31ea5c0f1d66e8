"""Common steps of LightSecAgg and SwiftAgg+: sealed letters between clients, private coded shares, and who takes part.

A vector is cut into K pieces; with T random pieces behind them they are the values of a polynomial of degree below
K + T at the points 0..K+T-1, and share j is its value at K + T + j. Any K + T shares give the pieces back. T shares
say nothing: a change of the K pieces is undone at any T further points by exactly one choice of the random pieces, as
a polynomial of that degree with K + T zeros is 0 (so the matrix of the code is T-private MDS). Shares add up: the sum
of shares is a share of the sum.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from lightdp.client_set import ClientSet
from lightdp.errors import ProtocolError, WireError
from lightdp.keys import KeyPair, pair_key
from lightdp.wire import packed_size
from lightdp_lab.schemes._field import Elements, Field
from lightdp_lab.schemes._net import Answers, Net, RoundFailedError
from lightdp_lab.schemes._scheme import Result, Smpc, Task

_NONCE = 12  # bytes, drawn anew for each letter


class Letters:
    """What one client seals for its peers and opens from them: AES-256-GCM under a key of each pair (X25519, HKDF).

    The server passes public keys on; that it does so honestly is what these schemes assume of it.
    """

    def __init__(self, me: int) -> None:
        self.me = me
        self._pair = KeyPair.generate()
        self.public = self._pair.public

    def meet(self, publics: Sequence[bytes]) -> None:
        """Agree on a key with everybody; all must have been shown the same public keys."""
        roster = hashlib.sha256(b"".join(publics)).digest()
        self._keys: dict[int, AESGCM] = {}
        for peer, public in enumerate(publics):
            if peer != self.me:
                ends = (min(self.me, peer), max(self.me, peer))
                self._keys[peer] = AESGCM(pair_key(self._pair.agree(public), roster=roster, ends=ends))

    def seal(self, peer: int, context: bytes, message: bytes) -> bytes:
        """A letter to `peer` that opens only there, in this context and as from here."""
        nonce = os.urandom(_NONCE)
        return nonce + self._keys[peer].encrypt(nonce, message, struct.pack("<II", self.me, peer) + context)

    def open(self, peer: int, context: bytes, letter: bytes) -> bytes:
        """What `peer` sealed for this client in this context; any other bytes are a `ProtocolError`."""
        try:
            associated = struct.pack("<II", peer, self.me) + context
            return self._keys[peer].decrypt(letter[:_NONCE], letter[_NONCE:], associated)
        except (InvalidTag, ValueError):
            raise ProtocolError(f"a letter of client {peer} for client {self.me} was tampered with") from None


@dataclass(frozen=True)
class Code:
    """K = `pieces` pieces and T = `private` random ones, in `shares` shares of ceil(d/K) elements."""

    field: Field
    dimension: int
    pieces: int
    private: int
    shares: int

    @property
    def needed(self) -> int:
        """Shares that give the vector back: K + T."""
        return self.pieces + self.private

    @property
    def length(self) -> int:
        """Elements in a share."""
        return -(-self.dimension // self.pieces)

    @cached_property
    def matrix(self) -> Elements:
        """(shares, K + T)"""
        return self.field.lagrange(range(self.needed), range(self.needed, self.needed + self.shares))

    def encode(self, vector: Elements, key: bytes | None = None) -> Elements:
        """Fresh shares of a vector (d,); from a key always the same. (shares, length)"""
        rows = np.zeros((self.needed, self.length), np.uint32)
        rows.reshape(-1)[: self.dimension] = vector
        rows[self.pieces :] = self.field.uniform(self.private * self.length, key).reshape(self.private, self.length)
        return self.field.matmul(self.matrix, rows)

    def decode(self, who: Sequence[int], shares: Sequence[Elements]) -> Elements:
        """The vector of which these are the shares of K + T or more positions; the first K + T are used. (d,)"""
        who, rows = who[: self.needed], np.stack(shares[: self.needed])
        back = self.field.lagrange([self.needed + position for position in who], range(self.pieces))
        return self.field.matmul(back, rows).reshape(-1)[: self.dimension]


class Coded(Smpc):
    """A scheme whose clients send each other shares: of K = `pieces` pieces and T = C̄ random ones, `shares` of them.

    The field has just as many bits as the sum needs, but enough elements for all points of the code.
    """

    def __init__(self, task: Task, pieces: int, shares: int) -> None:
        super().__init__(task)
        self._rounds = 0
        self.field = Field(max(self.grid.bits, (2 * task.clients).bit_length() + 1, 8))
        self.code = Code(self.field, task.dimension, pieces, task.colluders, shares)

    def set_up(self, net: Net) -> None:
        """One public key of each client to everybody, once for the whole training."""
        self.letters = letters = [Letters(i) for i in range(self.task.clients)]
        self.exchange_keys("enrol", net, lambda i: letters[i].public, lambda i, publics: letters[i].meet(publics))

    def _share(
        self, net: Net, holders: Callable[[int], Sequence[int]], vector: Callable[[int], Elements]
    ) -> list[dict[int, bytes]]:
        """The first step of a round: each client sends shares of its vector to its holders, sealed.

        Returns:
            The shares that each client holds, by sender; each client uses only its own.
        """
        self._rounds += 1
        context, size = self._context(b"share"), packed_size(self.code.length, self.field.bits)
        held: list[dict[int, bytes]] = [{} for _ in range(self.task.clients)]

        def sealed(i: int) -> dict[int, bytes]:
            shares = dict(zip(holders(i), map(self.field.pack, self.code.encode(vector(i))), strict=True))
            if i in shares:
                held[i][i] = shares.pop(i)
            return {j: self.letters[i].seal(j, context, share) for j, share in shares.items()}

        net.stage("shares")
        for i, j, letter in net.exchange(range(self.task.clients), sealed):
            with net.client(j), suppress(ProtocolError):
                share = self.letters[j].open(i, context, letter)
                if len(share) == size:
                    held[j][i] = share
        return held

    def _answer(self, named: bytes, mine: Mapping[int, bytes], among: Container[int], *before: bytes) -> bytes:
        """A client's answer when the server names a set V: the sum of its shares of those of V that are `among`.

        Args:
            named: V, as it travels.
            mine: the client's shares, by sender.
            among: of whom the client sums up shares.
            before: sums that are added.

        Raises:
            ProtocolError: V has fewer than N - S̄ members, whose sum would have too little noise, or the client has
                no share of one of them.
        """
        asked = ClientSet.from_bytes(named, self.task.clients)
        due = [i for i in asked if i in among]
        if len(asked) < self.least or not mine.keys() >= set(due):
            raise ProtocolError(f"asked for a sum of {len(asked)} clients, {self.least} needed, all of them held")
        return self.field.pack(self.field.total([*before, *(mine[i] for i in due)], self.code.length))

    def _decode(self, net: Net, answers: Answers, what: str) -> Elements:
        """The last step: the sum of vectors, from sums of shares by position. Bytes that are no share do not count."""
        shares: dict[int, Elements] = {}
        for position, arrived in answers:
            with net.server(), suppress(WireError):
                shares[position] = self.field.unpack(arrived, self.code.length)
        if len(shares) < self.code.needed:
            raise RoundFailedError(net.stages[-1].name, f"{len(shares)} {what}, {self.code.needed} are needed")
        with net.server():
            return self.code.decode([*shares], [*shares.values()])

    def _context(self, what: bytes) -> bytes:
        """What a letter is bound to, besides its ends: its round and its purpose."""
        return struct.pack("<Q", self._rounds) + what

    def _result(self, total: Elements, used: Iterable[int]) -> Result:
        return Result(self.field.centred(total) * np.float64(self.grid.step), frozenset(used))


def agree(
    held: NDArray[np.bool_], rows: int, columns: int, failure: RoundFailedError
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns with nothing missing between them, at least so many of each; if none are found, the failure.

    A column that no row holds is out. As long as something is missing, the row or column that misses most leaves;
    of two alike the row, since columns are what is summed up. A side that has none to spare keeps all it has. (The
    largest choice is a maximum biclique, which is hard to find; this one is good, and the best where clients are lost,
    not links.)
    """
    left, right = np.arange(held.shape[0]), np.flatnonzero(held.any(axis=0))
    while len(left) >= rows and len(right) >= columns:
        missing = ~held[np.ix_(left, right)]
        if not missing.any():
            return left, right
        of_rows, of_columns = missing.sum(axis=1), missing.sum(axis=0)
        worst_row = of_rows.max() if len(left) > rows else -1
        worst_column = of_columns.max() if len(right) > columns else -1
        if worst_row >= worst_column:
            left = np.delete(left, of_rows.argmax())
        else:
            right = np.delete(right, of_columns.argmax())
    raise failure
