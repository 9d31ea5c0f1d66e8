"""The clients of a simulated run: who holds which records, and what each would upload if there were no noise.

`lightdp.training.simulator` makes one `Clients` for a run and asks it in each round for the updates of those clients
that send; `lightdp.training.channel` adds the noise. The records of all clients are on one device, sorted by client,
so that a round works on many clients at once, while memory stays bounded however many there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.random import Generator  # noqa: TID251  only its type
from numpy.typing import NDArray

from lightdp.training import bounds, fast, gradients, models, persons, sgd, views
from lightdp.training.config import Config
from lightdp.training.data import Dataset

Piece = tuple[list[int], torch.Tensor]
"""Some clients and their updates, one a row, or one row with their sum."""

_PIECE_BYTES = {"cpu": 1 << 24, "cuda": 1 << 32}  # a CPU sums what its caches hold; a GPU wants all clients at once
_COPY_BYTES = {"cpu": 1 << 26, "cuda": 1 << 33}  # up to here, scattered records are copied rather than cut into pieces
_SAMPLES, _VIEWS = 11, 12  # purposes of draws, so that none repeats another of the same seed and round


@dataclass(frozen=True, eq=False)
class Clients:
    """All records on the device, sorted by client.

    Attributes:
        config: the settings of the run.
        x: records, as the model takes them. (n, ...)
        y: their labels. (n,)
        ends: client i holds the records from `ends[i - 1]` (0 for the first client) to `ends[i]`.
        person: whose each record is, those of a person side by side; None but for unit "person". (n,)
        unscaled: numbers whose bounds are to be found, which `x` does not have yet; None without any.
    """

    config: Config
    x: torch.Tensor
    y: torch.Tensor
    ends: list[int]
    person: NDArray[np.int64] | None = None
    unscaled: bounds.Unscaled | None = None

    @classmethod
    def of(
        cls, config: Config, source: Dataset, parts: Sequence[NDArray[np.int64]], device: torch.device,
        prepared: torch.Tensor | None = None,
    ) -> Clients:  # fmt: skip
        """Put the training data on the device.

        Args:
            config: the settings of the run; `model` and `mirror` decide how records are prepared.
            source: the data.
            parts: for each client the positions of its records in `source`; for unit "person" sorted by person.
            device: where to compute.
            prepared: the training records as `models.prepare` gives them, in the order of `source`, if they are known.
        """
        order = np.concatenate(parts)
        if prepared is None:
            x = models.prepare(config.model, torch.from_numpy(source.train_x[order]), device, mirror=config.mirror)
        else:
            x = prepared[torch.from_numpy(order).to(device)]
        ends = np.cumsum([len(part) for part in parts]).tolist()
        whose = source.train_person if config.unit == "person" else None
        person = None if whose is None else whose[order]
        y = torch.from_numpy(source.train_y[order]).to(device)
        if not source.unscaled:
            return cls(config, x, y, ends, person)
        return cls(config, x, y, ends, person, bounds.Unscaled.of(source, x)).scaled(())

    def scaled(self, found: Sequence[bounds.Bounds]) -> Clients:
        """With features scaled by bounds that were found, or none yet."""
        return self if self.unscaled is None else dataclasses.replace(self, x=self.unscaled.scaled(self.x, found))

    def histograms(self, number: int, senders: Sequence[int], bound: float) -> Iterator[Piece]:
        """The histograms of a round that finds bounds (E6), for a few clients at a time.

        Guarantee: as of `updates`; a unit's histograms are added up and clipped as its gradients are.

        Args:
            number: of the round; it seeds samples.
            senders: the clients that send, ascending.
            bound: the largest coordinate that the plan lets a client upload.

        Yields:
            Clients and their histograms, one a row.
        """
        places = self._places
        most = max(1, _PIECE_BYTES["cpu"] // (8 * places.shape[1] * bounds.BINS))
        for piece in _pieces(senders, most, adjacent=False):
            chosen, after = self._held(piece)
            if self.config.sums:
                unit, counts, drawn = self._units(number, piece, chosen, after)
                owner = np.repeat(np.arange(len(piece)), counts)
            else:
                owner, drawn = np.arange(len(piece)), np.ones(len(chosen), np.bool_)
                unit = np.repeat(owner, np.diff(after, prepend=0))
            rows = bounds.sums(places[chosen[drawn]], unit[drawn], owner, len(piece), self.config.clip)
            yield piece, torch.from_numpy(rows).to(self.x.device).clamp_(-bound, bound)

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """The bin of each number whose bounds are to be found. (n, k)"""
        return bounds.bins(np.zeros((len(self.y), 0)) if self.unscaled is None else self.unscaled.values.cpu().numpy())

    def updates(self, model: torch.nn.Module, number: int, senders: Sequence[int], bound: float) -> Iterator[Piece]:
        """The updates of a round, for a few clients at a time.

        Guarantee, by the unit of `config`. "record": a client's sum of gradients, each of norm at most `clip`, with
        every coordinate clamped to ±bound. "person": likewise, with the gradients of a person's records added up and
        then clipped. "client": an update of norm at most `clip`. "paper": the update as it is;
        nothing bounds it.

        Args:
            model: the server's model.
            number: of the round; it seeds batches, samples and views.
            senders: the clients that send, ascending.
            bound: the largest coordinate that the plan lets a client upload.

        Yields:
            Clients and their updates, one a row; or, for units "record" and "person", one row with their sum where no
            clamp can bind and the protocol is not run client by client.
        """
        config, device = self.config, self.x.device.type
        most = max(1, _PIECE_BYTES[device] // ((12 if config.sums else 4) * sum(p.numel() for p in model.parameters())))
        if number >= config.head_rounds:
            self._features.clear()
        adjacent = config.sums and self.x.nbytes > _COPY_BYTES[device]
        for piece in _pieces(senders, most, adjacent=adjacent):
            if config.sums:
                sums = self._head_sums if number < config.head_rounds else self._clipped_sums
                yield piece, sums(model, number, piece, bound).clamp_(-bound, bound)
                continue
            held = np.split(*self._held(piece))
            rows = sgd.local_updates(
                model, self.x, self.y, [torch.from_numpy(records) for records in held[:-1]], numbers=piece,
                epochs=config.epochs, batch=config.batch, lr=config.local_lr, seed=config.seed, round=number,
            )  # fmt: skip
            yield piece, _clipped(rows, config.clip) if config.unit == "client" else rows

    def _held(self, piece: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The records of some clients, one client after the other, and where those of each end."""
        first = self._bounds[piece]
        counts = self._bounds[np.add(piece, 1)] - first
        after = np.cumsum(counts)
        return np.arange(after[-1]) + np.repeat(first - after + counts, counts), after

    @cached_property
    def _bounds(self) -> NDArray[np.int64]:
        """Where the records of each client begin, and where the last ones end. (clients + 1,)"""
        return np.array([0, *self.ends])

    def _head_sums(self, model: torch.nn.Module, number: int, piece: list[int], bound: float) -> torch.Tensor:
        """Like `_clipped_sums`, of the gradients of the last layer; zero for the layers below."""
        last = models.last(model)
        if "x" not in self._features:
            self._features["x"] = fast.outputs(model[:-1], self.x)
        below = sum(p.numel() for p in model[:-1].parameters())
        sums = self._clipped_sums(last, number, piece, bound, self._features["x"])
        return torch.nn.functional.pad(sums, (below, 0))

    @cached_property
    def _features(self) -> dict[str, torch.Tensor]:
        """What the last layer gets of all records, while the layers below do not change."""
        return {}

    def _clipped_sums(
        self, model: torch.nn.Module, number: int, piece: list[int], bound: float, x: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Of records as they are, in views if there are several, or of what else a model takes of them."""
        config, device = self.config, self.x.device
        chosen, after = self._held(piece)
        counts = np.diff(after, prepend=0)
        if self.person is not None:
            return self._sums_of_persons(model, number, piece, bound, chosen, after)
        if config.sampling_rate < 1:
            drawn = self._drawn(number, piece, counts)
            before = np.concatenate([[0], np.cumsum(drawn)])  # how many are drawn before each record
            chosen, counts = chosen[drawn], np.diff(before[after], prepend=0)
        apart = config.fidelity == "protocol" or config.clip * int(counts.max()) > bound
        owner = torch.from_numpy(np.repeat(np.arange(len(piece)) * apart, counts)).to(device)
        adjacent = len(chosen) > 0 and chosen[-1] - chosen[0] == len(chosen) - 1  # then nothing is copied
        rows = slice(chosen[0], chosen[-1] + 1) if adjacent else torch.from_numpy(chosen).to(device)
        given = self.x if x is None else x
        seen = None if config.augment == 1 or x is not None else self._views(number, piece, counts.tolist())
        clients = len(piece) if apart else 1
        return gradients.clipped_sums(model, given[rows], self.y[rows], owner, clients, config.clip, views=seen)

    def _sums_of_persons(  # noqa: PLR0917  as `_clipped_sums`, and the records with their ends
        self, model: torch.nn.Module, number: int, piece: list[int], bound: float, chosen: NDArray[np.int64],
        after: NDArray[np.int64],
    ) -> torch.Tensor:  # fmt: skip
        """Batches are drawn person by person: all records of a person are in one, or none is."""
        config, device = self.config, self.x.device
        place, counts, drawn = self._units(number, piece, chosen, after)
        apart = config.fidelity == "protocol" or config.clip * int(counts.max()) > bound
        owner = torch.from_numpy(np.repeat(np.arange(len(piece)) * apart, counts)).to(device)
        rows, person = (torch.from_numpy(values[drawn]).to(device) for values in (chosen, place))
        clients = len(piece) if apart else 1
        return persons.clipped_sums(model, self.x[rows], self.y[rows], person, owner, clients, config.clip)

    def _units(
        self, number: int, piece: list[int], chosen: NDArray[np.int64], after: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Of each record the place of its person among those of these clients; how many each has; whether it is drawn.

        Where records are the units, each is a person.
        """
        new = np.diff(self._persons[chosen], prepend=-1) != 0
        place = np.cumsum(new) - 1
        counts = np.diff(np.cumsum(new)[after - 1], prepend=0)
        return place, counts, self._drawn(number, piece, counts)[place]

    def _drawn(self, number: int, piece: list[int], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which units of these clients are in a round's batch, drawn for each client apart."""
        if self.config.sampling_rate == 1:
            return np.ones(int(counts.sum()), np.bool_)
        draws = self._draws(_SAMPLES, number, piece)
        lots = np.concatenate([rng.random(count) for rng, count in zip(draws, counts.tolist(), strict=True)])
        return lots < self.config.sampling_rate

    @cached_property
    def _persons(self) -> NDArray[np.int64]:
        """A number for each record's person, from 0 in the order of the records. (n,)"""
        if self.person is None:
            return np.arange(len(self.y))
        return np.cumsum(np.diff(self.person, prepend=self.person[0] - 1) != 0) - 1

    @cached_property
    def units(self) -> list[int]:
        """How many records, or persons, each client holds."""
        counts = np.diff(self._persons[self._bounds[1:] - 1], prepend=-1)
        return [int(count) for count in counts]

    def _views(self, number: int, piece: list[int], counts: list[int]) -> Callable[..., torch.Tensor]:
        """The views of chosen records, drawn for each client apart."""
        if self.config.model.startswith("scattering"):
            return lambda x, _: torch.stack([x, models.mirrored(x)], 1)  # (n, 2, c, h, w)
        rngs = self._draws(_VIEWS, number, piece)
        drawn = [views.draw(rng, count, self.config.augment) for rng, count in zip(rngs, counts, strict=True)]
        where = torch.from_numpy(np.concatenate(drawn)).to(self.x.device)
        return lambda x, rows: views.crops(x, where[rows])

    def _draws(self, purpose: int, number: int, piece: list[int]) -> list[Generator]:
        """A generator for each client; a deployed client would draw from its own entropy, unknown to the server."""
        return [np.random.default_rng([self.config.seed, purpose, number, i]) for i in piece]  # noqa: TID251  protects nothing


def _clipped(rows: torch.Tensor, clip: float) -> torch.Tensor:
    """Scale rows to norm at most `clip`, in place.

    A norm in float32 is fast. Up to 2^22 values, summed in any order, it is too small by less than a quarter, and by
    1e-15 where squares underflow; so where it shows that no row is too long, norms in float64 are not needed.
    """
    if rows.shape[1] <= 1 << 22 and clip > 1e-12 and bool((1.25 * torch.linalg.vector_norm(rows, dim=1) <= clip).all()):
        return rows
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    factors = (clip * (1 - 1e-6) / norms.clamp_min(1e-30)).clamp_max(1.0)  # 1e-6: more than float32 can round up
    return rows.mul_(factors.to(rows.dtype)) if bool((factors < 1).any()) else rows


def _pieces(senders: Sequence[int], most: int, *, adjacent: bool) -> Iterator[list[int]]:
    """The senders in order, at most `most` together, and only neighbours if they must be adjacent."""
    gaps = np.flatnonzero(np.diff(senders) != 1) + 1 if adjacent else np.zeros(0, np.int64)
    for run in np.split(np.asarray(senders, dtype=np.int64), gaps):
        for at in range(0, run.size, most):
            yield run[at : at + most].tolist()
