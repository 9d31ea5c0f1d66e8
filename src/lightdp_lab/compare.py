"""Every scheme on the same updates, the same faults and the same privacy target: one record of numbers.

Everything is played message by message. Where a scheme would take longer than the time it is given, the rounds are
played on shorter vectors, on which it fails exactly as often, and costs lie on the line through two measured sizes;
the record marks them.

>>> from lightdp_lab.compare import Setting, compare
>>> from lightdp_lab.schemes import Task
>>> task = Task(clients=6, colluders=1, stragglers=1, dimension=8)
>>> record = compare(Setting(task, schemes=("plain", "local"), rounds_played=2, link_failure=0.0))
>>> [(row["title"], row["completed"], row["up"]) for row in record["rows"]]
[('FedAvg, no privacy', 2, 32.0), ('local DP', 2, 32.0)]
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from lightdp import gaussian
from lightdp._settings import setting
from lightdp._validate import choice, integer, positive, share
from lightdp.errors import ArgumentError, MissingExtraError
from lightdp_lab.bench import conditions
from lightdp_lab.schemes import SCHEMES, Cost, Faults, Links, Peers, Played, Player, Scheme, Task, climb

FIGURES = ("trips", "up", "down", "peer", "client", "server", "modelled")
PLAYED = ("wall", "memory")
_TURNS = 3  # rounds at the full size, where all would take too long
SHORTEST = 1024  # a line through shorter vectors would tell more of fixed costs than of slopes
_network, _compared = (partial(setting, group=group) for group in ("Network", "Comparison"))
_PATIENCE = 3  # times the seconds of a scheme, before it plays fewer rounds than were asked for


@dataclass(frozen=True)
class Setting:
    """What is compared. The flags of `lightdp compare` derive from these fields and those of `Task`.

    Attributes:
        task: clients, colluders, stragglers, dimension and privacy; without a straggler law, `planned` derives one.
        schemes: names, in the order of the table.
        peers: how messages between clients travel, "relayed" by the server, "direct", or each of them in turn.

    Raises:
        ArgumentError: a setting is out of range, or a scheme unknown or named twice.
    """

    task: Task
    schemes: tuple[str, ...] = tuple(SCHEMES)
    peers: tuple[Peers, ...] = ("relayed", "direct")
    link_failure: float = _network("Probability that a link is down for a round.", 0.05)
    dropout: float = _network("Probability that a client drops out during a round, at a uniformly random stage.", 0.0)
    rounds_played: int = _compared("Rounds played of each scheme; fewer of one that is slow even on short vectors.", 20)
    uplink: float = _network("Mbit/s from a client.", 10.0)
    downlink: float = _network("Mbit/s to a client.", 50.0)
    latency: float = _network("Seconds one way.", 0.05)
    seconds: float = _compared("Time for all rounds of each scheme.", 20.0)
    cell_seconds: float = _compared("Time for each size of the scaling.", 60.0)
    seed: int = _compared("Seed of updates and faults.", 0)

    def __post_init__(self) -> None:
        if not self.schemes:
            raise ArgumentError("schemes must name at least one scheme, got none")
        for name in self.schemes:
            choice("schemes", name, SCHEMES)
        if len(set(self.schemes)) < len(self.schemes):
            raise ArgumentError(f"schemes must differ, got schemes={','.join(self.schemes)!r}")
        share("link_failure", self.link_failure)
        share("dropout", self.dropout)
        integer("rounds_played", self.rounds_played, 1)
        integer("seed", self.seed, 0)
        positive("seconds", self.seconds)
        positive("cell_seconds", self.cell_seconds)
        for peers in self.peers:
            self.links(peers)

    @property
    def planned(self) -> Task:
        """The task with the stragglers that LightDP plans for: those asked for, or as links fail and clients drop out.

        >>> Setting(Task(clients=20, colluders=4, stragglers=4), link_failure=0.05).planned.straggler_law
        'binomial:0.05'
        """
        if self.task.straggler_law is not None:
            return self.task
        missing = self.link_failure + (1 - self.link_failure) * self.dropout
        law = f"binomial:{missing!r}" if 0 < missing < 1 else "uniform"
        return dataclasses.replace(self.task, straggler_law=law)

    def links(self, peers: Peers) -> Links:
        """The links of one kind."""
        return Links(peers, self.link_failure, 1e6 * self.uplink, 1e6 * self.downlink, self.latency)

    def faults(self, number: int, peers: Peers, stages: int, clients: int | None = None) -> Faults:
        """What breaks in a round: the same links and clients for every scheme, whatever its number of stages.

        Args:
            number: of the round, from 0.
            peers: how messages between clients travel.
            stages: of the scheme's rounds.
            clients: N; that of the task if None.
        """
        clients = self.task.clients if clients is None else clients
        rng = np.random.default_rng([self.seed, clients, number])  # noqa: TID251  faults are simulated
        silent, stage = rng.random(clients) < self.dropout, (rng.random(clients) * stages).astype(int)
        drawn = Faults.drawn(self.links(peers), clients, rng)
        lost = {k: frozenset(np.flatnonzero(silent & (stage == k)).tolist()) for k in range(stages)}
        return dataclasses.replace(drawn, lost=lost)


def compare(chosen: Setting, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The record: "conditions", "setting" and one of "rows" for each scheme and kind of links.

    A scheme whose clients never write to each other has one row, with links "any". One that cannot be had with these
    settings has "impossible", which says why, and no figures. Ctrl-C keeps the rows so far and "stopped" says so.

    Args:
        chosen: what is compared.
        progress: is given the title of each scheme before it is played.
    """
    rows: list[dict[str, Any]] = []
    record: dict[str, Any] = {"conditions": conditions() | {"threads": 1}, "setting": _setting(chosen), "rows": rows}
    record |= {"scaling": [], "stopped": False}
    try:
        with threadpool_limits(1):
            for name in chosen.schemes:
                progress(SCHEMES[name].about.title)
                for row in _rows(chosen, SCHEMES[name]):
                    rows.append(row)  # noqa: PERF402  one by one, so that those before an interruption stay
    except KeyboardInterrupt:
        if not rows:
            raise
        record["stopped"] = True
    return record


def _setting(chosen: Setting) -> dict[str, Any]:
    """As in records, where speeds are in bits a second and "rounds" are those of the training."""
    shown = dataclasses.asdict(dataclasses.replace(chosen, task=chosen.planned))
    task, shown["failure"] = shown.pop("task"), shown.pop("link_failure")
    shown |= {"uplink": 1e6 * chosen.uplink, "downlink": 1e6 * chosen.downlink}
    return shown | task


def full_title(row: Mapping[str, Any]) -> str:
    """The title of a row, with its links where they matter."""
    return row["title"] if row["links"] == "any" else f"{row['title']}, {row['links']}"


def speeds(setting: Mapping[str, Any]) -> str:
    """How fast the links of a record are, from its "setting"."""
    up, down = setting["uplink"] / 1e6, setting["downlink"] / 1e6
    return f"{up:g} Mbit/s up, {down:g} down, {setting['latency']:g} s one way"


def _rows(chosen: Setting, scheme: type[Scheme]) -> Iterator[dict[str, Any]]:
    known = scheme.about
    about = {"scheme": known.name} | {key: getattr(known, key) for key in ("title", "source", "private", "broken_by")}
    for peers in chosen.peers if known.talks else chosen.peers[:1]:
        try:
            figures = _figures(chosen, scheme, peers)
        except (ArgumentError, MissingExtraError) as error:
            yield about | {"links": "any", "impossible": str(error)}
            return
        yield about | {"links": peers if known.talks else "any", "impossible": None} | figures


def _figures(chosen: Setting, scheme: type[Scheme], peers: Peers) -> dict[str, Any]:
    links, task, rounds = chosen.links(peers), chosen.planned, chosen.rounds_played
    player, climbed = climb(scheme, task, links, seconds=chosen.seconds, rounds=rounds + 1, seed=chosen.seed)
    if player.task.dimension < task.dimension:  # even the smallest size may be slow
        rounds = min(rounds, max(_TURNS, int(_PATIENCE * chosen.seconds / max(climbed[-1].wall, 1e-9))))
    faults = [chosen.faults(number, peers, climbed[-1].trips) for number in range(rounds)]
    played = [player.round(one) for one in faults]
    done = [one for one in played if one.result is not None]
    failures = Counter((one.failure.stage, one.failure.why) for one in played if one.failure is not None)
    cost = median([one.cost for one in done]) if done else climbed[-1]
    if cost.dimension < task.dimension:
        typical = next((fault for fault, one in zip(faults, played, strict=True) if one.result is not None), Faults())
        cost = _further(chosen, scheme, links, typical, cost)
    set_up = Cost.of(player.set_up, task.dimension)
    return {
        "dimension_played": player.task.dimension,
        "rounds": rounds,
        "completed": len(done),
        "failures": [{"stage": stage, "why": why, "count": count} for (stage, why), count in failures.most_common()],
        **_noise(player, done),
        **{name: getattr(cost, name) for name in (*FIGURES, *PLAYED)},
        "degree": getattr(player.scheme, "degree", None),
        "spent": _spent(cost, played, done),
        "measured": not cost.extrapolated,
        "clean": not done,
        "set_up": {name: getattr(set_up, name) for name in FIGURES if name != "trips"},
    }


def _spent(cost: Cost, played: list[Played], done: list[Played]) -> dict[str, float] | None:
    """A client's seconds and bytes for each completed round, with those of the failed ones; None if none did."""
    if not done:
        return None

    def spread(value: Callable[[Cost], float]) -> float:
        return value(cost) * (sum(value(one.cost) for one in played) / sum(value(one.cost) for one in done))

    return {"client": spread(lambda one: one.client), "traffic": spread(lambda one: one.up + one.down + one.peer)}


def _further(chosen: Setting, scheme: type[Scheme], links: Links, faults: Faults, known: Cost) -> Cost:
    """The cost at the task's dimension: of a few rounds if there is time for them, else on a line.

    The line goes through the largest size that was played and one four times as large, or a quarter, with the same
    faults. If that is too short, it goes through the shortest sizes that will do, whatever time they take.
    """
    task, seconds = chosen.planned, chosen.seconds

    def resized(dimension: int) -> Player:
        return Player(scheme, dataclasses.replace(task, dimension=dimension), links, chosen.seed)

    player, _ = climb(scheme, task, links, seconds=seconds, rounds=_TURNS + 1, seed=chosen.seed)
    if player.task.dimension == task.dimension:
        return _few(player, faults)
    here = known if known.dimension >= player.task.dimension else _few(player, faults)
    size = 4 * here.dimension
    if size > task.dimension or 4 * (_TURNS + 1) * here.wall > seconds:
        size = max(here.dimension // 4, 1)
    if min(size, here.dimension) < SHORTEST:
        sizes = sorted({min(SHORTEST, task.dimension), min(4 * SHORTEST, task.dimension)})
        costs = [resized(size).round(faults).cost for size in sizes]
    else:
        costs = sorted((here, _few(resized(size), faults)), key=lambda cost: cost.dimension)
    return costs[-1] if costs[-1].dimension == task.dimension else costs[0].towards(costs[-1], task.dimension)


def _few(player: Player, faults: Faults) -> Cost:
    return median([player.round(faults).cost for _ in range(_TURNS)])


def median(costs: list[Cost]) -> Cost:
    """Field by field; bytes are the same in most rounds, and seconds on a busy machine need it."""
    found = {name: statistics.median(getattr(one, name) for one in costs) for name in (*FIGURES, *PLAYED)}
    return dataclasses.replace(costs[0], **found)


def _noise(player: Player, done: list[Played]) -> dict[str, Any]:
    """Variance, per coordinate, of the noise in the mean of those used, at the ε that was asked for.

    "noise" stays for good, and "passing" is what later rounds take out again.

    Named by the scheme, and measured: noise is added up over all rounds, since repair takes out of later sums what
    it left in earlier ones, and a last faultless round takes out the rest; its own named noise is not counted. A
    formula that misses ε is brought to it: a Gaussian's variance goes with μ². With no round done, as without faults.
    """
    scheme, task = player.scheme, player.task
    true = scheme.epsilon() if scheme.noise(task.clients) > 0 else None
    factor = 1.0 if true is None else (gaussian.mu(true, task.delta) / gaussian.mu(task.epsilon, task.delta)) ** 2
    used = [len(one.result.used) for one in done if one.result is not None] or [task.clients]
    scale = factor / statistics.mean(used) ** 2
    errors, last = [one.error for one in done if one.error is not None], 0.0
    if done and scheme.lasting(task.clients - 1) != scheme.noise(task.clients - 1):
        closing = player.round().error
        if closing is not None:
            errors.append(closing)
            last = scheme.lasting(task.clients)
    measured = None
    if done and (player.restarts == 0 or last == 0):
        measured = max(float(np.sum(errors, axis=0).var()) - last, 0.0) / len(done) * scale
    named = statistics.mean(scheme.lasting(count) for count in used) * scale
    whole = statistics.mean(scheme.noise(count) for count in used) * scale
    privacy = {"epsilon": true, "mu": None if true is None else gaussian.mu(true, task.delta, up=True)}
    shown = {"used": statistics.mean(used), "noise": named, "noise_measured": measured, "passing": whole - named}
    return privacy | shown
