"""Random schedules of federations, many more than the tests run; a finding is any exception, with its case and seed.

Members come, go and crash, messages are late, lost, repeated and bound to another model, and the server dies. After
each step the ledgers, the sums and the masks are compared with what must be true (tests/support/federated.py).

Run: PYTHONPATH=tests python benchmarks/fuzz_federation.py --schedules 100000 --first 1000 --seconds 240
    --out benchmarks/records/fuzz_federation.json (`--case grace` runs one kind alone)
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from pathlib import Path

from lightdp_lab import bench
from support.federated import CASES, scheduled


def main() -> None:
    """Run the schedules of each case in turn and say what they held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to stop at the latest")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--case", choices=CASES, action="append", help="by default all but sampled, which takes long")
    parser.add_argument("--out", type=Path, help="JSON file of the record")
    asked = parser.parse_args()
    cases = asked.case or [case for case in CASES if case != "sampled"]
    began, held, by_case = time.monotonic(), Counter[str](), Counter[str]()
    for at in range(asked.schedules):
        if time.monotonic() - began > asked.seconds:
            break
        case, seed = cases[at % len(cases)], asked.first + at // len(cases)
        try:
            world = scheduled(case, seed, asked.steps)
        except BaseException:
            print(f"case {case}, seed {seed}, steps {asked.steps}")
            raise
        by_case[case] += 1
        held.update(schedules=1, uploads=len(world.sent), crashes=world.crashed)
        left_out = sum(len(ballot.left_out) for book in world.books.values() for ballot in book.ballots.values())
        held.update(rosters=len(world.books), equal=world.equal, left_out=left_out)
    seconds = round(time.monotonic() - began)
    print(f"{seconds} s: {dict(held)}")
    if asked.out is not None:
        settings = {"first": asked.first, "steps": asked.steps, "seconds": seconds, "conditions": bench.conditions()}
        record = settings | held | {"findings": 0, "by case": by_case}  # a finding ends it without a record
        asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
