"""Who answers which round, and what each client is told: schedules of honest servers, random or from a file."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lightdp.auditing._stories import Entry, Telling
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, BudgetError, ProtocolError
from lightdp.planning import Plan
from lightdp.protocol.history import ClientHistory, known

ROUNDS = 5
"""How many rounds of a random schedule are played by default."""
_VOID = 0.1  # share of rounds in which too few uploads come
_LATE = 0.5  # share of stragglers whose uploads come too late but are seen
_NEXT = 0.25  # share of used clients whose uploads come one round late, under grace
_OTHER = bytes(31) + b"1"  # another model than all others get
_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")


@dataclass(frozen=True)
class Round:
    """A round of a server that tells all clients the same.

    Attributes:
        used: clients whose uploads are added; none for a void round.
        late: other clients whose uploads are seen.
        closing: whether it carries no data.
        on_time: clients whose uploads came before the round closed, under grace (R5); None without.
    """

    used: ClientSet
    late: ClientSet
    closing: bool = False
    on_time: ClientSet | None = None


def past(rounds: Sequence[Round]) -> tuple[Entry, ...]:
    """What became known when each round closed."""
    used, on_time = [each.used for each in rounds], [each.on_time for each in rounds if each.on_time is not None]
    return tuple(known(used, on_time, number, each.used.clients) for number, each in enumerate(rounds))


def told(rounds: Sequence[Round]) -> tuple[Telling, ...]:
    """The uploads of a schedule, in order: in each round first those that are used.

    >>> nobody, all_three = ClientSet.none(3), ClientSet.all(3)
    >>> [each.client for each in told([Round(all_three, nobody), Round(nobody, ClientSet.of(3, [1]))])]
    [0, 1, 2, 1]
    """
    entries = past(rounds)
    return tuple(
        Telling(client, entries[:number], each.closing)
        for number, each in enumerate(rounds)
        for client in (*each.used, *each.late)
    )


def with_other_models(tellings: Sequence[Telling]) -> tuple[Telling, ...]:
    """The same, but in each round with data one of the clients, each in its turn, gets another model than the others.

    Its noise does not cancel in that round, and does so again in the next one (W4).

    >>> everybody = Round(ClientSet.all(3), ClientSet.none(3))
    >>> [each.client for each in with_other_models(told([everybody] * 4)) if each.given is not None]
    [0, 1, 2, 0]
    """
    asked: dict[int, set[int]] = {}
    for each in tellings:
        if not each.closing:
            asked.setdefault(len(each.past), set()).add(each.client)
    lied_to = {number: sorted(clients)[turn % len(clients)] for turn, (number, clients) in enumerate(asked.items())}
    return tuple(
        replace(each, given=_OTHER) if lied_to.get(len(each.past)) == each.client else each for each in tellings
    )


def random_rounds(plan: Plan, rounds: int, seed: int) -> tuple[Round, ...]:
    """Rounds with stragglers by the plan's law; some are void, some stragglers are seen, and closing rounds end it.

    Under grace some of the used clients come one round late. Client 0 is used in the first round. A client whose budget
    does not allow another round stays away, as it would in a training, which ends when more stay away than the plan
    allows.

    Args:
        plan: the noise and the straggler law.
        rounds: how many rounds to play, without closing ones.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)  # noqa: TID251  a schedule, not a secret
    everybody, nobody, result = ClientSet.all(plan.clients), ClientSet.none(plan.clients), list[Round]()
    neighbours = plan.graph.neighbours().tolist()
    histories = [ClientHistory(plan, i, bytes(32), neighbours[i]) for i in range(plan.clients)]
    for number in range(rounds):
        away = ClientSet.of(plan.clients, [i for i, each in enumerate(histories) if not _admitted(each)])
        if len(away) > plan.stragglers:
            break
        count = int(rng.choice(plan.stragglers + 1, p=plan.law.pmf))
        drawn = [i for i in rng.permutation(plan.clients).tolist() if i not in away and (i > 0 or number > 0)]
        missing = ClientSet.of(plan.clients, drawn[: max(count - len(away), 0)])
        seen = ClientSet.of(plan.clients, [i for i in missing if plan.late_is_seen and rng.random() < _LATE])
        used, void = everybody - missing - away, number > 0 and rng.random() < _VOID
        on_time = None
        if plan.grace:
            came = [i for i in rng.permutation(list(used)).tolist() if rng.random() >= _NEXT]
            on_time = ClientSet.of(plan.clients, came[: plan.clients - plan.stragglers - 1] if void else came)
        result.append(Round(nobody, used, on_time=on_time) if void else Round(used, seen, on_time=on_time))
        _learn(histories, result)
    if plan.repairs:
        last = Round(everybody, nobody, closing=True, on_time=everybody if plan.grace else None)
        result += [last] * (1 + plan.grace)
    return tuple(result)


def _admitted(history: ClientHistory) -> bool:
    try:
        history.odometer.admit()
    except BudgetError:
        return False
    return True


def _learn(histories: Sequence[ClientHistory], rounds: Sequence[Round]) -> None:
    """Tell what became known when the last round closed."""
    number, last, entry = len(rounds) - 1, rounds[-1], past(rounds)[-1]
    for client, history in enumerate(histories):
        if client in last.used or client in last.late:
            history.sent |= {number}
        history.learn([(number, entry)])


def answered(plan: Plan, tellings: Iterable[Telling]) -> Iterator[tuple[Telling, str | None]]:
    """Each telling, with the reason why a client would not answer it, or None; a refusal changes nothing."""
    neighbours = plan.graph.neighbours().tolist()
    histories = [ClientHistory(plan, i, bytes(32), neighbours[i]) for i in range(plan.clients)]
    for each in tellings:
        before, number, refused = histories[each.client], len(each.past), None
        history = before.copied()
        try:
            history.learn(enumerate(each.past))
            if number != history.next or number in before.sent:
                refused = f"round {number} was answered, or is over"
            elif not each.closing:
                history.odometer.admit()
        except (BudgetError, ProtocolError) as error:
            refused = str(error)
        if refused is None:
            histories[each.client] = history.answered(number, closing=each.closing)
        yield each, refused


def read_rounds(path: Path, plan: Plan) -> tuple[Round, ...]:
    """The rounds of a file, one after the other.

    FILE.json holds a list of {"used": [0, 1], "late": [2], "closing": false}; FILE.csv has a line for each round with
    columns used, late and, if wanted, closing (0 or 1), where `0-3 5` names clients 0 to 3 and 5. No used client makes
    a round void. Only the last round may be closing, the last two under grace. There on_time may name those of the used
    clients, or of a void round's late ones, that came before the round closed; by default all of the used.

    Args:
        path: the file.
        plan: how many clients there are, and how many may straggle.

    Raises:
        ArgumentError: the file cannot be read, or a round breaks the plan; the message names the round.
    """
    rows = _rows(path)
    result = []
    for number, row in enumerate(rows):
        where = f"round {number} of schedule={str(path)!r}"
        more = ["late", "closing", *(["on_time"] if plan.grace else [])]
        if isinstance(row, dict) and "on_time" in row and not plan.grace:
            raise ArgumentError(f"on_time in {where} needs a plan with --grace 1, got grace=0")
        if not isinstance(row, dict) or not row.keys() <= {"used", *more} or "used" not in row:
            raise ArgumentError(f"{where} must have used and may have {', '.join(more)}")
        used, late = (_members(row.get(name), plan.clients, f"{name} in {where}") for name in ("used", "late"))
        closing = row.get("closing") in (True, "1", "true")
        if not closing and row.get("closing") not in (None, False, "", "0", "false"):
            raise ArgumentError(f"closing in {where} must be 0 or 1, got {row['closing']!r}")
        if closing and number < len(rows) - 1 - plan.grace:
            last = "one of the last two" if plan.grace else "the last"
            raise ArgumentError(f"{where} must be {last} if it is closing")
        if used & late:
            raise ArgumentError(f"late in {where} must not name used clients, got {list(used & late)} in both")
        least = plan.clients - plan.stragglers
        if not closing and 0 < len(used) < least:
            raise ArgumentError(f"used in {where} must name at least {least} clients or none, got {len(used)}")
        on_time = _on_time(row.get("on_time"), used, late, where) if plan.grace else None
        result.append(Round(used, late, closing, on_time))
    for telling, refused in answered(plan, told(result)):
        if refused is not None:
            raise ArgumentError(f"client {telling.client} would not answer schedule={str(path)!r}: {refused}")
    return tuple(result)


def _on_time(named: object, used: ClientSet, late: ClientSet, where: str) -> ClientSet:
    """Those of the used clients that came before the round closed; of a void round, of those that were seen."""
    if named is None:
        return used
    on_time = _members(named, used.clients, f"on_time in {where}")
    senders, which = (used, "used") if used else (late, "late")
    if others := on_time - senders:
        raise ArgumentError(f"on_time in {where} must name {which} clients only, got {list(others)}")
    return on_time


def _rows(path: Path) -> Sequence[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".csv":
            return list(csv.DictReader(text.splitlines(), skipinitialspace=True))
        if path.suffix == ".json" and isinstance(found := json.loads(text), list):
            return found
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(f"schedule must be readable, got schedule={str(path)!r}: {reason}") from None
    raise ArgumentError(f"schedule must be random, a .csv file or a .json list, got schedule={str(path)!r}")


def _members(value: Any, clients: int, name: str) -> ClientSet:  # noqa: ANN401  what a file holds
    """A set that a file names by a list of numbers, or by text such as "0-3 5"."""
    numbers: Iterable[Any] = () if value is None else value
    if isinstance(value, str):
        found = [_RANGE.fullmatch(part) for part in value.split()]
        if None in found:
            raise ArgumentError(f"{name} must be numbers and ranges such as 0-3 5, got {value!r}")
        ends = [(int(each[1]), int(each[2] or each[1])) for each in found if each is not None]
        if any(last >= clients for _, last in ends):
            raise ArgumentError(f"{name} must name clients below {clients}, got {value!r}")
        numbers = (i for first, last in ends for i in range(first, last + 1))
    elif not isinstance(numbers, list | tuple):
        raise ArgumentError(f"{name} must be a list of client numbers, got {value!r}")
    return ClientSet.of(clients, numbers, name=name)
