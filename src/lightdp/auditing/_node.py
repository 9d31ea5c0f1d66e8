"""`lightdp audit --client FILE.state`: what a node has spent, from the history that was announced to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightdp import attack, gaussian
from lightdp._validate import rounded_up
from lightdp.auditing._finding import MALFORMED, regular
from lightdp.auditing._replay import Figure, announced_rounds, figure, replay
from lightdp.errors import ArgumentError, LightDPError
from lightdp.federation import Kept, RosterRounds
from lightdp.planning import Failures, Plan

if TYPE_CHECKING:
    from rich.table import Table

_MORE = 1 + 1e-9  # on a budget: more than all roundings
_CLOSING = {1: ", and a closing round without data", 2: ", and two closing rounds without data"}


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a client's state file says it has spent. Made by `node`.

    Attributes:
        path: the file.
        name: of the client in its roster.
        plan: its noise and budget; of a member, that of its federation.
        run: that it takes part in, or did last.
        rosters: its rounds in each roster that it answers.
        ended: rounds in rosters that it answers no more, which count at their worst.
        known: rounds of which something was announced.
        announced: what its data has cost as announced; a closing round has none.
        worst: the same at worst (W5); `figures` names what that supposes.
        refused: the first round that it answered without room for it in the budget; None if there is none.
        before: μ² of earlier runs, as a Flower node counts them; None where the file does not say.
        fails: by how much drawn masks of all runs may fall short (B2).
    """

    path: Path
    name: str
    plan: Plan
    run: str
    rosters: tuple[RosterRounds, ...]
    ended: int
    known: int
    announced: Figure
    worst: Figure
    refused: int | None
    before: float | None
    fails: Failures

    @property
    def budget(self) -> Figure:
        """The plan's budget."""
        return figure(self.plan, self.plan.budget)

    @property
    def figures(self) -> dict[str, Figure]:
        """What was spent as announced and at worst, and the budget, each under its name in the table."""
        if self.plan.sampling_rate < 1 and self.plan.repairs:
            name = "at worst, with batches counted as whole"
        elif self.plan.sampling_rate < 1:
            name = "at worst, for a server that follows the protocol"
        elif not self.plan.late_is_seen or self.plan.graph.random:
            name = "at worst, if every upload was seen"
        else:
            name = "at worst, whatever was announced"
        return {"as announced": self.announced, name: self.worst, "budget": self.budget}

    @property
    def rounds(self) -> dict[str, int]:
        """How many rounds were answered, in all rosters, and what became of them."""
        names = ("answered", "used", "late", "void", "open", "closing")
        counts = {name: sum(getattr(each, name) for each in self.rosters) for name in names}
        return {"announced": self.known} | counts | {"answered": counts["answered"] + self.ended}

    @property
    def total(self) -> Figure | None:
        """Earlier runs and this one at worst, where the file counts earlier ones."""
        if self.before is None or not self.plan.gdp:
            return None
        mu = math.hypot(math.sqrt(self.before), self.worst.mu)
        return figure(self.plan, self.fails.epsilon(mu, self.plan.delta) if mu > 0 else 0.0, mu)

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not hold, in sentences."""
        most = self.plan.budget * _MORE
        found = []
        if self.announced.epsilon > most:
            found.append(f"{_words(self.announced)} as announced exceeds the budget of {self.plan.budget:g}")
        if self.refused is not None and self.worst.epsilon > most:
            found.append(
                f"round {self.refused} was answered without room for it: {_words(self.worst)} at worst exceeds the "
                f"budget of {self.plan.budget:g}"
            )
        return tuple(found)

    @property
    def holds(self) -> bool:
        """Whether what was spent is within the budget."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values, without any key; an infinite ε is none."""
        total = None if self.total is None else asdict(self.total)
        if total is not None and total["epsilon"] == math.inf:
            total["epsilon"] = None
        return {
            "state": str(self.path),
            "client": self.name,
            "run": self.run,
            "rounds": self.rounds,
            "rosters": [asdict(each) for each in self.rosters],
            "planned_rounds": self.plan.turns,
            "delta": self.plan.delta,
            "unit": self.plan.unit,
            "adjacency": self.plan.adjacency,
            "gdp": self.plan.gdp,
            "announced": asdict(self.announced),
            "worst": asdict(self.worst),
            "budget": asdict(self.budget),
            "left": asdict(self.left),
            "all_runs": total,
            "problems": list(self.problems),
            "holds": self.holds,
        }

    @property
    def left(self) -> Figure:
        """What is left of the budget at worst: μ of more Gaussian noise; with sampled batches the rest of ε."""
        if self.plan.gdp:
            mu = math.sqrt(max(self.budget.mu**2 - self.worst.mu**2, 0.0))
            return figure(self.plan, gaussian.epsilon(mu, self.plan.delta), mu)
        return figure(self.plan, max(self.plan.budget - self.worst.epsilon, 0.0))

    def shown(self) -> Iterator[str | Table]:
        """Whose state it is, its rounds, the figures, what is left, and what does not hold."""
        plan, rounds = self.plan, self.rounds
        yield f"{self.path}: client {self.name} of run {self.run}"
        yield (
            f"{rounds['answered']} rounds answered of {plan.turns} planned: {rounds['used']} used, {rounds['late']} "
            f"too late, {rounds['void']} void, {rounds['open']} not {'final' if plan.grace else 'announced'} yet"
            f"{_CLOSING.get(rounds['closing'], '')}"
        )
        if self.ended > 0 or len(self.rosters) > 1:
            ended = "" if self.ended == 0 else f", and {self.ended} rounds in earlier ones"
            yield f"in rosters {', '.join(str(each.roster) for each in self.rosters)}{ended}"
        yield self._table()
        left = [math.floor(1e4 * value) / 1e4 for value in (self.left.mu, self.left.epsilon)]
        yield f"left of the budget, at worst: μ = {left[0]:.4f}, ε = {left[1]:.4f}"
        if self.total is not None:
            yield f"with all earlier runs of this node: {_words(self.total)} at δ = {plan.delta:g}"
        yield attack.sentence(self.worst.found, plan.unit, plan.adjacency)
        if not plan.gdp:
            yield "Batches are sampled: μ is that of Gaussian noise with this ε at this δ, not μ-GDP."
        yield from (f"DOES NOT HOLD  {each}" for each in self.problems)
        if self.holds:
            yield "holds: within the budget"

    def _table(self) -> Table:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415  slow to import
        from rich.table import Table  # noqa: PLC0415  likewise

        table = Table("spent", box=SIMPLE_HEAD, pad_edge=False)
        for head in ("μ" if self.plan.gdp else "μ at this δ", f"ε at δ = {self.plan.delta:g}"):
            table.add_column(head, justify="right")
        for name, each in self.figures.items():
            table.add_row(name, rounded_up(each.mu), rounded_up(each.epsilon))
        return table


def node(path: Path) -> Node:
    """What the node whose state lies in a file has spent; the file is only read, and nothing private is printed.

    All kinds of files are read: those of a `Client` or a `Member` with `store=File(path)`, and that of a Flower node
    (`lightdp-state`), which holds such a state and what earlier runs have spent.

    Args:
        path: of the file.

    Raises:
        ArgumentError: the file holds no state, an older one than was saved last, or one of a plan that is not its own.
    """
    try:
        kept = Kept.read(regular("client", path))
        announced, worst, refused = replay(kept.plan, kept.states, kept.elsewhere)
    except (LightDPError, *MALFORMED) as error:
        raise ArgumentError(f"client must be a state file, got client={str(path)!r}: {error}") from None
    return Node(
        path=path, name=kept.name, plan=kept.plan, run=kept.run, rosters=kept.rosters, ended=kept.ended,
        known=sum(map(announced_rounds, kept.states)), announced=announced, worst=worst, refused=refused,
        before=kept.before, fails=kept.fails,
    )  # fmt: skip


def _words(each: Figure) -> str:
    return f"ε = {rounded_up(each.epsilon)} (μ = {rounded_up(each.mu)})"
