"""(E5): the exact privacy of Gaussian noise, δ(ε; μ) and its two inverses, rounded to the private side.

μ is the ratio of sensitivity to noise, Δ/σ. With Φ the normal distribution function,

    δ(ε; μ) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

Both terms share a factor: with u = ε/μ − μ/2, φ the normal density and R(x) = Φ(−x)/φ(x) the Mills ratio,

    δ(ε; μ) = φ(u) [R(u) − R(u + μ)] = φ(u) ∫ (1 − x R(x)) dx over [u, u + μ],

which neither overflows nor cancels. Everything is computed in log space; `_SLACK` covers the rounding errors
(an mpmath oracle in the tests holds the error to a tenth of it).

Formal guarantee, for ε in [0, 1000] and δ in [1e-300, 1], in exact arithmetic and not only in floating point:
`delta` is never below δ(ε; μ), `epsilon` never below the least ε, `mu` never above the largest μ.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import erfcx, ndtr

from lightdp._validate import non_negative, number
from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_SLACK = 1e-12  # bound on the absolute error of `_log_delta`, relative to max(1, |log δ|), if u below were exact
_TIGHTEST = 2.0**-51
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_LOG_SQRT_TAU = math.log(2 * math.pi) / 2
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def log_delta(epsilon: float, mu: float) -> float:
    """Log of an upper bound on δ(ε; μ) that is tight to about 1e-12 (E5). −inf for μ = 0, 0 for μ = ∞."""
    epsilon = non_negative("epsilon", epsilon)
    if mu == math.inf:
        return 0.0
    mu = non_negative("mu", mu)
    if mu == 0:
        return -math.inf
    value = _log_delta(epsilon, mu)
    # what the rounding of u below, by 2^-52 of its terms, makes of log δ, whose slope is at most 1 + |u|
    further = 2.0**-51 * (epsilon / mu + mu / 2) * (1 + abs(epsilon / mu - mu / 2)) if value > -1e199 else 0.0
    return min(0.0, value + _SLACK * max(1.0, -value) + further)


def delta(epsilon: float, mu: float) -> float:
    """δ(ε; μ), rounded up (E5).

    | μ | result |
    | --- | --- |
    | 0 | 0: nothing is revealed |
    | tiny | the least positive float instead of an underflow to 0 |
    | ∞ | 1 |
    """
    log = log_delta(epsilon, mu)
    if log == -math.inf:
        return 0.0
    return min(1.0, math.nextafter(math.exp(log), math.inf))


def epsilon(mu: float, delta: float) -> float:
    """The least ε >= 0 with δ(ε; μ) <= `delta`, rounded up. `delta` = 1 gives 0; μ = ∞ gives ∞ otherwise."""
    log = _log_target(delta)
    if log == 0:
        return 0.0
    if mu == math.inf:
        return math.inf
    mu = non_negative("mu", mu)
    if mu == 0 or log_delta(0.0, mu) <= log:
        return 0.0
    high = 1.0
    while log_delta(high, mu) > log:
        high *= 2
    return _private_root(lambda e: log_delta(e, mu) - log, 0.0, high, towards=math.inf)


def mu(epsilon: float, delta: float) -> float:
    """The largest μ with δ(ε; μ) <= `delta`, rounded down. `delta` = 1 gives ∞."""
    epsilon = non_negative("epsilon", epsilon)
    log = _log_target(delta)
    if log == 0:
        return math.inf
    low = 1.0
    while log_delta(epsilon, low) > log:
        low /= 2
    while log_delta(epsilon, 2 * low) <= log:
        low *= 2
    return _private_root(lambda m: log_delta(epsilon, m) - log, low, 2 * low, towards=0.0)


def _log_target(delta: float) -> float:
    delta = number("delta", delta)
    if not 0 < delta <= 1:
        raise ArgumentError(f"delta must be in (0, 1], got delta={delta:g}")
    return math.log(delta)


def _private_root(excess: Callable[[float], float], low: float, high: float, *, towards: float) -> float:
    """The root of a monotone function, moved in the direction of `towards` until `excess` is <= 0."""
    value = _root(excess, low, high)
    steps = 1
    while excess(value) > 0:
        for _ in range(steps):
            value = math.nextafter(value, towards)
        steps *= 2
    return value


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """A root between two points of different sign, to four units in the last place, by Chandrupatla's method.

    Inverse quadratic interpolation through the last three points where it is safe, bisection elsewhere. scipy has such
    functions too, but importing scipy.optimize takes longer than a plan.
    """
    a, b = low, high  # the root is between them; a is the newer
    at_a, at_b = function(a), function(b)
    step = 0.5
    while True:
        x = a + step * (b - a)
        at_x = function(x)
        if (at_x > 0) == (at_a > 0):
            c, at_c = a, at_a
        else:
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a = x, at_x
        best = a if abs(at_a) < abs(at_b) else b
        if at_a == 0 or abs(b - a) <= 2 * _TIGHTEST * abs(best) + 1e-322:
            return best
        least = _TIGHTEST * abs(best) / abs(b - a)
        place, height = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
        step = 0.5
        if height**2 < place and (1 - height) ** 2 < 1 - place:
            step = at_a / (at_b - at_a) * at_c / (at_b - at_c)
            step += (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
        step = min(max(step, least), 1 - least)


def _log_delta(epsilon: float, mu: float) -> float:
    """log δ(ε; μ) for finite ε >= 0 and μ > 0, to `_SLACK`."""
    u = min(epsilon / mu - mu / 2, 1e100)  # far beyond, squares would overflow; δ falls with u
    if mu <= max(1.0, u):  # the two Mills ratios are close: integrate their derivative instead of subtracting
        x = u + mu * (_NODES + 1) / 2
        return -u * u / 2 - _LOG_SQRT_TAU + math.log(mu) - math.log(2) + math.log(float(_WEIGHTS @ _mills_slope(x)))
    if u >= 0:
        difference = _mills(u) - _mills(u + mu)
        return -u * u / 2 - _LOG_SQRT_TAU + math.log(difference)
    # δ is large: take the log of 1 − (1 − δ), where e^ε φ(u + μ) = φ(u)
    complement = float(ndtr(u)) + math.exp(-u * u / 2 - _LOG_SQRT_TAU) * _mills(u + mu)
    return math.log1p(-min(complement, 1 - 2.0**-53))


def _mills(x: float) -> float:
    """R(x) = Φ(−x)/φ(x)."""
    return _SQRT_HALF_PI * float(erfcx(x / math.sqrt(2)))


def _mills_slope(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """−R'(x) = 1 − x R(x) > 0, by its asymptotic series where the subtraction would cancel."""
    near = 1 - x * (_SQRT_HALF_PI * erfcx(x / math.sqrt(2)))
    inverse = 1 / np.maximum(x, 30.0) ** 2
    far = inverse * (1 - inverse * (3 - inverse * (15 - inverse * (105 - inverse * 945))))
    return np.where(x > 30, far, near)
