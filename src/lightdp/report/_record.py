"""The record of a run, one JSON object a line, read strictly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from lightdp.errors import ArgumentError
from lightdp.report._lines import END, FIRST, ROUND, checked, parsed
from lightdp.schemes import schemes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Round:
    """One round as recorded; what was not measured, or does not exist without privacy, is None."""

    round: int
    accuracy: float | None
    loss: float | None
    epsilon: float | None
    used: int
    late: int
    lost: int
    noise_std: float | None
    residual_std: float | None
    modelled_seconds: float | None = None
    failed: str | None = None


@dataclass(frozen=True)
class End:
    """The last line of a run that came to an end."""

    accuracy: float | None
    epsilon: float | None
    epsilon_claimed: float | None
    delta: float | None
    unit: str | None
    adjacency: str | None
    rounds: int
    stopped: str | None
    bytes_up: float | None
    bytes_down: float | None
    seconds: float
    statement: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A run as recorded. `end` is None where it was cut off, or is still running.

    Of `config`, `plan`, `versions` and `partition` only those values were checked that this class reads.
    """

    path: Path
    config: Mapping[str, Any]
    plan: Mapping[str, Any] | None
    versions: Mapping[str, Any]
    commit: str | None
    partition: Mapping[str, Any]
    parameters: int
    device: str
    rounds: tuple[Round, ...]
    end: End | None

    @property
    def scheme(self) -> str:
        """The compared scheme that was played, else the calibration of the noise, or "none"."""
        if self.plan is None:
            return "none"
        named = self.config.get("scheme")
        return named if named in schemes() and schemes()[named].played else self.plan["calibration"]

    @property
    def accuracy(self) -> float | None:
        """Of the final model; without an end, of the last one that was looked at. Never the best one."""
        if self.end is not None:
            return self.end.accuracy
        return next((r.accuracy for r in reversed(self.rounds) if r.accuracy is not None), None)

    @property
    def epsilon(self) -> float | None:
        """What the client that spent most has spent."""
        if self.end is not None:
            return self.end.epsilon
        return self.rounds[-1].epsilon if self.rounds else None

    @property
    def claimed(self) -> float | None:
        """The ε that the scheme claims: its budget."""
        return self.end.epsilon_claimed if self.end is not None else self._planned("epsilon_claimed")

    @property
    def delta(self) -> float | None:
        """The δ of every ε here."""
        return self.end.delta if self.end is not None else self._planned("delta")

    @property
    def unit(self) -> str | None:
        """What is protected; nothing is without noise."""
        if self.plan is None:
            return None
        return self.end.unit if self.end is not None else self.config.get("unit", self.plan["unit"])

    @property
    def adjacency(self) -> str | None:
        """What may change between neighbouring data."""
        if self.plan is None:
            return None
        return self.end.adjacency if self.end is not None else self.plan["adjacency"]

    @property
    def noise(self) -> float | None:
        """Root mean square of `stays` over the rounds."""
        found = [std for played in self.rounds if (std := self.stays(played)) is not None]
        return math.sqrt(sum(std**2 for std in found) / len(found)) if found else None

    @property
    def clock(self) -> list[float]:
        """Modelled seconds from the beginning to the end of each round; nothing where they were not modelled."""
        each = [played.modelled_seconds for played in self.rounds]
        return list(accumulate(second for second in each if second is not None)) if None not in each else []

    @property
    def exceeds(self) -> bool:
        """Whether more was spent than claimed, beyond rounding error."""
        return self.epsilon is not None and self.claimed is not None and self.epsilon > self.claimed * (1 + 1e-9)

    @property
    def counts(self) -> list[list[int]]:
        """Records of each class at each client, where they were recorded. (clients, classes)"""
        return self.partition.get("counts", [])

    def stays(self, played: Round) -> float | None:
        """Std of the noise a round leaves for good in a coordinate of the mean; only repair takes residuals out."""
        if played.noise_std is None:
            return None
        return played.noise_std if self.scheme == "repair" else math.hypot(played.noise_std, played.residual_std or 0.0)

    def goes(self, played: Round) -> float | None:
        """Std of the residual of a round that later rounds take out again (R4)."""
        return played.residual_std if self.scheme == "repair" else None

    def _planned(self, name: str) -> Any:  # noqa: ANN401  a JSON value
        return None if self.plan is None else self.plan[name]


def read_run(path: Path) -> Run:
    """The run recorded in `path`, or an `ArgumentError` that names the file, the line and what is wrong with it.

    Rounds must be numbered 1, 2, ... without a gap and agree with the end. A record without its end is fine; one whose
    last line is cut off is not, since what that round spent is lost.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ArgumentError(f"run must be a readable record, got run={str(path)!r}: {error.strerror}") from None
    if lines[-1] == b"":
        lines.pop()
    first: dict[str, Any] | None = None
    rounds: list[Round] = []
    end: End | None = None
    for line_number, line in enumerate(lines, 1):
        try:
            content = parsed(line, last=line_number == len(lines))
            kind = content.get("kind")
            if first is None:
                first = checked(FIRST, content) if kind == "run" else _refuse(kind, "run")
            elif end is not None:
                raise ArgumentError("nothing may follow the end")  # noqa: TRY301  one place adds file and line
            elif kind == "round":
                rounds.append(Round(**checked(ROUND, content, private=first["plan"] is not None)))
                _expect("round", rounds[-1].round, len(rounds), "the next one")
            elif kind == "end":
                end = End(**checked(END, content, private=first["plan"] is not None))
                _expect("rounds", end.rounds, len(rounds), "as many as were recorded")
            else:
                _refuse(kind, "round or end")
        except (ArgumentError, OverflowError) as error:
            raise ArgumentError(f"{path}, line {line_number}: {error}") from None
    if first is None:
        raise ArgumentError(f"{path}, line 1: a record begins with a line of kind run, but the file is empty")
    return Run(path=path, **first, rounds=tuple(rounds), end=end)


def _refuse(kind: object, wanted: str) -> dict[str, Any]:
    raise ArgumentError(f"kind must be {wanted}, got kind={kind!r}")


def _expect(name: str, found: int, wanted: int, why: str) -> None:
    if found != wanted:
        raise ArgumentError(f"{name} must be {wanted}, {why}, got {name}={found}")
