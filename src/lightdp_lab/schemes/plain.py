"""Sums without secure aggregation: FedAvg, central DP, local DP. A round needs one client."""

from __future__ import annotations

import math
import os

import numpy as np
from numpy.typing import NDArray

from lightdp import gaussian as exactly
from lightdp_lab.registry import printed_sigma
from lightdp_lab.schemes._net import Net, RoundFailedError
from lightdp_lab.schemes._scheme import Result, Scheme, Updates, gaussian


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
            total += self._added()
        return Result(total, frozenset(used))

    def noise(self, used: int) -> float:  # noqa: ARG002  as in `Scheme`
        """None."""
        return 0.0

    def _leaving(self, update: NDArray[np.float32]) -> NDArray[np.float32]:
        """What a client sends."""
        return update.astype("<f4")

    def _added(self) -> NDArray[np.float64] | float:
        """What the server adds."""
        return 0.0


class Central(Plain, name="central"):
    """Central DP: the server sees all updates and adds the noise. A server that cannot be trusted breaks it."""

    def noise(self, used: int) -> float:  # noqa: ARG002
        """The server's."""
        return self.task.plan("central").sigma_effective ** 2

    def _added(self) -> NDArray[np.float64]:
        return gaussian(self.task.dimension, math.sqrt(self.noise(1)), os.urandom(32))


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
        return (update + gaussian(len(update), self.sigma, os.urandom(32))).astype("<f4")


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
