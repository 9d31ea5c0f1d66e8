"""Privacy loss distributions of sampled Gaussian noise, as arrays on a grid of losses.

If one output has density P with a record and Q without it, the privacy loss of an output o is log P(o)/Q(o), and its
distribution under P determines δ(ε) = E[max(0, 1 − e^(ε − loss))]. Losses of rounds add up, so distributions convolve.

Formal guarantee, up to rounding errors that `lightdp.sampling` bounds: the δ(ε) of a distribution here is never below
that of the rounds it stands for. It is exact on the grid and above the exact one between its points ("Connect the
Dots", Doroshenko et al., 2022), and tails that are cut off count as infinite loss. Grid and tails are those of
dp-accounting. Three things differ, for speed: where the grid has many points, one round is computed at some
of them, which bounds it from above for the same reason; all rounds are composed by one transform; and of that, only
the coefficients are computed that many rounds do not make vanish, if they are few.

>>> kinds = [sampled(1.0, rate=0.01, direction=each, step=2.0**-12) for each in directions("add-remove", 0.01)]
>>> [round(composed([(each, 100)]).epsilon(1e-5), 2) for each in kinds]
[0.72, 0.34]
"""

from lightdp.privacy_loss._composition import composed, window
from lightdp.privacy_loss._distributions import LossDistribution, Losses, SmoothLosses
from lightdp.privacy_loss._sampled import Adjacency, Direction, directions, sampled

__all__ = [
    "Adjacency",
    "Direction",
    "LossDistribution",
    "Losses",
    "SmoothLosses",
    "composed",
    "directions",
    "sampled",
    "window",
]
