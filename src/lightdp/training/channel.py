"""From the clients' updates of a round to the noisy sum that the server gets.

`Channel` is all that the simulator knows about that. `Distribution` adds noise of exactly the distribution that the
protocol leaves, residuals and their later repair included, and skips masks and bytes. `Protocol` drives the real state
machines. A test compares the two. Packages add channels by an entry point in the group "lightdp.channels", a function
of the arguments of `channel`: it is asked where messages, failures and time of a round are simulated too.
"""

from __future__ import annotations

import typing
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lightdp.errors import ArgumentError, BudgetError
from lightdp.noise_graph import Graph
from lightdp.protocol import Client, Server
from lightdp.repair import Debt, Repairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from lightdp.planning import Plan
    from lightdp.protocol import ClientRound
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
        """Clients that refuse to answer the next round."""

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
        self.bytes_up = _packed(plan, parameters)
        self.repairs = Repairs(Graph(2, 1) if plan is None else plan.graph)
        self.noise: dict[int, torch.Tensor] = {}  # uncancelled pairwise noise, by round, that clients still owe

    def refusing(self) -> frozenset[int]:
        """Clients that will not answer the next round by their own count: here nobody counts for itself."""
        return frozenset()

    def senders(self, came: Arrivals) -> list[int]:
        """Whose updates a round needs: what came too late is in no sum."""
        return list(came.used)

    def round(self, number: int, came: Arrivals, updates: Iterable[Piece]) -> Sum:
        """The noisy sum of the updates of `senders(came)`."""
        total = torch.zeros(self.parameters, device=self.device)
        for _, rows in updates:
            total.addmv_(rows.T, rows.new_ones(len(rows)))  # as fast as memory, unlike a sum over few rows
        if self.plan is None:
            return Sum(total if came.used else None, 0.0, 0.0)
        draw = self._generator(_mix(self.seed, number))
        lasting = self._lasting(len(came.used))
        if came.used:
            total.add_(_normal(self.parameters, draw), alpha=lasting**0.5)
        if self.plan.repairs:
            total.sub_(self._settled(number, came, draw))
        if not came.used:
            return Sum(None, 0.0, 0.0)
        residual = sum(absent * self.plan.sigma_pairwise**2 for absent in self.repairs.absent(came.used).values())
        if residual > 0:
            noise = _normal(self.parameters, draw).mul_(residual**0.5)
            total.add_(noise)
            if self.plan.repairs:
                self.noise[number] = noise
        return _accounted(self.plan, total, lasting, residual)

    def close(self, number: int) -> torch.Tensor:
        """The sum of the closing round: everybody takes out what is left, with fresh individual noise (R4)."""
        draw = self._generator(_mix(self.seed, number))
        owed = self.repairs.owed if self.noise else {}
        return self._lasting(len(owed)) ** 0.5 * _normal(self.parameters, draw) - self._taken(owed, owed, draw)

    def _lasting(self, used: int) -> float:
        """Variance of the individual noise of `used` uploads, their rounding to the wire included (W1)."""
        if self.plan is None:
            return 0.0
        if self.share is not None:
            return self.share(used) * self.plan.sigma_effective**2
        return self.plan.individual_in_sum(used)

    def _settled(self, number: int, came: Arrivals, draw: torch.Generator) -> torch.Tensor:
        """What used uploads repair. A repair whose last try came too late stays in the model."""
        owed = self.repairs.owed
        settled = self.repairs.close(number, came.used, came.used | came.late)
        repaired = self._taken(owed, settled.paid, draw)
        left = {client: debt for client, debt in owed.items() if client not in settled.paid}
        self._taken(left, settled.given_up, self._generator(_mix(self.seed, number) ^ 1))
        return repaired

    def _taken(self, owed: Mapping[int, Debt], leaving: Mapping[int, Debt], draw: torch.Generator) -> torch.Tensor:
        """Take the parts of `leaving` out of each round's noise, drawn given their sum with the rest of `owed`."""
        out = torch.zeros(self.parameters, device=self.device)
        square = 0.0 if self.plan is None else self.plan.sigma_pairwise**2
        for number, noise in list(self.noise.items()):
            gone = sum(debt.absent * square for debt in leaving.values() if debt.round == number)
            whole = sum(debt.absent * square for debt in owed.values() if debt.round == number)
            if all(client in leaving for client, debt in owed.items() if debt.round == number):
                out += self.noise.pop(number)
            elif gone > 0:
                spread = (gone * (whole - gone) / whole) ** 0.5
                taken = noise * (gone / whole) + spread * _normal(self.parameters, draw)
                self.noise[number] = noise - taken
                out += taken
        return out

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def undo(self) -> Callable[[], None]:
        """What takes back all that changes from now on; noise itself never changes in place."""
        state = self.state()
        return lambda: self.load(state)

    def state(self) -> list[dict[str, Any]]:
        """For a checkpoint: the noise of each round that is not repaired yet, and who owes which part of it."""
        return [
            {
                "round": number,
                "noise": noise,
                "owed": {i: (debt.absent, debt.tries) for i, debt in self.repairs.owed.items() if debt.round == number},
            }
            for number, noise in self.noise.items()
        ]

    def load(self, state: list[dict[str, Any]]) -> None:
        """What `state` returned."""
        self.noise = {each["round"]: each["noise"] for each in state}
        self.repairs.owed = {i: Debt(each["round"], *debt) for each in state for i, debt in each["owed"].items()}


class Protocol(_Alone):
    """Real clients and a real server, in memory: real keys, masks and bytes; sums go to `device`."""

    def __init__(self, plan: Plan, parameters: int, seed: int, device: torch.device | str = "cpu") -> None:
        run = seed.to_bytes(16, "little")
        self.plan, self.device, self.bytes_up = plan, device, _packed(plan, parameters)
        self.server = Server(plan, length=parameters, run=run)
        self._begun: dict[int, ClientRound] = {}  # of the next round, by clients that do not refuse it
        digits = len(str(plan.clients))
        self.clients = [
            Client.new(plan, length=parameters, run=run, name=f"client-{i:0{digits}}", threads=None)
            for i in range(plan.clients)
        ]
        for client in self.clients:
            self.server.enrol(client.enrol())
        roster = self.server.roster()
        for client in self.clients:
            client.join(roster)

    def refusing(self) -> frozenset[int]:
        """Clients whose own odometers refuse the next round: they do not know which of their peers had sent (R8)."""
        start = self.server.announce(since=0)
        self._begun = {}
        for i, client in enumerate(self.clients):
            with suppress(BudgetError):
                self._begun[i] = client.begin(start)
        return frozenset(range(len(self.clients))) - self._begun.keys()

    def senders(self, came: Arrivals) -> list[int]:
        """Whose updates a round needs."""
        return list(came.used | came.late)

    def round(self, number: int, came: Arrivals, updates: Iterable[Piece]) -> Sum:  # noqa: ARG002  as Distribution
        """The noisy sum, from uploads of everybody who sent."""
        start = self.server.announce(since=0)
        late = []
        for clients, rows in updates:
            for i, row in zip(clients, rows.cpu().numpy(), strict=True):
                begun = self._begun.pop(i, None)
                message = (self.clients[i].begin(start) if begun is None else begun).upload(row)
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
            self.server.receive(client.begin(start).upload(None))
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
