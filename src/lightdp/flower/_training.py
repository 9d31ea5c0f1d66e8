"""The loop of `LightDP.start`: rounds, evaluations, the end, and what is logged of them, as Flower's own loop does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from lightdp.errors import ArgumentError, ProtocolError
from lightdp.flower import _arrays
from lightdp.flower import _checkpoint as checkpoints
from lightdp.flower._engine import Engine
from lightdp.flower._journal import Journal
from lightdp.flower._settings import LOG
from lightdp.planning import noise_advice, noise_ratio

_COUNTS = ("late", "sums", "released", "void")  # of a run

if TYPE_CHECKING:
    from lightdp.flower._strategy import LightDP


@dataclass(kw_only=True)
class Training:
    """One start of a strategy.

    Attributes:
        strategy: which one.
        engine: behind it.
        grid: of the server.
        rounds: how many there are at most.
        timeout: seconds of a round.
        train_config: for nodes.
        evaluate_config: likewise.
        evaluate: called with the number of a round, from 0, and the model after it.
        log: the file of the run log; None for none.
        checkpoint: the file from which it can go on; None for none.
    """

    strategy: LightDP = field(kw_only=False)
    engine: Engine = field(kw_only=False)
    grid: Grid = field(kw_only=False)
    rounds: int
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None
    log: Path | None
    checkpoint: Path | None
    _finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.journal: Journal | None = None
        self._state = checkpoints.State(self.strategy.strategy)
        self.engine.save = self.save

    @property
    def result(self) -> Result:
        """What has come of it so far."""
        return self.strategy.result

    def run(self) -> None:
        """Train to the end, or until the budget is used up; or go on where the checkpoint says.

        Raises:
            ArgumentError: the checkpoint is of another training, damaged, or in use.
            ProtocolError: the key round failed, no upload was used in any round, or all nodes refuse for one reason.
        """
        began = time.monotonic()
        with nullcontext() if self.checkpoint is None else checkpoints.alone(self.checkpoint):
            over = self._resumed()
            if self._finished:
                LOG.info("lightdp: the training in checkpoint %s has ended: it is not trained again", self.checkpoint)
                return
            try:
                self._run(over)
            finally:
                if self.journal is not None:
                    self.journal.close()
        LOG.info("lightdp: training ended after %.2f s", time.monotonic() - began)
        for line in f"Final results:\n{self.result}".splitlines():
            LOG.info("\t%s", line)

    def _run(self, over: int) -> None:
        """Train, after so many rounds that are over."""
        result = self.result
        self._introduce(result.arrays)
        if over == 0:
            self._evaluate_here(result, 0)
        current, last = over, False
        for current in range(over + 1, self.rounds + 1):
            LOG.info("[ROUND %d/%d]", current, self.rounds)
            last = not self._train(result, current)
            if last:
                self._finish(result)
            if current in result.train_metrics_clientapp:
                self._evaluate(result, current)
                self._write(result, current)
                self._save_again(result, current, last=last)
            if last:
                break
        if not last and current > 0:  # there were no rounds left when it went on
            self._open(result)
            self._finish(result)
            self._evaluate(result, current)
            self._write(result, current)
        if self.journal is not None and result.train_metrics_clientapp:
            self._end(self.journal, result)
        if current > 0:
            self._finished = not self._may_go_on
            self.engine.keep(result.arrays, None)
        if self.engine.ending == "refused":
            raise ProtocolError(f"training ends early: {self.engine.stopped}")

    def _save_again(self, result: Result, current: int, *, last: bool) -> None:
        """Keep what was found and written since the round was saved, so that a crash does not lose it."""
        if self.journal is not None or len(_metrics(result, current)) > 1:
            self.engine.keep(result.arrays, None if last else self.engine.opened.federation.turn())

    def _open(self, result: Result) -> None:
        """The key round, and the log of before, unless that is done."""
        self.engine.open(result.arrays, self.train_config, self.grid)
        if self.journal is not None:
            self.journal.take_up(self.engine.opened)

    @property
    def _may_go_on(self) -> bool:
        """Whether the same command can go on later: it has ended early, and not for the budget."""
        return self.checkpoint is not None and self.engine.ending not in {None, "budget"}

    def save(self, arrays: ArrayRecord, announcing: list[int]) -> None:
        """Keep the model and all that was announced so far, durably.

        Args:
            arrays: the model.
            announcing: rosters of which a round may be announced before the next save.
        """
        if self.checkpoint is None:
            return
        self.result.arrays = arrays
        run = self.engine.opened
        rows, model = checkpoints.results(self.result)
        state, more = self._state.facts()
        facts = self._facts() | {
            "federation": run.federation.past(announcing).decode(),
            "counts": {name: getattr(run, name) for name in _COUNTS},
            "journal": None if self.journal is None else self.journal.facts(run),
            "finished": self._finished, "stopped": self.engine.stopped, "ending": self.engine.ending,
            "rows": rows, "state": state,
        }  # fmt: skip
        checkpoints.write(self.checkpoint, facts, model | more)

    def _facts(self) -> dict[str, Any]:
        """What must be the same when a training goes on."""
        arrays = self.result.arrays
        trained = self.engine.trained(arrays)
        return {
            "plan": self.strategy.plan.digest().hex(),
            "strategy": type(self.strategy.strategy).__name__,
            "num_rounds": self.rounds,
            "model": {name: [str(each.dtype), list(each.shape)] for name, each in sorted(arrays.items())},
            "trained": trained,
            "length": _arrays.length(arrays, trained),
        }

    def _resumed(self) -> int:
        """Take up the checkpoint, if there is one, and return how many rounds are over."""
        if self.checkpoint is None or not self.checkpoint.exists():
            self.journal = None if self.log is None else Journal(self.log, self.strategy.plan)
            return 0
        facts, arrays = checkpoints.read(self.checkpoint)
        for name, wanted in self._facts().items():
            if facts.get(name) != wanted:
                raise ArgumentError(
                    f"checkpoint must be of this training, got checkpoint={str(self.checkpoint)!r} of another: its "
                    f"{name} is {facts.get(name)!r}, not {wanted!r}; name another file to train anew"
                )
        self.strategy.result = checkpoints.result_of(facts["rows"], arrays)
        self._state.load(facts["state"], arrays)
        self._finished = facts["finished"]
        self.engine.resume(facts)
        over = max(self.result.train_metrics_clientapp, default=0)
        if self.log is not None and not self._finished:
            self.journal = Journal(self.log, self.strategy.plan, kept=facts["journal"])
        if not self._finished:
            for row in self.result.train_metrics_clientapp.values():
                row.pop("lightdp-stopped", None)
            LOG.info("lightdp: going on after round %d, from checkpoint %s", over, self.checkpoint)
        return over

    def _introduce(self, arrays: ArrayRecord) -> None:
        """Log what is trained, the plan, the inner strategy, how loud the noise is, and what drawn masks ask."""
        strategy, length = self.strategy, _arrays.length(arrays, self.engine.trained(arrays))
        LOG.info("Starting %s with %s:", type(strategy).__name__, type(strategy.strategy).__name__)
        LOG.info("\t├── Number of rounds: %d", self.rounds)
        LOG.info("\t├── Parameters: %d", length)
        strategy.summary()
        swamped = noise_ratio(strategy.plan, length) > 1
        LOG.log(logging.WARNING if swamped else logging.INFO, "lightdp: %s", noise_advice(strategy.plan, length))
        if strategy.plan.masks.kind == "drawn":
            LOG.info(
                "lightdp: the plan's masks are drawn: apps see an empty context.state in train messages, and what they "
                "leave there is not kept. A plan with masks='gaussian' keeps it"
            )

    def _train(self, result: Result, current: int) -> bool:
        """One round; returns whether another one may follow."""
        strategy = self.strategy
        self._open(result)
        messages = strategy.configure_train(current, result.arrays, self.train_config, self.grid)
        if not messages:  # late uploads have used up the budget since the last round
            return False
        if self.journal is not None:
            more = {"strategy": type(strategy.strategy).__name__, "num_rounds": self.rounds, "timeout": self.timeout}
            length = _arrays.length(result.arrays, self.engine.trained(result.arrays))
            self.journal.begin(length, more)
        arrays, metrics = strategy.aggregate_train(current, self.engine.exchange(messages, self.timeout))
        result.arrays = result.arrays if arrays is None else arrays
        _keep(result.train_metrics_clientapp, current, metrics, "Aggregated train metrics")
        self.engine.keep(result.arrays, self.engine.opened.federation.turn())
        if current == self.rounds or self.engine.must_stop():
            return False
        result.arrays = self.engine.settle(result.arrays, self.timeout)
        return self.engine.stopped is None

    def _finish(self, result: Result) -> None:
        """Close, complete the metrics of the last round, and refuse to call a training one that used no upload."""
        run, rows = self.engine.opened, result.train_metrics_clientapp
        if rows:
            over, last = len(run.closed), rows[max(rows)]
            if not self._may_go_on:  # after closing rounds, rosters would have to be formed anew
                result.arrays = self.strategy.close(result.arrays, self.timeout)
            joined = sum(len(each.result.joined) for each in run.closed[over : over + 1])
            last["lightdp-joined"] = cast("int", last["lightdp-joined"]) + joined
            last.update(run.spent() | {"lightdp-stopped": int(self.engine.stopped is not None)})
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
        run = self.engine.opened
        if self.journal is not None:
            data = [each.roster for each in run.closed if not each.closing]
            played = data[-1] if data else None
            self.journal.write(run, played, _metrics(result, current), current)

    def _end(self, journal: Journal, result: Result) -> None:
        run, last = self.engine.opened, max(result.train_metrics_clientapp)
        journal.end(run, stopped=self.engine.ending, metrics=_metrics(result, last))


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
