"""How many clients straggle in a round: the distribution g(s) on 0..S̄ that the noise design averages over.

Privacy never rests on this law: it decides only which noise is cheapest. Every guarantee holds for each
set of stragglers, up to S̄ of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lightdp._validate import integer, probability
from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class StragglerLaw:
    """P(S = s) for s = 0..S̄, as a read-only array, and what to call it."""

    name: str
    pmf: NDArray[np.float64]  # (S̄ + 1,)

    def __post_init__(self) -> None:
        self.pmf.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StragglerLaw) and np.array_equal(self.pmf, other.pmf)

    def __hash__(self) -> int:
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
        """E[f(S)]."""
        return float(self.pmf @ f(self.counts))

    def quantiles(self, rounds: int, levels: int) -> dict[int, int]:
        """`rounds` rounds that have, together, at least as many stragglers as the law expects: {S: rounds}.

        The rounds are cut into at most `levels` equal blocks; each takes the upper quantile of its block.
        """
        cdf = np.cumsum(self.pmf)
        result: dict[int, int] = {}
        blocks, last = min(levels, rounds), 0
        for block in range(blocks):
            size = rounds // blocks + (block < rounds % blocks)
            last += size
            s = min(int(np.searchsorted(cdf, last / rounds * (1 - 1e-12))), self.bound)
            result[s] = result.get(s, 0) + size
        return result


def uniform(bound: int) -> StragglerLaw:
    """The paper's law: every number of stragglers in 0..bound is equally likely."""
    bound = integer("stragglers", bound, 0)
    return StragglerLaw(f"uniform on 0..{bound}", np.full(bound + 1, 1 / (bound + 1)))


def binomial(bound: int, clients: int, failure: float) -> StragglerLaw:
    """Each of `clients` fails by itself with probability `failure`, given that at most `bound` do."""
    bound, failure = integer("stragglers", bound, 0, clients), probability("failure", failure)
    s = np.arange(bound)
    steps = np.log((clients - s) / (s + 1)) + math.log(failure) - math.log1p(-failure)
    log_pmf = np.concatenate([[0.0], np.cumsum(steps)])  # log P(S = s)/P(S = 0)
    pmf = np.exp(log_pmf - log_pmf.max())
    return StragglerLaw(f"binomial({clients}, {failure:g}) up to {bound}", pmf / pmf.sum())


def custom(bound: int, pmf: Sequence[float] | NDArray[np.float64]) -> StragglerLaw:
    """P(S = s) as given, for s = 0, 1, ...; what is not given up to `bound` is 0."""
    bound = integer("stragglers", bound, 0)
    values = np.asarray(pmf, dtype=float)
    if values.ndim != 1 or not 1 <= len(values) <= bound + 1:
        raise ArgumentError(f"pmf must list 1 to {bound + 1} probabilities for 0..{bound}, got shape {values.shape}")
    if not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ArgumentError(f"pmf must hold finite probabilities >= 0, got pmf={values.tolist()}")
    total = float(values.sum())
    if abs(total - 1) > _SUM_TOLERANCE:
        raise ArgumentError(f"pmf must sum to 1, got a sum of {total:.10g}")
    padded = np.zeros(bound + 1)
    padded[: len(values)] = values / total
    return StragglerLaw(f"given, on 0..{bound}", padded)


def parse(spec: str, bound: int, clients: int) -> StragglerLaw:
    """The law that a text names: "uniform", "binomial:P" or "pmf:P0,P1,...".

    >>> parse("pmf:0.5,0.5", bound=1, clients=10).mean(lambda s: s)
    0.5

    Raises:
        ArgumentError: the text names none.
    """
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
