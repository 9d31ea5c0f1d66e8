"""What a run's log says about privacy, checked against its own rounds: each check yields what does not hold."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lightdp import gaussian
from lightdp._validate import integer
from lightdp.accountant import Odometer
from lightdp.auditing._exact import Rounds
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.planning import Noise, Plan, Request, solve
from lightdp.runlog import Ended, Round, RunLog, claimed_epsilon
from lightdp.schemes import BUILT_IN, schemes
from lightdp.stragglers import StragglerLaw, binomial, uniform

_SAME = 1e-6  # relative difference of two numbers that are the same, computed twice
_FOLLOWS = (
    "turns", "sensitivity", "sigma_pairwise", "mask_bits", "mask_cost", "noise_multiplier", "epsilon_true", "mu",
    "power", "wire_bits",
)  # fmt: skip
_CLIENTS = 10**6  # more are not counted one by one
_EXTREME = 1e12  # more or less noise, in sensitivities, is none or all
_PLANNED = {"paper": "client", "person": "record"}  # units of a training, and what their plans have
_SAMPLED = ("turns", "sensitivity", "sigma_pairwise", "noise_multiplier")  # others take long, or need the law


def planned(log: RunLog) -> tuple[Plan, list[str]]:
    """The plan of a log with the noise as logged, and what is to be said about it."""
    facts = log.started.plan or {}
    names = {field.name for field in dataclasses.fields(Request)}
    before: dict[str, Any] = {
        "wire_steps": 16,
        "rotate": False,
        "masks": "gaussian",
    }  # what logs mean that do not say it
    asked = before | {name: facts[name] for name in names & facts.keys()} | {"epsilon": claimed_epsilon(facts)}
    if asked.get("late") == "seen":  # as logs had it before grace
        asked["late"] = 0.0
    needed = {"clients", "colluders", "stragglers", "rounds", "gamma", "sigma_individual", "sigma_effective"}
    if missing := sorted(needed - facts.keys()):
        raise ArgumentError(f"{log.path}: plan must have {', '.join(missing)} to be audited")
    try:
        integer("clients", asked["clients"], 2, _CLIENTS)
        integer("stragglers", asked["stragglers"], 0, _CLIENTS)
        law, known = _law(str(facts.get("straggler_law")), asked["stragglers"], asked["clients"])
        request = Request(**asked | {"gamma": None, "straggler_law": law})
        gamma, own, effective = (float(facts[name]) for name in ("gamma", "sigma_individual", "sigma_effective"))
        noise = Noise(gamma, own, effective)
        if request.masks == "drawn":
            noise = dataclasses.replace(noise, masks=solve(request.but(gamma=noise.gamma, masks="drawn")).masks)
    except (ArgumentError, TypeError, ValueError) as error:
        raise ArgumentError(f"{log.path}: plan cannot be read: {error}") from None
    plan = Plan(request, noise)
    for sigma in (noise.sigma_effective, noise.sigma_individual or (0.0 if plan.deployable else noise.sigma_effective)):
        if not 1 / _EXTREME <= sigma / plan.sensitivity <= _EXTREME:
            bounds = f"between {1 / _EXTREME:g} and {_EXTREME:g} sensitivities"
            raise ArgumentError(f"{log.path}: plan must have noise {bounds}, got {sigma / plan.sensitivity:g}")
    notes = [] if known else ["The plan's straggler law is not in the log; what follows from it is not checked."]
    if plan.grace and plan.gamma > 0 and not plan.repairs:
        notes.append("The noise of rounds is not checked: sums hold uploads of two rounds, and nothing is repaired.")
    return plan, notes


def _law(name: str, bound: int, clients: int) -> tuple[StragglerLaw, bool]:
    """The straggler law of a name as plans write it, and whether it is known; it decides nothing that was spent."""
    if found := re.fullmatch(r"binomial\((\d+), ([0-9.e+-]+)\) up to (\d+)", name):
        return binomial(bound, clients, float(found[2])), True
    return uniform(bound), name.startswith("uniform")


def of_plan(log: RunLog, plan: Plan) -> Iterator[str]:
    """Figures of the plan that do not follow from its noise."""
    logged, found = log.started.plan or {}, plan.to_dict()
    for name in _FOLLOWS if plan.gdp else _SAMPLED:
        if name in logged and not _same(logged[name], found[name]):
            yield f"plan: {name} = {logged[name]!r} does not follow from its noise, which gives {found[name]:.6g}"


def of_settings(log: RunLog, plan: Plan) -> Iterator[str]:
    """Noise that is not what the plan's settings give at its γ; of sampled batches the ratio of σ_eff and σ_U alone."""
    named = log.started.config.get("scheme")
    about = schemes().get(named) if isinstance(named, str) else None
    if about is not None and about.adjust is not None:
        return  # it has noise of its own
    asked, fixed = plan.request, plan.calibration.chooses_gamma
    known = _law(str((log.started.plan or {}).get("straggler_law")), plan.stragglers, plan.clients)[1]
    if plan.repairs and not known:
        return  # its σ_eff is a mean over the straggler law; rounds are counted by γ and σ_U
    if not known and plan.understates:
        asked, fixed = asked.but(calibration="exact"), True  # the paper's γ needs the law, what γ and σ_U give does not
    found = solve(asked.but(gamma=plan.gamma if fixed else None, masks=asked.masks, sampling_rate=1.0))
    values = {"gamma": (plan.gamma, found.gamma)}
    if plan.gdp and found.request.calibration == plan.request.calibration:
        values |= {
            name: (getattr(plan, name), getattr(found, name)) for name in ("sigma_individual", "sigma_effective")
        }
    else:
        right = plan.sigma_effective * found.sigma_individual / found.sigma_effective
        values["sigma_individual"] = plan.sigma_individual, right
    for name, (logged, given) in values.items():
        if not _same(logged, given):
            maybe = ", or another version of lightdp made it" if plan.repairs else ""
            yield f"plan: {name} = {logged:.6g} does not follow from its settings, which give {given:.6g}{maybe}"


def _same(one: object, other: object) -> bool:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return numbers and math.isclose(float(one), float(other), rel_tol=_SAME, abs_tol=1e-12)  # type: ignore[arg-type]


def of_end(log: RunLog, plan: Plan) -> Iterator[str]:
    end = log.ended
    if end is None:
        return
    said = {"epsilon_claimed": plan.budget, "delta": plan.delta, "adjacency": plan.adjacency}
    for name, value in said.items():
        if getattr(end, name) != value:
            yield f"end: {name} = {getattr(end, name)!r} is not the plan's, {value!r}"
    asked = log.started.config.get("unit")
    unit = asked if _PLANNED.get(str(asked)) == plan.unit else plan.unit
    if end.unit != unit:
        yield f"end: unit = {end.unit!r} is not the plan's, {unit!r}"


def of_noise(log: RunLog, plan: Plan) -> Iterator[str]:
    """Rounds whose noise is not the plan's, up to one denominator for all.

    Under grace a sum holds uploads of two rounds; what they leave beside their own noise is known with repair alone.
    """
    scheme = log.started.config.get("scheme", log.scheme)
    if str(scheme) not in BUILT_IN or log.started.network is not None or not (plan.repairs or plan.graph.complete):
        return  # schemes of other packages play their own noise
    if plan.grace and plan.gamma > 0 and not plan.repairs:
        return  # as `planned` says
    seen = [line for line in log.rounds if _summed(line) > 0 and line.noise_std]
    stds = []
    for line in seen:
        uploads = _summed(line)
        variance = plan.individual_in_sum(uploads) + (0.0 if plan.repairs else plan.residual_in_sum(uploads))
        stds.append((line.noise_std or 0.0) / math.sqrt(variance))
    denominator = np.median(1 / np.array(stds)) if stds else 1.0
    expected = _denominator(log, plan)
    if stds and expected is not None and not math.isclose(denominator, expected, rel_tol=_SAME):
        yield f"the noise of the rounds is {expected / denominator:.6g} times the plan's"
    for line, std in zip(seen, stds, strict=True):
        if not math.isclose(std * denominator, 1.0, rel_tol=_SAME):
            times, clients = std * denominator, _summed(line)
            yield f"round {line.round}: its noise is {times:.6g} times the plan's of {clients} clients"


def _summed(line: Round) -> int:
    """How many uploads are in the sum of a round."""
    return line.used + (line.joined or 0)


def _denominator(log: RunLog, plan: Plan) -> float | None:
    """What sums were divided by, where the log shows it."""
    if log.unit in {"client", "paper"}:
        return float(plan.clients)
    return sum(log.units) * plan.sampling_rate if log.units else None


def rounds(log: RunLog, plan: Plan) -> tuple[Rounds | None, list[str]]:
    """Used and late clients of each round whose set is final, and what about them is impossible.

    There are none where the log does not name them, or names what is impossible. Under grace the set of a round is
    final with the next line (R5).
    """
    found, wrong, named = [], [], True
    lines: list[Round | Ended] = [*log.rounds, *([] if log.ended is None else [log.ended])]
    for at, line in enumerate(log.rounds):
        if plan.grace and at + 1 == len(lines):
            break
        try:
            sets = _final(line, lines[at + 1], plan) if plan.grace else _sets(line, plan)
        except ArgumentError as error:
            wrong.append(f"round {line.round}: {error}")
            continue
        if sets is None:
            named = False
        else:
            found.append(sets)
    if named and not wrong:
        for each in lines:
            try:
                found = _amended(found, each)
            except ArgumentError as error:
                wrong.append(f"late_since: {error}")
    return found if named and not wrong else None, wrong


def _amended(sets: Sequence[tuple[ClientSet, ClientSet]], line: Round | Ended) -> list[tuple[ClientSet, ClientSet]]:
    """Used and late clients of rounds, with uploads that a line says came since."""
    result = list(sets)
    for number, clients in (line.late_since or {}).items():
        if int(number) > len(result) or (isinstance(line, Round) and int(number) >= line.round):
            raise ArgumentError(f"{number} is no earlier round")
        used, late = result[int(number) - 1]
        more = ClientSet.of(used.clients, clients, name="late_since")
        if more & (used | late):
            raise ArgumentError(f"clients {list(more & (used | late))} had been seen in round {number} before")
        result[int(number) - 1] = used, late | more
    return result


def _first(log: RunLog, rounds: Rounds) -> list[tuple[ClientSet, ClientSet]]:
    """Used and late clients of rounds, without uploads that came since their lines were written."""
    result = list(rounds)
    lines: list[Round | Ended] = [*log.rounds, *([] if log.ended is None else [log.ended])]
    for line in lines:
        for number, clients in (line.late_since or {}).items():
            used, late = result[int(number) - 1]
            result[int(number) - 1] = used, late - ClientSet.of(used.clients, clients)
    return result


def _sets(line: Round, plan: Plan) -> tuple[ClientSet, ClientSet] | None:
    """Used and late clients of one round; None if the line does not name them."""
    if line.used + line.late + line.lost != plan.clients:
        raise ArgumentError(f"used, late and lost must add up to {plan.clients} clients")
    if 0 < line.used < plan.clients - plan.stragglers:
        raise ArgumentError(f"{line.used} used clients are too few for a sum")
    if line.joined and not plan.grace:
        raise ArgumentError(f"{line.joined} clients joined from the round before, but the plan has no grace")
    everybody, nobody = ClientSet.all(plan.clients), ClientSet.none(plan.clients)
    if line.late_clients is None or line.lost_clients is None:
        return None if line.used < plan.clients else (everybody, nobody)
    late = ClientSet.of(plan.clients, line.late_clients, name="late_clients")
    lost = ClientSet.of(plan.clients, line.lost_clients, name="lost_clients")
    if (len(late), len(lost)) != (line.late, line.lost) or late & lost:
        raise ArgumentError("the clients that are named are not as many as were counted")
    return everybody - late - lost, late


def _final(line: Round, after: Round | Ended, plan: Plan) -> tuple[ClientSet, ClientSet]:
    """Used and late clients of a round under grace: those whose uploads joined the next sum were used, too."""
    sets = _sets(line, plan)
    if sets is None or after.joined_clients is None:
        raise ArgumentError("late_clients, lost_clients and, in the next line, joined_clients must be named with grace")
    joined = ClientSet.of(plan.clients, after.joined_clients, name="joined_clients")
    if len(joined) != after.joined or joined - sets[1]:
        raise ArgumentError("the clients that joined the next sum are not as many as were counted, or were not late")
    used = sets[0] | joined
    if 0 < len(used) < plan.clients - plan.stragglers:
        raise ArgumentError(f"{len(used)} used clients are too few for a sum")
    return used, sets[1] - joined


def of_rounds(log: RunLog, plan: Plan, rounds: Rounds) -> tuple[Odometer, list[str]]:
    """An odometer of these rounds, and lines whose ε or μ is not what the rounds up to them give."""
    problems: list[str] = []
    odometer, known = Odometer(plan), _first(log, rounds)
    lines: list[Round | Ended] = [*log.rounds, *([] if log.ended is None else [log.ended])]
    for at, line in enumerate(lines):
        if line.late_since:
            known, odometer = _amended(known, line), Odometer(plan)
            for sets in known[:at]:
                odometer.record(*sets)
        if at < len(rounds):
            odometer.record(*known[at])
        elif isinstance(line, Round):
            continue  # its set is not final yet
        problems += of_line(line, plan, odometer.max_epsilon)
    return odometer, problems


def of_line(line: Round | Ended, plan: Plan, spent: Callable[[], float], *, least: bool = False) -> Iterator[str]:
    """Whether the ε and μ of a line are what the rounds up to it give, by `spent`, or at least that."""
    where = f"round {line.round}" if isinstance(line, Round) else "end"
    if line.epsilon is not None:
        found = spent()
        if line.epsilon < found * (1 - _SAME):
            yield f"{where}: the log says ε = {line.epsilon:.6g}, its rounds give {found:.6g}"
        elif not least and line.epsilon > found * (1 + _SAME) + 1e-12:
            yield (
                f"{where}: the log says ε = {line.epsilon:.6g}, its rounds give only {found:.6g}: "
                "rounds are missing or changed, or another version of lightdp wrote it"
            )
        if line.mu is not None and not _same(line.mu, gaussian.mu(line.epsilon, plan.delta, up=True)):
            yield f"{where}: μ = {line.mu:.6g} is not that of ε = {line.epsilon:.6g} at δ = {plan.delta:g}"


def of_bounds(log: RunLog, plan: Plan, between: tuple[float, float]) -> Iterator[str]:
    """Whether the ε of the log's last line and the budget lie below what the rounds cost at least."""
    if log.epsilon is not None and log.epsilon < between[0] * (1 - _SAME):
        yield f"the log says ε = {log.epsilon:.6g}, its rounds give at least {between[0]:.6g}"
    yield from of_budget(log, plan, between[0])


def of_budget(log: RunLog, plan: Plan, spent: float) -> Iterator[str]:
    """Whether the budget was kept, and what a formula that understates ε claims; not of an ε for each round."""
    if spent <= plan.budget * (1 + _SAME) or log.started.config.get("epsilon_per") == "round":
        return
    words = f"ε = {spent:.6g} (μ = {gaussian.mu(spent, plan.delta, up=True):.6g})"
    if plan.understates:
        yield f"the claimed ε = {plan.budget:g} does not hold; the true one is as logged, {words}"
    else:
        yield f"the rounds cost {words}, more than the budget of {plan.budget:g}"


def bounds(log: RunLog, plan: Plan) -> tuple[float, float]:
    """Least and largest ε of the client that spent most, from the numbers of used and late clients alone.

    Someone spent at least the mean over all clients. Nobody spent more than a client that was seen in every round in
    which somebody was; from the first late upload on, repairs may add to each round, up to what individual noise alone
    would cost, which is 1.

    Raises:
        ArgumentError: batches are sampled, whose costs have no mean.
    """
    if not plan.gdp:
        raise ArgumentError(f"{log.path}: a log of sampled batches must name late_clients and lost_clients")
    least, largest, late = 0.0, 0.0, False
    for line in log.rounds:
        missing = plan.clients - line.used if line.used > 0 else 0
        used = float(plan.used_cost(max(plan.honest - missing, 1)))
        late = late or line.late > 0
        least += used * (line.used if line.used > 0 else line.late) / plan.clients
        largest += (1.0 if plan.repairs and late else used) if line.used + line.late > 0 else 0.0
    unit, more = plan.sensitivity / plan.scale, plan.masks.cost if largest > 0 else 0.0
    low, high = (gaussian.epsilon(math.sqrt(total + more) * unit, plan.delta) for total in (least, largest))
    return low, high
