"""Whether a training on real nodes did what the protocol says, from what it left behind.

python check.py FOLDER

FOLDER is what `run.py --keep` left.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from evidence import Claim, Evidence, Roster
from ledgers import costs
from noise import Changes
from scipy import stats

from lightdp.client_set import ClientSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

SURE = 5.0  # standard deviations beyond which a statistic is rejected; the wrong ones are much farther away


def judge(folder: Path) -> list[Claim]:
    """Everything that must hold."""
    found = Evidence(folder)
    changes = Changes(found)
    return [*_announced(found), *_model(changes), *costs(changes), *_once(found), *_members(changes)]


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
    noises = changes.noises.values()
    if any(noise.roster.clients > len(used) > 0 for noise in noises for used in noise.data_sets):
        wrong["no pairwise noise"] = distance(_rows(changes, paired=False))
    if any(
        i in noise.roster.used[t] for noise in noises for i in range(noise.roster.clients) for t in noise.carried(i)
    ):
        wrong["no repair"] = distance(_rows(changes, repaired=False))
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
    began = {name for n in range(scene["first"] // scene["clients"]) for name in rosters[n].names}
    sizes = [len(event["orders"]) for event in found.data_trips]
    sessions = found.of("session")
    each = [sum(s["at"] < t["at"] < end for t in found.data_trips) for s, end in _spans(found)]
    claims = [
        Claim(
            "each round asked one roster, and every node is in one",
            len(rosters) > 1 and max(sizes) < 2 * scene["clients"] and set(found.kept) == _all(rosters),
            f"rosters {', '.join(f'{n}: {_numbers(r.names)}' for n, r in rosters.items())}",
        ),
        Claim(
            "after each crash the training went on, with the model and the members that it had",
            len(sessions) == 1 + scene["crashes"] and all(each),
            f"{len(sessions)} processes of the server, with {each} rounds announced",
        ),
        Claim(
            "nodes that joined in mid-run take part",
            all(uses[name] for name in scene["joined"]) and not set(scene["joined"]) & began,
            f"used in rosters and rounds {[uses[name] for name in scene['joined']]}",
        ),
    ]
    if "killed" in scene:
        roster, turn = scene["answered"]
        after = [(n, t) for n, t in uses[scene["killed"]] if n > roster or (n == roster and t > turn)]
        newest = rosters[max(rosters)].names
        claims += [
            Claim(
                "a node that was dead in the key round was asked, and the training began without it",
                _unanswered(found, scene["dead"]) and scene["dead"] not in began,
                f"{scene['dead']} is used in rosters and rounds {uses[scene['dead']]}",
            ),
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


def _all(rosters: dict[int, Roster]) -> set[str]:
    return {name for roster in rosters.values() for name in roster.names}


def _unanswered(found: Evidence, name: str) -> bool:
    """Whether the key round asked a node that had not answered when the first round began."""
    start = found.data_trips[0]["at"]
    own = {node for node, each in found.nodes.items() if each == name}
    asked = {node for event in found.of("sent") if event["at"] < start for node in event["orders"]}
    answered = {event["node"] for event in found.of("reply") if event["at"] < start}
    return own <= asked and not own & answered


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
