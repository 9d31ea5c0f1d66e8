"""A round that a client has begun: it may be bound, claimed and answered, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from lightdp._validate import octets
from lightdp.errors import ProtocolError
from lightdp.wire import Announcement

if TYPE_CHECKING:
    from lightdp.protocol.client import Client
    from lightdp.protocol.history import ClientHistory
    from lightdp.protocol.seat import Seat
    from lightdp.protocol.vector import Floats


class ClientRound:
    """A round that a client has begun and may answer, once.

    Attributes:
        number: of the round.
        closing: whether it carries no data and only repairs what stragglers left (R4).
        bare: whether it carries no pairwise noise either, as most closing rounds (S1).
        given: what it is bound to (W4); None for nothing.
    """

    def __init__(
        self, client: Client, seat: Seat, start: Announcement, basis: ClientHistory, history: ClientHistory
    ) -> None:
        self.number, self.closing, self.bare = start.round, start.closing, start.closing and not start.masked
        self.given: bytes | None = None
        self._client, self._seat, self._basis, self._history = client, seat, basis, history

    @property
    def binds(self) -> bool:
        """Whether it must be bound to what its update follows from, as rounds with drawn masks must (B2)."""
        return self._client.plan.masks.kind == "drawn" and not self.closing

    def bind(self, given: bytes) -> Self:
        """Bind this round to what its update follows from: noise cancels only among clients with the same.

        Guarantee: a server that sent other clients something else learns nothing of this client's masks from them.
        Drawn masks need that before `claim` or `upload`, and an update that is made of what was given, of the client's
        own data and of random numbers of its own, not of what earlier rounds have left on the client (B2). With
        Gaussian masks it is optional, and in a closing round, which has no data, it does nothing. Hash bytes of one
        fixed form, equal on all clients: the server adds up the uploads of the hash that most have, and
        `Aggregate.left_out` has the clients of the others. An upload carries a hash of it, so put nothing private in.

        Args:
            given: a hash, 32 bytes, such as `lightdp.digest` makes, of all that came from the server and the update
                depends on: the model, and settings of the round.

        Returns:
            This round.

        >>> import lightdp, numpy
        >>> plan = lightdp.plan(clients=2, colluders=0, stragglers=0, rounds=3, epsilon=8, delta=1e-5, unit="client")
        >>> server = lightdp.Server(plan, length=4, run=bytes(16))
        >>> clients = [lightdp.Client.new(plan, length=4, run=bytes(16), name=name) for name in ("ann", "bob")]
        >>> [server.enrol(client.enrol()) for client in clients]
        ['ann', 'bob']
        >>> for client in clients:
        ...     client.join(server.roster(client.name))
        >>> start, model = server.announce(), numpy.zeros(4, "<f4")
        >>> given = lightdp.digest(model)
        >>> [server.receive(client.begin(start).bind(given).upload(numpy.full(4, 0.1))) for client in clients]
        [True, True]

        Raises:
            ProtocolError: it was bound to something else before, or claimed without.
            ArgumentError: `given` has another length.
        """
        bound = octets("given", given, 32)
        if self.closing:
            return self
        with self._client._alone():  # noqa: SLF001  the two classes are one machine
            if self.given is None and self.number in self._client.answered:
                raise ProtocolError(f"round {self.number} was answered, or claimed, before it was bound")
            if self.given not in {None, bound}:
                raise ProtocolError(f"round {self.number} is bound to another model")
            self.given = bound
        return self

    def _refuse_unbound(self) -> None:
        """Refuse to answer a round that must be bound and is not.

        Raises:
            ProtocolError: it is not.
        """
        if self.binds and self.given is None:
            raise ProtocolError(
                f"round {self.number} must be bound, as the plan's masks are drawn: call bind(hash) on it before its "
                "answer, with 32 bytes that are the same on all clients, such as lightdp.digest(model), or plan "
                "with masks='gaussian'"
            )

    def claim(self) -> None:
        """Count this round as answered, before the update is made; `upload` may then follow, once, and need not.

        Whatever becomes of the process in between, the round is spent, and no other upload answers it: what a server
        could learn from a client that fails is not free.

        Raises:
            ProtocolError: as for `upload`; nothing changed.
        """
        self._client._claim(self)  # noqa: SLF001  the two classes are one machine

    def upload(self, update: Floats | None, weight: float = 1.0) -> bytes:
        """The UPLOAD message that answers this round; the client's state is saved before it is returned.

        Args:
            update: what to mask; it is not changed. In a closing round, which carries no data, it may be None.
            weight: of the update, in [0, 1], for clients that are weighted.

        Raises:
            ProtocolError: this or a later round was answered, or another one since this was begun; nothing leaves.
            ArgumentError: the update is not a finite vector of the right length, or the weight is wrong.
        """
        return self._client._answer(self, update, weight)  # noqa: SLF001  the two classes are one machine
