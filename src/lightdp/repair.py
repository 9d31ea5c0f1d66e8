"""Repair, once (R1): what each round of a client costs under it, and who still owes which repair.

A client that was used in a round with stragglers takes the pairwise noise that they left out of its next upload. The
first half of this module is the arithmetic of (R1) and (W5), in which the cost of a round is its squared μ in units of
(Δ/σ_U)²; the second half follows a training: `Repairs` holds the debts of clients, and `Window` what may still be
added to the cost of a round that came too late.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lightdp.client_set import ClientSet
from lightdp.noise_graph import Graph, gain

RETRIES = 2
"""How many more uploads may carry a repair that rode in an upload which came too late (R1)."""


def late_cost(gamma: float, peers: int, crossed: float, retries: float = 0.0) -> float:
    """(R7): cost of a round that came too late.

    >>> late_cost(1.0, peers=12, crossed=0.0)
    0.2

    Args:
        gamma: γ.
        peers: a, honest neighbours that were used in that round.
        crossed: x, all its cross terms with other rounds.
        retries: f, repairs of it by these peers that came too late themselves.
    """
    if peers < 1 or gamma == 0 or crossed >= 2:
        return 1.0  # its own individual noise, which no late round exceeds
    spread = (2 + 1 / gamma) / peers + retries / peers**2
    return (spread + crossed - crossed**2 / 4) / (1 + spread)


def lie_cost(gamma: float, honest: int, stragglers: int) -> float:
    """(W5): the most that one peer which a server tells another history can add to the costs of a client.

    It repairs noise that it shares with the client, up to 1 + `RETRIES` times, in a round in which the client was used
    with at least n − S̄ honest clients, itself included.
    """
    if honest < 2:
        return 0.0
    least = max(honest - stragglers, 2)  # a round with one honest client has no peers that could leave
    return (1 + RETRIES) * gamma**2 / ((1 + (least + 1 + RETRIES) * gamma) * (1 + least * gamma))


def worst_cost(gamma: float, honest: int, stragglers: int, late: str, crossed: float = 0.0) -> float:
    """(W5): the most that one more round and all lies can cost, which the budget must have left for it to begin.

    Every peer adds the cost of a lie once in the whole training, or retries its repair of this round if it is late.

    Args:
        gamma: γ.
        honest: n.
        stragglers: S̄.
        late: whether late uploads are "seen" or "unseen".
        crossed: cross terms with repairs that ride in the round.
    """
    used = min(1.0, 1 / float(gain(max(honest - stragglers, 1), gamma)) + crossed)
    if late != "seen":
        return used
    lie = lie_cost(gamma, honest, stragglers)
    return max(used + (honest - 1) * lie, _worst_late(gamma, honest, honest - stragglers, lie, crossed))


def _worst_late(gamma: float, honest: int, least: int, lie: float, crossed: float) -> float:
    """(W5): the most that a late round costs if c of the `least` used peers retry, and all other peers lied before.

    With P = 1 − x/2 and Q = 1 + s, both linear in c, that is 1 − P²/Q + (n − 1 − c) e: concave in c, and largest where
    its derivative vanishes, or at an end.
    """
    if least < 1 or gamma == 0 or crossed >= 2:
        return 1 + (honest - 1) * lie
    p, q = 1 - crossed / 2, 1 + 1 / (gamma * least)
    p_slope, q_slope = (1 / least + RETRIES / honest) / (2 * least), (2 + RETRIES) / least**2
    ratio = (math.sqrt(p_slope**2 + q_slope * lie) - p_slope) / q_slope  # P/Q at the largest
    retrying = min(max((p - ratio * q) / (p_slope + ratio * q_slope), 0.0), float(least))
    share = max(p - p_slope * retrying, 0.0) ** 2 / (q + q_slope * retrying)
    return 1 - share + (honest - 1 - retrying) * lie


@dataclass
class Window:
    """A late round of one client, while its peers may still repair it.

    The client does not learn whether a peer that was not used had sent. So unlike in `Repairs`, a peer stays until it
    is used, however long that takes, and each round that it missed counts as a late repair, up to `RETRIES`.

    Attributes:
        gamma: γ.
        honest: a_t, peers used in that round that are honest for sure.
        waiting: peers that may still repair it. (N,)
        crossed: its cross terms with other rounds, if all repairs come in time.
        retries: repairs by each peer that may have come too late, at most `RETRIES`. (N,)
    """

    gamma: float
    honest: int
    waiting: NDArray[np.bool_]
    crossed: float
    retries: NDArray[np.int64]

    def close(self, used: ClientSet, late: ClientSet) -> None:
        """Take in the next round: peers that were used have repaired, those that were late may have tried to."""
        self.retries = np.minimum(self.retries + (self.waiting & late.flags), RETRIES)
        self.waiting = self.waiting & ~used.flags

    def cost(self, everyone: int, *, all_late: bool = False) -> float:
        """Cost of the round with its late repairs, or all that may still come, each perhaps in a void round."""
        retries = np.where(self.waiting, RETRIES, self.retries) if all_late else self.retries
        largest = int(np.sort(retries)[-self.honest :].sum())  # whichever peers collude
        crossed = self.crossed + largest / (self.honest * everyone)
        return late_cost(self.gamma, self.honest, crossed, largest)

    def riders(self, carriers: ClientSet | None = None) -> int:
        """How many repairs, each of p = 1/`honest`, ride in uploads of `carriers`, by default of all peers left."""
        left = self.waiting if carriers is None else self.waiting & carriers.flags
        return min(int(left.sum()), self.honest)


@dataclass(frozen=True)
class Debt:
    """Pairwise noise that a client shares with stragglers of a round in which it was used, still in the model.

    Attributes:
        round: that round.
        absent: how many of its neighbours straggled.
        tries: uploads that may still carry the repair.
    """

    round: int
    absent: int
    tries: int


@dataclass(frozen=True)
class Settled:
    """What the end of a round changed: debts that were paid by a used upload, and those given up after `RETRIES`."""

    paid: Mapping[int, Debt]
    given_up: Mapping[int, Debt]


class Repairs:
    """Who owes which repair (R1): at most one for each tracked client, that of the last round it was used in.

    >>> from lightdp.noise_graph import Graph
    >>> repairs = Repairs(Graph(clients=4, degree=3))
    >>> _ = repairs.close(0, used=ClientSet.of(4, [0, 1, 2]), sent=ClientSet.of(4, [0, 1, 2]))
    >>> repairs.owed[0]
    Debt(round=0, absent=1, tries=3)
    >>> list(repairs.close(1, used=ClientSet.of(4, [0, 1, 2, 3]), sent=ClientSet.all(4)).paid), repairs.owed
    ([0, 1, 2], {})

    Args:
        graph: who shares noise with whom.
        clients: those to follow, by default all.

    Attributes:
        owed: the open debts by client, those of one round in ascending order. It is replaced, never changed in place.
    """

    def __init__(self, graph: Graph, clients: Iterable[int] | None = None) -> None:
        self._tracked = ClientSet.all(graph.clients) if clients is None else ClientSet.of(graph.clients, clients)
        self._rows = None if graph.complete else graph.rows(list(self._tracked))  # (tracked, degree)
        self.owed: dict[int, Debt] = {}

    def close(self, number: int, used: ClientSet, sent: ClientSet) -> Settled:
        """Settle a round: used clients have paid and owe anew; others that sent have one try less.

        Args:
            number: of the round.
            used: clients whose uploads were used.
            sent: clients that sent, used or not.
        """
        was_used, did_send = used.flags.tolist(), sent.flags.tolist()
        paid, given_up, kept = {}, {}, {}
        for client, debt in self.owed.items():
            if was_used[client]:
                paid[client] = debt
            elif not did_send[client]:
                kept[client] = debt
            elif debt.tries == 1:
                given_up[client] = debt
            else:
                kept[client] = replace(debt, tries=debt.tries - 1)
        new = {client: Debt(number, absent, RETRIES + 1) for client, absent in self.absent(used).items()}
        self.owed = kept | new
        return Settled(paid, given_up)

    def absent(self, used: ClientSet) -> dict[int, int]:
        """How many neighbours each tracked and used client misses in a round, without those that miss none."""
        if self._rows is None:
            missing = used.clients - len(used)
            return dict.fromkeys(self._tracked & used, missing) if missing > 0 else {}
        counts = (~used.flags)[self._rows].sum(axis=1).tolist()
        return {i: count for i, count in zip(self._tracked, counts, strict=True) if count > 0 and i in used}
