"""How long the planner of `lightdp ui` takes to answer typical requests, over HTTP on this machine.

Each request differs from those before it, so that none is answered from memory.

Run: python benchmarks/ui.py
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

ASKED: dict[str, Any] = {
    "clients": 50, "colluders": 10, "stragglers": 10, "rounds": 150, "delta": 1e-5, "parameters": 10_000,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "whole batches": {},
    "100,000 clients": {"clients": 100_000, "colluders": 10_000, "stragglers": 10_000},
    "cohorts of 20 of 1,000": {"clients": 20, "colluders": 4, "stragglers": 4, "population": 1000, "unit": "client"},
    "sampled at 0.1, 150 rounds": {"sampling_rate": 0.1},
    "sampled at 0.01, 1,000 rounds": {"sampling_rate": 0.01, "rounds": 1000},
}
TIMES = 7


def answered(base: str, token: str, path: str, asked: dict[str, Any]) -> float:
    """Milliseconds of one request."""
    request = Request(f"{base}{path}?{urlencode(asked)}", headers={"authorization": f"Bearer {token}"})  # noqa: S310  ours
    began = time.perf_counter()
    with urlopen(request) as reply:  # noqa: S310  likewise
        json.load(reply)
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Serve, ask, print."""
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
            print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
            for shift, path in enumerate(("/api/plan", "/api/others")):
                for name, more in CASES.items():
                    each = [ASKED | more | {"epsilon": 2 + 0.13 * k + 0.01 * shift} for k in range(TIMES)]
                    took = [answered(found[1], found[2], path, asked) for asked in each]
                    print(f"{path:12} {name:30} median {statistics.median(took):8.1f} ms, most {max(took):8.1f} ms")
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate()


if __name__ == "__main__":
    main()
