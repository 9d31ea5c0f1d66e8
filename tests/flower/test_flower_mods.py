"""Other mods before and after ours: they work, or one line says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)

import lightdp
from lightdp.errors import WireError
from support.flower_talk import Talk, a_plan, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.clientapp.typing import Mod

NOISE = 0.15  # more than 10 standard deviations of a mean


def reads_config(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    assert message.content.config_records["config"]["lr"] == 0.1
    return call_next(message, context)


def halves(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """The update is half as long."""
    received = message.content.array_records["arrays"]["w"].numpy()
    reply = call_next(message, context)
    ((name, record),) = reply.content.array_records.items()
    reply.content[name] = ArrayRecord({key: Array((value.numpy() + received) / 2) for key, value in record.items()})
    return reply


def adds_one(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Every value of every array is one more, bytes too."""
    reply = call_next(message, context)
    for name, record in list(reply.content.array_records.items()):
        changed = {key: value.numpy() + np.ones(1, value.numpy().dtype) for key, value in record.items()}
        reply.content[name] = ArrayRecord({key: Array(value) for key, value in changed.items()})
    return reply


def adds_a_record(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    reply = call_next(message, context)
    reply.content["timing"] = MetricRecord({"seconds": 1.0})
    return reply


def conversation(*mods: Mod) -> Talk:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, _: Context) -> Message:
        arrays = {key: Array(array.numpy() + 0.5) for key, array in message.content.array_records["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({})}), reply_to=message)

    return Talk(app, a_plan(epsilon=1e6, clip=10.0))


@pytest.mark.parametrize("other", [message_size_mod, arrays_size_mod, reads_config, adds_a_record])
def test_a_mod_that_changes_no_arrays_works_in_any_place(other: Mod) -> None:
    for mods in ([other, lightdp.flower.mod], [lightdp.flower.mod, other], [other, lightdp.flower.mod, other]):
        talk = conversation(*mods)
        talk.enrol()
        assert talk.mean() == pytest.approx(np.full(4, 0.5), abs=NOISE)


@pytest.mark.parametrize(("other", "expected"), [(halves, 0.25), (adds_one, 1.5)])
def test_a_mod_after_ours_changes_the_update_before_it_is_masked(other: Mod, expected: float) -> None:
    talk = conversation(lightdp.flower.mod, other)
    talk.enrol()
    assert talk.mean() == pytest.approx(np.full(4, expected), abs=NOISE)


def test_local_noise_after_ours_is_masked_with_the_update() -> None:
    talk = conversation(lightdp.flower.mod, LocalDpMod(0.1, 1e-9, 1.0, 1e-5))
    talk.enrol()
    assert talk.mean() == pytest.approx(np.full(4, 0.05), abs=NOISE)  # clipped to norm 0.1


def test_a_mod_before_ours_that_changes_the_masked_bytes_is_noticed_by_the_server() -> None:
    talk = conversation(adds_one, lightdp.flower.mod)
    talk.enrol()
    upload = talk.grid.handle(0, talk.start()).content.array_records["arrays"]["lightdp"].numpy()
    with pytest.raises(WireError):
        talk.server.receive(upload.tobytes())
    for place in (-1, len(upload) // 2, 200):  # one byte anywhere
        altered = (upload - np.uint8(1)).copy()  # as it left our mod
        altered[place] ^= 1
        with pytest.raises(WireError):
            talk.server.receive(altered.tobytes())
    assert talk.server.receive((upload - np.uint8(1)).tobytes())


@pytest.mark.parametrize("other", [fixedclipping_mod, adaptiveclipping_mod, secaggplus_mod])
def test_mods_that_need_strategies_of_their_own_are_refused_before_the_key_round(other: Any) -> None:
    why = f"lightdp/protocol: {other.__name__} needs a strategy of its own on the server: take it out"
    assert refused(conversation(lightdp.flower.mod, other).key(0), why)
    assert refused(conversation(lightdp.flower.mod, message_size_mod, other).key(0), why)
    assert refused(conversation(lightdp.flower.record_mod, other).key(0), why)


def test_clipping_and_local_noise_before_ours_never_see_an_update() -> None:
    for other in (fixedclipping_mod, adaptiveclipping_mod, secaggplus_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5)):
        assert conversation(other, lightdp.flower.mod).key(0).has_error()


def test_ours_for_one_function_alone_works_too() -> None:
    app = ClientApp(mods=[message_size_mod])

    @app.train(mods=[lightdp.flower.mod])
    def train(message: Message, _: Context) -> Message:
        arrays = {key: Array(array.numpy() + 0.5) for key, array in message.content.array_records["arrays"].items()}
        return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

    talk = Talk(app, a_plan(epsilon=1e6, clip=10.0))
    talk.enrol()
    assert talk.mean() == pytest.approx(np.full(4, 0.5), abs=NOISE)
