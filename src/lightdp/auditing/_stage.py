"""Real clients, keys and bytes, and the adversary who asks them, reads them and takes its colluders' noise out."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from lightdp import drawn, masks, stream
from lightdp.auditing._stories import Entry
from lightdp.auditing._view import VICTIM, Seen, View
from lightdp.keys import Identity, KeyPair, Keyring, Roster, link
from lightdp.planning import Plan, Unit
from lightdp.protocol import Client, Server
from lightdp.protocol.seat import bound
from lightdp.protocol.vector import agreement
from lightdp.wire import Accumulator, Announcement, Kind, Message, Upload

_MODEL = bytes(32)  # what rounds are bound to that must be, where nobody is lied to about the model
_REACH = 14.0  # standard deviations that an upload alone must hold without wrapping


def widened(plan: Plan, unit: Unit) -> Plan:
    """The same noise with a range so wide that no single upload wraps: the adversary loses nothing to the modulus.

    With unit "record" the client takes data as it is, so that each coordinate can change by a whole Δ and is an
    experiment of its own; with unit "client" it would clip their vector to one Δ. Noise does not depend on the unit.
    """
    peers = plan.graph.degree + min(plan.stragglers, plan.graph.degree)
    reach = _REACH * math.hypot(plan.sigma_individual, math.sqrt(peers) * plan.sigma_pairwise) / plan.clients
    room = max(plan.upload_range if unit == "client" else 0.0, 2 * plan.sensitivity + reach)
    return Plan(replace(plan.request, unit=unit, coordinate_range=room, rotate=False), plan.noise)


def coins(number: int) -> NDArray[np.bool_]:
    """Fair coins from the operating system: the secrets of the experiments. (number,)"""
    drawn = np.frombuffer(os.urandom(-(-number // 8)), np.uint8)
    return np.unpackbits(drawn, count=number).view(np.bool_)


def made(grid: masks.Grid) -> tuple[float, float]:
    """Variances of individual and pairwise noise as clients make it (W1), with all rounding. In units of the update.

    Gaussian pairwise noise is rounded to fine steps, drawn values are whole. Individual noise is a sum of three
    Gaussians in fine steps, each rounded, the second and third 2^11 and 2^22 times finer; its sum with the data is
    rounded to fine steps, then to the wire.
    """
    finer = (stream.SIGMA_MAX**2 + 1 / 12) * (2.0**-22 + 2.0**-44)
    wire = (4.0**grid.shift + 2) / 12 if grid.shift > 0 else 0.0
    individual = grid.sigma_individual**2 + 1 / 12 + finer + 1 / 12 + wire
    pairwise = grid.sigma_pairwise**2 + (1 / 12 if grid.sigma_pairwise > 0 and grid.unit == 0 else 0.0)
    return individual * grid.step**2, pairwise * grid.step**2


def excess(grid: masks.Grid) -> float:
    """The excess kurtosis of a mask, which no sum of masks and Gaussian noise exceeds; 0 where it is Gaussian."""
    if grid.unit == 0:
        return 0.0
    values, odds = np.arange(-128.0, 128.0), drawn.counts() / 2.0**drawn.BITS
    return float(odds @ values**4) / drawn.VARIANCE**2 - 3


class Stage:
    """One run with fresh keys: honest clients of lightdp.protocol, and colluders whose keys the adversary holds.

    Args:
        plan: the noise, as clients hold it.
        view: who colludes, and which uploads are asked for.
        length: values of an update.
        threads: cores that expand noise.
    """

    def __init__(self, plan: Plan, view: View, length: int, threads: int | None) -> None:
        self.plan, self.view, self.length, self.threads = plan, view, length, threads
        self.grid = masks.Grid.of(plan, length)
        self._run = os.urandom(16)
        names = [f"client-{i:09}" for i in range(plan.clients)]
        self.clients = {
            i: Client.new(plan, length=length, run=self._run, name=name, threads=threads)
            for i, name in enumerate(names)
            if i not in view.colluders
        }
        pairs = {i: KeyPair.generate() for i in view.colluders}
        server = Server(plan, length=length, run=self._run)
        for client in self.clients.values():
            server.enrol(client.enrol())
        for i, pair in pairs.items():
            signed = Identity.generate().enrol(pair, run=self._run, name=names[i]).to_bytes()
            server.enrol(Message(kind=Kind.ENROL, run=self._run, payload=signed).to_bytes())
        for client in self.clients.values():
            client.join(server.roster(client.name))
        content = Message.from_bytes(server.roster(), run=self._run).payload
        terms = agreement(plan, length, weighted=False)
        self._roster = Roster.from_bytes(bytes(content), run=self._run, plan=terms)
        rows = plan.graph.neighbours()
        honest = {i: [j for j in rows[i].tolist() if j in self.clients] for i in pairs}
        self._rings = {i: Keyring(pair, self._roster, i, honest[i]) for i, pair in pairs.items()}
        self._chains: dict[tuple[Entry, ...], bytes] = {(): self._roster.hash}
        self._given: dict[tuple[int, int], bytes] = {}  # what clients and rounds are bound to (W4)

    def ask(self, seen: Seen, update: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Ask a client for an upload, and return what is left of it without the noise that colluders know. (length,)

        Args:
            seen: the upload.
            update: the client's data; None in a closing round.
        """
        telling = seen.telling
        number, past = seen.round, tuple(each for entry in telling.past for each in entry)
        clients, grace = self.plan.clients, self.plan.grace
        start = Announcement(round=number, clients=clients, past=past, closing=telling.closing, grace=grace)
        run, roster = self._run, self._roster.hash
        message = Message(kind=Kind.ANNOUNCE, run=run, round=number, roster=roster, payload=start.to_bytes())
        begun = self.clients[telling.client].begin(message.to_bytes())
        if begun.binds or telling.given is not None:
            self._given[telling.client, number] = given = telling.given or _MODEL
            begun.bind(given)
        reply = Message.from_bytes(begun.upload(update), run=run, roster=roster)
        upload = Upload.from_bytes(reply.payload, length=self.length, bits=self.grid.bits)
        total = Accumulator(self.length, self.grid.bits)
        total.add(upload.packed)
        result = total.total().astype(np.float64)
        result *= self.grid.wire_step
        known = self._known(seen)
        if known:
            noise = np.zeros(self.length, np.int32)
            stream.accumulate(noise, known, threads=self.threads)
            result += noise * self.grid.step
        return result

    def _known(self, seen: Seen) -> list[stream.Term | stream.Draw]:
        """The colluders' own halves of the noise that they share with a client: added, they take it out."""
        client, terms = seen.telling.client, list[stream.Term | stream.Draw]()
        for part in seen.parts:
            chain = self._chain(seen.telling.past[: part.round])
            chain = bound(chain, given=self._given.get((client, part.round)))
            for i in part.peers:
                if i in self._rings:
                    keys = self._rings[i].stream_keys([client], round=part.round, chain=chain)
                    terms += masks.pairwise_terms(keys, i, self.grid, undo=part.undo)
        return terms

    def _chain(self, past: tuple[Entry, ...]) -> bytes:
        if past not in self._chains:
            chain, last = self._chain(past[:-1]), _bytes(past[-1])
            self._chains[past] = link(chain, round=len(past) - 1, announcement=last)
        return self._chains[past]

    def spent(self, *, worst: bool) -> tuple[float, float]:
        """μ and ε that the victim's odometer says, as announced to it or at worst (W5)."""
        victim = self.clients[VICTIM]
        return victim.mu(worst=worst), victim.epsilon(worst=worst)


def _bytes(entry: Entry) -> bytes:
    return b"".join(each.to_bytes() for each in entry)
