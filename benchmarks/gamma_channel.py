"""The channel of the study of γ: noise that changes over the rounds (D7), and repairs that wait longer."""

from __future__ import annotations

import numpy as np
import torch

from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.training.arrivals import Arrivals
from lightdp.training.channel import Channel, Sum, Updates

SCHEDULES = ("constant", "rising", "falling", "rising-mild", "falling-mild", "ending")


def scales(schedule: str, rounds: int) -> list[float]:
    """s_t by round: the noise of round t has variance 1/s_t² times the plan's, and the round costs s_t² times as much.

    The mean of s_t² is 1, so that a training costs what the plan says. "rising" has s_t² ∝ √(T − t + 1), t = 1..T, and
    ends with more noise than it begins with (D7); "falling" is its mirror image, and "mild" ones are linear in s_t²,
    from about 4/3 to 2/3. "ending" has s_t² ∝ 1 − 0.95^(T − t + 1): more noise in the last rounds alone, which momentum
    and averages let count for less in the model.

    >>> [round(s, 3) for s in scales("rising", 3)]
    [1.119, 1.012, 0.851]
    """
    squares = np.ones(rounds)
    if schedule != "constant":
        left = np.arange(rounds, 0, -1.0)
        squares = left / rounds + 1.0 if schedule.endswith("mild") else np.sqrt(left)
        squares = 1 - 0.95**left if schedule == "ending" else squares
        squares = squares[::-1] if schedule.startswith("falling") else squares
    return np.sqrt(squares / squares.mean()).tolist()


class Scheduled(Channel):
    """`lightdp.training.channel.Distribution` on the complete graph, with a schedule and with repairs that may wait.

    Clients add σ_U/s_t and σ_K/s_t in round t, and a client that is used pays the oldest of its debts that is `delay`
    rounds old. Nobody is seen late. With s_t = 1 and delay 1 sums are those of `Distribution`, draw for draw.

    Args:
        plan: the noise where s_t = 1, with repair.
        parameters: length of an update.
        seed: of the noise.
        device: where it is made.
        schedule: one of `SCHEDULES`.
        delay: rounds after which a residual is repaired.

    Attributes:
        debts: by round, its residual as far as it is still in the model, who owes it, and the variance of each share.
    """

    def __init__(
        self, plan: Plan, parameters: int, seed: int, device: torch.device | str, *, schedule: str, delay: int
    ) -> None:
        super().__init__(plan, parameters)
        self.plan, self.shape, self.seed, self.device, self.delay = plan, (parameters,), seed, device, delay
        self.scales = scales(schedule, plan.rounds)
        self.debts: dict[int, tuple[torch.Tensor, frozenset[int], float]] = {}

    def round(self, number: int, came: Arrivals, updates: Updates) -> Sum:
        """The noisy sum of the updates of used clients."""
        used, share = frozenset(came.used), self.scales[number] ** -2
        if not used:
            return Sum()
        total = torch.zeros(self.shape, device=self.device)
        for _, rows in updates(tuple(came.used)):
            total.addmv_(rows.T, rows.new_ones(len(rows)))
        draw, lasting = self._generator(number), share * self.plan.individual_in_sum(len(used))
        total.add_(self._normal(draw), alpha=lasting**0.5)
        free = set(used)
        for past in [past for past in self.debts if past <= number - self.delay]:
            payers = free & self.debts[past][1]
            free -= payers  # an upload carries one repair
            total.sub_(self._paid(past, payers, draw))
        each = share * (self.plan.clients - len(used)) * self.plan.sigma_pairwise**2
        if each > 0:
            residual = self._normal(draw).mul_((len(used) * each) ** 0.5)
            total.add_(residual)
            self.debts[number] = (residual, used, each)
        return Sum(total, lasting, len(used) * each)

    def close(self, number: int, present: ClientSet | None = None) -> torch.Tensor:  # noqa: ARG002  everybody is
        """The sum of the closing rounds: everybody pays all, one debt an upload, each with fresh individual noise."""
        draw, uploads = self._generator(number), sum(len(owing) for _, owing, _ in self.debts.values())
        total = self._normal(draw).mul_(self.plan.individual_in_sum(uploads) ** 0.5 / self.scales[-1])
        for past in list(self.debts):
            total.sub_(self._paid(past, set(self.debts[past][1]), draw))
        return total

    def _paid(self, past: int, payers: set[int], draw: torch.Generator) -> torch.Tensor:
        """Take the shares of `payers` out of a residual, drawn given their sum with the shares of the others."""
        residual, owing, each = self.debts.pop(past)
        if payers == owing:
            return residual
        part = len(payers) / len(owing)
        paid = residual * part
        if payers:
            paid += (each * len(payers) * (1 - part)) ** 0.5 * self._normal(draw)
        self.debts[past] = (residual - paid, owing - payers, each)
        self.debts = dict(sorted(self.debts.items()))
        return paid

    def _generator(self, number: int) -> torch.Generator:
        mixed = np.random.SeedSequence([self.seed, 77, number])  # as `Distribution` does
        return torch.Generator(self.device).manual_seed(int(mixed.generate_state(1, np.uint64)[0] >> 1))

    def _normal(self, draw: torch.Generator) -> torch.Tensor:
        return torch.randn(self.shape, generator=draw, device=self.device)
