"""The server's side: a strategy that wraps another, and gives it the noisy mean instead of clients' updates."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result, Strategy

from lightdp._validate import integer, positive, rounded_up
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.flower import _arrays
from lightdp.flower._accountant import Accountant
from lightdp.flower._inner import Narrow, NoNodesError, refuse
from lightdp.flower._run import Run
from lightdp.flower._vault import KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flwr.serverapp import Grid, PrivacySpent

    from lightdp.planning import Plan
    from lightdp.protocol import Aggregate

_LOG = logging.getLogger("flwr.lightdp")


class LightDP(Strategy):
    """Makes a message-API strategy private against its own server.

    Each round every client of the roster gets the inner strategy's train message; what comes back are masked bytes,
    of which only the sum can be read. `received arrays + noisy mean` goes to the inner strategy as one reply of
    weight 1. The mean divides by the number of clients, whoever straggled (R3). Rounds with fewer uploads than the
    plan's minimum are void and leave the model as it is. A client
    that has used up its budget is a straggler from then on; more of them than the plan allows for, or too many void
    rounds in a row, end the training with what it has.

    Metrics of each round: `lightdp-epsilon` (spent so far, at the plan's δ, by the client that has spent most),
    `lightdp-used`, `lightdp-late` (uploads seen too late so far), and in the last one `lightdp-stopped` (1 if the
    training ended early, for the reason in `stopped`).

    Args:
        strategy: the inner strategy. Under "repair" its update must be linear, so that what stragglers leave can be
            taken out of the model again (R3): FedAvg, FedProx, FedAvgM, or with `linear=True` one of your own.
        plan: made by `lightdp.plan`; clients recompute it from its arguments.
        linear: whether an unknown strategy's update is linear in the mean, with fixed coefficients.
        wait: seconds to wait for nodes, for the key round or for an evaluation, before giving up.
        patience: how many void rounds in a row end the training.
    """

    def __init__(
        self, strategy: Strategy, plan: Plan, *, linear: bool = False, wait: float = 300.0, patience: int = 3
    ) -> None:
        if isinstance(strategy, LightDP):
            raise ArgumentError("strategy must not be a LightDP itself")
        refuse(strategy, plan, linear=linear)
        self.strategy, self.plan = strategy, plan
        self.wait, self.patience = positive("wait", wait), integer("patience", patience, 1)
        self.accountant = Accountant(plan) if plan.unit == "client" else None
        self._sent: list[Message] = []
        self._arrays = ArrayRecord()
        self._reset()

    def _reset(self) -> None:
        """Before a key round."""
        self.stopped: str | None = None  # why the training ended early
        self._run: Run | None = None
        self._void = self._late = 0

    def privacy_spent(self) -> PrivacySpent | None:
        """What was spent so far, as Flower's own wrappers tell it; None for plans that protect records."""
        return None if self.accountant is None else self.accountant.get_privacy_spent()

    def summary(self) -> None:
        """Log the plan and the inner strategy."""
        for line in str(self.plan).splitlines():
            _LOG.info("\t│ %s", line)
        self.strategy.summary()

    def start(  # noqa: PLR0917  as in Flower
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train, with a roster of its own: a key round, then rounds of one message down and one up.

        Arguments as in Flower, except that `num_rounds` is by default the plan's. `timeout` is a round's deadline.
        Each start spends a budget of its own; the accountant adds them up.

        Raises:
            ProtocolError: the key round failed; nothing was spent.
        """
        rounds = self.plan.rounds if num_rounds is None else integer("num_rounds", num_rounds, 0)
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        self.summary()
        self._reset()
        result = Result(arrays=initial_arrays)
        if evaluate_fn is not None:
            _keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, initial_arrays))
        began = time.monotonic()
        for current in range(1, rounds + 1):
            _LOG.info("[ROUND %d/%d]", current, rounds)
            messages = list(self.configure_train(current, result.arrays, train_config, grid))
            if not messages:
                break
            replies = grid.send_and_receive(messages, timeout=timeout)
            arrays, metrics = self.aggregate_train(current, replies)
            result.arrays = result.arrays if arrays is None else arrays
            last = current == rounds or self._must_stop(grid)
            if last:
                result.arrays = self._close(current, result.arrays, grid, timeout)
                if metrics is not None:
                    metrics.update(self._spent() | {"lightdp-stopped": int(self.stopped is not None)})
            _keep(result.train_metrics_clientapp, current, metrics)
            self._evaluate(current, result, evaluate_config, grid, timeout)
            if evaluate_fn is not None:
                _keep(result.evaluate_metrics_serverapp, current, evaluate_fn(current, result.arrays))
            if last:
                break
        _LOG.info("lightdp: training ended after %.2f s", time.monotonic() - began)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages with the round's start; none if the budget does not last for a round."""
        if self._run is None:
            run = Run(self.plan, _arrays.length(arrays))
            run.enrol(grid, self.wait)
            if self.accountant is not None:
                self.accountant.settle()
                self.accountant.follow(run.odometer)
            self._run = run
        if self._must_stop(grid):
            return []
        run = self._run
        narrow = cast("Grid", Narrow(grid, self.wait, list(run.nodes)))
        messages = list(self.strategy.configure_train(server_round, arrays, config, narrow))
        addressed = sorted(message.metadata.dst_node_id for message in messages)
        if addressed != sorted(run.nodes):
            raise ArgumentError(f"strategy must train every client of the roster, once; got {addressed}")
        orders = run.orders(grid)
        for message in messages:
            message.content = RecordDict({**message.content, KEY: orders[message.metadata.dst_node_id]})
        self._sent, self._arrays = messages, arrays
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The sum of the uploads that came, through the inner strategy; no arrays if the round was void."""
        if self._run is None:
            raise ProtocolError("aggregate_train comes after configure_train")
        run = self._run
        result = run.take(self._sent, replies)
        used = len(result.used)
        arrays, metrics = self._through(server_round, result) if result.total is not None else (None, MetricRecord())
        if result.total is None:
            _LOG.warning("lightdp: round %d was void: fewer than %d uploads came", server_round, run.server.minimum)
        self._void = 0 if result.total is not None else self._void + 1
        spent = rounded_up(run.odometer.max_epsilon())
        _LOG.info(
            "lightdp: round %d used %d of %d clients; ε = %s of %g at δ = %g spent",
            server_round, used, self.plan.clients, spent, self.plan.budget, self.plan.delta,
        )  # fmt: skip
        metrics.update(self._spent() | {"lightdp-used": used})
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages, untouched; none if it finds too few nodes for `wait` seconds."""
        try:
            narrow = cast("Grid", Narrow(grid, self.wait))
            return self.strategy.configure_evaluate(server_round, arrays, config, narrow)
        except NoNodesError as error:
            _LOG.warning("lightdp: evaluation of round %d left out: %s", server_round, error)
            return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the inner strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _through(self, server_round: int, result: Aggregate) -> tuple[ArrayRecord | None, MetricRecord]:
        """received + mean, as the one reply of weight 1 that the inner strategy gets."""
        run = cast("Run", self._run)
        weight = getattr(self.strategy, "weighted_by_key", "num-examples")
        metrics = MetricRecord({**_means(run.metrics), weight: 1.0})
        content = RecordDict({"arrays": _arrays.moved(self._arrays, result.mean()), "metrics": metrics})
        reply = Message(content, reply_to=self._sent[0])
        arrays, inner = self.strategy.aggregate_train(server_round, [reply])
        kept = None if arrays is None else _arrays.typed(arrays, self._arrays)
        return kept, MetricRecord() if inner is None else inner

    def _spent(self) -> dict[str, float | int]:
        return {"lightdp-epsilon": cast("Run", self._run).odometer.max_epsilon(), "lightdp-late": self._late}

    def _must_stop(self, grid: Grid) -> bool:
        """Whether another round cannot or must not be; late replies are counted first."""
        run = cast("Run", self._run)
        self._late += run.take_late(grid)
        if self.accountant is not None:
            self.accountant.follow(run.odometer)
        if (exhausted := len(run.exhausted())) > self.plan.stragglers:  # fewer are stragglers for good (R8)
            self._stop(f"the budget is used up: {exhausted} of {self.plan.clients} clients can take no further round")
        if self._void >= self.patience:
            self._stop(f"{self._void} rounds in a row were void: fewer than {run.server.minimum} uploads came")
        return self.stopped is not None

    def _stop(self, reason: str) -> None:
        if self.stopped is None:
            _LOG.warning("lightdp: training ends early: %s", reason)
            self.stopped = reason

    def _close(self, server_round: int, arrays: ArrayRecord, grid: Grid, timeout: float) -> ArrayRecord:
        """The closing round: what stragglers left in the model is taken out, without data (R4)."""
        run = cast("Run", self._run)
        orders = run.closing_orders()
        if orders:
            self._arrays = arrays
            self._sent = [Message(RecordDict({KEY: order}), node, MessageType.TRAIN) for node, order in orders.items()]
            result = run.take(self._sent, grid.send_and_receive(self._sent, timeout=timeout))
            _LOG.info("lightdp: closing round, %d of %d clients repaired", len(result.used), len(orders))
            if result.used:
                arrays = self._through(server_round + 1, result)[0] or arrays
        self._late += run.take_late(grid)
        if self.accountant is not None:
            self.accountant.follow(run.odometer)
        return arrays

    def _evaluate(self, current: int, result: Result, config: ConfigRecord, grid: Grid, timeout: float) -> None:
        messages = list(self.configure_evaluate(current, result.arrays, config, grid))
        replies = grid.send_and_receive(messages, timeout=timeout) if messages else []
        _keep(result.evaluate_metrics_clientapp, current, self.aggregate_evaluate(current, replies))


def _means(metrics: list[dict[str, Any]]) -> dict[str, float]:
    """The mean of each metric that all have as a number."""
    shared = set.intersection(*(set(each) for each in metrics)) if metrics else set()
    scalars = [name for name in sorted(shared) if not any(isinstance(each[name], list) for each in metrics)]
    return {name: float(np.mean([each[name] for each in metrics])) for name in scalars}


def _keep(where: dict[int, MetricRecord], current: int, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        where[current] = metrics
