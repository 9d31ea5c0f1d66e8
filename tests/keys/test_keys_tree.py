"""The roster's hash tree: against an oracle, under any pruning, and against whoever makes trees of its own."""

from __future__ import annotations

import hashlib
import inspect
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightdp._native import kernel
from lightdp.errors import ArgumentError, WireError
from lightdp.keys import nodes
from lightdp.keys.tree import Tree
from support import roster_trees
from support.key_holders import ROSTER

LETTERS = "019ABZabz._@+-"  # neighbours in the table, names that begin with others, and a wide range of bits
NAME = st.builds(str.__add__, st.sampled_from("09Aaz"), st.text(LETTERS, max_size=5))
WAYS = () if kernel is None else kernel.EXPANSIONS
NAMES = st.lists(NAME, min_size=2, max_size=12, unique=True).map(sorted)


def enrolled(name: str) -> bytes:
    """Bytes of the form of an enrolment; the tree does not verify what is in them."""
    return bytes([len(name)]) + name.encode() + hashlib.shake_128(name.encode()).digest(160)


def leaves_of(names: Sequence[str]) -> list[roster_trees.Leaf]:
    return [(name, enrolled(name)) for name in names]


def attempt(do: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns, or None where it refuses, as the kernel does."""
    try:
        return do(*arguments)
    except (ArgumentError, WireError):
        return None


def tree_of(names: Sequence[str]) -> Tree:
    enrolments = [enrolled(name) for name in names]
    tree = Tree.of(enrolments)
    assert tree.data == nodes.plant_plain(enrolments)
    return read(tree.data)


def read(data: bytes) -> Tree:
    """The tree of these bytes, which all implementations read alike, or refuse."""
    wanted = attempt(nodes.fold_plain, data)
    for way in WAYS:
        assert kernel.fold(way, data) == wanted
    return Tree(data)


def pruned_alike(tree: Tree, places: Sequence[int]) -> bytes:
    """The excerpt's bytes, the same by all implementations."""
    columns, chosen = nodes.fold_plain(tree.data), sorted(places)
    wanted = attempt(nodes.prune_plain, tree.data, columns, chosen)
    if kernel is not None:
        assert kernel.prune(tree.data, columns, struct.pack(f"<{len(chosen)}I", *chosen)) == wanted
    return tree.excerpt(places).data


def columns_of(tree: Tree) -> nodes.Columns:
    return nodes.fold(tree.data)


def parts_of(tree: Tree) -> list[bytes]:
    starts = [each for (each,) in struct.iter_unpack("<Q", columns_of(tree)[0])]
    return [tree.data[low:high] for low, high in pairwise([*starts, len(tree.data)])]


def shown_by(tree: Tree) -> dict[int, str]:
    return {place: leaf[1 : 1 + leaf[0]].decode() for place, leaf in tree.leaves().items()}


# --- what it is ---


@given(names=NAMES)
def test_tree_equals_the_oracle(names: list[str]) -> None:
    tree, leaves = tree_of(names), leaves_of(names)
    assert tree.data == roster_trees.node_bytes(leaves, names)
    assert tree.root == (len(names), roster_trees.node_hash(leaves))
    assert shown_by(tree) == dict(enumerate(names))


@given(names=NAMES, data=st.data())
def test_every_excerpt_has_the_hash_of_the_whole_and_shows_what_was_asked_for(names: list[str], data: Any) -> None:
    places = data.draw(st.lists(st.integers(0, len(names) - 1), min_size=1, unique=True))
    tree = tree_of(names)
    excerpt = tree.excerpt(places)
    assert excerpt.data == pruned_alike(tree, places)
    assert excerpt.data == roster_trees.node_bytes(leaves_of(names), [names[i] for i in places])
    again = read(excerpt.data)
    for each in (excerpt, again):
        assert columns_of(each) == columns_of(again)
        assert each.root == tree.root
        assert shown_by(each) == {i: names[i] for i in sorted(places)}
        for i, name in enumerate(names):
            assert each.find(enrolled(name)) == (i if i in places else None)
    fewer = data.draw(st.lists(st.sampled_from(places), min_size=1, unique=True))
    assert pruned_alike(again, fewer) == tree.excerpt(fewer).data
    for hidden in set(range(len(names))) - set(places):
        with pytest.raises(ArgumentError, match=f"client {hidden} is not"):
            again.excerpt([*places, hidden])


@given(names=NAMES, other=NAME)
def test_find_tells_a_name_that_is_not_there_and_another_enrolment_of_one_that_is(names: list[str], other: str) -> None:
    tree = tree_of(names)
    if other not in names:
        assert tree.find(enrolled(other)) is None
    assert tree.find(enrolled(names[0])[:-1] + b"\0") is None


@pytest.mark.parametrize("wrong", [[], [-1], [4], [0, 4]])
def test_excerpt_of_clients_that_are_not_there_is_refused(wrong: list[int]) -> None:
    with pytest.raises(ArgumentError, match="clients must be some of 0 to 3"):
        ROSTER.excerpt(wrong)


def test_a_tree_as_deep_as_names_are_long_needs_no_stack() -> None:
    """Names that differ in one bit more each: every inner node has a leaf on one side."""
    names = sorted(
        {bytes([0xFF] * (k // 8) + [0xFF << (8 - k % 8) & 0xFF or 1] + [1] * (63 - k // 8)) for k in range(512)}
    )
    enrolments = [b"\x40" + name + bytes(160) for name in names]
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(len(inspect.stack()) + 60)
        tree = Tree.of(enrolments)
        again = read(pruned_alike(tree, [0, len(names) - 1]))
    finally:
        sys.setrecursionlimit(limit)
    assert len(names) > 400
    assert len(parts_of(again)) > 400
    assert again.root == tree.root


# --- what it refuses ---


def inner(bit: int, left: bytes, right: bytes) -> bytes:
    return b"\1" + struct.pack("<H", bit) + left + right


def pruned(count: int) -> bytes:
    return b"\2" + struct.pack("<I", count) + bytes(32)


def leaf(name: str) -> bytes:
    return b"\0" + enrolled(name)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\3" + bytes(36),
        pruned(2)[:-1],
        leaf("a")[:-1],
        leaf("a") + b"\0",
        inner(6, leaf("a"), b""),
        inner(6, leaf("b"), leaf("a")),  # in the wrong order
        inner(6, leaf("a"), leaf("a")),  # one name twice
        inner(5, leaf("a"), leaf("b")),  # not the first bit in which they differ
        inner(7, leaf("a"), leaf("b")),
        inner(6, leaf("b"), pruned(1)),  # on the side of others
        inner(6, pruned(1), leaf("a")),
        inner(520, leaf("a"), pruned(1)),  # no bit of a name
        inner(65535, leaf("a"), pruned(1)),
        inner(520, pruned(1), leaf("a")),
        inner(6, leaf("a"), pruned(0)),
        inner(6, leaf("a"), pruned(2**32 - 1)),  # more clients than a count holds
        inner(6, pruned(1), pruned(1)),  # which must be pruned itself
        inner(6, leaf("a"), inner(7, pruned(1), pruned(1))),
        inner(6, inner(6, leaf("a"), pruned(1)), leaf("b")),  # bits that do not grow
        inner(6, inner(5, pruned(1), leaf("a")), leaf("b")),
        inner(6, leaf("a"), inner(6, pruned(1), leaf("b"))),
    ],
)
def test_what_is_no_tree_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        read(data)


def test_the_trees_of_these_tests_are_good_but_for_their_faults() -> None:
    for data in (
        inner(6, leaf("a"), leaf("b")),
        inner(6, leaf("a"), pruned(1)),
        inner(6, pruned(1), leaf("b")),
        inner(519, leaf("a"), pruned(1)),
        inner(6, leaf("a"), pruned(2**32 - 2)),
        inner(6, leaf("a"), inner(7, pruned(1), leaf("c"))),
        inner(5, inner(6, leaf("a"), pruned(1)), pruned(1)),
    ):
        assert read(data).data == data


# --- who makes trees of its own ---


@dataclass(frozen=True)
class Forged:
    """A node of a tree that keeps to no rule: any bits, any leaf anywhere, and counts that lie."""

    name: str = ""
    bit: int = 0
    sides: tuple[Forged, ...] = ()
    claimed: int = 1

    def digest(self) -> bytes:
        if not self.sides:
            return hashlib.sha256(leaf(self.name)).digest()
        parts = b"".join(struct.pack("<I", side.claimed) + side.digest() for side in self.sides)
        return hashlib.sha256(b"\1" + struct.pack("<H", self.bit) + parts).digest()

    def paths(self) -> list[bytes]:
        """The excerpts that show one leaf each."""
        if not self.sides:
            return [leaf(self.name)]
        left, right = (b"\2" + struct.pack("<I", side.claimed) + side.digest() for side in self.sides)
        return [inner(self.bit, path, right) for path in self.sides[0].paths()] + [
            inner(self.bit, left, path) for path in self.sides[1].paths()
        ]


FEW = st.sampled_from(["a", "b", "c", "ab", "a0", "q"])
CLAIMED = st.integers(1, 3)
FORGED = st.recursive(
    st.builds(Forged, name=FEW),
    lambda below: st.builds(
        lambda bit, left, right, lie: Forged(
            bit=bit, sides=(left, right), claimed=max(left.claimed + right.claimed + lie, 1)
        ),
        st.sampled_from([2, 3, 5, 6, 7, 8, 9, 10, 14, 15]),
        below,
        below,
        st.sampled_from([0, 0, 0, -1, 1]),
    ),
    max_leaves=8,
)


def accepted(root: Forged) -> list[tuple[int, str]]:
    """Place and name of each leaf that verifies against the root of a forged tree."""
    found = []
    for path in root.paths():
        try:
            tree = read(path)
        except WireError:
            continue
        if tree.root == (root.claimed, root.digest()):
            found += list(shown_by(tree).items())
    return found


@given(root=FORGED)
def test_under_one_hash_a_name_has_one_place_and_a_place_one_name(root: Forged) -> None:
    found = accepted(root)
    assert len({name for _, name in found}) == len(found)
    assert len({place for place, _ in found}) == len(found)
    assert all(0 <= place < root.claimed for place, _ in found)


def test_leaves_of_a_forged_tree_verify_where_it_does_not_lie() -> None:
    """So that the property above says something."""
    a, b, c = (Forged(name=name) for name in "abc")
    good = Forged(bit=6, sides=(a, Forged(bit=7, sides=(b, c), claimed=2)), claimed=3)
    assert accepted(good) == [(0, "a"), (1, "b"), (2, "c")]
    assert accepted(Forged(bit=6, sides=(a, a), claimed=2)) == [(0, "a")]
    lying = Forged(bit=6, sides=(a, Forged(bit=7, sides=(b, c), claimed=1)), claimed=2)
    assert accepted(lying) == [(0, "a")]


@given(names=NAMES, data=st.data())
def test_a_whole_tree_that_is_accepted_is_the_one_of_its_names(names: list[str], data: Any) -> None:
    """Swap two nodes, or change a bit: it is refused, or nothing has changed."""
    parts = parts_of(tree_of(names))
    for _ in range(data.draw(st.integers(1, 3))):
        i, j = (data.draw(st.integers(0, len(parts) - 1)) for _ in range(2))
        parts[i], parts[j] = parts[j], parts[i]
        if parts[i][0] == 1 and data.draw(st.booleans()):
            parts[i] = b"\1" + struct.pack("<H", data.draw(st.integers(0, 50)))
    changed = b"".join(parts)
    if changed != tree_of(names).data:
        with pytest.raises(WireError):
            read(changed)


# --- the kernel and Python ---


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 7, 8, 31, 64, 65, 300, 1000])
def test_trees_of_many_sizes_are_the_same_bytes_in_the_kernel_and_in_python(clients: int) -> None:
    draw = np.random.default_rng(clients)
    names = {"".join(draw.choice([*LETTERS[:9]], draw.choice([1, 2, 5, 20, 63]))) for _ in range(3 * clients)}
    tree = tree_of(sorted(names)[:clients])
    count = tree.root[0]
    for size in {1, 2, count // 2, count - 1, count} - {0}:
        read(pruned_alike(tree, draw.choice(count, size, replace=False).tolist()))


@given(names=NAMES, data=st.data())
def test_changed_bytes_are_read_alike_or_refused_alike(names: list[str], data: Any) -> None:
    changed = bytearray(tree_of(names).data)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.sampled_from([0, 1, 2, 3, 64, 65, 255]))
    attempt(read, bytes(changed[: data.draw(st.integers(len(changed) - 3, len(changed)))]))


@given(names=st.lists(NAME, min_size=1, max_size=6))
def test_enrolments_in_any_order_are_planted_alike_or_refused_alike(names: list[str]) -> None:
    enrolments = [enrolled(name) for name in names]
    wanted = attempt(nodes.plant_plain, enrolments)
    assert (wanted is None) == (names != sorted(set(names)))
    if kernel is not None:
        assert kernel.plant(b"".join(enrolments)) == wanted
        assert kernel.plant(b"".join(enrolments)[:-1]) is None


@pytest.mark.skipif(kernel is None, reason="needs the compiled kernel")
def test_the_kernel_refuses_columns_that_point_elsewhere_and_ways_that_it_has_not() -> None:
    tree = tree_of(["a", "b", "c"])
    assert kernel.prune(tree.data[:-1], columns_of(tree), struct.pack("<I", 2)) is None
    for column in range(5):
        short = tuple(each[: -1 if at == column else None] for at, each in enumerate(columns_of(tree)))
        with pytest.raises(ValueError, match="columns"):
            kernel.prune(tree.data, short, bytes(4))  # type: ignore[arg-type]
    beyond = struct.pack("<5I", 9, 9, 9, 9, 9)
    assert kernel.prune(tree.data, (columns_of(tree)[0], beyond, *columns_of(tree)[2:]), bytes(4)) is None
    with pytest.raises(ValueError, match="no way sparc"):
        kernel.fold("sparc", tree.data)


def test_without_a_kernel_or_with_one_that_errs_python_makes_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tree_of(["ann", "bob", "eve"])
    if kernel is not None:
        assert nodes._right() == nodes._WAY == kernel.EXPANSIONS[0]
        wrong = SimpleNamespace(
            EXPANSIONS=kernel.EXPANSIONS, plant=kernel.plant, fold=lambda *_: None, prune=kernel.prune
        )
        monkeypatch.setattr(nodes, "kernel", wrong)
        assert nodes._right() is None
    monkeypatch.setattr(nodes, "_WAY", None)
    monkeypatch.setattr(nodes, "kernel", None)
    assert Tree.of([enrolled(name) for name in ("ann", "bob", "eve")]).data == tree.data
    assert Tree(tree.data).excerpt([1]).data == roster_trees.node_bytes(leaves_of(["ann", "bob", "eve"]), ["bob"])
