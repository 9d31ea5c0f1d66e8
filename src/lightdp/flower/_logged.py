"""What a line of a run log says of a round on Flower's nodes: who was in which sum, its noise, its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.federation import Table
from lightdp.planning import Plan

Metrics = Mapping[str, Mapping[str, Any]]
Sets = tuple[ClientSet, ClientSet]

_NAMES = {"accuracy": ("accuracy", "eval_acc", "eval_accuracy", "test_accuracy", "acc"), "loss": ("loss", "eval_loss")}


@dataclass(eq=False)
class Roster:
    """A roster as the log has it.

    Attributes:
        members: its clients, by the numbers that they have in the log, in the order of the roster.
        plan: its noise.
        seen: used and late clients of each of its rounds that have a line.
        lines: the numbers of these lines.
    """

    members: Sequence[int]
    plan: Plan
    seen: list[Sets] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.odometer = Odometer(self.plan)

    def add(self, line: int, sets: Sets) -> None:
        self.seen.append(sets)
        self.lines.append(line)
        self.odometer.record(*sets)

    def amend(self, number: int, late: ClientSet) -> None:
        """Count uploads of a round that came since its line was written."""
        self.seen[number] = self.seen[number][0], self.seen[number][1] | late
        self.odometer = Odometer(self.plan)
        for sets in self.seen:
            self.odometer.record(*sets)

    def named(self, clients: ClientSet) -> list[int]:
        """Clients by their numbers in the log."""
        return sorted(self.members[i] for i in clients)

    def squares(self, *, worst: bool) -> dict[int, float]:
        """μ² of each client; at worst only of those who have sent something (W5)."""
        sent = ClientSet.none(len(self.members))
        for used, late in self.seen:
            sent = sent | used | late
        found = self.odometer.counted(worst=worst).mu() ** 2
        return {each: float(found[i]) for i, each in enumerate(self.members) if i in sent or not worst}


@dataclass(frozen=True, eq=False)
class Past:
    """What came of the rounds of a roster, which stays known after it has ended.

    Attributes:
        names: its members.
        minimum: uploads that a sum needs.
        grace: rounds that an upload may be late.
        rounds: clients of each round with data: on time, used in the end (None while that is open), seen otherwise.
        ended: whether it has ended.
    """

    names: Sequence[str]
    minimum: int
    grace: int
    rounds: Sequence[tuple[ClientSet, ClientSet | None, ClientSet]]
    ended: bool

    @classmethod
    def of(cls, table: Table, *, ended: bool) -> Past:
        """As the server has it now."""
        server, rounds = table.server, [table.rounds.seen(t) for t in range(table.rounds.count)]
        return cls(table.names, server.minimum, server.plan.grace, rounds, ended)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Past:
        """The inverse of `facts`, of a roster that has ended."""
        names, size = facts["names"], len(facts["names"])
        rounds = [
            tuple(None if each is None else ClientSet.of(size, each) for each in sets) for sets in facts["rounds"]
        ]
        return cls(names, facts["minimum"], facts["grace"], rounds, ended=True)  # type: ignore[arg-type]

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        rounds = [[None if each is None else [int(i) for i in each] for each in sets] for sets in self.rounds]
        return {"names": [*self.names], "minimum": self.minimum, "grace": self.grace, "rounds": rounds}

    @property
    def waits(self) -> bool:
        """Whether the set of its last round is not final."""
        return bool(self.rounds) and self.rounds[-1][1] is None

    def summed(self, at: int) -> ClientSet:
        """Clients of a round, whose set is final, that are in its own sum."""
        on_time, final, _ = self.rounds[at]
        if not self.grace and final is not None:
            return final
        return on_time if len(on_time) >= self.minimum else ClientSet.none(len(self.names))


def joined_fields(clients: list[int] | None) -> dict[str, Any]:
    """The fields of a line for clients whose uploads of the round before are in its sum; none without grace."""
    return {} if clients is None else {"joined": len(clients), "joined_clients": clients}


def noise(plan: Plan, used: int, joined: int) -> dict[str, Any]:
    """Standard deviations in a coordinate of the mean."""
    individual, left = plan.individual_in_sum(used) + plan.individual_in_sum(joined), plan.residual_in_sum(used)
    lasting: float | None = individual if plan.repairs else individual + left
    residual: float | None = left if plan.repairs else 0.0
    if plan.grace and plan.gamma > 0:  # what two rounds share is not followed here
        lasting, residual = (individual if plan.repairs else None), None
    stds = {"noise_std": lasting, "residual_std": residual}
    return {name: None if each is None else math.sqrt(each) / plan.clients for name, each in stds.items()}


def measured(metrics: Metrics) -> dict[str, Any]:
    """Accuracy and loss on the server or else on the nodes, and all metrics that JSON can hold."""
    kept = {
        where: {name: value for name, value in found.items() if _finite(value) and not name.startswith("lightdp-")}
        for where, found in metrics.items()
    }
    result: dict[str, Any] = {"metrics": {where: found for where, found in kept.items() if found} or None}
    for wanted, names in _NAMES.items():
        values = [kept.get(where, {}).get(name) for where in ("server", "evaluate") for name in names]
        numbers = [float(each) for each in values if isinstance(each, int | float)]
        result[wanted] = numbers[0] if numbers and (wanted == "loss" or 0 <= numbers[0] <= 1) else None
    return result


def _finite(value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(each, int | float) and math.isfinite(each) for each in values)
