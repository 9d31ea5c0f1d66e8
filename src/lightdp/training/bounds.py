"""Bounds of columns that nobody knows, found by the first rounds of a run, under the noise and ε of all rounds (E6).

In these rounds a client uploads histograms instead of gradients: for each column, how many of its values lie in each of
121 bins between powers of two, from -2^40 to 2^40, which are the same for every table. What a record, a person or a
client adds is clipped like its gradient, so these rounds cost what any round costs, and nothing else is counted. All
that follows is post-processing of the noisy sum: the bounds of a column reach from its first to its last bin that
stands out of the noise.

Histograms have coordinates of their own behind those of the model, whose coordinates are 0 in these rounds. So each sum
is linear in what clients upload, and repair finds in the next sum what it looks for (R3).

>>> values = np.array([[61.0], [47.0], [33.0], [90.0], [np.nan]])
>>> counts = sums(bins(values), unit=np.arange(5), owner=np.zeros(5, np.int64), clients=1, clip=1.0)
>>> counts.shape, round(float(counts.sum()), 3)
((1, 121), 4.0)
>>> found(counts[0], ("age",))
(Bounds(name='age', low=32.0, high=128.0, clear=True),)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lightdp.errors import ArgumentError
from lightdp.training.config import Config
from lightdp.training.data import Dataset

_POWERS = 2.0 ** np.arange(-20, 41)
EDGES = np.concatenate([-_POWERS[::-1], _POWERS])
"""Where bins begin and end; values beyond the last ones are counted in the last bins."""
BINS = len(EDGES) - 1
_CLEAR = 4.5  # a bin stands out of the noise above so many standard deviations: of 600 empty bins one in 500 trials
_MEDIAN = 0.6745  # the median of |z| for a standard normal z


class Bounds(NamedTuple):
    """Bounds that were found for a column.

    Attributes:
        name: of the column.
        low: the least value, to which smaller ones are moved.
        high: the largest, likewise.
        clear: whether a bin stood out of the noise; otherwise they are those of the fullest bin, by chance or not.
    """

    name: str
    low: float
    high: float
    clear: bool


@dataclass(frozen=True, eq=False)
class Unscaled:
    """Numbers as a table has them, beside the features that they will be.

    Attributes:
        at: which features they are. (k,)
        values: of each record; NaN where one is missing. (n, k)
    """

    at: list[int]
    values: torch.Tensor

    @classmethod
    def of(cls, source: Dataset, x: torch.Tensor) -> Unscaled:
        """Those of the records `x`, which have them in their places."""
        at = [place for _, place in source.unscaled]
        return cls(at, x[:, at].clone())

    def scaled(self, x: torch.Tensor, bounds: Sequence[Bounds]) -> torch.Tensor:
        """Records with these features scaled from their bounds to [-1, 1]; missing ones are the middle.

        Args:
            x: the records. (n, features)
            bounds: of each of the features; none before they are known, when all are taken as missing.
        """
        result = x.clone()
        result[:, self.at] = 0.0
        for column, (place, (_, low, high, _)) in enumerate(zip(self.at, bounds, strict=False)):
            values = self.values[:, column].double()
            scaled = 2 * (values.clamp(low, high) - low) / (high - low) - 1
            result[:, place] = torch.where(values.isnan(), 0.0, scaled).to(x.dtype)
        return result


@dataclass(frozen=True, eq=False)
class Search:
    """The first rounds of a run, which find bounds, and the coordinates of their histograms.

    Attributes:
        rounds: how many they are; 0 where all bounds are known.
        names: of the columns whose bounds they find. (k,)
        test: these columns of the test records; None where there are none.
    """

    rounds: int
    names: tuple[str, ...]
    test: Unscaled | None

    @classmethod
    def of(cls, config: Config, source: Dataset, test_x: torch.Tensor) -> Search:
        """That of a run, whose test records are `test_x`; raises as `rounds` does."""
        test = Unscaled.of(source, test_x) if source.unscaled else None
        return cls(rounds(config, source), tuple(name for name, _ in source.unscaled), test)

    @property
    def width(self) -> int:
        """How many coordinates histograms have, behind those of the model."""
        return BINS * len(self.names)

    def laid_out(self, rows: torch.Tensor, number: int, parameters: int) -> torch.Tensor:
        """Uploads of round `number`, from 0, with zeros for the model or for histograms. (m, parameters + width)"""
        before, after = (parameters, 0) if number < self.rounds else (0, self.width)
        return torch.nn.functional.pad(rows, (before, after)) if before or after else rows

    def found(self, counts: torch.Tensor | None, number: int) -> tuple[Bounds, ...]:
        """The bounds that `number` rounds have found; none before these are all that look for them.

        Args:
            counts: sums of the histograms so far.
            number: of rounds that are over.
        """
        if counts is None or number < self.rounds:
            return ()
        return found(counts.double().cpu().numpy(), self.names)


def facts(bounds: Sequence[Bounds]) -> dict[str, dict[str, Any]] | None:
    """Bounds as a log has them, by column; None where none were found."""
    return {name: {"low": low, "high": high, "clear": clear} for name, low, high, clear in bounds} or None


def of_facts(written: object) -> dict[str, Bounds]:
    """Bounds by column, as `facts` wrote them.

    Args:
        written: what a file says.

    Raises:
        ValueError: it is something else, or bounds that no rounds could find.
    """
    result = {}
    for name, told in written.items() if isinstance(written, dict) else [("columns", written)]:
        match told:
            case {"low": float(low), "high": float(high), "clear": bool(clear)} if EDGES[0] <= low < high <= EDGES[-1]:
                result[name] = Bounds(name, low, high, clear)
            case _:
                raise ValueError(f"its bounds of {name!r} are none")
    return result


def rounds(config: Config, source: Dataset) -> int:
    """How many of the first rounds find bounds: 0 where all are known.

    Args:
        config: the settings.
        source: the data.

    Raises:
        ArgumentError: there is no column to find bounds for, no round is left to train, or a setting does not go with
            rounds of another kind.
    """
    asked = config.bounds_rounds
    if not source.unscaled:
        if asked is not None:
            raise ArgumentError(
                f"bounds_rounds needs a column whose bounds are private, got bounds_rounds={asked} and none"
            )
        return 0
    count = config.first_rounds
    if count >= config.rounds:
        why = "more than the rounds that find private bounds"
        raise ArgumentError(f"rounds must be {why}, {count}, got rounds={config.rounds}")
    unlike: dict[str, Any] = {
        "unit": config.unit if config.unit == "paper" else None,  # its sensitivity is that of a gradient
        "grace": config.grace_rounds or None,  # late histograms would come with gradients
        "population": config.population,
        "churn": config.churn,
        "head_rounds": config.head_rounds or None,
    }
    for name, value in unlike.items():
        if value is not None:
            raise ArgumentError(f"columns must have known bounds with {name}={value!r}, got private ones")
    return count


def bins(values: NDArray[Any]) -> NDArray[np.int64]:
    """The bin of each value, -1 where it is missing."""
    found = np.clip(np.searchsorted(EDGES, values, side="right") - 1, 0, BINS - 1)
    return np.where(np.isnan(values), -1, found).astype(np.int64)


def sums(
    places: NDArray[np.int64], unit: NDArray[np.int64], owner: NDArray[np.int64], clients: int, clip: float
) -> NDArray[np.float32]:
    """Each client's histograms: the sum over its units of their counts, clipped to L2 norm `clip`. (clients, k BINS)

    Guarantee: adding or removing a unit moves them by at most `clip`, by a term that depends on that unit's records
    alone (E6). A record adds clip/√k to one bin of each of its k columns; the parts of a unit's records are added up,
    clipped, and rounded down to multiples of a power of two, so that float32 holds each sum exactly. A bin is full at
    2^24 such multiples, those of a million records.

    Args:
        places: the bin of each value, -1 where it is missing. (n, k)
        unit: record j is of unit `unit[j]`. (n,)
        owner: unit u is at client `owner[u]`. (units,)
        clients: how many there are.
        clip: the bound.
    """
    columns = places.shape[1]
    width = columns * BINS
    record, column = np.nonzero(places >= 0)
    cells = unit[record] * width + column * BINS + places[record, column]
    filled, times = np.unique(cells, return_counts=True)
    whose, cell = filled // width, filled % width
    parts = times * (clip / math.sqrt(columns))
    norms = np.sqrt(np.bincount(whose, parts**2, minlength=len(owner)))
    over = norms > clip
    parts *= np.where(over, clip * (1 - 1e-6) / np.where(over, norms, 1.0), 1.0)[whose]
    step = 2.0 ** (math.floor(math.log2(clip / math.sqrt(columns))) - 4)
    steps = np.bincount(owner[whose] * width + cell, np.floor(parts / step), minlength=clients * width)
    return (np.minimum(steps, 2.0**24) * step).reshape(clients, width).astype(np.float32)


def found(counts: NDArray[Any], names: Sequence[str]) -> tuple[Bounds, ...]:
    """Bounds by noisy histograms: post-processing, which costs nothing (E6).

    Most bins hold no value, so the median of all counts' sizes tells how large the noise is.

    Args:
        counts: of each column's bins. (k BINS,)
        names: of the columns. (k,)
    """
    noise = float(np.median(np.abs(counts))) / _MEDIAN
    result = []
    for name, row in zip(names, np.reshape(counts, (len(names), BINS)), strict=True):
        full = np.flatnonzero(row > _CLEAR * noise)
        clear = len(full) > 0
        if not clear:
            full = np.array([int(row.argmax())]) if row.any() else np.array([], np.int64)
        low, high = (EDGES[full[0]], EDGES[full[-1] + 1]) if len(full) > 0 else (-1.0, 1.0)
        result.append(Bounds(name, float(low), float(high), clear))
    return tuple(result)


def notes(config: Config, source: Dataset) -> list[str]:
    """What is said before a run that finds bounds.

    Args:
        config: the settings.
        source: the data.
    """
    count = rounds(config, source)
    if count == 0:
        return []
    names = ", ".join(name for name, _ in source.unscaled)
    which = "first round" if count == 1 else f"first {count} rounds"
    return [f"bounds of {names}: found by the {which} of {config.rounds}, under the same noise"]
