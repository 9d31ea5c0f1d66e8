"""Whether a training on real nodes did what the protocol says, from what it left behind.

python check.py FOLDER

FOLDER is what `run.py --keep` left. The server's part has every model it sent, every announcement, and a digest of
every upload. The nodes' state files have their one-time keys, which nobody but this check may have together: with
them pairwise noise can be expanded again, and what remains of a model's change, after the clients' steps and pairwise
noise are taken out, is the individual noise of the uploads that were used: Gaussian, of known variance, and never
stored anywhere.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent / "app"))

from deployment import task

from lightdp import masks, stream
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.keys import Enrolment, KeyPair, Keyring, Roster, link
from lightdp.protocol import Client
from lightdp.protocol.vector import agreement
from lightdp.repair import RETRIES
from lightdp.wire import Announcement, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lightdp import Plan

Noise = dict[int, "NDArray[np.float64]"]
SURE = 5.0  # standard deviations beyond which a statistic is rejected; the wrong ones are much farther away


def update(weights: NDArray[np.float64], path: Path, clip: float) -> NDArray[np.float64]:
    """What a client adds to the model, by a way of its own: an image's gradient has rank one, so its norm is known."""
    with np.load(path) as data:
        x, y = data["x"], data["y"]
    scores = x @ weights
    scores = np.exp(scores - scores.max(1, keepdims=True))
    error = scores / scores.sum(1, keepdims=True) - y
    norms = np.linalg.norm(error, axis=1) * np.linalg.norm(x, axis=1)
    return -clip * x.T @ (error / np.maximum(norms, 1)[:, None])


@dataclass(frozen=True)
class Claim:
    """Something that must hold, and what was found."""

    text: str
    holds: bool
    found: str


@dataclass(frozen=True)
class State:
    """A node's state file as a `Store`."""

    record: dict[str, Any]

    def load(self) -> bytes:
        """The client's part."""
        return str(self.record["client"]).encode()

    def save(self, state: bytes) -> None:
        """Never."""
        raise RuntimeError(f"the check must not change {len(state)} bytes of state")


class Evidence:
    """What a training left behind. Rounds count from 0; the last one is the closing round, if there was one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        events = folder / "server" / "events.jsonl"
        self.events = [json.loads(line) for line in events.read_text().splitlines()]
        files = sorted((folder / "state").glob("*.json"))
        records = [json.loads(file.read_text()) for file in files]
        self.clients = len(records)
        self.plan: Plan = task.plan(self.clients)
        self.length = int(np.prod(task.SHAPE))
        facts = [json.loads(record["client"]) for record in records]
        self.run = bytes.fromhex(facts[0]["run"])
        bound = agreement(self.plan, self.length, weighted=False)
        self.roster = Roster.from_bytes(bytes.fromhex(facts[0]["roster"]), run=self.run, plan=bound)
        self.names = [enrolment.name for enrolment in self.roster.enrolments]
        by_name = {file.stem: (record, fact) for file, record, fact in zip(files, records, facts, strict=True)}
        self.states = [State(by_name[name][0]) for name in self.names]
        self.facts: list[dict[str, Any]] = [by_name[name][1] for name in self.names]

    @cached_property
    def nodes(self) -> dict[str, int]:
        """Index in the roster by Flower's node id, from the key round."""
        replies = [event for event in self.of("reply") if "enrolment" in event]
        enrolled = {
            reply["node"]: Message.from_bytes(bytes.fromhex(reply["enrolment"]), run=self.run) for reply in replies
        }
        return {
            node: self.roster.index(Enrolment.from_bytes(bytes(message.payload), run=self.run))
            for node, message in enrolled.items()
        }

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.events if event["event"] == kind]

    @cached_property
    def trips(self) -> list[int]:
        """The trip of each round."""
        again = next((event["time"] for event in self.of("again")), float("inf"))
        starts = [event for event in self.of("sent") if event["time"] < again]
        return [event["trip"] for event in starts if "start" in next(iter(event["orders"].values()))]

    def announcements(self) -> Iterator[Announcement]:
        """All, to each node of each round."""
        for event in self.of("sent"):
            for order in event["orders"].values():
                if event["trip"] in self.trips:
                    message = Message.from_bytes(bytes.fromhex(order["start"]), run=self.run, roster=self.roster.hash)
                    yield Announcement.from_bytes(message.payload, round=message.round, clients=self.clients)

    @cached_property
    def came(self) -> list[set[int]]:
        """Whose uploads came before the end of each round."""
        return [
            {self.nodes[reply["node"]] for reply in self.uploads(trip) if self.in_time(reply)} for trip in self.trips
        ]

    def uploads(self, trip: int) -> list[dict[str, Any]]:
        """Replies with bytes."""
        return [reply for reply in self.of("reply") if reply["trip"] == trip and reply["arrays"]]

    def in_time(self, reply: dict[str, Any]) -> bool:
        """Whether a reply came before its round was closed."""
        return self.events.index(reply) < self.closed(reply["trip"])

    def closed(self, trip: int) -> int:
        """The place of a trip's end among the events."""
        return next(i for i, event in enumerate(self.events) if event["event"] == "collected" and event["trip"] == trip)

    @cached_property
    def closing(self) -> int | None:
        """The closing round."""
        found = [each.round for each in self.announcements() if each.closing]
        return found[0] if found else None

    @cached_property
    def used(self) -> list[set[int]]:
        """Whose uploads are in each round's sum: those that came, if they were enough."""
        least = self.clients - self.plan.stragglers
        return [came if len(came) >= least or t == self.closing else set() for t, came in enumerate(self.came)]

    def model(self, turn: int) -> NDArray[np.float64]:
        """The model before a round; after the last one, the final model."""
        name = "final" if turn == len(self.trips) else self.trips[turn]
        if turn == self.closing:
            raise ValueError("the closing round has no model of its own")
        return np.load(self.folder / "server" / f"model-{name}.npy")

    def steps(self) -> Noise:
        """What the clients' data added to each round's sum."""
        return {
            t: sum(
                (update(self.model(t), self._data(self.names[i]), self.plan.clip).ravel() for i in self.used[t]),
                np.zeros(self.length),
            )
            for t in range(len(self.used))
            if t != self.closing
        }

    def _data(self, name: str) -> Path:
        return self.folder / "data" / f"{name}.npz"

    def accuracy(self) -> float:
        """Of the final model, on images that no node has."""
        return task.accuracy(self.model(len(self.used)), self._data("test"))

    def left(self, *, repaired: bool = True) -> Noise:
        """Pairwise noise that does not cancel in each round: what stragglers leave, less what is repaired (R1)."""
        everyone = set(range(self.clients))
        result = {t: np.zeros(self.length) for t in range(len(self.used))}
        for i in everyone:
            for t in self._turns(i):
                if t != self.closing:
                    result[t] += self._pairwise(t, i, everyone - self.used[t])
            for last, t in self.repairs(i) if repaired else []:
                result[t] -= self._pairwise(last, i, everyone - self.used[last])
        return result

    def repairs(self, client: int) -> list[tuple[int, int]]:
        """The rounds whose residual the client took out, each with the round of the upload that did it.

        It is carried by every upload after the round, until one is used, but by no more than `RETRIES` + 1.
        """
        turns, sent = self._turns(client), self.facts[client]["sent"]
        return [(last, t) for last, t in pairwise(turns) if sum(last < each < t for each in sent) <= RETRIES]

    def unrepaired(self) -> list[tuple[int, int]]:
        """Clients, each with a round whose residual it did not take out."""
        return [
            (i, t)
            for i in range(self.clients)
            for t in self._turns(i)
            if t != self.closing and len(self.used[t]) < self.clients and t not in dict(self.repairs(i))
        ]

    def _turns(self, client: int) -> list[int]:
        return [t for t, used in enumerate(self.used) if client in used]

    def _pairwise(self, turn: int, me: int, peers: set[int]) -> NDArray[np.float64]:
        """Σ s_ij r_ij of a round, expanded from the one-time key in i's state file."""
        keyring = Keyring(KeyPair(bytes.fromhex(self.facts[me]["pair"])), self.roster, me)
        grid = masks.Grid.of(self.plan, self.length)
        keys = keyring.stream_keys(sorted(peers), round=turn, chain=self.chains[turn])
        values = np.zeros(self.length, np.int32)
        stream.accumulate(values, masks.pairwise_terms(keys, me, grid))
        return values.astype(np.float64) * grid.step

    @cached_property
    def chains(self) -> list[bytes]:
        """What goes into the keys of each round."""
        result = [self.roster.hash]
        for t, used in enumerate(self.used):
            announced = ClientSet.of(self.clients, used).to_bytes()
            result.append(link(result[-1], round=t, announcement=announced))
        return result

    def remainder(self, paired: Noise) -> NDArray[np.float64]:
        """Individual noise over its standard deviation, by training round, the closing one with the last. (·, d)"""
        grid = masks.Grid.of(self.plan, self.length)
        variance = (grid.sigma_individual * grid.step) ** 2 + grid.wire_step**2 / 12  # of one upload
        between = np.linspace(-0.5, 0.5, self.length) * grid.wire_step  # or the steps of the wire would show
        steps, rows = self.steps(), []
        for t, step in steps.items():
            both = [t, self.closing] if self.closing == t + 1 else [t]
            after = self.model(len(self.used) if self.closing == t + 1 else t + 1)
            change = (after - self.model(t)).ravel() * self.clients - step
            change = change - sum(paired[s] for s in both)
            uploads = sum(len(self.used[s]) for s in both)
            if uploads > 0:
                rows.append((change + between) / np.sqrt(uploads * variance + grid.wire_step**2 / 12))
            elif change.any():
                raise ValueError(f"round {t} was void, but changed the model")
        return np.array(rows)

    def epsilons(self) -> list[float]:
        """The largest ε after each training round, from uploads used and seen late until then; at last, in all."""
        result = []
        turns = [t for t in range(len(self.used)) if t != self.closing]
        for last in turns:
            known = self.events.index(self.of("trained")[0]) if last == turns[-1] else self.closed(self.trips[last])
            odometer = Odometer(self.plan)
            for t in turns[: last + 1]:
                seen = {self.nodes[r["node"]] for r in self.uploads(self.trips[t]) if self.events.index(r) < known}
                odometer.record(sorted(self.used[t]), sorted(seen - self.used[t]))
            result.append(odometer.max_epsilon())
        return result


def distance(rows: NDArray[np.float64]) -> float:
    """How many standard deviations the sum of squares is from that of standard Gaussians."""
    return float((np.sum(rows**2) - rows.size) / np.sqrt(2 * rows.size))


def judge(folder: Path) -> list[Claim]:
    """Everything that must hold."""
    found = Evidence(folder)
    return [*_announced(found), *_model(found), *_cost(found), *_masks(found)]


def _announced(found: Evidence) -> list[Claim]:
    told: dict[int, set[ClientSet]] = {}
    for announcement in found.announcements():
        for turn, used in announcement.history():
            told.setdefault(turn, set()).add(used)
    same = all(len(each) == 1 for each in told.values())
    right = all(set(next(iter(each))) == found.used[t] for t, each in told.items())
    sets = "; ".join(f"{t}: {_list(used)}" for t, used in enumerate(found.used))
    return [
        Claim("all nodes were told the same sets, those that came in time", same and right, f"used by round: {sets}")
    ]


def _model(found: Evidence) -> list[Claim]:
    paired = found.left()
    rows = found.remainder(paired)
    straight = stats.kstest(rows.ravel(), "norm").pvalue
    wrong = {
        "σ larger by a tenth": distance(rows * 1.1),
        "σ smaller by a tenth": distance(rows / 1.1),
        "no repair": distance(found.remainder(found.left(repaired=False))),
        "no pairwise noise": distance(found.remainder({t: np.zeros(found.length) for t in paired})),
    }
    residue = sum(paired.values(), np.zeros(found.length))
    drift = (found.model(len(found.used)) - found.model(0)).ravel() * found.clients - residue
    drift -= sum(found.steps().values(), np.zeros(found.length))
    alone = distance(drift / np.sqrt(sum(len(used) for used in found.used)) / found.plan.sigma_individual)
    kept = [f"{found.names[i]} of round {t}" for i, t in found.unrepaired()]
    return [
        Claim(
            "each round changed the model by the used clients' steps, the pairwise noise and repairs of the sets, and "
            "Gaussian individual noise",
            abs(distance(rows)) < SURE and straight > 1e-6,
            f"{rows.size} values, variance {np.mean(rows**2):.3f} of 1 ({distance(rows):+.1f} standard deviations)",
        ),
        Claim(
            "the same test rejects wrong noise",
            all(abs(value) > SURE for value in wrong.values()),
            ", ".join(f"{name} {value:+.0f}" for name, value in wrong.items()),
        ),
        Claim(
            "in the final model nothing is left of what stragglers left, but for repairs that came too late too often",
            (np.abs(residue).max() < 1e-9 or kept != []) and abs(alone) < SURE,
            f"not repaired: {', '.join(kept) or 'nothing'}; the rest is {alone:+.1f} deviations from steps and "
            f"individual noise alone; accuracy {found.accuracy():.1%}",
        ),
    ]


def _cost(found: Evidence) -> list[Claim]:
    reported = [row["lightdp-epsilon"] for row in found.of("trained")[0]["metrics"].values()]
    expected = found.epsilons()
    own, alike = [], True
    for me, (state, facts) in enumerate(zip(found.states, found.facts, strict=True)):
        client = Client.restore(found.plan, length=found.length, store=state, moved=True)  # to look at
        odometer = Odometer(found.plan, [me])
        for turn, known in enumerate(facts["used"]):
            used = ClientSet.from_bytes(bytes.fromhex(known), found.clients)
            silent = ClientSet.of(found.clients, [me] if turn not in facts["sent"] else [])
            odometer.record(used, ~used - silent)
        last = len(facts["used"])  # not announced yet: it counts at its worst case if data was sent
        pending = last in facts["sent"] and last != facts["closing"]
        own.append(client.epsilon())
        alike &= own[-1] == float(odometer.counted(ahead=pending).epsilon()[0])
    return [
        Claim(
            "ε of each round is the odometer's for these sets", reported == expected, f"at the end {expected[-1]:.4f}"
        ),
        Claim(
            "each node's own ε is the odometer's for what it was told, within the budget",
            alike and max(own) <= found.plan.budget,
            ", ".join(f"{name} {value:.2f}" for name, value in zip(found.names, own, strict=True)),
        ),
    ]


def _masks(found: Evidence) -> list[Claim]:
    killed = json.loads((found.folder / "killed.json").read_text())
    seen: dict[tuple[int, int], set[str]] = {}
    for turn, trip in enumerate(found.trips):
        for reply in found.uploads(trip):
            seen.setdefault((turn, found.nodes[reply["node"]]), set()).update(reply["arrays"])
    counted = all(turn in found.facts[client]["sent"] for turn, client in seen)
    again = next(e["trip"] for e in found.of("sent") if e["time"] > found.of("again")[0]["time"])
    refused = {
        found.nodes[event["node"]]
        for event in found.of("error")
        if event["trip"] == again and "lightdp/protocol: round" in event["reason"]
    }
    me = found.names.index(killed["node"])
    answered = {client for turn, client in seen if turn == killed["round"]} | {me}
    after = [turn for turn, clients in enumerate(found.used) if me in clients and turn > killed["round"]]
    what = "came" if (killed["round"], me) in seen else "never left"
    leaked = [name for reply in found.of("reply") for name in reply["metrics"]]
    return [
        Claim(
            "no client uploaded twice in a round, and every upload was counted before it left",
            all(len(digests) == 1 for digests in seen.values()) and counted,
            f"{len(seen)} uploads",
        ),
        Claim(
            "the killed node takes part again" if killed["back"] else "a node was killed, too late to take part again",
            bool(after) or not killed["back"],
            f"killed in round {killed['round']}, whose upload {what}; used again in rounds {after}",
        ),
        Claim(
            "asked for that round again, with another model, it refuses, and so does everyone who answered it",
            answered <= refused,
            f"{_list(refused)} refused",
        ),
        Claim("no metrics left the nodes", leaked == [], ", ".join(leaked) or "none"),
    ]


def _list(clients: set[int]) -> str:
    return " ".join(map(str, sorted(clients))) or "void"


def report(folder: Path) -> bool:
    """Print all claims; whether they hold."""
    claims = judge(folder)
    for claim in claims:
        print(f"{'yes' if claim.holds else 'NO '}  {claim.text}\n       {claim.found}")
    return all(claim.holds for claim in claims)


if __name__ == "__main__":
    sys.exit(not report(Path(sys.argv[1])))
