"""The client: a mod that lets nothing out of a train message but masked bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from lightdp import gaussian
from lightdp._validate import integer, octets, rounded_up
from lightdp.errors import BudgetError, LightDPError, ProtocolError, remedy_of, to_text
from lightdp.federation import Member, MemberRound
from lightdp.flower import _answered, _arrays, _bound, _total, _update
from lightdp.flower._plans import planned, requested
from lightdp.flower._settings import KEY, LOG, Settings, without_paths
from lightdp.flower._vault import Vault, opened
from lightdp.planning import Plan, Request
from lightdp.protocol.host import Host

T = TypeVar("T")

_FOREIGN = {"fixedclipping_mod", "adaptiveclipping_mod", "secagg_mod", "secaggplus_mod"}  # need strategies of their own
_FAILED = "lightdp/error: this node failed, and nothing left it; see its log"


def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Flower mod that replaces the model in a train reply by a masked upload, for plans of unit "client".

        app = ClientApp(mods=[lightdp.flower.mod])

    It should be the first of the mods: those before it see masked bytes, and must not change them. Evaluate and query
    messages pass untouched. The limits of a node, such as `lightdp-max-epsilon`, are set in its
    `node_config`; docs/how-to/flower.md lists them.

    Formal guarantees, whatever the server sends and the app returns:

    - Of a train message, only the packed upload of `lightdp.federation.Member`, metrics named in
      `lightdp-allow-metrics`, or a refusal made before the app was called leave the node.
    - A round is charged before the app is called. Then an upload leaves. If the app fails, or its reply is no update or
      is not finite, it is of zeros: a server that makes the model learns nothing from it. What happened stands in the
      log of the node. If the process is killed or interrupted, nothing leaves, and the round is over.
    - Nothing leaves without a plan within the limits of the node, recomputed here from its arguments, and a roster
      that binds it, or what follows from it for another number of clients. One ledger counts all rosters of a run.
      `run_config`, which comes from the server, can tighten these limits and never loosen them.
    - Each round is answered at most once, also if messages are repeated or handled at the same time, or the node
      restarts. The state is durable in `lightdp-state` before the app is called. Only a simulation goes without it.
      A copy of it in another file, or under another `lightdp-name`, answers no round of the run.
    - All rounds of a run train arrays of the same names and shapes, those of the first round that the node answered.
    - Under drawn masks, noise cancels only among nodes to which the server sent the same message, as far as the app can
      see it (`_bound.digest`). Everything else that may come from the server is taken away from the app: it gets a
      context with an empty state, which is thrown away after the round, the node id under which the node has enrolled,
      and a message without ids and with times of this node. So the server cannot first look at uploads of peers and
      then choose what steers this one (B2). Under masks="gaussian" there is no such need, and the app keeps its state.

    What the app prints, writes or sends by itself, how long it takes, and its replies to other messages are not
    protected: run only app code that was reviewed. Under drawn masks its update must follow from what it is given, the
    node's data and random numbers of its own. No mod can take away what earlier messages have left in files, in global
    variables or in what a lifespan function holds, nor what the app loads from elsewhere, nor the time at which a
    message comes.

    Args:
        message: from the server.
        context: of the node; the state is kept in it and, outside simulations, in the file `lightdp-state`.
        call_next: the app, or the next mod.

    Returns:
        The reply. A refusal is an error whose reason reads `lightdp/<code>: message`, with a code of `lightdp.errors`.
    """
    return _reply(message, context, call_next, records=False)


def record_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """As `mod`, for an app that replies with a `RecordSum`; plans of unit "record" are accepted too.

        app = ClientApp(mods=[lightdp.flower.record_mod])

    Formal guarantee: as `mod`. Under a plan of unit "record", what leaves is the sum of a `RecordSum`, in which one
    record has a part of norm at most `lightdp-record-clip`. Any other reply counts as a failure of the app.

    Not covered: an app that fails because of one record tells so. Zeros leave in the place of the sum of all parts,
    which is a change by more than one part, and the noise does not hide it. Make the app handle each record by itself:
    `RecordSum.add` leaves out parts that are not finite, and `RecordSum.map` records for which a function raises.

    Args:
        message: as for `mod`.
        context: as for `mod`.
        call_next: as for `mod`.
    """
    return _reply(message, context, call_next, records=True)


def _reply(message: Message, context: Context, call_next: ClientAppCallable, *, records: bool) -> Message:
    if message.metadata.message_type.partition(".")[0] in (MessageType.EVALUATE, MessageType.QUERY):
        return call_next(message, context)
    try:
        _refuse_mods(call_next)
        content = _answer(message, context, call_next, records=records)
        return Message(content, reply_to=message)
    except LightDPError as error:
        LOG.warning("lightdp: nothing left this node: %s. What to do: %s", error, remedy_of(to_text(error)))
        return Message(
            Error(ErrorCode.MOD_FAILED_PRECONDITION, without_paths(to_text(error), context)), reply_to=message
        )
    except Exception:  # noqa: BLE001  what it says stays in the log
        LOG.exception("lightdp: this node failed, and nothing left it")
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, _FAILED), reply_to=message)


def _answer(message: Message, context: Context, app: ClientAppCallable, *, records: bool) -> RecordDict:
    settings = Settings.of(context)
    order = message.content.get(KEY)
    if not isinstance(order, ConfigRecord):
        raise ProtocolError("a train message without a plan and roster: the server's strategy must be a LightDP")
    with opened(context, settings.state, settings.anchor) as vault:
        if "plan" in order:
            return _enrol(order, settings, vault, records=records)
        return _train(message, context, order, app, settings=settings, vault=vault, records=records)


def _enrol(order: ConfigRecord, settings: Settings, vault: Vault, *, records: bool) -> RecordDict:
    """The key round: a signed one-time key for all rosters of this run, the same one if asked again."""
    text, run = _get(order, "plan", str), octets("run", order.get("run"), 16)
    nonce = octets("nonce", order.get("nonce"), 32)
    length = integer("length", order.get("length"), 1)
    _check(settings, requested(text), records=records)  # before it is computed, which may take long
    plan = planned(text)
    kinds, (before, failed) = _total.kinds(settings, vault, plan), _total.before(vault, run.hex())
    _total.check(settings, plan, before, fails=(failed, plan.masks.fails(length)))
    if vault.record.get("run") == run.hex():
        if (vault.record["plan"], vault.record["length"]) != (text, length):
            raise ProtocolError("the plan must not change in a run")
        member = _restored(plan, settings, vault, records=records)
    else:
        facts = {"run": run.hex(), "plan": text, "length": length, "before": before, "kinds": kinds}
        vault.begin(facts | {"failed": failed.to_list()})
        _warn(settings, plan)
        asked: dict[str, Any] = {"length": length, "run": run, "name": settings.name, "identity": settings.identity}
        own = _own(settings, vault, records=records)
        member = vault.member(_like(settings, vault, records=records), lambda: Member.new(plan, **asked, **own))
    answered = _answered.to_text(member.answered())  # for a server that has lost replies
    enrolment, proof = member.enrol(), member.prove(nonce)
    return RecordDict({KEY: ConfigRecord({"enrolment": enrolment, "proof": proof, "answered": answered})})


def _train(
    message: Message,
    context: Context,
    order: ConfigRecord,
    app: ClientAppCallable,
    *,
    settings: Settings,
    vault: Vault,
    records: bool,
) -> RecordDict:
    """One round of a roster: begin it, train, and answer with the masked update."""
    record = vault.known()
    plan = planned(record["plan"])
    _check(settings, plan.request, records=records)
    if _get(order, "run", bytes).hex() != record["run"]:
        raise ProtocolError("the message is of another run than this node's last key round")
    member = _restored(plan, settings, vault, records=records)
    _total.kinds(settings, vault, plan)
    if "roster" in order:
        member.join(_get(order, "roster", bytes))
    begun = _begun(member, _get(order, "start", bytes))  # before training, or it would train for nothing
    _total.check_round(settings, vault, plan, begun.roster, closing=begun.closing)
    # nothing as long as the key round's `length` is allocated before a message has brought arrays of that length
    if begun.closing and not member.answered()[begun.roster]:
        raise ProtocolError(f"a closing round must follow one whose arrays hold length={member.length} floats")
    names = _update.names(order)
    if not begun.closing and (size := _arrays.length(_arrays.flat(message.content), names)) != member.length:
        raise ProtocolError(f"the message's arrays must hold length={member.length} floats, got {size}")
    if _get(order, "closing", bool) != begun.closing:
        raise ProtocolError(f"the message must say closing={begun.closing}, as its announcement does")
    if not begun.closing:
        vault.bind(_arrays.layout(message.content, names))
    _arrays.reuse_memory(member.length)
    seen, own = message, context
    if begun.binds:
        begun.bind(_bound.digest(message, context, names))
        seen, own = _bound.plain(message, context, node=vault.node)
    begun.claim()  # before training: an app that fails, or ends its process, must not be asked again
    update, metrics = (None, {}) if begun.closing else _update.made(seen, lambda asked: app(asked, own), plan, names)
    if begun.binds and len(own.state) > 0:
        _bound.warn_of_state(own.run_id, own.node_id)
    packed = begun.upload(update)
    line = "lightdp: an upload leaves; with it at most ε = %s of %g at δ = %g is spent (%sμ = %s), for one %s"
    spent, words = member.epsilon(), "" if plan.gdp else "at this δ as with "
    mu = gaussian.mu(spent, plan.delta, up=True)
    LOG.info(line, rounded_up(spent), plan.budget, plan.delta, words, rounded_up(mu), plan.unit)
    allowed = MetricRecord({name: value for name, value in metrics.items() if name in settings.allow_metrics})
    upload = ArrayRecord({KEY: _arrays.as_array(np.frombuffer(packed, np.uint8))})
    return RecordDict({"arrays": upload, "metrics": allowed})


def _begun(member: Member, start: bytes) -> MemberRound:
    """A round that was begun; a refusal for want of budget reads the same on every node."""
    try:
        return member.begin(start)
    except BudgetError as error:
        LOG.info("lightdp: %s", error)
        budget, delta = member.plan.budget, member.plan.delta
        raise BudgetError(f"another round could exceed the plan's epsilon={budget:g} at delta={delta:g}") from None


def _restored(plan: Plan, settings: Settings, vault: Vault, *, records: bool) -> Member:
    """The member whose state is in `vault`; where that is the context, it goes where Flower takes it."""
    vault.refuse_older()
    asked: dict[str, Any] = {"length": vault.record["length"], "moved": settings.state is None}
    own = _own(settings, vault, records=records)
    member = vault.member(_like(settings, vault, records=records), lambda: Member.restore(plan, **asked, **own))
    vault.refuse_copy(member.name, configured=settings.name)
    return member


def _own(settings: Settings, vault: Vault, *, records: bool) -> dict[str, Any]:
    """What a node makes its member with; rosters of other sizes than the plan's must be within its limits too."""
    accept = partial(_check, settings, records=records)
    return {"pins": settings.pins, "store": vault, "threads": None, "accept": accept}


def _like(settings: Settings, vault: Vault, *, records: bool) -> object:
    """What a member in memory must have been made with, so that restoring it would make the same one."""
    return vault.record["run"], replace(settings, identity=None), records, Host.here()


def _check(settings: Settings, plan: Request, *, records: bool) -> None:
    """Refuse a plan beyond the limits of the node, or one that the app does not serve."""
    settings.check(plan)
    if plan.unit == "record" and not records:
        raise ProtocolError(
            "the plan protects records, so the app must clip each record's part: it needs lightdp.flower.record_mod in "
            "its mods and a lightdp.flower.RecordSum in its reply; unit='client' needs neither"
        )


def _refuse_mods(call_next: ClientAppCallable) -> None:
    """Refuse mods of Flower after ours that fail in every round without a strategy of their own: zeros would leave."""
    found, inner = [], call_next
    while isinstance(inner, FunctionType) and inner.__closure__ is not None:  # as flwr's make_ffn chains them
        cells = dict(zip(inner.__code__.co_freevars, (cell.cell_contents for cell in inner.__closure__), strict=True))
        if not {"_mod", "_ffn"} <= cells.keys():
            break
        found.append(getattr(cells["_mod"], "__name__", ""))
        inner = cells["_ffn"]
    if foreign := sorted(_FOREIGN & set(found)):
        raise ProtocolError(
            f"{foreign[0]} needs a strategy of its own on the server: take it out of the app's mods, "
            "lightdp clips and hides updates itself"
        )


def _warn(settings: Settings, plan: Plan) -> None:
    """Say which limits a node does without; a simulation, which has no file, needs none."""
    without = [] if settings.total_epsilon is not None else ["lightdp-total-epsilon: a server may start run after run"]
    if settings.min_colluders == 0:
        without.append("lightdp-min-colluders: a plan may trust all other clients")
    if without and settings.state is not None:
        LOG.warning("lightdp: this node has no %s", "; no ".join(without))
    if plan.masks.kind == "drawn" and settings.masks is None and settings.state is not None:
        LOG.warning(
            "lightdp: the plan's masks are drawn. They protect a node whose app computes its update from the message, "
            "the node's data and random numbers of its own alone, and keeps no files or globals between messages. If "
            'this one does not, lightdp-masks="gaussian" refuses such plans; lightdp-masks="any" accepts them'
        )


def _get(order: ConfigRecord, key: str, kind: type[T]) -> T:
    value = order.get(key)
    if not isinstance(value, kind):
        raise ProtocolError(f"the server's part must have {key} of type {kind.__name__}, got {type(value).__name__}")
    return value
