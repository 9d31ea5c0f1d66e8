"""From the clients' updates of a round to the noisy sum that the server gets.

`Channel` is all that the simulator knows about that. `Distribution` adds noise of exactly the distribution that the
protocol leaves, residuals and their later repair included, and skips masks and bytes. `Protocol` runs the real state
machines. A test compares the two. Packages add channels by an entry point in the group "lightdp.channels", a function
of the arguments of `channel`: it is asked where messages, failures and time of a round are simulated too.
"""

from __future__ import annotations

import torch

from lightdp.errors import ArgumentError
from lightdp.planning import Plan
from lightdp.training.channel._channel import Channel, Sum, Updates
from lightdp.training.channel._distribution import Distribution
from lightdp.training.channel._protocol import Protocol
from lightdp.training.config import Config

__all__ = ["Channel", "Distribution", "Protocol", "Sum", "Updates", "channel", "direct"]


def channel(
    config: Config, plan: Plan | None, parameters: int, device: torch.device | str, roster: int = 0
) -> Channel:
    """The channel of a roster of a run: built in, or that of a package where the run asks for a network.

    Args:
        config: the run.
        plan: its noise; None for none.
        parameters: length of an update.
        device: where sums are made.
        roster: its number; a run with a network has one alone.

    Raises:
        ArgumentError: a network was asked for, and no installed package simulates one.
    """
    if not config.networked:
        return direct(config, plan, parameters, device, roster)
    from importlib.metadata import entry_points  # noqa: PLC0415  takes a while

    found = [*entry_points(group="lightdp.channels")]
    if not found:
        raise ArgumentError(f"links need lightdp_lab, which is not installed here, got links={config.links!r}")
    return found[0].load()(config, plan, parameters, device)


def direct(
    config: Config, plan: Plan | None, parameters: int, device: torch.device | str, roster: int = 0
) -> Channel:
    """The channel of a run without a network; arguments as in `channel`."""
    if config.fidelity == "protocol" and plan is not None:
        return Protocol(plan, parameters, config.seed, device)
    return Distribution(plan, parameters, config.seed, device, roster)
