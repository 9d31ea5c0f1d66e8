"""The part of a noise graph that one client sees: itself and its neighbours.

Its keys, repairs and costs depend on nothing else but how many clients a set has in all. So on a sparse graph a client
keeps of each announced set what `Neighbourhood.near` returns, whose size does not grow with the number of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightdp._validate import integer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError


class Whole(NamedTuple):
    """What a client must know of a set as a whole.

    Attributes:
        members: how many clients it has.
        least: the fewest neighbours in it that any client of a random graph has (S1); 0 on other graphs.
    """

    members: int
    least: int = 0


class Neighbourhood:
    """A client and its neighbours, numbered by their places in ascending order.

    On the complete graph the place of a client is its number. For what costs and repairs ask of a graph, a
    neighbourhood is one, with places for clients.

    >>> near = Neighbourhood(clients=9, me=4, neighbours=[7, 2])
    >>> near.clients, near.place, near.rows([near.place]).tolist()
    (3, 1, [[0, 2]])
    >>> near.near(ClientSet.of(9, [0, 4, 7])), near.whole(ClientSet.of(9, [0, 4, 7]))
    (ClientSet.of(3, [1, 2]), Whole(members=3, least=0))
    >>> near.absent(ClientSet.of(3, [1, 2]))
    (2,)

    Args:
        clients: N.
        me: the client.
        neighbours: the clients with which it shares noise.
        degrees: on a random graph, how many neighbours each client has among some.

    Attributes:
        me: as given.
        clients: how many places there are.
        place: that of the client.
        neighbours: as given, sorted.
        complete: whether they are all clients.
        random: never: what a random graph must know of others is in `Whole`.

    Raises:
        ArgumentError: a client is out of range, or there twice.
    """

    random = False

    def __init__(
        self,
        clients: int,
        me: int,
        neighbours: Iterable[int],
        degrees: Callable[[NDArray[np.bool_]], NDArray[np.int64]] | None = None,
    ) -> None:
        self.me = integer("me", me, 0, clients - 1)
        self.neighbours = tuple(sorted(integer("neighbours", each, 0, clients - 1) for each in neighbours))
        if len({*self.neighbours, me}) != len(self.neighbours) + 1:
            raise ArgumentError(f"neighbours must be other clients than me={me}, each once, got {self.neighbours}")
        self._all, self._degrees = clients, degrees
        self._members = np.array(sorted((*self.neighbours, me)), np.int64)
        self.clients, self.place = len(self._members), int(np.searchsorted(self._members, me))
        self.complete = self.clients == clients

    def near(self, found: ClientSet) -> ClientSet:
        """The members of a set of all clients that are here, by place."""
        if found.clients != self._all:
            raise ArgumentError(f"found must be a set of {self._all} clients, got one of {found.clients}")
        return found if self.complete else ClientSet(found.flags[self._members])

    def whole(self, found: ClientSet) -> Whole:
        """What must be known of a set of all clients as a whole; it takes time that grows with them."""
        return Whole(len(found), 0 if self._degrees is None else int(self._degrees(found.flags).min()))

    def absent(self, used: ClientSet) -> tuple[int, ...]:
        """The neighbours that are not in a set of places, as clients."""
        missing = ~used - ClientSet.of(self.clients, [self.place])
        return tuple(self._members[list(missing)].tolist())

    def rows(self, clients: Sequence[int]) -> NDArray[np.int64]:
        """The places of the neighbours of the client, whose own place must be the only one given. (1, degree)"""
        if list(clients) != [self.place]:
            raise ArgumentError(f"clients must be the place of client {self.me}, got clients={list(clients)}")
        return np.delete(np.arange(self.clients), self.place)[None]

    def degrees(self, among: ArrayLike) -> NDArray[np.int64]:
        """How many neighbours the client has among these places; 0 for others, of whom it is not known. (clients,)"""
        result = np.zeros(self.clients, np.int64)
        result[self.place] = np.count_nonzero(np.delete(np.asarray(among), self.place))
        return result
