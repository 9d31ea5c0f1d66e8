"""From X25519 secrets to a stream key for each pair and round, bound to all that both know (W2)-(W4)."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from lightdp._validate import integer, octets
from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightdp.keys.identity import KeyPair
    from lightdp.keys.roster import Roster


class Keyring:
    """The keys that client `me` shares with each of its peers (all others by default) under one roster.

    Making it costs one X25519 agreement a peer; then each stream key costs one HMAC.
    """

    def __init__(self, pair: KeyPair, roster: Roster, me: int, peers: Iterable[int] | None = None) -> None:
        last = len(roster) - 1
        if roster.enrolments[integer("me", me, 0, last)].public != pair.public:
            raise ArgumentError(f"pair must be the one that client me={me} enrolled")
        others = [j for j in range(last + 1) if j != me] if peers is None else list(peers)
        if me in others:
            raise ArgumentError(f"peers must not contain me={me}")
        self.me = me
        self._run = roster.run
        self._keys = {
            j: pair_key(
                pair.agree(roster.enrolments[integer("peer", j, 0, last)].public),
                roster=roster.hash,
                ends=_ordered(me, j),
            )
            for j in others
        }

    def __repr__(self) -> str:
        return f"Keyring(me={self.me}, peers={list(self._keys)})"

    def stream_key(self, peer: int, *, round: int, chain: bytes) -> bytes:  # noqa: A002 - the paper's word
        """The key of the noise shared with `peer` in this round; the peer derives the same."""
        if peer not in self._keys:
            raise ArgumentError(f"peer must be one of {list(self._keys)}, got peer={peer}")
        ends = _ordered(self.me, peer)
        return stream_key(self._keys[peer], run=self._run, round=round, chain=chain, ends=ends)


def pair_key(secret: bytes, *, roster: bytes, ends: tuple[int, int]) -> bytes:
    """256-bit key of the pair `ends` = (i, j), i < j, from its X25519 secret and the roster hash (W2)."""
    info = b"lightdp/1 pair" + struct.pack("<II", *ends)
    return HKDF(algorithm=SHA256(), length=32, salt=octets("roster", roster, 32), info=info).derive(secret)


def stream_key(pair: bytes, *, run: bytes, round: int, chain: bytes, ends: tuple[int, int]) -> bytes:  # noqa: A002
    """256-bit stream key of the pair `ends` = (i, j), i < j, in one round, from its pair key (W3), (W4)."""
    place = octets("run", run, 16) + integer("round", round, 0, 2**64 - 1).to_bytes(8, "little")
    info = b"lightdp/1 stream" + place + octets("chain", chain, 32) + struct.pack("<II", *ends)
    return HKDFExpand(algorithm=SHA256(), length=32, info=info).derive(pair)


def link(chain: bytes, *, round: int, announcement: bytes) -> bytes:  # noqa: A002 - the paper's word
    """The hash chain of announcements, one longer (W4). It starts as the roster hash; always 32 bytes."""
    place = octets("chain", chain, 32) + integer("round", round, 0, 2**64 - 1).to_bytes(8, "little")
    return hashlib.sha256(b"lightdp/1 chain" + place + announcement).digest()


def _ordered(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
