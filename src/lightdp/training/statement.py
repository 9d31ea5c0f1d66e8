"""What the log of a run states beside its numbers: where it was made, and what was guaranteed to whom.

The first line of a log has the versions and the commit, so that its numbers can be made again; the last line has the
statement, in sentences that stand alone.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from lightdp import gaussian
from lightdp.planning import Plan
from lightdp.runlog import Seen, guaranteed, not_private
from lightdp.schemes import scheme
from lightdp.training.config import Config

_ASSUMED = "The sensitivity of this profile, 2 η clip/|D_i|, is assumed: no theorem bounds it for this training."
_ROSTERS = (
    "Clients that collude are counted in each roster: noise is shared inside it alone. What a client spent in several "
    "rosters adds up."
)
_START = "It began with the weights of {}: what these reveal of anybody is not counted here."
_NOISE_ONLY = "This needs a secure aggregation protocol, of which only the noise was simulated here."
_PERSON = (
    "All of this is for one person: records of a person count as one, however many there are, and their gradients were "
    "added up before they were clipped."
)
SIMULATED = "This was a simulation: noise had the right distribution but came from a seed, and protects nobody."
"""What is said of every simulated run."""


def versions() -> dict[str, str]:
    """The versions of everything that decides the numbers of a run."""
    names = ("lightdp-fl", "torch", "numpy", "scipy")
    return {name: version(name) for name in names} | {"python": platform.python_version()}


def commit() -> str | None:
    """What LIGHTDP_COMMIT says, else the commit of the working tree; None if the working directory is in none."""
    if told := os.environ.get("LIGHTDP_COMMIT"):
        return told
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=5)  # noqa: S607  whichever git is there
        return done.stdout.strip()
    return None


def mu(plan: Plan | None, epsilon: float | None) -> float | None:
    """The μ to report for an ε that was spent at the plan's δ, rounded up; None where there is none.

    Args:
        plan: of the run.
        epsilon: what was spent.
    """
    return None if plan is None or epsilon is None else gaussian.mu(epsilon, plan.delta, up=True)


def statement(
    config: Config, plan: Plan | None, epsilon: float | None, seen: Sequence[Seen],
    bounds: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:  # fmt: skip
    """What was guaranteed to whom, in plain sentences.

    Guarantee: the ε and μ in it are rounded up, and whatever the guarantee rests on beyond the noise is named.

    >>> from lightdp.training.config import Config
    >>> statement(Config(scheme="none"), None, None, [])
    ['No noise was added: nothing is guaranteed to anybody.']

    Args:
        config: the run.
        plan: its noise; None for none.
        epsilon: what the client that spent most has spent.
        seen: who was used and who was late in each round.
        bounds: of columns, as the log has those that were found.
    """
    first = not_private(config.columns)
    if plan is None or epsilon is None:
        return [*first, "No noise was added: nothing is guaranteed to anybody.", *_of_bounds(config, bounds or {})]
    known, claim = scheme(config.scheme), f"ε = {plan.budget:g}"
    lines = guaranteed(plan, epsilon, seen, named=config.scheme, unit=config.unit)
    if known.understates:
        lines.append(f"The paper's formulas claim {claim} for this noise; no budget stopped the run.")
    elif config.unbounded:
        lines.append(f"The noise was made for {claim} in each round; no budget stopped the run.")
    if config.federated:
        lines.append(_ROSTERS)
    played = f"Failures and time are those of {known.title}, played on short vectors; broken by: {known.broken_by}."
    further = {
        _PERSON: config.unit == "person",
        _ASSUMED: config.unit == "paper",
        _NOISE_ONLY: known.noise_only,
        played: known.simulated,
        _START.format(config.start): config.start is not None,
        SIMULATED: config.fidelity == "distribution",
    }
    more = [sentence for sentence, applies in further.items() if applies]
    return first + lines + _of_bounds(config, bounds or {}) + more


def _of_bounds(config: Config, bounds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which bounds of columns were found, and which of them stood in the noise."""
    if not bounds:
        return []
    count = "round" if config.first_rounds == 1 else f"{config.first_rounds} rounds"
    listed = ", ".join(f"{name} [{each['low']:g}, {each['high']:g}]" for name, each in bounds.items())
    unclear = ", ".join(name for name, each in bounds.items() if not each["clear"])
    more = f"No values of {unclear} stood out of the noise: give public bounds, or use more rounds, records or ε."
    return [f"Bounds found in the first {count}, as private as all others: {listed}.", *([more] if unclear else [])]
