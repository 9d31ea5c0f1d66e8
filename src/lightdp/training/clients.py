"""The clients' side of a simulated run: who holds what, and what each would upload if there were no noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from lightdp.training import gradients, models, sgd, views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from lightdp.training.config import Config
    from lightdp.training.data import Dataset

    Piece = tuple[list[int], torch.Tensor]
    """Some clients and their updates, one a row, or one row with their sum."""

_PIECE_BYTES = {"cpu": 1 << 24, "cuda": 1 << 32}  # a CPU sums what its caches hold; a GPU wants all clients at once
_COPY_BYTES = {"cpu": 1 << 26, "cuda": 1 << 33}  # of records that are rather copied than taken piece by piece


@dataclass(frozen=True, eq=False)
class Clients:
    """All records on the device, sorted by client: client i holds those from `ends[i - 1]` to `ends[i]`."""

    config: Config
    x: torch.Tensor
    y: torch.Tensor
    ends: list[int]

    @classmethod
    def of(
        cls, config: Config, source: Dataset, parts: Sequence[NDArray[np.int64]], device: torch.device,
        prepared: torch.Tensor | None = None,
    ) -> Clients:  # fmt: skip
        """The training data, dealt by `parts`, as the model wants it; `prepared` is that in the order of `source`."""
        order = np.concatenate(parts)
        if prepared is None:
            x = models.prepare(config.model, torch.from_numpy(source.train_x[order]), device, mirror=config.mirror)
        else:
            x = prepared[torch.from_numpy(order).to(device)]
        ends = np.cumsum([len(part) for part in parts])
        return cls(config, x, torch.from_numpy(source.train_y[order]).to(device), ends.tolist())

    def updates(self, model: torch.nn.Module, number: int, senders: Sequence[int], bound: float) -> Iterator[Piece]:
        """What the clients `senders` have to say in round `number`, a few clients at a time.

        Unit "record": the sum of clipped gradients, each coordinate clamped to ±bound; one sum over the clients of a
        piece where nobody asks for more and no clamp can bind. Unit "client": the clipped update of local SGD. Unit
        "paper": the update as it is. Memory beyond the model's is one piece, however many clients there are.
        """
        size = 4 * sum(p.numel() for p in model.parameters())
        most = max(1, _PIECE_BYTES[self.x.device.type] // size)
        unit = self.config.unit
        adjacent = unit == "record" and self.x.nbytes > _COPY_BYTES[self.x.device.type]
        for piece in _pieces(senders, most, adjacent=adjacent):
            if unit == "record":
                yield piece, self._clipped_sums(model, number, piece, bound).clamp_(-bound, bound)
            else:
                rows = self._local_updates(model, number, piece)
                yield piece, _clipped(rows, self.config.clip) if unit == "client" else rows

    def _clipped_sums(self, model: torch.nn.Module, number: int, piece: list[int], bound: float) -> torch.Tensor:
        config = self.config
        chosen = [np.arange(self._start(i), self.ends[i]) for i in piece]
        if config.sampling_rate < 1:
            # simulated: in a deployment each client draws its batch from entropy of its own, unknown to the server
            rngs = [np.random.default_rng([config.seed, 11, number, i]) for i in piece]  # noqa: TID251  protects nothing
            chosen = [c[rng.random(len(c)) < config.sampling_rate] for c, rng in zip(chosen, rngs, strict=True)]
        counts = [len(c) for c in chosen]
        apart = config.fidelity == "protocol" or config.clip * max(counts) > bound
        owners = np.repeat(np.arange(len(piece)) * apart, counts)
        rows = np.concatenate(chosen)
        if len(rows) > 0 and rows[-1] - rows[0] == len(rows) - 1:  # neighbours lie side by side: nothing is copied
            x, y = self.x[rows[0] : rows[-1] + 1], self.y[rows[0] : rows[-1] + 1]
        else:
            taken = torch.from_numpy(rows).to(self.x.device)
            x, y = self.x[taken], self.y[taken]
        seen = None if config.augment == 1 else self._views(number, piece, counts)
        owner, clients = torch.from_numpy(owners).to(self.x.device), len(piece) if apart else 1
        return gradients.clipped_sums(model, x, y, owner, clients, config.clip, views=seen)

    def _views(self, number: int, piece: list[int], counts: list[int]) -> Callable[..., torch.Tensor]:
        """How the chosen records of some clients are seen; each client's draws are its own."""
        config = self.config
        if config.model.startswith("scattering"):
            return lambda x, _: views.mirrored(x)
        rngs = [np.random.default_rng([config.seed, 12, number, i]) for i in piece]  # noqa: TID251  protects nothing
        drawn = [views.draw(rng, count, config.augment) for rng, count in zip(rngs, counts, strict=True)]
        where = torch.from_numpy(np.concatenate(drawn)).to(self.x.device)
        return lambda x, rows: views.crops(x, where[rows])

    def _local_updates(self, model: torch.nn.Module, number: int, piece: list[int]) -> torch.Tensor:
        config = self.config
        return sgd.local_updates(
            model,
            self.x,
            self.y,
            [torch.arange(self._start(i), self.ends[i]) for i in piece],
            numbers=piece,  # a client's batches are its own, whoever else is there
            epochs=config.epochs,
            batch=config.batch,
            lr=config.local_lr,
            seed=config.seed,
            round=number,
        )

    def _start(self, client: int) -> int:
        return self.ends[client - 1] if client > 0 else 0


def _clipped(rows: torch.Tensor, clip: float) -> torch.Tensor:
    """Rows scaled to norm at most `clip`, in place.

    A norm in float32 is quick and, up to 2^22 values, too small by less than a quarter, in whatever order it is
    summed up, and by 1e-15 where squares underflow; where that shows that nothing is to be clipped, norms in float64
    are not needed.
    """
    if rows.shape[1] <= 1 << 22 and clip > 1e-12 and bool((1.25 * torch.linalg.vector_norm(rows, dim=1) <= clip).all()):
        return rows
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    factors = (clip * (1 - 1e-6) / norms.clamp_min(1e-30)).clamp_max(1.0)  # 1e-6: more than float32 can round up
    return rows.mul_(factors.to(rows.dtype)) if bool((factors < 1).any()) else rows


def _pieces(senders: Sequence[int], most: int, *, adjacent: bool) -> Iterator[list[int]]:
    """The senders in order, at most `most` together, and only neighbours if they must be adjacent."""
    piece: list[int] = []
    for i in senders:
        if len(piece) == most or (adjacent and piece and i != piece[-1] + 1):
            yield piece
            piece = []
        piece.append(i)
    if piece:
        yield piece
