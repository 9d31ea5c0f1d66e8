"""What a run needs to go on: its state in a file beside the record, and the record cut back to it."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lightdp._check import ArgumentError
from lightdp._files import durable

if TYPE_CHECKING:
    from pathlib import Path

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


def write(path: Path, config: Config, state: State, channel: list[Any]) -> None:
    """The whole checkpoint, or none."""
    content = {"config": dataclasses.asdict(config), "state": dataclasses.asdict(state), "channel": channel}
    with durable(path) as file:
        torch.save(content, file)


def read(path: Path, config: Config, device: torch.device) -> tuple[State, list[Any]]:
    """The state of the run and that of its channel.

    Raises:
        ArgumentError: the file is damaged, or from a run with other settings.
    """
    try:
        content = torch.load(path, weights_only=True, map_location=device)
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        raise ArgumentError(
            f"resume needs a whole checkpoint, got {path}: {type(error).__name__}; without resume the run starts anew"
        ) from None
    for name, value in dataclasses.asdict(config).items():
        if (was := content["config"].get(name)) != value:
            raise ArgumentError(
                f"resume needs the settings of the interrupted run: {name} was {was!r}, got {name}={value!r}"
            )
    state = State(**content["state"])
    state.seen = [(tuple(used), tuple(late)) for used, late in state.seen]
    return state, content["channel"]


def cut(record: Path, rounds: int) -> list[dict[str, Any]]:
    """Cut a record back to its first line and `rounds` more, and return these.

    What comes after them, also a line that was cut in half when the run was killed, is made again.

    Raises:
        ArgumentError: the record does not have them; it is left as it is.
    """
    try:
        kept = record.read_bytes().splitlines(keepends=True)[: rounds + 1]
        lines = [json.loads(line) for line in kept]
        whole = [line.get("round", 0) for line in lines] == list(range(rounds + 1))
    except (OSError, ValueError, AttributeError):
        whole = False
    if not whole:
        raise ArgumentError(
            f"resume needs the record of the {rounds} rounds of its checkpoint, got {record} without some of them; "
            "without resume the run starts anew"
        )
    os.truncate(record, sum(map(len, kept)))
    return lines
