"""How loud the noise of a round is beside an update, and which other settings would make it quieter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from lightdp._validate import counted, integer, positive
from lightdp.errors import ArgumentError
from lightdp.planning._plan import Plan, solve
from lightdp.planning._request import Request

_MOST = 2**24  # clients that are looked at


@dataclass(frozen=True)
class Remedy:
    """One change of a plan's settings that brings its noise to what was asked.

    Attributes:
        setting: what is changed: "clients", "rounds", "parameters" or "unit".
        words: the change in words, with its values.
        plan: the plan with that change, solved anew.
        ratio: its `noise_ratio`.
    """

    setting: str
    words: str
    plan: Plan
    ratio: float


def noise_ratio(plan: Plan, length: int) -> float:
    """The norm of a round's noise in the mean of updates, over the largest norm that this mean can have.

    That norm is the clip for unit "client". For unit "record" it is the clip for each record of a client's batch; where
    the plan does not know the number of records, the ratio is that of clients with one record.

    >>> import lightdp
    >>> plan = lightdp.plan(
    ...     clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5, unit="client"
    ... )
    >>> round(noise_ratio(plan, 10_000), 1)
    47.7

    Args:
        plan: the noise.
        length: number of parameters.
    """
    asked, norm = plan.request, math.sqrt(integer("length", length, 1) * plan.noise_in_mean())
    held = 1.0
    if plan.unit == "record" and asked.records is not None:
        held = asked.records * asked.sampling_rate / asked.members
    return norm / (held * plan.clip)


def remedies(plan: Plan, length: int, target: float = 1.0) -> tuple[Remedy, ...]:
    """Changes that bring `noise_ratio` to `target`, each by itself; none if it is there already.

    Looked for are the least number of clients (with population, colluders, stragglers and records in proportion), the
    largest number of rounds and of parameters, and for unit "client" the number of records that a client must hold
    under unit "record". Each is solved for anew. What no value of a setting reaches is left out. Where batches are
    sampled, which takes long to solve for, only the number of parameters is looked for.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=50, colluders=5, stragglers=5, rounds=20, epsilon=8, delta=1e-5, unit="client")
    >>> [each.words for each in remedies(plan, 1000)]  # doctest: +NORMALIZE_WHITESPACE
    ['clients=132 (colluders=14, stragglers=14)', '167 parameters in place of 1,000',
     "unit='record', which protects one record, with at least 3 of them at each client"]

    Args:
        plan: the noise.
        length: number of parameters.
        target: the ratio to reach.
    """
    if noise_ratio(plan, length) <= positive("target", target):
        return ()
    return tuple(_found(plan, length, target))


def noise_advice(plan: Plan, length: int, target: float = 1.0) -> str:
    """One line: how loud a round's noise is beside an update and, where it is louder, what would help.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=50, colluders=5, stragglers=5, rounds=20, epsilon=8, delta=1e-5, unit="client")
    >>> print(noise_advice(plan, 100))
    noise of a round in the mean has a norm of 0.77, 0.77 times the clip, the most that an update can have

    Args:
        plan: the noise.
        length: number of parameters.
        target: the ratio above which changes are looked for.
    """
    ratio = noise_ratio(plan, length)
    norm = math.sqrt(length * plan.noise_in_mean())
    line = f"noise of a round in the mean has a norm of {norm:.2g}, {ratio:.2g} times {_largest(plan)}"
    found = remedies(plan, length, target)
    if not found:
        return line if ratio <= target else f"{line}; no other number of clients, rounds or parameters helps by itself"
    return f"{line}; at most {target:g} times with {', or '.join(each.words for each in found)}"


def _largest(plan: Plan) -> str:
    if plan.unit == "client":
        return "the clip, the most that an update can have"
    if plan.request.records is None:
        return "what a record can add to a client's update; divide by the records of a client's batch"
    return "the most that an update can have"


def _found(plan: Plan, length: int, target: float) -> Iterator[Remedy]:
    asked = plan.request
    if plan.gdp:
        if (many := _first(lambda n: _quiet(_grown(asked, n), length, target), asked.clients, _MOST)) is not None:
            request = _grown(asked, many)
            of = "" if request.population is None else f"population={request.population:,}, "
            words = f"clients={many:,} ({of}colluders={request.colluders:,}, stragglers={request.stragglers:,})"
            yield _remedy("clients", words, request, length)
        few = _last(lambda t: _quiet(asked.but(rounds=t), length, target), asked.rounds)
        if few is not None:
            yield _remedy("rounds", f"rounds={few:,}", asked.but(rounds=few), length)

    def sized(parameters: int) -> Plan:
        return plan if asked.parameters is None else solve(asked.but(parameters=parameters))

    short = _last(lambda d: noise_ratio(sized(d), d) <= target, length)
    if short is not None:
        words = f"{counted(short, 'parameter')} in place of {length:,}"
        yield Remedy("parameters", words, sized(short), noise_ratio(sized(short), short))
    if plan.unit == "client":
        other = solve(asked.but(unit="record", records=None))
        held = math.ceil(noise_ratio(other, length) / target)
        words = f"unit='record', which protects one record, with at least {held:,} of them at each client"
        yield Remedy("unit", words, other, noise_ratio(other, length) / held)


def _remedy(setting: str, words: str, request: Request, length: int) -> Remedy:
    plan = solve(request)
    return Remedy(setting, words, plan, noise_ratio(plan, length))


def _quiet(request: Request, length: int, target: float) -> bool:
    """Whether there is such a plan, with noise of at most `target`."""
    with suppress(ArgumentError):
        return noise_ratio(solve(request), length) <= target
    return False


def _grown(asked: Request, clients: int) -> Request:
    """The request with so many clients and a population, colluders, stragglers and records in proportion."""
    times = Fraction(clients, asked.clients)
    shares = {name: math.ceil(getattr(asked, name) * times) for name in ("colluders", "stragglers")}
    law = asked.straggler_law
    if not isinstance(law, str) or law.startswith("pmf"):
        del shares["stragglers"]  # a law that was given value by value is of so many stragglers
    for name in ("population", "records"):
        if (known := getattr(asked, name)) is not None:
            shares[name] = math.ceil(known * times)
    return asked.but(clients=clients, **shares)


def _first(holds: Callable[[int], bool], low: int, most: int) -> int | None:
    """The least value above `low` for which `holds`, which stays true from there on; None up to `most`."""
    high = low
    while not holds(high):
        low, high = high, high * 2
        if high > most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _last(holds: Callable[[int], bool], high: int) -> int | None:
    """The largest value below `high` for which `holds`, which is true up to there; None if it is not for 1."""
    if not holds(1):
        return None
    low = 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
