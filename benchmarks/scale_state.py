"""A client's state from a hundred to a hundred thousand clients: what a round writes, and what a restart reads.

python benchmarks/scale_state.py [--clients 100 1000 10000 100000] [--degree 100] [--rounds 150 5000] [--repeats 9]
    [--json]

The graph is random, except among a hundred clients, where it is complete. A tenth of the clients straggles in each
round, the client itself among them. Its own keys are real, and those of others random bytes, which restoring does not
verify.

base: bytes of the line that is written on joining; entry: those of the largest line of a round.
learn: CPU milliseconds in which a client takes in the announcement of one round, everybody placed before.
append: milliseconds until the line of a round is on the disk, and of them on the processor.
restore: CPU milliseconds of `Client.restore` from a file, as in a new process; the plan is at hand.

The record is records/scale_state.json; 1 if an entry has more than 2 kB, or if restoring a hundred thousand clients
after 150 rounds takes more than 10 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import lightdp
from lightdp.client_set import ClientSet
from lightdp.keys import Enrolment, Identity, KeyPair, Roster
from lightdp.keys import identity as signatures
from lightdp.planning import Plan
from lightdp.protocol import ClientState, File
from lightdp.protocol.history import ClientHistory
from lightdp.protocol.state import Entry
from lightdp.protocol.vector import agreement
from lightdp.random_graph import _graph
from lightdp_lab import bench

RUN, LENGTH, ME, STRAGGLE = b"sixteen bytes ok", 1, 0, 0.1
ENTRY_BYTES, RESTORE_MS, GOAL_CLIENTS, GOAL_ROUNDS = 2000, 10.0, 100_000, 150


def planned(clients: int, degree: int, rounds: int) -> Plan:
    """The plan of so many clients."""
    asked: dict[str, Any] = {
        "colluders": clients // 10,
        "stragglers": clients // 10,
        "rounds": rounds,
        "epsilon": 8.0,
        "delta": 1e-6,
    }
    graph = "complete" if clients <= degree else f"random:{degree}"
    return lightdp.plan(clients=clients, graph=graph, unit="client", calibration="repair", **asked)


def enrolled(clients: int) -> tuple[KeyPair, list[Enrolment]]:
    """The key pair of the client, and everybody's enrolments."""
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
    pair, everyone = enrolled(plan.clients)
    for number in range(1000):
        whole = Roster.of(everyone, run=RUN, plan=agreed, number=number)
        try:
            placed = plan.placed(whole.hash)
        except lightdp.errors.ArgumentError:  # somebody has too few neighbours
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
    plan = planned(clients, degree, rounds)
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


def main() -> None:
    """Measure, print, and fail where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--degree", type=int, default=100)
    parser.add_argument("--rounds", type=int, nargs="+", default=[150, 5000])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    conditions = bench.conditions()
    cases = [(clients, options.rounds[0]) for clients in options.clients]
    cases += [(options.clients[-1], rounds) for rounds in options.rounds[1:]]
    rows = [measured(clients, options.degree, rounds, options.repeats) for clients, rounds in cases]
    if options.json:
        print(json.dumps({"conditions": conditions, "repeats": options.repeats, "rows": rows}, indent=1))
    else:
        for row in rows:
            print(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    goal = [row for row in rows if row["clients"] == GOAL_CLIENTS and row["rounds"] == GOAL_ROUNDS]
    late = any(row["restore_ms"] > RESTORE_MS for row in goal)
    sys.exit(late or any(row["entry_bytes"] > ENTRY_BYTES for row in rows))


if __name__ == "__main__":
    main()
