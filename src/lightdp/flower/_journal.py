"""The run log of a training on Flower's nodes, as `lightdp run` writes it for a simulated one."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.federation import Table
from lightdp.planning import Plan
from lightdp.runlog import Ended, Formed, LogWriter, Round, Started, guaranteed, spent_most

Metrics = Mapping[str, Mapping[str, Any]]
Sets = tuple[ClientSet, ClientSet]

_SETTINGS = (
    "unit", "adjacency", "clients", "colluders", "stragglers", "rounds", "epsilon", "delta", "clip", "reserve",
    "sampling_rate", "momentum", "grace",
)  # fmt: skip  # of a request, under the names that `lightdp run` has
_NAMES = {"accuracy": ("accuracy", "eval_acc", "eval_accuracy", "test_accuracy", "acc"), "loss": ("loss", "eval_loss")}
_PACKAGES = ("lightdp-fl", "flwr", "numpy", "scipy", "dp-accounting")


@dataclass(eq=False)
class _Roster:
    """A roster as the log has it.

    Attributes:
        names: of its clients.
        plan: its noise.
        seen: used and late clients of each of its rounds that have a line.
        lines: the numbers of these lines.
    """

    names: Sequence[str]
    plan: Plan
    seen: list[Sets] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.odometer = Odometer(self.plan)

    def add(self, line: int, sets: Sets) -> None:
        self.seen.append(sets)
        self.lines.append(line)
        self.odometer.record(*sets)

    def amend(self, number: int, late: ClientSet) -> None:
        """Count uploads of a round that came since its line was written."""
        self.seen[number] = self.seen[number][0], self.seen[number][1] | late
        self.odometer = Odometer(self.plan)
        for sets in self.seen:
            self.odometer.record(*sets)


class Journal:
    """Writes the log of one start, a line for each round whose set is final.

    Under grace that is one round of the roster later. An upload that comes after its round's line was written is named
    in the line after that (`late_since`). A round that was lost in a crash has a line of its own: it is void, and all
    who may have answered it count as late. ε is counted from what the log says and nothing else, so that `lightdp
    audit` finds the same.

    Args:
        path: the file, which must not exist yet.
        plan: the noise.
        keep: go on with the log in the file, after so many rounds; what follows them is cut off.

    Attributes:
        count: how many rounds have lines.

    Raises:
        ArgumentError: the file exists, there is no such folder, or it is not the log of a checkpoint.
    """

    def __init__(self, path: Path, plan: Plan, *, keep: int | None = None) -> None:
        if keep is None and (path.exists() or not path.parent.is_dir()):
            raise ArgumentError(f"log must be a new file in a folder that exists, got log={str(path)!r}")
        self.count = 0
        self._path, self._plan, self._began = path, plan, time.monotonic()
        self._rosters: dict[int, _Roster] = {}
        self._metrics: dict[tuple[int, int], Metrics] = {}  # of rounds that have no line yet
        self._log = None if keep is None else LogWriter(path, keep=keep)
        if self._log is not None:
            self._take_up(self._log)

    def begin(self, length: int, more: Mapping[str, Any]) -> None:
        """Write the first line, if there is none.

        Args:
            length: number of parameters.
            more: settings beside those of the plan.
        """
        if self._log is not None:
            return
        asked = self._plan.request
        config = {name: getattr(asked, name) for name in _SETTINGS} | {"degree": self._plan.graph.degree}
        config |= {"scheme": asked.calibration, "fidelity": "protocol"} | dict(more)
        versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
        self._log = LogWriter(self._path)
        self._log.write(
            Started(
                config=config,
                plan=self._plan.to_dict(),
                versions=versions,
                commit=None,
                partition=None,
                parameters=length,
                device=None,
            )
        )

    def write(self, tables: Mapping[int, Table], played: int | None, metrics: Metrics) -> None:
        """Write the lines of rosters that are new, and of rounds whose sets have become final.

        Args:
            tables: all rosters by number.
            played: the number of the one that had the last round; None if there was none.
            metrics: of that round: "train", "evaluate" (on nodes) and "server", by name.
        """
        for number, table in sorted(tables.items()):
            if number not in self._rosters:
                self._rosters[number] = _Roster(table.names, table.server.plan)
                self._opened.write(Formed(number=number, clients=list(table.names)))
        if played is not None:
            self._metrics[played, tables[played].rounds.count - 1] = metrics
        for number, table in sorted(tables.items(), key=lambda each: each[0] == played):  # the last round comes last
            own = self._rosters[number]
            while len(own.seen) < table.rounds.count and table.rounds.seen(len(own.seen))[1] is not None:
                self._line(number, tables)

    def end(
        self, tables: Mapping[int, Table], *, stopped: str | None, bytes_up: float | None, metrics: Metrics
    ) -> None:
        """Write the last line.

        Args:
            tables: as in `write`.
            stopped: "budget", "void" or "refused"; None if it came to its end.
            bytes_up: of an upload.
            metrics: as in `write`, of the final model.
        """
        plan, since, measured = self._plan, self._since(tables), _measured(metrics)
        rosters, epsilon = list(self._rosters.values()), self._epsilon()
        one = rosters[0] if len(rosters) == 1 else None
        statement = guaranteed(
            plan if one is None else one.plan, epsilon, [] if one is None else one.seen,
            named=plan.request.calibration, unit=plan.unit,
        )  # fmt: skip
        table = None if one is None else tables.get(next(iter(self._rosters)))
        joined = {} if one is None or table is None else self._joined(table, len(one.seen))
        self._opened.write(
            Ended(
                accuracy=measured["accuracy"],
                epsilon=epsilon,
                mu=gaussian.mu(epsilon, plan.delta, up=True),
                epsilon_claimed=plan.budget,
                delta=plan.delta,
                unit=plan.unit,
                adjacency=plan.adjacency,
                rounds=self.count,
                stopped=stopped,
                bytes_up=bytes_up,
                bytes_down=None,
                seconds=time.monotonic() - self._began,
                statement=statement,
                late_since=since,
                **joined,
            )
        )

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()

    def _line(self, number: int, tables: Mapping[int, Table]) -> None:
        """Write the line of the next round of a roster."""
        own, table, since = self._rosters[number], tables[number], self._since(tables)
        at, plan = len(own.seen), own.plan
        on_time, final, unused = table.rounds.seen(at)
        if final is None:
            raise ProtocolError("a round has a line once its set is final")
        used = _summed(on_time, final, table)
        came_late = (final - used) | unused
        lost, joined = ~(used | came_late), self._joined(table, at)
        self.count += 1
        own.add(self.count, (final, unused))
        epsilon = self._epsilon() if plan.gdp else None  # sampled, it takes a while
        self._opened.write(
            Round(
                round=self.count,
                epsilon=epsilon,
                roster=number,
                mu=None if epsilon is None else gaussian.mu(epsilon, plan.delta, up=True),
                used=len(used),
                late=len(came_late),
                lost=len(lost),
                late_clients=list(came_late),
                lost_clients=list(lost),
                late_since=since,
                **joined,
                **_noise(plan, len(used) + joined.get("joined", 0)),
                **_measured(self._metrics.pop((number, at), {})),
            )
        )

    def _joined(self, table: Table, at: int) -> dict[str, Any]:
        """What a line says of uploads of the round before that are in its sum; nothing without grace."""
        if not table.server.plan.grace:
            return {}
        on_time, final, _ = table.rounds.seen(at - 1) if at > 0 else (None, None, None)
        clients = [] if on_time is None or final is None else list(final - _summed(on_time, final, table))
        return {"joined": len(clients), "joined_clients": clients}

    def _epsilon(self) -> float:
        return spent_most(self._plan, [(each.names, each.odometer) for each in self._rosters.values()])

    def _since(self, tables: Mapping[int, Table]) -> dict[str, list[int]] | None:
        """Uploads that came since the lines of their rounds were written, which are counted from now on."""
        found = {}
        for number, own in self._rosters.items():
            for t, (used, before) in enumerate(own.seen if number in tables else []):
                if more := tables[number].server.late(t) - before - used:
                    found[str(own.lines[t])] = list(more)
                    own.amend(t, more)
        return found or None

    def _take_up(self, log: LogWriter) -> None:
        """Go on from the lines that are kept."""
        lines: dict[int, tuple[_Roster, int]] = {}
        after: dict[int, list[int]] = {}  # who joined the next sum of the roster, by the line of the round
        for line in reversed(log.kept):
            if isinstance(line, Round) and line.joined_clients is not None and line.roster is not None:
                earlier = [x.round for x in log.kept if isinstance(x, Round) and x.roster == line.roster]
                if (at := earlier.index(line.round)) > 0:
                    after[earlier[at - 1]] = list(line.joined_clients)
        for line in log.kept:
            if isinstance(line, Formed):
                size = len(line.clients)
                plan = self._plan if size == self._plan.clients else self._plan.among(size)
                self._rosters[line.number] = _Roster(line.clients, plan)
            elif isinstance(line, Round) and line.roster is not None:
                own = self._rosters[line.roster]
                late, lost = (
                    ClientSet.of(len(own.names), each or ()) for each in (line.late_clients, line.lost_clients)
                )
                joined = ClientSet.of(len(own.names), after.get(line.round, ()))
                own.add(line.round, (~(late | lost) | joined, late - joined))
                lines[line.round] = own, len(own.seen) - 1
                self.count = line.round
                for number, clients in (line.late_since or {}).items():
                    roster, at = lines[int(number)]
                    roster.amend(at, ClientSet.of(len(roster.names), clients))

    @property
    def _opened(self) -> LogWriter:
        if self._log is None:
            raise ProtocolError("a log begins with its first line")
        return self._log


def _summed(on_time: ClientSet, final: ClientSet, table: Table) -> ClientSet:
    """Clients of a round that are in its own sum."""
    if not table.server.plan.grace:
        return final
    return on_time if len(on_time) >= table.server.minimum else ClientSet.none(len(table.names))


def _noise(plan: Plan, uploads: int) -> dict[str, float | None]:
    """Standard deviations in a coordinate of the mean."""
    lasting: float | None = plan.individual_in_sum(uploads) + (0.0 if plan.repairs else plan.residual_in_sum(uploads))
    residual: float | None = plan.residual_in_sum(uploads) if plan.repairs else 0.0
    if plan.grace and plan.gamma > 0:  # what two rounds share is not followed here
        lasting, residual = (plan.individual_in_sum(uploads) if plan.repairs else None), None
    stds = {"noise_std": lasting, "residual_std": residual}
    return {name: None if each is None else math.sqrt(each) / plan.clients for name, each in stds.items()}


def _measured(metrics: Metrics) -> dict[str, Any]:
    """Accuracy and loss on the server or else on the nodes, and all metrics that JSON can hold."""
    kept = {
        where: {name: value for name, value in found.items() if _finite(value) and not name.startswith("lightdp-")}
        for where, found in metrics.items()
    }
    result: dict[str, Any] = {"metrics": {where: found for where, found in kept.items() if found} or None}
    for wanted, names in _NAMES.items():
        values = [kept.get(where, {}).get(name) for where in ("server", "evaluate") for name in names]
        numbers = [float(each) for each in values if isinstance(each, int | float)]
        result[wanted] = numbers[0] if numbers and (wanted == "loss" or 0 <= numbers[0] <= 1) else None
    return result


def _finite(value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(each, int | float) and math.isfinite(each) for each in values)
