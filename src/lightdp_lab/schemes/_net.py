"""A simulated network with faults that counts what a round costs: bytes, seconds of work, round trips."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from numpy.random import Generator  # noqa: TID251  only its type

from lightdp._validate import choice, integer, non_negative, positive, share
from lightdp.errors import LightDPError, ProtocolError, WireError

Peers = Literal["relayed", "direct"]
Answers = Iterator[tuple[int, bytes]]  # clients and what arrives of them, one by one


class RoundFailedError(LightDPError):
    """A round in which a scheme cannot give the sum: at which stage, and why."""

    def __init__(self, stage: str, why: str) -> None:
        super().__init__(f"{stage}: {why}")
        self.stage, self.why = stage, why


@contextmanager
def ending(stage: str) -> Iterator[None]:
    """Where a message that is malformed, a `WireError`, ends the round."""
    try:
        yield
    except WireError as error:
        raise RoundFailedError(stage, str(error)) from None


@dataclass(frozen=True)
class Links:
    """How messages travel.

    Attributes:
        peers: what clients send each other is "relayed" by the server, or goes "direct".
        failure: probability that a link is down for a whole round; each fails by itself.
        uplink: bits a second from a client, to the server and to peers.
        downlink: bits a second to a client.
        latency: seconds one way.
    """

    peers: Peers = "relayed"
    failure: float = 0.0
    uplink: float = 10e6
    downlink: float = 50e6
    latency: float = 0.05

    def __post_init__(self) -> None:
        choice("peers", self.peers, ("relayed", "direct"))
        share("failure", self.failure)
        for name in ("uplink", "downlink"):
            positive(name, getattr(self, name))
        non_negative("latency", self.latency)


@dataclass(frozen=True)
class Faults:
    """What breaks in one round.

    Attributes:
        down: clients whose link to the server is down for the whole round.
        cut: pairs (i, j), i < j, whose direct link is down for the whole round.
        lost: clients that fall silent for the rest of the round, by the stage (from 0) in whose beginning they do.
    """

    down: frozenset[int] = frozenset()
    cut: frozenset[tuple[int, int]] = frozenset()
    lost: Mapping[int, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def drawn(cls, links: Links, clients: int, rng: Generator) -> Faults:
        """Each link to the server, and each direct one, fails with probability `links.failure`; no client drops."""
        down = frozenset(i for i in range(clients) if rng.random() < links.failure)
        pairs = [(i, j) for j in range(clients) for i in range(j)] if links.peers == "direct" else []
        cut = frozenset(pair for pair, u in zip(pairs, rng.random(len(pairs)), strict=True) if u < links.failure)
        return cls(down, cut)


@dataclass
class Stage:
    """One stage of a round, at most one round trip: what comes down, and what goes up or to peers in answer.

    Bytes and seconds by client.
    """

    name: str
    up: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    down: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    peer: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    server: float = 0.0


class Net:
    """The network of one round, with given links and faults: schemes send every message through it, and it counts.

    A message that is lost arrives as None, and its bytes still count for its sender.
    """

    def __init__(self, clients: int, links: Links | None = None, faults: Faults | None = None) -> None:
        self.clients = integer("clients", clients, 1)
        self.links = Links() if links is None else links
        self.faults = Faults() if faults is None else faults
        self.stages: list[Stage] = []
        self._silent: set[int] = set()

    def stage(self, name: str) -> None:
        """Begin the next stage, one round trip. Some clients may fall silent here."""
        self._silent |= self.faults.lost.get(len(self.stages), frozenset())
        self.stages.append(Stage(name))

    def works(self, client: int) -> bool:
        """Whether a client has not dropped out. Only the client's own steps may depend on it: others cannot know."""
        return client not in self._silent

    def up(self, client: int, message: bytes) -> bytes | None:
        """From a client to the server."""
        if not self.works(client):
            return None
        self._now.up[client] += len(message)
        return None if client in self.faults.down else bytes(message)

    def down(self, client: int, message: bytes) -> bytes | None:
        """From the server to a client; bytes count only if the client receives them."""
        if client in self.faults.down or not self.works(client):
            return None
        self._now.down[client] += len(message)
        return bytes(message)

    def between(self, sender: int, receiver: int, message: bytes) -> bytes | None:
        """From client to client, sealed by the caller: relayed by the server, or on a link of their own."""
        if self.links.peers == "relayed":
            arrived = self.up(sender, message)
            return None if arrived is None else self.down(receiver, arrived)
        if not self.works(sender):
            return None
        self._now.peer[sender] += len(message)
        cut = (min(sender, receiver), max(sender, receiver)) in self.faults.cut
        return None if cut or not self.works(receiver) else bytes(message)

    def exchange(
        self, clients: Iterable[int], work: Callable[[int], Mapping[int, bytes]]
    ) -> Iterator[tuple[int, int, bytes]]:
        """What arrives of what each client makes for its peers, one by one: sender, receiver, message.

        A client whose work ends in a `ProtocolError` or `WireError` gives the round up: it sends nothing.
        """
        for sender in filter(self.works, clients):
            messages: Mapping[int, bytes] = {}
            with self.client(sender), suppress(ProtocolError, WireError):
                messages = work(sender)
            for receiver, message in messages.items():
                arrived = self.between(sender, receiver, message)
                if arrived is not None:
                    yield sender, receiver, arrived

    def collect(self, clients: Iterable[int], work: Callable[[int], bytes]) -> Answers:
        """What arrives at the server of what each client makes, one by one; who gives up sends nothing, as above."""
        for i in filter(self.works, clients):
            message = None
            with self.client(i), suppress(ProtocolError, WireError):
                message = work(i)
            arrived = None if message is None else self.up(i, message)
            if arrived is not None:
                yield i, arrived

    def send(self, clients: Iterable[int], message: Callable[[int], bytes]) -> dict[int, bytes]:
        """From the server, a message to each of these clients: what arrives, by client."""
        return {i: arrived for i in clients if (arrived := self.down(i, message(i))) is not None}

    def ask(self, clients: Iterable[int], request: bytes, work: Callable[[int, bytes], bytes]) -> Answers:
        """What arrives at the server of what each client makes of the server's request, as in `collect`."""
        heard = self.send(clients, lambda _: request)
        return self.collect(heard, lambda i: work(i, heard[i]))

    def take(self, answers: Answers, keep: Callable[[int, bytes], object]) -> None:
        """Hand the server's work, `keep`, each client and its message; one that is no such message does not count."""
        for i, message in answers:
            with self.server(), suppress(WireError):
                keep(i, message)

    def hand_out(self, messages: Iterable[bytes], take: Callable[[int, bytes], object]) -> None:
        """From the server to every client, in order, who must all get theirs."""
        for i, message in enumerate(messages):
            arrived = self.down(i, message)
            if arrived is None:
                raise RoundFailedError(self._now.name, f"client {i} did not get it")
            with self.client(i):
                take(i, arrived)

    @contextmanager
    def client(self, client: int) -> Iterator[None]:
        """Time a client's work, in seconds of a processor: others on the machine do not count."""
        begun = time.process_time()
        yield
        self._now.seconds[client] += time.process_time() - begun

    @contextmanager
    def server(self) -> Iterator[None]:
        """Time the server's work."""
        begun = time.process_time()
        yield
        self._now.server += time.process_time() - begun

    @property
    def _now(self) -> Stage:
        return self.stages[-1]

    # what the round cost

    def total(self, what: Literal["up", "down", "peer", "seconds"]) -> float:
        """Mean bytes of a client, or seconds of its work."""
        return sum(sum(getattr(stage, what).values()) for stage in self.stages) / self.clients

    @property
    def trips(self) -> int:
        """Round trips before the sum is known."""
        return len(self.stages)

    def server_seconds(self) -> float:
        """Seconds of work of the server."""
        return sum(stage.server for stage in self.stages)

    def modelled_seconds(self) -> float:
        """How long the round would take."""
        return self.ends()[-1] if self.stages else 0.0

    def ends(self) -> list[float]:
        """Modelled seconds until each stage ends, each being as long as its slowest client's work and wires."""
        links = self.links

        def busy(stage: Stage, i: int) -> float:
            trips = (i in stage.up or i in stage.peer) + (i in stage.down)
            wires = (stage.up.get(i, 0) + stage.peer.get(i, 0)) / links.uplink + stage.down.get(i, 0) / links.downlink
            return stage.seconds.get(i, 0.0) + 8 * wires + links.latency * trips

        clients = range(self.clients)
        return list(accumulate(stage.server + max(busy(stage, i) for i in clients) for stage in self.stages))
