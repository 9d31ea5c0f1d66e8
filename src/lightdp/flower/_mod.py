"""The client: a mod that lets nothing out of a train message but masked bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from lightdp import gaussian
from lightdp._validate import integer, octets, rounded_up
from lightdp.errors import ArgumentError, LightDPError, ProtocolError, to_text
from lightdp.flower import _arrays
from lightdp.flower._settings import KEY, LOG, Settings, planned
from lightdp.flower._vault import Vault, opened
from lightdp.planning import Plan
from lightdp.protocol import Client

T = TypeVar("T")

_COARSE = 0.01  # of the clip: the most that rounding may add to a record's part of an update
_ROUNDING = 1e-7  # more than all roundings in float64 that are not counted


def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower mod that replaces the model in a train reply by a masked upload.

        app = ClientApp(mods=[lightdp.flower.mod])

    Evaluate and query messages pass untouched. The limits of a node, such as `lightdp-max-epsilon`, are set in its
    `node_config`; docs/flower.md lists them.

    Formal guarantees, whatever the server sends and the app returns:

    - Of a train message, only the packed upload of `lightdp.protocol.Client`, metrics named in
      `lightdp-allow-metrics`, or an error without data leave the node. The text of an exception of the app stays in
      the log of the node. An update that is not finite counts as zero, since a refusal would tell a server that makes
      the model something about the data. With unit "record", the app itself must leave out records whose part is not
      finite: the zero would be a different sum.
    - Nothing leaves without a plan within the limits of the node, recomputed here from its arguments, and a roster
      that binds it.
    - Each round is answered at most once, also if messages are repeated or handled at the same time, or the node
      restarts with `lightdp-state`. The state is durable before the upload leaves.

    What the app prints, writes or sends by itself, and its replies to other messages, are not protected: run only app
    code that was reviewed.

    Args:
        message: from the server.
        context: of the node; the state is kept in it and, if there is one, in the file `lightdp-state`.
        call_next: the app, or the next mod.

    Returns:
        The reply. A refusal is an error whose reason reads `lightdp/<code>: message`, with a code of `lightdp.errors`.
    """
    if message.metadata.message_type.partition(".")[0] in (MessageType.EVALUATE, MessageType.QUERY):
        return call_next(message, context)
    try:
        return Message(_answer(message, context, lambda asked: call_next(asked, context)), reply_to=message)
    except LightDPError as error:
        LOG.warning("lightdp: nothing left this node: %s", error)
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, to_text(error)), reply_to=message)
    except Exception as error:  # noqa: BLE001  what it says may quote data
        LOG.exception("lightdp: training failed, and nothing left this node")
        reason = f"lightdp: the app raised {type(error).__name__}; see the node's log"
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _answer(message: Message, context: Context, app: Callable[[Message], Message]) -> RecordDict:
    settings = Settings.of(context)
    order = message.content.config_records.get(KEY)
    if order is None:
        raise ProtocolError("a train message without a plan and roster: the server's strategy must be a LightDP")
    with opened(context, settings.state) as vault:
        if "plan" in order:
            return _enrol(order, settings, vault)
        return _train(message, app, settings, vault)


def _enrol(order: ConfigRecord, settings: Settings, vault: Vault) -> RecordDict:
    """The key round: a signed one-time key for this run, the same one if asked again."""
    text, run = _get(order, "plan", str), octets("run", order.get("run"), 16)
    length, plan = integer("length", order.get("length"), 1), planned(text)
    before, pins = vault.before(run.hex()), settings.pins
    settings.check(plan, spent=before)
    if vault.record.get("run") == run.hex():
        if (vault.record["plan"], vault.record["length"]) != (text, length):
            raise ProtocolError("the plan must not change in a run")
        client = Client.restore(plan, length=length, store=vault, pins=pins)
    else:
        vault.record |= {"run": run.hex(), "plan": text, "length": length, "before": before, "budget": 0.0}
        name, identity = settings.name, settings.identity
        client = Client.new(plan, length=length, run=run, name=name, identity=identity, pins=pins, store=vault)
        if np.isinf(settings.max_epsilon):
            LOG.info("lightdp: no lightdp-max-epsilon: this node accepts epsilon=%g of the server", plan.budget)
    return RecordDict({KEY: ConfigRecord({"enrolment": client.enrol()})})


def _train(message: Message, app: Callable[[Message], Message], settings: Settings, vault: Vault) -> RecordDict:
    """One round: begin it, train, and answer with the masked update."""
    order, record = message.content.config_records[KEY], vault.known()
    plan = planned(record["plan"])
    settings.check(plan, spent=record["before"])
    if _get(order, "run", bytes).hex() != record["run"]:
        raise ProtocolError("the message is of another run than this node's last key round")
    client = Client.restore(plan, length=record["length"], store=vault, pins=settings.pins, threads=None)
    if "roster" in order:
        client.join(_get(order, "roster", bytes))
    begun = client.begin(_get(order, "start", bytes))  # before training, or it would train for nothing
    # nothing as long as the key round's `length` is allocated before a message has brought arrays of that length
    if begun.closing and client.next_round == 0:
        raise ProtocolError(f"a closing round must follow one whose arrays hold length={client.length} floats")
    if not begun.closing and (size := _arrays.length(_only(message.content, "message"))) != client.length:
        raise ProtocolError(f"the message's arrays must hold length={client.length} floats, got {size}")
    if _get(order, "closing", bool) != begun.closing:
        raise ProtocolError(f"the message must say closing={begun.closing}, as its announcement does")
    update, reply = (None, RecordDict()) if begun.closing else _trained(message, app, plan)
    record["budget"] = plan.budget
    packed = begun.upload(update)
    line = "lightdp: an upload leaves; with it at most ε = %s of %g at δ = %g is spent (%sμ = %s), for one %s"
    spent, words = client.epsilon(), "" if plan.gdp else "at this δ as with "
    mu = gaussian.mu(spent, plan.delta, up=True)
    LOG.info(line, rounded_up(spent), plan.budget, plan.delta, words, rounded_up(mu), plan.unit)
    metrics = {k: v for each in reply.metric_records.values() for k, v in each.items() if k in settings.allow_metrics}
    upload = ArrayRecord({KEY: Array(np.frombuffer(packed, np.uint8))})
    return RecordDict({"arrays": upload, "metrics": MetricRecord(metrics)})


def _trained(message: Message, app: Callable[[Message], Message], plan: Plan) -> tuple[NDArray[Any], RecordDict]:
    """The update that the app makes of a message, and its whole reply."""
    received, records = dict(_only(message.content, "message")), plan.unit == "record"
    largest, share = _room(received, plan) if records else (np.inf, 1.0)
    message.content = RecordDict({key: value for key, value in message.content.items() if key != KEY})
    try:
        reply = app(message)
    except LightDPError as error:
        raise RuntimeError("the app's own, whose text is not ours to send") from error
    if reply.has_error():
        raise ProtocolError(f"the app replied with error {reply.error.code}; see the node's log")
    update = _arrays.difference(_only(reply.content, "reply"), received, wide=records)
    np.clip(update, -largest, largest, out=update)  # of records, also what has overflown: rounding is monotone
    if not np.isfinite([update.min(), update.max()]).all():
        LOG.warning("lightdp: the app's update is not finite: this round it counts as zero")
        update[:] = 0
    update *= share
    return update, reply.content


def _room(received: Mapping[str, Array], plan: Plan) -> tuple[float, float]:
    """Bound on the values of an update, and the share of it that leaves, which keep a record's part within the clip.

    The app clips each record's part, but can return only the sum, rounded to floats. If these are large, a record
    moves the sum by whole steps between floats or not at all. The share takes off as much as rounding may have added;
    both numbers depend only on what the server knows. A model for which that were more than a hundredth of the clip is
    refused.
    """
    largest, apart = _arrays.reach(received, most=_COARSE * plan.clip, largest=plan.upload_range)
    if largest < min(plan.clip, plan.upload_range):
        raise ProtocolError(
            "the received arrays are so large, many or coarse that rounding may move an update by more than "
            f"{_COARSE:.0%} of the record's clip={plan.clip:g}; finer floats would do"
        )
    return largest, plan.clip / (plan.clip + apart) * (1 - _ROUNDING)


def _only(content: RecordDict, where: str) -> ArrayRecord:
    if len(content.array_records) != 1:
        raise ArgumentError(f"the {where} must have one ArrayRecord, got {len(content.array_records)}")
    return next(iter(content.array_records.values()))


def _get(order: ConfigRecord, key: str, kind: type[T]) -> T:
    value = order.get(key)
    if not isinstance(value, kind):
        raise ProtocolError(f"the server's part must have {key} of type {kind.__name__}, got {type(value).__name__}")
    return value
