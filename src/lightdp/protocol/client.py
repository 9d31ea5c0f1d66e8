"""The client: enrols, joins a roster, and answers each round once, with one masked upload."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp import masks
from lightdp._validate import integer, number
from lightdp.clipping import clamp, clip_norm
from lightdp.errors import ArgumentError, ProtocolError, WireError
from lightdp.keys import Enrolment, Identity, KeyPair, Keyring, Pins, Roster
from lightdp.protocol.history import ClientHistory
from lightdp.wire import Announcement, Kind, Message, Upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightdp.planning import Plan
    from lightdp.protocol.state import Store
    from lightdp.stream import Term

    Floats = NDArray[np.float32] | NDArray[np.float64]

_VERSION = 1  # of the state
_WEIGHT_SHARE = 0.1  # of the clip


def weight_share(plan: Plan) -> float:
    """What a weight of 1 is worth in its own coordinate, so that Δ covers both (P5) and sums do not wrap (W1)."""
    return min(_WEIGHT_SHARE * plan.clip, plan.upload_range)


def agreement(plan: Plan, length: int, *, weighted: bool) -> bytes:
    """32 bytes that the roster binds: the plan and the shape of uploads. Refuses weights that it does not cover."""
    if weighted and plan.unit != "client":
        raise ArgumentError(f"weighted needs unit='client', whose clip covers the weight, got unit={plan.unit!r}")
    return hashlib.sha256(plan.digest() + length.to_bytes(8, "little") + bytes([weighted])).digest()


class Client:
    """One client of one run.

    Formal guarantees, whatever bytes arrive:
    - at most one upload leaves for each round, also after a restart from `store` or if several threads ask (W3);
    - what leaves is clipped to the plan's sensitivity (the whole vector for unit "client"; for unit "record" the
      caller clips each record), clamped to the plan's range, and carries the plan's noise;
    - `upload` raises `BudgetError`, and nothing leaves, if the round could exceed the budget (R2);
    - a message that is malformed (`WireError`) or contradicts the protocol (`ProtocolError`) changes nothing.

    Args:
        plan: the noise; the roster binds it, so that clients with another plan are refused.
        length: number of values of an update.
        run: 16 bytes that name the run.
        name: the client's name in the roster.
        identity: long-lived key that signs the one-time key; by default a new one.
        pins: identities expected of peers. Whoever is not among them counts as a colluder: a roster with more than
            the plan's colluders of them is refused, so that a server cannot invent peers.
        weighted: whether updates carry weights in [0, 1], with their sum aggregated beside them (P5).
        store: where the state lives, for `restore`; without it a restart must enrol anew.
        threads: cores that expand noise; None for all.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        length: int,
        run: bytes,
        name: str,
        identity: Identity | None = None,
        pins: Pins | None = None,
        weighted: bool = False,
        store: Store | None = None,
        threads: int | None = 1,
    ) -> None:
        self.plan, self.run, self.weighted, self.threads = plan, run, weighted, threads
        self.length = integer("length", length, 1)
        self._grid = masks.Grid.of(plan, length + weighted)
        self._agreement = agreement(plan, length, weighted=weighted)
        self._pins = pins
        self._store = store
        self._lock = threading.Lock()  # what is decided on a state is done before another message is looked at
        self._pair = KeyPair.generate()
        self._enrolment = (Identity.generate() if identity is None else identity).enrol(self._pair, run=run, name=name)
        self._roster: Roster | None = None
        self._keyring: Keyring | None = None
        self._history: ClientHistory | None = None
        self._opened: tuple[bytes, Announcement, ClientHistory] | None = None  # what `check` has let pass

    def enrol(self) -> bytes:
        """The ENROL message: this client's signed one-time key."""
        if self._roster is None:
            self._save()
        return Message(kind=Kind.ENROL, run=self.run, payload=self._enrolment.to_bytes()).to_bytes()

    def join(self, message: bytes) -> None:
        """Take in the ROSTER message, once."""
        content = Message.from_bytes(message, run=self.run)
        if content.kind != Kind.ROSTER:
            raise ProtocolError(f"expected ROSTER, got {content.kind.name}")
        roster = Roster.from_bytes(bytes(content.payload), run=self.run, plan=self._agreement)
        with self._lock:
            if self._roster is not None:
                if roster.hash == self._roster.hash:
                    return
                raise ProtocolError("the roster must not change in a run; whoever joins or leaves starts a new one")
            self._enter(roster)
            self._save()

    def check(self, message: bytes) -> None:
        """Refuse an ANNOUNCE message as `upload` would, before work is done for it. Nothing is answered or spent."""
        with self._lock:
            self._opened = (bytes(message), *self._open(message))

    def upload(self, message: bytes, update: Floats | None, *, weight: float = 1.0) -> bytes:
        """Answer an ANNOUNCE message with the UPLOAD of this round.

        `update` is not changed. In a closing round, which carries no data, it may be None.

        Raises:
            WireError: the message is malformed or of another run or roster.
            ProtocolError: the round was answered before or is out of order, or its past contradicts what is known.
            BudgetError: the round could take this client over its budget.
            ArgumentError: the update is not a finite vector of the right length.
        """
        with self._lock:
            return self._upload(message, update, weight)

    def _upload(self, message: bytes, update: Floats | None, weight: float) -> bytes:
        start, history = self._open(message) if self._opened is None or self._opened[0] != message else self._opened[1:]
        self._opened = None
        vector = self._vector(None if start.closing else update, weight)
        terms = self._terms(history, start.round, closing=start.closing)
        packed = masks.mask(vector, self._grid, terms, threads=self.threads)
        history.sent.add(start.round)
        history.closing = start.round if start.closing else history.closing
        self._history, before = history, self._history
        try:
            self._save()
        except BaseException:
            self._history = before
            raise
        payload = Upload(length=len(vector), bits=self._grid.bits, packed=packed).to_bytes()
        return Message(
            kind=Kind.UPLOAD,
            run=self.run,
            round=start.round,
            roster=history.chains[0],
            client=history.me,
            payload=payload,
        ).to_bytes()

    def _open(self, message: bytes) -> tuple[Announcement, ClientHistory]:
        """The start of a round, and the history with all that it tells; refuses what must not be answered."""
        if self._roster is None or self._history is None:
            raise ProtocolError("the client has no roster yet")
        content = Message.from_bytes(message, run=self.run, roster=self._roster.hash)
        if content.kind != Kind.ANNOUNCE:
            raise ProtocolError(f"expected ANNOUNCE, got {content.kind.name}")
        start = Announcement.from_bytes(content.payload, round=content.round, clients=self.plan.clients)
        if start.round < self.next_round:
            raise ProtocolError(f"round {start.round} was answered, or is over")
        history = self._history.copied()
        history.learn(start.history())
        if start.round != len(history.used):
            raise ProtocolError(f"expected round {len(history.used)}, got round {start.round}")
        if not start.closing:
            history.odometer.admit()
        return start, history

    @property
    def next_round(self) -> int:
        """The first round that this client may still answer."""
        return max(self._history.sent, default=-1) + 1 if self._history is not None else 0

    def epsilon(self) -> float:
        """What this client's data has cost, rounded up, as far as it was told.

        An upload counts at its dearest until the next announcement says who was used; what peers repair of a round
        that came too late counts once it is announced (`upload` kept room for all of it). A closing round, which has no
        data and needs no budget, counts like any other if a server goes on after it: then this number may exceed the
        budget, and what was revealed does not.
        """
        if self._history is None:
            return 0.0
        return float(self._history.odometer.epsilon(ahead=self._history.pending)[0])

    def _vector(self, update: Floats | None, weight: float) -> Floats:
        """The clipped, clamped, weighted update, with its weight's coordinate if there is one."""
        if update is None:
            return np.zeros(self.length + self.weighted, np.float32)
        if not isinstance(update, np.ndarray) or update.shape != (self.length,):
            raise ArgumentError(
                f"update must be a vector of {self.length} floats, got {getattr(update, 'shape', update)}"
            )
        if not 0 <= number("weight", weight) <= 1 or (weight != 1 and not self.weighted):
            raise ArgumentError(f"weight must be {'in [0, 1]' if self.weighted else '1'}, got weight={weight:g}")
        share = weight_share(self.plan) if self.weighted else 0.0
        vector = np.empty(self.length + self.weighted, update.dtype)
        whole = self.plan.unit == "client"
        if whole:
            # with a weight, 1e-6 below the clip: its product and its own coordinate are rounded
            room = (self.plan.clip**2 - share**2) ** 0.5 * (1 - 1e-6) if self.weighted else self.plan.clip
            clip_norm(update, room, out=vector[: self.length])
        else:
            vector[: self.length] = update
        if self.weighted:
            vector[: self.length] *= weight
        if not whole or self.plan.upload_range < self.plan.clip:  # else no coordinate is beyond the range
            clamp(vector[: self.length], self.plan.upload_range)
        vector[self.length :] = share * weight
        return vector

    def _terms(self, history: ClientHistory, current: int, *, closing: bool) -> list[Term]:
        """This round's pairwise noise, and the opposite of what is to be repaired (R1)."""
        terms = [] if closing else self._pairwise(history, current, history.neighbours)
        if history.repair is not None:
            terms += self._pairwise(history, history.repair.round, history.repair.absent, undo=True)
        return terms

    def _pairwise(self, history: ClientHistory, of: int, peers: tuple[int, ...], *, undo: bool = False) -> list[Term]:
        if self._keyring is None or self.plan.gamma == 0:
            return []
        keys = self._keyring.stream_keys(peers, round=of, chain=history.chains[of])
        return masks.pairwise_terms(keys, history.me, self._grid, undo=undo)

    def _enter(self, roster: Roster) -> ClientHistory:
        if len(roster) != self.plan.clients:
            raise WireError(f"roster must have {self.plan.clients} clients, got {len(roster)}")
        me = roster.index(self._enrolment)
        name = self._enrolment.name
        if self._pins is not None:
            self._pins.check(roster)
            unknown = [e.name for e in roster.enrolments if e.name not in self._pins.identities and e.name != name]
            if len(unknown) > self.plan.colluders:
                raise WireError(
                    f"roster must have at most {self.plan.colluders} clients that are not pinned, got {unknown}"
                )
        graph = self.plan.graph
        neighbours = [j for j in range(len(roster)) if j != me] if graph.complete else graph.neighbours()[me].tolist()
        self._keyring = Keyring(self._pair, roster, me, neighbours)
        self._roster, self._history = roster, ClientHistory(self.plan, me, roster.hash, neighbours)
        return self._history

    def _save(self) -> None:
        if self._store is None:
            return
        history = self._history
        facts = {
            "version": _VERSION,
            "agreement": self._agreement.hex(),
            "run": self.run.hex(),
            "pair": self._pair.to_bytes().hex(),
            "enrolment": self._enrolment.to_bytes().hex(),
            "roster": None if self._roster is None else self._roster.to_bytes().hex(),
            "used": [] if history is None else [used.hex() for used in history.used],
            "sent": [] if history is None else sorted(history.sent),
            "closing": None if history is None else history.closing,
        }
        self._store.save(json.dumps(facts).encode())

    @classmethod
    def restore(cls, plan: Plan, *, length: int, store: Store, **options: Any) -> Client:  # noqa: ANN401  as __init__
        """The client whose state is in `store`, with the plan and options it was made with.

        The state must be the newest, and of no other client that still runs: an older copy, or a second client of one
        state, would let a round be answered twice.
        """
        try:
            facts = json.loads(store.load())
            if facts["version"] != _VERSION:
                raise ArgumentError(f"store must hold a client's state of version {_VERSION}, got {facts['version']!r}")
            run, pair = bytes.fromhex(facts["run"]), KeyPair(bytes.fromhex(facts["pair"]))
            enrolment = Enrolment.from_bytes(bytes.fromhex(facts["enrolment"]), run=run)
            client = cls(plan, length=length, run=run, name=enrolment.name, **options)
            if bytes.fromhex(facts["agreement"]) != client._agreement:
                raise ArgumentError("plan, length and weighted must be those of the state in store")
            client._store, client._pair, client._enrolment = store, pair, enrolment
            if facts["roster"] is not None:
                history = client._enter(
                    Roster.from_bytes(bytes.fromhex(facts["roster"]), run=run, plan=client._agreement)
                )
                history.sent = {integer("sent", t, 0) for t in facts["sent"]}
                history.closing = None if facts.get("closing") is None else integer("closing", facts["closing"], 0)
                history.learn(enumerate(bytes.fromhex(used) for used in facts["used"]))
        except (KeyError, TypeError, ProtocolError, ValueError) as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(f"store must hold a client's state: {error!r}") from None
        return client
