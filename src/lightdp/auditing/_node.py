"""`lightdp audit --client FILE.state`: what a node has spent, from the history that was announced to it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightdp import attack, gaussian
from lightdp._validate import non_negative, rounded_up
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.planning import Plan
from lightdp.protocol import Client, ClientState, File

if TYPE_CHECKING:
    from rich.table import Table

_WORST = "at worst, whatever was announced"
_KEYS = {"announced": "as announced", "worst": _WORST, "budget": "budget"}


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a client's state file says it has spent. Made by `node`.

    Attributes:
        path: the file.
        name: of the client in its roster.
        plan: its noise and budget.
        client: the client as its state makes it; nothing is sent.
        state: what the file holds.
        before: μ² of earlier runs, as a Flower node counts them; None where the file does not say.
    """

    path: Path
    name: str
    plan: Plan
    client: Client
    state: ClientState
    before: float | None

    @property
    def figures(self) -> dict[str, tuple[float, float]]:
        """μ and ε as announced, at worst for any server (W5), and of the budget."""
        plan, client = self.plan, self.client
        spent = {"as announced": client.epsilon(), _WORST: client.epsilon(worst=True)}
        spent |= {"budget": plan.budget}
        mus = {name: gaussian.mu(epsilon, plan.delta, up=True) for name, epsilon in spent.items()}
        if not self.state.sent:
            mus |= {"as announced": 0.0, _WORST: 0.0}
        return {name: (mus[name], epsilon) for name, epsilon in spent.items()}

    @property
    def rounds(self) -> dict[str, int]:
        """How many rounds were answered, and what became of them."""
        state = self.state
        names = [] if state.roster is None else [each.name for each in state.roster.enrolments]
        me = names.index(self.name) if self.name in names else -1
        known = [(number, used) for number, used in enumerate(state.used) if number in state.sent - {state.closing}]
        return {
            "announced": len(state.used),
            "answered": len(state.sent - {state.closing}),
            "used": sum(me in used for _, used in known),
            "late": sum(bool(used) and me not in used for _, used in known),
            "void": sum(not used for _, used in known),
            "open": len([number for number in state.sent - {state.closing} if number >= len(state.used)]),
            "closing": int(state.closing is not None),
        }

    @property
    def total(self) -> float | None:
        """ε at the plan's δ of earlier runs and this one at worst, where the file counts earlier ones."""
        if self.before is None or not self.plan.gdp:
            return None
        return gaussian.epsilon(math.hypot(math.sqrt(self.before), self.figures[_WORST][0]), self.plan.delta)

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not hold, in sentences."""
        spent = self.client.epsilon()
        over = spent > self.plan.budget * (1 + 1e-9) and self.state.closing is None  # which has no data, but counts
        return (f"ε = {spent:.6g} as announced exceeds the budget of {self.plan.budget:g}",) if over else ()

    @property
    def holds(self) -> bool:
        """Whether what was spent is within the budget."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values, without any key."""
        return {
            "state": str(self.path),
            "client": self.name,
            "run": self.state.run.hex(),
            "rounds": self.rounds,
            "planned_rounds": self.plan.rounds,
            "delta": self.plan.delta,
            "unit": self.plan.unit,
            "adjacency": self.plan.adjacency,
            "gdp": self.plan.gdp,
            "spent": {
                key: dict(zip(("mu", "epsilon"), self.figures[name], strict=True)) for key, name in _KEYS.items()
            },
            "left": self.left,
            "epsilon_of_all_runs": self.total,
            "problems": list(self.problems),
            "holds": self.holds,
        }

    @property
    def left(self) -> float:
        """ε of the budget that is left at worst."""
        return max(self.plan.budget - self.client.epsilon(worst=True), 0.0)

    def shown(self) -> Iterator[str | Table]:
        """Whose state it is, its rounds, the figures, what is left, and what does not hold."""
        plan, rounds = self.plan, self.rounds
        yield f"{self.path}: client {self.name} of run {self.state.run.hex()}"
        yield (
            f"{rounds['answered']} rounds answered of {plan.rounds} planned: {rounds['used']} used, {rounds['late']} "
            f"too late, {rounds['void']} void, {rounds['open']} not announced yet"
            f"{', and a closing round without data' if rounds['closing'] else ''}"
        )
        yield self._table()
        yield f"left of the budget, at worst: ε = {max(self.left - 5e-5, 0.0):.4f}"
        if self.total is not None:
            yield f"with all earlier runs of this node: ε = {rounded_up(self.total)} at δ = {plan.delta:g}"
        mu, epsilon = self.figures[_WORST]
        power = gaussian.power(mu, attack.FALSE_POSITIVES) if plan.gdp else attack.power(lambda _: epsilon, plan.delta)
        yield attack.sentence(power, plan.unit, plan.adjacency)
        if not plan.gdp:
            yield "Batches are sampled: μ is that of Gaussian noise with this ε at this δ, not μ-GDP."
        yield from (f"DOES NOT HOLD  {each}" for each in self.problems)
        if self.holds:
            yield "holds: within the budget"

    def _table(self) -> Table:
        from rich.box import SIMPLE_HEAD  # noqa: PLC0415  slow to import
        from rich.table import Table  # noqa: PLC0415  likewise

        table = Table("spent", box=SIMPLE_HEAD, pad_edge=False)
        for head in ("μ" if self.plan.gdp else "μ at this δ", f"ε at δ = {self.plan.delta:g}"):
            table.add_column(head, justify="right")
        for name, (mu, epsilon) in self.figures.items():
            table.add_row(name, rounded_up(mu), rounded_up(epsilon))
        return table


def node(path: Path) -> Node:
    """What the node whose state lies in a file has spent; the file is only read, and nothing private is printed.

    Both kinds of files are read: that of a `Client` with `store=File(path)`, and that of a Flower node
    (`lightdp-state`), which holds such a state and what earlier runs have spent.

    Args:
        path: of the file.

    Raises:
        ArgumentError: the file holds no state, an older one than was saved last, or one of a plan that is not its own.
    """
    try:
        inner, before = _unwrapped(File(path).load())
        state = ClientState.from_bytes(inner)
        plan, store = Plan.from_json(state.plan), _Read(inner)
        client = Client.restore(plan, length=state.length, weighted=state.weighted, store=store, moved=True)
    except (ArgumentError, ProtocolError, WireError) as error:
        raise ArgumentError(f"client must be a state file, got client={str(path)!r}: {error}") from None
    return Node(path=path, name=state.enrolment.name, plan=plan, client=client, state=state, before=before)


class _Read:
    """A store that holds a state and keeps no other."""

    def __init__(self, state: bytes) -> None:
        self._state = state

    def load(self) -> bytes:
        """The state."""
        return self._state

    def save(self, state: bytes) -> None:
        """Nothing is saved: an audit only reads."""
        raise ArgumentError(f"an audit only reads, got a state of {len(state)} bytes to save")


def _unwrapped(data: bytes) -> tuple[bytes, float | None]:
    """The state of the client in a file, and μ² of earlier runs if it is the file of a Flower node."""
    try:
        facts = json.loads(data)
        if isinstance(facts, dict) and isinstance(facts.get("client"), str):
            squares = None if "budget" in facts else non_negative("before", facts.get("before"))  # older ones held ε
            return facts["client"].encode(), squares
    except ValueError:
        pass  # `ClientState` says what is wrong with it
    return data, None
