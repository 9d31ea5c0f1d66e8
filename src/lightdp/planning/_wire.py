"""How uploads of a plan travel: the step to which they are rounded, the range of a value, and its bits (W1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtri_exp

from lightdp import drawn
from lightdp.errors import InfeasibleError
from lightdp.planning._calibrations import Calibration, Noise
from lightdp.planning._masks import FINE
from lightdp.planning._request import FINEST_STEPS, Request

_UNKNOWN_PARAMETERS = 2**30
_TAIL = 4.5  # a rotated coordinate of an update of the largest norm is clamped with probability 2 exp(-10.1) = 8e-5
_SHORTEST = 8  # exponent of the shortest block that is tried: shorter ones would hardly be faster
_BITS = 32  # of the integers in which noise is added up


@dataclass(frozen=True)
class Wire:
    """What is decided about the wire (W1).

    Formal guarantee: if uploads are clamped to `range`, their sum wraps modulo 2^bits steps with probability below
    2⁻⁴⁰ in the whole training.

    Attributes:
        steps: σ_U in steps.
        step: q, in units of the update; 0 without individual noise.
        update_range: bound on a coordinate of an update; a client clamps to it.
        block: length of the blocks in which updates are rotated, the shortest that needs no more bits than the longest;
            None if they are not rotated.
        range: bound on a coordinate as it is sent, before noise; a client clamps to it.
        bits: of a value.
    """

    steps: int
    step: float
    update_range: float
    block: int | None
    range: float
    bits: int

    @classmethod
    def of(cls, asked: Request, noise: Noise, calibration: Calibration) -> Wire:
        """The wire for some noise: rotated if that was asked for, or if it saves a bit and nothing was asked."""
        steps, bound = calibration.wire_steps(asked), asked.upload_range
        step = noise.sigma_individual / steps
        if step == 0:
            return cls(steps, step, bound, None, bound, _BITS)
        fine = FINE
        while True:
            found = cls._reaching(asked, noise, calibration, _reach(asked, noise, calibration, fine))
            if found.bits > _most(steps) or found.fine >= fine:
                return found
            fine = found.fine  # units of drawn masks are so many fine steps, rounded up

    @classmethod
    def _reaching(cls, asked: Request, noise: Noise, calibration: Calibration, reach: float) -> Wire:
        steps, bound = calibration.wire_steps(asked), asked.upload_range
        step, most = noise.sigma_individual / steps, math.inf
        if asked.range_is_guessed and not calibration.floats:  # rather clamp more than not fit
            most = max(((2.0 ** (_most(steps) - 1) - 1) * step - reach) / asked.clients * (1 - 1e-9), asked.clip)

        def made(update_range: float, block: int | None, largest: float) -> Wire:
            bits = math.ceil(math.log2(2 * (asked.clients * largest + reach) / step + 2))
            return cls(steps, step, update_range, block, largest, max(_BITS if calibration.floats else 2, bits))

        plain = made(min(bound, most), None, min(bound, most))
        if asked.rotate is False or asked.parameters is None or calibration.floats:
            return plain

        def rotated(block: int) -> Wire:
            return made(bound, block, min(_TAIL * asked.norm_range / math.sqrt(block), most))

        longest = asked.parameters.bit_length() - 1  # exponent of the longest block that a vector has
        *shorter, best = (rotated(1 << k) for k in range(min(_SHORTEST, longest), longest + 1))
        # a shorter block is faster and clamps no more, unless `most` has cut its range
        best = next((wire for wire in shorter if wire.bits == best.bits and wire.range < most), best)
        return best if asked.rotate or best.bits < plain.bits else plain

    @property
    def fine(self) -> int:
        """σ_U in fine steps, in which noise is added up modulo 2^32: `FINE`, or as many as the bits leave room for."""
        return min(FINE, self.steps << max(_BITS - self.bits, 0))

    def check(self) -> None:
        """Refuse what does not fit.

        Raises:
            InfeasibleError: it needs more bits than are added up.
        """
        if self.bits > (most := _most(self.steps)):
            raise InfeasibleError(
                f"sums need {self.bits} bits a parameter and at most {most} fit the wire at wire_steps={self.steps}: "
                "reduce coordinate_range, or give records and parameters, so that uploads can be rotated"
            )


def _most(steps: int) -> int:
    """The most bits that fit: σ_U is at least `FINEST_STEPS` on the grid where noise is added up modulo 2^32."""
    return _BITS - (FINEST_STEPS // steps).bit_length() + 1


def _reach(asked: Request, noise: Noise, calibration: Calibration, fine: int) -> float:
    """How far noise and rounding take a coordinate of a sum, except with probability 2⁻⁴⁰ in the whole training.

    Args:
        asked: the request.
        noise: what was found for it.
        calibration: how.
        fine: σ_U in fine steps, of which units of drawn masks are a whole number.
    """
    clients, degree, away = asked.clients, asked.noise_graph.most, asked.stragglers
    repaired = min(away, degree) if calibration.repairs else 0
    cut = min(max((clients - repaired) // 2, 0), away)  # of so many stragglers, whose wires are the most
    wires = (clients - cut) * (min(cut, degree) + repaired)  # each used client repairs one round
    step = noise.sigma_individual / calibration.wire_steps(asked)
    own = clients * (noise.sigma_individual**2 + step**2 / 12)
    values = (1 + asked.grace) * asked.rounds * (_UNKNOWN_PARAMETERS if asked.parameters is None else asked.parameters)
    log_tail = -41 * math.log(2) - math.log(values)  # two sides
    if noise.masks.kind == "drawn" and wires > 0:
        unit = drawn.unit(fine, noise.gamma) * noise.sigma_individual / fine
        return drawn_reach(own, wires, unit, log_tail)
    return -float(ndtri_exp(log_tail)) * math.sqrt(own + wires * noise.gamma * noise.sigma_individual**2)


def drawn_reach(own: float, wires: int, unit: float, log_tail: float) -> float:
    """What a sum of noise with drawn masks exceeds with at most this probability, by Chernoff's bound.

    Args:
        own: variance of what is Gaussian in it; rounding, which is uniform, counts as that.
        wires: drawn masks in it.
        unit: what a drawn value counts for.
        log_tail: logarithm of the probability.
    """
    about = math.sqrt(-2 * log_tail / (own + wires * unit**2 * drawn.VARIANCE))
    rates = [about * 2 ** (k / 8) for k in range(-24, 9)]
    return min((t * t * own / 2 + wires * drawn.log_moment(t * unit) - log_tail) / t for t in rates)
