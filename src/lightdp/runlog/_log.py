"""A log as a whole, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from lightdp import gaussian, planning
from lightdp.errors import ArgumentError
from lightdp.runlog._lines import Ended, Line, Round, Started, claimed_epsilon
from lightdp.runlog._read import ContradictionError, read_line
from lightdp.runlog._statement import not_private
from lightdp.schemes import schemes


@dataclass(frozen=True)
class RunLog:
    """The log of one training, and what follows from it.

    Nothing here is better than what happened: accuracy is that of the last model, never of the best one; ε is the
    largest that any client has spent; and a number that the log does not have is None, never 0.

    Attributes:
        path: the file.
        started: its first line.
        rounds: a line for each round that is over, in order.
        ended: its last line; None where the training was cut off, or is still running.
    """

    path: Path
    started: Started
    rounds: tuple[Round, ...]
    ended: Ended | None

    @classmethod
    def read(cls, path: Path, *, torn: bool = False) -> RunLog:
        """The log in `path`, checked: rounds are numbered 1, 2, ... without a gap and agree with the end.

        A log without its end is fine. One whose last line is cut off is not, since what that round spent is lost.

        Args:
            path: of the file, one JSON object a line.
            torn: leave out a last line without its newline, as a training leaves it that is killed while it writes.

        Raises:
            ArgumentError: the file is no log; the message names the file, the line and what is wrong with it. It is a
                `ContradictionError` if lines are missing or too many.
        """
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise ArgumentError(f"run must be a readable log, got run={str(path)!r}: {error.strerror}") from None
        if torn or lines[-1] == b"":
            lines.pop()
        return cls.of(path, lines)

    @classmethod
    def of(cls, path: Path, lines: Sequence[bytes]) -> RunLog:
        """The log of these lines, checked as `read` checks them.

        Args:
            path: the file that messages name.
            lines: without their newlines.

        Raises:
            ArgumentError: as `read` raises it.
        """
        found: list[Line] = []
        for place, text in enumerate(lines, 1):
            try:
                found.append(read_line(text, found, last=place == len(lines)))
            except (ArgumentError, OverflowError) as error:
                kind = ContradictionError if isinstance(error, ContradictionError) else ArgumentError
                other = " is no run log" if place == 1 and b'"kind"' not in text else ""
                raise kind(f"{path}{other}, line {place}: {error}") from None
        if not found or not isinstance(found[0], Started):
            raise ArgumentError(f"{path}, line 1: a log begins with a line of kind run, but the file is empty")
        ended = found[-1] if isinstance(found[-1], Ended) else None
        return cls(path, found[0], tuple(line for line in found if isinstance(line, Round)), ended)

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, in order."""
        return (self.started, *self.rounds, *(() if self.ended is None else (self.ended,)))

    @property
    def outcome(self) -> Ended:
        """`ended` of a training that came to its end.

        Raises:
            ArgumentError: it has not.
        """
        if self.ended is None:
            raise ArgumentError(f"run must have come to its end, got run={str(self.path)!r}")
        return self.ended

    @property
    def scheme(self) -> str:
        """The compared scheme that was trained with, else the calibration of the noise, or "none"."""
        plan, named = self.started.plan, self.started.config.get("scheme")
        if plan is None:
            return "none"
        about = schemes().get(named) if isinstance(named, str) else None
        return plan["calibration"] if about is None or not about.simulated else about.name

    @property
    def data(self) -> str | None:
        """What was trained on: the name of the data set, or the setting where the log has no other."""
        return self._named("data", self.started.dataset)

    @property
    def model(self) -> str | None:
        """What was trained: the name of the module, likewise."""
        return self._named("model", self.started.module)

    def _named(self, setting: str, found: Mapping[str, Any] | None) -> str | None:
        value = self.started.config.get(setting) if found is None else found["name"]
        return None if value is None else str(value)

    @property
    def not_private(self) -> list[str]:
        """What is to be said first of a training whose features no ε covers; nothing of others."""
        return not_private(self.started.config.get("columns"))

    @property
    def repairs(self) -> bool:
        """Whether later rounds take residuals out again (R4)."""
        return self.started.plan is not None and planning.CALIBRATIONS[self.started.plan["calibration"]].repairs

    @property
    def accuracy(self) -> float | None:
        """Of the final model; without an end, of the last one that was evaluated. Never the best one."""
        if self.ended is not None:
            return self.ended.accuracy
        return next((line.accuracy for line in reversed(self.rounds) if line.accuracy is not None), None)

    @property
    def epsilon(self) -> float | None:
        """What the client that spent most has spent; None if unknown, which is not 0."""
        if self.ended is not None:
            return self.ended.epsilon
        return self.rounds[-1].epsilon if self.rounds else None

    @property
    def gdp(self) -> bool:
        """Whether `mu` means μ-GDP, as it does with whole batches."""
        return self.started.plan is not None and self.started.plan.get("sampling_rate", 1) == 1

    @property
    def mu(self) -> float | None:
        """The μ of Gaussian noise with `epsilon` at `delta`, rounded up; where `gdp` holds, that of the training."""
        last = self.lines[-1]
        return None if isinstance(last, Started) else self.mu_of(last)

    def mu_of(self, line: Round | Ended) -> float | None:
        """The μ of a line of this log; of old logs from its ε, rounded up."""
        if line.mu is not None or line.epsilon is None or self.delta is None:
            return line.mu
        return gaussian.mu(line.epsilon, self.delta, up=True)

    @property
    def claimed(self) -> float | None:
        """The ε that was asked for: the budget."""
        return self._guaranteed("epsilon_claimed", claimed_epsilon)

    @property
    def delta(self) -> float | None:
        """The δ of every ε here."""
        return self._guaranteed("delta", lambda plan: plan["delta"])

    @property
    def unit(self) -> str | None:
        """What is protected; nothing is without noise."""
        return self._guaranteed("unit", lambda plan: self.started.config.get("unit", plan["unit"]))

    @property
    def adjacency(self) -> str | None:
        """What may change between neighbouring data."""
        return self._guaranteed("adjacency", lambda plan: plan["adjacency"])

    def _guaranteed(self, name: str, planned: Callable[[Mapping[str, Any]], Any]) -> Any:  # noqa: ANN401  a JSON value
        """As the end says, or else the plan; None without noise."""
        if self.started.plan is None:
            return None
        return planned(self.started.plan) if self.ended is None else getattr(self.ended, name)

    @property
    def noise(self) -> float | None:
        """Root mean square of `stays` over the rounds."""
        found = [std for line in self.rounds if (std := self.stays(line)) is not None]
        return math.sqrt(sum(std**2 for std in found) / len(found)) if found else None

    @property
    def clock(self) -> list[float]:
        """Modelled seconds from the beginning to the end of each round; nothing where they were not modelled."""
        each = [line.modelled_seconds for line in self.rounds]
        return list(accumulate(second for second in each if second is not None)) if None not in each else []

    @property
    def exceeds(self) -> bool:
        """Whether more was spent than claimed, beyond rounding error."""
        return self.epsilon is not None and self.claimed is not None and self.epsilon > self.claimed * (1 + 1e-9)

    @property
    def grace(self) -> bool:
        """Whether uploads that were one round late were used (R5)."""
        return any(line.joined is not None for line in self.rounds)

    def late_by_one(self, line: Round) -> int:
        """How many uploads of a round entered the model one round late, as the next line of its roster says."""
        if line.formed is None:
            after = self.rounds[line.round] if line.round < len(self.rounds) else self.ended
            return 0 if after is None or after.joined is None else after.joined
        return self._late_by_one[line.round]

    @cached_property
    def _late_by_one(self) -> dict[int, int]:
        """Of each round of a run whose rosters change, in one pass from the end."""
        found: dict[int, int] = {}
        following: dict[int | None, int] = {}  # of each roster: what its next line, or its closing, took in
        for each in (*(() if self.ended is None else (self.ended,)), *reversed(self.rounds)):
            if isinstance(each, Round):
                found[each.round] = following.get(each.roster, 0)
                following[each.roster] = each.joined or 0
            following |= {one["roster"]: len(one.get("joined_clients", ())) for one in each.closed or ()}
        return found

    def fates(self, line: Round) -> dict[str, int]:
        """What became of the uploads of a round: used, in the next sum, late, in a void round (too few came), lost."""
        joined = self.late_by_one(line)
        unused = line.late - joined
        void = unused if line.used == 0 and joined == 0 else 0
        return {"used": line.used, "next": joined, "late": unused - void, "void": void, "lost": line.lost}

    @property
    def waited(self) -> int:
        """How many rounds had too few uploads in time, so that all of theirs entered the next sum (R5)."""
        return sum(line.used == 0 and self.late_by_one(line) > 0 for line in self.rounds)

    @property
    def federated(self) -> bool:
        """Whether rosters took turns, or members came and went (C1)."""
        return any(line.formed is not None for line in self.rounds)

    @property
    def population(self) -> int:
        """How many clients there were, in a roster or not."""
        named = self.started.config.get("population")
        known = [client for line in self.rounds for each in line.formed or () for client in each["members"]]
        for line in self.rounds:
            known += [*(line.away_clients or ()), *(line.waiting_clients or ()), *(line.spent_clients or ())]
        ended = 0 if self.ended is None else len(self.ended.epsilon_clients or ())
        return max(named if isinstance(named, int) else 0, max(known, default=-1) + 1, ended)

    @property
    def rosters(self) -> dict[int, tuple[int, ...]]:
        """The members of every roster that was formed, by number."""
        formed = (each for line in self.rounds for each in line.formed or ())
        return {each["roster"]: tuple(each["members"]) for each in formed}

    def whereabouts(self, rounds: Iterable[Round]) -> list[dict[str, int]]:
        """How many clients were where in rounds of a run whose rosters change; each client is counted once.

        A client whose upload came was in the round's roster, although a log of a Flower training names it among those
        that have no budget for another round, or wait, once the round is over.

        Args:
            rounds: of this log.
        """
        rosters, population, found = self.rosters, self.population, []
        for line in rounds:
            roster = set(rosters.get(-1 if line.roster is None else line.roster, ()))
            came = roster - set(roster if line.lost_clients is None else line.lost_clients)
            spent = set(line.spent_clients or ()) - came
            away = set(line.away_clients or ()) - spent - came
            waiting = set(line.waiting_clients or ()) - away - spent - came
            playing = roster - away - spent - waiting
            counts = {"playing": len(playing), "waiting": len(waiting), "away": len(away), "spent": len(spent)}
            found.append(counts | {"seated": population - sum(counts.values()), "round": line.round})
        return found

    @property
    def counts(self) -> list[list[int]]:
        """Records of each class at each client, where they were logged. (clients, classes)"""
        return (self.started.partition or {}).get("counts", [])

    def client_name(self, client: int) -> str:
        """The name of a client by its number, without control characters; the number itself where none was logged."""
        names = (self.started.partition or {}).get("names")
        if not isinstance(names, list) or client >= len(names):
            return str(client)
        return _plain(names[client])

    @property
    def classes(self) -> list[str]:
        """The names of the classes in `counts`, without control characters; empty where none were logged."""
        names, counts = (self.started.partition or {}).get("classes"), self.counts
        if not isinstance(names, list) or not counts or len(names) != len(counts[0]):
            return []
        return [_plain(name) for name in names]

    @property
    def units(self) -> list[int]:
        """How many records each client holds, or persons where these are protected; empty if that was not logged."""
        if self.unit == "person":
            return (self.started.partition or {}).get("persons", [])
        return [sum(row) for row in self.counts]

    def stays(self, line: Round) -> float | None:
        """Std of the noise a round leaves for good in a coordinate of the mean; only repair takes residuals out."""
        if line.noise_std is None or line.residual_std is None or self.repairs:
            return line.noise_std
        return math.hypot(line.noise_std, line.residual_std)

    def goes(self, line: Round) -> float | None:
        """Std of the residual of a round that later rounds take out again (R4)."""
        return line.residual_std if self.repairs else None


def _plain(name: object) -> str:
    """A name from a log without control characters."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(name))
