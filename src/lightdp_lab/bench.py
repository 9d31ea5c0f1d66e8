"""How fast masks are made: every path and two baselines, side by side in one run, on one core.

Methods take turns and figures are medians; on a busy machine only their ratios mean much.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import cryptography
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR

from lightdp import masks as noise
from lightdp import stream
from lightdp._validate import integer

Method = Callable[[int, int], None]
"""Adds up masks of a length, so many of them."""
Track = Callable[..., Iterable[str]]
"""Shows how far a loop over names is, as `rich.progress.Progress.track` does, and has a `description`."""

CHUNK = 16384  # samples a numpy call of the two baselines
SIGMA = 4096.0
BASELINES = ("philox", "uniform")


def masks(dimension: int, peers: int, rounds: int, track: Track = lambda names, **_: names) -> dict[str, Any]:
    """The record of a client that makes `peers` masks for a model of `dimension` parameters.

    Returns:
        "rates": every method on a part of that work small enough to repeat `rounds` times (`measure`).
        "client_round": all of it, at most 3 times: masks by the baselines, and our whole upload: data, individual
            and pairwise noise, rounded and packed (`measure`).
        "peak_memory_in_vectors": memory of that round with 1 peer and with all, as in `memory`.
    """
    integer("dimension", dimension, 1, stream.LENGTH_MAX)
    integer("peers", peers, 1)
    integer("rounds", rounds, 1)
    every = methods()
    whole = {name: every[name] for name in (*BASELINES, "upload")}
    return {
        "rates": measure(every, min(dimension, 1 << 21), min(peers, 4), rounds, track),
        "client_round": measure(whole, dimension, peers, min(rounds, 3), track),
        "peak_memory_in_vectors": memory(dimension, peers),
    }


def measure(chosen: dict[str, Method], d: int, peers: int, rounds: int, track: Track) -> dict[str, Any]:
    """Add `peers` masks of length `d`, one thread, each method once per round, in turns.

    Returns:
        "conditions", "d", "peers", "rounds" and "methods": for each the medians over the rounds of "seconds",
        of "rate" (samples per second) and of "x_philox" and "x_uniform" (speed relative to that baseline).
    """
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for run in chosen.values():
        run(min(d, 1 << 18), 1)  # warm up
    for name in track(list(chosen) * rounds, description=f"{peers} masks of {d:,}"):
        begin = time.perf_counter()
        chosen[name](d, peers)
        times[name].append(time.perf_counter() - begin)
    result = {}
    for name, taken in times.items():
        seconds = statistics.median(taken)
        result[name] = {"seconds": seconds, "rate": d * peers / seconds}
        for other in BASELINES:
            result[name][f"x_{other}"] = statistics.median(a / b for a, b in zip(times[other], taken, strict=True))
    return {"conditions": conditions(), "d": d, "peers": peers, "rounds": rounds, "methods": result}


def methods() -> dict[str, Method]:
    """What this machine can measure: the baselines, every path and a whole upload."""
    ours = {name: partial(_path, path=path) for name, path in stream.paths().items()}
    return {"philox": philox, "uniform": uniform, **ours, "upload": upload}


def philox(d: int, peers: int) -> None:
    """Numpy's fast ordinary generator, added up: not fit to protect anything."""
    total, part = np.zeros(d, np.float32), np.empty(CHUNK, np.float32)
    for peer in range(peers):
        generator = np.random.Generator(np.random.Philox(peer))  # noqa: TID251  what we compare with
        for i in range(0, d, CHUNK):
            view = total[i : i + CHUNK]
            view += generator.standard_normal(dtype=np.float32, out=part)[: len(view)]


def uniform(d: int, peers: int) -> None:
    """The uniform mask of secure aggregation: AES-128-CTR, added up modulo 2^32."""
    total, zeros, part = np.zeros(d, np.uint32), bytes(4 * CHUNK), bytearray(4 * CHUNK + 15)
    words = np.frombuffer(part, np.uint32, CHUNK)
    for peer in range(peers):
        cipher = Cipher(AES128(peer.to_bytes(16, "big")), CTR(bytes(16))).encryptor()
        for i in range(0, d, CHUNK):
            cipher.update_into(zeros, part)
            view = total[i : i + CHUNK]
            view += words[: len(view)]


def upload(d: int, peers: int) -> None:
    """A client's whole upload, on the path in use."""
    grid = noise.Grid(step=1e-3, shift=9, bits=17, sigma_individual=1024.0, sigma_pairwise=2048.0)
    noise.mask(np.zeros(d, np.float32), grid, _terms(peers))


def _terms(peers: int) -> list[stream.Term]:
    return [stream.Term(peer.to_bytes(32, "big"), 1 if peer % 2 else -1, SIGMA) for peer in range(peers)]


def _path(d: int, peers: int, *, path: stream.Path) -> None:
    terms = _terms(peers)
    scales = np.array([term.sign * SIGMA for term in terms], np.float32)
    path.accumulate(np.zeros(d, np.int32), 0, b"".join(term.key for term in terms), scales)


def memory(d: int, peers: int) -> dict[str, float] | None:
    """Peak memory that a round with 1 peer, then with all, adds to an idle process, in vectors of length `d`.

    None where the system does not tell (it is read from Linux's /proc).
    """
    if not Path("/proc/self/status").exists():
        return None
    code = "import sys; from lightdp_lab import bench; bench.print_peaks(*map(int, sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(d), str(peers)]
    return json.loads(subprocess.check_output(command, text=True))  # noqa: S603  our own code


def print_peaks(d: int, peers: int) -> None:
    """What `memory` runs in a process of its own, where nothing else has raised the peak."""
    peak = partial(memory_line, "self/status", "VmHWM", 0.0)
    upload(1024, 1)
    forget_peak()  # that the imports left
    idle, peaks = peak(), {}
    for count in sorted({1, peers}):
        upload(d, count)
        peaks[str(count)] = (peak() - idle) / (4 * d)
    sys.stdout.write(json.dumps(peaks))


def memory_line(file: str, name: str, otherwise: float) -> float:
    """A line of Linux's accounts of memory, in bytes; `otherwise` on other systems."""
    with suppress(OSError, KeyError):
        lines = dict(line.split(":", 1) for line in Path("/proc", file).read_text().splitlines())
        return float(lines[name].split()[0]) * 1024
    return otherwise


def forget_peak() -> None:
    """Reset this process's peak of memory. A sandbox may forbid it, and then what is small hides under that peak."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def conditions() -> dict[str, Any]:
    """Where and with what a record was made."""
    cpu, listed = platform.processor(), Path("/proc/cpuinfo")
    if listed.exists():
        pairs = (line.partition(":") for line in reversed(listed.read_text().splitlines()))
        facts = {name.strip(): value.strip() for name, _, value in pairs}  # of the first core
        cpu = facts.get("model name", cpu)
        if "cpu family" in facts:  # names such as "AMD EPYC" are those of several generations
            cpu += f" (family {facts['cpu family']}, model {facts.get('model', '?')})"
    now, load = dt.datetime.now(dt.UTC).isoformat(timespec="seconds"), None
    if hasattr(os, "getloadavg"):  # not on Windows
        load = round(os.getloadavg()[0], 2)
    versions = {"python": platform.python_version(), "numpy": np.__version__, "cryptography": cryptography.__version__}
    return {"date": now, "cpu": cpu, "cores": os.cpu_count(), "load": load, "backend": stream.backend(), **versions}
