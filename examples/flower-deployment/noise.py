"""The noise in a training's model, and what all uploads together reveal, computed again from the nodes' keys.

What remains of a model's change, after the clients' steps and their pairwise noise are taken out, is the individual
noise of the uploads that were used: Gaussian, of known variance, and never stored anywhere.
"""

from __future__ import annotations

import itertools
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lightdp import masks, stream
from lightdp.keys import Keyring, link
from lightdp.repair import RETRIES

if TYPE_CHECKING:
    from pathlib import Path

    from evidence import Event, Evidence, Roster
    from numpy.typing import NDArray

    from lightdp.client_set import ClientSet

Pair = tuple[int, int]  # client and round: an upload of a roster


@lru_cache(maxsize=256)
def update(evidence: Evidence, trip: int, path: Path, clip: float) -> NDArray[np.float64]:
    """What a client adds to the model, by a way of its own: an image's gradient has rank one, so its norm is known."""
    weights = evidence.model(trip)
    with np.load(path) as data:
        x, y = data["x"], data["y"]
    scores = x @ weights
    scores = np.exp(scores - scores.max(1, keepdims=True))
    error = scores / scores.sum(1, keepdims=True) - y
    norms = np.linalg.norm(error, axis=1) * np.linalg.norm(x, axis=1)
    return (-clip * x.T @ (error / np.maximum(norms, 1)[:, None])).ravel()


class Noise:
    """The noise of one roster's uploads."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.grid = masks.Grid.of(roster.plan, roster.evidence.length)

    @cached_property
    def sums(self) -> list[list[Pair]]:
        """The uploads in the sum that was released when each round ended."""
        roster, released = self.roster, []
        done: set[Pair] = set()
        for t in roster.rounds:
            now = set(roster.on_time[t]) if roster.counts(t, roster.on_time[t]) else set()
            pairs = {(i, t) for i in now & set(roster.used[t])}
            pairs |= {(i, t - 1) for i in (roster.used[t - 1] if t > 0 else ())}
            if t == roster.rounds[-1]:
                pairs |= {(i, t) for i in roster.used[t]}
            released.append(sorted(pairs - done))
            done |= pairs
        return released

    @property
    def data_sets(self) -> list[ClientSet]:
        """Whose uploads of each round with data are in the model."""
        return [used for t, used in enumerate(self.roster.used) if t not in self.roster.closing]

    def joined(self, client: int) -> list[int]:
        """Rounds with data whose upload of a client came late and is in the model."""
        roster = self.roster
        return [t for t in roster.rounds if t not in roster.closing and client in roster.used[t] - roster.on_time[t]]

    def step(self, client: int, turn: int) -> NDArray[np.float64]:
        """What a client's data adds in a round."""
        roster = self.roster
        if turn in roster.closing:
            return np.zeros(roster.evidence.length)
        data = roster.evidence.data(roster.names[client])
        return update(roster.evidence, roster.trips[turn]["trip"], data, roster.plan.clip)

    def sent(self, client: int) -> frozenset[int]:
        """Rounds that a client has counted as answered."""
        state = self.roster.states[client]
        return frozenset() if state is None else state.sent

    def carried(self, client: int) -> dict[int, int]:
        """The round whose residual each upload of a client takes out, by the upload's round (R1).

        It is the oldest that waits. One that rode in an upload that was not used waits again, `RETRIES` times.
        """
        roster, result = self.roster, dict[int, int]()
        waiting: list[tuple[int, int]] = []  # rounds, and uploads that may still carry them
        flying: dict[int, tuple[int, int]] = {}
        for t in roster.rounds:
            known = t - 2  # the last round whose set the announcement of this one tells
            if known in flying and client not in roster.used[known] and flying[known][1] > 1:
                waiting.append((flying[known][0], flying[known][1] - 1))
            short = known >= 0 and known not in roster.closing and len(roster.used[known]) < roster.clients
            if short and client in roster.used[known]:
                waiting.append((known, RETRIES + 1))
            waiting.sort()
            if t in self.sent(client) and waiting:
                flying[t] = waiting.pop(0)
                result[t] = flying[t][0]
        return result

    def unrepaired(self) -> list[Pair]:
        """Clients, each with a round whose residual it did not take out."""
        roster = self.roster
        paid = {(i, s) for i in range(roster.clients) for t, s in self.carried(i).items() if i in roster.used[t]}
        short = [t for t in roster.rounds if t not in roster.closing and len(roster.used[t]) < roster.clients]
        return [(i, t) for t in short for i in roster.used[t] if (i, t) not in paid]

    def pairwise(self, *, repaired: bool = True) -> dict[Pair, NDArray[np.int64]]:
        """Pairwise noise in each upload that is in the model, less what it repairs, in fine steps."""
        roster, result = self.roster, dict[Pair, "NDArray[np.int64]"]()
        everyone = set(range(roster.clients))
        for i in everyone:
            carried = self.carried(i) if repaired else {}
            for t in roster.rounds:
                if i in roster.used[t]:
                    result[i, t] = self._expanded(t, i, set() if t in roster.closing else everyone - {i})
                    if t in carried:
                        result[i, t] -= self._expanded(carried[t], i, everyone - set(roster.used[carried[t]]))
        return result

    def _expanded(self, turn: int, me: int, peers: set[int]) -> NDArray[np.int64]:
        """Σ s_ij r_ij of a round, from the one-time key in a client's state file."""
        state, values = self.roster.states[me], np.zeros(self.roster.evidence.length, np.int32)
        if state is None:
            raise ValueError(f"{self.roster.names[me]} never joined roster {self.roster.number}, and was used")
        keys = Keyring(state.pair, self.roster.keys, me).stream_keys(sorted(peers), round=turn, chain=self.chains[turn])
        stream.accumulate(values, masks.pairwise_terms(keys, me, self.grid))
        return values.astype(np.int64)

    @cached_property
    def chains(self) -> list[bytes]:
        """What goes into the keys of each round."""
        result = [self.roster.keys.hash]
        for t in self.roster.rounds:
            announced = b"".join(each.to_bytes() for each in self.roster.entry(t))
            result.append(link(result[-1], round=t, announcement=announced))
        return result

    def exact(self, client: int, *, arrived: bool) -> float:
        """μ² of a member's data in this roster's uploads, from their covariance: the largest over signs (E2).

        Args:
            client: the member.
            arrived: whether only uploads count that the server has seen, or all that were made.
        """
        roster, plan = self.roster, self.roster.plan
        made = [(i, t) for i in range(roster.clients) for t in sorted(self.sent(i))]
        if arrived:
            made = [(i, t) for i, t in made if i in roster.arrived(t)]
        mine = [at for at, (i, t) in enumerate(made) if i == client and t not in roster.closing]
        if not mine:
            return 0.0
        column: dict[tuple[int, int, int], int] = {}
        terms = []
        for at, (i, t) in enumerate(made):
            parts = [] if t in roster.closing else [(t, set(range(roster.clients)) - {i}, 1)]
            if (repaired := self.carried(i).get(t)) is not None:
                parts.append((repaired, set(range(roster.clients)) - set(roster.used[repaired]), -1))
            for turn, peers, sign in parts:
                for j in peers:
                    key = (turn, min(i, j), max(i, j))
                    terms.append((at, column.setdefault(key, len(column)), sign if i < j else -sign))
        matrix = np.zeros((len(made), len(column)))
        for at, place, sign in terms:
            matrix[at, place] += sign * plan.sigma_pairwise
        covariance = plan.sigma_individual**2 * np.eye(len(made)) + matrix @ matrix.T
        precision = np.linalg.inv(covariance)[np.ix_(mine, mine)]
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(mine))))
        return float(((signs @ precision) * signs).sum(1).max()) * plan.sensitivity**2


class Change(NamedTuple):
    """What remains of a change of the model when all that is known of its uploads is taken out.

    Attributes:
        uploads: rosters, clients and rounds.
        rest: individual noise. (d,)
        scale: its standard deviation.
    """

    uploads: list[tuple[int, int, int]]
    rest: NDArray[np.float64]
    scale: float


class Changes:
    """The model's changes from one message with a model to the next, and from the last one to the end."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.noises = {number: Noise(roster) for number, roster in evidence.rosters.items()}

    @cached_property
    def sums(self) -> list[list[tuple[int, list[Pair]]]]:
        """Rosters, each with the uploads of a sum, by change."""
        found: list[list[tuple[int, list[Pair]]]] = [[] for _ in self.evidence.data_trips]
        for number, noise in self.noises.items():
            for turn, pairs in enumerate(noise.sums):
                if pairs:
                    found[self._change(noise.roster, turn)].append((number, pairs))
        return found

    def _change(self, roster: Roster, turn: int) -> int:
        """The change in which a round ended."""
        trips: list[Event] = self.evidence.data_trips
        if turn in roster.closing and roster.live:
            return len(trips) - 1
        at = roster.trips[turn]["at"]
        return max(k for k, each in enumerate(trips) if each["at"] <= at)

    def rest(self, *, repaired: bool = True, paired: bool = True, without: str = "") -> list[Change]:
        """What remains of each change.

        Args:
            repaired: whether repairs are taken out.
            paired: whether pairwise noise is.
            without: a node whose late uploads are taken for lost.
        """
        length, trips, result = self.evidence.length, self.evidence.data_trips, []
        known = {number: noise.pairwise(repaired=repaired) if paired else {} for number, noise in self.noises.items()}
        names = [*(event["trip"] for event in trips), "final"]
        for k, sums in enumerate(self.sums):
            rest = (self.evidence.model(names[k + 1]) - self.evidence.model(names[k])).ravel()
            uploads, variance = [], 0.0
            for number, pairs in sums:
                noise, size = self.noises[number], self.noises[number].roster.clients
                rounding = noise.grid.wire_step**2 / 12
                for i, t in pairs:
                    if noise.roster.names[i] == without and t in noise.joined(i):
                        continue
                    uploads.append((number, i, t))
                    pairwise = known[number].get((i, t), np.zeros(length, np.int64))
                    rest = rest - (noise.step(i, t) + pairwise * noise.grid.step) / size
                    variance += ((noise.grid.sigma_individual * noise.grid.step) ** 2 + rounding) / size**2
                # or the steps of the wire would show
                rest = rest + np.linspace(-0.5, 0.5, length) * noise.grid.wire_step / size
                variance += rounding / size**2
            if not uploads and rest.any():
                raise ValueError(f"the model changed after message {names[k]}, but no upload was used")
            if uploads:
                result.append(Change(uploads, rest, float(np.sqrt(variance))))
        return result
