"""Logs of several rosters: what each client has spent in all of them, recomputed from their rounds (C1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightdp.accountant import Odometer
from lightdp.auditing import _checks as checks
from lightdp.auditing._exact import exact, mu_of
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.planning import Plan
from lightdp.runlog import Ended, Formed, Round, RunLog, spent_most

Sets = tuple[ClientSet, ClientSet]

GRACE = "The log is of several rosters under grace: who joined which sum, and so ε, is not recomputed."


def planned(plan: Plan, roster: Formed) -> Plan:
    """The plan of a roster, by the rule that all parties apply; that of the log where it has the plan's size."""
    size = len(roster.clients)
    return plan if size == plan.clients else plan.among(size)


class Rosters:
    """The rounds of a log, by roster.

    Args:
        log: with the rosters.
        plan: of the training.

    Attributes:
        problems: what does not hold, in sentences.
        spent: ε of the client that spent most, recomputed; None if that was not possible.
    """

    def __init__(self, log: RunLog, plan: Plan) -> None:
        self.problems: list[str] = []
        self._plan = plan
        self._names = {each.number: each.clients for each in log.rosters}
        self._plans = {each.number: planned(plan, each) for each in log.rosters}
        self._rounds: list[tuple[int, Sets]] = []  # of each line: its roster, used and late clients
        self._odometers = {number: Odometer(each) for number, each in self._plans.items()}
        lines: list[Round | Ended] = [*log.rounds, *([] if log.ended is None else [log.ended])]
        try:
            for line in lines:
                self._take(line)
            self.spent: float | None = self._epsilon()
        except ArgumentError as error:
            self.problems.append(f"round {len(self._rounds) + 1}: {error}")
            self.spent = None
        else:
            self._compare(closing=plan.repairs and log.ended is not None)

    def _take(self, line: Round | Ended) -> None:
        if line.late_since:
            self._amend(line)
        if isinstance(line, Round):
            if line.roster not in self._plans:
                raise ArgumentError(f"roster must be one that was formed, got roster={line.roster}")
            sets = checks.sets(line, self._plans[line.roster])
            if sets is None:
                raise ArgumentError("late_clients and lost_clients must be named where there are several rosters")
            self._rounds.append((line.roster, sets))
            self._odometers[line.roster].record(*sets)
        self.problems += checks.of_line(line, self._plan, self._epsilon() if line.epsilon is not None else 0.0)

    def _amend(self, line: Round | Ended) -> None:
        """Count uploads that a line says came since the lines of their rounds."""
        for number, clients in (line.late_since or {}).items():
            if int(number) > len(self._rounds):
                raise ArgumentError(f"late_since: {number} is no earlier round")
            roster, (used, late) = self._rounds[int(number) - 1]
            more = ClientSet.of(used.clients, clients, name="late_since")
            if more & (used | late):
                raise ArgumentError(f"late_since: clients {list(more & (used | late))} had been seen in round {number}")
            self._rounds[int(number) - 1] = roster, (used, late | more)
        for number in self._plans:
            self._odometers[number] = Odometer(self._plans[number])
            for sets in self._of(number):
                self._odometers[number].record(*sets)

    def _of(self, number: int) -> Sequence[Sets]:
        return [sets for roster, sets in self._rounds if roster == number]

    def _epsilon(self) -> float:
        return spent_most(self._plan, [(self._names[number], each) for number, each in self._odometers.items()])

    def _compare(self, *, closing: bool) -> None:
        """In each roster the exact covariance must not exceed what the odometer counts."""
        for number, plan in self._plans.items():
            if plan.deployable and plan.gdp and (best := exact(plan, self._of(number), closing=closing)) is not None:
                exactly = np.array([mu_of(plan, each) for each in best.squares])
                over = np.flatnonzero(exactly > self._odometers[number].mu() * (1 + 1e-6))
                self.problems += [f"roster {number}: the exact μ of client {i} exceeds what is counted" for i in over]
