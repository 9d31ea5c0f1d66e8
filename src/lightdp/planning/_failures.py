"""By how much drawn masks may fall short of the Gaussian noise that ledgers count (B2)."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from scipy.special import ndtri

from lightdp import gaussian
from lightdp._validate import non_negative
from lightdp.errors import ArgumentError

_HALVINGS = 60  # of where a μ may lie: more than a float has bits


@dataclass(frozen=True)
class Failures:
    """By how much drawn masks of some runs may fall short of the Gaussians that a ledger of μ² counts (B2).

    At the plan's ε and δ `Masks.covered` makes room for it. At any other ε, and beside other releases, it counts on top
    of the Gaussian loss: with a fixed probability, with one that grows as 1 + e^ε, and with a factor e^shift on all
    densities. Failures of several runs add up.

    Attributes:
        fixed: probability that masks are narrower, or lost more often, than is counted.
        tails: probability that one is beyond the reach of its Gaussian.
        shift: of ε, for the lattice.
    """

    fixed: float = 0.0
    tails: float = 0.0
    shift: float = 0.0

    @classmethod
    def of(cls, name: str, found: object) -> Failures:
        """Those that `to_list` has written; none for an empty list, as before (B2).

        >>> Failures.of("failed", Failures(tails=1e-9).to_list()), Failures.of("failed", []) == NEVER
        (Failures(fixed=0.0, tails=1e-09, shift=0.0), True)
        """
        if not isinstance(found, list) or len(found) not in {0, 3}:
            raise ArgumentError(f"{name} must be a list of three numbers, got {found!r}")
        return cls(*(non_negative(name, each) for each in found))

    def to_list(self) -> list[float]:
        """Three numbers, as JSON values."""
        return list(astuple(self))

    def __add__(self, other: Failures) -> Failures:
        """Those of other runs as well."""
        return Failures(self.fixed + other.fixed, self.tails + other.tails, self.shift + other.shift)

    def at(self, epsilon: float) -> float:
        """What they take of δ at this ε."""
        return (self.fixed + (1 + math.exp(min(epsilon, 700.0))) * self.tails) * math.exp(self.shift)

    def epsilon(self, mu: float, delta: float) -> float:
        """ε of everything that costs μ with these failures, at δ; infinity where they leave nothing of δ.

        >>> Failures().epsilon(1.0, 1e-5) == gaussian.epsilon(1.0, 1e-5) < Failures(fixed=1e-6).epsilon(1.0, 1e-5)
        True
        """
        if self == NEVER:
            return gaussian.epsilon(mu, delta)
        more = math.exp(-self.shift)
        failed = self.at(gaussian.epsilon(mu, delta / 2 * more) + self.shift)  # at an ε that is not below the result
        return gaussian.epsilon(mu, (delta - failed) * more) + self.shift if failed <= delta / 2 else math.inf

    def delta(self, epsilon: float, mu: float) -> float:
        """δ of everything that costs μ with these failures, at ε; it never grows with ε.

        What holds at a smaller ε holds here too, and from some ε on, e^ε times the tails grow faster than the Gaussian
        part falls: where Φ(−ε/μ − μ/2), by which it does (E5), are the tails.

        >>> Failures().delta(3.0, 1.0) == gaussian.delta(3.0, 1.0) < Failures(fixed=1e-6).delta(3.0, 1.0) - 9e-7
        True
        """
        if self == NEVER:
            return gaussian.delta(epsilon, mu)
        best = min(epsilon, max(self.shift, self._turn(mu)))
        found = gaussian.delta(max(best - self.shift, 0.0), mu) + max(self.shift - best, 0.0)
        return min(found * math.exp(self.shift) + self.at(best), 1.0)

    def _turn(self, mu: float) -> float:
        """The ε from which on `at` grows faster than δ(ε; μ) falls."""
        if self.tails == 0 or not 0 < mu < math.inf:
            return math.inf if self.tails == 0 else 0.0
        return self.shift - mu * (float(ndtri(min(self.tails * math.exp(self.shift), 1.0))) + mu / 2)

    def mu(self, epsilon: float, delta: float) -> float:
        """The largest μ of which ε at δ holds with these failures, rounded down; 0 where they leave nothing of δ.

        >>> Failures().mu(3.0, 1e-5) == gaussian.mu(3.0, 1e-5) > Failures(fixed=1e-6).mu(3.0, 1e-5)
        True
        """
        low, high = 0.0, gaussian.mu(epsilon, delta)
        if self == NEVER:
            return high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(epsilon, middle) <= delta else (low, middle)
        return low


NEVER = Failures()
