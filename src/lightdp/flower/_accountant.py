"""Flower's `PrivacyAccountant`, with lightdp's ledgers behind it."""

from __future__ import annotations

import math
from collections.abc import Callable

from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, PrivacySpent, SamplingMethod

from lightdp import gaussian
from lightdp._validate import integer, non_negative, number
from lightdp.errors import ArgumentError
from lightdp.planning import NEVER, Failures, Plan

_ROUND_UP = 1 + 1e-12  # more than a sum of squares and its root are rounded by
_WITHIN = 1 + 1e-9  # of a budget: more than an ε of the ledger differs by from that of its μ
_LENGTH = 2**32  # values of an upload, where nobody says how many


class Accountant:
    """A `PrivacyAccountant` of Flower: the largest privacy loss of a client, over all starts of a strategy.

        strategy.accountant.get_privacy_spent().epsilon         # at the plan's δ
        strategy.accountant.get_epsilon(delta=1e-6)
        strategy.accountant.would_exceed(event)                 # another release on the same data

    Formal guarantee: all releases are Gaussian, so their μ² add up exactly (E5): those of the rounds that it follows,
    of earlier runs, and of other releases passed to `compose`. ε and δ are rounded up. Drawn masks are Gaussian but for
    small probabilities (B2): for one run, at the plan's δ and above, its μ covers them; in all other cases they count
    beside δ. Of a δ below the plan's nothing is said then: ε is infinite once something was released, and no δ is
    smaller than the plan's. δ never grows with ε.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=50, colluders=5, stragglers=5, rounds=20, epsilon=8, delta=1e-5, unit="client")
    >>> accountant = Accountant(plan)
    >>> accountant.compose(GaussianPrivacyEvent(noise_multiplier=10, sample_size=50, population_size=50), count=4)
    >>> round(accountant.get_epsilon(delta=1e-5), 3), accountant.num_releases
    (0.726, 4)

    Args:
        plan: of unit "client", since Flower's accountants speak of whole clients.

    Attributes:
        config: δ, number of clients and adjacency of the plan; `max_epsilon` is its budget.

    Raises:
        ArgumentError: the plan has unit "record".
    """

    def __init__(self, plan: Plan) -> None:
        if plan.unit != "client":
            raise ArgumentError(f"Flower's accountants speak of whole clients, got a plan of unit={plan.unit!r}")
        whole = plan.adjacency == "replace"  # Flower pairs replace-one with sampling, here of everybody
        self._plan = plan
        self.config = PrivacyConfig(
            target_delta=plan.delta,
            population_size=plan.clients,
            neighboring_relation=NeighboringRelation.REPLACE_ONE if whole else NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.WITHOUT_REPLACEMENT if whole else SamplingMethod.NO_AMPLIFICATION,
            max_epsilon=plan.budget,
        )
        self._followed: tuple[Callable[[], float], Callable[[], int]] = (lambda: 0.0), (lambda: 0)  # of no round yet
        self._squares, self._releases = 0.0, 0  # μ² and number of everything but the rounds that are followed
        self._earlier, self._fails = NEVER, NEVER  # of runs before, and of the one that is followed

    def follow(self, mu: Callable[[], float], rounds: Callable[[], int], length: int = _LENGTH) -> None:
        """Count the rounds of another run from now on; those followed before are kept.

        Args:
            mu: returns the largest μ of a client in the run so far.
            rounds: returns how many of its rounds were released so far.
            length: values of an upload, at most.
        """
        self._earlier, self._fails = self._failures(), self._plan.masks.fails(length)
        self._squares, self._releases, self._followed = self._mu() ** 2, self.num_releases, (mu, rounds)

    @property
    def num_releases(self) -> int:
        """Number of rounds and of composed releases."""
        return self._releases + self._followed[1]()

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Count other Gaussian releases on the data of the clients, without amplification by sampling.

        Args:
            event: one release.
            count: how many there were.
        """
        self._squares += _squares(event, count)
        self._releases += count

    def get_epsilon(self, delta: float) -> float:
        """The ε that was spent, at this δ; infinite if masks are drawn and it is less than the plan's (B2)."""
        return self._epsilon(self._mu(), delta)

    def get_delta(self, epsilon: float) -> float:
        """The δ that was spent, at this ε; if masks are drawn, at least the plan's (B2)."""
        mu, fails, least = self._mu(), self._failures(), self._plan.delta
        if fails == NEVER:
            return gaussian.delta(epsilon, mu)
        found = fails.delta(epsilon, mu)
        if self._squares == 0:  # one run, whose ledger covers what may fail at δ >= `least` and ε up to the budget
            found = min(found, gaussian.delta(min(epsilon, self._plan.budget), mu))
        return max(found, least)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """What was spent, at this δ or the plan's."""
        chosen = self._plan.delta if delta is None else delta
        how = "exact Gaussian composition" + (", drawn masks (B2)" if self._plan.masks.kind == "drawn" else "")
        return PrivacySpent(self.get_epsilon(chosen), chosen, self.num_releases, f"lightdp: {how}")

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether composing `event` would exceed `max_epsilon`, by default the plan's budget, at the plan's δ."""
        limit = self._plan.budget if max_epsilon is None else number("max_epsilon", max_epsilon)
        after = math.sqrt(self._mu() ** 2 + _squares(event, count))
        return self._epsilon(after, self._plan.delta) > limit

    def state_dict(self) -> dict[str, object]:
        """What was spent, as JSON values."""
        facts = {"squares": self._mu() ** 2, "releases": self.num_releases, "plan": self._plan.digest().hex()}
        fails = self._failures()
        return facts | ({} if fails == NEVER else {"fails": fails.to_list()})

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from what `state_dict` returned under the same plan."""
        if state.get("plan") != self._plan.digest().hex():
            raise ArgumentError("state must be of an accountant of the same plan")
        self._squares = non_negative("squares", state.get("squares"))
        self._releases = integer("releases", state.get("releases"), 0)
        self._earlier, self._fails = Failures.of("fails", state.get("fails", [])), NEVER
        self._followed = (lambda: 0.0), (lambda: 0)

    def _failures(self) -> Failures:
        """By how much the μ of everything may fall short."""
        return self._earlier + (self._fails if self._followed[1]() > 0 else NEVER)

    def _epsilon(self, mu: float, delta: float) -> float:
        """ε at δ of what was released, with what may be composed beside."""
        found, fails = gaussian.epsilon(mu, delta), self._failures()
        if fails == NEVER:
            return found
        if self._plan.masks.left(delta) == 0:
            return math.inf
        alone = self._squares == 0 and mu <= self._mu()  # one run, whose ledger covers what may fail
        return found if alone and found <= self._plan.budget * _WITHIN else fails.epsilon(mu, delta)

    def _mu(self) -> float:
        return math.hypot(self._followed[0]() * _ROUND_UP, math.sqrt(self._squares))


def _squares(event: GaussianPrivacyEvent, count: int) -> float:
    return integer("count", count, 1) / event.noise_multiplier**2
