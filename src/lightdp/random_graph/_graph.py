"""Clients on the seats of an expander: who is whose neighbour, and what may be relied on (S1)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightdp._validate import integer, octets
from lightdp.errors import ArgumentError
from lightdp.noise_graph import Graph
from lightdp.random_graph import _expander
from lightdp.random_graph._certificate import Certificate
from lightdp.random_graph._draws import BAD_DRAW, DRAWS, largest

_RARELY = 1e-3  # chance that honest rounds of a whole training break the rule on used neighbours
_AT_ONCE = 4096  # clients whose neighbours are found together


@dataclass(frozen=True)
class RandomGraph(Graph):
    """A graph of about `degree` neighbours each, an expander (S1).

    Attributes:
        clients: number of clients, >= 8.
        degree: about how many neighbours a client has, from 2 to half of `clients`.
        place: what decides who sits where, 32 bytes: the hash of the roster; None before it is known.

    Raises:
        ArgumentError: an attribute is out of range.
    """

    place: bytes | None = None

    def __post_init__(self) -> None:
        integer("clients", self.clients, 8, 2**31 - 1)
        if not 2 <= integer("degree", self.degree, 2) <= self.clients // 2:
            raise ArgumentError(
                f"a random graph must have a degree from 2 to half of clients={self.clients}, got degree={self.degree}"
            )
        if self.place is not None:
            octets("place", self.place, 32)

    @property
    def complete(self) -> bool:
        """Never."""
        return False

    @property
    def random(self) -> bool:
        """Always."""
        return True

    def placed(self, place: bytes) -> RandomGraph:
        """The graph with its clients seated by the hash of their roster; all who use it in a process share it."""
        key = self.clients, self.degree, bytes(place)
        if (known := _alive.get(key)) is None:
            _alive[key] = known = replace(self, place=place)
        return known

    # Seats.

    @cached_property
    def _shape(self) -> tuple[int, int]:
        """Layers and q: of those that come near the degree that was asked for, what leaves most above `second`."""
        return _expander.shape(self.clients, self.degree)

    @property
    def layers(self) -> int:
        """How many layers there are: one for degrees up to the square root of `clients`, where a prime is near."""
        return self._shape[0]

    @property
    def width(self) -> int:
        """q, a prime that leaves 3 modulo 4, so that a² + c² is never 0 and no two layers share an edge."""
        return self._shape[1]

    @cached_property
    def height(self) -> int:
        """Number of values of a."""
        return -(-self.clients // self.width)

    @property
    def seats(self) -> int:
        """Number of seats, of which a few stay empty."""
        return self.height * self.width

    @property
    def reach(self) -> int:
        """Neighbours of a seat, perhaps itself and empty ones among them."""
        return self.layers * self.height

    @property
    def most(self) -> int:
        """The most neighbours that a client may have."""
        return self.reach

    @property
    def met(self) -> float:
        """The chance that two clients are neighbours."""
        return self.reach / (self.seats - 1)

    @cached_property
    def second(self) -> float:
        """A bound on the second largest eigenvalue of the adjacency matrix, that of empty seats included."""
        return _expander.second(*self._shape, self.height)

    def _sums(self, row: int) -> NDArray[np.int64]:
        """b + d of neighbours, in each layer and for each c, if a = `row` + 1. (layers, height)"""
        return _expander.sums(np.int64(row + 1), *self._shape, self.height)

    @cached_property
    def _seating(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The seat of each client, and the client on each seat or −1. (clients,), (seats,)"""
        if self.place is None:
            raise ArgumentError("a random graph must be placed by the hash of a roster before it has neighbours")
        stream = hashlib.shake_128(b"lightdp seats" + self.place).digest(8 * self.seats)
        seats = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable")[: self.clients]
        clients = np.full(self.seats, -1)
        clients[seats] = np.arange(self.clients)
        return seats, clients

    def neighbours_of(self, client: int) -> NDArray[np.int64]:
        """The neighbours of one client, sorted; about `degree` of them."""
        return self.rows([integer("client", client, 0, self.clients - 1)])[0]

    def neighbours(self) -> NDArray[np.int64]:
        """Refused: clients have different numbers of neighbours; see `rows` and `degrees`."""
        raise ArgumentError("a random graph has no table of neighbours: ask for those of one client")

    def rows(self, clients: Sequence[int]) -> list[NDArray[np.int64]]:  # type: ignore[override]
        """The neighbours of some clients, each sorted."""
        (seats, occupants), every = self._seating, np.asarray(clients)
        result: list[NDArray[np.int64]] = []
        for some in np.split(every, range(_AT_ONCE, every.size, _AT_ONCE)):
            rows, columns = np.divmod(seats[some], self.width)
            across = (_expander.sums(rows + 1, *self._shape, self.height) - columns[:, None]) % self.width
            found = np.hstack(occupants[np.arange(self.height) * self.width + across])  # (some, layers · height)
            found[found == some[:, None]] = -1
            found.sort(axis=1)
            result += [row[empty:] for row, empty in zip(found, (found < 0).sum(axis=1).tolist(), strict=True)]
        return result

    def adjacency(self) -> NDArray[np.bool_]:
        """The adjacency matrix, for small graphs. (clients, clients)"""
        matrix = np.zeros((self.clients, self.clients), dtype=bool)
        for client in range(self.clients):
            matrix[client, self.neighbours_of(client)] = True
        return matrix

    def degrees(self, among: ArrayLike) -> NDArray[np.int64]:
        """How many neighbours each client has among these; read-only. (clients,)

        Args:
            among: flags. (clients,)
        """
        flags = np.asarray(among, dtype=bool)
        if flags.shape != (self.clients,):
            raise ArgumentError(f"among must have a flag for each of {self.clients} clients, got {flags.shape}")
        return _degrees(self, np.packbits(flags).tobytes())

    def _counted(self, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """As `degrees`."""
        seats, _ = self._seating
        table = np.zeros(self.seats, dtype=np.uint8)
        table[seats] = flags
        mirrored = table.reshape(self.height, self.width)[:, ::-1]  # column w − b of a row is a window of its mirror
        windows = np.lib.stride_tricks.sliding_window_view(np.hstack([mirrored, mirrored]), self.width, axis=1)
        every, found = np.arange(self.height), np.empty((self.height, self.width), dtype=np.int64)
        for row in range(self.height):
            starts = (self.width - 1 - self._sums(row)) % self.width
            found[row] = sum(windows[every, start].sum(axis=0, dtype=np.int32) for start in starts)
        return np.asarray(found.ravel()[seats] - (self._loops & flags))

    @cached_property
    def fewest(self) -> int:
        """The least number of neighbours of a client."""
        return int(self.degrees(np.ones(self.clients, dtype=bool)).min())

    @cached_property
    def _loops(self) -> NDArray[np.bool_]:
        """Which clients sit on seats that are their own neighbours, in one layer at most. (clients,)"""
        rows, columns = np.divmod(self._seating[0], self.width)
        own = np.array([self._sums(row)[:, row] for row in range(self.height)])  # (height, layers)
        return np.asarray((own[rows] == (2 * columns % self.width)[:, None]).any(axis=1))

    # What may be relied on (S1).

    def colluding(self, colluders: int, delta: float) -> int:
        """The most colluders among the neighbours of any client, but for draws that `BAD_DRAW` covers.

        Args:
            colluders: how many there are, fixed before the roster.
            delta: δ of the guarantee.
        """
        return largest(self.seats, colluders, self.reach, BAD_DRAW * delta / (DRAWS * self.clients))

    def usual(self, marked: int) -> int:
        """The most among the neighbours of any client, of so many clients, in all but one of a thousand draws."""
        return largest(self.seats, marked, self.reach, _RARELY / self.clients)

    def least_used(self, stragglers: int, rounds: int) -> int:
        """How many used neighbours every client must have in a round, or it is void.

        In honest trainings fewer happen in one of a thousand, if as many clients straggle as may, wherever they sit.
        """
        away = stragglers + self.seats - self.clients
        return self.reach - 1 - largest(self.seats, away, self.reach, _RARELY / (rounds * self.clients))

    def closed_honest(self, colluders: int) -> int:
        """The fewest honest clients in a client's neighbourhood, itself included.

        Args:
            colluders: the most of them among its neighbours.
        """
        return max(self.least_degree - colluders, 0) + 1

    @cached_property
    def least_degree(self) -> int:
        """How many neighbours every client must have, or the draw is refused, which one of a thousand is."""
        return self.reach - 1 - largest(self.seats, self.seats - self.clients, self.reach, _RARELY / self.clients)

    def certificate(self, used: int, least: int, colluders: int, near: int) -> Certificate:
        """What a round gives in which everybody has at least `least` used neighbours.

        Args:
            used: number of clients that were used.
            least: the least number of used neighbours of any client.
            colluders: how many there are.
            near: the most of them among the neighbours of a client.
        """
        return Certificate(used - colluders - 1, least - near - 1 - self.second)


_alive: WeakValueDictionary[tuple[int, int, bytes], RandomGraph] = WeakValueDictionary()


@lru_cache(maxsize=4)  # clients of one process hear of the same sets
def _degrees(graph: RandomGraph, among: bytes) -> NDArray[np.int64]:
    flags = np.unpackbits(np.frombuffer(among, np.uint8), count=graph.clients).view(np.bool_)
    found = graph._counted(flags)  # noqa: SLF001  of this module
    found.flags.writeable = False
    return found
