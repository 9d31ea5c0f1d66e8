"""`Plan`: the frozen answer to "how much noise?": a `Request` and the `Noise` that was found for it."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from lightdp import attack, gaussian, sampling
from lightdp._settings import takes
from lightdp._validate import probability
from lightdp.errors import ArgumentError, InfeasibleError
from lightdp.noise_graph import Graph
from lightdp.planning._at_random import hides_late, seen_at_random
from lightdp.planning._calibrations import CALIBRATIONS, Calibration, Noise
from lightdp.planning._masks import Masks
from lightdp.planning._request import Request
from lightdp.planning._wire import Wire
from lightdp.random_graph import RandomGraph
from lightdp.stragglers import StragglerLaw

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


_RENAMED = {"budget": "epsilon", "graph": "noise_graph"}  # a plan's words for what its request says

AUTO_COMPLETE = 1000
"""With so many clients or fewer, the graph "auto" is the complete one."""

AUTO_WITHIN = 1.25
"""With more, the random one of the least degree whose plan leaves at most so many times the complete graph's noise."""


def _of(part: str) -> Any:  # noqa: ANN401  as `field`
    """A field of a plan that repeats one of its request, noise or calibration, so that it is read at full speed."""
    return field(init=False, repr=False, compare=False, metadata={"part": part})


@dataclass(frozen=True)
class Plan:
    """Noise that is provably enough, and what it was made for. Made by `plan`, never by hand.

    Formal guarantee: a training in which every client takes part in `turns` rounds (all of them, without a population)
    and adds this noise, with uploads clipped so that one unit changes them by at most `sensitivity`, is (`epsilon()`,
    `delta`)-DP for each client, against the server together with any `colluders` of the other clients of its roster.
    With repair the odometer ends the training earlier if the stragglers that happen cost more than was planned for.
    The schemes to compare with ask for more: "smpc" that nobody sees anything but the sum, "central" a server that is
    trusted.

    >>> import lightdp
    >>> found = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5)
    >>> found.request.calibration, round(found.sigma_individual, 3), round(found.sigma_pairwise, 3)
    ('repair', 3.158, 9.27)
    >>> found.epsilon() <= 3
    True

    Attributes:
        request: what was asked for.
        noise: what was found.
        calibration: how the noise was chosen; answers every question that depends on it.
        passed_over: where the calibration was left to `plan`, the plan that would leave more noise (D8).
        budget: the ε that was asked for, for the whole training.
        honest: the client and the neighbours it can count on: n = N − C̄ on the complete graph.
        turns: rounds that a client takes part in, for which the noise is (C1); `rounds` are those of the training.
        law: distribution of the number of stragglers in a round.
        masks: which kind of pairwise noise there is, and what a ledger counts for it (B2).

    All others repeat what request, noise and calibration say under the same names.
    """

    request: Request
    noise: Noise
    passed_over: Plan | None = field(default=None, repr=False, compare=False)
    calibration: Calibration = field(init=False, repr=False, compare=False)
    _last: Plan | None = field(default=None, init=False, repr=False, compare=False)  # as it was placed last

    clients: int = _of("request")
    colluders: int = _of("request")
    stragglers: int = _of("request")
    honest: int = _of("request")
    rounds: int = _of("request")
    turns: int = _of("request")
    budget: float = _of("request")
    delta: float = _of("request")
    clip: float = _of("request")
    unit: str = _of("request")
    adjacency: Any = _of("request")
    sampling_rate: float = _of("request")
    sensitivity: float = _of("request")
    grace: int = _of("request")
    late_is_seen: bool = _of("request")
    graph: Graph = _of("request")
    law: StragglerLaw = _of("request")
    gamma: float = _of("noise")
    sigma_individual: float = _of("noise")
    sigma_effective: float = _of("noise")
    masks: Masks = _of("noise")
    repairs: bool = _of("calibration")
    deployable: bool = _of("calibration")
    understates: bool = _of("calibration")

    def __post_init__(self) -> None:
        object.__setattr__(self, "calibration", CALIBRATIONS[self.request.calibration])
        for each in fields(self):
            if "part" in each.metadata:
                name = _RENAMED.get(each.name, each.name)
                object.__setattr__(self, each.name, getattr(getattr(self, each.metadata["part"]), name))

    @property
    def sigma_pairwise(self) -> float:
        """σ_K, the standard deviation of the noise that two clients share."""
        return self.noise.sigma_pairwise

    @property
    def mask_cost(self) -> float:
        """How much more noise variance masks that are not Gaussian need than those of the same γ, as a share (B2)."""
        if self.masks.kind == "gaussian":
            return 0.0
        spent = self.turns * (self.sigma_individual / self.sigma_effective) ** 2
        return spent / (spent / self.masks.covered - self.masks.cost) - 1

    @property
    def noise_multiplier(self) -> float:
        """σ_eff/Δ, of a round as a Gaussian mechanism; with "replace", tools that count σ in clips want twice this."""
        return self.sigma_effective / self.sensitivity

    def epsilon(self, delta: float | None = None) -> float:
        """What the plan really costs, rounded up: exact (E5), or by `lightdp.sampling` where batches are sampled.

        With drawn masks it is infinite at a δ below the plan's, since only the plan's δ covers that they fail (B2).

        >>> import lightdp
        >>> plan = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5)
        >>> round(plan.epsilon(1e-4), 3), plan.epsilon(1e-6)
        (2.583, inf)

        Args:
            delta: by default the plan's.
        """
        asked, delta = self.request, self.delta if delta is None else probability("delta", delta)
        if asked.sampling_rate == 1:
            mu = math.sqrt(self.turns) * self.sensitivity / self.sigma_effective
            return gaussian.epsilon(mu, left) if (left := self.masks.left(delta)) > 0 else math.inf
        levels = self.calibration.levels(asked, self.gamma).items()
        multipliers = {self.scale / self.clip * factor: count for factor, count in levels}
        return sampling.epsilon(multipliers, rate=asked.sampling_rate, delta=delta, adjacency=asked.adjacency)

    @property
    def mu(self) -> float:
        """μ of the whole training, which is μ-GDP where `gdp` holds (E5).

        Where batches are sampled no μ says it all; this is then the μ of Gaussian noise with the same ε at the plan's
        δ, rounded up.
        """
        if self.gdp:
            return math.sqrt(self.turns) * self.sensitivity / self.sigma_effective
        return gaussian.mu(self._spent, self.delta, up=True)

    @property
    def gdp(self) -> bool:
        """Whether the training is `mu`-GDP, as it is with whole batches; with drawn masks at the plan's δ and above."""
        return self.sampling_rate == 1

    def power(self, false_positives: float = attack.FALSE_POSITIVES) -> float:
        """The true-positive rate that no attack exceeds at this rate of false positives: exact where `gdp` holds.

        Where batches are sampled it follows from two points of the training's (ε, δ) curve. With drawn masks it holds
        for rates that are not below the plan's δ (B2); a smaller one gets what holds for that.

        >>> import lightdp
        >>> found = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5)
        >>> round(found.mu, 4), round(found.power(), 4)
        (0.7191, 0.054)
        """
        if self.gdp:
            return gaussian.power(self.mu, max(probability("false_positives", false_positives), self.masks.delta))
        curve = lambda delta: self._spent if delta == self.delta else self.epsilon(delta)  # noqa: E731  two points
        return attack.power(curve, self.delta, false_positives=false_positives)

    @cached_property
    def _spent(self) -> float:
        """`epsilon()`, which takes a while where batches are sampled."""
        return self.epsilon()

    @property
    def scale(self) -> float:
        """The σ for which a round costs k = 1: σ_U with repair (R1), otherwise σ_eff."""
        return self.calibration.scale(self.noise)

    def used_cost(self, honest: ArrayLike) -> NDArray[np.float64]:
        """k, the squared μ in units of (Δ/`scale`)², of rounds with `honest` honest clients, this one included."""
        return self.calibration.used_cost(self.noise, honest)

    @cached_property
    def seen_cost(self) -> float:
        """k of a round whose uploads are all seen and of which nothing is repaired: without repair, or void (R1)."""
        if self.request.random:
            return seen_at_random(self.request, self.gamma) if self.repairs else 1.0
        return float(self.used_cost(self.honest))

    def placed(self, place: bytes, *, checked: bool = False) -> Plan:
        """The plan with its graph placed by the hash of a roster: itself, unless the graph is random (S1).

        Args:
            place: 32 bytes.
            checked: whether this draw was looked at before.

        Raises:
            ArgumentError: the draw leaves a client too few neighbours; a roster with another number has another hash.
        """
        if not isinstance(self.graph, RandomGraph):
            return self
        graph, least = self.graph.placed(place), self.request.least_degree
        if not checked and graph.fewest < least:
            raise ArgumentError(
                f"the roster must give every client at least {least} neighbours on its random graph, and gives one "
                f"{graph.fewest}: another number gives it another hash"
            )
        result = self._last
        if result is None or result.graph is not graph:  # clients of one process share it
            result = replace(self)
            object.__setattr__(result, "graph", graph)
            object.__setattr__(self, "_last", result)
        return result

    def counts(self, came: NDArray[np.bool_]) -> bool:
        """Whether a round in which these clients came counts, or is void: too few, or a client has too few neighbours.

        Args:
            came: flags. (clients,)
        """
        enough = int(np.count_nonzero(came)) >= self.clients - self.stragglers
        return enough and not (self.graph.random and int(self.graph.degrees(came).min()) < self.request.least_used)

    @cached_property
    def hides_late(self) -> bool:
        """Whether noise of all clients hides a late upload, also while it is repaired, as on random graphs it may (S1).

        Then nobody repairs a round with data in one without pairwise noise: the first closing round has it, too.
        """
        return self.graph.random and self.repairs and self.late_is_seen and hides_late(self.request, self.gamma)

    @property
    def closing_rounds(self) -> int:
        """How many rounds without data take out what stragglers left, with nobody missing (R4), (R5), (S1)."""
        return 1 + self.grace + self.hides_late

    @property
    def withstands_lies(self) -> bool:
        """Whether the budget is kept if a server tells clients different histories (W5).

        With drawn masks that asks of clients that they bind rounds and compute from what they were given, their data
        and new random numbers alone, and of the server no more than 50 rosters that hold a client's key and in which
        honest clients have answered (B2). In a large population a server could form more: there Gaussian masks do
        without this.
        """
        return self.late_is_seen and self.gdp and not self.graph.random

    def used_neighbours(self, used: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many used neighbours each client has in a round of a random graph. (clients,)

        Raises:
            ArgumentError: one has fewer than `request.least_used`; such a round is void (S1).
        """
        near = self.graph.degrees(used)
        self.refuse_few(int(near.min()))
        return near

    def refuse_few(self, found: int) -> None:
        """Refuse a round of a random graph in which a client has so few used neighbours.

        Raises:
            ArgumentError: they are fewer than `request.least_used`; such a round is void (S1).
        """
        if found < self.request.least_used:
            raise ArgumentError(
                f"a round must leave every client at least {self.request.least_used} used neighbours, or be void, "
                f"got one with {found}"
            )

    def noise_in_mean(self) -> float:
        """(D3): variance, per coordinate, of the noise that a round leaves in the mean of the used uploads.

        Averaged over the straggler law. With repair this is what stays; `transient_in_mean` goes again (R4).
        """
        lasting = self.calibration.in_mean(self.request, self.noise)
        return lasting if self.repairs else lasting + self._residual_in_mean()

    def transient_in_mean(self) -> float:
        """(R4): variance of the residual that repair takes out of the mean 1 + grace rounds later; 0 without it."""
        return self._residual_in_mean() if self.repairs else 0.0

    def noise_carried(self) -> float:
        """(R4): variance in the trained model for each of its rounds: what stays, and residuals that wait."""
        return self.noise_in_mean() + self.request.transient_weight * self.transient_in_mean() / self.rounds

    @property
    def why(self) -> str | None:
        """Which calibration "auto" took and what the other would leave, in one sentence; None if one was named (D8)."""
        if (other := self.passed_over) is None:
            return None
        own, others = f"{self.noise_carried():.4g}", f"{other.noise_carried():.4g}"
        if self.gamma == other.gamma == 0:
            return "auto took exact: with so few peers that are surely honest and there, pairwise noise does not help"
        return (
            f"auto took {self.request.calibration}: noise that stays and residuals that wait for their repair come to "
            f"{own} a round of the trained model, with {other.request.calibration} to {others}"
        )

    def _residual_in_mean(self) -> float:
        return self.law.odds(self.clients)[0] * self._met * self.sigma_pairwise**2

    def residual_in_sum(self, used: int) -> float:
        """Variance of the pairwise noise that `used` uploads share with absent clients, averaged over who is absent."""
        return used * (self.clients - used) * self._met * self.sigma_pairwise**2

    @property
    def _met(self) -> float:
        """The share of the others that a client is paired with."""
        return self.graph.met

    def individual_in_sum(self, used: int) -> float:
        """Variance of the individual noise of `used` uploads and of their rounding to the wire (W1)."""
        return self.calibration.in_sum(self.request, self.noise, used)

    @cached_property
    def wire(self) -> Wire:
        """How uploads travel (W1)."""
        return Wire.of(self.request, self.noise, self.calibration)

    @property
    def upload_range(self) -> float:
        """Bound on one coordinate of one update; a client clamps to it (W1)."""
        return self.wire.update_range

    @property
    def wire_grid(self) -> float:
        """q: the step to which an upload is rounded, once, after the noise (W1)."""
        return self.wire.step

    @property
    def wire_bits(self) -> int:
        """b (W1): bits a parameter such that the sum wraps with probability < 2⁻⁴⁰ in the whole training.

        At least 32 for local DP, which usually sends floats; 32 for central DP, which always does.
        """
        return self.wire.bits

    @property
    def rotates(self) -> bool:
        """Whether clients rotate their updates before they mask them (W1)."""
        return self.wire.block is not None

    def to_dict(self) -> dict[str, Any]:
        """Request and results as JSON values: "epsilon" is what was asked for, "epsilon_true" what the plan costs.

        "power" is the true-positive rate that no attack exceeds at 1 % false positives; "turns" how many of the rounds
        a client takes part in; "mask_bits" how many bits of keystream make a value that two clients share, and
        "mask_cost" how much more noise variance these masks need than Gaussian ones, as a share; "why" says which
        calibration "auto" took, and is null if one was named. Of a random graph "near_colluders", "least_used",
        "hides_late" and "closing_rounds" say what (S1) counts on.
        """
        names = ("near_colluders", "least_used") if self.graph.random else ()
        placed = {name: getattr(self.request, name) for name in names}
        placed |= {"hides_late": self.hides_late, "closing_rounds": self.closing_rounds} if placed else {}
        return self.request.to_dict() | {
            "gamma": self.gamma,
            "masks": self.masks.kind,
            "mask_bits": self.masks.bits,
            "mask_cost": self.mask_cost,
            "sigma_individual": self.sigma_individual,
            "sigma_pairwise": self.sigma_pairwise,
            "sigma_effective": self.sigma_effective,
            "noise_multiplier": self.noise_multiplier,
            "epsilon_true": self._spent,
            "mu": self.mu,
            "gdp": self.gdp,
            "power": self.power(),
            "noise_in_mean": self.noise_in_mean(),
            "transient_in_mean": self.transient_in_mean(),
            "turns": self.turns,
            "sensitivity": self.sensitivity,
            "wire_bits": self.wire_bits,
            "why": self.why,
            "wire_range": self.wire.range,
            "rotates": self.rotates,
            **placed,
        }

    def to_json(self) -> str:
        """What another party needs to compute the same plan: the request and what was chosen, never the noise."""
        return self._json

    @cached_property
    def _json(self) -> str:
        chosen: dict[str, Any] = {"gamma": self.gamma} if self.calibration.chooses_gamma else {}
        return self.request.but(**chosen, masks=self.masks.kind, rotate=self.rotates).to_json()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a request that `to_json` wrote, computed here: a party that sends wrong noise is not believed."""
        return _solved(text)

    def among(self, clients: int) -> Plan:
        """The plan of a roster of so many clients in the same training, as every party computes it (C1).

        >>> import lightdp
        >>> found = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5)
        >>> found.among(50).digest() == found.digest(), found.among(40).noise_in_mean() > found.noise_in_mean()
        (True, True)

        Raises:
            ArgumentError: so few clients cannot have so many colluders.
            InfeasibleError: no noise gives what is asked.
        """
        asked = Request.from_json(self.to_json()).among(clients).to_json()
        return self if asked == self.to_json() else _solved(asked)  # it may take seconds

    def digest(self) -> bytes:
        """32 bytes on which all parties of a training must agree: request, noise to nine digits, blocks of rotation."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        chosen = vars(self.noise) | {"rotate": self.rotates and self.wire.block, "masks": self.masks.kind}
        facts = self.request.to_dict() | chosen | {"pmf": self.law.pmf.tolist()}
        if self.masks.kind == "gaussian":  # as digests were before there were others
            del facts["masks"]
        if self.request.population is None:  # as digests were before there were populations, which states keep
            del facts["population"]
        if not self.request.random:
            del facts["random"]
        rounded = {
            name: [f"{x:.9g}" for x in value]
            if isinstance(value, list)
            else f"{value:.9g}"
            if isinstance(value, float)
            else value
            for name, value in facts.items()
        }
        return hashlib.sha256(json.dumps(rounded, sort_keys=True).encode()).digest()

    def __str__(self) -> str:
        from lightdp.planning._page import page  # noqa: PLC0415  the page is about plans, so it imports them

        return page(self)


@lru_cache(maxsize=32)
def _solved(text: str) -> Plan:
    """The plan of a request as JSON; with sampled batches it takes long to compute, and parties ask for it often."""
    return solve(Request.from_json(text))


def solve(request: Request) -> Plan:
    """The plan with the least noise that keeps what is requested.

    With calibration "auto" both exact and repair are planned, and the plan that is returned is of the one that leaves
    less noise in the trained model: its request names that calibration, as if it had been asked for (D8).

    Raises:
        InfeasibleError: no noise gives what is asked, for example secure aggregation with N <= C̄ + S̄, or sums of
            uploads do not fit the wire (W1).
    """
    if request.graph == "auto":
        return _sparsest(request.but(gamma=request.gamma, masks=request.masks, graph=None))
    if request.calibration == "auto":
        if request.masks == "drawn":  # which only repair has
            return solve(request.but(calibration="repair", gamma=request.gamma, masks="drawn"))
        plans = [solve(request.but(calibration=name, gamma=request.gamma)) for name in ("exact", "repair")]
        best, other = sorted(plans, key=Plan.noise_carried)  # exact where they are equal
        return replace(best, passed_over=other)
    found = Plan(request, CALIBRATIONS[request.calibration].noise(request))
    try:
        if found.deployable and not found.calibration.floats:
            found.wire.check()
    except InfeasibleError:
        if found.masks.kind == "gaussian" or request.masks == "drawn":
            raise
    else:
        return found
    # units of drawn masks may be too coarse where sums need many bits
    return Plan(request, solve(request.but(gamma=request.gamma, masks="gaussian")).noise)


def _sparsest(asked: Request) -> Plan:
    """The plan of the graph "auto"."""
    best = whole = solve(asked)
    low, high = 8, asked.clients // 2
    while asked.clients > AUTO_COMPLETE and low <= high:
        degree = (low + high) // 2 if high < 2 * low else round(math.sqrt(low * high))
        try:
            found = solve(asked.but(gamma=asked.gamma, masks=asked.masks, degree=degree, random=True))
        except ArgumentError:  # infeasible, or of a kind that has no random graphs
            found = None
        if found is not None and found.noise_carried() <= AUTO_WITHIN * whole.noise_carried():
            best, high = found, degree - 1
        else:
            low = degree + 1
    return best


@takes(Request)
def plan(**settings: Any) -> Plan:  # noqa: ANN401  checked by `Request`
    """The least noise that keeps (`epsilon`, `delta`) for the whole training.

    Args:
        **settings: the fields of `Request`: clients, colluders, stragglers, rounds, epsilon, delta and, where they
            are not as usual, calibration, clip, unit, adjacency, sampling_rate, momentum, ema, population, graph,
            straggler_law, gamma, masks, reserve, grace, late, records, parameters, coordinate_range, wire_steps and
            rotate; `help(lightdp.Request)` describes each.

    >>> found = plan(clients=20, colluders=4, stragglers=4, rounds=60, epsilon=3, delta=1e-5, calibration="repair")
    >>> round(found.noise_in_mean(), 3)
    0.58

    Raises:
        ArgumentError: a setting is out of range; the message names it and its value.
        InfeasibleError: no noise gives what is asked, for example secure aggregation with N <= C̄ + S̄, or sums of
            uploads do not fit the wire.
    """
    try:
        return solve(Request(**settings))
    except TypeError as error:
        raise TypeError(str(error).replace("Request.__init__()", "plan()")) from None
