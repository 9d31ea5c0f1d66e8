"""What a guarantee means for an attacker: how often the best one is right who is seldom wrong.

An attacker looks at all that the adversary sees and says whether a unit (a record, a person, or a client's whole data)
was in the training. Of the units that were not, it accuses a share, the false positives; of those that were, it finds a
share, the true positives. A guarantee bounds the second by the first. Of Gaussian noise the bound is
`lightdp.gaussian.power`; this module has the one for any mechanism whose (ε, δ) is known, and the words for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import ndtri

from lightdp import gaussian
from lightdp._validate import probability, rounded_up

FALSE_POSITIVES = 0.01
"""The share of false accusations for which outputs say what an attacker finds."""
_ROUND_UP = 1 + 1e-12  # on a rate: more than all roundings here
_NAMES = {"record": "records", "person": "persons", "client": "clients", "paper": "clients"}


def power(epsilon: Callable[[float], float], delta: float, *, false_positives: float = FALSE_POSITIVES) -> float:
    """Upper bound on the true-positive rate of every attack on a mechanism, from its (ε, δ) at two δ.

    Formal guarantee: by (ε, δ)-DP, TPR <= δ + e^ε FPR and, with the two data sets exchanged,
    1 - FPR <= δ + e^ε (1 - TPR). Both hold at each δ, so the least of them does. The second δ is where the bound is
    tight for Gaussian noise that has the same ε at `delta`; for compositions of many rounds that is nearly so.

    | ε at `delta` | result |
    | --- | --- |
    | 0 | at most `delta` + `false_positives` |
    | ∞ | 1 |

    Args:
        epsilon: from a δ to an ε that holds there, for example `Plan.epsilon`.
        delta: the first δ.
        false_positives: FPR, in (0, 1).

    >>> round(power(lambda delta: gaussian.epsilon(1.0, delta), 1e-5), 4), round(gaussian.power(1.0, 0.01), 4)
    (0.0924, 0.0924)
    """
    rate, spent = probability("false_positives", false_positives), epsilon(delta)
    bounds = [_bound(spent, delta, rate)]
    if spent < math.inf:
        mu = gaussian.mu(spent, delta, up=True)
        second = gaussian.delta(abs(-float(ndtri(rate)) * mu - mu * mu / 2), mu) if mu < math.inf else 0.0
        if delta < second < 1:
            bounds.append(_bound(epsilon(second), second, rate))
    return min(bounds)


def degree(epsilon: float, delta: float, mu: float, *, gdp: bool) -> str:
    """ε, δ and μ of a guarantee in words, rounded up.

    >>> degree(3.0, 1e-5, 0.71914, gdp=True)
    'ε = 3.0000 at δ = 1e-05 (μ = 0.7192)'
    >>> degree(3.0, 1e-5, 0.71914, gdp=False)
    'ε = 3.0000 at δ = 1e-05 (at this δ as with μ = 0.7192)'

    Args:
        epsilon: ε.
        delta: δ.
        mu: μ, or the μ of Gaussian noise with this ε at this δ.
        gdp: whether μ-GDP holds; otherwise the words say that μ is of this δ only.
    """
    return f"ε = {rounded_up(epsilon)} at δ = {delta:g} ({'' if gdp else 'at this δ as with '}μ = {rounded_up(mu)})"


def sentence(power: float | None, unit: str, adjacency: str, *, false_positives: float = FALSE_POSITIVES) -> str:
    """One sentence about an attacker, with its true-positive rate rounded up.

    >>> sentence(0.0924, "client", "add-remove")
    'An attacker who wrongly accuses 1 % of the clients not in the data finds at most 9.3 % of those in it.'
    >>> sentence(None, "record", "replace")
    'An attacker who wrongly accuses 1 % of the records not replaced finds at most the share "found" of those replaced.'

    Args:
        power: the true-positive rate, or a bound on it; None below a table that has it in a column "found".
        unit: of the guarantee: "record", "person", "client", or "paper" for clients whose sensitivity is assumed.
        adjacency: of the guarantee; with "replace" the attacker looks for what was replaced.
        false_positives: of the units that are not in the data.
    """
    found = 'the share "found"' if power is None else f"{rounded_up(100 * min(power, 1.0), 1)} %"
    outside, inside = ("replaced", "replaced") if adjacency == "replace" else ("in the data", "in it")
    return (
        f"An attacker who wrongly accuses {100 * false_positives:g} % of the {_NAMES.get(unit, 'units')} not {outside} "
        f"finds at most {found} of those {inside}."
    )


def _bound(epsilon: float, delta: float, rate: float) -> float:
    """The least TPR bound of one (ε, δ)."""
    direct = delta + rate * math.exp(min(epsilon, 700.0))
    exchanged = 1 - math.exp(-epsilon) * max(1 - delta - rate, 0.0)
    return min(1.0, min(direct, exchanged) * _ROUND_UP)
