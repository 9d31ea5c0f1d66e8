"""What a run needs to go on, beside its log: the state after its last round, in a file of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lightdp._files import durable
from lightdp.runlog import ResumeError
from lightdp.training.config import PLACES

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.planning import Plan
    from lightdp.training.config import Config


@dataclass
class State:
    """What changes from round to round, all of it in a checkpoint."""

    weights: torch.Tensor
    velocity: torch.Tensor
    average: torch.Tensor
    round: int = 0
    seconds: float = 0.0  # of all sessions so far
    seen: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)  # used and late, for the odometer


def write(path: Path, config: Config, plan: Plan | None, state: State, channel: list[Any]) -> None:
    """The whole checkpoint, or none: a SHA-256, and what it is of."""
    content = {
        "config": dataclasses.asdict(config),
        "plan": _digest(plan),
        "state": dataclasses.asdict(state),
        "channel": channel,
    }
    packed = io.BytesIO()
    torch.save(content, packed)
    with durable(path) as file:
        file.write(hashlib.sha256(packed.getbuffer()).digest())
        file.write(packed.getbuffer())


def read(path: Path, config: Config, plan: Plan | None, device: torch.device) -> tuple[State, list[Any]]:
    """The state of the run and that of its channel.

    Raises:
        ResumeError: the file is damaged, or from a run with other settings or other noise.
    """
    try:
        with path.open("rb") as file:
            wanted, packed = file.read(32), file.read()
        if hashlib.sha256(packed).digest() != wanted:
            raise ValueError  # noqa: TRY301  as any other damage
        content = torch.load(io.BytesIO(packed), weights_only=True, map_location=device)
        was, noise, channel = content["config"], content["plan"], content["channel"]
        state = State(**content["state"])
    except (OSError, EOFError, KeyError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError) as error:
        raise ResumeError(
            f"resume needs a whole checkpoint, got {path}: {type(error).__name__}; without resume the run starts anew"
        ) from None
    for name, value in dataclasses.asdict(config).items():
        if name not in PLACES and was.get(name) != value:
            raise ResumeError(
                f"resume needs the settings of the interrupted run: {name} was {was.get(name)!r}, got {name}={value!r}"
            )
    if noise != _digest(plan):
        raise ResumeError(
            f"resume needs the noise of the interrupted run, got {path} of a version that chose another for the same "
            "settings; without resume the run starts anew"
        )
    state.seen = [(tuple(used), tuple(late)) for used, late in state.seen]
    return state, channel


def _digest(plan: Plan | None) -> str | None:
    return None if plan is None else plan.digest().hex()
