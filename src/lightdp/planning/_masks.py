"""Which kind of noise two clients share, and what it costs (B2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Literal

from lightdp import drawn, gaussian
from lightdp.errors import InfeasibleError
from lightdp.noise_graph import gain
from lightdp.planning._failures import NEVER, Failures
from lightdp.planning._request import Request

WORTH = 1.02
"""Drawn masks are chosen where they need at most so many times the noise variance that Gaussian ones do."""

FINE = 1024
"""Fine steps in σ_U, where sums leave room for so many: units of drawn masks are whole numbers of them (W1)."""

_GAUSSIAN_BITS = 40
_UNKNOWN_PARAMETERS = 2**24
_STEEPNESS = (3.0, 2.0)  # for which there may be room (B2), tried in turn
_ROSTERS = (50, 100)  # of one client, at most: the fewer, the more may fail in each
_LATTICE = 4e-6  # the share of δ that `drawn.fits` takes for a roster
_SMALLER, _SHRINKS = 60, 0.98  # how many smaller γ are tried, and how much smaller each is
_LARGER = 2  # in rosters of other sizes, times the masks that more peers make: room for more rounds of a client
_SHIFT = 1.3e-5  # of ε, for the lattice of a roster: half its share of δ times μ/u, where u >= 2 and ε <= 100 (B2)
_MANY = 2**22  # masks of a client for a parameter: plans with more of them have Gaussian ones


@dataclass(frozen=True)
class Masks:
    """The noise that two clients share.

    Attributes:
        kind: "gaussian", or "drawn" as by `lightdp.stream.Draw`.
        bits: of keystream a value.
        variance: of a mask, in units of γ σ_U².
        cost: α of (B2), which a ledger counts once in a roster, in units of (Δ/`scale`)².
        covered: how many times every cost counts, for what may fail.
        each: masks of a client for each parameter in a whole training, at most; 0 where nobody has to know.
        everywhere: the same in all rosters that hold its key, of whatever size.
        delta: of the plan: the least δ for which ledgers say what is true; 0 for any.
    """

    kind: Literal["gaussian", "drawn"] = "gaussian"
    bits: int = _GAUSSIAN_BITS
    variance: float = 1.0
    cost: float = 0.0
    covered: float = 1.0
    each: int = 0
    everywhere: int = 0
    delta: float = 0.0

    def left(self, delta: float) -> float:
        """What failures leave of a δ: that of the plan and larger ones stay as they are, of a smaller one nothing."""
        return delta if self.delta <= delta * (1 + 1e-12) else 0.0

    def fails(self, length: int) -> Failures:
        """By how much the μ of a whole training under these masks may fall short, in all its rosters.

        For totals of several plans, of which only some are drawn: a plan's own ε has room for it in `covered`, which a
        total does not count on.

        Args:
            length: values of an upload.
        """
        if self.kind == "gaussian":
            return NEVER
        share = max(map(drawn.room, _STEEPNESS))  # of all rosters
        tails = drawn.beyond(2.0 * self.everywhere * length, _ROSTERS[-1])
        return Failures(share * self.delta, tails, _ROSTERS[-1] * _SHIFT)


GAUSSIAN = Masks()


def masks(asked: Request, gamma: float, total: Callable[[float], float]) -> tuple[float, Masks]:
    """The kind of masks that was asked for, or the one that is worth it, for plans that repair, and their γ.

    Where no γ was asked for and drawn masks cannot have the best one, a smaller one may do: noise hardly grows by that.

    Args:
        asked: the request.
        gamma: the γ that was asked for, or the best one.
        total: what the whole training costs with Gaussian masks of some γ, in units of (Δ/σ_U)².

    Raises:
        InfeasibleError: drawn masks were asked for, and are not possible.
    """
    if asked.masks == "gaussian" or asked.undrawable is not None:
        return gamma, GAUSSIAN
    usual, refused, best = total(gamma), None, gamma if asked.gamma is not None else min(gamma, drawn.GAMMA_MAX)
    for k in range(1 if asked.gamma is not None else _SMALLER):
        one = best * _SHRINKS**k
        spent = total(one)
        if asked.masks == "auto" and spent > WORTH * usual:
            break
        try:
            found = _drawn(asked, one, spent)
        except InfeasibleError as error:
            refused = error
            continue
        if asked.masks == "drawn" or price(found, spent) * spent <= WORTH * usual:
            return one, found
        break
    if asked.masks == "drawn" and refused is not None:
        raise refused
    return gamma, GAUSSIAN


def _drawn(asked: Request, gamma: float, total: float) -> Masks:
    """Drawn masks of this γ, where all rounds cost `total` with Gaussian ones.

    Raises:
        InfeasibleError: they are not possible.
    """
    if gamma == 0:
        raise _refused("pairwise noise", "gamma=0")
    drawn.unit(FINE, gamma)  # refuses a γ that is too large for the lattice
    peers, most = asked.honest - 1, math.ceil(total * float(gain(asked.honest, gamma)) * (1 + 1e-9)) + 1
    if most * peers > _MANY:
        raise _refused(
            f"fewer clients or rounds: a client may have {_MANY:,} masks for a parameter",
            f"{most:,} rounds with {peers:,} honest peers",
        )
    cost = _cost(asked, gamma, total, most)
    if cost == math.inf:
        raise _refused(
            "a smaller budget, fewer clients or rounds: no bound is known on what rare masks may cost here",
            f"{most:,} rounds, {peers:,} honest peers and delta={asked.delta:g}",
        )
    pairs = (asked.parameters or _UNKNOWN_PARAMETERS) * peers
    seen = {"repeated": pairs * (1 + asked.grace), "begun": cost / (total + cost)}
    if not drawn.fits(gamma, asked.epsilon, asked.delta, pairs * most, **seen):
        raise _refused(
            "fewer parameters, or a smaller gamma or epsilon",
            f"{asked.parameters or f'{_UNKNOWN_PARAMETERS}, as none were given,'} of them, gamma={gamma:g} and "
            f"epsilon={asked.epsilon:g}",
        )
    return Masks(
        kind="drawn",
        bits=drawn.BITS,
        variance=drawn.VARIANCE / drawn.SIGMA**2,
        cost=cost,
        covered=drawn.COVERED,
        each=most * peers,
        everywhere=_ROSTERS[-1] * _LARGER * most * (2 * asked.clients - asked.colluders),
        delta=asked.delta,
    )


def _cost(asked: Request, gamma: float, total: float, most: int) -> float:
    """α of (B2), with as much room for failures as is proven; infinity where there is too little."""
    least, whole = 1 / float(gain(asked.honest, gamma)), gaussian.mu(asked.epsilon, asked.delta)
    for steepness, rosters in product(_STEEPNESS, _ROSTERS):
        fails = drawn.room(steepness) / rosters - _LATTICE
        bounds = (gamma, asked.honest, asked.stragglers, most, asked.delta)
        cost = drawn.cost(*bounds, fails=fails, grace=asked.grace)
        if total + cost <= rosters * (least + cost) < math.inf:
            mu = whole * math.sqrt(cost / (total + cost))  # of a client that has just begun
            if gaussian.epsilon(mu, asked.delta) / mu - mu / 2 >= steepness:
                return cost
    return math.inf


def price(found: Masks, total: float) -> float:
    """How many times the noise variance that Gaussian masks of the same γ need these do.

    Args:
        found: the masks.
        total: what the whole training costs with Gaussian ones, in units of (Δ/σ_U)².
    """
    return found.covered * (1 + found.cost / total)


def _refused(needs: str, got: str) -> InfeasibleError:
    return InfeasibleError(f"masks='drawn' need {needs}, got {got}: take masks='gaussian'")
