"""SwiftAgg+ (Jahani-Nezhad et al. 2022): shares of updates are summed up on their way from group to group.

N clients, T = C̄ of which may work with the server, D = S̄ of which may drop. Γ groups of n = K + T + D members, one at
each of n positions; the N mod Γ clients that are left over belong to a group without a position and only send.

1. "shares": client i cuts its update on the grid, with its noise, into K pieces, appends T random ones, and sends each
   member of its group, sealed, its share of d/K elements.
2. "reports": each member tells the server whose shares it holds.
3. "sums 1".."sums Γ": the server names the set V that is summed up. Members of the first group add up V's shares; each
   next one adds those to what the same position of the group before sent it, sealed. The last group sends to the
   server, and any K + T positions decode the sum.

A client sends (1 + (T + D)/K) d elements, the server gets (1 + T/K) d where just K + T positions are left, and about
N (n + 1)/2 links are used. One group is the lightest; more groups have fewer links and longer shares.

The paper takes it that a client reaches all of its group or nobody. Links here fail one by one, and sums over
different sets must not leave their positions, since the difference of two of them is a share of whoever is missing:
hence the reports, a few bytes. Who drops is treated alike by all: a client is in the sum if its shares reached every
position that goes on, whatever happens to it later; if they reached some only, either these positions or this client
are left out (`agree`). A client or a link that is lost later silences its position from there on. The round fails with
fewer than N - S̄ in V, as the noise in their sum would be too little, or fewer than K + T positions.

The server follows the protocol but is curious, as in the paper. What a real run would add is a signed roster.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lightdp._validate import integer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp_lab.registry import ALL
from lightdp_lab.schemes._coded import Code, Coded, agree
from lightdp_lab.schemes._net import RoundFailedError
from lightdp_lab.schemes._scheme import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lightdp_lab.schemes._field import Elements
    from lightdp_lab.schemes._net import Net
    from lightdp_lab.schemes._scheme import Task


class SwiftAgg(Coded):
    """Coded shares of updates, summed up along chains of clients.

    Args:
        task: what is summed up.
        groups: Γ; as many as keep what a client sends within twice its update (K >= T + D) if None, or one.
    """

    about = ALL["swiftagg+"]

    def __init__(self, task: Task, groups: int | None = None) -> None:
        super().__init__(task)
        lost = task.colluders + task.stragglers
        self.groups = max(1, task.clients // max(2 * lost, 2)) if groups is None else integer("groups", groups, 1)
        self.positions = task.clients // self.groups
        if self.positions <= lost:
            raise ArgumentError(f"groups must leave more than {lost} in each, got groups={self.groups}")

    @cached_property
    def code(self) -> Code:
        """K pieces, T random ones, a share for each position."""
        private = self.task.colluders
        pieces = self.positions - private - self.task.stragglers
        return Code(self.field, self.task.dimension, pieces, private, self.positions)

    def member(self, group: int, position: int) -> int:
        """The client there."""
        return group * self.positions + position

    def group(self, client: int) -> int:
        """Of a client; those left over go to the first groups, one each."""
        left_over = client - self.groups * self.positions
        return client // self.positions if left_over < 0 else left_over

    def round(self, updates: Sequence[NDArray[np.float32]], net: Net) -> Result:
        """Shares, reports, and one trip for each group."""
        self._rounds += 1
        held = self._share(updates, net)
        reports = self._report(held, net)
        with net.server():
            used, going = self._chosen(reports)
        who, sums = self._pass_on(used, going, held, net)
        with net.server():
            return Result(self._decoded(self.code.decode(who, sums)), frozenset(used))

    def _share(self, updates: Sequence[NDArray[np.float32]], net: Net) -> list[dict[int, bytes]]:
        """The shares that each client holds, by sender; each client uses only its own."""
        net.stage("shares")
        held: list[dict[int, bytes]] = [{} for _ in updates]
        for i in filter(net.works, range(len(updates))):
            with net.client(i):
                shares = self.field.pack_rows(self.code.encode(self.field.of(self.grid.encode(updates[i]))))
            for position, share in enumerate(shares):
                j = self.member(self.group(i), position)
                if j == i:
                    held[i][i] = share
                else:
                    self._send((i, j), share, held, net)
        return held

    def _report(self, held: list[dict[int, bytes]], net: Net) -> dict[int, NDArray[np.bool_]]:
        """At the server: whose shares each member holds."""
        net.stage("reports")
        reports: dict[int, NDArray[np.bool_]] = {}
        members = range(self.groups * self.positions)
        for j, arrived in net.collect(members, lambda j: ClientSet(self._flags(held[j])).to_bytes()):
            with net.server():
                report = self._members(arrived)
                if report is not None:
                    reports[j] = report
        return reports

    def _chosen(self, reports: Mapping[int, NDArray[np.bool_]]) -> tuple[list[int], list[int]]:
        """The clients that are summed up, and the positions that go on: whole chains that hold all their shares."""
        chains = {
            position: [self.member(group, position) for group in range(self.groups)]
            for position in range(self.positions)
        }
        whole = [position for position, chain in chains.items() if all(j in reports for j in chain)]
        if len(whole) < self.code.needed:
            raise RoundFailedError("reports", f"{len(whole)} positions are left, {self.code.needed} are needed")
        held = np.array([np.any([reports[j] for j in chains[position]], axis=0) for position in whole])
        choice = agree(held, self.code.needed, self.least)
        if choice is None:
            why = f"no {self.code.needed} positions hold the shares of the same {self.least} clients"
            raise RoundFailedError("reports", why)
        going, used = choice
        return used.tolist(), [whole[k] for k in going]

    def _pass_on(
        self, used: list[int], going: list[int], held: list[dict[int, bytes]], net: Net
    ) -> tuple[list[int], list[Elements]]:
        """At the server: positions whose chain held, and their sums."""
        announcement, context = ClientSet(self._flags(used)).to_bytes(), self._context(b"sum")
        everyone = [self.member(group, position) for group in range(self.groups) for position in going]
        announced: dict[int, bytes | None] = {}
        letters: dict[int, bytes] = {}  # what came to a member from the group before
        sums: dict[int, Elements] = {}  # by position
        for group in range(self.groups):
            last = group == self.groups - 1
            net.stage(f"sums {group + 1}")
            if group == 0:
                announced = {j: net.down(j, announcement) for j in everyone}
            for position in going:
                j, following = self.member(group, position), self.member(group + 1, position)
                heard = announced[j]
                if heard is None or not net.works(j):
                    continue
                with net.client(j):
                    added = self._added(j, heard, held[j], letters.get(j))
                    message = added if added is None or last else self.letters[j].seal(following, context, added)
                if message is None:
                    continue
                arrived = net.up(j, message) if last else net.between(j, following, message)
                if arrived is not None and last:
                    with net.server():
                        elements = self._elements(arrived)
                        if elements is not None:
                            sums[position] = elements
                elif arrived is not None:
                    letters[following] = arrived
        if len(sums) < self.code.needed:
            why = f"{len(sums)} positions came through, {self.code.needed} are needed"
            raise RoundFailedError(f"sums {self.groups}", why)
        return [*sums], [*sums.values()]

    def _added(self, me: int, announced: bytes, mine: dict[int, bytes], letter: bytes | None) -> bytes | None:
        """What the group before sent, with the shares that were asked for; or silence."""
        group, parts = self.group(me), []
        if group > 0:
            sender, context = self.member(group - 1, me % self.positions), self._context(b"sum")
            before = None if letter is None else self.letters[me].open(sender, context, letter)
            if before is None:
                return None
            parts.append(before)
        own = np.array([self.group(i) == group for i in range(self.task.clients)])
        due = self._asked(announced, self._flags(mine), own)
        return None if due is None else self._packed_sum([*parts, *(mine[i] for i in due.tolist())])
