"""The one-time keys of a client: X25519 for noise that it shares with peers, Ed25519 for its uploads (W2)."""

from __future__ import annotations

import os
from functools import cached_property
from weakref import WeakValueDictionary

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lightdp._validate import octets
from lightdp.errors import WireError

_MOST = 1 << 14  # secrets that a pair keeps; a server decides how many keys it sees


class KeyPair:
    """A client's one-time keys: a new pair for each run (W2).

    The secret is that of an X25519 key pair, from which peers get shared noise. The Ed25519 key that signs uploads is
    derived from it by HKDF, so that a client has one secret to keep, and its long-lived identity need not be at hand.
    Two pairs of the same bytes are one object: what a client has agreed on is not computed again when it is restored in
    the process where it lives.

    Args:
        private: 32 secret bytes; `generate` draws them.

    Attributes:
        public: the X25519 key that the client enrols, 32 bytes.

    >>> ann, bob = KeyPair.generate(), KeyPair.generate()
    >>> ann.agree(bob.public) == bob.agree(ann.public)
    True
    """

    public: bytes
    _key: X25519PrivateKey
    _agreed: dict[bytes, bytes]  # by key of the other: a new roster of known peers needs no new secrets

    def __new__(cls, private: bytes) -> KeyPair:  # noqa: PYI034  it has no subclasses
        """The pair of these bytes that is in use already, with the secrets that it has agreed on, or a new one."""
        secret = bytes(octets("private", private, 32))
        if (pair := _alive.get(secret)) is None:
            pair = super().__new__(cls)
            pair._key = X25519PrivateKey.from_private_bytes(secret)
            pair.public = pair._key.public_key().public_bytes_raw()
            pair._agreed = {}
            _alive[secret] = pair
        return pair

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public.hex()})"

    @classmethod
    def generate(cls) -> KeyPair:
        """A new key pair from the operating system's entropy."""
        return cls(os.urandom(32))

    def to_bytes(self) -> bytes:
        """The 32 private bytes, for the state that survives a restart."""
        return self._key.private_bytes_raw()

    @property
    def signer(self) -> bytes:
        """The Ed25519 key with which uploads are verified, which the client enrols too, 32 bytes."""
        return self._signing.public_key().public_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        """The 64-byte Ed25519 signature that `Enrolment.verify` accepts."""
        return self._signing.sign(statement)

    @cached_property
    def _signing(self) -> Ed25519PrivateKey:
        seed = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"lightdp/2 upload key").derive(self.to_bytes())
        return Ed25519PrivateKey.from_private_bytes(seed)

    def agree(self, public: bytes) -> bytes:
        """The 32-byte X25519 secret shared with the owner of `public`.

        Raises:
            WireError: `public` is a point of small order, for which the secret would be constant.
        """
        if (known := self._agreed.get(public)) is not None:
            return known
        if len(self._agreed) >= _MOST:
            self._agreed.clear()
        other = X25519PublicKey.from_public_bytes(octets("public", public, 32))
        try:
            secret = self._key.exchange(other)
        except ValueError:
            raise WireError(f"X25519 key {public.hex()} must be a point of large order") from None
        self._agreed[bytes(public)] = secret
        return secret


_alive: WeakValueDictionary[bytes, KeyPair] = WeakValueDictionary()  # by private bytes; no secret outlives its owners
