"""One line of a log, read strictly: what it holds, and that it follows from the lines before it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from lightdp._validate import number
from lightdp.errors import ArgumentError
from lightdp.runlog._lines import Ended, Line, Round, Started

_ODD = re.compile(rb"[0-9]{309}|[eE]\+?[0-9]{3}|\\u[dD][89a-fA-F]")  # numbers beyond a float's, halves of a character
_OF_PRIVACY = ("epsilon", "epsilon_claimed", "delta", "unit", "adjacency")


class ContradictionError(ArgumentError):
    """A log can be read, but its lines contradict each other."""


def read_line(text: bytes, before: Sequence[Line], *, last: bool) -> Line:
    """The line that follows those `before`, checked; `last` says whether a damaged one may have been cut off."""
    content = _parsed(text, last=last)
    if before and isinstance(before[-1], Ended):
        raise ContradictionError("nothing may follow the end")
    kinds: tuple[type[Line], ...] = (Round, Ended) if before else (Started,)
    found = next((one for one in kinds if one.kind == content.get("kind")), None)
    if found is None:
        wanted = " or ".join(one.kind for one in kinds)
        raise ArgumentError(f"kind must be {wanted}, got kind={content.get('kind')!r}")
    line = found.of(content)
    check(text)
    first = before[0] if before else None
    if isinstance(first, Started) and (plan := first.plan) is not None:
        later = isinstance(line, Round) and plan.get("sampling_rate", 1) != 1  # not computed in every round
        for name in _OF_PRIVACY[1 if later else 0 :]:
            if getattr(line, name, "") is None:
                raise ArgumentError(f"{name} must not be null in a run with a plan")
    if isinstance(line, Round) and line.round != len(before):
        raise ContradictionError(f"round must be {len(before)}, the next one, got round={line.round}")
    last_one = None if isinstance(line, Started) else _before(line, before)
    late = 0 if last_one is None else last_one.late
    if not isinstance(line, Started) and line.joined is not None and line.joined > late:
        raise ContradictionError(f"joined must be at most {late}, who were late before, got joined={line.joined}")
    if isinstance(line, Ended) and line.rounds != len(before) - 1:
        raise ContradictionError(
            f"rounds must be {len(before) - 1}, as many as were recorded, got rounds={line.rounds}"
        )
    return line


def _before(line: Round | Ended, before: Sequence[Line]) -> Round | None:
    """The round before a line: the last one of the same roster."""
    roster = line.roster if isinstance(line, Round) else None
    rounds = (each for each in reversed(before) if isinstance(each, Round))
    return next((each for each in rounds if roster is None or each.roster == roster), None)


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


def check(text: bytes) -> None:
    """Refuse a line with a number that no float holds, or with text that is not Unicode, in whatever place."""
    if _ODD.search(text) is None:
        return
    try:
        json.dumps(json.loads(text, parse_float=_held, parse_int=_held), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ArgumentError("text must be Unicode, got half of a surrogate pair") from None
    except RecursionError:
        raise ArgumentError("must be JSON of fewer levels") from None


def _held(text: str) -> float:
    return number("a number", float(text))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
