"""What schemes of coded computation share: sealed letters between clients, private shares, and who takes part.

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
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lightdp.client_set import ClientSet
from lightdp.errors import WireError
from lightdp.keys import KeyPair, pair_key
from lightdp.wire import packed_size
from lightdp_lab.schemes._field import Field
from lightdp_lab.schemes._scheme import Smpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from lightdp_lab.schemes._field import Elements
    from lightdp_lab.schemes._net import Net
    from lightdp_lab.schemes._scheme import Task

_NONCE = 12  # bytes, drawn anew for each letter


class Letters:
    """What one client seals for its peers and opens from them: AES-256-GCM under a key of each pair (X25519, HKDF).

    The server passes public keys on; that it does so honestly is what these schemes assume of it.
    """

    def __init__(self, me: int) -> None:
        self.me = me
        self._pair = KeyPair.generate()
        self._keys: dict[int, AESGCM] = {}

    @property
    def public(self) -> bytes:
        """Its public key, 32 bytes."""
        return self._pair.public

    def meet(self, publics: Sequence[bytes]) -> None:
        """Agree on a key with everybody; all must have been shown the same public keys."""
        roster = hashlib.sha256(b"".join(publics)).digest()
        for peer, public in enumerate(publics):
            if peer != self.me:
                ends = (min(self.me, peer), max(self.me, peer))
                self._keys[peer] = AESGCM(pair_key(self._pair.agree(public), roster=roster, ends=ends))

    def seal(self, peer: int, context: bytes, message: bytes) -> bytes:
        """A letter to `peer` that opens only there, in this context and as from here."""
        nonce = os.urandom(_NONCE)
        return nonce + self._keys[peer].encrypt(nonce, message, struct.pack("<II", self.me, peer) + context)

    def open(self, peer: int, context: bytes, letter: bytes) -> bytes | None:
        """What `peer` sealed for this client in this context; None for any other bytes."""
        try:
            associated = struct.pack("<II", peer, self.me) + context
            return self._keys[peer].decrypt(letter[:_NONCE], letter[_NONCE:], associated)
        except (InvalidTag, ValueError):
            return None


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

    @property
    def size(self) -> int:
        """Bytes of a packed share."""
        return packed_size(self.length, self.field.bits)

    @cached_property
    def matrix(self) -> Elements:
        """(shares, K + T)"""
        return self.field.lagrange(range(self.needed), self._points(range(self.shares)))

    def encode(self, vector: Elements, key: bytes | None = None) -> Elements:
        """Fresh shares of a vector (d,); from a key always the same. (shares, length)"""
        rows = np.zeros((self.needed, self.length), np.uint32)
        rows.reshape(-1)[: self.dimension] = vector
        rows[self.pieces :] = self.field.uniform(self.private * self.length, key).reshape(self.private, self.length)
        return self.field.matmul(self.matrix, rows)

    def decode(self, who: Sequence[int], shares: Sequence[Elements]) -> Elements:
        """The vector of which these are the shares of K + T or more positions; the first K + T are used. (d,)"""
        who, rows = who[: self.needed], np.stack(shares[: self.needed])
        back = self.field.lagrange(self._points(who), range(self.pieces))
        return self.field.matmul(back, rows).reshape(-1)[: self.dimension]

    def _points(self, positions: Sequence[int]) -> list[int]:
        return [self.needed + position for position in positions]


class Coded(Smpc):
    """A scheme whose clients send each other shares of its `code`."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._rounds = 0

    @property
    @abstractmethod
    def code(self) -> Code:
        """Of the shares."""

    @cached_property
    def field(self) -> Field:
        """Just as many bits as the sum needs, but enough elements for all points of a code."""
        return Field(max(self.grid.bits, (2 * self.task.clients).bit_length() + 1, 8))

    def set_up(self, net: Net) -> None:
        """One public key of each client to everybody, once for the whole training."""
        self.letters = letters = [Letters(i) for i in range(self.task.clients)]
        net.stage("enrol")
        publics = dict(net.collect(range(len(letters)), lambda i: letters[i].public))
        self.demand("enrol", len(publics), len(letters))
        net.stage("roster")
        roster = [b"".join(publics.values())] * len(letters)
        net.hand_out(roster, lambda i, keys: letters[i].meet([keys[k : k + 32] for k in range(0, len(keys), 32)]))

    def _send(self, ends: tuple[int, int], share: bytes, held: list[dict[int, bytes]], net: Net) -> None:
        """A share from one client to another, who holds it if it arrives whole."""
        sender, receiver = ends
        context = self._context(b"share")
        with net.client(sender):
            letter = self.letters[sender].seal(receiver, context, share)
        arrived = net.between(sender, receiver, letter)
        if arrived is not None:
            with net.client(receiver):
                opened = self.letters[receiver].open(sender, context, arrived)
                if opened is not None and len(opened) == self.code.size:
                    held[receiver][sender] = opened

    def _flags(self, clients: Iterable[int]) -> NDArray[np.bool_]:
        """A set of clients, as flags. (N,)"""
        flags = np.zeros(self.task.clients, np.bool_)
        flags[list(clients)] = True
        return flags

    def _context(self, what: bytes) -> bytes:
        """What a letter is bound to, besides its ends: its round and its purpose."""
        return struct.pack("<Q", self._rounds) + what

    def _decoded(self, total: Elements) -> NDArray[np.float64]:
        return self.field.centred(total) * np.float64(self.grid.step)

    def _asked(
        self, announced: bytes, held: NDArray[np.bool_], mine: NDArray[np.bool_] | None = None
    ) -> NDArray[np.intp] | None:
        """For a client that `held` shares of so many: whom of `mine` to sum up, as the server announced.

        None if that is a set of fewer than N - S̄, whose sum would have too little noise, or one that lacks
        somebody here: the client then stays silent.
        """
        asked = self._members(announced)
        if asked is None or asked.sum() < self.least:
            return None
        due = asked if mine is None else asked & mine
        return None if (due & ~held).any() else np.flatnonzero(due)

    def _members(self, message: bytes) -> NDArray[np.bool_] | None:
        """A set of clients; None for bytes that are none, as if they had not come."""
        with suppress(WireError):
            return ClientSet.from_bytes(message, self.task.clients).flags
        return None

    def _elements(self, message: bytes) -> Elements | None:
        """A packed share; None for bytes that are none, as if they had not come."""
        with suppress(WireError):
            return self.field.unpack(message, self.code.length)
        return None

    def _packed_sum(self, shares: Iterable[bytes]) -> bytes | None:
        """The sum of packed shares; None if a peer sealed nonsense."""
        with suppress(WireError):
            return self.field.pack(self.field.total(shares, self.code.length))
        return None


def agree(held: NDArray[np.bool_], rows: int, columns: int) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Rows and columns with nothing missing between them, at least so many of each, or None if none are found.

    A column that no row holds is out. As long as something is missing, whoever misses most leaves; of two alike the
    row, since columns are what is summed up. A side that has none to spare keeps all it has. (The largest choice is
    a maximum biclique, which is hard to find; this one is good, and the best where clients are lost, not links.)
    """
    left, right = np.arange(held.shape[0]), np.flatnonzero(held.any(axis=0))
    while len(left) >= rows and len(right) >= columns:
        missing = ~held[np.ix_(left, right)]
        if not missing.any():
            return left, right
        of_rows, of_columns = missing.sum(axis=1), missing.sum(axis=0)
        worst_row = of_rows.max() if len(left) > rows else -1
        worst_column = of_columns.max() if len(right) > columns else -1
        if max(worst_row, worst_column) < 0:
            return None
        if worst_row >= worst_column:
            left = np.delete(left, of_rows.argmax())
        else:
            right = np.delete(right, of_columns.argmax())
    return None
