"""A private linear model on two sets of features side by side: those of scattering, and those of a start.

Neither set depends on data: a record's features follow from it alone, so that they cost no
privacy, as long as they are made on a CPU: on CUDA those of scattering also depend on their places, by rounding (W6).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightdp.runlog import Line
from lightdp.training import fast, models
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from lightdp_lab.prior import finetune, start
from lightdp_lab.results import summary

SCALE = 14.0
"""What features of a start are multiplied by; then both sets are about equally long."""


def features(path: Path, source: Dataset, device: torch.device | str, scale: float) -> tuple[Tensor, Tensor]:
    """Of training and test images: scattering features, then those of the start times `scale`. (n, width)

    Of both sets it is the mean over an image and its mirror image.

    Args:
        path: the start.
        source: images.
        device: where.
        scale: see `SCALE`; 0 leaves the start out.
    """
    body = finetune.begun(path, start.read(path)[1].get("model", "wrn-16-4"), source.classes)[:-1].to(device)

    def both(images: Tensor) -> Tensor:
        maps = models.prepare("scattering-linear", images, device, mirror=True).flatten(1)
        if scale == 0:
            return maps
        images = images.to(device)
        own = (fast.outputs(body, images) + fast.outputs(body, images.flip(3))) * (scale / 2)
        return torch.cat([maps, own], 1)

    train, test = (both(torch.from_numpy(x)) for x in (source.train_x, source.test_x))
    return train, test


def trial(
    config: Config, path: Path, folder: Path, source: Dataset, prepared: tuple[Tensor, Tensor], *, scale: float,
    note: str = "", watch: Callable[[Line], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """One run on such features; its line is kept, and is not run again.

    Args:
        config: the settings, of scattering + linear.
        path: the start.
        folder: of the results; lines are in its folder `extras`, or `held-out`.
        source: the data.
        prepared: what `features` made of it.
        scale: with which.
        note: as for `finetune.trial`.
        watch: called with each line of the log.
    """
    facts = {"start": finetune.digest(path), "scale": scale, "note": note}
    folder = folder if scale == SCALE else folder / f"scale-{scale:g}"  # apart from what pages are made of

    def play(log: Path, *, resume: bool) -> dict[str, Any]:
        run = Run(config, log, resume=resume, dataset=source, prepared=prepared)
        return summary(run, run.finish(watch)) | facts | {"made_by": start.read(path)[1].get("command")}

    return finetune.once(folder / ("held-out" if note else "extras"), config, facts, play)
