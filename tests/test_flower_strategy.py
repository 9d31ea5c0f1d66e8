"""The strategy alone, arrays of every kind, the accountant, and Flower's own simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import GaussianPrivacyEvent, PrivacyAccountant, RdpAccountant
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy

import lightdp
from flower_grid import LocalGrid
from lightdp import gaussian
from lightdp._check import ArgumentError, LightDPError, ProtocolError
from lightdp.accountant import Odometer
from lightdp.flower import Accountant, LightDP, _arrays

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightdp.design import Plan


def a_plan(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 3, "colluders": 1, "stragglers": 1, "rounds": 4, "epsilon": 1e6, "delta": 1e-5}
    return lightdp.plan(**(asked | {"unit": "client", "clip": 10.0} | changed))


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
        LightDP(inner, a_plan(calibration=calibration))


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
    with pytest.raises(ArgumentError, match="must not be a LightDP itself"):
        LightDP(LightDP(FedAvg(), a_plan()), a_plan())


@pytest.mark.parametrize(
    ("inner", "plan", "why"),
    [
        (FedAvg(fraction_train=0.5), a_plan(), "fraction_train must be 1: pairwise noise cancels only if every client"),
        (FedAvg(min_train_nodes=4), a_plan(), "min_train_nodes must be at most the plan's 3 clients"),
        (FedAvg(min_available_nodes=9), a_plan(), "min_available_nodes=9"),
        (FedAvg(), a_plan(calibration="repair", late="unseen"), "Flower keeps replies that come too late"),
    ],
)
def test_settings_that_cannot_work_are_refused(inner: Strategy, plan: Plan, why: str) -> None:
    with pytest.raises(LightDPError, match=why):
        LightDP(inner, plan)


def test_a_plan_made_by_hand_is_refused() -> None:
    import dataclasses  # noqa: PLC0415  for this one

    with pytest.raises(ArgumentError, match=r"plan must be as lightdp.plan makes it"):
        LightDP(FedAvg(), dataclasses.replace(a_plan(), sigma_individual=1e-9))


def test_a_strategy_that_leaves_out_a_client_is_refused() -> None:
    class Short(FedAvg):
        def configure_train(self, *arguments: Any, **more: Any) -> Any:
            return list(super().configure_train(*arguments, **more))[1:]

    with pytest.raises(ArgumentError, match="strategy must train every client of the roster, once"):
        LightDP(Short(), a_plan(), wait=0.01).start(grid=LocalGrid(plus(1.0), 3), initial_arrays=zeros(), timeout=1)


def test_a_start_of_the_inner_strategys_own_is_not_used_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    class Own(FedAvg):
        def start(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    LightDP(Own(), a_plan(calibration="repair"))
    assert "Own has a start of its own, which is not used" in caplog.text


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
    assert t == 3  # the budget lasts for two
    assert strategy.stopped is not None
    assert arrays["w"].numpy() == pytest.approx(np.full(5, 2.0), abs=0.1)


# ---- arrays ----


def plus(step: float, change: Callable[[str, Any], Any] | None = None) -> ClientApp:
    app = ClientApp(mods=[lightdp.flower.mod])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        arrays = {}
        for key, array in message.content.array_records["arrays"].items():
            old = array.numpy()
            new = np.asarray(old + np.asarray(step).astype(old.dtype)) if change is None else change(key, old)
            arrays[key] = Array(np.asarray(new))
        metrics = MetricRecord({"num-examples": 3})
        return Message(RecordDict({"model": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return app


def zeros() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(5))})


def trained(app: ClientApp, initial: ArrayRecord, inner: Strategy | None = None, **changed: Any) -> ArrayRecord:
    strategy = LightDP(FedAvg() if inner is None else inner, a_plan(**changed), wait=0.01)
    return strategy.start(grid=LocalGrid(app, 3), initial_arrays=initial, timeout=1).arrays


@pytest.mark.parametrize("inner", [FedAvg(), FedAvgM(server_momentum=0.0, server_learning_rate=1.0)])
def test_every_shape_and_type_comes_back_as_it_went(inner: Strategy) -> None:
    initial: dict[str, Any] = {
        "z-matrix": np.ones((3, 2), np.float32),
        "scalar": np.array(2.0, np.float16),
        "a-double": np.full((2, 1, 2), -1.0),
        "empty": np.zeros((0, 4), np.float32),
        "big-endian": np.zeros(3, ">f4"),
        "fortran": np.asfortranarray(np.zeros((2, 3))),
        "counter": np.array(7),
        "bytes": np.arange(3, dtype=np.uint8),
    }
    arrays = trained(plus(0.25), ArrayRecord({key: Array(value) for key, value in initial.items()}), inner)
    assert list(arrays) == list(initial)
    for key, value in initial.items():
        found = arrays[key].numpy()
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        moved = 1.0 if value.dtype.kind == "f" else 0.0
        assert found.astype(float) == pytest.approx(value.astype(float) + moved, abs=0.1)  # 6 σ


def test_integer_arrays_never_leave_a_client() -> None:
    initial = ArrayRecord({"w": Array(np.zeros(2)), "seen": Array(np.array(0))})
    arrays = trained(plus(0.0, lambda key, old: old + 17 if key == "seen" else old), initial)
    assert arrays["seen"].numpy() == 0


def test_a_torch_model_with_batch_normalisation_trains() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    arrays = trained(plus(0.25), ArrayRecord(model.state_dict()))
    model.load_state_dict(arrays.to_torch_state_dict())
    for key, value in model.state_dict().items():
        step = 1.0 if value.is_floating_point() else 0.0
        assert value.double().numpy() == pytest.approx(before[key].double().numpy() + step, abs=0.05)


def test_a_list_of_arrays_as_scikit_learn_models_have_trains() -> None:
    initial = [np.zeros((1, 4)), np.zeros(1)]
    found = trained(plus(0.5), ArrayRecord(initial)).to_numpy_ndarrays()
    assert [each.shape for each in found] == [(1, 4), (1,)]
    assert np.concatenate([each.ravel() for each in found]) == pytest.approx(np.full(5, 2.0), abs=0.05)


def test_updates_are_clipped_as_one_vector() -> None:
    initial = ArrayRecord({"a": Array(np.zeros(3)), "b": Array(np.array(0.0))})
    arrays = trained(plus(100.0), initial, rounds=1, clip=0.5)
    found = np.concatenate([array.numpy().ravel() for array in arrays.values()])
    assert found == pytest.approx(np.full(4, 0.25), abs=0.02)


@pytest.mark.parametrize(
    "given",
    [
        np.array(3.5, np.float32), np.zeros((0, 3)), np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3).T,
        np.arange(4, dtype=">f4"), np.arange(5, dtype=np.float16)[::2], np.array([True, False]), np.array([1j]),
        np.zeros(3, [("ä☃", "f4")]),
    ],
)  # fmt: skip  # the last has another version of the format
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_values_are_those_that_flower_reads(given: Any) -> None:
    array = Array(given)
    expected = array.numpy()
    found = _arrays.values(array)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("cut", [0, 5, 9, 100, -1])
def test_values_of_broken_bytes_are_refused(cut: int) -> None:
    whole = Array(np.arange(50.0))
    with pytest.raises((ValueError, EOFError)):
        _arrays.values(Array(whole.dtype, whole.shape, whole.stype, whole.data[:cut]))


def test_values_are_never_objects() -> None:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
    with pytest.raises(ValueError, match="OBJECT"):
        _arrays.values(Array("object", (1,), "numpy.ndarray", data))


def test_long_arrays_of_any_order_move_by_their_part_of_the_vector() -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "a": np.asfortranarray(rng.normal(size=(300, 301)).astype(np.float32)),
        "b": rng.normal(size=70_001),
    }
    step = rng.normal(size=300 * 301 + 70_001)
    after = _arrays.moved(ArrayRecord({key: Array(value) for key, value in arrays.items()}), step)
    assert np.array_equal(after["a"].numpy(), (arrays["a"] + step[: 300 * 301].reshape(300, 301)).astype(np.float32))
    assert np.array_equal(after["b"].numpy(), arrays["b"] + step[300 * 301 :])


def test_what_a_type_cannot_hold_becomes_its_largest_value() -> None:
    moved = _arrays.moved(ArrayRecord({"w": Array(np.array([60000.0, 0.0], np.float16))}), np.array([1e6, -1e6]))
    assert moved["w"].numpy().tolist() == [65504.0, -65504.0]


@pytest.mark.parametrize("odd", [np.array([1j]), np.array(["text"]), np.zeros(2, np.longdouble)])
def test_arrays_that_are_no_numbers_are_refused_before_anything_is_sent(odd: Any) -> None:
    grid = LocalGrid(plus(1.0), 3)
    with pytest.raises(ArgumentError, match="array odd must be of floats of at most 64 bits or integers"):
        LightDP(FedAvg(), a_plan()).start(
            grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros(2)), "odd": Array(odd)}), timeout=1
        )
    assert grid.left == []


def test_a_model_without_floats_is_refused() -> None:
    with pytest.raises(ArgumentError, match="arrays must hold floats"):
        _arrays.length(ArrayRecord({"n": Array(np.array(3))}))


def test_trained_arrays_must_have_the_names_that_were_received() -> None:
    with pytest.raises(ArgumentError, match=r"trained arrays must be \['w'\], got \['v', 'w'\]"):
        _arrays.difference({"v": Array(np.zeros(5)), **zeros()}, zeros())


# ---- start ----


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


# ---- Flower's accountant ----


def test_the_accountant_is_one_of_flowers() -> None:
    plan = a_plan(epsilon=5.0)
    accountant: PrivacyAccountant = Accountant(plan)
    assert accountant.config.target_delta == 1e-5
    assert accountant.config.max_epsilon == 5.0
    assert accountant.config.population_size == 3
    assert accountant.get_privacy_spent().epsilon == 0.0
    replaced = Accountant(a_plan(adjacency="replace"))
    assert replaced.config.neighboring_relation.value == "replace-one"
    with pytest.raises(ArgumentError, match="whole clients, got a plan of unit='record'"):
        Accountant(a_plan(unit="record"))
    assert LightDP(FedAvg(), a_plan(unit="record")).privacy_spent() is None


def test_the_accountant_follows_the_odometer_exactly() -> None:
    plan = a_plan(epsilon=5.0, calibration="repair")
    accountant, odometer = Accountant(plan), Odometer(plan)
    accountant.follow(odometer)
    odometer.record([0, 1], [2])
    odometer.record([0, 1, 2], [])
    assert accountant.get_epsilon(1e-5) == odometer.largest()
    assert accountant.get_epsilon(1e-7) == odometer.epsilon(1e-7).max()
    assert accountant.num_releases == 2
    assert accountant.get_delta(odometer.largest()) == pytest.approx(1e-5, rel=1e-6)
    assert accountant.get_delta(odometer.largest()) >= 1e-5
    again = Accountant(plan)
    again.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert again.get_epsilon(1e-5) == pytest.approx(odometer.largest(), rel=1e-7)
    assert again.num_releases == 2
    with pytest.raises(ArgumentError, match="same plan"):
        Accountant(a_plan()).load_state_dict(accountant.state_dict())


def test_other_releases_compose_and_stay_below_flowers_own_bound() -> None:
    plan = a_plan(epsilon=5.0)
    accountant = Accountant(plan)
    event = GaussianPrivacyEvent(noise_multiplier=2.0, sample_size=3, population_size=3)
    theirs = RdpAccountant(accountant.config)
    for each in (accountant, theirs):
        each.compose(event, count=4)
    exact = gaussian.epsilon(4**0.5 / 2.0, 1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(exact, rel=1e-9)
    assert exact <= theirs.get_epsilon(1e-5) <= 1.3 * exact
    assert accountant.would_exceed(event, max_epsilon=exact)
    assert not accountant.would_exceed(event, max_epsilon=2 * exact)
    assert accountant.would_exceed(event, count=10)
    with pytest.raises(ArgumentError, match="count must be >= 1"):
        accountant.compose(event, count=0)


# ---- imports, and the real engine ----


def test_lightdp_is_imported_without_flower_and_says_what_is_missing() -> None:
    script = """
import sys
import lightdp
assert not any(name.split(".")[0] in ("flwr", "ray", "torch") for name in sys.modules)
try:
    lightdp.nothing
except AttributeError as error:
    assert "nothing" in str(error)
sys.modules["flwr"] = None
try:
    lightdp.flower
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "lightdp.flower needs an extra: pip install 'lightdp-fl[flower]'"


SIMULATION = """
import json, sys
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
import lightdp

client = ClientApp(mods=[lightdp.flower.mod])

@client.train()
def train(message, context):
    weights = message.content["arrays"]["w"].numpy() + np.float32(0.1 * (1 + context.node_config["partition-id"]))
    metrics = MetricRecord({"num-examples": 9, "loss": 0.5})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics}), reply_to=message)

@client.evaluate()
def evaluate(message, context):
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "x": 2.0})}), reply_to=message)

server = ServerApp()

@server.main()
def main(grid, context):
    plan = lightdp.plan(clients=3, colluders=1, stragglers=1, rounds=2, epsilon=1e6, delta=1e-5, unit="client",
                        calibration="repair", clip=9.0)
    strategy = lightdp.flower.LightDP(FedAvg(), plan, wait=240)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord({"w": Array(np.zeros((2, 3), np.float32))}))
    found = {"w": result.arrays["w"].numpy().tolist(), "train": {t: dict(m) for t, m in
             result.train_metrics_clientapp.items()}, "x": [m["x"] for m in result.evaluate_metrics_clientapp.values()],
             "stopped": strategy.stopped}
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)

run_simulation(server, client, num_supernodes=3, backend_config={"client_resources": {"num_cpus": 1}})
"""


def test_flowers_own_simulation_engine_runs_it(tmp_path: Path) -> None:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    (tmp_path / "app.py").write_text(SIMULATION)
    command = [sys.executable, str(tmp_path / "app.py"), str(tmp_path / "found.json")]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)} | quiet
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert (tmp_path / "found.json").exists(), done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert np.array(found["w"]) == pytest.approx(np.full((2, 3), 0.4), abs=0.1)
    assert [each["lightdp-used"] for each in found["train"].values()] == [3, 3]
    assert "loss" not in found["train"]["1"]
    assert found["x"] == [2.0, 2.0]
    assert found["stopped"] is None
