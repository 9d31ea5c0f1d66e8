"""What nodes and server have counted, against the odometer for their sets and the exact covariance of all uploads."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

from evidence import Claim, Evidence, Roster

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet

if TYPE_CHECKING:
    from noise import Changes, Noise

    from lightdp.protocol import ClientState

CLOSE = 1e-9  # relative difference of two sums of the same numbers


def costs(changes: Changes) -> list[Claim]:
    """What must hold of what nodes and server count."""
    found, server = changes.evidence, _server(changes.evidence)
    alike = within = above = True
    shares: dict[str, float] = {}
    for name, kept in found.kept.items():
        told = Counter(kept.elsewhere)
        for state in kept.states:
            told += _told(found.rosters[state.roster.number if state.roster else -1], state).squares()[0]
        alike &= math.isclose(_mu(told), kept.mu, rel_tol=CLOSE, abs_tol=CLOSE)
        within &= kept.epsilon <= kept.worst_epsilon <= found.plan.budget
        made, seen = (_exact(changes, name, arrived=arrived) for arrived in (False, True))
        above &= made <= kept.mu**2 * (1 + CLOSE) and seen <= _mu(server.get(name, Counter())) ** 2 * (1 + CLOSE)
        if made > 0:
            shares[name] = made / kept.mu**2
    reported = found.trained["metrics"][str(max(map(int, found.trained["metrics"])))]["lightdp-epsilon"]
    most = gaussian.epsilon(max(map(_mu, server.values())), found.plan.delta)
    equal = [_equal(changes.noises[number]) for number, roster in found.rosters.items() if roster.live]
    rounds, more = _charged(found)
    same, larger = _told_all(found)
    own = ", ".join(f"{name} {kept.epsilon:.3f}" for name, kept in found.kept.items())
    parts = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
    return [
        Claim("each node's ledger is the odometer's for the sets that it was told", alike, f"ε of {own}"),
        Claim(
            "the server's ledger is the odometer's for its sets, and its largest ε what was reported",
            math.isclose(most, reported, rel_tol=1e-6),
            f"{most:.4f}, {reported:.4f}",
        ),
        Claim(
            "the server charges each node the rounds that it has counted as answered; one that left may count more",
            rounds is not None,
            f"{rounds} rounds, and {more} that left nodes count alone",
        ),
        Claim(
            "told of all sets, each node's ledger is the server's, or above it where an upload came too late",
            same is not None and same > 0,
            f"{same} ledgers are equal, {larger} above",
        ),
        Claim(
            "no ledger is below the exact covariance of all uploads that were made, or came",
            above and shares != {},
            f"the covariance's share of what nodes count: {parts}",
        ),
        Claim(
            "where every upload was used, the server's ledger is the covariance's",
            all(holds for holds, _ in equal),
            f"{sum(count for _, count in equal)} ledgers of {len(equal)} rosters",
        ),
        Claim("every node is within its budget at worst", within, f"ε = {found.plan.budget:g}"),
    ]


def _charged(found: Evidence) -> tuple[int | None, int]:
    """How many rounds server and nodes count alike, None if they do not, and how many those alone that left."""
    alike, more, left = 0, 0, found.scene["left"]
    for roster in found.rosters.values():
        for me, (name, state) in enumerate(zip(roster.names, roster.states, strict=True)):
            own = set() if state is None else set(state.sent - state.closing)
            server = _kept_rounds(roster, me) if roster.live else _seen_rounds(found, roster, me)
            if not server <= own or (server != own and name not in left):
                return None, 0
            alike, more = alike + len(server), more + len(own - server)
    return alike, more


def _kept_rounds(roster: Roster, client: int) -> set[int]:
    """Rounds with data that the server charges a client, from its checkpoint."""
    return {t for t, (used, seen) in enumerate(_sets(roster)) if client in used or client in seen}


def _seen_rounds(found: Evidence, roster: Roster, client: int) -> set[int]:
    """The same for a roster that has ended, from what came to the server: uploads, and what key replies say."""
    came = {upload["turn"] for upload in roster.uploads if upload["client"] == client}
    for reply in found.of("reply"):
        if "answered" in reply and found.nodes[reply["node"]] == roster.names[client]:
            bits = int(json.loads(reply["answered"]).get(str(roster.number), "0"), 16)
            came |= {t for t in roster.rounds if bits >> t & 1}
    return came - roster.closing


def _told_all(found: Evidence) -> tuple[int | None, int]:
    """How many ledgers of nodes, told of all sets, are the server's, and how many above; None if one is below it."""
    equal = above = 0
    for roster in found.rosters.values():
        if not roster.live:
            continue
        server, sets = _counted(roster).squares(), [used for used, _ in _sets(roster)]
        for me, state in enumerate(roster.states):
            if state is None:
                continue
            odometer, alone = Odometer(roster.plan, [me]), ClientSet.of(roster.clients, [me])
            for turn, used in enumerate(sets):
                odometer.record(used, ~used if turn in state.sent else ~used - alone)
            late = any(turn in state.sent and used and me not in used for turn, used in enumerate(sets))
            own, theirs = _mu(odometer.squares()[0]), _mu(server[me])
            if theirs > own * (1 + CLOSE) or not (late or math.isclose(own, theirs, rel_tol=CLOSE, abs_tol=CLOSE)):
                return None, 0
            equal, above = equal + (not late), above + late
    return equal, above


def _exact(changes: Changes, name: str, *, arrived: bool) -> float:
    """μ² of a node's data in all rosters, which share no noise."""
    mine = [noise for noise in changes.noises.values() if name in noise.roster.names]
    return math.fsum(noise.exact(noise.roster.names.index(name), arrived=arrived) for noise in mine)


def _equal(noise: Noise) -> tuple[bool, int]:
    """Whether the server's ledgers of a roster are the covariance's, and how many; none if an upload got lost."""
    roster, holds = noise.roster, True
    made = {(i, t) for i in range(roster.clients) for t in noise.sent(i)}
    full = {(i, t) for t, used in enumerate(roster.used) if len(used) == roster.clients for i in used}
    if made != full or made == set():
        return True, 0
    for i, squares in enumerate(_counted(roster).squares()):
        holds &= math.isclose(_mu(squares) ** 2, noise.exact(i, arrived=True), rel_tol=1e-6)
    return holds, roster.clients


def _mu(squares: Counter[float]) -> float:
    return math.sqrt(math.fsum(square * count for square, count in squares.items()))


def _server(found: Evidence) -> dict[str, Counter[float]]:
    """What the server counts for each member, from its checkpoint."""
    total = {name: Counter({x: int(k) for x, k in spent}) for name, spent in found.past["spent"].items()}
    for roster in found.rosters.values():
        if roster.live:
            for name, squares in zip(roster.names, _counted(roster).squares(), strict=True):
                total[name] = total.get(name, Counter()) + squares
    return total


def _counted(roster: Roster) -> Odometer:
    """What a roster has cost its members, from the checkpoint of the server."""
    odometer, rounds = Odometer(roster.plan), (roster.past or {})["rounds"]
    for used, seen in _sets(roster):
        odometer.record(used, seen)
    for text in rounds["on_time"][len(rounds["used"]) :]:
        odometer.open(ClientSet.from_bytes(bytes.fromhex(text), roster.clients))
    return odometer.counted()


def _sets(roster: Roster) -> list[tuple[ClientSet, ClientSet]]:
    """Who was used in each round with data, and who else is charged for it, from the checkpoint of the server."""
    past = roster.past or {}
    late, rounds, found = past["server"]["late"], past["rounds"], []
    other = [{int(t): set(clients) for t, clients in rounds[what]} for what in ("lost", "said")]
    for t, text in enumerate(rounds["used"]):
        used = ClientSet.from_bytes(bytes.fromhex(text), roster.clients)
        seen = ClientSet.of(roster.clients, set().union(*(each.get(t, ()) for each in other))) - used
        if str(t) in late:
            seen |= ClientSet.from_bytes(bytes.fromhex(late[str(t)]), roster.clients)
        found.append((used, seen))
    return found


def _told(roster: Roster, state: ClientState) -> Odometer:
    """What a node knows to have spent: rounds that are not final or not announced yet count at their worst."""
    me = roster.names.index(state.enrolment.name)
    odometer, alone = Odometer(roster.plan, [me]), ClientSet.of(roster.clients, [me])
    for turn, each in enumerate(state.used):
        odometer.record(each, ~each - (alone if turn not in state.sent else ClientSet.none(roster.clients)))
    last = len(state.on_time) - 1
    if last >= len(state.used) and last not in state.closing:
        late = last in state.sent and me not in state.on_time[last]
        odometer.open(state.on_time[last], alone if late else ())
    return odometer.counted(ahead=last + 1 in state.sent and last + 1 not in state.closing)
