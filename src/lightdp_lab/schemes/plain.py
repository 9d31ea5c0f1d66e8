"""Sums without secure aggregation: FedAvg, central DP, local DP. A round needs one client."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightdp import gaussian as exactly
from lightdp_lab.registry import printed_sigma
from lightdp_lab.schemes._net import Net, RoundFailedError
from lightdp_lab.schemes._scheme import Result, Scheme, Updates, noisy, step_of

_STEPS = 2048  # of noise, in its standard deviation


class Plain(Scheme, name="plain"):
    """FedAvg (McMahan et al. 2017): updates as they are. The server sees them all; nothing is protected."""

    def round(self, updates: Updates, net: Net) -> Result:
        """One upload of float32 values."""
        net.stage("upload")
        total, used = np.zeros(self.task.dimension), set()
        for i, arrived in net.collect(range(len(updates)), lambda i: self._leaving(updates[i]).tobytes()):
            with net.server():
                total += np.frombuffer(arrived, "<f4")
            used.add(i)
        if not used:
            raise RoundFailedError("upload", "nobody came")
        with net.server():
            return Result(self._released(total), frozenset(used))

    def noise(self, used: int) -> float:  # noqa: ARG002  as in `Scheme`
        """None."""
        return 0.0

    def _leaving(self, update: NDArray[np.float32]) -> NDArray[np.float32]:
        """What a client sends."""
        return update.astype("<f4")

    def _released(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the server makes of the sum."""
        return total

    def _noisy(self, values: NDArray[np.floating], sigma: float) -> NDArray[np.float64]:
        """Values with noise."""
        step = step_of(self.task, sigma, _STEPS)
        return noisy(values, step, _STEPS) * np.float64(step)


class Central(Plain, name="central"):
    """Central DP: the server sees all updates and adds the noise. A server that cannot be trusted breaks it."""

    def noise(self, used: int) -> float:  # noqa: ARG002
        """The server's."""
        return self.task.plan("central").sigma_effective ** 2

    def _released(self, total: NDArray[np.float64]) -> NDArray[np.float64]:
        return self._noisy(total, math.sqrt(self.noise(1)))


class Local(Plain, name="local"):
    """Local DP: each client adds all the noise that it needs, so that no one else must be trusted."""

    @property
    def sigma(self) -> float:
        """Of one client's noise."""
        return self.task.plan("local").sigma_individual

    def noise(self, used: int) -> float:
        """Everybody's."""
        return used * self.sigma**2

    def _leaving(self, update: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._noisy(update, self.sigma).astype("<f4")


class LocalPaper(Local, name="local-paper"):
    """The same with the paper's formula, whose true ε is larger than it claims.

    σ = sqrt(2 log(2/δ)) Δ/ε for one round, which is its σ_U* (D1) without pairwise noise, and for T rounds its
    footnote's rule: variances scaled by sqrt(T) (P3).
    """

    @property
    def sigma(self) -> float:
        """Of one client's noise."""
        task = self.task
        return printed_sigma(task.clip, epsilon=task.epsilon, delta=task.delta, rounds=task.rounds)

    def epsilon(self) -> float:
        """What this noise gives over all rounds, exactly (E5)."""
        return exactly.epsilon(math.sqrt(self.task.rounds) * self.task.clip / self.sigma, self.task.delta)
