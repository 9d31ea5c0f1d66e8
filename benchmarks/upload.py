"""What the signature of an upload costs, and its wire: `ClientRound.upload` and `Server.receive`, side by side.

Run: python benchmarks/upload.py [--values 1000000] [--trials 41] [--json]

One thread, in memory, CPU time. All take turns, so that a busy machine slows them alike. Memory that is freed stays
with the process (glibc): pages that are returned after some uploads and not after others cost up to a fifth of one.

- With and without a signature: without it the checksum covers the vector, as it must where nothing is signed.
- Steps of σ_U/16 at 16 bits, as the wire had them at first, beside σ_U/2, and beside σ_U/2 rotated. The last two should
  take no more time among 50 clients. Between runs with nothing changed their medians differ by up to 0.5 % of an
  upload, on a busy machine by 1 %.

The record is records/upload.json; 1 if, among 50 clients, the signature takes longer than SHA-256 of as many bytes
alone (medians of the same turns), or if the median of the paired differences is more than 1 % of an upload for another
wire, or among 10 or 20 more than 3 %.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import statistics
import sys
import time
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

import lightdp
from lightdp.keys import Enrolment, KeyPair
from lightdp.wire import Upload, messages
from lightdp_lab import bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lightdp.planning import MasksName, Plan

RUN = b"sixteen bytes ok"
LIMIT = 0.03  # of an upload: what another wire may take among fewer than 50 clients
NOISE = 0.01  # of an upload: how far two runs of the same may differ
ROUNDS = 410  # of the plans whose wires are compared: at 50 clients rotating saves a bit
WIRES: dict[str, dict[str, Any]] = {
    "σ_U/16": {"wire_steps": 16, "rotate": False},
    "σ_U/2": {"wire_steps": 2, "rotate": False},
    "σ_U/2, rotated": {"wire_steps": 2, "rotate": True},
}


def _whole(header: bytes, _: int, *payload: bytes) -> bytes:
    found = zlib.crc32(header)
    for part in payload:
        found = zlib.crc32(part, found)
    return found.to_bytes(4, "little")


@contextmanager
def unsigned() -> Iterator[None]:
    """A checksum of the whole message in place of the signature, on both sides."""
    with (
        mock.patch.object(messages, "_checksum", _whole),
        mock.patch.object(Upload, "statement", return_value=b""),
        mock.patch.object(KeyPair, "sign", return_value=bytes(64)),
        mock.patch.object(Enrolment, "verify", return_value=None),
    ):
        yield


def keep_memory() -> None:
    """Make glibc keep what is freed, up to 1 GiB; other allocators stay as they are."""
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its largest


def a_round(plan: Plan, values: int) -> Callable[[], tuple[float, float, int]]:
    """A round of one of the plan's clients: seconds of its upload and of its reception, and the bytes of the upload."""
    server = lightdp.Server(plan, length=values, run=RUN)
    parties = [lightdp.Client.new(plan, length=values, run=RUN, name=f"client-{i:03}") for i in range(plan.clients)]
    for party in parties:
        server.enrol(party.enrol())
    client = parties[0]
    client.join(server.roster(client.name))
    update = np.full(values, 1e-4, np.float32)

    def once() -> tuple[float, float, int]:
        begun = client.begin(server.announce())
        start = time.process_time()
        if begun.binds:  # to the model, of as many values
            begun.bind(lightdp.digest(update))
        message = begun.upload(update)
        sent = time.process_time()
        server.receive(message)
        received = time.process_time()
        server.close()
        return sent - start, received - sent, len(message)

    once()
    return once


def wires(clients: int, values: int, trials: int, masks: MasksName) -> dict[str, Any]:
    """Medians in seconds for each of `WIRES`, and of the paired differences to the first, as shares of it."""
    asked: dict[str, Any] = {"clients": clients, "colluders": clients // 5, "stragglers": clients // 5, "epsilon": 3}
    asked |= {"unit": "record", "calibration": "repair", "rounds": max(ROUNDS, 2 * trials), "delta": 1e-5}
    asked["masks"] = masks
    plans = {n: lightdp.plan(**asked, records=50 * clients, parameters=values, **wire) for n, wire in WIRES.items()}
    jobs = {name: a_round(plan, values) for name, plan in plans.items()}
    times: dict[str, list[tuple[float, float, int]]] = {name: [] for name in jobs}
    names = [*jobs]
    for trial in range(trials):
        for name in names[trial % len(names) :] + names[: trial % len(names)]:  # each comes after each
            times[name].append(jobs[name]())
    kinds = {name: plan.masks.kind for name, plan in plans.items()}
    row: dict[str, Any] = {"clients": clients, "values": values, "trials": trials, "masks": kinds, "wires": {}}
    first = next(iter(times.values()))
    for name, found in times.items():
        row["wires"][name] = {"bits": plans[name].wire_bits, "bytes": found[0][2]}
        for at, what in enumerate(("upload", "receive")):
            whole = statistics.median(each[at] for each in first)
            apart = statistics.median(a[at] - b[at] for a, b in zip(found, first, strict=True))
            middle = statistics.median(each[at] for each in found)
            row["wires"][name] |= {f"{what}_s": middle, f"{what}_share": apart / whole}
    return row


def measured(clients: int, values: int, trials: int, masks: MasksName) -> dict[str, Any]:
    """Medians in seconds of an upload and its reception, and of the paired differences, as shares of the unsigned."""
    plan = lightdp.plan(
        clients=clients, colluders=clients // 5, stragglers=clients // 5, rounds=10 * trials, epsilon=8, delta=1e-5,
        unit="client", calibration="repair", parameters=values, masks=masks,
    )  # fmt: skip
    once = a_round(plan, values)
    with_it, without, hashing = [], [], list[float]()
    content = bytes(once()[2])
    for trial in range(trials):
        start = time.process_time()
        hashlib.sha256(content).digest()
        hashing.append(time.process_time() - start)
        for signed in (True, False) if trial % 2 == 0 else (False, True):
            if signed:
                with_it.append(once())
            else:
                with unsigned():
                    without.append(once())
    row: dict[str, Any] = {"clients": clients, "values": values, "trials": trials, "bytes": with_it[0][2]}
    row["masks"] = plan.masks.kind
    row["sha256_s"] = statistics.median(hashing)
    for at, what in enumerate(("upload", "receive")):
        signed_s, unsigned_s = ([each[at] for each in times] for times in (with_it, without))
        apart = statistics.median(a - b for a, b in zip(signed_s, unsigned_s, strict=True))
        plain = statistics.median(unsigned_s)
        row[what] = {
            "signed_s": statistics.median(signed_s), "unsigned_s": plain, "signature_s": apart, "share": apart / plain,
        }  # fmt: skip
    return row


def main() -> int:
    """Print each row; 1 if a signature or a wire takes more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=41)
    parser.add_argument("--masks", choices=("auto", "gaussian", "drawn"), default="auto")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    keep_memory()
    rows = [measured(clients, asked.values, asked.trials, asked.masks) for clients in (10, 20, 50)]
    beside = [wires(clients, asked.values, asked.trials, asked.masks) for clients in (10, 20, 50)]
    conditions = bench.conditions()
    if asked.json:
        print(json.dumps({"conditions": conditions, "rows": rows, "wires": beside}, indent=2))
    else:
        print(", ".join(f"{name} {value}" for name, value in conditions.items()))
        for row in rows:
            for what in ("upload", "receive"):
                times = row[what]
                print(
                    f"N = {row['clients']:>3}, {row['values']} values, {what:<8} {times['unsigned_s'] * 1e3:7.2f} ms, "
                    f"signature {times['signature_s'] * 1e3:5.2f} ms ({times['share']:.1%}), "
                    f"SHA-256 alone {row['sha256_s'] * 1e3:.2f} ms"
                )
        for row in beside:
            for name, found in row["wires"].items():
                print(
                    f"N = {row['clients']:>3}, {row['values']} values, {name:<14} {found['bits']} bits, upload "
                    f"{found['upload_s'] * 1e3:6.2f} ms ({found['upload_share']:+.1%}), "
                    f"receive {found['receive_s'] * 1e3:5.2f} ms ({found['receive_share']:+.1%})"
                )
    slower = any(
        found["upload_share"] > (NOISE if row is beside[-1] else LIMIT)
        for row in beside
        for found in row["wires"].values()
    )
    return int(rows[-1]["upload"]["signature_s"] > rows[-1]["sha256_s"] or slower)


if __name__ == "__main__":
    sys.exit(main())
