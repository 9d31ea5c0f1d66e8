"""The mod alone: whatever an app does in a round that was begun, one upload leaves, is charged and tells nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import lightdp
from lightdp.errors import ArgumentError
from lightdp.federation import Member
from lightdp.flower._vault import Vault
from lightdp.protocol import File
from support.flower_talk import RUN, Talk, a_plan, an_app, refused

if TYPE_CHECKING:
    from collections.abc import Callable


def replying(make: Callable[[Message], Any]) -> ClientApp:
    """An app whose replies are what `make` returns: a message, or the records of one."""
    app = ClientApp(mods=[lightdp.flower.mod])

    @app.train()
    def train(message: Message, _: Any) -> Message:
        made = make(message)
        return made if isinstance(made, Message) else Message(RecordDict(made), reply_to=message)

    return app


def raising(error: BaseException) -> Callable[[Message], Any]:
    def fail(_: Message) -> Any:
        raise error

    return fail


def arrays(**given: Any) -> Callable[[Message], Any]:
    return lambda _: {"arrays": ArrayRecord({name: Array(np.asarray(value)) for name, value in given.items()})}


class HivPositive42Error(Exception):
    """A name that depends on data."""


FAILURES: dict[str, Callable[[Message], Any]] = {
    "an exception": raising(ValueError("patient 17 has an odd value")),
    "an exception with a telling name": raising(HivPositive42Error("patient 17")),
    "an exception of ours": raising(ArgumentError("patient 17")),
    "an exit": raising(SystemExit("patient 17")),
    "a cancelled task": raising(asyncio.CancelledError("patient 17")),
    "no memory": raising(MemoryError("patient 17")),
    "an error reply": lambda message: Message(Error(17, "patient 17"), reply_to=message),
    "no arrays": lambda _: {"m": MetricRecord({"loss": 17.0}), "c": ConfigRecord({"patient": 17})},
    "two records of arrays": lambda _: {k: ArrayRecord({"w": Array(np.zeros(4))}) for k in ("a", "b")},
    "no message": lambda _: 17,
    "another name": arrays(v=np.zeros(4)),
    "a name too many": arrays(w=np.zeros(4), patient_17=np.zeros(1)),
    "another shape": arrays(w=np.zeros((17, 2))),
    "text": arrays(w=np.array(["patient 17"] * 4)),
    "complex numbers": arrays(w=np.full(4, 17j)),
    "dates": arrays(w=np.zeros(4, "M8[s]")),
    "structures": arrays(w=np.zeros(4, [("a", "f8")])),
    "not a number": arrays(w=np.array([0.4, 0.4, np.nan, 0.4])),
    "infinity": arrays(w=np.array([0.4, 0.4, np.inf, 0.4])),
    "minus infinity": arrays(w=np.array([0.4, 0.4, -np.inf, 0.4])),
    "an overflow": arrays(w=np.array([0.4, 0.4, 1.7e308, 0.4])),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failing_app_sends_zeros_is_charged_and_answers_once(failure: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "flwr")
    talk = Talk(replying(FAILURES[failure]), a_plan(epsilon=1e6, rounds=2)).sets({"lightdp-allow-metrics": "loss"})
    if failure == "an overflow":
        talk.arrays = ArrayRecord({"w": Array(np.array([0, 0, -1.7e308, 0]))})
    talk.enrol()
    message = talk.start()
    replies = [talk.grid.handle(at, message if at == 0 else talk.start()) for at in range(3)]
    for reply in replies:
        assert {name: list(reply.content[name]) for name in reply.content} == {"arrays": ["lightdp"], "metrics": []}
        assert talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())
    assert talk.server.close().mean() == pytest.approx(np.zeros(4), abs=0.05)
    assert "zeros are sent in its place, and the round is charged" in caplog.text
    assert refused(talk.grid.handle(0, message), "round 0 was answered")


def test_the_upload_of_a_failing_app_has_the_form_of_any_other() -> None:
    forms = []
    for app in (an_app(), replying(FAILURES["an exception"])):
        talk = Talk(app)
        talk.enrol()
        content = talk.grid.handle(0, talk.start()).content
        upload = content.array_records["arrays"]["lightdp"].numpy()
        forms.append((list(content), upload.shape, upload.dtype, bytes(upload[:8])))
    assert forms[0] == forms[1]


def test_a_server_that_bisects_a_secret_through_failures_pays_for_each_message_and_learns_nothing() -> None:
    """Thirty messages of one round used to give a secret to nine digits, at no cost."""
    secret = 0.37

    def diverges(message: Message) -> Any:
        if secret < message.content.array_records["arrays"]["w"].numpy()[0]:
            raise ValueError("loss diverged")
        raise KeyError("another failure, by its data")

    talk = Talk(replying(diverges), a_plan(rounds=8))
    talk.enrol()
    uploads, refusals, spent = 0, set[str](), [0.0]
    for k in range(30):
        talk.arrays = ArrayRecord({"w": Array(np.full(4, (k + 0.5) / 30))})
        replies = [talk.grid.handle(at, talk.start()) for at in range(3)]
        if replies[0].has_content():
            uploads += 1
            assert list(replies[0].content) == ["arrays", "metrics"]
            spent.append(epsilon_of(talk))
            again = talk.grid.handle(0, talk.start())  # the same round, at another point
            assert refused(again, f"lightdp/protocol: round {k} was answered, or is over")
        else:
            refusals.add(str(replies[0].error.reason))
        for reply in replies:
            if reply.has_content():
                talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())
        talk.server.close()
    assert uploads == 8  # what the plan pays for
    assert spent == sorted(set(spent))
    assert spent[-1] == pytest.approx(8.0, rel=1e-6)
    assert refusals == {"lightdp/budget: another round could exceed the plan's epsilon=8 at delta=1e-05"}


def epsilon_of(talk: Talk) -> float:
    """What node 0 has spent, by its own state."""
    node = talk.grid.nodes[0]
    path = Path(node.config["lightdp-state"]) / f"node-{node.id}.json"
    vault = Vault(Context(talk.grid.run_id, node.id, node.config, node.state, {}), path)
    return Member.restore(talk.plan, length=4, store=vault).epsilon()


def test_an_app_that_is_interrupted_is_charged_and_not_asked_again() -> None:
    talk = Talk(replying(raising(KeyboardInterrupt())))
    talk.enrol()
    message = talk.start()
    with pytest.raises(KeyboardInterrupt):
        talk.grid.handle(0, message)
    talk.grid.restart(0)
    talk.grid.app = an_app()
    assert refused(talk.grid.handle(0, message), "round 0 was answered")


def test_an_app_whose_process_is_killed_is_charged_and_not_asked_again(tmp_path: Path) -> None:
    talk = Talk(replying(lambda _: os.kill(os.getpid(), signal.SIGKILL))).sets({"lightdp-state": str(tmp_path)})
    talk.enrol()
    message = talk.start()
    child = os.fork()
    if child == 0:
        talk.grid.handle(0, message)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    talk.grid.app = an_app()
    assert refused(talk.grid.handle(0, message), "round 0 was answered")
    for at in (1, 2):
        talk.server.receive(
            talk.grid.handle(at, talk.start()).content.array_records["arrays"]["lightdp"].numpy().tobytes()
        )
    talk.server.close()
    assert talk.grid.handle(0, talk.start()).has_content()  # the next round


def test_a_node_that_fails_by_itself_says_so_without_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk().sets({"lightdp-state": str(tmp_path)})
    talk.enrol()

    def full(*_: object) -> None:
        raise OSError("no space left for /home/patients")

    monkeypatch.setattr(File, "save", full)
    reply = talk.grid.handle(0, talk.start(run=RUN))
    assert reply.error.reason == "lightdp/error: this node failed, and nothing left it; see its log"
