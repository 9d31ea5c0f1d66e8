"""Every scheme at the same true guarantee: what its noise, its messages and its weak points are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightdp.errors import ArgumentError
from lightdp.planning._calibrations import Noise
from lightdp.planning._plan import Plan, solve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightdp.planning._request import CalibrationName


@dataclass(frozen=True)
class Scheme:
    """What a comparison says about a calibration, whatever the numbers."""

    calibration: CalibrationName
    title: str
    round_trips: int
    breaks: str


SCHEMES = (
    Scheme("central", "central DP", 1, "a curious server: it sees all updates"),
    Scheme("smpc", "SMPC + DP (SecAgg)", 4, "over S̄ lost, or lost peer links (P7)"),
    Scheme("repair", "LightDP, repair", 1, "over S̄ lost, or non-linear steps (R3)"),
    Scheme("exact", "LightDP, exact", 1, "over S̄ lost; stragglers leave noise"),
    Scheme("paper", "LightDP, paper's γ", 1, "as exact; its own σ misses ε (P1-P3)"),
    Scheme("local", "local DP", 1, "nothing; noise alone protects"),
)


@dataclass(frozen=True)
class Comparison:
    """One row: a scheme, its plan at the common guarantee (None where it cannot be had), its noise."""

    scheme: Scheme
    plan: Plan | None
    reason: str = ""

    @property
    def noise_in_mean(self) -> float | None:
        """(D3), of the plan."""
        return None if self.plan is None else self.plan.noise_in_mean()

    @property
    def bytes_per_parameter(self) -> float | None:
        """Upload of one client and round."""
        return None if self.plan is None else self.plan.wire_bits / 8


def compare(chosen: Plan) -> tuple[Comparison, ...]:
    """Every scheme for the settings of `chosen`, each calibrated to the same true (ε, δ)."""
    return tuple(_rows(chosen))


def _rows(chosen: Plan) -> Iterator[Comparison]:
    for scheme in SCHEMES:
        if scheme.calibration == chosen.request.calibration and not chosen.understates:
            yield Comparison(scheme, chosen)
            continue
        try:
            candidate = solve(chosen.request.but(calibration=scheme.calibration))
        except ArgumentError as error:  # infeasible, or the paper's calibration on a sparse graph
            yield Comparison(scheme, None, str(error))
        else:
            yield Comparison(scheme, _at_true_epsilon(candidate))


def _at_true_epsilon(candidate: Plan) -> Plan:
    """The paper's γ with noise scaled so that ε is what was asked; any other plan as it is."""
    if not candidate.understates:
        return candidate
    sigma = solve(candidate.request.but(calibration="local")).sigma_effective
    scale = sigma / candidate.sigma_effective
    return Plan(candidate.request, Noise(candidate.gamma, candidate.sigma_individual * scale, sigma))
