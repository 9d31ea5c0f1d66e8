"""What a round with drawn masks is bound to, and what an app sees of it: nothing else that comes from the server (B2).

Drawn masks need an update that follows from what the round is bound to, the node's own data and random numbers of its
own. `digest` covers what the server sends to all nodes alike. What it could send to each node of its own, such as ids
and times, and what earlier messages have left in the context, `plain` takes away from the app.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Mapping, Sequence

from flwr.app import DEFAULT_TTL, Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID

from lightdp import wire
from lightdp.errors import ArgumentError
from lightdp.flower._settings import KEY, LOG

_KINDS = {ArrayRecord: b"arrays", ConfigRecord: b"config", MetricRecord: b"metrics"}
_WARNED: set[tuple[int, int]] = set()  # runs and nodes of which this process has said that state is not kept


def digest(message: Message, context: Context, trained: Sequence[str] | None) -> bytes:
    """SHA-256 of all that comes from the server, is the same for all nodes, and reaches the app in a train message.

    Guarantee: two nodes find the same only if the message type and group, the run, its configuration, all records but
    ours, and what is trained are the same. Each name, type and value counts, and the order of records and of their
    entries; in `run_config`, whose order `plain` takes away, it does not. What is left out: `node_config`, which is the
    operator's, the context's state, ids and times.

    Args:
        message: of the server.
        context: of the node.
        trained: the names of the arrays that make up the vector; None for all float arrays.

    >>> node = Context(1, 2, {}, RecordDict(), {"batch": 8})
    >>> def sent(rate, to):
    ...     facts = Metadata(1, "", 1, to, "", "", 0.0, 60.0, "train")
    ...     return Message(RecordDict({"config": ConfigRecord({"rate": rate})}), metadata=facts)
    >>> digest(sent(1.0, 3), node, None) == digest(sent(1.0, 4), node, None) != digest(sent(1, 3), node, None)
    True
    """
    run = [_packed(name.encode(), _value(value)) for name, value in sorted(context.run_config.items())]
    facts = _packed(b"lightdp bound to", _value(context.run_id), _packed(*run), _sent(message, trained, _array))
    return hashlib.sha256(facts).digest()


def alike(messages: Sequence[Message], trained: Sequence[Sequence[str] | None]) -> bool:
    """Whether nodes bind rounds to the same for all these messages of one server, as far as it lies with them.

    Messages that share their records cost nothing; otherwise each array is hashed once.

    Args:
        messages: of a round.
        trained: for each of them, the names of trained arrays.
    """

    def short(message: Message, names: Sequence[str] | None) -> tuple[object, ...]:
        own = tuple((name, id(record)) for name, record in message.content.items() if name != KEY)
        return message.metadata.message_type, message.metadata.group_id, own, None if names is None else tuple(names)

    pairs = dict(zip(map(short, messages, trained), zip(messages, trained, strict=True), strict=True))
    hashes: dict[int, bytes] = {}

    def remembered(array: Array) -> bytes:
        if id(array) not in hashes:
            hashes[id(array)] = _array(array)
        return hashes[id(array)]

    return len(pairs) <= 1 or len({_sent(*pair, remembered) for pair in pairs.values()}) == 1


def plain(message: Message, context: Context, *, node: int) -> tuple[Message, Context]:
    """A message and a context in which nothing but what `digest` covers comes from the server.

    Ids of messages and tasks are empty, times are the node's own, the state is new, and `run_config` is in the order of
    its keys.

    Args:
        message: of the server.
        context: of the node.
        node: the id that the node had when it enrolled; a later one might be chosen by the server to steer the app.
    """
    content = RecordDict({name: record for name, record in message.content.items() if name != KEY})
    metadata = Metadata(
        run_id=context.run_id,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=node,
        reply_to_message_id="",
        group_id=message.metadata.group_id,
        created_at=time.time(),
        ttl=float(DEFAULT_TTL),
        message_type=message.metadata.message_type,
    )
    metadata.delivered_at = ""
    seen = Message(content, metadata=metadata)  # type: ignore[call-overload]  # as Flower makes those that it delivers
    config = dict(sorted(context.run_config.items()))
    return seen, Context(context.run_id, node, dict(context.node_config), RecordDict(), config)


def warn_of_state(run: int, node: int) -> None:
    """Say once for each node of a run that what its app has left in the context is gone."""
    if (run, node) in _WARNED:
        return
    _WARNED.add((run, node))
    LOG.warning(
        "lightdp: the app of node %d in run %d left state in its context, which is not kept: updates under drawn masks "
        "must not follow from earlier messages. A plan with masks='gaussian' keeps it", node, run,
    )  # fmt: skip


def _sent(message: Message, trained: Sequence[str] | None, hashed: Callable[[Array], bytes]) -> bytes:
    """What a message has for all nodes, without the values of its arrays."""
    content, facts = message.content, message.metadata
    names = b"all" if trained is None else _packed(b"named", *(name.encode() for name in trained))
    records = [_packed(key.encode(), _record(record, hashed)) for key, record in content.items() if key != KEY]
    return _packed(facts.message_type.encode(), facts.group_id.encode(), names, *records)


def _record(record: Mapping[str, object], hashed: Callable[[Array], bytes]) -> bytes:
    kind = next(name for each, name in _KINDS.items() if isinstance(record, each))
    entries = (
        _packed(key.encode(), hashed(value) if isinstance(value, Array) else _value(value))
        for key, value in record.items()
    )
    return _packed(kind, *entries)


def _array(array: Array) -> bytes:
    """The digest of an array, whose bytes are not copied."""
    shape = _packed(*(_value(size) for size in array.shape))
    return wire.digest(_packed(array.dtype.encode(), shape, array.stype.encode()), array.data)


def _value(value: object) -> bytes:
    """A value with its type, so that 1, 1.0, True and "1" differ."""
    match value:
        case bool():
            return b"bool 1" if value else b"bool 0"
        case int():
            return b"int %d" % value
        case float():
            return b"float " + struct.pack(">d", value)
        case str():
            return b"str " + value.encode()
        case bytes():
            return b"bytes " + value
        case list():
            return b"list " + _packed(*map(_value, value))
    raise ArgumentError(f"values in a message must be numbers, text, bytes or lists, got {type(value).__name__}")


def _packed(*parts: bytes) -> bytes:
    """Parts behind their lengths: no two sequences of them have the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)
