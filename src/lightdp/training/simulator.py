"""A run, round by round: arrivals, local work, the noisy sum, the server's step.

`Run` puts the parts together: `lightdp.training.arrivals` says who comes to a round, `lightdp.training.clients` has
their updates, `lightdp.training.channel` makes the noisy sum of them, and the server's step is here. After each round
the odometer counts what it cost, and a line goes to the log (`lightdp.runlog`). All that a round changes is one
`State`, which `lightdp.training.checkpoint` keeps in a file; beside it only the odometer and the channel count on.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from lightdp.accountant import Odometer
from lightdp.client_set import bitmap_size
from lightdp.errors import ArgumentError, BudgetError
from lightdp.planning import Plan
from lightdp.runlog import Ended, Line, LogWriter, Round, RunLog, Started
from lightdp.training import checkpoint, data, gradients, models, partition, rounds, statement
from lightdp.training.arrivals import Arrivals, arrivals
from lightdp.training.channel import channel
from lightdp.training.checkpoint import State
from lightdp.training.clients import Clients
from lightdp.training.config import Config

_CHECKPOINT_SECONDS = 60.0


class Run:
    """One training. `Run(config, path).finish()` returns its log; `lines()` yields the lines of the log one by one.

    The log is written to `path`, a checkpoint beside it, about once a minute and at an interrupt. With `resume` a
    run goes on from its last checkpoint and, in "distribution" fidelity, to the same log bit by bit; "protocol" draws
    new noise by design and cannot go on. Modelled seconds are measured, so they are never the same twice.

    Guarantee: no client's ε exceeds the budget of the plan, for every set of stragglers. Clients that the next round
    could take over it stay away, and the training ends when more than S̄ of them do (R8). Runs for which
    `Config.unbounded` holds have no such bound; their log states what they spent.

    >>> from pathlib import Path
    >>> import lightdp
    >>> config = lightdp.Config(clients=5, colluders=1, stragglers=1, rounds=3, epsilon=8.0)
    >>> log = lightdp.Run(config, Path("run.jsonl")).finish()
    >>> len(log.rounds), log.epsilon <= 8
    (3, True)

    Args:
        config: the settings.
        path: the file of the log.
        resume: go on from the checkpoint.
        dataset: the data; None loads what `config` names.
        prepared: training and test records of `dataset` as `models.prepare` gives them, which saves making them again
            for each of many runs.
        module: the model; None builds what `config` names.

    Attributes:
        plan: the noise; None for none.
        state: after the last round that is over.
        odometer: what each client has spent; None without noise.
        arrivals: from the number of a round, from 1, to who comes.
        clients: their records, and the updates they compute.
        channel: from updates to the noisy sum.
        model: the module, with the weights that were used last.
        denominator: what a sum is divided by, the same in every round (R3).

    Raises:
        ArgumentError: there is no such data, model or device, no noise that gives what was asked for, or no checkpoint
            to resume from.
    """

    def __init__(
        self, config: Config, path: Path, *, resume: bool = False, dataset: data.Dataset | None = None,
        prepared: tuple[torch.Tensor, torch.Tensor] | None = None, module: torch.nn.Module | None = None,
    ) -> None:  # fmt: skip
        self.config, self.path, self.resume = config, path, resume
        self.checkpoint = path.with_suffix(".checkpoint")
        if resume and config.fidelity == "protocol":
            raise ArgumentError(
                "resume needs fidelity='distribution': real clients draw noise that cannot be made again"
            )
        if resume and not self.checkpoint.exists():
            raise ArgumentError(f"resume needs the checkpoint {self.checkpoint}, which does not exist")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if config.device == "cuda" != device:
            raise ArgumentError("device must be one that torch can use here, got device='cuda'")
        self.device = torch.device(device if config.device == "auto" else config.device)
        # who holds which records
        folder = None if config.data_path is None else Path(config.data_path)
        source = data.load(config.data, folder) if dataset is None else dataset
        parts = partition.split(source.train_y, config.clients, config.partition, config.seed)
        self.partition = partition.summary(source.train_y, parts, source.classes)
        train_x, test_x = (None, None) if prepared is None else prepared
        self.clients = Clients.of(config, source, parts, self.device, train_x)
        if test_x is None:
            test_x = models.prepare(config.model, torch.from_numpy(source.test_x), self.device, mirror=config.mirror)
        self.test_x, self.test_y = test_x, torch.from_numpy(source.test_y).to(self.device)
        # the model
        if module is None:
            self.model = models.build(config.model, tuple(test_x.shape[1:]), source.classes, config.seed)
        else:
            self.model = models.checked(module, test_x, source.classes)
        weights = gradients.flatten(self.model.to(self.device))
        self.parameters = len(weights)
        self.state = State(weights, torch.zeros_like(weights), weights.clone())
        # noise, what it guarantees, and who comes
        records, smallest = len(source.train_y), min(len(part) for part in parts)
        self.plan: Plan | None = config.plan(records, self.parameters, smallest)
        self.odometer = None if self.plan is None else Odometer(self.plan)
        self.unbounded = self.plan is None or config.unbounded
        self.arrivals = arrivals(
            config.arrivals, clients=config.clients, bound=config.stragglers, seed=config.seed,
            late_seen=config.late_seen, late_by_one=config.late_by_one, grace=config.patience,
        )  # fmt: skip
        self.channel = channel(config, self.plan, self.parameters, self.device)
        # the same denominator in every round (R3); the server descends along gradients, and follows updates
        self.denominator = records * config.sampling_rate if config.unit == "record" else float(config.clients)
        self.share = (-1.0 if config.unit == "record" else 1.0) / self.denominator

    def finish(self, watch: Callable[[Line], None] = lambda _: None) -> RunLog:
        """Run to the end, and return the log as it was written; `watch` as in `play`."""
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
        saved, stopped = time.monotonic(), None
        first = self._started()
        with self._opened() as log:
            begun = saved - self.state.seconds
            try:
                for line in log.kept or (log.write(first),):
                    watch(line)
                    yield line
                while self.state.round < self.config.rounds:
                    try:
                        line, after = self._round()
                    except BudgetError:
                        stopped = "budget"
                        break
                    after.seconds = time.monotonic() - begun
                    log.write(line)  # before the round counts: one line too many is cut off again, a missing one not
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

    def _round(self) -> tuple[Round, State]:
        """The line of a round, and the state after it, which is not yet that of the run."""
        config, number = self.config, self.state.round
        # 1. arrivals: whose uploads are used, now or with the next round's, and whose come too late
        came = self._arrived(number)
        # 2. local work: from the server's weights to clipped updates
        gradients.assign(self.model, self.state.weights)
        bound = math.inf if self.plan is None else self.plan.upload_range
        # 3. the noisy sum, for which the channel asks senders for their updates
        result = self.channel.round(number, came, lambda who: self.clients.updates(self.model, number, who, bound))
        # 4. the server's step
        after = self._stepped(result.total)
        after.came = [*self.state.came, rounds.came(came)]
        if self.odometer is not None:
            rounds.count(self.odometer, after.came, config.patience)
        looked = after.round % config.evaluate_every == 0 or after.round == config.rounds
        accuracy, loss = self.evaluate(after) if looked else (None, None)
        spent = self._spent(after) if looked or config.sampling_rate == 1 else None  # sampled, it takes a while
        late, lost = came.sent - came.used, ~came.sent
        return Round(
            round=after.round, used=len(came.used), late=len(late), lost=len(lost),
            accuracy=accuracy, loss=loss if loss is not None and math.isfinite(loss) else None,  # JSON has no NaN
            epsilon=spent, mu=statement.mu(self.plan, spent),
            late_clients=[*late], lost_clients=[*lost], **rounds.joined(self.state.came, config.patience),
            noise_std=result.lasting**0.5 / self.denominator, residual_std=result.residual**0.5 / self.denominator,
            **came.network,
        ), after  # fmt: skip

    def _arrived(self, number: int) -> Arrivals:
        """Who came to a round, without clients that have used up their budgets (R8) and what the network loses."""
        came, config = self.arrivals(number + 1), self.config
        if self.odometer is not None and not self.unbounded:
            away = self.channel.away(self.odometer.exhausted())
            if len(away) > config.stragglers:
                raise BudgetError(f"{len(away)} clients have used up their budgets")
            came = came.without(away, config.clients - config.stragglers)
        return self.channel.meet(number, came)

    def _stepped(self, total: torch.Tensor | None) -> State:
        """The state after the server's step, which is linear in the sum; without a sum only time goes on."""
        old, config = self.state, self.config
        after = dataclasses.replace(old, round=old.round + 1, channel=self.channel.state())
        if total is not None:
            decay = self._decay(old.round)
            after.velocity = (old.velocity * config.momentum).add_(total, alpha=self.share)
            after.weights = old.weights.add(after.velocity, alpha=config.lr)
            after.average = (old.average * decay).add_(after.weights, alpha=1 - decay)
        return after

    def _close(self) -> None:
        """Take in late uploads of the last round, and the closing rounds of a plan that repairs."""
        if self.config.patience == 0 and (self.plan is None or not self.plan.repairs):
            return
        self.state = self._mended(self.channel.close(self.state.round))
        if self.config.patience == 1 and self.odometer is not None and self.state.came:
            self.odometer.record(*rounds.final(self.state.came[-1]))

    def _mended(self, total: torch.Tensor | None) -> State:
        """The state after the closing rounds, which correct the last step: most that is left came in with its sum.

        A step of its own would move the weights once more by momentum, without a gradient that says where to.
        """
        old, after = self.state, dataclasses.replace(self.state, channel=self.channel.state())
        if total is not None and old.round > 0:
            change = self.config.lr * self.share
            after.weights = old.weights.add(total, alpha=change)
            after.average = old.average.add(total, alpha=change * (1 - self._decay(old.round - 1)))
        return after

    def _decay(self, number: int) -> float:
        """Decay of the average in step `number`, smaller at first, when the start would count for too much."""
        return min(self.config.ema, (1 + number) / (10 + number))

    def _spent(self, state: State) -> float | None:
        return None if self.odometer is None else rounds.spent(self.odometer, state.came)

    def evaluate(self, state: State | None = None) -> tuple[float, float]:
        """Accuracy and loss of averaged weights on the test set.

        Args:
            state: whose weights; None for those of now.
        """
        gradients.assign(self.model, (self.state if state is None else state).average)
        hits, loss = 0, 0.0
        with torch.no_grad():
            for x, y in zip(self.test_x.split(2000), self.test_y.split(2000), strict=True):
                scores = self.model(x)
                hits += int((scores.argmax(dim=1) == y).sum())
                loss += float(torch.nn.functional.cross_entropy(scores, y, reduction="sum"))
        return hits / len(self.test_y), loss / len(self.test_y)

    # log and checkpoints

    def _started(self) -> Started:
        return Started(
            config=dataclasses.asdict(self.config), plan=None if self.plan is None else self.plan.to_dict(),
            versions=statement.versions(), commit=statement.commit(), partition=self.partition,
            parameters=self.parameters, device=str(self.device), network=self.channel.network,
        )  # fmt: skip

    def _ended(self, stopped: str | None) -> Ended:
        config, plan, spent, came = self.config, self.plan, self._spent(self.state), self.state.came
        down = 4 * self.parameters + (1 + config.patience) * bitmap_size(config.clients)
        budget, delta = (None, None) if plan is None else (plan.budget, plan.delta)
        return Ended(
            accuracy=self.evaluate()[0], epsilon=spent, mu=statement.mu(plan, spent),
            epsilon_claimed=budget, delta=delta,
            unit=config.unit, adjacency=config.adjacency, rounds=self.state.round, stopped=stopped,
            bytes_up=self.channel.bytes_up, bytes_down=down, seconds=self.state.seconds,
            statement=statement.statement(config, plan, spent, [*map(rounds.final, came)]),
            **rounds.joined(came, config.patience),
        )  # fmt: skip

    def _save(self) -> None:
        checkpoint.write(self.checkpoint, self.config, self.plan, self.state)

    def _opened(self) -> LogWriter:
        """A new log; or, to resume, that of the checkpoint, cut back to it, once the checkpoint is taken up."""
        if not self.resume:
            self.checkpoint.unlink(missing_ok=True)  # it belongs to the log that is now overwritten
            return LogWriter(self.path)
        state = checkpoint.read(self.checkpoint, self.config, self.plan, self.device)
        log = LogWriter(self.path, keep=state.round)
        self.state = state
        self.channel.load(state.channel)
        if self.odometer is not None:
            for over in range(1, len(state.came) + 1):
                rounds.count(self.odometer, state.came[:over], self.config.patience)
        return log
