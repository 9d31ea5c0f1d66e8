"""Who holds which records: the training data split over clients, evenly or unevenly.

Clients of a real federation rarely hold data of one distribution. `split` makes the usual benchmarks of that: iid,
Dirichlet shares of each label, or shards of a few labels; `of_owners` takes clients and persons that the data name;
`summary` describes the result for a run's log.

>>> labels = np.array([0, 1, 0, 1, 0, 1, 0, 1])
>>> parts = split(labels, clients=2, how="shards:1", seed=0)
>>> sorted(labels[part].tolist() for part in parts)
[[0, 0, 0, 0], [1, 1, 1, 1]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator  # noqa: TID251  only its type
from numpy.typing import NDArray

from lightdp._validate import integer, positive
from lightdp.errors import ArgumentError
from lightdp.training.data import Dataset

_PURPOSE = int.from_bytes(b"part")
_HOW = "iid, dirichlet:ALPHA or shards:COUNT"
_LARGEST_ALPHA = 1e6


def split(labels: NDArray[np.integer[Any]], clients: int, how: str, seed: int) -> list[NDArray[np.int64]]:
    """The records of each client: every record belongs to exactly one, and every client has at least one.

    >>> [part.tolist() for part in split(np.zeros(5, int), clients=2, how="iid", seed=1)]
    [[0, 1, 4], [2, 3]]

    Args:
        labels: of all records, >= 0. (n,)
        clients: N.
        how: one of
            iid: at random, in shares that differ by at most one record;
            dirichlet:ALPHA: each label's records in shares drawn from the symmetric Dirichlet(ALPHA) on N clients,
            so a small ALPHA gives each client few labels. A client that drew no record takes one from the largest;
            shards:COUNT: the records sorted by label, cut into N·COUNT equal shards, COUNT for each client.
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
    kind, _, _ = how.partition(":")
    if how == "iid":
        owner = rng.permutation(np.arange(len(labels)) % clients)
    elif kind in _KINDS:
        owner = _KINDS[kind](labels, clients, how, rng)
    else:
        raise ArgumentError(f"partition must be {_HOW}, got partition={how!r}")
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def of_owners(source: Dataset, clients: int, how: str, seed: int, *, persons: bool) -> list[NDArray[np.int64]]:
    """The records of each client: as the data say ("natural"), or drawn by `split`.

    Guarantee: with `persons`, all records of a person are at one client, side by side. They are drawn as one, by the
    label of the first.

    >>> x, y = np.zeros((4, 1), np.float32), np.array([0, 1, 1, 0])
    >>> mine = Dataset("mine", x, x, y, y, 2, client_names=("a", "b"), train_client=np.array([1, 0, 1, 0]),
    ...                test_client=np.array([0, 0, 1, 1]))
    >>> [part.tolist() for part in of_owners(mine, clients=2, how="natural", seed=0, persons=False)]
    [[1, 3], [0, 2]]

    Args:
        source: the data.
        clients: how many there are.
        how: "natural", or as for `split`.
        seed: as for `split`.
        persons: whether a person's records belong together.

    Raises:
        ArgumentError: the data name no clients, other clients or no persons, or as `split`.
    """
    person = source.train_person
    if persons and person is None:
        raise ArgumentError("unit='person' needs data with persons (--person-column), got person_column=None")
    if not persons or person is None:
        person = np.arange(len(source.train_y))
    order = np.argsort(person, kind="stable")  # records, those of a person side by side
    _, first, counts = np.unique(person[order], return_index=True, return_counts=True)
    if how == "natural":
        if source.train_client is None:
            raise ArgumentError("partition='natural' needs data with clients (--client-column), got client_column=None")
        if len(source.client_names) != clients:
            raise ArgumentError(
                f"clients must be {len(source.client_names)}, those that the data come from, got clients={clients}"
            )
        ends = np.cumsum(np.bincount(source.train_client[order], minlength=clients))
        return np.split(order[np.argsort(source.train_client[order], kind="stable")], ends[:-1])
    if clients > len(first):
        what = "persons" if persons else "records"
        raise ArgumentError(f"clients must be at most the number of {what}, {len(first)}, got clients={clients}")
    drawn = split(source.train_y[order[first]], clients, how, seed)
    return [order[_ranges(first[units], counts[units])] for units in drawn]


def _ranges(first: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """first, first + 1, ... of each, one after the other."""
    after = np.cumsum(counts)
    return np.arange(after[-1]) + np.repeat(first - after + counts, counts)


def summary(labels: NDArray[np.integer[Any]], parts: Sequence[NDArray[np.int64]], classes: int) -> dict[str, Any]:
    """What a partition looks like, in JSON values.

    >>> summary(np.array([0, 1, 1]), [np.array([0, 1]), np.array([2])], classes=2)["counts"]
    [[1, 1], [0, 1]]

    Args:
        labels: of all records. (n,)
        parts: the result of `split`.
        classes: how many labels there may be.

    Returns:
        clients, records: how many; size_min, size_median, size_max: records of a client; labels_min, labels_median,
        labels_max: different labels of a client; counts: records of each client and label. (clients, classes)

    Raises:
        ArgumentError: a label is negative, or `classes` or above.
    """
    labels, classes = _labels(labels), integer("classes", classes, 1)
    if len(labels) and labels.max() >= classes:
        raise ArgumentError(f"labels must be < classes={classes}, got one of {labels.max()}")
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts])
    spreads = {"size": counts.sum(axis=1), "labels": (counts > 0).sum(axis=1)}
    kinds: dict[str, Callable[..., Any]] = {"min": np.min, "median": np.median, "max": np.max}
    return {
        "clients": len(parts),
        "records": int(counts.sum()),
        **{f"{name}_{kind}": of(values).item() for name, values in spreads.items() for kind, of in kinds.items()},
        "counts": counts.tolist(),
    }


def _dirichlet(labels: NDArray[np.int64], clients: int, how: str, rng: Generator) -> NDArray[np.int64]:
    try:
        alpha = float(how.partition(":")[2])
    except ValueError:
        raise ArgumentError(f"partition must be {_HOW} with a number ALPHA, got partition={how!r}") from None
    if positive("dirichlet", alpha) > _LARGEST_ALPHA:
        raise ArgumentError(f"dirichlet must be at most {_LARGEST_ALPHA:g}, got dirichlet={alpha:g}")
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


def _shards(labels: NDArray[np.int64], clients: int, how: str, rng: Generator) -> NDArray[np.int64]:
    setting, records = how.partition(":")[2], len(labels)
    if not (setting.isascii() and setting.isdigit()):
        raise ArgumentError(f"partition must be {_HOW} with an integer COUNT, got partition={how!r}")
    count = integer("shards", int(setting), 1)
    if clients * count > records:
        limit = f"{records // clients} for {clients} clients and {records} records"
        raise ArgumentError(f"shards must be at most {limit}, got shards={count}")
    order = np.lexsort((rng.permutation(records), labels))
    shards = rng.permutation(np.repeat(np.arange(clients), count))  # whose each is
    owner = np.empty(records, np.int64)
    owner[order] = shards[np.arange(records) * len(shards) // records]
    return owner


_KINDS = {"dirichlet": _dirichlet, "shards": _shards}


def _labels(labels: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    values = np.asarray(labels)
    if values.ndim != 1 or values.dtype.kind not in "ui" or (len(values) and values.min() < 0):
        raise ArgumentError(f"labels must be a list of integers >= 0, got {values.dtype} of shape {values.shape}")
    return values.astype(np.int64)
