"""The server: a strategy that wraps another one, which sees the noisy mean instead of the updates of clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, PrivacySpent
from flwr.serverapp.strategy import Result, Strategy

from lightdp._validate import integer, positive, rounded_up
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.federation import Federation, Table
from lightdp.flower import _arrays
from lightdp.flower._accountant import Accountant
from lightdp.flower._grid import Narrow, NoNodesError, all_of_them
from lightdp.flower._journal import Journal
from lightdp.flower._metrics import Inner
from lightdp.flower._plans import refuse
from lightdp.flower._run import Run, Taken
from lightdp.flower._settings import KEY, LOG
from lightdp.flower._training import Training
from lightdp.keys import Pins
from lightdp.planning import Plan


class LightDP(Strategy):
    """Makes a strategy of Flower's message API private against its own server.

        strategy = LightDP(FedAvg(min_available_nodes=50), lightdp.plan(clients=50, ...))
        result = strategy.start(grid, initial_arrays=arrays, timeout=60)

    Each round, every client of the roster gets the train message of the inner strategy and answers with masked bytes,
    of which the server can read only the sum. The inner strategy gets `received arrays + noisy mean` as one reply of
    weight 1. The mean divides by the plan's number of clients in every round, however many straggled (R3).

    A round with fewer uploads than `clients - stragglers` is void and leaves the model as it is. Under a plan with
    grace=1, uploads that come during the next round are in its sum and count (R5); ε then counts the last round at its
    worst until its set is final, one round later. A client without
    budget for another round is a straggler from then on. More such clients than the plan's stragglers, or `patience`
    void rounds in a row, end the training with the model that it has.

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
        least: how many clients are enough for a roster if no more have come after `wait` seconds; by default the plan's
            `clients`. Its plan follows by `Plan.among`.
        trained: names of the arrays that are trained, or what stands before a dot or slash in them; by default all
            float arrays. The others go to the nodes and stay as they are.
        checkpoint: a file that `start` keeps up to date, durably, after each round and before anything of it is
            announced. After a crash the same `start` goes on from it, with the same clients under the same names,
            whatever their nodes' ids; the round that was open is void. A training that has ended is not trained again.
        log: a new file for the run log of `start`, which `lightdp report` and `lightdp audit` read.

    Attributes:
        strategy: the inner strategy, whose attributes and methods are also those of this one where it has none of its
            own.
        plan: as given.
        accountant: an `Accountant`, which adds up all starts; None for plans of unit "record".
        stopped: why the training ended early; None if it did not.
        result: of the last start, as far as it came: what was trained is here also if it was interrupted.

    Raises:
        ArgumentError: strategy and plan cannot work together.
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
        self.stopped: str | None = None
        self.ending: str | None = None  # the same in a word, for the run log
        self.result = Result()
        self._pins, self._log = pins, None if log is None else Path(log)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self._past: Mapping[str, Any] | None = None  # of a training to go on with
        self.save: Callable[[ArrayRecord], None] = lambda _: None  # keeps the model and all that was announced
        self._least, self._trained = least, trained
        self._inner = Inner(strategy)
        self._run: Run | None = None
        self._table: Table | None = None
        self._sent: list[Message] = []
        self._arrays = ArrayRecord()
        self._last = 0  # the last round that was configured

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the inner strategy has
        if name.startswith("_") or "strategy" not in vars(self):
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def privacy_spent(self) -> PrivacySpent | None:
        """What was spent so far, in the form that Flower's own wrappers return; None for plans of unit "record"."""
        return None if self.accountant is None else self.accountant.get_privacy_spent()

    def summary(self) -> None:
        """Log the plan and the inner strategy."""
        for line in str(self.plan).splitlines():
            LOG.info("\t│ %s", line)
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
        """Train with a new roster: a key round, then rounds of one message to each client and one back.

        Each start spends a budget of its own; the accountant adds them up.

        Args:
            grid: as in Flower.
            initial_arrays: the model; float arrays of at most 64 bits are trained, integer arrays stay as they are.
            num_rounds: by default the plan's.
            timeout: seconds after which a round ends without the clients that have not answered.
            train_config: as in Flower.
            evaluate_config: as in Flower.
            evaluate_fn: as in Flower.

        Raises:
            ProtocolError: the key round failed, and nothing was spent; or no upload was used in any round. The message
                says what nodes answered.
        """
        rounds = self.plan.rounds if num_rounds is None else integer("num_rounds", num_rounds, 0)
        training = Training(
            self, grid, rounds=rounds, timeout=timeout, evaluate=evaluate_fn, checkpoint=self._checkpoint,
            train_config=ConfigRecord() if train_config is None else train_config,
            evaluate_config=ConfigRecord() if evaluate_config is None else evaluate_config,
            journal=None if self._log is None else Journal(self._log, self.plan),
        )  # fmt: skip
        self.stopped, self.ending, self._run, self._past = None, None, None, None
        self.result = Result(arrays=initial_arrays)
        self.save = training.save
        training.run()
        return self.result

    def resume(self, facts: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint has kept; internal."""
        self._past, self.stopped, self.ending = facts, facts["stopped"], facts["ending"]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The messages of the inner strategy, with the announcement of the round; none once the training must end."""
        self.open(arrays, config, grid)
        arrays = self.settle(arrays)
        table = None if self.must_stop() else self.opened.federation.turn()
        if table is None:
            return []
        nodes = sorted(self.opened.nodes(table))
        narrow = cast("Grid", Narrow(grid, self.wait, nodes))
        with all_of_them(self.strategy, len(nodes)):
            messages = list(self.strategy.configure_train(server_round, arrays, config, narrow))
        addressed = sorted(message.metadata.dst_node_id for message in messages)
        if addressed != nodes:
            raise ArgumentError(f"strategy must train every client of the roster, once; got {addressed}")
        orders = self.opened.orders(table, self.wait)
        messages = [message for message in messages if message.metadata.dst_node_id in orders]
        for message in messages:
            order = orders[message.metadata.dst_node_id]
            if (names := self._named(message.content, arrays)) is not None:
                order["trained"] = names
            message.content = RecordDict({**message.content, KEY: order})
        self._table, self._sent, self._arrays, self._last = table, messages, arrays, server_round
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord]:
        """The sum of the uploads that came, passed through the inner strategy; no arrays if there is none.

        Under grace, uploads of the round before that came since are in the sum. If too few came in time there may be
        no sum yet: what came is then in the next one, if enough of the round have come by then.
        """
        run, plan, table = self.opened, self.plan, self._table
        if table is None:
            raise ProtocolError("aggregate_train comes after configure_train")
        taken = result, _ = run.take(table, self._sent, replies)
        if not result.used:
            then = "was void" if not plan.grace else "waits for uploads that come during the next one"
            LOG.warning("lightdp: round %d %s: fewer than %d uploads came", server_round, then, table.server.minimum)
        arrays, metrics = None, MetricRecord()
        if result.total is not None:
            arrays, metrics = self._through(server_round, taken)
        spent, used, joined = run.spent(), len(result.used), len(result.joined)
        metrics.update(spent | {"lightdp-used": used, "lightdp-joined": joined})
        line = "lightdp: round %d used %d of %d clients%s; ε = %s of %g at δ = %g spent, %s"
        more = f" and {joined} uploads of the round before" if plan.grace else ""
        epsilon, mu = spent["lightdp-epsilon"], spent["lightdp-mu"]
        words = f"{'' if plan.gdp else 'at this δ as with '}μ = {rounded_up(mu)}"
        asked = len(table.names)
        LOG.info(line, server_round, used, asked, more, rounded_up(epsilon), plan.budget, plan.delta, words)
        return arrays, metrics

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
        """As the inner strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    @property
    def opened(self) -> Run:
        """The server of the run that `configure_train` has opened; internal."""
        if self._run is None:
            raise ProtocolError("aggregate_train comes after configure_train")
        return self._run

    def _through(self, server_round: int, taken: Taken) -> tuple[ArrayRecord | None, MetricRecord]:
        """Give received + mean to the inner strategy, as one reply of weight 1."""
        result, metrics = taken
        names = None if self._trained is None else _arrays.chosen(self._arrays, self._trained)
        content = self._inner.content(_arrays.moved(self._arrays, result.mean(), names), metrics)
        with self._inner.each(metrics):
            after, found = self.strategy.aggregate_train(server_round, [Message(content, reply_to=self._sent[0])])
        kept = None if after is None else _arrays.typed(after, self._arrays)
        return kept, MetricRecord() if found is None else found

    def must_stop(self) -> bool:
        """Whether there must be no other round; `stopped` then says why. Counts late replies first."""
        self.opened.take_late()
        self._stop(self.opened.ending(self.patience))
        return self.stopped is not None

    def settle(self, arrays: ArrayRecord, timeout: float | None = None) -> ArrayRecord:
        """Close rosters that have lost more members than they can bear, and form new ones; returns the model after it.

        `start` and `configure_train` do it. If no roster is left, and none can be formed, the training must stop.

        Args:
            arrays: the model.
            timeout: seconds after which a closing round ends; `wait` by default.
        """
        run = self.opened
        for number in run.to_close():
            LOG.info("lightdp: roster %d has lost too many of its clients, or had all its rounds: it is closed", number)
            arrays = self._closed(run.federation.rosters[number], arrays, self.wait if timeout is None else timeout)
            run.federation.end(number)
        rosters = run.federation.cohorts.next_number
        if self.stopped is None and not run.form(self.wait):
            self._stop(run.nobody_left())
        if run.federation.cohorts.next_number > rosters:
            self.save(arrays)  # before anything is sent to their members
        return arrays

    def close(self, arrays: ArrayRecord, timeout: float = 3600) -> ArrayRecord:
        """The closing rounds: they take what stragglers left out of the model, without data (R4), (R5).

        `start` ends with them; call it at the end of a loop of your own.

        Args:
            arrays: the trained model.
            timeout: seconds after which a closing round ends.
        """
        for table in list(self.opened.federation.rosters.values()):
            arrays = self._closed(table, arrays, timeout)
        self.opened.take_late()
        return arrays

    def exchange(self, messages: list[Message], timeout: float) -> list[Message]:
        """Send the messages of `configure_train` and return the replies that come in time; internal."""
        if self._table is None:
            raise ProtocolError("exchange comes after configure_train")
        return self.opened.exchange(self._table, messages, timeout)

    def open(self, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> None:
        """The key round, unless it is done; internal."""
        if self._run is not None:
            return
        plan, key = self.plan, getattr(self.strategy, "configrecord_key", "config")
        options: dict[str, Any] = {"pins": self._pins, "least": self._least, "patience": self.patience}
        if self._past is None:
            length = _arrays.length(arrays, _arrays.chosen(arrays, self._trained))
            federation = Federation(plan, length=length, run=os.urandom(16), **options)
            wanted = max(plan.request.population or plan.clients, getattr(self.strategy, "min_available_nodes", 0))
            least = federation.cohorts.least
        else:
            federation = Federation.resume(self._past["federation"].encode(), plan, **options)
            rosters = federation.cohorts.rosters.values()
            wanted = len(federation.names) - sum(len(each.gone(self.patience)) for each in rosters)
            least = min((each.server.minimum for each in federation.rosters.values()), default=federation.cohorts.least)
        run = Run(federation, grid, {key: config})
        vars(run).update({} if self._past is None else self._past["counts"])
        run.members.gather(self.wait, wanted=wanted, least=least)
        LOG.info("lightdp: key round done, %d clients have enrolled", len(federation.names))
        if self.accountant is not None:
            self.accountant.follow(lambda: max(federation.mu().values(), default=0.0), lambda: run.released)
        self._run = run

    def _closed(self, table: Table, arrays: ArrayRecord, timeout: float) -> ArrayRecord:
        """The model after the closing rounds of a roster."""
        run = self.opened
        for current in range(self._last + 1, self._last + 2 + self.plan.grace):
            orders = run.closing_orders(table)
            if orders is None:
                break
            self._arrays = arrays
            sent = [Message(run.members.content(order), node, MessageType.TRAIN) for node, order in orders.items()]
            self._sent = sent or self._sent
            taken = result, _ = run.take(table, sent, run.exchange(table, sent, timeout), closing=True)
            if orders:
                LOG.info("lightdp: closing round, %d of %d clients repaired", len(result.used), len(orders))
            if result.total is not None:
                arrays = self._through(current, taken)[0] or arrays
            self.save(arrays)
        return arrays

    def _stop(self, ending: tuple[str, str] | None) -> None:
        if ending is not None and self.stopped is None:
            LOG.warning("lightdp: training ends early: %s", ending[1])
            self.ending, self.stopped = ending

    def _named(self, content: RecordDict, arrays: ArrayRecord) -> list[str] | None:
        """The arrays of a message that are trained, as nodes name them; None for all of them.

        The arrays that `start` was given are trained, or those of them that `trained` names. Other ArrayRecords of a
        message, such as control variates, are for the nodes alone.
        """
        records = content.array_records
        if self._trained is None and len(records) == 1:
            return None
        chosen = _arrays.chosen(arrays, self._trained)
        if len(records) == 1:
            return chosen
        own = [key for key, each in records.items() if each is arrays] or [
            key for key, each in records.items() if set(each) == set(arrays)
        ]
        if not own:
            raise ArgumentError(f"strategy must send the model in one of its ArrayRecords, got {list(records)}")
        return [f"{own[0]}/{name}" for name in chosen]
