"""The strategy alone: what goes together, and its rounds, with `start` and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

import lightdp
from lightdp.errors import ArgumentError, LightDPError, ProtocolError
from lightdp.flower import LightDP
from lightdp.planning import Noise, Plan
from support.flower_adders import a_plan, plus, zeros
from support.flower_grid import LocalGrid

# ---- what goes together ----


class Doubled(FedAvg):
    """Linear, which lightdp cannot know."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, replies)


class Scheduled(FedAvg):
    """Only its messages differ."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any) -> Any:
        config["lr"] = 1 / server_round
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize("inner", [FedAvg(), FedProx(proximal_mu=1.0), FedAvgM(server_momentum=0.9), Scheduled()])
def test_linear_strategies_go_with_repair_and_exact(inner: Strategy) -> None:
    for calibration in ("repair", "exact"):
        assert LightDP(inner, a_plan(calibration=calibration)).strategy is inner


@pytest.mark.parametrize("inner", [FedAdam(), FedAdagrad(), FedYogi(), Doubled()])
def test_other_strategies_are_refused_with_repair_and_go_with_exact(inner: Strategy) -> None:
    with pytest.raises(ArgumentError, match=r"must be linear for calibration='repair', got .*would not undo"):
        LightDP(inner, a_plan(calibration="repair"))
    LightDP(inner, a_plan())
    LightDP(inner, a_plan(calibration="repair"), linear=True)


@pytest.mark.parametrize(
    "inner",
    [
        strategies.Krum(num_malicious_nodes=1),
        strategies.FedMedian(),
        strategies.FedTrimmedAvg(),
        strategies.QFedAvg(client_learning_rate=0.1),
        strategies.FedXgbBagging(),
        strategies.DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 1.0, 3),
    ],
)
def test_strategies_that_need_each_update_are_refused(inner: Strategy) -> None:
    with pytest.raises(ArgumentError, match="must not need each client's own update"):
        LightDP(inner, a_plan(), linear=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"least": 1}, "least must be in 2..3, got least=1"),
        ({"least": 4}, "least must be in 2..3, got least=4"),
        ({"checkpoint": "/nowhere/at/all"}, "checkpoint must be a file in a folder that exists, got checkpoint="),
        ({"checkpoint": "/tmp"}, "checkpoint must be a file in a folder that exists, got checkpoint='/tmp'"),  # noqa: S108
        ({"log": "/nowhere/run.jsonl"}, "log must be a new file in a folder that exists, got log="),
    ],
)
def test_arguments_are_refused_where_they_are_given(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        LightDP(FedAvg(), a_plan(), **wrong)


@pytest.mark.parametrize(
    ("inner", "plan", "why"),
    [
        (
            FedAvg(fraction_train=0.5),
            a_plan(),
            "fraction_train=0.5 needs a plan for cohorts, such as .*clients=3, population=6",
        ),
        (
            FedAvg(min_train_nodes=4),
            a_plan(),
            "min_train_nodes must be at most the plan's clients, 3, got min_train_nodes=4",
        ),
        (LightDP(FedAvg(), a_plan()), a_plan(), "must not be a LightDP itself"),
        (FedAvg(), a_plan(calibration="repair", late="unseen"), "Flower keeps replies that come too late"),
    ],
)
def test_settings_that_cannot_work_are_refused(inner: Strategy, plan: Plan, why: str) -> None:
    with pytest.raises(LightDPError, match=why):
        LightDP(inner, plan)


def test_a_plan_that_does_not_say_what_it_protects_is_refused() -> None:
    asked: dict[str, Any] = {"clients": 3, "colluders": 1, "stragglers": 1, "rounds": 4, "epsilon": 8, "delta": 1e-5}
    with pytest.raises(ArgumentError, match=r"plan must be made with unit='client' or unit='record', got one without"):
        LightDP(FedAvg(), lightdp.plan(**asked))
    for unit in ("client", "record"):
        assert LightDP(FedAvg(), lightdp.plan(**asked, unit=unit)).plan.unit == unit


def test_a_plan_made_by_hand_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"plan must be as lightdp.plan makes it"):
        LightDP(FedAvg(), Plan(a_plan().request, Noise(1.0, 1e-9, 1e-9)))


def test_a_strategy_that_leaves_out_a_client_is_refused() -> None:
    class Short(FedAvg):
        def configure_train(self, *arguments: Any, **more: Any) -> Any:
            return list(super().configure_train(*arguments, **more))[1:]

    with pytest.raises(ArgumentError, match="strategy must train every client of the roster, once"):
        LightDP(Short(), a_plan(), wait=0.01).start(grid=LocalGrid(plus(1.0), 3), initial_arrays=zeros(), timeout=1)


def test_a_start_of_the_inner_strategys_own_is_refused_with_the_ways_out() -> None:
    class Own(FedAvg):
        def start(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(ArgumentError, match=r"must not have a start of its own, got Own.*evaluate_fn.*close of"):
        LightDP(Own(), a_plan(calibration="repair"))


def test_attributes_of_the_inner_strategy_are_read_and_set_through_the_outer_one() -> None:
    inner = FedAvgM(server_momentum=0.5)
    strategy = LightDP(inner, a_plan(population=6))
    strategy.fraction_train, strategy.server_momentum = 0.5, 0.25
    assert (inner.fraction_train, inner.server_momentum) == (0.5, 0.25)
    assert (strategy.fraction_train, strategy.server_momentum) == (0.5, 0.25)
    strategy.note = "of my own"  # the inner strategy has none
    assert not hasattr(inner, "note")
    strategy.result = before = strategy.result
    assert "result" not in vars(inner)
    assert strategy.result is before


def test_a_weight_that_is_named_afterwards_is_that_of_the_mean() -> None:
    strategy = LightDP(FedAvg(fraction_evaluate=0.0), a_plan(), wait=0.01)
    strategy.weighted_by_key = "records"
    result = strategy.start(grid=LocalGrid(plus(1.0), 3), initial_arrays=zeros(), num_rounds=1, timeout=1)
    assert result.train_metrics_clientapp[1]["lightdp-used"] == 3


def test_a_sampling_that_does_not_fit_the_plan_is_refused_where_it_is_set_and_leaves_all_as_it_was() -> None:
    strategy = LightDP(FedAvg(), a_plan(population=6))
    with pytest.raises(ArgumentError, match=r"fraction_train must be the plan's clients/population = 0.5, got .*0.1"):
        strategy.fraction_train = 0.1
    with pytest.raises(ArgumentError, match="min_train_nodes must be at most the plan's clients, 3, got"):
        strategy.min_train_nodes = 4
    assert (strategy.strategy.fraction_train, strategy.strategy.min_train_nodes) == (1.0, 2)  # type: ignore[attr-defined]
    strategy.min_train_nodes = 3
    strategy.fraction_train = 0.1
    assert strategy.strategy.fraction_train == 0.1  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["strategy", "plan", "wait", "patience"])
def test_what_the_rounds_have_a_copy_of_cannot_be_changed_afterwards(name: str) -> None:
    strategy = LightDP(FedAvg(), a_plan())
    with pytest.raises(ArgumentError, match=rf"{name} must be given to LightDP\(...\)"):
        setattr(strategy, name, getattr(strategy, name))


# ---- rounds ----


def test_aggregation_before_a_round_is_refused() -> None:
    with pytest.raises(ProtocolError, match="aggregate_train comes after configure_train"):
        LightDP(FedAvg(), a_plan()).aggregate_train(1, [])


def test_the_rounds_of_a_loop_of_ones_own_work_without_start() -> None:
    strategy, grid, arrays = LightDP(FedAvg(), a_plan(rounds=2), wait=0.01), LocalGrid(plus(1.0), 3), zeros()
    for t in (1, 2, 3):
        messages = list(strategy.configure_train(t, arrays, ConfigRecord(), grid))
        if not messages:
            break
        replies = list(grid.send_and_receive(messages, timeout=1))
        new, metrics = strategy.aggregate_train(t, replies + replies)  # what comes again is left out
        assert new is not None
        assert metrics is not None
        arrays = new
    arrays = strategy.close(arrays, timeout=1)
    assert t == 3  # the budget lasts for two
    assert strategy.stopped is not None
    assert arrays["w"].numpy() == pytest.approx(np.full(5, 2.0), abs=0.1)


def test_start_takes_flowers_arguments_and_the_plans_rounds_by_default() -> None:
    seen: list[tuple[int, float]] = []

    def evaluate(current: int, arrays: ArrayRecord) -> MetricRecord | None:
        seen.append((current, float(arrays["w"].numpy()[0])))
        return None if current == 2 else MetricRecord({"first": seen[-1][1]})

    configs: list[Any] = []
    app = plus(1.0)

    @app.evaluate()
    def inspect(message: Message, _: Context) -> Message:
        configs.append(dict(message.content.config_records["config"]))
        return Message(RecordDict({"m": MetricRecord({"num-examples": 1, "x": 2.0})}), reply_to=message)

    result = LightDP(FedAvg(), a_plan(), wait=0.01).start(
        LocalGrid(app, 3), zeros(), timeout=1, evaluate_config=ConfigRecord({"k": 5}), evaluate_fn=evaluate
    )
    assert [current for current, _ in seen] == [0, 1, 2, 3, 4]
    assert [value for _, value in seen] == pytest.approx([0, 1, 2, 3, 4], abs=0.1)
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 3, 4]
    assert [each["x"] for each in result.evaluate_metrics_clientapp.values()] == [2.0] * 4
    assert configs[-1] == {"k": 5, "server-round": 4}


def test_summary_shows_the_plan(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr"):
        LightDP(FedAvg(), a_plan()).summary()
    assert "Guarantee" in caplog.text
    assert "Weighted by" in caplog.text
