"""Graphs by their names: complete, circulant:DEGREE[:SEED], random:DEGREE, auto."""

from __future__ import annotations

import re
from typing import Any

from lightdp._settings import takes
from lightdp.errors import ArgumentError, InfeasibleError
from lightdp.planning._plan import Plan, solve
from lightdp.planning._request import Request

AUTO_COMPLETE = 1000
"""With so many clients or fewer, "auto" takes the complete graph."""

AUTO_WITHIN = 1.25
"""With more, the least degree of a random graph whose plan leaves at most so many times the complete graph's noise."""

_NAMED = re.compile("complete|(circulant|random):([0-9]{1,20})(?::([0-9]{1,20}))?")


def graph_settings(graph: str, clients: int) -> dict[str, Any]:
    """The settings of a `Request` for a graph by its name, other than "auto".

    Raises:
        ArgumentError: the text names no graph, or one with too many peers.

    >>> graph_settings("random:100", clients=10_000)
    {'degree': 100, 'random': True}
    """
    found = _NAMED.fullmatch(graph) if isinstance(graph, str) else None
    if found is None or (found[1] == "random" and found[3] is not None):
        raise ArgumentError(
            "graph must be complete, circulant:DEGREE, circulant:DEGREE:SEED, random:DEGREE or auto, "
            f"got graph={graph!r}"
        )
    kind, degree, seed = found.groups()
    if kind is None:
        return {}
    if int(degree) >= clients:
        raise ArgumentError(f"graph must have a degree below clients={clients}, got graph={graph!r}")
    return {"degree": int(degree)} | ({"random": True} if kind == "random" else {"graph_seed": int(seed or 0)})


def sparsest(asked: Request) -> Plan:
    """The plan of a request whose graph is left to it: see `AUTO_COMPLETE` and `AUTO_WITHIN`."""
    whole = solve(asked)
    if asked.clients <= AUTO_COMPLETE:
        return whole
    low, high = 8, asked.clients // 2
    best = whole
    while low <= high:
        degree = (low + high) // 2 if high < 2 * low else round((low * high) ** 0.5)
        try:
            found = solve(asked.but(gamma=asked.gamma, degree=degree, random=True))
        except InfeasibleError:
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
            are not as usual, calibration, clip, unit, adjacency, sampling_rate, momentum, ema, population, degree,
            graph_seed, random, straggler_law, gamma, reserve, grace, late, records, parameters, coordinate_range,
            wire_steps and rotate; `help(lightdp.Request)` describes each. And `graph` names the graph: "complete",
            "circulant:DEGREE", "random:DEGREE", an expander for large rosters (S1), or "auto".

    >>> found = plan(clients=20, colluders=4, stragglers=4, rounds=60, epsilon=3, delta=1e-5, calibration="repair")
    >>> round(found.noise_in_mean(), 3)
    0.58

    Raises:
        ArgumentError: a setting is out of range; the message names it and its value.
        InfeasibleError: no noise gives what is asked, for example secure aggregation with N <= C̄ + S̄, or sums of
            uploads do not fit the wire.
    """
    graph = settings.pop("graph", "complete")
    try:
        if graph == "auto":
            return sparsest(Request(**settings))
        return solve(Request(**settings, **graph_settings(graph, settings.get("clients", 0))))
    except TypeError as error:
        raise TypeError(str(error).replace("Request.__init__()", "plan()")) from None
