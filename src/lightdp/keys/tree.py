"""The hash tree over the enrolments of a roster, whole or pruned: a part of it verifies against the hash of all (W4).

The tree is a binary Patricia trie over names: their bits, padded with zeros to 65 bytes, so that no name continues
another and leaves are in the order of names. An inner node has the first bit in which the names below it differ; those
with 0 are on its left.

    hash of a leaf          SHA-256(0, enrolment)
    hash of an inner node   SHA-256(1, bit, left count, left hash, right count, right hash)

Formal guarantee: under one root hash nobody can show two leaves of one name, or two of one place. Where their paths
part, a name has one bit and so one side; and counts, which add up along each path, give the sides different places.

Bytes, in preorder; integers are little-endian, a bit has 2 bytes and a count 4:

| node | bytes |
| --- | --- |
| leaf | 0, enrolment |
| inner node | 1, bit; its left and its right node follow |
| pruned | 2, count, hash, in place of a node of which nothing is shown |

An inner node of which both sides are pruned is refused, as it must be pruned itself: there is one way to show some
leaves. Nothing here is recursive, as a path may have 520 inner nodes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from lightdp.errors import ArgumentError, WireError

_LEAF, _INNER, _PRUNED = range(3)
_WIDTH = 8 * 65  # bits of a padded name
_FIXED = 32 + 32 + 32 + 64  # bytes of an enrolment after its name
_INNER_BYTES, _PRUNED_BYTES = struct.Struct("<BH"), struct.Struct("<BI32s")
_HASHED = struct.Struct("<BHI32sI32s")


@dataclass(frozen=True, eq=False)
class Tree:
    """A hash tree, its nodes in preorder.

    Attributes:
        parts: the bytes of each node.
        bits: the bit of each inner node, and 520 for others.
        counts: how many clients are below each node.
        hashes: 32 bytes for each node.
    """

    parts: list[bytes]
    bits: list[int]
    counts: list[int]
    hashes: list[bytes]

    @classmethod
    def of(cls, enrolments: Sequence[bytes]) -> Tree:
        """The whole tree of these enrolments, which must be sorted by name.

        Raises:
            WireError: they are not, or two have one name.
        """
        keys = [_key(each[1 : 1 + each[0]]) for each in enrolments]
        turns = [-1, *(_WIDTH - (left ^ right).bit_length() for left, right in pairwise(keys))]  # the bit before each
        parts: list[bytes] = []
        path: list[int] = []  # inner nodes whose first leaf is further to the left
        for leaf, turn in zip(reversed(enrolments), reversed(turns), strict=True):  # preorder, from its end
            parts.append(b"\0" + leaf)
            while path and path[-1] > turn:
                parts.append(_INNER_BYTES.pack(_INNER, path.pop()))
            path.append(turn)
        parts.reverse()
        return cls(parts, *_folded(parts))

    @classmethod
    def read(cls, data: bytes) -> Tree:
        """Decode a tree and verify it, but not the enrolments in it.

        Raises:
            WireError: `data` is not a tree.
        """
        parts: list[bytes] = []
        at, size, missing = 0, len(data), 1
        while missing > 0:
            tag = data[at] if at < size else -1
            if tag == _LEAF and at + 1 < size:
                end, missing = at + 2 + data[at + 1] + _FIXED, missing - 1
            elif tag == _INNER:
                end, missing = at + _INNER_BYTES.size, missing + 1
            elif tag == _PRUNED:
                end, missing = at + _PRUNED_BYTES.size, missing - 1
            else:
                raise WireError(f"roster has no node at byte {at} of its tree")
            parts.append(data[at:end])
            at = end
        if at != size:
            raise WireError(f"roster must have a tree of {at} bytes, got {size}")
        return cls(parts, *_folded(parts))

    @property
    def root(self) -> tuple[int, bytes]:
        """The number of clients, and the hash."""
        return self.counts[0], self.hashes[0]

    def excerpt(self, places: Iterable[int]) -> Tree:
        """The tree that shows these leaves alone.

        Args:
            places: of clients whose leaves are shown here.

        Raises:
            ArgumentError: there is none, or one of them is not shown here.
        """
        wanted, place, at = sorted(set(places), reverse=True), 0, 0  # the next one is the last
        if not wanted or wanted[-1] < 0 or wanted[0] >= self.counts[0]:
            raise ArgumentError(f"clients must be some of 0 to {self.counts[0] - 1}, got clients={wanted[::-1]}")
        bits, counts, hashes, ends, nodes = self.bits, self.counts, self.hashes, self._ends, list[int]()
        while at < len(bits):
            if not wanted or wanted[-1] >= place + counts[at]:  # nothing is shown below it
                nodes.append(~at)
                place, at = place + counts[at], ends[at]
                continue
            nodes.append(at)
            if bits[at] == _WIDTH:
                if self.parts[at][0] == _PRUNED:
                    raise ArgumentError(f"clients must be shown by the roster, which client {wanted[-1]} is not")
                place += 1
                wanted.pop()
            at += 1
        every = [at if at >= 0 else ~at for at in nodes]
        pack = _PRUNED_BYTES.pack
        return Tree(
            [self.parts[at] if at >= 0 else pack(_PRUNED, counts[~at], hashes[~at]) for at in nodes],
            [bits[at] if at >= 0 else _WIDTH for at in nodes],
            [counts[at] for at in every],
            [hashes[at] for at in every],
        )

    def leaves(self) -> dict[int, bytes]:
        """The bytes of all leaves that are shown, with their tag, by place."""
        found: dict[int, bytes] = {}
        place = 0
        for part, bit, count in zip(self.parts, self.bits, self.counts, strict=True):
            if bit == _WIDTH:
                if part[0] == _LEAF:
                    found[place] = part
                place += count
        return found

    def find(self, enrolment: bytes) -> int | None:
        """The place of a leaf, by the bits of its name; None if it is not shown, or is that of another enrolment."""
        key, at, place = _key(enrolment[1 : 1 + enrolment[0]]), 0, 0
        while (bit := self.bits[at]) < _WIDTH:
            at += 1
            if key >> (_WIDTH - 1 - bit) & 1:
                place, at = place + self.counts[at], self._ends[at]
        return place if self.parts[at] == b"\0" + enrolment else None

    @cached_property
    def _ends(self) -> list[int]:
        """The node that follows all that is below each node."""
        ends, waiting = list(range(1, len(self.bits) + 1)), list[int]()
        for at in reversed(range(len(ends))):
            if self.bits[at] < _WIDTH:
                waiting.pop()
                ends[at] = ends[waiting.pop()]
            waiting.append(at)
        return ends


def _key(name: bytes) -> int:
    return int.from_bytes(name.ljust(_WIDTH // 8, b"\0"), "big")


def _folded(parts: list[bytes]) -> tuple[list[int], list[int], list[bytes]]:
    """Bits, counts and hashes of all nodes, from the last to the first.

    Raises:
        WireError: bits do not grow along a path, or a leaf is on the wrong side of one.

    All names that are shown below an inner node agree in the bits before its own. So where it parts some, it is enough
    to compare the last on its left with the first on its right; where one side is pruned, to look at one of the other.
    """
    size, sha256, pack = len(parts), hashlib.sha256, _HASHED.pack
    bits, counts, hashes = [_WIDTH] * size, [1] * size, [b""] * size
    waiting: list[tuple[int, int, int]] = []  # a node, and the first and the last name that are shown below it, or -1
    for at in range(size - 1, -1, -1):
        part = parts[at]
        if part[0] == _INNER:
            left, first, before = waiting.pop()
            right, after, last = waiting.pop()
            bit, count = part[1] | part[2] << 8, counts[left] + counts[right]
            if before >= 0 and after >= 0:
                fits = before < after and (before ^ after).bit_length() == _WIDTH - bit
            elif before >= 0:
                fits, last = bit < _WIDTH and before >> (_WIDTH - 1 - bit) & 1 == 0, before
            else:
                fits, first = bit < _WIDTH and after >= 0 and after >> (_WIDTH - 1 - bit) & 1 == 1, after
            if not fits or bit >= bits[left] or bit >= bits[right] or count >= 2**32:
                raise WireError(
                    f"roster must be sorted by name, with each name once, which node {at} of its tree is not"
                )
            bits[at], counts[at] = bit, count
            hashes[at] = sha256(pack(_INNER, bit, counts[left], hashes[left], counts[right], hashes[right])).digest()
            waiting.append((at, first, last))
        elif part[0] == _LEAF:
            hashes[at] = sha256(part).digest()
            key = _key(part[2 : 2 + part[1]])
            waiting.append((at, key, key))
        else:
            _, counts[at], hashes[at] = _PRUNED_BYTES.unpack(part)
            if counts[at] == 0:
                raise WireError(f"roster must have clients below each node, which node {at} of its tree has not")
            waiting.append((at, -1, -1))
    return bits, counts, hashes
