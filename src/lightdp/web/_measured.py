"""Accuracy that was measured: a summary of the results that the repository keeps, bundled with the package.

`lightdp_lab.measured` makes the summary.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from lightdp.planning import Plan
from lightdp.schemes import BUILT_IN

_FILE = Path(__file__).with_name("measured.json")


@cache
def _bundled() -> list[dict[str, Any]]:
    return json.loads(_FILE.read_text(encoding="utf-8"))


def nearest(plan: Plan) -> list[dict[str, Any]]:
    """For each model and scheme the measured curve whose ε, then whose shares of colluders and stragglers, are nearest.

    >>> import lightdp
    >>> plan = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5)
    >>> {each["epsilon"] for each in nearest(plan)}
    {3.0}
    """

    def distance(one: dict[str, Any]) -> tuple[float, float]:
        counts = (one["colluders"], plan.colluders), (one["stragglers"], plan.stragglers)
        shares = ((theirs / one["clients"], own / plan.clients) for theirs, own in counts)
        return abs(math.log(one["epsilon"] / plan.budget)), sum(abs(left - right) for left, right in shares)

    best: dict[tuple[str, str], dict[str, Any]] = {}
    for one in _bundled():
        key = one["model"], one["scheme"]
        if key not in best or distance(one) < distance(best[key]):
            best[key] = one
    return [one | {"label": BUILT_IN[one["scheme"]].label} for one in best.values()]


def nearest_model(plan: Plan) -> str:
    """The measured model whose sampling rate is nearest, on a log scale.

    >>> import lightdp
    >>> asked = dict(clients=4, colluders=1, stragglers=1, rounds=3, epsilon=2, delta=1e-5)
    >>> [nearest_model(lightdp.plan(**asked, sampling_rate=rate)) for rate in (1, 0.1)]
    ['scattering-linear', 'wrn-16-4']
    """
    return min(_bundled(), key=lambda one: abs(math.log(one["sampling_rate"] / plan.sampling_rate)))["model"]
