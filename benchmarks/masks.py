"""How fast masks are made, and how Gaussian a billion of their samples are.

python benchmarks/masks.py                 as `lightdp bench masks`, with more turns
python benchmarks/masks.py --json          the same as one JSON object
python benchmarks/masks.py --billion FILE  statistics of 1e9 samples, written to FILE as JSON
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from lightdp import stream
from lightdp_lab import bench
from lightdp_lab.bench import SIGMA
from lightdp_lab.cli.bench import show

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        record = {"conditions": bench.conditions(), "seconds": round(time.perf_counter() - begin, 1), **verdict}
        arguments.billion.write_text(json.dumps(record, indent=2) + "\n")
        print(json.dumps(record, indent=2))
        return
    record = bench.masks(11_200_000, 49, arguments.rounds)
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        show(record)


if __name__ == "__main__":
    main()
