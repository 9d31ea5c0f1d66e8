"""Four clients with known keys, and their roster."""

from __future__ import annotations

import hashlib

from lightdp.keys import Enrolment, Identity, KeyPair, Roster

RUN = bytes(range(16))
PLAN = hashlib.sha256(b"a plan").digest()
NAMES = ("alice", "bob", "carol", "dave")


def identity_of(name: str) -> Identity:
    return Identity(hashlib.sha256(b"identity " + name.encode()).digest())


def pair_of(name: str) -> KeyPair:
    return KeyPair(hashlib.sha256(b"pair " + name.encode()).digest())


def enrolment_of(name: str, run: bytes = RUN) -> Enrolment:
    return identity_of(name).enrol(pair_of(name), run=run, name=name)


ENROLMENTS = [enrolment_of(name) for name in NAMES]
ROSTER = Roster.of(ENROLMENTS, run=RUN, plan=PLAN)
