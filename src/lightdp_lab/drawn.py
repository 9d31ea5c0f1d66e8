"""Finds discrete Gaussians in the law of drawn masks (B2), by a linear program: `python -m lightdp_lab.drawn`.

What it prints is, but for the last digits and a few places, `lightdp.drawn._parts`. Nothing hangs on how that was
found: tests check in 60 digits that the Gaussians are in the law.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from scipy.optimize import linprog

from lightdp import drawn

WIDEST = 11.5, 123
NARROW = 9.0, 7.5, 6.0, 4.75, 3.5, 2.75
_LOST = 3.0  # what a lost mask counts, beside 1/σ² for one of width σ
_SCALE = 2**50
_EDGE = 127


def find() -> list[tuple[float, int, dict[int, int]]]:
    """Widths, reaches and the probabilities of places, in units of 2^-50, that count least."""
    law = drawn.counts() / 2**drawn.BITS
    here = np.minimum(law[128:], np.append(law[128], law[127:0:-1]))  # both signs must have it
    widths = [WIDEST, *((sigma, math.ceil((10.4 if sigma > 5 else 10.2) * sigma)) for sigma in NARROW)]
    x, columns, facts = np.arange(_EDGE + 1), [], []
    for sigma, reach in widths:
        shape = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
        padded = np.pad(shape / shape.sum(), 3 * _EDGE)
        for place in range(_EDGE - reach + 1):
            both = sum(padded[3 * _EDGE + reach + x - at] for at in {place, -place})
            columns.append(both)
            facts.append((sigma, reach, place, 2 if place else 1))
    size = np.array([max(here[place], 1e-12) for _, _, place, _ in facts])
    matrix = np.array(columns).T * size / here[:, None]
    price = np.array([times * (1 / sigma**2 - _LOST) for sigma, _, _, times in facts]) * size * WIDEST[0] ** 2
    found = linprog(price, A_ub=matrix, b_ub=np.ones(_EDGE + 1), method="highs-ds").x
    chances = found / max(1.0, float((matrix @ found).max())) * (1 - 2e-9) * size
    parts = []
    for sigma, reach in widths:
        places = {
            place: int(chance * _SCALE)
            for (width, _, place, _), chance in zip(facts, chances, strict=True)
            if width == sigma and chance * _SCALE >= 1
        }
        if places:
            parts.append((sigma, reach, places))
    return parts


if __name__ == "__main__":
    for each in find():
        sys.stdout.write(f"    {each},\n")
