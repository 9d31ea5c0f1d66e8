"""What the lab adds to the registry of schemes (entry point "lightdp.schemes"): names and words, nothing to play.

Importing this module imports no scheme. The classes that play them are in `lightdp_lab.schemes`.

>>> from lightdp_lab import registry
>>> registry.ALL["secagg"].trips, registry.ALL["secagg"].talks
(4, True)
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from lightdp.planning import Noise, Plan
from lightdp.schemes import BUILT_IN, Scheme


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
    sigma = printed_sigma(plan.sensitivity, epsilon=plan.budget, delta=plan.delta, rounds=plan.turns)
    return Plan(plan.request, Noise(0.0, sigma, sigma))


def _secure(name: str, colour: str, title: str, source: str, broken_by: str, **more: Any) -> Scheme:  # noqa: ANN401
    """A scheme whose server sees a sum alone, and whose clients add the noise of SMPC + DP."""
    usual: dict[str, Any] = {"label": title, "family": "secure aggregation", "talks": True}
    usual |= {"calibration": "smpc", "simulated": True}
    return Scheme(name=name, colour=colour, title=title, source=source, broken_by=broken_by, **usual | more)


_ENCRYPTED: dict[str, Any] = {"family": "encryption", "talks": False, "trips": 2}

_ADDED = (
    Scheme(
        name="plain", title="FedAvg, no privacy", label="FedAvg, no privacy", colour="#b3b6aa", family="none",
        source="McMahan et al. 2017", broken_by="nothing; it protects nothing", trips=1, private=False, simulated=True,
    ),
    dataclasses.replace(
        BUILT_IN["local"], name="local-paper", title="local DP, the paper's σ", label="local DP, paper's σ",
        colour="#c86a85", source="the formula that the LightDP-FL paper prints",
        broken_by="nothing; but its σ misses ε (P1-P3)", understates=True, deployable=False, simulated=True,
        planned=None, adjust=_as_printed,
    ),
    dataclasses.replace(
        BUILT_IN["exact"], name="exact-sparse", title="LightDP, exact, sparse", label="LightDP exact, sparse",
        colour="#afa2da", source="LightDP-FL with exact calibration on k peers (E4)", deployable=False, simulated=True,
        planned=None, calibration="smpc",  # of the accounting alone: its own noise comes from its class
    ),
    _secure("pairwise", "#cf8d01", "pairwise encryption", "SMPAI, Mugunthan et al. 2019", "any client lost",
            trips=1, talks=False),
    _secure("secagg", "#23584e", "SecAgg + DP", "Bonawitz et al. 2017",
            "more than S̄ lost before the upload, or fewer than t left", trips=4),
    _secure("secagg+", "#518953", "SecAgg+ + DP", "Bell et al. 2020", "as SecAgg; an unlucky neighbourhood", trips=4),
    _secure("dordis", "#bdc069", "Dordis (SecAgg + XNoise)", "Jiang et al. 2024", "as SecAgg", label="Dordis"),
    _secure("lightsecagg", "#4c83a6", "LightSecAgg + DP", "So et al. 2022",
            "fewer than N - S̄ uploads or U answers; many broken links between clients", trips=3),
    _secure("swiftagg+", "#7cd4d8", "SwiftAgg+ + DP", "Jahani-Nezhad et al. 2022",
            "more than S̄ positions lost; many broken links between clients"),
    _secure("paillier", "#a31d7f", "threshold Paillier + DP", "Damgård and Jurik 2001; Truex et al. 2019",
            "fewer than N - S̄ uploads or C̄ + 1 decryptions; an active server; its dealer",
            label="Paillier + DP", **_ENCRYPTED),
    _secure("ckks", "#b94f8e", "CKKS + DP, one key: no colluder allowed", "Cheon et al. 2017, by TenSEAL",
            "one client that helps the server; fewer than N - S̄ uploads; its dealer",
            label="CKKS + DP", private=False, **_ENCRYPTED),
)  # fmt: skip
SCHEMES = {one.name: one for one in _ADDED}
"""The schemes that the lab adds, in the order of legends."""

ALL = {**BUILT_IN, **SCHEMES}
"""These and those of `lightdp`, also where the lab's entry points are not installed."""
