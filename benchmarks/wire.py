"""Packing and adding packed uploads, next to copying the same vector, and digests next to SHA-256: ratios from one run.

python benchmarks/wire.py [--length 11200000] [--trials 21]
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import statistics
import time
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightdp._native import kernel
from lightdp.wire import Accumulator, digest, encode

if TYPE_CHECKING:
    from collections.abc import Callable

BITS = (8, 10, 12, 14, 16, 20, 24, 32)


def medians(jobs: dict[str, Callable[[], object]], trials: int) -> dict[str, float]:
    """Median seconds of each job; the jobs take turns, so that a slow moment hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(trials):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Measure and print, conditions first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=11_200_000)
    parser.add_argument("--trials", type=int, default=21)
    options = parser.parse_args()
    length: int = options.length
    info = Path("/proc/cpuinfo")
    models = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    cpu = models[0].partition(": ")[2] if models else platform.processor()
    print(f"{cpu}; Python {platform.python_version()}, numpy {np.__version__}, one thread")
    print(f"{length} values, median of {options.trials} interleaved trials; M values/s (x time of np.copyto)\n")

    values = (np.arange(length, dtype=np.int64) * 2654435761 % 2**32).astype(np.uint32).view(np.int32)
    target = np.empty_like(values)
    print("| bits | shift | copy | pack | unpack and add | CRC-32 | total |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for bits in BITS:
        shift = min(6, 32 - bits)
        packed = encode(values, shift=shift, bits=bits)
        accumulator = Accumulator(length, bits)
        found = medians(
            {
                "copy": lambda: np.copyto(target, values),
                "pack": lambda shift=shift, bits=bits: encode(values, shift=shift, bits=bits),  # type: ignore[misc]
                "add": lambda accumulator=accumulator, packed=packed: accumulator.add(packed),  # type: ignore[misc]
                "crc": lambda packed=packed: zlib.crc32(packed),  # type: ignore[misc]
                "total": accumulator.total,
            },
            options.trials,
        )
        cells = [f"{length / s / 1e6:.0f} ({s / found['copy']:.1f})" for s in found.values()]
        print(f"| {bits} | {shift} | {' | '.join(cells)} |")

    apart = -(-values.nbytes // 1024) * 64
    ways = {way: partial(kernel.strands, way, values.data.cast("B"), apart) for way in getattr(kernel, "DIGESTS", ())}
    found = medians(
        {"SHA-256": lambda: hashlib.sha256(values.data), "digest": lambda: digest(values), **ways}, options.trials
    )
    print("\nhashing those values, GB/s (x as fast as SHA-256)")
    for name, s in found.items():
        print(f"{name:<8} {values.nbytes / s / 1e9:.2f} ({found['SHA-256'] / s:.2f})")


if __name__ == "__main__":
    main()
