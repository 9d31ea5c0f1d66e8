"""LightDP itself, by the state machines of `lightdp.protocol` that run in deployments.

Clients add pairwise noise that cancels in the sum and individual noise that stays, and upload once. A missing
client leaves its pairwise noise in the sum; a round fails only below the server's minimum of uploads.

Rounds with drawn masks are bound to the model (W4). The download of the model is left out of the comparison, for all
schemes alike, but hashing it is work that only these rounds need: so each client hashes a model of d values of four
bytes within its measured work.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from lightdp.planning import Plan, solve
from lightdp.protocol import Client, Server
from lightdp.wire import digest
from lightdp_lab.schemes._net import Net, RoundFailedError
from lightdp_lab.schemes._scheme import Result, Scheme, Task, Updates


class Exact(Scheme, name="exact"):
    """Exact calibration: pairwise noise cancels among all who upload; what stragglers leave stays in the sum."""

    calibration: ClassVar[Literal["exact", "repair", "paper"]] = "exact"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.plan = task.plan(self.calibration)

    @property
    def degree(self) -> int:
        """Peers of a client."""
        return self.plan.graph.degree

    def set_up(self, net: Net) -> None:
        """One key agreement for the whole training."""
        run, length, digits = os.urandom(16), self.task.dimension, len(str(self.task.clients))
        self.server = Server(self.plan, length=length, run=run)
        self.clients: dict[int, Client] = {}
        self._heard = [0] * self.task.clients  # the last round that each answered: it knows of those before

        def enrol(i: int) -> bytes:
            self.clients[i] = Client.new(self.plan, length=length, run=run, name=f"client-{i:0{digits}}")
            return self.clients[i].enrol()

        net.stage("enrol")
        for _, message in net.collect(range(self.task.clients), enrol):
            with net.server():
                self.server.enrol(message)
        net.stage("roster")
        with net.server():
            rosters = [self.server.roster(self.clients[i].name) for i in range(self.task.clients)]
        net.hand_out(rosters, lambda i, message: self.clients[i].join(message))

    def round(self, updates: Updates, net: Net) -> Result:
        """One announcement down, one masked upload up."""
        net.stage("upload")
        number = self.server.round
        with net.server():
            starts = {since: self.server.announce(since=since) for since in sorted(set(self._heard))}
        heard = net.send(self.clients, lambda i: starts[self._heard[i]])
        for i, arrived in net.collect(heard, lambda i: self._answered(i, heard[i], updates[i])):
            with net.server():
                self.server.receive(arrived)
            self._heard[i] = number
        with net.server():
            done = self.server.close()
        if done.total is None:
            raise RoundFailedError("upload", f"fewer than {self.server.minimum} uploads")
        return Result(done.total, frozenset(done.used))

    def _answered(self, client: int, heard: bytes, update: NDArray[np.float32]) -> bytes:
        """A client's upload, with all the work that this takes it."""
        begun = self.clients[client].begin(heard)
        if begun.binds:
            begun.bind(digest(self._model))
        return begun.upload(update)

    @cached_property
    def _model(self) -> NDArray[np.float32]:
        """What stands for the model: ones, since pages of zeros are all the same memory. (d,)"""
        return np.ones(self.task.dimension, np.float32)

    def noise(self, used: int) -> float:
        """Individual noise, and pairwise noise with absent clients, as a mean over which clients are absent."""
        return self.plan.individual_in_sum(used) + self.plan.residual_in_sum(used)


class ExactSparse(Exact, name="exact-sparse"):
    """The same with fewer peers: less work, more noise.

    k: the least even number that is at least half of the others and above C̄ + S̄, or all of them where there are no
    more. So the graph stays connected without any C̄ colluders and S̄ stragglers, each client keeps more than S̄ honest
    peers, and noise for the same ε, which is counted against any C̄ colluders (E4), grows by a small factor only.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        others = task.clients - 1
        degree = max(others // 2, task.colluders + task.stragglers + 1)
        if degree < others:  # else all are peers, as without a degree
            self.plan = solve(self.plan.request.but(degree=min(degree + degree % 2, others)))


class Repair(Exact, name="repair"):
    """Exact calibration with repair: the next round takes out the noise that stragglers left."""

    calibration = "repair"

    def lasting(self, used: int) -> float:
        """Everybody's own."""
        return self.plan.individual_in_sum(used)


class Paper(Exact, name="paper"):
    """The paper's own noise, whose true ε is larger than it claims."""

    calibration = "paper"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        # the true ε, or clients would stop at the one that it only claims
        self.plan = Plan(self.plan.request.but(epsilon=self.plan.epsilon()), self.plan.noise)

    def epsilon(self) -> float:
        """More than is claimed."""
        return self.plan.epsilon()
