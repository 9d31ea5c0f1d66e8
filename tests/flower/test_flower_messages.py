"""Strategy and mod together: how many messages there are, and what leaves a node in them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from lightdp import masks
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, trained

if TYPE_CHECKING:
    from support.flower_tape import Tape


def test_a_closing_round_is_held_only_if_something_is_left_to_repair() -> None:
    for faults, closing in (({}, 0), ({(5, 0): "drop"}, 0), ({(6, 0): "drop"}, 1)):
        grid = LocalGrid(an_app(), 5)
        grid.faults = dict(faults)  # type: ignore[arg-type]
        trained(grid, planned())
        assert grid.pushed.count("train") == 6 + closing
        assert grid.pushed.count("key") == 1


def test_a_client_that_gave_up_its_repair_gets_no_closing_message(tape: Tape) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(1, 1): "drop", (2, 0): "late", (3, 0): "late", (4, 0): "late", (5, 0): "drop"}
    trained(grid, planned(), num_rounds=5)
    assert 0 in tape.rounds[0].used  # it owed a repair, which rode in three uploads that came too late
    assert list(tape.rounds[5].used) == [1, 2, 3, 4]
    assert grid.pushed.count("train") == 6


def test_one_message_goes_down_and_one_up_in_each_round_and_the_roster_only_once() -> None:
    grid = LocalGrid(an_app(), 5)
    trained(grid, planned(), num_rounds=3)
    assert grid.pushed == ["key", "train", "evaluate", "train", "evaluate", "train", "evaluate"]
    per_node = Counter(at for at, _ in grid.left)
    assert set(per_node.values()) == {7}


def test_only_packed_bytes_and_allowed_metrics_leave_and_other_messages_are_untouched() -> None:
    plan = planned(rounds=1)
    grid = LocalGrid(an_app(), 5)
    for node in grid.nodes:
        node.config["lightdp-allow-metrics"] = "loss, accuracy"
    _, result = trained(grid, plan)
    keys, uploads, evaluations = grid.left[:5], grid.left[5:10], grid.left[10:]
    assert all(list(each.content) == ["lightdp"] for _, each in keys)
    size = len(masks.mask(np.zeros(40, np.float32), masks.Grid.of(plan, 40), []))
    for _, each in uploads:
        assert {key: set(each.content[key]) for key in each.content} == {"arrays": {"lightdp"}, "metrics": {"loss"}}
        packed = each.content.array_records["arrays"]["lightdp"].numpy()
        assert packed.dtype == np.uint8
        assert packed.size == size + 80 + 96  # envelope, and length, bits, tag and signature
    assert result.train_metrics_clientapp[1]["loss"] == 0.25
    assert "num-examples" not in result.train_metrics_clientapp[1]
    assert [each.content.metric_records["metrics"]["at"] for _, each in sorted(evaluations, key=lambda x: x[0])] == [
        0.0, 1.0, 2.0, 3.0, 4.0
    ]  # fmt: skip
    assert result.evaluate_metrics_clientapp[1]["at"] == pytest.approx(2.0)
    content = RecordDict({"anything": MetricRecord({"at": 3})})
    echoed = grid.handle(0, Message(content, grid.nodes[0].id, "query"))
    assert echoed.content == content


def test_upload_is_smaller_than_the_plain_arrays() -> None:
    size = 5000
    grid = LocalGrid(an_app(), 5)
    initial = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
    trained(grid, planned(rounds=1, epsilon=5.0), initial_arrays=initial)
    upload = grid.left[5][1].content.array_records["arrays"]
    assert upload.count_bytes() < 0.75 * initial.count_bytes()
