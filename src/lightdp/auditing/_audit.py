"""`Audit`: what an audit of a plan found, as numbers, as a table and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lightdp import attack, gaussian
from lightdp._validate import rounded_down, rounded_up
from lightdp.auditing._clip import Clip
from lightdp.auditing._measure import Deviation, Measurement
from lightdp.auditing._search import Near
from lightdp.auditing._view import VICTIM, View
from lightdp.planning import Plan

if TYPE_CHECKING:
    from rich.table import Table

_SLACK = 1 + 1e-9  # rounding errors of an exact figure


@dataclass(frozen=True)
class Figure:
    """μ, and the ε that it means at the plan's δ."""

    mu: float
    epsilon: float

    @property
    def found(self) -> float:
        """True-positive rate of the best attack at 1 % false positives, rounded up."""
        return gaussian.power(self.mu, attack.FALSE_POSITIVES)

    def to_dict(self) -> dict[str, float]:
        """μ, ε and what the best attack finds, as JSON values."""
        return {"mu": self.mu, "epsilon": self.epsilon, "found": self.found}

    @classmethod
    def of(cls, mu: float, delta: float) -> Figure:
        """The figure of a μ."""
        return cls(mu, gaussian.epsilon(mu, delta))


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit of a plan measured, and whether it holds. Made by `lightdp.audit`.

    Attributes:
        plan: what was audited.
        lies: what the server told clients.
        schedule: "random", or the file.
        confidence: probability that all statements are right.
        values: number of coordinates that were measured.
        level: probability that one statement is wrong.
        rounds: how many rounds were played, closing ones included.
        data_rounds: in how many of them clients were asked for data.
        ended: whether a random schedule ended early, as too many clients' budgets did not allow another round.
        shows_late: whether the server sees uploads that come too late.
        view: the uploads that the adversary saw, and who colluded.
        refused: how many messages honest clients did not answer.
        near: how near the exact μ comes to what is claimed, of a search and of where it began; empty without one.
        exact: of what was sent, for the noise that the plan promises (E2).
        announced: what client 0 says it spent, as announced to it; lies may cost more.
        worst: what client 0 says it spent at worst, whatever was announced to whom (W5).
        budget: what the plan allows.
        measurements: of μ, from the bytes.
        deviations: of the covariance of the uploads from what the plan says.
        clip: the client's clip; None for unit "record".
        scores: how the best score is distributed for both values of the secret: edges of bins, and counts.
    """

    plan: Plan
    lies: str
    schedule: str
    confidence: float
    values: int
    level: float
    rounds: int
    data_rounds: int
    ended: bool
    shows_late: bool
    view: View
    refused: int
    near: Mapping[str, Near]
    exact: Figure
    announced: Figure
    worst: Figure
    budget: Figure
    measurements: tuple[Measurement, ...]
    deviations: tuple[Deviation, ...]
    clip: Clip | None
    scores: dict[str, list[float]]

    @property
    def claims(self) -> dict[str, Figure]:
        """What must not be exceeded; what the odometer says as announced, only where clients are told the truth."""
        claims = {"the budget": self.budget, "the odometer at worst": self.worst}
        return claims | ({"the odometer as announced": self.announced} if self.lies == "none" else {})

    @property
    def holds(self) -> bool:
        """Whether nothing lies above what is claimed, and no check failed."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not hold, in sentences."""
        limits = {"the exact μ of the plan's noise": self.exact} | self.claims
        plan, found = self.plan, list[str]()
        if plan.understates and plan.epsilon() > plan.budget * _SLACK:
            found.append(
                f"plan: its noise gives ε = {rounded_up(plan.epsilon())} in {plan.rounds} rounds, "
                f"calibration={plan.request.calibration!r} claims {plan.budget:g}"
            )
        unseen = not plan.late_is_seen and self.shows_late
        why = ": it shows uploads that late='unseen' assumes nobody sees" if unseen else ""
        found += [
            f"exact μ {self.exact.mu:.4f} of what was sent lies above that of {name}, {claim.mu:.4f}{why}"
            for name, claim in self.claims.items()
            if self.exact.mu > claim.mu * _SLACK
        ]
        for each in self.measurements:
            over = [name for name, limit in limits.items() if each.low > limit.mu * _SLACK]
            if over:
                found.append(f"{each.name}: μ >= {each.low:.4f} lies above {', '.join(over)}")
            over = [name for name, limit in limits.items() if (each.epsilon_low or 0.0) > limit.epsilon * _SLACK]
            if over:
                found.append(f"{each.name}: ε >= {each.epsilon_low:.4f} lies above {', '.join(over)}")
        found += [
            f"{each.group}: {each.ratio:.4g} times the expected variance, {each.where} "
            f"(by chance with probability at most {each.chance:.1g})"
            for each in self.deviations
            if each.chance < self.level
        ]
        if self.clip is not None and not self.clip.holds:
            found.append(
                f"clip: an update beyond {self.clip.clip:g} left with a norm of at least {self.clip.norm[0]:.4g}"
            )
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, with the ε of each end of an interval."""
        delta = self.plan.delta
        measured = [
            asdict(each)
            | {"epsilon_of_low": gaussian.epsilon(each.low, delta)}
            | {"epsilon_of_high": None if each.high is None else gaussian.epsilon(each.high, delta)}
            for each in self.measurements
        ]
        return {
            "plan": self.plan.to_dict(),
            "victim": VICTIM,
            "colluders": list(self.view.colluders),
            "schedule": self.schedule,
            "lies": self.lies,
            "rounds": self.rounds,
            "data_rounds": self.data_rounds,
            "ended": self.ended,
            "shows_late": self.shows_late,
            "uploads": len(self.view.uploads),
            "signs": "worst" if self.view.worst_signs else "improved",
            "refused": self.refused,
            "near": {name: asdict(each) | {"mean": each.mean} for name, each in self.near.items()},
            "values": self.values,
            "confidence": self.confidence,
            "level": self.level,
            "exact": self.exact.to_dict(),
            "announced": self.announced.to_dict(),
            "worst": self.worst.to_dict(),
            "budget": self.budget.to_dict(),
            "attacker": self._attacker,
            "measurements": measured,
            "deviations": [asdict(each) | {"holds": each.chance >= self.level} for each in self.deviations],
            "clip": None if self.clip is None else asdict(self.clip) | {"holds": self.clip.holds},
            "scores": self.scores,
            "problems": list(self.problems),
            "holds": self.holds,
        }

    @property
    def _attacker(self) -> str:
        """What client 0's own figure at worst means for an attacker."""
        return attack.sentence(self.worst.found, self.plan.unit, self.plan.adjacency)

    @property
    def _extent(self) -> str:
        """How much of the plan was played."""
        least, most = sorted((self.data_rounds, self.plan.turns))
        much = f"{least} of {most} rounds" if least == self.data_rounds else f"{most} rounds where {least} are planned"
        return much + ("; clients refused the rest, which their budgets do not allow" if self.ended else "")

    def shown(self) -> Iterator[str | Table]:
        """What was played, the table of figures, the checks, and what does not hold."""
        plan = self.plan
        helpers = ", ".join(map(str, self.view.colluders)) or "nobody"
        told = {
            "none": "the truth",
            "rotation": "rotating lies",
            "search": "lies that a search found",
            "models": "the truth, and one of them in each round gets another model",
        }
        late = "; late uploads are assumed unseen" if not plan.late_is_seen else ""
        yield f"Client {VICTIM} against the server, helped by {helpers}; clients are told {told[self.lies]}{late}"
        yield f"Played: {self._extent}"
        yield (
            f"{len(self.view.uploads)} uploads of honest clients, {self.values:,} coordinates; "
            f"data moves by Δ = {plan.sensitivity:g} in each round, "
            f"with {'the worst signs' if self.view.worst_signs else 'signs that no change of one or two betters'}"
        )
        if self.lies in {"rotation", "search"}:
            yield f"{self.refused} messages were refused by honest clients and are not part of this"
        if self.near:
            yield "How near the exact μ comes to what is claimed; the search raises the mean of both shares:"
            yield from (f"{name:<10} {each}, {100 * each.mean:.1f} % in the mean" for name, each in self.near.items())
        yield self._table()
        yield f"found, for the odometer at worst: {self._attacker}"
        yield "Variances that deviate most, with the probability of so much by chance:"
        for each in self.deviations:
            chance = f"(chance {each.chance:.2g})"
            yield f"{each.group:<10} {each.ratio:.4f} times the expected variance {chance}, {each.where}"
        if self.clip is None:
            yield "clip       not audited: with unit record the application clips each record"
        else:
            low, high = self.clip.norm
            yield f"clip       an update beyond {self.clip.clip:g} left with a norm of {low:.4g} to {high:.4g}"
        yield ""
        yield from (f"DOES NOT HOLD  {each}" for each in self.problems)
        if self.holds:
            yield f"holds: nothing lies above what is claimed, at confidence {self.confidence:g}, in {self._extent}"

    def _table(self) -> Table:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415  slow to import
        from rich.table import Table  # noqa: PLC0415  likewise

        delta = self.plan.delta
        table = Table("", box=SIMPLE_HEAD, pad_edge=False)
        for head in ("μ", f"ε at δ = {delta:g}", "found"):
            table.add_column(head, justify="right")
        names = {
            "budget of the plan": self.budget,
            "odometer of client 0, at worst": self.worst,
            "odometer of client 0, as announced": self.announced,
            "exact, of what was sent": self.exact,
        }
        for name, figure in names.items():
            at_least = figure is self.exact and not self.view.worst_signs  # other signs may show more
            cells = tuple(
                f">= {rounded_down(value, places)}" if at_least else rounded_up(value, places)
                for value, places in ((figure.mu, 4), (figure.epsilon, 4), (100 * figure.found, 1))
            )
            table.add_row(name, *cells[:2], f"{cells[2]} %")
        for each in self.measurements:
            if each.high is not None:
                low, high = (gaussian.epsilon(mu, delta) for mu in (each.low, each.high))
                cells = (
                    f"{rounded_down(each.low)} to {rounded_up(each.high)}",
                    f"{rounded_down(low)} to {rounded_up(high)}",
                )
            else:
                cells = f">= {rounded_down(each.low)}", f">= {rounded_down(each.epsilon_low or 0.0)}"
            table.add_row(each.name, *cells)
        return table
