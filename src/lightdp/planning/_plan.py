"""`Plan`: the frozen answer to "how much noise?"."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from scipy.optimize import brentq
from scipy.special import log_ndtr

from lightdp import gaussian, repair, sampling
from lightdp._validate import probability
from lightdp.noise_graph import Graph, gain
from lightdp.planning import _calibrate as calibrate

if TYPE_CHECKING:
    from lightdp.sampling import Adjacency
    from lightdp.stragglers import StragglerLaw

Calibration = Literal["exact", "repair", "paper", "local", "smpc", "central"]
Unit = Literal["record", "client"]
Reserve = Literal["expected", "worst"]
Late = Literal["seen", "unseen"]

WIRE_STEPS = 16  # σ of a client's own noise in steps of the wire: rounding then hardly shows in it
_SAMPLED_LEVELS = 8  # how finely the straggler law is resolved where each level costs a PLD
_UNKNOWN_PARAMETERS = 2**30
_UNKNOWN_RECORDS_PER_CLIENT = 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Noise that is provably enough, and what it was made for. Made by `plan`, never by hand.

    Formal guarantee: a training of `rounds` rounds in which every client adds this noise, with uploads clipped so
    that one unit changes them by at most `sensitivity`, is (`epsilon()`, `delta`)-DP for each client, against the
    server together with any `colluders` of the other clients. With `repair` the accountant ends the training
    earlier if the stragglers that happen cost more than was planned for. The schemes to compare with ask for more:
    "smpc" that nobody sees anything but the sum, "central" a server that is trusted.

    Attributes:
        calibration: how the noise was chosen: "exact" (D2), "repair" (R1), "paper" (D1), or a scheme to compare
            with: "local" DP, "smpc" (secure aggregation with noise for the worst case) (P6), "central" DP.
        graph: who shares pairwise noise with whom.
        colluders: C̄, how many other clients may help the server.
        law: distribution of the number of stragglers a round, up to S̄.
        rounds: T.
        budget: the ε that was asked for.
        delta: the δ that was asked for.
        clip: L2 bound on what one unit contributes to an upload, enforced by the client (P4).
        unit: what is protected: one "record" or everything of one "client".
        adjacency: "add-remove" or "replace" one unit.
        sampling_rate: probability that a record is in a round's batch (Poisson).
        records: number of records of all clients together, where known.
        parameters: number of model parameters, where known.
        coordinate_range: the user's own bound on one coordinate of one upload before noise, where given.
        reserve: under repair, whether the noise lasts `rounds` rounds of "expected" or of "worst" stragglers.
        late: whether the server may have "seen" uploads that came too late to be used. Then they cost what they tell;
            under repair room for one such round is kept until the end, and each that happens ends the training some
            rounds earlier. If "unseen", they cost nothing: a server that keeps them, or calls late what was not, gets
            them for free.
        gamma: σ_K²/σ_U².
        sigma_individual: σ_U, the standard deviation of the noise that a client draws for itself.
        sigma_effective: σ_eff, what protects one client (E2); under repair, on quadratic average over `law`.
    """

    calibration: Calibration
    graph: Graph
    colluders: int
    law: StragglerLaw
    rounds: int
    budget: float
    delta: float
    clip: float
    unit: Unit
    adjacency: Adjacency
    sampling_rate: float
    records: int | None
    parameters: int | None
    coordinate_range: float | None
    reserve: Reserve
    late: Late
    gamma: float
    sigma_individual: float
    sigma_effective: float

    @property
    def repairs(self) -> bool:
        """Whether the noise that stragglers leave is taken out of the sum in a later round (R1)."""
        return self.calibration == "repair"

    @property
    def deployable(self) -> bool:
        """Whether `lightdp.protocol` runs it: what protects a client is noise that it adds itself."""
        return self.calibration not in ("smpc", "central")

    @property
    def understates(self) -> bool:
        """Whether its formula claims a smaller ε than its noise gives (P1-P3)."""
        return self.calibration == "paper"

    @property
    def clients(self) -> int:
        """N."""
        return self.graph.clients

    @property
    def stragglers(self) -> int:
        """S̄."""
        return self.law.bound

    @property
    def honest(self) -> int:
        """The client and the neighbours it can count on: n = N − C̄ on the complete graph."""
        return self.graph.closed_honest(self.colluders)

    @property
    def sensitivity(self) -> float:
        """Δ: how far one unit can move an upload. Weights, if any, are at most 1 and masked with it (P5)."""
        return self.clip * (2 if self.adjacency == "replace" else 1)

    @property
    def sigma_pairwise(self) -> float:
        """σ_K, the standard deviation of the noise that two clients share."""
        return math.sqrt(self.gamma) * self.sigma_individual

    @property
    def noise_multiplier(self) -> float:
        """σ_eff/Δ, of a round as a Gaussian mechanism; with "replace", tools that count σ in clips want twice this."""
        return self.sigma_effective / self.sensitivity

    @property
    def epsilon_claimed(self) -> float:
        """What the calibration promises; `epsilon()` says what it keeps."""
        return self.budget

    def epsilon(self, delta: float | None = None) -> float:
        """What the plan really costs, rounded up: exact (E5), or by dp-accounting where batches are sampled."""
        delta = self.delta if delta is None else probability("delta", delta)
        if self.sampling_rate == 1:
            return gaussian.epsilon(math.sqrt(self.rounds) * self.sensitivity / self.sigma_effective, delta)
        scale = self.sigma_individual if self.calibration == "repair" else self.sigma_effective
        levels = {scale / self.clip * factor: count for factor, count in sampled_levels(self).items()}
        return sampling.epsilon(levels, rate=self.sampling_rate, delta=delta, adjacency=self.adjacency)

    def noise_in_mean(self) -> float:
        """(D3): variance, per coordinate, of the noise that a round leaves in the mean of the used uploads.

        Averaged over the straggler law. Under repair this is what stays; `transient_in_mean` goes again (R4).
        """
        clients = self.clients
        if self.calibration == "central":
            return self.sigma_effective**2 * self.law.mean(lambda s: 1 / (clients - s) ** 2)
        individual = self.sigma_individual**2 * self.law.mean(lambda s: 1 / (clients - s))
        return individual if self.calibration == "repair" else individual + self._residual_in_mean()

    def transient_in_mean(self) -> float:
        """(R4): variance of the residual that repair takes out of the mean one round later; 0 without repair."""
        return self._residual_in_mean() if self.calibration == "repair" else 0.0

    def _residual_in_mean(self) -> float:
        clients = self.clients
        return self.law.mean(lambda s: s / (clients - s)) * self._met * self.sigma_pairwise**2

    def residual_in_sum(self, used: int) -> float:
        """Variance of the pairwise noise that `used` uploads share with those absent, whoever they are, on average."""
        return used * (self.clients - used) * self._met * self.sigma_pairwise**2

    @property
    def _met(self) -> float:
        """The share of the others that a client is paired with."""
        return self.graph.degree / (self.clients - 1)

    def individual_in_sum(self, used: int) -> float:
        """Variance of the individual noise of `used` uploads and of their rounding to the wire (W1).

        Of central DP, that of the server's noise. Local DP sends floats: nothing is rounded.
        """
        if self.calibration == "central":
            return self.sigma_effective**2
        rounding = 0.0 if self.calibration == "local" else self.wire_grid**2 / 12
        return used * (self.sigma_individual**2 + rounding)

    @property
    def wire_grid(self) -> float:
        """q: the step to which an upload is rounded, once, after the noise (W1)."""
        return self.sigma_individual / WIRE_STEPS

    @property
    def upload_range(self) -> float:
        """Bound on one coordinate of one upload before noise; a client clamps to it (W1)."""
        if self.coordinate_range is not None:
            return self.coordinate_range
        if self.unit == "client":
            return self.clip
        known = self.records is not None
        per_client = math.ceil(self.records / self.clients) if known else _UNKNOWN_RECORDS_PER_CLIENT  # type: ignore[operator]
        return per_client * self.clip

    @property
    def wire_bits(self) -> int:
        """b (W1): bits a parameter such that the sum wraps with probability < 2⁻⁴⁰ in the whole training.

        At least 32 for local DP, which usually sends floats; 32 for central DP, which always does.
        """
        if self.calibration == "central":
            return 32
        cut = min(self.stragglers, self.clients // 2)  # the most wires between used clients and stragglers
        worst = (self.clients - cut) * min(cut, self.graph.degree)
        repaired = self.clients * min(self.stragglers, self.graph.degree) if self.calibration == "repair" else 0
        residual = (worst + repaired) * self.sigma_pairwise**2
        individual = self.individual_in_sum(self.clients)
        values = self.rounds * (_UNKNOWN_PARAMETERS if self.parameters is None else self.parameters)
        log_tail = -41 * math.log(2) - math.log(values)  # two sides
        reach = -float(brentq(lambda x: log_ndtr(x) - log_tail, -40.0, 0.0)) * math.sqrt(individual + residual)
        steps = 2 * (self.clients * self.upload_range + reach) / self.wire_grid
        return max(32 if self.calibration == "local" else 2, math.ceil(math.log2(steps + 2)))

    def settings(self) -> dict[str, Any]:
        """The arguments of `plan` that ask for this plan, except `calibration` and `gamma`."""
        return {
            "clients": self.clients,
            "colluders": self.colluders,
            "stragglers": self.stragglers,
            "rounds": self.rounds,
            "epsilon": self.budget,
            "delta": self.delta,
            "clip": self.clip,
            "unit": self.unit,
            "adjacency": self.adjacency,
            "sampling_rate": self.sampling_rate,
            "degree": self.graph.degree,
            "graph_seed": self.graph.seed,
            "straggler_law": self.law,
            "records": self.records,
            "parameters": self.parameters,
            "coordinate_range": self.coordinate_range,
            "reserve": self.reserve,
            "late": self.late,
        }

    def to_dict(self) -> dict[str, Any]:
        """Settings and results as JSON values."""
        asked = self.settings() | {"straggler_law": self.law.name}
        return asked | {
            "calibration": self.calibration,
            "gamma": self.gamma,
            "sigma_individual": self.sigma_individual,
            "sigma_pairwise": self.sigma_pairwise,
            "sigma_effective": self.sigma_effective,
            "noise_multiplier": self.noise_multiplier,
            "epsilon": self.epsilon(),
            "epsilon_claimed": self.epsilon_claimed,
            "noise_in_mean": self.noise_in_mean(),
            "transient_in_mean": self.transient_in_mean(),
            "sensitivity": self.sensitivity,
            "wire_bits": self.wire_bits,
        }

    def digest(self) -> bytes:
        """32 bytes on which all parties of a training must agree: settings, law and noise, to nine digits."""
        fields = self.to_dict() | {"pmf": self.law.pmf.tolist()}
        rounded = {
            name: [f"{x:.9g}" for x in value]
            if isinstance(value, list)
            else f"{value:.9g}"
            if isinstance(value, float)
            else value
            for name, value in fields.items()
        }
        return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).digest()

    def __str__(self) -> str:
        from lightdp.planning._page import page  # noqa: PLC0415  the page is about plans, so it imports them

        return page(self)


def sampled_levels(draft: Plan) -> dict[float, int]:
    """How many of the plan's rounds have which σ_eff, as a multiple of σ_eff or, under repair, of σ_U (R2)."""
    if draft.calibration != "repair":
        return {1.0: draft.rounds}
    used = draft.rounds - 1
    counts = {draft.stragglers: used} if draft.reserve == "worst" else draft.law.quantiles(used, _SAMPLED_LEVELS)
    costs = [(1 / float(gain(max(draft.honest - s, 1), draft.gamma)), count) for s, count in counts.items()]
    worst = repair.worst_cost(draft.gamma, draft.honest, draft.stragglers, draft.late)
    costs.append((calibrate.on_grid(worst) if draft.late == "seen" else worst, 1))
    result: dict[float, int] = {}
    for cost, count in costs:
        result[1 / math.sqrt(cost)] = result.get(1 / math.sqrt(cost), 0) + count
    return result
