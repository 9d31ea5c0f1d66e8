"""A client's place in a roster: the peers it trusts, the keys it shares with them, and uploads made with these."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from lightdp import masks
from lightdp.errors import ArgumentError, WireError
from lightdp.keys import Keyring, Pins, Roster
from lightdp.planning import Plan
from lightdp.protocol.history import ClientHistory
from lightdp.protocol.state import ClientState
from lightdp.protocol.vector import Floats
from lightdp.stream import Draw, Term
from lightdp.wire import Kind, Message, Upload, tag_of


class Seat:
    """What a roster makes of a client.

    Args:
        plan: the noise.
        state: the client's keys and the shape of its uploads.
        roster: the enrolments of all clients; where the graph is random, of the client and its neighbours alone.
        pins: identities expected of peers; whoever is not among them counts as a colluder.
        grid: on which uploads are made.

    Attributes:
        grid: as given.
        kept: what the client keeps of the roster.

    Raises:
        WireError: the roster is of another size, lacks the client, shows others than it should, or is not to be
            trusted.
    """

    def __init__(self, plan: Plan, state: ClientState, roster: Roster, pins: Pins | None, grid: masks.Grid) -> None:
        if len(roster) != plan.clients:
            raise WireError(f"roster must have {plan.clients} clients, got {len(roster)}")
        self.grid = grid
        self._pair, self._run, self._roster = state.pair, state.run, roster.hash
        self._me = roster.index(state.enrolment)
        self._plan = _placed(plan, roster)
        self._neighbours = _neighbours(self._plan, roster, self._me)
        if pins is not None:
            pins.check(roster)
            unknown = [e.name for i, e in roster.enrolments.items() if e.name not in pins.identities and i != self._me]
            if len(unknown) > (most := plan.request.near_strangers):
                raise WireError(f"roster must have at most {most} clients that are not pinned, got {unknown}")
        self.kept = roster.to_keep()
        self._keyring = Keyring(state.pair, self.kept, self._me, self._neighbours)

    def history(self) -> ClientHistory:
        """That of the client, before anything was announced."""
        return ClientHistory(self._plan, self._me, self._roster, self._neighbours)

    def upload(
        self,
        vector: Floats,
        history: ClientHistory,
        number: int,
        *,
        closing: bool,
        bare: bool,
        given: bytes | None,
        threads: int | None,
    ) -> bytes:
        """The signed UPLOAD message of a round, which must leave at most once (W3).

        Args:
            vector: what to mask, clipped.
            history: all rounds before this one.
            number: of the round.
            closing: whether it has no data.
            bare: whether it has no pairwise noise but what is to be repaired (R4).
            given: what the round is bound to (W4); None for nothing.
            threads: cores that expand noise; None for all.
        """
        terms = [] if bare else self.pairwise(history, number, history.neighbours, closing=closing, given=given)
        if history.repair is not None:
            of, peers = history.repair
            of_closing, was_given = of in history.closing, history.given.get(of)
            terms += self.pairwise(history, of, peers, closing=of_closing, given=was_given, undo=True)
        packed = masks.mask(vector, self.grid, terms, threads=threads)
        upload = Upload(length=len(vector), bits=self.grid.bits, packed=packed, tag=tag_of(given))
        message = Message(
            kind=Kind.UPLOAD, run=self._run, round=number, roster=self._roster, client=self._me, payload=b""
        )
        signature = self._pair.sign(upload.statement(message, chain=history.chain(number)))
        return replace(message, payload=replace(upload, signature=signature).head()).to_bytes(upload.packed)

    def pairwise(
        self,
        history: ClientHistory,
        of: int,
        peers: tuple[int, ...],
        *,
        closing: bool = False,
        given: bytes | None = None,
        undo: bool = False,
    ) -> list[Term | Draw]:
        """Pairwise noise of a round, or its opposite.

        No closing round shares any with one that has data (S1), nor do rounds that are bound to something else (W4).
        """
        if self._plan.gamma == 0:
            return []
        chain = bound(history.chain(of), closing=closing, given=given)
        keys = self._keyring.stream_keys(peers, round=of, chain=chain)
        return masks.pairwise_terms(keys, self._me, self.grid, undo=undo)


def bound(chain: bytes, *, closing: bool = False, given: bytes | None = None) -> bytes:
    """What goes into the keys of a round for its chain: the chain, unless the round is closing or bound (W4).

    Args:
        chain: of the rounds before.
        closing: whether the round has no data.
        given: what it is bound to, 32 bytes; None for nothing.
    """
    if closing:
        chain = hashlib.sha256(b"lightdp closing" + chain).digest()
    return chain if given is None else hashlib.sha256(b"lightdp given" + chain + given).digest()


def _placed(plan: Plan, roster: Roster) -> Plan:
    """The plan with its graph placed by the roster's hash (S1); that of a kept one was looked at when it was joined."""
    try:
        return plan.placed(roster.hash, checked=roster.kept)
    except ArgumentError as error:
        raise WireError(str(error)) from None


def _neighbours(plan: Plan, roster: Roster, me: int) -> list[int]:
    """The clients with whom client `me` shares noise, in order, if the roster shows exactly whom it must.

    On a random graph the server can neither choose whose neighbour a client is nor leave one out. A roster that was
    kept was compared with its graph when it was joined, and nobody is placed again.

    Args:
        plan: placed by the roster.
        roster: the roster.
        me: the client's index.

    Raises:
        WireError: the roster shows more or fewer clients, or others.
    """
    shown = roster.enrolments.keys()
    if plan.graph.random and roster.kept:
        return [i for i in shown if i != me]
    found: list[int] = plan.graph.neighbours_of(me).tolist()
    if len(shown) != (1 + len(found) if plan.graph.random else plan.clients) or not shown >= set(found):
        whom = f"client {me} and its {len(found)} neighbours" if plan.graph.random else f"all {plan.clients} clients"
        raise WireError(f"roster must show {whom}, got {len(shown)} clients, or others")
    return found
