"""Sets of clients: one immutable type for who was used, who was late and who stays away.

A set is a read-only vector with one flag for each client, so that set operations and counts cost one pass over
it, also among a million clients. On the wire it is a bitmap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightdp._validate import integer
from lightdp.errors import ArgumentError, WireError


@dataclass(frozen=True, eq=False, repr=False)
class ClientSet:
    r"""An immutable set of some of N clients, numbered from 0.

    Iteration gives the members in ascending order. `&`, `|`, `-` and `~` combine sets over the same clients. Two sets
    are equal if they have the same members among the same number of clients.

    >>> came = ClientSet.of(5, [3, 0])
    >>> list(came), len(came), 3 in came
    ([0, 3], 2, True)
    >>> list(~came)
    [1, 2, 4]
    >>> came | ClientSet.of(5, [1])
    ClientSet.of(5, [0, 1, 3])
    >>> came.to_bytes()
    b'\t'

    Attributes:
        flags: whether each client is a member; read-only. (N,)
    """

    flags: NDArray[np.bool_]

    def __post_init__(self) -> None:
        flags = self.flags
        if not isinstance(flags, np.ndarray) or flags.dtype != np.bool_ or flags.ndim != 1:
            shape = f"{flags.dtype} of shape {flags.shape}" if isinstance(flags, np.ndarray) else f"flags={flags!r}"
            raise ArgumentError(f"flags must be a boolean vector, got {shape}")
        object.__setattr__(self, "flags", flags.copy())
        self.flags.flags.writeable = False

    @classmethod
    def of(cls, clients: int, members: ClientSet | Iterable[int], *, name: str = "members") -> ClientSet:
        """The set of `members` among `clients` clients.

        Args:
            clients: N.
            members: client numbers in 0..N-1 in any order, or a set over as many clients.
            name: what error messages call `members`.

        Raises:
            ArgumentError: a member is no such number.
        """
        if isinstance(members, ClientSet):
            if members.clients != clients:
                raise ArgumentError(f"{name} must be a set of {clients} clients, got one of {members.clients}")
            return members
        flags = np.zeros(clients, np.bool_)
        flags[[integer(name, client, 0, clients - 1) for client in members]] = True
        return _adopted(flags)

    @classmethod
    def none(cls, clients: int) -> ClientSet:
        """The empty set among `clients` clients."""
        return _adopted(np.zeros(clients, np.bool_))

    @classmethod
    def all(cls, clients: int) -> ClientSet:
        """The set of all `clients` clients."""
        return _adopted(np.ones(clients, np.bool_))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, clients: int) -> ClientSet:
        """The inverse of `to_bytes`.

        Raises:
            WireError: `data` has another length, or bits beyond the clients that are not 0.
        """
        if len(data) != bitmap_size(clients):
            raise WireError(f"a set of {clients} clients must have {bitmap_size(clients)} bytes, got {len(data)}")
        flags = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        if flags[clients:].any():
            raise WireError(f"a set of {clients} clients has members beyond them")
        return _adopted(flags[:clients].view(np.bool_))

    def to_bytes(self) -> bytes:
        """The set as ceil(N/8) bytes: client i is bit i % 8 of byte i // 8."""
        return np.packbits(self.flags, bitorder="little").tobytes()

    @property
    def clients(self) -> int:
        """N: how many clients there are, members or not."""
        return self.flags.size

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self.flags).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self.flags))

    def __contains__(self, client: int) -> bool:
        return 0 <= client < self.clients and bool(self.flags[client])

    def __and__(self, other: ClientSet) -> ClientSet:
        return _adopted(self.flags & self._same(other))

    def __or__(self, other: ClientSet) -> ClientSet:
        return _adopted(self.flags | self._same(other))

    def __sub__(self, other: ClientSet) -> ClientSet:
        return _adopted(self.flags & ~self._same(other))

    def __invert__(self) -> ClientSet:
        return _adopted(~self.flags)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientSet):
            return NotImplemented
        return self is other or self.flags.tobytes() == other.flags.tobytes()

    def __hash__(self) -> int:
        return hash(self.flags.tobytes())

    def __reduce__(self) -> tuple[object, ...]:
        return ClientSet.from_bytes, (self.to_bytes(), self.clients)

    def __repr__(self) -> str:
        return f"ClientSet.of({self.clients}, {list(self)})"

    def _same(self, other: ClientSet) -> NDArray[np.bool_]:
        if other.clients != self.clients:
            raise ArgumentError(f"sets must be of the same clients, got {self.clients} and {other.clients} of them")
        return other.flags


def bitmap_size(clients: int) -> int:
    """Bytes that a set among `clients` clients takes on the wire."""
    return -(-clients // 8)


def _adopted(flags: NDArray[np.bool_]) -> ClientSet:
    """A set of flags that nobody else will change, without a copy."""
    flags.flags.writeable = False
    adopted = object.__new__(ClientSet)
    object.__setattr__(adopted, "flags", flags)
    return adopted
