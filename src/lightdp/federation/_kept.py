"""What a state file holds, for its operator to read: without keys, and without changing anything."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lightdp import gaussian
from lightdp._validate import non_negative
from lightdp.errors import ArgumentError, LightDPError
from lightdp.federation._member import Member
from lightdp.federation._state import MemberState
from lightdp.planning import NEVER, Failures, Plan
from lightdp.protocol import Client, ClientState, File
from lightdp.protocol.host import Host
from lightdp.protocol.rounds import final_rounds

_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class RosterRounds:
    """A client's rounds in one roster.

    Attributes:
        roster: its number.
        clients: how many the roster has.
        answered: rounds that the client answered with data; the next four add up to it.
        used: those whose sum its upload is in.
        late: those for which it came too late.
        void: those in which too few came.
        open: those of which nothing final was announced yet.
        closing: rounds that it answered without data.
    """

    roster: int
    clients: int
    answered: int
    used: int
    late: int
    void: int
    open: int
    closing: int

    @classmethod
    def of(cls, state: ClientState) -> RosterRounds:
        """Those of a client that has joined a roster."""
        if state.roster is None:
            raise ArgumentError("state must be of a client with a roster")
        sent = state.sent - state.closing
        final = [each for number, each in enumerate(final_rounds(state.rounds)) if number in sent]
        used = sum(each.place in each.sets[0] for each in final)
        void = sum(each.wholes[0].members == 0 for each in final)
        counts = used, len(final) - used - void, void, len(sent) - len(final), len(state.closing)
        return cls(state.roster.number, len(state.roster), len(sent), *counts)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a state file of a `Client`, a `Member` or a Flower node says, in figures that the node itself counts.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=2, colluders=0, stragglers=0, rounds=3, epsilon=8, delta=1e-5, unit="client")
    >>> _ = lightdp.Client.new(plan, length=4, run=bytes(16), name="ann", store=lightdp.File("ann.state")).enrol()
    >>> kept = Kept.read("ann.state")
    >>> kept.name, kept.serial, kept.epsilon, kept.left_epsilon
    ('ann', 1, 0.0, 8.0)

    Attributes:
        name: of the client in rosters.
        run: that it takes part in, or did last.
        plan: of the run.
        length: number of values of an update.
        serial: of the state.
        host: the machine that saved it.
        client: the client or member itself; it can be asked what it has spent, and answers no round.
        states: its state in each roster that it answers. Private: the keys are in them.
        elsewhere: μ² of rounds in rosters that it answers no more, each at its worst, and how many have it.
        before: μ² of earlier runs; None where the file does not count them.
        failed: by how much drawn masks of earlier runs may fall short (B2).
        kinds: unit and adjacency of all runs that it counts.
    """

    name: str
    run: str
    plan: Plan
    length: int
    serial: int
    host: Host
    client: Client | Member = field(repr=False)
    states: tuple[ClientState, ...] = field(repr=False)
    elsewhere: Mapping[float, int]
    before: float | None
    failed: Failures
    kinds: tuple[tuple[str, str], ...]

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, anchor: str | os.PathLike[str] | None = None) -> Kept:
        """Read a state file, and change nothing.

        Args:
            path: of the file.
            anchor: the second file that keeps the number of the newest state, if there is one.

        Raises:
            ArgumentError: the file holds no state.
            ProtocolError: it is older than the state that was saved last, or lost.
        """
        data = File(path, anchor=anchor).load()
        try:
            return cls._of(*unwrapped(data))
        except (LightDPError, *_MALFORMED) as error:
            said = error if isinstance(error, LightDPError) else type(error).__name__  # the others may quote a key
            raise ArgumentError(f"path must hold a client's state, got path={os.fspath(path)!r}: {said}") from None

    @classmethod
    def _of(cls, inner: bytes, record: dict[str, Any] | None) -> Kept:
        store, elsewhere = _Read(inner), Counter[float]()
        state: ClientState | MemberState
        client: Client | Member
        if "member" in json.loads(inner.split(b"\n")[0]):
            state = MemberState.from_bytes(inner)
            plan = Plan.from_json(state.plan)
            client = Member.restore(plan, length=state.length, store=store, weighted=state.weighted, moved=True)
            states = [part for _, part in sorted(state.rosters.items())]
            elsewhere += state.spent
        else:
            state = ClientState.from_bytes(inner)
            plan = Plan.from_json(state.plan)
            client = Client.restore(plan, length=state.length, store=store, weighted=state.weighted, moved=True)
            states = [] if state.roster is None else [state]
        return cls(
            name=state.enrolment.name,
            run=state.run.hex(),
            plan=plan,
            length=state.length,
            serial=state.serial,
            host=state.host,
            client=client,
            states=tuple(states),
            elsewhere=elsewhere,
            before=None if record is None else _before(record),
            failed=Failures.of("failed", [] if record is None else record.get("failed", [])),
            kinds=((plan.unit, plan.adjacency),) if record is None else _kinds(record),
        )

    @cached_property
    def epsilon(self) -> float:
        """What the run has cost, as announced, at the plan's δ."""
        return self.client.epsilon()

    @cached_property
    def worst_epsilon(self) -> float:
        """What the run has cost at worst, whatever was announced to whom (W5)."""
        return self.client.epsilon(worst=True)

    @property
    def mu(self) -> float:
        """The μ of `epsilon`; with sampled batches, that of Gaussian noise with this ε at this δ."""
        return self.client.mu() if self.plan.gdp else _mu(self.epsilon, self.plan.delta)

    @property
    def worst_mu(self) -> float:
        """The μ of `worst_epsilon`, likewise."""
        return self.client.mu(worst=True) if self.plan.gdp else _mu(self.worst_epsilon, self.plan.delta)

    @property
    def square(self) -> float:
        """μ² by which the run counts in a total over runs: at worst, and with sampled batches counted as whole."""
        return self.client.mu(worst=True) ** 2

    @property
    def fails(self) -> Failures:
        """By how much the μ of all runs may fall short, as a node counts it beside further runs (B2)."""
        return self.failed + (self.plan.masks.fails(self.length) if self.square > 0 else NEVER)

    @property
    def rosters(self) -> tuple[RosterRounds, ...]:
        """The client's rounds in each roster that it answers."""
        return tuple(map(RosterRounds.of, self.states))

    @property
    def ended(self) -> int:
        """Rounds in rosters that it answers no more."""
        return sum(self.elsewhere.values())

    @property
    def answered(self) -> int:
        """Rounds that were answered with data, in all rosters."""
        return self.ended + sum(each.answered for each in self.rosters)

    @property
    def left_mu(self) -> float:
        """The μ of more Gaussian noise that the plan's budget allows; with sampled batches, that of the rest of ε."""
        if not self.plan.gdp:
            return gaussian.mu(self.left_epsilon, self.plan.delta) if self.left_epsilon > 0 else 0.0
        return math.sqrt(max(gaussian.mu(self.plan.budget, self.plan.delta) ** 2 - self.worst_mu**2, 0.0))

    @property
    def left_epsilon(self) -> float:
        """What is left of the plan's budget at worst, as the ε of `left_mu`; with sampled batches, the rest of ε."""
        if self.plan.gdp and self.worst_mu > 0:
            return _epsilon(self.left_mu, self.plan.delta)
        return max(self.plan.budget - self.worst_epsilon, 0.0)

    def left_of(self, epsilon: float, delta: float) -> float:
        """The μ of what a total of (ε, δ) over all runs still allows (E5), (B2); this run counts as far as it went.

        Args:
            epsilon: of the total.
            delta: of the total.
        """
        return math.sqrt(max(self.fails.mu(epsilon, delta) ** 2 - (self.before or 0.0) - self.square, 0.0))


def unwrapped(data: bytes) -> tuple[bytes, dict[str, Any] | None]:
    r"""The state of a client or member in a file, and the record around it if it is the file of a Flower node.

    In such a file the state is in the field "client" of each line, and other fields of a line replace earlier ones.

    >>> unwrapped(b'{"client": "{}", "before": 0.25}')
    (b'{}', {'client': '{}', 'before': 0.25})
    >>> unwrapped(b'{"serial": 1, "client": "{}"}\n{"serial": 2, "client": "{}"}')
    (b'{}\n{}', {'serial': 2, 'client': '{}'})
    """
    try:
        lines = [json.loads(line) for line in data.removesuffix(b"\n").split(b"\n")]
        if all(isinstance(line, dict) and isinstance(line.get("client"), str) for line in lines):
            record = {name: value for line in lines for name, value in line.items()}
            return "\n".join(line["client"] for line in lines).encode(), record
    except (RecursionError, ValueError):
        pass  # whoever reads the state says what is wrong with it
    return data, None


def _before(record: dict[str, Any]) -> float | None:
    """μ² of earlier runs in the record of a Flower node."""
    return None if "budget" in record else non_negative("before", record.get("before"))  # older ones held ε


def _kinds(record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(unit), str(adjacency)) for unit, adjacency in record.get("kinds", []))


def _mu(epsilon: float, delta: float) -> float:
    return gaussian.mu(epsilon, delta, up=True) if epsilon > 0 else 0.0


def _epsilon(mu: float, delta: float) -> float:
    return gaussian.epsilon(mu, delta) if mu > 0 else 0.0


class _Read:
    """A store that holds a state and keeps no other."""

    def __init__(self, state: bytes) -> None:
        self._state = state

    def load(self) -> bytes:
        """The state."""
        return self._state

    def append(self, entry: bytes) -> None:
        """As `save`."""
        self.save(entry)

    def save(self, state: bytes) -> None:
        """Nothing is saved: this only reads."""
        raise ArgumentError(f"a state is only read here, got one of {len(state)} bytes to save")
