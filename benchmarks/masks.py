"""How fast masks are made, and how Gaussian a billion of their samples are.

python benchmarks/masks.py                 as `lightdp bench masks`, with more turns
python benchmarks/masks.py --json          the same as one JSON object
python benchmarks/masks.py --billion FILE  statistics of 1e9 samples, written to FILE as JSON
python benchmarks/masks.py --paths FILE    whole uploads on each compiled path, written to FILE as JSON

The last one is kept in records/mask-paths.json; its keystream is OpenSSL's, without VAES. The limit of the AVX2 path
where AES and multiplications share two of four vector units, as on Zen 4: 32 samples take 50 AES instructions and 36
multiplications, divisions and roots, so 1.3 cycles a sample, against 0.8 for AES alone.
drawn.py compares drawn noise with this noise, path by path.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats

from lightdp import stream
from lightdp.stream import _backends
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


def keystream(d: int, terms: int) -> None:
    """The AES-128-CTR keystream of so many terms alone, by OpenSSL: 5 bytes a sample."""
    zeros, part = bytes(5 * bench.CHUNK), bytearray(5 * bench.CHUNK + 15)
    for term in range(terms):
        cipher = Cipher(AES128(term.to_bytes(16, "big")), CTR(bytes(16))).encryptor()
        for _ in range(0, d, bench.CHUNK):
            cipher.update_into(zeros, part)


def paths(d: int, peers: int, rounds: int) -> dict[str, Any]:
    """Whole uploads on each compiled path, beside Philox and the keystream, in turns; CPU seconds, best and ratios.

    An upload has three terms more than peers. Philox makes an eighth of the parameters, times eight. `million_s` has
    uploads of a million parameters among 10 and 30 clients.
    """

    def timed(name: str) -> float:
        begin = time.process_time()
        if name == "philox":
            bench.philox(d // 8, peers)
        elif name == "keystream":
            keystream(d, peers + 3)
        else:
            with mock.patch.object(_backends, "IN_USE", stream.paths()[name]):
                bench.upload(d, peers)
        return (time.process_time() - begin) * (8 if name == "philox" else 1)

    names = ["philox", "keystream", *(name for name in stream.paths() if name != "numpy")]
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            times[name].append(timed(name))
    rows: dict[str, dict[str, Any]] = {
        name: {
            "best_s": min(taken),
            **{
                f"x_{other}": statistics.median(a / b for a, b in zip(times[other], taken, strict=True))
                for other in ("philox", "keystream")
            },
        }
        for name, taken in times.items()
    }
    for name in rows.keys() & stream.paths().keys():
        rows[name]["million_s"] = {str(clients): million(name, clients, rounds) for clients in (10, 30)}
    return {"conditions": bench.conditions(), "d": d, "peers": peers, "rounds": rounds, "methods": rows}


def million(name: str, clients: int, rounds: int) -> float:
    """The best CPU seconds of an upload of a million parameters among so many clients."""
    taken = []
    for _ in range(rounds):
        begin = time.process_time()
        with mock.patch.object(_backends, "IN_USE", stream.paths()[name]):
            bench.upload(1_000_000, clients - 1)
        taken.append(time.process_time() - begin)
    return min(taken)


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--billion", type=Path, metavar="FILE")
    parser.add_argument("--paths", type=Path, metavar="FILE")
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
    if arguments.paths is not None:
        record = paths(11_200_000, 49, arguments.rounds)
        arguments.paths.write_text(json.dumps(record, indent=2) + "\n")
        for name, row in record["methods"].items():
            print(
                f"{name:<10} {row['best_s']:6.3f} s  {row['x_philox']:5.2f} x Philox  {row['x_keystream']:4.2f} x AES"
            )
        return
    record = bench.masks(11_200_000, 49, arguments.rounds)
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        show(record)


if __name__ == "__main__":
    main()
