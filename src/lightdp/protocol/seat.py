"""A client's place in a roster: the peers it trusts, the keys it shares with them, and uploads made with these."""

from __future__ import annotations

from dataclasses import replace

from lightdp import masks
from lightdp.errors import WireError
from lightdp.keys import Keyring, Pins, Roster
from lightdp.planning import Plan
from lightdp.protocol.history import ClientHistory
from lightdp.protocol.state import ClientState
from lightdp.protocol.vector import Floats
from lightdp.stream import Term
from lightdp.wire import Kind, Message, Upload


class Seat:
    """What a roster makes of a client.

    Args:
        plan: the noise.
        state: the client's keys and the shape of its uploads.
        roster: everybody's enrolments.
        pins: identities expected of peers; whoever is not among them counts as a colluder.
        grid: on which uploads are made.

    Attributes:
        grid: as given.

    Raises:
        WireError: the roster is of another size, lacks the client, or is not to be trusted.
    """

    def __init__(self, plan: Plan, state: ClientState, roster: Roster, pins: Pins | None, grid: masks.Grid) -> None:
        if len(roster) != plan.clients:
            raise WireError(f"roster must have {plan.clients} clients, got {len(roster)}")
        me, name = roster.index(state.enrolment), state.enrolment.name
        if pins is not None:
            pins.check(roster)
            unknown = [e.name for e in roster.enrolments if e.name not in pins.identities and e.name != name]
            if len(unknown) > plan.colluders:
                raise WireError(f"roster must have at most {plan.colluders} clients that are not pinned, got {unknown}")
        self.grid = grid
        self._plan, self._me, self._pair, self._run, self._roster = plan, me, state.pair, state.run, roster.hash
        self._neighbours = plan.graph.neighbours_of(me).tolist()
        self._keyring = Keyring(state.pair, roster, me, self._neighbours)

    def history(self) -> ClientHistory:
        """That of the client, before anything was announced."""
        return ClientHistory(self._plan, self._me, self._roster, self._neighbours)

    def upload(
        self, vector: Floats, history: ClientHistory, number: int, *, closing: bool, threads: int | None
    ) -> bytes:
        """The signed UPLOAD message of a round, which must leave at most once (W3).

        Args:
            vector: what to mask, clipped.
            history: all rounds before this one.
            number: of the round.
            closing: whether it has no data, and so no pairwise noise but what is to be repaired (R4).
            threads: cores that expand noise; None for all.
        """
        terms = [] if closing else self.pairwise(history, number, history.neighbours)
        if history.repair is not None:
            terms += self.pairwise(history, *history.repair, undo=True)
        packed = masks.mask(vector, self.grid, terms, threads=threads)
        upload = Upload(length=len(vector), bits=self.grid.bits, packed=packed)
        message = Message(
            kind=Kind.UPLOAD, run=self._run, round=number, roster=self._roster, client=self._me, payload=b""
        )
        signature = self._pair.sign(upload.statement(message, chain=history.chain(number)))
        return replace(message, payload=replace(upload, signature=signature).head()).to_bytes(upload.packed)

    def pairwise(self, history: ClientHistory, of: int, peers: tuple[int, ...], *, undo: bool = False) -> list[Term]:
        """Pairwise noise of a round, or its opposite."""
        if self._plan.gamma == 0:
            return []
        keys = self._keyring.stream_keys(peers, round=of, chain=history.chain(of))
        return masks.pairwise_terms(keys, self._me, self.grid, undo=undo)
