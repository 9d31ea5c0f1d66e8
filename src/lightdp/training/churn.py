"""Members that come and go: who is there in a round, a pure function of the seed and of who was there before."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from lightdp.errors import ArgumentError

_PURPOSE = int.from_bytes(b"turn")


def chances(churn: str | None) -> tuple[float, float]:
    """The probabilities with which a member leaves and comes back after a round; (0, 0) without churn.

    >>> chances("0.02:0.1"), chances(None)
    ((0.02, 0.1), (0.0, 0.0))

    Args:
        churn: None or "LEAVE:JOIN".

    Raises:
        ArgumentError: it is something else.
    """
    if churn is None:
        return 0.0, 0.0
    with suppress(ValueError):
        leave, join = (float(text) for text in churn.split(":"))
        if 0 <= leave <= 1 and 0 <= join <= 1:
            return leave, join
    raise ArgumentError(f"churn must be LEAVE:JOIN, two probabilities in [0, 1], got churn={churn!r}")


def changed(churn: str | None, members: int, seed: int, number: int) -> tuple[list[int], list[int]]:
    """Members that leave before a round if they are there, and members that come back if they are away.

    >>> changed("1:0", members=3, seed=0, number=4), changed("1:1", members=3, seed=0, number=0)
    (([0, 1, 2], []), ([], []))

    Args:
        churn: as for `chances`.
        members: how many there are.
        seed: the result is a pure function of it and of the other arguments.
        number: of the round, from 0; nobody leaves before the first.
    """
    leave, join = chances(churn)
    if number == 0 or leave == join == 0:
        return [], []
    draws = np.random.default_rng([seed, _PURPOSE, number]).random((2, members))  # noqa: TID251  protects nothing
    return np.flatnonzero(draws[0] < leave).tolist(), np.flatnonzero(draws[1] < join).tolist()
