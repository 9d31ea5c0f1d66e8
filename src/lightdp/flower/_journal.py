"""The run log of a training on Flower's nodes, as `lightdp run` writes it for a simulated one."""

from __future__ import annotations

import math
import platform
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightdp import gaussian
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.flower._logged import Metrics, Past, Roster, joined_fields, measured, noise
from lightdp.flower._run import Run
from lightdp.flower._settings import LOG
from lightdp.planning import Plan
from lightdp.runlog import Ended, Line, LogWriter, Round, Started, guaranteed

_SETTINGS = (
    "unit", "adjacency", "clients", "colluders", "stragglers", "rounds", "epsilon", "delta", "clip",
    "reserve", "sampling_rate", "momentum", "grace",
)  # fmt: skip  # of a request, under the names that `lightdp run` has
_PACKAGES = ("lightdp-fl", "flwr", "numpy", "scipy")


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
        self._rounds: dict[tuple[int, int], int | None] = {}  # of these, as Flower counts
        self._past: dict[int, Past] = {}  # of rosters that no line says were closed
        self._log = None if kept is None or kept["lines"] is None else LogWriter(path, keep=kept["lines"])
        self._kept = kept  # until it is taken up

    def facts(self, run: Run) -> dict[str, Any]:
        """What it needs to go on, beside the file, as JSON values.

        Args:
            run: the federation.
        """
        if self._kept is not None:
            return dict(self._kept)
        self._look(run)
        ended = {str(number): past.facts() for number, past in self._past.items() if past.ended}
        lines = None if self._log is None else self._count
        return {"lines": lines, "names": list(self._numbers), "ended": ended}

    def take_up(self, run: Run) -> None:
        """Go on from the lines that are kept, if there are any, unless that was done.

        Args:
            run: the federation, as it was resumed.
        """
        if self._kept is None:
            return
        self._numbers = {name: i for i, name in enumerate(self._kept["names"])}
        self._past = {int(number): Past.from_facts(each) for number, each in self._kept.get("ended", {}).items()}
        self._kept = None
        self._look(run)
        if self._log is not None:
            self._read(self._log)

    def begin(self, length: int, more: Mapping[str, Any]) -> None:
        """Write the first line, unless that was done.

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

    def write(self, run: Run, played: int | None, metrics: Metrics, current: int | None = None) -> None:
        """Write the lines of rounds whose sets have become final.

        Args:
            run: the federation.
            played: the number of the roster that had the last round; None if there was none.
            metrics: of that round: "train", "evaluate" (on nodes) and "server", by name.
            current: its number in Flower. Where the log has another, because a crash has lost rounds, both are said.
        """
        self._look(run)
        if played is not None:
            place = played, len(self._past[played].rounds) - 1
            self._metrics[place], self._rounds[place] = metrics, current
        for number in sorted(self._past.keys() - self._open.keys()):
            members = [self._number(name) for name in self._past[number].names]
            for other in [each for each in self._open if not set(members).isdisjoint(self._open[each].members)]:
                self._catch_up(other, run)  # it is closed, by a line that is not before its own last one
            self._open[number] = Roster(members, self._planned(len(members)))
            self._new.append(number)
        for number in sorted(self._open, key=lambda each: (each == played, each)):  # the last round comes last
            self._catch_up(number, run)

    def _look(self, run: Run) -> None:
        """See what came since the last time."""
        for number, table in run.tables.items():
            if number not in self._closed:
                self._past[number] = Past.of(table, ended=number not in run.federation.rosters)

    def _catch_up(self, number: int, run: Run) -> None:
        """Write the lines of a roster's rounds whose sets are final; the next line says if it was closed."""
        if number not in self._open:  # a line of another roster has just said so
            return
        past, own = self._past.get(number), self._open[number]
        while past is not None and len(own.seen) < len(past.rounds) and past.rounds[len(own.seen)][1] is not None:
            self._line(number, run)
        if (past is None or past.ended) and number not in self._over:
            self._over.append(number)

    def _planned(self, size: int) -> Plan:
        """The plan of a roster."""
        return self._plan if size == self._plan.clients else self._plan.among(size)

    def end(self, run: Run, *, stopped: str | None, metrics: Metrics) -> None:
        """Write the last line.

        Args:
            run: the federation.
            stopped: "budget", "members", "void" or "refused"; None if it came to its end.
            metrics: as in `write`, of the final model.
        """
        self._look(run)
        waiting = {number for number, past in self._past.items() if past.waits}
        for number in self._new:  # no line has it
            self._open.pop(number)
        self._new = []
        plan, since, found = self._plan, self._since(), measured(metrics)
        early = {number for number, own in self._open.items() if self._counts_more(number, own)}
        totals = self._totals(early)
        spent = {client: gaussian.epsilon(math.sqrt(square), plan.delta) for client, square in totals.items()}
        epsilon = self._epsilon(early)
        if waiting:  # only the server can count a round whose set is open
            epsilon = max(epsilon, run.federation.max_epsilon())
            for name, counted in run.federation.epsilon().items():
                client = self._number(name)
                spent[client] = max(spent.get(client, 0.0), counted)
        one = self._open.get(0) if len(self._open) == 1 and not (self._closed or early or waiting) else None
        statement = guaranteed(
            plan if one is None else one.plan, epsilon, [] if one is None else one.seen,
            named=plan.request.calibration, unit=plan.unit,
        )  # fmt: skip
        closed = [self._end_of(number) | ({"early": True} if number in early else {}) for number in self._open]
        closed = [each | ({"open": True} if each["roster"] in waiting else {}) for each in closed]
        closed += [{"roster": number, "open": True} for number in sorted(waiting - self._open.keys())]
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
        since, own, past = self._since(), self._open[number], self._past[number]
        changed = self._changes(run)
        at, plan = len(own.seen), own.plan
        _, final, unused = past.rounds[at]
        if final is None:
            raise ProtocolError("a round has a line once its set is final")
        used = past.summed(at)
        came_late = (final - used) | unused
        lost, joined = ~(used | came_late), joined_fields(self._joined_before(number, at))
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
        if (number, at) not in self._rounds:
            LOG.info("lightdp: round %d of the log was open when the server stopped", self._count)
        elif (current := self._rounds.pop((number, at))) not in {None, self._count}:
            LOG.info("lightdp: round %d is round %d of the log", current, self._count)

    def _changes(self, run: Run) -> dict[str, Any]:
        """What a line says of rosters that were closed and formed before it, and of members that are in none."""
        closed = []
        for number in self._over:
            if number not in self._new:  # otherwise it had no round, and no line speaks of it
                closed.append(self._end_of(number))
            self._squares.update(self._open.pop(number).squares(worst=True))
            self._closed.add(number)
            self._past.pop(number, None)
        new = [number for number in self._new if number in self._open]
        formed = [{"roster": number, "members": list(self._open[number].members)} for number in new]
        self._over, self._new = [], []
        federation, cohorts = run.federation, run.federation.cohorts
        away = {name for each in cohorts.rosters.values() for name in each.gone(cohorts.patience)}
        spent = {name for each in cohorts.rosters.values() for name in each.left}
        spent |= {name for name in federation.names if not federation.has_room(name)}
        groups = {"away_clients": away - spent, "waiting_clients": set(cohorts.waiting), "spent_clients": spent}
        listed = {key: sorted(self._number(name) for name in sorted(names)) for key, names in groups.items()}
        return {"formed": formed, "closed": closed} | listed

    def _end_of(self, number: int) -> dict[str, Any]:
        """What is said of a roster that was closed."""
        own = self._open[number]
        joined = self._joined_before(number, len(own.seen)) if number in self._past else None
        return {"roster": number} | ({} if joined is None else {"joined_clients": joined})

    def _joined_before(self, number: int, at: int) -> list[int] | None:
        """Clients whose uploads of the round before are in the sum of round `at` of a roster; None without grace."""
        past, own = self._past[number], self._open[number]
        if not own.plan.grace:
            return None
        final = past.rounds[at - 1][1] if at > 0 else None
        return [] if final is None else own.named(final - past.summed(at - 1))

    def _counts_more(self, number: int, own: Roster) -> bool:
        """Whether a roster had ended before the end, and so cost some client more than its rounds show (W5)."""
        past = self._past.get(number)
        if not own.plan.gdp or (past is not None and not past.ended):
            return False
        shown = own.squares(worst=False)
        return any(square > shown[client] * (1 + 1e-9) for client, square in own.squares(worst=True).items())

    def _totals(self, early: Collection[int] = ()) -> Counter[int]:
        """μ² of each client in all of its rosters; of those that ended early at their worst."""
        total = Counter(self._squares)
        for number, own in self._open.items():
            total.update(own.squares(worst=number in early))
        return total

    def _epsilon(self, early: Collection[int] = ()) -> float:
        """The ε of the client that spent most; of sampled batches in several rosters, as if they had been whole."""
        if len(self._open) == 1 and not self._closed and not early:
            return next(iter(self._open.values())).odometer.max_epsilon()
        return gaussian.epsilon(math.sqrt(max(self._totals(early).values(), default=0.0)), self._plan.delta)

    def _since(self) -> dict[str, list[int]] | None:
        """Uploads that came, or may have got lost, since the lines of their rounds were written."""
        found = {}
        for number, own in self._open.items():
            for t, (used, before) in enumerate(own.seen if number in self._past else ()):
                if more := self._past[number].rounds[t][2] - before - used:
                    found[str(own.lines[t])] = own.named(more)
                    own.amend(t, more)
        return found or None

    def _number(self, name: str) -> int:
        """The number of a client in the log."""
        return self._numbers.setdefault(name, len(self._numbers))

    def _read(self, log: LogWriter) -> None:
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
                self._past.pop(each["roster"], None)
            for each in line.formed or ():
                self._open[each["roster"]] = Roster(each["members"], self._planned(len(each["members"])))
            own, self._count = self._open[line.roster], line.round
            place = {client: at for at, client in enumerate(own.members)}
            late, lost = (
                ClientSet.of(len(place), [place[each] for each in named or ()])
                for named in (line.late_clients, line.lost_clients)
            )
            joined = self._joined_after(line, log.kept, len(own.seen))
            used = ~(late | lost) | ClientSet.of(len(place), [place[each] for each in joined])
            places[line.round] = line.roster, len(own.seen)
            own.add(line.round, (used, late - used))

    def _joined_after(self, line: Round, kept: Sequence[Line], at: int) -> list[int]:
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
        known = line.roster is not None and line.roster in self._past
        return (self._joined_before(line.roster or 0, at + 1) or []) if known else []

    @property
    def _opened(self) -> LogWriter:
        if self._log is None:
            raise ProtocolError("a log begins with its first line")
        return self._log
