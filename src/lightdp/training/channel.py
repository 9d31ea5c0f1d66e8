"""From the clients' updates of a round to the noisy sum that the server gets.

`Channel` is all that the simulator knows about that. `Distribution` adds noise of exactly the distribution that the
protocol leaves, residuals and their later repair included, and skips masks and bytes. `Protocol` runs the real state
machines. A test compares the two. Packages add channels by an entry point in the group "lightdp.channels", a function
of the arguments of `channel`: it is asked where messages, failures and time of a round are simulated too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, BudgetError, ProtocolError
from lightdp.noise_graph import Graph
from lightdp.planning import Plan
from lightdp.protocol import Client, ClientRound, Server
from lightdp.repair import Debt, Repairs
from lightdp.training.arrivals import Arrivals
from lightdp.training.clients import Piece
from lightdp.training.config import Config


@dataclass(frozen=True)
class Sum:
    """A round as the server sees it.

    Attributes:
        total: the noisy sum of the used updates; None in a void round. (parameters,)
        lasting: variance of the noise in a coordinate of it that stays in the model.
        residual: variance of the noise that later rounds repair.
    """

    total: torch.Tensor | None
    lasting: float
    residual: float


class Channel(ABC):
    """What lies between the clients' updates and the server's sum, round by round.

    A round calls `away` (unless no budget bounds the training), `meet` and `round`, each once and in this order.
    A package that simulates a network sets `bytes_up`, `network` and `meet` of a channel that `direct` makes.

    Args:
        plan: the noise; None for none.
        parameters: length of an update.

    Attributes:
        bytes_up: bytes that a client sends in a round.
        network: what the log says about the simulated network; None without one.
        meet: from the number of a round, from 0, and who came to it, to who is in it after what the network loses. It
            is called before anybody computes an update. Without a network nobody is lost.
        needs_late: whether `round` needs the updates of late clients too, which are in no sum.
    """

    needs_late = False

    def __init__(self, plan: Plan | None, parameters: int) -> None:
        self.bytes_up: float = -(-parameters * (32 if plan is None else plan.wire_bits) // 8)
        self.network: dict[str, Any] | None = None
        self.meet: Callable[[int, Arrivals], Arrivals] = lambda _, came: came

    def away(self, exhausted: ClientSet) -> ClientSet:
        """Clients that stay away from the next round: the exhausted ones, and those that refuse it by their own count.

        Args:
            exhausted: clients that the next round could take over their budgets, by the count of the simulator.
        """
        return exhausted

    @abstractmethod
    def round(self, number: int, came: Arrivals, updates: Iterable[Piece]) -> Sum:
        """The noisy sum of a round.

        Args:
            number: of the round, from 0.
            came: what `meet` returned.
            updates: of all used clients, and of late ones if `needs_late`.
        """

    @abstractmethod
    def close(self, number: int) -> torch.Tensor | None:
        """The sum of the closing round (R4), which has number `number`, where a plan repairs."""

    def state(self) -> list[Any]:
        """What a checkpoint needs of the channel now. Later rounds do not change the value."""
        return []

    def load(self, state: list[Any]) -> None:  # noqa: B027  nothing to load by default
        """Go on from what `state` returned."""


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

    found = [*entry_points(group="lightdp.channels")]
    if not found:
        raise ArgumentError(f"links need lightdp_lab, which is not installed here, got links={config.links!r}")
    return found[0].load()(config, plan, parameters, device)


def direct(config: Config, plan: Plan | None, parameters: int, device: torch.device | str) -> Channel:
    """The channel of a run without a network; arguments as in `channel`."""
    if config.fidelity == "protocol" and plan is not None:
        return Protocol(plan, parameters, config.seed, device)
    return Distribution(plan, parameters, config.seed, device)


class Distribution(Channel):
    """Noise of the right distribution, from the seed: for experiments, protects nothing.

    Args:
        plan: the noise; None for none.
        parameters: length of an update.
        seed: of the noise.
        device: where it is made.

    Attributes:
        lasting: the variance of the noise that stays, in the sum of so many clients: that of the plan's individual
            noise, its rounding to the wire included (W1), unless a package sets that of a compared scheme.
        pairwise: variance of the noise that two clients share.
        repairs: who owes which repair.
        noise: uncancelled pairwise noise that clients still owe, by round.
    """

    def __init__(self, plan: Plan | None, parameters: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(plan, parameters)
        self.plan, self.parameters, self.seed, self.device = plan, parameters, seed, device
        self.lasting: Callable[[int], float] = (lambda _: 0.0) if plan is None else plan.individual_in_sum
        self.pairwise = 0.0 if plan is None else plan.sigma_pairwise**2
        self.repairs = Repairs(Graph(2, 1) if plan is None else plan.graph)
        self.noise: dict[int, torch.Tensor] = {}

    def round(self, number: int, came: Arrivals, updates: Iterable[Piece]) -> Sum:
        """The noisy sum of the updates of used clients."""
        total, used = torch.zeros(self.parameters, device=self.device), len(came.used)
        for _, rows in updates:
            total.addmv_(rows.T, rows.new_ones(len(rows)))  # as fast as memory, unlike a sum over few rows
        if self.plan is None:
            return Sum(total if used > 0 else None, 0.0, 0.0)
        draw, lasting = self._generator(number), self.lasting(used)
        if used > 0:
            total.add_(self._normal(draw), alpha=lasting**0.5)
        if self.plan.repairs:
            owed = self.repairs.owed
            settled = self.repairs.close(number, came.used, came.used | came.late)
            total.sub_(self._taken(owed, settled.paid, draw))
            left = {client: debt for client, debt in owed.items() if client not in settled.paid}
            self._taken(left, settled.given_up, self._generator(number, 1))  # this stays in the model
        residual = sum(absent * self.pairwise for absent in self.repairs.absent(came.used).values())
        if residual > 0:
            noise = self._normal(draw).mul_(residual**0.5)
            total.add_(noise)
            if self.plan.repairs:
                self.noise[number] = noise
        return _accounted(self.plan, total if used > 0 else None, lasting, residual)

    def close(self, number: int) -> torch.Tensor:
        """The sum of the closing round: everybody takes out what is left, with fresh individual noise (R4)."""
        draw = self._generator(number)
        owed = self.repairs.owed if self.noise else {}
        return self.lasting(len(owed)) ** 0.5 * self._normal(draw) - self._taken(owed, owed, draw)

    def _taken(self, owed: Mapping[int, Debt], leaving: Mapping[int, Debt], draw: torch.Generator) -> torch.Tensor:
        """Take the parts of `leaving` out of each round's noise, drawn given their sum with the rest of `owed`."""
        out = torch.zeros(self.parameters, device=self.device)
        for number, noise in list(self.noise.items()):
            gone = sum(debt.absent * self.pairwise for debt in leaving.values() if debt.round == number)
            whole = sum(debt.absent * self.pairwise for debt in owed.values() if debt.round == number)
            if all(client in leaving for client, debt in owed.items() if debt.round == number):
                out += self.noise.pop(number)
            elif gone > 0:
                spread = (gone * (whole - gone) / whole) ** 0.5
                taken = noise * (gone / whole) + spread * self._normal(draw)
                self.noise[number] = noise - taken  # a new tensor: `state` may hold the old one
                out += taken
        return out

    def _generator(self, number: int, purpose: int = 0) -> torch.Generator:
        mixed = np.random.SeedSequence([self.seed, 77, number])  # noqa: TID251  simulated: it protects nothing
        return torch.Generator(self.device).manual_seed(int(mixed.generate_state(1, np.uint64)[0] >> 1) ^ purpose)

    def _normal(self, draw: torch.Generator) -> torch.Tensor:
        return torch.randn(self.parameters, generator=draw, device=self.device)  # noqa: TID251  likewise

    def state(self) -> list[dict[str, Any]]:
        """For a checkpoint: the noise of each round that is not repaired yet, and who owes which part of it."""
        debts = self.repairs.owed.items()
        return [
            {"round": t, "noise": noise, "owed": {i: (debt.absent, debt.tries) for i, debt in debts if debt.round == t}}
            for t, noise in self.noise.items()
        ]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Go on from what `state` returned."""
        self.noise = {each["round"]: each["noise"] for each in state}
        self.repairs.owed = {i: Debt(each["round"], *debt) for each in state for i, debt in each["owed"].items()}


class Protocol(Channel):
    """Real clients and a real server, in memory: real keys, masks and bytes.

    Its state is not in checkpoints, since real noise cannot be made again.

    Args:
        plan: the noise.
        parameters: length of an update.
        seed: names the run; keys and noise come from the machine's entropy.
        device: where sums go.
    """

    needs_late = True

    def __init__(self, plan: Plan, parameters: int, seed: int, device: torch.device | str = "cpu") -> None:
        super().__init__(plan, parameters)
        self.plan, self.device = plan, device
        run, digits = seed.to_bytes(16, "little"), len(str(plan.clients))
        self.server = Server(plan, length=parameters, run=run)
        self._begun: dict[int, ClientRound] = {}  # of the next round, by clients that do not refuse it
        self.clients = [
            Client.new(plan, length=parameters, run=run, name=f"client-{i:0{digits}}", threads=None)
            for i in range(plan.clients)
        ]
        for client in self.clients:
            self.server.enrol(client.enrol())
        roster = self.server.roster()
        for client in self.clients:
            client.join(roster)

    def away(self, exhausted: ClientSet) -> ClientSet:
        """With clients whose own odometers refuse: they do not know which of their peers had sent (R8)."""
        start, self._begun = self.server.announce(since=0), {}
        for i, client in enumerate(self.clients):
            with suppress(BudgetError):
                self._begun[i] = client.begin(start)
        return exhausted | ClientSet.of(len(self.clients), set(range(len(self.clients))) - self._begun.keys())

    def round(self, number: int, came: Arrivals, updates: Iterable[Piece]) -> Sum:  # noqa: ARG002  as Channel
        """The noisy sum, from uploads of everybody who sent."""
        start, late = self.server.announce(since=0), []
        for clients, rows in updates:
            for i, row in zip(clients, rows.cpu().numpy(), strict=True):
                message = (self._begun.pop(i, None) or self.clients[i].begin(start)).upload(row)
                if i in came.used:
                    self.server.receive(message)
                else:
                    late.append(message)
        total, used, plan = self._closed(), len(came.used), self.plan
        for message in late:
            self.server.receive(message)
        return _accounted(plan, total, plan.individual_in_sum(used), plan.residual_in_sum(used))

    def close(self, number: int) -> torch.Tensor | None:  # noqa: ARG002  as Channel
        """The sum of the closing round, to which everybody comes."""
        with suppress(ProtocolError):
            self.server.close()  # void: a round that was announced before its clients refused it
        start = self.server.announce(since=0, closing=True)
        for client in self.clients:
            self.server.receive(client.begin(start).upload(None))
        return self._closed()

    def _closed(self) -> torch.Tensor | None:
        total = self.server.close().total
        return None if total is None else torch.from_numpy(total).to(self.device, torch.float32)


def _accounted(plan: Plan, total: torch.Tensor | None, lasting: float, residual: float) -> Sum:
    """A void round has no noise; without repair, what stragglers leave stays."""
    if total is None:
        return Sum(None, 0.0, 0.0)
    return Sum(total, lasting, residual) if plan.repairs else Sum(total, lasting + residual, 0.0)
