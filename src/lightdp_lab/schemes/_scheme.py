"""The interface of all schemes: rounds of messages on a network that end in a sum, or in a typed failure."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightdp import schemes, stream
from lightdp._settings import like, setting
from lightdp._validate import integer, positive
from lightdp.planning import CalibrationName, MasksName, Plan, Request, plan
from lightdp.wire import encode
from lightdp_lab.registry import ALL
from lightdp_lab.schemes._net import Net, RoundFailedError

Updates: TypeAlias = "Sequence[NDArray[np.float32]]"  # everybody's, clipped: N vectors of d

_LEAST = 32  # grid steps in the clip of schemes that send values without noise of their own
_FINEST = 2.0**-22  # of a step: the finest scale of noise
_WIDE = 16  # steps that noise has at least in its standard deviation
_FINER = 4.0  # the variance of its two finer scales, in steps


@dataclass(frozen=True)
class Task:
    """What all schemes are given: N clients, C̄ colluders, S̄ stragglers, d values, and the privacy of a training.

    Updates are clipped to L2 norm `clip`; (ε, δ) is for one client (add-remove) over all rounds. The straggler law
    tunes the noise of LightDP, exact and with repair; without one it is uniform. Masks are those of repair.
    """

    clients: int = like(Request, "clients", 50)
    colluders: int = like(Request, "colluders", 10)
    stragglers: int = like(Request, "stragglers", 10)
    dimension: int = setting("Number of values of an update, d.", 100_000, group="Training")
    epsilon: float = like(Request, "epsilon", 3.0)
    delta: float = like(Request, "delta", 1e-5)
    rounds: int = like(Request, "rounds", 150)
    clip: float = like(Request, "clip", 1.0)
    straggler_law: str | None = like(Request, "straggler_law", None)
    masks: MasksName = like(Request, "masks", "auto")

    def __post_init__(self) -> None:
        integer("dimension", self.dimension, 1)
        positive("clip", self.clip)
        self.plan("exact")  # refuses the rest

    def plan(self, calibration: CalibrationName) -> Plan:
        """The noise of this calibration at the same guarantee, which "paper" claims and does not keep.

        "paper" is as printed, for uniform stragglers; "smpc" has noise for S̄ of them in every round.
        """
        return _plan(self, calibration)


@lru_cache(maxsize=256)
def _plan(task: Task, calibration: CalibrationName) -> Plan:
    asked = {name: value for name, value in asdict(task).items() if name != "dimension"}
    if calibration not in ("exact", "repair"):
        asked["straggler_law"] = None
    if calibration != "repair":
        asked["masks"] = "gaussian"
    return plan(**asked, unit="client", calibration=calibration)


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of a successful round: the noisy sum over the clients `used`. (d,)"""

    total: NDArray[np.float64]
    used: frozenset[int]


@dataclass(frozen=True)
class Grid:
    """Integers for updates: steps of `step`, `bits` wide, so that the sum of all clients and its noise fit.

    Attributes:
        step: what one step is worth.
        bits: of a value modulo 2^bits.
        sigma: standard deviation of a client's own noise, in steps; 0 without noise.
    """

    step: float
    bits: int
    sigma: float

    @classmethod
    def of(cls, task: Task, sigma: float, steps: int = 16) -> Grid:
        """For clients that add noise of standard deviation `sigma` each, which is `steps` steps."""
        step = step_of(task, sigma, steps) if sigma > 0 else task.clip / _LEAST / math.sqrt(task.clients)
        noise = float(steps) if sigma > 0 else 0.0
        largest = task.clients * task.clip / step + 10 * math.sqrt(task.clients) * max(noise, 1)
        return cls(step, 1 + math.ceil(math.log2(2 * largest)), noise)

    def encode(self, update: NDArray[np.floating]) -> NDArray[np.int32]:
        """The update in steps with fresh noise, rounded after the noise was added. (d,)"""
        if self.sigma == 0:
            return np.rint(update / np.float64(self.step)).astype(np.int32)
        fine = noisy(update, self.step / self._fine, self.sigma * self._fine)
        return fine if self._fine == 1 else np.rint(fine / self._fine).astype(np.int32)

    @property
    def variance(self) -> float:
        """Of what `encode` adds, in steps: noise, the rounding of its widest scale, and that of the sum."""
        return self.sigma**2 + (1 / self._fine**2 + 1) / 12 if self.sigma > 0 else 1 / 12

    @property
    def _fine(self) -> int:
        """How many times finer steps are in which noise is made, so that it is wide enough there."""
        return 2 ** max(math.ceil(math.log2(_WIDE / self.sigma)), 0)

    def decode(self, total: NDArray[np.integer]) -> NDArray[np.float64]:
        """A sum modulo 2^bits, as numbers. (d,)"""
        half = 1 << (self.bits - 1)
        centred: NDArray[np.int64] = ((np.asarray(total, np.int64) + half) & ((1 << self.bits) - 1)) - half
        return centred * np.float64(self.step)

    def pack(self, values: NDArray[np.integer]) -> bytes:
        """Values modulo 2^bits, `bits` each."""
        return bytes(encode(values.astype(np.uint32).view(np.int32), shift=0, bits=self.bits))


def step_of(task: Task, sigma: float, steps: int) -> float:
    """A step of which noise of standard deviation `sigma` has so many, and a little more than `sigma`.

    Noise has a finest step, and rounding to it may move two updates apart that differ by one client: by √d of these
    steps. What `sigma` is for one clip, this is for one clip and that much more (W1).
    """
    return sigma / (steps - math.sqrt(task.dimension) * _FINEST * sigma / task.clip)


def noisy(
    values: NDArray[np.floating], step: float, sigma: float, terms: Sequence[stream.Term] = ()
) -> NDArray[np.int32]:
    """`values` in steps with fresh noise of `sigma` steps, rounded once, plus integer noise (W1). (d,)"""
    own = [os.urandom(32) for _ in range(3)]
    return stream.masked(values, terms, step=step, sigma=math.sqrt(sigma**2 - _FINER), own=own)


class Scheme(ABC):
    """One way to sum the updates of N clients.

    A subclass runs the real protocol: every value that leaves a client is bytes sent through the `Net`, and a client's
    code reads only its own update and what it received. A client that does not answer is absent.

    Attributes:
        about: its entry in the registry, by the `name` that its class states; classes in between have none.
    """

    about: ClassVar[schemes.Scheme]

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        if name is not None:
            cls.about = ALL[name]

    def __init__(self, task: Task) -> None:
        self.task = task

    def set_up(self, net: Net) -> None:  # noqa: B027  most have nothing to do
        """What is done once, before the first round."""

    @abstractmethod
    def round(self, updates: Updates, net: Net) -> Result:
        """The sum over the clients that got through, of updates that are clipped already.

        Raises:
            RoundFailedError: there is no sum; never a wrong one.
        """

    @abstractmethod
    def noise(self, used: int) -> float:
        """Variance of the noise in a coordinate of the sum of `used` clients, at the task's true (ε, δ)."""

    def lasting(self, used: int) -> float:
        """The part of it that no later round takes out again."""
        return self.noise(used)

    def epsilon(self) -> float:
        """The true ε of a whole training at the task's δ: what was asked for, except where a formula misses it."""
        return self.task.epsilon


class Smpc(Scheme):
    """A scheme that hides all but the sum, whose clients add the noise of SMPC + DP: σ²/(N - C̄ - S̄) each.

    Attributes:
        steps: of its grid in the σ of a client's noise.
    """

    steps: ClassVar[int] = 16

    @cached_property
    def grid(self) -> Grid:
        """How values are counted."""
        return Grid.of(self.task, self.task.plan("smpc").sigma_individual, self.steps)

    @property
    def least(self) -> int:
        """How many clients a sum must have, so that enough noise is in it: N - S̄."""
        return self.task.clients - self.task.stragglers

    def noise(self, used: int) -> float:
        """Everybody's own noise and rounding."""
        return used * self.grid.variance * self.grid.step**2

    def demand(self, stage: str, came: int, needed: int) -> None:
        """Fail if fewer came than needed."""
        if came < needed:
            raise RoundFailedError(stage, f"{came} clients, {needed} needed")

    def exchange_keys(
        self, stage: str, net: Net, public: Callable[[int], bytes], join: Callable[[int, list[bytes]], object]
    ) -> None:
        """Everybody's public key of 32 bytes to everybody, in order; there is no training without all of them."""
        clients = range(self.task.clients)
        net.stage(stage)
        keys = dict(net.collect(clients, public))
        self.demand(stage, len(keys), len(clients))
        net.stage("roster")
        roster = b"".join(keys.values())
        net.hand_out([roster for _ in clients], lambda i, heard: join(i, [heard[32 * j :][:32] for j in clients]))
