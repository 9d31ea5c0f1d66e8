"""Sets of clients on the wire: a bitmap among few clients, and among many the gaps between those listed.

A set of at most 1024 clients is `ClientSet.to_bytes`. A set of more clients is the number 2m + s as a varint (seven
bits to a byte, lowest first, the top bit of all but the last), where m is how many clients are listed, and s is 0 if
they are the members and 1 if they are the others. The smaller side is listed, the members where both are equal. Then
follow bits, the lowest of a byte first, padded with zeros to a whole byte: with k the largest integer for which
m 2^k <= N − m, the lower k bits of each gap, lowest first, and after all of them the rest of each gap in unary, as so
many zeros and a one. A gap is how many clients lie between a listed client and the one listed before it.

That takes at most N bits and a few bytes, whatever the set: half of a bitmap where one in ten clients straggles, and
about 12 bits for each straggler where one in a thousand does.

Formal guarantee: a set has one encoding, and `read_set` accepts no other bytes.

>>> packed_set(~ClientSet.of(2000, [7, 500])).hex()
'0507d80f'
>>> list(~read_set(bytes.fromhex("0507d80f"), 2000)[0])
[7, 500]
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lightdp.client_set import ClientSet, bitmap_size
from lightdp.errors import WireError

_FEW = 1024  # clients, up to which a bitmap is short and takes less time
_LONGEST = 5  # bytes of a varint: twice a number of 32 bits


@lru_cache(maxsize=256)  # a server tells many clients of the same rounds
def packed_set(some: ClientSet) -> bytes:
    """A set as it travels."""
    return some.to_bytes() if some.clients <= _FEW else _packed_gaps(some)


def _packed_gaps(some: ClientSet) -> bytes:
    others = 2 * len(some) > some.clients
    listed = ~some if others else some
    count = len(listed)
    head = _varint(2 * count + others)
    if count == 0:
        return head
    gaps, low = np.diff(np.flatnonzero(listed.flags), prepend=-1) - 1, _low_bits(some.clients, count)
    ends = ((gaps >> low) + 1).cumsum() - 1
    unary = np.zeros(int(ends[-1]) + 1, np.bool_)
    unary[ends] = True
    lower = (gaps[:, None] >> np.arange(low) & 1).astype(np.bool_).ravel()
    return head + np.packbits(np.concatenate([lower, unary]), bitorder="little").tobytes()


def read_set(data: bytes | memoryview, clients: int) -> tuple[ClientSet, int]:
    """The set with which `data` begins, and how many bytes it takes.

    Args:
        data: bytes from elsewhere.
        clients: N.

    Raises:
        WireError: `data` does not begin with the encoding of a set of so many clients.
    """
    if clients > _FEW:
        return _read_gaps(data, clients)
    size = bitmap_size(clients)
    return ClientSet.from_bytes(data[:size], clients), size


def _read_gaps(data: bytes | memoryview, clients: int) -> tuple[ClientSet, int]:
    value, at = _read_varint(data)
    count, others = value // 2, value % 2
    if 2 * count + others > clients:
        raise WireError(f"a set of {clients} clients must list the smaller side, got {count} clients")
    if count == 0:
        return ClientSet.all(clients) if others else ClientSet.none(clients), at
    low = _low_bits(clients, count)
    most = count * low + count + (clients - count >> low)
    bits = np.unpackbits(np.frombuffer(data[at : at + -(-most // 8)], np.uint8), bitorder="little")
    ends = bits[count * low : most].nonzero()[0][:count]  # of the unary numbers
    if ends.size < count:
        raise WireError(f"a set of {clients} clients lists {count} of them, but not where they are")
    lower = bits[: count * low].reshape(count, low) @ (1 << np.arange(low))
    order = np.arange(count)
    members = (ends - order << low) + (lower + 1).cumsum() - 1  # gaps before each, and clients listed before it
    used = count * low + int(ends[-1]) + 1
    if members[-1] >= clients:
        raise WireError(f"a set of {clients} clients has members beyond them")
    if bits[used : -(-used // 8) * 8].any():
        raise WireError(f"a set of {clients} clients has padding that is not zero")
    flags = np.zeros(clients, np.bool_)
    flags[members] = True
    listed = ClientSet(flags)
    return ~listed if others else listed, at + -(-used // 8)


def _low_bits(clients: int, count: int) -> int:
    """k: how many bits of a gap are not in unary, if `count` of `clients` are listed."""
    return max(((clients - count) // count).bit_length() - 1, 0)


def _varint(value: int) -> bytes:
    groups = [value >> at & 127 for at in range(0, max(value.bit_length(), 1), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])


def _read_varint(data: bytes | memoryview) -> tuple[int, int]:
    """The number with which `data` begins, and how many bytes it takes."""
    value = 0
    for at, byte in enumerate(data[:_LONGEST]):
        value |= (byte & 127) << 7 * at
        if byte < 128:
            if byte == 0 and at > 0:
                raise WireError("a set must begin with the shortest form of its size")
            return value, at + 1
    raise WireError(f"a set must begin with its size, got {bytes(data[:_LONGEST]).hex() or 'nothing'}")
