"""(D1)-(D4): from clients, colluders, stragglers, rounds and (ε, δ) to noise that is provably enough."""

from lightdp.planning._calibrate import GAMMA_MAX, on_grid
from lightdp.planning._claims import Claim, paper_claims
from lightdp.planning._compare import Comparison, compare
from lightdp.planning._make import plan
from lightdp.planning._per_client import PerClientPlan, plan_per_client
from lightdp.planning._plan import WIRE_STEPS, Calibration, Late, Plan, Reserve, Unit

__all__ = [
    "GAMMA_MAX",
    "WIRE_STEPS",
    "Calibration",
    "Claim",
    "Comparison",
    "Late",
    "PerClientPlan",
    "Plan",
    "Reserve",
    "Unit",
    "compare",
    "on_grid",
    "paper_claims",
    "plan",
    "plan_per_client",
]
