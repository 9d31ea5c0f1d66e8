"""SecAgg (Bonawitz et al., CCS 2017) and SecAgg+ (Bell et al., CCS 2020), for an honest-but-curious server.

Four round trips, with fresh keys in each round; N(u) are the peers of client u, all others in SecAgg, k in SecAgg+:

advertise: u sends two X25519 keys, one to seal shares (c) and one for masks (s).
share: u gets the keys of N(u), draws a seed b_u, shares b_u and its private s by Shamir's scheme, t of |N(u)| + 1
    (it keeps one), and sends each peer its shares, sealed by AES-GCM, relayed by the server or on direct links.
upload: y_u = x_u + PRG(b_u) + Σ ± PRG(k_uv) mod 2^b over the peers whose shares came, which it names.
unmask: the server names who uploaded. Each of them sends, for each client whose shares it holds, the share of b if
    that one uploaded, else that of s; never both. t shares give b or s, and the server takes the masks out.

Clients add DP noise before they mask, σ²/(N - C̄ - S̄) each, and answer no list with fewer than N - S̄ uploads. A
client that finds a message tampered with, a list too short or a step asked for twice gives the round up; to the others
it is lost. A direct link that is cut only takes one mask out of two uploads. Left out: signatures and the consistency
check, which the papers add against a server that lies.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import count

from lightdp._validate import integer
from lightdp.errors import ArgumentError
from lightdp_lab.schemes._net import Net
from lightdp_lab.schemes._scheme import Result, Smpc, Task, Updates
from lightdp_lab.schemes._secagg import Client, Server

_FAILURE = 2.0**-40


class SecAgg(Smpc, name="secagg"):
    """Masks that cancel, and shares to take out what does not, among `degree` peers; all others if not given.

    Fails with more than S̄ clients lost before the upload, or fewer than t shares of a secret that is needed after it.

    t, with all others: ⌊(N + C̄)/2⌋ + 1, but at most N - S̄, or S̄ lost clients would end the round. It is above C̄, so
    colluders alone open nothing. Below the cap even a server that names different survivors to different clients does
    not get t shares of both of one's secrets: there are N - C̄ honest ones, each reveals one, and 2 t > N + C̄.

    t, with fewer: the least for which no client has t colluding peers but with probability 2^-40, if colluders were
    chosen before the ring was drawn.
    """

    def __init__(self, task: Task, degree: int | None = None) -> None:
        super().__init__(task)
        others = task.clients - 1
        self.degree = others if degree is None else integer("degree", degree, 1, others)
        if self.degree < others and self.degree % 2 == 1:
            raise ArgumentError(f"degree must be even, or {others} for all, got degree={degree}")
        self.threshold = _threshold(task, self.degree)

    def round(self, updates: Updates, net: Net) -> Result:
        """Advertise, share, upload, unmask."""
        server = Server(self)
        self._play(updates, net, server, [Client(i, self) for i in range(self.task.clients)])
        with net.server():
            return Result(server.total(), frozenset(server.held))

    def _play(self, updates: Updates, net: Net, server: Server, clients: Sequence[Client]) -> None:
        """All messages, up to the shares that open the sum."""
        net.stage("advertise")
        server.keys |= net.ask(range(len(clients)), b"", lambda i, _: clients[i].advertise())
        self.demand("advertise", len(server.keys), self.least)

        net.stage("share")
        with net.server():
            rosters = net.send(server.keys, server.roster)
        inbox: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for i, j, sealed in net.exchange([*rosters], lambda i: clients[i].share(rosters.pop(i))):
            inbox[j].append((i, sealed))

        net.stage("upload")
        uploads = net.ask(server.keys, b"", lambda i, _: clients[i].upload(inbox[i], updates[i]))
        net.take(uploads, server.receive)
        self.demand("upload", len(server.held), self.least)
        with net.server():
            uploaded = server.uploaded()

        net.stage("unmask")
        net.take(net.ask(server.held, uploaded, lambda i, heard: clients[i].unmask(heard)), server.answer)
        self.demand("unmask", len(server.answers), self.threshold)


class SecAggPlus(SecAgg, name="secagg+"):
    """The same with k peers, half on each side of a ring in random order (a Harary graph, as in the paper).

    k: the least even number for which these hold but with probability 2^-40 each, by unions of hypergeometric tails:
    with S̄ lost each client has t peers left; and C̄ colluders and S̄ lost do not cut the ring in two, which takes two
    gaps of k/2. k > C̄ + S̄ is always enough, so for few clients k is not small; it grows with log N.

    Fails as SecAgg does; besides, an unlucky neighbourhood of one client ends the round for all.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task, _degree(task))


def _threshold(task: Task, degree: int) -> int:
    if degree == task.clients - 1:
        return min((task.clients + task.colluders) // 2 + 1, task.clients - task.stragglers)
    return next(t for t in count(2) if task.clients * _tail(task.clients - 1, task.colluders, degree, t) <= _FAILURE)


def _degree(task: Task) -> int:
    clients, bad = task.clients, task.colluders + task.stragglers
    for degree in range(2, clients - 1, 2):
        lost = degree - _threshold(task, degree) + 1  # so many lost peers are too many
        cut = clients**2 / 2 * (math.comb(bad, degree) / math.comb(clients, degree))
        if lost > 0 and max(cut, clients * _tail(clients - 1, task.stragglers, degree, lost)) <= _FAILURE:
            return degree
    return clients - 1


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Chance that at least so many of the drawn are marked (hypergeometric)."""
    ways = (math.comb(marked, x) * math.comb(population - marked, drawn - x) for x in range(least, drawn + 1))
    return sum(ways) / math.comb(population, drawn)
