"""How far apart colours are, also to people who see no red or no green: CIEDE2000 after Machado et al. 2009."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_SIGHT = {
    "all": np.eye(3),
    "no red": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(colour: str, sight: str = "all") -> NDArray[np.float64]:
    """L*, a* and b* of "#rrggbb"."""
    part = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    share = _XYZ @ np.clip(_SIGHT[sight] @ linear, 0, 1) / _XYZ.sum(1)
    f = np.where(share > 216 / 24389, np.cbrt(share), (24389 / 27 * share + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """CIEDE2000 of two colours in L*a*b*."""
    chroma = (math.hypot(*one[1:]) + math.hypot(*other[1:])) / 2
    stretch = 1.5 - 0.5 * math.sqrt(chroma**7 / (chroma**7 + 25.0**7))
    (l1, a1, b1), (l2, a2, b2) = ((each[0], each[1] * stretch, each[2]) for each in (one, other))
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = (math.degrees(math.atan2(b, a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    hue = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    light, colour = (l1 + l2) / 2, (c1 + c2) / 2
    wave = (
        1 - 0.17 * math.cos(math.radians(hue - 30)) + 0.24 * math.cos(math.radians(2 * hue))
        + 0.32 * math.cos(math.radians(3 * hue + 6)) - 0.2 * math.cos(math.radians(4 * hue - 63))
    )  # fmt: skip
    parts = (
        (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2)),
        (c2 - c1) / (1 + 0.045 * colour),
        2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn) / 2) / (1 + 0.015 * colour * wave),
    )
    rotation = math.sin(math.radians(60 * math.exp(-(((hue - 275) / 25) ** 2))))
    crossed = -2 * math.sqrt(colour**7 / (colour**7 + 25.0**7)) * rotation * parts[1] * parts[2]
    return math.sqrt(sum(part**2 for part in parts) + crossed)


def nearest(colours: Iterable[str]) -> float:
    """The least difference of two of these colours to anybody."""
    pairs = itertools.product(itertools.combinations(colours, 2), _SIGHT)
    return min(difference(lab(one, sight), lab(other, sight)) for (one, other), sight in pairs)
