"""`plan`: checks what is asked, and finds the noise for it."""

from __future__ import annotations

import dataclasses
import math
from typing import get_args

from lightdp import gaussian, repair, sampling
from lightdp._validate import choice, integer, number, positive, probability
from lightdp.errors import ArgumentError, InfeasibleError
from lightdp.noise_graph import Graph, gain
from lightdp.planning import _calibrate as calibrate
from lightdp.planning._plan import Calibration, Late, Plan, Reserve, Unit, sampled_levels
from lightdp.sampling import Adjacency
from lightdp.stragglers import StragglerLaw, uniform

_ROUND_UP = 1 + 1e-12  # on σ: covers every rounding error between σ and the ε that is reported for it


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
        rounds=sampled_levels(draft),
        rate=draft.sampling_rate,
        delta=draft.delta,
        adjacency=draft.adjacency,
    )
    return draft.clip * multiplier * _ROUND_UP


def _repair(draft: Plan, gamma: float | None) -> Plan:
    """(R1), with the average or the worst cost of a used round; the odometer enforces what happens (R2)."""
    law = draft.law
    if draft.reserve == "worst":
        law = dataclasses.replace(law, pmf=(law.counts == law.bound).astype(float))

    def cost(gamma: float) -> float:
        """Of a round, on average over the training, as a share of (Δ/σ_U)²."""
        used = repair.repair_cost(law, draft.honest, gamma)
        return used + (repair.worst_cost(gamma, draft.honest, draft.stragglers, draft.late) - used) / draft.rounds

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
