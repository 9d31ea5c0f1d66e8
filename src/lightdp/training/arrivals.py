"""Who came to a round: laws of stragglers to train over, each a pure function of the seed and the round.

Privacy does not depend on these distributions; they only drive simulations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from lightdp.training import traces

_Flags = NDArray[np.bool_]  # (clients,)
_Law = Callable[[int], tuple[_Flags, _Flags, _Flags]]  # round -> came in time, one round late, later still
_Draw = Callable[[Generator], tuple[_Flags, _Flags, _Flags]]

SPECS = (
    "none", "uniform", "links:PROBABILITY", "latency:MEDIAN:SPREAD:DEADLINE[:SLOWFRACTION:SLOWFACTOR]", "trace:FILE.csv"
)  # fmt: skip
_ROUND, _SLOW = int.from_bytes(b"come"), int.from_bytes(b"slow")


@dataclass(frozen=True)
class Arrivals:
    """In which sum the uploads of one round are.

    >>> came = Arrivals.of(5, used=[0, 1, 2, 3], late=[4])
    >>> came.without(ClientSet.of(5, [4]), least=4) == Arrivals.of(5, used=[0, 1, 2, 3])
    True
    >>> came.without(ClientSet.of(5, [0]), least=4) == Arrivals.of(5, used=[], late=[1, 2, 3, 4])
    True

    Attributes:
        used: clients whose uploads are in the sum of this round; nobody if too few came in time.
        next: clients whose uploads are in the sum of the next round (R5); nobody without grace. They came one round
            late, or waited for those that did since too few came in time.
        late: clients whose uploads were seen but are in no sum. Everybody else's upload never came.
        network: what a simulated network adds to the line of the round in the log: "modelled_seconds" and the stage
            that "failed"; empty without a network.
    """

    used: ClientSet
    next: ClientSet
    late: ClientSet
    network: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        clients: int,
        used: Iterable[int],
        late: Iterable[int] = (),
        next: Iterable[int] = (),  # noqa: A002
    ) -> Arrivals:
        """From client numbers among `clients` clients."""
        return cls(
            ClientSet.of(clients, used, name="used"),
            ClientSet.of(clients, next, name="next"),
            ClientSet.of(clients, late, name="late"),
        )

    @property
    def final(self) -> ClientSet:
        """Clients that the round uses in the end; nobody in a void round."""
        return self.used | self.next

    @property
    def sent(self) -> ClientSet:
        """Clients whose uploads came at all."""
        return self.final | self.late

    def among(self, members: Sequence[int]) -> Arrivals:
        """The same round of some clients alone, numbered in their order.

        >>> Arrivals.of(5, used=[0, 1, 3], late=[4]).among([1, 2, 4]) == Arrivals.of(3, used=[0], late=[2])
        True
        """
        chosen = np.asarray(members, dtype=np.int64)
        used, joins, late = (ClientSet(each.flags[chosen]) for each in (self.used, self.next, self.late))
        return Arrivals(used, joins, late)

    def without(self, away: ClientSet, least: int) -> Arrivals:
        """The same round without the uploads of clients that are `away`; void if fewer than `least` are left to use."""
        return Arrivals(self.used - away, self.next - away, self.late - away).settled(least)

    def settled(self, least: int) -> Arrivals:
        """The same round by the server's rule: no set with fewer than `least` clients is used.

        If too few came in time, they wait; if too few came at all, the round is void, and all were seen in vain.
        """
        nobody = self.used - self.used
        if len(self.used) >= least:
            return self
        if len(self.final) >= least:
            return Arrivals(nobody, self.final, self.late, self.network)
        return Arrivals(nobody, nobody, self.sent, self.network)


def arrivals(
    spec: str, *, clients: int, bound: int, seed: int, late_seen: float = 0.0, late_by_one: float = 0.0, grace: int = 0
) -> Callable[[int], Arrivals]:
    """A function from the number of a round, from 1, to who came.

    >>> who_came = arrivals("links:0.2", clients=10, bound=4, seed=0)
    >>> who_came(1) == who_came(1), len(who_came(1).used) in range(6, 11)
    (True, True)

    At most `bound` clients are ever missing from a sum. When more are, the round is void: nobody is used, and who
    came in time counts as late, since the server has seen those uploads. An upload that comes one round late is used
    under grace, and too late without it.

    Args:
        spec: one of
            none: everybody comes;
            uniform: the number of missing clients is uniform on 0..bound, and each set of that size equally likely;
            links:PROBABILITY: each client is missing with this probability, by itself;
            latency:MEDIAN:SPREAD:DEADLINE[:SLOWFRACTION:SLOWFACTOR]: a client takes MEDIAN·exp(SPREAD·N(0, 1))
            seconds, and SLOWFACTOR times as long if it is one of the SLOWFRACTION of clients that are always slow;
            past the DEADLINE it is one round late, past twice the DEADLINE too late, and seen;
            trace:FILE.csv: as recorded in columns round, client (from 0) and status: used, next (one round late), late
            or lost. Who is not mentioned is used.
        clients: N.
        bound: S̄, the most clients that may be missing.
        seed: of everything random.
        late_seen: for uniform and links, the probability that a missing client's upload was seen too late.
        late_by_one: for uniform and links, the probability that it came one round late.
        grace: rounds for which an upload may be late and is used all the same: 0 or 1.

    Raises:
        ArgumentError: an argument or a line of the trace is wrong.
    """
    clients, seed, bound = integer("clients", clients, 1), integer("seed", seed, 0), integer("bound", bound, 0, clients)
    grace, (late_seen, late_by_one) = integer("grace", grace, 0, 1), late_shares(spec, late_seen, late_by_one)
    settings = spec.partition(":")[2]

    def missing(draw: Callable[[Generator], _Flags]) -> _Law:
        """`draw` says who is missing."""

        def parts(rng: Generator) -> tuple[_Flags, _Flags, _Flags]:
            gone, place = draw(rng), rng.random(clients)
            too_late = place < late_seen
            return ~gone, gone & ~too_late & (place >= 1 - late_by_one), gone & too_late

        return _drawn(seed, parts)

    match spec.split(":"):
        case ["none"]:
            who = missing(lambda _: np.zeros(clients, np.bool_))
        case ["uniform"]:
            who = missing(lambda rng: rng.permutation(clients) < rng.integers(bound + 1))
        case ["links", *_]:
            failure = share("links", *_numbers(spec, 1))
            who = missing(lambda rng: rng.random(clients) < failure)
        case ["latency", *_]:
            who = _drawn(seed, _latency(clients, seed, _numbers(spec, 3, 5)))
        case ["trace", *_]:
            who = _trace(clients, Path(settings))
        case _:
            raise ArgumentError(f"arrivals must be one of {', '.join(SPECS)}, got arrivals={spec!r}")

    def who_came(round: int) -> Arrivals:  # noqa: A002  the paper's word
        in_time, by_one, too_late = who(integer("round", round, 1))
        by_one, too_late = (by_one, too_late) if grace else (np.zeros(clients, np.bool_), by_one | too_late)
        return Arrivals(ClientSet(in_time), ClientSet(by_one), ClientSet(too_late)).settled(clients - bound)

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


def late_shares(spec: str, late_seen: float, late_by_one: float) -> tuple[float, float]:
    """`late_seen` and `late_by_one` of `arrivals`, checked together.

    >>> late_shares("links:0.1", 0.25, 0.5)
    (0.25, 0.5)

    Args:
        spec: as in `arrivals`.
        late_seen: the share of stragglers whose uploads are seen too late.
        late_by_one: the share of stragglers whose uploads come one round late.

    Raises:
        ArgumentError: one is no share, both exceed 1 together, or `spec` says by itself who is late or that nobody is.
    """
    kind, shares = spec.partition(":")[0], {"late_seen": late_seen, "late_by_one": late_by_one}
    for name, value in shares.items():
        if share(name, value) > 0 and kind in {"none", "latency", "trace"}:
            why = "where nobody is late" if kind == "none" else "which says who is late"
            raise ArgumentError(f"{name} must be 0 with arrivals={spec!r}, {why}, got {name}={value:g}")
    if late_seen + late_by_one > 1:
        raise ArgumentError(
            f"late_seen and late_by_one must be at most 1 together, got late_seen={late_seen:g} and "
            f"late_by_one={late_by_one:g}"
        )
    return late_seen, late_by_one


def _drawn(seed: int, draw: _Draw) -> _Law:
    """The law that draws each round apart."""
    return lambda round: draw(_generator(seed, _ROUND, round))  # noqa: A006  the paper's word


def _latency(clients: int, seed: int, settings: list[float]) -> _Draw:
    """Who takes at most the deadline, up to twice the deadline, and longer, in log-normal seconds."""
    median, spread, deadline, fraction, factor = settings if len(settings) == 5 else [*settings, 0.0, 1.0]
    median, spread = positive("latency MEDIAN", median), non_negative("latency SPREAD", spread)
    deadline, fraction = positive("latency DEADLINE", deadline), share("latency SLOWFRACTION", fraction)
    slow = _generator(seed, _SLOW).permutation(clients) < math.floor(fraction * clients + 0.5)
    patience = math.log(deadline) - math.log(median) - slow * math.log(positive("latency SLOWFACTOR", factor))

    def draw(rng: Generator) -> tuple[_Flags, _Flags, _Flags]:
        taken = spread * rng.standard_normal(clients)
        in_time, too_late = taken <= patience, taken > patience + math.log(2)
        return in_time, ~in_time & ~too_late, too_late

    return draw


def _trace(clients: int, path: Path) -> _Law:
    """What a file recorded, read once."""
    rounds = traces.read(path, clients)

    def law(round: int) -> tuple[_Flags, _Flags, _Flags]:  # noqa: A002  the paper's word
        came = {status: np.full(clients, status == "used") for status in traces.STATUSES}
        for i, status in rounds.get(round, {}).items():
            came["used"][i] = False
            came[status][i] = True
        return came["used"], came["next"], came["late"]

    return law


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
