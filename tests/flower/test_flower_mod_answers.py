"""The mod alone: messages that come again, late or out of order, of other rounds and runs, and after days."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp.flower import _vault
from lightdp.protocol import Server
from support.flower_talk import RUN, Talk, a_plan, an_app, refused

if TYPE_CHECKING:
    from flwr.app import Message

OVER = "lightdp/protocol: round {} was answered, or is over"


def receive(talk: Talk, reply: Message) -> bool:
    return talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())


def a_round(talk: Talk, nodes: Any = range(3), **said: Any) -> list[Message]:
    """The messages of a round that these nodes answer."""
    sent = [talk.start(**said) for _ in nodes]
    for at, message in zip(nodes, sent, strict=True):
        assert receive(talk, talk.grid.handle(at, message))
    talk.server.close()
    return sent


def closing(talk: Talk) -> Message:
    start = talk.server.announce(since=0, closing=True)
    return talk.order(run=RUN, start=start, roster=talk.server.roster(), closing=True)


@pytest.fixture(params=[True, False], ids=["new process", "same process"])
def talk(request: pytest.FixtureRequest) -> Talk:
    _vault._KEPT.clear()
    result = Talk(an_app(lambda w: w + 0.1), a_plan(calibration="repair", rounds=20))
    result.grid.fresh = request.param
    result.enrol()
    return result


def test_a_message_that_comes_again_or_late_is_refused_with_one_text_on_all_nodes(talk: Talk) -> None:
    first = a_round(talk)
    a_round(talk)
    for message in first:
        assert {talk.grid.handle(at, message).error.reason for at in range(3)} == {OVER.format(0)}


def test_a_message_of_a_round_that_a_node_missed_is_refused_once_it_answered_a_later_one(talk: Talk) -> None:
    missed = talk.start()
    a_round(talk, [0, 1])
    a_round(talk)
    assert refused(talk.grid.handle(2, missed), OVER.format(0))


def test_a_node_that_comes_back_after_many_rounds_goes_on(talk: Talk) -> None:
    a_round(talk)
    for _ in range(12):
        a_round(talk, [0, 1])
    talk.grid.restart(2)
    sent = a_round(talk)
    assert list(talk.server._used[-1]) == [0, 1, 2]
    assert refused(talk.grid.handle(2, sent[2]), OVER.format(13))


def test_a_node_that_comes_back_and_is_not_told_what_it_missed_is_refused_and_then_told(talk: Talk) -> None:
    a_round(talk)
    for _ in range(3):
        a_round(talk, [0, 1])
    why = "lightdp/protocol: announcement leaves out round 0"
    assert refused(talk.grid.handle(2, talk.start(start=talk.server.announce(since=2))), why)
    assert receive(talk, talk.grid.handle(2, talk.start()))


def test_a_closing_round_is_answered_once(talk: Talk) -> None:
    a_round(talk, [0, 1])
    message = closing(talk)
    assert receive(talk, talk.grid.handle(0, message))
    assert refused(talk.grid.handle(0, message), OVER.format(1))


def test_a_closing_round_before_any_other_is_refused(talk: Talk) -> None:
    reasons = {talk.grid.handle(at, closing(talk)).error.reason for at in range(3)}
    assert reasons == {"lightdp/protocol: a closing round must follow one whose arrays hold length=4 floats"}


def test_a_message_of_an_earlier_run_is_refused_after_the_key_round_of_the_next(talk: Talk) -> None:
    late, last = talk.start(), b"the run after it"
    assert talk.key(0, run=last).has_content()
    other = Server(talk.plan, length=4, run=last)
    assert refused(talk.grid.handle(0, late), "lightdp/protocol: the message is of another run than this node's last")
    assert other.round == 0


def test_nodes_without_budget_say_so_with_one_text(talk: Talk) -> None:
    reasons = set()
    for _ in range(10 * talk.plan.rounds):
        sent = [talk.grid.handle(at, talk.start()) for at in range(3)]
        if any(each.has_error() for each in sent):
            reasons = {each.error.reason for each in sent}
            break
        for each in sent:
            receive(talk, each)
        talk.server.close()
    assert reasons == {"lightdp/budget: another round could exceed the plan's epsilon=8 at delta=1e-05"}


@pytest.mark.parametrize(
    "said",
    [
        {"run": b"another 16 bytes"}, {"start": b""}, {"start": b"LDP" * 40}, {"roster": b"x" * 200}, {"closing": True},
        {"start": 7}, {"trained": ["v"]}, {"trained": [1]},
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_message_reads_the_same_on_all_nodes_and_has_a_code(talk: Talk, said: Any) -> None:
    replies = [talk.grid.handle(at, talk.start(**said)) for at in range(3)]
    (reason,) = {str(each.error.reason) for each in replies}
    assert reason.startswith(("lightdp/protocol: ", "lightdp/wire: ", "lightdp/argument: "))
    assert RUN.hex() not in reason
    for at in range(3):
        assert receive(talk, talk.grid.handle(at, talk.start()))
    assert np.isfinite(talk.server.close().mean()).all()
