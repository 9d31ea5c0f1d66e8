"""Uniform masks of pairs of clients: their keys, their streams, their signs."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

_CHUNK = 1 << 16  # bytes of a stream at a time: they stay in the cache
_ZEROS = memoryview(bytes(_CHUNK))


def words(values: NDArray[np.integer], bits: int) -> NDArray[np.unsignedinteger]:
    """A copy modulo 2^16 or, where `bits` asks for more, 2^32: both keep what is known modulo 2^bits. (d,)"""
    return values.astype("<u2" if bits <= 16 else "<u4")


def add_masks(out: NDArray[np.unsignedinteger], terms: Iterable[tuple[bytes, int]]) -> None:
    """Add sign × PRG(key) for each (key, sign) in place: uniform words of AES-128-CTR. Each key is for one vector.

    The second half of a key is the first counter, as in `lightdp.stream`.
    """
    signed = [(Cipher(AES128(key[:16]), CTR(key[16:])).encryptor(), sign) for key, sign in terms]
    stream = bytearray(_CHUNK + 15)
    uniform, step = np.frombuffer(stream, out.dtype, _CHUNK // out.itemsize), _CHUNK // out.itemsize
    for start in range(0, out.size, step):
        part = out[start : start + step]
        for cipher, sign in signed:
            cipher.update_into(_ZEROS[: part.nbytes], stream)
            (np.add if sign > 0 else np.subtract)(part, uniform[: part.size], out=part)


def derive(secret: bytes, purpose: str, one: int, other: int) -> bytes:
    """A key for one purpose from an X25519 secret of two clients."""
    info = b"lightdp/1 schemes " + purpose.encode() + struct.pack("<II", one, other)
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


def sign(me: int, peer: int) -> int:
    """Of the mask that `me` and `peer` share, in the upload of `me`."""
    return 1 if me < peer else -1
