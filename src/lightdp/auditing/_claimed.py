"""`Claimed`: a claim of others, and what is true."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightdp import attack, gaussian
from lightdp._validate import rounded_up
from lightdp.auditing._mechanisms import Mechanism

if TYPE_CHECKING:
    from rich.table import Table

_MANY = 1e5  # figures beyond it are printed with few digits


@dataclass(frozen=True)
class Truth:
    """What some rounds of a mechanism really give.

    Attributes:
        rounds: how many.
        mu: μ; where `gdp` does not hold, that of Gaussian noise with this ε at this δ.
        epsilon: ε at the claim's δ.
        power: the share of units that the best attack finds at 1 % false positives.
        accuracy: how often the best attack is right about a unit that is in the data with probability one half.
    """

    rounds: int
    mu: float
    epsilon: float
    power: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A claim, and what is true. Made by `claimed`.

    Attributes:
        text: the claim.
        mechanism: its noise.
        delta: δ.
        epsilon: the ε that is claimed; None where there is none.
        per_round: whether the claim is for one round, as tools make it that choose noise for each round by itself.
        one: what one round gives.
        whole: what all rounds give.
        tolerance: relative precision to which the noise that an accountant chooses is found.
    """

    text: str
    mechanism: Mechanism
    delta: float
    epsilon: float | None
    per_round: bool
    one: Truth
    whole: Truth
    tolerance: float = 1e-9

    @property
    def claimed_for(self) -> Truth:
        """The rounds that the claim is about."""
        return self.one if self.per_round else self.whole

    @property
    def holds(self) -> bool:
        """Whether the claimed ε is true, up to `tolerance`."""
        return self.epsilon is None or self.claimed_for.epsilon <= self.epsilon * (1 + self.tolerance)

    @property
    def mu(self) -> float | None:
        """The μ of Gaussian noise with the claimed ε; None where there is none."""
        return None if self.epsilon is None else gaussian.mu(self.epsilon, self.delta, up=True)

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values; null where a figure is ∞."""
        return {
            "claim": self.text,
            "mechanism": self.mechanism.words,
            "delta": self.delta,
            "epsilon_claimed": self.epsilon,
            "mu_claimed": self.mu,
            "claimed_for": "round" if self.per_round else "training",
            "gdp": self.mechanism.gdp,
            "one_round": _json(self.one),
            "all_rounds": _json(self.whole),
            "holds": self.holds,
        }

    def shown(self) -> Iterator[str | Table]:
        """The mechanism, what is claimed and what is true, and whether the claim holds."""
        yield self.mechanism.words
        yield self._table()
        if not self.mechanism.gdp:
            yield "μ is that of Gaussian noise with this ε at this δ; it is not μ-GDP."
        yield attack.sentence(None, "unit", self.mechanism.adjacency)
        yield "right: how often the best attack tells whether a unit is in the data, at even odds"
        truth = self.claimed_for
        if self.epsilon is None:
            yield f"nothing was claimed; {self._spent(self.whole)}"
        elif not self.holds:
            yield f"DOES NOT HOLD  claimed is ε = {self.epsilon:g}; {self._spent(truth)}"
        elif truth.rounds == self.whole.rounds:
            yield "holds"
        else:
            yield f"holds for one round; {self._spent(self.whole)}"

    def _spent(self, truth: Truth) -> str:
        rounds = "one round gives" if truth.rounds == 1 else f"{truth.rounds:,} rounds give"
        known = "" if self.mechanism.tight else "up to "
        return f"{rounds} {known}ε = {_figure(truth.epsilon)} at δ = {self.delta:g} (μ = {_figure(truth.mu)})"

    def _table(self) -> Table:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415  slow to import
        from rich.table import Table  # noqa: PLC0415  likewise

        table = Table("", box=SIMPLE_HEAD, pad_edge=False)
        for head in ("μ", f"ε at δ = {self.delta:g}", "found", "right"):
            table.add_column(head, justify="right")
        if self.epsilon is not None and (mu := self.mu) is not None:
            power, accuracy = gaussian.power(mu, attack.FALSE_POSITIVES), (1 + gaussian.delta(0.0, mu)) / 2
            name = f"claimed, {'one round' if self.per_round else 'all rounds'}"
            table.add_row(name, _figure(mu), _figure(self.epsilon), _percent(power), _percent(accuracy))
        for truth in (self.one, self.whole) if self.whole.rounds > 1 else (self.one,):
            known = "true" if self.mechanism.tight else "at most"
            name = f"{known}, one round" if truth.rounds == 1 else f"{known}, {truth.rounds:,} rounds"
            cells = _figure(truth.mu), _figure(truth.epsilon), _percent(truth.power), _percent(truth.accuracy)
            table.add_row(name, *cells)
        return table


def _json(truth: Truth) -> dict[str, float | None]:
    facts = {"rounds": truth.rounds, "mu": truth.mu, "epsilon": truth.epsilon, "found": truth.power}
    facts |= {"right": truth.accuracy}
    return {name: value if math.isfinite(value) else None for name, value in facts.items()}


def _figure(value: float) -> str:
    """Rounded up, with few digits if it is large."""
    if not math.isfinite(value):
        return "∞"
    if value < _MANY:
        return rounded_up(value)
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.4g}"


def _percent(value: float) -> str:
    return f"{rounded_up(100 * min(value, 1.0), 2)} %"
