"""Nodes that train from something other than most: left out, counted as late, and named (W4)."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from lightdp.errors import ProtocolError
from lightdp.flower import _run
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, trained


class Mixed(LocalGrid):
    """A grid whose last node runs another version of the app."""

    def handle(self, at: int, message: Message, **options: Any) -> Message:
        kept, self.run_config = self.run_config, {"version": 2} if at == len(self.nodes) - 1 else {"version": 1}
        try:
            return super().handle(at, message, **options)
        finally:
            self.run_config = kept


def three_rounds(grid: LocalGrid, grace: int) -> tuple[list[Any], list[int]]:
    """The metrics of each round, and how many uploads the metrics of the app were of."""
    counts: list[int] = []
    for node in grid.nodes:
        node.config["lightdp-allow-metrics"] = "loss"

    def counted(contents: list[RecordDict], _: str) -> MetricRecord:
        counts.append(len(contents))
        return MetricRecord()

    plan = planned(masks="drawn", grace=grace, epsilon=8.0, rounds=20)
    _, result = trained(grid, plan, FedAvg(train_metrics_aggr_fn=counted), num_rounds=3)
    return list(result.train_metrics_clientapp.values())[:3], counts


@pytest.mark.parametrize("grace", [0, 1])
def test_a_node_that_trains_from_something_else_is_left_out_and_named(
    caplog: pytest.LogCaptureFixture, grace: int
) -> None:
    grid = Mixed(an_app(), 5)
    rows, counts = three_rounds(grid, grace)
    assert [row["lightdp-used"] for row in rows] == [4, 4, 4]
    assert [row["lightdp-late"] for row in rows] == [1, 2, 3]
    assert counts[:3] == [4, 4, 4]
    said = [record.message for record in caplog.records if "upload left out" in record.message]
    assert said == [f"lightdp: upload left out: node {grid.nodes[4].id}: {_run._APART}"]  # once, as it is the same node
    assert not any("timeout=" in record.message for record in caplog.records)  # no later deadline would help


def test_of_uploads_one_round_late_only_those_of_the_model_are_used_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nodes 3 and 4 are late in round 1; node 4 runs another version, and no later deadline would help it."""
    grid = Mixed(an_app(), 5)
    grid.faults = {(1, 3): "late", (1, 4): "late"}
    rows, counts = three_rounds(grid, grace=1)
    assert [(row["lightdp-used"], row["lightdp-joined"]) for row in rows] == [(3, 0), (4, 1), (4, 0)]
    assert counts[:3] == [3, 5, 4]
    assert [row["lightdp-late"] for row in rows] == [0, 2, 3]
    messages = [record.message for record in caplog.records]
    assert any("upload left out" in message for message in messages)
    assert not any("timeout=" in message for message in messages)


def test_a_node_that_is_alone_in_time_does_not_choose_for_those_that_come_late() -> None:
    """Node 4 runs another version; in round 1 all others are late, and then used."""
    grid = Mixed(an_app(), 5)
    grid.faults = {(1, at): "late" for at in range(4)}
    rows, counts = three_rounds(grid, grace=1)
    assert [(row["lightdp-used"], row["lightdp-joined"]) for row in rows] == [(0, 0), (4, 4), (4, 0)]
    assert [row["lightdp-late"] for row in rows] == [0, 2, 3]
    assert counts[:2] == [8, 4]


def test_an_upload_that_is_left_out_one_round_later_counts_for_the_round_that_it_answers() -> None:
    """In round 1 two of five are late, so that no sum counts before round 2; in round 2 node 4 answers nothing."""
    grid = Mixed(an_app(), 5)
    grid.faults = {(1, 2): "late", (1, 3): "late", (2, 4): "error"}
    rows, _ = three_rounds(grid, grace=1)
    assert [(row["lightdp-used"], row["lightdp-joined"]) for row in rows] == [(0, 0), (4, 4), (4, 0)]
    assert [row["lightdp-late"] for row in rows] == [0, 1, 2]


def test_where_all_nodes_train_from_different_things_the_training_ends_and_says_so() -> None:
    class Different(LocalGrid):
        def handle(self, at: int, message: Message, **options: Any) -> Message:
            self.run_config = {"version": at}
            return super().handle(at, message, **options)

    with pytest.raises(ProtocolError, match=r"nodes: trained from something other than most nodes did"):
        trained(Different(an_app(), 3), planned(masks="drawn", clients=3, stragglers=1, epsilon=8.0, rounds=20))
