"""Unit "record": the sum of clipped parts, one for each record, which the app replies with and the mod believes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Context, RecordDict
from numpy.typing import ArrayLike, NDArray

from lightdp.errors import ArgumentError
from lightdp.flower import _arrays
from lightdp.flower._settings import KEY, LOG, Settings

_STEPS = 36  # bits of a clip's fixed-point values, so that int64 holds the sum of `_MOST` parts
_MOST = 1 << 26  # records
_PIECE = 1 << 18  # values that are clipped at once

T = TypeVar("T")


class RecordSum:
    """The update of an app that protects records: a sum of parts, one for each record, each clipped by the node.

        total = lightdp.flower.RecordSum(message.content["arrays"], context)
        total.add({"w": parts})                                  # (records, *shape of "w"), as often as needed
        reply = RecordDict({"arrays": total.arrays(), ...})

    Formal guarantee: one record that is added once changes the sum by a vector of L2 norm at most `clip`, in exact
    arithmetic. Parts are clipped to the node's own `lightdp-record-clip`, rounded towards zero to a fixed grid and
    added as integers. A part that is not finite, or whose norm is beyond 1e154, is left out.

    What remains for the app: add each record at most once a round, and let its part depend on this record and on the
    received model alone. One step on all records, or on a Poisson batch, does; several local steps do not. And no
    record may make the app fail: then the whole sum is missing, not one part. `map` leaves such records out.

    Args:
        arrays: the received model: an ArrayRecord, or the whole content of a message with several of them, whose
            arrays are named `record/key`. An app that trains some layers may give these alone.
        context: of the node.

    Attributes:
        clip: L2 norm to which parts are clipped.
        records: how many were added.

    Raises:
        ArgumentError: the node has no `lightdp-record-clip`, or the model no floats.

    >>> from flwr.app import Array, RecordDict
    >>> own = {"lightdp-unit": "record", "lightdp-max-epsilon": 8.0, "lightdp-max-delta": 1e-5}
    >>> own |= {"lightdp-state": "/var/lib/lightdp/state.json", "lightdp-record-clip": 5.0}
    >>> node = Context(1, 2, own, RecordDict(), {})
    >>> total = RecordSum(ArrayRecord({"w": Array(np.zeros(2))}), node)
    >>> total.add({"w": [[30.0, 40.0], [1.0, 0.0], [np.inf, 0.0]]})
    >>> total.arrays()["w"].numpy().round(6)
    array([4., 4.])
    """

    def __init__(self, arrays: ArrayRecord | RecordDict, context: Context) -> None:
        clip = Settings.of(context).record_clip
        if clip is None:
            raise ArgumentError("lightdp-record-clip must say to what norm each record's part is clipped")
        self.clip, self.records = clip, 0
        self._received = _arrays.flat(arrays) if isinstance(arrays, RecordDict) else dict(arrays)
        self._ended = False
        self._step = 2.0 ** (math.frexp(clip)[1] - _STEPS)
        self._steps = np.zeros(_arrays.length(self._received), np.int64)

    def add(self, parts: Mapping[str, ArrayLike]) -> None:
        """Clip the parts of some records and add them.

        Args:
            parts: for each float array of the model, by its name, the parts of all these records along its first axis.

        Raises:
            ArgumentError: the parts do not fit the model.
        """
        columns = self._columns(parts)
        count = len(columns[0][0])
        self._count(count)
        size = self._steps.size
        margin = 1 + (size + 8) * 2.0**-51  # roundings of a norm, a factor and a product
        for low in range(0, count, max(1, _PIECE // size)):
            rows = slice(low, low + max(1, _PIECE // size))
            pieces = [(part[rows].astype(np.float64).reshape(-1, place.stop - place.start), place)
                      for part, place in columns]  # fmt: skip
            with np.errstate(all="ignore"):  # what is not finite is left out
                norms = np.sqrt(sum(np.einsum("ij,ij->i", piece, piece) for piece, _ in pieces))
                factors = np.minimum(self.clip / (norms * margin), 1) / self._step
            finite = np.isfinite(norms)
            for piece, place in pieces:
                kept = piece if finite.all() else piece[finite]
                kept *= factors[finite, None]
                self._steps[place] += kept.astype(np.int64).sum(axis=0)  # astype rounds towards zero

    def map(self, function: Callable[[T], Mapping[str, ArrayLike]], records: Iterable[T]) -> None:
        """Call a function once for each record, and add the parts that it returns; a record that fails is left out.

        Formal guarantee: a record whose call raises, or whose part does not fit the model, changes the sum by nothing
        and no other record's part. Which records were left out stays on the node.

        Args:
            function: returns the part of one record, by the names of the model's float arrays and in their shapes.
            records: taken one by one. A failure of taking the next one is not caught: read them before.
        """
        self._count(0)
        failed, last = 0, None
        for record in records:
            try:
                self.add({name: np.asarray(part)[None] for name, part in function(record).items()})
            except Exception as error:  # noqa: BLE001  whatever it is, it may depend on this record
                failed, last = failed + 1, error
        if last is not None:
            LOG.warning("lightdp: %d records were left out of the sum: their part failed", failed, exc_info=last)

    def arrays(self) -> ArrayRecord:
        """The received model plus the sum, for the reply. The mod sends the sum itself; nothing can be added after."""
        self._ended = True
        result = _arrays.moved(self._received, self.vector())
        vars(result)[KEY] = self
        return result

    def vector(self) -> NDArray[np.float64]:
        """The sum, in the order of the vector of its arrays."""
        return self._steps * np.float64(self._step)

    def within(self, received: Mapping[str, Array], names: Collection[str] | None = None) -> NDArray[np.float64]:
        """The sum as the vector of a message's arrays; it is zero where the sum has none.

        Formal guarantee: its norm is at most that of the sum, and so is that of any record's part in it.

        Args:
            received: all arrays of the message.
            names: of those that make up the vector; None for all float arrays.

        Raises:
            ArgumentError: the sum is of other arrays.
        """
        own, wanted = list(_arrays.places(self._received)), list(_arrays.places(received, names))
        if own == wanted:
            return self.vector()
        shapes = {name: _arrays.values(received[name]).shape for name, _, _ in own if name in received}
        places = {name: place for name, _, place in own}
        if shapes != {name: shape for name, shape, _ in own} or places.keys().isdisjoint(each[0] for each in wanted):
            raise ArgumentError(f"the RecordSum must be of the received arrays, got one of {list(places)}")
        vector, total = np.zeros(wanted[-1][2].stop), self.vector()
        for name, _, place in wanted:
            if name in places:
                vector[place] = total[places[name]]
        return vector

    def _count(self, records: int) -> None:
        if self._ended:
            raise ArgumentError("a RecordSum serves one reply, got parts after arrays(): make a new one each round")
        if self.records + records > _MOST:
            raise ArgumentError(f"records must be at most {_MOST} in all, got {self.records + records}")
        self.records += records

    def _columns(self, parts: Mapping[str, ArrayLike]) -> list[tuple[NDArray[Any], slice]]:
        """The given arrays in the order of the vector, with their places in it."""
        wanted = {name: (shape, place) for name, shape, place in _arrays.places(self._received)}
        if set(parts) != set(wanted):
            raise ArgumentError(f"parts must be given for {sorted(wanted)}, got {sorted(parts)}")
        found, counts = [], set[int]()
        for name, (shape, place) in wanted.items():
            part = np.asarray(parts[name])
            if part.ndim == 0 or part.shape[1:] != shape or part.dtype.kind not in "fiub":
                wanted_shape = f"(records, ...) with {shape}"
                raise ArgumentError(f"parts of {name} must be numbers of shape {wanted_shape}, got {part.shape}")
            counts.add(len(part))
            found.append((part, place))
        if len(counts) > 1:
            raise ArgumentError(f"parts must be of the same number of records for all arrays, got {sorted(counts)}")
        return found


def sum_of(arrays: ArrayRecord) -> RecordSum | None:
    """The sum behind the arrays of a reply, if a `RecordSum` made them."""
    found = vars(arrays).get(KEY)
    return found if isinstance(found, RecordSum) else None
