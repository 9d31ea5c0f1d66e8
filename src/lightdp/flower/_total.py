"""One ledger of μ² for all runs of a node (E5): what was sent in earlier runs, and what this one may cost at worst.

Each run is a Gaussian mechanism for the node's data, chosen in view of the earlier ones, so the μ² add up. Batches
that are sampled have no μ of their own; they count without amplification, which is an upper bound: sampling only
hides more. For runs of different adjacencies the sum bounds the loss under "add-remove". Drawn masks are Gaussian but
for small probabilities, which the total δ must cover beside (B2).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from lightdp import gaussian
from lightdp.errors import ArgumentError, BudgetError, LightDPError, ProtocolError
from lightdp.federation import Member, MemberState
from lightdp.flower._plans import planned
from lightdp.flower._settings import Settings
from lightdp.flower._vault import Vault
from lightdp.planning import NEVER, Failures, Plan
from lightdp.protocol import Client, ClientState
from lightdp.protocol.vector import agreement

_BEFORE_GRACE = '"late": "seen"'  # in plans of versions without grace, whose budget is all that counts here
_ROUND_UP = 1 + 1e-9  # on a μ that was found from an ε: more than both roundings
_UNNUMBERED, _NUMBERED = b"lightdp\x02", b"lightdp\x03"  # how rosters begin without and with a number
_NUMBER = slice(24, 28)  # where it stands


def at_worst(plan: Plan, sent: float = 0.0) -> float:
    """The μ² that a whole run may cost, of which uploads that cost `sent` without amplification are made.

    With whole batches the member's odometer ends the run at the plan's budget, whatever happens. With sampled ones it
    does so for the amplified ε; without amplification each round costs at most (Δ/`plan.scale`)².

    >>> import lightdp
    >>> plan = lightdp.plan(clients=3, colluders=1, stragglers=0, rounds=4, epsilon=1, delta=1e-5, unit="client")
    >>> round(at_worst(plan) ** 0.5, 4)
    0.2681
    """
    if plan.sampling_rate == 1:
        return (gaussian.mu(plan.budget, plan.delta) * _ROUND_UP) ** 2
    return max(plan.turns * _upload(plan), sent)


def check_round(settings: Settings, vault: Vault, plan: Plan, roster: int, *, closing: bool) -> None:
    """As `check`, for a round of a roster that is about to be answered in the run at hand."""
    sent = 0.0
    if plan.sampling_rate < 1 and settings.total_epsilon is not None:
        state = MemberState.from_bytes(vault.load())
        sent = _unamplified(state) + (0.0 if closing else _upload(_planned_for(state.rosters[roster])))
    fails = _failed(vault), plan.masks.fails(vault.record["length"])
    check(settings, plan, vault.record["before"], sent, fails=fails)


def check(
    settings: Settings,
    plan: Plan,
    earlier: float,
    sent: float = 0.0,
    *,
    fails: tuple[Failures, Failures] = (NEVER, NEVER),
) -> None:
    """Refuse a run that could exceed the total of this node, at its key round and at each round.

    Of two valid bounds the smaller one counts: all μ² in one sum, or the plan's own (ε, δ) beside the earlier runs'.
    The second is exact for a node's first run.

    Args:
        settings: of the node.
        plan: of the run.
        earlier: the μ² of all other runs.
        sent: that of uploads of the run that are made or about to be, without amplification.
        fails: by how much the μ of all other runs, and that of this one, may fall short (B2).

    Raises:
        BudgetError: the total could be exceeded; nothing was spent.
    """
    limit, delta = settings.total_epsilon, settings.total_delta
    if limit is None or delta is None or (earlier == 0 and plan.budget <= limit and plan.delta <= delta):
        return
    mu = math.sqrt(earlier + at_worst(plan, sent))
    before_it, whole = fails[0], fails[0] + fails[1]
    if whole.delta(limit, mu) <= delta:  # takes less time than ε
        return
    epsilon = whole.epsilon(mu, delta)
    if plan.delta < delta:  # at which the plan's own ε holds, whatever fails
        epsilon = min(epsilon, before_it.epsilon(math.sqrt(earlier), delta - plan.delta) + plan.budget)
    if epsilon > limit:
        why = "" if epsilon < math.inf else ", as drawn masks could fail too often: masks='gaussian' never do"
        raise BudgetError(
            f"with this plan all runs of this node could cost epsilon={epsilon:.6g} at lightdp-total-delta={delta:g}, "
            f"above lightdp-total-epsilon={limit:g}{why}"
        )


def before(vault: Vault, run: str) -> tuple[float, Failures]:
    """The μ² of everything that this node has sent in other runs than `run`, each at its worst, and how it may fail."""
    record = vault.record
    if not record:
        return 0.0, NEVER
    earlier, fails = float(record["before"]), _failed(vault)
    if record["run"] == run:
        return earlier, fails
    plan = _earlier(record["plan"])
    sent = _sent(plan, vault)
    return earlier + sent, fails + (plan.masks.fails(record["length"]) if sent > 0 else NEVER)


def _failed(vault: Vault) -> Failures:
    """By how much the μ of earlier runs may fall short; records before drawn masks say nothing of it."""
    return Failures.of("failed", vault.record.get("failed", []))


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
        counted, uploads = _of_client(plan, vault) if vault.older else _of_member(plan, vault)
    except LightDPError:
        return at_worst(plan)
    return min(at_worst(plan, uploads), (counted * _ROUND_UP) ** 2, uploads)


def _of_member(plan: Plan, vault: Vault) -> tuple[float, float]:
    """The μ of all rosters of a run at their worst, and the μ² of its uploads without amplification."""
    member = Member.restore(plan, length=vault.record["length"], store=vault, moved=True)  # it answers nothing
    return member.mu(worst=True), _unamplified(MemberState.from_bytes(vault.load()))


def _of_client(plan: Plan, vault: Vault) -> tuple[float, float]:
    """As `_of_member`, for a state of a version whose runs had one roster, without a number."""
    length = vault.record["length"]
    try:
        facts = json.loads(vault.load())
        if isinstance(facts, dict) and (roster := bytes.fromhex(facts.get("roster") or "")).startswith(_UNNUMBERED):
            numbered = _NUMBERED + roster[len(_NUMBERED) : _NUMBER.start] + bytes(4) + roster[_NUMBER.start :]
            facts["roster"] = numbered.hex()
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"store must hold a client's state, got {type(error).__name__}") from None
    agreed = agreement(plan, length, weighted=False)  # it binds the noise, which other versions may choose otherwise
    state = ClientState.from_bytes(json.dumps(facts).encode(), agreement=agreed)
    client = Client(plan, state, length=length, pins=None, weighted=False, store=None, threads=1)  # it answers nothing
    return client.mu(worst=True), len(state.sent - state.closing) * _upload(plan)


def _unamplified(state: MemberState) -> float:
    """The μ² of all uploads of a member: each has individual noise of its own, whatever is told of the others."""
    parts = [(part, _planned_for(part)) for part in state.rosters.values()]
    spent: Mapping[float, int] = state.spent
    return math.fsum(
        [square * count for square, count in spent.items()]
        + [len(part.sent - part.closing) * _upload(plan) for part, plan in parts]
    )


def _planned_for(part: ClientState) -> Plan:
    """The plan of a roster."""
    return planned(part.plan)


def _upload(plan: Plan) -> float:
    """The most μ² of one upload, without amplification."""
    return (plan.sensitivity / plan.scale * _ROUND_UP) ** 2
