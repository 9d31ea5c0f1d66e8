"""A run, round by round: arrivals, local work, the noisy sum, the server's step.

`Run` puts the parts together: `lightdp.training.arrivals` says who comes to a round, `lightdp.training.clients` has
their updates, `lightdp.training.channel` makes the noisy sum of them, and `lightdp.training.step` is the server's step.
Each round belongs to a roster: `lightdp.training.membership` says to which, and counts what it cost each client. Then a
line goes to the log (`lightdp.runlog`). All that a round changes is one `State`, which `lightdp.training.checkpoint`
keeps in a file.

Own data is a `lightdp.Dataset`, an own model any `torch.nn.Module` that gives logits; examples/own_model.py trains one.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightdp.client_set import ClientSet, bitmap_size
from lightdp.errors import ArgumentError, BudgetError
from lightdp.planning import Plan
from lightdp.runlog import Ended, Line, LogWriter, Round, RunLog, Started, refuse_used
from lightdp.training import (
    bounds,
    checkpoint,
    data,
    gradients,
    identity,
    models,
    own,
    partition,
    rounds,
    statement,
    step,
    weights,
)
from lightdp.training.arrivals import Arrivals, arrivals
from lightdp.training.channel import channels
from lightdp.training.checkpoint import State
from lightdp.training.clients import Clients, Piece
from lightdp.training.config import Config
from lightdp.training.identity import Identity
from lightdp.training.membership import Membership
from lightdp.training.roster import Roster
from lightdp.wire import digest

_CHECKPOINT_SECONDS = 60.0


class Run:
    """One training. `Run(config, path).finish()` returns its log; `lines()` yields the lines of the log one by one.

    The log is written to `path`, a checkpoint beside it, before the first round, about once a minute and at an
    interrupt. With `resume` a run goes on from its last checkpoint and, in "distribution" fidelity, to the same log bit
    by bit; "protocol" draws new noise by design and cannot go on. Modelled seconds are measured, so they are never the
    same twice. A log or a checkpoint that is there already is not overwritten, unless `overwrite` says so.

    Guarantee: no client's ε exceeds the budget of the plan, for every set of stragglers. Clients that the next round
    could take over it stay away, and the training ends when more than S̄ of them do (R8); where members come and go,
    when too few are left for a roster. Runs for which `Config.unbounded` holds have no such bound; their log states
    what they spent.

    >>> from pathlib import Path
    >>> import lightdp
    >>> config = lightdp.Config(clients=5, colluders=1, stragglers=1, rounds=3, epsilon=8.0)
    >>> log = lightdp.Run(config, Path("run.jsonl")).finish()
    >>> len(log.rounds), log.epsilon <= 8
    (3, True)

    Own arrays and an own module, whose weights after the last round are kept in a file:

    >>> import numpy as np
    >>> import torch
    >>> y = np.arange(200) % 2
    >>> x = np.stack([y, 1 - y, y], axis=1).astype(np.float32)
    >>> mine = lightdp.Dataset(name="mine", train_x=x, train_y=y, test_x=x, test_y=y, classes=2)
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    >>> run = lightdp.Run(config, Path("mine.jsonl"), dataset=mine, module=net)
    >>> run.finish().data, run.model is net
    ('mine', True)
    >>> run.save("mine.pt")
    >>> again = lightdp.Config(clients=5, colluders=1, stragglers=1, rounds=3, epsilon=8.0, start="mine.pt")
    >>> lightdp.Run(again, Path("again.jsonl"), dataset=mine, module=net).identity["start"]["file"]
    'mine.pt'

    Args:
        config: the settings. Of an own module, `model` says nothing but how records are prepared: features if it
            begins with "scattering", else the records themselves.
        path: the file of the log.
        resume: go on from the checkpoint, with the same data, module and start.
        overwrite: whether a log and a checkpoint of another run may be overwritten.
        dataset: the data; None loads what `config` names.
        prepared: training and test records of `dataset` as `models.prepare` gives them, which saves making them again
            for each of many runs.
        module: the model, which is trained in place; None builds what `config` names. It gives one logit for each class
            of the data, for each record by itself: no BatchNorm, no Dropout in training mode.

    Attributes:
        plan: the noise; None for none.
        state: after the last round that is over.
        clients: their records, and the updates they compute.
        members: the rosters, each with its noise, and what each client has spent.
        model: the module. After `finish` it has the weights whose accuracy the log ends with.
        bounds: of columns whose bounds are private, once the first rounds have found them.
        identity: names and digests of the data, the module and the start.

    Raises:
        ArgumentError: there is no such data, model, start or device, no noise that gives what was asked for, no
            checkpoint to resume from, or a log that was not to be overwritten; or data or module do not fit.
    """

    def __init__(
        self, config: Config, path: Path | str, *, resume: bool = False, overwrite: bool = False,
        dataset: data.Dataset | None = None, prepared: tuple[torch.Tensor, torch.Tensor] | None = None,
        module: torch.nn.Module | None = None,
    ) -> None:  # fmt: skip
        path = Path(path)
        self.config, self.path, self.resume, self.overwrite = config, path, resume, overwrite
        self.checkpoint = path.with_suffix(".checkpoint")
        if resume and config.fidelity == "protocol":
            raise ArgumentError(
                "resume needs fidelity='distribution': real clients draw noise that cannot be made again"
            )
        if resume and not self.checkpoint.exists():
            raise ArgumentError(f"resume needs the checkpoint {self.checkpoint}, which does not exist")
        if not resume and not overwrite:
            refuse_used(path, self.checkpoint)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if config.device == "cuda" != device:
            raise ArgumentError("device must be one that torch can use here, got device='cuda'")
        self.device = torch.device(device if config.device == "auto" else config.device)
        # who holds which records
        folder = None if config.data_path is None else Path(config.data_path)
        source = data.load(config.data, folder, config.layout) if dataset is None else own.dataset(dataset)
        persons = config.unit == "person"
        parts = partition.of_owners(source, config.members, config.partition, config.seed, persons=persons)
        self.partition = partition.summary(source.train_y, parts, source.classes) | _named(source)
        train_x, test_x = (None, None) if prepared is None else prepared
        self.clients = Clients.of(config, source, parts, self.device, train_x)
        self.partition |= {"names": list(source.client_names)} if config.partition == "natural" else {}
        self.partition |= {"persons": self.clients.units} if persons else {}
        self.notes = (*source.notes, *bounds.notes(config, source))
        self.schema, self.built = source.schema, config.model if module is None else None
        self.test_clients = (source.client_names, source.test_client)
        if test_x is None:
            test_x = models.prepare(config.model, _tensor(source.test_x), self.device, mirror=config.mirror)
        self.test_x, self.test_y = test_x, _tensor(source.test_y).to(self.device)
        self.search = bounds.Search.of(config, source, test_x)
        self._scale(())
        own.crops(config, self.clients.x)
        # the model
        if module is None:
            self.model = models.build(config.model, tuple(test_x.shape[1:]), source.classes, config.seed)
        else:
            self.model = own.module(module, config, self.clients.x, self.clients.y, source.classes)
        self.identity: Identity = {
            "dataset": identity.of_dataset(source),
            "module": identity.of_module(self.model, config.model if module is None else None),
            "start": None if config.start is None else self._begin(Path(config.start), source.classes),
        }
        first = gradients.flatten(self.model.to(self.device))
        self.parameters = len(first)
        self.head = 0 if config.head_rounds == 0 else sum(p.numel() for p in models.last(self.model).parameters())
        counts = first.new_zeros(self.search.width) if self.search.names else None
        self.state = State(first, torch.zeros_like(first), first.clone(), counts=counts)
        length = self.parameters + self.search.width
        # noise, what it guarantees, and who comes
        self.sizes = self.clients.units
        self.plan: Plan | None = config.plan(sum(self.sizes), length, min(self.sizes))
        self.network: Mapping[str, Any] | None = None
        self.bytes_up = 0.0
        self.arrivals = functools.cache(self._law)
        self.arrivals(config.clients)  # or there are none
        self._channels = channels(config, self.plan, length, self.device, self._given)
        self.members = Membership(config, self.plan, self._roster)

    def _begin(self, path: Path, classes: int) -> dict[str, Any]:
        """Take the weights of a file, and return what the log says of it."""
        file = weights.read(path)
        return identity.of_start(file, weights.begin(self.model, file, classes))

    def save(self, path: Path | str, *, overwrite: bool = False) -> None:
        """Keep the model in a file, with the weights that `evaluate` evaluates.

        Guarantee: the file is whole or not there, also after a crash, and never replaces another unasked.

        Args:
            path: a .safetensors or .pt file; `start` takes it, as does `torch.nn.Module.load_state_dict`. A
                .safetensors file also has what it takes to use the model, as JSON in two facts: "table" has the label,
                the classes, the columns in the order of features, and the name of a built-in model; "bounds" has those
                that were found privately: the model takes a number x of such a column as
                2 (x - low)/(high - low) - 1, moved to -1 or 1 beyond them and 0 if it is missing. What is not public,
                as with columns="statistics", is left out, and then there is no "table".
            overwrite: whether it may replace a file.

        Raises:
            ArgumentError: the name ends otherwise, or there is such a file that may not be replaced.
        """
        path = Path(path)
        gradients.assign(self.model, self.state.average)
        found = bounds.facts(self.bounds)
        facts = {} if found is None else {"bounds": json.dumps(found)}
        if self.schema is not None:
            facts["table"] = json.dumps({"model": self.built, **self.schema.to_dict()})
        kept = facts if facts and path.suffix == ".safetensors" else None
        weights.write(path, self.model, overwrite=overwrite, facts=kept)

    def _roster(self, number: int, members: tuple[int, ...], plan: Plan | None, stragglers: int) -> Roster:
        """A roster with a channel of its own; its sums are divided by the same number in every round (R3)."""
        made, config = self._channels(number, members, plan), self.config
        self.network, self.bytes_up = made.network, max(self.bytes_up, made.bytes_up)
        records = sum(self.sizes[client] for client in members)
        denominator = records * config.sampling_rate if config.sums else float(len(members))
        return Roster(number, members, plan, made, stragglers, denominator)

    def finish(self, watch: Callable[[Line], None] = lambda _: None) -> RunLog:
        """Run to the end, and return the log as it was written.

        Args:
            watch: called with each line but the last; by default nothing is shown meanwhile.
        """
        for _ in self.lines(watch):
            pass
        return RunLog.read(self.path)

    def lines(self, watch: Callable[[Line], None] = lambda _: None) -> Iterator[Line]:
        """Run to the end, the budget, or an interrupt; yield the first line, every round's and the last.

        Guarantee: an interrupt at any moment, in `watch` as well, leaves a checkpoint of all rounds that are over, and
        a log that `resume` goes on from.

        Args:
            watch: called with each line but the last.
        """
        saved = time.monotonic()
        stopped: str | None = None
        first = self._started()
        with self._opened() as log:
            begun = saved - self.state.seconds
            try:
                for line in log.kept or (log.write(first),):
                    watch(line)
                    yield line
                while self.state.round < self.config.rounds:
                    played, after = self._round()
                    if not isinstance(played, Round):
                        stopped, self.state = played, after
                        break
                    after.seconds = time.monotonic() - begun
                    line = log.write(
                        played
                    )  # before the round counts: one line too many is cut off again, a missing one not
                    self.state = after
                    watch(line)
                    yield line
                    if time.monotonic() - saved > _CHECKPOINT_SECONDS:
                        self._save()
                        saved = time.monotonic()
                self._close()
                self._save()
                yield log.write(self._ended(stopped))
            except KeyboardInterrupt:
                self._save()
                raise

    # one round, as the paper's algorithm

    def _round(self) -> tuple[Round | str, State]:
        """The line of a round, or why there is none, and the state after it, which is not yet that of the run."""
        config, state, number = self.config, self.state, self.state.round
        # 1. whose turn it is, and who comes: whose uploads are used, now or with the next sum, and whose come too late
        self.members.come_and_go(number)
        try:
            while (turn := self.members.next()) is not None and self.members.failing(turn[0]):
                state = self._closed(state, turn[0])
                self.members.close(turn[0])
        except BudgetError:
            return "budget", self._kept(state)
        if turn is None:
            return ("members", self._kept(state)) if self.members.hopeless else self._idle(state)
        roster = turn[0]
        came = self._arrived(number, *turn)
        # 2. local work: from the server's weights to clipped updates
        gradients.assign(self.model, state.weights)
        # 3. the noisy sum, for which the channel asks senders for their updates
        result = roster.channel.round(len(roster.came), came, lambda who: self._updates(number, roster, who))
        # 4. the server's step, and what the round cost
        rosters = self.members.rosters.values()
        after = step.stepped(config, state, roster, self._of_model(result.total), rosters, head=self.head)
        if number < self.search.rounds:
            after = self._counted(after, result.total)
        joined = rounds.joined(roster.came, config.grace_rounds, roster.members)
        roster.count(came, config.grace_rounds)
        self.members.played(roster, came.sent)
        variances = {"noise_std": result.lasting, "residual_std": result.residual}
        noise = {name: variance**0.5 / roster.denominator for name, variance in variances.items()}
        late, lost = roster.named(came.sent - came.used), roster.named(~came.sent)
        return self._line(after, roster, len(came.used), late, lost, **joined, **noise, **came.network)

    def _idle(self, state: State) -> tuple[Round, State]:
        """A round that no roster can have, since too few members are there."""
        after, nothing = dataclasses.replace(state, round=state.round + 1), {"noise_std": 0.0, "residual_std": 0.0}
        return self._line(after, None, 0, [], [], **nothing, **rounds.joined([], self.config.grace_rounds))

    def _line(
        self,
        after: State,
        roster: Roster | None,
        used: int,
        late: list[int],
        lost: list[int],
        **more: Any,  # noqa: ANN401  as `Round`
    ) -> tuple[Round, State]:
        """The line of a round, and the state after it with what a checkpoint needs of the members."""
        config = self.config
        looked = after.round % config.evaluate_every == 0 or after.round == config.rounds
        accuracy, loss = self.evaluate(after) if looked else (None, None)
        spent = self.members.max_epsilon() if looked or config.sampling_rate == 1 else None  # sampled, it takes a while
        line = Round(
            round=after.round, used=used, late=len(late), lost=len(lost), late_clients=late, lost_clients=lost,
            accuracy=accuracy, loss=loss if loss is not None and math.isfinite(loss) else None,  # JSON has no NaN
            epsilon=spent, mu=statement.mu(self.plan, spent), **more, **self.members.facts(roster),
        )  # fmt: skip
        return line, self._kept(after)

    def _kept(self, state: State) -> State:
        return dataclasses.replace(state, members=self.members.state())

    def _arrived(self, number: int, roster: Roster, exhausted: ClientSet) -> Arrivals:
        """Who came to a round, without clients that are away or have used up their budgets, and what is lost."""
        came = self.arrivals(len(roster.members))(number + 1)
        if self.config.federated and self.config.arrivals != "uniform":
            came = came.among(roster.members)
        return roster.channel.meet(number, came.without(exhausted | ~self.members.present(roster), roster.least))

    def _law(self, clients: int) -> Callable[[int], Arrivals]:
        """From the number of a round, from 1, to who comes of the members of a roster of so many.

        Where members change rosters, arrivals that say of each client by itself whether it comes are those of all
        members, whichever roster they are in.
        """
        config, bound = self.config, min(self.config.stragglers, clients - 2)
        if config.federated and config.arrivals != "uniform":
            clients = bound = config.members
        return arrivals(
            config.arrivals, clients=clients, bound=bound, seed=config.seed, late_seen=config.late_seen,
            late_by_one=config.late_by_one, grace=config.grace_rounds,
        )  # fmt: skip

    def _updates(self, number: int, roster: Roster, who: Sequence[int]) -> Iterator[Piece]:
        """The updates of members of a roster, with their places in it."""
        bound = math.inf if roster.plan is None else roster.plan.upload_range
        clients = roster.named(who)
        pieces = (
            self.clients.histograms(number, clients, bound)
            if number < self.search.rounds
            else self.clients.updates(self.model, number, clients, bound)
        )
        for piece, rows in pieces:
            yield [roster.place[client] for client in piece], self.search.laid_out(rows, number, self.parameters)

    def _given(self) -> bytes:
        """The hash of what clients of this round train from, all of which came from the server: weights and bounds."""
        return digest(gradients.flatten(self.model).cpu().numpy(), json.dumps(bounds.facts(self.bounds)).encode())

    def _of_model(self, total: torch.Tensor | None) -> torch.Tensor | None:
        """A sum without the coordinates of histograms, which come last."""
        return None if total is None else total[: self.parameters]

    def _counted(self, after: State, total: torch.Tensor | None) -> State:
        """The state after a round that finds bounds; after the last of them, features are scaled by these."""
        if total is not None and after.counts is not None:
            after.counts = after.counts + total[self.parameters :]
        self._scale(self.search.found(after.counts, after.round))
        return after

    def _scale(self, found: tuple[bounds.Bounds, ...]) -> None:
        """Scale features by the bounds that were found; before that, they are 0."""
        self.bounds = found
        if self.search.test is not None:
            self.clients = self.clients.scaled(found)
            self.test_x = self.search.test.scaled(self.test_x, found)

    def _close(self) -> None:
        """Close all rosters."""
        state = self.state
        for roster in self.members.rosters.values():
            state = self._closed(state, roster)
        self.state = self._kept(state)

    def _closed(self, state: State, roster: Roster) -> State:
        """Take in late uploads of a roster's last round, and the closing rounds of a plan that repairs."""
        if self.config.grace_rounds == 0 and (roster.plan is None or not roster.plan.repairs):
            return state
        total = roster.channel.close(len(roster.came), self.members.present(roster))
        state = step.mended(self.config, state, roster, self._of_model(total))
        roster.settle()
        return state

    def evaluate(self, state: State | None = None) -> tuple[float, float]:
        """Accuracy and loss of averaged weights on the test set.

        Args:
            state: whose weights; None for those of now.
        """
        gradients.assign(self.model, (self.state if state is None else state).average)
        hits, loss = 0, 0.0
        with torch.no_grad():
            for x, y in self._test_pieces():
                scores = self.model(x)
                hits += int((scores.argmax(dim=1) == y).sum())
                loss += float(torch.nn.functional.cross_entropy(scores, y, reduction="sum"))
        return hits / len(self.test_y), loss / len(self.test_y)

    def accuracy_by_client(self) -> dict[str, float] | None:
        """Accuracy on the test records of each client that has some, by its name; None where clients are drawn."""
        names, held = self.test_clients
        if held is None or self.config.partition != "natural":
            return None
        gradients.assign(self.model, self.state.average)
        with torch.no_grad():
            right = torch.cat([self.model(x).argmax(dim=1) == y for x, y in self._test_pieces()]).cpu().numpy()
        return {name: float(right[held == at].mean()) for at, name in enumerate(names) if (held == at).any()}

    def _test_pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Test records and their labels, as many at once as the model is given."""
        size = models.EVALUATION_BATCH
        return zip(self.test_x.split(size), self.test_y.split(size), strict=True)

    # log and checkpoints

    def _started(self) -> Started:
        return Started(
            config=dataclasses.asdict(self.config), plan=None if self.plan is None else self.plan.to_dict(),
            versions=statement.versions(), commit=statement.commit(), partition=self.partition,
            parameters=self.parameters, device=str(self.device), network=self.network, **self.identity,
        )  # fmt: skip

    def _ended(self, stopped: str | None) -> Ended:
        config, plan, spent = self.config, self.plan, self.members.max_epsilon()
        down = 4 * self.parameters + (1 + config.grace_rounds) * bitmap_size(config.clients)
        budget, delta = (None, None) if plan is None else (plan.budget, plan.delta)
        found = bounds.facts(self.bounds)
        seen = [] if config.federated else [*map(rounds.final, self.members.rosters[0].came)]
        return Ended(
            accuracy=self.evaluate()[0], epsilon=spent, mu=statement.mu(plan, spent),
            epsilon_claimed=budget, delta=delta,
            unit=config.unit, adjacency=config.adjacency, rounds=self.state.round, stopped=stopped,
            bytes_up=self.bytes_up, bytes_down=down, seconds=self.state.seconds,
            statement=statement.statement(config, plan, spent, seen, found), bounds=found,
            accuracy_clients=self.accuracy_by_client(), **self.members.ending(),
        )  # fmt: skip

    def _save(self, *, replace: bool = True) -> None:
        """Write a checkpoint, unless the run cannot go on from one."""
        if self.config.fidelity != "protocol":
            checkpoint.write(self.checkpoint, self.config, self.plan, self.identity, self.state, replace=replace)

    def _opened(self) -> LogWriter:
        """A new log beside a checkpoint; or, to resume, that of the checkpoint, cut back to it, once it is taken up.

        The checkpoint is there before the log, so that a run can go on however early it is killed. What is overwritten
        loses its log first: a checkpoint never lies beside the log of another run.
        """
        if self.resume:
            state = checkpoint.read(self.checkpoint, self.config, self.plan, self.identity, self.device)
            begun = state.round > 0 or (self.path.exists() and b"\n" in self.path.read_bytes())
            log = LogWriter(self.path, keep=state.round if begun else None)
            self.state = state
            self._scale(self.search.found(state.counts, state.round))
            self.members.load(state.members)
            return log
        if self.overwrite:
            self.path.unlink(missing_ok=True)
            self.checkpoint.unlink(missing_ok=True)
        else:
            refuse_used(self.path, self.checkpoint)
        self._save(replace=False)
        return LogWriter(self.path, replace=False)


def _named(source: data.Dataset) -> dict[str, Any]:
    """The names of the classes, where the data have some."""
    return {} if source.schema is None else {"classes": list(source.schema.classes)}


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    """An array, whatever its strides, and whether or not it may be written to."""
    return torch.from_numpy(np.require(array, requirements=("C", "W")))
