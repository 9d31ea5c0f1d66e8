"""A round that takes in uploads: those that are bound to the same thing are added up together (W4).

Clients that were given different models share no noise that cancels, and a sum of their uploads is noise. So there is
a sum for each tag until the round ends. Then that of most uploads counts, and the clients behind the others count as
too late: repairs take out what was shared with them, as with any straggler.

Memory is bounded whatever clients send: there are at most two sums. An upload with a third tag is left out, and each
sum loses one of its votes, which are its uploads at first; a sum without votes gives way to the next tag.

Formal guarantee, for the uploads that come before a sum is chosen: if o of them have other tags than the chosen one, at
most o / 2 with its tag are left out. A tag that more than half of them have is chosen, whatever the order.

Proof: a vote is an upload, and lost once. Each upload of a tag that is left out has two others of its own, with tags
that differ: where it found two sums, a vote of each; where its sum gave way, for its vote an upload that found no sum,
and the vote that this took of the other sum. Hence o / 2. Of the two, one at most has a certain other tag: if l uploads
are left out, l of the o have neither tag, and the sum of that other one has o - l at most. The tag's own has l less
than came, which is more if more than half came with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lightdp.client_set import ClientSet
from lightdp.wire import UNBOUND, Accumulator, Upload

_SUMS = 2


@dataclass
class _Sum:
    """Uploads with one tag.

    Attributes:
        uploads: added up.
        clients: whose they are.
        votes: how many uploads without a sum it withstands.
    """

    uploads: Accumulator
    clients: list[int] = field(default_factory=list)
    votes: int = 0


class OpenRound:
    """The uploads of one round.

    Args:
        clients: N.
        empty: makes a sum of no uploads.
        rule: whether the round counts if these clients have come. (N,)
        closing: whether it has no data; then nothing is bound, and tags do not matter.

    Attributes:
        came: whether each client's upload is of the sum that was chosen; nobody's before that. (N,)
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
        self.came, self._seen, self._left_out = np.zeros((3, clients), np.bool_)
        self._named = ClientSet.none(clients)

    def resume(self, came: ClientSet, left_out: ClientSet, tag: bytes | None) -> None:
        """Go on after what a past server had of this round; what clients sent then is in no sum here.

        Args:
            came: clients whose uploads were of the sum that was chosen.
            left_out: clients whose uploads were bound to something else; they are named once more.
            tag: what was chosen; None if nothing was, or nobody has kept it: then nothing more fits that sum.
        """
        self.came[came.flags] = self._left_out[left_out.flags] = self._seen[(came | left_out).flags] = True
        if not self._closing:
            self.tag = tag if tag is not None or not came else b""

    def has(self, client: int) -> bool:
        """Whether an upload of this client has come."""
        return bool(self._seen[client])

    def take(self, client: int, upload: Upload) -> bool:
        """Take in a client's only upload; False if it can no longer be in the sum that counts.

        Raises:
            WireError: its vector is not packed as it must be; nothing changed.
        """
        tag = UNBOUND if self._closing else upload.tag
        chosen = self.tag is not None
        fits = tag == self.tag if chosen else tag in self._sums or len(self._sums) < _SUMS
        if fits:
            found = self._sums.get(tag) or _Sum(self._empty())
            found.uploads.add(upload.packed)
            found.clients.append(client)
            found.votes += 1
            self._sums[tag] = found
        elif not chosen:
            self._outvote()
        self._seen[client], self._left_out[client], self.came[client] = True, not fits, fits and chosen
        return fits

    def _outvote(self) -> None:
        """Each sum loses a vote; those without any give way."""
        for tag, each in list(self._sums.items()):
            each.votes -= 1
            if each.votes == 0:
                self._left_out[self._sums.pop(tag).clients] = True

    def settle(self, least: int = 1) -> None:
        """Choose the sum of most uploads, of equals the first, if they are enough; once chosen, it stays.

        Args:
            least: how many are.
        """
        if self.tag is not None or not self._sums:
            return
        best = max(self._sums, key=lambda tag: len(self._sums[tag].clients))
        if len(self._sums[best].clients) < least:
            return
        self.tag, chosen = best, self._sums.pop(best)
        self.came[chosen.clients] = True
        for each in self._sums.values():
            self._left_out[each.clients] = True
        self._sums = {best: chosen}

    def total(self) -> Accumulator:
        """The sum that was chosen, of what has come since the last call."""
        if self.tag is None or self.tag not in self._sums:
            return self._empty()
        return self._sums.pop(self.tag).uploads

    @property
    def left_out(self) -> ClientSet:
        """Clients whose uploads are bound to something else."""
        return ClientSet(self._left_out)

    def named(self) -> ClientSet:
        """Those of them that this has not returned before."""
        found = self.left_out - self._named
        self._named |= found
        return found

    @property
    def counts(self) -> bool:
        """Whether enough uploads have come."""
        return self._rule(self.came)
