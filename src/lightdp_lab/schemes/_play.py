"""Run a scheme's rounds and measure what they cost, at the task's dimension or the largest that time allows."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightdp.errors import ArgumentError, BudgetError
from lightdp_lab.bench import forget_peak, memory_line
from lightdp_lab.schemes._net import Faults, Links, Net, RoundFailedError
from lightdp_lab.schemes._scheme import Result, Scheme, Task

_FIRST = (128, 512)  # dimensions at which every scheme is quick; two give its slope
_LEAPS = (2, 4, 8, 16, 32)  # how far beyond what was measured a line is trusted, when the next size is chosen
_VALUES = 1 << 26  # floats of all different updates together; beyond, clients share vectors
_FIELDS = ("up", "down", "peer", "client", "server", "modelled", "wall", "memory")


@dataclass(frozen=True)
class Cost:
    """What one round cost.

    Attributes:
        dimension: of the updates.
        trips: round trips.
        up: bytes of a client to the server, on average.
        down: bytes to a client.
        peer: bytes of a client to its peers, on links of their own.
        client: seconds of work of a client, on average.
        server: seconds of work of the server.
        modelled: seconds that the round would take on its links.
        wall: seconds that this process took to run it.
        memory: bytes that this process needed for it; 0 where the system does not say.
        extrapolated: whether the values are extrapolated, not measured.
    """

    dimension: int
    trips: int
    up: float
    down: float
    peer: float
    client: float
    server: float
    modelled: float
    wall: float
    memory: float = 0.0
    extrapolated: bool = False

    @classmethod
    def of(cls, net: Net, dimension: int, wall: float = 0.0, memory: float = 0.0) -> Cost:
        """What was sent and done on a network."""
        means = (net.total("up"), net.total("down"), net.total("peer"), net.total("seconds"))
        return cls(dimension, net.trips, *means, net.server_seconds(), net.modelled_seconds(), wall, max(memory, 0.0))

    def towards(self, larger: Cost, dimension: int) -> Cost:
        """Linear extrapolation from this cost and that of a larger dimension; no cost falls with the dimension."""
        far = (dimension - larger.dimension) / max(larger.dimension - self.dimension, 1)
        ends = ((name, getattr(self, name), getattr(larger, name)) for name in _FIELDS)
        new = {name: b + far * max(b - a, 0.0) for name, a, b in ends}
        return dataclasses.replace(larger, dimension=dimension, extrapolated=True, **new)

    def fits(self, seconds: float) -> bool:
        """Whether a round runs in so many seconds and in half of the memory that is free now."""
        return self.wall <= seconds and self.memory <= _free() / 2


@dataclass(frozen=True, eq=False)
class Played:
    """A round that was run: its result or failure, its network and its cost.

    `error` is the noise and rounding in the sum, (d,); None for a round that failed.
    """

    result: Result | None
    failure: RoundFailedError | None
    net: Net
    cost: Cost
    error: NDArray[np.float64] | None


class Player:
    """Sets a scheme up without faults, and runs rounds with the same random updates for every scheme."""

    def __init__(self, scheme: type[Scheme], task: Task, links: Links, seed: int = 0) -> None:
        self.kind, self.task, self.links, self.seed = scheme, task, links, seed
        self.restarts = -1
        self._restart()

    def _restart(self) -> None:
        self.scheme = self.kind(self.task)
        self.set_up = Net(self.task.clients, self.links)
        self.scheme.set_up(self.set_up)
        self.restarts += 1

    @cached_property
    def _vectors(self) -> NDArray[np.float32]:
        """The updates, of the clip's length; very long ones are shared by several clients. (clients or fewer, d)"""
        task = self.task
        count = max(2, min(task.clients, _VALUES // task.dimension))
        rng = np.random.default_rng([self.seed, task.dimension])  # noqa: TID251  data, no protection
        drawn = rng.standard_normal((count, task.dimension), dtype=np.float32)
        drawn *= task.clip * (1 - 1e-6) / np.linalg.norm(drawn, axis=1, keepdims=True)
        return drawn

    def round(self, faults: Faults | None = None) -> Played:
        """Run one round; once the clients' budget is spent, set up anew and run it as the first of a new training."""
        try:
            return self._round(faults)
        except BudgetError:
            self._restart()
            return self._round(faults)

    def _round(self, faults: Faults | None) -> Played:
        vectors, task = self._vectors, self.task
        net = Net(task.clients, self.links, faults)
        result = failure = error = None
        forget_peak()
        base = memory_line("self/status", "VmRSS", 0.0)
        begun = time.perf_counter()
        try:
            result = self.scheme.round([vectors[i % len(vectors)] for i in range(task.clients)], net)
        except RoundFailedError as problem:
            failure = problem
        wall, memory = time.perf_counter() - begun, memory_line("self/status", "VmHWM", 0.0) - base
        if result is not None:
            times = np.bincount([i % len(vectors) for i in result.used], minlength=len(vectors))
            error = np.array(result.total)
            for count, vector in zip(times, vectors, strict=True):
                error -= np.float64(count) * vector
        return Played(result, failure, net, Cost.of(net, task.dimension, wall, memory), error)


def climb(
    scheme: type[Scheme], task: Task, links: Links, *, seconds: float, rounds: int = 1, seed: int = 0
) -> tuple[Player, list[Cost]]:
    """A player at the task's dimension, or at the largest at which `rounds` rounds should take at most `seconds`.

    Returns:
        The player, and the costs of a faultless round at the sizes on the way there, its own last.
    """
    costs: list[Cost] = []
    size = min(_FIRST[0], task.dimension)
    while True:
        player = Player(scheme, dataclasses.replace(task, dimension=size), links, seed)
        played = player.round()
        if played.failure is not None:
            raise ArgumentError(f"{scheme.about.name} fails even without faults: {played.failure}")
        costs.append(played.cost)
        size = _next(costs, task.dimension, seconds / rounds)
        if size == 0:
            return player, costs


def _next(costs: list[Cost], dimension: int, seconds: float) -> int:
    """The largest size at which a round should take so many seconds and fit into memory; 0 to stay where we are."""
    last = costs[-1]
    if last.dimension == dimension:
        return 0
    if len(costs) == 1:
        return min(_FIRST[1], dimension) if last.wall <= seconds else 0
    sizes = {min(leap * last.dimension, dimension) for leap in _LEAPS}
    return max((size for size in sizes if costs[-2].towards(last, size).fits(seconds)), default=0)


def _free() -> float:
    return memory_line("meminfo", "MemAvailable", float("inf"))
