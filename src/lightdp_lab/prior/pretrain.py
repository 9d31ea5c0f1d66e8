"""The contrastive training on images of random processes: from a `Recipe` to the weights of a start.

Images wait in a pool, a part of which is made anew in every step. A step takes two views of each image of a batch, and
moves features so that the two views of an image resemble each other more than those of different images (SimCLR).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from lightdp._validate import positive
from lightdp.errors import ArgumentError
from lightdp.training import fast, models
from lightdp_lab.prior import processes, start
from lightdp_lab.prior.augment import view
from lightdp_lab.prior.recipe import Recipe

SIDE = 32  # of views, as CIFAR-10's images
_OUTPUTS = 128  # of the head that the loss sees
_WHITENED = 2048  # images whose features the map after the layers is made for
_LOOK, _SAVE = 20, 60.0  # steps between two looks at the loss and the clock; seconds between two writings of the file


@dataclass(frozen=True)
class Made:
    """How far a pretraining is: steps done of how many, the loss of late, views a second."""

    step: int
    steps: int
    loss: float
    rate: float


class Pretraining:
    """A model in training on images that no camera took.

    Args:
        recipe: how.
        device: where; bfloat16 on CUDA.
    """

    def __init__(self, recipe: Recipe, device: torch.device | str) -> None:
        self.recipe, self.device = recipe, torch.device(device)
        self.draw = torch.Generator(self.device).manual_seed(recipe.seed)
        model = models.build(recipe.model, (3, SIDE, SIDE), 10, recipe.seed)
        if not isinstance(model, nn.Sequential) or not isinstance(model[-1], nn.Linear) or recipe.model == "linear":
            raise ArgumentError(f"model must have layers before its last linear one, got model={recipe.model!r}")
        self.model = fast.with_norms(model.to(self.device, memory_format=torch.channels_last))
        self.body = self.model[:-1]
        width = model[-1].in_features
        self.head = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, _OUTPUTS))
        self.head.to(self.device)
        with torch.no_grad():
            for layer in (self.head[0], self.head[2]):
                layer.weight.normal_(0, math.sqrt(2 / layer.in_features), generator=self.draw)
                layer.bias.zero_()
        weights = [*self.body.parameters(), *self.head.parameters()]
        fused = {"fused": True} if self.device.type == "cuda" else {}
        self.optimiser = torch.optim.AdamW(weights, lr=recipe.lr, weight_decay=recipe.decay, betas=(0.9, 0.98), **fused)
        self.pool = self._images(recipe.pool)
        self.renewed = 0

    def step(self, share: float) -> Tensor:
        """One step, at this share of the largest learning rate; the loss, still on the device."""
        recipe = self.recipe
        self._renew()
        chosen = torch.randint(recipe.pool, (recipe.batch,), generator=self.draw, device=self.device)
        images = self.pool[chosen].float().div_(255)
        views = torch.cat([
            view(images, SIDE, self.draw, smallest=recipe.smallest, jitter=recipe.jitter) for _ in range(2)
        ]).contiguous(memory_format=torch.channels_last)  # fmt: skip
        self.optimiser.zero_grad(set_to_none=True)
        cuda = self.device.type == "cuda"
        with torch.backends.cudnn.flags(enabled=True, benchmark=cuda):
            with torch.autocast(self.device.type, torch.bfloat16, enabled=cuda):
                features = self.head(self.body(views))
            loss = contrast(features.float(), recipe.temperature)
            loss.backward()
        for group in self.optimiser.param_groups:
            group["lr"] = share * recipe.lr
        self.optimiser.step()
        return loss.detach()

    def weights(self) -> dict[str, Tensor]:
        """Those of the layers before the last one, by their names in the model, and of the map that follows them."""
        last = {id(value) for value in self.model[-1].parameters()}
        body = {name: value.detach() for name, value in self.model.named_parameters() if id(value) not in last}
        matrix, bias = start.whitening(self._features())
        place = len(self.model) - 1
        return body | {f"{place}.weight": matrix, f"{place}.bias": bias}

    def _features(self) -> Tensor:
        """Of views of new images, always the same. (n, width)"""
        recipe, draw = self.recipe, torch.Generator(self.device).manual_seed(self.recipe.seed + 1)
        images = processes.sample(min(recipe.pool, _WHITENED), recipe.side, draw, leaves=recipe.leaves)
        views = view(images, SIDE, draw, smallest=recipe.smallest, jitter=recipe.jitter)
        with torch.no_grad():
            return torch.cat([self.body(part) for part in views.split(256)])

    def _images(self, count: int) -> Tensor:
        parts = (min(4096, count - at) for at in range(0, count, 4096))
        made = (processes.sample(part, self.recipe.side, self.draw, leaves=self.recipe.leaves) for part in parts)
        return torch.cat([images.mul_(255).round_().to(torch.uint8) for images in made])

    def _renew(self) -> None:
        """Make some images of the pool anew, many at once, as often as it takes."""
        many = min(self.recipe.pool, 16 * self.recipe.fresh)
        due, self.renewed = self.renewed // 16, self.renewed + 1
        if many > 0 and self.renewed % 16 == 0:
            places = (due * many + torch.arange(many, device=self.device)) % self.recipe.pool
            self.pool[places] = self._images(many)


def contrast(features: Tensor, temperature: float) -> Tensor:
    """The loss of SimCLR: each view must find the other view of its image among all views of the batch.

    >>> features = torch.eye(2).repeat(2, 1)  # two images, two views each, alike and apart
    >>> float(contrast(features, 0.05)) < 1e-6
    True

    Args:
        features: first views of all images, then their second views. (2 n, outputs)
        temperature: what similarities are divided by.
    """
    n = len(features) // 2
    unit = normalize(features, dim=1)
    similar = (unit @ unit.T / temperature).fill_diagonal_(-math.inf)
    return cross_entropy(similar, torch.arange(2 * n, device=features.device).roll(n))


def make(
    recipe: Recipe, out: Path, *, seconds: float | None = None, device: torch.device | str = "cpu",
    watch: Callable[[Made], None] = lambda _: None,
) -> Recipe:  # fmt: skip
    """Train, and write the start; the file is also written about once a minute and at an interrupt.

    Guarantee: the file is whole at any moment, and says how many steps it has had.

    Args:
        recipe: how.
        out: the file.
        seconds: the most that training may take. Speed is measured while the learning rate rises; if the steps of the
            recipe would take longer, it gets fewer. The recipe with the steps that were made is in the file, and makes
            the same start again.
        device: where.
        watch: called every few steps.

    Returns:
        The recipe, with the steps that it really got.
    """
    began = time.monotonic()
    if seconds is not None:
        positive("seconds", seconds)
    training, steps, warm = Pretraining(recipe, device), recipe.steps, max(1, min(200, recipe.steps // 10))
    done, shown, saved = 0, math.nan, time.monotonic()

    def save() -> None:
        now = dataclasses.replace(recipe, steps=steps)
        facts = {
            "command": now.command,
            "model": recipe.model,
            "steps": f"{done} of {steps}",
            "images": "no photograph",
        }
        start.write(out, training.weights(), facts | {"loss": f"{shown:.4f}"})

    try:
        halfway = began
        while done < steps:
            loss = training.step(_share(done, steps, warm))
            done += 1
            if done == -(-warm // 2) or done == warm:
                shown, now = float(loss), time.monotonic()
                if done == warm and seconds is not None:
                    pace = max((now - halfway) / max(1, warm - -(-warm // 2)), 1e-9)
                    steps = max(done, min(steps, done + int((seconds - (now - began)) / pace)))
                halfway = now
            if done % _LOOK == 0 or done == steps:
                shown, now = float(loss), time.monotonic()
                watch(Made(done, steps, shown, 2 * recipe.batch * max(done - warm, 0) / max(now - halfway, 1e-9)))
                if now - saved > _SAVE:
                    save()
                    saved = now
                if seconds is not None and now - began > 1.05 * seconds:
                    break
    finally:
        if done > 0:
            save()
    return dataclasses.replace(recipe, steps=steps)


def _share(step: int, steps: int, warm: int) -> float:
    """Of the largest learning rate: a line up, which does not depend on `steps`, then half a cosine down."""
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / max(1, steps - warm))
