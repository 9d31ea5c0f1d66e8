"""CPU seconds of `lightdp --help` and of a plan as JSON, each a process of its own, user and system time together.

The minimum is the claim: other work on the machine only adds to it.

python benchmarks/startup.py [--repeats 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from typing import Any

from lightdp_lab import bench

PLAN = "plan --clients 50 --colluders 10 --stragglers 10 --rounds 150 --epsilon 3 --delta 1e-5 --json"
COMMANDS = {"lightdp --help": ("--help", 0.35), f"lightdp {PLAN}": (PLAN, 0.6)}  # with their limits in seconds


def cpu_seconds(arguments: str) -> float:
    """User and system time of one call."""
    command = [sys.executable, "-m", "lightdp", *arguments.split()]
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    _, status, usage = os.wait4(os.posix_spawn(sys.executable, command, os.environ, file_actions=quiet), 0)
    if status != 0:
        raise SystemExit(f"failed with status {status}: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    conditions = bench.conditions()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.repeats + 1):  # the first turn fills the file cache
        for name, (arguments, _limit) in COMMANDS.items():
            times[name].append(cpu_seconds(arguments))
    rows: list[dict[str, Any]] = [
        {
            "command": name,
            "minimum_s": min(times[name][1:]),
            "median_s": statistics.median(times[name][1:]),
            "limit_s": limit,
            "holds": min(times[name][1:]) <= limit,
        }
        for name, (_, limit) in COMMANDS.items()
    ]
    if options.json:
        print(json.dumps({"conditions": conditions, "repeats": options.repeats, "rows": rows}, indent=1))
    else:
        print(
            f"{conditions['cpu']}, {conditions['cores']} cores, load {conditions['load']}; {options.repeats} calls each"
        )
        for row in rows:
            print(
                f"{row['minimum_s']:.3f} s (median {row['median_s']:.3f} s, limit {row['limit_s']} s)  {row['command']}"
            )
    sys.exit(not all(row["holds"] for row in rows))


if __name__ == "__main__":
    main()
