"""What a run needs to go on, beside its log: the state after its last round, in a file of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lightdp._files import durable
from lightdp.planning import Plan
from lightdp.runlog import ResumeError
from lightdp.training.config import PLACES, Config
from lightdp.training.identity import Identity

_FORMAT = 4  # what is in a checkpoint, and how `State.members` is laid out


@dataclass
class State:
    """All that changes from round to round. The tensors are replaced, never changed in place.

    Attributes:
        weights: of the model. (parameters,)
        velocity: the server's momentum. (parameters,)
        average: of the weights over rounds. (parameters,)
        round: how many rounds are over.
        seconds: that they took, in all sessions.
        counts: sum of the histograms that find bounds of columns (E6); None if all are known. (k BINS,)
        members: what `Membership.state` returned after the last round: rosters, who came to their rounds, channels.
    """

    weights: torch.Tensor
    velocity: torch.Tensor
    average: torch.Tensor
    round: int = 0
    seconds: float = 0.0
    counts: torch.Tensor | None = None
    members: dict[str, Any] = field(default_factory=dict)


def write(
    path: Path, config: Config, plan: Plan | None, identity: Identity, state: State, *, replace: bool = True
) -> None:
    """Replace the file by a checkpoint of `state`, whole or not at all: a SHA-256, and what it is of.

    Args:
        path: the file.
        config: the settings of the run.
        plan: its noise.
        identity: its data, module and start.
        state: after the last round that is over.
        replace: whether there may be such a file.

    Raises:
        FileExistsError: there is one, and it may not be replaced.
    """
    facts = {"format": _FORMAT, "config": dataclasses.asdict(config), "plan": _digest(plan)}
    facts["identity"] = {name: None if found is None else dict(found) for name, found in identity.items()}
    content = facts | {"state": vars(state)}
    packed = io.BytesIO()
    torch.save(content, packed)
    with durable(path, replace=replace) as file:
        file.write(hashlib.sha256(packed.getbuffer()).digest())
        file.write(packed.getbuffer())


def read(path: Path, config: Config, plan: Plan | None, identity: Identity, device: torch.device) -> State:
    """The state in a checkpoint of the same run.

    Args:
        path: the file.
        config: the settings; only `PLACES` may differ from those of the interrupted run, and where its start lay.
        plan: the noise, which must be the same.
        identity: data, module and start, likewise, whatever the data set and the file of the start are called.
        device: where to put tensors.

    Raises:
        ResumeError: the file is damaged, of another version, or from a run with other settings, other noise, or
            another data set, module or start.
    """
    try:
        with path.open("rb") as file:
            wanted, packed = file.read(32), file.read()
        if hashlib.sha256(packed).digest() != wanted:
            raise ValueError  # noqa: TRY301  as any other damage
        content = torch.load(io.BytesIO(packed), weights_only=True, map_location=device)
        layout, was, noise = content.get("format"), content["config"], content["plan"]
        before = content.get("identity", {})
        state = State(**content["state"])
    except (OSError, EOFError, KeyError, RuntimeError, TypeError, ValueError, pickle.UnpicklingError) as error:
        raise ResumeError(
            f"resume needs a whole checkpoint, got {path}: {type(error).__name__}; without resume the run starts anew"
        ) from None
    if layout != _FORMAT:
        raise ResumeError(
            f"resume needs a checkpoint of this version, got {path} of another; without resume the run starts anew"
        )
    was = {"masks": config.masks} | was  # older ones do not say: their noise decides
    for name, value in dataclasses.asdict(config).items():
        if name not in {*PLACES, "start"} and was.get(name) != value:
            then, now = ("default" if each is None else repr(each) for each in (was.get(name), value))
            raise ResumeError(f"resume needs the settings of the interrupted run: {name} was {then}, got {name}={now}")
    for name, found in identity.items():
        _refuse_another(name, before.get(name), found)
    if noise != _digest(plan):
        raise ResumeError(
            f"resume needs the noise of the interrupted run, got {path} of a version that chose another for the same "
            "settings, perhaps since it had masks='gaussian' alone; without resume the run starts anew"
        )
    return state


def _refuse_another(name: str, was: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> None:
    """Raise `ResumeError` for another data set, module or start than that of the interrupted run."""
    same = ("digest", "name") if name == "module" else ("digest",)
    if (was is None) == (now is None) and (was is None or now is None or all(was[key] == now[key] for key in same)):
        return
    texts = (
        "none" if each is None else f"{each['file' if name == 'start' else 'name']} ({each['digest'][:12]})"
        for each in (was, now)
    )
    then, this = texts
    raise ResumeError(f"resume needs the {name} of the interrupted run, which was {then}, got {this}")


def _digest(plan: Plan | None) -> str | None:
    return None if plan is None else plan.digest().hex()
