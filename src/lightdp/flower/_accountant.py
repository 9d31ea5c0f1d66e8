"""Flower's `PrivacyAccountant`, with lightdp's odometer behind it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, PrivacySpent, SamplingMethod

from lightdp import gaussian
from lightdp._validate import integer, non_negative, number
from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from lightdp.accountant import Odometer
    from lightdp.planning import Plan

_ROUND_UP = 1 + 1e-9  # on a μ that was found from an ε: more than both roundings


class Accountant:
    """What the client that has spent most has spent, as Flower's users of accountants read it.

    All releases are Gaussian, so that μ² adds up exactly (E5): that of the odometer's rounds, of earlier runs, and of
    other releases on the same clients' data that are told by `compose`. ε and δ are rounded up.

    Made for plans of unit "client": Flower's accountants speak of whole clients.
    """

    def __init__(self, plan: Plan) -> None:
        if plan.unit != "client":
            raise ArgumentError(f"Flower's accountants speak of whole clients, got a plan of unit={plan.unit!r}")
        whole = plan.adjacency == "replace"  # Flower pairs replace-one with sampling, here of everybody
        self._plan = plan
        self._config = PrivacyConfig(
            target_delta=plan.delta,
            population_size=plan.clients,
            neighboring_relation=NeighboringRelation.REPLACE_ONE if whole else NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.WITHOUT_REPLACEMENT if whole else SamplingMethod.NO_AMPLIFICATION,
            max_epsilon=plan.budget,
        )
        self._odometer: Odometer | None = None
        self._squares = 0.0  # μ² of everything but the odometer's rounds
        self._releases = 0

    def follow(self, odometer: Odometer) -> None:
        """Count the rounds of this odometer, which may be the same run's with more known, from now on."""
        self._odometer = odometer

    def settle(self) -> None:
        """Keep what the followed odometer has counted as a past run."""
        self._squares, self._releases = self._mu() ** 2, self.num_releases
        self._odometer = None

    @property
    def config(self) -> PrivacyConfig:
        """δ, population and neighbours of the plan; `max_epsilon` is its budget."""
        return self._config

    @property
    def num_releases(self) -> int:
        """Rounds that were counted, and what was composed beside them."""
        return self._releases + (0 if self._odometer is None else self._odometer.rounds)

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Count other Gaussian releases on the clients' data, without amplification by sampling."""
        self._squares += _squares(event, count)
        self._releases += count

    def get_epsilon(self, delta: float) -> float:
        """What was spent, at this δ."""
        if self._squares == 0 and self._odometer is not None:
            return float(self._odometer.epsilon(delta).max())
        return gaussian.epsilon(self._mu(), delta)

    def get_delta(self, epsilon: float) -> float:
        """What was spent, at this ε."""
        return gaussian.delta(epsilon, self._mu())

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """What was spent, at this δ or the plan's."""
        chosen = self._plan.delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(chosen), chosen, self.num_releases, "lightdp: exact Gaussian composition")

    def would_exceed(self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether composing `event` would exceed `max_epsilon`, by default the plan's budget."""
        limit = self._plan.budget if max_epsilon is None else number("max_epsilon", max_epsilon)
        after = math.sqrt(self._mu() ** 2 + _squares(event, count))
        return gaussian.epsilon(after, self._plan.delta) > limit

    def state_dict(self) -> dict[str, object]:
        """What was spent, as JSON values."""
        return {"squares": self._mu() ** 2, "releases": self.num_releases, "plan": self._plan.digest().hex()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from what `state_dict` returned under the same plan."""
        if state.get("plan") != self._plan.digest().hex():
            raise ArgumentError("state must be of an accountant of the same plan")
        self._squares = non_negative("squares", state.get("squares"))
        self._releases = integer("releases", state.get("releases"), 0)
        self._odometer = None

    def _mu(self) -> float:
        if self._odometer is None or self._odometer.rounds == 0:  # rounds that cost ε = 0 at the plan's δ have a μ too
            return math.sqrt(self._squares)
        own = gaussian.mu(self._odometer.max_epsilon(), self._plan.delta) * _ROUND_UP
        return math.hypot(own, math.sqrt(self._squares))


def _squares(event: GaussianPrivacyEvent, count: int) -> float:
    return integer("count", count, 1) / event.noise_multiplier**2
