"""Lies: what a server tells each client of the past, and what that reveals, by exact algebra on their histories (W5).

A story is a list of tellings. Each asks one client for an upload and tells it who was used in all rounds before, not
always the truth, nor the same to all. Who adds and repairs which noise follows from the histories alone, which are the
real ones of `lightdp.protocol`; so does what the client whose data is at stake, client 0, keeps room for.
"""

from __future__ import annotations

import math
import random  # noqa: TID251  chooses lies, protects nothing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightdp.auditing._signs import worst_signs
from lightdp.client_set import ClientSet
from lightdp.errors import BudgetError, ProtocolError
from lightdp.planning import Plan
from lightdp.protocol.history import ClientHistory, known
from lightdp.repair import RETRIES

Entry = tuple[ClientSet, ...]
"""The sets that became known when a round closed, as announcements have them (`lightdp.protocol.history.known`)."""
Wire = tuple[int, int, int, bytes, bytes | None]
"""Two clients, a round, a chain, a model: what the key of their shared noise is made of."""


@dataclass(frozen=True)
class Telling:
    """A message that asks a client for an upload.

    Attributes:
        client: who is asked.
        past: what became known when each round before closed, as it is told.
        closing: whether it is told that the round has no data.
        given: a hash of the model that comes with the message, 32 bytes (W4); None for the one that clients get if
            nobody is lied to about it.
    """

    client: int
    past: tuple[Entry, ...]
    closing: bool = False
    given: bytes | None = None


@dataclass(frozen=True)
class Sent:
    """An upload that a telling was answered by.

    Attributes:
        telling: what was told.
        wires: sign of the pairwise noise of each wire that is in the upload; those to colluders are left out.
    """

    telling: Telling
    wires: Mapping[Wire, int]


@dataclass(frozen=True)
class Played:
    """What came of a story. Costs are squared μ in units of (Δ/σ_U)².

    Attributes:
        plan: the noise.
        sent: all uploads of honest clients, in order.
        announced: what client 0's odometer charges at the end for what it was told.
        worst: what it says then that all this may have cost, whoever was told what.
        reserved: what client 0 had kept room for when it sent data for the last time.
        refused: how many messages honest clients did not answer.
    """

    plan: Plan
    sent: Sequence[Sent]
    announced: float
    worst: float
    reserved: float
    refused: int

    @property
    def mine(self) -> NDArray[np.intp]:
        """The places of client 0's data among the uploads. (uploads with data,)"""
        data = [each.telling.client == 0 and not each.telling.closing for each in self.sent]
        return np.flatnonzero(data)

    def covariance(self) -> NDArray[np.float64]:
        """(E1) of all uploads, in units of σ_U². (uploads, uploads)"""
        wires = {wire: at for at, wire in enumerate({wire for each in self.sent for wire in each.wires})}
        pairwise = np.zeros((len(self.sent), len(wires)))
        for row, each in zip(pairwise, self.sent, strict=True):
            row[[wires[wire] for wire in each.wires]] = list(each.wires.values())
        return np.eye(len(self.sent)) + self.plan.gamma * pairwise @ pairwise.T

    def exact(self) -> tuple[float, NDArray[np.float64]]:
        """(E2): the cost of all uploads together, and the changes of client 0's data that show best. (len(mine),)

        Which changes are tried is said by `worst_signs`.
        """
        return self._exact[:2]

    @cached_property
    def _exact(self) -> tuple[float, NDArray[np.float64], bool]:
        mine = self.mine
        return worst_signs(np.linalg.inv(self.covariance())[np.ix_(mine, mine)])


def play(plan: Plan, story: Iterable[Telling], *, budget: bool = False) -> Played:
    """Tell a story to histories of all honest clients; the last `plan.colluders` collude.

    Tellings that a client refuses are left out, and so are those of colluders.

    Args:
        plan: the noise.
        story: what is told, in order.
        budget: whether clients refuse what their budget does not allow, as real ones do. Without that the question is
            whether they kept room.
    """
    honest = plan.clients - plan.colluders
    neighbours = plan.graph.neighbours().tolist()
    histories = [ClientHistory(plan, i, bytes(32), neighbours[i]) for i in range(honest)]
    sent: list[Sent] = []
    unit = (plan.sigma_individual / plan.sensitivity) ** 2
    reserved, refused = 0.0, 0
    for telling in story:
        client, now = telling.client, len(telling.past)
        if client >= honest:
            continue
        history = histories[client].copied()
        try:
            history.learn(enumerate(telling.past))
            over = now != history.next or now < max(history.sent, default=-1) + 1
            if budget and not over and not telling.closing:
                history.odometer.admit()
        except (BudgetError, ProtocolError):
            over = True
        if over:
            refused += 1
            continue
        if client == 0 and not telling.closing:
            reserved = float(history.odometer.counted(ahead=True).mu()[0]) ** 2 * unit
        sent.append(Sent(telling, dict(_wires(history, now, honest, telling))))
        histories[client] = history.answered(now, closing=telling.closing, given=telling.given)
    victim = histories[0]
    told, worst = (victim.odometer.counted(ahead=victim.pending, worst=lies) for lies in (False, True))
    if not plan.late_is_seen:  # as the client says it: every upload counts as seen
        worst = victim.odometer.alone(len(victim.sent - victim.closing))
    announced, most = (float(each.mu()[0]) ** 2 * unit for each in (told, worst))
    return Played(plan, sent, announced, most, reserved, refused)


def _wires(history: ClientHistory, now: int, honest: int, telling: Telling) -> Iterator[tuple[Wire, int]]:
    """What an upload shares with honest peers: noise of the round, and that of another which it repairs."""
    parts = [] if telling.closing else [(now, history.neighbours, 1, telling.given)]
    if history.repair is not None:
        parts.append((*history.repair, -1, history.given.get(history.repair[0])))
    for of, peers, sign, given in parts:
        for peer in peers:
            if peer < honest:
                wire = min(history.me, peer), max(history.me, peer), of, history.chain(of), given
                yield wire, sign if history.me < peer else -sign


@dataclass(frozen=True)
class Script:
    """A story as tables that a search can change. Clients are the honest ones, in all rounds.

    Attributes:
        told: who was used in a round, as each client is told. (clients, rounds, N)
        asked: whether a client is asked for an upload. (clients, rounds)
        closing: whether it is told that the round has no data. (clients, rounds)
        on_time: who was on time in a round, as each client is told under grace; None for all that were used, or
            nobody in a void round. (clients, rounds, N)
    """

    told: NDArray[np.bool_]
    asked: NDArray[np.bool_]
    closing: NDArray[np.bool_]
    on_time: NDArray[np.bool_] | None = None

    def story(self, plan: Plan) -> list[Telling]:
        """The tellings, round by round, with sets that no client would refuse.

        A client is not told that it was used or on time where it did not send, a set that is too small is told as
        void, all who were on time are told as used unless the round was void, and of a void round too few are told to
        have been on time.
        """
        told, least = self.told.copy(), plan.clients - plan.stragglers
        on_time = told.copy() if self.on_time is None else self.on_time.copy()
        for client in range(len(told)):
            told[client, :, client] &= self.asked[client]
            on_time[client, :, client] &= self.asked[client]
        void = told.sum(axis=2) < least
        told[void] = False
        on_time &= told | void[:, :, None]
        on_time[void & (on_time.sum(axis=2) >= least)] = False
        past = [[*_entries(told[client], on_time[client], plan)] for client in range(len(told))]
        clients, rounds = self.asked.shape
        return [
            Telling(client, tuple(past[client][:now]), bool(self.closing[client, now]))
            for now in range(rounds)
            for client in range(clients)
            if self.asked[client, now]
        ]


def _entries(told: NDArray[np.bool_], on_time: NDArray[np.bool_], plan: Plan) -> Iterator[Entry]:
    """What one client is told when each round closes, from its tables. Both (rounds, N)"""
    used = [ClientSet(flags) for flags in told]
    came = [ClientSet(flags) for flags in on_time] if plan.grace else []
    for number in range(len(used)):
        yield known(used, came, number, plan.clients)


def rotation(plan: Plan, rounds: int | None = None) -> Script:
    """(W5): client 0 and one group of peers after the other are said to be used; each group is told that 0 was not.

    The groups are as small as the protocol allows. Each, once told, repairs what it shares with client 0 three times,
    in closing rounds, which hide nothing else. Under grace each is told so of two rounds whose noise it shares, and
    that nobody was on time in them.

    Args:
        plan: the noise.
        rounds: how many groups, by default as many as there are.
    """
    honest = plan.clients - plan.colluders
    size = max(plan.honest - plan.stragglers, 2) - 1
    groups = [range(start, min(start + size, honest)) for start in range(1, honest, size)][:rounds]
    span = 1 + plan.grace
    data = span * len(groups)
    length = data + span * (1 + RETRIES) + plan.grace
    told = np.zeros((honest, length, plan.clients), dtype=bool)
    asked, closing = np.zeros((2, honest, length), dtype=bool)
    colluders = range(honest, plan.clients)
    for now in range(data):
        group = groups[now // span]
        told[:, now][:, [0, *group, *colluders]] = True
        told[list(group), now] = True
        told[list(group), now, 0] = False
        gone = range(1, group[0])
        told[gone, now] = False
        asked[[0, *group, *gone], now] = True
        closing[gone, now] = True
    asked[:, data:] = closing[:, data:] = True
    return Script(told, asked, closing, np.zeros_like(told) if plan.grace else None)


def of_reserved(played: Played) -> float:
    """Exact cost in shares of what client 0 had kept room for when it sent last; 0 where it sent nothing."""
    return played.exact()[0] / played.reserved if played.reserved > 0 else 0.0


def of_worst(played: Played) -> float:
    """Exact cost in shares of what client 0 says at the end that all may have cost; 0 where it sent nothing."""
    return played.exact()[0] / played.worst if played.worst > 0 else 0.0


def climb(
    plan: Plan,
    script: Script,
    *,
    seed: int,
    steps: int,
    goal: Callable[[Played], float] = of_reserved,
    budget: bool = False,
) -> Iterator[tuple[Script, Played]]:
    """Change a script at random, and go on from each change that does not lower `goal`.

    Args:
        plan: the noise.
        script: what is tried first.
        seed: of the changes.
        steps: how many stories are tried.
        goal: what is to be large.
        budget: as for `play`.

    Yields:
        Every story that was tried, with what came of it.
    """
    rng = random.Random(seed)  # noqa: S311  a search, not a secret
    best = -math.inf
    for step in range(steps):
        tried = _changed(script, plan, rng) if step else script
        played = play(plan, tried.story(plan), budget=budget)
        yield tried, played
        reached = goal(played)
        if reached >= best:
            best, script = reached, tried


def _changed(script: Script, plan: Plan, rng: random.Random) -> Script:
    """The script with one to three changes: of what some clients are told of a round, or of whether they are asked."""
    on_time = script.told if script.on_time is None else script.on_time
    told, asked, closing, on_time = (each.copy() for each in (script.told, script.asked, script.closing, on_time))
    clients, rounds = asked.shape
    for _ in range(rng.randint(1, 3)):
        now, one = rng.randrange(rounds), rng.randrange(clients)
        some = [one] if rng.random() < 0.5 else [i for i in range(clients) if rng.random() < 0.5]
        sets = on_time if plan.grace and rng.random() < 0.3 else told
        kind = rng.randrange(7)
        if kind == 0:  # as somebody else is told
            sets[some, now] = sets[rng.randrange(clients), now]
        elif kind == 1:  # one client more or less
            sets[some, now, rng.randrange(plan.clients)] ^= True
        elif kind == 2:  # nobody, so void
            sets[some, now] = False
        elif kind == 3:  # everybody but one
            sets[some, now] = True
            sets[some, now, 0 if rng.random() < 0.7 else one] = False
        elif kind == 4:
            asked[some, now] ^= True
        elif kind == 5:
            closing[some, now] ^= True
        else:  # as somebody else is told, asked and so on from here
            other = rng.randrange(clients)
            for table in (told, asked, closing, on_time):
                table[some, now:] = table[other, now:]
    return Script(told, asked, closing, on_time if plan.grace else None)
