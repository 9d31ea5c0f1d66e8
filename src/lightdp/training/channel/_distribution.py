"""Noise of the right distribution, without masks and bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.repair import Debt, Debtors
from lightdp.training.arrivals import Arrivals
from lightdp.training.channel._channel import Channel, Schedule, Sum, Updates


class Distribution(Channel):
    """Noise of the right distribution, from the seed: for experiments, protects nothing.

    Args:
        plan: the noise; None for none.
        parameters: length of an update.
        seed: of the noise.
        device: where it is made.
        roster: its number; each draws other noise.

    Attributes:
        lasting: the variance of the noise that stays, in the sum of so many clients: that of the plan's individual
            noise, its rounding to the wire included (W1), unless a package sets that of a compared scheme.
        schedule: who repairs what when; None without noise.
        noise: uncancelled pairwise noise that clients still owe, by round, with the number of wires of each client.
        held: what the next sum will have of the last round, under grace (R5).
    """

    def __init__(
        self, plan: Plan | None, parameters: int, seed: int, device: torch.device | str = "cpu", roster: int = 0
    ) -> None:
        super().__init__(plan, parameters)
        self.plan, self.parameters, self.seed, self.device, self.roster = plan, parameters, seed, device, roster
        self.lasting: Callable[[int], float] = (lambda _: 0.0) if plan is None else plan.individual_in_sum
        self.schedule = None if plan is None else Schedule(plan)
        self.noise: dict[int, tuple[torch.Tensor, NDArray[np.int64]]] = {}
        self.held = Sum()

    def round(self, number: int, came: Arrivals, updates: Updates) -> Sum:
        """The noisy sum of the updates of used clients, and of what the round before left for it."""
        before, plan, schedule = self.held, self.plan, self.schedule
        if plan is None or schedule is None:
            plain, self.held = (Sum(self._summed(clients, updates)) for clients in (came.used, came.next))
            return plain.plus(before)
        draw, riding = self._generator(number), schedule.ride(number, came.sent)
        now, later = (self._noisy(clients, updates, riding, draw) for clients in (came.used, came.next))
        settled = schedule.end(number, came.final)
        self._taken(settled.given_up, self._generator(number, 1))  # this stays in the model
        left = schedule.left(came)
        used, joins, between = (self._normal(draw).mul_(each**0.5) if each > 0 else None for each in left)
        _add(now, used, between)
        _add(later, joins)
        if later is not None and between is not None:
            later.sub_(between)
        kept = [noise for noise in (used, joins) if noise is not None]
        if kept and plan.repairs:
            self.noise[number] = sum(kept[1:], kept[0]), schedule.repairs.absent(came.final)
        self.held = Sum() if later is None else Sum.of(plan, later, self.lasting(len(came.next)), left.next)
        if now is None:
            return before
        return Sum.of(plan, now, self.lasting(len(came.used)), left.used, left.between).plus(before)

    def _summed(self, clients: ClientSet, updates: Updates) -> torch.Tensor | None:
        """The sum of the updates of these clients; None of nobody."""
        if not clients:
            return None
        total = torch.zeros(self.parameters, device=self.device)
        for _, rows in updates(tuple(clients)):
            total.addmv_(rows.T, rows.new_ones(len(rows)))  # as fast as memory, unlike a sum over few rows
        return total

    def _noisy(
        self, clients: ClientSet, updates: Updates, riding: Debtors, draw: torch.Generator
    ) -> torch.Tensor | None:
        """The sum of the uploads of these clients: with individual noise and repairs, without new pairwise noise."""
        total = self._summed(clients, updates)
        if total is not None:
            total.add_(self._normal(draw), alpha=self.lasting(len(clients)) ** 0.5)
            total.sub_(self._taken({debt: who & clients for debt, who in riding.items()}, draw))
        return total

    def close(self, number: int, present: ClientSet | None = None) -> torch.Tensor | None:
        """What the last round left for the next sum, and the sums of the closing rounds (R4).

        Whoever owes a repair takes it out, with fresh individual noise.
        """
        total, self.held = self.held.total, Sum()
        if self.plan is None or self.schedule is None or not self.plan.repairs:
            return total
        for closing, riding in enumerate(self.schedule.closing(number, present), number):
            if riding:
                draw = self._generator(closing)
                coming = sum(map(len, riding.values()))
                mended = self.lasting(coming) ** 0.5 * self._normal(draw) - self._taken(riding, draw)
                total = mended if total is None else total + mended
        return total

    def _taken(self, leaving: Debtors, draw: torch.Generator) -> torch.Tensor:
        """Take the parts of `leaving` out of each round's noise, drawn given their sum with the rest."""
        out = torch.zeros(self.parameters, device=self.device)
        for number, (noise, wires) in list(self.noise.items()):
            rest = wires.copy()
            for debt, clients in leaving.items():
                if debt.round == number:
                    rest[clients.flags] = 0
            whole, stays = int(wires.sum()), int(rest.sum())
            if stays == 0:
                out += self.noise.pop(number)[0]
            elif stays < whole:
                pairwise = 0.0 if self.plan is None else self.plan.sigma_pairwise**2
                spread = (pairwise * (whole - stays) * stays / whole) ** 0.5
                taken = noise * ((whole - stays) / whole) + spread * self._normal(draw)
                self.noise[number] = noise - taken, rest  # a new tensor: `state` may hold the old one
                out += taken
        return out

    def _generator(self, number: int, purpose: int = 0) -> torch.Generator:
        entropy = [self.seed, 77, number, self.roster][: 3 + (self.roster > 0)]
        mixed = np.random.SeedSequence(entropy)  # noqa: TID251  simulated: it protects nothing
        return torch.Generator(self.device).manual_seed(int(mixed.generate_state(1, np.uint64)[0] >> 1) ^ purpose)

    def _normal(self, draw: torch.Generator) -> torch.Tensor:
        return torch.randn(self.parameters, generator=draw, device=self.device)  # noqa: TID251  likewise

    def state(self) -> dict[str, Any]:
        """For a checkpoint: noise that is not repaired yet, who owes it, and what waits for the next round."""
        held = {"held": (self.held.total, self.held.lasting, self.held.residual)}
        if self.schedule is None:
            return held
        waits, repairs = self.schedule.waits, self.schedule.repairs
        return held | {
            "noise": {number: (noise, torch.from_numpy(wires)) for number, (noise, wires) in self.noise.items()},
            "waits": None if waits is None else waits.to_bytes(),
            "waiting": _packed(repairs.waiting),
            "flying": {number: _packed(riding) for number, riding in repairs.flying.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.held = Sum(*state["held"])
        if self.plan is None or self.schedule is None:
            return
        clients, waits, repairs = self.plan.clients, state["waits"], self.schedule.repairs
        self.noise = {number: (noise, wires.cpu().numpy()) for number, (noise, wires) in state["noise"].items()}
        self.schedule.waits = None if waits is None else ClientSet.from_bytes(waits, clients)
        repairs.waiting = _unpacked(state["waiting"], clients)
        repairs.flying = {number: _unpacked(riding, clients) for number, riding in state["flying"].items()}


def _packed(debtors: Debtors) -> list[tuple[int, int, bytes]]:
    return [(*debt, clients.to_bytes()) for debt, clients in debtors.items()]


def _unpacked(packed: list[tuple[int, int, bytes]], clients: int) -> dict[Debt, ClientSet]:
    return {Debt(number, tries): ClientSet.from_bytes(found, clients) for number, tries, found in packed}


def _add(total: torch.Tensor | None, *noises: torch.Tensor | None) -> None:
    """Add noises to a sum, where there is one."""
    for noise in noises:
        if total is not None and noise is not None:
            total.add_(noise)
