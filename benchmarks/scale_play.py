"""A training of many real clients on one machine: keys, rosters, masks and bytes, and whether its sums are exact.

Half of the clients live in each of two processes, and this one is the server. Every client is a `lightdp.Client` that
joins with its own excerpt of the roster; every message goes through a pipe as bytes. Of the stragglers of a round, half
send too late and half do not send; late="unseen". What is verified:

sums: the server's sum of each round equals, bit by bit, the sum of the integers that used clients rounded; stragglers
    leave pairwise noise in sums, and after a closing round all sums together hold none, bit by bit.
ledgers: what sampled clients have counted of their own data is what an odometer of all clients has counted for them.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import numpy as np

import lightdp
from lightdp import masks
from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError
from lightdp_lab import bench

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightdp.planning import Plan
    from lightdp.stream import Floats, Term

RUN, BATCH, WORKERS, LENGTH, SAMPLE = b"a large federati", 200, 2, 1000, 100
CAME, LATE, AWAY = range(3)


def planned(clients: int, degree: int) -> Plan:
    """A plan with 10 % colluders and stragglers on a random graph, whose late uploads are dropped unread."""
    asked: dict[str, Any] = {"colluders": clients // 10, "stragglers": clients // 10, "late": "unseen"}
    asked |= {"rounds": 150, "epsilon": 3.0, "delta": 1e-6, "unit": "client", "calibration": "repair"}
    return lightdp.plan(clients=clients, graph=f"random:{degree}", parameters=LENGTH, **asked)


@dataclass
class Tally:
    """What the uploads of one process were made of in a round, of clients that came in time; integers modulo 2^32."""

    wire: NDArray[np.uint32]  # rounded to the wire
    pairwise: NDArray[np.uint32]  # pairwise noise and repairs, in fine steps

    @classmethod
    def empty(cls, length: int) -> Tally:
        """Of no uploads."""
        return cls(*np.zeros((2, length), np.uint32))

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.wire + other.wire, self.pairwise + other.pairwise)


class Half:
    """The clients of one process."""

    def __init__(self, plan: Plan, length: int, names: range) -> None:
        self.length, self.names = length, names
        self.clients = [lightdp.Client.new(plan, length=length, run=RUN, name=name(i)) for i in names]
        self._tally, self._counts = Tally.empty(length), False
        self._missed: set[int] = set()  # who does not know the last announcement
        self._real = masks._fine  # noqa: SLF001  what an upload is made of, which nobody else sees
        vars(masks)["_fine"] = self._taped

    def enrolments(self) -> Iterator[bytes]:
        """The ENROL messages."""
        return (client.enrol() for client in self.clients)

    def uploads(self, start: bytes, whole: bytes, fates: NDArray[np.uint8]) -> Iterator[tuple[int, bytes]]:
        """The uploads of clients that send, each with what becomes of it; who was away is told everything."""
        for at, (client, fate) in enumerate(zip(self.clients, fates.tolist(), strict=True)):
            if fate != AWAY:
                begun = client.begin(whole if at in self._missed else start)
                self._counts = fate == CAME
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


def work(pipe: Connection, plan: Plan, length: int, names: range) -> None:
    """A process: does what it is asked, and answers in batches that end with None."""
    half = Half(plan, length, names)
    begin = 0.0  # making clients counts as a part of enrolling
    while (asked := pipe.recv())[0] != "end":
        match asked:
            case ("enrol",):
                send(pipe, half.enrolments())
            case "join", first, messages:
                for at, message in enumerate(messages, first):
                    half.clients[at].join(message)
            case "round", start, whole, fates:
                send(pipe, half.uploads(start, whole, fates))
                pipe.send(half.tally())
            case "ledgers", places:
                found = [half.clients[place] for place in places]
                pipe.send([(client.squares(worst=False), client.mu(), client.epsilon()) for client in found])
        pipe.send((time.process_time() - begin, peak(), own()))
        begin = time.process_time()


def send(pipe: Connection, items: Iterator[Any]) -> None:
    """Send all of them."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            pipe.send(batch)
            batch = []
    pipe.send(batch)
    pipe.send(None)


def peak() -> float:
    """Peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def own() -> float:
    """Memory of this process now, in bytes."""
    return bench.memory_line("self/status", "VmRSS", 0.0)


class Play:
    """A server and its processes, and what a training cost.

    Args:
        plan: the noise, on a random graph.
        length: number of values of an update.
        seed: of who straggles.

    Attributes:
        parts: seconds of each part: on the clock, and of processor time by the server and by both processes; memory of
            all processes when it ended.
        bytes: of a message of each kind.
        peak: the most memory of each process, in bytes, added up.
    """

    def __init__(self, plan: Plan, length: int, seed: int = 1) -> None:
        self.plan, self.length = plan, length
        self.parts: dict[str, dict[str, float]] = {}
        self.bytes: dict[str, int] = {}
        context, cut = multiprocessing.get_context("fork"), -(-plan.clients // WORKERS)
        self._halves = [range(at, min(at + cut, plan.clients)) for at in range(0, plan.clients, cut)]
        self._pipes, self._workers = [], []
        for names in self._halves:
            ours, theirs = context.Pipe()
            self._workers.append(context.Process(target=work, args=(theirs, plan, length, names), daemon=True))
            self._workers[-1].start()
            theirs.close()
            self._pipes.append(ours)
        self._draw = np.random.default_rng(seed)
        self._late: list[bytes] = []
        self._memory = [(0.0, 0.0)] * len(self._pipes)
        self._sums: list[Tally] = []

    def run(self, rounds: int, sample: int) -> dict[str, Any]:
        """A whole training, with a closing round, and what was verified of it."""
        begin = time.perf_counter()
        self._enrol()
        self._join()
        for _ in range(rounds):
            self._round()
        for _ in range(self.plan.closing_rounds):
            self._round(closing=True)
        self._ledgers(rounds, sample)
        for pipe, worker in zip(self._pipes, self._workers, strict=True):
            pipe.send(("end",))
            worker.join()
        peaks = sum(most for most, _ in self._memory) + peak()
        return {"clients": self.plan.clients, "degree": self.plan.graph.degree, "length": self.length,
                "rounds": rounds, "sampled": sample, "wall_s": time.perf_counter() - begin,
                "cpu_s": sum(part.get("server_s", 0) + part.get("clients_s", 0) for part in self.parts.values()),
                "peak_gb": peaks / 1e9, "parts": self.parts, "bytes": self.bytes}  # fmt: skip

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """Add up what a part costs; at its end each process says what it cost there."""
        wall, cpu = time.perf_counter(), time.process_time()
        part = self.parts.setdefault(what, {"wall_s": 0.0, "server_s": 0.0, "clients_s": 0.0})
        yield
        for at in range(len(self._pipes)):
            self._cost(part, at)
        part["wall_s"] += time.perf_counter() - wall
        part["server_s"] += time.process_time() - cpu
        part["memory_gb"] = (sum(now for _, now in self._memory) + own()) / 1e9
        print(f"{what:8} {part}", file=sys.stderr, flush=True)

    def _cost(self, part: dict[str, float], at: int) -> None:
        taken, *memory = self._pipes[at].recv()
        part["clients_s"] += taken
        self._memory[at] = memory

    def _batches(self) -> Iterator[list[Any]]:
        """What the processes send, as it comes."""
        sending = list(self._pipes)
        while sending:
            ready = wait(sending)
            for pipe in [pipe for pipe in sending if pipe in ready]:
                if (batch := pipe.recv()) is None:
                    sending.remove(pipe)
                else:
                    yield batch

    def _enrol(self) -> None:
        """All clients enrol, and the roster is fixed."""
        with self._timed("enrol"):
            for pipe in self._pipes:
                pipe.send(("enrol",))
            messages = [message for batch in self._batches() for message in batch]
            for number in range(20):  # a draw is bad once in a thousand times
                self.server = lightdp.Server(self.plan, length=self.length, run=RUN, number=number)
                for message in messages:
                    self.server.enrol(message)
                with suppress(ArgumentError):
                    self.server.roster(name(0))
                    break

    def _join(self) -> None:
        """Every client gets its excerpt."""
        size, waiting = 0, [0] * len(self._pipes)
        with self._timed("join"):
            part = self.parts["join"]
            for first in range(0, len(self._halves[0]), BATCH):
                for at, (pipe, names) in enumerate(zip(self._pipes, self._halves, strict=True)):
                    some = [self.server.roster(name(i)) for i in names[first : first + BATCH]]
                    size += sum(map(len, some))
                    while waiting[at] > 1:  # or both ends could wait for each other
                        self._cost(part, at)
                        waiting[at] -= 1
                    pipe.send(("join", first, some))
                    waiting[at] += 1
            for at, left in enumerate(waiting):
                for _ in range(left - 1):
                    self._cost(part, at)
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
            for pipe, names in zip(self._pipes, self._halves, strict=True):
                pipe.send(("round", start, whole, fates[names.start : names.stop]))
            late, self._late = self._late, []
            held("late uploads are not used", not any(map(server.receive, late)))
            for batch in self._batches():
                for fate, message in batch:
                    if fate == LATE:
                        self._late.append(message)
                    else:
                        held("uploads in time are used", server.receive(message))
            tally = sum((pipe.recv() for pipe in self._pipes), Tally.empty(self.length))
            result = server.close()
        self.bytes |= {"announcement": len(start), "upload": len(message)}
        held("all who came were used", np.array_equal(result.used.flags, fates == CAME))
        self._check(tally, result.total)

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
            chosen = np.sort(self._draw.permutation(plan.clients)[:sample])
            for pipe, names in zip(self._pipes, self._halves, strict=True):
                here = chosen[(chosen >= names.start) & (chosen < names.stop)].tolist()
                pipe.send(("ledgers", [i - names.start for i in here]))
                for i, found in zip(here, pipe.recv(), strict=True):
                    held(f"the ledger of client {i} is the server's", found == (squares[i], mu[i], epsilon[i]))


def name(client: int) -> str:
    """That of a client; names are in the order of numbers."""
    return f"client-{client:06}"


def held(what: str, is_so: object) -> None:
    """Stop if something does not hold."""
    if not is_so:
        raise SystemExit(f"does not hold: {what}")
