"""The summary of measured accuracy that the planner of `lightdp ui` shows, made from the results of the repository.

`python -m lightdp_lab.measured results > src/lightdp/web/measured.json` makes it; a test compares.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from lightdp.schemes import BUILT_IN

_KEY = ("model", "scheme", "epsilon", "colluders", "stragglers")
_USUAL = {"arrivals": "uniform", "links": None, "unit": "record", "population": None, "epsilon_per": "training"}
_ALIKE = ("data", "partition", "clients", "rounds", "delta", "sampling_rate", "clip")


def summary(folder: Path) -> str:
    """The runs of a folder of results as JSON: for all with the same settings the mean curve over their seeds.

    Runs from a start are left out: they are another experiment than those of the same model from random weights.

    Args:
        folder: with files `training-*.jsonl`, as `lightdp reproduce` writes them.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("training-*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            config = line["config"]
            usual = all(config.get(name) == value for name, value in _USUAL.items()) and "start" not in line
            if usual and config["scheme"] in BUILT_IN:
                groups[tuple(config[name] for name in (*_KEY, *_ALIKE))].append(line)
    lines = [json.dumps(_group(key, found)) for key, found in sorted(groups.items())]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _group(key: tuple[Any, ...], found: list[dict[str, Any]]) -> dict[str, Any]:
    shortest = min(len(line["curve"]) for line in found)
    points = [[line["curve"][place][:2] for line in found] for place in range(shortest)]
    curve = [[each[0][0], round(fmean(value for _, value in each), 4)] for each in points]
    final = [line["accuracy"] for line in found]
    return (
        dict(zip((*_KEY, *_ALIKE), key, strict=True))
        | {"trials": len(found), "accuracy": round(fmean(final), 4), "least": min(final), "most": max(final)}
        | {"curve": curve}
    )


if __name__ == "__main__":
    sys.stdout.write(summary(Path(sys.argv[1])))
