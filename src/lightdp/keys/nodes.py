"""The bytes of a roster's hash tree (`lightdp.keys.tree`): made of enrolments, read and hashed, and pruned.

In the compiled kernel, or in Python with the same bytes. The kernel answers None to whatever it refuses, and Python
then says what is wrong. It is used only if it makes a small tree as Python does when this module is imported.

Columns describe the nodes of a tree in preorder, little-endian:

| column | bytes a node | |
| --- | --- | --- |
| starts | 8 | where it begins in the tree's bytes |
| ends | 4 | the node that follows all that is below it |
| bits | 2 | the bit of an inner node, and 520 for others |
| counts | 4 | clients below it |
| hashes | 32 | |
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

from lightdp._native import kernel
from lightdp.errors import ArgumentError, WireError

Columns: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes]

LEAF, INNER, PRUNED = range(3)
WIDTH = 8 * 65  # bits of a padded name
_LONGEST = 64  # bytes of a name
FIXED = 32 + 32 + 32 + 64  # bytes of an enrolment after its name
_INNER_BYTES, _PRUNED_BYTES = struct.Struct("<BH"), struct.Struct("<BI32s")
_HASHED = struct.Struct("<BHI32sI32s")
_CODES = "QIHI"  # of all columns but the hashes


def plant(enrolments: Sequence[bytes]) -> bytes:
    """The tree of these enrolments, which must be sorted by name.

    Raises:
        WireError: they are not, or two have one name.
    """
    made = kernel.plant(b"".join(enrolments)) if _WAY is not None else None
    return plant_plain(enrolments) if made is None else made


def fold(tree: bytes) -> Columns:
    """What a tree is made of; it is verified, but not the enrolments in it.

    Raises:
        WireError: `tree` is not a tree.
    """
    found = kernel.fold(_WAY, tree) if _WAY is not None else None
    return fold_plain(tree) if found is None else found


def prune(tree: bytes, columns: Columns, places: Sequence[int]) -> bytes:
    """The tree that shows these leaves alone.

    Args:
        tree: its bytes.
        columns: as `fold` returns them.
        places: of clients whose leaves are shown, sorted, each once.

    Raises:
        ArgumentError: there is none, or one of them is not shown here.
    """
    count = int.from_bytes(columns[3][:4], "little")
    if not places or places[0] < 0 or places[-1] >= count:
        raise ArgumentError(f"clients must be some of 0 to {count - 1}, got clients={list(places)}")
    packed = struct.pack("<" + "I" * len(places), *places)
    found = kernel.prune(tree, columns, packed) if _WAY is not None else None
    return prune_plain(tree, columns, places) if found is None else found


def key(name: bytes) -> int:
    """The bits of a name."""
    return int.from_bytes(name.ljust(WIDTH // 8, b"\0"), "big")


def plant_plain(enrolments: Sequence[bytes]) -> bytes:
    """As `plant`, in Python."""
    keys = [key(each[1 : 1 + each[0]]) for each in enrolments]
    if any(left >= right for left, right in pairwise(keys)):
        raise WireError("roster must be sorted by name, with each name once")
    turns = [-1, *(WIDTH - (left ^ right).bit_length() for left, right in pairwise(keys))]  # the bit before each
    parts: list[bytes] = []
    path: list[int] = []  # inner nodes whose first leaf is further to the left
    for leaf, turn in zip(reversed(enrolments), reversed(turns), strict=True):  # preorder, from its end
        parts.append(b"\0" + leaf)
        while path and path[-1] > turn:
            parts.append(_INNER_BYTES.pack(INNER, path.pop()))
        path.append(turn)
    return b"".join(reversed(parts))


def fold_plain(tree: bytes) -> Columns:
    """As `fold`, in Python: bits, counts and hashes of all nodes, from the last to the first.

    All names that are shown below an inner node agree in the bits before its own. So where it parts some, it is enough
    to compare the last on its left with the first on its right; where one side is pruned, to look at one of the other.
    """
    starts, sha256, pack = [*_starts(tree)], hashlib.sha256, _HASHED.pack
    size = len(starts)
    ends, bits, counts, hashes = list(range(1, size + 1)), [WIDTH] * size, [1] * size, [b""] * size
    waiting: list[tuple[int, int, int]] = []  # a node, and the first and the last name that are shown below it, or -1
    for at in range(size - 1, -1, -1):
        part = tree[starts[at] : starts[at + 1] if at + 1 < size else None]
        if part[0] == INNER:
            left, first, before = waiting.pop()
            right, after, last = waiting.pop()
            bit, count = part[1] | part[2] << 8, counts[left] + counts[right]
            if before >= 0 and after >= 0:
                fits = before < after and (before ^ after).bit_length() == WIDTH - bit
            elif before >= 0:
                fits, last = bit < WIDTH and before >> (WIDTH - 1 - bit) & 1 == 0, before
            else:
                fits, first = bit < WIDTH and after >= 0 and after >> (WIDTH - 1 - bit) & 1 == 1, after
            if not fits or bit >= bits[left] or bit >= bits[right] or count >= 2**32:
                raise WireError(
                    f"roster must be sorted by name, with each name once, which node {at} of its tree is not"
                )
            ends[at], bits[at], counts[at] = ends[right], bit, count
            hashes[at] = sha256(pack(INNER, bit, counts[left], hashes[left], counts[right], hashes[right])).digest()
            waiting.append((at, first, last))
        elif part[0] == LEAF:
            hashes[at] = sha256(part).digest()
            name = key(part[2 : 2 + part[1]])
            waiting.append((at, name, name))
        else:
            _, counts[at], hashes[at] = _PRUNED_BYTES.unpack(part)
            if counts[at] == 0:
                raise WireError(f"roster must have clients below each node, which node {at} of its tree has not")
            waiting.append((at, -1, -1))
    columns = zip(_CODES, (starts, ends, bits, counts), strict=True)
    packed = [struct.pack("<" + code * size, *each) for code, each in columns]
    return packed[0], packed[1], packed[2], packed[3], b"".join(hashes)


def prune_plain(tree: bytes, columns: Columns, places: Sequence[int]) -> bytes:
    """As `prune`, in Python."""
    size = len(columns[2]) // 2
    numbers = zip(_CODES, columns[:4], strict=True)
    starts, ends, bits, counts = (struct.unpack("<" + code * size, column) for code, column in numbers)
    hashes, wanted, place, at, parts = columns[4], list(reversed(places)), 0, 0, list[bytes]()
    while at < size:
        if not wanted or wanted[-1] >= place + counts[at]:  # nothing is shown below it
            parts.append(_PRUNED_BYTES.pack(PRUNED, counts[at], hashes[32 * at : 32 * at + 32]))
            place, at = place + counts[at], ends[at]
            continue
        if tree[starts[at]] == PRUNED:
            raise ArgumentError(f"clients must be shown by the roster, which client {wanted[-1]} is not")
        parts.append(tree[starts[at] : starts[at + 1] if at + 1 < size else None])
        if bits[at] == WIDTH:
            place += 1
            wanted.pop()
        at += 1
    return b"".join(parts)


def _starts(tree: bytes) -> Iterator[int]:
    """Where each node begins."""
    at, size, missing = 0, len(tree), 1
    while missing > 0:
        yield at
        tag, begin = tree[at] if at < size else -1, at
        if tag == LEAF and at + 1 < size and tree[at + 1] <= _LONGEST:
            at, missing = at + 2 + tree[at + 1] + FIXED, missing - 1
        elif tag == INNER:
            at, missing = at + _INNER_BYTES.size, missing + 1
        elif tag == PRUNED:
            at, missing = at + _PRUNED_BYTES.size, missing - 1
        else:
            at = size + 1
        if at > size:
            raise WireError(f"roster has no node at byte {begin} of its tree")
    if at != size:
        raise WireError(f"roster must have a tree of {at} bytes, got {size}")


def _right() -> str | None:
    """The kernel's fastest way, if it plants, folds and prunes a small tree as Python does."""
    some = [bytes([3]) + name + bytes(range(at, at + FIXED)) for at, name in enumerate((b"ann", b"bob", b"eve"))]
    tree, way = plant_plain(some), kernel.EXPANSIONS[0]
    columns = fold_plain(tree)
    same = (kernel.plant(b"".join(some)), kernel.fold(way, tree)) == (tree, columns)
    return way if same and kernel.prune(tree, columns, b"\1\0\0\0") == prune_plain(tree, columns, [1]) else None


_WAY = None if kernel is None else _right()
