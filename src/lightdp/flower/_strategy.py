"""The server: a strategy that wraps another one, which sees the noisy mean instead of the updates of clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid, PrivacySpent
from flwr.serverapp.strategy import Result, Strategy

from lightdp._validate import integer, positive
from lightdp.errors import ArgumentError
from lightdp.flower._accountant import Accountant
from lightdp.flower._engine import Engine
from lightdp.flower._grid import Narrow, NoNodesError
from lightdp.flower._notices import said
from lightdp.flower._plans import check_sampling, refuse
from lightdp.flower._settings import LOG
from lightdp.flower._training import Training
from lightdp.keys import Pins
from lightdp.planning import Plan

_FIXED = frozenset({"strategy", "plan", "wait", "patience"})  # attributes that the rounds have a copy of


def _file(name: str, path: str | os.PathLike[str] | None) -> Path | None:
    """A path of a file, if there is one, in a folder that exists."""
    found = None if path is None else Path(path)
    if found is not None and (found.is_dir() or not found.parent.is_dir()):
        kind = "new file" if name == "log" else "file"
        raise ArgumentError(f"{name} must be a {kind} in a folder that exists, got {name}={str(path)!r}")
    return found


class LightDP(Strategy):
    """Makes a strategy of Flower's message API private against its own server.

        strategy = LightDP(FedAvg(min_available_nodes=50), lightdp.plan(clients=50, ...))
        result = strategy.start(grid, initial_arrays=arrays, timeout=60)

    Each round, every client of the roster gets the train message of the inner strategy and answers with masked bytes,
    of which the server can read only the sum. The inner strategy gets `received arrays + noisy mean` as one reply of
    weight 1. The mean divides by the number of clients of the roster, however many straggled (R3).

    A round with fewer uploads than `clients - stragglers` is void and leaves the model as it is. Under a plan with
    grace=1, uploads that come during the next round are in its sum and count (R5); ε then counts the last round at its
    worst until its set is final, one round later. A client without budget for another round is a straggler from then
    on.

    A plan with a population, or more nodes than its clients, makes rosters that take turns. Nodes that join later are
    in the next roster that is formed; those that miss too often are left out; a roster that lost more clients than it
    can bear is closed, and the others form a new one (C1). If there are too few for one, or after `patience` void
    rounds in a row, the training ends with the model that it has.

    Formal guarantee: that of the plan (docs/explanation/threat-model.md), for the train replies of every node whose
    app has `lightdp.flower.mod` or `record_mod`. The mod enforces it on the node, whatever this class does.

    Metrics of each round: `lightdp-epsilon` (the largest ε that a client has spent so far, at the plan's δ),
    `lightdp-mu` (the μ of Gaussian noise with this ε at this δ; with whole batches the training is μ-GDP so far),
    `lightdp-used` (uploads of this round in the sum), `lightdp-joined` (late uploads of the round before in the sum,
    under grace), `lightdp-late` (uploads seen too late so far), and in the last round `lightdp-stopped` (1 if the
    training ended early).

    Args:
        strategy: the inner strategy. Under "repair" its update must be linear, so that later rounds can take the noise
            that stragglers leave out of the model again (R3): FedAvg, FedProx, FedAvgM, or with `linear=True` one of
            your own.
        plan: made by `lightdp.plan`; clients recompute it from its arguments.
        linear: whether the update of an unknown strategy is linear in the mean, with fixed coefficients.
        wait: seconds to wait for nodes: in the key round, for an evaluation, or until enough have caught up.
        patience: how many void rounds in a row end the training, and how many of its rounds in a row a client may miss
            before it is left out.
        pins: the identities of all nodes that may enrol, as `lightdp.Pins`. Without them the first node to use a name
            has it, and keeps the one whose name it is out of the run.
        consecutive: rounds of a roster's turn, where several take turns.
        least: how many clients are enough for a roster if no more have come after `wait` seconds, at the start or
            beside rosters that train; by default the plan's `clients`. Its plan follows by `Plan.among`.
        trained: names of the arrays that are trained, or what stands before a dot or slash in them; by default all
            float arrays. The others go to the nodes and stay as they are.
        checkpoint: a file that `start` keeps up to date, durably, after each round and before anything of it is
            announced. After a crash the same `start` goes on from it, with the same clients under the same names,
            whatever their nodes' ids; the round that was open is void. It also goes on after an early end, unless the
            budget was used up: then there were no closing rounds. A training that has ended is not trained again.
            One server at a time uses the file, and holds a lock next to it.
        log: a new file for the run log of `start`, which `lightdp report` and `lightdp audit` read.

    Attributes:
        strategy: the inner strategy, whose attributes and methods are also those of this one where it has none of its
            own, to read and to set. A `fraction_train` or `min_train_nodes` that does not fit the plan is refused.
        plan: as given.
        accountant: an `Accountant`, which adds up all starts; None for plans of unit "record".
        stopped: why the training ended early; None if it did not.
        result: of the last start, as far as it came: what was trained is here also if it was interrupted.

    Raises:
        ArgumentError: strategy and plan cannot work together, or another argument is wrong.
        ProtocolError: the plan assumes that late uploads stay unseen.
    """

    def __init__(
        self,
        strategy: Strategy,
        plan: Plan,
        *,
        linear: bool = False,
        wait: float = 300.0,
        patience: int = 3,
        pins: Pins | None = None,
        least: int | None = None,
        consecutive: int = 1,
        trained: Sequence[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(strategy, LightDP):
            raise ArgumentError("strategy must not be a LightDP itself")
        refuse(strategy, plan, linear=linear)
        self.strategy, self.plan = strategy, plan
        self.wait, self.patience = positive("wait", wait), integer("patience", patience, 1)
        self.accountant = Accountant(plan) if plan.unit == "client" else None
        self.result = Result()
        self._log, self._checkpoint = _file("log", log), _file("checkpoint", checkpoint)
        if self._log is not None and self._log.exists() and not (self._checkpoint and self._checkpoint.exists()):
            raise ArgumentError(f"log must be a new file in a folder that exists, got log={str(self._log)!r}")
        if least is not None:
            plan.request.among(integer("least", least, 2, plan.clients))  # refuses what could never be formed
        self._engine = Engine(
            strategy, plan, wait=self.wait, patience=self.patience, pins=pins, least=least, trained=trained,
            consecutive=integer("consecutive", consecutive, 1), accountant=self.accountant,
        )  # fmt: skip

    @property
    def stopped(self) -> str | None:
        """Why the training ended early; None if it did not."""
        return self._engine.stopped

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the inner strategy has
        if name.startswith("_") or "strategy" not in vars(self):
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: object) -> None:
        if "_engine" in vars(self) and name in _FIXED:
            raise ArgumentError(f"{name} must be given to LightDP(...), and cannot be changed afterwards")
        if self._is_own(name):
            super().__setattr__(name, value)
            return
        before = getattr(self.strategy, name)
        setattr(self.strategy, name, value)
        try:
            check_sampling(self.strategy, self.plan)
        except ArgumentError:
            setattr(self.strategy, name, before)
            raise

    def _is_own(self, name: str) -> bool:
        """Whether an attribute is set here: also one that the inner strategy does not have."""
        own = vars(self)
        if "_engine" not in own or name.startswith("_") or name in own or hasattr(type(self), name):
            return True
        return not hasattr(self.strategy, name)

    def privacy_spent(self) -> PrivacySpent | None:
        """What was spent so far, in the form that Flower's own wrappers return; None for plans of unit "record"."""
        return None if self.accountant is None else self.accountant.get_privacy_spent()

    def summary(self) -> None:
        """Log the plan and the inner strategy."""
        for line in str(self.plan).splitlines():
            LOG.info("\t│ %s", line)
        self.strategy.summary()
        LOG.info("\t│ lightdp: all updates have the same weight, whatever key the line above names")

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
        """Train: a key round, then rounds of one message to each client of a roster and one back.

        Each start is a federation of its own and spends a budget of its own, which the accountant adds up, unless it
        goes on from a checkpoint. Loops of your own have no checkpoint and no log.

        Args:
            grid: as in Flower.
            initial_arrays: the model; float arrays of at most 64 bits are trained, integer arrays stay as they are.
            num_rounds: by default the plan's.
            timeout: seconds after which a round ends without the clients that have not answered.
            train_config: as in Flower.
            evaluate_config: as in Flower.
            evaluate_fn: as in Flower.

        Raises:
            ProtocolError: the key round failed, and nothing was spent; no upload was used in any round; or all nodes
                refuse for the same reason, other than their budget. The message says what nodes answered; `result` has
                what was trained until then.
        """
        rounds = self.plan.rounds if num_rounds is None else integer("num_rounds", num_rounds, 0)
        self.result = Result(arrays=initial_arrays)
        self._engine.reset()
        Training(
            self, self._engine, grid, rounds=rounds, timeout=timeout, evaluate=evaluate_fn,
            train_config=ConfigRecord() if train_config is None else train_config,
            evaluate_config=ConfigRecord() if evaluate_config is None else evaluate_config,
            log=self._log, checkpoint=self._checkpoint,
        ).run()  # fmt: skip
        return self.result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The messages of the inner strategy, with the announcement of the round; none once the training must end."""
        return self._engine.configure(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord]:
        """The sum of the uploads that came, passed through the inner strategy; no arrays if the model is as it was.

        That is so where there is no sum, unless `configure_train` has closed a roster, whose repairs are in the model.

        Under grace, uploads of the round before that came since are in the sum. If too few came in time there may be
        no sum yet: what came is then in the next one, if enough of the round have come by then.
        """
        return self._engine.aggregate(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the inner strategy, untouched; none if it finds too few nodes for `wait` seconds."""
        try:
            narrow = cast("Grid", Narrow(grid, self.wait))
            return self.strategy.configure_evaluate(server_round, arrays, config, narrow)
        except NoNodesError as error:
            LOG.warning("lightdp: evaluation of round %d left out: %s", server_round, error)
            return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the inner strategy does; None where it fails, as Flower's own do if one node's reply has other metrics."""
        try:
            return self.strategy.aggregate_evaluate(server_round, replies)
        except Exception as error:  # noqa: BLE001  replies come from nodes, and their loss costs no model
            LOG.warning("lightdp: evaluation of round %d left out: %s", server_round, said(repr(error)))
            return None

    def close(self, arrays: ArrayRecord, timeout: float = 3600) -> ArrayRecord:
        """The closing rounds: they take what stragglers left out of the model, without data (R4), (R5).

        `start` ends with them; call it at the end of a loop of your own.

        Args:
            arrays: the trained model.
            timeout: seconds after which a closing round ends.
        """
        return self._engine.close(arrays, timeout)
