"""What a run needs to go on: its state in a file beside the record, and the record cut back to it."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lightdp._files import durable
from lightdp.errors import ArgumentError
from lightdp.training.config import PLACES

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.planning import Plan
    from lightdp.training.config import Config


class ResumeError(ArgumentError):
    """There is no going on from this checkpoint and record; both were left as they are."""


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


def cut(record: Path, rounds: int) -> list[dict[str, Any]]:
    """Cut a record back to its first line and `rounds` more, and return these.

    What comes after them, also a line that was cut in half when the run was killed, is made again.

    Raises:
        ResumeError: the record does not have them; it is left as it is.
    """
    try:
        kept = record.read_bytes().splitlines(keepends=True)[: rounds + 1]
        lines = [json.loads(line) for line in kept]
        whole = [line.get("round", 0) for line in lines] == list(range(rounds + 1))
    except (OSError, ValueError, AttributeError):
        whole = False
    if not whole:
        raise ResumeError(
            f"resume needs the record of the {rounds} rounds of its checkpoint, got {record} without some of them; "
            "without resume the run starts anew"
        )
    os.truncate(record, sum(map(len, kept)))
    return lines
