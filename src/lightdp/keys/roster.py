"""The roster: all clients of a run, or an excerpt of it, as canonical bytes with a hash (W4)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping
from functools import cached_property
from operator import attrgetter
from weakref import WeakValueDictionary

from lightdp._validate import integer, octets
from lightdp.errors import ArgumentError, WireError
from lightdp.keys.identity import Enrolment
from lightdp.keys.tree import Tree

_VERSION = 5
_BEFORE = 4  # the version whose clients made other noise of the same keys
_LIST = 3  # the one without a tree
_FEWEST = 2  # clients
_KEPT = b"\3"
_ROSTER = struct.Struct("<7sB16sI32sI")  # magic, version, run id, roster number, plan digest, number of clients


class Roster:
    """The clients of a run, in the order of their names: all of them, or an excerpt that shows some.

    Formal guarantees:
    - a roster that exists has at least two clients. The enrolments that it shows are valid, for its run, and have
      unique names, identities and one-time keys;
    - its hash binds all enrolments, shown or not: in all excerpts of one hash a name has one enrolment and one place,
      and a place has one name (`lightdp.keys.tree`). That identities and one-time keys are unique can be verified only
      among those that are shown;
    - equal rosters have equal bytes, and a roster and its excerpts have one hash. A run may have several rosters, told
      apart by their numbers: as the hash goes into every key, no two of them share noise (C1).

    Bytes: "lightdp", version (1), run id (16), number (4), plan digest (32), number of clients (4), the tree. The hash
    is SHA-256 of "lightdp roster", these 64 bytes before the tree, and the hash of its root. What a client keeps of an
    excerpt that it has verified has no tree, but the byte 3, the hash of the root (32), place (4) and enrolment of each
    client that is shown, and SHA-256 of all that (32).

    Attributes:
        run: the run id, 16 bytes.
        plan: 32 bytes on which all clients must agree.
        number: of the roster in its run, from 0.
        enrolments: those that are shown, by the client's place: client i is `enrolments[i]`.
        hash: 32 bytes.
        kept: whether it comes from where its client keeps it, and was verified before.
    """

    def __init__(
        self,
        run: bytes,
        plan: bytes,
        number: int,
        root: tuple[int, bytes],
        enrolments: Mapping[int, Enrolment],
        *,
        tree: Tree | None = None,
        kept: bool = False,
        version: int = _VERSION,
    ) -> None:
        self.run, self.plan, self.number, self.enrolments, self.kept = run, plan, number, enrolments, kept
        self._root, self._tree, self._version = root, tree, version
        self._header = _ROSTER.pack(b"lightdp", version, run, number, plan, root[0])
        self.hash = hashlib.sha256(b"lightdp roster" + self._header + root[1]).digest()

    @classmethod
    def of(cls, enrolments: Iterable[Enrolment], *, run: bytes, plan: bytes, number: int = 0) -> Roster:
        """The roster of these clients.

        Args:
            enrolments: one for each client, in any order.
            run: the run id, 16 bytes.
            plan: 32 bytes on which all clients must agree.
            number: of the roster in its run.

        Raises:
            WireError: there are fewer than two, one is of another run, or two share a name, an identity or a key.

        >>> from lightdp.keys import Identity, KeyPair
        >>> run = bytes(16)
        >>> def enrol(name): return Identity.generate().enrol(KeyPair.generate(), run=run, name=name)
        >>> roster = Roster.of([enrol("bob"), enrol("ann"), enrol("eve")], run=run, plan=bytes(32))
        >>> roster.names
        ('ann', 'bob', 'eve')
        >>> Roster.from_bytes(roster.to_bytes(), run=run, plan=bytes(32)).hash == roster.hash
        True
        """
        ordered = sorted(enrolments, key=attrgetter("name"))
        run, plan = octets("run", run, 16), octets("plan", plan, 32)
        if not _FEWEST <= len(ordered) < 2**32 - 1:
            raise WireError(f"roster must have at least 2 clients, got {len(ordered)}")
        if {enrolment.run for enrolment in ordered} != {run}:
            raise WireError("roster has an enrolment for another run")
        _refuse_twins(ordered)
        tree = Tree.of([enrolment.to_bytes() for enrolment in ordered])
        return cls(run, plan, integer("number", number, 0, 2**32 - 1), tree.root, dict(enumerate(ordered)), tree=tree)

    def excerpt(self, clients: Iterable[int]) -> Roster:
        """The roster that shows these clients alone, with the same hash.

        Args:
            clients: their places.

        Raises:
            ArgumentError: there are none, or one is not shown here.

        >>> from lightdp.keys import Identity, KeyPair
        >>> run, names = bytes(16), [f"client-{i}" for i in range(8)]
        >>> enrolled = [Identity.generate().enrol(KeyPair.generate(), run=run, name=name) for name in names]
        >>> roster = Roster.of(enrolled, run=run, plan=bytes(32))
        >>> some = roster.excerpt([2, 5])
        >>> some.names, len(some), some.hash == roster.hash
        (('client-2', 'client-5'), 8, True)
        """
        if self._tree is None:
            raise ArgumentError("the roster is what a client has kept of it, which cannot be verified by others")
        shown = sorted(set(clients))
        tree = self._tree.excerpt(shown)
        some = {i: self.enrolments[i] for i in shown}
        return Roster(self.run, self.plan, self.number, tree.root, some, tree=tree, version=self._version)

    def to_keep(self) -> Roster:
        """What a client keeps of the roster that it has joined: all of it, or of an excerpt no more than it shows."""
        if self.whole or self._tree is None:
            return self
        shown = dict(self.enrolments)
        return Roster(self.run, self.plan, self.number, self._root, shown, kept=True, version=self._version)

    def __len__(self) -> int:
        return self._root[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Roster) and self.hash == other.hash and self.enrolments == other.enrolments

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"Roster({len(self)} clients, shows {len(self.enrolments)}, hash={self.hash.hex()})"

    @property
    def current(self) -> bool:
        """Whether its clients make noise as they do now; of an earlier one, only what it cost can be counted."""
        return self._version == _VERSION

    @property
    def whole(self) -> bool:
        """Whether it shows all clients."""
        return len(self.enrolments) == len(self)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Those of the clients that it shows, in order."""
        return tuple(enrolment.name for enrolment in self.enrolments.values())

    @staticmethod
    def claims(data: bytes) -> tuple[int, int]:
        """The number of a roster and how many clients it says to have; nothing of it is verified.

        Raises:
            WireError: `data` is too short.
        """
        if len(data) < _ROSTER.size:
            raise WireError(f"roster must have at least {_ROSTER.size} bytes, got {len(data)}")
        _, _, _, number, _, count = _ROSTER.unpack_from(data)
        return number, count

    def index(self, enrolment: Enrolment) -> int:
        """The place of the client with exactly this enrolment.

        Raises:
            WireError: the roster omits or alters the enrolment, or does not show it.
        """
        if self._tree is None:
            place = next((place for place, each in self.enrolments.items() if each == enrolment), None)
        else:
            place = self._tree.find(enrolment.to_bytes()) if enrolment.run == self.run else None
        if place is None:
            raise WireError(f"roster does not contain the enrolment of {enrolment.name}")
        return place

    def to_bytes(self) -> bytes:
        """The canonical bytes."""
        if self._tree is not None:
            return self._header + self._tree.data
        shown = (struct.pack("<I", place) + each.to_bytes() for place, each in self.enrolments.items())
        data = b"".join((self._header, _KEPT, self._root[1], *shown))
        return data + hashlib.sha256(data).digest()

    @classmethod
    def from_bytes(
        cls, data: bytes, *, run: bytes, plan: bytes | None, clients: int | None = None, verified: bool = False
    ) -> Roster:
        """Decode and verify the roster of this run and plan, or an excerpt of it.

        Args:
            data: the bytes.
            run: the run id, 16 bytes.
            plan: 32 bytes on which all clients must agree; None if the caller compares them with `plan` of the result.
            clients: how many there must be, if that is known; another number is refused before a signature is verified.
            verified: as for `Enrolment.from_bytes`. Then it may also be of version 4, which keeps its hash, or of
                version 3, a list of enrolments, which becomes one of version 4: what its client has spent can be
                counted, and no round be begun.

        Raises:
            WireError: `data` is not a valid roster of this run and plan.
        """
        data = bytes(data)
        number, count = cls.claims(data)
        magic, version, its_run, _, its_plan, _ = _ROSTER.unpack_from(data)
        if magic != b"lightdp" or version not in ({_VERSION, _BEFORE, _LIST} if verified else {_VERSION}):
            raise WireError(f"roster must be of version {_VERSION}, got {magic!r} version {version}")
        if its_run != run or plan not in {None, its_plan}:
            raise WireError("roster is of another run or plan")
        if clients not in {None, count}:
            raise WireError(f"roster must have {clients} clients, got {count}")
        known = _alive.get(digest := hashlib.sha256(data).digest())
        if known is not None and known.kept <= verified:
            return known
        nodes, tree = data[_ROSTER.size :], None
        if verified and nodes.startswith(_KEPT):
            root, leaves = _read_kept(data)
        else:
            tree = Tree.of(list(_listed(nodes))) if version == _LIST else Tree(nodes)
            root, leaves = tree.root, tree.leaves()
        if root[0] != count or count < _FEWEST or not leaves:
            raise WireError(f"roster must show some of {count} clients, and have at least 2, got {root[0]}")
        shown = _Shown(leaves, run, verified=verified)
        if not verified:
            _refuse_twins(shown.values())
        version = max(version, _BEFORE)  # one without a tree has one now
        _alive[digest] = result = cls(run, its_plan, number, root, shown, tree=tree, kept=verified, version=version)
        return result


def _read_kept(data: bytes) -> tuple[tuple[int, bytes], dict[int, bytes]]:
    """The root of a roster of which a client has kept what an excerpt showed, and enrolments by place."""
    kept, digest, start = data[:-32], data[-32:], _ROSTER.size + 1 + 32
    if len(kept) < start or hashlib.sha256(kept).digest() != digest:
        raise WireError("roster must be as it was kept")
    found, at = {}, start
    while at < len(kept):
        end = Enrolment.end(kept, at + 4)
        found[int.from_bytes(kept[at : at + 4], "little")] = kept[at + 4 : end]
        at = end
    return (Roster.claims(data)[1], data[start - 32 : start]), found


class _Shown(Mapping[int, Enrolment]):
    """Enrolments that are decoded when they are looked at: a client that is restored may need few of them."""

    def __init__(self, leaves: Mapping[int, bytes], run: bytes, *, verified: bool) -> None:
        self._leaves, self._run, self._verified = leaves, run, verified
        self._decoded: dict[int, Enrolment] = {}

    def __getitem__(self, place: int) -> Enrolment:
        found = self._decoded.get(place)
        if found is None:
            leaf = self._leaves[place]
            self._decoded[place] = found = Enrolment.from_bytes(leaf, run=self._run, verified=self._verified)
        return found

    def __contains__(self, place: object) -> bool:
        return place in self._leaves

    def __iter__(self) -> Iterator[int]:
        return iter(self._leaves)

    def keys(self) -> KeysView[int]:
        """The places, to be compared with others in one step."""
        return self._leaves.keys()

    def __len__(self) -> int:
        return len(self._leaves)


def _refuse_twins(enrolments: Collection[Enrolment]) -> None:
    for what in ("name", "identity", "public"):
        if len(set(map(attrgetter(what), enrolments))) < len(enrolments):
            raise WireError(f"roster has two clients with one {what}")


def _listed(data: bytes) -> Iterator[bytes]:
    """The enrolments that follow each other in a roster of version 3."""
    at = 0
    while at < len(data):
        yield data[at : (end := Enrolment.end(data, at))]
        at = end


_alive: WeakValueDictionary[bytes, Roster] = WeakValueDictionary()  # by their bytes: a process reads each once
