"""What the lab adds to the registry of schemes (entry point "lightdp.schemes"): names and words, nothing to play.

Importing this module imports no scheme. The classes that play them are in `lightdp_lab.schemes`.

>>> from lightdp_lab import registry
>>> registry.ALL["secagg"].trips, registry.ALL["secagg"].talks
(4, True)
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from lightdp.schemes import BUILT_IN, Scheme

if TYPE_CHECKING:
    from lightdp.planning import Plan

__all__ = ["ALL", "SCHEMES", "printed_sigma"]


def printed_sigma(sensitivity: float, *, epsilon: float, delta: float, rounds: int) -> float:
    """The paper's σ for one client alone: sqrt(2 log(2/δ)) Δ/ε, variances scaled by sqrt(T) for T rounds (P3).

    It guarantees less than it claims: see `lightdp_lab.schemes.plain.LocalPaper` for its true ε.

    >>> round(printed_sigma(1.0, epsilon=3.0, delta=1e-5, rounds=1), 3)
    1.647

    Args:
        sensitivity: Δ, how far one unit moves an update.
        epsilon: the ε that it claims.
        delta: δ.
        rounds: T.
    """
    return math.sqrt(2 * math.log(2 / delta)) * sensitivity / epsilon * rounds**0.25


def _as_printed(plan: Plan) -> Plan:
    """A plan of local DP with the σ that the paper prints for it."""
    from lightdp.planning import Noise, Plan  # noqa: PLC0415  this module is light

    sigma = printed_sigma(plan.sensitivity, epsilon=plan.budget, delta=plan.delta, rounds=plan.rounds)
    return Plan(plan.request, Noise(0.0, sigma, sigma))


_SECURE: dict[str, Any] = {"family": "secure aggregation", "talks": True, "calibration": "smpc", "played": True}
"""Schemes whose server sees a sum alone, and whose clients add the noise of SMPC + DP."""
_ENCRYPTED = _SECURE | {"family": "encryption", "talks": False, "trips": 2}

SCHEMES = {
    one.name: one
    for one in (
        Scheme(
            name="plain", title="FedAvg, no privacy", label="FedAvg, no privacy", colour="#a8a29e", family="none",
            source="McMahan et al. 2017", broken_by="nothing; it protects nothing", trips=1, private=False, played=True,
        ),
        dataclasses.replace(
            BUILT_IN["local"], name="local-paper", title="local DP, the paper's σ", label="local DP, paper's σ",
            colour="#fb7185", source="the formula that the LightDP-FL paper prints",
            broken_by="nothing; but its σ misses ε (P1-P3)", understates=True, deployable=False, played=True,
            planned=None, adjust=_as_printed,
        ),
        dataclasses.replace(
            BUILT_IN["exact"], name="exact-sparse", title="LightDP, exact, sparse", label="LightDP exact, sparse",
            colour="#a78bfa", source="LightDP-FL with exact calibration on k peers (E4)", deployable=False, played=True,
            planned=None, calibration="smpc",  # of the accounting alone: its own noise comes from its class
        ),
        Scheme(
            name="pairwise", title="pairwise encryption", label="pairwise encryption", colour="#f59e0b",
            source="SMPAI, Mugunthan et al. 2019", broken_by="any client lost", trips=1, **_SECURE | {"talks": False},
        ),
        Scheme(
            name="secagg", title="SecAgg + DP", label="SecAgg + DP", colour="#0f766e", source="Bonawitz et al. 2017",
            broken_by="more than S̄ lost before the upload, or fewer than t left", trips=4, **_SECURE,
        ),
        Scheme(
            name="secagg+", title="SecAgg+ + DP", label="SecAgg+ + DP", colour="#10b981", source="Bell et al. 2020",
            broken_by="as SecAgg; an unlucky neighbourhood", trips=4, **_SECURE,
        ),
        Scheme(
            name="dordis", title="Dordis (SecAgg + XNoise)", label="Dordis", colour="#65a30d",
            source="Jiang et al. 2024", broken_by="as SecAgg", **_SECURE,
        ),
        Scheme(
            name="lightsecagg", title="LightSecAgg + DP", label="LightSecAgg + DP", colour="#0284c7",
            source="So et al. 2022", trips=3, **_SECURE,
            broken_by="fewer than N - S̄ uploads or U answers; many broken links between clients",
        ),
        Scheme(
            name="swiftagg+", title="SwiftAgg+ + DP", label="SwiftAgg+ + DP", colour="#22d3ee",
            source="Jahani-Nezhad et al. 2022", **_SECURE,
            broken_by="more than S̄ positions lost; many broken links between clients",
        ),
        Scheme(
            name="paillier", title="threshold Paillier + DP", label="Paillier + DP", colour="#db2777",
            source="Damgård and Jurik 2001; Truex et al. 2019", **_ENCRYPTED,
            broken_by="fewer than N - S̄ uploads or C̄ + 1 decryptions; an active server; its dealer",
        ),
        Scheme(
            name="ckks", title="CKKS + DP, one key: no colluder allowed", label="CKKS + DP", colour="#d946ef",
            source="Cheon et al. 2017, by TenSEAL", private=False, **_ENCRYPTED,
            broken_by="one client that helps the server; fewer than N - S̄ uploads; its dealer",
        ),
    )
}  # fmt: skip
"""The schemes that the lab adds, in the order of legends."""

ALL = {**BUILT_IN, **SCHEMES}
"""These and those of `lightdp`, also where the lab's entry points are not installed."""
