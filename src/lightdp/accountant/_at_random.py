"""What a round gives the clients of a random graph (S1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightdp.client_set import ClientSet
from lightdp.neighbourhood import Neighbourhood, Whole
from lightdp.planning import Plan, hidden_at_random
from lightdp.random_graph import rounded_up


class Measured(NamedTuple):
    """A round, for each of some clients.

    Attributes:
        peers: neighbours that were used and are honest for sure; 0 in a void round.
        costs: k, if the client was used, or the round is void and it has sent; it also bounds how much the round moves
            the individual noise of each peer.
    """

    peers: NDArray[np.int64]
    costs: NDArray[np.float64]


class RandomRounds:
    """Rounds on a random graph, which its roster has placed.

    Args:
        plan: the noise.
        clients: those to measure.
        near: the neighbourhood of the only one of them, if sets are of its places; then nothing need be placed.

    Attributes:
        void: k of a void round, of a client that has sent.
        late: k of a late round that all clients hide; None where it is explained by the client's own star.
    """

    def __init__(self, plan: Plan, clients: Sequence[int], near: Neighbourhood | None = None) -> None:
        self._plan, self._clients, self._near = plan, np.asarray(clients), near
        self.void = plan.seen_cost
        self.late = hidden_at_random(plan.request, plan.gamma) if plan.hides_late else None

    def measured(self, used: ClientSet, whole: Whole) -> Measured:
        """A round with these used clients, none in a void one.

        Args:
            used: the clients, or those of a neighbourhood.
            whole: what they are in all; without a neighbourhood, the fewest neighbours are counted here.

        Raises:
            ArgumentError: a client has too few used neighbours; such a round is void (S1).
        """
        if whole.members == 0:
            nothing = np.zeros(self._clients.size, dtype=np.int64)
            return Measured(nothing, np.full(self._clients.size, self.void))
        if self._near is None:
            counts = self._plan.used_neighbours(used.flags)
            near, least = counts[self._clients], int(counts.min())
        else:
            near, least = np.array([len(used) - (self._near.place in used)]), whole.least
            self._plan.refuse_few(least)
        certificate = self._plan.request.certificate(whole.members, least)
        peers = np.maximum(near - self._plan.request.near_colluders, 0)
        return Measured(peers, rounded_up(certificate.cost(self._plan.gamma, peers)))
