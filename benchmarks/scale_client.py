"""What a client of a large federation pays: joining, keys, a round's line of its state, restarting. CPU time, one core.

`python benchmarks/scale.py keys` and `python benchmarks/scale.py state`. The graph is random, and complete up to
`degree` clients.

roster: the server makes the hash tree of all enrolments, once. excerpt: it makes the message of one client.
join: a client in a new process takes its message in: time, bytes, and memory at its peak above what it had before. All
    signatures in it are verified, and everybody is placed on the graph.
keys: stream keys of a round with so many peers, by each way of the kernel and in Python; `first` is the round in which
    secrets are agreed on (X25519), once in a training.
whole: reading the roster of a complete graph, which shows everybody: `cold` verifies all signatures, as in a new
    process; `kept` is one that was verified before and stored.
base: bytes of the line that is written on joining; entry: those of the largest line of a round.
learn: CPU milliseconds in which a client takes in the announcement of one round, everybody placed before. A tenth of
    the clients straggles in each round, the client itself among them.
append: milliseconds until the line of a round is on the disk, and of them on the processor.
restore: CPU milliseconds of `Client.restore` from a file, as in a new process; the plan is at hand. Keys of others are
    random bytes there, which restoring does not verify.
"""

from __future__ import annotations

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

import numpy as np

import lightdp
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.keys import Enrolment, Identity, KeyPair, Keyring, Roster, derivation
from lightdp.keys import identity as signatures
from lightdp.planning import Plan
from lightdp.protocol import ClientState, File
from lightdp.protocol.history import ClientHistory
from lightdp.protocol.state import Entry
from lightdp.protocol.vector import agreement
from lightdp.random_graph import _graph
from lightdp.wire import Kind, Message
from lightdp_lab import bench

RUN, LENGTH, ME, STRAGGLE = b"sixteen bytes ok", 1000, 0, 0.1
GOALS = {"join_s": 0.2, "join_bytes": 1e5, "join_peak_bytes": 2e7, "keys_ms": 0.1}
ENTRY_BYTES, RESTORE_MS, GOAL_CLIENTS, GOAL_ROUNDS = 2000, 10.0, 100_000, 150


def planned(clients: int, degree: int, rounds: int, epsilon: float) -> Plan:
    """The plan of so many clients."""
    graph = "complete" if clients <= degree else f"random:{degree}"
    asked: dict[str, Any] = {"colluders": clients // 10, "stragglers": clients // 10, "rounds": rounds}
    asked |= {"epsilon": epsilon, "delta": 1e-6, "unit": "client", "calibration": "repair"}
    return lightdp.plan(clients=clients, graph=graph, **asked)


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
    plan = planned(clients, degree, 150, 3.0)
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


def made_up(clients: int) -> tuple[KeyPair, list[Enrolment]]:
    """The key pair of the client, and everybody's enrolments, of which only its own is signed."""
    pair = KeyPair.generate()
    own = Identity.generate().enrol(pair, run=RUN, name=f"client-{ME:06}")
    others = []
    for i in range(clients):
        each = object.__new__(Enrolment)  # without a signature, which is not looked at
        keys = {"public": os.urandom(32), "signer": os.urandom(32), "identity": os.urandom(32)}
        vars(each).update(run=RUN, name=f"client-{i:06}", **keys, signature=os.urandom(64))
        others.append(each)
    return pair, [*others[:ME], own, *others[ME + 1 :]]


def begun(plan: Plan) -> tuple[ClientState, ClientHistory]:
    """The state of a client that has joined, and its history."""
    agreed = agreement(plan, LENGTH, weighted=False)
    pair, everyone = made_up(plan.clients)
    for number in range(1000):
        whole = Roster.of(everyone, run=RUN, plan=agreed, number=number)
        try:
            placed = plan.placed(whole.hash)
        except ArgumentError:  # somebody has too few neighbours
            continue
        break
    neighbours = placed.graph.neighbours_of(ME).tolist()
    roster = whole.excerpt([ME, *neighbours]).to_keep() if plan.graph.random else whole
    state = ClientState(agreed, plan.to_json(), LENGTH, False, RUN, pair, everyone[ME], roster)
    return state, ClientHistory(placed, ME, roster.hash, neighbours)


def played(store: File, state: ClientState, history: ClientHistory, rounds: int) -> dict[str, float]:
    """Answer so many rounds, each of which is appended to the store; times of one."""
    plan, drawn = history.plan, np.random.default_rng(0)
    learn, wall, cpu = [], [], []
    state = state.next()
    store.save(state.to_bytes())
    for number in range(rounds):
        entry = Entry(number, closing=False, told=tuple(history.rounds[len(state.rounds) :]))
        times = time.perf_counter(), time.process_time()
        store.append(state.line(entry))
        wall.append(time.perf_counter() - times[0])
        cpu.append(time.process_time() - times[1])
        state, history = state.after(entry), history.answered(number, closing=False)
        absent = drawn.choice(plan.clients, int(STRAGGLE * plan.clients), replace=False)
        used = ~ClientSet.of(plan.clients, absent.tolist())
        if not plan.counts(used.flags):
            used = ClientSet.none(plan.clients)
        _graph._degrees.cache_clear()  # noqa: SLF001  as in a process of its own
        before = time.process_time()
        history.learn([(number, (used,))])
        learn.append(time.process_time() - before)
    return {
        "learn_ms": statistics.median(learn) * 1e3,
        "append_ms": statistics.median(wall) * 1e3,
        "append_cpu_ms": statistics.median(cpu) * 1e3,
    }


def restored(plan: Plan, path: Path, repeats: int) -> list[float]:
    """CPU milliseconds of restoring a client."""
    times = []
    for _ in range(repeats):
        signatures._fault.cache_clear()  # noqa: SLF001  as in a new process
        before = time.process_time()
        lightdp.Client.restore(plan, length=LENGTH, store=File(path))
        times.append((time.process_time() - before) * 1e3)
    return times


def measured(clients: int, degree: int, rounds: int, repeats: int) -> dict[str, Any]:
    """A row."""
    plan = planned(clients, degree, rounds, 8.0)
    state, history = begun(plan)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path = Path(folder, "state")
        found = played(File(path), state, history, rounds)
        base, *entries = path.read_bytes().splitlines()
        times = restored(plan, path, repeats)
    return {
        "clients": clients,
        "rounds": rounds,
        "neighbours": len(history.neighbours),
        "base_bytes": len(base),
        "entry_bytes": max(map(len, entries)),
        **found,
        "restore_ms": statistics.median(times),
        "restore_fastest_ms": min(times),
    }


def keys_record(clients: int, degree: int, repeats: int) -> tuple[dict[str, Any], bool]:
    """All about keys and rosters, and whether it reaches the goals."""
    found: dict[str, Any] = {"conditions": bench.conditions(), "clients": clients, "degree": degree}
    found["keys"] = derived(degree, repeats)
    found["whole"] = [whole(some, repeats) for some in (50, 200, 1000)]
    found |= large(clients, degree, repeats) | {"goals": GOALS}
    reached = found | found["keys"]
    return found, all(reached[name] <= goal for name, goal in GOALS.items())


def state_record(clients: list[int], degree: int, rounds: list[int], repeats: int) -> tuple[dict[str, Any], bool]:
    """All about states, and whether it reaches the goals."""
    conditions = bench.conditions()
    cases = [(some, rounds[0]) for some in clients] + [(clients[-1], more) for more in rounds[1:]]
    rows = [measured(some, degree, more, repeats) for some, more in cases]
    goal = [row for row in rows if row["clients"] == GOAL_CLIENTS and row["rounds"] == GOAL_ROUNDS]
    held = all(row["entry_bytes"] <= ENTRY_BYTES for row in rows) and all(r["restore_ms"] <= RESTORE_MS for r in goal)
    return {"conditions": conditions, "repeats": repeats, "rows": rows}, held
