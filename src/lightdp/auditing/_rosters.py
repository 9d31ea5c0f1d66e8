"""Logs of runs whose rosters change (C1): what each client spent in all of its rosters, recomputed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.auditing import _checks as checks
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.planning import Plan
from lightdp.runlog import Ended, Round, RunLog

_SAME = 1e-6  # as for other logs


@dataclass
class _Seated:
    """One roster that takes turns, as the log has it."""

    members: tuple[int, ...]
    odometer: Odometer
    sent: ClientSet
    seen: list[tuple[ClientSet, ClientSet]] = field(default_factory=list)


@dataclass
class Recount:
    """What a log of changing rosters gives, line by line. `run` counts it.

    Args:
        log: of the run.
        plan: of a roster of its `clients`; others follow from it by `Plan.among`.

    Attributes:
        problems: what does not hold, in sentences.
        final: whether every set that the log names is final; if not, the last ones are not counted (R5).
        open: whether a round was open at the end, which has no line: the ε of the end is at least that of the rounds.
        squares: μ² of each client, in rosters that were closed, at their worst (W5).
        used: rounds in which each client was used.
        late: rounds in which each client was seen too late.
    """

    log: RunLog
    plan: Plan
    problems: list[str] = field(default_factory=list)
    final: bool = True

    def __post_init__(self) -> None:
        clients = self.log.population
        self.squares = np.zeros(clients)
        self.used, self.late, self.void = np.zeros((3, clients), int)
        self._seated: dict[int, _Seated] = {}
        self._formed = -1
        self._places: dict[int, tuple[int, int]] = {}  # of each line: its roster, and which of its rounds it is
        ended = self.log.ended
        self.open = ended is not None and any(each.get("open") for each in ended.closed or ())
        self._lines: list[Round | Ended] = [*self.log.rounds, *([] if self.log.ended is None else [self.log.ended])]

    def run(self) -> Recount:
        """Count every line; what is impossible ends it."""
        after = self._joined_after()
        for line in self._lines:
            where = f"round {line.round}" if isinstance(line, Round) else "end"
            try:
                self._amend(line)
                if isinstance(line, Round):
                    self._change(line)
                    self._record(line, after[line.round])
                else:
                    self._close([each for each in line.closed or () if each.get("early")])
            except ArgumentError as error:
                self.problems.append(f"{where}: {error}")
                return self
            if not self.final:
                return self
            least = isinstance(line, Ended) and self.open
            self.problems += checks.of_line(line, self.plan, self.max_epsilon, least=least)
        self.problems += self._of_clients()
        return self

    def totals(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """μ² of each client in all of its rosters. (population,)"""
        found = self.squares.copy()
        for each in self._seated.values():
            found[list(each.members)] += each.odometer.mu() ** 2
        return found

    def max_epsilon(self) -> float:
        """The ε of the client that spent most."""
        return gaussian.epsilon(math.sqrt(float(self.totals().max(initial=0.0))), self.plan.delta)

    def clients(self) -> list[dict[str, Any]]:
        """Every client: its rounds, and its μ and ε."""
        mu = np.sqrt(self.totals()).tolist()
        return [
            {"client": i, "used": int(self.used[i]), "late": int(self.late[i]), "void": int(self.void[i]),
             "mu": mu[i], "epsilon": gaussian.epsilon(mu[i], self.plan.delta), "mu_exact": None}
            for i in range(len(mu))
        ]  # fmt: skip

    def _joined_after(self) -> dict[int, list[int] | None]:
        """For each round the clients that joined the next sum of its roster; None where the log does not say."""
        found: dict[int, list[int] | None] = {}
        later: dict[int | None, list[int] | None] = {}
        for line in reversed(self._lines):
            if isinstance(line, Round):
                found[line.round] = later.get(line.roster)
                later[line.roster] = None if line.joined_clients is None else list(line.joined_clients)
            later |= {each["roster"]: list(each.get("joined_clients", ())) for each in line.closed or ()}
        return found

    def _change(self, line: Round) -> None:
        """Close and form rosters before a round."""
        self._close(line.closed or ())
        for each in line.formed or ():
            number, members = each["roster"], tuple(each["members"])
            taken = {client for seat in self._seated.values() for client in seat.members}
            if number <= self._formed:
                raise ArgumentError(f"roster {number} is formed after roster {self._formed}")
            if taken & set(members) or any(client >= len(self.squares) for client in members):
                raise ArgumentError(f"members of roster {number} are in another one, or in no population")
            plan, self._formed = self.plan.among(len(members)), number
            self._seated[number] = _Seated(members, Odometer(plan), ClientSet.none(len(members)))

    def _close(self, closed: Sequence[Mapping[str, Any]]) -> None:
        """Count rosters at their worst, as what their clients owe is not paid any more."""
        for each in closed:
            if each["roster"] not in self._seated:
                raise ArgumentError(f"roster {each['roster']} is closed, but it is not open")
            seat = self._seated.pop(each["roster"])
            squares = seat.odometer.counted(worst=True).mu() ** 2
            self.squares[list(seat.members)] += np.where(seat.sent.flags, squares, 0.0)

    def _record(self, line: Round, joined: list[int] | None) -> None:
        """Count a round, whose set is final with the next line of its roster."""
        if line.roster is None:
            if line.used or line.late or line.lost:
                raise ArgumentError("uploads came, but no roster had the round")
            return
        if line.roster not in self._seated:
            raise ArgumentError(f"roster {line.roster} is not open")
        seat = self._seated[line.roster]
        place = {client: at for at, client in enumerate(seat.members)}
        late, lost, more = (
            _places(place, each) for each in (line.late_clients, line.lost_clients, joined if self.plan.grace else [])
        )
        if late is None or lost is None:
            raise ArgumentError("late_clients and lost_clients must be named where rosters change")
        if more is None:
            self.final = False
            return
        if (len(late), len(lost)) != (line.late, line.lost) or late & lost or more - late:
            raise ArgumentError("the clients that are named are not as many as were counted")
        if line.used + line.late + line.lost != len(place):
            raise ArgumentError(f"used, late and lost must add up to {len(place)} clients")
        used = ~(late | lost) | more
        self.problems += self._of_noise(line, seat)
        seat.odometer.record(used, late - more)
        self._places[line.round] = line.roster, len(seat.seen)
        seat.seen.append((used, late - more))
        seat.sent = seat.sent | used | late
        self.used[seat.members,] += used.flags
        (self.late if used else self.void)[seat.members,] += (late - more).flags

    def _amend(self, line: Round | Ended) -> None:
        """Count uploads that came since the lines of their rounds."""
        for number, clients in (line.late_since or {}).items():
            roster, at = self._places.get(int(number), (-1, 0))
            if roster not in self._seated:
                raise ArgumentError(f"late_since: {number} is no earlier round of a roster that is open")
            seat = self._seated[roster]
            used, late = seat.seen[at]
            more = _places({client: place for place, client in enumerate(seat.members)}, clients)
            if more is None or more & (used | late):
                raise ArgumentError(f"late_since: clients {list(clients)} had been seen in round {number} before")
            seat.seen[at], seat.sent = (used, late | more), seat.sent | more
            (self.late if used else self.void)[seat.members,] += more.flags
            seat.odometer = Odometer(seat.odometer.plan)
            for each in seat.seen:
                seat.odometer.record(*each)

    def _of_noise(self, line: Round, seat: _Seated) -> Iterator[str]:
        """A round whose noise is not that of its roster's plan; of repair alone, where nothing else stays."""
        plan, units = seat.odometer.plan, self.log.units
        summed = self.log.unit in {"record", "person"}
        if not plan.repairs or line.noise_std is None or (summed and not units):
            return
        denominator = float(sum(units[i] for i in seat.members) if summed else len(seat.members))
        right = math.sqrt(plan.individual_in_sum(line.used) + plan.individual_in_sum(line.joined or 0)) / denominator
        if not math.isclose(line.noise_std, right, rel_tol=_SAME):
            yield f"round {line.round}: its noise is {line.noise_std:.6g}, the plan of its roster has {right:.6g}"

    def _of_clients(self) -> Iterator[str]:
        """Clients of which the end says another ε than the rounds give."""
        said = None if self.log.ended is None else self.log.ended.epsilon_clients
        if said is None:
            return
        if len(said) != len(self.squares):
            yield f"end: epsilon_clients must have {len(self.squares)} values, got {len(said)}"
            return
        for row, epsilon in zip(self.clients(), said, strict=True):
            more = self.open and epsilon > row["epsilon"]
            if not more and not math.isclose(row["epsilon"], epsilon, rel_tol=_SAME, abs_tol=1e-9):
                yield f"end: client {row['client']} has ε = {epsilon:.6g}, its rounds give {row['epsilon']:.6g}"


def _places(place: Mapping[int, int], clients: Any) -> ClientSet | None:  # noqa: ANN401  a field of a line
    """Members by their places in a roster; None if the log does not name them."""
    if clients is None:
        return None
    if not set(clients) <= place.keys():
        raise ArgumentError("clients that are named are not members of the roster")
    return ClientSet.of(len(place), [place[client] for client in clients])
