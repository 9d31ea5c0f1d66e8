"""(E5): the exact privacy of Gaussian noise, δ(ε; μ), its inverses and the best attack, rounded to the private side.

μ is the ratio of sensitivity to noise, Δ/σ. With Φ the normal distribution function,

    δ(ε; μ) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

Both terms share a factor: with u = ε/μ − μ/2, φ the normal density and R(x) = Φ(−x)/φ(x) the Mills ratio,

    δ(ε; μ) = φ(u) [R(u) − R(u + μ)] = φ(u) ∫ (1 − x R(x)) dx over [u, u + μ],

which neither overflows nor cancels. Everything is computed in log space; `_SLACK` bounds the rounding errors
(an mpmath oracle in the tests holds the error to a tenth of it).

Formal guarantee, for ε in [0, 1000] and δ in [1e-300, 1], in exact arithmetic and not only in floating point:
`delta` is never below δ(ε; μ), `epsilon` never below the least ε, `mu` never above the largest μ (with `up`, never
below it), and `power` never below the best attack's true-positive rate.

150 rounds with noise multiplier 20 have μ = √150/20. What do they cost, and how much noise would cost ε = 1?

>>> round(epsilon(150**0.5 / 20, delta=1e-5), 4)
2.5017
>>> round(150**0.5 / mu(epsilon=1, delta=1e-5), 2)
45.69
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, ndtr, ndtri

from lightdp._validate import non_negative, number, probability
from lightdp.errors import ArgumentError

_SLACK = 1e-12  # bound on the absolute error of `_log_delta`, relative to max(1, |log δ|), if u were exact
_TIGHTEST = 2.0**-51
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_LOG_SQRT_TAU = math.log(2 * math.pi) / 2
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def log_delta(epsilon: float, mu: float) -> float:
    """Log of an upper bound on δ(ε; μ) that is tight to about 1e-12 (E5).

    Args:
        epsilon: ε >= 0.
        mu: μ >= 0; 0 gives −∞ and ∞ gives 0.

    >>> round(log_delta(1000.0, 1.0))  # δ itself would underflow
    -499515
    """
    return _log_bound(non_negative("epsilon", epsilon), _ratio(mu))


def delta(epsilon: float, mu: float) -> float:
    """δ(ε; μ), rounded up (E5).

    | μ | result |
    | --- | --- |
    | 0 | 0: nothing is revealed |
    | tiny | the least positive float instead of an underflow to 0 |
    | ∞ | 1 |

    Args:
        epsilon: ε >= 0.
        mu: μ >= 0, which may be ∞.

    >>> round(delta(1.0, 1.0), 6)
    0.126937
    """
    log = log_delta(epsilon, mu)
    return 0.0 if log == -math.inf else min(1.0, math.nextafter(math.exp(log), math.inf))


def epsilon(mu: float, delta: float) -> float:
    """The least ε >= 0 with δ(ε; μ) <= `delta`, rounded up (E5).

    | case | result |
    | --- | --- |
    | `delta` = 1, or μ so small that (0, `delta`) holds | 0 |
    | μ = ∞ and `delta` < 1 | ∞ |

    Args:
        mu: μ >= 0, which may be ∞.
        delta: δ in (0, 1].

    >>> round(epsilon(1.0, 1e-5), 4)
    4.3772
    """
    return _epsilon(_ratio(mu), _log_target(delta))


@lru_cache(maxsize=4096)  # clients that took part in the same rounds have spent the same
def _epsilon(mu: float, log: float) -> float:
    if _log_bound(0.0, mu) <= log:
        return 0.0
    if mu == math.inf:
        return math.inf
    high = 1.0
    while _log_bound(high, mu) > log:
        high *= 2
    return _private_root(lambda e: _log_bound(e, mu) - log, 0.0, high, towards=math.inf)


def mu(epsilon: float, delta: float, *, up: bool = False) -> float:
    """The largest μ with δ(ε; μ) <= `delta`, rounded down (E5). `delta` = 1 or ε = ∞ give ∞.

    Args:
        epsilon: ε >= 0, which may be ∞.
        delta: δ in (0, 1].
        up: round up instead: the μ to report for an ε that was spent, where rounding down is for noise to be chosen.

    >>> round(mu(1.0, 1e-5), 4)
    0.2681
    >>> mu(1.0, 1e-5) < mu(1.0, 1e-5, up=True) < mu(1.0, 1e-5) * (1 + 1e-9)
    True
    """
    return _mu(epsilon if epsilon == math.inf else non_negative("epsilon", epsilon), _log_target(delta), up=up)


@lru_cache(maxsize=4096)  # as `_epsilon`
def _mu(epsilon: float, log: float, *, up: bool) -> float:
    if log == 0 or epsilon == math.inf:
        return math.inf
    low = 1.0
    while _log_bound(epsilon, low) > log:
        low /= 2
    while _log_bound(epsilon, 2 * low) <= log:
        low *= 2
    if not up:
        return _private_root(lambda m: _log_bound(epsilon, m) - log, low, 2 * low, towards=0.0)
    high = 2 * low
    while _log_bound(epsilon, high, sign=-1) < log:
        if high > 1000 * low:  # δ is so close to 1 that rounding hides the rest
            return math.inf
        high *= 2
    return _private_root(lambda m: log - _log_bound(epsilon, m, sign=-1), low, high, towards=math.inf)


def power(mu: float, false_positives: float) -> float:
    """The true-positive rate of the best attack at a rate of false positives, rounded up.

    An attacker who tests whether a unit is in the data, with Gaussian noise between, and is wrong about
    `false_positives` of the units that are not, is right about Φ(Φ⁻¹(`false_positives`) + μ) of those that are, by
    Neyman and Pearson; no attack on μ-GDP finds more.

    | μ | result |
    | --- | --- |
    | 0 | `false_positives`: guessing |
    | ∞ | 1 |

    Args:
        mu: μ >= 0, which may be ∞.
        false_positives: in (0, 1).

    >>> round(power(1.0, 0.01), 4), round(power(4.0, 0.01), 4)
    (0.0924, 0.9529)
    """
    start, mu = float(ndtri(probability("false_positives", false_positives))), _ratio(mu)
    if mu == math.inf:
        return 1.0
    place = start + mu + 2.0**-50 * (abs(start) + mu)  # both terms and their sum are rounded
    return min(1.0, math.nextafter(float(ndtr(place)) * (1 + _SLACK), 1.0))


def _ratio(mu: float) -> float:
    return mu if mu == math.inf else non_negative("mu", mu)


def _log_target(delta: float) -> float:
    if not 0 < (delta := number("delta", delta)) <= 1:
        raise ArgumentError(f"delta must be in (0, 1], got delta={delta:g}")
    return math.log(delta)


def _private_root(excess: Callable[[float], float], low: float, high: float, *, towards: float) -> float:
    """The root of a monotone function, moved in the direction of `towards` until `excess` is <= 0."""
    value, steps = _root(excess, low, high), 1
    while excess(value) > 0:
        for _ in range(steps):
            value = math.nextafter(value, towards)
        steps *= 2
    return value


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """A root between two points of different sign, to four units in the last place, by Chandrupatla's method.

    Inverse quadratic interpolation through the last three points where it is safe, bisection elsewhere. scipy.optimize
    has this too, but importing it takes longer than a plan.
    """
    new, b, step = (low, function(low)), (high, function(high)), 0.5
    while True:
        a, x = new, new[0] + step * (b[0] - new[0])
        new = x, function(x)
        b, c = (b, a) if (new[1] > 0) == (a[1] > 0) else (a, b)  # the root stays between the new point and b
        (x, at_x), (x_b, at_b), (x_c, at_c) = new, b, c
        best = x if abs(at_x) < abs(at_b) else x_b
        if at_x == 0 or abs(x_b - x) <= 2 * _TIGHTEST * abs(best) + 1e-322:
            return best
        place, height, step = (x - x_b) / (x_c - x_b), (at_x - at_b) / (at_c - at_b), 0.5
        if height**2 < place and (1 - height) ** 2 < 1 - place:
            step = at_x / (at_b - at_x) * at_c / (at_b - at_c)
            step += (x_c - x) / (x_b - x) * at_x / (at_c - at_x) * at_b / (at_c - at_b)
        least = _TIGHTEST * abs(best) / abs(x_b - x)
        step = min(max(step, least), 1 - least)


def _log_bound(epsilon: float, mu: float, sign: int = 1) -> float:
    """`log_delta` of arguments that were checked; with `sign` = -1 the lower bound."""
    if mu in {0.0, math.inf}:
        return -math.inf if mu == 0 else 0.0
    value = _log_delta(epsilon, mu)
    # effect on log δ, whose slope is at most 1 + |u|, of rounding u in `_log_delta` by 2^-52 of its terms
    further = 2.0**-51 * (epsilon / mu + mu / 2) * (1 + abs(epsilon / mu - mu / 2)) if value > -1e199 else 0.0
    return min(0.0, value + sign * (_SLACK * max(1.0, -value) + further))


def _log_delta(epsilon: float, mu: float) -> float:
    """log δ(ε; μ) for finite ε >= 0 and μ > 0, to `_SLACK`."""
    u = min(epsilon / mu - mu / 2, 1e100)  # far beyond, squares would overflow; δ falls with u
    if mu <= max(1.0, u):  # the two Mills ratios are close: integrate their derivative instead of subtracting
        x = u + mu * (_NODES + 1) / 2
        return -u * u / 2 - _LOG_SQRT_TAU + math.log(mu) - math.log(2) + math.log(float(_WEIGHTS @ _mills_slope(x)))
    if u >= 0:
        return -u * u / 2 - _LOG_SQRT_TAU + math.log(_mills(u) - _mills(u + mu))
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
