"""Would a schedule of noise over the rounds pay (D7)? What the trained model carries, beside equal noise in all rounds.

In round t data would be scaled by s_t before it is masked, and the sum by 1/s_t after: the round costs s_t² times as
much, and its noise counts 1/s_t² times. With g_t what a unit of noise of round t moves the evaluated model by, the best
s_t² is proportional to g_t, and the noise falls to (Σ g)²/(T Σ g²) of that with equal rounds.

Run: python benchmarks/schedule.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import lightdp

ROUNDS = (60, 150, 300)
SERVERS = ((0.0, 0.0), (0.9, 0.0), (0.9, 0.95), (0.9, 0.99))  # momentum, ema
SHRINKING = (0.0, 0.01, 0.05)  # share of the distance to the optimum that a step of length 1 takes away


def response(rounds: int, momentum: float, ema: float, shrink: float = 0.0) -> NDArray[np.float64]:
    """g_t: what is left of a unit of noise in each round in the model that `lightdp run` evaluates. (rounds,)"""
    velocity, weights, average = np.zeros((3, rounds))
    for number in range(rounds):
        velocity = momentum * velocity - shrink * (1 - momentum) * weights
        velocity[number] += 1
        weights = weights + velocity
        decay = min(ema, (1 + number) / (10 + number))
        average = decay * average + (1 - decay) * weights
    return average


def gain(moved: NDArray[np.float64]) -> float:
    """Noise with the best schedule over that with equal rounds."""
    size = np.abs(moved)
    return float(size.sum() ** 2 / (len(size) * (size**2).sum()))


def left_by_repair(moved: NDArray[np.float64], transient: float) -> tuple[float, float]:
    """Noise of residuals that is left beside noise that stays, with the best schedule and with equal rounds.

    A residual comes in with round t, scaled by 1/s_t, and goes out with the next, scaled by 1/s_{t+1}. Rounds whose
    share would be below a tenth of the mean keep that.
    """
    shares = np.maximum(np.abs(moved), 0.1 * np.abs(moved).mean())
    scale = np.sqrt(shares / shares.mean())  # s_t, of mean square 1
    scheduled, equal = (
        transient * float((np.diff(inward) ** 2).sum() / (inward**2).sum()) for inward in (moved / scale, moved)
    )
    return scheduled, equal


def main() -> None:
    """A line for each number of rounds and server."""
    asked = {"clients": 50, "colluders": 10, "stragglers": 10, "epsilon": 3.0, "delta": 1e-5}
    print("rounds  momentum  ema   noise with the best schedule, by what a step shrinks  residuals: scheduled, equal")
    for rounds in ROUNDS:
        for momentum, ema in SERVERS:
            plan = lightdp.plan(**asked, rounds=rounds, calibration="repair")  # type: ignore[arg-type]
            ratios = [gain(response(rounds, momentum, ema, shrink)) for shrink in SHRINKING]
            transient = plan.transient_in_mean() / plan.noise_in_mean()
            residuals = left_by_repair(response(rounds, momentum, ema), transient)
            shown = "  ".join(f"{shrink:g}: {ratio:.3f}" for shrink, ratio in zip(SHRINKING, ratios, strict=True))
            print(f"{rounds:6}  {momentum:8g}  {ema:4g}  {shown:>52}  {residuals[0]:.4f}, {residuals[1]:.4f}")


if __name__ == "__main__":
    main()
