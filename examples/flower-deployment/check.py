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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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

Noise = dict[tuple[int, int], "NDArray[np.int64]"]  # by client and round
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


class Change(NamedTuple):
    """What remains of a change of the model when all that is known of its uploads is taken out.

    Attributes:
        uploads: clients and rounds.
        rest: individual noise. (d,)
        scale: its standard deviation.
    """

    uploads: list[tuple[int, int]]
    rest: NDArray[np.float64]
    scale: float


class Evidence:
    """What a training left behind. Rounds count from 0; after those with data come the closing ones.

    An upload is named by its client and its round. Under grace it is in the sum of its round or of the next one (R5).
    """

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
    def scene(self) -> dict[str, Any]:
        """What `run.py` made go wrong."""
        return dict(json.loads((self.folder / "scene.json").read_text()))

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
    def trips(self) -> dict[int, int]:
        """The trip of each round in which somebody was asked."""
        again = next((event["time"] for event in self.of("again")), float("inf"))
        starts = [event for event in self.of("sent") if event["time"] < again]
        return {
            self._announcement(next(iter(event["orders"].values()))).round: event["trip"]
            for event in starts
            if "start" in next(iter(event["orders"].values()))
        }

    def announcements(self) -> Iterator[Announcement]:
        """All, to each node of each round."""
        for event in self.of("sent"):
            if event["trip"] in self.trips.values():
                yield from map(self._announcement, event["orders"].values())

    def _announcement(self, order: dict[str, Any]) -> Announcement:
        message = Message.from_bytes(bytes.fromhex(order["start"]), run=self.run, roster=self.roster.hash)
        shape = {"clients": self.clients, "grace": self.plan.grace}
        return Announcement.from_bytes(message.payload, round=message.round, **shape)

    @cached_property
    def turns(self) -> int:
        """How many rounds had data."""
        return len(self.of("closed"))

    @cached_property
    def rounds(self) -> range:
        """All rounds, with the closing ones."""
        return range(self.turns + 1 + self.plan.grace)

    def closed(self, turn: int) -> int:
        """The place of a round's end among the events."""
        if turn < self.turns:
            ends = [i for i, event in enumerate(self.events) if event["event"] == "closed"]
            return ends[turn]
        after = [e for e in self.of("sent") if e["trip"] == self.trips.get(turn + 1)] or self.of("trained")
        return self.events.index(after[0])

    def uploads(self, turn: int) -> list[dict[str, Any]]:
        """Replies with bytes."""
        return [each for each in self.of("reply") if each["trip"] == self.trips.get(turn, -1) and each["arrays"]]

    def came(self, turn: int, until: int) -> set[int]:
        """Whose uploads of a round came before the end of the round `until`."""
        end = self.closed(until)
        return {self.nodes[reply["node"]] for reply in self.uploads(turn) if self.events.index(reply) < end}

    @cached_property
    def on_time(self) -> list[set[int]]:
        """Whose uploads came before the end of each round."""
        return [self.came(t, t) for t in self.rounds]

    @cached_property
    def used(self) -> list[set[int]]:
        """Whose uploads of each round are in the model: those that came until the next one ended, if enough did."""
        came = [self.came(t, min(t + self.plan.grace, self.rounds[-1])) for t in self.rounds]
        return [each if self.counts(t, each) else set() for t, each in enumerate(came)]

    def counts(self, turn: int, came: set[int]) -> bool:
        """Whether so many uploads are enough."""
        return len(came) >= self.clients - self.plan.stragglers or turn >= self.turns

    @cached_property
    def sums(self) -> list[list[tuple[int, int]]]:
        """The uploads, by client and round, in the sum that was released when each round ended."""
        released: list[list[tuple[int, int]]] = []
        done: set[tuple[int, int]] = set()
        for t in self.rounds:
            now = self.on_time[t] if self.counts(t, self.on_time[t]) else set()
            final = t - self.plan.grace
            pairs = {(i, t) for i in now} | {(i, final) for i in (self.used[final] if final >= 0 else ())}
            released.append(sorted(pairs - done))
            done |= pairs
        return released

    def joined(self, client: int) -> list[int]:
        """Rounds with data whose upload of a client came late and is in the model."""
        return [t for t in range(self.turns) if client in self.used[t] - self.on_time[t]]

    def model(self, turn: int) -> NDArray[np.float64]:
        """The model before a round with data; after the last one, the final model."""
        name = "final" if turn >= self.turns else self.trips[turn]
        return np.load(self.folder / "server" / f"model-{name}.npy")

    def step(self, client: int, turn: int) -> NDArray[np.float64]:
        """What a client's data adds in a round."""
        if turn >= self.turns:
            return np.zeros(self.length)
        return update(self.model(turn), self._data(self.names[client]), self.plan.clip).ravel()

    def _data(self, name: str) -> Path:
        return self.folder / "data" / f"{name}.npz"

    def accuracy(self) -> float:
        """Of the final model, on images that no node has."""
        return task.accuracy(self.model(self.turns), self._data("test"))

    def noise(self, *, repaired: bool = True) -> Noise:
        """Pairwise noise in each upload that is in the model, less what it repairs (R1), in fine steps."""
        everyone, result = set(range(self.clients)), {}
        for i in everyone:
            carried = self.carried(i) if repaired else {}
            for t in self.rounds:
                if i in self.used[t]:
                    peers = everyone - {i} if t < self.turns else set()  # a closing upload has none of its own
                    result[i, t] = self._pairwise(t, i, peers)
                    if t in carried:
                        result[i, t] -= self._pairwise(carried[t], i, everyone - self.used[carried[t]])
        return result

    def carried(self, client: int) -> dict[int, int]:
        """The round whose residual each upload of a client takes out, by the upload's round.

        It is the oldest that waits. One that rode in an upload that was not used waits again, `RETRIES` times.
        """
        result: dict[int, int] = {}
        waiting: list[tuple[int, int]] = []  # rounds, and uploads that may still carry them
        flying: dict[int, tuple[int, int]] = {}
        for t in self.rounds:
            known = t - 1 - self.plan.grace
            if known in flying and client not in self.used[known] and flying[known][1] > 1:
                waiting.append((flying[known][0], flying[known][1] - 1))
            if 0 <= known < self.turns and client in self.used[known] and len(self.used[known]) < self.clients:
                waiting.append((known, RETRIES + 1))
            waiting.sort()
            if t in self.facts[client]["sent"] and waiting:
                flying[t] = waiting.pop(0)
                result[t] = flying[t][0]
        return result

    def unrepaired(self) -> list[tuple[int, int]]:
        """Clients, each with a round whose residual it did not take out."""
        paid = {(i, last) for i in range(self.clients) for t, last in self.carried(i).items() if i in self.used[t]}
        short = [t for t in range(self.turns) if len(self.used[t]) < self.clients]
        return [(i, t) for t in short for i in sorted(self.used[t]) if (i, t) not in paid]

    def _pairwise(self, turn: int, me: int, peers: set[int]) -> NDArray[np.int64]:
        """Σ s_ij r_ij of a round, expanded from the one-time key in i's state file."""
        keyring = Keyring(KeyPair(bytes.fromhex(self.facts[me]["pair"])), self.roster, me)
        keys = keyring.stream_keys(sorted(peers), round=turn, chain=self.chains[turn])
        values = np.zeros(self.length, np.int32)
        stream.accumulate(values, masks.pairwise_terms(keys, me, self.grid))
        return values.astype(np.int64)

    @cached_property
    def grid(self) -> masks.Grid:
        """Steps of the noise and of the wire."""
        return masks.Grid.of(self.plan, self.length)

    def entry(self, turn: int) -> tuple[ClientSet, ...]:
        """What became known when a round ended: whom the one before it used, and who was on time."""
        final = turn - self.plan.grace
        sets = [self.used[final] if final >= 0 else set(), *([self.on_time[turn]] if self.plan.grace else [])]
        return tuple(ClientSet.of(self.clients, each) for each in sets)

    @cached_property
    def chains(self) -> list[bytes]:
        """What goes into the keys of each round."""
        result = [self.roster.hash]
        for t in self.rounds:
            announced = b"".join(each.to_bytes() for each in self.entry(t))
            result.append(link(result[-1], round=t, announcement=announced))
        return result

    def changes(self, noise: Noise, *, without: tuple[int, ...] = ()) -> list[Change]:
        """The model's changes by rounds with data, the closing ones with the last.

        Args:
            noise: what is known of the uploads' noise.
            without: clients whose late uploads are taken for lost.
        """
        rounding = self.grid.wire_step**2 / 12
        variance = (self.grid.sigma_individual * self.grid.step) ** 2 + rounding  # of one upload
        between = np.linspace(-0.5, 0.5, self.length) * self.grid.wire_step  # or the steps of the wire would show
        result = []
        for t in range(self.turns):
            ends = [t] if t < self.turns - 1 else self.rounds[t:]
            pairs = [(i, s) for end in ends for i, s in self.sums[end] if not (i in without and s in self.joined(i))]
            moved = (self.model(t + 1) - self.model(t)).ravel() * self.clients
            paired = sum((noise[pair] for pair in pairs if pair in noise), np.zeros(self.length, np.int64))
            steps = sum((self.step(*pair) for pair in pairs), np.zeros(self.length))
            if not pairs and moved.any():
                raise ValueError(f"round {t} had no sum, but changed the model")
            if pairs:
                rest = moved - steps - paired * self.grid.step + between
                result.append(Change(pairs, rest, np.sqrt(len(pairs) * variance + rounding)))
        return result

    def remainder(self, noise: Noise, *, without: tuple[int, ...] = ()) -> NDArray[np.float64]:
        """Individual noise over its standard deviation, by round with data. (·, d)"""
        return np.array([change.rest / change.scale for change in self.changes(noise, without=without)])

    def epsilons(self) -> list[float]:
        """The largest ε after each training round, from uploads used and seen late until then; at last, in all."""
        result = []
        for last in range(self.turns):
            ends = self.events.index(self.of("trained")[0]) if last == self.turns - 1 else self.closed(last)
            odometer = Odometer(self.plan)
            for t in range(self.turns if last == self.turns - 1 else last + 1 - self.plan.grace):
                seen = {self.nodes[r["node"]] for r in self.uploads(t) if self.events.index(r) < ends}
                odometer.record(sorted(self.used[t]), sorted(seen - self.used[t]))
            if odometer.rounds <= last:
                odometer.open(sorted(self.on_time[last]))
            result.append(odometer.counted().max_epsilon())
        return result


def distance(rows: NDArray[np.float64]) -> float:
    """How many standard deviations the sum of squares is from that of standard Gaussians."""
    return float((np.sum(rows**2) - rows.size) / np.sqrt(2 * rows.size))


def judge(folder: Path) -> list[Claim]:
    """Everything that must hold."""
    found = Evidence(folder)
    return [*_announced(found), *_model(found), *_cost(found), *_masks(found)]


def _announced(found: Evidence) -> list[Claim]:
    told: dict[int, set[tuple[ClientSet, ...]]] = {}
    for announcement in found.announcements():
        for turn, sets in announcement.history():
            told.setdefault(turn, set()).add(sets)
    right = all(each == {found.entry(t)} for t, each in told.items())
    text = "; ".join(f"{t}: {_list(used)}" for t, used in enumerate(found.used))
    return [Claim("all nodes were told the same sets, those that came in time", right, f"used by round: {text}")]


def _model(found: Evidence) -> list[Claim]:
    noise = found.noise()
    rows = found.remainder(noise)
    straight = stats.kstest(rows.ravel(), "norm").pvalue
    wrong = {
        "σ larger by a tenth": distance(rows * 1.1),
        "σ smaller by a tenth": distance(rows / 1.1),
        "no repair": distance(found.remainder(found.noise(repaired=False))),
        "no pairwise noise": distance(found.remainder({})),
    }
    residue = sum(noise.values(), np.zeros(found.length, np.int64))
    everything = [pair for pairs in found.sums for pair in pairs]
    drift = (found.model(found.turns) - found.model(0)).ravel() * found.clients - residue * found.grid.step
    drift -= sum((found.step(*pair) for pair in everything), np.zeros(found.length))
    alone = distance(drift / np.sqrt(len(everything)) / found.plan.sigma_individual)
    kept = [f"{found.names[i]} of round {t}" for i, t in found.unrepaired()]
    return [
        Claim(
            "each round changed the model by its uploads' steps, their pairwise noise and repairs, and Gaussian "
            "individual noise",
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
            (not residue.any() or kept != []) and abs(alone) < SURE,
            f"not repaired: {', '.join(kept) or 'nothing'}; the rest is {alone:+.1f} deviations from steps and "
            f"individual noise alone; accuracy {found.accuracy():.1%}",
        ),
        _slow(found, noise),
    ]


def _slow(found: Evidence, noise: Noise) -> Claim:
    """Late uploads of the slow node are in the model: without them its changes cannot be explained."""
    me = found.names.index(found.scene["slow"])
    joined, sent = found.joined(me), [t for t in found.facts[me]["sent"] if t < found.turns]
    too_late = [t for t in sent if me not in found.used[t]]
    lost = distance(found.remainder(noise, without=(me,)))
    seen, meant = 0.0, 0.0  # how far the model went along the steps of these uploads, in standard deviations
    for change in found.changes(noise):
        steps = sum((found.step(i, t) for i, t in change.uploads if i == me and t in joined), np.zeros(found.length))
        seen += float((change.rest + steps) @ steps) / change.scale**2
        meant += float(steps @ steps) / change.scale**2
    along, expected = seen / np.sqrt(meant or 1.0), np.sqrt(meant)
    return Claim(
        "what the slow node sends late is in the model, with its data",
        joined != [] and abs(lost) > SURE and abs(along - expected) < SURE,
        f"of {len(sent)} uploads {len(joined)} came in the round after theirs (rounds {joined}), {len(too_late)} too "
        f"late; taken for lost, the model is {lost:+.0f} deviations off; along their steps it went {along:.1f} of "
        f"{expected:.1f} deviations",
    )


def _cost(found: Evidence) -> list[Claim]:
    reported = [row["lightdp-epsilon"] for row in found.of("trained")[0]["metrics"].values()]
    expected = found.epsilons()
    own, alike = [], True
    for me, (state, facts) in enumerate(zip(found.states, found.facts, strict=True)):
        client = Client.restore(found.plan, length=found.length, store=state, moved=True)  # to look at
        own.append(client.epsilon())
        alike &= own[-1] == float(_told(found, me, facts).epsilon()[0])
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


def _told(found: Evidence, me: int, facts: dict[str, Any]) -> Odometer:
    """What a node knows to have spent: rounds that are not final or not announced yet count at their worst."""
    odometer, alone = Odometer(found.plan, [me]), ClientSet.of(found.clients, [me])
    used, on_time = (
        [ClientSet.from_bytes(bytes.fromhex(each), found.clients) for each in facts[what]]
        for what in ("used", "on_time")
    )
    for turn, each in enumerate(used):
        odometer.record(each, ~each - (alone if turn not in facts["sent"] else ClientSet.none(found.clients)))
    last = len(on_time) - 1
    if last >= len(used) and last not in facts["closing"]:
        late = last in facts["sent"] and me not in on_time[last]
        odometer.open(on_time[last], alone if late else ())
    return odometer.counted(ahead=last + 1 in facts["sent"] and last + 1 not in facts["closing"])


def _masks(found: Evidence) -> list[Claim]:
    scene = found.scene
    seen: dict[tuple[int, int], set[str]] = {}
    for turn in found.trips:
        for reply in found.uploads(turn):
            seen.setdefault((turn, found.nodes[reply["node"]]), set()).update(reply["arrays"])
    counted = all(turn in found.facts[client]["sent"] for turn, client in seen)
    again = next(e["trip"] for e in found.of("sent") if e["time"] > found.of("again")[0]["time"])
    refused = {
        found.nodes[event["node"]]
        for event in found.of("error")
        if event["trip"] == again and "lightdp/protocol: round" in event["reason"]
    }
    me = found.names.index(scene["killed"])
    answered = {client for turn, client in seen if turn == scene["round"]} | {me}
    after = [turn for turn, clients in enumerate(found.used) if me in clients and turn > scene["round"]]
    what = "came" if (scene["round"], me) in seen else "never left"
    leaked = [name for reply in found.of("reply") for name in reply["metrics"]]
    return [
        Claim(
            "no client uploaded twice in a round, and every upload was counted before it left",
            all(len(digests) == 1 for digests in seen.values()) and counted,
            f"{len(seen)} uploads",
        ),
        Claim(
            "the killed node takes part again" if scene["back"] else "a node was killed, too late to take part again",
            bool(after) or not scene["back"],
            f"killed in round {scene['round']}, whose upload {what}; used again in rounds {after}",
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
