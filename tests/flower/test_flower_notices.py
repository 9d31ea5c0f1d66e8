"""What users see: failures that are said aloud, metrics and schedules as Flower has them, and a log to follow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import lightdp
from lightdp.errors import ProtocolError
from lightdp.flower import LightDP, _notices
from support.flower_adders import a_plan, plus, zeros
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, the_change, trained, weights

if TYPE_CHECKING:
    from collections.abc import Callable

# ---- failures ----


def forgetful(monkeypatch: pytest.MonkeyPatch, since: int) -> LocalGrid:
    """Nodes that lose their state before round `since`, and refuse from then on."""
    grid = LocalGrid(an_app(), 5)
    grid.simulate(monkeypatch)

    def before(current: int) -> None:
        for at in range(5):
            if current == since:
                grid.restart(at)

    grid.before = before
    return grid


def test_a_training_that_every_node_refuses_raises_with_the_reason_after_one_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grid = forgetful(monkeypatch, 1)
    with pytest.raises(ProtocolError, match=r"no upload was used in 1 rounds, .* 5 nodes: .*has no state of the run"):
        trained(grid, planned())
    assert caplog.text.count("no upload: 5 nodes: lightdp/protocol: this node has no state of the run") == 1
    assert "no upload: node" not in caplog.text


def test_a_training_without_any_upload_raises() -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(t, i): "drop" for t in range(1, 9) for i in range(4)}
    grid.faults |= {(t, 4): "garbage" for t in range(1, 9)}
    with pytest.raises(
        ProtocolError,
        match=r"no upload was used in [3-6] rounds.*node 1028: its reply is no upl.*; 4 nodes: no answer",
    ):
        trained(grid, planned())


def test_what_was_trained_is_kept_when_every_node_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = LightDP(FedAvg(fraction_evaluate=0.0), planned(), wait=0.01)
    with pytest.raises(ProtocolError, match="every node refuses: lightdp/protocol"):
        strategy.start(forgetful(monkeypatch, 3), weights(), num_rounds=6, timeout=1)
    assert strategy.stopped is not None
    assert strategy.stopped.startswith("every node refuses: lightdp/protocol")
    assert list(strategy.result.train_metrics_clientapp) == [1, 2, 3]
    assert np.abs(the_change(strategy.result)).max() > 0


def test_what_was_trained_is_kept_when_a_function_of_the_users_fails() -> None:
    def evaluate(current: int, _: ArrayRecord) -> MetricRecord | None:
        if current == 2:
            raise KeyboardInterrupt
        return None

    strategy = LightDP(FedAvg(fraction_evaluate=0.0), a_plan(), wait=0.01)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(LocalGrid(plus(1.0), 3), zeros(), timeout=1, evaluate_fn=evaluate)
    assert strategy.result.arrays["w"].numpy() == pytest.approx(np.full(5, 2.0), abs=0.1)
    assert list(strategy.result.train_metrics_clientapp) == [1, 2]


def test_equal_reasons_of_many_nodes_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(1, i): "error" for i in (0, 1)}
    trained(grid, planned(), num_rounds=1)
    assert caplog.text.count("not available") == 1
    assert "lightdp: no upload: 2 nodes: not available" in caplog.text


# ---- waiting, and uploads that come too late ----


def test_waiting_for_nodes_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr"), pytest.raises(ProtocolError, match="with 2 nodes connected"):
        LightDP(FedAvg(), planned(), wait=1.2).start(LocalGrid(an_app(), 2), weights(), timeout=1)
    assert caplog.text.count("waiting for nodes: 2 of 5 connected") == 1


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


def test_waiting_is_said_when_it_changes_and_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, waiting = Clock(), _notices.Waiting("connected", 50)
    monkeypatch.setattr(_notices, "time", clock)
    with caplog.at_level("INFO", "flwr"):
        for clock.now, count in ((0, 2), (0.5, 2), (1, 3), (5.5, 3), (6, 4), (66, 3), (67, 50), (99, 50)):
            waiting.see(count)
    assert [record.args for record in caplog.records] == [(count, 50, "connected") for count in (2, 3, 3)]


@pytest.mark.parametrize(
    ("sent", "over", "timeout"),
    [(14.0, 4.0, 15), (-1e6, 0.0, 11), (1e6, 20.0, 32), (math.nan, 0.0, 11), (math.inf, 0.0, 11)],  # the last are wrong
)
def test_how_late_uploads_were_is_said_with_the_timeout_that_would_have_taken_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, sent: float, over: float, timeout: int
) -> None:
    clock, deadlines = Clock(), _notices.Deadlines()
    monkeypatch.setattr(_notices, "time", clock)
    clock.now = 100.0
    deadlines.begin(7)
    clock.now = 110.0
    deadlines.end(7)
    clock.now = 130.0
    deadlines.came(7, 100 + sent)
    deadlines.came(8, 100 + sent)  # of a round that has not ended
    deadlines.advise()
    deadlines.advise()
    assert [record.args for record in caplog.records] == [(1, pytest.approx(over), timeout)]


def test_late_uploads_of_a_training_are_said(caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(1, 0): "late", (1, 1): "late"}
    trained(grid, planned(), num_rounds=2)
    assert "uploads that came after the end of their round: 2, by up to 0.0 s" in caplog.text


# ---- as in Flower ----


def app_of(train: Callable[[Message, Context], Message]) -> ClientApp:
    app = ClientApp(mods=[lightdp.flower.mod])
    app.train()(train)
    return app


def allowing(grid: LocalGrid, names: str) -> LocalGrid:
    for node in grid.nodes:
        node.config["lightdp-allow-metrics"] = names
    return grid


def test_train_metrics_are_aggregated_by_the_strategys_own_function_from_each_upload() -> None:
    seen: list[list[dict[str, Any]]] = []

    def aggregate(records: list[RecordDict], weight: str) -> MetricRecord:
        assert weight == "num-examples"
        seen.append([dict(each.metric_records["metrics"]) for each in records])
        return MetricRecord({"most": max(float(each["num-examples"]) for each in seen[-1])})

    grid = allowing(LocalGrid(an_app(), 5), "loss,num-examples")
    grid.faults = {(1, 4): "drop"}
    _, result = trained(grid, planned(), FedAvg(train_metrics_aggr_fn=aggregate), num_rounds=2)
    assert sorted(each["num-examples"] for each in seen[0]) == [0, 10, 20, 30]
    assert {each["loss"] for each in seen[0]} == {0.25}
    assert [each["most"] for each in result.train_metrics_clientapp.values()] == [30, 40]
    assert the_change(result).std() > 0


def test_flowers_own_function_weights_train_metrics_as_it_does_without_lightdp() -> None:
    values = {1000: (1, 5.0), 1007: (2, 1.0), 1014: (5, 0.0)}

    def train(message: Message, context: Context) -> Message:
        count, loss = values[context.node_id]
        metrics = MetricRecord({"num-examples": count, "loss": loss})
        return Message(
            RecordDict({"arrays": message.content.array_records["arrays"], "metrics": metrics}), reply_to=message
        )

    grid = allowing(LocalGrid(app_of(train), 3), "loss,num-examples")
    result = LightDP(FedAvg(fraction_evaluate=0.0), a_plan(), wait=0.01).start(grid, zeros(), num_rounds=1, timeout=1)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx((5 + 2 + 0) / 8)


def test_a_function_for_metrics_that_do_not_leave_nodes_is_told_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    def aggregate(records: list[RecordDict], _: str) -> MetricRecord:
        return MetricRecord({"loss": float(str(records[0].metric_records["metrics"]["loss"]))})

    _, result = trained(LocalGrid(an_app(), 5), planned(), FedAvg(train_metrics_aggr_fn=aggregate), num_rounds=3)
    assert caplog.text.count("train_metrics_aggr_fn failed, and there are no train metrics: KeyError") == 1
    assert "it saw ['num-examples']: other metrics leave a node only if lightdp-allow-metrics names them" in caplog.text
    assert result.train_metrics_clientapp[3]["lightdp-used"] == 5


def test_a_schedule_in_configure_train_reaches_the_clients() -> None:
    class Scheduled(FedAvg):
        def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
            config["lr"] = 1 / server_round
            return super().configure_train(server_round, arrays, config, grid)

    seen: list[tuple[int, float]] = []

    def train(message: Message, _: Context) -> Message:
        config = message.content.config_records["config"]
        seen.append((int(config["server-round"]), float(config["lr"])))  # type: ignore[arg-type]
        content = RecordDict({"arrays": message.content.array_records["arrays"]})
        return Message(content, reply_to=message)

    config = ConfigRecord({"lr": 9.0})
    LightDP(Scheduled(), a_plan(), wait=0.01).start(
        LocalGrid(app_of(train), 3), zeros(), timeout=1, train_config=config
    )
    assert sorted(seen) == [(t, 1 / t) for t in (1, 2, 3, 4) for _ in range(3)]


def test_attributes_and_methods_of_the_inner_strategy_are_those_of_lightdp() -> None:
    class Saving(FedAvg):
        def save(self, where: str) -> str:
            return f"{where}/{self.fraction_evaluate}"

    strategy = LightDP(Saving(fraction_evaluate=0.25), a_plan())
    assert strategy.save("here") == "here/0.25"
    assert strategy.weighted_by_key == "num-examples"
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        strategy.nothing_of_the_kind  # noqa: B018
    with pytest.raises(AttributeError, match="_private"):
        strategy._private  # noqa: B018


def test_the_log_has_rounds_metrics_evaluations_and_the_final_results(caplog: pytest.LogCaptureFixture) -> None:
    strategy = LightDP(FedAvg(), planned(), wait=0.01)
    with caplog.at_level("INFO", "flwr"):
        strategy.start(
            LocalGrid(an_app(), 5), weights(), num_rounds=2, timeout=1,
            evaluate_fn=lambda current, _: MetricRecord({"accuracy": current / 4}),
        )  # fmt: skip
    for words in (
        "Starting LightDP with FedAvg", "Number of rounds: 2", "Parameters: 40", "[ROUND 2/2]",
        "Initial global evaluation: {'accuracy': 0.0}", "Aggregated train metrics: {'lightdp-epsilon': ",
        "Aggregated evaluation metrics: {'at': ", "Global evaluation: {'accuracy': 0.5}", "Final results:",
        "ServerApp-side Evaluate Metrics:",
    ):  # fmt: skip
        assert words in caplog.text


def test_the_start_says_how_loud_the_noise_is_and_what_would_help(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr"), pytest.raises(ProtocolError, match="enrolled within"):
        LightDP(FedAvg(), planned(epsilon=8), wait=0.01).start(LocalGrid(an_app(), 1), weights(), timeout=1)
    (line,) = (record for record in caplog.records if "noise of a round in the mean" in record.getMessage())
    assert line.levelname == "WARNING"
    assert "; at most 1 times with clients=" in line.getMessage()
