"""Long-lived identities and the one-time keys that they sign (W2), (W4)."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from lightdp._files import contents, durable
from lightdp._validate import octets
from lightdp.errors import ArgumentError, WireError
from lightdp.keys.pair import KeyPair, exchanged

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")

_FIELD_PRIME = 2**255 - 19
_KEYS = struct.Struct("32s32s32s64s")  # X25519 key, Ed25519 key of uploads, Ed25519 identity, signature
_PEM = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


class Identity:
    """A client's long-lived Ed25519 key, which signs its one-time keys and which peers may pin (W4).

    Args:
        private: 32 secret bytes; `generate` draws them, `load` reads them from a file.

    Attributes:
        public: the 32 bytes that peers pin.

    >>> alice = Identity.generate()
    >>> alice.save("alice.pem")  # mode 0600
    >>> Identity.load("alice.pem").public == alice.public
    True
    """

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
        """Write a new PEM file with mode 0600.

        Formal guarantee: the file appears complete or not at all, and an existing file is never replaced.

        Raises:
            ArgumentError: `path` exists.
        """
        try:
            with durable(path, replace=False) as file:
                file.write(self._key.private_bytes(*_PEM))
        except FileExistsError:
            raise ArgumentError(f"path must not exist yet, got path={os.fspath(path)!r}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Identity:
        """Read a file that `save` wrote.

        Raises:
            ArgumentError: the file's mode lets others read or write it, or it is no regular file with an Ed25519 key.
        """
        pem = contents(path, limit=4096, private=True)
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ArgumentError(f"path must hold an Ed25519 key in PEM, got path={os.fspath(path)!r}")
        return cls(key.private_bytes_raw())

    def enrol(self, pair: KeyPair, *, run: bytes, name: str) -> Enrolment:
        """Sign one-time keys: "in this run, `name` is this identity and uses these keys".

        Args:
            pair: the one-time key pair, made for this run alone.
            run: the run id, 16 bytes.
            name: the client's name: 1 to 64 letters, digits or ._@+-, beginning with a letter or digit.
        """
        statement = _statement(octets("run", run, 16), _check_name(name), pair.public, pair.signer, self.public)
        return Enrolment(run, name, pair.public, pair.signer, self.public, self._key.sign(statement))


@dataclass(frozen=True)
class Enrolment:
    """A client's signed statement of its one-time keys for one run.

    Formal guarantee: an enrolment that exists is signed by `identity` for this run, name and one-time keys, of which
    `public` is a canonical point of large order; or that was so when the bytes came which `read_all` was told it was
    `verified` of.

    Bytes: length of the name (1), name, X25519 key (32), Ed25519 key of uploads (32), Ed25519 identity (32), signature
    (64). The run id is not among them: the signature covers it, so an enrolment for another run does not verify.

    Attributes:
        run: the run id, 16 bytes.
        name: the client's name in the roster.
        public: the one-time X25519 key, 32 bytes.
        signer: the one-time Ed25519 key that signs uploads, 32 bytes.
        identity: the long-lived Ed25519 key, 32 bytes.
        signature: 64 bytes.

    Raises:
        ArgumentError: a field has the wrong type, size or form.
        WireError: the key or the signature is not valid.

    >>> enrolment = Identity.generate().enrol(KeyPair.generate(), run=bytes(16), name="ann")
    >>> Enrolment.from_bytes(enrolment.to_bytes(), run=bytes(16)) == enrolment
    True
    """

    run: bytes
    name: str
    public: bytes
    signer: bytes
    identity: bytes
    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        for what, size in (("run", 16), ("public", 32), ("signer", 32), ("identity", 32), ("signature", 64)):
            value = getattr(self, what)
            if not isinstance(value, bytes) or len(value) != size:
                object.__setattr__(self, what, octets(what, value, size))
        _check_name(self.name)
        keys = self.public, self.signer, self.identity
        if (fault := _fault(self.run, self.name, *keys, self.signature)) is not None:
            raise WireError(fault)

    def verify(self, signature: bytes, statement: bytes) -> None:
        """Refuse a statement that this client did not sign with its one-time key.

        Raises:
            WireError: the signature is not that of `signer`.
        """
        try:
            Ed25519PublicKey.from_public_bytes(self.signer).verify(signature, statement)
        except (InvalidSignature, ValueError):
            raise WireError(f"{self.name} did not sign this") from None

    def to_bytes(self) -> bytes:
        """The canonical bytes."""
        name = self.name.encode()
        return bytes([len(name)]) + name + self.public + self.signer + self.identity + self.signature

    @classmethod
    def from_bytes(cls, data: bytes, *, run: bytes) -> Enrolment:
        """Decode and verify exactly one enrolment for this run.

        Raises:
            WireError: `data` is not an enrolment that is valid in this run.
        """
        return cls.read_all(bytes(data), run=run, count=1)[0]

    @classmethod
    def read_all(cls, data: bytes, *, run: bytes, count: int, verified: bool = False) -> tuple[Enrolment, ...]:
        """Decode and verify the enrolments of which `data` consists.

        Args:
            data: the bytes.
            run: the run id, 16 bytes.
            count: how many there must be; more or fewer are refused before a signature is verified, which takes longer
                than all else.
            verified: whether they were verified when they came, and were kept since where nobody else writes.

        Raises:
            WireError: `data` holds something other than `count` enrolments that are valid in this run.
        """
        places, start = [], 0
        while start < len(data):
            keys = start + 1 + data[start]
            if len(data) < keys + _KEYS.size:
                raise WireError(f"enrolment must have {keys + _KEYS.size - start} bytes, got {len(data) - start}")
            places.append((start + 1, keys))
            start = keys + _KEYS.size
        if len(places) != count:
            raise WireError(f"expected {count} enrolment{'s' if count != 1 else ''}, got {len(places)}")
        make = cls._known if verified else cls
        try:
            return tuple(
                make(run, data[name:keys].decode("latin-1"), *_KEYS.unpack_from(data, keys)) for name, keys in places
            )  # decoding never fails; `_check_name` refuses what is no name
        except ArgumentError as error:
            raise WireError(f"enrolment is malformed: {error}") from None

    @classmethod
    def _known(cls, run: bytes, name: str, *keys: bytes) -> Enrolment:
        """An enrolment of fields that have the right sizes and were verified before."""
        fields = "run", "name", "public", "signer", "identity", "signature"
        enrolment = object.__new__(cls)
        vars(enrolment).update(zip(fields, (run, _check_name(name), *keys), strict=True))
        return enrolment


@lru_cache(maxsize=4096)  # a server and its clients in one process read the same enrolments
def _fault(  # noqa: PLR0917  the fields of an enrolment
    run: bytes, name: str, public: bytes, signer: bytes, identity: bytes, signature: bytes
) -> str | None:
    """What makes an enrolment invalid, if anything does."""
    if int.from_bytes(public, "little") >= _FIELD_PRIME:
        return f"X25519 key {public.hex()} of {name} is not canonical"
    try:
        exchanged(_PROBE, public)
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, _statement(run, name, public, signer, identity))
    except WireError as error:
        return str(error)
    except (InvalidSignature, ValueError):
        return f"enrolment of {name} is not signed by its identity for this run"
    return None


def _statement(run: bytes, name: str, public: bytes, signer: bytes, identity: bytes) -> bytes:
    """The bytes that an identity signs; all parts but the last have a fixed length."""
    return b"lightdp/2 enrolment" + run + public + signer + identity + name.encode()


def _check_name(name: str) -> str:
    if NAME.fullmatch(name) is None:
        raise ArgumentError(f"name must be 1 to 64 letters, digits or ._@+- (not first), got name={name!r}")
    return name


_PROBE = X25519PrivateKey.from_private_bytes(bytes(range(32)))  # not secret: it detects points of small order
