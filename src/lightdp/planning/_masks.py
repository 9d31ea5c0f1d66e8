"""Which kind of noise two clients share, and what it costs (B2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lightdp import drawn
from lightdp.errors import InfeasibleError
from lightdp.noise_graph import gain
from lightdp.planning._request import Request

WORTH = 1.02
"""Drawn masks are chosen where they need at most so many times the noise variance that Gaussian ones do."""

FINE = 1024
"""Fine steps in σ_U, where sums leave room for so many: units of drawn masks are whole numbers of them (W1)."""

_GAUSSIAN_BITS = 40
_FAILS = 4e-5  # of δ: more than everything that may fail with drawn masks, and less than `COVERED` makes room for
_UNKNOWN_PARAMETERS = 2**24
_ROSTERS = 80  # of one client, whose failures `COVERED` makes room for (B2)
_MANY = 2**21  # masks of a client for a parameter: of more, `drawn.cost` gives no bound and takes long


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
        fails: probability that the ledger does not hold; at the plan's δ and above `covered` makes room for it.
    """

    kind: Literal["gaussian", "drawn"] = "gaussian"
    bits: int = _GAUSSIAN_BITS
    variance: float = 1.0
    cost: float = 0.0
    covered: float = 1.0
    each: int = 0
    fails: float = 0.0

    def left(self, delta: float) -> float:
        """What failures leave of a δ: that of the plan and larger ones stay as they are, of a smaller one nothing."""
        return delta if self.fails <= _FAILS * delta * (1 + 1e-12) else 0.0


GAUSSIAN = Masks()


def masks(asked: Request, gamma: float, total: float) -> Masks:
    """The kind of masks that was asked for, or the one that is worth it, for plans that repair.

    Args:
        asked: the request.
        gamma: γ.
        total: what the whole training costs with Gaussian masks, in units of (Δ/σ_U)².

    Raises:
        InfeasibleError: drawn masks were asked for, and are not possible.
    """
    if asked.masks == "gaussian" or asked.undrawable is not None:
        return GAUSSIAN
    if gamma == 0:
        return _refused(asked, "pairwise noise", "gamma=0")
    try:
        drawn.unit(FINE, gamma)
    except InfeasibleError:
        if asked.masks == "drawn":
            raise
        return GAUSSIAN
    peers, most = asked.honest - 1, math.ceil(total * float(gain(asked.honest, gamma)) * (1 + 1e-9)) + 1
    values = (asked.parameters or _UNKNOWN_PARAMETERS) * most * peers
    if not drawn.fits(gamma, asked.epsilon, asked.delta, values, repeated=values / most * (1 + asked.grace)):
        return _refused(
            asked,
            "fewer parameters, or a smaller gamma or epsilon",
            f"{asked.parameters or f'{_UNKNOWN_PARAMETERS}, as none were given,'} of them, gamma={gamma:g} and "
            f"epsilon={asked.epsilon:g}",
        )
    cost = math.inf
    if most * peers <= _MANY:
        cost = drawn.cost(gamma, asked.honest, asked.stragglers, most, asked.delta, grace=asked.grace)
    if not total <= _ROSTERS * (1 / float(gain(asked.honest, gamma)) + cost) < math.inf:
        return _refused(
            asked,
            f"a bound on what rare masks cost and a budget for at most {_ROSTERS} rosters",
            f"{most:,} rounds and {peers:,} honest peers",
        )
    found = Masks(
        kind="drawn",
        bits=drawn.BITS,
        variance=drawn.VARIANCE / drawn.SIGMA**2,
        cost=cost,
        covered=drawn.COVERED,
        each=most * peers,
        fails=_FAILS * asked.delta,
    )
    return found if asked.masks == "drawn" or price(found, total) <= WORTH else GAUSSIAN


def price(found: Masks, total: float) -> float:
    """How many times the noise variance that Gaussian masks need these do.

    Args:
        found: the masks.
        total: what the whole training costs with Gaussian ones, in units of (Δ/σ_U)².
    """
    return found.covered * (1 + found.cost / total)


def _refused(asked: Request, needs: str, got: str) -> Masks:
    if asked.masks == "drawn":
        raise InfeasibleError(f"masks='drawn' need {needs}, got {got}: take masks='gaussian'")
    return GAUSSIAN
