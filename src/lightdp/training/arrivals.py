"""Who came to a round: laws of stragglers to train over, each a pure function of the seed and the round.

Privacy does not depend on these distributions; they only drive simulations.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator  # noqa: TID251  only its type
from numpy.typing import NDArray

from lightdp._validate import integer, non_negative, positive, share
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError

_Law = Callable[[int], tuple[NDArray[np.bool_], NDArray[np.bool_]]]  # round -> came in time, came too late
_Draw = Callable[[Generator], NDArray[np.bool_]]  # -> missing

SPECS = (
    "none", "uniform", "links:PROBABILITY", "latency:MEDIAN:SPREAD:DEADLINE[:SLOWFRACTION:SLOWFACTOR]", "trace:FILE.csv"
)  # fmt: skip
_ROUND, _SLOW = int.from_bytes(b"come"), int.from_bytes(b"slow")


@dataclass(frozen=True)
class Arrivals:
    """What the server got in one round.

    >>> came = Arrivals.of(5, used=[0, 1, 2, 3], late=[4])
    >>> came.without(ClientSet.of(5, [4]), least=4) == Arrivals.of(5, used=[0, 1, 2, 3])
    True
    >>> came.without(ClientSet.of(5, [0]), least=4) == Arrivals.of(5, used=[], late=[1, 2, 3, 4])
    True

    Attributes:
        used: clients whose uploads are in the sum; empty in a void round.
        late: clients whose uploads were seen but are in no sum. Everybody else's upload never came.
        network: what a simulated network adds to the line of the round in the log: "modelled_seconds" and the stage
            that "failed"; empty without a network.
    """

    used: ClientSet
    late: ClientSet
    network: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, clients: int, used: Iterable[int], late: Iterable[int] = ()) -> Arrivals:
        """From client numbers among `clients` clients."""
        return cls(ClientSet.of(clients, used, name="used"), ClientSet.of(clients, late, name="late"))

    def without(self, away: ClientSet, least: int) -> Arrivals:
        """The same round without the uploads of clients that are `away`; void if fewer than `least` are left to use."""
        used, late = self.used - away, self.late - away
        return Arrivals(used, late) if not self.used or len(used) >= least else Arrivals(used - used, used | late)


def arrivals(spec: str, *, clients: int, bound: int, seed: int, late_seen: float = 0.0) -> Callable[[int], Arrivals]:
    """A function from the number of a round, from 1, to who came.

    >>> who_came = arrivals("links:0.2", clients=10, bound=4, seed=0)
    >>> who_came(1) == who_came(1), len(who_came(1).used) in range(6, 11)
    (True, True)

    At most `bound` clients are ever missing from a sum. When more are, the round is void: nobody is used, and who
    came in time counts as late, since the server has seen those uploads.

    Args:
        spec: one of
            none: everybody comes;
            uniform: the number of missing clients is uniform on 0..bound, and each set of that size equally likely;
            links:PROBABILITY: each client is missing with this probability, by itself;
            latency:MEDIAN:SPREAD:DEADLINE[:SLOWFRACTION:SLOWFACTOR]: a client takes MEDIAN·exp(SPREAD·N(0, 1))
            seconds, and SLOWFACTOR times as long if it is one of the SLOWFRACTION of clients that are always slow;
            past the DEADLINE it is late, and seen;
            trace:FILE.csv: as recorded in columns round, client (from 0) and status: used, late or lost. Who is not
            mentioned is used.
        clients: N.
        bound: S̄, the most clients that may be missing.
        seed: of everything random.
        late_seen: for uniform and links, the probability that a missing client's upload was seen late.

    Raises:
        ArgumentError: an argument or a line of the trace is wrong.
    """
    clients, seed, late_seen = integer("clients", clients, 1), integer("seed", seed, 0), share("late_seen", late_seen)
    bound = integer("bound", bound, 0, clients)
    kind, _, settings = spec.partition(":")
    if late_seen > 0 and kind in {"latency", "trace"}:
        raise ArgumentError(f"late_seen must be 0 with {kind}, which knows who was late, got late_seen={late_seen:g}")
    match spec.split(":"):
        case ["none"]:
            who = _missing(clients, seed, late_seen, lambda _: np.zeros(clients, np.bool_))
        case ["uniform"]:
            who = _missing(clients, seed, late_seen, lambda rng: rng.permutation(clients) < rng.integers(bound + 1))
        case ["links", *_]:
            failure = share("links", *_numbers(spec, 1))
            who = _missing(clients, seed, late_seen, lambda rng: rng.random(clients) < failure)
        case ["latency", *_]:
            who = _missing(clients, seed, 1.0, _latency(clients, seed, _numbers(spec, 3, 5)))
        case ["trace", *_]:
            who = _trace(clients, Path(settings))
        case _:
            raise ArgumentError(f"arrivals must be one of {', '.join(SPECS)}, got arrivals={spec!r}")

    def who_came(round: int) -> Arrivals:  # noqa: A002  the paper's word
        in_time, too_late = who(integer("round", round, 1))
        if clients - int(in_time.sum()) > bound:
            in_time, too_late = np.zeros(clients, np.bool_), in_time | too_late
        return Arrivals(ClientSet(in_time), ClientSet(too_late))

    return who_came


def straggler_law(spec: str) -> str:
    """The straggler law of a plan for these arrivals: binomial for "links", otherwise uniform.

    >>> straggler_law("links:0.1"), straggler_law("none")
    ('binomial:0.1', 'uniform')

    Args:
        spec: as in `arrivals`.

    Raises:
        ArgumentError: the settings of "links" are wrong.
    """
    failure = share("links", *_numbers(spec, 1)) if spec.split(":", maxsplit=1)[0] == "links" else 0.0
    return f"binomial:{failure!r}" if 0 < failure < 1 else "uniform"


def _missing(clients: int, seed: int, late_seen: float, draw: _Draw) -> _Law:
    """`draw` says who is missing; each of them is seen late with probability `late_seen`."""

    def law(round: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:  # noqa: A002  the paper's word
        rng = _generator(seed, _ROUND, round)
        missing = draw(rng)
        return ~missing, missing & (rng.random(clients) < late_seen)

    return law


def _latency(clients: int, seed: int, settings: list[float]) -> _Draw:
    """Who takes longer than the deadline, in log-normal seconds."""
    median, spread, deadline, fraction, factor = settings if len(settings) == 5 else [*settings, 0.0, 1.0]
    median, spread = positive("latency MEDIAN", median), non_negative("latency SPREAD", spread)
    deadline, fraction = positive("latency DEADLINE", deadline), share("latency SLOWFRACTION", fraction)
    slow = _generator(seed, _SLOW).permutation(clients) < math.floor(fraction * clients + 0.5)
    patience = math.log(deadline) - math.log(median) - slow * math.log(positive("latency SLOWFACTOR", factor))
    return lambda rng: ~(spread * rng.standard_normal(clients) <= patience)


def _trace(clients: int, path: Path) -> _Law:
    """What a file recorded, read once."""
    rounds: dict[int, dict[int, str]] = {}
    for line, (*texts, status) in _rows(path):
        t, i = (int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1 for text in texts)
        if t < 1 or not 0 <= i < clients or status not in {"used", "late", "lost"}:
            raise ArgumentError(
                f"line {line} of {path} must hold a round >= 1, a client in 0..{clients - 1} and used, late or lost,"
                f" got {texts[0]!r}, {texts[1]!r} and {status!r}"
            )
        if rounds.setdefault(t, {}).setdefault(i, status) != status:
            raise ArgumentError(f"line {line} of {path} contradicts an earlier one on round {t} and client {i}")

    def law(round: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:  # noqa: A002  the paper's word
        in_time, too_late = np.ones(clients, np.bool_), np.zeros(clients, np.bool_)
        for i, status in rounds.get(round, {}).items():
            in_time[i], too_late[i] = status == "used", status == "late"
        return in_time, too_late

    return law


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and the three columns of a trace; other columns do not matter."""
    columns = ("round", "client", "status")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            if not set(columns) <= set(reader.fieldnames or ()):
                raise ArgumentError(
                    f"a trace must have columns {', '.join(columns)}, got {reader.fieldnames} in {path}"
                )
            for row in reader:
                yield reader.line_num, [(row[name] or "").strip() for name in columns]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArgumentError(f"cannot read the trace {path}: {error}") from error


def _numbers(spec: str, *counts: int) -> list[float]:
    """The numbers after the name of a spec, of which there must be one of `counts`."""
    kind, *texts = spec.split(":")
    with suppress(ValueError):
        if len(texts) in counts:
            return [float(text) for text in texts]
    usage = next(usage for usage in SPECS if usage.startswith(kind))
    raise ArgumentError(f"arrivals must be given as {usage}, got arrivals={spec!r}")


def _generator(*entropy: int) -> Generator:
    return np.random.default_rng(entropy)  # noqa: TID251  who is slow, nothing that protects
