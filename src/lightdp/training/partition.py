"""Who holds which records: the training data dealt to clients, evenly or unevenly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp._validate import integer, positive
from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator  # noqa: TID251  only its type
    from numpy.typing import NDArray

_PURPOSE = int.from_bytes(b"part")
_HOW = "iid, dirichlet:ALPHA or shards:COUNT"
_LARGEST_ALPHA = 1e6


def split(labels: NDArray[np.integer[Any]], clients: int, how: str, seed: int) -> list[NDArray[np.int64]]:
    """The records of each client: every record belongs to exactly one, and every client has at least one.

    Args:
        labels: of all records, >= 0. (n,)
        clients: N.
        how: one of
            iid: at random, in shares that differ by at most one record;
            dirichlet:ALPHA: each label's records in shares drawn from the symmetric Dirichlet(ALPHA) on N clients,
            so a small ALPHA gives each client few labels. A client that drew no record takes one from the largest;
            shards:COUNT: the records sorted by label, cut into N·COUNT equal shards, COUNT dealt to each client.
        seed: the split is a pure function of it and of the other arguments.

    Returns:
        For each client the positions of its records, ascending.

    Raises:
        ArgumentError: an argument is wrong, or there are too few records.
    """
    labels = _labels(labels)
    clients, seed = integer("clients", clients, 1), integer("seed", seed, 0)
    if clients > len(labels):
        raise ArgumentError(f"clients must be at most the number of records, {len(labels)}, got clients={clients}")
    rng = np.random.default_rng([seed, _PURPOSE])  # noqa: TID251  shuffling, nothing that protects
    kind, _, setting = how.partition(":")
    if kind == "iid" and how == "iid":
        owner = rng.permutation(np.arange(len(labels)) % clients)
    elif kind == "dirichlet":
        owner = _dirichlet(labels, clients, _alpha(setting, how), rng)
    elif kind == "shards":
        owner = _shards(labels, clients, _count(setting, how), rng)
    else:
        raise ArgumentError(f"partition must be {_HOW}, got partition={how!r}")
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def summary(labels: NDArray[np.integer[Any]], parts: Sequence[NDArray[np.int64]], classes: int) -> dict[str, Any]:
    """What a partition looks like, in JSON values.

    Returns:
        clients, records: how many; size_min, size_median, size_max: records of a client; labels_min, labels_median,
        labels_max: different labels of a client; counts: records of each client and label. (clients, classes)
    """
    labels, classes = _labels(labels), integer("classes", classes, 1)
    if len(labels) and labels.max() >= classes:
        raise ArgumentError(f"labels must be < classes={classes}, got one of {labels.max()}")
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts])
    return {
        "clients": len(parts),
        "records": int(counts.sum()),
        **_spread("size", counts.sum(axis=1)),
        **_spread("labels", (counts > 0).sum(axis=1)),
        "counts": counts.tolist(),
    }


def _dirichlet(labels: NDArray[np.int64], clients: int, alpha: float, rng: Generator) -> NDArray[np.int64]:
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        records = rng.permutation(np.flatnonzero(labels == label))
        ends = np.rint(np.cumsum(rng.dirichlet(np.full(clients, alpha))) * len(records))
        owner[records] = np.searchsorted(ends[:-1], np.arange(len(records)), side="right")
    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes == 0):
        largest = sizes.argmax()
        owner[rng.choice(np.flatnonzero(owner == largest))] = client
        sizes[[largest, client]] += [-1, 1]
    return owner


def _shards(labels: NDArray[np.int64], clients: int, count: int, rng: Generator) -> NDArray[np.int64]:
    shards = clients * count
    if shards > len(labels):
        raise ArgumentError(
            f"shards must be at most {len(labels) // clients} for {clients} clients and {len(labels)} records,"
            f" got shards={count}"
        )
    order = np.lexsort((rng.permutation(len(labels)), labels))
    dealt = rng.permutation(np.repeat(np.arange(clients), count))
    owner = np.empty(len(labels), np.int64)
    owner[order] = dealt[np.arange(len(labels)) * shards // len(labels)]
    return owner


def _alpha(setting: str, how: str) -> float:
    try:
        value = float(setting)
    except ValueError:
        raise ArgumentError(f"partition must be {_HOW} with a number ALPHA, got partition={how!r}") from None
    if positive("dirichlet", value) > _LARGEST_ALPHA:
        raise ArgumentError(f"dirichlet must be at most {_LARGEST_ALPHA:g}, got dirichlet={value:g}")
    return value


def _count(setting: str, how: str) -> int:
    if not (setting.isascii() and setting.isdigit()):
        raise ArgumentError(f"partition must be {_HOW} with an integer COUNT, got partition={how!r}")
    return integer("shards", int(setting), 1)


def _labels(labels: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "ui" or (len(values) and values.min() < 0):
        raise ArgumentError(f"labels must be a list of integers >= 0, got {values.dtype} of shape {values.shape}")
    return values.astype(np.int64)


def _spread(name: str, values: NDArray[np.int64]) -> dict[str, float]:
    return {
        f"{name}_min": int(values.min()),
        f"{name}_median": float(np.median(values)),
        f"{name}_max": int(values.max()),
    }
