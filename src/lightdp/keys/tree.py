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

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightdp.keys import nodes


class _Nodes(NamedTuple):
    starts: NDArray[np.uint64]
    ends: NDArray[np.uint32]
    bits: NDArray[np.uint16]
    counts: NDArray[np.uint32]


class Tree:
    """A hash tree, whole or pruned.

    Attributes:
        data: its bytes.
        root: the number of clients, and the hash.
    """

    def __init__(self, data: bytes, root: tuple[int, bytes] | None = None) -> None:
        """The tree of these bytes.

        Args:
            data: the bytes.
            root: of the tree that they were pruned from, if they need not be verified.

        Raises:
            WireError: `data` is not a tree.
        """
        self.data = data
        if root is None:
            root = int.from_bytes(self._columns[3][:4], "little"), self._columns[4][:32]
        self.root = root

    @classmethod
    def of(cls, enrolments: Sequence[bytes]) -> Tree:
        """The whole tree of these enrolments, which must be sorted by name.

        Raises:
            WireError: they are not, or two have one name.
        """
        return cls(nodes.plant(enrolments))

    def excerpt(self, places: Iterable[int]) -> Tree:
        """The tree that shows these leaves alone.

        Args:
            places: of clients whose leaves are shown here.

        Raises:
            ArgumentError: there is none, or one of them is not shown here.
        """
        return Tree(nodes.prune(self.data, self._columns, sorted(set(places))), self.root)

    def leaves(self) -> dict[int, bytes]:
        """The enrolments of all leaves that are shown, by place."""
        ends = self._nodes.bits == nodes.WIDTH
        counts, starts = self._nodes.counts[ends], self._nodes.starts[ends]
        shown = np.frombuffer(self.data, np.uint8)[starts] == nodes.LEAF
        places = (np.cumsum(counts, dtype=np.uint64) - counts)[shown].tolist()
        return {place: self._leaf(start) for place, start in zip(places, starts[shown].tolist(), strict=True)}

    def find(self, enrolment: bytes) -> int | None:
        """The place of a leaf, by the bits of its name; None if it is not shown, or is that of another enrolment."""
        starts, ends, bits, counts = self._nodes
        key, at, place = nodes.key(enrolment[1 : 1 + enrolment[0]]), 0, 0
        while (bit := int(bits[at])) < nodes.WIDTH:
            at += 1
            if key >> (nodes.WIDTH - 1 - bit) & 1:
                place, at = place + int(counts[at]), int(ends[at])
        start = int(starts[at])
        return place if self.data[start] == nodes.LEAF and self._leaf(start) == enrolment else None

    def _leaf(self, start: int) -> bytes:
        return self.data[start + 1 : start + 2 + self.data[start + 1] + nodes.FIXED]

    @cached_property
    def _columns(self) -> nodes.Columns:
        return nodes.fold(self.data)

    @cached_property
    def _nodes(self) -> _Nodes:
        starts, ends, bits, counts, _ = self._columns
        return _Nodes(
            np.frombuffer(starts, "<u8"), np.frombuffer(ends, "<u4"),
            np.frombuffer(bits, "<u2"), np.frombuffer(counts, "<u4"),
        )  # fmt: skip
