"""How many clients straggle in a round: the distribution g(s) on 0..S̄ that the noise design averages over.

Privacy does not depend on this law: every guarantee holds for each set of stragglers, up to S̄ of them. The law only
decides which noise is the least on average. `parse` reads one from a setting; `uniform`, `binomial` and `custom`
build one.

>>> law = parse("binomial:0.1", bound=10, clients=50)
>>> law.name, round(law.mean(lambda s: s), 2)
('binomial(50, 0.1) up to 10', 4.94)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from lightdp._validate import integer, probability
from lightdp.errors import ArgumentError

_UNDERFLOW = -746.0  # whose exponential, and all below, is 0
_BLOCKS = 512  # counts of stragglers that `StragglerLaw.among` tells apart


@dataclass(frozen=True, eq=False)
class StragglerLaw:
    """P(S = s) for s = 0..S̄. Laws with the same probabilities are equal; names do not count.

    Attributes:
        name: how the law is printed.
        pmf: the probabilities, an array that becomes read-only. (S̄ + 1,)

    >>> uniform(1) == custom(1, [0.5, 0.5])
    True
    """

    name: str
    pmf: NDArray[np.float64]

    def __post_init__(self) -> None:
        self.pmf.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StragglerLaw) and np.array_equal(self.pmf, other.pmf)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.pmf.tobytes())

    @property
    def bound(self) -> int:
        """S̄, the largest number of stragglers."""
        return len(self.pmf) - 1

    @property
    def counts(self) -> NDArray[np.float64]:
        """0, 1, ..., S̄."""
        return np.arange(len(self.pmf), dtype=float)

    def mean(self, f: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
        """E[f(S)].

        Args:
            f: a function of the array `counts`.

        >>> uniform(4).mean(lambda s: s**2)
        6.0
        """
        return float((self.pmf * f(self.counts)).sum())

    def odds(self, clients: int) -> tuple[float, float]:
        """E[S/(N − S)] and E[1/(N − S)], which several parts of a plan ask for; computed once.

        Args:
            clients: N > S̄.

        >>> uniform(1).odds(clients=3)
        (0.25, 0.41666666666666663)
        """
        if clients not in self._odds:
            counts = self.counts
            rest = clients - counts
            self._odds[clients] = float((self.pmf * (counts / rest)).sum()), float((self.pmf * (1 / rest)).sum())
        return self._odds[clients]

    @cached_property
    def _odds(self) -> dict[int, tuple[float, float]]:
        return {}

    def quantiles(self, rounds: int, levels: int) -> dict[int, int]:
        """A typical training: how many of `rounds` rounds have S stragglers, rounded to more stragglers.

        Formal guarantee: for each s, at most the expected number of rounds has s or fewer stragglers.

        Args:
            rounds: number of rounds.
            levels: largest number of equal blocks; each block takes its upper quantile.

        Returns:
            {S: rounds}.

        >>> uniform(3).quantiles(rounds=8, levels=4)
        {0: 2, 1: 2, 2: 2, 3: 2}
        """
        cdf = np.cumsum(self.pmf)
        result: dict[int, int] = {}
        blocks, last = min(levels, rounds), 0
        for block in range(blocks):  # not by arrays of rounds: their number may come from an untrusted server
            size = rounds // blocks + (block < rounds % blocks)
            last += size
            s = min(int(np.searchsorted(cdf, last / rounds * (1 - 1e-12))), self.bound)
            result[s] = result.get(s, 0) + size
        return result

    def worst(self) -> StragglerLaw:
        """The law of S̄ stragglers in every round.

        >>> uniform(2).worst().pmf
        array([0., 0., 1.])
        """
        return StragglerLaw(f"{self.bound} in every round", (self.counts == self.bound).astype(float))

    def among(self, clients: int, degree: int) -> StragglerLaw:
        """The law of how many of a used client's neighbours straggle, if any S of the others do (D6).

        Given S it is hypergeometric. Formal guarantee: of a law with more than 512 counts, counts are rounded up, so
        that time and memory stay bounded whoever asks.

        Args:
            clients: N.
            degree: neighbours of a client, in 1..N − 1.

        >>> uniform(1).among(clients=5, degree=2).pmf
        array([0.75, 0.25])
        """
        pmf, others = np.zeros(min(self.bound, degree) + 1), clients - 1
        for s, weight in self.points(_BLOCKS):
            if degree == others:
                pmf[s] = weight
                continue
            first, chances = hypergeometric(others, s, degree)
            pmf[first : first + len(chances)] += weight * chances
        pmf /= pmf.sum()
        return StragglerLaw(f"{self.name}, among {degree} of {others}", pmf)

    def points(self, most: int) -> list[tuple[int, float]]:
        """Counts that occur and their probabilities; of more than `most`, the largest of each of so many blocks.

        >>> uniform(3).points(2)
        [(1, 0.5), (3, 0.5)]
        """
        edges = np.linspace(0, len(self.pmf), min(len(self.pmf), most) + 1).astype(int)
        weights = np.add.reduceat(self.pmf, edges[:-1]).tolist()
        return [(s, weight) for s, weight in zip((edges[1:] - 1).tolist(), weights, strict=True) if weight > 0]


def hypergeometric(others: int, stragglers: int, degree: int) -> tuple[int, NDArray[np.float64]]:
    """P(X = x) for x = first, first + 1, ... of X stragglers among `degree` of `others`, to a share of e^-60.

    From ratios of neighbouring terms, outwards from the mean: no large logarithms that cancel.
    """
    mean = stragglers * degree / others
    reach = 11 * math.sqrt(mean) + 60  # a hypergeometric law is narrower than a Poisson law
    first = max(0, stragglers + degree - others, math.floor(mean - reach))
    last = min(stragglers, degree, math.ceil(mean + reach))
    x = np.arange(first, last, dtype=float)
    steps = np.log((stragglers - x) * (degree - x)) - np.log((x + 1) * (others - stragglers - degree + x + 1))
    log_pmf = np.concatenate([[0.0], np.cumsum(steps)])
    pmf = np.exp(log_pmf - log_pmf.max())
    return first, pmf / pmf.sum()


_NAMED: WeakValueDictionary[tuple[str, int, int], StragglerLaw] = WeakValueDictionary()  # those in use


def uniform(bound: int) -> StragglerLaw:
    """The paper's law: every number of stragglers in 0..bound is equally likely.

    Args:
        bound: S̄, >= 0.

    >>> uniform(3).pmf
    array([0.25, 0.25, 0.25, 0.25])
    """
    bound = integer("stragglers", bound, 0)
    return StragglerLaw(f"uniform on 0..{bound}", np.full(bound + 1, 1 / (bound + 1)))


def binomial(bound: int, clients: int, failure: float) -> StragglerLaw:
    """Clients fail independently of each other, given that at most `bound` fail.

    Args:
        bound: S̄, in 0..clients.
        clients: number of clients.
        failure: probability that a client fails, in (0, 1).

    >>> binomial(1, clients=2, failure=0.5).pmf.round(3)
    array([0.333, 0.667])
    """
    bound, failure = integer("stragglers", bound, 0, clients), probability("failure", failure)
    s = np.arange(bound)
    steps = np.log((clients - s) / (s + 1)) + math.log(failure) - math.log1p(-failure)
    log_pmf, pmf = np.zeros(bound + 1), np.zeros(bound + 1)
    np.cumsum(steps, out=log_pmf[1:])  # log P(S = s)/P(S = 0)
    log_pmf -= log_pmf.max()
    np.exp(log_pmf, out=pmf, where=log_pmf > _UNDERFLOW)
    pmf /= pmf.sum()
    return StragglerLaw(f"binomial({clients}, {failure:g}) up to {bound}", pmf)


def custom(bound: int, pmf: Sequence[float] | NDArray[np.float64]) -> StragglerLaw:
    """A law with given probabilities.

    Args:
        bound: S̄, >= 0.
        pmf: P(S = 0), P(S = 1), ...; those that are missing up to `bound` are 0.

    Raises:
        ArgumentError: these are not probabilities with sum 1, or more than bound + 1.

    >>> custom(2, [0.75, 0.25]).pmf
    array([0.75, 0.25, 0.  ])
    """
    bound, values = integer("stragglers", bound, 0), np.asarray(pmf, dtype=float)
    if values.ndim != 1 or not 1 <= len(values) <= bound + 1:
        raise ArgumentError(f"pmf must list 1 to {bound + 1} probabilities for 0..{bound}, got shape {values.shape}")
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ArgumentError(f"pmf must hold finite probabilities >= 0, got pmf={values.tolist()}")
    if abs((total := float(values.sum())) - 1) > 1e-9:
        raise ArgumentError(f"pmf must sum to 1, got a sum of {total:.10g}")
    if abs(total - 1) > 1e-12:  # a law that has travelled as text is taken as it is, so that all find the same plan
        values = values / total
    return StragglerLaw(f"given, on 0..{bound}", np.pad(values, (0, bound + 1 - len(values))))


def parse(spec: str, bound: int, clients: int) -> StragglerLaw:
    """The law that a text names: "uniform", "binomial:P" or "pmf:P0,P1,...".

    Args:
        spec: the text.
        bound: S̄.
        clients: number of clients.

    Raises:
        ArgumentError: the text names no law.

    >>> parse("pmf:0.5,0.5", bound=1, clients=10).mean(lambda s: s)
    0.5
    """
    if (known := _NAMED.get((spec, bound, clients))) is None:
        _NAMED[spec, bound, clients] = known = _parsed(spec, bound, clients)
    return known


def _parsed(spec: str, bound: int, clients: int) -> StragglerLaw:
    kind, _, rest = spec.partition(":")
    if spec == "uniform":
        return uniform(bound)
    try:
        if kind == "binomial":
            return binomial(bound, clients, float(rest))
        if kind == "pmf":
            return custom(bound, [float(part) for part in rest.split(",")])
    except ArgumentError as error:
        raise ArgumentError(f"{error} (straggler_law={spec!r})") from None
    except ValueError:
        pass
    raise ArgumentError(f"straggler_law must be uniform, binomial:P or pmf:P0,P1,..., got straggler_law={spec!r}")
