"""A server and its clients in one process, rounds between them, and tapes of what uploads were made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp import masks, stream
from lightdp.protocol import Client, File, Server
from lightdp.protocol.seat import Seat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from lightdp.federation import Member
    from lightdp.planning import Plan

RUN = b"a run of 16 byte"


def seat(client: Client) -> Seat:
    assert client._seat is not None
    return client._seat


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 5, "colluders": 1, "stragglers": 2, "rounds": 30, "epsilon": 8.0}
    return lightdp.plan(**(asked | {"delta": 1e-5, "unit": "client", "calibration": "repair"} | changed))


def joined(plan: Plan, length: int, *, folder: Path | None = None, **options: Any) -> tuple[Server, list[Client]]:
    server = Server(plan, length=length, run=RUN, **options)
    names = [f"client-{i:02}" for i in range(plan.clients)]
    stores = [None if folder is None else File(folder / f"{name}.json") for name in names]
    clients = [
        Client.new(plan, length=length, run=RUN, name=name, store=store, **options)
        for name, store in zip(names, stores, strict=True)
    ]
    for client in clients:
        server.enrol(client.enrol())
    for client in clients:
        client.join(server.roster(client.name))
    return server, clients


@dataclass
class Tape:
    """What every upload was made of, in fine steps."""

    grid: masks.Grid
    data: list[NDArray[np.int32]] = field(default_factory=list)  # rounded data and individual noise
    fine: list[NDArray[np.int32]] = field(default_factory=list)  # the whole upload
    terms: list[list[stream.Term | stream.Draw]] = field(default_factory=list)


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """Record what `masks` adds up; the last tape is the last upload."""
    recorded: list[Tape] = []
    real = masks._fine

    def recording(
        vector: Any, grid: masks.Grid, terms: Sequence[stream.Term | stream.Draw], keys: Sequence[bytes], **more: Any
    ) -> NDArray[np.int32]:
        fine = real(vector, grid, terms, keys, **more)
        tape = Tape(grid)
        tape.data.append(real(vector, grid, [], keys))
        tape.fine.append(fine)
        tape.terms.append(list(terms))
        recorded.append(tape)
        return fine

    monkeypatch.setattr(masks, "_fine", recording)
    return recorded


MODEL = bytes(range(32))
"""What rounds are bound to where they must be."""


def begun(client: Client | Member, start: bytes) -> Any:
    """A round that is bound if it must be."""
    found = client.begin(start)
    return found.bind(MODEL) if found.binds else found


def play(
    server: Server, clients: list[Client], present: Sequence[int], update: Any = None, *, since: int | None = None
) -> Any:
    start = server.announce(since=since)
    for i in present:
        assert server.receive(begun(clients[i], start).upload(np.zeros(server.length) if update is None else update))
    return server.close()


def residual(clients: list[Client], of: int, used: Sequence[int], length: int) -> NDArray[np.int32]:
    """(R1): what the stragglers of a round left in its sum, in fine steps."""
    out = np.zeros(length, np.int32)
    absent = [j for j in range(len(clients)) if j not in used]
    for i in used:
        history = clients[i]._history
        assert history is not None
        peers = tuple(j for j in history.neighbours if j in absent)
        stream.accumulate(out, seat(clients[i]).pairwise(history, of, peers, given=history.given.get(of)))
    return out
