"""The rounds behind a strategy: rosters, their messages through the inner strategy, their sums and their end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from lightdp._validate import counted, rounded_up
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.federation import Federation, Table
from lightdp.flower import _arrays, _bound
from lightdp.flower._accountant import Accountant
from lightdp.flower._grid import Narrow, all_of_them
from lightdp.flower._metrics import Inner
from lightdp.flower._run import Run, Taken
from lightdp.flower._settings import KEY, LOG
from lightdp.keys import Pins
from lightdp.planning import Plan


class Engine:
    """The rounds of one start after the other; arguments as for `LightDP`.

    Attributes:
        strategy: the inner strategy.
        stopped: why the training ended early; None if it did not.
        ending: the same in a word, for the run log.
        save: called with the model and the numbers of rosters of which a round may be announced next, whenever
            something must be kept before that.
    """

    def __init__(
        self, strategy: Strategy, plan: Plan, *, wait: float, patience: int, pins: Pins | None, least: int | None,
        trained: Sequence[str] | None, consecutive: int, accountant: Accountant | None,
    ) -> None:  # fmt: skip
        self.strategy, self.plan, self.wait, self.patience = strategy, plan, wait, patience
        self._pins, self._least, self._trained, self._accountant = pins, least, trained, accountant
        self._consecutive = consecutive
        self._inner = Inner(strategy)
        self.reset()

    def reset(self) -> None:
        """Begin anew: the next round is of a new federation."""
        self.stopped: str | None = None
        self.ending: str | None = None
        self.save: Callable[[ArrayRecord, list[int]], None] = lambda *_: None
        self._kept: tuple[int, int] | None = None  # the roster and round that may be announced after the last save
        self._past: Mapping[str, Any] | None = None  # of a training to go on with
        self._run: Run | None = None
        self._table: Table | None = None
        self._sent: list[Message] = []
        self._arrays = ArrayRecord()
        self._last = 0  # the last round that was configured
        self._settled: tuple[ArrayRecord, ArrayRecord] | None = None  # the model before and after rosters were closed

    def resume(self, facts: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint has kept."""
        self._past = facts
        if facts["finished"]:
            self.stopped, self.ending = facts["stopped"], facts["ending"]
        self._last = max(map(int, facts["rows"]["train_metrics_clientapp"]), default=0)

    def configure(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """As `LightDP.configure_train`."""
        self.open(arrays, config, grid)
        before, arrays = arrays, self.settle(arrays)
        self._settled = before, arrays
        table = None if self.must_stop() else self._ready()
        if table is None:
            return []
        nodes = sorted(self.opened.nodes(table))
        narrow = cast("Grid", Narrow(grid, self.wait, nodes))
        with all_of_them(self.strategy, len(nodes)):
            messages = list(self.strategy.configure_train(server_round, arrays, config, narrow))
        addressed = sorted(message.metadata.dst_node_id for message in messages)
        if addressed != nodes:
            raise ArgumentError(f"strategy must train every client of the roster, once; got {addressed}")
        trained = {message.metadata.dst_node_id: self._named(message.content, arrays) for message in messages}
        if table.server.plan.masks.kind == "drawn" and not _bound.alike(messages, list(trained.values())):
            raise ArgumentError(
                "strategy must send all nodes the same arrays and configuration under drawn masks, which cancel only "
                "among nodes that were given the same (B2): take lightdp.plan(masks='gaussian', ...)"
            )
        self._sure(arrays, table)
        orders = self.opened.orders(table, self.wait)
        messages = [message for message in messages if message.metadata.dst_node_id in orders]
        for message in messages:
            order = orders[message.metadata.dst_node_id]
            if (names := trained[message.metadata.dst_node_id]) is not None:
                order["trained"] = names
            message.content = RecordDict({**message.content, KEY: order})
        self._table, self._sent, self._arrays, self._last = table, messages, arrays, server_round
        return messages

    def aggregate(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord]:
        """As `LightDP.aggregate_train`."""
        run, plan, table = self.opened, self.plan, self._table
        if table is None:
            raise ProtocolError("aggregate_train comes after configure_train")
        taken = result, _ = run.take(table, self._sent, replies)
        several = run.federation.cohorts.next_number > 1
        name = f"round {server_round}{f' of roster {table.number}' if several else ''}"
        if not result.used:
            then = "was void" if not plan.grace else "waits for uploads that come during the next one"
            LOG.warning("lightdp: %s %s: fewer than %s came", name, then, counted(table.server.minimum, "upload"))
        before, settled = self._settled or (None, None)
        arrays, metrics = None if settled is before else settled, MetricRecord()  # what rosters that were closed left
        if result.total is not None:
            arrays, metrics = self._through(server_round, taken)
        spent, used, joined = run.spent(), len(result.used), len(result.joined)
        metrics.update(spent | {"lightdp-used": used, "lightdp-joined": joined})
        line = "lightdp: %s used %d of %s%s; ε = %s of %g at δ = %g spent, %s"
        more = f" and {counted(joined, 'upload')} of the round before" if plan.grace else ""
        epsilon, mu = spent["lightdp-epsilon"], spent["lightdp-mu"]
        words = f"{'' if plan.gdp else 'at this δ as with '}μ = {rounded_up(mu)}"
        asked = counted(len(table.names), "client")
        LOG.info(line, name, used, asked, more, rounded_up(epsilon), plan.budget, plan.delta, words)
        return arrays, metrics

    @property
    def opened(self) -> Run:
        """The server of the run that `configure_train` has opened."""
        if self._run is None:
            raise ProtocolError("aggregate_train comes after configure_train")
        return self._run

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
        for number in run.federation.failing():
            LOG.info("lightdp: roster %d is closed: it %s", number, run.why_closed(number))
            arrays = self._closed(run.federation.rosters[number], arrays, self.wait if timeout is None else timeout)
            run.federation.end(number)
        rosters = run.federation.cohorts.next_number
        if self.stopped is None and not run.form(self.wait):
            self._stop(run.nobody_left())
        if run.federation.cohorts.next_number > rosters:
            self.keep(arrays, run.federation.turn())  # before anything is sent to their members
        return arrays

    def _ready(self) -> Table | None:
        """The roster whose turn it is. One of which too few nodes are connected misses its turn, which costs nobody."""
        federation, cohorts = self.opened.federation, self.opened.federation.cohorts
        tables = [federation.rosters[number] for number in cohorts.order]
        here = {table.number: self.opened.connected(table) for table in tables}
        ready = next((table for table in tables if len(here[table.number]) >= table.server.minimum), None)
        while ready is not None and (table := federation.turn()) is not None and table is not ready:
            found, least = len(here[table.number]), table.server.minimum
            LOG.info("lightdp: roster %d misses its turn: %d of at least %d nodes are here", table.number, found, least)
            cohorts.played(table.number, here[table.number])
        return federation.turn()

    def keep(self, arrays: ArrayRecord, table: Table | None) -> None:
        """Have everything saved.

        Args:
            arrays: the model.
            table: the roster of which a round may be announced next; after a crash this round is void.
        """
        self.save(arrays, [] if table is None else [table.number])
        self._kept = None if table is None else (table.number, table.server.round)

    def _sure(self, arrays: ArrayRecord, table: Table) -> None:
        """Have it saved that the next round of a roster may be announced."""
        if self._kept != (table.number, table.server.round):
            self.keep(arrays, table)

    def close(self, arrays: ArrayRecord, timeout: float) -> ArrayRecord:
        """As `LightDP.close`."""
        if self._settled is not None and arrays is self._settled[0]:
            arrays = self._settled[1]
        for table in list(self.opened.federation.rosters.values()):
            arrays = self._closed(table, arrays, timeout)
        self.opened.take_late()
        return arrays

    def trained(self, arrays: ArrayRecord) -> list[str]:
        """The names of the arrays that are trained, in the order of an update."""
        return _arrays.chosen(arrays, self._trained)

    def exchange(self, messages: list[Message], timeout: float) -> list[Message]:
        """Send the messages of `configure` and return the replies that come in time."""
        if self._table is None:
            raise ProtocolError("exchange comes after configure_train")
        return self.opened.exchange(self._table, messages, timeout)

    def open(self, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> None:
        """The key round, unless it is done."""
        if self._run is not None:
            return
        plan, key = self.plan, getattr(self.strategy, "configrecord_key", "config")
        options: dict[str, Any] = {"pins": self._pins, "least": self._least, "patience": self.patience}
        options["consecutive"] = self._consecutive
        if self._past is None:
            length = _arrays.length(arrays, self.trained(arrays))
            federation = Federation(plan, length=length, run=os.urandom(16), **options)
            wanted = max(plan.request.population or plan.clients, getattr(self.strategy, "min_available_nodes", 0))
            least = federation.cohorts.least
        else:
            federation = Federation.resume(self._past["federation"].encode(), plan, **options)
            rosters = federation.cohorts.rosters.values()
            wanted = len(federation.names) - sum(len(each.gone(self.patience)) for each in rosters)
            least = min((each.server.minimum for each in federation.rosters.values()), default=federation.cohorts.least)
        run = Run(federation, grid, {key: config})
        if self._past is not None:
            vars(run).update(self._past["counts"])
            run.void = 0 if self._past["stopped"] is not None else run.void  # nodes may be back
            self._run = run
            self.keep(arrays, None)  # the round that is void now stays so, and a failed key round adds none
        run.members.gather(self.wait, wanted=wanted, least=least)
        LOG.info("lightdp: key round done, %s enrolled", counted(len(federation.names), "client"))
        if self._accountant is not None:
            most = federation.length
            self._accountant.follow(lambda: max(federation.mu().values(), default=0.0), lambda: run.released, most)
        self._run = run

    def _closed(self, table: Table, arrays: ArrayRecord, timeout: float) -> ArrayRecord:
        """The model after the closing rounds of a roster."""
        run = self.opened
        for current in range(self._last + 1, self._last + 2 + self.plan.grace):
            if not run.must_close(table):
                break
            self._sure(arrays, table)
            orders = run.closing_orders(table)
            self._arrays = arrays
            sent = [Message(run.members.content(order), node, MessageType.TRAIN) for node, order in orders.items()]
            self._sent = sent or self._sent
            taken = result, _ = run.take(table, sent, run.exchange(table, sent, timeout), closing=True)
            if orders:
                clients = counted(len(orders), "client")
                LOG.info("lightdp: closing round, %d of %s repaired", len(result.used), clients)
            if result.total is not None:
                arrays = self._through(current, taken)[0] or arrays
            self.keep(arrays, table)
        return arrays

    def _through(self, server_round: int, taken: Taken) -> tuple[ArrayRecord | None, MetricRecord]:
        """Give received + mean to the inner strategy, as one reply of weight 1."""
        result, metrics = taken
        if result.total is None:
            return None, MetricRecord()
        names = None if self._trained is None else _arrays.chosen(self._arrays, self._trained)
        model = _arrays.moved(self._arrays, result.total, names, over=result.used.clients)  # by the mean (R3)
        content = self._inner.content(model, metrics)
        with self._inner.each(metrics):
            sent = self._sent[0] if self._sent else Message(RecordDict(), 0, MessageType.TRAIN)
            after, found = self.strategy.aggregate_train(server_round, [Message(content, reply_to=sent)])
        kept = None if after is None else _arrays.typed(after, self._arrays)
        return kept, MetricRecord() if found is None else found

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
