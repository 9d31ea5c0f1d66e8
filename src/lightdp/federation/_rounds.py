"""The rounds of one roster as the server has seen them: who came when, what that cost, and who owes a repair."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
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
        self._here = ClientSet.none(self._plan.clients)  # whose uploads of the last one came before its end
        self._came: dict[int, set[int]] = {}  # clients whose uploads of a round came, at any time
        self._asked: dict[int, set[int]] = {}  # clients that were asked for an upload of a round
        self._lost: dict[int, set[int]] = {}  # clients whose uploads of a round may have got lost in a crash
        self._said: dict[int, set[int]] = {}  # clients that say they have answered a round, whether or not that came

    def asked(self, number: int, client: int) -> None:
        """Note that a client was asked for an upload of a round: it may make one that never comes.

        A round for which nobody was noted counts as if everybody had been asked.
        """
        self._asked.setdefault(number, set()).add(client)

    def came(self, number: int, client: int, *, taken: bool) -> None:
        """Count an upload of a round, which was `taken` for a sum or came too late."""
        self._came.setdefault(number, set()).add(client)
        if not taken:
            self._odometer = None

    def close(self, result: Aggregate, *, closing: bool) -> None:
        """End a round."""
        if not closing:
            self._on_time.append(result.on_time)
            self._here = self._senders(result.round)
        if result.final is not None and len(self._used) < len(self._on_time):
            self._used.append(result.final)
            self.void = 0 if result.final else self.void + 1

    def lost(self, number: int) -> None:
        """Count a round whose replies are lost: everybody may have answered it. It ends without uploads."""
        self._asked[number] = set(range(self._plan.clients))
        self._lost[number] = set(range(self._plan.clients))

    def crashed(self) -> None:
        """Count all uploads that were asked for and are in no set: they may have come since the past was saved.

        Under grace uploads of the last round that came since its end are in no sum, and lost as well.
        """
        for number, on_time in enumerate(self._on_time):
            asked = self._asked.setdefault(number, set(range(self._plan.clients)))
            known = self._used[number] if number < len(self._used) else on_time
            if missing := (asked | self._came.get(number, set())) - set(known | self._server.late(number)):
                self._lost[number] = self._lost.get(number, set()) | missing
        self._odometer = None

    def was_lost(self, number: int) -> bool:
        """Whether replies to a round may have got lost in a crash."""
        return number in self._lost

    def may_have_sent(self, client: int) -> bool:
        """Whether an upload of a client has come, or was made as it says, or may have got lost in a crash."""
        return any(client in found for seen in (self._came, self._said, self._lost) for found in seen.values())

    def answered(self, client: int, rounds: Collection[int], since: int = 0) -> None:
        """Note which rounds with data a client says it has answered, up to the open one.

        It is charged for each of them, also if the upload never came, and not for others whose replies may have got
        lost. If it lies, it is charged at most for all of them, and at least for its uploads that came.

        Args:
            client: who says it.
            rounds: those that it has answered.
            since: the first round that this is about.
        """
        for number in range(since, self.count + (self._server.is_open and not self._server.closing)):
            if number in rounds:
                self._said.setdefault(number, set()).add(client)
            elif client in self._lost.get(number, ()):
                self._lost[number].remove(client)
                self._asked.get(number, set()).discard(client)
        self._odometer = None

    def _unseen(self, number: int) -> ClientSet:
        """Clients that may have answered a round, or say so, and whose uploads need not have come."""
        return ClientSet.of(self._plan.clients, self._lost.get(number, set()) | self._said.get(number, set()))

    def past(self) -> dict[str, Any]:
        """All of it as JSON values, for `resume`."""
        sets = {"used": self._used, "on_time": self._on_time}
        written = {name: [each.to_bytes().hex() for each in found] for name, found in sets.items()}
        seen = {"came": self._came, "asked": self._asked, "lost": self._lost, "said": self._said}
        return (
            {"void": self.void, "here": self._here.to_bytes().hex()}
            | written
            | {name: [[number, sorted(clients)] for number, clients in found.items()] for name, found in seen.items()}
        )

    def resume(self, past: dict[str, Any]) -> None:
        """Go on from what `past` returned.

        Raises:
            ArgumentError: the facts are something else.
        """
        clients = self._plan.clients
        try:
            self._used, self._on_time = (
                [ClientSet.from_bytes(bytes.fromhex(each), clients) for each in past[name]]
                for name in ("used", "on_time")
            )
            self._came, self._asked, self._lost, self._said = (
                {int(number): {int(each) for each in found} for number, found in past[name]}
                for name in ("came", "asked", "lost", "said")
            )
            self.void = int(past["void"])
            here = past.get("here")  # which pasts of earlier versions do not have
            self._here = ClientSet.none(clients) if here is None else ClientSet.from_bytes(bytes.fromhex(here), clients)
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"past must be that of a roster's rounds, got {error!r}") from None
        self._odometer = None

    def was_on_time(self, client: int) -> bool:
        """Whether an upload of a client came before the end of the last round with data."""
        return client in self._here

    @property
    def count(self) -> int:
        """How many rounds with data have ended."""
        return len(self._on_time)

    def seen(self, number: int) -> tuple[ClientSet, ClientSet | None, ClientSet]:
        """Clients of a round with data: on time, used in the end (None while that is open), and seen otherwise.

        The last are those whose uploads came too late, or were made as they say, or may have got lost in a crash.
        """
        used = self._used[number] if number < len(self._used) else None
        found, on_time = self._server.late(number) | self._unseen(number), self._on_time[number]
        if used is None:
            return on_time, None, (found | self._senders(number)) - on_time
        return on_time, used, found - used

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
            self._odometer.record(self._used[t], self._server.late(t) | (self._unseen(t) - self._used[t]))
        if self.wait:
            on_time, asked = self._on_time[-1], self._asked.get(len(self._on_time) - 1)
            seen = self._senders(len(self._on_time) - 1)
            late = None if asked is None else (ClientSet.of(self._plan.clients, asked) | seen) - on_time
            self._odometer.open(on_time, late)
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
