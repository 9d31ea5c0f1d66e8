"""Drawn masks on Flower's nodes: what a round is bound to, and what an app sees of a message (B2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedProx
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

import lightdp
from lightdp import masks
from lightdp.errors import ArgumentError
from lightdp.flower import LightDP, _bound, _vault
from lightdp.masks import Grid
from support.flower_grid import LocalGrid, over_the_wire
from support.flower_talk import Talk, a_plan
from support.flower_training import an_app, planned, trained, weights

if TYPE_CHECKING:
    from pathlib import Path

    from support.flower_tape import Tape

DRAWN: Any = {"clients": 3, "colluders": 0, "calibration": "repair", "masks": "drawn", "gamma": 1.0}
ARRAY = Array(np.arange(4, dtype=np.float32))


def a_record(**changed: Any) -> dict[str, Any]:
    config = ConfigRecord({"rate": 1, "names": ["a", "b"], "seed": b"ab", "text": "ab"})
    metrics = MetricRecord({"loss": 1.0, "all": [1, 2]})
    return {"arrays": ArrayRecord({"v": ARRAY, "w": ARRAY}), "config": config, "metrics": metrics} | changed


@dataclass
class Sent:
    """A train message with all that comes with it."""

    records: dict[str, Any] = field(default_factory=a_record)
    kind: str = "train"
    group: str = ""
    run: int = 7
    config: dict[str, Any] = field(default_factory=lambda: {"a": 1, "b": 2})
    trained: list[str] | None = None
    node: int = 5
    own: dict[str, Any] = field(default_factory=dict)
    state: RecordDict = field(default_factory=RecordDict)
    ttl: float = 60.0

    def message(self) -> Message:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self.run, 1, 1
        content = RecordDict(dict(self.records))
        return Message(content, self.node, self.kind, group_id=self.group, ttl=self.ttl)

    def context(self) -> Context:
        return Context(self.run, self.node, self.own, self.state, self.config)

    def digest(self) -> bytes:
        return _bound.digest(self.message(), self.context(), self.trained)


def configured(**changed: Any) -> dict[str, Any]:
    before = dict(a_record()["config"])
    return a_record(config=ConfigRecord(before | changed))


OTHERS = [
    Sent(kind="train.other"),
    Sent(group="1"),
    Sent(run=8),
    Sent(trained=["v"]),
    Sent(trained=["v", "w"]),
    Sent(trained=["v,w"]),
    *(Sent(config=each) for each in ({"a": 1}, {"a": True, "b": 2}, {"a": 1.0, "b": 2}, {"a": "1", "b": 2}, {})),
    *(Sent(records=configured(rate=each)) for each in (2, True, 1.0, "1", b"1", [1], [True], [1.0], -1, [], [1, 1])),
    *(Sent(records=configured(names=each)) for each in (["ab"], ["a", "b", ""], ["b", "a"], [b"a", b"b"], "ab")),
    Sent(records=configured(more=1)),
    Sent(records=configured(rate=float("nan"))),
    Sent(records=configured(rate=0.0)),
    Sent(records=configured(rate=-0.0)),
    Sent(records=a_record(config=ConfigRecord(dict(reversed(a_record()["config"].items()))))),
    Sent(records=a_record(metrics=MetricRecord({"loss": 1, "all": [1, 2]}))),
    Sent(records=a_record(metrics=ConfigRecord({"loss": 1.0, "all": [1, 2]}))),
    Sent(records=a_record(more=ConfigRecord())),
    Sent(records=a_record(more=MetricRecord())),
    Sent(records=a_record(more=ArrayRecord())),
    Sent(records=dict(reversed(a_record().items()))),
    Sent(records={"other": a_record()["arrays"]} | {key: a_record()[key] for key in ("config", "metrics")}),
    *(
        Sent(records=a_record(arrays=ArrayRecord({"v": ARRAY, "w": each})))
        for each in (
            Array(np.array([0, 1, 2, 4], np.float32)),
            Array("float64", ARRAY.shape, ARRAY.stype, ARRAY.data),
            Array(ARRAY.dtype, (2, 2), ARRAY.stype, ARRAY.data),
            Array(ARRAY.dtype, (4, 1), ARRAY.stype, ARRAY.data),
            Array(ARRAY.dtype, ARRAY.shape, "torch", ARRAY.data),
            Array(ARRAY.dtype, ARRAY.shape, ARRAY.stype, ARRAY.data + b"\0"),
        )
    ),
    Sent(records=a_record(arrays=ArrayRecord({"w": ARRAY, "v": ARRAY}))),
    Sent(records=a_record(arrays=ArrayRecord({"v": ARRAY, "x": ARRAY}))),
    Sent(records=a_record(arrays=ArrayRecord({"v": ARRAY}))),
]


def test_no_two_messages_that_an_app_could_tell_apart_have_one_digest() -> None:
    digests = [each.digest() for each in [Sent(), *OTHERS]]
    assert {len(each) for each in digests} == {32}
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "same",
    [
        Sent(),
        Sent(node=6),
        Sent(own={"partition-id": 3}),
        Sent(state=RecordDict({"own": ConfigRecord({"a": 1})})),
        Sent(ttl=5.0),
        Sent(config={"b": 2, "a": 1}),  # in whose order the app gets it
        Sent(records=a_record(lightdp=ConfigRecord({"start": b"of this node"}))),
    ],
)
def test_what_differs_among_nodes_does_not_count(same: Sent) -> None:
    assert same.digest() == Sent().digest()


SCALARS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.binary())
VALUES = st.one_of(SCALARS, st.lists(st.integers(0, 9)), st.lists(st.text(max_size=3)), st.lists(st.binary(max_size=3)))


@given(st.lists(st.tuples(st.text(max_size=3), VALUES), max_size=4), st.lists(st.tuples(st.text(max_size=3), VALUES)))
def test_configurations_that_differ_have_other_digests(one: Any, two: Any) -> None:
    def shown(each: dict[str, Any]) -> str:
        return repr(list(each.items()))  # with types, order and the sign of zero

    one, two = dict(one), dict(two)
    digests = [Sent(records={"c": ConfigRecord(each)}).digest() for each in (one, two)]
    assert (digests[0] == digests[1]) == (shown(one) == shown(two))


def test_the_wire_changes_no_digest() -> None:
    for sent in [Sent(), *OTHERS]:
        if sent.records.get("config", {}).get("rate") != []:  # whose type Flower's own format loses
            moved = over_the_wire(sent.message())
            assert _bound.digest(moved, sent.context(), sent.trained) == sent.digest()


def test_an_app_sees_nothing_else_that_a_server_can_choose() -> None:
    sent = Sent(records=a_record(lightdp=ConfigRecord({"start": b"of this node"})), config={"b": 2, "a": 1})
    sent.state["own"] = ConfigRecord({"a": 1})
    message, context = sent.message(), sent.context()
    context.__dict__["series_id"] = 99
    message.metadata.__dict__.update(
        _message_id="7f", _src_node_id=3, _reply_to_message_id="8e", _src_task_id=5, _dst_task_id=6, _created_at=1e9
    )
    seen, own = _bound.plain(message, context, node=41)
    facts = dict(vars(seen.metadata))
    assert facts.pop("_created_at") > 1e9
    assert facts == {
        "_run_id": 7, "_message_id": "", "_src_node_id": 1, "_dst_node_id": 41, "_src_task_id": None,
        "_dst_task_id": None, "_reply_to_message_id": "", "_group_id": "", "_ttl": 43200.0, "_message_type": "train",
        "_delivered_at": "",
    }  # fmt: skip
    assert seen.content == RecordDict(a_record())
    assert (own.run_id, own.node_id, own.series_id, len(own.state)) == (7, 41, 0, 0)
    assert list(own.run_config.items()) == [("a", 1), ("b", 2)]
    assert Message(RecordDict(), reply_to=seen).metadata.dst_node_id == 1
    assert message.content["lightdp"] == ConfigRecord({"start": b"of this node"})


def test_messages_are_alike_if_nodes_bind_to_the_same() -> None:
    def alike(*sent: Sent) -> bool:
        return _bound.alike([each.message() for each in sent], [each.trained for each in sent])

    assert alike()
    assert alike(Sent(), Sent(node=6), Sent(records=a_record(lightdp=ConfigRecord({"start": b"own"}))))
    copies = [Array(np.arange(4, dtype=np.float32)) for _ in range(2)]
    assert alike(*(Sent(records=a_record(arrays=ArrayRecord({"v": each, "w": each}))) for each in copies))
    for other in OTHERS:
        if other.run == 7 and repr(other.config) == repr(Sent().config):  # which is in no message
            assert not alike(Sent(), other)


def test_arrays_that_messages_share_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[Array] = []
    real = _bound._array

    def watched(array: Array) -> bytes:
        hashed.append(array)
        return real(array)

    monkeypatch.setattr(_bound, "_array", watched)
    one = Sent().message()
    messages = [Message(one.content, node, "train") for node in range(9)]
    assert _bound.alike(messages, [None] * 9)
    assert hashed == []
    arrays = ArrayRecord({"v": ARRAY})
    contents = [RecordDict({"arrays": arrays, "config": ConfigRecord()}) for _ in range(9)]
    messages = [Message(content, node, "train") for node, content in enumerate(contents)]
    assert _bound.alike(messages, [None] * 9)
    assert len(hashed) == 1


# nodes


def fine_noise(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pairwise noise of each upload in fine steps, in turn."""
    found: list[Any] = []
    real = masks._fine

    def watched(vector: Any, grid: Any, terms: Any, keys: Any, **more: Any) -> Any:
        result = real(vector, grid, terms, keys, **more)
        found.append(result - real(vector, grid, [], keys))
        return result

    monkeypatch.setattr(masks, "_fine", watched)
    return found


def answers(talk: Talk, *changed: dict[str, Any]) -> None:
    """Each node gets the start of a round, changed in its content, and its upload is accepted."""
    for at in range(3):
        message = talk.start()
        for key, value in (changed[at] if at < len(changed) else {}).items():
            message.content[key] = value
        reply = talk.grid.handle(at, message)
        assert reply.has_content(), reply.error
        assert talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())


MODEL = {"arrays": ArrayRecord({"w": Array(np.full(4, 1e-9))})}
CONFIG = {"config": ConfigRecord({"lr": 0.2})}


@pytest.mark.parametrize("other", [MODEL, CONFIG, {"extra": MetricRecord()}])
def test_noise_does_not_cancel_for_a_node_that_was_sent_something_else(
    other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(plan=a_plan(**DRAWN))
    talk.enrol()
    noise = fine_noise(monkeypatch)
    answers(talk)
    assert not sum(noise).any()
    talk.server.close()
    answers(talk, {}, {}, other)
    result = talk.server.close()
    assert (list(result.used), list(result.left_out[1])) == ([0, 1], [2])
    odd = noise[3:]
    unit = Grid.of(talk.plan, 4).unit
    assert sum(odd).any()
    assert not any((each % unit).any() for each in odd)
    answers(talk)  # the next round is as any other, and repairs what was shared with the node that is left out
    assert sum(noise[6:9]).any()
    assert not sum([*noise[3:5], *noise[6:9]]).any()


def test_nor_does_it_with_another_message_type_or_gaussian_masks_that_need_no_such_thing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for plan, cancels in ((a_plan(**DRAWN), False), (a_plan(**DRAWN | {"masks": "gaussian"}), True)):
        talk = Talk(plan=plan)
        talk.enrol()
        noise = fine_noise(monkeypatch)
        for at in range(3):
            message = talk.start()
            message.metadata.message_type = "train.other" if at == 1 else "train"
            assert talk.grid.handle(at, message).has_content()
        assert sum(noise).any() != cancels
        monkeypatch.undo()


def counting(found: list[Any]) -> ClientApp:
    """An app that counts its rounds in the state, also when it is asked to evaluate."""

    def count(message: Message, context: Context) -> Message:
        rounds: Any = context.state.config_records.get("own", ConfigRecord({"rounds": 0}))["rounds"]
        found.append((rounds, context.node_id))
        context.state["own"] = ConfigRecord({"rounds": rounds + 1})
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)

    app = ClientApp(mods=[lightdp.flower.mod])
    app.train()(count)
    app.evaluate()(count)
    return app


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("masks", ["drawn", "gaussian"])
def test_an_app_keeps_state_over_rounds_under_gaussian_masks_alone(
    masks: str, simulated: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[Any] = []
    talk = Talk(counting(found), a_plan(**DRAWN | {"masks": masks}))
    if simulated:
        talk.grid.simulate(monkeypatch)
    talk.enrol()
    evaluate = Message(RecordDict({"arrays": talk.arrays}), talk.grid.nodes[0].id, "evaluate")
    assert talk.grid.handle(0, evaluate).has_content()
    for _ in range(3):
        answers(talk)
        talk.server.close()
    mine = [rounds for rounds, node in found if node == talk.grid.nodes[0].id]
    assert mine == ([0, 0, 0, 0] if masks == "drawn" else [0, 1, 2, 3])
    said = [each for each in caplog.messages if "left state in its context" in each]
    assert len(said) == (3 if masks == "drawn" else 0)  # one a node
    assert all("masks='gaussian' keeps it" in each for each in said)
    kept = talk.grid.nodes[0].state.config_records
    assert kept["own"] == ConfigRecord({"rounds": 1 if masks == "drawn" else 4})
    assert "lightdp" in kept


def test_a_node_that_the_server_gives_another_id_shows_the_app_the_old_one(tmp_path: Path) -> None:
    found: list[Any] = []
    talk = Talk(counting(found), a_plan(**DRAWN))
    node = talk.grid.nodes[0]
    node.config |= {"lightdp-state": str(tmp_path / "s.json"), "lightdp-name": "ann"}
    before = node.id
    talk.enrol()
    node.id, node.state = 77, RecordDict()
    _vault._KEPT.clear()
    assert talk.grid.handle(0, talk.start()).has_content()
    assert found == [(0, before)]


def test_a_run_of_another_id_or_configuration_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for changed in ("run", "config"):
        talk = Talk(plan=a_plan(**DRAWN))
        talk.enrol()
        noise = fine_noise(monkeypatch)
        for at in range(3):
            message = talk.start()
            if at == 2 and changed == "run":
                talk.grid.run_id += 10_000
            if at == 2 and changed == "config":
                talk.grid.run_config = {"epochs": 3}
            assert talk.grid.handle(at, message).has_content()
        assert sum(noise).any()
        monkeypatch.undo()


# the server


class PerNode(FedAvg):
    """Sends each node a configuration of its own."""

    def configure_train(self, *arguments: Any) -> list[Message]:
        messages = list(super().configure_train(*arguments))
        for number, message in enumerate(messages):
            config = ConfigRecord({"seed": number})
            message.content = RecordDict({"arrays": message.content["arrays"], "config": config})
        return messages


@pytest.mark.parametrize("inner", [FedAvg(), FedAvgM(server_momentum=0.5), FedProx(proximal_mu=0.1)])
def test_flowers_linear_strategies_send_all_nodes_the_same(inner: Any, tape: Tape) -> None:
    plan = planned(gamma=8.0, masks="drawn", epsilon=8.0)
    _, result = trained(LocalGrid(an_app(), 5), plan, inner, num_rounds=2)
    assert [each["lightdp-used"] for each in result.train_metrics_clientapp.values()] == [5, 5]
    assert result.train_metrics_clientapp[2]["lightdp-epsilon"] <= 8
    assert_cancelled(tape)
    assert len(tape.used()) == 10


def test_a_strategy_that_sends_nodes_different_things_is_refused_before_anything_is_announced() -> None:
    grid = LocalGrid(an_app(), 5)
    with pytest.raises(ArgumentError, match=r"must send all nodes the same arrays and configuration.*masks='gaussian'"):
        trained(grid, planned(gamma=8.0, masks="drawn", epsilon=8.0), PerNode())
    assert "train" not in grid.pushed
    _, result = trained(LocalGrid(an_app(), 5), planned(gamma=8.0, masks="gaussian"), PerNode(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["lightdp-used"] == 5


@pytest.mark.parametrize(("masks", "told"), [("drawn", 1), ("gaussian", 0)])
def test_the_server_says_once_that_apps_see_no_state(masks: str, told: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr"):
        trained(LocalGrid(an_app(), 5), planned(gamma=8.0, masks=masks, epsilon=8.0), num_rounds=2)
    assert caplog.text.count("apps see an empty context.state in train messages") == told


@pytest.mark.parametrize("simulated", [False, True])
def test_a_training_with_drawn_masks_adds_what_nodes_add(
    simulated: bool, tape: Tape, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = LocalGrid(an_app(), 5)
    if simulated:
        grid.simulate(monkeypatch)
    grid.faults = {(2, 1): "drop", (3, 4): "lost"}
    plan = planned(gamma=8.0, masks="drawn", epsilon=8.0)
    _, result = trained(grid, plan, num_rounds=4)
    assert [each["lightdp-used"] for each in result.train_metrics_clientapp.values()] == [5, 4, 4, 5]
    assert_cancelled(tape)


def assert_cancelled(tape: Tape) -> None:
    """There was pairwise noise, and nothing of it is left in the sum of all rounds, closing rounds included."""
    assert any((each.fine != each.data).any() for each in tape.used())
    assert np.array_equal(tape.total("fine"), tape.total("data"))


def test_a_server_that_goes_on_from_a_checkpoint_binds_rounds_anew(tmp_path: Path, tape: Tape) -> None:
    grid, plan, file = LocalGrid(an_app(), 5), planned(gamma=8.0, masks="drawn", epsilon=8.0), tmp_path / "c"
    grid.faults = {(2, 1): "drop"}  # repaired by rounds that are bound to another run

    class StoppedError(Exception):
        pass

    def stop(current: int) -> None:
        if current == 3:
            raise StoppedError

    grid.before = stop
    with pytest.raises(StoppedError):
        start(grid, plan, file)
    grid.before = lambda _: None
    grid.run_id += 1000  # Flower's, of the new server
    result = start(grid, plan, file)
    used = [each["lightdp-used"] for each in result.train_metrics_clientapp.values()]
    assert used == [5, 4, 5, 5, 5]
    assert_cancelled(tape)


def start(grid: LocalGrid, plan: lightdp.Plan, file: Path) -> Any:
    strategy = LightDP(FedAvg(), plan, wait=0.01, checkpoint=file)
    return strategy.start(grid=grid, initial_arrays=weights(), num_rounds=5, timeout=1)
