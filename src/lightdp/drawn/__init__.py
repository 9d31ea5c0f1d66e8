"""(B2): masks that are drawn from 24 bits of keystream, and what it costs that they are not quite Gaussian.

`lightdp.stream.Draw` makes the values. Here are their law, the Gaussians that are found in it (`PARTS`), and what a
ledger must count so that (R1), (R2) and (W5) hold with drawn masks as they do with Gaussian ones.

>>> round(VARIANCE / SIGMA**2, 4), round(LOST * 1e5, 2)
(1.1348, 1.09)
>>> round(cost(7.6, honest=40, stragglers=10, most=200, delta=1e-5, fails=1e-6), 3)
0.104
"""

from lightdp.drawn._cost import COVERED, VALUES_MAX, cost, lost_costs, room
from lightdp.drawn._law import (
    BITS,
    GAMMA_MAX,
    KAPPA,
    LOST,
    PARTS,
    SIGMA,
    VARIANCE,
    Part,
    beyond,
    counts,
    fits,
    log_moment,
    unit,
)

__all__ = [
    "BITS",
    "COVERED",
    "GAMMA_MAX",
    "KAPPA",
    "LOST",
    "PARTS",
    "SIGMA",
    "VALUES_MAX",
    "VARIANCE",
    "Part",
    "beyond",
    "cost",
    "counts",
    "fits",
    "log_moment",
    "lost_costs",
    "room",
    "unit",
]
