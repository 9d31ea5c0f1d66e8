"""A real deployment on this machine: a SuperLink and SuperNodes with TLS and node keys, private training, accidents.

python run.py            6 nodes, 10 rounds, about four minutes
python run.py --short    5 nodes, 2 rounds, about a minute; nodes tell that they live every 10 s instead of 30 s
python run.py --keep F   leave everything in the folder F

While it trains, one node is slow in some rounds, which end without it when enough others have answered. Its uploads
come during the next round and are in that round's sum, by the plan's grace. Another node is killed (SIGKILL) just after
it has counted a round as answered and, if the kill is quick enough, before it uploads. It is started again, as a
supervisor would, until the SuperLink lets it in, which it does when it has not heard of it for a while. At the end
`check.py` says whether everything held; the exit code is 0 if it did. Nothing that was started is left running,
whatever happens.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import certificates
import check
from deployment import task

from lightdp.keys import Identity

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
SLOW, KILLED = 0, 1  # the two nodes with accidents
SLEEP = 15.0  # seconds: longer than the others need and `linger` together, and shorter than two rounds


@dataclass(frozen=True)
class Scene:
    """How large, how long, and what goes wrong. Rounds count from 1, as Flower counts them."""

    nodes: int
    rounds: int
    deadline: float
    linger: float
    slow: tuple[int, ...]
    kill: int
    restart: float  # seconds later
    quick: bool  # whether nodes tell every 10 s that they live
    limit: float  # seconds after which it has failed


FULL = Scene(
    nodes=6, rounds=10, deadline=120.0, linger=8.0, slow=(3, 5, 8), kill=4, restart=30.0, quick=False, limit=900.0
)
SHORT = Scene(nodes=5, rounds=2, deadline=120.0, linger=8.0, slow=(1,), kill=1, restart=0.0, quick=True, limit=300.0)
QUICK = """
import sys
from flwr.supercore import heartbeat
from flwr.supernode import cli, fleet_http_connection
heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10
sys.exit(cli.flower_supernode())
"""
REGISTER = """
import sys
from flwr.cli.app import app
for key in sys.argv[1:]:
    app(["supernode", "register", key, "here"], standalone_mode=False)
"""


@dataclass
class Deployment:
    """All processes, by name, and the folder in which everything lies."""

    scene: Scene
    folder: Path
    ports: list[int] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    tried: float = 0.0  # when a node was started again

    def say(self, text: str) -> None:
        """One line, with the time."""
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    @property
    def environment(self) -> dict[str, str]:
        """Of every process: Flower's own folder here, no telemetry, no downloads."""
        return os.environ | {
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }

    def prepare(self) -> None:
        """Keys, certificates, pins and configuration."""
        for name in ("keys", "flwr", "data", "state", "server", "logs"):
            (self.folder / name).mkdir(mode=0o700, parents=True)
        task.prepare(self.folder / "data", self.scene.nodes)
        certificates.make(self.folder / "keys", self.scene.nodes, HOST)
        pins = []
        for node in range(self.scene.nodes):
            identity = Identity.generate()
            identity.save(self.folder / "keys" / f"identity-{node}")
            pins.append(f"node-{node} {identity.public.hex()}\n")
        (self.folder / "keys" / "pins").write_text("".join(pins))
        self.ports = free_ports(self.scene.nodes + 1)
        (self.folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{HOST}:{self.ports[0]}"\n'
            f'root-certificates = "{self.folder}/keys/ca.crt"\n'
        )

    def start(self, name: str, *command: str) -> None:
        """A process that stays, in a group of its own."""
        log = (self.folder / "logs" / f"{name}.log").open("ab")
        self.processes[name] = subprocess.Popen(  # noqa: S603  our own commands
            [str(BIN / command[0]), *command[1:]],
            env=self.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        log.close()

    def call(self, *command: str) -> None:
        """A command that ends."""
        done = subprocess.run(  # noqa: S603  our own commands
            [str(BIN / command[0]), *command[1:]], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")

    def start_server(self) -> None:
        """The SuperLink, until it answers, and the nodes' public keys."""
        keys = self.folder / "keys"
        files = ("--ssl-certfile", f"{keys}/server.crt", "--ssl-keyfile", f"{keys}/server.key")
        address = ("--host", HOST, "--port", str(self.ports[0]), "--ssl-ca-certfile", f"{keys}/ca.crt")
        self.start("superlink", "flower-superlink", *address, *files, "--enable-supernode-auth")
        trust = ssl.create_default_context(cafile=f"{keys}/ca.crt")
        while True:
            try:
                with urllib.request.urlopen(f"https://{HOST}:{self.ports[0]}/health", timeout=2, context=trust):
                    break
            except OSError:
                self.look()
                time.sleep(0.1)
        self.say(f"SuperLink on {HOST}:{self.ports[0]}, with TLS and node authentication")
        self.call("python", "-c", REGISTER, *(f"{keys}/node-{node}.pub" for node in range(self.scene.nodes)))

    def start_node(self, node: int) -> None:
        """A SuperNode, with its limits, its state file and its pins."""
        keys, plan = self.folder / "keys", task.plan(self.scene.nodes)
        config = {
            "data": str(self.folder / "data" / f"node-{node}.npz"),
            "lightdp-name": f"node-{node}",
            "lightdp-state": str(self.folder / "state" / f"node-{node}.json"),
            "lightdp-identity": str(keys / f"identity-{node}"),
            "lightdp-pins": str(keys / "pins"),
            "lightdp-unit": plan.unit,
            "lightdp-adjacency": plan.adjacency,
            "lightdp-max-epsilon": plan.budget,
            "lightdp-max-delta": plan.delta,
            "lightdp-total-epsilon": plan.budget,  # one run
            "lightdp-total-delta": plan.delta,
            "lightdp-min-colluders": plan.colluders,
            "lightdp-max-stragglers": plan.stragglers,
            "lightdp-record-clip": plan.clip,
        }
        if node == SLOW:
            config |= {"slow-rounds": ",".join(map(str, self.scene.slow)), "slow-seconds": SLEEP}
        link = ("--superlink", f"{HOST}:{self.ports[0]}", "--root-certificates", f"{keys}/ca.crt")
        own = ("--auth-supernode-private-key", f"{keys}/node-{node}", "--port", str(self.ports[node + 1]))
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        program = ("python", "-c", QUICK) if self.scene.quick else ("flower-supernode",)
        self.start(f"node-{node}", *program, *link, *own, "--node-config", text)

    def submit(self) -> None:
        """`flwr run`."""
        scene = self.scene
        names = {"clients": scene.nodes, "rounds": scene.rounds, "again": scene.kill}
        numbers = names | {"deadline": scene.deadline, "linger": scene.linger}
        config = " ".join(f"{key}={value}" for key, value in numbers.items()) + f' folder="{self.folder}/server"'
        self.call("flwr", "run", str(HERE / "app"), "here", "--run-config", config)

    def look(self) -> None:
        """Raise if something that should run has ended, or everything takes too long."""
        for name, process in self.processes.items():
            if process.poll() is not None and (self.tried == 0 or name != f"node-{KILLED}"):
                raise RuntimeError(f"{name} ended with code {process.returncode}:\n{self.tail(name)}")
        if time.monotonic() - self.began > self.scene.limit:
            raise RuntimeError(f"not done after {self.scene.limit:g} s; the SuperLink says:\n{self.tail('superlink')}")

    def tail(self, name: str) -> str:
        """The end of a log."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")[-3000:]

    def kill(self, node: int) -> None:
        """SIGKILL to a SuperNode and what it has started."""
        process = self.processes.pop(f"node-{node}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def revive(self, node: int) -> None:
        """Start a node again if it does not run, at most once a second."""
        process = self.processes.get(f"node-{node}")
        if process is None or (process.poll() is not None and time.monotonic() - self.tried > 1):
            self.say(f"node-{node} started again" if process is None else f"node-{node} was not let in, tried again")
            self.start_node(node)
            self.tried = time.monotonic()

    def stop(self) -> None:
        """End everything: politely, then whatever still has our folder in its environment."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        left = processes_of(self.folder)
        while left:
            for identity in left:
                try:
                    os.kill(identity, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)
            left = processes_of(self.folder)


def processes_of(folder: Path) -> list[int]:
    """Processes that were started with this Flower folder, from /proc."""
    mark, found = f"FLWR_HOME={folder / 'flwr'}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has ended, or is not ours
            continue
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, below those that the system hands out to outgoing connections."""
    found: list[int] = []
    start = 20000 + os.getpid() * 16 % 10000
    for port in range(start, start + 2000):
        with socket.socket() as test:
            if len(found) < count and test.connect_ex((HOST, port)) != 0:
                found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} free ports between {start} and {start + 2000}")


def watch(deployment: Deployment) -> None:
    """Follow the training; kill and restart."""
    scene, path, done = deployment.scene, deployment.folder / "server" / "events.jsonl", 0
    state = deployment.folder / "state" / f"node-{KILLED}.json"
    killed: float | None = None
    while True:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines[done:] if line.endswith("\n")]
        done += len(events)
        for event in events:
            narrate(deployment, event)
            if event["event"] == "failed":
                raise RuntimeError(event["error"])
            if event["event"] == "done":
                return
        if killed is None and scene.kill - 1 in sent(state):
            deployment.kill(KILLED)
            deployment.say(f"node-{KILLED} killed (SIGKILL), with round {scene.kill} counted in its state")
            killed = time.monotonic()
            note = {"killed": f"node-{KILLED}", "round": scene.kill - 1, "back": not scene.quick}
            (deployment.folder / "scene.json").write_text(json.dumps(note | {"slow": f"node-{SLOW}"}))
        if killed is not None and time.monotonic() - killed > scene.restart:
            deployment.revive(KILLED)
        deployment.look()
        time.sleep(0.02)


def sent(state: Path) -> list[int]:
    """The rounds that a node has counted as answered."""
    try:
        return list(json.loads(json.loads(state.read_text())["client"])["sent"])
    except (OSError, ValueError):
        return []


def narrate(deployment: Deployment, event: dict[str, Any]) -> None:
    """An event of the server in words."""
    if event["event"] == "sent":
        what = {None: "closing round", 0: "the old round"}.get(event["round"], f"round {event['round']}")
        first = next(iter(event["orders"].values()))
        deployment.say(f"{'key round' if 'plan' in first else what}: {len(event['orders'])} messages sent")
    elif event["event"] == "collected":
        deployment.say(f"  ended, {event['missing']} replies missing")
    elif event["event"] == "error":
        deployment.say(f"  node {event['node'][:6]} replied with an error: {event['reason']}")
    elif event["event"] == "again":
        deployment.say("training ended; now the server asks for an old round again, with another model")


def interrupt(number: int, _frame: object) -> None:
    """Every signal that asks to end is handled as Ctrl-C."""
    raise KeyboardInterrupt(signal.Signals(number).name)


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
    deployment = Deployment(SHORT if arguments.short else FULL, folder)
    try:
        deployment.prepare()
        deployment.start_server()
        for node in range(deployment.scene.nodes):
            deployment.start_node(node)
        deployment.submit()
        deployment.say(f"{deployment.scene.nodes} SuperNodes started, training submitted")
        watch(deployment)
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
