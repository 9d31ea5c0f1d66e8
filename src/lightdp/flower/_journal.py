"""The run log of a training on Flower's nodes, as `lightdp run` writes it for a simulated one."""

from __future__ import annotations

import math
import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightdp import gaussian
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.flower._logged import Metrics, Roster, joined_fields, measured, noise, summed
from lightdp.flower._run import Run
from lightdp.planning import Plan
from lightdp.runlog import Ended, Line, LogWriter, Round, Started, guaranteed

_SETTINGS = (
    "unit", "adjacency", "clients", "colluders", "stragglers", "rounds", "epsilon", "delta", "clip", "reserve",
    "sampling_rate", "momentum", "grace",
)  # fmt: skip  # of a request, under the names that `lightdp run` has
_PACKAGES = ("lightdp-fl", "flwr", "numpy", "scipy", "dp-accounting")


class Journal:
    """Writes the log of one start, a line for each round whose set is final.

    Under grace that is one round of the roster later. An upload that comes after its round's line was written is named
    in the line after that (`late_since`). A round that was lost in a crash has a line of its own: it is void, and all
    who may have answered it count as late. ε is counted from what the log says and nothing else, so that `lightdp
    audit` finds the same.

    Args:
        path: the file, which must not exist yet.
        plan: the noise.
        kept: go on with the log in the file, from what `facts` returned; lines that follow are cut off.

    Raises:
        ArgumentError: the file exists, there is no such folder, or it is not the log of the checkpoint.
    """

    def __init__(self, path: Path, plan: Plan, *, kept: Mapping[str, Any] | None = None) -> None:
        if kept is None and (path.exists() or not path.parent.is_dir()):
            raise ArgumentError(f"log must be a new file in a folder that exists, got log={str(path)!r}")
        self._path, self._plan, self._began, self._count = path, plan, time.monotonic(), 0
        self._numbers: dict[str, int] = {}  # of clients in the log, by name
        self._open: dict[int, Roster] = {}
        self._new: list[int] = []  # rosters that no line has yet
        self._over: list[int] = []  # rosters that were closed, which no line says yet
        self._closed: set[int] = set()  # rosters that a line says were closed
        self._squares: Counter[int] = Counter()  # of clients in these
        self._metrics: dict[tuple[int, int], Metrics] = {}  # of rounds that have no line yet
        self._log = None if kept is None or kept["lines"] is None else LogWriter(path, keep=kept["lines"])
        if kept is not None:
            self._numbers = {name: i for i, name in enumerate(kept["names"])}

    def facts(self) -> dict[str, Any]:
        """What it needs to go on, beside the file, as JSON values."""
        if self._log is None:
            return {"lines": None, "names": list(self._numbers)}
        kept = sum(isinstance(line, Round) for line in self._log.kept)  # which `begin` may not have taken up yet
        return {"lines": max(self._count, kept), "names": list(self._numbers)}

    def begin(self, length: int, more: Mapping[str, Any], run: Run) -> None:
        """Write the first line, or take up those that are kept, unless that was done.

        Args:
            length: number of parameters.
            more: settings beside those of the plan.
            run: the federation.
        """
        if self._log is not None:
            if self._count == 0:
                self._take_up(self._log, run)
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

    def write(self, run: Run, played: int | None, metrics: Metrics) -> None:
        """Write the lines of rounds whose sets have become final.

        Args:
            run: the federation.
            played: the number of the roster that had the last round; None if there was none.
            metrics: of that round: "train", "evaluate" (on nodes) and "server", by name.
        """
        for number, table in sorted(run.tables.items()):
            if number not in self._open and number not in self._closed:
                members = [self._number(name) for name in table.names]
                self._open[number] = Roster(members, table.server.plan)
                self._new.append(number)
        if played is not None:
            self._metrics[played, run.tables[played].rounds.count - 1] = metrics
        known = [number for number in self._open if number in run.tables]  # others had ended when it was taken up
        for number in sorted(known, key=lambda each: (each == played, each)):  # the last round comes last
            table, own = run.tables[number], self._open[number]
            while len(own.seen) < table.rounds.count and table.rounds.seen(len(own.seen))[1] is not None:
                self._line(number, run)
            if number not in run.federation.rosters and number not in self._over:
                self._over.append(number)

    def end(self, run: Run, *, stopped: str | None, metrics: Metrics) -> None:
        """Write the last line.

        Args:
            run: the federation.
            stopped: "budget", "members", "void" or "refused"; None if it came to its end.
            metrics: as in `write`, of the final model.
        """
        plan, since, found = self._plan, self._since(run), measured(metrics)
        totals = self._totals()
        spent = {client: gaussian.epsilon(math.sqrt(square), plan.delta) for client, square in totals.items()}
        epsilon = self._epsilon()
        one = self._open.get(0) if len(self._open) == 1 and not self._closed else None
        statement = guaranteed(
            plan if one is None else one.plan, epsilon, [] if one is None else one.seen,
            named=plan.request.calibration, unit=plan.unit,
        )  # fmt: skip
        closed = [self._end_of(number, run) for number in self._open]
        self._opened.write(
            Ended(
                accuracy=found["accuracy"],
                epsilon=epsilon,
                mu=gaussian.mu(epsilon, plan.delta, up=True),
                epsilon_claimed=plan.budget,
                delta=plan.delta,
                unit=plan.unit,
                adjacency=plan.adjacency,
                rounds=self._count,
                stopped=stopped,
                bytes_up=run.upload_bytes,
                bytes_down=None,
                seconds=time.monotonic() - self._began,
                statement=statement,
                late_since=since,
                epsilon_clients=[spent.get(i, 0.0) for i in range(len(self._numbers))] if plan.gdp else None,
                closed=closed,
                **({} if one is None else joined_fields(closed[0].get("joined_clients"))),
            )
        )

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()

    def _line(self, number: int, run: Run) -> None:
        """Write the line of the next round of a roster."""
        since, own, table = self._since(run), self._open[number], run.tables[number]
        changed = self._changes(run)
        at, plan = len(own.seen), own.plan
        on_time, final, unused = table.rounds.seen(at)
        if final is None:
            raise ProtocolError("a round has a line once its set is final")
        used = summed(on_time, final, table)
        came_late = (final - used) | unused
        lost, joined = ~(used | came_late), joined_fields(self._joined_before(number, run, at))
        self._count += 1
        own.add(self._count, (final, unused))
        epsilon = self._epsilon() if plan.gdp else None  # sampled, it takes a while
        self._opened.write(
            Round(
                round=self._count,
                epsilon=epsilon,
                roster=number,
                **changed,
                mu=None if epsilon is None else gaussian.mu(epsilon, plan.delta, up=True),
                used=len(used),
                late=len(came_late),
                lost=len(lost),
                late_clients=own.named(came_late),
                lost_clients=own.named(lost),
                late_since=since,
                **joined,
                **noise(plan, len(used), joined.get("joined", 0)),
                **measured(self._metrics.pop((number, at), {})),
            )
        )

    def _changes(self, run: Run) -> dict[str, Any]:
        """What a line says of rosters that were closed and formed before it, and of members that are in none."""
        closed = []
        for number in self._over:
            closed.append(self._end_of(number, run))
            self._squares.update(self._open.pop(number).squares(worst=True))
            self._closed.add(number)
        formed = [{"roster": number, "members": list(self._open[number].members)} for number in self._new]
        self._over, self._new = [], []
        federation, cohorts = run.federation, run.federation.cohorts
        away = {name for each in cohorts.rosters.values() for name in each.gone(cohorts.patience)}
        spent = {name for each in cohorts.rosters.values() for name in each.left}
        spent |= {name for name in federation.names if not federation.has_room(name)}
        groups = {"away_clients": away - spent, "waiting_clients": set(cohorts.waiting), "spent_clients": spent}
        listed = {key: sorted(self._number(name) for name in sorted(names)) for key, names in groups.items()}
        return {"formed": formed, "closed": closed} | listed

    def _end_of(self, number: int, run: Run) -> dict[str, Any]:
        """What is said of a roster that was closed."""
        own = self._open[number]
        joined = self._joined_before(number, run, len(own.seen)) if number in run.tables else None
        return {"roster": number} | ({} if joined is None else {"joined_clients": joined})

    def _joined_before(self, number: int, run: Run, at: int) -> list[int] | None:
        """Clients whose uploads of the round before are in the sum of round `at` of a roster; None without grace."""
        table, own = run.tables[number], self._open[number]
        if not own.plan.grace:
            return None
        on_time, final, _ = table.rounds.seen(at - 1) if at > 0 else (None, None, None)
        return [] if on_time is None or final is None else own.named(final - summed(on_time, final, table))

    def _totals(self) -> Counter[int]:
        """μ² of each client in all of its rosters."""
        total = Counter(self._squares)
        for own in self._open.values():
            total.update(own.squares(worst=False))
        return total

    def _epsilon(self) -> float:
        """The ε of the client that spent most; of sampled batches in several rosters, as if they had been whole."""
        if len(self._open) == 1 and not self._closed:
            return next(iter(self._open.values())).odometer.max_epsilon()
        return gaussian.epsilon(math.sqrt(max(self._totals().values(), default=0.0)), self._plan.delta)

    def _since(self, run: Run) -> dict[str, list[int]] | None:
        """Uploads that came, or may have got lost, since the lines of their rounds were written."""
        found = {}
        for number, own in self._open.items():
            for t, (used, before) in enumerate(own.seen if number in run.tables else ()):
                if more := run.tables[number].rounds.seen(t)[2] - before - used:
                    found[str(own.lines[t])] = own.named(more)
                    own.amend(t, more)
        return found or None

    def _number(self, name: str) -> int:
        """The number of a client in the log."""
        return self._numbers.setdefault(name, len(self._numbers))

    def _take_up(self, log: LogWriter, run: Run) -> None:
        """Go on from the lines that are kept."""
        places: dict[int, tuple[int, int]] = {}
        for line in log.kept:
            if not isinstance(line, Round) or line.roster is None:
                continue
            for number, clients in (line.late_since or {}).items():
                roster, at = places[int(number)]
                own = self._open[roster]
                own.amend(at, ClientSet.of(len(own.members), [own.members.index(each) for each in clients]))
            for each in line.closed or ():
                self._squares.update(self._open.pop(each["roster"]).squares(worst=True))
                self._closed.add(each["roster"])
            for each in line.formed or ():
                size = len(each["members"])
                plan = self._plan if size == self._plan.clients else self._plan.among(size)
                self._open[each["roster"]] = Roster(each["members"], plan)
            own, self._count = self._open[line.roster], line.round
            place = {client: at for at, client in enumerate(own.members)}
            late, lost = (
                ClientSet.of(len(place), [place[each] for each in named or ()])
                for named in (line.late_clients, line.lost_clients)
            )
            joined = self._joined_after(line, log.kept, run, len(own.seen))
            used = ~(late | lost) | ClientSet.of(len(place), [place[each] for each in joined])
            places[line.round] = line.roster, len(own.seen)
            own.add(line.round, (used, late - used))
        self._over = [number for number in self._open if number not in run.tables]

    def _joined_after(self, line: Round, kept: Sequence[Line], run: Run, at: int) -> list[int]:
        """Clients whose uploads of a round are in the next sum of its roster."""
        if not self._plan.grace:
            return []
        for later in kept:
            if isinstance(later, Round) and later.round > line.round:
                for each in later.closed or ():
                    if each["roster"] == line.roster:
                        return list(each.get("joined_clients", ()))
                if later.roster == line.roster:
                    return list(later.joined_clients or ())
        known = line.roster is not None and line.roster in run.tables
        return (self._joined_before(line.roster or 0, run, at + 1) or []) if known else []

    @property
    def _opened(self) -> LogWriter:
        if self._log is None:
            raise ProtocolError("a log begins with its first line")
        return self._log
