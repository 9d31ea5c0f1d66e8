"""The mod alone: it fails closed. Without a valid plan and roster nothing leaves a node."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg

from lightdp import errors
from lightdp.protocol import Server
from lightdp.protocol.vector import agreement
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
        ({"plan": a_plan(unit="record").to_json()}, "this node accepts lightdp-unit='client'"),
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
    assert refused(talk.grid.handle(0, message), "the message is of a roster that this member has not joined")
    talk.grid.restart(1)
    talk.grid.nodes[1].config["lightdp-state"] += "/lost.json"
    assert refused(talk.grid.handle(1, talk.start()), "this node has no state of the run")


def test_a_roster_of_another_plan_is_refused() -> None:
    talk = Talk()
    talk.enrol()
    other = Server(a_plan(epsilon=80.0), length=4, run=RUN)
    for at in range(3):
        other.enrol(enrolment(talk.key(at)))
    assert refused(talk.grid.handle(0, talk.start(roster=other.roster())), "another run or plan")


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros(4, np.longdouble), "array w must be of floats of at most 64 bits or integers"),
        (np.zeros(4, np.complex64), "array w must be of floats"),
        (np.array(["a"] * 4), "array w must be of floats"),
        (np.zeros(4, "M8[s]"), "array w must be of floats"),
        (np.zeros(4, [("a", "f8")]), "array w must be of floats"),
        (np.zeros(4, np.int64), "arrays must hold floats"),
        (np.zeros(4, bool), "arrays must hold floats"),
        (np.zeros(0), "arrays must hold floats"),
        (np.zeros(5), "arrays must hold length=4 floats, got 5"),
        (np.float64(1.0), "arrays must hold length=4 floats, got 1"),
        (np.zeros(4, np.float16), None),
        (np.zeros(4, ">f8"), None),
        (np.full(4, np.nan), None),
        (np.full(4, -np.inf), None),
        (np.full(4, 1e308), None),
    ],
)
def test_strange_arrays_of_a_server_are_refused_before_the_app_sees_them_or_answered(array: Any, why: Any) -> None:
    talk = Talk()
    talk.enrol()
    talk.arrays = ArrayRecord({"w": Array(np.asarray(array))})
    reply = talk.grid.handle(0, talk.start())
    assert reply.has_content() if why is None else refused(reply, why)


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
    page = (Path(__file__).parents[2] / "docs/how-to/flower.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `lightdp/([a-z-]+)`", page, flags=re.MULTILINE)) == codes
