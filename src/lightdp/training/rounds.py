"""Who came to the rounds of a run so far: what the odometer counts of it, and when, and what the log says.

A round counts once its set is final. Under grace that is when the next round closes; until then it is open (R5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.training.arrivals import Arrivals

Came: TypeAlias = tuple[ClientSet, ClientSet, ClientSet]
"""Clients of a round in its own sum, in the next one and too late."""


def came(arrived: Arrivals) -> Came:
    """The clients of a round.

    >>> came(Arrivals.of(5, used=[0, 1], next=[3], late=[4]))
    (ClientSet.of(5, [0, 1]), ClientSet.of(5, [3]), ClientSet.of(5, [4]))
    """
    return arrived.used, arrived.next, arrived.late


def final(one: Came) -> tuple[ClientSet, ClientSet]:
    """Whom a round uses in the end, and whose uploads were seen in vain.

    >>> final(came(Arrivals.of(5, used=[0, 1], next=[3], late=[4])))
    (ClientSet.of(5, [0, 1, 3]), ClientSet.of(5, [4]))
    """
    used, joins, late = one
    return used | joins, late


def count(odometer: Odometer, rounds: Sequence[Came], grace: int) -> None:
    """Count the last of these rounds or, under grace, the one before it, while the last is open.

    Args:
        odometer: has counted all rounds before the last one.
        rounds: all so far.
        grace: 0 or 1.
    """
    if grace == 0:
        odometer.record(*final(rounds[-1]))
        return
    if len(rounds) > 1:
        odometer.record(*final(rounds[-2]))
    used, joins, late = rounds[-1]
    odometer.open(used, joins | late)


def joined(rounds: Sequence[Came], grace: int, members: Sequence[int] | None = None) -> dict[str, Any]:
    """What the next line of the log says of late uploads of the last round; nothing without grace.

    >>> past = [came(Arrivals.of(5, used=[0, 1], next=[3], late=[4]))]
    >>> joined(past, grace=1), joined(past, grace=1, members=[2, 5, 6, 9, 11])
    ({'joined': 1, 'joined_clients': [3]}, {'joined': 1, 'joined_clients': [9]})

    Args:
        rounds: all so far.
        grace: 0 or 1.
        members: the numbers of their clients in the log; by default as here.
    """
    if grace == 0:
        return {}
    late = [*rounds[-1][1]] if rounds else []
    return {"joined": len(late), "joined_clients": late if members is None else [members[i] for i in late]}
