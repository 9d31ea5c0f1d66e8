"""Whether a client holds its clip: an update far beyond it is sent, and the norm of what comes back is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from lightdp.auditing._stage import Stage, coins, made, widened
from lightdp.auditing._stories import Telling
from lightdp.auditing._view import VICTIM, View
from lightdp.planning import Plan

_CLEAR = 40.0  # standard deviations at which an update that is not clipped shows
_LENGTHS = (1024, 1_000_000)


@dataclass(frozen=True)
class Clip:
    """The norm of an update that went in far beyond the clip.

    Attributes:
        clip: what the plan says.
        norm: lower and upper end of its norm in the upload, along its direction.
    """

    clip: float
    norm: tuple[float, float]

    @property
    def holds(self) -> bool:
        """Whether the clip lies above the lower end."""
        return self.norm[0] <= self.clip


def clip_held(plan: Plan, level: float, threads: int | None) -> Clip | None:
    """Measure the clip of the victim; None for unit "record", where the application clips each record itself.

    All coordinates of the update are at the end of their range, with random signs: its norm is far beyond the clip, and
    its direction is known. Along it the upload is the clipped norm plus Gaussian noise of a known variance: an exact
    interval, which misses the norm with probability `level`.
    """
    if plan.unit != "client":
        return None
    wide = widened(plan, "client")
    view = View(plan, [Telling(VICTIM, ())])
    spread = math.sqrt(float(view.covariance(plan.sigma_individual**2, plan.sigma_pairwise**2)[0, 0]))
    length = min(max(math.ceil((_CLEAR * spread / wide.upload_range) ** 2), _LENGTHS[0]), _LENGTHS[1])
    stage = Stage(wide, view, length, threads)
    signs = np.where(coins(length), 1.0, -1.0)
    upload = stage.ask(view.uploads[0], signs * wide.upload_range)
    found = float(signs @ upload) / math.sqrt(length)
    width = float(-ndtri(level / 2)) * math.sqrt(float(view.covariance(*made(stage.grid))[0, 0]))
    return Clip(plan.clip, (max(found - width, 0.0), max(found + width, 0.0)))  # a norm is not negative
