"""LightDP itself, by the same state machines that run in deployments."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, ClassVar, Literal

from lightdp.planning import plan
from lightdp.protocol import Client, Server
from lightdp_lab.schemes._net import RoundFailedError
from lightdp_lab.schemes._scheme import Result, Scheme, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lightdp_lab.schemes._net import Net


class Exact(Scheme):
    """Pairwise noise that cancels, one upload; what stragglers leave stays."""

    name, title, source = "exact", "LightDP, exact", "LightDP-FL with exact calibration (D2)"
    broken_by = "fewer than N - S̄ uploads; stragglers leave noise"
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
        self.clients = []
        net.stage("enrol")
        for i in range(self.task.clients):
            with net.client(i):
                client = Client.new(self.plan, length=length, run=run, name=f"client-{i:0{digits}}")
                message = net.up(i, client.enrol())
            self.clients.append(client)
            if message is not None:
                with net.server():
                    self.server.enrol(message)
        net.stage("roster")
        with net.server():
            roster = self.server.roster()
        for i, client in enumerate(self.clients):
            message = net.down(i, roster)
            if message is None:
                raise RoundFailedError("roster", f"client {i} did not get it")
            with net.client(i):
                client.join(message)

    def round(self, updates: Sequence[NDArray[np.float32]], net: Net) -> Result:
        """One announcement down, one masked upload up."""
        net.stage("upload")
        with net.server():
            start = self.server.announce(since=0)
        for i, update in enumerate(updates):
            message = net.down(i, start)
            if message is None:
                continue
            with net.client(i):
                upload = self.clients[i].begin(message).upload(update)
            arrived = net.up(i, upload)
            if arrived is not None:
                with net.server():
                    self.server.receive(arrived)
        with net.server():
            done = self.server.close()
        if done.total is None:
            raise RoundFailedError("upload", f"fewer than {self.server.minimum} uploads")
        return Result(done.total, frozenset(done.used))

    def noise(self, used: int) -> float:
        """Everybody's own, and what is shared with those who are absent; whoever they are, on average."""
        return self.plan.individual_in_sum(used) + self.plan.residual_in_sum(used)


class ExactSparse(Exact):
    """The same with fewer peers: less work, more noise.

    k: the least even number that is at least half of the others and above C̄ + S̄, or all of them where there are no
    more. So the graph holds together whoever colludes and straggles, each client keeps more than S̄ honest peers, and
    noise for the same ε, which is counted against any C̄ colluders (E4), grows by a small factor only.
    """

    name, title, source = "exact-sparse", "LightDP, exact, sparse", "LightDP-FL with exact calibration on k peers (E4)"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        others = task.clients - 1
        degree = max(others // 2, task.colluders + task.stragglers + 1)
        settings = self.plan.settings() | {"degree": min(degree + degree % 2, others)}
        self.plan = plan(**settings, calibration=self.calibration)


class Repair(Exact):
    """The same, and the next round takes out what stragglers left."""

    name, title, source = "repair", "LightDP, repair", "LightDP-FL with carry-over repair (R1)"
    broken_by = "fewer than N - S̄ uploads; a non-linear server step"
    calibration = "repair"

    def lasting(self, used: int) -> float:
        """Everybody's own."""
        return self.plan.individual_in_sum(used)


class Paper(Exact):
    """The paper's own noise, whose true ε is larger than it claims."""

    name, title, source = "paper", "LightDP, the paper's noise", "LightDP-FL as printed"
    broken_by = "as exact; its own σ misses ε (P1-P3)"
    calibration = "paper"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        true = self.plan.epsilon()
        self.plan = dataclasses.replace(self.plan, budget=true)  # or clients would stop at the ε that it only claims

    def epsilon(self) -> float:
        """More than is claimed."""
        return self.plan.epsilon()
