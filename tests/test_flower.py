"""Strategy and mod together: real ClientApps, real messages, every way to straggle."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Strategy
from scipy import stats

import lightdp
from flower_grid import LocalGrid
from lightdp import gaussian, masks
from lightdp._check import ProtocolError
from lightdp.accountant import Odometer
from lightdp.flower import LightDP
from lightdp.protocol import Client, Server

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from lightdp.design import Plan
    from lightdp.protocol import Aggregate


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 5, "colluders": 1, "stragglers": 2, "rounds": 60, "epsilon": 1e4, "delta": 1e-5}
    return lightdp.plan(**(asked | {"unit": "client", "calibration": "repair", "clip": 0.5} | changed))


def step(at: int, size: int) -> NDArray[np.float64]:
    """What client `at` adds to a vector of weights, below the clip."""
    return np.cos(np.arange(size) + at) / size**0.5 / 4


def an_app() -> ClientApp:
    app = ClientApp(mods=[lightdp.flower.mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        assert list(message.content.config_records) == ["config"]  # what lightdp adds is not the app's to see
        weights = message.content.array_records["arrays"]["w"].numpy()
        weights = weights + step(int(context.node_config["partition-id"]), weights.size).astype(weights.dtype)
        metrics = MetricRecord({"num-examples": 10 * int(context.node_config["partition-id"]), "loss": 0.25})
        content = RecordDict({"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "at": float(context.node_config["partition-id"])})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    @app.query()
    def query(message: Message, _: Context) -> Message:
        return Message(message.content, reply_to=message)

    return app


def weights(size: int = 40) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.linspace(-1, 1, size))})


@dataclass
class Made:
    """One upload that left a client, in fine steps."""

    name: str
    round: int
    data: NDArray[np.int32]  # rounded data and individual noise
    fine: NDArray[np.int32]  # with pairwise noise
    keys: set[bytes]  # of the pairwise noise that was added


@dataclass
class Tape:
    made: list[Made] = field(default_factory=list)
    rounds: list[Aggregate] = field(default_factory=list)
    names: tuple[str, ...] = ()

    def used(self) -> list[Made]:
        pairs = {(self.names[i], each.round) for each in self.rounds for i in np.flatnonzero(each.used)}
        return [each for each in self.made if (each.name, each.round) in pairs]

    def total(self, what: str) -> NDArray[np.int32]:
        return np.sum([getattr(each, what) for each in self.used()], axis=0, dtype=np.int32)


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """Watch every upload that is made, and every round that the server ends."""
    result, real, upload, close = Tape(), masks._fine, Client.upload, Server.close
    here = threading.local()

    def watched_fine(vector: Any, grid: Any, terms: Any, keys: Any, **more: Any) -> Any:
        here.data, here.fine = real(vector, grid, [], keys), real(vector, grid, terms, keys, **more)
        return here.fine

    def watched_upload(self: Client, message: bytes, update: Any) -> bytes:
        sent = upload(self, message, update)
        story = self._story
        assert story is not None
        current = max(story.sent)
        keys = {term.key for term in self._pairwise(story, current, story.neighbours)}
        result.made.append(Made(self._enrolment.name, current, here.data, here.fine, keys))
        return sent

    def watched_close(self: Server) -> Aggregate:
        result.rounds.append(close(self))
        result.names = self.names
        return result.rounds[-1]

    monkeypatch.setattr(masks, "_fine", watched_fine)
    monkeypatch.setattr(Client, "upload", watched_upload)
    monkeypatch.setattr(Server, "close", watched_close)
    return result


def trained(grid: LocalGrid, plan: Plan, inner: Strategy | None = None, **changed: Any) -> tuple[LightDP, Any]:
    strategy = LightDP(FedAvg() if inner is None else inner, plan, wait=0.01)
    options: dict[str, Any] = {"initial_arrays": weights(), "num_rounds": min(6, plan.rounds)} | changed
    return strategy, strategy.start(grid=grid, timeout=1, **options)


def the_change(result: Any, size: int = 40) -> NDArray[np.float64]:
    return np.asarray(result.arrays["w"].numpy() - weights(size)["w"].numpy(), dtype=np.float64)


# ---- what comes out ----

FAULTS: dict[str, dict[tuple[int, int], Any]] = {
    "none": {},
    "drop": {(2, 0): "drop", (6, 3): "drop"},
    "lost": {(1, 0): "lost", (2, 0): "lost", (4, 2): "lost"},
    "late": {(1, 0): "late", (2, 0): "late", (3, 1): "late", (6, 2): "late"},
    "errors": {(2, 0): "error", (2, 4): "error", (5, 1): "error"},
    "garbage": {(2, 0): "garbage", (3, 2): "lost", (3, 3): "impostor"},
    "disguised": {(0, 1): "disguised", (0, 2): "disguised", (2, 0): "disguised", (3, 1): "disguised", (4, 2): "late"},
    "crash": {(2, 0): "crash", (3, 3): "crash"},
    "replay": {(2, 0): "replay", (3, 3): "twice", (4, 0): "twice"},
    "void": {(2, i): "late" for i in range(3)} | {(3, i): "drop" for i in range(3)},
    "away": {(t, 4): "drop" for t in range(1, 6)},
    "mixed": {(1, 0): "late", (2, 1): "crash", (3, 2): "twice", (4, 3): "error", (5, 4): "lost", (6, 0): "drop"},
}


def _by_chance(seed: int) -> dict[tuple[int, int], Any]:
    draw = np.random.default_rng(seed)
    kinds = ["disguised", "drop", "lost", "late", "error", "crash", "replay", "twice", "garbage"]
    places = [(t, i) for t in range(1, 8) for i in range(5)]
    return {place: str(draw.choice(kinds)) for place in places if draw.random() < 0.3}


FAULTS |= {f"by chance {seed}": _by_chance(seed) for seed in range(3)}


@pytest.mark.parametrize("calibration", ["repair", "exact"])
@pytest.mark.parametrize("faults", FAULTS)
def test_the_model_is_the_sum_of_what_was_used_and_no_mask_is_used_twice(
    faults: str, calibration: Any, tape: Tape, tmp_path: Path
) -> None:
    plan = planned(calibration=calibration)
    grid = LocalGrid(an_app(), 5, run_config={"lightdp-state": str(tmp_path)})
    grid.faults = FAULTS[faults]
    strategy, result = trained(grid, plan)
    assert strategy.stopped is None
    lattice = masks.Grid.of(plan, 40)
    rounding = len(tape.used()) * lattice.wire_step / 2 / plan.clients + 1e-9
    expected = tape.total("fine") * lattice.step / plan.clients
    assert the_change(result) == pytest.approx(expected, abs=rounding)
    if calibration == "repair" and not any(
        t == 7 for t, _ in grid.faults
    ):  # whoever straggled, no pairwise noise stays
        assert the_change(result) == pytest.approx(tape.total("data") * lattice.step / plan.clients, abs=rounding)
        assert rounding < plan.sigma_pairwise / 4  # which would be seen
    assert max(Counter((each.name, each.round) for each in tape.made).values()) == 1
    added = Counter((each.name, key) for each in tape.made for key in each.keys)
    assert max(added.values()) == 1
    absent = {place for place, fault in grid.faults.items() if fault not in ("replay", "twice", "disguised")}
    came = [{i for i in range(5) if (t, i) not in absent} for t in range(1, 7)]
    assert [set(np.flatnonzero(each.used)) for each in tape.rounds[:6]] == [c if len(c) >= 3 else set() for c in came]


@pytest.mark.parametrize("calibration", ["repair", "exact"])
def test_the_noise_in_the_model_has_the_variance_that_the_plan_names(calibration: Any) -> None:
    size, plan = 20_000, planned(calibration=calibration, epsilon=50.0)
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(1, 0): "drop", (3, 1): "late", (3, 2): "lost"}
    _, result = trained(grid, plan, initial_arrays=weights(size))
    used = [[i for i in range(5) if grid.faults.get((t, i)) is None] for t in range(1, 7)]
    signal = sum(step(i, size) for each in used for i in each) / 5
    uploads = sum(len(each) for each in used)
    stays = sum(len(each) * (5 - len(each)) for each in used) if calibration == "exact" else 0
    variance = uploads * (plan.sigma_individual**2 + plan.wire_grid**2 / 12) + stays * plan.sigma_pairwise**2
    scale = variance**0.5 / 5
    noise = the_change(result, size) - signal
    assert stats.kstest(noise / scale, "norm").pvalue > 1e-6
    for wrong in (0.9, 1.1):
        assert stats.kstest(noise / scale * wrong, "norm").pvalue < 1e-6


def test_a_closing_round_is_held_only_if_something_is_left_to_repair() -> None:
    for faults, closing in (({}, 0), ({(5, 0): "drop"}, 0), ({(6, 0): "drop"}, 1)):
        grid = LocalGrid(an_app(), 5)
        grid.faults = dict(faults)  # type: ignore[arg-type]
        trained(grid, planned())
        assert grid.pushed.count("train") == 6 + closing
        assert grid.pushed.count("key") == 1


def test_one_message_goes_down_and_one_up_in_each_round_and_the_roster_only_once() -> None:
    grid = LocalGrid(an_app(), 5)
    trained(grid, planned(), num_rounds=3)
    assert grid.pushed == ["key", "train", "evaluate", "train", "evaluate", "train", "evaluate"]
    per_node = Counter(at for at, _ in grid.left)
    assert set(per_node.values()) == {7}


@pytest.mark.parametrize("inner", [FedAvg(), FedProx(proximal_mu=0.1), FedAvgM(server_learning_rate=0.5)])
def test_linear_strategies_work_on_the_mean(inner: Strategy, tape: Tape) -> None:
    plan = planned(rounds=3)
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(1, 0): "drop"}
    _, result = trained(grid, plan, inner)
    rate = getattr(inner, "server_learning_rate", 1.0)
    lattice = masks.Grid.of(plan, 40)
    expected = rate * tape.total("data") * lattice.step / 5
    assert the_change(result) == pytest.approx(expected, abs=3 * lattice.wire_step)


def test_momentum_of_the_inner_strategy_works_on_the_means(tape: Tape) -> None:
    plan = planned(rounds=3, calibration="exact")
    _, result = trained(LocalGrid(an_app(), 5), plan, FedAvgM(server_momentum=0.5))
    model, momentum = np.zeros(40), np.zeros(40)
    for each in tape.rounds:
        momentum = 0.5 * momentum + each.mean()
        model += momentum
    assert the_change(result) == pytest.approx(model, abs=1e-9)


def test_a_non_linear_strategy_gets_the_exact_mean(tape: Tape) -> None:
    plan = planned(rounds=1, calibration="exact")
    _, result = trained(LocalGrid(an_app(), 5), plan, FedAdam(eta=0.1, beta_1=0.0, beta_2=0.0, tau=1e-3))
    mean = tape.rounds[0].mean()
    assert the_change(result) == pytest.approx(0.1 * mean / (np.abs(mean) + 1e-3), rel=1e-6)


# ---- stragglers, nodes that come and go ----


def test_late_uploads_are_counted_as_late_by_the_odometer() -> None:
    plan = planned(epsilon=100.0)
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(2, 0): "late", (3, 1): "drop", (6, 2): "late"}
    grid.faults |= {(4, i): "drop" for i in range(3)}  # a void round: what came was seen
    strategy, result = trained(grid, plan)
    exact = Odometer(plan)
    for t in range(1, 7):
        missing = [i for (when, i) in grid.faults if when == t]
        late = [i for i in missing if grid.faults[t, i] == "late"]
        came = [i for i in range(5) if i not in missing]
        exact.record(*(([], came) if t == 4 else (came, late)))
    assert result.train_metrics_clientapp[6]["lightdp-epsilon"] == exact.largest()
    assert result.train_metrics_clientapp[6]["lightdp-late"] == 2
    spent = strategy.privacy_spent()
    assert spent is not None
    assert (spent.epsilon, spent.num_releases) == (exact.largest(), 6)
    unseen = Odometer(plan)
    for t in range(1, 7):
        unseen.record([i for i in range(5) if (t, i) not in grid.faults] if t != 4 else [], [])
    assert exact.largest() > unseen.largest()


def test_a_node_that_leaves_and_comes_back_goes_on_in_the_roster(tape: Tape) -> None:
    grid = LocalGrid(an_app(), 5)

    def before(current: int) -> None:
        grid.nodes[1].online = current not in (2, 3)

    grid.before = before
    trained(grid, planned())
    assert [bool(each.used[1]) for each in tape.rounds[:6]] == [True, False, False, True, True, True]


def test_a_node_that_joins_in_mid_run_waits_for_the_next_roster(caplog: pytest.LogCaptureFixture, tape: Tape) -> None:
    grid = LocalGrid(an_app(), 6)
    grid.nodes[5].online = False

    def before(current: int) -> None:
        grid.nodes[5].online = grid.nodes[5].online or current == 2

    grid.before = before
    strategy = LightDP(FedAvg(fraction_evaluate=0.0), planned(), wait=0.01)
    with caplog.at_level("INFO", "flwr"):
        strategy.start(grid=grid, initial_arrays=weights(), num_rounds=3, timeout=1)
    assert caplog.text.count(f"node {grid.nodes[5].id} joined after the key round") == 1
    assert not any(at == 5 for at, _ in grid.left)
    grid.nodes[0].online = False
    strategy.start(grid=grid, initial_arrays=weights(), num_rounds=1, timeout=1)
    assert any(at == 5 for at, _ in grid.left)
    assert set(tape.names) == {f"node-{node.id}" for node in grid.nodes[1:]}


def test_a_node_that_lost_its_state_is_left_out_and_told_why(tape: Tape, caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(2, 1): "crash"}  # without a file: the state is gone
    trained(grid, planned())
    assert [bool(each.used[1]) for each in tape.rounds[:6]] == [True] + [False] * 5
    assert "this node has no state of the run" in caplog.text


def test_a_restarted_node_goes_on_from_its_file(tape: Tape, tmp_path: Path) -> None:
    grid = LocalGrid(an_app(), 5)
    for i, node in enumerate(grid.nodes):
        node.config["lightdp-state"] = str(tmp_path / f"{i}.json")
    grid.faults = {(2, 1): "crash"}
    trained(grid, planned())
    assert [bool(each.used[1]) for each in tape.rounds[:6]] == [True, False, True, True, True, True]
    assert (tmp_path / "1.json").stat().st_mode & 0o777 == 0o600


def test_too_few_nodes_end_the_waiting_with_a_clear_message() -> None:
    with pytest.raises(
        ProtocolError, match=r"0 of the plan's 5 clients enrolled within 0.01 s, with 4 nodes connected"
    ):
        trained(LocalGrid(an_app(), 4), planned())
    plain = ClientApp()
    with pytest.raises(ProtocolError, match=r"No train function registered"):
        trained(LocalGrid(plain, 5), planned())


def test_more_nodes_than_clients_are_asked_and_the_rest_waits(caplog: pytest.LogCaptureFixture, tape: Tape) -> None:
    grid = LocalGrid(an_app(), 7)
    grid.faults = {(0, 0): "drop", (0, 3): "error", (1, 1): "error"}
    with caplog.at_level("INFO", "flwr"):
        trained(grid, planned(), num_rounds=2)
    assert set(tape.names) == {f"node-{grid.nodes[i].id}" for i in (1, 2, 4, 5, 6)}
    assert [int(each.used.sum()) for each in tape.rounds[:2]] == [4, 5]
    assert f"node {grid.nodes[0].id} joined after the key round" in caplog.text


def test_nodes_that_miss_the_key_round_are_asked_again(tape: Tape) -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(0, 0): "drop", (0, 1): "lost", (0, 2): "late", (0, 3): "error"}
    strategy = LightDP(FedAvg(), planned(), wait=20)
    strategy.start(grid=grid, initial_arrays=weights(), num_rounds=1, timeout=1)
    assert tape.rounds[0].used.all()
    assert grid.pushed[:3] == ["key", "key", "train"]


def test_a_node_that_repeats_anothers_enrolment_is_not_in_the_roster() -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(0, 1): "impostor"}
    with pytest.raises(ProtocolError, match=f"4 of the plan's 5 .*node 1007.*another node enrolled as node-{1000}"):
        trained(grid, planned())


def test_an_app_without_the_mod_cannot_enrol() -> None:
    app = ClientApp()
    app.train()(lambda message, _: Message(RecordDict(), reply_to=message))
    with pytest.raises(ProtocolError, match=r"not an enrolment.*is lightdp.flower.mod among the app's mods\?"):
        trained(LocalGrid(app, 5), planned())


def test_void_rounds_leave_the_model_and_end_the_training_after_some() -> None:
    grid = LocalGrid(an_app(), 5)
    grid.faults = {(t, i): "drop" for t in (3, 4, 5) for i in range(3)}
    strategy, result = trained(grid, planned(), num_rounds=30)
    assert strategy.stopped is not None
    assert "3 rounds in a row were void: fewer than 3 uploads came" in strategy.stopped
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]
    assert result.train_metrics_clientapp[5]["lightdp-stopped"] == 1


def test_evaluation_is_left_out_if_there_are_too_few_nodes(caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(an_app(), 5)
    _, result = trained(grid, planned(rounds=1), FedAvg(min_evaluate_nodes=6))
    assert result.evaluate_metrics_clientapp == {}
    assert "evaluation of round 1 left out" in caplog.text
    assert result.train_metrics_clientapp[1]["lightdp-used"] == 5


# ---- the budget ----


def test_training_stops_at_the_budget_with_what_it_has() -> None:
    plan = planned(rounds=5, epsilon=5.0, calibration="exact")
    strategy, result = trained(LocalGrid(an_app(), 5), plan, num_rounds=50)
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]
    spent = [each["lightdp-epsilon"] for each in result.train_metrics_clientapp.values()]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(5.0, rel=1e-9)
    assert spent[-1] <= 5.0
    assert result.train_metrics_clientapp[5]["lightdp-stopped"] == 1
    assert strategy.stopped is not None
    assert "the budget is used up" in strategy.stopped
    assert np.isfinite(the_change(result)).all()


def test_clients_that_have_used_up_their_budgets_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(rounds=5, epsilon=5.0, calibration="exact")
    real = Odometer.admit
    monkeypatch.setattr(Odometer, "admit", lambda self: None if len(self.clients) > 1 else real(self))  # a blind server
    strategy, result = trained(LocalGrid(an_app(), 5), plan, num_rounds=50)
    assert strategy.stopped == "5 clients have used up their budgets"
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]  # the sixth was void
    assert result.train_metrics_clientapp[6]["lightdp-used"] == 0


def test_each_start_spends_a_budget_of_its_own_and_the_accountant_adds_them() -> None:
    plan = planned(rounds=2, epsilon=5.0, calibration="exact")
    strategy = LightDP(FedAvg(), plan, wait=0.01)
    grid = LocalGrid(an_app(), 5)
    for _ in range(2):
        strategy.start(grid=grid, initial_arrays=weights(), timeout=1)
    assert strategy.accountant is not None
    both = gaussian.epsilon(2**0.5 * gaussian.mu(5.0, 1e-5), 1e-5)
    assert strategy.accountant.get_epsilon(1e-5) == pytest.approx(both, rel=1e-6)
    assert strategy.accountant.get_epsilon(1e-5) >= both
    assert strategy.accountant.num_releases == 4


# ---- what leaves a node ----


def test_only_packed_bytes_and_allowed_metrics_leave_and_other_messages_are_untouched() -> None:
    plan = planned(rounds=1)
    grid = LocalGrid(an_app(), 5, run_config={"lightdp-allow-metrics": "loss, accuracy"})
    _, result = trained(grid, plan)
    keys, uploads, evaluations = grid.left[:5], grid.left[5:10], grid.left[10:]
    assert all(list(each.content) == ["lightdp"] for _, each in keys)
    size = len(masks.mask(np.zeros(40, np.float32), masks.Grid.of(plan, 40), []))
    for _, each in uploads:
        assert {key: set(each.content[key]) for key in each.content} == {"arrays": {"lightdp"}, "metrics": {"loss"}}
        packed = each.content.array_records["arrays"]["lightdp"].numpy()
        assert packed.dtype == np.uint8
        assert packed.size == size + 96
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
