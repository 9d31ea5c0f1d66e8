"""Identities, one-time keys, the roster, and a fresh stream key for each pair and round (W2)-(W4).

A client has one long-lived Ed25519 identity and, for each roster, a new X25519 key pair that it enrols with a
signature. The roster is the sorted list of all enrolments, and its hash goes into every key:

    secret = X25519(private_i, public_j) = X25519(private_j, public_i)
    pair   = HKDF-SHA256(secret, salt = roster hash, info = "lightdp/1 pair", i, j), i < j       once
    stream = HKDF-Expand(pair, info = "lightdp/1 stream", run id, round, chain, i, j)            each round

Two clients that were shown different rosters, runs, rounds or announcements derive unrelated keys: their
noise does not cancel, and nothing leaks (W4). What comes from outside is checked when it is built, so an
`Enrolment` or a `Roster` that exists is valid; `WireError` says why another is not. Numbers are little-
endian. Secrets are kept out of `repr`; Python cannot promise to erase them from memory.
"""

from lightdp.keys.derivation import Keyring, link, pair_key, stream_key
from lightdp.keys.identity import Enrolment, Identity, KeyPair
from lightdp.keys.roster import Pins, Roster

__all__ = [
    "Enrolment",
    "Identity",
    "KeyPair",
    "Keyring",
    "Pins",
    "Roster",
    "link",
    "pair_key",
    "stream_key",
]
