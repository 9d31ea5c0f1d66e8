"""A training of many real clients in one process: keys, rosters, masks and bytes, and whether its sums are exact.

Every client is a `lightdp.Client` that joins with its own excerpt of the roster; every message is bytes. Of the
stragglers of a round, half send too late and half do not send; late="unseen". What is verified:

sums: the server's sum of each round equals, bit by bit, the sum of the integers that used clients rounded; stragglers
    leave pairwise noise in sums, and after a closing round all sums together hold none, bit by bit.
ledgers: what sampled clients have counted of their own data is what an odometer of all clients has counted for them.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import lightdp
from lightdp import masks
from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightdp.planning import Plan
    from lightdp.stream import Floats, Term

RUN, LENGTH, SAMPLE = b"a large federati", 1000, 100
CAME, LATE, AWAY = range(3)


def planned(clients: int, degree: int) -> Plan:
    """A plan with 10 % colluders and stragglers on a random graph, whose late uploads are dropped unread."""
    asked: dict[str, Any] = {"colluders": clients // 10, "stragglers": clients // 10, "late": "unseen"}
    asked |= {"rounds": 150, "epsilon": 3.0, "delta": 1e-6, "unit": "client", "calibration": "repair"}
    return lightdp.plan(clients=clients, graph=f"random:{degree}", parameters=LENGTH, **asked)


@dataclass
class Tally:
    """What the uploads of a round were made of, of clients that came in time; integers modulo 2^32."""

    wire: NDArray[np.uint32]  # rounded to the wire
    pairwise: NDArray[np.uint32]  # pairwise noise and repairs, in fine steps

    @classmethod
    def empty(cls, length: int) -> Tally:
        """Of no uploads."""
        return cls(*np.zeros((2, length), np.uint32))


class Crowd:
    """All clients.

    Args:
        plan: the noise.
        length: number of values of an update.
    """

    def __init__(self, plan: Plan, length: int) -> None:
        self.length = length
        self.clients = [lightdp.Client.new(plan, length=length, run=RUN, name=name(i)) for i in range(plan.clients)]
        self._tally, self._counts = Tally.empty(length), False
        self._missed: set[int] = set()  # who does not know the last announcement
        self._real = masks._fine  # noqa: SLF001  what an upload is made of, which nobody else sees
        vars(masks)["_fine"] = self._taped

    def uploads(self, start: bytes, whole: bytes, fates: NDArray[np.uint8]) -> Iterator[tuple[int, bytes]]:
        """The uploads of clients that send, each with what becomes of it; who was away is told everything."""
        for at, (client, fate) in enumerate(zip(self.clients, fates.tolist(), strict=True)):
            if fate != AWAY:
                begun = client.begin(whole if at in self._missed else start)
                self._counts = fate == CAME
                if begun.binds:
                    begun.bind(bytes(32))  # all clients have the same model
                yield fate, begun.upload(None if begun.closing else update(self.length, begun.number))
        self._missed = set(np.flatnonzero(fates == AWAY).tolist())

    def tally(self) -> Tally:
        """That of a round; the next one begins anew."""
        found, self._tally = self._tally, Tally.empty(self.length)
        return found

    def _taped(
        self, vector: Floats, grid: masks.Grid, terms: Sequence[Term], keys: Sequence[bytes], *, threads: int | None = 1
    ) -> NDArray[np.int32]:
        fine = self._real(vector, grid, terms, keys, threads=threads)
        if self._counts:
            plain = self._real(vector, grid, [], keys, threads=threads)
            self._tally.pairwise += (fine - plain).view(np.uint32)
            self._tally.wire += rounded(fine, grid.shift).view(np.uint32)
        return fine


def rounded(fine: NDArray[np.int32], shift: int) -> NDArray[np.int32]:
    """Wire steps nearest to these, ties to even, written out apart from `lightdp.wire`."""
    return np.rint(np.ldexp(fine.astype(np.float64), -shift)).astype(np.int32)


def update(length: int, number: int) -> NDArray[np.float64]:
    """What clients send in a round; clipping makes it smaller."""
    return np.cos(np.arange(length) + number)


class Play:
    """A server and its clients, and what a training cost.

    Args:
        plan: the noise, on a random graph.
        length: number of values of an update.
        seed: of who straggles.

    Attributes:
        parts: seconds of each part, on the clock and of processor time.
        bytes: of a message of each kind.
    """

    def __init__(self, plan: Plan, length: int, seed: int = 1) -> None:
        self.plan, self.length = plan, length
        self.parts: dict[str, dict[str, float]] = {}
        self.bytes: dict[str, int] = {}
        self._draw = np.random.default_rng(seed)
        self._late: list[bytes] = []
        self._sums: list[Tally] = []

    def run(self, rounds: int, sample: int) -> dict[str, Any]:
        """A whole training, with a closing round, and what was verified of it."""
        self._enrol()
        self._join()
        for _ in range(rounds):
            self._round()
        for _ in range(self.plan.closing_rounds):
            self._round(closing=True)
        self._ledgers(rounds, sample)
        total = {what: sum(part[what] for part in self.parts.values()) for what in ("wall_s", "cpu_s")}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        return {"clients": self.plan.clients, "degree": self.plan.graph.degree, "length": self.length,
                "rounds": rounds, "sampled": sample, "processes": 1, **total, "peak_gb": peak, "parts": self.parts,
                "bytes": self.bytes}  # fmt: skip

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """Add up what a part costs."""
        wall, cpu = time.perf_counter(), time.process_time()
        part = self.parts.setdefault(what, {"wall_s": 0.0, "cpu_s": 0.0})
        yield
        part["wall_s"] += time.perf_counter() - wall
        part["cpu_s"] += time.process_time() - cpu
        print(f"{what:8} {part}", file=sys.stderr, flush=True)

    def _enrol(self) -> None:
        """All clients enrol, and the roster is fixed."""
        with self._timed("enrol"):
            self.crowd = Crowd(self.plan, self.length)
            messages = [client.enrol() for client in self.crowd.clients]
            for number in range(20):  # a draw is bad once in a thousand times
                self.server = lightdp.Server(self.plan, length=self.length, run=RUN, number=number)
                for message in messages:
                    self.server.enrol(message)
                with suppress(ArgumentError):
                    self.server.roster(name(0))
                    break

    def _join(self) -> None:
        """Every client gets its excerpt."""
        size = 0
        with self._timed("join"):
            for client in self.crowd.clients:
                message = self.server.roster(client.name)
                client.join(message)
                size += len(message)
        self.bytes["roster"] = size // self.plan.clients

    def _round(self, *, closing: bool = False) -> None:
        """A round: stragglers are drawn, half of them send too late; everybody answers a closing one."""
        clients, server = self.plan.clients, self.server
        fates = np.full(clients, CAME, np.uint8)
        if not closing:
            missing = self._draw.permutation(clients)[: self.plan.stragglers * 9 // 10]
            fates[missing[::2]], fates[missing[1::2]] = LATE, AWAY
        with self._timed("closing" if closing else "rounds"):
            start, whole = server.announce(closing=closing), server.announce(since=0, closing=closing)
            late, self._late = self._late, []
            held("late uploads are not used", not any(map(server.receive, late)))
            for fate, message in self.crowd.uploads(start, whole, fates):
                if fate == LATE:
                    self._late.append(message)
                else:
                    held("uploads in time are used", server.receive(message))
            result = server.close()
        self.bytes |= {"announcement": len(start), "upload": len(message)}
        held("all who came were used", np.array_equal(result.used.flags, fates == CAME))
        self._check(self.crowd.tally(), result.total)

    def _check(self, tally: Tally, total: NDArray[np.float64] | None) -> None:
        """The sum is that of the rounded uploads, read from the wire, bit by bit."""
        grid = self.server._grid  # noqa: SLF001
        wire = (tally.wire << (32 - grid.bits)).view(np.int32) >> (32 - grid.bits)
        values = wire.astype(np.float64) * grid.wire_step
        if self.server._turn is not None:  # noqa: SLF001
            self.server._turn.invert(values)  # noqa: SLF001
        held("the sum is that of the uploads", total is not None and np.array_equal(values[: self.length], total))
        self._sums.append(tally)

    def _ledgers(self, rounds: int, sample: int) -> None:
        """What clients have counted is what an odometer of all of them has; nothing pairwise is left in all sums."""
        left = sum((tally.pairwise for tally in self._sums[:-1]), np.zeros_like(self._sums[0].pairwise))
        held("stragglers left pairwise noise in the last sums", bool(left.any()))
        held("repairs took all of it out", not (left + self._sums[-1].pairwise).any())
        used, plan = [self.server._used[number] for number in range(rounds)], self.server.plan  # noqa: SLF001
        with self._timed("ledgers"):
            odometer = Odometer(plan)
            for each in used:
                odometer.record(each)
            squares, mu, epsilon = odometer.squares(), odometer.mu(), odometer.epsilon()
            for i in np.sort(self._draw.permutation(plan.clients)[:sample]).tolist():
                client = self.crowd.clients[i]
                found = client.squares(worst=False), client.mu(), client.epsilon()
                held(f"the ledger of client {i} is the server's", found == (squares[i], mu[i], epsilon[i]))


def name(client: int) -> str:
    """That of a client; names are in the order of numbers."""
    return f"client-{client:06}"


def held(what: str, is_so: object) -> None:
    """Stop if something does not hold."""
    if not is_so:
        raise SystemExit(f"does not hold: {what}")
