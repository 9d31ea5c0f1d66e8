"""A round that takes in uploads: those that are bound to the same thing are added up together (W4).

Clients that were given different models share no noise that cancels, and a sum of their uploads is noise. So there is
a sum for each tag until the round ends. Then that of most uploads counts, and the clients behind the others count as
too late: repairs take out what was shared with them, as with any straggler.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lightdp.client_set import ClientSet
from lightdp.wire import Accumulator, Upload

_SUMS = 4  # at most, so that memory is bounded whatever clients send
_ABSENT, _APART = -1, -2  # instead of the place of a sum


class OpenRound:
    """The uploads of one round.

    Args:
        clients: N.
        empty: makes a sum of no uploads.
        rule: whether the round counts if these clients have come. (N,)

    Attributes:
        summed: clients whose uploads are in an aggregate, as the server notes it.
        tag: what the sum that counts is bound to; None before `settle` has chosen it.
    """

    def __init__(
        self, clients: int, empty: Callable[[], Accumulator], rule: Callable[[NDArray[np.bool_]], bool]
    ) -> None:
        self.summed: ClientSet = ClientSet.none(clients)
        self.tag: bytes | None = None
        self._empty, self._rule = empty, rule
        self._sums: dict[bytes, Accumulator] = {}
        self._place = np.full(clients, _ABSENT, np.int8)  # of the sum of each client. (N,)

    def resume(self, came: ClientSet, apart: ClientSet, tag: bytes | None) -> None:
        """Go on after what a past server had of this round; what clients sent then is in no sum here.

        Args:
            came: clients whose uploads were of the sum that was chosen.
            apart: clients whose uploads were bound to something else.
            tag: what was chosen; None if nobody came, or nobody has kept it: then nothing more fits that sum.
        """
        self._place[came.flags], self._place[apart.flags] = 0, _APART
        self.tag = tag if tag is not None or not came else b""

    def has(self, client: int) -> bool:
        """Whether an upload of this client has come."""
        return bool(self._place[client] != _ABSENT)

    def take(self, client: int, upload: Upload) -> bool:
        """Take in a client's only upload; False if it can no longer be in the sum that counts.

        Raises:
            WireError: its vector is not packed as it must be; nothing changed.
        """
        known = upload.tag in self._sums
        fits = upload.tag == self.tag if self.tag is not None else known or len(self._sums) < _SUMS
        if fits:
            into = self._sums[upload.tag] if known else self._empty()
            into.add(upload.packed)
            self._sums[upload.tag] = into
        self._place[client] = list(self._sums).index(upload.tag) if fits else _APART
        return fits

    def settle(self) -> None:
        """Choose the sum of most uploads, of equals the first; nothing happens where it is chosen, or nobody came."""
        if self.tag is not None or not self._sums:
            return
        best = int(np.bincount(self._place[self._place >= 0]).argmax())
        self.tag = list(self._sums)[best]
        self._sums = {self.tag: self._sums[self.tag]}
        self._place[(self._place >= 0) & (self._place != best)] = _APART
        self._place[self._place == best] = 0

    def total(self) -> Accumulator:
        """The sum that was chosen, of what has come since the last call."""
        if self.tag is None or self.tag not in self._sums:
            return self._empty()
        return self._sums.pop(self.tag)

    @property
    def came(self) -> NDArray[np.bool_]:
        """Whether each client's upload is of the sum that was chosen; nobody's before that. (N,)"""
        return self._place == 0 if self.tag is not None else np.zeros(len(self._place), np.bool_)

    @property
    def apart(self) -> ClientSet:
        """Clients whose uploads are bound to something else."""
        return ClientSet(self._place == _APART)

    @property
    def counts(self) -> bool:
        """Whether enough uploads have come."""
        return self._rule(self.came)
