"""From the clients' updates of a round to the noisy sum that the server gets, in two fidelities.

`Distribution` adds noise of exactly the distribution that the protocol leaves, residuals and their later repair
included, and skips masks and bytes. `Protocol` drives the real state machines. A test compares the two.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lightdp.errors import BudgetError
from lightdp.planning import RETRIES
from lightdp.protocol import Client, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from lightdp.client_set import ClientSet
    from lightdp.planning import Plan
    from lightdp.training.arrivals import Arrivals
    from lightdp.training.clients import Piece


@dataclass(frozen=True)
class Sum:
    """A round as the server sees it: the noisy sum (None if void), and variances of the noise that stays and goes."""

    total: torch.Tensor | None
    lasting: float
    residual: float


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


class Distribution:
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
        self.adjacent = None if plan is None or plan.graph.complete else plan.graph.adjacency()

    def refusing(self) -> frozenset[int]:
        """Clients that will not answer the next round by their own count: here nobody counts for itself."""
        return frozenset()

    def senders(self, came: Arrivals) -> list[int]:
        """Whose updates a round needs: what came too late is in no sum."""
        return list(came.used)

    def round(self, number: int, came: Arrivals, updates: Iterable[Piece]) -> Sum:
        """The noisy sum of the updates of `senders(came)`."""
        used = came.used
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

    def _left_by_stragglers(self, used: ClientSet) -> dict[int, float]:
        """Variance of the pairwise noise that each used client shares with stragglers."""
        if self.plan is None or self.plan.gamma == 0:
            return {}
        absent = (~used).flags
        met = {i: int(absent.sum() if self.adjacent is None else (self.adjacent[i] & absent).sum()) for i in used}
        return {i: count * self.plan.sigma_pairwise**2 for i, count in met.items() if count > 0}

    def _repaired(self, used: Iterable[int], draw: torch.Generator) -> torch.Tensor:
        out = torch.zeros(self.parameters, device=self.device)
        for group in self.groups:
            leaving = [i for i in used if i in group.parts]
            if leaving:
                out += group.split(leaving, draw)
        self.groups = [group for group in self.groups if group.parts]
        return out

    def _miss(self, number: int, late: ClientSet) -> None:
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


class Protocol:
    """Real clients and a real server, in memory: real keys, masks and bytes; sums go to `device`."""

    def __init__(self, plan: Plan, parameters: int, seed: int, device: torch.device | str = "cpu") -> None:
        run = seed.to_bytes(16, "little")
        self.plan, self.device = plan, device
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
        return list(came.used | came.late)

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

    def close(self, number: int) -> torch.Tensor | None:  # noqa: ARG002  as Distribution
        """The sum of the closing round, to which everybody comes."""
        start = self.server.announce(since=0, closing=True)
        for client in self.clients:
            self.server.receive(client.upload(start, None))
        total = self.server.close().total
        return None if total is None else self._tensor(total)

    def _tensor(self, total: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(total).to(self.device, torch.float32)


def _accounted(plan: Plan, total: torch.Tensor, lasting: float, residual: float) -> Sum:
    """Without repair, what stragglers leave stays."""
    return Sum(total, lasting, residual) if plan.repairs else Sum(total, lasting + residual, 0.0)


def _mix(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, 77, number]).generate_state(1, np.uint64)[0] >> 1)  # noqa: TID251  simulated


def _normal(length: int, draw: torch.Generator) -> torch.Tensor:
    return torch.randn(length, generator=draw, device=draw.device)  # noqa: TID251  simulated: it protects nothing
