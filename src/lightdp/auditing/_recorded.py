"""`lightdp audit run.jsonl`: what a run's log says about privacy, recomputed from its rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp import attack, gaussian
from lightdp._validate import rounded_up
from lightdp.accountant import Odometer
from lightdp.auditing import _checks as checks
from lightdp.auditing import _said as said
from lightdp.auditing._exact import MOST_UPLOADS, Exact, Rounds, exact, mu_of
from lightdp.auditing._finding import MALFORMED, regular
from lightdp.auditing._rosters import Recount
from lightdp.errors import ArgumentError
from lightdp.planning import Plan
from lightdp.runlog import RunLog, attack_power
from lightdp.schemes import schemes

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 10  # clients in the table
_TOO_LARGE = (
    f"The exact covariance is for the complete graph and up to {MOST_UPLOADS:,} uploads; "
    "recomputed by the odometer alone."
)
_ROSTERS = (
    "Costs add up over the rosters of a client, those that were closed at their worst; recomputed by odometers alone, "
    "not by the exact covariance."
)
_ASSUMED = {
    "smpc": "Recomputed under its assumption: nobody sees anything but the sum, in which enough clients add noise.",
    "central": "Recomputed for those who see the models alone; the server sees every update without noise.",
}


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a log says about privacy, beside what its rounds give. Made by `recorded`.

    Attributes:
        log: the log.
        plan: its noise; None without noise.
        rounds: used and late clients of each, where the log names them.
        odometer: every client's count of the log's rounds; None without noise, or if the log does not say who was used.
        spent: ε of the client that spent most, recomputed.
        exact: every client's μ² from the covariance of all uploads; None where it is not computed.
        bounds: least and largest ε of the client that spent most, where only numbers of clients are known.
        by_client: every client's rounds, μ and ε over all of its rosters; None where all rounds have the same clients.
        problems: what does not hold, in sentences.
        notes: what was not or could not be checked.
    """

    log: RunLog
    plan: Plan | None = None
    rounds: Rounds = ()
    odometer: Odometer | None = None
    spent: float | None = None
    exact: Exact | None = None
    bounds: tuple[float, float] | None = None
    by_client: tuple[dict[str, Any], ...] | None = None
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether everything that the log says of privacy follows from its rounds and is within its budget."""
        return not self.problems

    @property
    def verdict(self) -> str:
        """Whether it holds, in a sentence that also says what there was to check."""
        log = self.log
        if not self.holds:
            return "does not hold"
        if self.plan is None:
            return "nothing to hold: no noise was added, and nothing is guaranteed to anybody"
        if not log.rounds:
            return "nothing to hold yet: the log has no rounds"
        if log.ended is None:
            return f"unfinished: what the log says follows from its {len(log.rounds):,} rounds so far; it has no end"
        if log.not_private:
            return "NOT PRIVATE, though it holds: what the log says of ε follows from its rounds"
        return "holds: what the log says of privacy follows from its rounds"

    @property
    def clients(self) -> list[dict[str, Any]]:
        """Every client: its rounds, and its μ and ε where they are computed."""
        if self.by_client is not None:
            return [*self.by_client]
        if self.plan is None or self.odometer is None or not self.plan.gdp:
            return []
        plan, nobody = self.plan, np.zeros((1, self.plan.clients), dtype=np.int64)
        used, seen = (np.vstack([nobody, *(sets[k].flags for sets in self.rounds)]).sum(axis=0) for k in (0, 1))
        void = np.vstack([nobody, *(late.flags for among, late in self.rounds if not among)]).sum(axis=0)
        mu, epsilon = self.odometer.mu(), self.odometer.epsilon()
        return [
            {
                "client": i,
                "used": int(used[i]),
                "late": int(seen[i] - void[i]),
                "void": int(void[i]),
                "mu": float(mu[i]),
                "epsilon": float(epsilon[i]),
                "mu_exact": None if self.exact is None else mu_of(plan, float(self.exact.squares[i])),
            }
            for i in range(plan.clients)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        best = self.exact
        return {
            "log": str(self.log.path),
            "scheme": self.log.scheme,
            "rounds": len(self.log.rounds),
            "delta": self.log.delta,
            "budget": self._json(self.log.claimed),
            "logged": self._json(self.log.epsilon),
            "recomputed": self._json(self.spent),
            "between": None if self.bounds is None else [self._json(each) for each in self.bounds],
            "gdp": self.plan is not None and self.plan.gdp,
            "exact": None
            if best is None or self.plan is None
            else self._json(gaussian.epsilon(mu := mu_of(self.plan, float(best.squares.max())), self.plan.delta), mu),
            "choices_of_colluders": None if best is None else best.choices,
            "all_choices": best is not None and best.complete,
            "figures": [
                {"name": name} | (self._json(epsilon, mu) or {}) for name, (epsilon, mu) in self._figures().items()
            ],
            "clients": [row | {"name": self.log.client_name(row["client"])} for row in self.clients],
            "problems": list(self.problems),
            "notes": [*self.log.not_private, *self.notes],
            "finished": self.log.ended is not None,
            "verdict": self.verdict,
            "holds": self.holds,
        }

    def shown(self) -> Iterator[str | Table]:
        """What was recomputed, every client or the ones that spent most, and what does not hold."""
        log, plan = self.log, self.plan
        yield from log.not_private
        yield f"{log.path}: {schemes()[log.scheme].title}, {len(log.rounds):,} rounds"
        if plan is not None:
            yield self._table(plan)
            if self.clients:
                yield self._clients()
                if len(self.clients) > _SHOWN:
                    most = sorted((row["mu"] for row in self.clients), reverse=True)[_SHOWN]
                    yield f"... and {len(self.clients) - _SHOWN:,} more, μ at most {rounded_up(most)}"
            if self.spent is not None:
                power = attack_power(plan, self.spent, self.rounds)
                yield attack.sentence(power, log.unit or plan.unit, plan.adjacency)
        yield from self.notes
        yield from (f"DOES NOT HOLD  {each}" for each in self.problems)
        if self.holds:
            yield self.verdict

    def _json(self, epsilon: float | None, mu: float | None = None) -> dict[str, float] | None:
        """A figure as all audits have it: μ, ε, and what an attacker finds at 1 % false accusations."""
        if epsilon is None or self.plan is None:
            return None
        mu = gaussian.mu(epsilon, self.plan.delta, up=True) if mu is None else mu
        return {"mu": mu, "epsilon": epsilon, "found": self._found(self.plan, epsilon, mu)}

    def _found(self, plan: Plan, epsilon: float, mu: float) -> float:
        if plan.gdp:
            return gaussian.power(mu, attack.FALSE_POSITIVES)
        if epsilon == self.spent:
            return attack_power(plan, epsilon, self.rounds)
        return attack.power(lambda _: epsilon, plan.delta)

    def _mu(self, epsilon: float | None) -> float | None:
        return None if epsilon is None or self.plan is None else gaussian.mu(epsilon, self.plan.delta, up=True)

    def _figures(self) -> dict[str, tuple[float, float | None]]:
        """What is known of the client that spent most: ε, and μ where it does not follow from ε at this δ."""
        if (plan := self.plan) is None:
            return {}
        asked = "claimed" if plan.understates else "budget of the plan"
        if self.log.started.config.get("epsilon_per") == "round":
            asked = "asked for, each round"
        rows: dict[str, float | None] = {
            asked: plan.budget,
            "the log": self.log.epsilon,
            "recomputed, the client that spent most": self.spent,
        }
        if self.bounds is not None:
            rows |= {"recomputed, at least": self.bounds[0], "recomputed, at most": self.bounds[1]}
        found: dict[str, tuple[float, float | None]] = {
            name: (epsilon, None) for name, epsilon in rows.items() if epsilon is not None
        }
        if self.exact is not None:
            mu = mu_of(plan, float(self.exact.squares.max()))
            tried = "all" if self.exact.complete else "the worst of"
            over = f"over {tried} {self.exact.choices} choices of colluders"
            name = f"exact, {over if self.exact.choices > 1 else 'for the only choice of colluders'}"
            found[name] = gaussian.epsilon(mu, plan.delta), mu
        return found

    def _table(self, plan: Plan) -> Table:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415  slow to import
        from rich.table import Table  # noqa: PLC0415  likewise

        table = Table("", box=SIMPLE_HEAD, pad_edge=False)
        for head in ("μ" if plan.gdp else "μ at this δ", f"ε at δ = {plan.delta:g}"):
            table.add_column(head, justify="right")
        for name, (epsilon, mu) in self._figures().items():
            table.add_row(name, rounded_up(self._mu(epsilon) or 0.0 if mu is None else mu), rounded_up(epsilon))
        return table

    def _clients(self) -> Table:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415  as above
        from rich.table import Table  # noqa: PLC0415  likewise
        from rich.text import Text  # noqa: PLC0415  likewise

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for head in ("client", "used", "late", "void", "μ", "ε", *([] if self.exact is None else ["μ exact"])):
            table.add_column(head, justify="right")
        for row in sorted(self.clients, key=lambda row: -row["mu"])[:_SHOWN]:
            cells = [f"{row[name]}" for name in ("used", "late", "void")]
            cells += [rounded_up(row[name]) for name in ("mu", "epsilon")]
            name = Text(self.log.client_name(row["client"]))  # as text: a log is not trusted
            table.add_row(name, *cells, *([] if self.exact is None else [rounded_up(row["mu_exact"])]))
        return table


@dataclass(frozen=True)
class Contradicted:
    """A log whose lines contradict each other, so that nothing follows from it.

    Attributes:
        path: of the log.
        problems: what contradicts what, in a sentence.
        holds: never.
    """

    path: Path
    problems: tuple[str, ...]
    holds: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {"log": str(self.path), "problems": list(self.problems), "verdict": "does not hold", "holds": False}

    def shown(self) -> Iterator[str | Table]:
        """What does not hold."""
        yield from (f"DOES NOT HOLD  {each}" for each in self.problems)


def recorded(path: Path) -> Recorded:
    """Every client's μ and ε recomputed from a run's log, and whether the log's claims hold.

    The noise is the plan's as logged; who was used and who was late in each round are as logged. Checked are: that
    the plan's noise follows from its settings and its figures from its noise, that numbers and names of clients agree
    and are possible, the ε and μ of each round and of the end, the noise of each round, and the budget. On the complete
    graph the exact covariance of all uploads, of up to 2,000, must not exceed what the odometer counts.

    What a log cannot show: uploads that were seen although it says they were lost, other noise than it says, and a
    change that was made in all places at once.

    Args:
        path: of the log.

    Raises:
        ArgumentError: the file is no log, or its plan has no noise that can be read.
        ContradictionError: lines are missing or too many; `Contradicted` is then what was found.
    """
    log = RunLog.read(regular("FILE", path))
    try:
        return _checked(log)
    except MALFORMED as error:
        raise ArgumentError(f"{path}: cannot be audited: {type(error).__name__}: {error}") from None


def _federated(log: RunLog, plan: Plan, notes: list[str]) -> Recorded:
    """What a log of changing rosters gives, by the odometers of its rosters."""
    if not plan.gdp:
        raise ArgumentError(f"{log.path}: cannot be audited: rosters change, and batches are sampled")
    problems = [*checks.of_plan(log, plan), *checks.of_settings(log, plan), *checks.of_end(log, plan)]
    problems += [*said.of_config(log, plan), *said.of_statement(log, plan, None)]
    found = Recount(log, plan).run()
    problems += found.problems
    if not found.final:
        notes.append(
            "The last rounds are not counted: the log does not have the lines with which their sets are final."
        )
    if found.open:
        notes.append("A round was open at the end: the ε of the end counts it at its worst, which no line shows.")
    spent = found.max_epsilon()
    problems += checks.of_budget(log, plan, spent)
    notes.append(_ROSTERS)
    return Recorded(
        log=log, plan=plan, spent=spent, by_client=tuple(found.clients()), problems=tuple(problems), notes=tuple(notes)
    )


def _one_roster(log: RunLog) -> bool:
    """Whether all rounds of a log whose rosters could have changed had the same one, of all clients."""
    rosters = log.rosters
    same = list(rosters) == [0] and rosters[0] == tuple(range(len(rosters[0])))
    same = same and not any(
        each.get("early") or each.get("open") for each in (log.ended.closed if log.ended else None) or ()
    )
    return same and all(line.roster == 0 and not line.closed for line in log.rounds)


def _checked(log: RunLog) -> Recorded:
    notes = said.notes(log)
    if log.started.plan is None:
        spoken = log.epsilon is not None or any(line.epsilon is not None for line in log.rounds)
        problems = ["the log has an ε, but no noise"] if spoken else [*said.of_statement(log, None, None)]
        return Recorded(log=log, problems=tuple(problems), notes=tuple(notes))
    plan, more = checks.planned(log)
    notes += more
    notes += [_ASSUMED[plan.request.calibration]] if plan.request.calibration in _ASSUMED else []
    notes += [] if plan.gdp else ["Batches are sampled: μ is that of Gaussian noise with this ε at this δ, not μ-GDP."]
    if log.federated and not _one_roster(log):
        return _federated(log, plan, notes)
    problems = [*checks.of_plan(log, plan), *checks.of_settings(log, plan)]
    problems += [*checks.of_end(log, plan), *said.of_config(log, plan)]
    if log.federated and (size := len(log.rosters[0])) != plan.clients:
        plan = plan.among(size)  # which all its rounds had
    problems += checks.of_noise(log, plan)
    rounds, impossible = checks.rounds(log, plan)
    problems += impossible
    problems += said.of_statement(log, plan, rounds)
    if rounds is None:
        if impossible:
            return Recorded(log=log, plan=plan, problems=tuple(problems), notes=tuple(notes))
        bounds = checks.bounds(log, plan)
        notes.append("The log says how many clients were used, not which: only bounds follow from it.")
        problems += checks.of_bounds(log, plan, bounds)
        return Recorded(log=log, plan=plan, bounds=bounds, problems=tuple(problems), notes=tuple(notes))
    if len(rounds) < len(log.rounds):
        notes.append("The last round is not counted: its set is final with the next one, which the log does not have.")
    best, (odometer, wrong) = None, checks.of_rounds(log, plan, rounds)
    problems += wrong
    spent = odometer.max_epsilon()
    problems += checks.of_budget(log, plan, spent)
    if plan.deployable and plan.gdp:
        best = exact(plan, rounds, closing=plan.repairs and log.ended is not None)
        if best is None:
            notes.append(_TOO_LARGE)
        else:
            over = np.array([mu_of(plan, each) for each in best.squares]) > odometer.mu() * (1 + 1e-6)
            problems += [
                f"client {log.client_name(int(i))}: its exact μ exceeds what the odometer counts"
                for i in np.flatnonzero(over)
            ]
    return Recorded(
        log=log, plan=plan, rounds=rounds, odometer=odometer, spent=spent, exact=best, problems=tuple(problems),
        notes=tuple(notes),
    )  # fmt: skip
