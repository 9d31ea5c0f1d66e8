"""How long the planner of `lightdp ui` takes to answer typical requests, over HTTP on this machine.

Each request differs from those before it, so that none is answered from memory. "/api/plan" gives the numbers of a
plan, "/api/others" all schemes side by side; a page asks for both after every change, and here neither knows what the
other computed. The first request of a case counts as the others do.

Run: python benchmarks/ui.py [--repeats 7] [--out benchmarks/records/ui.json]
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from lightdp_lab import bench

ASKED: dict[str, Any] = {
    "clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "delta": 1e-5, "parameters": 10_000,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "whole batches": {},
    "100,000 clients": {"clients": 100_000, "colluders": 10_000, "stragglers": 10_000},
    "cohorts of 20 of 1,000": {"clients": 20, "colluders": 4, "stragglers": 4, "population": 1000, "unit": "client"},
    "sampled at 0.1, 150 rounds": {"sampling_rate": 0.1},
    "sampled at 0.16, 410 rounds": {"sampling_rate": 0.16, "rounds": 410},
    "sampled at 0.01, 1,000 rounds": {"sampling_rate": 0.01, "rounds": 1000},
    "sampled at 0.01, 1,000 rounds, replaced records": {"sampling_rate": 0.01, "rounds": 1000, "adjacency": "replace"},
    "sampled at 0.001, 10,000 rounds": {"sampling_rate": 0.001, "rounds": 10_000},
    "sampled at 0.001, 10,000 rounds, replaced records": {
        "sampling_rate": 0.001, "rounds": 10_000, "adjacency": "replace",
    },
    "sampled at 0.001, 10,000 rounds, ε 20": {"sampling_rate": 0.001, "rounds": 10_000, "epsilon": 20},
    "sampled at 0.1, 10,000 rounds, ε 20": {"sampling_rate": 0.1, "rounds": 10_000, "epsilon": 20},
    "sampled at 0.01, 10,000 rounds, ε 20, replaced records": {
        "sampling_rate": 0.01, "rounds": 10_000, "epsilon": 20, "adjacency": "replace",
    },
}  # fmt: skip
LIMIT = 200.0  # milliseconds at the median


def answered(base: str, token: str, path: str, asked: dict[str, Any]) -> float:
    """Milliseconds of one request."""
    request = Request(f"{base}{path}?{urlencode(asked)}", headers={"authorization": f"Bearer {token}"})  # noqa: S310  ours
    began = time.perf_counter()
    with urlopen(request) as reply:  # noqa: S310  likewise
        json.load(reply)
    return 1000 * (time.perf_counter() - began)


def measured(base: str, token: str, repeats: int) -> list[dict[str, Any]]:
    """One row for each path and case."""
    rows = []
    for shift, path in enumerate(("/api/plan", "/api/others")):
        for name, more in CASES.items():
            least = more.get("epsilon", 2)
            each = [ASKED | more | {"epsilon": least + 0.9 * k / repeats + 0.01 * shift} for k in range(repeats)]
            took = [answered(base, token, path, asked) for asked in each]
            median = statistics.median(took)
            rows.append(
                {
                    "path": path, "case": name, "first_ms": round(took[0], 1), "median_ms": round(median, 1),
                    "most_ms": round(max(took), 1), "holds": median <= LIMIT,
                }
            )  # fmt: skip
    return rows


def main() -> None:
    """Serve, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where to write the record")
    options = parser.parse_args()
    conditions = bench.conditions()
    with tempfile.TemporaryDirectory() as folder:
        words = ["ui", folder, "--port", "0", "--no-browser", "--token-file", f"{folder}/token"]
        server = subprocess.Popen([sys.executable, "-m", "lightdp", *words], stdout=subprocess.PIPE, text=True)  # noqa: S603
        try:
            found = (
                None if server.stdout is None else re.search(r"(http://[^/]+)/.*token=(\S+)", server.stdout.readline())
            )
            if found is None:
                sys.exit("the server did not start")
            time.sleep(2)  # it plans for a new page first
            rows = measured(found[1], found[2], options.repeats)
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate()
    print(
        f"{conditions['cpu']}, {conditions['cores']} cores, load {conditions['load']}; {options.repeats} requests each"
    )
    for row in rows:
        print(
            f"{row['path']:12} {row['case']:54} first {row['first_ms']:7.1f} ms, median {row['median_ms']:7.1f} ms, "
            f"most {row['most_ms']:7.1f} ms"
        )
    if options.out is not None:
        record = {"conditions": conditions, "repeats": options.repeats, "limit_ms": LIMIT, "rows": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
