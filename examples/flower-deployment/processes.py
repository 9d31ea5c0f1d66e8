"""SuperLink, SuperNodes and apps as processes of this machine, with TLS and node keys: started, killed, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import certificates

sys.path.insert(0, str(Path(__file__).parent / "app"))

from deployment import task

from lightdp.keys import Identity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightdp import Plan

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
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
    """All processes, by name, and the folder in which everything lies.

    Attributes:
        folder: with keys, data, states, logs, and what the server writes.
        nodes: how many nodes there are keys and data for.
        plan: of the training.
        limit: seconds after which it has failed.
        extra: more configuration of a node, by its number.
        processes: those that should run.
        down: nodes that are down, or may be.
    """

    folder: Path
    nodes: int
    plan: Plan
    limit: float
    extra: Mapping[int, dict[str, object]] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    began: float = field(default_factory=time.monotonic)
    _tried: dict[str, float] = field(default_factory=dict)

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
        task.prepare(self.folder / "data", self.nodes)
        certificates.make(self.folder / "keys", self.nodes, HOST)
        pins = []
        for node in range(self.nodes):
            identity = Identity.generate()
            identity.save(self.folder / "keys" / f"identity-{node}")
            pins.append(f"node-{node} {identity.public.hex()}\n")
        (self.folder / "keys" / "pins").write_text("".join(pins))
        self.ports = free_ports(self.nodes + 1)
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

    def start_link(self) -> None:
        """The SuperLink, with a database that outlives it, until it answers."""
        keys = self.folder / "keys"
        files = ("--ssl-certfile", f"{keys}/server.crt", "--ssl-keyfile", f"{keys}/server.key")
        address = ("--host", HOST, "--port", str(self.ports[0]), "--ssl-ca-certfile", f"{keys}/ca.crt")
        kept = ("--database", str(self.folder / "superlink.db"))
        self.start("superlink", "flower-superlink", *address, *files, *kept, "--enable-supernode-auth")
        trust = ssl.create_default_context(cafile=f"{keys}/ca.crt")
        while True:
            try:
                with urllib.request.urlopen(f"https://{HOST}:{self.ports[0]}/health", timeout=2, context=trust):
                    break
            except OSError:
                self.look()
                time.sleep(0.1)
        self.say(f"SuperLink on {HOST}:{self.ports[0]}, with TLS and node authentication")

    def register(self) -> None:
        """The nodes' public keys, once: the SuperLink's database keeps them."""
        keys = self.folder / "keys"
        self.call("python", "-c", REGISTER, *(f"{keys}/node-{node}.pub" for node in range(self.nodes)))

    def start_node(self, node: int) -> None:
        """A SuperNode, with its limits, its state file and its pins. It says every 10 s that it lives."""
        keys, plan = self.folder / "keys", self.plan
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
        } | self.extra.get(node, {})
        link = ("--superlink", f"{HOST}:{self.ports[0]}", "--root-certificates", f"{keys}/ca.crt")
        own = ("--auth-supernode-private-key", f"{keys}/node-{node}", "--port", str(self.ports[node + 1]))
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        self.start(f"node-{node}", "python", "-c", QUICK, *link, *own, "--node-config", text)

    def submit(self, **config: object) -> None:
        """`flwr run`."""
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        self.call("flwr", "run", str(HERE / "app"), "here", "--run-config", text)

    def look(self) -> None:
        """Raise if something that should run has ended, or everything takes too long."""
        for name, process in self.processes.items():
            if process.poll() is not None and name not in self.down:
                raise RuntimeError(f"{name} ended with code {process.returncode}:\n{self.tail(name)}")
        if time.monotonic() - self.began > self.limit:
            raise RuntimeError(f"not done after {self.limit:g} s; the SuperLink says:\n{self.tail('superlink')}")

    def tail(self, name: str) -> str:
        """The end of a log."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")[-3000:]

    def kill(self, name: str) -> None:
        """SIGKILL to a SuperLink or SuperNode and what it has started."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def leave(self, name: str) -> None:
        """SIGTERM to a SuperNode, which tells the SuperLink that it goes."""
        self.down.add(name)
        self.processes[name].terminate()

    def revive(self, node: int) -> None:
        """Start a node again if it does not run, at most once a second: the SuperLink lets it in after a while."""
        name = f"node-{node}"
        process = self.processes.get(name)
        if process is None or (process.poll() is not None and time.monotonic() - self._tried[name] > 1):
            if process is None:
                self.say(f"{name} started again")
            self.down.add(name)
            self.start_node(node)
            self._tried[name] = time.monotonic()

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
