"""Drawn noise beside Gaussian noise, on every path of this machine, one core, in turns.

python benchmarks/drawn.py                print
python benchmarks/drawn.py --json FILE    also write the record, as records/drawn.json

Two tables, in CPU time; ratios are medians over rounds, each taken within its round, so that other load matters little:

- rates: 49 keys, 2^20 values: noise of either kind, and the floor under drawn noise: the bare keystream, 24 bits for
  each value, by the same instructions (mask_floor.c, where a C compiler is; OpenSSL's for numpy).
- uploads: 49 peers, 11.2 million values: data, individual noise, pairwise noise of either kind and packing; with drawn
  noise also the digest of a model of so many float32, to which its rounds are bound. Philox makes an eighth of the
  values, times eight.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR

from lightdp import stream
from lightdp.stream import _backends
from lightdp.wire import digest, encode
from lightdp_lab import bench

if TYPE_CHECKING:
    from collections.abc import Callable

    Job = Callable[[], object]

FLOORS = ("vaes512", "vaes", "aesni")  # functions of mask_floor.c
UNIT, SIGMA = 85, 1024.0


def keys(peers: int) -> list[bytes]:
    """As many keys as peers, then three for the data's own noise."""
    return [b"masks".ljust(28, b".") + peer.to_bytes(4, "big") for peer in range(peers + 3)]


def terms(peers: int, kind: str) -> list[stream.Term | stream.Draw]:
    """Noise of these keys; half of the peers have a lower index."""
    signed = [(key, 1 if peer % 2 else -1) for peer, key in enumerate(keys(peers)[:peers])]
    if kind == "drawn":
        return [stream.Draw(key, sign, UNIT) for key, sign in signed]
    return [stream.Term(key, sign, SIGMA) for key, sign in signed]


def rate_jobs(d: int, peers: int) -> dict[str, dict[str, Job]]:
    """For each path: its noise, added to one vector, and the floor."""
    out, floors = np.zeros(d, np.int32), compiled_floors(3 * d, peers)
    jobs: dict[str, dict[str, Job]] = {"philox": {"gaussian": partial(bench.philox, d, peers)}}
    for name in stream.paths():
        jobs[name] = {kind: partial(stream.accumulate, out, terms(peers, kind)) for kind in ("gaussian", "drawn")}
        if name in floors:
            jobs[name]["floor"] = floors[name]
    jobs["numpy"]["floor"] = partial(keystream, 3 * d, peers)
    return jobs


def upload_jobs(d: int, peers: int) -> dict[str, dict[str, Job]]:
    """For each path: a whole upload with either kind of noise."""
    jobs: dict[str, dict[str, Job]] = {"philox": {"gaussian": partial(bench.philox, d // 8, peers)}}
    values = np.zeros(d, np.float32)
    for name in stream.paths():
        jobs[name] = {kind: partial(upload, values, peers, kind) for kind in ("gaussian", "drawn")}
    return jobs


def upload(values: stream.Floats, peers: int, kind: str) -> None:
    """What a client does with its trained vector, and with a model of that size where noise is bound to it."""
    if kind == "drawn":
        digest(values)
    out = stream.masked(values, terms(peers, kind), step=1e-3, sigma=SIGMA, own=keys(peers)[peers:])
    encode(out, shift=9, bits=17)


def keystream(size: int, peers: int) -> None:
    """The keystream of all keys by OpenSSL, in pieces that stay in the cache."""
    zeros, part = bytes(1 << 17), bytearray((1 << 17) + 15)
    ciphers = [Cipher(AES128(key[:16]), CTR(key[16:])).encryptor() for key in keys(peers)[:peers]]
    for _ in range(0, size, 1 << 17):
        for cipher in ciphers:
            cipher.update_into(zeros, part)


def compiled_floors(size: int, peers: int) -> dict[str, Job]:
    """The keystream alone, for each compiled path that this machine has."""
    compiler = shutil.which("cc")
    if compiler is None or "aesni" not in stream.paths():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "floor.so"
        source = Path(__file__).with_name("mask_floor.c")
        subprocess.run([compiler, "-O3", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)  # noqa: S603  our own code
        library = ctypes.CDLL(str(made))
    memory = np.zeros(16 * 11 * peers + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :]  # aligned as the kernel's round keys are
    sizes = ctypes.c_uint64(peers), ctypes.c_uint64(size)
    every = {name: lambda name=name: library[name](memory.ctypes.data_as(ctypes.c_void_p), *sizes) for name in FLOORS}
    return {name: job for name, job in every.items() if name in stream.paths()}


def measure(jobs: dict[str, dict[str, Job]], d: int, peers: int, rounds: int, philox_times: int) -> dict[str, Any]:
    """CPU seconds of each job, and how many times as fast as Philox and as the Gaussian noise of its path it is."""
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, each in jobs.items():
            path = stream.paths().get(name, _backends.IN_USE)
            with mock.patch.object(_backends, "IN_USE", path):
                for kind, job in each.items():
                    begin = time.process_time()
                    job()
                    seconds = (time.process_time() - begin) * (philox_times if name == "philox" else 1)
                    times.setdefault((name, kind), []).append(seconds)

    def ratio(slow: tuple[str, str], fast: tuple[str, str]) -> float:
        return statistics.median(a / b for a, b in zip(times[slow], times[fast], strict=True))

    rows: dict[str, dict[str, Any]] = {}
    for (name, kind), taken in times.items():
        rows.setdefault(name, {})[kind] = {
            "seconds": statistics.median(taken),
            "million_values_per_second": d * peers / statistics.median(taken) / 1e6,
            "x_philox": ratio(("philox", "gaussian"), (name, kind)),
            "x_gaussian": ratio((name, "gaussian"), (name, kind)),
        }
        if (name, "floor") in times:
            rows[name][kind]["x_floor"] = ratio((name, "floor"), (name, kind))
    return {"conditions": bench.conditions(), "d": d, "peers": peers, "rounds": rounds, "paths": rows}


def show(title: str, record: dict[str, Any]) -> None:
    """One line for each path and kind."""
    print(f"\n{title}: {record['peers']} keys, {record['d']:,} values, {record['rounds']} rounds")
    for name, kinds in record["paths"].items():
        for kind, row in kinds.items():
            print(
                f"{name:<8} {kind:<10} {row['seconds'] * 1e3:9.1f} ms {row['million_values_per_second']:8.0f} M/s "
                f"{row['x_philox']:6.1f} x Philox {row['x_gaussian']:5.2f} x Gaussian"
                + (f" {row['x_floor']:5.2f} x floor" if kind == "drawn" and "x_floor" in row else "")
            )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--dimension", type=int, default=11_200_000, help="values of an upload")
    parser.add_argument("--peers", type=int, default=49)
    arguments = parser.parse_args()
    d, peers, rounds = arguments.dimension, arguments.peers, arguments.rounds
    small = min(d, 1 << 20)
    record = {
        "rates": measure(rate_jobs(small, peers), small, peers, rounds, 1),
        "uploads": measure(upload_jobs(d, peers), d, peers, max(rounds // 2, 1), 8),
    }
    print(record["rates"]["conditions"])
    for title, part in record.items():
        show(title, part)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
