"""One small class for each way to choose the noise. It answers every question that depends on the choice."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightdp import gaussian, sampling
from lightdp._validate import non_negative, positive
from lightdp.errors import InfeasibleError
from lightdp.noise_graph import gain
from lightdp.planning import _calibrate as calibrate
from lightdp.planning._at_random import seen_at_random, worst_at_random
from lightdp.planning._masks import GAUSSIAN, Masks, masks, price
from lightdp.planning._provision import absent_neighbours, expected, provision
from lightdp.planning._request import FINEST_STEPS, Request
from lightdp.repair import worst_cost

_ROUND_UP = 1 + 1e-12  # on σ: covers every rounding error between σ and the ε that is reported for it
_SAMPLED_LEVELS = 8  # how finely the straggler law is resolved where each level costs a PLD


@dataclass(frozen=True)
class Noise:
    """What was found for a request.

    Attributes:
        gamma: σ_K²/σ_U², pairwise over individual variance.
        sigma_individual: σ_U, the standard deviation of the noise that a client draws for itself.
        sigma_effective: σ_eff, what protects one client (E2); with repair, root mean square over the straggler law.
        masks: how pairwise noise is drawn.
    """

    gamma: float
    sigma_individual: float
    sigma_effective: float
    masks: Masks = GAUSSIAN

    @property
    def sigma_pairwise(self) -> float:
        """σ_K, the standard deviation of the noise that two clients share."""
        return math.sqrt(self.gamma * self.masks.variance) * self.sigma_individual

    def __post_init__(self) -> None:
        non_negative("gamma", self.gamma)
        non_negative("sigma_individual", self.sigma_individual)
        positive("sigma_effective", self.sigma_effective)


class Calibration(ABC):
    """A way to choose the noise.

    Attributes:
        title: as in the heading of a plan.
        against: whom the plan protects from, if not the server together with C̄ other clients.
        repairs: whether what stragglers leave is taken out in a later round (R1).
        deployable: whether `lightdp.protocol` runs it: what protects a client is noise that it adds itself.
        understates: whether its formula claims a smaller ε than its noise gives (P1-P3).
        floats: whether uploads are usually sent as floats, which are not rounded.
        chooses_gamma: whether γ is chosen for the least noise, or given.
    """

    title: ClassVar[str]
    against: ClassVar[str | None] = None
    repairs: ClassVar[bool] = False
    deployable: ClassVar[bool] = True
    understates: ClassVar[bool] = False
    floats: ClassVar[bool] = False
    chooses_gamma: ClassVar[bool] = False

    @abstractmethod
    def noise(self, asked: Request) -> Noise:
        """The least noise that keeps the request's budget, or that the calibration's formula says does."""

    def levels(self, asked: Request, gamma: float) -> dict[float, int]:  # noqa: ARG002  `Repair` uses it
        """How many of the plan's rounds have which σ_eff, as a multiple of `scale`."""
        return {1.0: asked.turns}

    def scale(self, noise: Noise) -> float:
        """The σ for which a round costs k = 1, that is μ = Δ/σ."""
        return noise.sigma_effective

    def used_cost(self, noise: Noise, honest: ArrayLike) -> NDArray[np.float64]:  # noqa: ARG002  `Repair` uses both
        """The cost k of rounds in which the client and `honest` − 1 honest peers were used, an entry each."""
        return np.ones(np.shape(honest))

    def wire_steps(self, asked: Request) -> int:
        """σ_U in steps of the wire; the finest where uploads are usually floats."""
        return FINEST_STEPS if self.floats else asked.wire_steps

    def own(self, asked: Request, noise: Noise) -> float:
        """Variance of the individual noise of an upload and of its rounding to the wire, q²/12 (W1)."""
        rounding = 0.0 if self.floats else 1 / (12 * self.wire_steps(asked) ** 2)
        return noise.sigma_individual**2 * (1 + rounding)

    def in_sum(self, asked: Request, noise: Noise, used: int) -> float:
        """Variance of the individual noise in the sum of `used` uploads, their rounding included."""
        return used * self.own(asked, noise)

    def in_mean(self, asked: Request, noise: Noise) -> float:
        """(D3): that in the mean of a round, averaged over the straggler law."""
        return self.own(asked, noise) * asked.law.odds(asked.clients)[1]

    def required(self, asked: Request, gamma: float = 0.0) -> float:
        """The σ (of `scale` with sampled batches, of σ_eff otherwise) that keeps the budget (E5), rounded up."""
        if asked.sampling_rate == 1:
            mu = gaussian.mu(asked.epsilon, asked.delta)
            return asked.sensitivity * math.sqrt(asked.turns) / mu * _ROUND_UP
        multiplier = sampling.noise_multiplier(
            asked.epsilon,
            rounds=self.levels(asked, gamma),
            rate=asked.sampling_rate,
            delta=asked.delta,
            adjacency=asked.adjacency,
        )
        return asked.clip * multiplier


class Exact(Calibration):
    """(D2): the least noise in the mean without repair."""

    title = "exact noise"
    chooses_gamma = True

    def noise(self, asked: Request) -> Noise:
        """(E3) at the γ of (D2), or at the γ that was asked for."""
        gamma, sigma = asked.gamma, self.required(asked)
        exposure = calibrate.exposure(asked.law, asked.noise_graph)
        if asked.random:
            if gamma is None:
                gamma = calibrate.repair_gamma(exposure, 1.0, lambda each: seen_at_random(asked, each))
            return Noise(gamma, sigma * math.sqrt(seen_at_random(asked, gamma)), sigma)
        if gamma is None:
            gamma = calibrate.exact_gamma(exposure, asked.honest)
        return Noise(gamma, sigma / math.sqrt(float(gain(asked.honest, gamma))), sigma)


class Repair(Calibration):
    """(R1): pairwise noise that stragglers leave is repaired; the odometer charges what happens (R2)."""

    title = "exact noise with carry-over repair"
    repairs = True
    chooses_gamma = True

    def noise(self, asked: Request) -> Noise:
        """All rounds but one as the plan expects them (R6), and one at its worst with room for lies (W5)."""

        def cost(gamma: float) -> float:
            """Of a round, on average over the training, as a share of (Δ/σ_U)²."""
            return (provision(asked, gamma, asked.turns - 1) + self._worst(asked, gamma)) / asked.turns

        gamma = asked.gamma
        if gamma is None:
            exposure = calibrate.exposure(expected(asked), asked.noise_graph)
            gamma = calibrate.repair_gamma(exposure, asked.transient_weight / asked.rounds, cost)
        sigma = self.required(asked, gamma)
        gamma, found = masks(asked, gamma, lambda one: asked.turns * cost(one))
        each = cost(gamma) * price(found, asked.turns * cost(gamma))
        individual = sigma * math.sqrt(each) if asked.sampling_rate == 1 else sigma
        return Noise(gamma, individual, individual / math.sqrt(each), found)

    def levels(self, asked: Request, gamma: float) -> dict[float, int]:
        """Rounds at quantiles of the straggler law that add up to the provision, and one at its worst (R2)."""
        absent, rounds, worst = absent_neighbours(asked), asked.turns - 1, self._worst(asked, gamma)

        def costs(count: int) -> list[tuple[float, int]]:
            found = absent.quantiles(count, _SAMPLED_LEVELS).items()
            return [(1 / float(gain(max(asked.honest - s, 1), gamma)), each) for s, each in found]

        if (total := sum(cost * count for cost, count in costs(rounds))) > 0:
            rounds = math.ceil(rounds * provision(asked, gamma, rounds) / total * (1 - 1e-12))
        result: dict[float, int] = {}
        for cost, count in [*costs(rounds), (calibrate.on_grid(worst) if asked.late_is_seen else worst, 1)]:
            result[1 / math.sqrt(cost)] = result.get(1 / math.sqrt(cost), 0) + count
        return result

    @staticmethod
    def _worst(asked: Request, gamma: float) -> float:
        """What the last round may cost, with all lies (W5), or on a random graph without them (S1)."""
        if asked.random:
            return worst_at_random(asked, gamma)
        return worst_cost(gamma, asked.honest, asked.stragglers, seen=asked.late_is_seen, grace=asked.grace)

    def scale(self, noise: Noise) -> float:
        """σ_U, less what covers failures of drawn masks."""
        return noise.sigma_individual / math.sqrt(noise.masks.covered)

    def used_cost(self, noise: Noise, honest: ArrayLike) -> NDArray[np.float64]:
        """(1 + γ)/(aγ + 1)."""
        return 1 / gain(honest, noise.gamma)


class Paper(Calibration):
    """(D1) as printed, with the footnote's rule for T rounds: variances scaled by sqrt(T) (P3)."""

    title = "noise as printed in the paper"
    understates = True

    def noise(self, asked: Request) -> Noise:
        """The quartic's root and the closed form of the paper's Example 1."""
        gamma = calibrate.paper_gamma(calibrate.exposure(asked.law, asked.noise_graph), asked.honest)
        one_round = asked.sensitivity * calibrate.paper_sigma(gamma, asked.honest, asked.epsilon, asked.delta)
        individual = one_round * asked.turns**0.25
        return Noise(gamma, individual, individual * math.sqrt(float(gain(asked.honest, gamma))))


class Local(Calibration):
    """Local DP: each client adds all the noise that it needs."""

    title = "local DP"
    against = "the server together with all other clients"
    floats = True

    def noise(self, asked: Request) -> Noise:
        """No pairwise noise."""
        sigma = self.required(asked)
        return Noise(0.0, sigma, sigma)


class Smpc(Calibration):
    """Secure aggregation with DP noise for the worst case (P6); asks that nobody sees anything but the sum."""

    title = "secure aggregation with DP noise for the worst case"
    deployable = False

    def noise(self, asked: Request) -> Noise:
        """A share of σ² from each of the N − C̄ − S̄ clients that surely add theirs."""
        adding = asked.clients - asked.colluders - asked.stragglers
        if adding < 1:
            raise InfeasibleError(
                "smpc needs clients > colluders + stragglers, "
                f"got {asked.clients} <= {asked.colluders} + {asked.stragglers}"
            )
        sigma = self.required(asked)
        return Noise(0.0, sigma / math.sqrt(adding), sigma)


class Central(Calibration):
    """Central DP: a server that is trusted adds the noise to the sum."""

    title = "central DP by a trusted server"
    against = "everybody who sees the model, but NOT the server"
    deployable = False
    floats = True

    def noise(self, asked: Request) -> Noise:
        """None from clients."""
        return Noise(0.0, 0.0, self.required(asked))

    def in_sum(self, asked: Request, noise: Noise, used: int) -> float:  # noqa: ARG002  the server adds it once
        """That of the server."""
        return noise.sigma_effective**2

    def in_mean(self, asked: Request, noise: Noise) -> float:
        """That of the server."""
        return noise.sigma_effective**2 * asked.law.mean(lambda s: 1 / (asked.clients - s) ** 2)


CALIBRATIONS: dict[str, Calibration] = {
    "exact": Exact(),
    "repair": Repair(),
    "paper": Paper(),
    "local": Local(),
    "smpc": Smpc(),
    "central": Central(),
}
