"""A log as the pages show it: figures of the run so far, and a row for each round."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from lightdp import gaussian
from lightdp._validate import rounded_up
from lightdp.report import FATES, caveats, uploads
from lightdp.runlog import Follower, Round, RunLog
from lightdp.schemes import schemes

_QUIET_S = 120.0  # after so long without a line a run is no longer called running
_MOST_BACK = 500  # earlier rounds whose late uploads a new line may say
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would compute
UNSOUND = (ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What computing with the numbers of a log may raise: each may be in its range, and what comes of them in none."""
_Value = TypeVar("_Value")
_STOPPED = {
    "budget": "the budget is used up",
    "members": "too few members were left",
    "void": "too few uploads came",
    "refused": "every client refused",
}


def rows(log: RunLog, first: int) -> list[dict[str, Any]]:
    """The rounds after the first so many lines, and earlier ones that those change, as the page keeps them.

    A round's late uploads are known once a later line counts them, so with grace earlier rounds are given again. The
    page replaces what it has of a round, so nothing is counted twice.

    Args:
        log: the log so far.
        first: how many of its lines the page has.
    """
    back = min(len(log.rosters) + 2, _MOST_BACK) if log.grace else 0
    chosen = log.rounds[max(first - 1 - back, 0) :]
    members = log.whereabouts(chosen) if log.federated else [{}] * len(chosen)
    return [_row(log, line) | where for line, where in zip(chosen, members, strict=True)]


def _row(log: RunLog, line: Round) -> dict[str, Any]:
    said = {name: getattr(line, name) for name in ("round", "accuracy", "loss", "epsilon")}
    return said | {"mu": log.mu_of(line), "stays": log.stays(line), "goes": log.goes(line)} | log.fates(line)


def figures(name: str, followed: Follower, *, model: bool) -> dict[str, Any]:
    """What is known of a run now. Figures of privacy are also given as text, rounded up.

    Args:
        name: of the log.
        followed: the log, looked at.
        model: whether there is a model to download.
    """
    log = followed.log
    state: dict[str, Any] = {
        "name": name, "there": followed.there, "error": followed.error, "changed": followed.changed, "model": model,
    }  # fmt: skip
    if log is None:
        return state | {"status": "gone" if not followed.there else "damaged" if followed.error else "starting"}
    try:
        return sound(state | _figures(followed, log))
    except UNSOUND as error:
        return state | {"status": "damaged", "error": f"its figures cannot be computed: {error}"}


def sound(value: _Value) -> _Value:
    """What is given, if it is JSON; one of `UNSOUND` is raised otherwise."""
    json.dumps(value, allow_nan=False)
    return value


def _figures(followed: Follower, log: RunLog) -> dict[str, Any]:
    plan, config, end = log.started.plan, log.started.config, log.ended
    total = config.get("rounds", None if plan is None else plan.get("rounds"))
    total = total if isinstance(total, int) else None
    clients = log.population if log.federated else config.get("clients", (plan or {}).get("clients"))
    status, done = _status(followed, log), len(log.rounds)
    left = None
    if status == "running" and total is not None and followed.pace is not None:
        left = max(total - done, 0) * followed.pace
    known = schemes().get(log.scheme)
    fates = [log.fates(line) for line in log.rounds]
    sums = {fate: sum(each[fate] for each in fates) for fate in FATES}
    measured = ((line.loss, line.round) for line in reversed(log.rounds) if line.loss is not None)
    loss, loss_round = next(measured, (None, None))
    budget = None if log.claimed is None or log.delta is None else gaussian.mu(log.claimed, log.delta)
    return {
        "status": status,
        "scheme": log.scheme if known is None else known.label,
        "data": log.data,
        "model_name": log.model,
        "clients": clients if isinstance(clients, int) else None,
        "parameters": log.started.parameters,
        "rounds": done,
        "total": total,
        "left": left,
        "accuracy": log.accuracy,
        "loss": loss,
        "loss_round": loss_round,
        "private": plan is not None,
        "not_private": log.not_private,
        "epsilon": log.epsilon,
        "epsilon_text": _text(log.epsilon),
        "budget": log.claimed,
        "mu": log.mu,
        "mu_text": _text(log.mu),
        "mu_budget": budget,
        "gdp": log.gdp,
        "delta": log.delta,
        "unit": log.unit,
        "adjacency": log.adjacency,
        "exceeds": log.exceeds,
        "uploads": sums,
        "noise": log.noise,
        "grace": log.grace,
        "repairs": log.repairs,
        "federated": log.federated,
        "population": log.population if log.federated else None,
        "stopped": None if end is None or end.stopped is None else _STOPPED[end.stopped],
        "seconds": None if end is None else end.seconds,
        "statement": [] if end is None else list(end.statement),
        "notes": uploads(log),
    }


def warnings(logs: Sequence[RunLog]) -> list[str]:
    """What keeps runs from being compared, or a finished one from being trusted."""
    try:
        return caveats([log for log in logs if log.ended is not None or len(logs) > 1])
    except UNSOUND as error:
        return [f"These runs cannot be compared: {error}"]


def _status(followed: Follower, log: RunLog) -> str:
    if log.ended is not None:
        return "finished"
    if not followed.there:
        return "gone"
    if followed.error is not None:
        return "damaged"
    quiet = max(_QUIET_S, 20 * (followed.pace or 0.0))
    return "running" if followed.changed is not None and time.time() - followed.changed < quiet else "quiet"


def _text(value: float | None) -> str | None:
    return None if value is None else rounded_up(value)


def table(log: RunLog) -> str:
    """The rounds as CSV, with a heading; text that a spreadsheet would compute is quoted."""
    file = io.StringIO()
    metrics = [_flat(line.metrics or {}) for line in log.rounds]
    more = sorted({key for each in metrics for key in each})
    own = ("round", "accuracy", "loss", "epsilon", "mu")
    names = [*own, *FATES, "noise_std", "residual_std", "roster", "modelled_seconds", "failed"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(_safe, [*names, *more]))
    for line, others in zip(log.rounds, metrics, strict=True):
        found = line.to_dict() | {"mu": log.mu_of(line)} | log.fates(line)
        values = [*(found.get(name) for name in names), *(others.get(name) for name in more)]
        writer.writerow(["" if value is None else _safe(value) for value in values])
    return file.getvalue()


def _flat(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics by name; those that Flower has in groups, as group and name with a dot between them."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        found |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _safe(value: object) -> object:
    if isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
