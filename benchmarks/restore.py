"""CPU milliseconds of `Client.restore`: a node whose process is new reads its state before it answers a message.

python benchmarks/restore.py [--clients 100] [--rounds 500] [--repeats 15] [--json]

The state is that of a client which answered every round. In each of them about 5 in 100 clients straggle, the client
itself among them, and under grace half of the stragglers come one round late and are used. So it has late rounds,
repairs in flight and all that follows from them.

cold: no signature and no key was seen before by this process, as in a new one; the plan is at hand.
warm: the process has restored this client before.
member: as `cold`, but as a member of a federation whose one roster this is.
mu: the first question after a cold restore, what was spent; it needs no keys.
upload: the first upload of one value after a cold restore, which needs the keys that are shared with all peers.

The record is records/restore.json; 1 if a median of `cold` or `member` is above 20 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np

import lightdp
from lightdp.client_set import ClientSet
from lightdp.federation import Member
from lightdp.federation._state import MemberState
from lightdp.keys import Identity, KeyPair, Roster
from lightdp.keys import identity as signatures
from lightdp.neighbourhood import Neighbourhood
from lightdp.protocol import ClientState
from lightdp.protocol.history import known
from lightdp.protocol.rounds import LocalRound
from lightdp.protocol.state import Entry
from lightdp.protocol.vector import agreement
from lightdp_lab import bench

RUN, LENGTH, LIMIT_MS, STRAGGLE = b"sixteen bytes ok", 1, 20.0, 0.05
REPAIR: dict[str, Any] = {"calibration": "repair"}
KINDS: dict[str, dict[str, Any]] = {
    "repair": REPAIR,
    "repair, grace": REPAIR | {"grace": 1},
    "repair, late unseen": REPAIR | {"late": "unseen"},
    "repair, sampled batches": REPAIR | {"unit": "record", "records": 10_000, "sampling_rate": 0.05},
    "repair, degree 20": REPAIR | {"degree": 20},
    "exact": {"calibration": "exact"},
}


class Memory:
    """A store that never leaves the process."""

    def __init__(self, state: bytes) -> None:
        self.state = state

    def save(self, state: bytes) -> None:
        """Keep the newest state."""
        self.state = state

    def append(self, entry: bytes) -> None:
        """Keep one more entry."""
        self.state += b"\n" + entry

    def load(self) -> bytes:
        """The newest state."""
        return self.state


def stored(plan: lightdp.Plan, rounds: int) -> bytes:
    """The state of the plan's first client after so many rounds."""
    drawn = np.random.default_rng(0)
    agreed = agreement(plan, LENGTH, weighted=False)
    pairs = [KeyPair.generate() for _ in range(plan.clients)]
    signed = [Identity.generate().enrol(pair, run=RUN, name=f"client-{i:04}") for i, pair in enumerate(pairs)]
    roster = Roster.of(signed, run=RUN, plan=agreed)
    on_time = drawn.random((rounds, plan.clients)) >= STRAGGLE
    used = on_time | (drawn.random(on_time.shape) < 0.5) if plan.grace else on_time
    state = ClientState(agreed, plan.to_json(), LENGTH, False, RUN, pairs[0], signed[0], roster).next()
    near, chain = Neighbourhood(plan.clients, 0, plan.graph.neighbours_of(0).tolist()), roster.hash
    final, came = [ClientSet(each) for each in used], [ClientSet(each) for each in on_time] if plan.grace else []
    lines, told = [state.to_bytes()], tuple[LocalRound, ...]()
    for number in range(rounds):
        entry = Entry(number, closing=False, told=told)
        lines.append(state.line(entry))
        state = state.after(entry)
        told = (LocalRound.of(near, chain, number, known(final, came, number, plan.clients)),)
        chain = told[0].chain
    return b"\n".join(lines)


def as_member(plan: lightdp.Plan, state: bytes) -> Memory:
    """The state of a member with this one of its only roster."""
    part = ClientState.from_bytes(state)
    keys = part.run, part.pair, part.enrolment
    return Memory(MemberState(plan.to_json(), LENGTH, False, *keys, {0: part}, last=0).next().to_bytes())


def milliseconds(plan: lightdp.Plan, store: Memory) -> dict[str, float]:
    """One restore without and one with what an earlier one left in the process, and what comes after the first."""
    times = [time.process_time()]
    signatures._fault.cache_clear()  # noqa: SLF001  as in a new process
    client = lightdp.Client.restore(plan, length=LENGTH, store=store)
    times.append(time.process_time())
    client.mu()
    times.append(time.process_time())
    history, seat = client._history, client._seat  # noqa: SLF001  the cost of an upload, without its announcement
    if history is None or seat is None:
        raise SystemExit("the state has no roster")
    seat.upload(np.zeros(LENGTH), history, history.next, closing=False, bare=False, given=None, threads=1)
    times.append(time.process_time())
    lightdp.Client.restore(plan, length=LENGTH, store=store)
    times.append(time.process_time())
    del client, history, seat  # what lives in a process is not read again
    member = as_member(plan, store.state)
    signatures._fault.cache_clear()  # noqa: SLF001  likewise
    times.append(time.process_time())
    Member.restore(plan, length=LENGTH, store=member)
    times.append(time.process_time())
    return dict(zip(("cold", "mu", "upload", "warm", "", "member"), (np.diff(times) * 1e3).tolist(), strict=True))


def measured(clients: int, rounds: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each kind of plan; they take turns."""
    asked: dict[str, Any] = {
        "clients": clients,
        "colluders": clients // 5,
        "stragglers": clients // 5,
        "epsilon": 8,
        "delta": 1e-5,
    }
    plans = {kind: lightdp.plan(**asked, rounds=rounds, **more) for kind, more in KINDS.items()}
    stores = {kind: Memory(stored(plan, rounds)) for kind, plan in plans.items()}
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind, plan in plans.items():
            found[kind].append(milliseconds(plan, stores[kind]))
    return [
        {
            "plan": kind,
            "bytes": len(stores[kind].state),
            **{f"{what}_ms": statistics.median(each[what] for each in times) for what in times[0] if what},
            "cold_fastest_ms": min(each["cold"] for each in times),
        }
        for kind, times in found.items()
    ]


def main() -> None:
    """Measure, print, and fail where restoring takes longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    conditions = bench.conditions()
    rows = measured(options.clients, options.rounds, options.repeats)
    if options.json:
        sizes = {name: getattr(options, name) for name in ("clients", "rounds", "repeats")}
        print(json.dumps({"conditions": conditions, **sizes, "limit_ms": LIMIT_MS, "rows": rows}, indent=1))
    else:
        print(", ".join(f"{name} {value}" for name, value in conditions.items()))
        print(f"{options.clients} clients, {options.rounds} rounds, medians of {options.repeats}, CPU milliseconds")
        print(f"{'plan':26}{'cold':>8}{'warm':>8}{'member':>8}{'mu':>8}{'upload':>8}")
        for row in rows:
            times = (row[f"{what}_ms"] for what in ("cold", "warm", "member", "mu", "upload"))
            print(f"{row['plan']:26}" + "".join(f"{each:8.1f}" for each in times))
    sys.exit(any(max(row["cold_ms"], row["member_ms"]) > LIMIT_MS for row in rows))


if __name__ == "__main__":
    main()
