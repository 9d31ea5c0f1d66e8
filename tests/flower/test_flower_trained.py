"""What is trained: several ArrayRecords, some arrays of a model, and apps whose local layers stay where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import lightdp
from lightdp.errors import ArgumentError
from lightdp.flower import LightDP, _arrays
from lightdp.protocol import Server
from support.flower_grid import LocalGrid
from support.flower_talk import RUN, Talk, a_plan, records_of, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flwr.serverapp import Grid
    from numpy.typing import NDArray

QUIET: dict[str, Any] = {"epsilon": 1e6, "clip": 10.0}  # hardly any noise
NOISE = 0.15  # more than 10 standard deviations of a mean

Changed = dict[str, dict[str, "NDArray[Any]"]]


def app_of(change: Callable[[Changed], Changed]) -> ClientApp:
    """An app that replies with what `change` makes of the received records."""
    app = ClientApp(mods=[lightdp.flower.mod])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        records = message.content.array_records
        received = {name: {key: array.numpy() for key, array in each.items()} for name, each in records.items()}
        reply = {
            name: ArrayRecord({k: Array(np.asarray(v)) for k, v in each.items()})
            for name, each in change(received).items()
        }
        return Message(RecordDict({**reply}), reply_to=message)

    return app


def conversation(app: ClientApp, records: Changed, length: int) -> Talk:
    """A server that trains these records, on a model of so many trained floats."""
    talk = Talk(app, a_plan(**QUIET))
    talk.server = Server(talk.plan, length=length, run=RUN)
    for at in range(3):
        talk.server.enrol(enrolled(talk.key(at, length=length)))
    talk.server.roster()
    content = {name: ArrayRecord({k: Array(v) for k, v in each.items()}) for name, each in records.items()}

    def order(**said: Any) -> Message:
        record = RecordDict({**content, "config": ConfigRecord(), "lightdp": ConfigRecord(said)})
        return Message(record, talk.grid.nodes[0].id, "train")

    talk.order = order  # type: ignore[method-assign]
    return talk


def enrolled(reply: Message) -> bytes:
    return bytes(reply.content.config_records["lightdp"]["enrolment"])  # type: ignore[arg-type]


def mean(talk: Talk, **said: Any) -> NDArray[Any]:
    for at in range(3):
        reply = talk.grid.handle(at, talk.start(**said))
        assert talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())
    return talk.server.close().mean()


def test_all_floats_of_several_records_make_up_the_vector_in_the_order_of_record_and_key() -> None:
    records: Changed = {
        "head": {"w": np.zeros(2), "n": np.array(7)},
        "body": {"z": np.zeros((1, 2), np.float32), "a": np.array(5.0)},
    }

    def change(received: Changed) -> Changed:
        assert set(received) == {"head", "body"}
        head, body = received["head"], received["body"]
        return {
            "body": {"z": body["z"] + np.float32(2), "a": body["a"] + 1},  # in another order than they came
            "head": {"n": head["n"] + 1, "w": head["w"] + 3},
        }

    talk = conversation(app_of(change), records, 5)
    assert mean(talk) == pytest.approx([1, 2, 2, 3, 3], abs=NOISE)


def test_arrays_of_one_key_in_two_records_are_two_arrays() -> None:
    records: Changed = {"a": {"w": np.zeros(1)}, "b": {"w": np.zeros(1)}}
    talk = conversation(app_of(lambda r: {"a": {"w": r["a"]["w"] + 1}, "b": {"w": r["b"]["w"] + 2}}), records, 2)
    assert mean(talk) == pytest.approx([1, 2], abs=NOISE)


def test_a_layer_that_the_app_leaves_out_has_a_zero_update(caplog: pytest.LogCaptureFixture) -> None:
    records: Changed = {"arrays": {"body": np.zeros(2), "head": np.full(2, 9.0)}}
    talk = conversation(app_of(lambda r: {"arrays": {"body": r["arrays"]["body"] + 1}}), records, 4)
    with caplog.at_level("INFO", "flwr"):
        assert mean(talk) == pytest.approx([1, 1, 0, 0], abs=NOISE)
    assert "the app's reply leaves out head" in caplog.text


def test_arrays_that_the_server_does_not_name_are_not_in_the_vector() -> None:
    records: Changed = {"arrays": {"body": np.zeros(2), "head": np.zeros(2)}}
    talk = conversation(
        app_of(lambda r: {"arrays": {k: v + 1 + (k == "head") for k, v in r["arrays"].items()}}), records, 2
    )
    assert mean(talk, trained=["head"]) == pytest.approx([2, 2], abs=NOISE)


def test_other_names_shapes_or_records_than_in_the_first_round_are_refused_before_the_round_is_charged() -> None:
    zeros = np.zeros(2)
    records: Changed = {"arrays": {"body": zeros, "head": zeros, "half": np.zeros(1), "rest": np.zeros(1)}}
    talk = conversation(app_of(lambda r: r), records, 2)
    mean(talk, trained=["body"])

    def sent(records: Changed, *trained: str) -> Message:
        content = {name: ArrayRecord({k: Array(v) for k, v in each.items()}) for name, each in records.items()}
        order = talk.start(trained=list(trained)).content["lightdp"]
        return talk.grid.handle(0, Message(RecordDict({**content, "lightdp": order}), talk.grid.nodes[0].id, "train"))

    both: Changed = {"control": {"body": zeros}, **records}
    for other, trained in (
        (records, ["head"]), (records, ["half", "rest"]), (both, ["control/body"]), (both, ["arrays/head"]),
        ({"arrays": {"body": np.zeros((2, 1))}}, ["body"]), ({"model": {"body": zeros}}, ["body"]),
    ):  # fmt: skip
        talk.grid.restart(0)  # the state remembers
        assert refused(sent(other, *trained), "the names and shapes of trained arrays must be those")
    assert sent(both, "arrays/body").has_content()  # a record beside the model


def test_a_round_that_was_refused_binds_no_names() -> None:
    records: Changed = {"arrays": {"body": np.zeros(2), "head": np.zeros(2)}}
    talk = conversation(app_of(lambda r: r), records, 2)
    assert refused(talk.grid.handle(0, talk.start(trained=["body"], closing=True)), "must say closing=False")
    assert mean(talk, trained=["head"]) == pytest.approx([0, 0], abs=NOISE)


def test_an_app_whose_reply_has_none_of_the_trained_arrays_sends_zeros(caplog: pytest.LogCaptureFixture) -> None:
    records: Changed = {"arrays": {"body": np.zeros(2), "head": np.zeros(2)}}
    talk = conversation(app_of(lambda r: {"arrays": {"body": r["arrays"]["body"] + 1}}), records, 2)
    assert mean(talk, trained=["head"]) == pytest.approx([0, 0], abs=NOISE)
    assert "trained arrays must have some of ['head'], got ['body']" in caplog.text


def test_a_reply_may_split_one_record_and_not_name_an_array_twice(caplog: pytest.LogCaptureFixture) -> None:
    records: Changed = {"arrays": {"a": np.zeros(1), "b": np.zeros(1)}}

    def split(received: Changed) -> Changed:
        return {"one": {"a": received["arrays"]["a"] + 1}, "two": {"b": received["arrays"]["b"] + 2}}

    assert mean(conversation(app_of(split), records, 2)) == pytest.approx([1, 2], abs=NOISE)

    def twice(received: Changed) -> Changed:
        return {"one": {"a": received["arrays"]["a"] + 1}, "two": {"a": received["arrays"]["a"] + 2}}

    assert mean(conversation(app_of(twice), records, 2)) == pytest.approx([0, 0], abs=NOISE)
    assert "names of their own, got two that are 'a'" in caplog.text


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"trained": ["head"]}, "arrays must hold length=4 floats, got 2"),
        ({"trained": ["absent"]}, "lightdp/argument: arrays must have all that are trained, got none of the names"),
        ({"trained": ["count"]}, "array count must be of floats of at most 64 bits, as it is trained, got int64"),
        ({"trained": ["head", "body"]}, "names of trained arrays in their order, each once"),
        ({"trained": ["body", "body"]}, "names of trained arrays in their order, each once"),
        ({"trained": [1, 2]}, "names of trained arrays in their order, each once"),
        ({"trained": "body"}, "names of trained arrays in their order, each once"),
        ({"trained": []}, "arrays must hold floats, got []"),
    ],
)
def test_names_of_a_server_that_cannot_be_are_refused(said: dict[str, Any], why: str) -> None:
    records: Changed = {"arrays": {"body": np.zeros(2), "head": np.zeros(2), "count": np.array(3)}}
    talk = conversation(app_of(lambda r: r), records, 4)
    assert refused(talk.grid.handle(0, talk.start(**said)), why)
    assert talk.grid.handle(0, talk.start()).has_content()


def test_a_message_without_arrays_or_with_two_of_one_name_is_refused() -> None:
    talk = conversation(app_of(lambda r: r), {}, 4)
    assert refused(talk.grid.handle(0, talk.start()), "arrays must be in an ArrayRecord of the message, got none")
    same: Changed = {"a/b": {"c": np.zeros(2)}, "a": {"b/c": np.zeros(2)}}
    talk = conversation(app_of(lambda r: r), same, 4)
    assert refused(talk.grid.handle(0, talk.start()), "got two that are 'a/b/c'")


@pytest.mark.parametrize(
    ("trained", "names"),
    [
        (None, ["body.0.w", "body.1.w", "bodyguard", "head"]),
        (["body"], ["body.0.w", "body.1.w"]),
        (["head", "body.1."], ["body.1.w", "head"]),
        (["body.0.w", "body"], ["body.0.w", "body.1.w"]),
    ],
)
def test_names_and_what_stands_before_a_dot_choose_arrays(trained: Any, names: list[str]) -> None:
    arrays = {name: Array(np.zeros(1)) for name in ("head", "bodyguard", "body.1.w", "body.0.w")}
    assert _arrays.chosen(arrays | {"n": Array(np.array(1))}, trained) == names


@pytest.mark.parametrize("wrong", [["neck"], ["n"], [""], "body"])
def test_a_name_of_nothing_that_can_be_trained_is_refused(wrong: Any) -> None:
    arrays = {"body.w": Array(np.zeros(1)), "n": Array(np.array(1))}
    with pytest.raises(ArgumentError, match="trained must"):
        _arrays.chosen(arrays, wrong)


def test_what_is_named_moves_and_all_else_stays_and_comes_back_in_its_records() -> None:
    content = RecordDict(
        {
            "b": ArrayRecord({"w": Array(np.ones(2)), "n": Array(np.array(7))}),
            "a": ArrayRecord({"w": Array(np.full(1, 4.0))}),
            "config": ConfigRecord(),
        }
    )
    flat = _arrays.flat(content)
    names = _arrays.chosen(flat, ["b"])
    moved = _arrays.moved(flat, np.array([0.5, -0.5]), names)
    records = _arrays.grouped(moved, content)
    assert list(records) == ["b", "a"]
    assert {k: v.numpy().tolist() for k, v in records["b"].items()} == {"w": [1.5, 0.5], "n": 7}
    assert records["a"]["w"].numpy().tolist() == [4.0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (lambda content: content["arrays"], [2, 2, 1]),  # body is clipped with the rest
        (lambda content: content, [2, 2, 1]),
        (lambda content: ArrayRecord({"head": content["arrays"]["head"]}), [0, 0, 1]),
    ],
)
def test_a_record_sum_may_be_of_some_of_the_arrays(given: Callable[[RecordDict], Any], expected: list[float]) -> None:
    app = ClientApp(mods=[lightdp.flower.record_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        received = given(message.content)
        total = lightdp.flower.RecordSum(received, context)
        parts = {"body": [[1.0, 1.0], [1.0, 1.0]], "head": [[1.0], [0.0]]}
        names = received if isinstance(received, ArrayRecord) else received["arrays"]
        total.add({name: parts[name] for name in names})
        return Message(RecordDict({"arrays": total.arrays()}), reply_to=message)

    talk = Talk(app, a_plan(unit="record", **QUIET)).sets(records_of(10.0))
    talk.server = Server(talk.plan, length=3, run=RUN)
    talk.arrays = ArrayRecord({"head": Array(np.zeros(1)), "body": Array(np.zeros(2))})
    for at in range(3):
        talk.server.enrol(enrolled(talk.key(at, length=3)))
    talk.server.roster()
    assert talk.mean() == pytest.approx(expected, abs=NOISE)


def test_a_record_sum_of_other_arrays_sends_zeros(caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp(mods=[lightdp.flower.record_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        total = lightdp.flower.RecordSum(ArrayRecord({"w": Array(np.zeros(3))}), context)
        total.add({"w": [[1.0, 1.0, 1.0]]})
        return Message(RecordDict({"arrays": total.arrays()}), reply_to=message)

    talk = Talk(app, a_plan(unit="record", **QUIET)).sets(records_of(10.0))
    talk.enrol()
    assert talk.mean() == pytest.approx([0, 0, 0, 0], abs=NOISE)
    assert "the RecordSum must be of the received arrays, got one of ['w']" in caplog.text


def adding(step: float, *, only: str = "") -> ClientApp:
    """An app that adds a number to the arrays of the model whose names begin so, and replies with these alone."""
    app = ClientApp(mods=[lightdp.flower.mod])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        received = message.content.array_records["arrays"]
        arrays = {key: Array(each.numpy() + step) for key, each in received.items() if key.startswith(only)}
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({})}), reply_to=message)

    return app


def model() -> ArrayRecord:
    names = ("head.weight", "body.1.weight", "body.0.weight")
    return ArrayRecord({name: Array(np.full(at + 1, float(at), np.float32)) for at, name in enumerate(names)})


class WithControl(FedAvg):
    """A strategy that sends a second ArrayRecord, of the same names as the model."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            control = {key: Array(np.full_like(each.numpy(), 1e6)) for key, each in arrays.items()}
            message.content["acontrol"] = ArrayRecord(control)
        return messages


@pytest.mark.parametrize("inner", [FedAvg, WithControl])
@pytest.mark.parametrize("only", ["", "body"])
def test_a_strategy_names_what_is_trained_and_all_else_stays_bit_by_bit(inner: type[FedAvg], only: str) -> None:
    strategy = LightDP(inner(fraction_evaluate=0.0), a_plan(**QUIET), wait=1.0, trained=["body"])
    result = strategy.start(LocalGrid(adding(0.5, only=only), 3), model(), num_rounds=2, timeout=1)
    before = model()
    assert np.array_equal(result.arrays["head.weight"].numpy(), before["head.weight"].numpy())
    for name in ("body.0.weight", "body.1.weight"):
        assert result.arrays[name].numpy() == pytest.approx(before[name].numpy() + 1.0, abs=2 * NOISE)
        assert not np.array_equal(result.arrays[name].numpy(), before[name].numpy() + np.float32(1.0))  # noise
    assert list(result.arrays) == list(before)


@pytest.mark.parametrize("inner", [FedAvg, WithControl])
def test_without_names_all_arrays_of_the_model_are_trained_and_none_of_other_records(inner: type[FedAvg]) -> None:
    strategy = LightDP(inner(fraction_evaluate=0.0), a_plan(**QUIET), wait=1.0)
    result = strategy.start(LocalGrid(adding(0.5, only="body"), 3), model(), num_rounds=2, timeout=1)
    for name, old in model().items():
        step = 1.0 if name.startswith("body") else 0.0
        assert result.arrays[name].numpy() == pytest.approx(old.numpy() + step, abs=2 * NOISE)
