"""The lines of a log: `Started`, `Round` and `Ended`, each field with its type, its check and its meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

from lightdp._validate import non_negative, probability, share
from lightdp.runlog import _checks
from lightdp.runlog._checks import Check

_UNKNOWN = "not known"
_NO_EPSILON = "without noise, or not computed (sampled batches)"
_MU = "the μ of Gaussian noise with this ε at the plan's δ; with whole batches the training so far is μ-GDP"
_GRACE = {"null": "without grace", "absent": "likewise", "beside": "joined_clients"}
_ONE = {"null": "all rounds have the same clients", "absent": "likewise", "beside": "formed"}
_CLOSED = (
    "rosters that were closed {}, as `roster`; under grace with `joined_clients`, whose uploads of its last round came "
    "in while it was closed"
)
_SINCE = (
    "clients, by round, whose uploads of earlier rounds came since the line before, too late for a sum; the lines of "
    "these rounds count them as lost"
)
_BOTH = {"null": _UNKNOWN, "absent": "likewise"}
_MODELLED = {"absent": "no time is modelled", "beside": "modelled_seconds"}


def claimed_epsilon(plan: Mapping[str, Any]) -> float:
    """The ε that was asked for: the budget of a plan as a log has it.

    Older logs hold it as "epsilon_claimed", and what the plan really costs as "epsilon".

    >>> claimed_epsilon({"epsilon": 9.24, "epsilon_claimed": 3.0}), claimed_epsilon({"epsilon": 3.0})
    (3.0, 3.0)

    Args:
        plan: as `Plan.to_dict` gives it, or as an older log has it.
    """
    return plan["epsilon_claimed"] if "epsilon_claimed" in plan else plan["epsilon"]


def type_of(field: dataclasses.Field[Any]) -> tuple[str, Check]:
    return _checks.TYPES[str(field.type).removesuffix(" | None")]


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
                (field.metadata["check"] or type_of(field)[1])(field.name, value)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """The line that `to_dict` gave; keys that are not known are ignored.

        Args:
            content: the JSON object of the line.

        Raises:
            ArgumentError: a field is missing or wrong.
        """
        fields = dataclasses.fields(cls)
        _checks.require([field.name for field in fields if field.default is dataclasses.MISSING], content)
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
    plan: Mapping[str, Any] | None = _holds("the noise, as `Plan.to_dict` gives it", _checks.plan, null="without noise")
    versions: Mapping[str, Any] = _holds("versions of the software that decides the numbers, by package")
    commit: str | None = _holds("commit of the working tree", null="outside of one")
    partition: Mapping[str, Any] | None = _holds(
        "who holds how much data; `counts`: records of each class at each client; `persons`: how many each client has "
        "(unit `person`); `names`: of the clients, `classes`: of the classes, where the data name them",
        _checks.partition,
        null=_UNKNOWN,
    )
    parameters: int = _holds("length d of an update")
    device: str | None = _holds("where local work is computed", null=_UNKNOWN)
    network: Mapping[str, Any] | None = _holds("modelled links", null="no time is modelled", absent="old log")
    dataset: Mapping[str, Any] | None = _holds(
        "the data: its `name`, and a SHA-256 `digest` of its arrays, by which anyone who guesses all records can check "
        "the guess: keep logs of private records to yourself",
        _checks.identity("name"),
        **_BOTH,
        beside="dataset",
    )
    module: Mapping[str, Any] | None = _holds(
        "the model: its `name`, for own modules that of the class, and a SHA-256 `digest` of names and shapes of its "
        "parameters",
        _checks.identity("name"),
        **_BOTH,
        beside="module",
    )
    start: Mapping[str, Any] | None = _holds(
        "the weights that the training began with: their `file`, the SHA-256 `digest` of it, the tensors of the last "
        "layer that were `new`, and those of the file that were `unused`",
        _checks.identity("file"),
        null="no file",
        absent="likewise",
        beside="start",
    )


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
    mu: float | None = _holds(_MU, non_negative, null=_NO_EPSILON, absent="old log")
    used: int = _holds("clients whose uploads of this round are in its sum")
    late: int = _holds("clients whose uploads of this round were seen, but too late for its sum")
    lost: int = _holds("clients of which nothing was seen")
    joined: int | None = _holds("clients whose uploads of the round before are in the sum too (R5)", **_GRACE)
    late_clients: Sequence[int] | None = _holds("which ones were late", null="not known", absent="old log")
    lost_clients: Sequence[int] | None = _holds("which ones were lost", null="not known", absent="old log")
    joined_clients: Sequence[int] | None = _holds("which ones joined; the line before counts them as late", **_GRACE)
    late_since: Mapping[str, Any] | None = _holds(
        _SINCE, _checks.by_round, null="none came", absent="likewise", beside="late_since"
    )
    metrics: Mapping[str, Any] | None = _holds(
        "other metrics of the round, by name", null="there are none", absent="likewise", beside="metrics"
    )
    noise_std: float | None = _holds(
        "standard deviation of the noise in a coordinate of the mean, without residuals", non_negative, null=_UNKNOWN
    )
    residual_std: float | None = _holds(
        "the same of noise shared with missing clients, which only repair takes out (R4)", non_negative, null=_UNKNOWN
    )
    roster: int | None = _holds("number of the roster that had it", **_ONE | {"null": "none could be formed"})
    formed: Sequence[Mapping[str, Any]] | None = _holds(
        "rosters that were formed before it, as `roster` and its `members` in order; these share noise",
        _checks.formed,
        **_ONE,
    )
    closed: Sequence[Mapping[str, Any]] | None = _holds(_CLOSED.format("before it"), _checks.closed, **_ONE)
    away_clients: Sequence[int] | None = _holds("members that had left and not come back, at its beginning", **_ONE)
    waiting_clients: Sequence[int] | None = _holds("members that waited for a roster", **_ONE)
    spent_clients: Sequence[int] | None = _holds("members that had no budget for another round", **_ONE)
    modelled_seconds: float | None = _holds("how long it takes", non_negative, null="not modelled", **_MODELLED)
    failed: str | None = _holds("the stage at which the scheme failed", null="it came off", **_MODELLED)


@dataclass(frozen=True, kw_only=True)
class Ended(_Line):
    """The last line: what came out, and what was guaranteed to whom."""

    kind = "end"
    accuracy: float | None = _holds("of the final model, on the test set", share, null="not evaluated")
    accuracy_clients: Mapping[str, Any] | None = _holds(
        "likewise, on the test records of each client that has some, by the client's name",
        _checks.shares,
        null="clients have no names",
        absent="likewise",
        beside="accuracy_clients",
    )
    bounds: Mapping[str, Any] | None = _holds(
        "of columns, by name, as the first rounds found them within ε: `low` and `high`, from which the model takes "
        "values scaled to [-1, 1], and `clear`, whether they stood out of the noise",
        _checks.bounds,
        null="all are known",
        absent="likewise",
        beside="bounds",
    )
    epsilon: float | None = _holds("spent by the client that spent most", non_negative, null="without noise")
    mu: float | None = _holds(_MU, non_negative, null="without noise", absent="old log")
    epsilon_claimed: float | None = _holds("the ε that was asked for", non_negative, null="without noise")
    delta: float | None = _holds("the δ of every ε in the log", probability, null="without noise")
    unit: str | None = _holds("what is protected", null=_UNKNOWN)
    adjacency: str | None = _holds("what may change between neighbouring data", null=_UNKNOWN)
    rounds: int = _holds("how many rounds are over")
    stopped: str | None = _holds(
        "why it ended early: `budget`, `members` (too few for a roster), `void` (too few uploads came to several "
        "rounds), `refused` (by every client)",
        _checks.one_of("budget", "members", "void", "refused"),
        null="it did not",
    )
    bytes_up: float | None = _holds("sent by a client in a round", non_negative, null=_UNKNOWN)
    bytes_down: float | None = _holds("received by a client in a round", non_negative, null=_UNKNOWN)
    seconds: float = _holds("wall-clock time of all sessions", non_negative)
    statement: Sequence[str] = _holds("what was guaranteed to whom, in sentences")
    joined: int | None = _holds("clients whose uploads of the last round came in while the run was closed", **_GRACE)
    joined_clients: Sequence[int] | None = _holds("which ones joined", **_GRACE)
    epsilon_clients: Sequence[float] | None = _holds(
        "what each client has spent, in all of its rosters", **_ONE | {"null": "without noise", "beside": "closed"}
    )
    closed: Sequence[Mapping[str, Any]] | None = _holds(
        _CLOSED.format("at the end")
        + "; with `early` if that was before the end, and it counts at its worst, and with "
        "`open` if the set of its last round is not final: the round has no line, and ε counts it at its worst",
        _checks.closed,
        **_ONE | {"beside": "closed"},
    )
    late_since: Mapping[str, Any] | None = _holds(
        _SINCE, _checks.by_round, null="none came", absent="likewise", beside="late_since"
    )


Line: TypeAlias = Started | Round | Ended
