"""What becomes of uploads that miss their round, in a model of Flower's nodes, by whom the strategy asks.

python benchmarks/flower_queue.py         a table, in seconds
python benchmarks/flower_queue.py --json  the same as one JSON object

A node answers one message after the other, each in exp(SPREAD·N(0, 1)) units of time, and SLOWFACTOR times as long for
a fixed share of nodes. A round ends at its deadline, or when all that it waits for have answered. Grace is 1.
`flower_late.py` measures the same on Flower's simulation engine, where the machine's own speed counts too.

behind: nodes that missed two rounds in a row are asked when they have answered (`lightdp.flower._run.Run.orders`).
all: every node is asked in every round.

missed: uploads that had not come when their round ended, as a share of those asked for.
joined, late, never: what became of them.
in model: uploads in the model, as a share of nodes times rounds.
too late: of the clients that are in no final set, the share whose upload was seen later still: the plan's `late`.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

NODES, ROUNDS = 50, 300
SILENT = 3  # rounds after which a node is asked again although it has not answered
CASES = {  # spread, deadline, share of slow nodes, how much slower, share of answers that get lost
    "a tenth is late by chance": (0.35, 1.57, 0.0, 1.0, 0.0),
    "and one in fifty is lost": (0.35, 1.57, 0.0, 1.0, 0.02),
    "three tenths are late by chance": (0.35, 1.2, 0.0, 1.0, 0.0),
    "a tenth is late, with a heavy tail": (1.0, 3.6, 0.0, 1.0, 0.0),
    "a sixth is 1.3 times slower": (0.1, 1.15, 1 / 6, 1.3, 0.0),
    "a sixth is 1.6 times slower": (0.1, 1.3, 1 / 6, 1.6, 0.0),
    "a sixth is 3 times slower": (0.1, 1.3, 1 / 6, 3.0, 0.0),
    "a tenth is twice as slow, and chance": (0.35, 1.57, 0.1, 2.0, 0.0),
}
COLUMNS = ("missed", "joined", "late", "never", "in model", "too late")


def play(case: str, *, behind: bool) -> dict[str, float]:
    """One training; `behind` says whether nodes that fall behind are left out for a while."""
    spread, deadline, fraction, factor, lost = CASES[case]
    draw = np.random.default_rng(0)
    slower = np.where(np.arange(NODES) < round(fraction * NODES), factor, 1.0)
    shape = ROUNDS, NODES
    asked, on_time, done = np.zeros(shape, bool), np.zeros(shape, bool), np.full(shape, np.inf)  # when an answer comes
    free, missed, ends, now = np.zeros(NODES), np.zeros(NODES, int), np.zeros(ROUNDS + 1), 0.0
    for t in range(ROUNDS):
        recent = slice(max(t + 1 - SILENT, 0), t)
        works = (asked[recent] & (done[recent] > now)).any(axis=0)
        asked[t] = ~(works & (missed > 1)) if behind else True
        ready = np.maximum(free, now) + slower * np.exp(spread * draw.standard_normal(NODES))
        free = np.where(asked[t], ready, free)
        arrives = asked[t] & (draw.random(NODES) >= lost)
        done[t] = np.where(arrives, ready, np.inf)
        last = done[t - 1][asked[t - 1] & ~asked[t]] if t > 0 else np.empty(0)  # not asked now, and waited for
        now = ends[t] = min(now + deadline, max(done[t][asked[t]].max(), last.max(initial=0.0)))
        on_time[t] = done[t] <= now
        missed = np.where(asked[t], np.where(on_time[t], 0, missed + 1), missed)
    ends[ROUNDS] = now + deadline
    late = asked & ~on_time
    joined = late & (done <= ends[1:, None])
    never = late & np.isinf(done)
    seen = late & ~joined & ~never
    out = ~(on_time | joined)
    count = max(int(late.sum()), 1)
    return {
        "missed": float(late.sum() / asked.sum()),
        "joined": float(joined.sum() / count),
        "late": float(seen.sum() / count),
        "never": float(never.sum() / count),
        "in model": float(1 - out.mean()),
        "too late": float(seen.sum() / max(int(out.sum()), 1)),
    }


def main() -> None:
    """Play all cases, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    arguments = parser.parse_args()
    found = {case: {who: play(case, behind=who == "behind") for who in ("behind", "all")} for case in CASES}
    if arguments.json:
        print(json.dumps({"nodes": NODES, "rounds": ROUNDS, "cases": found}, indent=2))
        return
    print(f"{NODES} nodes, {ROUNDS} rounds{'':24}" + "".join(f"{name:>10}" for name in COLUMNS))
    for case, rows in found.items():
        for who, row in rows.items():
            print(f"{f'{case}, {who}':46}" + "".join(f"{row[name]:10.1%}" for name in COLUMNS))


if __name__ == "__main__":
    main()
