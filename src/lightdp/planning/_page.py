"""A plan as one page of text that a privacy officer can read."""

from __future__ import annotations

import math
import textwrap

from lightdp import attack
from lightdp._validate import counted, rounded_up
from lightdp.errors import ArgumentError
from lightdp.noise_graph import price_of_sparsity
from lightdp.planning._at_random import worst_at_random
from lightdp.planning._cohorts import memberships
from lightdp.planning._masks import GAUSSIAN
from lightdp.planning._plan import Plan, solve
from lightdp.repair import worst_cost
from lightdp.schemes import server_and

_WIDTH, _MARGIN = 100, 14
_WHAT = {"record": "one record of a client", "person": "one person with all records"}
_KINDS = {"gaussian": "Gaussian samples", "drawn": "drawn values"}
_MUCH = 0.2  # of the budget, kept for what may never happen
_NEARLY = 0.95  # of the budget: a plan that spends less says so


def page(plan: Plan, unit: str | None = None) -> str:
    """The page, without a trailing newline.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=3, epsilon=2, delta=1e-5)
    >>> "for one person with all records (" in " ".join(page(plan, "person").split())
    True

    Args:
        plan: the noise.
        unit: what is protected, where a training puts something else in the place of the plan's unit: "person".
    """
    of = f" of {plan.request.population:,}" if plan.request.cohorts > 1 else ""
    title = f"{plan.calibration.title}, {plan.clients:,}{of} clients, {counted(plan.rounds, 'round')}"
    lines = [title[0].upper() + title[1:], ""]
    for head, sentences in sections(plan, unit).items():
        wrapped = [line for text in sentences for line in textwrap.wrap(text, _WIDTH - _MARGIN, break_on_hyphens=False)]
        lines += [f"{'' if row else head:<{_MARGIN}}{line}" for row, line in enumerate(wrapped)]
    return "\n".join(lines)


def sections(plan: Plan, unit: str | None = None) -> dict[str, list[str]]:
    """The sentences of the page by their headings, without line breaks.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=4, colluders=1, stragglers=1, rounds=3, epsilon=2, delta=1e-5)
    >>> sections(plan)["Against"]
    ['the server together with any other client']

    Args:
        plan: the noise.
        unit: as in `page`.
    """
    unit = plan.unit if unit is None else unit
    each = "" if plan.request.population is None else " of each cohort, whoever chooses the cohorts"
    against = server_and(plan.colluders, each)
    found = {
        "Guarantee": _guarantee(plan, unit),
        "Against": [plan.calibration.against or against],
        "Cohorts": _cohorts(plan),
        "Stragglers": _stragglers(plan),
        "Noise": _noise(plan),
        "Accuracy": _accuracy(plan),
        "Upload": [_upload(plan)],
    }
    if plan.gamma > 0:
        peers = plan.graph.degree
        parameters = plan.request.parameters
        total = "" if parameters is None else f" = {peers * parameters:,} a round"
        found["Keys"] = [f"{peers:,} key agreements, once; one 32-byte public key from each peer"]
        found["Masks"] = [f"{peers:,} {_KINDS[plan.masks.kind]} a parameter and round{total}{_drawn(plan)}"]
    return {head: sentences for head, sentences in found.items() if sentences}


def _drawn(plan: Plan) -> str:
    """What drawn masks take and cost."""
    if plan.masks.kind == "gaussian":
        return ""
    more = plan.mask_cost
    if plan.request.gamma is None:  # the best γ of Gaussian masks may be larger
        usual = solve(plan.request.but(masks="gaussian"))
        more = (plan.sigma_individual / usual.sigma_individual) ** 2 - 1
    return (
        f", of {plan.masks.bits} random bits instead of {GAUSSIAN.bits}, for {100 * more:.1f} % more noise variance; "
        "updates must not depend on what earlier rounds left on a client, or take masks='gaussian' (B2)"
    )


def _cohorts(plan: Plan) -> list[str]:
    """Who takes turns, and what that costs and gains beside everybody and beside the same clients in every round."""
    rows, rosters, own = memberships(plan), plan.request.cohorts, plan.noise_in_mean()
    if not rows:
        return []
    if rosters == 1:
        first = f"one roster of {plan.request.members:,} plays in every round: two that take turns need a population"
        return [f"{first} of at least {2 * plan.clients:,}", *_sizes(plan)]
    each = f"each client takes part in {plan.turns:,} of {counted(plan.rounds, 'round')}, and pays for these alone"
    result = [f"{rosters:,} rosters take turns; {each}", *_sizes(plan)]
    for row in rows[1:]:
        if row.plan is None:
            result.append(f"{row.title} in every round: impossible, {row.reason}")
            continue
        other = row.plan.noise_in_mean()
        times = f"{own / other:.3g} times less" if other < own else f"{other / own:.3g} times more"
        whom = f"{row.plan.colluders:,} colluders, {row.plan.stragglers:,} stragglers"
        result.append(f"{row.title} in every round ({whom}): variance {other:.4g} in the mean, {times}, at the same ε")
    return result


def _sizes(plan: Plan) -> list[str]:
    """What is played where the population cannot be dealt to rosters of the plan's size."""
    least, more = divmod(plan.request.members, plan.request.cohorts)
    if (least, more) == (plan.clients, 0):
        return []
    size = f"{least:,}" if more == 0 else f"{least:,} or {least + 1:,}"
    try:
        noise = f"variance {plan.among(least).noise_in_mean():.4g} in the mean of {least:,}"
    except ArgumentError as error:
        noise = f"there is none for {least:,}, {error}"
    whose = "the roster" if plan.request.cohorts == 1 else "a roster"
    return [f"{whose} will have {size} clients and noise for them: {noise}; all other figures are for {plan.clients:,}"]


def _stragglers(plan: Plan) -> list[str]:
    """How many are expected, and what becomes of uploads that are late (R5), (R6)."""
    result = [f"up to {plan.stragglers:,} a round ({plan.law.name})"]
    if plan.grace and plan.deployable:
        result.append("uploads that are one round late are used (grace 1); stragglers are those later still")
    return result


def _guarantee(plan: Plan, unit: str) -> list[str]:
    what = _WHAT.get(unit, "all data of one client")
    batches = "" if plan.sampling_rate == 1 else f", batches Poisson-sampled at rate {plan.sampling_rate:g}"
    whom = f"{what} ({plan.adjacency}, clipped to {plan.clip:g}{batches})"
    degree = attack.degree(plan.epsilon(), plan.delta, plan.mu, gdp=plan.gdp)
    result = [f"{degree} for the whole training, for {whom}"]
    if plan.understates:
        result.append(f"The paper claims ε = {plan.budget:g}; the figure above is what its noise really gives.")
    elif plan.repairs:
        stragglers = "each has the most stragglers" if plan.request.reserve == "worst" else "stragglers are as expected"
        result.append(
            f"The budget lasts all rounds if {stragglers} and {_late(plan)} seen too late; "
            "the odometer charges what happens and stops before the budget is exceeded."
        )
    if (server := holds_for(plan)) is not None:
        result.append(server)
    result.append(attack.sentence(plan.power(), unit, plan.adjacency))
    return result


def _unused(plan: Plan) -> str:
    """Where the least noise that the accountant of sampled batches resolves gives less than the ε asked for."""
    spent = plan.epsilon()
    if spent >= _NEARLY * plan.budget:
        return ""
    same = f"less noise than this is not resolved, so {rounded_up(spent)} would give the same"
    return f" ε = {plan.budget:g} was asked for; {same}."


def _late(plan: Plan) -> str:
    """Which uploads the budget provides for."""
    if (share := plan.request.late_share) > 0:
        return f"at most {100 * share:g} % of them are"
    return "none of them is"


def holds_for(plan: Plan) -> str | None:
    """What a server may do under a plan, and what is kept for it (W5); None if it may do anything and nothing is kept.

    >>> import lightdp
    >>> asked = dict(clients=4, colluders=1, stragglers=1, rounds=3, epsilon=2, delta=1e-5)
    >>> holds_for(lightdp.plan(**asked, sampling_rate=0.1))
    'It holds for a server that follows the protocol: batches are sampled (R2).'
    """
    sampled = plan.sampling_rate < 1
    if plan.graph.random and plan.repairs:
        kept = f"; {_kept(plan, worst_at_random(plan.request, plan.gamma))} one more late upload"
        unseen = kept if plan.late_is_seen else " and does not see uploads which come too late"
        return f"It holds for a server that tells all clients one history (S1){unseen}."
    if not plan.late_is_seen and plan.calibration.deployable:
        follows = "follows the protocol and " if plan.repairs or sampled else ""
        return f"It holds for a server that {follows}does not see uploads which come too late."
    if sampled:
        return f"It holds for a server that follows the protocol: batches are sampled (R2).{_unused(plan)}"
    if not plan.repairs:
        return None
    worst = worst_cost(plan.gamma, plan.honest, plan.stragglers, grace=plan.grace)
    much = worst >= _MUCH * _spent(plan)
    fewer = "; with fewer stragglers it would be less" if much else ""
    return f"It holds for a server that lies to clients; {_kept(plan, worst)} lies and one more late upload{fewer}."


def _spent(plan: Plan) -> float:
    """All that a plan provides for, in units of (Δ/σ_U)²."""
    return plan.turns * (plan.sigma_individual / plan.sigma_effective) ** 2


def _kept(plan: Plan, worst: float) -> str:
    return f"{100 * worst / _spent(plan):.0f} % of μ² is kept for"


def _noise(plan: Plan) -> list[str]:
    if plan.sigma_individual == 0:
        result = [f"σ {plan.sigma_effective:.6g} in the sum, added by the server"]
    else:
        result = [f"individual σ_U {plan.sigma_individual:.6g}, drawn afresh for each upload and parameter"]
    if plan.gamma > 0:
        is_gaussian = plan.masks.kind == "gaussian"
        ratio = f"γ = σ_K²/σ_U² = {plan.gamma:.6g}" if is_gaussian else f"counts as γ = {plan.gamma:.6g} times σ_U²"
        result.append(f"pairwise   σ_K {plan.sigma_pairwise:.6g}, shared by two clients ({ratio})")
    average = ", root mean square over rounds" if plan.repairs else ""
    result.append(f"effective  σ   {plan.sigma_effective:.6g}, what protects one client{average}")
    result.append(f"noise multiplier {plan.noise_multiplier:.6g} = effective σ / sensitivity {plan.sensitivity:g}")
    if plan.graph.random and plan.gamma > 0:
        result.append(
            f"an expander of about {plan.graph.degree} peers each, placed by the roster's hash; at most "
            f"{plan.request.near_colluders} of a client's peers collude, but for draws that δ covers; a round counts "
            f"if every client has at least {plan.request.least_used} used peers"
        )
        if plan.hides_late:
            result.append("noise of all clients hides a late upload; the first of two closing rounds has it too")
    elif not plan.graph.complete and plan.calibration.chooses_gamma and plan.gamma == 0:
        result.append(
            f"with {plan.graph.degree} peers each, pairwise noise does not help: this is local DP, and more peers (or "
            "graph auto) need less noise"
        )
    elif not plan.graph.complete and plan.gamma > 0:
        price = price_of_sparsity(plan.graph, plan.colluders, plan.gamma)
        result.append(f"the graph of degree {plan.graph.degree} needs {price:.3g} times the σ of the complete one")
    return result


def _accuracy(plan: Plan) -> list[str]:
    stays, goes = plan.noise_in_mean(), plan.transient_in_mean()
    result = [f"a round leaves noise of std {_std(stays)} in each coordinate of the mean"]
    if plan.repairs:
        whose = "its roster's" if plan.request.cohorts > 1 else "the"
        until = f"{whose} round after next" if plan.grace else f"{whose} next round"
        result.append(f"and, until {until} takes it out, a residual of std {_std(goes)}; it does not add up")
    if plan.why is not None:
        result.append(plan.why)
    return result


def _upload(plan: Plan) -> str:
    parameters, wire = plan.request.parameters, plan.wire
    size = "" if parameters is None else f" = {_size(math.ceil(wire.bits * parameters / 8))}"
    turned = "rotated and " if plan.rotates else ""
    rounded = f"{turned}clamped to ±{wire.range:.4g} before noise, rounded to σ_U/{wire.steps} after it"
    return f"{wire.bits} bits a parameter{size}, {'floats' if plan.calibration.floats else rounded}"


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1000 else f"{count / 1e3:,.1f} kB"


def _std(variance: float) -> str:
    return f"{math.sqrt(variance):.4g} (variance {variance:.4g})"
