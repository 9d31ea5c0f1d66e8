"""Every upload that a client made, and every round that a server ended."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp import masks
from lightdp.protocol import ClientRound, Server

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightdp.protocol import Aggregate


@dataclass
class Made:
    """One upload that left a client, in fine steps."""

    name: str
    round: int
    data: NDArray[np.int32]  # rounded data and individual noise
    fine: NDArray[np.int32]  # with pairwise noise
    keys: set[bytes]  # of the pairwise noise that was added


@dataclass
class Tape:
    made: list[Made] = field(default_factory=list)
    rounds: list[Aggregate] = field(default_factory=list)
    names: tuple[str, ...] = ()

    def used(self) -> list[Made]:
        pairs = {(self.names[i], each.round) for each in self.rounds for i in each.used}
        pairs |= {(self.names[i], each.round - 1) for each in self.rounds for i in each.joined}
        return [each for each in self.made if (each.name, each.round) in pairs]

    def finals(self) -> list[set[int]]:
        """The final set of each round, as far as they are known."""
        return [set(each.final) for each in self.rounds if each.final is not None]

    def total(self, what: str) -> NDArray[np.int32]:
        return np.sum([getattr(each, what) for each in self.used()], axis=0, dtype=np.int32)


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """Watch every upload that is made, and every round that the server ends."""
    result, real, upload, close = Tape(), masks._fine, ClientRound.upload, Server.close
    here = threading.local()

    def watched_fine(vector: Any, grid: Any, terms: Any, keys: Any, **more: Any) -> Any:
        here.data, here.fine = real(vector, grid, [], keys), real(vector, grid, terms, keys, **more)
        return here.fine

    def watched_upload(self: ClientRound, update: Any, *weight: float) -> bytes:
        sent = upload(self, update, *weight)
        client, history = self._client, self._history
        keys = {term.key for term in self._seat.pairwise(history, self.number, history.neighbours)}
        result.made.append(Made(client._state.enrolment.name, self.number, here.data, here.fine, keys))
        return sent

    def watched_close(self: Server) -> Aggregate:
        result.rounds.append(close(self))
        result.names = self.names
        return result.rounds[-1]

    monkeypatch.setattr(masks, "_fine", watched_fine)
    monkeypatch.setattr(ClientRound, "upload", watched_upload)
    monkeypatch.setattr(Server, "close", watched_close)
    return result
