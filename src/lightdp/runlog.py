"""The log of a training: a line of JSON when it starts, one for each round, one when it ends.

A training writes its log through `LogWriter`; `RunLog.read` checks and returns the log of a training that is finished,
interrupted or still running. The classes `Started`, `Round` and `Ended` are the format: each of their fields states its
type, its check and its meaning once, for writing, for reading and for the reference page, which
`python -m lightdp.runlog > docs/reference/run-log.md` makes.

What is logged cannot flatter the training: a line with a value that is out of range is neither written nor read, and in
a training with a plan no ε, δ or unit is left out, except the ε of rounds with sampled batches.

>>> import tempfile
>>> from pathlib import Path
>>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
>>> started = Started(
...     config={"clients": 9}, plan=None, versions={}, commit=None, partition=None, parameters=10, device=None
... )
>>> first = Round(
...     round=1, accuracy=0.5, loss=None, epsilon=None, used=8, late=0, lost=1, noise_std=0.0, residual_std=0.0
... )
>>> with LogWriter(path) as log:
...     for line in (started, first):
...         _ = log.write(line)
>>> found = RunLog.read(path)
>>> found.rounds == (first,), found.accuracy, found.scheme, found.ended
(True, 0.5, 'none', None)
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from lightdp import planning
from lightdp._validate import choice, integer, non_negative, number, probability, share
from lightdp.errors import ArgumentError
from lightdp.schemes import BUILT_IN, schemes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    Check: TypeAlias = Callable[[str, Any], Any]

CALIBRATIONS = tuple(name for name in BUILT_IN if name != "none")
"""The calibrations that the plan of a log may have."""
_OF_PRIVACY = ("epsilon", "epsilon_claimed", "delta", "unit", "adjacency")
_NO_EPSILON = "without noise, or not computed (sampled batches)"
_MODELLED = {"absent": "no time is modelled", "beside": "modelled_seconds"}
_PAGE = """# The log of a run

`lightdp run` writes a log, by default `run.jsonl`, and `lightdp report` reads it: one JSON object a line, in UTF-8. \
The key `kind` tells the kinds of lines apart. Keys that are not listed here are ignored; numbers are finite. \
Where there is a plan, nothing that speaks of privacy is null, except the ε of rounds with sampled batches.

This page is made by `python -m lightdp.runlog > docs/reference/run-log.md`.
"""


class ResumeError(ArgumentError):
    """A training cannot go on from its log and checkpoint; both files are unchanged."""


def claimed_epsilon(plan: Mapping[str, Any]) -> float:
    """The ε that was asked for: the budget of a plan as a log has it.

    Older logs hold it as "epsilon_claimed", and what the plan really costs as "epsilon".

    >>> claimed_epsilon({"epsilon": 9.24, "epsilon_claimed": 3.0}), claimed_epsilon({"epsilon": 3.0})
    (3.0, 3.0)

    Args:
        plan: as `Plan.to_dict` gives it, or as an older log has it.
    """
    return plan["epsilon_claimed"] if "epsilon_claimed" in plan else plan["epsilon"]


# What a line holds


def _typed(kind: type, words: str) -> Check:
    def check(name: str, value: object) -> object:
        if not isinstance(value, kind):
            raise ArgumentError(f"{name} must be {words}, got {name}={value!r}")
        return value

    return check


_text, _mapping, _list = _typed(str, "text"), _typed(dict, "an object"), _typed(list, "a list of sentences")


def _count(name: str, value: object) -> int:
    return integer(name, value, 0)


def _sentences(name: str, value: object) -> None:
    for sentence in _list(name, value):
        _text(name, sentence)


def _one_of(*options: str) -> Check:
    return lambda name, value: choice(name, _text(name, value), options)


def _plan(name: str, value: object) -> None:
    plan = _mapping(name, value)
    claim = "epsilon_claimed" if "epsilon_claimed" in plan else "epsilon"
    checks: dict[str, Check] = {"calibration": _one_of(*CALIBRATIONS), claim: non_negative}
    checks |= {"delta": probability, "unit": _text, "adjacency": _text}
    try:
        _require(checks, plan)
        for inner, check in checks.items():
            check(inner, plan[inner])
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error}") from None


def _partition(name: str, value: object) -> None:
    rows = _mapping(name, value).get("counts", [])
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        raise ArgumentError(f"{name}: counts must be a list of rows of one length")
    for count in chain.from_iterable(rows):
        _count(f"{name}: counts", count)


def _require(names: Iterable[str], content: Mapping[str, Any]) -> None:
    missing = [name for name in names if name not in content]
    if missing:
        raise ArgumentError(f"must have {', '.join(missing)}")


# For each type of a field: its name in the reference page, and its check where the field has none of its own.
_TYPES: dict[str, tuple[str, Check]] = {
    "int": ("integer", _count),
    "float": ("number", number),
    "str": ("text", _text),
    "Mapping[str, Any]": ("object", _mapping),
    "Sequence[str]": ("list of texts", _sentences),
}


def _type(field: dataclasses.Field[Any]) -> tuple[str, Check]:
    return _TYPES[str(field.type).removesuffix(" | None")]


def _holds(meaning: str, check: Check | None = None, /, **more: str) -> Any:  # noqa: ANN401  as `dataclasses.field`
    """A field of a line: its meaning, its check if its type does not say it, and when it is `null` or `absent`.

    With `beside`, the name of a field, the key is written only where that field is not null.
    """
    default: Any = None if "absent" in more else dataclasses.MISSING
    return dataclasses.field(default=default, metadata={"meaning": meaning, "check": check} | more)


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A line of a log, checked when it is made.

    Raises:
        ArgumentError: a value has the wrong type or is out of range; the message names field and value.
    """

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None or "null" not in field.metadata:
                (field.metadata["check"] or _type(field)[1])(field.name, value)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """The line that `to_dict` gave; keys that are not known are ignored.

        Args:
            content: the JSON object of the line.

        Raises:
            ArgumentError: a field is missing or wrong.
        """
        fields = dataclasses.fields(cls)
        _require([field.name for field in fields if field.default is dataclasses.MISSING], content)
        return cls(**{field.name: content[field.name] for field in fields if field.name in content})

    def to_dict(self) -> dict[str, Any]:
        """The line as JSON values, its kind first."""
        fields = dataclasses.fields(self)
        written = (f.name for f in fields if getattr(self, f.metadata.get("beside", "kind")) is not None)
        return {"kind": self.kind} | {name: getattr(self, name) for name in written}


@dataclass(frozen=True, kw_only=True)
class Started(_Line):
    """The first line: what is trained, how, and with which noise.

    Of `config`, `plan`, `versions`, `partition` and `network` only those values are checked that `RunLog` reads.

    >>> Started(config={}, plan={"calibration": "exact"}, versions={}, commit=None, partition=None, parameters=3,
    ...         device=None)
    Traceback (most recent call last):
      ...
    lightdp.errors.ArgumentError: plan: must have epsilon, delta, unit, adjacency
    """

    kind = "run"
    config: Mapping[str, Any] = _holds("settings of the training, by name")
    plan: Mapping[str, Any] | None = _holds("the noise, as `Plan.to_dict` gives it", _plan, null="without noise")
    versions: Mapping[str, Any] = _holds("versions of the software that decides the numbers, by package")
    commit: str | None = _holds("commit of the working tree", null="outside of one")
    partition: Mapping[str, Any] | None = _holds(
        "who holds how much data; `counts`: records of each class at each client", _partition, null="not known"
    )
    parameters: int = _holds("length d of an update")
    device: str | None = _holds("where local work is computed", null="not known")
    network: Mapping[str, Any] | None = _holds("modelled links", null="no time is modelled", absent="old log")


@dataclass(frozen=True, kw_only=True)
class Round(_Line):
    """The line of a round that is over.

    >>> line = Round(
    ...     round=1, accuracy=0.5, loss=None, epsilon=None, used=8, late=0, lost=1, noise_std=0.0, residual_std=0.0
    ... )
    >>> list(line.to_dict().items())[:3]
    [('kind', 'round'), ('round', 1), ('accuracy', 0.5)]
    >>> Round.of(line.to_dict()) == line
    True
    >>> dataclasses.replace(line, accuracy=50.0)
    Traceback (most recent call last):
      ...
    lightdp.errors.ArgumentError: accuracy must be in [0, 1], got accuracy=50
    """

    kind = "round"
    round: int = _holds("its number, from 1")
    accuracy: float | None = _holds("of the model after it, on the test set", share, null="not evaluated")
    loss: float | None = _holds("likewise", null="not evaluated, or not finite")
    epsilon: float | None = _holds("ε spent so far by the client that spent most", non_negative, null=_NO_EPSILON)
    used: int = _holds("clients whose uploads are in the sum")
    late: int = _holds("clients whose uploads were seen, but too late to be used")
    lost: int = _holds("clients of which nothing was seen")
    noise_std: float | None = _holds(
        "standard deviation of the noise in a coordinate of the mean, without residuals", non_negative, null="not known"
    )
    residual_std: float | None = _holds(
        "the same of noise shared with missing clients, which only repair takes out (R4)",
        non_negative,
        null="not known",
    )
    modelled_seconds: float | None = _holds("how long it takes", non_negative, null="not modelled", **_MODELLED)
    failed: str | None = _holds("the stage at which the scheme failed", null="it came off", **_MODELLED)


@dataclass(frozen=True, kw_only=True)
class Ended(_Line):
    """The last line: what came out, and what was guaranteed to whom."""

    kind = "end"
    accuracy: float | None = _holds("of the final model, on the test set", share, null="not evaluated")
    epsilon: float | None = _holds("spent by the client that spent most", non_negative, null="without noise")
    epsilon_claimed: float | None = _holds("the ε that was asked for", non_negative, null="without noise")
    delta: float | None = _holds("the δ of every ε in the log", probability, null="without noise")
    unit: str | None = _holds("what is protected", null="not known")
    adjacency: str | None = _holds("what may change between neighbouring data", null="not known")
    rounds: int = _holds("how many rounds are over")
    stopped: str | None = _holds("why it ended early: `budget`", _one_of("budget"), null="it did not")
    bytes_up: float | None = _holds("sent by a client in a round", non_negative, null="not known")
    bytes_down: float | None = _holds("received by a client in a round", non_negative, null="not known")
    seconds: float = _holds("wall-clock time of all sessions", non_negative)
    statement: Sequence[str] = _holds("what was guaranteed to whom, in sentences")


Line: TypeAlias = Started | Round | Ended


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
            ArgumentError: the file is no log; the message names the file, the line and what is wrong with it.
        """
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise ArgumentError(f"run must be a readable log, got run={str(path)!r}: {error.strerror}") from None
        if torn or lines[-1] == b"":
            lines.pop()
        return cls._of(path, lines)

    @classmethod
    def _of(cls, path: Path, lines: Sequence[bytes]) -> RunLog:
        found: list[Line] = []
        for place, text in enumerate(lines, 1):
            try:
                found.append(_read(text, found, last=place == len(lines)))
            except (ArgumentError, OverflowError) as error:
                raise ArgumentError(f"{path}, line {place}: {error}") from None
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
        return plan["calibration"] if about is None or not about.played else about.name

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
    def counts(self) -> list[list[int]]:
        """Records of each class at each client, where they were logged. (clients, classes)"""
        return (self.started.partition or {}).get("counts", [])

    def stays(self, line: Round) -> float | None:
        """Std of the noise a round leaves for good in a coordinate of the mean; only repair takes residuals out."""
        if line.noise_std is None or line.residual_std is None or self.repairs:
            return line.noise_std
        return math.hypot(line.noise_std, line.residual_std)

    def goes(self, line: Round) -> float | None:
        """Std of the residual of a round that later rounds take out again (R4)."""
        return line.residual_std if self.repairs else None


class LogWriter:
    """Writes a log, line by line; each is handed to the operating system at once.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> with LogWriter(path) as log:
    ...     _ = log.write(
    ...         Started(config={}, plan=None, versions={}, commit=None, partition=None, parameters=3, device=None)
    ...     )
    >>> with LogWriter(path, keep=0) as log:
    ...     len(log.kept)
    1
    >>> LogWriter(path, keep=2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    lightdp.runlog.ResumeError: resume needs the log of the 2 rounds of its checkpoint, ...

    Args:
        path: the file; what is there is overwritten.
        keep: go on with the log in the file instead, after its first line and so many rounds. What comes after them,
            also a line that was cut in half when the training was killed, is cut off.

    Attributes:
        kept: the lines that stay.

    Raises:
        ResumeError: the log does not have the rounds to keep; it is left as it is.
    """

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        self.kept: tuple[Line, ...] = () if keep is None else _cut(path, keep)
        self._file = path.open("w" if keep is None else "a", encoding="utf-8")
        if keep is not None:
            self._file.write("\n")  # of the last line kept, whether or not it had one

    def write(self, line: Line) -> Line:
        """Append `line`, hand it to the operating system, and return it.

        Args:
            line: the next one; its order is checked when the log is read.
        """
        self._file.write(json.dumps(line.to_dict(), allow_nan=False) + "\n")
        self._file.flush()
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _cut(path: Path, rounds: int) -> tuple[Line, ...]:
    """Cut a log back to its first line and `rounds` more, without the last newline, and return these."""
    try:
        kept = path.read_bytes().split(b"\n")[: rounds + 1]
        log = RunLog._of(path, kept)  # noqa: SLF001  of this module
        if len(log.rounds) != rounds:
            raise ArgumentError  # noqa: TRY301  as any other damage
    except (OSError, ArgumentError):
        raise ResumeError(
            f"resume needs the log of the {rounds} rounds of its checkpoint, got {path} without some of them; "
            "without resume the run starts anew"
        ) from None
    os.truncate(path, len(b"\n".join(kept)))
    return log.lines


def _read(text: bytes, before: Sequence[Line], *, last: bool) -> Line:
    """The line that follows those `before`."""
    content = _parsed(text, last=last)
    if before and isinstance(before[-1], Ended):
        raise ArgumentError("nothing may follow the end")
    kinds: tuple[type[Line], ...] = (Round, Ended) if before else (Started,)
    found = next((one for one in kinds if one.kind == content.get("kind")), None)
    if found is None:
        wanted = " or ".join(one.kind for one in kinds)
        raise ArgumentError(f"kind must be {wanted}, got kind={content.get('kind')!r}")
    line = found.of(content)
    first = before[0] if before else None
    if isinstance(first, Started) and (plan := first.plan) is not None:
        later = isinstance(line, Round) and plan.get("sampling_rate", 1) != 1  # not computed in every round
        for name in _OF_PRIVACY[1 if later else 0 :]:
            if getattr(line, name, "") is None:
                raise ArgumentError(f"{name} must not be null in a run with a plan")
    if isinstance(line, Round) and line.round != len(before):
        raise ArgumentError(f"round must be {len(before)}, the next one, got round={line.round}")
    if isinstance(line, Ended) and line.rounds != len(before) - 1:
        raise ArgumentError(f"rounds must be {len(before) - 1}, as many as were recorded, got rounds={line.rounds}")
    return line


def _parsed(line: bytes, *, last: bool) -> dict[str, Any]:
    try:
        content = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        hint = "; if the run was killed here, take this line out to read the others" if last else ""
        raise ArgumentError(f"must be JSON: {reason}{hint}") from None
    if not isinstance(content, dict):
        raise ArgumentError(f"must be a JSON object, got {type(content).__name__}")
    return content


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def schema() -> str:
    """The reference page of the format, in Markdown.

    >>> print(schema().splitlines()[0])
    # The log of a run
    """
    parts = [_PAGE]
    for line in (Started, Round, Ended):
        parts.append(f'\n## `"kind": "{line.kind}"`\n{(line.__doc__ or "").partition(chr(10))[0]}\n\n')
        parts.append("| field | type | meaning | null or absent |\n| --- | --- | --- | --- |\n")
        for field in dataclasses.fields(line):
            said, (kind, _) = field.metadata, _type(field)
            missing = "; ".join(f"{when}: {said[when]}" for when in ("null", "absent") if when in said)
            kind += " or null" if "null" in said else ""
            parts.append(f"| `{field.name}` | {kind} | {said['meaning']} | {missing} |\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(schema())
