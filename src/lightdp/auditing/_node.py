"""`lightdp audit --client FILE.state`: what a node has spent, from the history that was announced to it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightdp import attack, gaussian
from lightdp._validate import non_negative, rounded_up
from lightdp.accountant import Odometer
from lightdp.auditing._finding import MALFORMED, regular
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, BudgetError, LightDPError
from lightdp.planning import Plan
from lightdp.protocol import Client, ClientState, File

if TYPE_CHECKING:
    from rich.table import Table

_MORE = 1 + 1e-9  # on a budget: more than all roundings
_CLOSING = {1: ", and a closing round without data", 2: ", and two closing rounds without data"}


@dataclass(frozen=True)
class Figure:
    """μ, ε at the plan's δ, and the share that the best attack finds at 1 % false positives."""

    mu: float
    epsilon: float
    found: float


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a client's state file says it has spent. Made by `node`.

    Attributes:
        path: the file.
        name: of the client in its roster.
        plan: its noise and budget.
        state: what the file holds.
        announced: what its data has cost as announced; a closing round has none.
        worst: the same at worst (W5); `figures` names what that supposes.
        refused: the first round that it answered without room for it in the budget; None if there is none.
        before: μ² of earlier runs, as a Flower node counts them; None where the file does not say.
    """

    path: Path
    name: str
    plan: Plan
    state: ClientState
    announced: Figure
    worst: Figure
    refused: int | None
    before: float | None

    @property
    def budget(self) -> Figure:
        """The plan's budget."""
        return _figure(self.plan, self.plan.budget)

    @property
    def figures(self) -> dict[str, Figure]:
        """What was spent as announced and at worst, and the budget, each under its name in the table."""
        if self.plan.sampling_rate < 1 and self.plan.repairs:
            name = "at worst, with batches counted as whole"
        elif self.plan.sampling_rate < 1:
            name = "at worst, for a server that follows the protocol"
        elif not self.plan.late_is_seen:
            name = "at worst, if every upload was seen"
        else:
            name = "at worst, whatever was announced"
        return {"as announced": self.announced, name: self.worst, "budget": self.budget}

    @property
    def rounds(self) -> dict[str, int]:
        """How many rounds were answered, and what became of them."""
        state = self.state
        names = [] if state.roster is None else [each.name for each in state.roster.enrolments]
        me = names.index(self.name) if self.name in names else -1
        sent = state.sent - state.closing
        known = [(number, used) for number, used in enumerate(state.used) if number in sent]
        return {
            "announced": _announced(state),
            "answered": len(sent),
            "used": sum(me in used for _, used in known),
            "late": sum(bool(used) and me not in used for _, used in known),
            "void": sum(not used for _, used in known),
            "open": len([number for number in sent if number >= len(state.used)]),
            "closing": len(state.closing),
        }

    @property
    def total(self) -> Figure | None:
        """Earlier runs and this one at worst, where the file counts earlier ones."""
        if self.before is None or not self.plan.gdp:
            return None
        mu = math.hypot(math.sqrt(self.before), self.worst.mu)
        return _figure(self.plan, gaussian.epsilon(mu, self.plan.delta), mu)

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not hold, in sentences."""
        most = self.plan.budget * _MORE
        found = []
        if self.announced.epsilon > most:
            found.append(f"{_words(self.announced)} as announced exceeds the budget of {self.plan.budget:g}")
        if self.refused is not None and self.worst.epsilon > most:
            found.append(
                f"round {self.refused} was answered without room for it: {_words(self.worst)} at worst exceeds the "
                f"budget of {self.plan.budget:g}"
            )
        return tuple(found)

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
            "planned_rounds": self.plan.turns,
            "delta": self.plan.delta,
            "unit": self.plan.unit,
            "adjacency": self.plan.adjacency,
            "gdp": self.plan.gdp,
            "announced": asdict(self.announced),
            "worst": asdict(self.worst),
            "budget": asdict(self.budget),
            "left": asdict(self.left),
            "all_runs": None if self.total is None else asdict(self.total),
            "problems": list(self.problems),
            "holds": self.holds,
        }

    @property
    def left(self) -> Figure:
        """What is left of the budget at worst: μ of more Gaussian noise; with sampled batches the rest of ε."""
        if self.plan.gdp:
            mu = math.sqrt(max(self.budget.mu**2 - self.worst.mu**2, 0.0))
            return _figure(self.plan, gaussian.epsilon(mu, self.plan.delta), mu)
        return _figure(self.plan, max(self.plan.budget - self.worst.epsilon, 0.0))

    def shown(self) -> Iterator[str | Table]:
        """Whose state it is, its rounds, the figures, what is left, and what does not hold."""
        plan, rounds = self.plan, self.rounds
        yield f"{self.path}: client {self.name} of run {self.state.run.hex()}"
        yield (
            f"{rounds['answered']} rounds answered of {plan.turns} planned: {rounds['used']} used, {rounds['late']} "
            f"too late, {rounds['void']} void, {rounds['open']} not {'final' if plan.grace else 'announced'} yet"
            f"{_CLOSING.get(rounds['closing'], '')}"
        )
        yield self._table()
        left = [math.floor(1e4 * value) / 1e4 for value in (self.left.mu, self.left.epsilon)]
        yield f"left of the budget, at worst: μ = {left[0]:.4f}, ε = {left[1]:.4f}"
        if self.total is not None:
            yield f"with all earlier runs of this node: {_words(self.total)} at δ = {plan.delta:g}"
        yield attack.sentence(self.worst.found, plan.unit, plan.adjacency)
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
        for name, figure in self.figures.items():
            table.add_row(name, rounded_up(figure.mu), rounded_up(figure.epsilon))
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
        inner, before = _unwrapped(File(regular("client", path)).load())
        state = ClientState.from_bytes(inner)
        plan, store = Plan.from_json(state.plan), _Read(inner)
        client = Client.restore(plan, length=state.length, weighted=state.weighted, store=store, moved=True)
        announced, worst, refused = _spent(plan, client, state)
    except (LightDPError, *MALFORMED) as error:
        raise ArgumentError(f"client must be a state file, got client={str(path)!r}: {error}") from None
    return Node(
        path=path, name=state.enrolment.name, plan=plan, state=state, announced=announced, worst=worst,
        refused=refused, before=before,
    )  # fmt: skip


def _spent(plan: Plan, client: Client, state: ClientState) -> tuple[Figure, Figure, int | None]:
    """What the uploads with data cost as announced and at worst, and the first for which there was no room.

    What `Client.epsilon` says at worst is at most the budget, since `Client.begin` kept room for each round (W5). Here
    that is not believed but done again, round by round.
    """
    history = client._history  # noqa: SLF001  an audit counts anew what the client says
    sent, last = state.sent - state.closing, _announced(state)
    if history is None or not sent:
        return _figure(plan, 0.0, 0.0), _figure(plan, 0.0, 0.0), None
    odometer, refused = Odometer(plan, [history.me]), None
    me, nobody = ClientSet.of(plan.clients, [history.me]), ClientSet.none(plan.clients)
    for number in range(last + 1):
        if number in sent and refused is None and plan.gdp:
            try:
                odometer.admit()
            except BudgetError:
                refused = number
        final = number - plan.grace
        if number < last and final >= 0:
            _record(plan, odometer, state.used[final], me, sent=final in sent)
        if number < last and plan.grace and number not in state.closing:
            odometer.open(state.on_time[number], me - state.on_time[number] if number in sent else nobody)
    announced = odometer.counted(ahead=last in sent)
    worst = odometer.alone(len(sent)) if not plan.late_is_seen else odometer.counted(ahead=last in sent, worst=True)
    at_worst = _of(plan, worst, whole=plan.repairs)
    if refused is None and plan.gdp and plan.late_is_seen:
        at_worst = min(at_worst, _figure(plan, plan.budget), key=lambda each: each.mu)
    return _of(plan, announced), at_worst, refused


def _announced(state: ClientState) -> int:
    """How many rounds something was announced of."""
    return max(len(state.used), len(state.on_time))


def _record(plan: Plan, odometer: Odometer, used: ClientSet, me: ClientSet, *, sent: bool) -> None:
    """Count a round as the client did, but without an upload that held no data."""
    seen = plan.late_is_seen or not used  # uploads of a void round came in time
    others = used - me
    if not sent and used and len(others) < plan.clients - plan.stragglers:
        others = used  # its closing upload is counted, since the odometer refuses a round without it
    late = ~used if sent else ~used - me
    odometer.record(used if sent else others, late if seen else ClientSet.none(plan.clients))


def _of(plan: Plan, odometer: Odometer, *, whole: bool = False) -> Figure:
    """What an odometer counts; with `whole`, as if sampled batches had been whole, which they cost at most."""
    mu = float(odometer.mu()[0]) if plan.gdp or whole else None
    return _figure(plan, float(odometer.epsilon()[0]) if mu is None else gaussian.epsilon(mu, plan.delta), mu)


def _figure(plan: Plan, epsilon: float, mu: float | None = None) -> Figure:
    """A figure from ε at the plan's δ and, where it is known, μ."""
    if mu is None:
        mu = gaussian.mu(epsilon, plan.delta, up=True) if epsilon > 0 else 0.0
    exact = plan.gdp or epsilon == 0
    found = gaussian.power(mu, attack.FALSE_POSITIVES) if exact else attack.power(lambda _: epsilon, plan.delta)
    return Figure(mu, epsilon, found)


def _words(figure: Figure) -> str:
    return f"ε = {rounded_up(figure.epsilon)} (μ = {rounded_up(figure.mu)})"


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
