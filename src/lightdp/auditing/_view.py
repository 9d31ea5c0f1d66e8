"""What the adversary sees, exactly: which noise each honest upload holds, and the μ that follows (E2).

Who adds and repairs which noise is worked out here from the announcements alone, by the text of (R1) and (W4) and not
by the code of the clients that are audited.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightdp.auditing._signs import worst_signs
from lightdp.auditing._stories import Telling
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.planning import Plan
from lightdp.repair import RETRIES

VICTIM = 0
"""The client whose data the adversary wants."""
_UPLOADS = 2000  # the adversary solves a system with as many unknowns


@dataclass(frozen=True)
class Part:
    """Pairwise noise in an upload: of which round, with which peers, added or (undo) taken out again."""

    round: int
    peers: tuple[int, ...]
    undo: bool


@dataclass(frozen=True)
class Seen:
    """An upload of an honest client, and the pairwise noise it must hold."""

    telling: Telling
    parts: tuple[Part, ...]

    @property
    def round(self) -> int:
        """The number of the round that it answers."""
        return len(self.telling.past)

    @property
    def has_data(self) -> bool:
        """Whether it holds data of the victim."""
        return self.telling.client == VICTIM and not self.telling.closing

    def __str__(self) -> str:
        return f"client {self.telling.client} round {self.round}"


class View:
    """All uploads of honest clients, as the server and its colluders see them.

    What colluders share with honest clients is known to the adversary and hides nothing.

    Args:
        plan: the noise.
        tellings: the uploads that the server asks for, in order; those of colluders are left out.
        colluders: who helps the server; by default the last of the victim's own neighbours, as many as the plan allows,
            since no others know more of it.

    Attributes:
        plan: as given.
        colluders: who helps the server.
        uploads: those of honest clients, in order.

    Raises:
        ArgumentError: no upload has data of the victim, or there are too many uploads to solve for.
    """

    def __init__(self, plan: Plan, tellings: Sequence[Telling], colluders: Iterable[int] | None = None) -> None:
        self.plan = plan
        self._rows = [row.tolist() for row in plan.graph.neighbours()]
        strangers = [i for i in range(plan.clients) if i != VICTIM and i not in self._rows[VICTIM]]
        worst = [*reversed(self._rows[VICTIM]), *strangers][: plan.colluders]
        self.colluders = ClientSet.of(plan.clients, worst if colluders is None else colluders)
        honest = [each for each in tellings if each.client not in self.colluders]
        if len(honest) > _UPLOADS:
            raise ArgumentError(f"play must leave at most {_UPLOADS} uploads of honest clients, got {len(honest)}")
        self._given = {(each.client, len(each.past)): each.given for each in honest}
        sent: dict[int, set[int]] = defaultdict(set)
        self.uploads: list[Seen] = []
        for each in honest:
            self.uploads.append(Seen(each, self._parts(each, sent[each.client])))
            sent[each.client].add(len(each.past))
        if not self.mine.any():
            raise ArgumentError(f"schedule must have an upload of client {VICTIM} with data, got none")

    @property
    def mine(self) -> NDArray[np.bool_]:
        """Which uploads hold data of the victim. (uploads,)"""
        return np.array([each.has_data for each in self.uploads])

    def _parts(self, telling: Telling, sent: set[int]) -> tuple[Part, ...]:
        """(R1): the round's own pairwise noise, unless it is closing, and what the client repairs."""
        peers, now = self._rows[telling.client], len(telling.past)
        own = () if telling.closing else (Part(now, tuple(peers), undo=False),)
        repaired = self._repaired(telling, sent | {now}).get(now) if self.plan.repairs else None
        if repaired is None:
            return own
        used = telling.past[repaired + self.plan.grace][0]
        return (*own, Part(repaired, tuple(j for j in peers if j not in used), undo=True))

    def _repaired(self, telling: Telling, sent: set[int]) -> dict[int, int]:
        """(R5): which round each upload of a client repairs.

        That is the oldest that it owes and no upload carries whose fate is open. The set of round t is known from round
        t + 1 on, one later under grace.
        """
        tries, carried = dict[int, int](), dict[int, int]()
        for number in range(len(telling.past) + 1):
            known = number - 1 - self.plan.grace  # the newest round whose set is final
            if known >= 0:
                used = telling.past[number - 1][0]
                mine = telling.client in used
                if known in carried:
                    tries[carried[known]] = 0 if mine else tries[carried[known]] - 1
                if mine and any(j not in used for j in self._rows[telling.client]):
                    tries[known] = 1 + RETRIES
            flying = {carried.get(each) for each in range(max(known + 1, 0), number)}
            waiting = [of for of, left in tries.items() if left > 0 and of not in flying]
            if waiting and number in sent:
                carried[number] = min(waiting)
        return carried

    def shared(self) -> NDArray[np.float64]:
        """Covariance of the pairwise noise that honest clients share, in units of σ_K². (uploads, uploads)"""
        wires: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
        for row, each in enumerate(self.uploads):
            me = each.telling.client
            for part in each.parts:
                past = each.telling.past[: part.round]  # two clients share noise if they were told the same before it
                given = self._given[me, part.round]  # and had the same model in it
                for peer in part.peers:
                    if peer not in self.colluders:
                        sign = (1 if me < peer else -1) * (-1 if part.undo else 1)
                        wires[min(me, peer), max(me, peer), past, given].append((row, sign))
        result = np.zeros((len(self.uploads), len(self.uploads)))
        for ends in wires.values():
            for (row, sign), (other, its) in itertools.product(ends, ends):
                result[row, other] += sign * its
        return result

    def covariance(self, individual: float, pairwise: float) -> NDArray[np.float64]:
        """Covariance of the uploads for these two variances of noise. (uploads, uploads)"""
        return individual * np.eye(len(self.uploads)) + pairwise * self.shared()

    @cached_property
    def _worst(self) -> tuple[float, NDArray[np.float64], bool]:
        rows = np.flatnonzero(self.mine)
        return worst_signs(np.linalg.inv(self.covariance(1.0, self.plan.gamma))[np.ix_(rows, rows)])

    @property
    def signs(self) -> NDArray[np.float64]:
        """The change of each upload by the victim's data, in units of Δ: what `worst_signs` finds. (uploads,)"""
        result = np.zeros(len(self.uploads))
        result[self.mine] = self._worst[1]
        return result

    @property
    def worst_signs(self) -> bool:
        """Whether no signs show more; otherwise no change of one or two does."""
        return self._worst[2]

    @cached_property
    def mu(self) -> float:
        """(E2): the exact μ of the view for these signs, for the noise that the plan promises.

        Of drawn masks that is the Gaussian in them, of variance γ σ_U² (B2); with the rest of them the view shows less.
        """
        return math.sqrt(self._worst[0]) * self.plan.sensitivity / self.plan.sigma_individual
