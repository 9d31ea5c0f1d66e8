"""(D1)-(D4): from clients, colluders, stragglers, rounds and (ε, δ) to noise that is provably enough."""

from lightdp.design._calibrate import GAMMA_MAX
from lightdp.design._plan import Calibration, Plan, Reserve, Unit, plan

__all__ = ["GAMMA_MAX", "Calibration", "Plan", "Reserve", "Unit", "plan"]
