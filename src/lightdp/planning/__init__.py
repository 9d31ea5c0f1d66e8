"""(D1)-(D4): from clients, colluders, stragglers, rounds and (ε, δ) to noise that is provably enough.

A `Request` (what is asked, checked once) and the `Noise` that is found for it make a `Plan`. There is one small class
for each calibration, and nothing outside this package asks for its name.

>>> from lightdp.planning import Request, solve
>>> asked = Request(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5)
>>> [round(solve(asked.but(calibration=name)).noise_in_mean(), 3) for name in ("central", "repair", "local")]
[0.145, 0.227, 6.478]
"""

from lightdp.planning._advice import Remedy, noise_advice, noise_ratio, remedies
from lightdp.planning._at_random import hidden_at_random, used_at_random, worst_at_random
from lightdp.planning._calibrate import GAMMA_MAX, on_grid
from lightdp.planning._calibrations import CALIBRATIONS, Calibration, Noise
from lightdp.planning._claims import Claim, paper_claims
from lightdp.planning._cohorts import Membership, memberships
from lightdp.planning._compare import HEADINGS, Comparison, compare
from lightdp.planning._failures import NEVER, Failures
from lightdp.planning._masks import Masks
from lightdp.planning._page import holds_for, page, sections
from lightdp.planning._per_client import PerClientPlan, plan_per_client
from lightdp.planning._plan import Plan, plan, solve
from lightdp.planning._request import FINEST_STEPS, CalibrationName, Late, MasksName, Request, Reserve, Unit
from lightdp.planning._wire import Wire

__all__ = [
    "CALIBRATIONS",
    "FINEST_STEPS",
    "GAMMA_MAX",
    "HEADINGS",
    "NEVER",
    "Calibration",
    "CalibrationName",
    "Claim",
    "Comparison",
    "Failures",
    "Late",
    "Masks",
    "MasksName",
    "Membership",
    "Noise",
    "PerClientPlan",
    "Plan",
    "Remedy",
    "Request",
    "Reserve",
    "Unit",
    "Wire",
    "compare",
    "hidden_at_random",
    "holds_for",
    "memberships",
    "noise_advice",
    "noise_ratio",
    "on_grid",
    "page",
    "paper_claims",
    "plan",
    "plan_per_client",
    "remedies",
    "sections",
    "solve",
    "used_at_random",
    "worst_at_random",
]
