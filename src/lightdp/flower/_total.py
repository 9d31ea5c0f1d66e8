"""One ledger of μ² for all runs of a node (E5): what was sent in earlier runs, and what this one may cost at worst.

Each run is a Gaussian mechanism for the node's data, chosen in view of the earlier ones, so the μ² add up. Batches
that are sampled have no μ of their own; they count without amplification, which is an upper bound: sampling only
hides more. For runs of different adjacencies the sum bounds the loss under "add-remove".
"""

from __future__ import annotations

import math

from lightdp import gaussian
from lightdp.errors import BudgetError, LightDPError, ProtocolError
from lightdp.flower._plans import planned
from lightdp.flower._settings import Settings
from lightdp.flower._vault import Vault
from lightdp.planning import Plan
from lightdp.protocol import Client

_BEFORE_GRACE = '"late": "seen"'  # in plans of versions without grace, whose budget is all that counts here
_ROUND_UP = 1 + 1e-9  # on a μ that was found from an ε: more than both roundings


def at_worst(plan: Plan, rounds: int = 0) -> float:
    """The μ² that a whole run may cost, of which `rounds` rounds are over or about to begin.

    With whole batches the client's odometer ends the run at the plan's budget, whatever happens. With sampled ones it
    does so for the amplified ε; without amplification each round costs at most 1 in units of (Δ/`plan.scale`)².

    >>> import lightdp
    >>> plan = lightdp.plan(clients=3, colluders=1, stragglers=0, rounds=4, epsilon=1, delta=1e-5, unit="client")
    >>> round(at_worst(plan) ** 0.5, 4)
    0.2681
    """
    if plan.sampling_rate == 1:
        return (gaussian.mu(plan.budget, plan.delta) * _ROUND_UP) ** 2
    return _unamplified(plan, max(plan.rounds, rounds))


def check(settings: Settings, plan: Plan, earlier: float, rounds: int = 0) -> None:
    """Refuse a run that could exceed the total of this node, at its key round and at each round.

    Of two valid bounds the smaller one counts: all μ² in one sum, or the plan's own (ε, δ) beside the earlier runs'.
    The second is exact for a node's first run.

    Args:
        settings: of the node.
        plan: of the run.
        earlier: the μ² of all other runs.
        rounds: rounds of the run that are over or about to begin.

    Raises:
        BudgetError: the total could be exceeded; nothing was spent.
    """
    limit, delta = settings.total_epsilon, settings.total_delta
    if limit is None or delta is None or (earlier == 0 and plan.budget <= limit and plan.delta <= delta):
        return
    mu = math.sqrt(earlier + at_worst(plan, rounds))
    if gaussian.delta(limit, mu) <= delta:  # takes less time than ε
        return
    epsilon = gaussian.epsilon(mu, delta)
    if plan.delta < delta:
        epsilon = min(epsilon, gaussian.epsilon(math.sqrt(earlier), delta - plan.delta) + plan.budget)
    if epsilon > limit:
        raise BudgetError(
            f"with this plan all runs of this node could cost epsilon={epsilon:.6g} at lightdp-total-delta={delta:g}, "
            f"above lightdp-total-epsilon={limit:g}"
        )


def before(vault: Vault, run: str) -> float:
    """The μ² of everything that this node has sent in other runs than `run`, each at its worst."""
    record = vault.record
    if not record:
        return 0.0
    earlier = float(record["before"])
    return earlier if record["run"] == run else earlier + _sent(_earlier(record["plan"]), vault)


def _earlier(text: str) -> Plan:
    """The plan of an earlier run. Versions before grace wrote late="seen", and cannot be restored."""
    plan = planned(text.replace(_BEFORE_GRACE, '"late": 0.0'))
    if _BEFORE_GRACE in text and plan.sampling_rate < 1:
        raise ProtocolError(
            "the state counts a run with sampled batches of an earlier version of lightdp, which this one cannot: its "
            "operator moves the state away, and what it counts is given up"
        )
    return plan


def kinds(settings: Settings, vault: Vault, plan: Plan) -> list[list[str]]:
    """Unit and adjacency of all runs that the state counts, and of this one.

    Raises:
        ProtocolError: the node has a total, and one of them was of another unit, or of a weaker adjacency.
    """
    counted: list[list[str]] = vault.record.get("kinds", [])
    for unit, adjacency in counted if settings.total_epsilon is not None else []:
        if unit != plan.unit or settings.adjacency == "replace" != adjacency:
            kind = f"unit {unit!r} and adjacency {adjacency!r}"
            raise ProtocolError(f"lightdp-total-epsilon is for one unit and adjacency, and the state counts {kind}")
    own = [str(plan.unit), str(plan.adjacency)]
    return counted if own in counted else [*counted, own]


def _sent(plan: Plan, vault: Vault) -> float:
    """The μ² of the run whose state is in `vault`; the whole plan's if the state cannot be read any more."""
    try:
        client = Client.restore(plan, length=vault.record["length"], store=vault, moved=True)  # it answers nothing
    except LightDPError:
        return at_worst(plan)
    counted = (client.mu(worst=True) * _ROUND_UP) ** 2
    return min(at_worst(plan, client.next_round), counted, _unamplified(plan, client.next_round))


def _unamplified(plan: Plan, rounds: int) -> float:
    """The μ² of so many rounds: every upload has individual noise of its own, so none costs more than 1."""
    return rounds * (plan.sensitivity / plan.scale * _ROUND_UP) ** 2
