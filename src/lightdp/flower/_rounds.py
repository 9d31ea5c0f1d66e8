"""The rounds of one run as the server has seen them: who came when, what that cost, and who owes a repair."""

from __future__ import annotations

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.protocol import Aggregate, Server
from lightdp.repair import Repairs


class Rounds:
    """Rounds with data, and after them the closing ones.

    Under grace the last round waits: its set is not final before the next one has ended (R5).

    Args:
        server: of the run, with its roster fixed.

    Attributes:
        void: how many of the last rounds in a row were void, of those whose sets are final.
    """

    def __init__(self, server: Server) -> None:
        self.void = 0
        self._server, self._plan = server, server.plan
        self._odometer: Odometer | None = None  # has counted all final rounds but the last ones; None to count anew
        self._used: list[ClientSet] = []  # of each round with data whose set is final
        self._on_time: list[ClientSet] = []  # of each past round with data
        self._came: dict[int, set[int]] = {}  # clients whose uploads of a round came, at any time
        self._asked: dict[int, set[int]] = {}  # clients that were asked for an upload of a round

    def asked(self, number: int, client: int) -> None:
        """Note that a client was asked for an upload of a round: it may make one that never comes."""
        self._asked.setdefault(number, set()).add(client)

    def came(self, number: int, client: int, *, used: bool) -> None:
        """Count an upload of a round, which is `used` in a sum or came too late."""
        self._came.setdefault(number, set()).add(client)
        if not used:
            self._odometer = None

    def close(self, result: Aggregate, *, closing: bool) -> None:
        """End a round."""
        if not closing:
            self._on_time.append(self._senders(result.round))
        if result.final is not None and len(self._used) < len(self._on_time):
            self._used.append(result.final)
            self.void = 0 if result.final else self.void + 1

    def was_on_time(self, client: int) -> bool:
        """Whether an upload of a client came before the end of the last round with data."""
        return client in self._on_time[-1]

    @property
    def wait(self) -> bool:
        """Whether the set of the last round with data is not final yet."""
        return len(self._used) < len(self._on_time)

    @property
    def odometer(self) -> Odometer:
        """What each client has spent, from the uploads that were used and those seen too late; a round may wait."""
        if self._odometer is None:
            self._odometer = Odometer(self._plan)
        for t in range(self._odometer.rounds, len(self._used)):
            self._odometer.record(self._used[t], self._server.late(t))
        if self.wait:
            self._odometer.open(self._on_time[-1])
        return self._odometer

    def owing(self) -> set[int]:
        """Clients whose next upload may have something to repair.

        A repair rides in every upload that a client makes, also in one that does not arrive. So a client that was asked
        and did not answer is followed both ways.
        """
        if not self._plan.repairs:
            return set()
        return {i for i in range(self._plan.clients) if any(each.waiting for each in self._possible(i))}

    def _possible(self, client: int) -> list[Repairs]:
        """What a client may owe, for every way in which its missing uploads were made or not."""
        alone = ClientSet.of(self._plan.clients, [client])
        found = [Repairs(self._plan.graph, [client])]
        for t in range(self._server.round):
            if client in self._came.get(t, ()):
                made, not_made = found, []
            elif client in self._asked.get(t, ()):
                made, not_made = [each.copied() for each in found if each.waiting], found
            else:
                made, not_made = [], found
            for each in made:
                each.ride(t, alone)
            found = [*made, *not_made]
            if (final := t - self._plan.grace) in range(len(self._used)):
                for each in found:
                    each.close(final, self._used[final])
            found = _distinct(found)
        return found

    def _senders(self, number: int) -> ClientSet:
        return ClientSet.of(self._plan.clients, self._came.get(number, ()))


def _distinct(states: list[Repairs]) -> list[Repairs]:
    """These without those that owe and carry the same as one before them."""
    found: list[Repairs] = []
    for new in states:
        if all((new.waiting, new.flying) != (old.waiting, old.flying) for old in found):
            found.append(new)
    return found
