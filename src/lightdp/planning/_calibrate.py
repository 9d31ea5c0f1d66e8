"""(D1), (D2) and (R4) as arithmetic: the ratio γ = σ_K²/σ_U² and the noise that a required σ_eff asks for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lightdp.noise_graph import Graph
from lightdp.stragglers import StragglerLaw

GAMMA_MAX = 1024.0
"""The largest γ that the wire's fixed-point grid resolves (W1): σ_K of 2^12 units beside σ_U of 2^7."""

_WEIGHT = 2.0  # of a residual beside noise that stays, without momentum or averages

_GRID = math.log(1.02)


def exposure(law: StragglerLaw, graph: Graph) -> float:
    """m = E[S/(N−S)]/E[1/(N−S)] (D2): how many of a client's pairwise terms stragglers leave, on average.

    On a sparse graph a straggler is one of the client's neighbours with probability `met`.
    """
    left, each = law.odds(graph.clients)
    return left / each * graph.met


def exact_gamma(m: float, honest: int) -> float:
    """(D2): the γ >= 0 that minimises (mγ + 1)(1 + γ)/(nγ + 1), at most `GAMMA_MAX`.

    | case | γ |
    | --- | --- |
    | m >= n − 1 (also n = 1) | 0: pairwise noise costs more than it saves |
    | m = 0 < n − 1 | `GAMMA_MAX`: it costs nothing |
    """
    n = float(honest)
    if m >= n - 1:
        return 0.0
    # gamma* = (−m + sqrt(m² + m n (n − 1 − m)))/(m n), without its cancellation for small m
    root = math.sqrt(m * m + m * n * (n - 1 - m))
    denominator = m + root
    if (n - 1 - m) >= GAMMA_MAX * denominator:
        return GAMMA_MAX
    return (n - 1 - m) / denominator


def paper_gamma(m: float, honest: int) -> float:
    """(D1): the smallest positive root of the paper's quartic G, as printed.

    By Descartes' rule G has exactly one positive root, below 1, when m < n − 1 (its signs are + + + ± −) and none
    otherwise, where the paper's objective grows with γ and γ = 0 is its minimiser.
    """
    from scipy.optimize import brentq  # noqa: PLC0415  takes longer to import than most plans take

    n = float(honest)
    if m >= n - 1:
        return 0.0
    coefficients = (
        2 * m * n**3 - 2 * m * n**2,
        n**3 - n**2 + 7 * m * n**2 - 6 * m * n,
        3 * n**2 - 3 * n + 9 * m * n - 6 * m,
        -(n**2) + 5 * n - 4 + m * n + 2 * m,
        -n + 1 + m,
    )
    return float(brentq(lambda g: np.polyval(coefficients, g), 0.0, 1.0, xtol=1e-300, rtol=1e-14))


def paper_sigma(gamma: float, honest: int, epsilon: float, delta: float) -> float:
    """(D1): the paper's σ_U* for sensitivity 1, as printed."""
    n, g = float(honest), gamma
    inner = 2 * (math.log(2) - math.log(delta)) * ((n - 1) * g + 1) * ((n - 1) * g**2 + (g + 1) ** 2)
    return math.sqrt(inner) / (epsilon * (n * g + 1))


def on_grid(cost: float) -> float:
    """`cost` rounded up, by at most 2 %: sampled rounds of one cost compose as one kind, which saves much time.

    What is above a point of the grid by a relative 2e-11 or less, as by rounding, goes to that point: compositions
    round ε up by far more.
    """
    return math.exp(math.ceil(math.log(cost) / _GRID - 1e-9) * _GRID)


def weight(momentum: float, ema: float, delay: int) -> float:
    """How many times a residual that waits for its repair counts beside noise that stays (R4).

    A rule that accuracy confirms, not a theorem (D5).

    Args:
        momentum: of the server.
        ema: decay of averaged weights.
        delay: rounds until a residual is repaired, if nobody straggles then.

    >>> round(weight(momentum=0.9, ema=0.0, delay=1), 3)
    0.459
    """
    return _WEIGHT * delay * _passes(momentum) * _passes(ema)


def _passes(decay: float) -> float:
    """The square root of the share that an average with this decay lets pass of noise that comes and goes."""
    return math.sqrt((1 - decay) / (1 + decay))


def repair_gamma(m: float, weight: float, cost: Callable[[float], float]) -> float:
    """The γ that minimises what the trained model carries under repair (R4); σ is the same in all rounds (D7).

    A round leaves the individual noise σ_U²/(N−S), which stays, and the residual mγσ_U²/(N−S), which a later one
    removes; σ_U² itself is proportional to `cost`(γ).

    Args:
        m: of `exposure`.
        weight: of a residual beside noise that stays.
        cost: of a round on average, as a share of (Δ/σ_U)².
    """

    def noise(log_gamma: float) -> float:
        gamma = math.exp(log_gamma)
        return math.log(cost(gamma) * (1 + weight * m * gamma))

    high = math.log(GAMMA_MAX)
    found = _least(noise, math.log(1e-6), high)
    if noise(high) <= noise(found):
        return GAMMA_MAX
    return math.exp(found) if noise(found) < math.log(cost(0.0)) else 0.0


def _least(f: Callable[[float], float], low: float, high: float) -> float:
    """Where f is least on [low, high], to 1e-6: the best of 33 points, then golden sections beside it.

    As scipy.optimize does, which takes longer to import than most plans take.
    """
    grid = np.linspace(low, high, 33).tolist()
    best = min(range(len(grid)), key=lambda i: f(grid[i]))
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    ratio = (math.sqrt(5) - 1) / 2
    a, b = right - ratio * (right - left), left + ratio * (right - left)
    at_a, at_b = f(a), f(b)
    while right - left > 1e-6:
        if at_a <= at_b:
            right, b, at_b = b, a, at_a
            a = right - ratio * (right - left)
            at_a = f(a)
        else:
            left, a, at_a = a, b, at_b
            b = left + ratio * (right - left)
            at_b = f(b)
    return a if at_a <= at_b else b
