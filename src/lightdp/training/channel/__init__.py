"""From the clients' updates of a round to the noisy sum that the server gets.

`Channel` is all that the simulator knows about that. `Distribution` adds noise of exactly the distribution that the
protocol leaves, residuals and their later repair included, and skips masks and bytes. `Protocol` runs the real state
machines. A test compares the two. Packages add channels by an entry point in the group "lightdp.channels", a function
of the arguments of `channel`: it is asked where messages, failures and time of a round are simulated too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from lightdp.errors import ArgumentError
from lightdp.federation import Member
from lightdp.planning import Plan
from lightdp.training.channel._channel import Channel, Sum, Updates
from lightdp.training.channel._distribution import Distribution
from lightdp.training.channel._protocol import Protocol
from lightdp.training.config import Config

__all__ = ["Channel", "Distribution", "Protocol", "Sum", "Updates", "channel", "channels", "direct"]


def channels(
    config: Config, plan: Plan | None, parameters: int, device: torch.device | str, given: Callable[[], bytes]
) -> Callable[[int, Sequence[int], Plan | None], Channel]:
    """From a roster's number, its members and its plan to its channel.

    Args:
        config: the run.
        plan: its noise; None for none.
        parameters: length of an update.
        device: where sums are made.
        given: the hash of all that clients of the next round train from, to which real ones bind it (W4).

    Raises:
        ArgumentError: a network was asked for, and no installed package simulates one.
    """
    if not config.federated:
        return lambda number, members, own: channel(config, own, parameters, device, given)  # noqa: ARG005  of all clients
    if config.fidelity == "protocol" and plan is not None:
        run, digits = config.seed.to_bytes(16, "little"), len(str(config.members))
        people = [
            Member.new(plan, length=parameters, run=run, name=f"client-{i:0{digits}}", threads=None)
            for i in range(config.members)
        ]
        return lambda number, members, own: Protocol(
            own or plan, parameters, config.seed, device,
            given=given, clients=[people[i] for i in members], number=number,
        )  # fmt: skip
    return lambda number, members, own: Distribution(own, parameters, config.seed, device, number)  # noqa: ARG005


def channel(
    config: Config, plan: Plan | None, parameters: int, device: torch.device | str, given: Callable[[], bytes]
) -> Channel:
    """The channel of a run with one roster: built in, or that of a package where the run asks for a network.

    Args:
        config: the run.
        plan: its noise; None for none.
        parameters: length of an update.
        device: where sums are made.
        given: the hash of all that clients of the next round train from, to which real ones bind it (W4).

    Raises:
        ArgumentError: a network was asked for, and no installed package simulates one.
    """
    if not config.networked:
        return direct(config, plan, parameters, device, given)
    from importlib.metadata import entry_points  # noqa: PLC0415  takes a while

    found = [*entry_points(group="lightdp.channels")]
    if not found:
        raise ArgumentError(f"links need lightdp_lab, which is not installed here, got links={config.links!r}")
    return found[0].load()(config, plan, parameters, device, given)


def direct(
    config: Config, plan: Plan | None, parameters: int, device: torch.device | str, given: Callable[[], bytes]
) -> Channel:
    """The channel of a run without a network; arguments as in `channel`."""
    if config.fidelity == "protocol" and plan is not None:
        return Protocol(plan, parameters, config.seed, device, given=given)
    return Distribution(plan, parameters, config.seed, device)
