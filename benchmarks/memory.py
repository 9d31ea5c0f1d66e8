"""Peak memory of `lightdp run` on the digits as clients grow, each run a process of its own.

python benchmarks/memory.py [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lightdp_lab import bench

ROUNDS, LIMIT = 20, 2.0  # GB, for 1000 clients
RUNS = {
    "20 clients": ["--clients", "20", "--colluders", "4", "--stragglers", "4"],
    "1000 clients": ["--clients", "1000", "--colluders", "200", "--stragglers", "200"],
    "100 clients, protocol": [
        *("--clients", "100", "--colluders", "20", "--stragglers", "20"),
        *("--fidelity", "protocol"),
    ],
}


def measured(options: list[str]) -> dict[str, float]:
    """Seconds and peak resident GB of one run."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "run.jsonl")
        command = [
            sys.executable,
            "-c",
            "import lightdp.cli; lightdp.cli.main()",
            "run",
            "--rounds",
            str(ROUNDS),
            "--out",
            out,
            *options,
        ]
        quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, 1, 2)]
        _, status, usage = os.wait4(os.posix_spawn(sys.executable, command, os.environ, file_actions=quiet), 0)
        if status != 0:
            raise SystemExit(f"failed with status {status}: {' '.join(command)}")
        rounds = json.loads(Path(out).read_text().splitlines()[-1])["rounds"]
    return {"gb": usage.ru_maxrss * 1024 / 1e9, "seconds": time.perf_counter() - begun, "rounds": rounds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    runs = {name: measured(options) for name, options in RUNS.items()}
    holds = runs["1000 clients"]["gb"] < LIMIT
    record: dict[str, Any] = {"conditions": bench.conditions(), "runs": runs, "claim": {"gb": LIMIT, "holds": holds}}
    if as_json:
        print(json.dumps(record, indent=2))
        return
    for name, row in runs.items():
        print(f"{name:24}{row['gb']:6.2f} GB{row['seconds']:8.1f} s, {row['rounds']} rounds")
    print(f"1000 clients in less than {LIMIT:g} GB: {'yes' if holds else 'NO'}")


if __name__ == "__main__":
    main()
