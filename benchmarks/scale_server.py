"""What a server of many clients costs: its odometer, its uploads and its announcements, in CPU time on one core.

`python benchmarks/scale.py server`.

odometer: a round of all clients: whom it could take over the budget (`exhausted`), `record` and `max_epsilon` together,
    and the peak memory of a process of its own. 10 % of clients straggle, of which `late` come too late and are seen;
    a late round stays open while peers may repair it. "last_s" is the median of the last ten rounds.
client: an odometer of one client: to make it, and a round of it. One round in ten comes too late.
receive: one round of uploads of all clients, whose names the transport knows, and 1 in 100 of them too late. Of it the
    signatures (Ed25519), the hashes of what is signed (SHA-256), the sums, and the rest; medians of batches.
announce: bytes of the message that tells of a round with so many stragglers, the largest of five.

"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import lightdp
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.keys import Identity, KeyPair
from lightdp.protocol import Server
from lightdp.wire import Accumulator, Announcement, Kind, Message, Upload, packed_size
from lightdp_lab import bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightdp.planning import Plan

RUN, LATE_EACH = b"a large federati", 100
CASES = (  # graph, late clients in 100 of a round, and grace
    ("complete", 0, 0), ("complete", 1, 0), ("complete", 10, 1), ("circulant:100", 1, 0), ("random:284", 0, 0),
    ("random:284", 1, 0), ("random:284", 1, 1),
)  # fmt: skip
LIMITS = {"odometer_s": 0.1, "odometer_gb": 0.5, "receive_rest_s": 2.0}
ANNOUNCED = {0: 100, 100: 300, 1_000: 1_300, 10_000: 12_600}  # bytes at most, by stragglers among 100,000 clients


def planned(clients: int, rounds: int, graph: str = "complete", grace: int = 0) -> Plan:
    """A plan with repair; a circulant graph bears few stragglers and colluders."""
    few = int(graph.split(":")[1]) // 5 if graph.startswith("circulant") else clients // 10
    shape: dict[str, Any] = {"clients": clients, "colluders": few, "stragglers": few, "graph": graph, "grace": grace}
    return lightdp.plan(**shape, rounds=rounds, epsilon=3, delta=1e-5, calibration="repair").placed(bytes(32))


def seconds(do: Callable[[], object]) -> float:
    """CPU time."""
    begun = time.process_time()
    do()
    return time.process_time() - begun


def odometer(clients: int, rounds: int, graph: str, late: int, grace: int) -> dict[str, Any]:
    """A training of all clients."""
    plan = planned(clients, rounds, graph, grace)
    rng, spent, taken = np.random.default_rng(1), Odometer(plan), []
    for _ in range(rounds):
        missing = rng.choice(clients, plan.stragglers, replace=False).tolist()
        used, seen = ~ClientSet.of(clients, missing), ClientSet.of(clients, missing[:late])
        exhausted = seconds(spent.exhausted)
        record = seconds(partial(spent.record, used, seen))
        taken.append([exhausted, record, seconds(spent.max_epsilon)])
    each = np.array(taken)
    total, parts = each.sum(axis=1), np.median(each[-10:], axis=0).tolist()
    return {
        "clients": clients, "graph": graph, "grace": grace, "stragglers": plan.stragglers, "rounds": rounds,
        "late": min(late, plan.stragglers), "exhausted": len(spent.exhausted()),
        "first_s": float(np.median(total[:10])), "last_s": float(np.median(total[-10:])),
        "parts_s": dict(zip(("exhausted", "record", "max_epsilon"), parts, strict=True)),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }  # fmt: skip


def client(clients: int, graph: str) -> dict[str, Any]:
    """Microseconds of an odometer of one client."""
    plan = planned(clients, 1000, graph)
    away = plan.stragglers // 2
    used, missed = ClientSet.of(clients, range(clients - away)), ClientSet.of(clients, range(away, clients))

    def rounds() -> None:
        spent = Odometer(plan, [0])
        for number in range(50):
            spent.counted(ahead=True)
            spent.record(*((missed, ~missed) if number % 10 == 3 else (used, ~used)))

    make = min(seconds(lambda: Odometer(plan, [0])) for _ in range(9))
    each = min(seconds(rounds) for _ in range(9)) / 50
    return {"clients": clients, "graph": graph, "make_us": make * 1e6, "round_us": each * 1e6}


def enrolled(plan: Plan, length: int) -> tuple[Server, list[KeyPair]]:
    """A server whose roster is fixed, and the keys of its clients."""
    server, pairs = Server(plan, length=length, run=RUN), []
    for i in range(plan.clients):
        seed = i.to_bytes(4, "big")
        pairs.append(KeyPair(hashlib.sha256(b"pair" + seed).digest()))
        enrolment = Identity(hashlib.sha256(b"identity" + seed).digest()).enrol(pairs[-1], run=RUN, name=f"c{i:07d}")
        server.enrol(Message(kind=Kind.ENROL, run=RUN, payload=enrolment.to_bytes()).to_bytes())
    server.roster()
    return server, pairs


def signed(server: Server, pairs: list[KeyPair], upload: Upload) -> Iterator[tuple[int, bytes]]:
    """The uploads of round 0, of all clients; what they carry does not matter here."""
    for i, pair in enumerate(pairs):
        message = Message(kind=Kind.UPLOAD, run=RUN, roster=server.roster_hash, client=i, payload=b"")
        signature = pair.sign(upload.statement(message, chain=server.roster_hash))
        yield i, replace(message, payload=replace(upload, signature=signature).head()).to_bytes(upload.packed)


def receive(clients: int, length: int) -> dict[str, Any]:
    """One round of uploads."""
    server, pairs = enrolled(planned(clients, 100), length)
    bits, late, taken = server._grid.bits, list[tuple[int, bytes]](), list[float]()  # noqa: SLF001
    upload = Upload(length=length, bits=bits, packed=bytes(packed_size(length, bits)))

    def take(messages: list[tuple[int, bytes]]) -> float:
        return seconds(lambda: [server.receive(each, sender=server.names[i], round=0) for i, each in messages])

    server.announce()
    sent = signed(server, pairs, upload)
    while batch := [*itertools.islice(sent, 1000)]:
        late += batch[::LATE_EACH]
        del batch[::LATE_EACH]
        taken.append(take(batch) / len(batch))
    close, announce = seconds(server.close), seconds(server.announce)
    too_late, needed = take(late) / len(late), parts(server, upload, late)
    each = statistics.median(taken)
    return {
        "clients": clients, "length": length, "bits": bits, "all_s": each * clients,
        "in_time_us": each * 1e6, "late_us": too_late * 1e6,
        **{f"{name}_us": value * 1e6 for name, value in needed.items()},
        "rest_s": (each - sum(needed.values())) * clients, "close_s": close, "announce_s": announce,
    }  # fmt: skip


def parts(server: Server, upload: Upload, messages: list[tuple[int, bytes]]) -> dict[str, float]:
    """Seconds of what every upload needs: to check its signature, to hash what it signs, and to add it."""
    shape = {"length": upload.length, "bits": upload.bits}
    content = [Message.from_bytes(message, run=RUN, roster=server.roster_hash) for _, message in messages]
    found = [Upload.from_bytes(each.payload, **shape) for each in content]
    pairs, sums = [*zip(found, content, strict=True)], Accumulator(**shape)
    statements = [each.statement(message, chain=server.roster_hash) for each, message in pairs]
    signers = [server._fixed().enrolments[i] for i, _ in messages]  # noqa: SLF001
    checks = [*zip(signers, found, statements, strict=True)]
    todo: dict[str, Callable[[int], object]] = {
        "signature": lambda at: checks[at][0].verify(checks[at][1].signature, checks[at][2]),
        "hash": lambda at: found[at].statement(content[at], chain=server.roster_hash),
        "sum": lambda at: sums.add(found[at].packed),
    }
    batches = [range(at, min(at + 100, len(found))) for at in range(0, len(found), 100)]

    def each(do: Callable[[int], object]) -> float:
        return statistics.median(seconds(partial(list, map(do, batch))) / len(batch) for batch in batches)

    return {name: each(do) for name, do in todo.items()}


def announced(clients: int, stragglers: int, seed: int) -> int:
    """Bytes of the announcement of round 1 after a round with so many stragglers."""
    missing = np.random.default_rng(seed).choice(clients, stragglers, replace=False).tolist()
    told = Announcement(round=1, clients=clients, past=(~ClientSet.of(clients, missing),))
    message = Message(kind=Kind.ANNOUNCE, run=RUN, round=1, roster=bytes([1]) * 32, payload=told.to_bytes())
    return len(message.to_bytes())


def apart(part: str, *arguments: object) -> dict[str, Any]:
    """Call a function of this file in a process of its own, on one core."""
    command = f"import json, scale_server; print(json.dumps(scale_server.{part}{arguments!r}))"
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    done = subprocess.run([sys.executable, "-c", command], env=env, check=True, capture_output=True, text=True)  # noqa: S603
    found: dict[str, Any] = json.loads(done.stdout)
    print(found, file=sys.stderr, flush=True)
    return found


def broken(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Limits that do not hold."""
    found = [f"odometer {row}" for row in rows["odometer"] if row["last_s"] > LIMITS["odometer_s"]]
    found += [f"odometer {row}" for row in rows["odometer"] if row["peak_gb"] > LIMITS["odometer_gb"]]
    found += [f"receive {row}" for row in rows["receive"] if row["rest_s"] > LIMITS["receive_rest_s"]]
    return found + [f"announce {row}" for row in rows["announce"] if row["bytes"] > row["limit"]]


def record(n: int, rounds: int = 150, length: int = 1000) -> tuple[dict[str, Any], bool]:
    """All of it, and whether no limit is broken."""
    conditions = bench.conditions()
    rows = {
        "odometer": [apart("odometer", n, rounds, graph, n // 100 * late, grace) for graph, late, grace in CASES],
        "client": [apart("client", m, graph) for m in (50, n) for graph in ("complete", "circulant:20")],
        "receive": [apart("receive", clients, length) for clients in (n // 100, n)],
        "announce": [
            {"clients": n, "stragglers": few, "limit": limit, "bytes": max(announced(n, few, s) for s in range(5))}
            for few, limit in ANNOUNCED.items() if few <= n // 2
        ],
    }  # fmt: skip
    found = broken(rows)
    return {"conditions": conditions, "limits": LIMITS, **rows, "broken": found}, not found
