"""The loop of `LightDP.start`: rounds, evaluations, the end, and what is logged of them, as Flower's own loop does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from lightdp.client_set import ClientSet
from lightdp.errors import ProtocolError
from lightdp.flower import _arrays
from lightdp.flower._journal import Journal
from lightdp.flower._settings import LOG
from lightdp.planning import noise_advice, noise_ratio

if TYPE_CHECKING:
    from lightdp.flower._strategy import LightDP


@dataclass(kw_only=True)
class Training:
    """One start of a strategy.

    Attributes:
        strategy: which one.
        grid: of the server.
        rounds: how many there are at most.
        timeout: seconds of a round.
        train_config: for nodes.
        evaluate_config: likewise.
        evaluate: called with the number of a round, from 0, and the model after it.
        journal: the run log; None for none.
    """

    strategy: LightDP = field(kw_only=False)
    grid: Grid = field(kw_only=False)
    rounds: int
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None
    journal: Journal | None
    _written: int = field(default=0, init=False)  # rounds that the journal has taken in

    def run(self, result: Result) -> None:
        """Train to the end, or until the budget is used up, and keep in `result` what comes of it.

        Raises:
            ProtocolError: the key round failed, or no upload was used in any round.
        """
        try:
            self._run(result)
        finally:
            if self.journal is not None:
                self.journal.close()

    def _run(self, result: Result) -> None:
        began = time.monotonic()
        self._introduce(result.arrays)
        self._evaluate_here(result, 0)
        for current in range(1, self.rounds + 1):
            LOG.info("[ROUND %d/%d]", current, self.rounds)
            last = not self._train(result, current)
            if last:
                self._finish(result)
            if current in result.train_metrics_clientapp:
                self._evaluate(result, current)
                self._write(result, current)
            if last:
                break
        if self.journal is not None and result.train_metrics_clientapp:
            self._end(self.journal, result)
        LOG.info("lightdp: training ended after %.2f s", time.monotonic() - began)
        for line in f"Final results:\n{result}".splitlines():
            LOG.info("\t%s", line)

    def _introduce(self, arrays: ArrayRecord) -> None:
        """Log what is trained, the plan, the inner strategy, and how loud the noise is."""
        strategy, length = self.strategy, _arrays.length(arrays)
        LOG.info("Starting %s with %s:", type(strategy).__name__, type(strategy.strategy).__name__)
        LOG.info("\t├── Number of rounds: %d", self.rounds)
        LOG.info("\t├── Parameters: %d", length)
        strategy.summary()
        swamped = noise_ratio(strategy.plan, length) > 1
        LOG.log(logging.WARNING if swamped else logging.INFO, "lightdp: %s", noise_advice(strategy.plan, length))

    def _train(self, result: Result, current: int) -> bool:
        """One round; returns whether another one may follow."""
        strategy = self.strategy
        messages = strategy.configure_train(current, result.arrays, self.train_config, self.grid)
        if not messages:  # late uploads have used up the budget since the last round
            return False
        if current == 1 and self.journal is not None:
            more = {"strategy": type(strategy.strategy).__name__, "num_rounds": self.rounds, "timeout": self.timeout}
            self.journal.begin(_arrays.length(result.arrays), more)
        arrays, metrics = strategy.aggregate_train(current, strategy.exchange(messages, self.timeout))
        result.arrays = result.arrays if arrays is None else arrays
        _keep(result.train_metrics_clientapp, current, metrics, "Aggregated train metrics")
        if current == self.rounds or strategy.must_stop():
            return False
        result.arrays = strategy.settle(result.arrays, self.timeout)
        return strategy.stopped is None

    def _finish(self, result: Result) -> None:
        """Close, complete the metrics of the last round, and refuse to call a training one that used no upload."""
        run, rows = self.strategy.opened, result.train_metrics_clientapp
        if rows:
            over, last = len(run.closed), rows[max(rows)]
            result.arrays = self.strategy.close(result.arrays, self.timeout)
            joined = sum(len(each.result.joined) for each in run.closed[over : over + 1])
            last["lightdp-joined"] = cast("int", last["lightdp-joined"]) + joined
            last.update(run.spent() | {"lightdp-stopped": int(self.strategy.stopped is not None)})
        if run.sums == 0:
            why = run.failures()
            raise ProtocolError(f"no upload was used in {len(rows)} rounds, and the model is as it was: {why}")

    def _evaluate(self, result: Result, current: int) -> None:
        queries = list(self.strategy.configure_evaluate(current, result.arrays, self.evaluate_config, self.grid))
        replies = self.grid.send_and_receive(queries, timeout=self.timeout) if queries else []
        found = self.strategy.aggregate_evaluate(current, replies)
        _keep(result.evaluate_metrics_clientapp, current, found, "Aggregated evaluation metrics")
        self._evaluate_here(result, current)

    def _evaluate_here(self, result: Result, current: int) -> None:
        if self.evaluate is not None:
            found = self.evaluate(current, result.arrays)
            title = "Global evaluation" if current > 0 else "Initial global evaluation"
            _keep(result.evaluate_metrics_serverapp, current, found, title)

    def _write(self, result: Result, current: int) -> None:
        """Let the journal write what has become final."""
        run = self.strategy.opened
        if self.journal is not None:
            for each in run.closed[self._written :]:
                (self.journal.closing if each.closing else self.journal.round)(each.result)
            self._written = len(run.closed)
            self.journal.write(self._late, _metrics(result, current))

    def _end(self, journal: Journal, result: Result) -> None:
        run, last = self.strategy.opened, max(result.train_metrics_clientapp)
        stopped, bytes_up = self.strategy.ending, run.upload_bytes
        journal.end(self._late, stopped=stopped, bytes_up=bytes_up, metrics=_metrics(result, last))

    def _late(self, number: int) -> ClientSet:
        return self.strategy.opened.tables[0].server.late(number)


def _metrics(result: Result, current: int) -> dict[str, MetricRecord]:
    """The metrics of a round, for the run log."""
    rows = {
        "train": result.train_metrics_clientapp,
        "evaluate": result.evaluate_metrics_clientapp,
        "server": result.evaluate_metrics_serverapp,
    }
    return {where: found[current] for where, found in rows.items() if current in found}


def _keep(where: dict[int, MetricRecord], current: int, metrics: MetricRecord | None, title: str) -> None:
    if metrics is not None:
        LOG.info("\t└──> %s: %s", title, dict(metrics))
        where[current] = metrics
