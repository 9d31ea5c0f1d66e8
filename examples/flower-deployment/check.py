"""Whether a training on real nodes did what the protocol says, from what it left behind.

python check.py FOLDER

FOLDER is what `run.py --keep` left.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from evidence import Evidence, Roster
from noise import Changes
from scipy import stats

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightdp.protocol import ClientState

SURE = 5.0  # standard deviations beyond which a statistic is rejected; the wrong ones are much farther away
CLOSE = 1e-9  # relative difference of two sums of the same numbers


@dataclass(frozen=True)
class Claim:
    """Something that must hold, and what was found."""

    text: str
    holds: bool
    found: str


def judge(folder: Path) -> list[Claim]:
    """Everything that must hold."""
    found = Evidence(folder)
    changes = Changes(found)
    return [*_announced(found), *_model(changes), *_cost(changes), *_once(found), *_members(changes)]


def _announced(found: Evidence) -> list[Claim]:
    right, came, lines = True, True, []
    for number, roster in found.rosters.items():
        right &= all(told == {roster.entry(t)} for t, told in roster.told.items())
        for t in roster.rounds:
            ended = _collected(found, roster, t)
            used, seen = roster.used[t], roster.arrived(t)
            early = roster.arrived(t, ended)
            came &= used.isdisjoint(~seen) and (not used or early.isdisjoint(~used))
        lines.append(f"{number}: {', '.join(_list(used) for used in roster.used)}")
    return [
        Claim("all nodes were told the same sets", right, f"used by roster and round: {'; '.join(lines)}"),
        Claim(
            "these are of uploads that came, and have all that came in time, but in void rounds",
            came,
            f"{len(found.uploads)} uploads",
        ),
    ]


def _collected(found: Evidence, roster: Roster, turn: int) -> float:
    """When the server stopped to wait for the uploads of a round; at once if it never did."""
    trip = roster.trips.get(turn, {"trip": -1})["trip"]
    return next((event["at"] for event in found.of("collected") if event["trip"] == trip), 0)


def distance(rows: NDArray[np.float64]) -> float:
    """How many standard deviations the sum of squares is from that of standard Gaussians."""
    return float((np.sum(rows**2) - rows.size) / np.sqrt(2 * rows.size))


def _rows(changes: Changes, *, repaired: bool = True, paired: bool = True, without: str = "") -> NDArray[np.float64]:
    """Individual noise over its standard deviation, by change. (·, d)"""
    found = changes.rest(repaired=repaired, paired=paired, without=without)
    return np.array([change.rest / change.scale for change in found])


def _model(changes: Changes) -> list[Claim]:
    rows = _rows(changes)
    straight = stats.kstest(rows.ravel(), "norm").pvalue
    wrong = {
        "3/2 of the variance": distance(rows * math.sqrt(3 / 2)),
        "2/3 of it": distance(rows * math.sqrt(2 / 3)),
        "σ larger by a tenth": distance(rows * 1.1),
        "σ smaller by a tenth": distance(rows / 1.1),
    }
    if any(noise.carried(i) for noise in changes.noises.values() for i in range(noise.roster.clients)):
        wrong["no repair"] = distance(_rows(changes, repaired=False))
        wrong["no pairwise noise"] = distance(_rows(changes, paired=False))
    residues, kept = [], []
    for noise in changes.noises.values():
        residues.append(sum(noise.pairwise().values(), np.zeros(changes.evidence.length, np.int64)).any())
        kept += [f"{noise.roster.names[i]} of round {t} in roster {noise.roster.number}" for i, t in noise.unrepaired()]
    return [
        Claim(
            "each change of the model is its uploads' steps, their pairwise noise and repairs, and Gaussian individual "
            "noise of the planned variance",
            abs(distance(rows)) < SURE and straight > 1e-6,
            f"{rows.size} values, variance {np.mean(rows**2):.3f} of 1 ({distance(rows):+.1f} standard deviations)",
        ),
        Claim(
            "the same test rejects wrong noise",
            all(abs(value) > SURE for value in wrong.values()),
            ", ".join(f"{name} {value:+.0f}" for name, value in wrong.items()),
        ),
        Claim(
            "in the final model nothing is left of what stragglers left, but for repairs that got lost",
            not any(residues) or kept != [],
            f"not repaired: {', '.join(kept) or 'nothing'}; accuracy {changes.evidence.accuracy():.1%}",
        ),
        *_slow(changes, changes.evidence.scene.get("slow")),
    ]


def _slow(changes: Changes, name: str | None) -> list[Claim]:
    """Late uploads of the slow node are in the model: without them its changes cannot be explained."""
    late = [
        (number, t)
        for number, noise in changes.noises.items()
        if name in noise.roster.names
        for t in noise.joined(noise.roster.names.index(name))
    ]
    if name is None:
        return []
    lost = distance(_rows(changes, without=name)) if late else 0.0
    return [
        Claim(
            "what the slow node sends late is in the model",
            late != [] and abs(lost) > SURE,
            f"late in rosters and rounds {late}; taken for lost, the model is {lost:+.0f} deviations off",
        )
    ]


def _cost(changes: Changes) -> list[Claim]:
    found, server = changes.evidence, _server(changes.evidence)
    alike = within = above = True
    shares, seen_shares = [], []
    for name, kept in found.kept.items():
        told = Counter(kept.elsewhere)
        for state in kept.states:
            told += _told(found.rosters[state.roster.number if state.roster else -1], state).squares()[0]
        alike &= math.isclose(_mu(told), kept.mu, rel_tol=CLOSE, abs_tol=CLOSE)
        within &= kept.epsilon <= kept.worst_epsilon <= found.plan.budget
        mine = [noise for noise in changes.noises.values() if name in noise.roster.names]
        made, seen = (
            math.fsum(noise.exact(noise.roster.names.index(name), arrived=arrived) for noise in mine)
            for arrived in (False, True)
        )
        above &= made <= kept.mu**2 * (1 + CLOSE) and seen <= server.get(name, 0.0) ** 2 * (1 + CLOSE)
        if made > 0:
            shares.append(made / kept.mu**2)
            seen_shares.append(seen / server[name] ** 2)
    reported = found.trained["metrics"][str(max(map(int, found.trained["metrics"])))]["lightdp-epsilon"]
    most = gaussian.epsilon(max(server.values()), found.plan.delta)
    own = ", ".join(f"{name} {kept.epsilon:.3f}" for name, kept in found.kept.items())
    return [
        Claim("each node's ledger is the odometer's for the sets that it was told", alike, f"ε of {own}"),
        Claim(
            "the server's ledger is the odometer's for its sets, and its largest ε what was reported",
            math.isclose(most, reported, rel_tol=1e-6),
            f"{most:.4f}, {reported:.4f}",
        ),
        Claim(
            "no ledger is below the exact covariance of all uploads that were made, or came",
            above and shares != [],
            f"of nodes' μ² {min(shares):.3f} to {max(shares):.3f}, "
            f"of the server's {min(seen_shares):.3f} to {max(seen_shares):.3f}",
        ),
        Claim("every node is within its budget at worst", within, f"ε = {found.plan.budget:g}"),
    ]


def _mu(squares: Counter[float]) -> float:
    return math.sqrt(math.fsum(square * count for square, count in squares.items()))


def _server(found: Evidence) -> dict[str, float]:
    """What the server counts for each member, from its checkpoint."""
    total = {name: Counter({x: int(k) for x, k in spent}) for name, spent in found.past["spent"].items()}
    for roster in found.rosters.values():
        if roster.past is None:
            continue
        server, rounds, odometer = roster.past["server"], roster.past["rounds"], Odometer(roster.plan)
        lost = {int(t): set(clients) for t, clients in rounds["lost"]}
        for t, text in enumerate(rounds["used"]):
            used = ClientSet.from_bytes(bytes.fromhex(text), roster.clients)
            late = ClientSet.none(roster.clients)
            if str(t) in server["late"]:
                late = ClientSet.from_bytes(bytes.fromhex(server["late"][str(t)]), roster.clients)
            odometer.record(used, late | (ClientSet.of(roster.clients, lost.get(t, ())) - used))
        for t in range(len(rounds["used"]), len(rounds["on_time"])):
            odometer.open(ClientSet.from_bytes(bytes.fromhex(rounds["on_time"][t]), roster.clients))
        for name, squares in zip(roster.names, odometer.counted().squares(), strict=True):
            total[name] = total.get(name, Counter()) + squares
    return {name: _mu(squares) for name, squares in total.items()}


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


def _once(found: Evidence) -> list[Claim]:
    seen = Counter((upload["hash"], upload["client"], upload["turn"]) for upload in found.uploads)
    counted, prefix, leaving = True, True, 0
    for roster in found.rosters.values():
        for i, state in enumerate(roster.states):
            sent = frozenset[int]() if state is None else state.sent
            counted &= all(turn in sent for key, client, turn in seen if (key, client) == (roster.keys.hash, i))
            if state is not None:
                prefix &= list(state.used) == roster.used[: len(state.used)]
                prefix &= list(state.on_time) == roster.on_time[: len(state.on_time)]
                leaving += len(sent)
    logs = sum((found.folder / "logs" / f"{name}.log").read_text().count("an upload leaves") for name in found.kept)
    again = found.of("again")[0]["at"]
    orders = {node for event in found.of("sent") if event["at"] > again for node in event["orders"]}
    refused = {e["node"] for e in found.of("error") if e["at"] > again and "lightdp/protocol" in e["reason"]}
    late = [upload for upload in found.uploads if upload["at"] > again]
    leaked = [name for reply in found.of("reply") for name in reply["metrics"]]
    return [
        Claim(
            "no node answered a round twice, and every upload was counted before it left",
            max(seen.values()) == 1 and counted and logs <= leaving,
            f"{len(seen)} uploads came, {logs} left, {leaving} were counted",
        ),
        Claim("what nodes remember of the sets is what the server does", prefix, f"{len(found.kept)} states"),
        Claim(
            "asked for an old round again, with another model, every node that is there refuses",
            orders == refused and refused != set() and late == [],
            f"{len(refused)} of {len(orders)} refused",
        ),
        Claim("no metrics left the nodes", leaked == [], ", ".join(leaked) or "none"),
    ]


def _members(changes: Changes) -> list[Claim]:
    found = changes.evidence
    scene, rosters = found.scene, found.rosters
    uses = {
        name: [(n, t) for n, r in rosters.items() for t in r.rounds if name in r.names and _used(r, name, t)]
        for name in found.kept
    }
    first = set(found.data_trips[0]["orders"])
    sizes = [len(event["orders"]) for event in found.data_trips]
    sessions = found.of("session")
    each = [sum(s["at"] < t["at"] < end for t in found.data_trips) for s, end in _spans(found)]
    claims = [
        Claim(
            "each round asked one roster, and every node is in one",
            len(rosters) > 1 and max(sizes) < len(found.kept) and len(first) < len(found.kept),
            f"rosters {', '.join(f'{n}: {_numbers(r.names)}' for n, r in rosters.items())}",
        ),
        Claim(
            "after each crash the training went on, with the model and the members that it had",
            len(sessions) == 1 + scene["crashes"] and all(each),
            f"{len(sessions)} processes of the server, with {each} rounds announced",
        ),
        Claim(
            "nodes that joined in mid-run take part",
            all(uses[name] for name in scene["joined"])
            and not any(_first(rosters, name) == 0 for name in scene["joined"]),
            f"used in rosters and rounds {[uses[name] for name in scene['joined']]}",
        ),
    ]
    if "killed" in scene:
        roster, turn = scene["answered"]
        after = [(n, t) for n, t in uses[scene["killed"]] if n > roster or (n == roster and t > turn)]
        newest = rosters[max(rosters)].names
        claims += [
            Claim("the killed node takes part again", after != [], f"killed in {roster, turn}, used again in {after}"),
            Claim(
                "nodes that left are in no roster that was formed since, and theirs was closed",
                not set(scene["left"]) & set(newest) and len([r for r in rosters.values() if not r.live]) == 1,
                f"left: {_numbers(scene['left'])}; closed: {[n for n, r in rosters.items() if not r.live]}",
            ),
        ]
    return claims


def _used(roster: Roster, name: str, turn: int) -> bool:
    return turn not in roster.closing and roster.names.index(name) in roster.used[turn]


def _first(rosters: dict[int, Roster], name: str) -> int:
    """The number of a node's first roster, as a rank by when it was announced first."""
    order = sorted(rosters.values(), key=lambda roster: roster.number)
    return next(rank for rank, roster in enumerate(order) if name in roster.names)


def _spans(found: Evidence) -> list[tuple[dict[str, int], int]]:
    sessions = found.of("session")
    ends = [session["at"] for session in sessions[1:]] + [len(found.events)]
    return list(zip(sessions, ends, strict=True))


def _list(clients: ClientSet) -> str:
    return " ".join(map(str, clients)) or "void"


def _numbers(names: list[str]) -> str:
    return " ".join(name.removeprefix("node-") for name in names)


def report(folder: Path) -> bool:
    """Print all claims; whether they hold."""
    claims = judge(folder)
    for claim in claims:
        print(f"{'yes' if claim.holds else 'NO '}  {claim.text}\n       {claim.found}")
    return all(claim.holds for claim in claims)


if __name__ == "__main__":
    sys.exit(not report(Path(sys.argv[1])))
