"""Records of compared schemes, and figures and sentences about them: the same in the terminal and on the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightdp import attack, gaussian
from lightdp._validate import rounded_up
from lightdp.errors import ArgumentError
from lightdp_lab.compare import speeds


def read_record(path: Path) -> dict[str, Any]:
    """What `lightdp compare --json` wrote.

    Args:
        path: the file.

    Raises:
        ArgumentError: it is something else.
    """
    refused, found = f"record must be what --json wrote, got record={str(path)!r}", None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refused += f": {error}"
    if not isinstance(found, dict) or not {"setting", "rows", "scaling"} <= set(found):
        raise ArgumentError(refused)
    return found


def mu_of(epsilon: float, at: Mapping[str, Any]) -> str:
    """The μ of an ε at the δ of a setting, all of whose schemes use whole batches."""
    return rounded_up(gaussian.mu(epsilon, at["delta"], up=True), 3)


def exceeds(row: Mapping[str, Any], at: Mapping[str, Any]) -> bool:
    """Whether a scheme's true ε is above the one that all were asked for."""
    return row["epsilon"] is not None and row["epsilon"] > at["epsilon"] * (1 + 1e-9)


def _power(at: Mapping[str, Any]) -> float:
    return gaussian.power(gaussian.mu(at["epsilon"], at["delta"], up=True), attack.FALSE_POSITIVES)


def figure(value: float, mark: str = "") -> str:
    """Three digits, or what is left of them above 1000; 0 as a dash."""
    if value == 0:
        return "–"
    digits = ",.0f" if value >= 100 else ".2g" if value < 0.1 else ".3g"
    return f"{mark}{value:{digits}}"


def broke(row: Mapping[str, Any]) -> str:
    """What ended rounds, most frequent stage first, with an example; and what each of the others then costs."""
    stages: dict[str, list[Mapping[str, Any]]] = {}
    for failure in row["failures"]:
        stages.setdefault(failure["stage"], []).append(failure)
    words = [f"{stage} {sum(one['count'] for one in found)}×: {found[0]['why']}" for stage, found in stages.items()]
    spent = row.get("spent")
    if stages and spent is not None:
        work, sent = figure(1e3 * spent["client"]), figure(spent["traffic"] / 1e3)
        words.append(f"a sum takes a client {work} ms and {sent} kB")
    return "; ".join(words)


def notes(record: Mapping[str, Any]) -> list[str]:
    """What to know to read the table."""
    at, rows = record["setting"], [row for row in record["rows"] if row["impossible"] is None]
    target = f"true ε = {at['epsilon']:g} and clip {at['clip']:g}"
    planned = any(row["scheme"] in ("exact", "exact-sparse", "repair") for row in rows) and "straggler_law" in at
    missed = f"Where a scheme's own σ misses ε, its noise is shown scaled to a true ε = {at['epsilon']:g}."
    lines = {
        f"done: rounds with a sum. noise: variance left for good in a coordinate of the mean, at a {target}.": True,
        missed: any(exceeds(row, at) for row in rows),
        f"kB: of one client and round, without the model itself. round: modelled on {speeds(at)}.": True,
        f"LightDP's noise is tuned to stragglers by the law {at.get('straggler_law')}; SMPC's is for S̄.": planned,
        attack.sentence(_power(at), "client", "add-remove"): any(row["epsilon"] is not None for row in rows),
        "~: not measured; on the line through two smaller sizes that were.": not all(row["measured"] for row in rows),
        "Where no round was done, the costs are those of a round without faults.": any(row["clean"] for row in rows),
        "Interrupted: what had been played until then.": record.get("stopped", False),
    }
    return [line for line, applies in lines.items() if applies]
