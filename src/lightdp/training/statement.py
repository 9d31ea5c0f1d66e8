"""What the log of a run states beside its numbers: where it was made, and what was guaranteed to whom."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING

from lightdp._validate import rounded_up
from lightdp.schemes import scheme

if TYPE_CHECKING:
    from lightdp.planning import Plan
    from lightdp.training.config import Config


def versions() -> dict[str, str]:
    """Of everything that decides the numbers."""
    names = ("lightdp-fl", "torch", "numpy", "scipy", "dp-accounting")
    return {name: version(name) for name in names} | {"python": platform.python_version()}


def commit() -> str | None:
    """The commit of the working tree, if this is one."""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=5)  # noqa: S607  whichever git is there
        return done.stdout.strip()
    return None


def statement(config: Config, plan: Plan | None, epsilon: float | None) -> list[str]:
    """What was guaranteed to whom, in plain sentences."""
    if plan is None or epsilon is None:
        return ["No noise was added: nothing is guaranteed to anybody."]
    what = "any one record of a client" if config.unit == "record" else "everything that one client holds"
    known = scheme(config.scheme)
    whom = known.against(plan.colluders)
    degree = f"ε = {rounded_up(epsilon)} at δ = {plan.delta:g} ({plan.adjacency})"
    lines = [f"Whether {what} was in the training cannot be told by {whom}, up to {degree}, over the whole training."]
    if known.understates:
        lines.append(f"The paper's formulas claim ε = {plan.budget:g} for this noise; no budget stopped the run.")
    elif config.unbounded:
        lines.append(f"The noise was made for ε = {plan.budget:g} in each round; no budget stopped the run.")
    if config.unit == "paper":
        lines.append(
            "The sensitivity of this profile, 2 η clip/|D_i|, is assumed: no theorem bounds it for this training."
        )
    if known.noise_only:
        lines.append("This needs a secure aggregation protocol, of which only the noise was simulated here.")
    if known.played:
        lines.append(
            f"Failures and time are those of {known.title}, played on short vectors; broken by: {known.broken_by}."
        )
    if config.fidelity == "distribution":
        lines.append(
            "This was a simulation: noise had the right distribution but came from a seed, and protects nobody."
        )
    return lines
