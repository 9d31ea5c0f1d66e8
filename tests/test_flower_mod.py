"""The mod alone: it fails closed, and a node's limits, state and locks hold."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg

import lightdp
from flower_grid import LocalGrid
from lightdp._check import ArgumentError, ProtocolError
from lightdp.flower import LightDP, _vault
from lightdp.flower._settings import Settings, arguments, planned
from lightdp.keys import Identity
from lightdp.protocol import File, Server
from lightdp.stragglers import binomial

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightdp.design import Plan

RUN = b"a run of 16 byte"


def a_plan(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 3, "colluders": 1, "stragglers": 1, "rounds": 8, "epsilon": 8.0, "delta": 1e-5}
    return lightdp.plan(**(asked | {"unit": "client"} | changed))


def an_app(change: Callable[[np.ndarray[Any, Any]], Any] = lambda w: w + 0.1) -> ClientApp:
    app = ClientApp(mods=[lightdp.flower.mod])

    @app.train("other")
    @app.train()
    def train(message: Message, _: Context) -> Message:
        arrays = {k: Array(np.asarray(change(v.numpy()))) for k, v in message.content.array_records["arrays"].items()}
        metrics = MetricRecord({"loss": 123.0, "num-examples": 77})
        secret = ConfigRecord({"secret": "of the data"})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "m": metrics, "c": secret}), reply_to=message)

    return app


class Talk:
    """A server that says what it likes to three nodes."""

    def __init__(self, app: ClientApp | None = None, plan: Plan | None = None) -> None:
        self.plan = a_plan() if plan is None else plan
        self.grid = LocalGrid(an_app() if app is None else app, 3)
        self.arrays = ArrayRecord({"w": Array(np.zeros(4))})
        self.server = Server(self.plan, length=4, run=RUN)

    def order(self, **content: Any) -> Message:
        record = RecordDict(
            {"arrays": self.arrays, "config": ConfigRecord({"lr": 0.1}), "lightdp": ConfigRecord(content)}
        )
        return Message(record, self.grid.nodes[0].id, "train")

    def key(self, at: int, **changed: Any) -> Message:
        order = {"plan": arguments(self.plan), "run": RUN, "length": 4} | changed
        return self.grid.handle(at, self.order(**order))

    def enrol(self) -> None:
        for at in range(3):
            self.server.enrol(enrolment(self.key(at)))
        self.server.roster()

    def start(self, **changed: Any) -> Message:
        order = {"run": RUN, "start": self.server.announce(since=0), "roster": self.server.roster(), "closing": False}
        return self.order(**(order | changed))


def enrolment(reply: Message) -> bytes:
    result = reply.content.config_records["lightdp"]["enrolment"]
    assert isinstance(result, bytes)
    return result


def refused(reply: Message, why: str) -> bool:
    assert reply.has_error(), "something left the node"
    assert why in str(reply.error.reason), reply.error.reason
    return True


# ---- without a valid plan and roster nothing leaves ----


def test_a_train_message_of_a_plain_strategy_is_refused() -> None:
    talk = Talk()
    record = RecordDict({"arrays": talk.arrays, "config": ConfigRecord()})
    for kind in ("train", "train.other"):
        reply = talk.grid.handle(0, Message(record, talk.grid.nodes[0].id, kind))
        assert refused(reply, "the server's strategy must be a LightDP")
        assert reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION


def test_a_plain_strategy_gets_no_arrays_out_of_an_app_with_the_mod() -> None:
    grid = LocalGrid(an_app(), 3)
    FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord({"w": Array(np.zeros(4))}), num_rounds=1)
    assert len(grid.left) == 3
    assert all(each.has_error() for _, each in grid.left)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"plan": "{}"}, "plan must be the arguments of lightdp.plan"),
        ({"plan": "no json"}, "plan must be the arguments of lightdp.plan"),
        ({"plan": json.dumps(json.loads(arguments(a_plan())) | {"sigma_individual": 0.0})}, "sigma_individual"),
        ({"plan": json.dumps(json.loads(arguments(a_plan())) | {"epsilon": -1.0})}, "epsilon must be"),
        ({"plan": arguments(a_plan(calibration="central"))}, "calibration must be one whose clients add noise alone"),
        ({"plan": arguments(a_plan(calibration="repair", late="unseen"))}, "Flower keeps replies that come too late"),
        ({"plan": arguments(a_plan(unit="record"))}, "lightdp-records-clipped"),
        ({"plan": b"bytes"}, "must have plan of type str"),
        ({"run": b"short"}, "run must be 16 bytes"),
        ({"length": 0}, "length must be >= 1"),
        ({"length": True}, "length must be an integer"),
    ],
)
def test_a_key_round_with_something_wrong_is_refused(changed: dict[str, Any], why: str) -> None:
    assert refused(Talk().key(0, **changed), why)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"run": b"another 16 bytes"}, "another run"),
        ({"start": b""}, "WireError"),
        ({"roster": b""}, "WireError"),
        ({"start": 1}, "must have start of type bytes"),
        ({"closing": 0}, "must have closing of type bool"),
    ],
)
def test_a_round_with_something_wrong_is_refused_and_the_right_one_answered(changed: dict[str, Any], why: str) -> None:
    talk = Talk()
    talk.enrol()
    assert refused(talk.grid.handle(0, talk.start(**changed)), why)
    assert talk.grid.handle(0, talk.start()).has_content()


def test_a_round_without_a_roster_or_a_key_round_is_refused() -> None:
    talk = Talk()
    talk.enrol()
    message = talk.start()
    del message.content.config_records["lightdp"]["roster"]
    assert refused(talk.grid.handle(0, message), "the client has no roster yet")
    talk.grid.restart(1)
    assert refused(talk.grid.handle(1, talk.start()), "this node has no state of the run")


def test_a_roster_of_another_plan_is_refused() -> None:
    talk = Talk()
    talk.enrol()
    other = Talk(plan=a_plan(epsilon=80.0))
    other.enrol()
    assert refused(talk.grid.handle(0, talk.start(roster=other.server.roster())), "another run or plan")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda w: w * np.nan, "finite"),
        (lambda w: w + np.inf, "finite"),
        (lambda w: w[:2], "must be numbers of shape (4,)"),
        (lambda w: w.astype(complex), "must be numbers"),
    ],
)
def test_an_update_that_is_no_update_leaves_nothing_and_the_round_stays_open(change: Any, why: str) -> None:
    talk = Talk(an_app(change))
    talk.enrol()
    assert refused(talk.grid.handle(0, talk.start()), why)
    talk.grid.app = an_app()
    assert talk.grid.handle(0, talk.start()).has_content()


def test_an_apps_error_says_nothing_of_the_data(caplog: pytest.LogCaptureFixture) -> None:
    for kind, told in ((ValueError, "ValueError"), (ArgumentError, "RuntimeError")):

        def fail(_: Any, kind: type[Exception] = kind) -> Any:
            raise kind("patient 17 has an odd value")

        talk = Talk(an_app(fail))
        talk.enrol()
        caplog.clear()
        reply = talk.grid.handle(0, talk.start())
        assert reply.error.reason == f"lightdp: the app raised {told}; see the node's log"
        assert "patient 17" in caplog.text

    talk = Talk(ClientApp(mods=[lightdp.flower.mod]))
    talk.grid.app.train()(lambda message, _: Message(Error(0, "patient 17"), reply_to=message))
    talk.enrol()
    reply = talk.grid.handle(0, talk.start())
    assert "patient" not in str(reply.error.reason)


def test_a_closing_round_does_not_train() -> None:
    def fail(_: Any) -> Any:
        raise AssertionError("trained")

    talk = Talk(an_app(fail))
    talk.enrol()
    start, roster = talk.server.announce(closing=True), talk.server.roster()
    reply = talk.grid.handle(0, talk.order(run=RUN, start=start, roster=roster, closing=True))
    assert talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())


# ---- a node's limits ----


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("lightdp-max-epsilon", 7.9, "epsilon=8 is above lightdp-max-epsilon=7.9"),
        ("lightdp-max-delta", 1e-6, "delta=1e-05 is above lightdp-max-delta=1e-06"),
        ("lightdp-min-colluders", 2, "colluders=1 is below lightdp-min-colluders=2"),
        ("lightdp-max-epsilon", "7", "lightdp-max-epsilon must be a number"),
        ("lightdp-max-epsilon", True, "lightdp-max-epsilon must be a number"),
        ("lightdp-max-epsilon", float("nan"), "lightdp-max-epsilon must be finite"),
        ("lightdp-max-delta", 2.0, "lightdp-max-delta must be in (0, 1)"),
        ("lightdp-min-colluders", 1.5, "lightdp-min-colluders must be an integer"),
        ("lightdp-records-clipped", "yes", "lightdp-records-clipped must be true or false"),
        ("lightdp-state", 3, "lightdp-state must be a path"),
        ("lightdp-state", "/nowhere/at/all/state.json", "lightdp-state must be a file in a folder that exists"),
        ("lightdp-pins", "/nowhere/pins", "lightdp-identity and lightdp-pins must name files that can be read"),
        ("lightdp-identity", "/nowhere/key", "lightdp-identity and lightdp-pins must name files that can be read"),
        ("lightdp-total-epsilon", 20.0, "lightdp-total-epsilon needs lightdp-state"),
        ("lightdp-max-eps", 1.0, "node_config must not have ['lightdp-max-eps']"),
        ("lightdp-name", "../elsewhere", "lightdp-name must be 1 to 64 letters"),
        ("lightdp-allow-metrics", 1, "lightdp-allow-metrics must be names"),
    ],
)
def test_a_plan_beyond_a_limit_and_a_limit_that_makes_no_sense_are_refused(limit: str, value: Any, why: str) -> None:
    talk = Talk()
    talk.grid.nodes[0].config[limit] = value
    assert refused(talk.key(0), why)
    assert talk.key(1).has_content()


def test_the_nodes_own_limit_comes_before_the_runs() -> None:
    talk = Talk()
    talk.grid.run_config["lightdp-max-epsilon"] = 100.0
    talk.grid.nodes[0].config["lightdp-max-epsilon"] = 1.0
    assert refused(talk.key(0), "above lightdp-max-epsilon=1")
    assert talk.key(1).has_content()
    talk.grid.run_config["lightdp-max-epsilon"] = 1.0
    assert refused(talk.key(2), "above lightdp-max-epsilon=1")


def test_a_limit_that_is_tightened_in_mid_run_holds_at_once() -> None:
    talk = Talk()
    talk.enrol()
    talk.grid.nodes[0].config["lightdp-max-epsilon"] = 1.0
    assert refused(talk.grid.handle(0, talk.start()), "above lightdp-max-epsilon=1")


def test_nodes_that_refuse_the_plan_are_named_when_the_key_round_fails() -> None:
    grid = LocalGrid(an_app(), 3)
    grid.nodes[1].config["lightdp-max-epsilon"] = 1.0
    strategy = LightDP(FedAvg(), a_plan(), wait=0.01)
    with pytest.raises(ProtocolError, match=r"2 of the plan's 3 clients .* node 1007: .*above lightdp-max-epsilon=1"):
        strategy.start(grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros(4))}))


def test_all_plans_together_stay_below_the_total(tmp_path: Path) -> None:
    talk = Talk()
    talk.grid.nodes[0].config |= {"lightdp-state": str(tmp_path / "s.json"), "lightdp-total-epsilon": 20.0}
    for run in (b"run number one..", b"run number two.."):
        talk.server = Server(talk.plan, length=4, run=run)
        for at in range(3):
            talk.server.enrol(enrolment(talk.key(at, run=run)))
        talk.server.roster()
        assert talk.key(0, run=run).has_content()  # asked twice is spent once
        assert talk.grid.handle(0, talk.start(run=run)).has_content()
        talk.grid.restart(0)
    assert refused(talk.key(0, run=b"run number three"), "epsilon=8 after 16 spent is above lightdp-total-epsilon=20")


def test_a_plan_without_uploads_spends_nothing_of_the_total(tmp_path: Path) -> None:
    talk = Talk()
    talk.grid.nodes[0].config |= {"lightdp-state": str(tmp_path / "s.json"), "lightdp-total-epsilon": 10.0}
    for run in (b"run number one..", b"run number two.."):
        assert talk.key(0, run=run).has_content()


def test_pins_and_identities_are_read_from_files(tmp_path: Path) -> None:
    talk = Talk(plan=a_plan(colluders=0))
    lines = []
    for i, node in enumerate(talk.grid.nodes):
        identity = Identity.generate()
        identity.save(tmp_path / f"{i}.pem")
        lines.append(f"site-{i} {identity.public.hex()}")
        node.config |= {"lightdp-identity": str(tmp_path / f"{i}.pem"), "lightdp-name": f"site-{i}"}
    (tmp_path / "pins").write_text("\n".join(lines))
    (tmp_path / "two").write_text("\n".join(lines[:2]))
    talk.grid.nodes[0].config["lightdp-pins"] = str(tmp_path / "pins")
    talk.grid.nodes[1].config["lightdp-pins"] = str(tmp_path / "two")
    talk.enrol()
    assert talk.grid.handle(0, talk.start()).has_content()
    assert refused(talk.grid.handle(1, talk.start()), "clients that are not pinned, got ['site-2']")


def test_records_are_sent_unclipped_only_if_the_app_says_that_it_clips_them() -> None:
    plan = a_plan(unit="record", clip=0.01, coordinate_range=50.0, epsilon=1e5)
    talk = Talk(an_app(lambda w: w + 3.0), plan)
    talk.grid.run_config["lightdp-records-clipped"] = True
    talk.enrol()
    for at in range(3):
        packed = talk.grid.handle(at, talk.start()).content.array_records["arrays"]["lightdp"].numpy().tobytes()
        assert talk.server.receive(packed)
    assert talk.server.close().mean() == pytest.approx(np.full(4, 3.0), abs=0.5)


# ---- one round, one answer ----


def test_a_repeated_message_is_answered_once() -> None:
    talk = Talk()
    talk.enrol()
    message = talk.start()
    assert talk.grid.handle(0, message).has_content()
    assert refused(talk.grid.handle(0, message), "round 0 was answered")
    assert talk.key(0).content == talk.grid.left[0][1].content  # a key round repeated gives the same key


def test_a_message_that_will_not_be_answered_is_not_trained_for() -> None:
    trainings: list[Any] = []

    def train(weights: Any) -> Any:
        trainings.append(weights)
        return weights

    talk = Talk(an_app(train))
    talk.enrol()
    message = talk.start()
    assert talk.grid.handle(0, message).has_content()
    assert refused(talk.grid.handle(0, message), "round 0 was answered")
    assert len(trainings) == 1


def test_an_older_context_does_not_answer_again_while_a_newer_state_is_anywhere(tmp_path: Path) -> None:
    for path in (None, tmp_path / "s.json"):
        talk = Talk()
        if path is not None:
            talk.grid.nodes[0].config["lightdp-state"] = str(path)
        talk.enrol()
        message = talk.start()
        assert talk.grid.handle(0, message, keep=False).has_content()  # the context stays as it was before
        assert refused(talk.grid.handle(0, message), "round 0 was answered")


def test_an_older_file_does_not_answer_again_while_the_context_is_newer(tmp_path: Path) -> None:
    talk, path = Talk(), tmp_path / "s.json"
    talk.grid.nodes[0].config["lightdp-state"] = str(path)
    talk.enrol()
    old, message = path.read_bytes(), talk.start()
    assert talk.grid.handle(0, message).has_content()
    path.write_bytes(old)
    assert refused(talk.grid.handle(0, message), "round 0 was answered")


def test_a_state_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    talk, path = Talk(), tmp_path / "s.json"
    talk.grid.nodes[0].config["lightdp-state"] = str(path)
    for junk in ("precious", "{}", "[]", '{"serial": "1", "client": ""}'):
        path.write_text(junk)
        assert refused(talk.key(0), "holds something that is no state")
        assert path.read_text() == junk
    path.unlink()
    talk.grid.nodes[0].state = RecordDict({"lightdp": ConfigRecord({"state": "text"})})
    assert refused(talk.key(0), "holds something that is no state")


def test_nothing_leaves_if_the_state_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    talk.grid.nodes[0].config["lightdp-state"] = str(tmp_path / "s.json")
    talk.enrol()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(File, "save", full)
        assert talk.grid.handle(0, talk.start()).has_error()
    assert talk.grid.handle(0, talk.start()).has_content()


@pytest.mark.parametrize("with_file", [True, False])
def test_of_many_copies_handled_at_the_same_time_one_is_answered(with_file: Any, tmp_path: Path) -> None:
    talk = Talk(an_app(), a_plan(rounds=100))
    if with_file:
        talk.grid.nodes[0].config["lightdp-state"] = str(tmp_path)
    talk.enrol()
    for _ in range(5):
        message, together = talk.start(), threading.Barrier(4)

        def copy(_: int, message: Message = message, together: threading.Barrier = together) -> Message:
            return talk.grid.handle(0, message, keep=False, together=together)

        with ThreadPoolExecutor(4) as pool:
            answers = [each for each in pool.map(copy, range(4)) if each.has_content()]
        assert len(answers) == 1
        talk.server.receive(answers[0].content.array_records["arrays"]["lightdp"].numpy().tobytes())
        talk.server.close()


_HOLD = """
import sys
from pathlib import Path
from flwr.app import Context, RecordDict
from lightdp.flower import _vault
with _vault.opened(Context(1, 2, {}, RecordDict(), {}), Path(sys.argv[1])):
    print("taken", flush=True)
    sys.stdin.readline()
"""


def test_another_process_waits_for_the_lock(tmp_path: Path) -> None:
    path, entered = tmp_path / "s.json", threading.Event()
    command = [sys.executable, "-W", "ignore", "-c", _HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"

        def enter() -> None:
            with _vault.opened(Context(1, 2, {}, RecordDict(), {}), path):
                entered.set()

        here = threading.Thread(target=enter)
        here.start()
        assert not entered.wait(0.2)
        other.communicate("go\n")
        here.join()
    assert entered.is_set()


# ---- settings and plans ----


def test_settings_have_defaults_and_read_every_name() -> None:
    plain = Settings.of(Context(1, 5, {"partition-id": 3}, RecordDict(), {"lightdp-anything": 1}))
    assert plain == Settings(name="node-5")
    config: dict[str, Any] = {"lightdp-allow-metrics": " loss,, acc ", "lightdp-state": "~/s", "lightdp-name": "me"}
    read = Settings.of(Context(1, 5, {}, RecordDict(), config))
    assert read.allow_metrics == {"loss", "acc"}
    assert read.state is not None
    assert read.state.is_absolute()
    assert read.name == "me"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"calibration": "repair"},
        {"calibration": "repair", "gamma": 2.5, "reserve": "worst"},
        {"calibration": "paper"},
        {"calibration": "local"},
        {"gamma": 0.5, "degree": 2, "graph_seed": 4, "clients": 8, "stragglers": 3},
        {"straggler_law": binomial(1, 3, 0.1), "parameters": 99},
        {"unit": "record", "sampling_rate": 0.1, "records": 300, "coordinate_range": 4.0, "adjacency": "replace"},
    ],
)
def test_a_plan_travels_as_its_arguments(changed: dict[str, Any]) -> None:
    made = a_plan(**changed)
    again = planned(arguments(made))
    assert again.digest() == made.digest()
    assert "sigma" not in arguments(made)


def test_arguments_that_are_none_are_refused() -> None:
    with pytest.raises(ArgumentError, match="plan must be the arguments"):
        planned("[1, 2]")
