"""Random schedules of federations, many more than the tests run; a finding is any exception, with its case and seed.

PYTHONPATH=tests python benchmarks/fuzz_federation.py --schedules 2000 --first 1000 [--seconds 600] [--case grace]
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter

from support.federated import CASES, scheduled


def main() -> None:
    """Run the schedules of each case in turn and say what they held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to stop at the latest")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--case", choices=CASES, action="append", help="by default all but sampled, which takes long")
    asked = parser.parse_args()
    cases = asked.case or [case for case in CASES if case != "sampled"]
    began, held = time.monotonic(), Counter[str]()
    for at in range(asked.schedules):
        if time.monotonic() - began > asked.seconds:
            break
        case, seed = cases[at % len(cases)], asked.first + at // len(cases)
        try:
            world = scheduled(case, seed, asked.steps)
        except BaseException:
            print(f"case {case}, seed {seed}, steps {asked.steps}")
            raise
        held.update(schedules=1, uploads=len(world.sent), crashes=world.crashed)
        held.update(rosters=len(world.books), equal=world.equal)
    print(f"{time.monotonic() - began:.0f} s: {dict(held)}")


if __name__ == "__main__":
    main()
