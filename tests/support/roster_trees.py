"""An oracle of the roster's hash tree: strings of bits and plain recursion, by the words of `lightdp.keys.tree`."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Sequence

Leaf = tuple[str, bytes]  # name and enrolment


def bits_of(name: str) -> str:
    return "".join(f"{byte:08b}" for byte in name.encode().ljust(65, b"\0"))


def first_difference(leaves: Sequence[Leaf]) -> int:
    columns = zip(*(bits_of(name) for name, _ in leaves), strict=True)
    return next(bit for bit, column in enumerate(columns) if len(set(column)) > 1)


def parted(leaves: Sequence[Leaf]) -> tuple[int, list[Leaf], list[Leaf]]:
    bit = first_difference(leaves)
    left, right = ([leaf for leaf in leaves if bits_of(leaf[0])[bit] == side] for side in "01")
    return bit, left, right


def node_hash(leaves: Sequence[Leaf]) -> bytes:
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0][1]).digest()
    bit, left, right = parted(leaves)
    sides = b"".join(struct.pack("<I", len(side)) + node_hash(side) for side in (left, right))
    return hashlib.sha256(b"\1" + struct.pack("<H", bit) + sides).digest()


def node_bytes(leaves: Sequence[Leaf], shown: Collection[str]) -> bytes:
    if not any(name in shown for name, _ in leaves):
        return b"\2" + struct.pack("<I", len(leaves)) + node_hash(leaves)
    if len(leaves) == 1:
        return b"\0" + leaves[0][1]
    bit, left, right = parted(leaves)
    return b"\1" + struct.pack("<H", bit) + node_bytes(left, shown) + node_bytes(right, shown)


def header_of(clients: int, run: bytes, plan: bytes, number: int = 0) -> bytes:
    return b"lightdp\5" + run + struct.pack("<I", number) + plan + struct.pack("<I", clients)


def hash_of(leaves: Sequence[Leaf], run: bytes, plan: bytes, number: int = 0) -> bytes:
    header = header_of(len(leaves), run, plan, number)
    return hashlib.sha256(b"lightdp roster" + header + node_hash(leaves)).digest()


def bytes_of(
    leaves: Sequence[Leaf], run: bytes, plan: bytes, shown: Collection[str] | None = None, number: int = 0
) -> bytes:
    names = [name for name, _ in leaves] if shown is None else shown
    return header_of(len(leaves), run, plan, number) + node_bytes(leaves, names)
