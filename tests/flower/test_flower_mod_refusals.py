"""The mod alone: it fails closed. Without a valid plan and roster nothing leaves a node."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg

import lightdp
from lightdp import errors
from lightdp.errors import ArgumentError
from lightdp.protocol.client import agreement
from support.flower_grid import LocalGrid
from support.flower_talk import RUN, Talk, a_plan, an_app, enrolment, refused


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
        ({"plan": json.dumps(json.loads(a_plan().to_json()) | {"sigma_individual": 0.0})}, "sigma_individual"),
        ({"plan": json.dumps(json.loads(a_plan().to_json()) | {"epsilon": -1.0})}, "epsilon must be"),
        ({"plan": a_plan(calibration="central").to_json()}, "calibration must be one whose clients add noise alone"),
        ({"plan": a_plan(calibration="repair", late="unseen").to_json()}, "Flower keeps replies that come too late"),
        ({"plan": a_plan(calibration="exact", late="unseen").to_json()}, "Flower keeps replies that come too late"),
        ({"plan": a_plan(unit="record").to_json()}, "lightdp-record-clip must say to what norm"),
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
        ({"start": b""}, "wire"),
        ({"roster": b""}, "wire"),
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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_leaves_as_zero_and_is_not_told_apart(value: float) -> None:
    def change(w: np.ndarray[Any, Any]) -> Any:
        w = w + 0.4
        w[2] = value
        return w

    talk = Talk(an_app(change), a_plan(epsilon=1e6, rounds=1))  # hardly any noise
    talk.enrol()
    for at in range(3):
        upload = talk.grid.handle(at, talk.start()).content.array_records["arrays"]["lightdp"]
        talk.server.receive(upload.numpy().tobytes())
    assert talk.server.close().mean() == pytest.approx(np.zeros(4), abs=0.05)


@pytest.mark.parametrize("records", [8, 9])
def test_records_whose_sum_overflows_count_as_the_largest_and_not_as_nothing(records: int) -> None:
    def change(w: np.ndarray[Any, Any]) -> Any:
        with np.errstate(over="ignore"):
            return (w + records * np.array([8000.0, 0, 0, 0])).astype(w.dtype)  # nine are beyond float16

    talk = Talk(an_app(change), a_plan(unit="record", clip=8000.0, epsilon=1e6, rounds=1))
    talk.arrays = ArrayRecord({"w": Array(np.zeros(4, np.float16))})
    talk.grid.run_config["lightdp-record-clip"] = 8000.0
    talk.enrol()
    for at in range(3):
        upload = talk.grid.handle(at, talk.start()).content.array_records["arrays"]["lightdp"]
        talk.server.receive(upload.numpy().tobytes())
    assert talk.server.close().mean() == pytest.approx([31743, 0, 0, 0], abs=100)


@pytest.mark.parametrize("value", [2.0**46, np.inf, np.nan])
def test_a_model_whose_rounding_would_undo_the_clipping_of_records_is_refused(value: float) -> None:
    talk = Talk(plan=a_plan(unit="record", clip=0.1))
    talk.grid.run_config["lightdp-record-clip"] = 0.1
    talk.enrol()
    talk.arrays = ArrayRecord({"w": Array(np.array([0.0, 1.0, value, -1.0]))})
    assert refused(talk.grid.handle(0, talk.start()), "the received arrays are so large, many or coarse")
    talk.arrays = ArrayRecord({"w": Array(np.full(4, 2.0, np.float16))})
    assert refused(talk.grid.handle(0, talk.start()), "the received arrays are so large, many or coarse")
    talk.arrays = ArrayRecord({"w": Array(np.full(4, 1000.0, np.float32))})
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
    trained = []

    def train(w: Any) -> Any:
        trained.append(w)
        return w

    talk = Talk(an_app(train))
    talk.enrol()
    for closing in (False, True):
        for at in range(3):
            start, roster = talk.server.announce(since=0, closing=closing), talk.server.roster()
            reply = talk.grid.handle(at, talk.order(run=RUN, start=start, roster=roster, closing=closing))
            assert talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())
        talk.server.close()
    assert len(trained) == 3


def test_a_message_that_contradicts_its_announcement_on_closing_is_refused() -> None:
    talk = Talk()
    talk.enrol()
    start, roster = talk.server.announce(since=0), talk.server.roster()
    assert refused(talk.grid.handle(0, talk.order(run=RUN, start=start, roster=roster, closing=True)), "closing=False")
    assert talk.server.receive(
        talk.grid.handle(0, talk.start()).content.array_records["arrays"]["lightdp"].numpy().tobytes()
    )


@pytest.mark.parametrize(("announced", "said"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_length_that_no_array_has_shown_is_not_allocated(announced: bool, said: bool) -> None:
    talk = Talk()
    length = 2**39
    talk.server._agreement = agreement(talk.plan, length, weighted=False)
    for at in range(3):
        talk.server.enrol(enrolment(talk.key(at, length=length)))
    roster = talk.server.roster()
    order = talk.order(run=RUN, start=talk.server.announce(closing=announced), roster=roster, closing=said)
    reply = talk.grid.handle(0, order)
    assert refused(reply, f"length={length}")


def test_the_page_on_flower_lists_every_code_of_a_refusal() -> None:
    kinds = [errors.LightDPError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    codes = {kind.code for kind in kinds} - {errors.LightDPError.code, errors.MissingExtraError.code}
    page = (Path(__file__).parents[2] / "docs/flower.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `lightdp/([a-z-]+)`", page, flags=re.MULTILINE)) == codes
