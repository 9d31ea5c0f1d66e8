"""How far float32 moves a sum of clipped gradients, in clips, where all of them are nearly parallel (W6).

python benchmarks/rounding.py [--json]

A sum is compared with the sum in float64 of its terms, each of which `clipped_sums` gives as a client of its own. Terms
that point one way are the worst that is known: sums grow as fast as they can, and what is rounded off with them.
`bound`: (c + 1) n 2^-24 for passes of c records, ten times that for the kernels of WRN-16-4, which are standardised.

The record is records/rounding.json; 1 if a sum is moved further than its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch

from lightdp.training import gradients, models
from lightdp_lab import bench

CASES = (("linear", (1, 8, 8), 20_000, 1), ("cnn", (1, 28, 28), 2000, 1), ("wrn-16-4", (3, 32, 32), 300, 10))
CLIP, SPREAD = 1e-3, 1e-3
PART = 250  # records whose terms are held at once


def measured(name: str, shape: tuple[int, ...], n: int, factor: int) -> dict[str, Any]:
    """One sum of n terms against the exact sum of the same."""
    generator = torch.Generator().manual_seed(0)
    model = models.build(name, shape, 10, seed=0)
    x = torch.rand(shape, generator=generator) + SPREAD * torch.randn((n, *shape), generator=generator)
    y = torch.zeros(n, dtype=torch.long)
    found = gradients.clipped_sums(model, x, y, y, 1, CLIP)[0].double()
    exact, longest = torch.zeros_like(found), torch.zeros_like(found)
    for some in x.split(PART):
        terms = gradients.clipped_sums(model, some, y[: len(some)], torch.arange(len(some)), len(some), CLIP).double()
        exact += terms.sum(0)
        longest += terms.norm(dim=1).sum()
    most = gradients._LINEAR if name == "linear" else gradients._TOGETHER  # noqa: SLF001  what a pass takes
    return {
        "model": name, "shape": shape, "records": n, "clips": float((found - exact).norm()) / CLIP,
        "bound": factor * (most["cpu"] + 1) * n * 2.0**-24, "parallel": float(exact.norm() / longest[0]),
    }  # fmt: skip


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    options = parser.parse_args()
    rows = [measured(*case) for case in CASES]
    if options.json:
        print(json.dumps({"conditions": bench.conditions() | {"torch": torch.__version__}, "rows": rows}, indent=2))
    else:
        for row in rows:
            print(f"{row['model']:10} {row['records']:6} records: {row['clips']:.0e} clips, bound {row['bound']:.0e}")
    return int(any(row["clips"] > row["bound"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
