"""How fast masks are made, side by side in one run on one core, and how Gaussian a billion samples are.

    python benchmarks/masks.py                 table of rates, then a whole client's round and its memory
    python benchmarks/masks.py --json          the same as one JSON object
    python benchmarks/masks.py --billion FILE  statistics of 1e9 samples, written to FILE as JSON

Methods take turns in every round and figures are medians; on a busy machine only their ratios mean much.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cryptography
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats

from lightdp import stream
from lightdp._native import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

CHUNK = 16384  # samples a numpy call of the two baselines
SIGMA = 4096.0
BASELINES = ("philox", "uniform")


def conditions() -> dict[str, Any]:
    """Where and with what a record was made."""
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), cpu)
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "backend": stream.backend(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cryptography": cryptography.__version__,
    }


def philox(d: int, peers: int) -> None:
    """Numpy's fast ordinary generator, added up: not fit to protect anything."""
    total, part = np.zeros(d, np.float32), np.empty(CHUNK, np.float32)
    for peer in range(peers):
        generator = np.random.Generator(np.random.Philox(peer))
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


def _terms(peers: int) -> list[stream.Term]:
    return [stream.Term(peer.to_bytes(32, "big"), 1 if peer % 2 else -1, SIGMA) for peer in range(peers)]


def ours(d: int, peers: int) -> None:
    """`lightdp.stream` on the path in use."""
    stream.accumulate(np.zeros(d, np.int32), _terms(peers))


def _path(path: stream.Path) -> Callable[[int, int], None]:
    def run(d: int, peers: int) -> None:
        keys = b"".join(term.key for term in _terms(peers))
        scales = np.array([term.sign * SIGMA * 2**15 for term in _terms(peers)], np.float32)
        path(np.zeros(d, np.int32), 0, keys, scales)

    return run


def methods() -> dict[str, Callable[[int, int], None]]:
    """What this machine can measure: the baselines and every path."""
    paths = {**stream._COMPILED, "numpy": plain.accumulate}  # noqa: SLF001 - all paths, not only the chosen one
    return {"philox": philox, "uniform": uniform, **{name: _path(path) for name, path in paths.items()}}


def measure(d: int, peers: int, rounds: int, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Add `peers` masks of length `d`, one thread, each method once per round, in turns.

    Returns:
        "conditions", "d", "peers", "rounds" and "methods": for each the medians over the rounds of "seconds",
        of "rate" (samples per second) and of "x_philox" and "x_uniform" (speed relative to that baseline).
    """
    chosen = {name: run for name, run in methods().items() if names is None or name in names}
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for run in chosen.values():
        run(min(d, 1 << 18), 1)  # warm up
    for _ in range(rounds):
        for name, run in chosen.items():
            begin = time.perf_counter()
            run(d, peers)
            times[name].append(time.perf_counter() - begin)
    result = {}
    for name, taken in times.items():
        seconds = statistics.median(taken)
        result[name] = {"seconds": seconds, "rate": d * peers / seconds}
        for other in BASELINES:
            if other in times:
                ratios = [a / b for a, b in zip(times[other], taken, strict=True)]
                result[name][f"x_{other}"] = statistics.median(ratios)
    return {"conditions": conditions(), "d": d, "peers": peers, "rounds": rounds, "methods": result}


def memory(d: int, peers: int) -> float:
    """Peak memory that one client's round adds to an idle process (Linux), in vectors of length `d`."""
    code = (
        "import re, sys; sys.path.insert(0, sys.argv[1]); import masks\n"
        "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "masks.ours(1024, 1); before = peak(); masks.ours(int(sys.argv[2]), int(sys.argv[3]))\n"
        "print((peak() - before) * 1024)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(d), str(peers)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own code
    return int(done.stdout) / (4 * d)


def table(record: dict[str, Any]) -> str:
    """A record as text."""
    head = f"{record['peers']} masks of {record['d']:,} samples, one thread, {record['rounds']} rounds in turns"
    lines = [head, f"{'method':10}{'seconds':>10}{'M/s':>8}{'x philox':>10}{'x uniform':>11}"]
    for name, row in record["methods"].items():
        ratios = "".join(f"{row[key]:>{w}.2f}" for key, w in (("x_philox", 10), ("x_uniform", 11)) if key in row)
        lines.append(f"{name:10}{row['seconds']:>10.4f}{row['rate'] / 1e6:>8.0f}{ratios}")
    return "\n".join(lines)


def histogram(samples: int, keys: int, piece: int = 1 << 20) -> NDArray[np.int64]:
    """Counts of −40000 ... 40000 among `samples` samples of σ = SIGMA, spread over `keys` keys."""
    counts = np.zeros(80001, np.int64)
    out = np.empty(piece, np.int32)
    for key in range(keys):
        term = stream.Term(b"lightdp long run".ljust(28, b".") + key.to_bytes(4, "big"), 1, SIGMA)
        size = samples // keys + (key < samples % keys)
        for start in range(0, size, piece):
            part = out[: min(piece, size - start)]
            part[:] = 0
            stream.accumulate(part, [term], start=start)
            counts += np.bincount(part + 40000, minlength=counts.size)
    return counts


def judge(counts: NDArray[np.int64]) -> dict[str, Any]:
    """Tests of the integers against a Gaussian of σ = SIGMA rounded to the grid; p-values are two-sided."""
    n, half = int(counts.sum()), counts.size // 2
    grid = np.arange(-half, half + 1)
    edges = stats.norm.cdf((grid + 0.5) / SIGMA)
    empirical = np.cumsum(counts) / n

    def ks(expected: NDArray[np.float64]) -> dict[str, float]:
        distance = float(np.abs(empirical - expected).max())
        return {"distance": distance, "p": float(stats.kstwobign.sf(distance * math.sqrt(n)))}

    def normal(value: float, error: float) -> dict[str, float]:
        return {"value": value, "z": value / error, "p": float(2 * stats.norm.sf(abs(value / error)))}

    tails = {}
    for k in range(1, 7):
        seen = int(counts[np.abs(grid) > k * SIGMA].sum())
        chance = float(2 * stats.norm.sf(k + 0.5 / SIGMA))
        low, high = stats.binom.cdf(seen, n, chance), stats.binom.sf(seen - 1, n, chance)
        tails[str(k)] = {"seen": seen, "expected": n * chance, "p": float(min(1.0, 2 * min(low, high)))}
    cells = np.diff(np.searchsorted(edges, np.arange(1, 1000) / 1000), prepend=0)
    starts = np.concatenate([[0], np.cumsum(cells)])
    inside = np.diff(np.concatenate([[0.0], edges[starts[1:] - 1], [1.0]]))
    chi = stats.chisquare(np.add.reduceat(counts, starts), inside * n)
    z = grid / SIGMA
    mean = float((counts * z).sum() / n)
    power = [float((counts * z**k).sum() / n) for k in (2, 3, 4)]
    variance = 1 + 1 / (12 * SIGMA**2)
    return {
        "samples": n,
        "sigma": SIGMA,
        "ks": ks(edges),
        "ks_if_scale_were_0.1_percent_wrong": ks(stats.norm.cdf((grid + 0.5) / (1.001 * SIGMA))),
        "chi_square_1000_cells": {"statistic": float(chi.statistic), "p": float(chi.pvalue)},
        "tails": tails,
        "largest": float(np.abs(z[counts > 0]).max()),
        "mean": normal(mean, 1 / math.sqrt(n)),
        "variance_minus_expected": normal(power[0] - variance, math.sqrt(2 / n)),
        "third_moment": normal(power[1], math.sqrt(15 / n)),
        "fourth_moment_minus_3": normal(power[2] - 3 * variance**2, math.sqrt(96 / n)),
        "even_minus_half": normal(float(counts[grid % 2 == 0].sum() / n) - 0.5, 0.5 / math.sqrt(n)),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--billion", type=Path, metavar="FILE")
    parser.add_argument("--samples", type=int, default=10**9, help="for --billion")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    if arguments.billion is not None:
        begin = time.perf_counter()
        verdict = judge(histogram(arguments.samples, keys=100))
        record = {"conditions": conditions(), "seconds": round(time.perf_counter() - begin, 1), **verdict}
        arguments.billion.write_text(json.dumps(record, indent=2) + "\n")
        print(json.dumps(record, indent=2))
        return
    rates = measure(1 << 21, 4, arguments.rounds)
    whole = measure(11_200_000, 49, 3, ("philox", "uniform", stream.backend().split()[0]))
    vectors = {peers: memory(11_200_000, peers) for peers in (1, 49)}
    if arguments.json:
        print(json.dumps({"rates": rates, "client_round": whole, "peak_memory_in_vectors": vectors}, indent=2))
        return
    print(json.dumps(rates["conditions"]))
    print(table(rates), "", "a whole client's round:", table(whole), "", sep="\n")
    for peers, peak in vectors.items():
        print(f"peak memory, {peers:2} peers: {peak:.2f} vectors of the model's size")


if __name__ == "__main__":
    main()
