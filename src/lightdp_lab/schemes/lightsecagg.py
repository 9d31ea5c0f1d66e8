"""LightSecAgg (So et al., MLSys 2022): the server learns only the sum of the masks, in one shot.

N clients, T = C̄ of which may work with the server, any U of which recover the masks, T < U <= N - S̄.

1. "shares": client i draws a mask z_i, uniform in F_p^d, cuts it into U - T pieces, appends T random ones, and sends
   each client j, sealed, its share of d/(U - T) elements. This needs no update: it may run while the client trains.
2. "upload": client i sends x_i + z_i, x_i being its update on a grid with its noise; and whose shares it holds.
3. "recovery": the server names the set V that is summed up; client j sends the sum of V's shares. Any U of these
   sums are shares of the sum of V's masks, which the server takes off.

Who drops is treated alike by all, since the server names one V and clients answer once. Lost before "upload": not in
the sum. Lost after it: in the sum, someone else's share replaces theirs. The paper takes it that whoever uploads has
reached everybody; where links between clients fail one by one, the server picks V and the clients it asks so that
each of these holds the shares of all of V (`agree`): a client whose shares reached too few peers is left out, its
mask is never recovered, and its upload stays hidden. The round fails with fewer than N - S̄ in V, as the noise in
their sum would be too little, or fewer than U answers.

The server follows the protocol but is curious, as in the paper. What a real run would add is a signed roster.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lightdp._validate import integer
from lightdp.client_set import ClientSet
from lightdp.errors import WireError
from lightdp.wire import packed_size
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


class LightSecAgg(Coded):
    """Coded shares of uniform masks; U answers recover their sum.

    A smaller U tolerates more losses and makes shares longer: each client sends N d/(U - T) elements to others.

    Args:
        task: what is summed up.
        survivors: U; N - S̄ if None, the fewest bytes that the task's stragglers allow.
    """

    about = ALL["lightsecagg"]

    def __init__(self, task: Task, survivors: int | None = None) -> None:
        super().__init__(task)
        most = task.clients - task.stragglers
        self.survivors = most if survivors is None else integer("survivors", survivors, task.colluders + 1, most)

    @cached_property
    def code(self) -> Code:
        """U - T pieces, T random ones, N shares."""
        private, clients = self.task.colluders, self.task.clients
        return Code(self.field, self.task.dimension, self.survivors - private, private, clients)

    def round(self, updates: Sequence[NDArray[np.float32]], net: Net) -> Result:
        """Three round trips, the first of which may come early."""
        self._rounds += 1
        keys, held = self._share(net)
        uploads, reports = self._upload(updates, keys, held, net)
        with net.server():
            used, asked = self._chosen(reports)
        who, answers = self._recover(used, asked, held, net)
        with net.server():
            masks = self.code.decode(who, answers)
            try:
                total = self.field.total((uploads[i] for i in used), self.task.dimension)
            except WireError as error:
                raise RoundFailedError("upload", str(error)) from None
            return Result(self._decoded(self.field.subtract(total, masks)), frozenset(used))

    def _share(self, net: Net) -> tuple[dict[int, bytes], list[dict[int, bytes]]]:
        """Keys of the masks, and the shares that each client holds, by sender; each client uses only its own."""
        net.stage("shares")
        keys: dict[int, bytes] = {}
        held: list[dict[int, bytes]] = [{} for _ in range(self.task.clients)]
        for i in filter(net.works, range(self.task.clients)):
            with net.client(i):
                keys[i] = os.urandom(32)
                shares = self.field.pack_rows(self.code.encode(self._mask(keys[i])))
                held[i][i] = shares[i]
            for j, share in enumerate(shares):
                if j != i:
                    self._send((i, j), share, held, net)
        return keys, held

    def _upload(
        self, updates: Sequence[NDArray[np.float32]], keys: dict[int, bytes], held: list[dict[int, bytes]], net: Net
    ) -> tuple[dict[int, bytes], dict[int, NDArray[np.bool_]]]:
        """At the server: masked updates, packed, and whose shares each sender holds."""
        net.stage("upload")
        uploads: dict[int, bytes] = {}
        reports: dict[int, NDArray[np.bool_]] = {}
        size = packed_size(self.task.dimension, self.field.bits)

        def masked(i: int) -> bytes:
            values = self.field.add(self.field.of(self.grid.encode(updates[i])), self._mask(keys[i]))
            return self.field.pack(values) + ClientSet(self._flags(held[i])).to_bytes()

        for i, arrived in net.collect(range(len(updates)), masked):
            with net.server():
                report = self._members(arrived[size:])
                if report is not None:
                    uploads[i], reports[i] = arrived[:size], report
        return uploads, reports

    def _chosen(self, reports: Mapping[int, NDArray[np.bool_]]) -> tuple[list[int], list[int]]:
        """The clients that are summed up, and those that are asked for shares."""
        if len(reports) < self.least:
            raise RoundFailedError("upload", f"{len(reports)} uploads came, {self.least} are needed")
        came = sorted(reports)
        choice = agree(np.array([reports[j][came] for j in came]), self.survivors, self.least)
        if choice is None:
            why = f"no {self.survivors} clients hold the shares of the same {self.least}"
            raise RoundFailedError("upload", why)
        asked, used = choice
        return [came[i] for i in used], [came[j] for j in asked]

    def _recover(
        self, used: list[int], asked: list[int], held: list[dict[int, bytes]], net: Net
    ) -> tuple[list[int], list[Elements]]:
        """At the server: who answered, and their sums of shares."""
        net.stage("recovery")
        answers: dict[int, Elements] = {}
        for j, arrived in net.ask(
            asked, ClientSet(self._flags(used)).to_bytes(), lambda j, heard: self._answer(heard, held[j])
        ):
            with net.server():
                elements = self._elements(arrived)
                if elements is not None:
                    answers[j] = elements
        if len(answers) < self.survivors:
            raise RoundFailedError("recovery", f"{len(answers)} answers came, {self.survivors} are needed")
        return [*answers], [*answers.values()]

    def _answer(self, announced: bytes, mine: dict[int, bytes]) -> bytes | None:
        """The sum of the shares that were asked for, or silence."""
        due = self._asked(announced, self._flags(mine))
        return None if due is None else self._packed_sum(mine[i] for i in due.tolist())

    def _mask(self, key: bytes) -> Elements:
        return self.field.uniform(self.task.dimension, key)
