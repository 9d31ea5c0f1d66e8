"""`Request`: what is asked of a plan, checked once."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from lightdp._settings import described, setting
from lightdp._validate import choice, integer, number, positive, probability, share
from lightdp.errors import ArgumentError
from lightdp.noise_graph import Graph
from lightdp.planning._calibrate import GAMMA_MAX, weight
from lightdp.random_graph import DELTA_MAX, Certificate, RandomGraph
from lightdp.sampling import Adjacency
from lightdp.stragglers import StragglerLaw, custom, parse

CalibrationName = Literal["auto", "exact", "repair", "paper", "local", "smpc", "central"]
Unit = Literal["record", "client"]
Reserve = Literal["expected", "worst"]
MasksName = Literal["auto", "gaussian", "drawn"]
Late = float | Literal["unseen"]

FINEST_STEPS = 16
"""The most steps of the wire in σ_U; on the grid in which noise is added up, σ_U is at least so many steps."""
_UNKNOWN_RECORDS_PER_CLIENT = 1024
_LATE = (0.0, 0.1)  # without and with grace, see (R6)
_CHOICES = {
    "calibration": CalibrationName,
    "unit": Unit,
    "adjacency": Adjacency,
    "reserve": Reserve,
    "masks": MasksName,
}


class Unasked(str):
    """The default of a setting that was not given: equal to its text, and told apart by its type."""

    __slots__ = ()


_RECORD: Any = Unasked("record")


@described
@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a plan. A `Request` that exists is valid: every value was checked when it was made.

    The flags of `lightdp plan` and `lightdp run`, and what Flower's server sends to its nodes, derive from its fields.

    >>> Request(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5).sensitivity
    1.0

    Raises:
        ArgumentError: a value is out of range; the message names it and its value.
    """

    # fmt: off
    clients: int = setting("Number of clients, N.", group="Clients")
    colluders: int = setting("Number of clients that may collude with the server, C̄.", group="Clients")
    stragglers: int = setting("Largest number of clients that miss a round, S̄.", group="Clients")
    rounds: int = setting("Number of rounds of the training, T.", group="Training")
    epsilon: float = setting("Privacy budget ε, for the whole training.", group="Privacy")
    delta: float = setting("The δ of the guarantee (ε, δ).", group="Privacy")
    calibration: CalibrationName = setting(
        "How noise is chosen: exact, with repair, the better of both (auto), or as in the paper; local, smpc and "
        "central are to compare with.", "auto", group="Noise",
    )
    clip: float = setting("L2 norm to which a record's part, or a client's update, is clipped.", 1.0, group="Privacy")
    unit: Unit = setting(
        "What is protected: one record (or person, whose rows add one part to a sum), or all data of one client.",
        _RECORD, group="Privacy",
    )  # fmt: skip
    adjacency: Adjacency = setting("Neighbours differ by one unit added, or replaced.", "add-remove", group="Privacy")
    sampling_rate: float = setting("Poisson rate of a round's batches (unit record).", 1.0, group="Training")
    momentum: float = setting("Momentum of the server; it tunes the noise, not the guarantee.", 0.9, group="Training")
    ema: float = setting(
        "Decay of averaged weights, if these are what counts; it tunes the noise, not the guarantee.", 0.0,
        group="Training",
    )
    population: int | None = setting(
        "Number of clients from whom cohorts of `clients` take turns; by default the same clients in every round.",
        None, group="Clients",
    )
    graph: str | None = setting(
        "Who shares noise with whom: complete, circulant:DEGREE[:SEED], random:DEGREE (an expander for large rosters), "
        "or auto; instead of `degree`, `graph_seed` and `random`, which it stands for.", None, group="Clients",
    )
    degree: int | None = setting("Number of peers that share noise with a client, or all.", None, group="Clients")
    graph_seed: int = setting("Shuffles who is whose peer; public and the same for all.", 0, group="Clients")
    random: bool = setting(
        "Place clients on an expander of about `degree` peers each, by the hash of their roster (S1).", False,
        group="Clients",
    )
    straggler_law: StragglerLaw | str = setting(
        "Expected number of stragglers: uniform, binomial:P or pmf:P0,P1,...; it tunes the noise, not the guarantee.",
        "uniform", group="Clients", flag=str,
    )
    gamma: float | None = setting("Ratio of variances σ_K²/σ_U²; by default the best one.", None, group="Noise")
    masks: MasksName = setting(
        "Noise that two clients share: gaussian, or drawn from fewer random bits, which is faster, with repair and "
        "for clients that keep no state between rounds; "
        "auto: drawn where that costs at most 2 % more noise.", "auto", group="Noise",
    )
    reserve: Reserve = setting("With repair, plan for expected or worst-case stragglers.", "expected", group="Noise")
    grace: int = setting(
        "Rounds for which an upload may be late and is used all the same: 0 or 1.", 0, group="Clients"
    )
    late: Late | None = setting(
        "Share of the stragglers whose uploads are seen too late, by default 0.1 under grace and else 0; unseen needs "
        "less noise, and must then be true.", None, group="Clients", flag=str,
    )
    records: int | None = setting(
        "Records of all clients together, with a population of all of that, if known.", None, group="Wire"
    )
    parameters: int | None = setting("Parameters of the model, if known.", None, group="Wire")
    coordinate_range: float | None = setting("Bound on a coordinate of an upload before noise.", None, group="Wire")
    wire_steps: int = setting(
        "Steps of the wire in σ_U, a power of two up to 16: twice as many round finer and take a bit more a parameter.",
        2, group="Wire",
    )
    rotate: bool | None = setting(
        "Rotate uploads by random signs and a Hadamard transform (needs parameters); by default where it saves a bit.",
        None, group="Wire",
    )
    # fmt: on

    def __post_init__(self) -> None:
        self._read_graph()
        for name, kind in _CHOICES.items():
            choice(name, getattr(self, name), get_args(kind))
        clients, grace = integer("clients", self.clients, 2, 2**32 - 2), integer("grace", self.grace, 0, 1)
        checked: dict[str, Any] = {
            "clients": clients,
            "colluders": integer("colluders", self.colluders, 0, clients - 1),
            "stragglers": integer("stragglers", self.stragglers, 0, clients - 2),
            "rounds": integer("rounds", self.rounds, 1, 2**32),
            "epsilon": _within("epsilon", self.epsilon, 1e-9, 1e9),
            "delta": probability("delta", self.delta),
            "clip": _within("clip", self.clip, 1e-100, 1e100),
            "sampling_rate": number("sampling_rate", self.sampling_rate),
            "graph_seed": integer("graph_seed", self.graph_seed, 0, 2**64 - 1),
            "straggler_law": "uniform" if self.straggler_law is None else self.straggler_law,
            "momentum": _decay("momentum", self.momentum),
            "ema": _decay("ema", self.ema),
            "grace": grace,
            "late": _late(_LATE[grace] if self.late is None else self.late),
            "wire_steps": integer("wire_steps", self.wire_steps, 1, FINEST_STEPS),
        }
        if self.population is not None:
            checked["population"] = integer("population", self.population, clients, 2**32 - 2)
        if self.degree is not None:
            checked["degree"] = integer("degree", self.degree, 1, clients - 1)
        if self.gamma is not None:
            checked["gamma"] = number("gamma", self.gamma)
        if self.records is not None:
            checked["records"] = integer("records", self.records, 1, 2**63)
        if self.parameters is not None:
            checked["parameters"] = integer("parameters", self.parameters, 1, 2**40)
        if self.coordinate_range is not None:
            checked["coordinate_range"] = _within("coordinate_range", self.coordinate_range, 1e-100, 1e100)
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # 1 and 1.0 are one request, with one digest
        self._check_together()
        self._check_wire()
        if self.masks == "drawn" and (refused := self.undrawable) is not None:
            raise ArgumentError(f"masks='drawn' need {refused}: take masks='gaussian'")

    def _read_graph(self) -> None:
        """Put what `graph` says into the settings that it stands for; "auto" stays, for `solve`."""
        if self.graph is None:
            return
        if self.degree is not None or self.random or self.graph_seed != 0:
            raise ArgumentError(f"graph must be given without degree, graph_seed and random, got graph={self.graph!r}")
        if self.graph != "auto":
            settings, clients = _named(self.graph), integer("clients", self.clients, 2, 2**32 - 2)
            least, most = (2, clients // 2) if settings.get("random") else (1, clients - 1)
            if "degree" in settings and not least <= settings["degree"] <= most:
                few = f"{self.graph.split(':')[0]}:DEGREE must have a degree from {least} to {most}"
                raise ArgumentError(f"graph {few} for clients={clients}, got graph={self.graph!r}")
            for name, value in settings.items():
                object.__setattr__(self, name, value)

    def _check_together(self) -> None:
        rate = self.sampling_rate
        if not isinstance(self.straggler_law, StragglerLaw | str):
            raise ArgumentError(f"straggler_law must be a law or its name, got {type(self.straggler_law).__name__}")
        if self.records is not None and self.delta >= 1 / self.records:
            raise ArgumentError(f"delta must be < 1/records = {1 / self.records:g}, got delta={self.delta:g}")
        if not 0 < rate <= 1:
            raise ArgumentError(f"sampling_rate must be in (0, 1], got sampling_rate={rate:g}")
        if self.unit == "client" and rate != 1:
            raise ArgumentError(
                f"sampling_rate must be 1 for unit='client', got sampling_rate={rate:g}; for clients that take turns, "
                "set population"
            )
        if self.law.bound != self.stragglers:
            raise ArgumentError(f"straggler_law must cover 0..{self.stragglers}, got a law on 0..{self.law.bound}")
        if self.gamma is not None:
            if self.calibration not in ("auto", "exact", "repair"):
                raise ArgumentError(
                    f"gamma can be given for auto, exact and repair only, got calibration={self.calibration!r}"
                )
            if not 0 <= self.gamma <= GAMMA_MAX:
                raise ArgumentError(f"gamma must be in [0, {GAMMA_MAX:g}], got gamma={self.gamma:g}")
        self._check_graph()

    def _check_graph(self) -> None:
        complete = self.noise_graph.complete  # a graph that exists is valid
        if self.random:
            self._check_random()
        if self.calibration != "paper":
            return
        if not complete:
            raise ArgumentError(f"the paper's calibration needs the complete graph, got degree={self.degree}")
        if self.population is not None:
            raise ArgumentError(
                f"the paper's calibration has the same clients in every round, got population={self.population}"
            )

    def _check_random(self) -> None:
        if self.graph_seed != 0:
            raise ArgumentError(
                f"graph_seed must be 0 for a random graph, which its roster places, got {self.graph_seed}"
            )
        if self.sampling_rate != 1:
            raise ArgumentError(f"a random graph needs whole batches, got sampling_rate={self.sampling_rate:g}")
        if self.delta > DELTA_MAX:
            raise ArgumentError(f"delta must be <= {DELTA_MAX:g} for a random graph, got delta={self.delta:g}")
        if self.calibration in {"paper", "smpc", "central", "local"}:
            raise ArgumentError(f"a random graph is for auto, exact and repair, got calibration={self.calibration!r}")

    def _check_wire(self) -> None:
        if self.wire_steps.bit_count() != 1:
            raise ArgumentError(f"wire_steps must be 1, 2, 4, 8 or 16, got wire_steps={self.wire_steps}")
        if self.rotate is not None and not isinstance(self.rotate, bool):
            raise ArgumentError(f"rotate must be True, False or None, got rotate={self.rotate!r}")
        if self.rotate and self.parameters is None:
            raise ArgumentError("rotate=True needs parameters, which decide how far it spreads, got parameters=None")

    @property
    def undrawable(self) -> str | None:
        """What a request must have for drawn masks, and what it has instead; None if nothing is missing (B2)."""
        if self.calibration not in ("auto", "repair"):
            return f"repair, which takes out what they leave, got calibration={self.calibration!r}"
        if self.sampling_rate != 1:
            return f"whole batches, got sampling_rate={self.sampling_rate:g}"
        if self.random:
            return "a graph that is complete or circulant, got random=True"
        if self.delta > DELTA_MAX:
            return f"delta <= {DELTA_MAX:g}, got delta={self.delta:g}"
        return None

    @property
    def transient_weight(self) -> float:
        """How many times a residual that waits for its repair counts beside noise that stays (D5)."""
        return weight(self.momentum, self.ema, (1 + self.grace) * self.cohorts)

    @property
    def members(self) -> int:
        """All clients of the training: the population, or `clients` without one."""
        return self.clients if self.population is None else self.population

    @property
    def cohorts(self) -> int:
        """How many rosters take turns (C1): the population divided by `clients`, rounded down; 1 without one."""
        return self.members // self.clients

    @property
    def turns(self) -> int:
        """Rounds that one client takes part in, for which the noise is (C1): T divided by `cohorts`, rounded up."""
        return -(-self.rounds // self.cohorts)

    @property
    def late_share(self) -> float:
        """The share of the stragglers whose uploads are expected to be seen too late (R6)."""
        return self.late if isinstance(self.late, float) else 0.0

    @property
    def late_is_seen(self) -> bool:
        """Whether the server may see uploads that come too late."""
        return self.late != "unseen"

    @property
    def names_unit(self) -> bool:
        """Whether the unit was asked for, and is not the default."""
        return not isinstance(self.unit, Unasked)

    @cached_property
    def noise_graph(self) -> Graph:
        """Who shares pairwise noise with whom."""
        if self.random:
            if self.degree is None:
                raise ArgumentError("random=True needs a degree, got degree=None")
            return RandomGraph(self.clients, self.degree)
        return Graph(self.clients, self.clients - 1 if self.degree is None else self.degree, self.graph_seed)

    @cached_property
    def law(self) -> StragglerLaw:
        """Distribution of the number of stragglers in a round."""
        asked = self.straggler_law
        return asked if isinstance(asked, StragglerLaw) else parse(asked, self.stragglers, self.clients)

    @property
    def honest(self) -> int:
        """The client and the neighbours it can count on: n = N − C̄ on the complete graph."""
        return self.noise_graph.closed_honest(self.near_colluders)

    @cached_property
    def near_colluders(self) -> int:
        """The most colluders among the neighbours of a client; on a random graph but for draws that δ covers (S1)."""
        if isinstance(self.noise_graph, RandomGraph):
            return self.noise_graph.colluding(self.colluders, self.delta)
        return self.colluders

    @cached_property
    def near_strangers(self) -> int:
        """How many neighbours without a pin a client accepts: as many as there may be of C̄, but one draw in a thousand.

        On the complete graph that is C̄. On a random one a client sees its neighbours alone, and can refuse no more.
        """
        if isinstance(self.noise_graph, RandomGraph):
            return min(self.noise_graph.usual(self.colluders), self.near_colluders)
        return self.colluders

    @cached_property
    def near_stragglers(self) -> int:
        """How many of the neighbours that a client counts on may miss a round, or it is void (S1)."""
        if isinstance(self.noise_graph, RandomGraph):
            return self.honest - 1 - max(self.least_used - self.near_colluders, 0)
        return self.stragglers

    def certificate(self, used: int, least: int) -> Certificate:
        """(S1): what a round gives on a random graph, if everybody has at least `least` used neighbours.

        Args:
            used: number of clients that were used.
            least: at least `least_used`.
        """
        if not isinstance(self.noise_graph, RandomGraph):
            raise ArgumentError("only a random graph has certificates")
        return self.noise_graph.certificate(used, least, self.colluders, self.near_colluders)

    @property
    def least_degree(self) -> int:
        """How many neighbours every client of a roster must have, or its draw is refused: 0 unless it is random."""
        return self.noise_graph.least_degree if isinstance(self.noise_graph, RandomGraph) else 0

    @cached_property
    def least_used(self) -> int:
        """How many used neighbours every client must have in a round, or it is void: 0 unless the graph is random."""
        if isinstance(self.noise_graph, RandomGraph):
            return self.noise_graph.least_used(self.stragglers, (1 + self.grace) * self.turns)
        return 0

    @property
    def sensitivity(self) -> float:
        """Δ: how far one unit can move an upload. Weights, if any, are at most 1 and masked with it (P5)."""
        return self.clip * (2 if self.adjacency == "replace" else 1)

    @property
    def norm_range(self) -> float:
        """What an update's norm is taken to be at most: its clip, or as many as a client has records on average."""
        if self.unit == "client":
            return self.clip
        if self.records is None:
            return _UNKNOWN_RECORDS_PER_CLIENT * self.clip
        return -(-self.records // self.members) * self.clip

    @property
    def upload_range(self) -> float:
        """Bound on one coordinate of one update; a client clamps to it, or to less where it is guessed (W1)."""
        return self.norm_range if self.coordinate_range is None else self.coordinate_range

    @property
    def range_is_guessed(self) -> bool:
        """Whether nothing that was asked bounds a coordinate of an update."""
        return self.unit == "record" and self.records is None and self.coordinate_range is None

    def but(self, **changed: Any) -> Request:  # noqa: ANN401  as the fields
        """The same request with these settings changed and, unless they are among them, γ and drawn masks chosen anew.

        Gaussian masks that were asked for stay.
        """
        masks = "gaussian" if self.masks == "gaussian" else "auto"
        return dataclasses.replace(self, **({"gamma": None, "masks": masks} | changed))

    def among(self, clients: int) -> Request:
        """The request of a roster of so many clients, by one rule that all parties apply (C1).

        Colluders, stragglers and peers keep their numbers, as far as there are so many clients; all others stay peers
        where they were, and an odd number of peers among an odd number of clients becomes even. Each client has as many
        rounds as before, and as many records on average. γ, if it is given, stays; masks that are drawn stay so where
        that is worth it.

        >>> asked = Request(clients=20, population=100, colluders=4, stragglers=4, rounds=50, epsilon=8, delta=1e-5)
        >>> asked.turns, asked.among(17).clients, asked.among(17).turns
        (10, 17, 10)

        Raises:
            ArgumentError: a request with so few clients is not valid.
        """
        clients = integer("clients", clients, 2, 2**32 - 2)
        changed: dict[str, Any] = {"clients": clients, "stragglers": min(self.stragglers, clients - 2)}
        if changed["stragglers"] < self.stragglers:
            changed["straggler_law"] = "uniform"  # another one says nothing of fewer stragglers
        if self.population is not None:
            changed["population"] = self.cohorts * clients
        if clients != self.clients and self.masks == "drawn":
            changed["masks"] = "auto"
        if self.random and self.degree is not None:
            changed["degree"] = min(self.degree, clients // 2)
        elif self.degree is not None:
            degree = min(self.degree, clients - 1)
            changed["degree"] = None if self.noise_graph.complete else degree + (degree & clients & 1)
        if self.records is not None:
            changed["records"] = -(-self.records * self.cohorts * clients // self.members)
        return dataclasses.replace(self, **changed)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values; the straggler law by its name."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if found["graph"] is None:  # as it is once a plan is made
            del found["graph"]
        return found | {"degree": self.noise_graph.degree, "straggler_law": self.law.name}

    def to_json(self) -> str:
        """The whole request as text for another party, which `from_json` reads; the straggler law value by value."""
        law = {"name": self.law.name, "pmf": self.law.pmf.tolist()}
        return json.dumps(self.to_dict() | {"straggler_law": law}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Request:
        """The request that `to_json` wrote.

        The text may come from an untrusted server: nothing is allocated that it merely claims to hold.

        Raises:
            ArgumentError: it is something else, or a value is out of range.
        """
        try:
            asked = json.loads(text)
            law = asked.pop("straggler_law")
            checked = custom(len(law["pmf"]) - 1, law["pmf"])
            asked.setdefault("masks", "gaussian")  # as they were before there were others
            return cls(**asked, straggler_law=StragglerLaw(str(law["name"]), checked.pmf))
        except ArgumentError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ArgumentError(f"plan must be the arguments of lightdp.plan as JSON: {error!r}") from None


_GRAPH = re.compile("complete|(circulant|random):([0-9]{1,20})(?::([0-9]{1,20}))?")


def _named(graph: object) -> dict[str, Any]:
    """The settings that the name of a graph stands for."""
    found = _GRAPH.fullmatch(graph) if isinstance(graph, str) else None
    if found is None or (found[1] == "random" and found[3] is not None):
        raise ArgumentError(
            "graph must be complete, circulant:DEGREE, circulant:DEGREE:SEED, random:DEGREE or auto, "
            f"got graph={graph!r}"
        )
    kind, degree, seed = found.groups()
    settings: dict[str, Any] = {"graph": None}
    if kind is not None:
        settings |= {"degree": int(degree), "random": kind == "random", "graph_seed": int(seed or 0)}
    return settings


def _decay(name: str, value: object) -> float:
    if not 0 <= (result := number(name, value)) < 1:
        raise ArgumentError(f"{name} must be in [0, 1), got {name}={result:g}")
    return result


def _late(value: object) -> Late:
    """A share, as a number or its text, or "unseen"."""
    if value == "unseen":
        return "unseen"
    with suppress(ValueError, TypeError):
        return share("late", float(value) if isinstance(value, str) else value)
    raise ArgumentError(f"late must be a share in [0, 1] or 'unseen', got late={value!r}")


def _within(name: str, value: float, low: float, high: float) -> float:
    result = positive(name, value)
    if not low <= result <= high:
        raise ArgumentError(f"{name} must be in [{low:g}, {high:g}], got {name}={result:g}")
    return result
