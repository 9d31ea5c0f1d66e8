"""The most that rounds which are not over can cost a client that repairs (W5)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightdp.planning import Plan, used_at_random, worst_at_random
from lightdp.repair import RETRIES, late_at_worst, late_cost, lies_cost, used_at_worst, worst_cost


class Reserve:
    """What must be left in the budget for rounds that are open, for one more, and for lies.

    Args:
        plan: the noise.

    Attributes:
        least: honest clients that every used round has, at least 1.
        lies: the most that all lies can add.
        plain: the most that one more round and all lies can cost where no repairs of late rounds ride in it.
    """

    def __init__(self, plan: Plan) -> None:
        self._request = plan.request
        self._grace, self._seen = plan.request.grace, plan.request.late_is_seen
        self._bounds = plan.gamma, plan.honest, plan.stragglers
        if plan.request.random:  # one history for all: see `used_at_random`
            self.least = max(plan.request.least_used - plan.request.near_colluders, 1)
            self.lies = 0.0
        else:
            self.least = max(plan.honest - plan.stragglers, 1)
            self.lies = lies_cost(*self._bounds, self._grace) if self._seen else 0.0
        self.plain = self.round(0.0)
        self._plain_open = {lies: self._open(0.0, lies=lies) for lies in (False, True)}

    def round(self, riding: float) -> float:
        """The most that one more round and all lies can cost, with repairs of late rounds `riding` in it."""
        if self._request.random:
            return worst_at_random(self._request, self._bounds[0], riding)
        return worst_cost(*self._bounds, seen=self._seen, crossed=riding / self.least, grace=self._grace)

    def open(self, riding: float, *, lies: bool) -> tuple[float, float]:
        """The most that the round which waits costs a client that was on time, and one that was not.

        Args:
            riding: repairs of late rounds that ride in it.
            lies: whether all lies are counted beside it, whose place retries of its own repairs take (W5).
        """
        return self._plain_open[lies] if riding == 0 else self._open(riding, lies=lies)

    def _open(self, riding: float, *, lies: bool) -> tuple[float, float]:
        if self._request.random:
            return used_at_random(self._request, self._bounds[0], riding), self.round(riding)
        crossed = riding / self.least
        used = used_at_worst(*self._bounds, crossed)
        if not self._seen:
            return used, used
        if lies:
            return used, max(used, late_at_worst(*self._bounds, crossed))
        gamma, honest, stragglers = self._bounds
        peers = honest - stragglers
        return used, max(used, late_cost(gamma, peers, crossed + 1 / self.least + RETRIES / honest, RETRIES * peers))

    def rounds(self, riding: NDArray[np.float64]) -> NDArray[np.float64]:
        """`round` of each of many clients, of which most have no repairs, and many the same."""
        result, some = np.full(riding.size, self.plain), np.flatnonzero(riding)
        values, which = np.unique(riding[some], return_inverse=True)
        result[some] = np.array([self.round(each) for each in values.tolist()])[which]
        return result

    def opens(self, riding: NDArray[np.float64], *, lies: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`open` of each of many clients, of which most have no repairs, and many the same."""
        used, late = (np.full(riding.size, cost) for cost in self._plain_open[lies])
        some = np.flatnonzero(riding)
        values, which = np.unique(riding[some], return_inverse=True)
        found = np.array([self.open(each, lies=lies) for each in values.tolist()]).reshape(-1, 2)
        used[some], late[some] = found[which].T
        return used, late
