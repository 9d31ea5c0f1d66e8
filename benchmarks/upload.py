"""What the signature of an upload costs: `ClientRound.upload` and `Server.receive`, with it and without.

Run: python benchmarks/upload.py [--values 1000000] [--trials 41] [--json]

One thread, in memory, CPU time. With and without take turns, so that a busy machine slows both alike. Without it the
checksum covers the vector, as it must where nothing is signed. The record is records/upload.json; 1 if the median of
the paired differences is more than 3 % of an upload among 50 clients.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

import lightdp
from lightdp.keys import Enrolment, KeyPair
from lightdp.wire import Upload, messages
from lightdp_lab import bench

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = b"sixteen bytes ok"
LIMIT = 0.03  # of an upload, among 50 clients


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


def measured(clients: int, values: int, trials: int) -> dict[str, Any]:
    """Medians in seconds of an upload and its reception, and of the paired differences, as shares of the unsigned."""
    plan = lightdp.plan(
        clients=clients, colluders=clients // 5, stragglers=clients // 5, rounds=10 * trials, epsilon=8, delta=1e-5,
        unit="client", calibration="repair", parameters=values,
    )  # fmt: skip
    server = lightdp.Server(plan, length=values, run=RUN)
    parties = [lightdp.Client.new(plan, length=values, run=RUN, name=f"client-{i:03}") for i in range(clients)]
    for party in parties:
        server.enrol(party.enrol())
    client = parties[0]
    client.join(server.roster())
    update = np.full(values, 1e-4, np.float32)

    def once() -> tuple[float, float, int]:
        begun = client.begin(server.announce())
        start = time.process_time()
        message = begun.upload(update)
        sent = time.process_time()
        server.receive(message)
        received = time.process_time()
        server.close()
        return sent - start, received - sent, len(message)

    once()
    with_it, without = [], []
    for trial in range(trials):
        for signed in (True, False) if trial % 2 == 0 else (False, True):
            if signed:
                with_it.append(once())
            else:
                with unsigned():
                    without.append(once())
    row: dict[str, Any] = {"clients": clients, "values": values, "trials": trials, "bytes": with_it[0][2]}
    for at, what in enumerate(("upload", "receive")):
        signed_s, unsigned_s = ([each[at] for each in times] for times in (with_it, without))
        apart = statistics.median(a - b for a, b in zip(signed_s, unsigned_s, strict=True))
        plain = statistics.median(unsigned_s)
        row[what] = {
            "signed_s": statistics.median(signed_s), "unsigned_s": plain, "signature_s": apart, "share": apart / plain,
        }  # fmt: skip
    return row


def main() -> int:
    """Print each row; 1 if the signature takes more than `LIMIT` of an upload among 50 clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=41)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [measured(clients, asked.values, asked.trials) for clients in (10, 20, 50)]
    conditions = bench.conditions()
    if asked.json:
        print(json.dumps({"conditions": conditions, "rows": rows}, indent=2))
    else:
        print(", ".join(f"{name} {value}" for name, value in conditions.items()))
        for row in rows:
            for what in ("upload", "receive"):
                times = row[what]
                print(
                    f"N = {row['clients']:>3}, {row['values']} values, {what:<8} {times['unsigned_s'] * 1e3:7.2f} ms, "
                    f"signature {times['signature_s'] * 1e3:5.2f} ms ({times['share']:.1%})"
                )
    return int(rows[-1]["upload"]["share"] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
