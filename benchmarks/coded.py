"""Coded shares of a mask, as a client of LightSecAgg makes them, beside straightforward code: ratios from one run.

python benchmarks/coded.py [--json] [--dimension 1000000] [--clients 50] [--trials 7] [--out FILE]

"terms" adds one product after the other and reduces each, in numpy's int64; "integers" is numpy's own product of
int64 matrices, reduced once, as long as that cannot overflow; "python" loops over Python's integers, on a part of
the work, and its seconds are scaled up. All give the same shares; the run stops if they do not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp_lab import bench
from lightdp_lab.schemes import Net, Task
from lightdp_lab.schemes._coded import Code
from lightdp_lab.schemes._field import Field
from lightdp_lab.schemes.lightsecagg import LightSecAgg
from lightdp_lab.schemes.swiftagg import SwiftAgg

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_PART = 40  # columns of a share that plain Python computes


def terms(matrix: NDArray[np.int64], rows: NDArray[np.int64], p: int) -> NDArray[np.int64]:
    """Share after share, term after term."""
    result = np.zeros((len(matrix), rows.shape[1]), np.int64)
    for share, weights in zip(result, matrix, strict=True):
        for weight, row in zip(weights, rows, strict=True):
            share[:] = (share + weight * row) % p
    return result


def integers(matrix: NDArray[np.int64], rows: NDArray[np.int64], p: int) -> NDArray[np.int64]:
    """One product of int64 matrices."""
    return matrix @ rows % p


def python(matrix: list[list[int]], rows: list[list[int]], p: int) -> list[list[int]]:
    """Python's integers."""
    columns = list(zip(*rows, strict=True))
    return [[sum(w * x for w, x in zip(weights, c, strict=True)) % p for c in columns] for weights in matrix]


def medians(jobs: dict[str, Callable[[], object]], trials: int) -> dict[str, float]:
    """Median seconds of each job; they take turns, so that a slow moment hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(trials):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def encoding(bits: int, task: Task, trials: int) -> dict[str, Any]:
    """One client's shares: the product alone by each method, and all that the client does before they are sealed."""
    private, survivors = task.colluders, task.clients - task.stragglers
    code = Code(Field(bits), task.dimension, survivors - private, private, task.clients)
    field, matrix = code.field, code.matrix
    rows = field.uniform(code.needed * code.length).reshape(code.needed, code.length)
    wide, wide_rows = matrix.astype(np.int64), rows.astype(np.int64)
    small, small_rows = matrix.tolist(), rows[:, :_PART].tolist()
    shares = field.matmul(matrix, rows)

    jobs: dict[str, Callable[[], object]] = {
        "ours": lambda: field.matmul(matrix, rows),
        "terms": lambda: terms(wide, wide_rows, field.p),
        "python": lambda: python(small, small_rows, field.p),
        "client": lambda: [field.pack(share) for share in code.encode(field.uniform(task.dimension))],
        "decode": lambda: code.decode(range(code.needed), list(shares)),
    }
    agreed = [terms(wide, wide_rows, field.p), np.array(python(small, small_rows, field.p))]
    if 2 * bits + code.needed.bit_length() < 63:
        jobs["integers"] = lambda: integers(wide, wide_rows, field.p)
        agreed.append(integers(wide, wide_rows, field.p))
    if not all(np.array_equal(other, shares[:, : other.shape[1]]) for other in agreed):
        raise SystemExit("the methods disagree")
    seconds = medians(jobs, trials)
    seconds["python"] *= code.length / _PART
    ratios = {name: seconds[name] / seconds["ours"] for name in ("terms", "integers", "python") if name in seconds}
    return {
        "bits": bits,
        "p": field.p,
        "pieces": code.pieces,
        "private": private,
        "seconds": seconds,
        "times_ours": ratios,
        "python_scaled_from_columns": _PART,
    }


def rounds(task: Task) -> dict[str, Any]:
    """One round of each scheme: mean seconds of a client, seconds of the server, mean bytes of a client."""
    updates, result = [np.zeros(task.dimension, np.float32)] * task.clients, {}
    for scheme in (LightSecAgg(task), SwiftAgg(task)):
        scheme.set_up(Net(task.clients))
        net = Net(task.clients)
        scheme.round(updates, net)
        result[scheme.about.name] = {
            "client_seconds": net.total("seconds"),
            "server_seconds": net.server_seconds(),
            "client_bytes_up": net.total("up"),
            "client_bytes_down": net.total("down"),
            "trips": net.trips,
            "bits": scheme.field.bits,
        }
    return result


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the record there, too")
    options = parser.parse_args()
    fifth = options.clients // 5
    task = Task(clients=options.clients, colluders=fifth, stragglers=fifth, dimension=options.dimension)
    record = {
        "conditions": {**bench.conditions(), "threads": os.environ.get("OMP_NUM_THREADS", "all")},
        "dimension": task.dimension,
        "clients": task.clients,
        "colluders": task.colluders,
        "stragglers": task.stragglers,
        "trials": options.trials,
        "encode": [encoding(bits, task, options.trials) for bits in (LightSecAgg(task).field.bits, 31)],
        "round": rounds(task),
    }
    text = json.dumps(record, indent=2)
    if options.out is not None:
        options.out.write_text(text + "\n")
    if options.json:
        print(text)
        return
    print(f"d = {task.dimension}, N = {task.clients}, C̄ = S̄ = {fifth}, median of {options.trials} interleaved trials\n")
    for case in record["encode"]:
        print(f"{case['bits']} bits: the product {case['seconds']['ours']:.3f} s, a client's shares with their mask")
        print(f"  {case['seconds']['client']:.3f} s, decoding {case['seconds']['decode']:.3f} s")
        print(
            "  "
            + ", ".join(f"{name} takes {ratio:.0f} times the product" for name, ratio in case["times_ours"].items())
        )
    for name, found in record["round"].items():
        print(f"{name}: client {found['client_seconds']:.2f} s, server {found['server_seconds']:.2f} s,")
        print(f"  {found['client_bytes_up'] / 1e6:.2f} MB up, {found['client_bytes_down'] / 1e6:.2f} MB down a client")


if __name__ == "__main__":
    main()
