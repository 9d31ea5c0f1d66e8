"""The settings of a start from noise, stated once: flags, and the command that the file of the start has."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from lightdp._settings import described, setting
from lightdp._validate import integer, number, positive
from lightdp.errors import ArgumentError


@described
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a start is made. Equal recipes give equal starts on a CPU; on a GPU they differ by the order of sums.

    >>> Recipe(batch=1)
    Traceback (most recent call last):
      ...
    lightdp.errors.ArgumentError: batch must be >= 2, got batch=1
    """

    model: str = setting("Model with a linear last layer, for images of 32 × 32.", "wrn-16-4")
    steps: int = setting("Steps of the training.", 12_000)
    batch: int = setting("Images of a step; each gives two views.", 1024)
    lr: float = setting("Largest learning rate of AdamW; it rises, then falls as a cosine.", 2e-3)
    decay: float = setting("Weight decay of AdamW.", 1e-3)
    temperature: float = setting("Of the contrastive loss: how much the most similar images count.", 0.1)
    leaves: float = setting("Share of dead leaves; the other images are of untrained generators.", 0.6)
    side: int = setting("Height and width of images before they are cropped: a power of two from 8.", 64)
    smallest: float = setting("Least share of an image that a crop shows.", 0.08)
    jitter: float = setting("How much brightness, contrast and saturation change.", 0.4)
    pool: int = setting("Images that wait.", 65_536)
    fresh: int = setting("Images of the pool that are made anew in each step.", 64)
    seed: int = setting("Of all random numbers.", 0)

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 2), ("pool", 1), ("fresh", 0), ("seed", 0), ("side", 8)):
            integer(name, getattr(self, name), least)
        for name in ("lr", "temperature"):
            positive(name, getattr(self, name))
        for name, largest in (("leaves", 1.0), ("smallest", 1.0), ("jitter", 1.0), ("decay", math.inf)):
            if not 0 <= number(name, getattr(self, name)) <= largest:
                raise ArgumentError(f"{name} must be in [0, {largest:g}], got {name}={getattr(self, name):g}")
        if self.side & (self.side - 1) != 0:
            raise ArgumentError(f"side must be a power of two, got side={self.side}")
        if self.fresh > self.pool:
            raise ArgumentError(f"fresh must be at most pool={self.pool}, got fresh={self.fresh}")

    @property
    def command(self) -> str:
        """What to type to make it again.

        >>> Recipe(steps=500).command
        'lightdp prior make --steps 500'
        """
        fields = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
        return " ".join(
            ["lightdp prior make", *(f"--{name} {value}" for name, value, usual in fields if value != usual)]
        )
