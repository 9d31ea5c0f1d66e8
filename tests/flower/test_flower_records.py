"""Unit "record": parts are clipped by the node, and nothing but their sum is believed."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import lightdp
from lightdp.errors import ArgumentError
from lightdp.flower import RecordSum
from lightdp.protocol import ClientRound
from support.flower_grid import LIMITS
from support.flower_talk import Talk, a_plan, a_record_app, an_app, records_of, refused

if TYPE_CHECKING:
    from collections.abc import Callable


def a_sum(clip: float, *shapes: tuple[int, ...], kind: Any = np.float64) -> RecordSum:
    model = ArrayRecord({f"w{i}": Array(np.zeros(shape, kind)) for i, shape in enumerate(shapes)})
    return RecordSum(model, Context(1, 2, LIMITS | records_of(clip), RecordDict(), {}))


def square(vector: np.ndarray) -> Fraction:
    return sum((Fraction(float(x)) ** 2 for x in vector), Fraction(0))


# ---- the sum ----


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("clip", [1e-30, 0.01, 1.0, 0.75, 3e5])
def test_a_record_changes_the_sum_by_no_more_than_the_clip_in_exact_arithmetic(clip: float, kind: Any) -> None:
    draw = np.random.default_rng(0)
    others = {"w0": draw.normal(size=(40, 3, 5)), "w1": draw.normal(size=(40,))}
    for scale in (1e-3, 1.0, 1.0000001, 100.0):
        part = draw.normal(size=16)
        part = (part / np.linalg.norm(part) * min(clip * scale, 3e4)).astype(kind)
        sums = []
        for records in (0, 1):
            total = a_sum(clip, (3, 5), ())
            total.add(others)
            total.add({"w0": part[:15].reshape(1, 3, 5)[:records], "w1": part[15:][:records]})
            sums.append(total._steps)
        change = (sums[1] - sums[0]) * total._step  # exact: both are integers in a power of two
        assert square(change) <= Fraction(clip) ** 2
        wanted = part.astype(float) * min(1.0, clip / max(float(np.linalg.norm(part.astype(float))), 1e-300))
        assert change == pytest.approx(wanted, abs=clip * 1e-9)


def test_parts_below_the_clip_are_added_as_they_are_and_all_in_the_order_of_the_model() -> None:
    total = a_sum(10.0, (2,), (2, 2))
    total.add({"w1": np.ones((3, 2, 2)), "w0": np.array([[1.0, 2.0], [0.5, 0.25], [0.0, 0.0]])})
    total.add({"w1": np.zeros((1, 2, 2)), "w0": [[1, 1]]})
    assert total.records == 4
    assert total.vector() == pytest.approx([2.5, 3.25, 3, 3, 3, 3], abs=1e-8)
    arrays = total.arrays()
    assert arrays["w1"].numpy() == pytest.approx(np.full((2, 2), 3.0), abs=1e-8)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_a_part_that_is_not_finite_is_left_out_and_spoils_nothing(bad: float) -> None:
    total = a_sum(1.0, (3,))
    total.add({"w0": [[0.5, 0.0, 0.0], [bad, 0.1, 0.1], [0.0, 0.25, 0.0]]})
    assert total.vector() == pytest.approx([0.5, 0.25, 0.0], abs=1e-8)


def test_many_records_are_clipped_piece_by_piece() -> None:
    draw = np.random.default_rng(1)
    parts = draw.normal(size=(5000, 200))
    total = a_sum(2.0, (200,))
    total.add({"w0": parts})
    norms = np.linalg.norm(parts, axis=1, keepdims=True)
    assert total.vector() == pytest.approx((parts * np.minimum(1, 2 / norms)).sum(0), abs=1e-5)


def test_a_record_for_which_the_function_fails_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    def part_of(record: float) -> dict[str, Any]:
        if record == 2.0:
            raise ValueError("an odd record")
        return {"w0": np.zeros(7) if record == 3.0 else np.full(4, record), "w1": np.inf if record == 4.0 else 0.125}

    total = a_sum(0.5, (4,), ())
    total.map(part_of, [0.25, 2.0, 3.0, 4.0, 0.125])
    assert total.vector() == pytest.approx([0.375 * x for x in (1, 1, 1, 1)] + [0.25], abs=0.01)
    assert "2 records were left out of the sum" in caplog.text
    total.arrays()
    with pytest.raises(ArgumentError, match="make a new one each round"):
        total.map(part_of, [])


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"w0": np.zeros((2, 3))}, "parts must be given for ['w0', 'w1'], got ['w0']"),
        ({"w0": np.zeros((2, 3)), "w1": np.zeros((3, 2))}, "the same number of records for all arrays, got [2, 3]"),
        ({"w0": np.zeros(3), "w1": np.zeros((1, 2))}, "parts of w0 must be numbers of shape (records, ...) with (3,)"),
        ({"w0": 0.0, "w1": np.zeros((1, 2))}, "parts of w0 must be numbers"),
        ({"w0": np.zeros((1, 3), complex), "w1": np.zeros((1, 2))}, "parts of w0 must be numbers"),
    ],
)
def test_parts_that_do_not_fit_the_model_are_refused(parts: Any, why: str) -> None:
    total = a_sum(1.0, (3,), (2,))
    with pytest.raises(ArgumentError) as caught:
        total.add(parts)
    assert why in str(caught.value)


def test_a_sum_serves_one_reply_and_needs_the_nodes_own_clip() -> None:
    total = a_sum(1.0, (3,))
    total.arrays()
    with pytest.raises(ArgumentError, match="make a new one each round"):
        total.add({"w0": np.zeros((1, 3))})
    model = ArrayRecord({"w": Array(np.zeros(3))})
    with pytest.raises(ArgumentError, match="lightdp-record-clip must say"):
        RecordSum(model, Context(1, 2, LIMITS, RecordDict(), {}))
    with pytest.raises(ArgumentError, match=r"run_config must not have \['lightdp-record-clip'\]"):
        RecordSum(model, Context(1, 2, LIMITS, RecordDict(), {"lightdp-record-clip": 1e9}))


# ---- the mod ----


def test_the_sum_of_clipped_parts_is_what_leaves() -> None:
    plan = a_plan(unit="record", clip=2.0, epsilon=1e6)
    talk = Talk(a_record_app(lambda _: np.eye(4)[:3] * [[50.0], [1.5], [np.nan]]), plan).sets(records_of(2.0))
    talk.enrol()
    assert talk.mean() == pytest.approx([2.0, 1.5, 0, 0], abs=0.1)


def _given(parts: np.ndarray, _: np.ndarray) -> np.ndarray:
    return parts


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_what_leaves_is_not_rounded_to_the_floats_of_the_model(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, upload = list[np.ndarray](), ClientRound.upload

    def watched(self: ClientRound, update: np.ndarray, weight: float = 1.0) -> bytes:
        seen.append(update.copy())
        return upload(self, update, weight)

    monkeypatch.setattr(ClientRound, "upload", watched)
    for records in (np.zeros((0, 4)), np.full((1, 4), 0.3)):  # the model's steps are coarser than the part
        talk = Talk(a_record_app(partial(_given, records)), a_plan(unit="record", clip=0.3))
        talk.arrays = ArrayRecord({"w": Array(np.full(4, 3e4 if kind == np.float16 else 1e9, kind))})
        talk.sets(records_of(0.3)).enrol()
        assert talk.grid.handle(0, talk.start()).has_content()
    assert 0.2999 < np.linalg.norm(seen[1] - seen[0]) <= 0.3


def test_an_app_that_has_not_registered_its_clipping_cannot_enrol_under_a_plan_for_records() -> None:
    talk = Talk(an_app(lambda w: w + 3.0), a_plan(unit="record", clip=0.01)).sets(records_of(0.01))
    for at in range(3):
        assert refused(talk.key(at), "the app must clip each record's part: it needs lightdp.flower.record_mod")


def unclipped(message: Message, _: Context) -> Message:
    arrays = {k: Array(v.numpy() + 3.0) for k, v in message.content.array_records["arrays"].items()}
    return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)


def of_other_arrays(message: Message, context: Context) -> Message:
    total = RecordSum(ArrayRecord({"w": Array(np.zeros(9))}), context)
    total.add({"w": np.ones((1, 9))})
    return Message(RecordDict({"arrays": total.arrays()}), reply_to=message)


def with_another_clip(message: Message, context: Context) -> Message:
    own = Context(1, 2, context.node_config | {"lightdp-record-clip": 9.0}, RecordDict(), {})
    total = RecordSum(message.content.array_records["arrays"], own)
    total.add({"w": np.full((1, 4), 3.0)})
    return Message(RecordDict({"arrays": total.arrays()}), reply_to=message)


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (unclipped, "must reply with the arrays() of a RecordSum, got other arrays"),
        (of_other_arrays, "must be of the received arrays, got one of ['w']"),
        (with_another_clip, "must clip to the plan's clip=0.01, got clip=9"),
    ],
)
def test_a_reply_that_is_no_sum_of_clipped_parts_is_told_in_the_log_and_zeros_leave(
    train: Callable[[Message, Context], Message], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = ClientApp(mods=[lightdp.flower.record_mod])
    app.train()(train)
    talk = Talk(app, a_plan(unit="record", clip=0.01, coordinate_range=50.0, epsilon=1e5)).sets(records_of(0.01))
    talk.enrol()
    assert talk.mean() == pytest.approx(np.zeros(4), abs=0.5)
    assert why in caplog.text


@pytest.mark.parametrize(
    ("way", "change"),
    [
        ("add", 0.0),  # exp(900) is infinite, and left out
        ("map", 0.0),  # as is a record that raises
        ("at once", -200.0),  # not covered: one record takes the whole sum away
    ],
)
def test_what_one_record_on_which_the_gradient_overflows_can_change(way: str, change: float) -> None:
    ordinary, odd = np.zeros((200, 4)), np.array([[900.0, 0, 0, 0]])

    def part_of(record: np.ndarray) -> dict[str, Any]:
        if record[0] > 700:
            raise OverflowError("as math.exp does")
        return {"w": np.full(4, 0.5)}

    def train(records: np.ndarray, message: Message, context: Context) -> Message:
        received = message.content.array_records["arrays"]
        total = RecordSum(received, context)
        with np.errstate(all="ignore"):
            parts = np.exp(records @ received["w"].numpy())[:, None] * np.ones(4)
            if way == "map":
                total.map(part_of, records)
            elif way == "add" or np.isfinite(parts).all():
                total.add({"w": parts})
            else:
                raise FloatingPointError("loss diverged")
        return Message(RecordDict({"arrays": total.arrays()}), reply_to=message)

    sums = []
    for records in (ordinary, np.vstack([ordinary, odd])):
        app = ClientApp(mods=[lightdp.flower.record_mod])
        app.train()(partial(train, records))
        talk = Talk(app, a_plan(unit="record", clip=2.0, epsilon=1e6)).sets(records_of(2.0))
        talk.arrays = ArrayRecord({"w": Array(np.array([1.0, 0, 0, 0]))})
        talk.enrol()
        sums.append(talk.mean()[0])
    assert sums[0] == pytest.approx(100 if way == "map" else 200, abs=0.5)
    assert sums[1] - sums[0] == pytest.approx(change, abs=0.5)


def test_an_app_for_records_serves_plans_for_clients_too() -> None:
    talk = Talk(a_record_app(lambda _: np.full((2, 4), 0.2)), a_plan(epsilon=1e6)).sets({"lightdp-record-clip": 5.0})
    talk.enrol()
    assert talk.mean() == pytest.approx(np.full(4, 0.4), abs=0.1)


def test_a_plan_whose_clip_or_batches_are_smaller_than_the_nodes_is_refused() -> None:
    for changed, why in (
        ({"clip": 0.0099}, "clip=0.0099 is below lightdp-record-clip=0.01"),
        ({"clip": 0.01, "sampling_rate": 0.1}, "sampling_rate=0.1 is below lightdp-record-rate=0.2"),
    ):
        talk = Talk(a_record_app(lambda w: w[None]), a_plan(unit="record", **changed)).sets(records_of(1e-6))
        talk.sets({"lightdp-record-rate": 1e-6})
        talk.grid.nodes[0].config |= {"lightdp-record-clip": 0.01, "lightdp-record-rate": 0.2}
        assert refused(talk.key(0), why)
        assert talk.key(1).has_content()
