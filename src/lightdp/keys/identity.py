"""Long-lived identities and the one-time keys that they sign (W2), (W4)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from lightdp._files import durable
from lightdp._validate import octets
from lightdp.errors import ArgumentError, WireError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")

_FIELD_PRIME = 2**255 - 19


class Identity:
    """A client's long-lived Ed25519 key, which signs its one-time keys and which peers may pin (W4)."""

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(octets("private", private, 32))
        self.public = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()})"

    @classmethod
    def generate(cls) -> Identity:
        """A new identity from the operating system's entropy."""
        return cls(os.urandom(32))

    def to_bytes(self) -> bytes:
        """The 32 private bytes."""
        return self._key.private_bytes_raw()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new PEM file that only its owner can read, whole or not at all; never replace one."""
        pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            with durable(path, replace=False) as file:
                file.write(pem)
        except FileExistsError:
            raise ArgumentError(f"path must not exist yet, got path={os.fspath(path)!r}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Read what `save` wrote; refuse a file that others may read or write."""
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            pem = file.read(4096)
        if mode & 0o077 != 0:
            raise ArgumentError(f"path must be private (mode 0600), got {os.fspath(path)!r} mode {mode:04o}")
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ArgumentError(f"path must hold an Ed25519 key in PEM, got path={os.fspath(path)!r}")
        return cls(key.private_bytes_raw())

    def enrol(self, pair: KeyPair, *, run: bytes, name: str) -> Enrolment:
        """Sign the one-time key: "in this run, `name` is this identity and uses this key"."""
        statement = _statement(octets("run", run, 16), _check_name(name), pair.public, self.public)
        return Enrolment(run, name, pair.public, self.public, self._key.sign(statement))


class KeyPair:
    """A one-time X25519 key pair: a new one for each roster."""

    def __init__(self, private: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(octets("private", private, 32))
        self.public = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"

    @classmethod
    def generate(cls) -> KeyPair:
        """A new key pair from the operating system's entropy."""
        return cls(os.urandom(32))

    def to_bytes(self) -> bytes:
        """The 32 private bytes, for the state that survives a restart."""
        return self._key.private_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret shared with the owner of `public`; refuses points that would make it constant."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(octets("public", public, 32)))
        except ValueError:
            raise WireError(f"X25519 key {bytes(public).hex()} must be a point of large order") from None


@dataclass(frozen=True)
class Enrolment:
    """A client's signed statement of its one-time key for one run.

    Bytes: length of the name (1), name, X25519 key (32), Ed25519 key (32), signature (64). The run id is not
    among them: the signature covers it, so an enrolment for another run does not verify.
    """

    run: bytes
    name: str
    public: bytes
    identity: bytes
    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        for what, size in (("run", 16), ("public", 32), ("identity", 32), ("signature", 64)):
            octets(what, getattr(self, what), size)
        _check_name(self.name)
        if int.from_bytes(self.public, "little") >= _FIELD_PRIME:
            raise WireError(f"X25519 key {self.public.hex()} of {self.name} is not canonical")
        _ANYBODY.agree(self.public)
        statement = _statement(self.run, self.name, self.public, self.identity)
        if not _signed(self.identity, self.signature, statement):
            raise WireError(f"enrolment of {self.name} is not signed by its identity for this run")

    def to_bytes(self) -> bytes:
        """The canonical bytes."""
        name = self.name.encode()
        return bytes([len(name)]) + name + self.public + self.identity + self.signature

    @classmethod
    def from_bytes(cls, data: bytes, *, run: bytes) -> Enrolment:
        """Decode and verify exactly one enrolment for this run."""
        enrolment, end = cls.read(bytes(data), 0, run=run)
        if end != len(data):
            raise WireError(f"enrolment must have {end} bytes, got {len(data)}")
        return enrolment

    @classmethod
    def read(cls, data: bytes, start: int, *, run: bytes) -> tuple[Enrolment, int]:
        """The enrolment that starts at `start`, verified, and where it ends."""
        length = data[start] if start < len(data) else 0
        key = start + 1 + length
        if len(data) < key + 128:
            raise WireError(f"enrolment must have {length + 129} bytes, got {len(data) - start}")
        name = data[start + 1 : key].decode("latin-1")  # never fails; what is no name is refused below
        parts = (data[key : key + 32], data[key + 32 : key + 64], data[key + 64 : key + 128])
        try:
            return cls(run, name, *parts), key + 128
        except ArgumentError as error:
            raise WireError(f"enrolment is malformed: {error}") from None


@lru_cache(maxsize=4096)  # a roster is read again for each message that a stateless client handles
def _signed(identity: bytes, signature: bytes, statement: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def _statement(run: bytes, name: str, public: bytes, identity: bytes) -> bytes:
    """What an identity signs; all parts but the last have a fixed length."""
    return b"lightdp/1 enrolment" + run + public + identity + name.encode()


def _check_name(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise ArgumentError(f"name must be 1 to 64 letters, digits or ._@+- (not first), got name={name!r}")
    return name


_ANYBODY = KeyPair(bytes(range(32)))  # secret from nobody: it tells points of small order from others
