"""A round that takes in uploads: those that are bound to the same thing are added up together (W4).

Clients that were given different models share no noise that cancels, and a sum of their uploads is noise. So there is
a sum for each tag until the round ends. Then that of most uploads counts, and the clients behind the others count as
too late: repairs take out what was shared with them, as with any straggler.

Memory is bounded whatever clients send: there are at most two sums. An upload with a third tag is left out, and each
sum loses one of its votes, which are its uploads at first; a sum without votes gives way to the next tag.

Formal guarantee: if o uploads of a round have other tags than the one that counts in the end, at most o with its tag
are left out. A tag that more than two thirds of the uploads have counts in the end, whatever the order.

Proof: votes are lost only as uploads without a sum come. A sum that gives way has as many uploads as it lost votes,
while it was there: to as many uploads with other tags. An upload that finds two other sums takes a vote of each, which
an upload with another tag has given. So each upload that is left out has one with another tag of its own. With more
than two thirds of all uploads a tag has, less those, more than one third, and the others have fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightdp.client_set import ClientSet
from lightdp.wire import UNBOUND, Accumulator, Upload

_SUMS = 2
_ABSENT, _APART = -1, -2  # instead of the number of a sum


@dataclass
class _Sum:
    """Uploads with one tag.

    Attributes:
        number: of the sum among all that this round has had.
        uploads: added up.
        votes: how many uploads without a sum it withstands.
    """

    number: int
    uploads: Accumulator
    votes: int = 0


class OpenRound:
    """The uploads of one round.

    Args:
        clients: N.
        empty: makes a sum of no uploads.
        rule: whether the round counts if these clients have come. (N,)
        closing: whether it has no data; then nothing is bound, and tags do not matter.

    Attributes:
        summed: clients whose uploads are in an aggregate, as the server notes it.
        tag: what the sum that counts is bound to; None before `settle` has chosen it.
    """

    def __init__(
        self,
        clients: int,
        empty: Callable[[], Accumulator],
        rule: Callable[[NDArray[np.bool_]], bool],
        *,
        closing: bool = False,
    ) -> None:
        self.summed: ClientSet = ClientSet.none(clients)
        self.tag: bytes | None = UNBOUND if closing else None
        self._empty, self._rule, self._closing = empty, rule, closing
        self._sums: dict[bytes, _Sum] = {}
        self._made = 0  # sums so far
        self._place = np.full(clients, _ABSENT, np.int32)  # the number of the sum of each client; 0 once chosen. (N,)
        self._named = ClientSet.none(clients)

    def resume(self, came: ClientSet, apart: ClientSet, tag: bytes | None) -> None:
        """Go on after what a past server had of this round; what clients sent then is in no sum here.

        Args:
            came: clients whose uploads were of the sum that was chosen.
            apart: clients whose uploads were bound to something else, and that were named.
            tag: what was chosen; None if nothing was, or nobody has kept it: then nothing more fits that sum.
        """
        self._place[came.flags], self._place[apart.flags], self._named = 0, _APART, apart
        if not self._closing:
            self.tag = tag if tag is not None or not came else b""

    def has(self, client: int) -> bool:
        """Whether an upload of this client has come."""
        return bool(self._place[client] != _ABSENT)

    def take(self, client: int, upload: Upload) -> bool:
        """Take in a client's only upload; False if it can no longer be in the sum that counts.

        Raises:
            WireError: its vector is not packed as it must be; nothing changed.
        """
        tag = UNBOUND if self._closing else upload.tag
        fits = tag == self.tag if self.tag is not None else tag in self._sums or len(self._sums) < _SUMS
        if not fits:
            self._place[client] = _APART
            if self.tag is None:
                self._outvote()
            return False
        found = self._sums.get(tag)
        if found is None:
            self._made += self.tag is None
            found = _Sum(self._made, self._empty())
        found.uploads.add(upload.packed)
        found.votes += 1
        self._sums[tag] = found
        self._place[client] = found.number if self.tag is None else 0
        return True

    def _outvote(self) -> None:
        """Each sum loses a vote; those without any give way."""
        for tag, each in list(self._sums.items()):
            each.votes -= 1
            if each.votes == 0:
                self._place[self._place == each.number] = _APART
                del self._sums[tag]

    def settle(self, least: int = 1) -> None:
        """Choose the sum of most uploads, of equals the first, if they are enough; once chosen, it stays.

        Args:
            least: how many are.
        """
        if self.tag is not None or not self._sums:
            return
        counts = {tag: int(np.count_nonzero(self._place == each.number)) for tag, each in self._sums.items()}
        best = max(counts, key=counts.__getitem__)
        if counts[best] < least:
            return
        self.tag, chosen = best, self._sums[best]
        mine = self._place == chosen.number
        self._place[(self._place >= 0) & ~mine] = _APART
        self._place[mine] = 0
        self._sums = {best: chosen}

    def total(self) -> Accumulator:
        """The sum that was chosen, of what has come since the last call."""
        if self.tag is None or self.tag not in self._sums:
            return self._empty()
        return self._sums.pop(self.tag).uploads

    @property
    def came(self) -> NDArray[np.bool_]:
        """Whether each client's upload is of the sum that was chosen; nobody's before that. (N,)"""
        return self._place == 0 if self.tag is not None else np.zeros(len(self._place), np.bool_)

    @property
    def apart(self) -> ClientSet:
        """Clients whose uploads are bound to something else."""
        return ClientSet(self._place == _APART)

    def named(self) -> ClientSet:
        """Those of them that this has not returned before."""
        found = self.apart - self._named
        self._named |= found
        return found

    @property
    def counts(self) -> bool:
        """Whether enough uploads have come."""
        return self._rule(self.came)
