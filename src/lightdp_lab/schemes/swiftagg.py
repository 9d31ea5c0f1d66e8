"""SwiftAgg+ (Jahani-Nezhad et al. 2022): shares of updates are summed up on their way from group to group.

N clients, T = C̄ of which may work with the server, D = S̄ of which may drop. Γ groups of n = K + T + D members, one at
each of n positions; the N mod Γ clients that are left over belong to a group without a position and only send.

1. "shares": client i cuts its update on the grid, with its noise, into K pieces, appends T random ones, and sends each
   member of its group, sealed, its share of d/K elements.
2. "reports": each member reports to the server whose shares it holds.
3. "sums 1".."sums Γ": the server names the set V that is summed up. Members of the first group add up V's shares; each
   next one adds those to what the same position of the group before sent it, sealed. The last group sends to the
   server, and any K + T positions decode the sum.

A client sends (1 + (T + D)/K) d elements, the server gets (1 + T/K) d where just K + T positions are left, and about
N (n + 1)/2 links are used. One group is the lightest; more groups have fewer links and longer shares.

The paper assumes that a client reaches all of its group or none of it. Links here fail one by one, and sums over
different sets must not leave their positions, since the difference of two of them is a share of the client that is
missing: hence the reports, a few bytes. All clients agree on who dropped: a client is in the sum if its shares reached
every position that goes on, whatever happens to it later; if they reached some only, either these positions or this
client are left out (`agree`). A client or a link that is lost later silences its position from there on. The round
fails with fewer than N - S̄ in V, as the noise in their sum would be too little, or fewer than K + T positions.

The server follows the protocol but is curious, as in the paper. What a real run would add is a signed roster.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from lightdp._validate import integer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, WireError
from lightdp_lab.schemes._coded import Coded, agree
from lightdp_lab.schemes._net import Answers, Net, RoundFailedError
from lightdp_lab.schemes._scheme import Result, Task, Updates


class SwiftAgg(Coded, name="swiftagg+"):
    """Coded shares of updates, summed up along chains of clients.

    Fails with more than S̄ positions lost, or with fewer than N - S̄ clients whose shares reached all the others.

    Args:
        task: what is summed up.
        groups: Γ; as many as keep what a client sends within twice its update (K >= T + D) if None, or one.
    """

    def __init__(self, task: Task, groups: int | None = None) -> None:
        lost = task.colluders + task.stragglers
        self.groups = max(1, task.clients // max(2 * lost, 2)) if groups is None else integer("groups", groups, 1)
        self.positions = task.clients // self.groups
        if self.positions <= lost:
            raise ArgumentError(f"groups must leave more than {lost} in each, got groups={self.groups}")
        super().__init__(task, self.positions - lost, self.positions)

    def chain(self, position: int) -> range:
        """The members at a position, group after group."""
        return range(position, self.groups * self.positions, self.positions)

    def group(self, client: int) -> int:
        """Of a client; those left over go to the first groups, one each."""
        left_over = client - self.groups * self.positions
        return client // self.positions if left_over < 0 else left_over

    def peers(self, client: int) -> range:
        """The members of its group, by position."""
        first = self.group(client) * self.positions
        return range(first, first + self.positions)

    def round(self, updates: Updates, net: Net) -> Result:
        """Shares, reports, and one trip for each group."""
        members = range(self.groups * self.positions)
        held = self._share(net, self.peers, lambda i: self.field.of(self.grid.encode(updates[i])))
        net.stage("reports")
        reports: dict[int, ClientSet] = {}
        for j, arrived in net.collect(members, lambda j: ClientSet.of(self.task.clients, held[j]).to_bytes()):
            with net.server(), suppress(WireError):
                reports[j] = ClientSet.from_bytes(arrived, self.task.clients)
        with net.server():
            used, going = self._chosen(reports)
        return self._result(self._decode(net, self._sums(used, going, held, net), "positions came through"), used)

    def _chosen(self, reports: Mapping[int, ClientSet]) -> tuple[ClientSet, list[int]]:
        """The clients that are summed up, and the positions that go on: whole chains that hold all their shares."""
        needed = self.code.needed
        whole = [position for position in range(self.positions) if reports.keys() >= set(self.chain(position))]
        if len(whole) < needed:
            raise RoundFailedError("reports", f"{len(whole)} positions are left, {needed} are needed")
        held = np.array([np.any([reports[j].flags for j in self.chain(position)], axis=0) for position in whole])
        why = f"no {needed} positions hold the shares of the same {self.least} clients"
        going, used = agree(held, needed, self.least, RoundFailedError("reports", why))
        return ClientSet.of(self.task.clients, used.tolist()), [whole[k] for k in going]

    def _sums(self, used: ClientSet, going: list[int], held: list[dict[int, bytes]], net: Net) -> Answers:
        """What arrives at the server: sums of shares by position, passed on from group to group."""
        context, last = self._context(b"sum"), self.groups - 1
        groups = [{i for i in range(self.task.clients) if self.group(i) == group} for group in range(self.groups)]
        letters: dict[int, bytes] = {}  # what came to a member from the group before

        def added(j: int) -> bytes:
            """What the group before sent, with the member's own shares."""
            group, before = self.group(j), list[bytes]()
            if group > 0:
                before.append(self.letters[j].open(j - self.positions, context, letters.get(j, b"")))
            return self._answer(heard[j], held[j], groups[group], *before)

        def passed_on(j: int) -> dict[int, bytes]:
            following = j + self.positions
            return {following: self.letters[j].seal(following, context, added(j))}

        net.stage("sums 1")
        heard = net.send([j for position in going for j in self.chain(position)], lambda _: used.to_bytes())
        for group in range(last):
            members = [j for j in heard if self.group(j) == group]
            letters |= {j: letter for _, j, letter in net.exchange(members, passed_on)}
            net.stage(f"sums {group + 2}")
        for j, arrived in net.collect([j for j in heard if self.group(j) == last], added):
            yield j % self.positions, arrived
