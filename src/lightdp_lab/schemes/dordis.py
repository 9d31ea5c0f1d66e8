"""Dordis (Jiang et al., EuroSys 2024): SecAgg whose clients add noise for the worst case, in layers that are removed.

XNoise. Client i adds n_0 ~ σ²/(N - C̄) and, for k = 1 ... S̄, n_k ~ σ² (1/(N - C̄ - k) - 1/(N - C̄ - k + 1)), each from a
seed of its own. If D are missing, the seeds of the layers k > D are revealed and the server takes these layers out.

Exact: the layers 0 ... D telescope to σ²/(N - C̄ - D) in each of N - D uploads, of which at least N - D - C̄ are honest.
So honest noise alone has variance >= σ², with equality if all C̄ colluders uploaded: for no D too little or too much.

Seeds travel as in the paper: who uploaded sends its own in the unmasking step. All are shared by Shamir's scheme beside
the secrets of SecAgg, and if a client is lost between upload and unmasking, a fifth trip collects shares of its seeds.
The paper inflates all layers by one factor for colluders; C̄ inside each layer is the same idea without slack. Noise is
Gaussian and rounded once, as in all schemes here, instead of the paper's discrete one.
"""

from __future__ import annotations

import math
import os
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lightdp.client_set import ClientSet
from lightdp.errors import WireError
from lightdp.stream import Term, accumulate
from lightdp_lab.schemes import _shamir
from lightdp_lab.schemes._net import Net
from lightdp_lab.schemes._scheme import Result, Task, Updates, noisy
from lightdp_lab.schemes._secagg import Client, Server, Shares, recover, table
from lightdp_lab.schemes.secagg import SecAgg

_BEFORE = 2  # secrets of SecAgg, before the seeds of layers 1, 2, ...
_FINE = 128  # fine steps in a step of the grid: layers are whole numbers of them, so that they can be taken out


class LayeredClient(Client):
    """A client of SecAgg whose noise comes in layers."""

    scheme: Dordis

    def advertise(self) -> bytes:
        """As in SecAgg; besides, it draws the seeds of its layers 1 ... S̄."""
        public = super().advertise()
        self._secrets += [os.urandom(32) for _ in range(self.scheme.task.stragglers)]
        return public

    def unmask(self, uploaded: bytes) -> bytes:
        """As in SecAgg, then the seeds of its own layers k > D."""
        shares = super().unmask(uploaded)
        self._excess = slice(_BEFORE + len(~self._uploaded), None)
        return shares + b"".join(self._secrets[self._excess])

    def seeds(self, missing: bytes) -> bytes:
        """Shares of those seeds of clients that uploaded and did not answer, in order of the clients."""
        self._next(5)
        named = ClientSet.from_bytes(missing, self.scheme.task.clients) & self._uploaded
        return b"".join(self._held[j][self._excess].tobytes() for j in named if j in self._held)

    def _encode(self, update: NDArray[np.float32]) -> NDArray[np.int32]:
        first, *others = (sigma * _FINE for sigma in self.scheme.sigmas)
        layers = [Term(seed, 1, sigma) for seed, sigma in zip(self._secrets[_BEFORE:], others, strict=True)]
        fine = noisy(update, self.scheme.grid.step / _FINE, first, layers)
        return np.rint(fine / _FINE).astype(np.int32)


class LayeredServer(Server):
    """A server of SecAgg that collects seeds of layers."""

    scheme: Dordis

    def __init__(self, scheme: Dordis) -> None:
        super().__init__(scheme)
        self.seeds: dict[int, list[bytes]] = {}
        self._shared: Shares = {}

    @property
    def excess(self) -> int:
        """How many layers are to be removed: S̄ - D."""
        return self.scheme.task.stragglers - (self.clients - len(self.held))

    def answer(self, client: int, shares: bytes) -> None:
        """Keep the shares and the client's own seeds."""
        size = _shamir.SIZE * len(self.held[client])
        own = shares[size:]
        if len(own) != 32 * self.excess:
            raise WireError(f"client {client} must reveal {self.excess} seeds, got {len(own)} bytes")
        super().answer(client, shares[:size])
        self.seeds[client] = [own[k : k + 32] for k in range(0, len(own), 32)]

    def missing(self) -> list[int]:
        """Who uploaded, but did not reveal the seeds that are needed."""
        return sorted(self.held.keys() - self.seeds.keys()) if self.excess > 0 else []

    def shared(self, client: int, shares: bytes) -> None:
        """Keep a client's shares of the seeds of those who are missing."""
        owners = [j for j in self.missing() if j in self.held[client]]
        self._shared[client] = dict(zip(owners, table(shares, len(owners), self.excess), strict=True))

    def total(self) -> NDArray[np.float64]:
        """The sum without masks and without the layers that are too many."""
        seeds = self.seeds | recover("seeds", self._shared, self.missing(), self.scheme.threshold)
        sigmas = self.scheme.sigmas[len(self.scheme.sigmas) - self.excess :]
        terms = [Term(key, -1, each * _FINE) for keys in seeds.values() for key, each in zip(keys, sigmas, strict=True)]
        layers = np.zeros(self.scheme.task.dimension, np.int32)
        accumulate(layers, terms)
        return super().total() + layers * (self.scheme.grid.step / _FINE)


class Dordis(SecAgg, name="dordis"):
    """SecAgg with XNoise: exactly the noise that is needed, however many of up to S̄ are lost.

    Fails where SecAgg fails, and if a client is lost after its upload and fewer than t shares of its seeds are left.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._honest = task.clients - task.colluders
        self._variance = (self._honest - task.stragglers) * (self.grid.sigma * self.grid.step) ** 2
        inverse = [0.0, *(1 / (self._honest - k) for k in range(task.stragglers + 1))]
        # of the layers 0 ... S̄, in grid steps; together they are those of SecAgg
        self.sigmas = [math.sqrt(self._variance * (b - a)) / self.grid.step for a, b in pairwise(inverse)]

    def noise(self, used: int) -> float:
        """σ² from all but the colluders, theirs, and everybody's rounding."""
        absent = self.task.clients - used
        return used * (self._variance / (self._honest - absent) + self.grid.step**2 / 12)

    def round(self, updates: Updates, net: Net) -> Result:
        """SecAgg, and a fifth trip if a client that uploaded did not reveal its seeds."""
        server, clients = LayeredServer(self), [LayeredClient(i, self) for i in range(self.task.clients)]
        self._play(updates, net, server, clients)
        if missing := server.missing():
            net.stage("seeds")
            named = ClientSet.of(self.task.clients, missing).to_bytes()
            net.take(net.ask(server.answers, named, lambda i, heard: clients[i].seeds(heard)), server.shared)
        with net.server():
            return Result(server.total(), frozenset(server.held))
