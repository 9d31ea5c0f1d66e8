"""What homomorphic encryption costs a parameter: threshold Paillier and CKKS, one round each.

python benchmarks/he.py [--dimension 10000] [--clients 50] [--colluders 10] [--stragglers 10] [--json]

Seconds are those of the processor, one core, so that busy neighbours count little; a client's seconds and bytes are
medians over those who did the work. Figures at 1.1e7 parameters are not measured: they are taken as linear in the
number of ciphertexts.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import time
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import gmpy2
import numpy as np

from lightdp_lab.bench import conditions
from lightdp_lab.schemes import Net, Task
from lightdp_lab.schemes._threshold import Key
from lightdp_lab.schemes.ckks import Ckks
from lightdp_lab.schemes.paillier import Paillier

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 11_000_000
COLUMNS = ("upload_seconds", "upload_bytes", "decrypt_seconds", "decrypt_bytes", "server_seconds")


class Processor(Net):
    """Counts seconds of the processor."""

    @contextmanager
    def client(self, client: int) -> Iterator[None]:
        """Time a client's work."""
        begun = time.process_time()
        yield
        self.stages[-1].seconds[client] += time.process_time() - begun

    @contextmanager
    def server(self) -> Iterator[None]:
        """Time the server's work."""
        begun = time.process_time()
        yield
        self.stages[-1].server += time.process_time() - begun


def measure(scheme: Paillier | Ckks, each: int) -> dict[str, Any]:
    """One round of a scheme with `each` values to a ciphertext."""
    task = scheme.task
    set_up, net = Processor(task.clients), Processor(task.clients)
    scheme.set_up(set_up)
    drawn = np.random.default_rng(0).normal(size=(task.clients, task.dimension))
    given = list((drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32))
    result = scheme.round(given, net)
    error = float((result.total - np.sum(given, axis=0)).var())
    upload, decrypt = net.stages
    costs = {
        "upload_seconds": statistics.median(upload.seconds.values()),
        "upload_bytes": statistics.median(upload.up.values()),
        "decrypt_seconds": statistics.median(decrypt.seconds.values()),
        "decrypt_bytes": statistics.median(decrypt.up[i] + decrypt.down[i] for i in decrypt.seconds),
        "server_seconds": net.server_seconds(),
    }
    factor = -(-LARGE // each) / -(-task.dimension // each)
    return {
        "values_a_ciphertext": each,
        "set_up": {"dealer_seconds": set_up.server_seconds(), "client_seconds": set_up.total("seconds")},
        "clients_that_decrypt": len(decrypt.seconds),
        "noise_found_over_expected": error / scheme.noise(len(result.used)),
        "a_parameter": {key: value / task.dimension for key, value in costs.items()},
        f"EXTRAPOLATED_not_measured_at_{LARGE}": {key: value * factor for key, value in costs.items()},
    }


def blinding(trials: int = 51) -> dict[str, float]:
    """Median seconds (of the processor) of one ciphertext at 2048 bits: blinded by the table, and by a fresh r^n."""
    n = gmpy2.mpz(secrets.randbits(2048) | 1 | 1 << 2047)  # as fast as any other
    key = Key(n, gmpy2.powmod(3, n, n * n))
    value, _ = gmpy2.mpz(secrets.randbits(2000)), key.powers
    table, fresh = [], []
    for _ in range(trials):
        begun = time.process_time()
        key.encrypt(value)
        table.append(time.process_time() - begun)
        begun = time.process_time()
        (1 + n * value) * gmpy2.powmod(secrets.randbelow(int(n)), n, key.square) % key.square
        fresh.append(time.process_time() - begun)
    a, b = statistics.median(table), statistics.median(fresh)
    return {"table_seconds": a, "fresh_seconds": b, "fresh_over_table": b / a}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--colluders", type=int, default=10)
    parser.add_argument("--stragglers", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    task = Task(**options)
    paillier = Paillier(task)
    record = {
        "conditions": {**conditions(), "gmpy2": gmpy2.version(), "tenseal": version("tenseal")},
        **options,
        "paillier_blinding": blinding(),
        "schemes": {"paillier": measure(paillier, paillier.slots.each), "ckks": measure(Ckks(task), 4096)},
    }
    if as_json:
        print(json.dumps(record, indent=2))
        return
    print(f"N = {task.clients}, d = {task.dimension}; {record['conditions']}\n")
    print("| scheme | what | " + " | ".join(column.replace("_", " ") for column in COLUMNS) + " |")
    print("| --- " * (len(COLUMNS) + 2) + "|")
    for name, row in record["schemes"].items():
        for what, values in row.items():
            if what == "a_parameter" or what.startswith("EXTRAPOLATED"):
                cells = " | ".join(f"{values[column]:.3g}" for column in COLUMNS)
                print(f"| {name} | {what.replace('_', ' ')} | {cells} |")
    print(f"\nPaillier's blinding, {record['paillier_blinding']['fresh_over_table']:.1f} x faster from its table")


if __name__ == "__main__":
    main()
