"""Strategy and mod together: what is spent, and where training stops."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.flower import LightDP
from support.flower_grid import LocalGrid
from support.flower_training import an_app, planned, the_change, trained, weights


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
    metrics = result.train_metrics_clientapp[6]
    assert metrics["lightdp-epsilon"] == exact.max_epsilon()
    assert metrics["lightdp-epsilon"] == pytest.approx(gaussian.epsilon(metrics["lightdp-mu"], 1e-5))
    assert result.train_metrics_clientapp[6]["lightdp-late"] == 2
    spent = strategy.privacy_spent()
    assert spent is not None
    assert spent.epsilon == pytest.approx(exact.max_epsilon(), rel=1e-9)
    assert spent.num_releases == 6
    assert spent.epsilon >= exact.max_epsilon()
    unseen = Odometer(plan)
    for t in range(1, 7):
        unseen.record([i for i in range(5) if (t, i) not in grid.faults] if t != 4 else [], [])
    assert exact.max_epsilon() > unseen.max_epsilon()


def test_a_late_upload_that_is_handed_in_with_a_later_round_is_counted() -> None:
    plan = planned(epsilon=100.0)
    grid, arrays, held = LocalGrid(an_app(), 5), weights(), list[Message]()
    strategy = LightDP(FedAvg(), plan, wait=0.01)
    for t in (1, 2):
        messages = strategy.configure_train(t, arrays, ConfigRecord(), grid)
        replies = [*grid.send_and_receive(messages, timeout=1), *held]
        held = [reply for reply in replies if t == 1 and reply.metadata.src_node_id == grid.nodes[0].id]
        _, metrics = strategy.aggregate_train(t, [reply for reply in replies if reply not in held])
    exact = Odometer(plan)
    exact.record(range(1, 5), [0])
    exact.record(range(5), [])
    assert (metrics["lightdp-late"], metrics["lightdp-epsilon"]) == (1, exact.max_epsilon())
    assert strategy.accountant is not None
    assert strategy.accountant.get_epsilon(1e-5) == pytest.approx(exact.max_epsilon(), rel=1e-9)


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
    monkeypatch.setattr(Odometer, "exhausted", lambda *_: frozenset())  # a blind server
    strategy, result = trained(LocalGrid(an_app(), 5), plan, num_rounds=50)
    assert strategy.stopped == "the budget is used up: 5 of 5 clients can take no further round"
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5, 6]  # the sixth was void
    assert result.train_metrics_clientapp[6]["lightdp-used"] == 0


def test_a_client_that_is_late_in_every_round_does_not_end_the_training_of_the_others() -> None:
    plan = planned(clients=10, stragglers=2, colluders=2, rounds=20, epsilon=3.0)
    grid = LocalGrid(an_app(), 10)
    grid.faults = {(when, 0): "late" for when in range(1, 99)}
    strategy, result = trained(grid, plan, num_rounds=20)
    rows = result.train_metrics_clientapp
    assert strategy.stopped is None
    assert len(rows) == 20
    assert [row["lightdp-used"] for row in rows.values()] == [9] * 20
    assert 0 < rows[20]["lightdp-late"] < 10  # then its own odometer kept it away
    assert rows[20]["lightdp-epsilon"] <= 3.0


def test_each_start_spends_a_budget_of_its_own_and_the_accountant_adds_them() -> None:
    plan = planned(rounds=2, epsilon=5.0, calibration="exact")
    strategy = LightDP(FedAvg(), plan, wait=0.01)
    grid = LocalGrid(an_app(), 5)
    for _ in range(2):
        strategy.start(grid=grid, initial_arrays=weights(), timeout=1)
    assert strategy.accountant is not None
    both = gaussian.epsilon(2 * plan.sensitivity / plan.sigma_effective, 1e-5)  # of four rounds
    assert strategy.accountant.get_epsilon(1e-5) == pytest.approx(both, rel=1e-9)
    assert strategy.accountant.get_epsilon(1e-5) >= both
    assert strategy.accountant.num_releases == 4
