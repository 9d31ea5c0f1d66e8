"""The noise of one upload on the fixed-point grid: pairwise, individual, and what is repaired (W1).

A client's vector is counted in fine steps. Pairwise noise is integer there, so that both sides of a pair have the
same bits and it cancels exactly. Data and individual noise are added on a grid that is 2²² times finer and only
then rounded to fine steps; as pairwise noise is whole, that equals rounding after all noise is added.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightdp import stream
from lightdp._validate import integer
from lightdp.errors import ArgumentError, InfeasibleError
from lightdp.planning import WIRE_STEPS
from lightdp.stream import Term
from lightdp.wire import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from lightdp.planning import Plan

    Floats = NDArray[np.float32] | NDArray[np.float64]

_SCALES = 3  # individual noise is a sum of Gaussians: σ_U, then two fine ones, each 2^11 times finer than the last
_FINEST_BITS = 22
_BEYOND = 2e-20  # chance that a true Gaussian exceeds the reach of `lightdp.stream`
_LARGEST_SHIFT = 6  # σ_U of 2^10 fine steps is fine enough; the rest is room for the modulus


@dataclass(frozen=True)
class Grid:
    """How a plan's noise is counted for a model of a given length.

    Attributes:
        step: what one fine step is worth.
        shift: a wire step is 2^shift fine steps.
        bits: integers on the wire are modulo 2^bits.
        sigma_individual: σ_U in fine steps.
        sigma_pairwise: σ_K in fine steps.
    """

    step: float
    shift: int
    bits: int
    sigma_individual: float
    sigma_pairwise: float

    @classmethod
    def of(cls, plan: Plan, length: int) -> Grid:
        """The finest grid on which the plan's noise and sums fit 32 bits.

        Steps are enlarged so that σ covers the sensitivity plus √length steps of the finest grid, by which
        rounding the data may move two neighbouring inputs apart; by more than twice, and the noise is refused. So is
        a δ that is not well above the chance that Gaussian noise would, once in the training, exceed what is drawn.
        """
        length = integer("length", length, 1)
        if plan.delta < (least := 4 * _BEYOND * plan.rounds * length):
            raise InfeasibleError(
                f"delta must be >= {least:.1e} for {plan.rounds} rounds of {length} values, got delta={plan.delta:g}"
            )
        if not plan.deployable:
            raise ArgumentError(
                f"calibration must be one whose clients add noise alone, got calibration={plan.request.calibration!r}"
            )
        ratio = math.sqrt(plan.gamma)
        room = math.floor(math.log2(stream.SIGMA_MAX / WIRE_STEPS / max(ratio, 1.0)))
        shift = min(room, 32 - plan.wire_bits, _LARGEST_SHIFT)
        if shift < 0:
            raise InfeasibleError(
                f"{plan.wire_bits} bits a parameter do not fit the wire: give the plan a smaller coordinate_range"
            )
        sigma = float(WIRE_STEPS << shift)
        # σ steps are to be σ_U/Δ times Δ + moved steps
        rest = sigma - math.ldexp(math.sqrt(length), -_FINEST_BITS) * plan.sigma_individual / plan.sensitivity
        if rest <= sigma / 2:
            raise InfeasibleError(
                f"{length} values cannot be rounded finely enough for noise of {plan.sigma_individual:g} "
                f"and sensitivity {plan.sensitivity:g}: ask for a larger epsilon, fewer rounds or fewer values"
            )
        step = plan.sigma_individual / rest
        pairwise = math.ceil(ratio * sigma * 16 - 1e-6) / 16  # alike on all machines, whatever their last bits
        return cls(step, shift, plan.wire_bits, sigma, pairwise)

    @property
    def wire_step(self) -> float:
        """What one step on the wire is worth: q."""
        return math.ldexp(self.step, self.shift)


def pairwise_terms(keys: Mapping[int, bytes], me: int, grid: Grid, *, undo: bool = False) -> list[Term]:
    """s_ij r_ij for each peer j with its stream key, or their opposites to repair them (R1)."""
    if grid.sigma_pairwise == 0:
        return []
    sign = -1 if undo else 1
    return [Term(key, sign if me < peer else -sign, grid.sigma_pairwise) for peer, key in keys.items()]


def mask(vector: Floats, grid: Grid, terms: Sequence[Term], *, threads: int | None = 1) -> memoryview:
    """`vector` plus fresh individual noise plus `terms`, rounded to the wire grid and packed.

    Formal guarantee: the result is a function of vector + individual noise + terms alone (post-processing), and the
    individual noise of each call is keyed by the operating system's entropy and cannot be made again.
    """
    keys = [os.urandom(32) for _ in range(_SCALES)]
    return encode(_fine(vector, grid, terms, keys, threads=threads), shift=grid.shift, bits=grid.bits)


def _fine(
    vector: Floats, grid: Grid, terms: Sequence[Term], individual: Sequence[bytes], *, threads: int | None = 1
) -> NDArray[np.int32]:
    """The upload in fine steps, from keys."""
    sigma = grid.sigma_individual
    return stream.masked(vector, terms, step=grid.step, sigma=sigma, own=individual, threads=threads)
