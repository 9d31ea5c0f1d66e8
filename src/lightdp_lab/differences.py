"""Where the paper and this package differ, (P1)-(P7), in numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from lightdp._validate import rounded_up
from lightdp.gaussian import epsilon as true_epsilon
from lightdp.planning import Plan, paper_claims, plan
from lightdp_lab.registry import ALL
from lightdp_lab.reproduce import DIRECT, MIDDLE
from lightdp_lab.results import Results
from lightdp_lab.schemes import SCHEMES
from lightdp_lab.tables import MODELS, known

ONE_ROUND: dict[str, Any] = {
    "clients": 50, "rounds": 1, "delta": 1e-5, "late": "unseen", "wire_steps": 16, "masks": "gaussian"
}  # fmt: skip
"""A round as the paper has it, with Gaussian masks and no rounding: on a wire so fine that rounding hardly shows."""
_WORDS = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


def printed_plan(epsilon: float, **at: int) -> Plan:
    """The paper's noise for an ε of one round.

    >>> printed_plan(3.0, colluders=10, stragglers=10).understates
    True
    """
    return plan(**ONE_ROUND | at, epsilon=epsilon, calibration="paper")


def composed(one: Plan, rounds: int) -> float:
    """What so many rounds of a plan for one cost."""
    return true_epsilon(math.sqrt(rounds) * one.sensitivity / one.sigma_effective, one.delta)


def differences(results: Results) -> str:
    """A list for a page; without (P7) where it was not run."""
    found = _numbers() | _links(results) | {"measured": _measured(results)}
    items = [" ".join(item.split()) for item in _WORDS.split("\n\n")]
    return "\n".join(item.format_map(found) for item in items if "{both}" not in item or found["both"])


def _numbers() -> dict[str, Any]:
    one, smpc = printed_plan(3.0, **MIDDLE), _middle(calibration="smpc").noise_in_mean()
    exact, own, true = _middle(calibration="exact"), one.noise_in_mean(), one.epsilon()
    claims = {claim.rule: claim.true for claim in paper_claims(_middle(calibration="paper", rounds=150))}
    whole = _middle(calibration="smpc", rounds=150).noise_in_mean()
    repairs = {
        "repair": _middle(calibration="repair", rounds=150),
        "averaged": _middle(calibration="repair", rounds=150, ema=0.95),
        "seen": _middle(calibration="repair", rounds=150, late=0.0),
        "averaged_seen": _middle(calibration="repair", rounds=150, late=0.0, ema=0.95),
    }
    carried = {name: one.noise_carried() / whole for name, one in repairs.items()}
    return {
        "printed": one.sigma_effective,
        "true": rounded_up(true, 3),
        "needed": exact.sigma_effective,
        "large": rounded_up(printed_plan(30.0, **MIDDLE).epsilon(), 2),
        "footnote": rounded_up(claims["T rounds, footnote: σ² × √T"], 2),
        "unscaled": rounded_up(claims["T rounds, unscaled"], 1),
        "weighted": _uncancelled(exact),
        "own": own,
        "smpc": smpc,
        "ratio": own / smpc,
        "fair": own / _middle(calibration="smpc", epsilon=true).noise_in_mean(),
        "exact": _middle(calibration="exact", rounds=150).noise_in_mean() / whole,
        **{name: one.noise_in_mean() / whole for name, one in repairs.items()},
        "carried": carried.pop("repair"),
        **{f"{name}_carried": ratio for name, ratio in carried.items()},
    }


def _measured(results: Results) -> str:
    """How wrong Δ is, where it was measured."""
    found = []
    for line in results.sensitivities():
        if line["config"]["data"] == "cifar10":
            model, median, largest = MODELS[line["config"]["model"]], line["ratio"]["median"], line["ratio"]["largest"]
            found.append(f"{model} by {median:.3g} Δ (median) and up to {largest:.3g} Δ")
    return f" Replacing one record moves an update of one epoch of {'; of '.join(found)}." if found else ""


def _middle(**chosen: Any) -> Plan:  # noqa: ANN401  as `plan`
    return plan(**ONE_ROUND | MIDDLE | {"epsilon": 3.0} | chosen)


def _uncancelled(chosen: Plan) -> float:
    """Variance of masks that were weighted after masking, beside that of individual noise, for weights 1 and 2."""
    half = chosen.clients // 2
    left = half * half * (2 - 1) ** 2 * chosen.sigma_pairwise**2
    return left / (half * (1 + 4) * chosen.sigma_individual**2)


def _links(results: Results) -> dict[str, Any]:
    cells = [cell for cell in known(results, "time", "repair") if cell.lines]
    found = {(cell.config.scheme, cell.config.links): cell.lines[0] for cell in cells}
    both = [
        f"{ALL[name].title} {found[name, 'relayed']['failed']} and {found[name, DIRECT]['failed']}"
        for name in SCHEMES
        if {(name, "relayed"), (name, DIRECT)} <= set(found)
    ]
    return {"rounds": max((line["rounds"] for line in found.values()), default=0), "both": "; ".join(both)}
