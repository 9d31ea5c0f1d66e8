"""What a node's rounds have cost, counted again from its state: the announced sets, and the rounds that it answered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lightdp import attack, gaussian
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, BudgetError
from lightdp.neighbourhood import Neighbourhood
from lightdp.planning import Plan
from lightdp.protocol import ClientState
from lightdp.protocol.rounds import LocalRound, final_rounds


@dataclass(frozen=True)
class Figure:
    """μ, ε at the plan's δ, and the share that the best attack finds at 1 % false positives."""

    mu: float
    epsilon: float
    found: float


def replay(
    plan: Plan, states: Iterable[ClientState], elsewhere: Mapping[float, int]
) -> tuple[Figure, Figure, int | None]:
    """What the uploads with data cost as announced and at worst, and the first for which there was no room.

    What `Client.epsilon` says at worst is at most the budget, since `begin` kept room for each round (W5). Here that is
    not believed but done again, round by round, for one roster. Of several, a state does not say in which order their
    rounds were answered: each is counted by itself, and their sum at worst is not cut at the budget.

    Args:
        plan: of the node.
        states: its state in each roster.
        elsewhere: μ² of rounds in other rosters, and how many have it.
    """
    replayed = [_replayed(state) for state in states if state.sent - state.closing]
    alone = len(replayed) == 1 and not elsewhere
    refused = next((each for _, _, each in replayed if each is not None), None)
    announced = _together(plan, [each for each, _, _ in replayed], elsewhere, whole=False)
    worst = _together(plan, [each for _, each, _ in replayed], elsewhere, whole=plan.repairs)
    if alone and refused is None and plan.withstands_lies:
        worst = min(worst, figure(plan, plan.budget), key=lambda each: each.mu)
    return announced, worst, refused


def _together(plan: Plan, odometers: list[Odometer], spent: Mapping[float, int], *, whole: bool) -> Figure:
    """What odometers of one client in several rosters count together, beside μ² of other rounds (C1)."""
    if not odometers:
        mu = math.sqrt(math.fsum(square * count for square, count in spent.items()))
        return figure(plan, gaussian.epsilon(mu, plan.delta) if mu > 0 else 0.0, mu)
    last, *others = reversed(odometers)
    elsewhere = Counter(spent)
    for each in others:
        elsewhere += each.squares()[0]
    return _of(plan, last.beside([elsewhere]) if elsewhere else last, whole=whole)


def _replayed(state: ClientState) -> tuple[Odometer, Odometer, int | None]:
    """Odometers of one roster, as announced and at worst, and the first round for which there was no room in it."""
    if state.roster is None:
        raise ArgumentError("state must be of a client with a roster")
    plan, index = Plan.from_json(state.plan), state.roster.index(state.enrolment)
    sent, last = state.sent - state.closing, announced_rounds(state)
    shown = [each for each in state.roster.enrolments if each != index]  # on a random graph, its neighbours
    near = Neighbourhood(plan.clients, index, shown if plan.graph.random else plan.graph.neighbours_of(index).tolist())
    odometer, refused = Odometer(plan, near=near), None
    me, nobody = ClientSet.of(near.clients, [near.place]), ClientSet.none(near.clients)
    final_sets, on_time = final_rounds(state.rounds), state.on_time
    for number in range(last + 1):
        if number in sent and refused is None and plan.gdp:
            try:
                odometer.admit()
            except BudgetError:
                refused = number
        final = number - plan.grace
        if number < last and final >= 0:
            _record(plan, odometer, final_sets[final], me, sent=final in sent)
        if number < last and plan.grace and number not in state.closing:
            odometer.open(on_time[number], me - on_time[number] if number in sent else nobody)
    announced = odometer.counted(ahead=last in sent)
    alone = plan.graph.random or not plan.late_is_seen  # as `Client.epsilon` counts at worst
    worst = odometer.alone(len(sent)) if alone else odometer.counted(ahead=last in sent, worst=True)
    return announced, worst, refused


def announced_rounds(state: ClientState) -> int:
    """How many rounds something was announced of."""
    return len(state.rounds)


def _record(plan: Plan, odometer: Odometer, told: LocalRound, me: ClientSet, *, sent: bool) -> None:
    """Count a round as the client did, but without an upload that held no data."""
    used, whole = told.sets[0], told.wholes[0]
    seen = plan.late_is_seen or whole.members == 0  # uploads of a void round came in time
    late = (~used if sent else ~used - me) if seen else ClientSet.none(used.clients)
    odometer.record(used if sent else used - me, late, whole=whole)


def _of(plan: Plan, odometer: Odometer, *, whole: bool = False) -> Figure:
    """What an odometer counts; with `whole`, as if sampled batches had been whole, which they cost at most."""
    mu = float(odometer.mu()[0]) if plan.gdp or whole else None
    return figure(plan, float(odometer.epsilon()[0]) if mu is None else gaussian.epsilon(mu, plan.delta), mu)


def figure(plan: Plan, epsilon: float, mu: float | None = None) -> Figure:
    """A figure from ε at the plan's δ and, where it is known, μ."""
    if mu is None:
        mu = gaussian.mu(epsilon, plan.delta, up=True) if epsilon > 0 else 0.0
    exact = plan.gdp or epsilon == 0
    found = gaussian.power(mu, attack.FALSE_POSITIVES) if exact else attack.power(lambda _: epsilon, plan.delta)
    return Figure(mu, epsilon, found)
