"""Every scheme at the same true guarantee: what its noise, its messages and its weak points are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightdp.errors import ArgumentError
from lightdp.planning._calibrations import Noise
from lightdp.planning._plan import Plan, solve
from lightdp.planning._request import Request
from lightdp.schemes import BUILT_IN, Scheme


@dataclass(frozen=True)
class Comparison:
    """One row: a scheme, its plan at the common guarantee (None where it cannot be had), its noise."""

    scheme: Scheme
    plan: Plan | None
    reason: str = ""

    @property
    def title(self) -> str:
        """Of the scheme."""
        return self.scheme.title if self.scheme.planned is None else self.scheme.planned.title

    @property
    def breaks(self) -> str:
        """What the scheme does not survive."""
        return self.scheme.broken_by if self.scheme.planned is None else self.scheme.planned.breaks

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
    for scheme in BUILT_IN.values():
        if scheme.planned is None:
            continue
        if scheme.name == chosen.request.calibration and not chosen.understates:
            yield Comparison(scheme, chosen)
            continue
        try:
            candidate = solve(_asked(chosen.request, scheme.name))
        except ArgumentError as error:  # infeasible, or the paper's calibration on a sparse graph
            yield Comparison(scheme, None, str(error))
        else:
            yield Comparison(scheme, _at_true_epsilon(candidate))


def _asked(request: Request, calibration: str) -> Request:
    """The same of another scheme; on the complete graph, where it has no random ones."""
    if request.random and calibration not in {"exact", "repair"}:
        return request.but(calibration=calibration, degree=None, random=False)
    return request.but(calibration=calibration)


def _at_true_epsilon(candidate: Plan) -> Plan:
    """The paper's γ with noise scaled so that ε is what was asked; any other plan as it is."""
    if not candidate.understates:
        return candidate
    sigma = solve(candidate.request.but(calibration="local")).sigma_effective
    scale = sigma / candidate.sigma_effective
    return Plan(candidate.request, Noise(candidate.gamma, candidate.sigma_individual * scale, sigma))
