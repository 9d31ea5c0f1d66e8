"""Keys and rosters from fifty to a hundred thousand clients: what a server and a client pay, in CPU time of one core.

python benchmarks/scale_keys.py [--clients 100000] [--degree 100] [--repeats 7] [--json]

roster: the server makes the hash tree of all enrolments, once.
excerpt: it makes the message of one client, with that client and its neighbours.
join: a client in a new process takes its message in: time, bytes, and memory at its peak above what it had before. All
    signatures in it are verified, and everybody is placed on the graph.
keys: stream keys of a round with so many peers, by each way of the kernel and in Python; `first` is the round in which
    secrets are agreed on (X25519), once in a training.
whole: reading the roster of a complete graph, which shows everybody: `cold` verifies all signatures, as in a new
    process; `kept` is one that was verified before and stored.

The record is records/scale_keys.json; 1 if a goal for a hundred thousand clients is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightdp
from lightdp.errors import ArgumentError
from lightdp.keys import Enrolment, Identity, KeyPair, Keyring, Roster, derivation
from lightdp.keys import identity as signatures
from lightdp.planning import Plan
from lightdp.protocol import ClientState
from lightdp.protocol.vector import agreement
from lightdp.wire import Kind, Message
from lightdp_lab import bench

RUN, LENGTH = b"sixteen bytes ok", 1000
GOALS = {"join_s": 0.2, "join_bytes": 1e5, "join_peak_bytes": 2e7, "keys_ms": 0.1}


def enrolled(clients: int, run: bytes = RUN) -> tuple[list[KeyPair], list[Enrolment]]:
    """Key pairs and their enrolments."""
    pairs = [KeyPair.generate() for _ in range(clients)]
    return pairs, [Identity.generate().enrol(pair, run=run, name=f"client-{i:06}") for i, pair in enumerate(pairs)]


def fixed(plan: Plan, enrolments: list[Enrolment]) -> tuple[lightdp.Server, float]:
    """A server with its roster, and the seconds of it."""
    for number in range(20):
        server = lightdp.Server(plan, length=LENGTH, run=RUN, number=number)
        for each in enrolments:
            server.enrol(Message(kind=Kind.ENROL, run=RUN, payload=each.to_bytes()).to_bytes())
        begin = time.process_time()
        try:
            server.roster(enrolments[0].name)
        except ArgumentError:  # once in a thousand times a client has too few neighbours
            continue
        return server, time.process_time() - begin
    raise SystemExit("no roster places everybody well")


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return statistics.median(times)


def large(clients: int, degree: int, repeats: int) -> dict[str, float]:
    """A random graph: the server's roster and messages, and a client that joins."""
    asked: dict[str, Any] = {
        "colluders": clients // 10,
        "stragglers": clients // 10,
        "rounds": 150,
        "epsilon": 3.0,
        "delta": 1e-6,
    }
    graph = "complete" if clients <= degree else f"random:{degree}"
    plan = lightdp.plan(clients=clients, graph=graph, unit="client", calibration="repair", **asked)
    pairs, enrolments = enrolled(clients)
    server, made = fixed(plan, enrolments)
    names = [server.names[i * clients // repeats] for i in range(repeats)]
    found = {"roster_s": made, "roster_bytes": len(server.roster())}
    times = [(seconds(partial(server.roster, name), 1), len(server.roster(name))) for name in names]
    found |= {"excerpt_ms": statistics.median(t for t, _ in times) * 1e3, "join_bytes": max(n for _, n in times)}
    joins = []
    for name in names:
        place = server.names.index(name)
        own = plan.to_json(), LENGTH, False, RUN, pairs[place], enrolments[place]
        state = ClientState(agreement(plan, LENGTH, weighted=False), *own).next()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "message").write_bytes(server.roster(name))
            lightdp.File(Path(folder, "state.json")).save(state.to_bytes())
            joins.append(child("joined", folder))
    for what in ("join_s", "join_peak_bytes", "neighbours"):
        found[what] = statistics.median(each[what] for each in joins)
    return found


def child(function: str, *arguments: str) -> dict[str, float]:
    """What a function of this file prints in a process of its own."""
    code = f"import runpy, sys; runpy.run_path({__file__!r})[{function!r}](*sys.argv[1:])"
    command = [sys.executable, "-c", code, *arguments]
    return json.loads(subprocess.check_output(command, text=True))  # noqa: S603  our own code


def joined(folder: str) -> None:
    """Let the client whose state is in a folder take in its roster message, which is there too."""
    store, message = lightdp.File(Path(folder, "state.json")), Path(folder, "message").read_bytes()
    plan = Plan.from_json(ClientState.from_bytes(store.load()).plan)
    client = lightdp.Client.restore(plan, length=LENGTH, store=store)
    bench.forget_peak()
    before, begin = bench.memory_line("self/status", "VmRSS", 0.0), time.process_time()
    client.join(message)
    taken, peak = time.process_time() - begin, bench.memory_line("self/status", "VmHWM", 0.0)
    shown = ClientState.from_bytes(store.load()).roster
    neighbours = 0 if shown is None else len(shown.enrolments) - 1
    print(json.dumps({"join_s": taken, "join_peak_bytes": peak - before, "neighbours": neighbours}))


def derived(peers: int, repeats: int) -> dict[str, float]:
    """Stream keys of all peers of a client."""
    pairs, enrolments = enrolled(peers + 1)
    ring = Keyring(pairs[0], Roster.of(enrolments, run=RUN, plan=bytes(32)), 0)
    call = partial(ring.stream_keys, range(1, peers + 1), round=3, chain=bytes(32))
    found = {"first_ms": seconds(call, 1) * 1e3, "keys_ms": seconds(call, 100 * repeats) * 1e3}
    records, prefix = os.urandom(40 * peers), os.urandom(72)
    ways: dict[str, Callable[[bytes, bytes], bytes]] = {"python": derivation._expand_plain}  # noqa: SLF001
    ways |= {way.args[0]: way for way in derivation._compiled}  # noqa: SLF001  all of them, side by side
    for name, way in ways.items():
        found[f"{name}_ms"] = seconds(partial(way, prefix, records), 100 * repeats) * 1e3
    return found


def whole(clients: int, repeats: int) -> dict[str, float]:
    """The roster of a complete graph."""
    data = Roster.of(enrolled(clients)[1], run=RUN, plan=bytes(32)).to_bytes()

    def read(*, kept: bool) -> None:
        signatures._fault.cache_clear()  # noqa: SLF001  as in a new process
        Roster.from_bytes(data, run=RUN, plan=bytes(32), verified=kept)

    return {
        "clients": clients,
        "bytes": len(data),
        "cold_ms": seconds(lambda: read(kept=False), repeats) * 1e3,
        "kept_ms": seconds(lambda: read(kept=True), 10 * repeats) * 1e3,
    }


def main() -> None:
    """Measure, print, and fail where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--degree", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"conditions": bench.conditions(), "clients": options.clients, "degree": options.degree}
    found["keys"] = derived(options.degree, options.repeats)
    found["whole"] = [whole(clients, options.repeats) for clients in (50, 200, 1000)]
    found |= large(options.clients, options.degree, options.repeats)
    found["goals"] = GOALS
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        for name, value in found.items():
            print(f"{name:16} {value}")
    reached = found | found["keys"]
    sys.exit(any(reached[name] > goal for name, goal in GOALS.items()))


if __name__ == "__main__":
    main()
