"""LightSecAgg (So et al., MLSys 2022): the server learns only the sum of the masks, in one shot.

N clients, T = C̄ of which may work with the server, any U of which recover the masks, T < U <= N - S̄.

1. "shares": client i draws a mask z_i, uniform in F_p^d, cuts it into U - T pieces, appends T random ones, and sends
   each client j, sealed, its share of d/(U - T) elements. This needs no update: it may run while the client trains.
2. "upload": client i sends x_i + z_i, x_i being its update on a grid with its noise; and whose shares it holds.
3. "recovery": the server names the set V that is summed up; client j sends the sum of V's shares. Any U of these
   sums are shares of the sum of V's masks, which the server takes off.

All clients agree on who dropped, since the server names one V and clients answer once. Lost before "upload": not in
the sum. Lost after it: in the sum, someone else's share replaces theirs. The paper assumes that a client that uploads
has reached everybody; where links between clients fail one by one, the server picks V and the clients it asks so that
each of these holds the shares of all of V (`agree`): a client whose shares reached too few peers is left out, its
mask is never recovered, and its upload stays hidden. The round fails with fewer than N - S̄ in V, as the noise in
their sum would be too little, or fewer than U answers.

The server follows the protocol but is curious, as in the paper. What a real run would add is a signed roster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from lightdp._validate import integer
from lightdp.client_set import ClientSet
from lightdp.errors import WireError
from lightdp.wire import packed_size
from lightdp_lab.schemes._coded import Coded, agree
from lightdp_lab.schemes._net import Net, RoundFailedError, ending
from lightdp_lab.schemes._scheme import Result, Task, Updates


class LightSecAgg(Coded, name="lightsecagg"):
    """Coded shares of uniform masks; U answers recover their sum.

    Fails with fewer than N - S̄ uploads, fewer than U answers, or too many broken links between clients (`agree`).
    A smaller U tolerates more losses and makes shares longer: each client sends N d/(U - T) elements to others.

    Args:
        task: what is summed up.
        survivors: U; N - S̄ if None, the fewest bytes that the task's stragglers allow.
    """

    def __init__(self, task: Task, survivors: int | None = None) -> None:
        most = task.clients - task.stragglers
        self.survivors = most if survivors is None else integer("survivors", survivors, task.colluders + 1, most)
        super().__init__(task, self.survivors - task.colluders, task.clients)

    def round(self, updates: Updates, net: Net) -> Result:
        """Three round trips, the first of which may come early."""
        everybody, length = range(self.task.clients), self.task.dimension
        keys = [os.urandom(32) for _ in everybody]
        held = self._share(net, lambda _: everybody, lambda i: self.field.uniform(length, keys[i]))

        def masked(i: int) -> bytes:
            values = self.field.add(self.field.of(self.grid.encode(updates[i])), self.field.uniform(length, keys[i]))
            return self.field.pack(values) + ClientSet.of(len(everybody), held[i]).to_bytes()

        net.stage("upload")
        uploads: dict[int, bytes] = {}
        reports: dict[int, ClientSet] = {}
        size = packed_size(length, self.field.bits)
        for i, arrived in net.collect(everybody, masked):
            with net.server(), suppress(WireError):
                reports[i], uploads[i] = ClientSet.from_bytes(arrived[size:], len(everybody)), arrived[:size]
        with net.server():
            used, asked = self._chosen(reports)

        net.stage("recovery")
        named = ClientSet.of(len(everybody), used).to_bytes()
        sums = net.ask(asked, named, lambda j, heard: self._answer(heard, held[j], everybody))
        masks = self._decode(net, sums, "answers came")
        with net.server(), ending("upload"):
            total = self.field.total((uploads[i] for i in used), length)
            return self._result(self.field.subtract(total, masks), used)

    def _chosen(self, reports: Mapping[int, ClientSet]) -> tuple[list[int], list[int]]:
        """The clients that are summed up, and those that are asked for shares."""
        if len(reports) < self.least:
            raise RoundFailedError("upload", f"{len(reports)} uploads came, {self.least} are needed")
        came = sorted(reports)
        failure = RoundFailedError("upload", f"no {self.survivors} clients hold the shares of the same {self.least}")
        asked, used = agree(np.array([reports[j].flags[came] for j in came]), self.survivors, self.least, failure)
        return [came[i] for i in used], [came[j] for j in asked]
