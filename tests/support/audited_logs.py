"""Logs of runs as the simulator writes them, without training: who came is drawn, privacy is counted for real."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

import lightdp
from lightdp import gaussian
from lightdp.accountant import Odometer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lightdp.planning import Plan

Lines = list[dict[str, Any]]
Rounds = list[tuple[list[int], list[int]]]


def a_plan(calibration: str = "repair", **changed: Any) -> Plan:
    asked = {"clients": 8, "colluders": 2, "stragglers": 2, "rounds": 12, "epsilon": 6.0, "delta": 1e-5}
    return lightdp.plan(**asked | {"unit": "client", "calibration": calibration} | changed)


def some_rounds(plan: Plan, count: int, seed: int = 1, *, void: int | None = 2) -> Rounds:
    """Used and late clients; round `void` has too few uploads, and what came counts as late."""
    draw, result = random.Random(seed), []  # noqa: S311  who straggles, nothing that protects
    for number in range(count):
        missing = draw.sample(range(plan.clients), plan.stragglers + (number == void))
        seen = [i for i in range(plan.clients) if i not in missing]
        late = sorted(i for i in missing if draw.random() < 0.5)
        result.append(([], sorted([*seen, *late])) if number == void else (seen, late))
    return result


def lines_of(
    plan: Plan, rounds: Sequence[tuple[Sequence[int], Sequence[int]]], *, joins: Sequence[int] = (), **config: Any
) -> Lines:
    """The lines of a log in which these rounds happened; under grace `joins` were always used one round late (R5)."""
    odometer, least = Odometer(plan), plan.clients - plan.stragglers
    joined: list[int] = []
    lines: Lines = []
    spent = 0.0
    calibration = plan.request.calibration
    settings = {"scheme": calibration, "clients": plan.clients, "unit": plan.unit, "epsilon_per": "training"}
    lines.append({
        "kind": "run", "config": settings | config, "plan": plan.to_dict(), "versions": {}, "commit": None,
        "partition": None, "parameters": 10, "device": "cpu", "network": None,
    })  # fmt: skip
    for number, (used, late) in enumerate(rounds, 1):
        odometer.record(used, late)
        spent, lost = odometer.max_epsilon(), sorted({*range(plan.clients)} - {*used} - {*late})
        now = [i for i in used if i not in joins]
        now = [] if len(now) < least else now  # too few on time: all wait for the next sum
        said, after = {"joined": len(joined), "joined_clients": joined}, [i for i in used if i not in now]
        variance = plan.individual_in_sum(len(now) + len(joined)) if now or joined else 0.0
        left = plan.residual_in_sum(len(now)) if now else 0.0
        lasting, residual = (variance, left) if plan.repairs else (variance + left, 0.0)
        joined, seen = after, sorted([*late, *after])
        lines.append({
            "kind": "round", "round": number, "accuracy": None, "loss": None, "epsilon": spent,
            "mu": gaussian.mu(spent, plan.delta, up=True), "used": len(now), "late": len(seen), "lost": len(lost),
            "late_clients": seen, "lost_clients": lost, "noise_std": math.sqrt(lasting) / plan.clients,
            "residual_std": math.sqrt(residual) / plan.clients, **(said if plan.grace else {}),
        })  # fmt: skip
    lines.append({
        "kind": "end", "accuracy": 0.5, "epsilon": spent, "mu": gaussian.mu(spent, plan.delta, up=True),
        "epsilon_claimed": plan.budget, "delta": plan.delta, "unit": plan.unit, "adjacency": plan.adjacency,
        "rounds": len(rounds), "stopped": None, "bytes_up": 1, "bytes_down": 1, "seconds": 1.0, "statement": [],
        **({"joined": len(joined), "joined_clients": joined} if plan.grace else {}),
    })  # fmt: skip
    return lines


def saved(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
