"""Simulated trainings on a network (entry point "lightdp.channels"): sums of `lightdp`, rounds as a scheme has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightdp.schemes import scheme
from lightdp.training.channel import Channel, direct
from lightdp_lab.rehearsal import Rehearsal

if TYPE_CHECKING:
    import torch

    from lightdp.planning import Plan
    from lightdp.training.config import Config

__all__ = ["Rehearsed", "channel"]


class Rehearsed:
    """A `Channel` whose rounds a `Rehearsal` decides and times, and whose sums come from another channel.

    Args:
        rehearsal: who is in a round, how long it takes, where it fails.
        sums: the rest.
    """

    def __init__(self, rehearsal: Rehearsal, sums: Channel) -> None:
        self.rehearsal, self.sums = rehearsal, sums
        self.bytes_up, self.meet = rehearsal.sent, rehearsal.meet
        self.network: dict[str, Any] | None = rehearsal.about()
        self.needs_late, self.refusing, self.round, self.close = sums.needs_late, sums.refusing, sums.round, sums.close
        self.state, self.load = sums.state, sums.load


def channel(config: Config, plan: Plan | None, parameters: int, device: torch.device | str) -> Channel:
    """The channel of a run that names links or a scheme of the lab; arguments as in `lightdp.training.channel`.

    Schemes with the noise of SMPC + DP get the noise that they play, at the scale of the plan.
    """
    rehearsal = Rehearsal(config, parameters)
    if plan is None or plan.deployable or not scheme(config.scheme).played:
        return Rehearsed(rehearsal, direct(config, plan, parameters, device))
    square = plan.sigma_effective**2
    return Rehearsed(rehearsal, direct(config, plan, parameters, device, lambda used: rehearsal.noise(used) * square))
