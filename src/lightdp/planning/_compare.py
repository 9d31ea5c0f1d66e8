"""Every scheme at the same true guarantee: what its noise, its messages and its weak points are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lightdp.errors import ArgumentError
from lightdp.planning._calibrations import Noise
from lightdp.planning._plan import Plan, solve
from lightdp.planning._request import Request
from lightdp.schemes import BUILT_IN, Scheme

HEADINGS = ("scheme", "noise", "× central", "trips", "B/param", "what breaks it")
"""Of the columns of a table of all schemes, see `Comparison.cells`."""


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

    def cells(self, central: float | None) -> list[str]:
        """The row as texts under `HEADINGS`; a scheme that cannot be had says why in the last one.

        Args:
            central: noise in the mean of central DP at the same guarantee, the first row of `compare`.
        """
        if self.noise_in_mean is None or self.bytes_per_parameter is None or central is None:
            return [self.title, "impossible", "", "", "", self.reason]
        noise = f"{self.noise_in_mean:.4g}", f"{self.noise_in_mean / central:.3g}"
        return [self.title, *noise, str(self.scheme.trips), f"{self.bytes_per_parameter:.3g}", self.breaks]


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
