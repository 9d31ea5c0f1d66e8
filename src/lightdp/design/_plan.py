"""`Plan`, the frozen answer to "how much noise?", and `plan`, which finds it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from scipy.optimize import brentq
from scipy.special import log_ndtr

from lightdp import gaussian, sampling
from lightdp._check import ArgumentError, InfeasibleError, choice, integer, number, positive, probability
from lightdp.design import _calibrate as calibrate
from lightdp.network import Graph, gain
from lightdp.sampling import Adjacency
from lightdp.stragglers import StragglerLaw, uniform

Calibration = Literal["exact", "repair", "paper", "local", "smpc", "central"]
Unit = Literal["record", "client"]
Reserve = Literal["expected", "worst"]
Late = Literal["seen", "unseen"]

_ROUND_UP = 1 + 1e-12  # on σ: covers every rounding error between σ and the ε that is reported for it
_SAMPLED_LEVELS = 8  # how finely the straggler law is resolved where each level costs a PLD
_UNKNOWN_PARAMETERS = 2**30
_UNKNOWN_RECORDS_PER_CLIENT = 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Noise that is provably enough, and what it was made for. Made by `plan`, never by hand.

    Formal guarantee: a training of `rounds` rounds in which every client adds this noise, with uploads clipped so
    that one unit changes them by at most `sensitivity`, is (`epsilon()`, `delta`)-DP for each client, against the
    server together with any `colluders` of the other clients. With `repair` the accountant ends the training
    earlier if the stragglers that happen cost more than was planned for.

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
        late: under repair, whether the server may have "seen" uploads that came too late to be used. Then one such
            round of each client is provided for, and more of them end the training earlier.
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
        """σ_eff/Δ, the number that other DP tools ask for."""
        return self.sigma_effective / self.sensitivity

    @property
    def epsilon_claimed(self) -> float:
        """What the calibration promises; `epsilon()` says what it keeps."""
        return self.budget

    def epsilon(self, delta: float | None = None, *, rounds: int | None = None) -> float:
        """What the plan really costs, rounded up: exact (E5), or by dp-accounting where batches are sampled."""
        delta = self.delta if delta is None else probability("delta", delta)
        rounds = self.rounds if rounds is None else integer("rounds", rounds, 0)
        if self.sampling_rate == 1:
            return gaussian.epsilon(math.sqrt(rounds) * self.sensitivity / self.sigma_effective, delta)
        scale = self.sigma_effective if self.calibration != "repair" else self.sigma_individual
        levels = {scale / self.clip * f: c for f, c in _levels(self, rounds).items()}
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
        met = self.graph.degree / (clients - 1)  # share of the stragglers that a client is paired with
        return self.sigma_pairwise**2 * met * self.law.mean(lambda s: s / (clients - s))

    @property
    def wire_grid(self) -> float:
        """q = σ_U/16: the step to which an upload is rounded, once, after the noise (W1)."""
        return self.sigma_individual / 16

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

        32 for schemes that send floats.
        """
        if self.calibration in ("local", "central"):
            return 32
        worst = max((self.clients - s) * min(s, self.graph.degree) for s in {self.stragglers, self._fullest_cut()})
        residual = worst * self.sigma_pairwise**2 * (2 if self.calibration == "repair" else 1)
        individual = self.clients * (self.sigma_individual**2 + self.wire_grid**2 / 12)
        values = self.rounds * (_UNKNOWN_PARAMETERS if self.parameters is None else self.parameters)
        log_tail = -41 * math.log(2) - math.log(values)  # two sides
        reach = -float(brentq(lambda x: log_ndtr(x) - log_tail, -40.0, 0.0)) * math.sqrt(individual + residual)
        steps = 2 * (self.clients * self.upload_range + reach) / self.wire_grid
        return max(2, math.ceil(math.log2(steps + 2)))

    def _fullest_cut(self) -> int:
        """The number of stragglers, at most S̄, that leaves most wires between used clients and stragglers."""
        return min(self.stragglers, self.clients // 2)

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
        from lightdp.design._page import page  # noqa: PLC0415  the page is about plans, so it imports them

        return page(self)


def plan(
    *,
    clients: int,
    colluders: int,
    stragglers: int,
    rounds: int,
    epsilon: float,
    delta: float,
    clip: float = 1.0,
    calibration: Calibration = "exact",
    gamma: float | None = None,
    unit: Unit = "record",
    adjacency: Adjacency = "add-remove",
    sampling_rate: float = 1.0,
    degree: int | None = None,
    graph_seed: int = 0,
    straggler_law: StragglerLaw | None = None,
    records: int | None = None,
    parameters: int | None = None,
    coordinate_range: float | None = None,
    reserve: Reserve = "expected",
    late: Late = "seen",
) -> Plan:
    """The least noise that keeps (`epsilon`, `delta`) for the whole training; see `Plan` for the arguments.

    Defaults: the complete graph (`degree`), the paper's uniform straggler law, and the best `gamma`.

    Raises:
        ArgumentError: an argument is out of range; the message names it and its value.
        InfeasibleError: no noise gives what is asked, for example secure aggregation with N <= C̄ + S̄.
    """
    choice("calibration", calibration, get_args(Calibration))
    choice("unit", unit, get_args(Unit))
    choice("adjacency", adjacency, get_args(Adjacency))
    choice("reserve", reserve, get_args(Reserve))
    choice("late", late, get_args(Late))
    clients = integer("clients", clients, 2, 2**32 - 2)
    integer("colluders", colluders, 0, clients - 1)
    integer("stragglers", stragglers, 0, clients - 2)
    law = uniform(stragglers) if straggler_law is None else straggler_law
    if law.bound != stragglers:
        raise ArgumentError(f"straggler_law must cover 0..{stragglers}, got a law on 0..{law.bound}")
    if records is not None and probability("delta", delta) >= 1 / integer("records", records, 1, 2**63):
        raise ArgumentError(f"delta must be < 1/records = {1 / records:g}, got delta={delta:g}")
    if not 0 < number("sampling_rate", sampling_rate) <= 1:
        raise ArgumentError(f"sampling_rate must be in (0, 1], got sampling_rate={sampling_rate:g}")
    if unit == "client" and sampling_rate != 1:
        raise ArgumentError(f"sampling_rate must be 1 for unit='client', got sampling_rate={sampling_rate:g}")
    draft = Plan(
        calibration=calibration,
        graph=Graph(clients, clients - 1 if degree is None else degree, graph_seed),
        colluders=colluders,
        law=law,
        rounds=integer("rounds", rounds, 1, 2**32),
        budget=_within("epsilon", epsilon, 1e-9, 1e9),
        delta=probability("delta", delta),
        clip=_within("clip", clip, 1e-100, 1e100),
        unit=unit,
        adjacency=adjacency,
        sampling_rate=float(sampling_rate),
        records=records,
        parameters=None if parameters is None else integer("parameters", parameters, 1, 2**40),
        coordinate_range=None
        if coordinate_range is None
        else _within("coordinate_range", coordinate_range, 1e-100, 1e100),
        reserve=reserve,
        late=late,
        gamma=math.nan,
        sigma_individual=math.nan,
        sigma_effective=math.nan,
    )
    if gamma is not None and calibration not in ("exact", "repair"):
        raise ArgumentError(f"gamma can be given for exact and repair only, got calibration={calibration!r}")
    if gamma is not None and not 0 <= number("gamma", gamma) <= calibrate.GAMMA_MAX:
        raise ArgumentError(f"gamma must be in [0, {calibrate.GAMMA_MAX:g}], got gamma={gamma:g}")
    return _calibrated(draft, gamma)


def _within(name: str, value: float, low: float, high: float) -> float:
    result = positive(name, value)
    if not low <= result <= high:
        raise ArgumentError(f"{name} must be in [{low:g}, {high:g}], got {name}={result:g}")
    return result


def _calibrated(draft: Plan, gamma: float | None) -> Plan:
    """`draft` with its noise."""
    if draft.calibration == "paper":
        return _paper(draft)
    if draft.calibration == "repair":
        return _repair(draft, gamma)
    sigma = _required(draft)
    if draft.calibration == "central":
        return dataclasses.replace(draft, gamma=0.0, sigma_individual=0.0, sigma_effective=sigma)
    if draft.calibration == "local":
        return dataclasses.replace(draft, gamma=0.0, sigma_individual=sigma, sigma_effective=sigma)
    if draft.calibration == "smpc":
        adding = draft.clients - draft.colluders - draft.stragglers
        if adding < 1:
            raise InfeasibleError(
                "smpc needs clients > colluders + stragglers, "
                f"got {draft.clients} <= {draft.colluders} + {draft.stragglers}"
            )
        return dataclasses.replace(draft, gamma=0.0, sigma_individual=sigma / math.sqrt(adding), sigma_effective=sigma)
    if gamma is None:
        gamma = calibrate.exact_gamma(calibrate.exposure(draft.law, draft.graph), draft.honest)
    individual = sigma / math.sqrt(float(gain(draft.honest, gamma)))
    return dataclasses.replace(draft, gamma=gamma, sigma_individual=individual, sigma_effective=sigma)


def _required(draft: Plan) -> float:
    """The σ (of σ_eff; under repair with sampled batches, of σ_U) that keeps the budget (E5)."""
    if draft.sampling_rate == 1:
        mu = gaussian.mu(draft.budget, draft.delta)
        return draft.sensitivity * math.sqrt(draft.rounds) / mu * _ROUND_UP
    multiplier = sampling.noise_multiplier(
        draft.budget,
        rounds=_levels(draft, draft.rounds),
        rate=draft.sampling_rate,
        delta=draft.delta,
        adjacency=draft.adjacency,
    )
    return draft.clip * multiplier * _ROUND_UP


def _levels(draft: Plan, rounds: int) -> dict[float, int]:
    """How many rounds are run with which multiple of `_required`'s σ."""
    if draft.calibration != "repair":
        return {1.0: rounds}
    late = rounds > 0 and draft.late == "seen"
    used = rounds - late
    counts = {draft.stragglers: used} if draft.reserve == "worst" else draft.law.quantiles(used, _SAMPLED_LEVELS)
    costs = [(1 / float(gain(max(draft.honest - s, 1), draft.gamma)), count) for s, count in counts.items()]
    if late:
        worst = calibrate.worst_late_cost(draft.gamma, draft.honest, draft.stragglers)
        costs.append((calibrate.on_grid(worst), 1))
    result: dict[float, int] = {}
    for cost, count in costs:
        result[1 / math.sqrt(cost)] = result.get(1 / math.sqrt(cost), 0) + count
    return result


def _repair(draft: Plan, gamma: float | None) -> Plan:
    """(R1), with the average or the worst cost of a used round; the odometer enforces what happens (R2)."""
    law = draft.law
    if draft.reserve == "worst":
        law = dataclasses.replace(law, pmf=(law.counts == law.bound).astype(float))

    def cost(gamma: float) -> float:
        """Of a round, on average over the training, as a share of (Δ/σ_U)²."""
        used = calibrate.repair_cost(law, draft.honest, gamma)
        if draft.late == "unseen":
            return used
        late = calibrate.worst_late_cost(gamma, draft.honest, draft.stragglers)
        return used + (max(late, used) - used) / draft.rounds

    if gamma is None:
        gamma = calibrate.repair_gamma(law, draft.graph, draft.rounds, cost)
    draft = dataclasses.replace(draft, gamma=gamma)
    sigma = _required(draft)
    individual = sigma * math.sqrt(cost(gamma)) if draft.sampling_rate == 1 else sigma
    effective = individual / math.sqrt(cost(gamma))
    return dataclasses.replace(draft, sigma_individual=individual, sigma_effective=effective)


def _paper(draft: Plan) -> Plan:
    """(D1) as printed, with the footnote's rule for T rounds: variances scaled by sqrt(T) (P3)."""
    if not draft.graph.complete:
        raise ArgumentError(f"the paper's calibration needs the complete graph, got degree={draft.graph.degree}")
    gamma = calibrate.paper_gamma(calibrate.exposure(draft.law, draft.graph), draft.honest)
    one_round = draft.sensitivity * calibrate.paper_sigma(gamma, draft.honest, draft.budget, draft.delta)
    individual = one_round * draft.rounds**0.25
    effective = individual * math.sqrt(float(gain(draft.honest, gamma)))
    return dataclasses.replace(draft, gamma=gamma, sigma_individual=individual, sigma_effective=effective)
