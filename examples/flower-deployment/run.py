"""A real deployment on this machine: a SuperLink and SuperNodes with TLS and node keys, private training, accidents.

python run.py            8 nodes, cohorts of 3, 15 rounds, about five minutes
python run.py --short    4 nodes, cohorts of 2, 3 rounds, less than a minute
python run.py --keep F   leave everything in the folder F

In the long form one node is dead in the key round, another joins in mid-run, one is slow, one is killed (SIGKILL) just
after it has counted a round as answered, two leave, so that their cohort is closed and another formed, and the
ServerApp and the SuperLink are killed while a round is open. What was killed is started again, by the same commands. In
the short form two nodes join, and the ServerApp is killed. At the end `check.py` says whether everything held; the exit
code is 0 if it did. Nothing that was started is left running, whatever happens.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import check
from deployment import task
from processes import Deployment, processes_of

from lightdp.federation import MemberState, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lightdp.protocol import ClientState

SLOW, DEAD, JOINS = 0, 6, 7  # nodes of the long form; who is killed and who leaves follows from the cohorts


@dataclass(frozen=True)
class Scene:
    """How large, how long, and what goes wrong. Rounds count from 1, as Flower counts them."""

    clients: int
    population: int
    stragglers: int
    first: int  # nodes that the key round waits for
    nodes: int
    rounds: int
    limit: float  # seconds after which it has failed
    wait: float = 30.0
    deadline: float = 90.0
    linger: float = 8.0
    extra: dict[int, dict[str, object]] = field(default_factory=dict)  # configuration of nodes

    @property
    def config(self) -> dict[str, object]:
        """For the app."""
        names = ("clients", "population", "stragglers", "wait", "rounds", "deadline", "linger")
        return {name: getattr(self, name) for name in names} | {"nodes": self.first}


FULL = Scene(
    clients=3, population=6, stragglers=1, first=6, nodes=8, rounds=15, limit=1200.0,
    extra={SLOW: {"slow-rounds": "1,2", "slow-seconds": 20.0}},
)  # fmt: skip
SHORT = Scene(clients=2, population=2, stragglers=0, first=2, nodes=4, rounds=3, limit=300.0, wait=90.0)


class Accidents:
    """What goes wrong while it trains: each step waits until something has happened."""

    def __init__(self, deployment: Deployment, scene: Scene) -> None:
        self.deployment, self.scene = deployment, scene
        self.turn, self.process = 0, 0  # the present round, and the process of the ServerApp
        self.keyed = False  # whether the key round has begun
        self.facts: dict[str, Any] = asdict(scene) | {"crashes": 0, "left": []}
        self._back: set[int] = set()  # nodes to start again until they are let in
        self._steps = self._long() if scene.stragglers else self._short()
        self._ready: Callable[[], bool] | None = next(self._steps)  # None once everything has gone wrong

    def _long(self) -> Iterator[Callable[[], bool]]:
        deployment, facts = self.deployment, self.facts
        yield lambda: self.keyed
        deployment.kill(f"node-{DEAD}")
        deployment.say(f"node-{DEAD} killed (SIGKILL) in the key round")
        yield lambda: self.turn >= 2
        deployment.start_node(JOINS)
        self._back.add(DEAD)
        facts |= {"slow": f"node-{SLOW}", "dead": f"node-{DEAD}", "joined": [f"node-{DEAD}", f"node-{JOINS}"]}
        deployment.say(f"node-{JOINS} joins, and node-{DEAD}, which was dead in the key round")
        first = range(self.scene.first)
        yield lambda: self.turn >= 3 and all(map(self.rosters, first))
        mine = max(self.rosters(SLOW))
        killed, *others = [node for node in first if max(self.rosters(node)) != mine]
        before = self.answered([killed])
        yield lambda: self.answered([killed]) > before
        deployment.kill(f"node-{killed}")
        self._back.add(killed)
        facts |= {"killed": f"node-{killed}", "answered": max(self.answered([killed]) - before)[1:]}
        deployment.say(f"node-{killed} killed (SIGKILL), with a round counted in its state")
        yield from self._crash(6, self._kill_app)
        yield lambda: self.turn >= 8  # the others have taken out what the killed node left in the model
        for node in others:
            deployment.leave(f"node-{node}")
            facts["left"].append(f"node-{node}")
            deployment.say(f"node-{node} leaves")
        yield from self._crash(9, self._kill_link)

    def _short(self) -> Iterator[Callable[[], bool]]:
        yield lambda: self.turn >= 1
        for node in range(self.scene.first, self.scene.nodes):
            self.deployment.start_node(node)
        self.facts["joined"] = [f"node-{node}" for node in range(self.scene.first, self.scene.nodes)]
        self.deployment.say("two nodes join")
        yield from self._crash(2, self._kill_app)

    def _crash(self, turn: int, kill: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        """Kill in a round that somebody has answered, and submit the app again."""
        yield lambda: self.turn >= turn
        nodes = range(self.scene.nodes)
        before = self.answered(nodes)
        yield lambda: self.answered(nodes) > before
        kill()
        self.facts["crashes"] += 1
        self.submit()

    def _kill_app(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        self.deployment.say("ServerApp killed (SIGKILL), the same command again")

    def _kill_link(self) -> None:
        self.deployment.kill("superlink")
        if self.process in processes_of(self.deployment.folder):  # on a machine of its own it would have gone, too
            os.kill(self.process, signal.SIGKILL)
        self.deployment.say("SuperLink and ServerApp killed (SIGKILL), the same commands again")
        self.deployment.start_link()

    def submit(self) -> None:
        """`flwr run`, the same each time."""
        self.deployment.submit(**self.scene.config, folder=str(self.deployment.folder / "server"))

    def rosters(self, node: int) -> Mapping[int, ClientState]:
        """What a node's state says of each roster that it is in."""
        try:
            inner, _ = unwrapped((self.deployment.folder / "state" / f"node-{node}.json").read_bytes())
            return MemberState.from_bytes(inner).rosters
        except (OSError, ValueError):  # there is none yet, or a line is being written
            return {}

    def answered(self, nodes: range | list[int]) -> set[tuple[int, int, int]]:
        """Rounds that nodes have counted as answered: node, roster and round."""
        return {(n, r, t) for n in nodes for r, part in self.rosters(n).items() for t in part.sent}

    def go(self) -> None:
        """Do what is due."""
        for node in self._back:
            self.deployment.revive(node)
        while self._ready is not None and self._ready():
            self._ready = next(self._steps, None)

    @property
    def over(self) -> bool:
        """Whether everything has gone wrong that should."""
        return self._ready is None


def watch(deployment: Deployment, accidents: Accidents) -> None:
    """Follow the training to its end."""
    path, done = deployment.folder / "server" / "events.jsonl", 0
    while True:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines[done:] if line.endswith("\n")]
        done += len(events)
        for event in events:
            narrate(deployment, event)
            if event["event"] == "session":
                accidents.process = event["process"]
            elif event["event"] == "sent" and any("plan" in order for order in event["orders"].values()):
                accidents.keyed = True
            elif event["event"] == "sent" and event["model"]:
                accidents.turn = max(accidents.turn, event["round"])
            elif event["event"] == "failed":
                raise RuntimeError(event["error"])
            elif event["event"] == "done":
                return
        accidents.go()
        deployment.look()
        time.sleep(0.02)


def narrate(deployment: Deployment, event: dict[str, Any]) -> None:
    """Say what happened."""
    if event["event"] == "sent":
        what = {None: "closing round", 0: "old rounds"}.get(event["round"], f"round {event['round']}")
        first = next(iter(event["orders"].values()))
        deployment.say(f"{'key round' if 'plan' in first else what}: {len(event['orders'])} messages sent")
    elif event["event"] == "collected":
        deployment.say(f"  ended, {event['missing']} replies missing")
    elif event["event"] == "error":
        deployment.say(f"  node {event['node'][:6]} replied with an error: {event['reason']}")
    elif event["event"] == "again":
        deployment.say("training ended; now the server asks for old rounds again, with another model")


def interrupt(number: int, _frame: object) -> None:
    """Every signal that asks to end is handled as Ctrl-C."""
    raise KeyboardInterrupt(signal.Signals(number).name)


def train(deployment: Deployment, scene: Scene) -> None:
    """Start everything, and follow the training to its end."""
    deployment.prepare()
    deployment.start_link()
    deployment.register()
    for node in range(scene.first):
        deployment.start_node(node)
    if scene.stragglers > 0:  # the key round must ask it
        deployment.start_node(DEAD)
        while "SuperNode ID" not in deployment.tail(f"node-{DEAD}"):
            deployment.look()
            time.sleep(0.1)
    accidents = Accidents(deployment, scene)
    accidents.submit()
    deployment.say(f"{scene.first} SuperNodes run, training submitted")
    watch(deployment, accidents)
    if not accidents.over:
        raise RuntimeError("the training ended before all accidents had happened")
    (deployment.folder / "scene.json").write_text(json.dumps(accidents.facts))


def main() -> int:
    """Start, watch, stop, check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder that does not exist yet")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    folder = Path(tempfile.mkdtemp(prefix="lightdp-")) if arguments.keep is None else arguments.keep.resolve()
    folder.mkdir(exist_ok=arguments.keep is None)
    scene = SHORT if arguments.short else FULL
    plan = task.plan(scene.clients, scene.population, stragglers=scene.stragglers)
    deployment = Deployment(folder, scene.nodes, plan, scene.limit, scene.extra)
    try:
        train(deployment, scene)
    except KeyboardInterrupt:
        deployment.say("interrupted")
        return 130
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        deployment.say(f"failed: {error}")
        return 1
    finally:
        deployment.stop()
        deployment.say(f"everything stopped; {len(processes_of(folder))} processes left")
        if arguments.keep is None:
            atexit.register(shutil.rmtree, folder)
    held = check.report(folder)
    print("everything held" if held else "NOT everything held")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
