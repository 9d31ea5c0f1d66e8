"""Long-lived identities and the one-time keys that they sign (W2), (W4)."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from weakref import WeakValueDictionary

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lightdp._files import contents, durable
from lightdp._validate import octets
from lightdp.errors import ArgumentError, WireError
from lightdp.keys.pair import KeyPair

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")

_FIELD_PRIME = 2**255 - 19
# X25519 is constant on points whose order divides 8. These are all of them, on the curve u³ + 486662 u² + u and on its
# twist: 0 of order 2, 1 and -1 of order 4 (doubled, they give 0), two of order 8 (doubled, they give 1; none gives -1).
_ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
_SMALL_ORDER = {u.to_bytes(32, "little") for u in (0, 1, _FIELD_PRIME - 1, _ORDER_8, pow(_ORDER_8, -1, _FIELD_PRIME))}
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
    `public` is a canonical point of large order; or that was so when the bytes came of which `from_bytes` was told that
    they were `verified`.

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
        return b"%c%b%b%b%b%b" % (len(name), name, self.public, self.signer, self.identity, self.signature)

    @staticmethod
    def end(data: bytes, start: int) -> int:
        """Where the enrolment ends that begins at `start` of `data`.

        Raises:
            WireError: `data` is too short for it.
        """
        size = 1 + (data[start] if start < len(data) else 0) + _KEYS.size
        if start + size > len(data):
            raise WireError(f"enrolment must have {size} bytes, got {len(data) - start}")
        return start + size

    @classmethod
    def from_bytes(cls, data: bytes, *, run: bytes, verified: bool = False) -> Enrolment:
        """Decode and verify exactly one enrolment for this run.

        Args:
            data: the bytes.
            run: the run id, 16 bytes.
            verified: whether it was verified when it came, and was kept since where nobody else writes.

        Raises:
            WireError: `data` is not an enrolment that is valid in this run.
        """
        data = bytes(data)
        if (end := cls.end(data, 0)) != len(data):
            raise WireError(f"enrolment must have {end} bytes, got {len(data)}")
        name, keys = data[1 : -_KEYS.size].decode("latin-1"), _KEYS.unpack_from(data, end - _KEYS.size)  # never fails
        if not verified:
            try:
                fault = _fault(run, _check_name(name), *keys)
            except ArgumentError as error:
                raise WireError(f"enrolment is malformed: {error}") from None
            if fault is not None:
                raise WireError(fault)
        if (known := _alive.get(key := run + data)) is not None:
            return known
        enrolment = object.__new__(cls)  # fields have the right sizes and were verified, here or before
        public, signer, identity, signature = keys
        fields = {"public": public, "signer": signer, "identity": identity, "signature": signature}
        object.__setattr__(enrolment, "__dict__", {"run": run, "name": name, **fields})
        if not verified:
            _alive[key] = enrolment
        return enrolment


_alive: WeakValueDictionary[bytes, Enrolment] = WeakValueDictionary()  # verified: clients of one process share them


@lru_cache(maxsize=1 << 17)  # a server and its clients in one process read the same enrolments
def _fault(  # noqa: PLR0917  the fields of an enrolment
    run: bytes, name: str, public: bytes, signer: bytes, identity: bytes, signature: bytes
) -> str | None:
    """What makes an enrolment invalid, if anything does."""
    if int.from_bytes(public, "little") >= _FIELD_PRIME:
        return f"X25519 key {public.hex()} of {name} is not canonical"
    if public in _SMALL_ORDER:
        return f"X25519 key {public.hex()} of {name} must be a point of large order"
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, _statement(run, name, public, signer, identity))
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
