"""The noise of one upload on the fixed-point grid: pairwise noise, individual noise and repairs (W1).

A client's vector is counted in fine steps, of which σ_U has about a thousand. Pairwise noise is an integer number of
steps, so that both clients of a pair have the same bits and it cancels exactly: Gaussian samples, or drawn values that
count for so many steps each (B2). Data and individual noise are added on
a grid that is 2²² times finer and only then rounded to fine steps; as pairwise noise is whole, that equals rounding
after all noise is added. The sum is rounded once more, to the coarser steps of the wire.

`Grid.of` turns a plan into steps, `pairwise_terms` lists the noise shared with peers, `mask` makes the upload:

>>> import numpy as np, lightdp
>>> plan = lightdp.plan(clients=3, colluders=0, stragglers=0, rounds=10, epsilon=2, delta=1e-5, unit="client")
>>> grid = Grid.of(plan, length=1000)
>>> terms = pairwise_terms({1: bytes(32), 2: bytes([1]) * 32}, me=0, grid=grid)
>>> upload = mask(np.zeros(1000), grid, terms)
>>> len(upload) * 8 / 1000, grid.bits  # bits for each value
(7.168, 7)
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lightdp import drawn, stream
from lightdp._validate import integer
from lightdp.errors import ArgumentError, InfeasibleError
from lightdp.planning import Plan
from lightdp.stream import Draw, Floats, Integers, Term
from lightdp.wire import Rotation, encode

_FINEST_BITS = 22  # individual noise is a sum of three Gaussians: σ_U, and two that are 2^11 and 2^22 times finer
_FINER = 4.0  # a little less than the variance of these two, in fine steps
_BEYOND = 2e-20  # probability that a true Gaussian exceeds the largest sample of `lightdp.stream`
_FINE = 1024  # fine steps in σ_U are fine enough; the remaining bits are left for the modulus


@dataclass(frozen=True)
class Grid:
    """How a plan's noise is counted for a model of a given length.

    Attributes:
        step: size of a fine step, in units of the update.
        shift: a wire step is 2^shift fine steps.
        bits: integers on the wire are modulo 2^bits.
        sigma_individual: σ of individual noise in fine steps, without the two finer Gaussians that complete σ_U.
        sigma_pairwise: standard deviation of pairwise noise in fine steps; 0 for none.
        unit: fine steps that a drawn value counts for; 0 where pairwise noise is Gaussian.

    >>> Grid(step=0.01, shift=3, bits=12, sigma_individual=128.0, sigma_pairwise=64.0).wire_step
    0.08
    """

    step: float
    shift: int
    bits: int
    sigma_individual: float
    sigma_pairwise: float
    unit: int = 0

    @classmethod
    def of(cls, plan: Plan, length: int) -> Grid:
        """The finest grid on which the plan's noise and sums fit 32 bits.

        Formal guarantee: σ_U in units of the update covers the plan's sensitivity plus √length steps of the finest
        grid, by which rounding the data may move two neighbouring inputs apart (W1), plus what floating point adds
        where they are rotated. All clients compute the same.

        | case | result |
        | --- | --- |
        | covering the rounding would double the noise | `InfeasibleError` |
        | δ below 4 × the probability that true Gaussian noise exceeds the largest samples | `InfeasibleError` |
        | sums do not fit the wire | `InfeasibleError` |
        | drawn masks of so many values are not within δ, or would be too coarse for so large a γ | `InfeasibleError` |
        | γ = 0 | no pairwise noise |

        Args:
            plan: a plan that clients can follow alone.
            length: number of values of an upload, >= 1.

        Raises:
            ArgumentError: the plan's calibration needs more than noise from clients.
            InfeasibleError: see the table.
        """
        length = integer("length", length, 1)
        if plan.delta < (least := 4 * _BEYOND * plan.rounds * length):
            raise InfeasibleError(
                f"delta must be >= {least:.1e} for {plan.rounds} rounds of {length} values, got delta={plan.delta:g}"
            )
        if not plan.deployable:
            wrong = plan.request.calibration
            raise ArgumentError(f"calibration must be one whose clients add noise alone, got calibration={wrong!r}")
        wire, ratio = plan.wire, math.sqrt(plan.gamma)
        wire.check()
        largest = math.inf if plan.masks.kind == "drawn" else stream.SIGMA_MAX  # that a mask may have as its σ
        room = min(largest / max(ratio, 1.0), _FINE) / wire.steps
        shift = min(math.floor(math.log2(room)), 32 - wire.bits)
        sigma = float(wire.steps << shift)
        # σ steps = σ_U/Δ × (Δ + rotating + √length finest steps), solved for the step
        rotating = 0.0 if wire.block is None else 2 * Rotation.error(wire.block) * math.sqrt(length) * wire.update_range
        needed = plan.sigma_individual * (1 + rotating / plan.sensitivity)
        rest = sigma - math.ldexp(math.sqrt(length), -_FINEST_BITS) * plan.sigma_individual / plan.sensitivity
        if rest * 2 * plan.sigma_individual <= needed * sigma:
            raise InfeasibleError(
                f"{length} values cannot be rounded finely enough for noise of {plan.sigma_individual:g} "
                f"and sensitivity {plan.sensitivity:g}: choose a larger epsilon, fewer rounds or fewer values"
            )
        own = math.ceil(math.sqrt(sigma**2 - _FINER) * 16) / 16
        unit = _unit(plan, length, sigma)
        # the same on machines whose last bits differ
        pairwise = unit * math.sqrt(drawn.VARIANCE) if unit else math.ceil(ratio * sigma * 16 - 1e-6) / 16
        return cls(needed / rest, shift, wire.bits, own, pairwise, unit)

    @property
    def wire_step(self) -> float:
        """q, the size of a step on the wire, in units of the update."""
        return math.ldexp(self.step, self.shift)


def _unit(plan: Plan, length: int, sigma: float) -> int:
    """Fine steps that a drawn value counts for, where σ_U has `sigma` of them; 0 for a plan with Gaussian masks."""
    if plan.masks.kind != "drawn":
        return 0
    whole = plan.turns * (plan.sigma_individual / plan.sigma_effective) ** 2
    seen = {
        "repeated": length * (plan.honest - 1) * (1 + plan.grace),
        "begun": plan.masks.cost * plan.masks.covered / whole,
    }
    fits = drawn.fits(plan.gamma, plan.budget, plan.delta, length * plan.masks.each, **seen)
    if length > drawn.VALUES_MAX:
        raise InfeasibleError(
            f"masks='drawn' need at most {drawn.VALUES_MAX:,} values, got {length:,}: take masks='gaussian'"
        )
    if not fits:
        raise InfeasibleError(
            f"masks='drawn' are not within delta={plan.delta:g} for {length} values and {plan.masks.each} masks of "
            f"each at epsilon={plan.budget:g}: take masks='gaussian'"
        )
    return drawn.unit(sigma, plan.gamma)


def pairwise_terms(keys: Mapping[int, bytes], me: int, grid: Grid, *, undo: bool = False) -> list[Term | Draw]:
    """The terms s_ij r_ij that client `me` shares with its peers, or their opposites (R1).

    Formal guarantee: the terms of both clients of a pair are exact opposites, and so are those with `undo`.

    Args:
        keys: the stream key of each peer, by its index.
        me: index of this client.
        grid: the grid, the same at all clients.
        undo: whether to take the noise out again, as a repair does.

    Returns:
        One term for each peer; none if the plan has no pairwise noise.

    >>> grid = Grid(step=0.01, shift=3, bits=12, sigma_individual=128.0, sigma_pairwise=64.0)
    >>> pairwise_terms({0: bytes(32), 2: bytes(32)}, me=1, grid=grid)
    [Term(sign=-1, sigma=64.0), Term(sign=1, sigma=64.0)]
    """
    if grid.sigma_pairwise == 0:
        return []
    sign = -1 if undo else 1
    if grid.unit > 0:
        return [Draw(key, sign if me < peer else -sign, grid.unit) for peer, key in keys.items()]
    return [Term(key, sign if me < peer else -sign, grid.sigma_pairwise) for peer, key in keys.items()]


def mask(vector: Floats, grid: Grid, terms: Sequence[Term | Draw], *, threads: int | None = 1) -> memoryview:
    """The upload of one round: `vector` plus fresh individual noise plus `terms`, rounded to the wire grid and packed.

    Formal guarantee: the result is a function of vector + individual noise + terms alone (post-processing), and the
    individual noise of each call is keyed by the operating system's entropy and cannot be drawn again.

    Args:
        vector: float32 or float64, clipped to the plan's sensitivity; not changed.
        grid: the plan's grid for this length.
        terms: pairwise noise and repairs.
        threads: as in `stream.accumulate`.

    Returns:
        The packed bytes of `wire.encode`.

    Raises:
        ArgumentError: `vector` is no float vector, or has values that are not finite or far beyond the clip.

    >>> import numpy as np
    >>> grid = Grid(step=0.01, shift=3, bits=12, sigma_individual=128.0, sigma_pairwise=64.0)
    >>> mask(np.zeros(80), grid, []) == mask(np.zeros(80), grid, [])  # never the same noise twice
    False
    """
    fine = _fine(vector, grid, terms, [os.urandom(32) for _ in range(3)], threads=threads)
    return encode(fine, shift=grid.shift, bits=grid.bits)


def _fine(
    vector: Floats, grid: Grid, terms: Sequence[Term | Draw], own: Sequence[bytes], *, threads: int | None = 1
) -> Integers:
    """The upload in fine steps, a pure function of its keys."""
    return stream.masked(vector, terms, step=grid.step, sigma=grid.sigma_individual, own=own, threads=threads)
