"""Simulated trainings on a network (entry point "lightdp.channels"): sums of `lightdp`, rounds as a scheme has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightdp.schemes import scheme
from lightdp.training.channel import Channel, Distribution, direct
from lightdp_lab.rehearsal import Rehearsal

if TYPE_CHECKING:
    import torch

    from lightdp.planning import Plan
    from lightdp.training.config import Config

__all__ = ["channel"]


def channel(config: Config, plan: Plan | None, parameters: int, device: torch.device | str) -> Channel:
    """The channel of a run that names links or a scheme of the lab; arguments as in `lightdp.training.channel`.

    A `Rehearsal` decides who is in a round, how long it takes and where it fails; sums are those of a run without a
    network. Schemes with the noise of SMPC + DP get the noise that they play, at the scale of the plan.
    """
    rehearsal, found = Rehearsal(config, parameters), direct(config, plan, parameters, device)
    if plan is not None and not plan.deployable and scheme(config.scheme).played and isinstance(found, Distribution):
        square = plan.sigma_effective**2
        found.lasting = lambda used: rehearsal.noise(used) * square
    found.bytes_up, found.network, found.meet = rehearsal.sent, rehearsal.about(), rehearsal.meet
    return found
