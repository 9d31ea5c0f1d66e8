"""What became slower since a commit: the steps of a small federation in both versions, in turns, in CPU time.

python benchmarks/before.py [COMMIT] [--clients 50 300 1000] [--repeats 3]

By default the commit is the last one without random graphs. Its sources are taken from git into a temporary folder,
and its kernel is built there. Each run of a version is a process of its own, and versions take turns. A step counts at
its fastest in all runs:

plan, sampled: a plan with repair, and one with sampled batches.
enrol: all clients are made and enrol. roster: the server fixes the roster and makes its message.
join: a client takes it in, in the process where all enrolled; cold: its signatures are verified anew, for one client.
first: a client's first upload, of 1,000 values, which agrees on keys with all peers; upload: its second one.
receive: the server takes in an upload; close: it announces and closes a round that nobody answers.
odometer: a round of all clients.
restore: a client that has answered two rounds, from its state.

Table and record (records/before.json) have milliseconds and ratios; 1 if a ratio is above 1.05.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lightdp
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.keys import identity as signatures

ROOT = Path(__file__).parent.parent
RECORD, LIMIT, LENGTH, RUN = ROOT / "benchmarks/records/before.json", 1.05, 1000, b"sixteen bytes ok"
COMMIT = "fc8d3dcb4238ba04d4f766c7ba751d7780a44a23"


class Memory:
    """A store that never leaves the process."""

    state = b""

    def load(self) -> bytes:
        """The last state."""
        return self.state

    def save(self, state: bytes) -> None:
        """Keep it."""
        self.state = state

    def append(self, line: bytes) -> None:
        """Keep one more line of it."""
        self.state += b"\n" + line


def seconds(call: Callable[[], object]) -> float:
    """CPU time of a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def answer(client: lightdp.Client, start: bytes, update: NDArray[np.float64]) -> bytes:
    """An upload; the earlier version may have no masks that need a bound round."""
    begun = client.begin(start)
    if getattr(begun, "binds", False):
        begun.bind(bytes(32))
    return begun.upload(update)


def steps(clients: int) -> dict[str, float]:
    """Seconds of each step in the version of lightdp that is imported here; both versions run this."""
    asked: dict[str, Any] = {"clients": clients, "colluders": clients // 10, "stragglers": clients // 10}
    asked |= {"rounds": 150, "epsilon": 3.0, "delta": 1e-6, "calibration": "repair"}
    other = [{"epsilon": 3 + k / 16} for k in range(8)]
    found = {"plan": min(seconds(partial(lightdp.plan, **asked | some)) for some in other)}
    asked_sampled = asked | {"sampling_rate": 0.05}
    found["sampled"] = min(seconds(partial(lightdp.plan, **asked_sampled | some)) for some in other[:3])
    plan = lightdp.plan(**asked, unit="client")
    made: dict[str, Any] = {"length": LENGTH, "run": RUN}
    server, everyone = lightdp.Server(plan, **made), list[lightdp.Client]()
    update, stores = np.cos(np.arange(LENGTH)), [Memory() for _ in range(clients)]

    def enrol() -> None:
        for i, store in enumerate(stores):
            everyone.append(lightdp.Client.new(plan, **made, name=f"client-{i:04}", store=store))
            server.enrol(everyone[-1].enrol())

    def cold() -> None:
        signatures._fault.cache_clear()  # noqa: SLF001  as in a new process
        everyone[0].join(message)

    found["enrol"] = seconds(enrol)
    message = server.roster()
    found["cold"] = seconds(cold)
    few = everyone[: clients - clients // 20]  # the others straggle
    found["join"] = each(lambda client: client.join(message), few[1:])
    rounds = list[list[bytes]]()
    for name in ("first", "upload"):
        start, sent = server.announce(), list[bytes]()
        found[name] = each(lambda client: sent.append(answer(client, start, update)), few)  # noqa: B023
        for upload in sent:
            server.receive(upload)
        server.close()
        rounds.append(sent)
    found["restore"] = min(
        seconds(lambda: lightdp.Client.restore(plan, length=LENGTH, store=stores[0])) for _ in range(20)
    )
    enrolled = [client.enrol() for client in everyone]
    others = [served(lightdp.Server(plan, **made), enrolled, rounds) for _ in range(10)]
    for name in others[0]:
        found[name] = min(other[name] for other in others)
    return found | {"odometer": counted(plan, 60)}


def served(server: lightdp.Server, enrolled: list[bytes], rounds: list[list[bytes]]) -> dict[str, float]:
    """What another server of the same clients takes for their messages."""
    for message in enrolled:
        server.enrol(message)
    found = {"roster": seconds(server.roster), "receive": float("inf")}
    for sent in rounds:
        server.announce()
        found["receive"] = min(found["receive"], each(server.receive, sent))
        server.close()
    return found | {"close": min(seconds(lambda: (server.announce(), server.close())) for _ in range(50))}


def each(call: Callable[[Any], object], items: list[Any]) -> float:
    """Seconds of a call: the average of the fastest tenth, of calls in a row."""
    parts = [part.tolist() for part in np.array_split(np.array(items, object), 10)]
    return min(seconds(partial(list, map(call, part))) / len(part) for part in parts)


def counted(plan: lightdp.Plan, rounds: int) -> float:
    """Seconds of a round of an odometer of all clients, a tenth of them away and one of them late."""
    rng, spent, taken = np.random.default_rng(1), Odometer(plan), list[float]()
    for _ in range(rounds):
        missing = rng.choice(plan.clients, plan.stragglers, replace=False).tolist()
        used, late = ~ClientSet.of(plan.clients, missing), ClientSet.of(plan.clients, missing[:1])
        record = seconds(partial(spent.record, used, late))
        taken.append(record + seconds(spent.exhausted) + seconds(spent.max_epsilon))
    return float(np.median(taken))


def unpacked(commit: str, folder: str) -> Path:
    """The sources of a commit, with its kernel."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", commit], check=True, capture_output=True).stdout  # noqa: S603, S607
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)  # noqa: S603, S607
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)  # noqa: S603
    return Path(folder, "src")


def run(source: Path, clients: int) -> dict[str, float]:
    """The steps in a process of its own, of the version at `source`."""
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--steps", "--clients", str(clients)]
    found: dict[str, float] = json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout)  # noqa: S603
    return found


def compared(source: Path, clients: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each step."""
    runs: dict[Path, list[dict[str, float]]] = {source: [], ROOT / "src": []}
    for turn in range(repeats):
        for version in [*runs][:: 1 if turn % 2 == 0 else -1]:
            runs[version].append(run(version, clients))
    before, now = ({name: 1e3 * min(r[name] for r in some) for name in some[0]} for some in runs.values())
    return [
        {"clients": clients, "step": name, "before_ms": was, "now_ms": now[name], "ratio": now[name] / was}
        for name, was in before.items()
    ]


def main() -> int:
    """Compare, print and keep; 1 if a step became slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default=COMMIT)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 300, 1000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.steps:
        print(json.dumps(steps(asked.clients[0])))
        return 0
    from lightdp_lab import bench  # noqa: PLC0415  an earlier version may have another

    conditions, rows = bench.conditions(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        source = unpacked(asked.commit, folder)
        for clients in asked.clients:
            rows += compared(source, clients, asked.repeats)
    for row in rows:
        slower = "  SLOWER" if row["ratio"] > LIMIT else ""
        times = f"{row['before_ms']:10.3f}{row['now_ms']:10.3f}{row['ratio']:7.2f}"
        print(f"{row['clients']:5} {row['step']:9}{times}{slower}")
    record = {"conditions": conditions, "commit": asked.commit, "limit": LIMIT, "repeats": asked.repeats, "rows": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["ratio"] > LIMIT for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
