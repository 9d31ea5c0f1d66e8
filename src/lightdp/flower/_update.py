"""The update that an app makes of a train message. Whether and how it fails may depend on data, so it stays here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from lightdp.errors import ArgumentError, ProtocolError
from lightdp.flower import _arrays
from lightdp.flower._metrics import Metrics, metrics_of
from lightdp.flower._records import RecordSum, sum_of
from lightdp.flower._settings import KEY, LOG
from lightdp.planning import Plan

_ROUNDING = 1e-7  # of the clip: more than rounding the sum of clipped parts to float64 adds


def names(order: ConfigRecord) -> list[str] | None:
    """The names of the arrays that make up the vector, in its order; None if the server names none."""
    found = order.get("trained")
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found) or found != sorted(set(found)):  # type: ignore[type-var]
        raise ProtocolError("the server's part must have the names of trained arrays in their order, each once")
    return [str(each) for each in found]


def made(
    message: Message, app: Callable[[Message], Message], plan: Plan, trained: list[str] | None
) -> tuple[NDArray[Any] | None, Metrics]:
    """The update that the app makes of a message, None for zeros, and its metrics.

    Args:
        message: of the server; the app sees it without our part.
        app: the app, or the next mod.
        plan: of the run.
        trained: the names of the arrays that make up the vector; None for all float arrays.
    """
    message.content = RecordDict({key: value for key, value in message.content.items() if key != KEY})
    received, several = _arrays.flat(message.content), len(_arrays.records(message.content)) > 1
    try:
        return _used(app(message), plan, received, trained, several=several)
    except KeyboardInterrupt:  # of the operator; the round is charged
        raise
    except BaseException:  # noqa: BLE001  logged with its traceback; also SystemExit and asyncio's CancelledError
        LOG.exception("lightdp: the app made no update: zeros are sent in its place, and the round is charged")
        return None, {}


def _used(
    reply: Message, plan: Plan, received: Mapping[str, Array], trained: list[str] | None, *, several: bool
) -> tuple[NDArray[Any], Metrics]:
    """Update and metrics in a reply of the app."""
    if reply.has_error():
        raise ArgumentError(f"the app must reply with arrays, got error {reply.error.code}: {reply.error.reason}")
    if plan.unit == "record":
        update = _summed(reply.content, plan).within(received, trained)
        update *= 1 - _ROUNDING
    else:
        arrays = _arrays.flat(reply.content, several=several)
        update = _arrays.difference(arrays, received, trained)
        if left := [name for name, _, _ in _arrays.places(received, trained) if name not in arrays]:
            LOG.info("lightdp: the app's reply leaves out %s: the update is zero there", ", ".join(left))
    if not np.isfinite([update.min(), update.max()]).all():
        raise ArgumentError("the app's update must be finite, got NaN or infinity")
    return update, metrics_of(reply.content)


def _summed(content: RecordDict, plan: Plan) -> RecordSum:
    """The sum of clipped parts behind the arrays of a reply."""
    found = [sum_of(each) for each in _arrays.records(content).values()]
    total = found[0] if len(found) == 1 else None
    if total is None:
        raise ArgumentError("the app must reply with the arrays() of a RecordSum, got other arrays")
    if total.clip > plan.clip * (1 + _ROUNDING / 2):
        raise ArgumentError(f"the RecordSum must clip to the plan's clip={plan.clip:g}, got clip={total.clip:g}")
    return total
