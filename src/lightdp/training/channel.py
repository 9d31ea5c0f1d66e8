"""From the clients' updates of a round to the noisy sum that the server gets.

`Channel` is all that the simulator knows about that. `Distribution` adds noise of exactly the distribution that the
protocol leaves, residuals and their later repair included, and skips masks and bytes. `Protocol` drives the real state
machines. A test compares the two. Packages add channels by an entry point in the group "lightdp.channels", a function
of the arguments of `channel`: it is asked where messages, failures and time of a round are simulated too.
"""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lightdp.errors import ArgumentError, BudgetError
from lightdp.protocol import Client, Server
from lightdp.repair import RETRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from lightdp.planning import Plan
    from lightdp.training.arrivals import Arrivals
    from lightdp.training.clients import Piece
    from lightdp.training.config import Config

_GROUP = "lightdp.channels"


@dataclass(frozen=True)
class Sum:
    """A round as the server sees it: the noisy sum (None if void), and variances of the noise that stays and goes."""

    total: torch.Tensor | None
    lasting: float
    residual: float


@dataclass(frozen=True)
class Met:
    """Who is in a round after all, and what the network made of it.

    Attributes:
        came: whose uploads are in the sum, and whose came too late.
        network: for the line of the round: "modelled_seconds" and the stage that "failed"; empty without a network.
    """

    came: Arrivals
    network: dict[str, Any] = field(default_factory=dict)


class Channel(typing.Protocol):
    """What lies between the clients' updates and the server's sum, round by round.

    A round calls `meet`, then `senders`, then `round`, each once; `undo` before it tells how to take it back.
    """

    @property
    def bytes_up(self) -> float:
        """Bytes that a client sends in a round."""

    def about(self) -> dict[str, Any] | None:
        """What a record says about the network; None without one."""

    def refusing(self) -> frozenset[int]:
        """Clients that will not answer the next round, whoever asks."""

    def meet(self, number: int, came: Arrivals) -> Met:
        """How the round ends for those who came, before anybody computes an update."""

    def senders(self, came: Arrivals) -> list[int]:
        """Whose updates the round needs."""

    def round(self, number: int, came: Arrivals, updates: Iterable[Piece]) -> Sum:
        """The noisy sum of the updates of `senders(came)`."""

    def close(self, number: int) -> torch.Tensor | None:
        """The sum of the closing round, where a plan has one."""

    def undo(self) -> Callable[[], None]:
        """What takes back all that changes from now on."""

    def state(self) -> list[Any]:
        """For a checkpoint."""

    def load(self, state: list[Any]) -> None:
        """Take up what `state` returned."""


def channel(config: Config, plan: Plan | None, parameters: int, device: torch.device | str) -> Channel:
    """The channel of a run: built in, or that of a package where the run asks for a network.

    Args:
        config: the run.
        plan: its noise; None for none.
        parameters: length of an update.
        device: where sums are made.

    Raises:
        ArgumentError: a network was asked for, and no installed package simulates one.
    """
    if not config.networked:
        return direct(config, plan, parameters, device)
    from importlib.metadata import entry_points  # noqa: PLC0415  takes a while

    found = [*entry_points(group=_GROUP)]
    if not found:
        raise ArgumentError(f"links need lightdp_lab, which is not installed here, got links={config.links!r}")
    return found[0].load()(config, plan, parameters, device)


def direct(
    config: Config,
    plan: Plan | None,
    parameters: int,
    device: torch.device | str,
    share: Callable[[int], float] | None = None,
) -> Distribution | Protocol:
    """The channel of a run without a network; `share` as in `Distribution`."""
    if config.fidelity == "protocol" and plan is not None:
        return Protocol(plan, parameters, config.seed, device)
    return Distribution(plan, parameters, config.seed, device, share)


class _Alone:
    """What a channel without a network answers."""

    def about(self) -> None:
        """No network."""

    def meet(self, number: int, came: Arrivals) -> Met:  # noqa: ARG002  as Channel
        """Nobody else is lost."""
        return Met(came)


@dataclass
class _Group:
    """Uncancelled pairwise noise of one round, as the sum over the clients that will take their parts out."""

    parts: dict[int, float]  # variance of each client's part
    tries: dict[int, int]  # uploads that may still carry it
    noise: torch.Tensor

    def split(self, leaving: list[int], draw: torch.Generator) -> torch.Tensor:
        """Take out the parts of `leaving`, drawn given their sum with the rest."""
        gone, whole = sum(self.parts[i] for i in leaving), sum(self.parts.values())
        for i in leaving:
            del self.parts[i], self.tries[i]
        if not self.parts:
            taken, self.noise = self.noise, torch.zeros_like(self.noise)
            return taken
        spread = (gone * (whole - gone) / whole) ** 0.5
        taken = self.noise * (gone / whole) + spread * _normal(len(self.noise), draw)
        self.noise = self.noise - taken
        return taken


class Distribution(_Alone):
    """Noise of the right distribution, from the seed: for experiments, protects nothing.

    Args:
        plan: the noise; None for none.
        parameters: length of an update.
        seed: of the noise.
        device: where it is made.
        share: for a compared scheme, the variance of its noise in the sum of so many clients, in units of σ_eff².
    """

    def __init__(
        self,
        plan: Plan | None,
        parameters: int,
        seed: int,
        device: torch.device | str = "cpu",
        share: Callable[[int], float] | None = None,
    ) -> None:
        self.plan, self.parameters, self.seed, self.device, self.share = plan, parameters, seed, device, share
        self.groups: list[_Group] = []
        self.bytes_up = _packed(plan, parameters)
        self.adjacent = None if plan is None or plan.graph.complete else plan.graph.adjacency()

    def refusing(self) -> frozenset[int]:
        """Clients that will not answer the next round by their own count: here nobody counts for itself."""
        return frozenset()

    def senders(self, came: Arrivals) -> list[int]:
        """Whose updates a round needs: what came too late is in no sum."""
        return sorted(came.used)

    def round(self, number: int, came: Arrivals, updates: Iterable[Piece]) -> Sum:
        """The noisy sum of the updates of `senders(came)`."""
        used = list(came.used)
        if not used:
            self._miss(number, came.late)
            return Sum(None, 0.0, 0.0)
        total = torch.zeros(self.parameters, device=self.device)
        for _, rows in updates:
            total.addmv_(rows.T, rows.new_ones(len(rows)))  # as fast as memory, unlike a sum over few rows
        if self.plan is None:
            return Sum(total, 0.0, 0.0)
        draw = self._generator(_mix(self.seed, number))
        lasting = self._lasting(len(used))
        total.add_(_normal(self.parameters, draw), alpha=lasting**0.5)
        if self.plan.repairs:
            total.sub_(self._repaired(used, draw))
            self._miss(number, came.late)
        parts = self._left_by_stragglers(used)
        residual = sum(parts.values())
        if residual > 0:
            noise = _normal(self.parameters, draw).mul_(residual**0.5)
            total.add_(noise)
            if self.plan.repairs:
                self.groups.append(_Group(parts, dict.fromkeys(parts, RETRIES + 1), noise))
        return _accounted(self.plan, total, lasting, residual)

    def close(self, number: int) -> torch.Tensor:
        """The sum of the closing round: everybody takes out what is left, with fresh individual noise (R4)."""
        draw = self._generator(_mix(self.seed, number))
        carriers = sorted({i for group in self.groups for i in group.parts})
        return self._lasting(len(carriers)) ** 0.5 * _normal(self.parameters, draw) - self._repaired(carriers, draw)

    def _lasting(self, used: int) -> float:
        """Variance of the individual noise of `used` uploads, their rounding to the wire included (W1)."""
        if self.plan is None:
            return 0.0
        if self.share is not None:
            return self.share(used) * self.plan.sigma_effective**2
        return self.plan.individual_in_sum(used)

    def _left_by_stragglers(self, used: list[int]) -> dict[int, float]:
        """Variance of the pairwise noise that each used client shares with stragglers."""
        if self.plan is None or self.plan.gamma == 0:
            return {}
        absent = np.ones(self.plan.clients, dtype=bool)
        absent[used] = False
        met = {i: int(absent.sum() if self.adjacent is None else (self.adjacent[i] & absent).sum()) for i in used}
        return {i: count * self.plan.sigma_pairwise**2 for i, count in met.items() if count > 0}

    def _repaired(self, used: list[int], draw: torch.Generator) -> torch.Tensor:
        out = torch.zeros(self.parameters, device=self.device)
        for group in self.groups:
            leaving = [i for i in used if i in group.parts]
            if leaving:
                out += group.split(leaving, draw)
        self.groups = [group for group in self.groups if group.parts]
        return out

    def _miss(self, number: int, late: tuple[int, ...]) -> None:
        """Repairs that rode in uploads which came too late; the last try leaves its part in the model."""
        draw = self._generator(_mix(self.seed, number) ^ 1)
        for group in self.groups:
            for i in late:
                if i in group.tries:
                    group.tries[i] -= 1
            given_up = [i for i, tries in group.tries.items() if tries == 0]
            if given_up:
                group.split(given_up, draw)
        self.groups = [group for group in self.groups if group.parts]

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def undo(self) -> Callable[[], None]:
        """What takes back all that changes from now on; noise itself never changes in place."""
        held = [dataclasses.replace(group, parts=dict(group.parts), tries=dict(group.tries)) for group in self.groups]
        return lambda: setattr(self, "groups", held)

    def state(self) -> list[dict[str, Any]]:
        """For a checkpoint."""
        return [dataclasses.asdict(group) for group in self.groups]

    def load(self, state: list[dict[str, Any]]) -> None:
        """What `state` returned."""
        self.groups = [_Group(**group) for group in state]


class Protocol(_Alone):
    """Real clients and a real server, in memory: real keys, masks and bytes; sums go to `device`."""

    def __init__(self, plan: Plan, parameters: int, seed: int, device: torch.device | str = "cpu") -> None:
        run = seed.to_bytes(16, "little")
        self.plan, self.device, self.bytes_up = plan, device, _packed(plan, parameters)
        self.server = Server(plan, length=parameters, run=run)
        digits = len(str(plan.clients))
        self.clients = [
            Client(plan, length=parameters, run=run, name=f"client-{i:0{digits}}", threads=None)
            for i in range(plan.clients)
        ]
        for client in self.clients:
            self.server.enrol(client.enrol())
        roster = self.server.roster()
        for client in self.clients:
            client.join(roster)

    def refusing(self) -> frozenset[int]:
        """Clients whose own odometers refuse the next round: they do not know which of their peers had sent (R8)."""
        start, refused = self.server.announce(since=0), set()
        for i, client in enumerate(self.clients):
            try:
                client.check(start)
            except BudgetError:
                refused.add(i)
        return frozenset(refused)

    def senders(self, came: Arrivals) -> list[int]:
        """Whose updates a round needs."""
        return sorted((*came.used, *came.late))

    def round(self, number: int, came: Arrivals, updates: Iterable[Piece]) -> Sum:  # noqa: ARG002  as Distribution
        """The noisy sum, from uploads of everybody who sent."""
        start = self.server.announce(since=0)
        late = []
        for clients, rows in updates:
            for i, row in zip(clients, rows.cpu().numpy(), strict=True):
                message = self.clients[i].upload(start, row)
                if i in came.used:
                    self.server.receive(message)
                else:
                    late.append(message)
        result = self.server.close()
        for message in late:
            self.server.receive(message)
        if result.total is None:
            return Sum(None, 0.0, 0.0)
        lasting, residual = (f(len(came.used)) for f in (self.plan.individual_in_sum, self.plan.residual_in_sum))
        return _accounted(self.plan, self._tensor(result.total), lasting, residual)

    def undo(self) -> Callable[[], None]:
        """As Distribution, but what real clients have sent cannot be taken back."""
        return lambda: None

    def state(self) -> list[Any]:
        """Nothing: real clients keep their noise to themselves."""
        return []

    def load(self, state: list[Any]) -> None:
        """Refused before by `Run`: real noise cannot be made again."""

    def close(self, number: int) -> torch.Tensor | None:  # noqa: ARG002  as Distribution
        """The sum of the closing round, to which everybody comes."""
        start = self.server.announce(since=0, closing=True)
        for client in self.clients:
            self.server.receive(client.upload(start, None))
        total = self.server.close().total
        return None if total is None else self._tensor(total)

    def _tensor(self, total: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(total).to(self.device, torch.float32)


def _packed(plan: Plan | None, parameters: int) -> int:
    """Bytes of an upload."""
    return -(-parameters * (32 if plan is None else plan.wire_bits) // 8)


def _accounted(plan: Plan, total: torch.Tensor, lasting: float, residual: float) -> Sum:
    """Without repair, what stragglers leave stays."""
    return Sum(total, lasting, residual) if plan.repairs else Sum(total, lasting + residual, 0.0)


def _mix(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, 77, number]).generate_state(1, np.uint64)[0] >> 1)  # noqa: TID251  simulated


def _normal(length: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randn(length, generator=draw, device=draw.device)  # noqa: TID251  simulated: it protects nothing
