"""The server's step: linear in the noisy sum, so that repair takes out of the model exactly what came in (R4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from lightdp.training.checkpoint import State
from lightdp.training.config import Config
from lightdp.training.roster import Impulse, Roster

_JOINING = 10  # rounds over which the layers below the last one join


def stepped(
    config: Config, old: State, roster: Roster, total: torch.Tensor | None, rosters: Iterable[Roster] = (), *,
    head: int = 0,
) -> State:  # fmt: skip
    """The state after a round; without a sum only time goes on.

    Args:
        config: learning rate, momentum and averaging.
        old: the state before.
        roster: whose round it was.
        total: its sum; None if there is none. (parameters,)
        rosters: all that take turns, whose last sums go on to act by momentum.
        head: parameters of the last layer, which come last; the others wait for `config.head_rounds`.
    """
    after, decay = dataclasses.replace(old, round=old.round + 1), _decay(config, old.round)
    if total is not None:
        after.velocity = (old.velocity * config.momentum).add_(total, alpha=share(config, roster))
        after.weights = _moved(config, old, after.velocity, head)
        after.average = (old.average * decay).add_(after.weights, alpha=1 - decay)
        for each in rosters:
            each.impulse = None if each.impulse is None else each.impulse.later(config.momentum, decay)
    if total is not None or roster.impulse is None:
        roster.impulse = Impulse.new(decay)
    return after


def _moved(config: Config, old: State, velocity: torch.Tensor, head: int) -> torch.Tensor:
    """The weights after a step along the velocity.

    While the last layer is trained alone, the noise of the others stays in their velocity, where repair finds it. Where
    these rounds have a learning rate of their own, what repair takes out of the last layer in the first round of all
    layers is scaled by the other rate: of one round's residual noise a part stays.
    """
    share = (old.round + 1 - config.head_rounds) / _JOINING
    if config.head_rounds == 0 or share >= 1:
        return old.weights.add(velocity, alpha=config.lr)
    weights, below = old.weights.clone(), len(velocity) - head
    own = config.lr if config.head_lr is None or share > 0 else config.head_lr
    weights[below:].add_(velocity[below:], alpha=own)
    weights[:below].add_(velocity[:below], alpha=config.lr * max(share, 0.0))
    return weights


def mended(config: Config, old: State, roster: Roster, total: torch.Tensor | None) -> State:
    """The state after the closing rounds of a roster, which correct its last step: most that is left came in with it.

    What that sum has become since is taken out of velocity, weights and average, as if it had never come in. A step of
    its own would move the weights once more by momentum, without a gradient that says where to.

    Args:
        config: as for `stepped`.
        old: the state before.
        roster: whose closing rounds they are.
        total: their sum; None if there is none. (parameters,)
    """
    if total is None or roster.impulse is None:
        return old
    change, (velocity, weights, average) = config.lr * share(config, roster), roster.impulse
    return dataclasses.replace(
        old,
        velocity=old.velocity.add(total, alpha=share(config, roster) * velocity),
        weights=old.weights.add(total, alpha=change * weights),
        average=old.average.add(total, alpha=change * average),
    )


def share(config: Config, roster: Roster) -> float:
    """What a sum is multiplied by: the server descends along gradients, and follows updates."""
    return (-1.0 if config.sums else 1.0) / roster.denominator


def _decay(config: Config, number: int) -> float:
    """Decay of the average in step `number`, smaller at first, when the start would count for too much."""
    return min(config.ema, (1 + number) / (10 + number))
