"""The part of a noise graph that one client sees: itself and its neighbours.

Its keys, repairs and costs depend on nothing else but how many clients a set has in all. So on a sparse graph a client
keeps of each announced set what `Neighbourhood.near` returns, whose size does not grow with the number of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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

    On the complete graph the place of a client is its number. For what costs and repairs ask of a graph, it is as if
    the places were all clients, and everybody's neighbours.

    >>> near = Neighbourhood(clients=9, me=4, neighbours=[7, 2])
    >>> near.clients, near.place, near.neighbours
    (3, 1, (2, 7))
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

    Raises:
        ArgumentError: a client is out of range, or there twice.
    """

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
