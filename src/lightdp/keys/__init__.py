"""Identities, one-time keys, the roster, and a fresh stream key for each pair and round (W2)-(W4).

A client has one long-lived Ed25519 identity and, for each roster, a new X25519 key pair that it enrols with a
signature, together with the Ed25519 key of its uploads. The roster is a hash tree over all enrolments, sorted by name,
and its hash goes into every key. Who shares noise with few sees those few alone: an excerpt has the same hash.

    upload = Ed25519 key from HKDF-SHA256(private_i, info = "lightdp/2 upload key")              once
    secret = X25519(private_i, public_j) = X25519(private_j, public_i)
    pair   = HKDF-SHA256(secret, salt = roster hash, info = "lightdp/1 pair", i, j), i < j       once
    stream = HKDF-Expand(pair, info = "lightdp/1 stream", run id, round, chain, i, j)            each round

Formal guarantees:

| attempt | result |
| --- | --- |
| show clients different rosters, runs, rounds or announcements | unrelated keys: noise stays, nothing leaks (W4) |
| alter a byte of an enrolment or roster | `WireError`, or another hash: an `Enrolment` that exists is valid |
| show a client another enrolment of a name, or in another place, than others see | another hash (`lightdp.keys.tree`) |
| enrol a key that makes secrets predictable (a point of small order) | `WireError` |
| upload in the name of another client, or alter its upload | `WireError` from `Enrolment.verify` |
| swap a pinned identity or name | `WireError` from `Pins.check` |

Integers are little-endian. `repr` shows no secret; Python cannot promise to erase secrets from memory.

Two clients enrol, agree on a roster and derive the same key for round 0:

>>> run, plan = bytes(16), bytes(32)
>>> pairs = {name: KeyPair.generate() for name in ("ann", "bob")}
>>> enrolments = [Identity.generate().enrol(pair, run=run, name=name) for name, pair in pairs.items()]
>>> roster = Roster.of(enrolments, run=run, plan=plan)
>>> ann, bob = (Keyring(pair, roster, i) for i, pair in enumerate(pairs.values()))
>>> chain = roster.hash
>>> ann.stream_keys([1], round=0, chain=chain)[1] == bob.stream_keys([0], round=0, chain=chain)[0]
True
"""

from lightdp.keys.derivation import Keyring, link, pair_key
from lightdp.keys.identity import Enrolment, Identity
from lightdp.keys.pair import KeyPair
from lightdp.keys.pins import Pins
from lightdp.keys.roster import Roster

__all__ = ["Enrolment", "Identity", "KeyPair", "Keyring", "Pins", "Roster", "link", "pair_key"]
