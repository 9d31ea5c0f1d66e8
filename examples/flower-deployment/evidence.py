"""What a training on real nodes left behind, read from outside: announcements, uploads, models, states, a checkpoint.

The nodes' state files have their one-time keys, which nobody but this check may have together: with them pairwise noise
can be expanded again (`noise.py`).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "app"))

from deployment import task

from lightdp.client_set import ClientSet
from lightdp.federation import Kept
from lightdp.keys import Enrolment
from lightdp.planning import Plan
from lightdp.wire import Announcement, Message

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightdp.protocol import ClientState

Event = dict[str, Any]
Sets = tuple[ClientSet, ...]  # what became known when a round ended: whom the one before it used, and who was on time


@dataclass(frozen=True)
class Claim:
    """Something that must hold, and what was found."""

    text: str
    holds: bool
    found: str


class Evidence:
    """All of it. An event's place in the file is its time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lines = (folder / "server" / "events.jsonl").read_text().splitlines()
        self.events: list[Event] = [json.loads(line) | {"at": at} for at, line in enumerate(lines)]
        self.scene: dict[str, Any] = json.loads((folder / "scene.json").read_text())
        self.kept = {file.stem: Kept.read(file) for file in sorted((folder / "state").glob("*.json"))}
        first = next(iter(self.kept.values()))
        self.plan, self.length, self.run = first.plan, first.length, bytes.fromhex(first.run)
        self.checkpoint = _facts(folder / "server" / "checkpoint")
        self.past: dict[str, Any] = json.loads(self.checkpoint["federation"])
        numbers = {state.roster.number for kept in self.kept.values() for state in kept.states if state.roster}
        self.rosters = {number: Roster(self, number) for number in sorted(numbers)}

    def of(self, kind: str) -> list[Event]:
        """The events of one kind."""
        return [event for event in self.events if event["event"] == kind]

    @cached_property
    def nodes(self) -> dict[str, str]:
        """Names by Flower's node id."""
        found = {}
        for reply in self.of("reply"):
            if "enrolment" in reply:
                message = Message.from_bytes(bytes.fromhex(reply["enrolment"]), run=self.run)
                found[reply["node"]] = Enrolment.from_bytes(bytes(message.payload), run=self.run).name
        return found

    @cached_property
    def trained(self) -> Event:
        """The end of the training."""
        return self.of("trained")[0]

    @cached_property
    def trips(self) -> list[Event]:
        """Messages with announcements, before the training ended."""
        found = []
        for event in self.of("sent"):
            orders = [order for order in event["orders"].values() if "start" in order]
            if orders and event["at"] < self.trained["at"]:
                start = bytes.fromhex(orders[0]["start"])
                facts = {"hash": Message.roster_of(start), "turn": Message.sender_of(start)[1]}
                found.append(event | facts)
        return found

    @cached_property
    def uploads(self) -> list[Event]:
        """Replies with bytes, each with the hash of its roster, its client and its round."""
        found = []
        for event in self.of("reply"):
            for text in event["uploads"]:
                client, turn = Message.sender_of(bytes.fromhex(text))
                found.append(event | {"hash": Message.roster_of(bytes.fromhex(text)), "client": client, "turn": turn})
        return found

    @cached_property
    def data_trips(self) -> list[Event]:
        """Trips with a model."""
        return [event for event in self.trips if event["model"]]

    def model(self, name: int | str) -> NDArray[np.float64]:
        """The model of a trip, or "final"."""
        return np.load(self.folder / "server" / f"model-{name}.npy")

    def data(self, name: str) -> Path:
        """A node's images, or "test"."""
        return self.folder / "data" / f"{name}.npz"

    def accuracy(self) -> float:
        """Of the final model, on images that no node has."""
        return task.accuracy(self.model("final"), self.data("test"))


class Roster:
    """One roster and its rounds, which count from 0. Under grace=1 an upload is in the sum of its round or the next.

    Attributes:
        number: of the roster.
        plan: of a roster of its size.
        names: its members, by index.
        states: what each of them has kept of it; None of one that never joined it.
        live: whether the server had it to the end.
        on_time: whose uploads came before the end of each round.
        used: whose uploads of each round are in the model.
    """

    def __init__(self, evidence: Evidence, number: int) -> None:
        self.evidence, self.number = evidence, number
        found = [s for kept in evidence.kept.values() for s in kept.states if s.roster and s.roster.number == number]
        roster = found[0].roster
        if roster is None:
            raise ValueError("a client must have joined")
        self.keys, self.plan = roster, Plan.from_json(found[0].plan)
        self.names = list(roster.names)
        by_name = {state.enrolment.name: state for state in found}
        self.states: list[ClientState | None] = [by_name.get(name) for name in self.names]
        self.past: dict[str, Any] | None = evidence.past["rosters"].get(str(number))
        self.live = self.past is not None
        self.trips = {event["turn"]: event for event in evidence.trips if event["hash"] == roster.hash}
        self.uploads = [event for event in evidence.uploads if event["hash"] == roster.hash]
        self.on_time, self.used = self._kept() if self.past is not None else self._seen()

    @property
    def clients(self) -> int:
        """How many members it has."""
        return len(self.names)

    @property
    def rounds(self) -> range:
        """All rounds."""
        return range(len(self.on_time))

    @cached_property
    def closing(self) -> set[int]:
        """Rounds without data. One that nobody was asked in has no upload either."""
        told = {t for t, event in self.trips.items() if any(each.closing for each in self.announcements(event))}
        return told | {t for t in self.rounds if t not in self.trips and t > max(set(self.trips) - told)}

    def counts(self, turn: int, came: ClientSet) -> bool:
        """Whether so many uploads are enough."""
        return turn in self.closing or len(came) >= self.clients - self.plan.stragglers

    def announcements(self, event: Event) -> list[Announcement]:
        """Those of a trip, one for each node."""
        found = []
        for order in event["orders"].values():
            message = Message.from_bytes(bytes.fromhex(order["start"]), run=self.evidence.run, roster=self.keys.hash)
            shape = {"clients": self.clients, "grace": self.plan.grace}
            found.append(Announcement.from_bytes(message.payload, round=message.round, **shape))
        return found

    @cached_property
    def told(self) -> dict[int, set[Sets]]:
        """What nodes were told of each round; all the same, if the server is honest."""
        found: dict[int, set[Sets]] = {}
        for event in self.trips.values():
            for announcement in self.announcements(event):
                for turn, sets in announcement.history():
                    found.setdefault(turn, set()).add(sets)
        return found

    def entry(self, turn: int) -> Sets:
        """What became known when a round ended."""
        return (self.used[turn - 1] if turn > 0 else ClientSet.none(self.clients)), self.on_time[turn]

    def arrived(self, turn: int, until: float = float("inf")) -> ClientSet:
        """Whose uploads of a round came before the event `until`."""
        return ClientSet.of(self.clients, {u["client"] for u in self.uploads if u["turn"] == turn and u["at"] < until})

    def _kept(self) -> tuple[list[ClientSet], list[ClientSet]]:
        """The sets of a roster that lived to the end, from the checkpoint."""
        server = (self.past or {})["server"]
        on_time, used = (
            [ClientSet.from_bytes(bytes.fromhex(each), self.clients) for each in server[what]]
            for what in ("on_time", "used")
        )
        if len(used) < len(on_time):  # the training ended with that round
            enough = len(on_time[-1]) >= self.clients - self.plan.stragglers
            used.append(on_time[-1] if enough else ClientSet.none(self.clients))
        return on_time, used

    def _seen(self) -> tuple[list[ClientSet], list[ClientSet]]:
        """The sets of a roster that was closed: as announced, and for its last rounds as uploads came."""
        last = max(self.trips)
        told = [next(iter(self.told[turn])) for turn in range(last)]
        after = [event["at"] for event in self.evidence.of("sent") if event["at"] > self.trips[last]["at"]]
        until = min([*after, self.evidence.trained["at"]])
        on_time = [sets[1] for sets in told] + [self.arrived(last, until)]
        used = [sets[0] for sets in told[1:]]
        for turn in range(max(last - 1, 0), last + 1):
            came = on_time[turn] | self.arrived(turn, until)
            least = 0 if self._closes(turn) else self.clients - self.plan.stragglers
            used.append(came if len(came) >= least else ClientSet.none(self.clients))
        return on_time, used

    def _closes(self, turn: int) -> bool:
        return turn in self.trips and any(each.closing for each in self.announcements(self.trips[turn]))


def _facts(path: Path) -> dict[str, Any]:
    """The facts of a checkpoint: after a SHA-256 and their length, as JSON."""
    data = path.read_bytes()
    size = int.from_bytes(data[32:40], "big")
    return dict(json.loads(data[40 : 40 + size])["facts"])
